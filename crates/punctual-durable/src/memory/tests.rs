//! The rules that are easiest to get wrong. The conformance suite has all of them.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use punctual::{Limits, Rate, Stage, VirtualClock};

use super::*;
use crate::state::{Outcome, State};
use crate::store::TenantPolicy;
use crate::store::{Gate, Moment, OnConflict, Unique, Verdict};

const NODE: NodeId = NodeId::from_u64(1);
const SECOND: Duration = Duration::from_secs(1);

/// The answer of a memory store is there at once.
fn answer<T>(mut reply: Reply<T>) -> T {
    match reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer.unwrap(),
        Poll::Pending => panic!("a memory store answers at once"),
    }
}

fn job(id: u128) -> NewJob {
    NewJob { tenant: "acme".into(), max_attempts: 3, ..NewJob::new(JobId::from_u128(id), "k") }
}

fn beat(node: NodeId) -> Beat {
    Beat { node, name: "n".into(), kinds: vec!["k".into()], paused: Vec::new(), workers: 4, era: 0 }
}

fn store() -> (VirtualClock, MemoryStore) {
    let clock = VirtualClock::new();
    let store = MemoryStore::with_lease(&clock, 10 * SECOND);
    answer(store.join(beat(NODE)));
    (clock, store)
}

fn enqueue(store: &MemoryStore, job: NewJob) -> Result<Admitted, Refused> {
    answer(store.enqueue(vec![job])).remove(0)
}

fn claim(store: &MemoryStore, max: usize) -> Claimed {
    answer(store.claim(Claim {
        node: NODE,
        max,
        kinds: Arc::from([("k".to_owned(), 100)]),
        ahead: 0,
        spare: 0,
        era: 0,
    }))
}

fn finish(store: &MemoryStore, record: &Record, verdict: Verdict) -> Finished {
    answer(store.finish(NODE, vec![Finish { id: record.job.id, fence: record.fence, verdict }])).remove(0)
}

fn get(store: &MemoryStore, id: u128) -> Record {
    answer(store.get(JobId::from_u128(id))).unwrap()
}

/// C40: what still runs although nobody wants it counts.
#[test]
fn a_stopping_job_keeps_its_permit() {
    let (_, store) = store();
    let policy = TenantPolicy { limits: Limits::new().running_max(1), ..TenantPolicy::default() };
    answer(store.set_tenant("acme".into(), policy.into()));
    enqueue(&store, job(1)).unwrap();
    enqueue(&store, job(2)).unwrap();
    let running = claim(&store, 9).jobs.remove(0);
    assert_eq!(answer(store.cancel(running.job.id, CancelCause::Caller)), Cancelled::Now(Stage::Running));
    assert!(claim(&store, 9).jobs.is_empty());
    let ended = State::new(Stage::Stopped, Some(Outcome::Cancelled));
    assert_eq!(finish(&store, &running, Verdict::Succeeded("1".into())), Finished::Done(ended));
    assert_eq!(claim(&store, 9).jobs.len(), 1);
}

/// C43: nobody has to tend the store for its answers to be right, and the dates are those of the events.
#[test]
fn what_time_brought_is_dated_by_when_it_happened() {
    let (clock, store) = store();
    enqueue(&store, NewJob { due: Moment::After(2 * SECOND), start_within: Some(3 * SECOND), ..job(1) }).unwrap();
    let start = store.now();
    clock.advance(4 * SECOND).unwrap();
    assert_eq!((get(&store, 1).state, get(&store, 1).since), (State::READY, start.after(2 * SECOND)));
    clock.advance(9 * SECOND).unwrap();
    assert_eq!(get(&store, 1).state.outcome, Some(Outcome::Expired));
    assert_eq!(get(&store, 1).since, start.after(5 * SECOND));
}

/// C47: the place of the one that is replaced counts as free.
#[test]
fn a_full_tenant_still_replaces() {
    let (_, store) = store();
    let policy = TenantPolicy { limits: Limits::new().backlog_max(1), ..TenantPolicy::default() };
    answer(store.set_tenant("acme".into(), policy.into()));
    let unique = Some(Unique { key: "u".into(), on_conflict: OnConflict::Replace, period: None });
    enqueue(&store, NewJob { unique: unique.clone(), ..job(1) }).unwrap();
    assert_eq!(enqueue(&store, NewJob { unique, ..job(2) }), Ok(Admitted::Replaced(JobId::from_u128(1))));
    assert!(matches!(enqueue(&store, job(3)), Err(Refused::Rejected { .. })));
}

/// C39: a crash gives the attempt back, and the whole time to start.
#[test]
fn a_lost_run_is_not_expired_by_the_crash() {
    let (clock, store) = store();
    enqueue(&store, NewJob { start_within: Some(2 * SECOND), ..job(1) }).unwrap();
    assert_eq!(claim(&store, 1).jobs[0].attempt, 1);
    clock.advance(10 * SECOND).unwrap();
    assert_eq!(answer(store.tend()).lost, 1);
    let lost = get(&store, 1);
    assert_eq!((lost.state, lost.attempt, lost.crashes), (State::READY, 0, 1));
    assert_eq!(lost.start_by, Some(store.now().after(2 * SECOND)));
}

/// C39
#[test]
fn a_last_chance_is_given_to_one_job_at_a_time() {
    let (clock, store) = store();
    for id in 1..=3 {
        enqueue(&store, NewJob { max_crashes: if id == 3 { 9 } else { 2 }, ..job(id) }).unwrap();
    }
    assert_eq!(claim(&store, 9).jobs.len(), 3);
    clock.advance(10 * SECOND).unwrap();
    answer(store.tend());
    answer(store.join(beat(NODE)));
    let given: Vec<_> = claim(&store, 9).jobs.iter().map(|record| record.job.id.to_u128()).collect();
    assert_eq!(given, [1, 3]);
    assert_eq!(answer(store.explain(JobId::from_u128(2))).unwrap().gate, Gate::Alone);
}

/// C33
#[test]
fn a_rate_says_when_to_come_back() {
    let (clock, store) = store();
    let policy = TenantPolicy { limits: Limits::new().rate(Rate::per_second(2)), ..TenantPolicy::default() };
    answer(store.set_tenant("acme".into(), policy.into()));
    enqueue(&store, job(1)).unwrap();
    enqueue(&store, job(2)).unwrap();
    let claimed = claim(&store, 9);
    assert_eq!((claimed.jobs.len(), claimed.more), (1, false));
    assert_eq!(claimed.again_at, Some(store.now().after(SECOND / 2)));
    clock.advance(SECOND / 2).unwrap();
    assert_eq!(claim(&store, 9).jobs.len(), 1);
}

#[test]
fn what_changes_is_told() {
    crate::signals::suite::exercise(|clock| Arc::new(MemoryStore::new(clock)));
    crate::signals::suite::exercise(|clock| Arc::new(MemoryStore::with_lease(clock, 10 * SECOND)));
}
