//! Nodes whose clocks are wrong by minutes.

use std::time::Duration;

use punctual_durable::{Outcome, Timestamp};
use punctual_testkit::block_on;
use punctual_testkit::cluster::{Hold, Work};

use crate::judge::approve;
use crate::schedules::ticks_are_whole;
use crate::site::{LONG, Site, enqueue, number, until};

/// How wrong, in seconds: further than any lease here.
const WRONG: [i64; 3] = [-600, 0, 600];

/// So many jobs at once that no two of the nodes, with eight workers each, can run them all.
const CROWD: usize = 20;

/// C43: the database's clock decides: with nodes that are minutes behind and ahead nothing is early, lost or run twice,
/// no lease ends before its time, and ticks are fired once.
#[test]
fn nodes_whose_clocks_are_wrong_do_what_others_do() {
    let site = Site::new();
    let mut nodes = WRONG.map(|seconds| site.process_with_clock(LONG, seconds));
    let mut client = site.client();
    for (node, wrong) in nodes.iter_mut().zip(WRONG) {
        node.work();
        let wall = node.status().wall.cast_signed();
        let off = wall - number(&mut client, "SELECT witness_clock() / 1000000", &[]);
        assert!((off - wrong).abs() < 60, "the fault happened: {off} is to be {wrong}");
    }
    // And each of them knows.
    let mut shown: Vec<i64> = block_on(site.jobs.nodes()).unwrap().iter().map(|node| node.clock_offset_us).collect();
    shown.sort_unstable();
    let (least, most) = (shown[0], shown[shown.len() - 1]);
    assert!((least + 600_000_000).abs() < 60_000_000 && (most - 600_000_000).abs() < 60_000_000, "{shown:?}");
    let mut acknowledged = 0;
    for node in &mut nodes {
        node.ask("every tick 1000", "scheduled");
        node.ask("after 300 8", "enqueued");
        acknowledged += node.heard("ack").len();
    }
    // And some at dates, from here.
    let now = number(&mut client, "SELECT witness_clock()", &[]);
    for later in 1..=8 {
        let date = Timestamp::from_micros(now + later * 250_000);
        block_on(site.jobs.tenant("later").at(date).enqueue(Work { millis: 0 })).unwrap();
        acknowledged += 1;
    }
    let ended = "SELECT count(*) FROM history WHERE schedule IS NULL";
    until("all have run", || number(&mut client, ended, &[]) == i64::try_from(acknowledged).unwrap());
    assert_eq!(acknowledged, 8 * 4);
    let fired = "SELECT count(*) FROM history WHERE schedule = 'tick'";
    until("five ticks", || number(&mut client, fired, &[]) >= 5);
    let again = "SELECT count(*) FROM history WHERE fence <> 1 OR outcome <> 'succeeded'";
    assert_eq!(number(&mut client, again, &[]), 0);
    // All at one instant, and each is held: so everybody has its share of them.
    let crowd = enqueue(&site.jobs.tenant("crowd").after(Duration::from_millis(500)), (0..CROWD).map(|_| Hold {}));
    let held = "SELECT count(*) FROM witness w JOIN job j ON j.id = w.job WHERE j.tenant = 'crowd'";
    until("all of the crowd have begun", || number(&mut client, held, &[]) == i64::try_from(CROWD).unwrap());
    for node in &mut nodes {
        node.ask("open", "opened");
    }
    until("the crowd is gone", || crowd.iter().all(|&job| site.record(job).state.outcome == Some(Outcome::Succeeded)));
    let each =
        "SELECT count(DISTINCT w.process) FROM witness w JOIN history h ON h.id = w.job WHERE h.tenant = 'crowd'";
    assert_eq!(number(&mut client, each, &[]), 3, "a node ran nothing");

    let twice = "SELECT count(*) - count(DISTINCT job) FROM witness";
    assert_eq!(number(&mut client, twice, &[]), 0);
    // By what the store says, and by what handlers said when they had begun: both by the database's clock.
    let early = "SELECT count(*) FROM history h LEFT JOIN witness w ON w.job = h.id
                 WHERE h.started_at < h.due OR w.started_at IS NULL OR w.started_at < h.due";
    assert_eq!(number(&mut client, early, &[]), 0);
    let foreseen = "SELECT count(*) FROM history WHERE started_at = due";
    assert!(number(&mut client, foreseen, &[]) > 0, "nothing was given before it was due");
    let late = "SELECT max(started_at - due) / 1000 FROM history";
    let late = Duration::from_millis(number(&mut client, late, &[]).cast_unsigned());
    assert!(late < LONG / 4, "{late:?}");
    assert_eq!(number(&mut client, "SELECT count(*) FROM leases WHERE what = 'gone'", &[]), 0);
    ticks_are_whole(&mut client, Duration::from_secs(1));
    drop(nodes);
    approve(&mut client, "wrong clocks");
}
