//! The server is lost for good, and its standby takes its place.

use std::time::Duration;

use fastrand::Rng;
use punctual_testkit::cluster::pause;
use punctual_testkit::postgres::{Schema, Server};
use punctual_testkit::seeds;

use crate::judge::approve;
use crate::process::Process;
use crate::site::{LEASE, Site, number, until};

/// C37, C38, C51: with a synchronous standby nothing that was acknowledged is lost with the server: nodes and callers
/// find the one that takes its place by themselves, and nothing runs twice without a higher fence.
#[test]
fn a_standby_takes_over_and_nothing_is_lost() {
    for seed in seeds(1) {
        // At once; or after so long that leases have ended.
        let millis = if seed == 0 { 0 } else { Rng::with_seed(seed).u64(0..6_000) };
        fail_over(Duration::from_millis(millis));
    }
}

fn fail_over(away: Duration) {
    let pair = Server::start_pair();
    let site = Site::at(Schema::at(pair.url()));
    let mut nodes = [site.node(LEASE), site.node(LEASE)];
    let mut callers = [site.process(LEASE), site.process(LEASE)];
    let held = site.hold("held", 2);
    let mut acknowledged: Vec<String> = held.iter().map(ToString::to_string).collect();
    for caller in &mut callers {
        caller.tell("flow acme");
        acknowledged.extend((0..50).map(|_| caller.hear("ack").remove(0)));
    }
    let first = number(&mut site.client(), "SELECT inet_server_port()::bigint", &[]);
    pair.stop();
    pause(away);
    pair.promote();
    let mut client = site.client();
    assert_ne!(number(&mut client, "SELECT inet_server_port()::bigint", &[]), first, "the fault happened");
    let back = number(&mut client, "SELECT witness_clock()", &[]);
    // C51 says 5 s; this is the path, with room for a busy machine.
    let runs = "SELECT count(*) FROM moves WHERE what = 'claimed' AND at > $1";
    let took = until("work goes on", || number(&mut client, runs, &[&back]) > 0);
    assert!(took < Duration::from_secs(30), "{took:?}");
    let failed: u64 = callers.iter_mut().map(|caller| flow_on(caller, &mut acknowledged)).sum();
    for node in &mut nodes {
        node.ask("open", "opened");
    }
    until("everything has ended", || number(&mut client, "SELECT count(*) FROM job", &[]) == 0);
    let lost = "SELECT count(*) FROM unnest($1::text[]) a WHERE NOT EXISTS (
                    SELECT FROM history h WHERE h.id = a::uuid AND h.outcome = 'succeeded')";
    assert_eq!(number(&mut client, lost, &[&acknowledged]), 0, "of {}", acknowledged.len());
    let report = approve(&mut client, "a fail-over");
    eprintln!(
        "promoted after {away:?}, work went on after {took:?}; {} acknowledged, {failed} tries failed; {report:?}",
        acknowledged.len()
    );
}

/// Enqueues go on, then no more; answers how many failed.
fn flow_on(caller: &mut Process, acknowledged: &mut Vec<String>) -> u64 {
    acknowledged.extend((0..20).map(|_| caller.hear("ack").remove(0)));
    let told = caller.ask("ebb", "ebbed");
    acknowledged.extend(caller.heard("ack").into_iter().map(|mut words| words.remove(0)));
    told[1].parse().unwrap()
}
