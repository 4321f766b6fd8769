use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use punctual::Stage;
use punctual_durable::{Claim, Jobs, NodeId, StartError, Store};

use crate::bed::{HOUR, Log, SECOND, Say, on_every_store, say, wait, with_faults, with_leases};

/// C39: a clean shutdown gives running jobs back at once and the attempt does not count.
#[test]
fn what_runs_is_given_back() {
    on_every_store(|bed| {
        bed.jobs.on(|say: Say, _| async move {
            std::future::pending::<()>().await;
            Ok(say.0)
        });
        let node = wait(bed.jobs.start()).unwrap();
        let job = wait(bed.jobs.now().enqueue(say("x"))).unwrap();
        bed.settle();
        let report = wait(node.shutdown(Duration::ZERO));
        assert_eq!((report.released, report.still_running), (1, 0));
        let record = wait(bed.jobs.get(job.id())).unwrap().unwrap();
        assert_eq!((record.state.stage, record.attempt, record.fence, record.crashes), (Stage::Ready, 0, 1, 0));

        let log = Log::default();
        let other = bed.another();
        other.on(log.handler());
        let _node = wait(other.start()).unwrap();
        assert_eq!(wait(job.result()).unwrap(), "x");
    });
}

/// Handlers that go on when they are told to.
fn held_up(jobs: &Jobs) -> tokio::sync::watch::Sender<bool> {
    let (go, gate) = tokio::sync::watch::channel(false);
    jobs.on(move |say: Say, _| {
        let mut gate = gate.clone();
        async move {
            let _ = gate.wait_for(|open| *open).await;
            Ok(say.0)
        }
    });
    go
}

/// What runs may finish within the grace; nothing new is taken.
#[test]
fn what_runs_may_finish() {
    on_every_store(|bed| {
        let go = held_up(&bed.jobs);
        let node = wait(bed.jobs.node().workers(1).start()).unwrap();
        let first = wait(bed.jobs.now().enqueue(say("first"))).unwrap();
        bed.settle();
        let second = wait(bed.jobs.now().enqueue(say("second"))).unwrap();
        let shutdown = std::thread::spawn(move || wait(node.shutdown(Duration::from_secs(3600))));
        go.send(true).unwrap();
        let report = shutdown.join().unwrap();
        assert_eq!((report.released, report.still_running), (0, 0));
        assert_eq!(wait(first.result()).unwrap(), "first");
        let waits = wait(bed.jobs.get(second.id())).unwrap().unwrap();
        assert!(waits.state.is_waiting() || waits.state.stage == Stage::Stopped);
    });
}

/// C39, C51: a shutdown has ended when the store knows of every end, also if it has to be told twice.
///
/// It may take hours. Once the loop spun from the instant on at which it would have pruned: that is not done in a
/// shutdown, so the instant stayed where it was, in the past, and the alarm for it rang again as soon as it was set.
#[test]
fn a_shutdown_waits_until_the_store_has_heard_of_every_end() {
    let (bed, store) = with_faults();
    let go = held_up(&bed.jobs);
    let node = wait(bed.jobs.start()).unwrap();
    let job = wait(bed.jobs.now().enqueue(say("x"))).unwrap();
    bed.settle();
    // Nothing but the end of the run is asked for in the silence.
    store.set_silence(true);
    go.send(true).unwrap();
    bed.settle();
    let mut shutdown = Box::pin(node.shutdown(SECOND));
    let mut reports = || {
        let report = shutdown.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        bed.settle();
        report
    };
    assert!(reports().is_pending());
    bed.advance(HOUR);
    assert!(reports().is_pending(), "it was not answered");
    store.set_silence(false);
    bed.settle();
    assert!(reports().is_pending(), "the answer was that it was not done");
    bed.advance(SECOND);
    assert!(reports().is_ready());
    assert_eq!(wait(job.result()).unwrap(), "x");
}

/// C36, C37: what the store takes to be running on a node that has gone, though its process lives on, waited for a
/// lease that did not end. The next node of that process asks what it was given, and gives it back.
#[test]
fn what_a_node_never_heard_of_is_run_by_the_next_of_its_process() {
    on_every_store(|bed| {
        let job = wait(bed.jobs.now().enqueue(say("x"))).unwrap();
        let node = wait(bed.jobs.nodes()).unwrap().remove(0).beat.node;
        let kinds = Arc::from([("say".to_owned(), 1)]);
        let claimed = wait(bed.store.claim(Claim { node, max: 1, kinds, ahead: 0, spare: 0, era: 0 })).unwrap();
        assert_eq!(claimed.jobs.len(), 1);
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        wait(node.drain());
        assert_eq!(log.lines(), ["x"]);
        let record = wait(bed.jobs.get(job.id())).unwrap().unwrap();
        assert_eq!((record.attempt, record.fence, record.crashes), (1, 2, 0));
    });
}

/// C36, C37, C39: a node that was shut down while it did not know what came of a claim left it at that, and its process
/// lived on, and with it the lease: what the claim gave, or gave only then, was nobody's to run. A shutdown waits until
/// it is certain that the claim gives nothing any more.
#[test]
fn a_claim_that_is_done_after_a_shutdown_gives_nothing() {
    let bed = with_leases(SECOND * 10);
    bed.jobs.on(Log::default().handler());
    let node = wait(bed.jobs.start()).unwrap();
    bed.settle();
    let other = bed.another();
    bed.line().overtake("claim");
    bed.cut_off();
    wait(other.now().enqueue(say("x"))).unwrap().detach();
    bed.settle();
    let mut shutdown = Box::pin(node.shutdown(SECOND));
    let mut is_over = || {
        bed.settle();
        shutdown.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    assert!(!is_over() && !is_over(), "what came of the claim is not known");
    bed.line().set_outage(false);
    assert!(is_over());
    // Whatever is claimed next comes after what was overtaken.
    let kinds = Arc::from([("say".to_owned(), 1)]);
    let nobody = Claim { node: NodeId::from_u64(77), max: 1, kinds, ahead: 0, spare: 0, era: 0 };
    assert!(wait(bed.line().claim(nobody)).unwrap().jobs.is_empty());
    assert!(bed.line().has_overtaken(), "the fault happened");
    let totals = wait(other.totals()).unwrap();
    assert_eq!((totals.ready, totals.running), (1, 0));
}

/// C39, C51: no store that is gone holds a shutdown up for ever: with the lease everything that was asked or is to be
/// told under it is over.
#[test]
fn a_shutdown_in_an_outage_ends_with_the_lease() {
    let bed = with_leases(SECOND * 10);
    let go = held_up(&bed.jobs);
    let node = wait(bed.jobs.start()).unwrap();
    let other = bed.another();
    wait(other.now().enqueue(say("x"))).unwrap().detach();
    bed.settle();
    bed.fall_silent();
    go.send(true).unwrap();
    wait(other.now().enqueue(say("y"))).unwrap().detach();
    bed.settle();
    let mut shutdown = Box::pin(node.shutdown(SECOND));
    let mut is_over = || shutdown.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(!is_over());
    bed.advance(SECOND * 5);
    assert!(!is_over(), "the store may be back in time");
    bed.advance(SECOND * 6);
    assert!(is_over());
}

#[test]
fn a_node_can_be_started_again_after_it_was_dropped() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        assert_eq!(wait(bed.jobs.start()).unwrap_err(), StartError::AlreadyStarted);
        wait(node.shutdown(Duration::ZERO));
        bed.settle();
        let _node = wait(bed.jobs.start()).unwrap();
        let job = wait(bed.jobs.now().enqueue(say("again"))).unwrap();
        assert_eq!(wait(job.result()).unwrap(), "again");
    });
}

/// A node that is dropped stops at once, also if it was about to stop with more grace: whoever does not wait any longer
/// for its shutdown wants that.
#[test]
fn whoever_waits_no_longer_for_a_shutdown_stops_the_node_at_once() {
    on_every_store(|bed| {
        let _go = held_up(&bed.jobs);
        let node = wait(bed.jobs.start()).unwrap();
        let job = wait(bed.jobs.now().enqueue(say("x"))).unwrap();
        bed.settle();
        let mut shutdown = Box::pin(node.shutdown(HOUR));
        assert!(shutdown.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        bed.settle();
        drop(shutdown);
        bed.settle();
        let record = wait(bed.jobs.get(job.id())).unwrap().unwrap();
        assert_eq!((record.state.stage, record.attempt), (Stage::Ready, 0));
    });
}
