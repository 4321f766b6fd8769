//! What every store must tell, as the engine hears it. Part of the conformance suite, but inside: listening is not
//! public.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use punctual::{Limits, VirtualClock};

use super::{EndOf, Heard, Listener};
use crate::id::{JobId, NodeId};
use crate::store::{
    Beat, CancelCause, Claim, Edit, Finish, Fire, Moment, NewJob, Record, Reply, Rule, Schedule, Store, TenantPolicy,
    Verdict,
};
use crate::time::Timestamp;

const NODE: NodeId = NodeId::from_u64(1);
const OTHER: NodeId = NodeId::from_u64(2);
const SECOND: Duration = Duration::from_secs(1);

/// Runs every case on a fresh store.
pub(crate) fn exercise(open: impl Fn(&VirtualClock) -> Arc<dyn Store>) {
    let cases = [
        new_work_is_told,
        room_for_work_is_told,
        an_earlier_instant_is_told,
        an_end_is_told_to_those_who_wait,
        what_runs_is_told_to_stop,
        what_time_brought_is_told,
    ];
    for case in cases {
        let clock = VirtualClock::new();
        let store = open(&clock);
        let room = Room { listener: store.signals().listen(NODE), clock, store };
        room.ask(|store| store.join(beat(NODE)));
        room.heard();
        case(&room);
    }
}

struct Room {
    clock: VirtualClock,
    store: Arc<dyn Store>,
    listener: Listener,
}

impl Room {
    fn ask<T>(&self, question: impl FnOnce(&dyn Store) -> Reply<T>) -> T {
        let answer = block_on(question(self.store.as_ref())).unwrap();
        // A store may tell after it has answered, but before it answers the next.
        block_on(self.store.totals()).unwrap();
        answer
    }

    /// What was heard since the last time.
    fn heard(&self) -> Heard {
        match self.listener.poll_heard(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(heard) => heard,
            Poll::Pending => Heard::default(),
        }
    }

    fn assert_work(&self, after: &str) {
        let heard = self.heard();
        assert!(heard.is_ready || heard.is_changed, "{after} is not told");
    }

    /// That there is something to tend at an instant, or that it may have changed.
    fn assert_due(&self, at: Timestamp, after: &str) {
        let heard = self.heard();
        assert!(heard.is_changed || heard.due == Some(at), "{after} is not told: {heard:?}");
    }

    fn enqueue(&self, job: NewJob) -> JobId {
        let id = job.id;
        self.ask(|store| store.enqueue(vec![job])).remove(0).unwrap();
        id
    }

    /// From now on one job runs at a time.
    fn limit_to_one(&self) {
        let policy = TenantPolicy { limits: Limits::new().running_max(1), ..TenantPolicy::default() };
        self.ask(|store| store.set_tenant("acme".into(), policy.into()));
    }

    fn running(&self, job: NewJob) -> Record {
        self.enqueue(job);
        let kinds = Arc::from([("k".to_owned(), 9)]);
        let record = self
            .ask(|store| store.claim(Claim { node: NODE, max: 1, kinds, ahead: 0, spare: 0, era: 0 }))
            .jobs
            .remove(0);
        self.heard();
        record
    }

    fn finish(&self, record: &Record, verdict: Verdict) {
        let finish = Finish { id: record.job.id, fence: record.fence, verdict };
        self.ask(|store| store.finish(NODE, vec![finish]));
    }
}

fn told(end: &EndOf) -> bool {
    pin!(end).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn beat(node: NodeId) -> Beat {
    Beat { node, name: "n".into(), kinds: vec!["k".into()], paused: Vec::new(), workers: 4, era: 0 }
}

fn job(id: u128) -> NewJob {
    NewJob { tenant: "acme".into(), max_attempts: 3, ..NewJob::new(JobId::from_u128(id), "k") }
}

/// C42
fn new_work_is_told(room: &Room) {
    let id = room.enqueue(job(1));
    room.assert_work("a new job");
    room.ask(|store| store.edit(id, Edit { due: Some(Moment::NOW), ..Edit::default() }));
    room.assert_work("an edit");
    room.ask(|store| store.cancel(id, CancelCause::Caller));
    room.heard();
    room.ask(|store| store.redrive(id));
    room.assert_work("a redrive");
    let tick = room.store.now();
    let schedule = Schedule {
        name: "s".into(),
        rule: Rule::Every { period: SECOND, anchor: tick },
        missed: punctual::Missed::Once,
        template: job(0),
        next: Some(tick),
        paused: false,
        last: None,
        fired: 0,
        missed_count: 0,
    };
    room.ask(|store| store.put_schedule(schedule));
    room.assert_work("a schedule");
    let fire = Fire { schedule: "s".into(), tick, next: None, missed: 0, job: Some(job(2)) };
    room.ask(|store| store.fire(fire));
    room.assert_work("a tick");
}

/// C32: whoever was held back by a limit comes back by an event.
fn room_for_work_is_told(room: &Room) {
    room.limit_to_one();
    room.assert_work("a new policy");
    let running = room.running(job(1));
    room.finish(&running, Verdict::Succeeded("1".into()));
    room.assert_work("the end of a run");
    let running = room.running(job(2));
    room.finish(&running, Verdict::Release);
    room.assert_work("a release");
    room.ask(|store| store.join(beat(OTHER)));
    room.running(job(3));
    room.ask(|store| store.leave(NODE));
    room.assert_work("the runs of a node that left");
}

/// C42: a later job does not put off the alarm, an earlier one sets it.
fn an_earlier_instant_is_told(room: &Room) {
    let now = room.store.now();
    let id = room.enqueue(NewJob { due: Moment::After(60 * SECOND), ..job(1) });
    room.assert_due(now.after(60 * SECOND), "the first instant to tend");
    room.enqueue(NewJob { start_within: Some(50 * SECOND), ..job(3) });
    room.assert_due(now.after(50 * SECOND), "the last instant to start");
    room.enqueue(NewJob { due: Moment::After(70 * SECOND), deadline: Some(Moment::After(80 * SECOND)), ..job(4) });
    room.assert_due(now.after(70 * SECOND), "the instant it falls due");
    room.enqueue(NewJob { deadline: Some(Moment::After(40 * SECOND)), ..job(5) });
    room.assert_due(now.after(40 * SECOND), "a deadline");
    room.ask(|store| store.edit(id, Edit { due: Some(Moment::After(SECOND)), ..Edit::default() }));
    room.assert_work("an earlier due instant");
    let running = room.running(job(2));
    room.finish(&running, Verdict::Retry { at: Moment::After(SECOND / 2), error: "no".into() });
    room.assert_work("a retry");
}

/// C50
fn an_end_is_told_to_those_who_wait(room: &Room) {
    let signals = room.store.signals().clone();
    let running = room.running(job(1));
    let other = room.enqueue(job(9));
    let [one, other] = [running.job.id, other].map(|id| signals.end_of(id));
    assert!(!told(&one));
    room.finish(&running, Verdict::Succeeded("1".into()));
    assert!(told(&one) && !told(&other));
    let waiting = room.enqueue(job(2));
    let end = signals.end_of(waiting);
    room.ask(|store| store.cancel(waiting, CancelCause::Caller));
    assert!(told(&end), "a cancel");
    let waiting = room.enqueue(job(3));
    let end = signals.end_of(waiting);
    room.ask(|store| store.erase("acme".into()));
    assert!(told(&end), "an erasure: whoever waits finds it gone");
}

/// C26, C49: the caller hears at once, and so does the node.
fn what_runs_is_told_to_stop(room: &Room) {
    room.limit_to_one();
    let running = room.running(job(1));
    let end = room.store.signals().end_of(running.job.id);
    room.ask(|store| store.cancel(running.job.id, CancelCause::Caller));
    assert_eq!(room.heard().stop, [(running.job.id, running.fence)]);
    assert!(told(&end), "its outcome is settled");
    room.finish(&running, Verdict::Stopped);
    assert!(!told(&end), "and that is told once");
    room.assert_work("the end of the handler");
}

/// C28: without anybody asking for these jobs.
fn what_time_brought_is_told(room: &Room) {
    let running = room.running(NewJob { deadline: Some(Moment::After(2 * SECOND)), ..job(1) });
    let late = room.enqueue(NewJob { start_within: Some(2 * SECOND), ..job(2) });
    room.enqueue(NewJob { due: Moment::After(2 * SECOND), ..job(3) });
    let ends = [running.job.id, late].map(|id| room.store.signals().end_of(id));
    room.heard();
    room.clock.advance(2 * SECOND).unwrap();
    room.ask(|store| store.tend());
    let heard = room.heard();
    assert!(heard.is_ready, "a job that fell due");
    assert_eq!(heard.stop, [(running.job.id, running.fence)]);
    assert!(ends.iter().all(told));
}
