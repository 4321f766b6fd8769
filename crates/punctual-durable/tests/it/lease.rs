use std::sync::Arc;
use std::time::Duration;

use punctual::{DelayQueue, Scheduler, Stage};
use punctual_durable::{Beat, Claim, Failure, Job, JobId, Jobs, NewJob, Node, NodeId, Outcome};
use serde::{Deserialize, Serialize};

use crate::bed::{Bed, HOUR, Log, SECOND, Say, far_with_leases, say, wait, with_leases};

/// C39, C38: a node that is gone without a word; its job runs elsewhere within the lease, with a higher fence and the
/// same attempt.
#[test]
fn the_jobs_of_a_dead_node_run_elsewhere() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    let seen = log.clone();
    bed.jobs.on(move |_: Say, ctx| {
        seen.add(format!("first {} {}", ctx.attempt(), ctx.fence()));
        std::future::pending::<Result<String, Failure>>()
    });
    let node = wait(bed.jobs.start()).unwrap();
    let job = wait(bed.jobs.now().enqueue(say("x"))).unwrap();
    bed.settle();
    let other = bed.another();
    let seen = log.clone();
    other.on(move |say: Say, ctx| {
        seen.add(format!("second {} {}", ctx.attempt(), ctx.fence()));
        std::future::ready(Ok(say.0))
    });
    let _other_node = wait(other.start()).unwrap();
    bed.advance(SECOND * 60);
    assert_eq!(log.lines(), ["first 1 1"], "a lease that is kept alive is not lost");
    // As good as dead: its store does not hear of it any more.
    let was = node.id();
    bed.cut_off();
    bed.advance(SECOND * 15);
    assert_eq!(log.lines(), ["first 1 1", "second 1 2"]);
    assert_eq!(wait(other.handle::<String>(job.id()).result()).unwrap(), "x");
    assert_ne!(node.id(), was, "it knows by its own clock that its lease is gone");
}

/// C36, C39: a store over a network is tended after a claim, if that does not say that there is no need. On a network
/// on which a claim takes longer than from one poll to the next it was wanted again meanwhile, each time, and so put
/// off to the next claim, each time: what a dead node had run was nobody's for ever.
#[test]
fn the_jobs_of_a_dead_node_run_elsewhere_however_slow_the_network_is() {
    let bed = far_with_leases(SECOND * 10);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let _node = wait(bed.jobs.start()).unwrap();
    bed.line().delay_answers(&bed.clock, SECOND * 3 / 2);
    bed.advance(SECOND * 5);
    let (dead, kinds) = (NodeId::from_u64(77), vec!["say".to_owned()]);
    let beat = Beat { node: dead, name: String::new(), kinds, paused: Vec::new(), workers: 1, era: 0 };
    wait(bed.store.join(beat)).unwrap();
    let job = NewJob { payload: "\"x\"".into(), ..NewJob::new(JobId::from_u128(7), "say") };
    assert!(wait(bed.store.enqueue(vec![job])).unwrap()[0].is_ok());
    let kinds = Arc::from([("say".to_owned(), 1)]);
    let claim = Claim { node: dead, max: 1, kinds, ahead: 0, spare: 0, era: 0 };
    assert_eq!(wait(bed.store.claim(claim)).unwrap().jobs.len(), 1);
    bed.advance(SECOND * 9);
    assert!(log.lines().is_empty());
    bed.advance(SECOND * 10);
    assert_eq!(log.lines(), ["x"]);
}

/// Says so when it is dropped.
struct Stops(Log);

impl Drop for Stops {
    fn drop(&mut self) {
        self.0.add("first stops");
    }
}

/// Two nodes; what the first begins does not end by itself.
fn first_and_other(bed: &Bed, log: &Log) -> (Jobs, [Node; 2]) {
    let seen = log.clone();
    bed.jobs.on(move |_: Say, _| {
        seen.add("first");
        let stops = Stops(seen.clone());
        async move {
            let _stops = stops;
            std::future::pending::<Result<String, Failure>>().await
        }
    });
    let first = wait(bed.jobs.start()).unwrap();
    wait(bed.jobs.now().enqueue(say("x"))).unwrap().detach();
    bed.settle();
    let other = bed.another();
    other.on(log.handler());
    let second = wait(other.start()).unwrap();
    (other, [first, second])
}

/// C39: what a node runs is told to stop before its lease ends, also while the node's loop waits for a store that does
/// not answer. It once was the loop that told it, after the answer: so a network that swallowed everything let two
/// nodes run a job at a time.
#[test]
fn a_node_whose_store_is_silent_stops_its_jobs_before_another_starts_them() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    let (other, nodes) = first_and_other(&bed, &log);
    bed.fall_silent();
    // That is news for the store, and the loop waits until it was heard.
    nodes[0].pause("shout");
    wait(other.now().enqueue(say("y"))).unwrap().detach();
    bed.advance(SECOND * 15);
    assert_eq!(log.lines(), ["first", "y", "first stops", "x"]);
}

/// C39: a lease lasts from when the heartbeat was sent, however late the answer: the store knows nothing of that.
#[test]
fn a_late_answer_does_not_lengthen_the_lease() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    let (_other, _nodes) = first_and_other(&bed, &log);
    // One heartbeat is heard, and answered when nearly all of the lease that it renewed has gone by; no other is heard.
    bed.line().hold_answers(true);
    bed.advance(SECOND * 5 / 2);
    bed.line().swallow(true);
    bed.advance(SECOND * 9 / 2);
    bed.line().hold_answers(false);
    bed.settle();
    assert_eq!(log.lines(), ["first"]);
    bed.advance(SECOND * 15);
    assert_eq!(log.lines(), ["first", "first stops", "x"]);
}

/// C39: a heartbeat that is lost on the way costs no lease while another one comes through. Once it was waited for, and
/// that took all the time that was left.
#[test]
fn a_heartbeat_that_nobody_answers_costs_no_lease() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    let (_other, nodes) = first_and_other(&bed, &log);
    let was = nodes[0].id();
    for _ in 0..3 {
        bed.line().swallow(true);
        bed.advance(SECOND * 5 / 2);
        bed.line().swallow(false);
        bed.advance(SECOND * 60);
    }
    assert_eq!((log.lines(), nodes[0].id()), (vec!["first".to_owned()], was));
}

/// C38, C39: a network on which each answer takes nearly half a lease costs none: of two heartbeats one is always
/// answered in time, and everything runs once. If it is worse than that the lease is lost; and when an answer takes
/// less than three eighths of one, the node is back. Once it waited for the answer to a join for as long as from one
/// heartbeat to the next, and then as long again before it sent the first, and so was never back.
#[test]
fn answers_that_take_nearly_half_a_lease_cost_none() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    let seen = log.clone();
    bed.jobs.on(move |say: Say, ctx| {
        seen.add(format!("{} {}", say.0, ctx.fence()));
        std::future::ready(Ok(say.0))
    });
    let node = wait(bed.jobs.start()).unwrap();
    let was = node.id();
    let (other, slow) = (bed.another(), SECOND * 5 - Duration::from_millis(1));
    bed.line().delay_answers(&bed.clock, slow);
    for n in 1..=10 {
        wait(other.now().enqueue(say(&n.to_string()))).unwrap().detach();
        bed.advance(SECOND * 30);
    }
    let once: Vec<_> = (1..=10).map(|n| format!("{n} 1")).collect();
    assert_eq!((log.lines(), node.id()), (once, was));
    // A heartbeat, a look at the time, a claim and a finish at least, in every lease.
    assert!(bed.line().delayed() > 100, "{}", bed.line().delayed());

    bed.line().delay_answers(&bed.clock, SECOND * 6);
    bed.advance(SECOND * 60);
    let lost = node.id();
    assert_ne!(lost, was);
    bed.line().delay_answers(&bed.clock, SECOND * 7 / 2);
    bed.advance(SECOND * 30);
    let back = node.id();
    wait(other.now().enqueue(say("again"))).unwrap().detach();
    bed.advance(SECOND * 60);
    assert_eq!((log.lines().last().map(String::as_str), node.id()), (Some("again 1"), back));
}

/// C51: whoever lost a lease, because everything he asked for was swallowed, works again within five seconds after the
/// store can be asked again, though nothing of that is ever answered. Once he waited for it: the loop for what it had
/// claimed, the heart for its join.
#[test]
fn what_was_asked_in_vain_is_not_waited_for_once_the_lease_is_lost() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let node = wait(bed.jobs.start()).unwrap();
    bed.settle();
    let was = node.id();
    bed.line().swallow(true);
    let job = wait(bed.another().now().enqueue(say("x"))).unwrap();
    // Long enough for it to want to prune, which has to wait too.
    bed.advance(HOUR + SECOND * 33);
    assert_ne!(node.id(), was);
    assert!(log.lines().is_empty());
    bed.line().swallow(false);
    bed.advance(SECOND * 5);
    assert_eq!(log.lines(), ["x"]);
    assert_eq!(wait(job.result()).unwrap(), "x");
}

/// Jobs whose handlers block.
#[derive(Debug, Serialize, Deserialize)]
struct Block {
    /// Until a minute has passed, whatever they are told.
    stubbornly: bool,
}

impl Job for Block {
    const KIND: &'static str = "block";
    type Output = ();
}

/// C40: a handler that cannot be stopped goes on beside its successor when the lease is lost. That is counted, once,
/// and what it returns counts for nothing; a future is dropped, and what had ended overlaps with nobody.
#[test]
fn a_handler_that_outlives_its_lease_is_counted() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    let (other, [node, _second]) = first_and_other(&bed, &log);
    let (gate, seen) = (DelayQueue::with_clock(&bed.clock), log.clone());
    gate.push((), SECOND * 60).unwrap();
    bed.jobs.on_blocking(move |block: Block, ctx| {
        seen.add(format!("begins {}", ctx.fence()));
        if block.stubbornly {
            gate.take().unwrap();
            seen.add(format!("ends {}", ctx.fence()));
        }
        Ok(())
    });
    let stubborn = wait(bed.jobs.now().enqueue(Block { stubbornly: true })).unwrap();
    wait(bed.jobs.now().enqueue(Block { stubbornly: false })).unwrap().detach();
    bed.settle();
    assert_eq!(node.snapshot().overlaps, 0);
    bed.cut_off();
    let seen = log.clone();
    other.on(move |_: Block, ctx| {
        seen.add(format!("successor {}", ctx.fence()));
        std::future::ready(Ok(()))
    });
    bed.advance(SECOND * 15);
    let said = ["first", "begins 1", "begins 1", "first stops", "x", "successor 2"];
    assert_eq!(log.lines(), said);
    let snapshot = node.snapshot();
    assert_eq!((snapshot.overlaps, snapshot.running), (1, 1), "it goes on");
    // And it is lost again meanwhile, with the next lease.
    bed.line().set_outage(false);
    bed.advance(SECOND * 10);
    bed.cut_off();
    bed.advance(SECOND * 60);
    assert_eq!(log.lines().last().unwrap(), "ends 1");
    let snapshot = node.snapshot();
    assert_eq!((snapshot.overlaps, snapshot.running), (1, 0), "it has ended");
    let record = wait(other.get(stubborn.id())).unwrap().unwrap();
    assert_eq!((record.state.outcome, record.fence), (Some(Outcome::Succeeded), 2));
}

/// A node with two workers, both of which run the same job: the handler does not stop for an hour, whatever becomes of
/// its lease.
fn running_beside_its_successor(log: &Log) -> (Bed, Jobs, Node) {
    let bed = with_leases(SECOND * 10);
    let timer = Scheduler::builder().clock(&bed.clock).build().unwrap();
    let seen = log.clone();
    bed.jobs.on_blocking(move |say: Say, ctx| {
        seen.add(format!("{} {}", say.0, ctx.fence()));
        if say.0 == "stubborn" {
            timer.after(HOUR).run(|_| ()).unwrap().wait().unwrap();
        }
        Ok(say.0)
    });
    let node = wait(bed.jobs.node().workers(2).start()).unwrap();
    let other = bed.another();
    wait(other.now().enqueue(say("stubborn"))).unwrap().detach();
    bed.settle();
    bed.cut_off();
    bed.advance(SECOND * 15);
    bed.line().set_outage(false);
    bed.advance(SECOND * 15);
    assert_eq!(log.lines(), ["stubborn 1", "stubborn 2"]);
    (bed, other, node)
}

/// C20, C36, C40: a blocking handler that does not stop when its lease is lost keeps its thread. When its job came back
/// to the same node, the new run was entered in place of the old one, and that thread was taken to be free: another job
/// was claimed for it, and did not begin until it was. A run counts until it has ended.
#[test]
fn a_handler_that_outlives_its_lease_keeps_its_worker() {
    let log = Log::default();
    let (bed, other, node) = running_beside_its_successor(&log);
    let job = wait(other.now().enqueue(say("quick"))).unwrap();
    bed.settle();
    assert_eq!(wait(other.get(job.id())).unwrap().unwrap().state.stage, Stage::Ready, "for others");
    assert_eq!(node.snapshot().running, 2);
    bed.advance(HOUR);
    assert_eq!(wait(job.result()).unwrap(), "quick");
}

/// C19, C40: nor is it forgotten by a shutdown.
#[test]
fn a_handler_that_outlives_its_lease_is_reported() {
    let log = Log::default();
    let (_bed, _other, node) = running_beside_its_successor(&log);
    let report = wait(node.shutdown(Duration::ZERO));
    assert_eq!((report.released, report.still_running), (0, 2));
}

/// C39: while both are alive their leases are, however long.
#[test]
fn two_nodes_share_the_work() {
    let bed = with_leases(SECOND * 10);
    let log = Log::default();
    bed.jobs.on(log.handler());
    let other = bed.another();
    other.on(log.handler());
    let nodes = [wait(bed.jobs.start()).unwrap(), wait(other.start()).unwrap()];
    for n in 0..20u32 {
        wait(bed.jobs.after(Duration::from_secs(u64::from(n))).enqueue(say(&n.to_string()))).unwrap();
    }
    bed.advance(SECOND * 30);
    assert_eq!(log.lines().len(), 20);
    assert_eq!(wait(bed.jobs.totals()).unwrap().ended[&Outcome::Succeeded], 20);
    assert_eq!(wait(bed.jobs.nodes()).unwrap().len(), 2);
    drop(nodes);
}
