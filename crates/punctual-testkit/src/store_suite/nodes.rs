//! Nodes that come, go and die.

use punctual::{Limits, Stage};
use punctual_durable::{Finished, Gate, Moment, NewJob, NodeRecord, Outcome, State, Verdict};

use crate::{Bed, NODE, OTHER, SECOND, beat, job};

/// C39: a clean shutdown gives everything back at once, and burns nothing.
pub fn a_node_that_leaves_gives_its_runs_back(bed: &Bed) {
    let running = bed.running(NewJob { start_within: Some(5 * SECOND), ..job(1) });
    let settled = bed.running(job(2));
    bed.cancel(settled.job.id);
    bed.advance(7 * SECOND);
    bed.ask(|store| store.leave(NODE));
    let record = bed.get(running.job.id);
    assert_eq!((record.state, record.attempt, record.crashes, record.node), (State::READY, 0, 0, None));
    assert_eq!((record.due, record.start_by), (running.due, Some(bed.now().after(5 * SECOND))));
    let stopped = bed.get(settled.job.id);
    assert_eq!(stopped.state, State::new(Stage::Stopped, Some(Outcome::Cancelled)));
    assert_eq!((stopped.attempt, stopped.crashes), (1, 0), "a settled run just stops");
    assert!(bed.claim(9).is_empty(), "it is not there any more");
    assert_eq!(bed.finish(&running, Verdict::Succeeded("stale".into())), Finished::Stale);
    bed.join(OTHER, &["k"]);
    assert_eq!(bed.claim_as(OTHER, 9, &[("k", 9)]).jobs[0].fence, 2);
    bed.ask(|store| store.leave(NODE));
    bed.assert_totals_are_true();
}

/// Who is there, what it handles and how much it runs.
pub fn nodes_are_listed_with_what_they_run(bed: &Bed) {
    bed.join(OTHER, &["a", "b"]);
    bed.take_in(job(1));
    assert_eq!(bed.claim(9).len(), 1);
    let expires_at = bed.store().lease().map(|lease| bed.now().after(lease));
    let one = NodeRecord { beat: beat(NODE, &["k"]), expires_at, running: 1, clock_offset_us: 0 };
    let two = NodeRecord { beat: beat(OTHER, &["a", "b"]), expires_at, running: 0, clock_offset_us: 0 };
    let mut nodes = bed.ask(|store| store.nodes());
    nodes.sort_by_key(|node| node.beat.node);
    assert_eq!(nodes, [one, two.clone()]);
    bed.ask(|store| store.leave(NODE));
    assert_eq!(bed.ask(|store| store.nodes()), [two]);
}

/// A heartbeat says what the node handles now.
pub fn a_heartbeat_brings_news_of_the_node(bed: &Bed) {
    let id = bed.take_in(job(1));
    let paused = punctual_durable::Beat { paused: vec!["k".into()], ..beat(NODE, &["k"]) };
    let pulse = bed.ask(|store| store.heartbeat(paused.clone()));
    assert!(pulse.known && pulse.stop.is_empty());
    assert_eq!(bed.gate(id), Gate::KindPaused);
    bed.join(OTHER, &["k"]);
    assert_eq!(bed.gate(id), Gate::Turn, "another one handles it");
    assert!(!bed.ask(|store| store.heartbeat(beat(punctual_durable::NodeId::from_u64(77), &[]))).known);
    assert_eq!(bed.ask(|store| store.nodes()).len(), 2, "an unknown node does not come by a heartbeat");
}

/// C39: a lost run counts as a crash, not as an attempt.
pub fn a_lost_run_is_ready_again_with_its_crash_counted(bed: &Bed) {
    let running = bed.running(NewJob { start_within: Some(5 * SECOND), ..job(1) });
    let settled = bed.running(job(2));
    bed.cancel(settled.job.id);
    if !bed.crash() {
        return;
    }
    let record = bed.get(running.job.id);
    assert_eq!((record.state, record.attempt, record.crashes, record.node), (State::READY, 0, 1, None));
    assert_eq!((record.due, record.start_by), (running.due, Some(bed.now().after(5 * SECOND))));
    let stopped = bed.get(settled.job.id);
    assert_eq!(stopped.state, State::new(Stage::Stopped, Some(Outcome::Cancelled)));
    assert_eq!((stopped.attempt, stopped.crashes), (1, 0), "a settled run just stops");
    assert_eq!(bed.finish(&running, Verdict::Succeeded("stale".into())), Finished::Stale);
    let again = bed.claim(9).remove(0);
    assert_eq!((again.attempt, again.fence), (1, 2));
    bed.assert_totals_are_true();
}

/// C39: a poison job is dead-lettered after `max_crashes`.
pub fn a_job_that_kills_its_process_too_often_fails(bed: &Bed) {
    let id = bed.take_in(NewJob { max_crashes: 2, ..job(1) });
    for crashes in 1..=2 {
        assert_eq!(bed.claim(1).len(), 1);
        if !bed.crash() {
            return;
        }
        assert_eq!(bed.get(id).crashes, crashes);
    }
    let record = bed.get(id);
    assert_eq!(record.state, State::new(Stage::Stopped, Some(Outcome::Failed)));
    assert!(record.last_error.is_some_and(|error| error.contains("died 2 times")));
    assert_eq!(record.attempt, 0);
}

/// C40: after a crash the full limit is usable again.
pub fn a_crash_gives_the_permits_back(bed: &Bed) {
    bed.limit(Limits::new().running_max(2));
    bed.take_in_all((1..=3).map(|id| NewJob { max_crashes: 9, ..job(id) }));
    assert_eq!(bed.claim(9).len(), 2);
    if bed.crash() {
        assert_eq!(bed.claim(9).len(), 2);
    }
}

/// C39: leases are per node; one that beats keeps all it runs.
pub fn a_lease_lasts_while_the_node_beats(bed: &Bed) {
    let Some(lease) = bed.store().lease() else { return };
    bed.join(OTHER, &["k"]);
    bed.take_in(job(1));
    bed.take_in(job(2));
    let mine = bed.claim(1).remove(0);
    let other = bed.claim_as(OTHER, 1, &[("k", 9)]).jobs.remove(0);
    bed.advance(lease / 2);
    assert!(bed.ask(|store| store.heartbeat(beat(NODE, &["k"]))).known);
    bed.advance(lease / 2);
    let tended = bed.ask(|store| store.tend());
    assert_eq!(tended.lost, 1);
    assert_eq!(tended.next, Some(bed.now().after(lease / 2)));
    assert_eq!(bed.get(mine.job.id).state, State::RUNNING);
    assert_eq!(bed.get(other.job.id).state, State::READY);
    assert!(!bed.ask(|store| store.heartbeat(beat(OTHER, &["k"]))).known, "it is unknown from then on");
    assert!(bed.claim_as(OTHER, 1, &[("k", 9)]).jobs.is_empty());
    assert_eq!(bed.finish(&other, Verdict::Succeeded("stale".into())), Finished::Stale);
}

/// C39: a node that was late but was not reaped has lost nothing.
pub fn a_late_heartbeat_before_the_reaper_keeps_the_lease(bed: &Bed) {
    let Some(lease) = bed.store().lease() else { return };
    let running = bed.running(job(1));
    bed.advance(2 * lease);
    assert!(bed.ask(|store| store.heartbeat(beat(NODE, &["k"]))).known);
    assert_eq!(bed.ask(|store| store.tend()).lost, 0);
    let done = bed.finish(&running, Verdict::Succeeded("1".into()));
    assert_eq!(done, Finished::Done(State::new(Stage::Stopped, Some(Outcome::Succeeded))));
}

/// C52: when all nodes had died, nobody was left to notice, and their jobs were said to wait for their turn.
pub fn a_node_whose_lease_has_ended_handles_nothing(bed: &Bed) {
    let Some(lease) = bed.store().lease() else { return };
    let waiting = bed.take_in(job(1));
    assert_eq!(bed.gate(waiting), Gate::Turn);
    bed.advance(lease);
    assert_eq!(bed.gate(waiting), Gate::NoWorker);
    assert!(bed.ask(|store| store.heartbeat(beat(NODE, &["k"]))).known);
    assert_eq!(bed.gate(waiting), Gate::Turn);
}

/// C49: interest ends with the lease.
pub fn interest_ends_with_the_lease(bed: &Bed) {
    let Some(lease) = bed.store().lease() else { return };
    bed.join(OTHER, &[]);
    let id = bed.take_in(NewJob { wanted_by: Some(OTHER), ..job(1) });
    bed.advance(lease);
    bed.ask(|store| store.heartbeat(beat(NODE, &["k"])));
    assert_eq!(bed.outcome(id), None);
    bed.ask(|store| store.tend());
    assert_eq!(bed.outcome(id), Some(Outcome::Cancelled));
}

/// C42: the store says when time brings something next.
pub fn tend_says_when_to_come_back(bed: &Bed) {
    let start = bed.now();
    // The lease of a node is an instant too; these come before it.
    bed.take_in(NewJob { due: Moment::After(3 * SECOND), ..job(1) });
    assert_eq!(bed.ask(|store| store.tend()).next, Some(start.after(3 * SECOND)));
    bed.take_in(NewJob { start_within: Some(2 * SECOND), ..job(2) });
    assert_eq!(bed.ask(|store| store.tend()).next, Some(start.after(2 * SECOND)));
    let running = bed.claim(1).remove(0);
    assert_eq!(running.job.id, job(2).id);
    assert_eq!(bed.ask(|store| store.tend()).next, Some(start.after(3 * SECOND)), "it did start");
    bed.advance(3 * SECOND);
    let tended = bed.ask(|store| store.tend());
    assert_eq!((tended.promoted, tended.expired, tended.lost), (1, 0, 0));
    let lease = bed.store().lease().map(|lease| start.after(lease));
    assert_eq!(tended.next, lease, "nothing but leases is left to come");
}
