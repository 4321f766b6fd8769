//! The server goes away under load, and comes back.

use std::time::Duration;

use punctual_testkit::cluster::pause;
use punctual_testkit::postgres::{Schema, Server};

use crate::judge::approve;
use crate::site::{LEASE, Site, number, until};

/// How long it is away: longer than the leases.
const AWAY: Duration = Duration::from_secs(4);

/// C37, C38, C51: the server crashes under load and is started again: nothing that was acknowledged is lost, work
/// resumes by itself, and nobody ran against the wall meanwhile.
#[test]
fn a_server_that_crashes_and_comes_back_loses_nothing() {
    let server = Server::start();
    let site = Site::at(Schema::at(server.url()));
    let mut nodes = [site.node(LEASE), site.node(LEASE)];
    let mut callers = [site.process(LEASE), site.process(LEASE)];
    let mut acknowledged = Vec::new();
    for caller in &mut callers {
        caller.tell("flow acme");
        acknowledged.extend((0..20).map(|_| caller.hear("ack").remove(0)));
    }
    let before = nodes.each_mut().map(|node| node.status().complaints);
    server.stop();
    pause(AWAY);
    let complaints = nodes.each_mut().map(|node| node.status().complaints);
    server.start_again();
    let mut client = site.client();
    let back = number(&mut client, "SELECT witness_clock()", &[]);
    for (before, after) in before.into_iter().zip(complaints) {
        let tries = after - before;
        // The loop rests up to a second between two, and so do the heart and the ear.
        assert!((1..100).contains(&tries), "{tries} complaints in {AWAY:?}");
    }
    // C51 says 5 s; this is the path, with room for a busy machine.
    let runs = "SELECT count(*) FROM moves WHERE what = 'claimed' AND at > $1";
    let took = until("work goes on", || number(&mut client, runs, &[&back]) > 0);
    assert!(took < Duration::from_secs(30), "{took:?}");
    for caller in &mut callers {
        acknowledged.extend((0..20).map(|_| caller.hear("ack").remove(0)));
        let told = caller.ask("ebb", "ebbed");
        assert!(told[1].parse::<u64>().unwrap() > 0, "the fault happened: callers were told");
        acknowledged.extend(caller.heard("ack").into_iter().map(|mut words| words.remove(0)));
    }
    until("everything has ended", || number(&mut client, "SELECT count(*) FROM job", &[]) == 0);
    let lost = "SELECT count(*) FROM unnest($1::text[]) a WHERE NOT EXISTS (
                    SELECT FROM history h WHERE h.id = a::uuid AND h.outcome = 'succeeded')";
    assert_eq!(number(&mut client, lost, &[&acknowledged]), 0, "of {}", acknowledged.len());
    // Under an id of its own each was acknowledged once: before the crash, over it, and after.
    let ended = number(&mut client, "SELECT count(*) FROM history", &[]);
    assert!(acknowledged.len() >= 80 && ended == i64::try_from(acknowledged.len()).unwrap(), "{ended}");
    let report = approve(&mut client, "a crash of the server");
    eprintln!("work went on after {took:?}; {complaints:?} complaints; {report:?}");
}
