//! Schedules on several nodes at once.

use std::time::Duration;

use postgres::Client;

use crate::judge::approve;
use crate::site::{LEASE, Site, number, until};

/// C48: several nodes fire one schedule, one of them is killed, another comes and says again what the schedule is: each
/// tick has one job, and none is left out.
#[test]
fn a_tick_has_one_job_on_however_many_nodes() {
    let site = Site::new();
    let mut nodes = vec![site.node(LEASE), site.node(LEASE), site.node(LEASE)];
    for node in &mut nodes {
        node.ask("every tick 1000", "scheduled");
    }
    let mut client = site.client();
    let ended = "SELECT count(*) FROM history WHERE schedule = 'tick'";
    until("two ticks", || number(&mut client, ended, &[]) >= 2);
    nodes.remove(0).kill();
    let mut new = site.node(LEASE);
    new.ask("every tick 1000", "scheduled");
    nodes.push(new);
    let seen = number(&mut client, ended, &[]);
    until("three more", || number(&mut client, ended, &[]) >= seen + 3);
    ticks_are_whole(&mut client, Duration::from_secs(1));
    drop(nodes);
    approve(&mut client, "a schedule");
}

/// One job per tick, and each tick that has none is counted as missed by the job that made up for it.
pub(crate) fn ticks_are_whole(client: &mut Client, period: Duration) {
    let all =
        "SELECT due, missed FROM (SELECT * FROM sched UNION ALL SELECT * FROM job UNION ALL SELECT * FROM history) j
               WHERE schedule = 'tick' ORDER BY due";
    let jobs = client.query(all, &[]).unwrap();
    let jobs: Vec<(i64, i64)> = jobs.iter().map(|row| (row.get(0), row.get(1))).collect();
    let period = i64::try_from(period.as_micros()).unwrap();
    for pair in jobs.windows(2) {
        let [(before, _), (due, missed)] = [pair[0], pair[1]];
        assert_eq!(due - before, (1 + missed) * period, "{jobs:?}");
    }
    let fired = number(client, "SELECT fired FROM schedule WHERE name = 'tick'", &[]);
    assert!(fired >= 5 && fired == i64::try_from(jobs.len()).unwrap(), "{fired}: {jobs:?}");
}
