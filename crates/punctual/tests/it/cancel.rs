//! Losing interest: cancel and its three answers, dropped and detached handles, children, and the races between all who
//! may decide how a job ends.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use punctual::{Cancel, Cause, Ctx, JobError, JobHandle, Scheduler, Stage, VirtualClock};

use crate::jobs::{
    Gate, Log, OnDrop, SOON, Signal, block_a_worker, in_own_process, in_time, on_virtual_clock, panic_with, secs,
    until, with_runtime, witness,
};
use crate::queue::{SplitMix, block_on};

fn cancelled(cause: Cause, stage: Stage) -> JobError {
    JobError::Cancelled { cause, stage }
}

/// A job that runs until its gate is opened, and says whether it was cancelled by then.
fn running(clock: &VirtualClock, scheduler: &Scheduler) -> (Gate, JobHandle<bool>) {
    let gate = Gate::on(clock);
    let inner = gate.clone();
    let job = scheduler.now().run(move |ctx| {
        inner.pass();
        ctx.is_cancelled()
    });
    clock.settle().unwrap();
    (gate, job.unwrap())
}

/// C14
#[test]
fn a_job_that_waits_for_its_due_instant_is_prevented() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut job = scheduler.after(secs(1)).run(|_| unreachable!("it was cancelled")).unwrap();
    assert_eq!(scheduler.snapshot().scheduled, 1);
    assert_eq!(job.cancel(), Cancel::Prevented);
    assert_eq!(scheduler.snapshot().scheduled, 0, "its place is free at once");
    assert_eq!(job.cancel(), Cancel::TooLate);
    assert_eq!(job.wait(), Err::<(), _>(cancelled(Cause::Handle, Stage::Scheduled)));
    job.stopped().wait();
    clock.advance(secs(2)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.finished.cancelled, now.lateness.count()), (1, 0));
}

/// C14, C27 as far as layer 2 has it
#[test]
fn a_job_that_waits_for_a_worker_is_prevented_wherever_it_stands() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let ran = Log::new();
    let mut jobs: Vec<_> = (0..100)
        .map(|n| {
            let ran = ran.clone();
            scheduler.now().run(move |_| ran.add(n)).unwrap()
        })
        .collect();
    clock.settle().unwrap();
    for n in (0..100).filter(|n| n % 3 == 0 || *n == 99) {
        assert_eq!(jobs[n].cancel(), Cancel::Prevented);
        assert_eq!(jobs[n].wait(), Err(cancelled(Cause::Handle, Stage::Ready)));
    }
    assert_eq!(scheduler.snapshot().ready, 66);
    gate.open();
    clock.settle().unwrap();
    assert_eq!(ran.all(), (0..99).filter(|n| n % 3 != 0).collect::<Vec<usize>>());
}

/// C14
#[test]
fn a_job_that_runs_is_told_and_its_outcome_settled_at_once() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, mut job) = running(&clock, &scheduler);
    assert_eq!(job.cancel(), Cancel::Requested);
    assert_eq!(job.wait(), Err(cancelled(Cause::Handle, Stage::Running)), "the caller does not wait for the work");
    assert_eq!(job.cancel(), Cancel::TooLate);
    let now = scheduler.snapshot();
    assert_eq!((now.running, now.zombies, now.finished.cancelled), (1, 1, 1), "C26: it still holds its worker");
    assert!(!job.stopped().wait_timeout(Duration::ZERO));
    gate.open();
    job.stopped().wait();
    let now = scheduler.snapshot();
    assert_eq!((now.running, now.zombies, now.finished.succeeded), (0, 0, 0), "the late result does not count");
}

/// C14
#[test]
fn a_job_that_has_ended_cannot_be_cancelled_any_more() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut done = scheduler.now().run(|_| 1).unwrap();
    let mut failed = scheduler.now().run(|_| panic_with("no")).unwrap();
    clock.settle().unwrap();
    assert_eq!((done.cancel(), failed.cancel()), (Cancel::TooLate, Cancel::TooLate));
    assert_eq!(done.wait(), Ok(1));
    assert_eq!(failed.wait(), Err::<(), _>(JobError::Panicked("no".into())));
    assert_eq!(scheduler.snapshot().finished.cancelled, 0);
}

/// C14: a late result, and a late panic, are dropped.
#[test]
fn what_a_cancelled_job_returns_is_dropped_and_its_panic_ignored() {
    let (clock, scheduler) = on_virtual_clock(2);
    let (gate, dropped_on) = (Gate::on(&clock), Log::new());
    for panics in [false, true] {
        let (gate, result) = (gate.clone(), witness(&dropped_on));
        let job = scheduler.now().run(move |_| {
            gate.pass();
            if panics { panic_with("too late") } else { result }
        });
        let mut job = job.unwrap();
        clock.settle().unwrap();
        assert_eq!(job.cancel(), Cancel::Requested);
        assert_eq!(job.wait().map(drop), Err(cancelled(Cause::Handle, Stage::Running)));
    }
    assert_eq!(dropped_on.len(), 0);
    gate.open();
    clock.settle().unwrap();
    assert_eq!(dropped_on.all(), ["punctual-worker", "punctual-worker"]);
    let finished = scheduler.snapshot().finished;
    assert_eq!((finished.cancelled, finished.succeeded, finished.panicked), (2, 0, 0));
}

/// C14
#[test]
fn a_future_that_waits_is_dropped_when_it_is_cancelled() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (dropped_on, polls) = (Log::new(), Signal::default());
    let (guard, signal) = (witness(&dropped_on), polls.clone());
    let mut job = scheduler.now().spawn(move |_| async move {
        let _guard = guard;
        signal.await;
    });
    clock.settle().unwrap();
    let job = job.as_mut().unwrap();
    assert_eq!(job.cancel(), Cancel::Requested);
    job.stopped().wait();
    assert_eq!(dropped_on.all(), ["punctual-worker"]);
    assert_eq!(polls.polls(), 1, "it was not polled for it");
    assert_eq!(job.wait(), Err(cancelled(Cause::Handle, Stage::Running)));
    assert_eq!(scheduler.snapshot().running, 0);
    polls.set();
    clock.settle().unwrap();
    assert_eq!(polls.polls(), 1, "its waker leads nowhere");
}

/// C14: a future that watches for its cancellation is dropped all the same, and whoever watches from outside is woken.
#[test]
fn whoever_awaits_the_cancellation_hears_of_it() {
    let (clock, scheduler) = on_virtual_clock(2);
    let gate = Gate::on(&clock);
    let (send, contexts) = mpsc::channel();
    let job = scheduler.now().run({
        let gate = gate.clone();
        move |ctx| {
            send.send(ctx).unwrap();
            gate.pass();
        }
    });
    let ctx: Ctx = contexts.recv_timeout(SOON).unwrap();
    assert_eq!(ctx.checkpoint(), Ok(()));
    let mut watching = scheduler.now().spawn({
        let ctx = ctx.clone();
        move |_| async move { ctx.cancelled().await }
    });
    let outside = thread::spawn({
        let ctx = ctx.clone();
        move || block_on(ctx.cancelled())
    });
    clock.settle().unwrap();
    assert_eq!(watching.as_mut().unwrap().wait_timeout(Duration::ZERO), None);
    job.unwrap().cancel();
    assert_eq!(watching.unwrap().wait(), Ok(()));
    outside.join().unwrap();
    assert!(ctx.is_cancelled());
    assert_eq!(ctx.checkpoint(), Err(cancelled(Cause::Handle, Stage::Running)), "and it stays so");
    block_on(ctx.cancelled());
    gate.open();
}

/// C14
#[test]
fn stopped_waits_for_the_end_of_the_work_and_not_of_the_interest() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, job) = running(&clock, &scheduler);
    job.cancel();
    let stopped = job.stopped();
    let (waits, done) = mpsc::channel();
    thread::spawn(move || {
        stopped.wait();
        waits.send(()).unwrap();
    });
    let awaits = thread::spawn({
        let stopped = job.stopped();
        move || block_on(stopped)
    });
    clock.advance(secs(10)).unwrap();
    assert_eq!(done.try_recv(), Err(mpsc::TryRecvError::Empty));
    gate.open();
    done.recv_timeout(SOON).unwrap();
    awaits.join().unwrap();
    assert!(job.stopped().wait_timeout(Duration::ZERO), "and for good");
}

/// Gives a job its own handle.
fn with_own_handle<T: Send + 'static>(
    submit: impl FnOnce(mpsc::Receiver<JobHandle<T>>) -> JobHandle<T>,
) -> impl FnOnce() {
    let (give, own) = mpsc::channel();
    let job = submit(own);
    move || give.send(job).unwrap()
}

/// C14: from inside it never deadlocks.
#[test]
fn a_closure_may_cancel_itself_and_ask_for_its_own_end() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (said, heard) = mpsc::channel();
    let give = with_own_handle(|own| {
        let job = move |ctx: Ctx| {
            let own: JobHandle<()> = own.recv().unwrap();
            let before = own.stopped().wait_timeout(secs(1));
            let answers = (own.cancel(), own.cancel());
            own.stopped().wait();
            block_on(own.stopped());
            said.send((before, answers, ctx.is_cancelled())).unwrap();
        };
        scheduler.now().run(job).unwrap()
    });
    give();
    let answer = heard.recv_timeout(SOON).expect("it does not wait for itself");
    assert_eq!(answer, (false, (Cancel::Requested, Cancel::TooLate), true));
    clock.settle().unwrap();
    assert_eq!(scheduler.snapshot().finished.cancelled, 1);
}

fn a_future_asks_for_its_own_end(scheduler: &Scheduler) {
    let (said, heard) = mpsc::channel();
    let give = with_own_handle(|own| {
        let job = move |_: Ctx| async move {
            let own: JobHandle<()> = own.recv().unwrap();
            own.stopped().await;
            said.send(own.cancel()).unwrap();
            drop(own);
        };
        scheduler.now().spawn(job).unwrap()
    });
    give();
    let answer = heard.recv_timeout(SOON).expect("it does not wait for itself");
    assert_eq!(answer, Cancel::Requested);
}

/// C14
#[test]
fn a_future_may_ask_for_its_own_end() {
    let (_clock, scheduler) = on_virtual_clock(1);
    a_future_asks_for_its_own_end(&scheduler);
}

/// C14: "called from inside the job itself it never deadlocks", wherever the job is polled.
#[test]
fn a_future_on_another_runtime_may_ask_for_its_own_end() {
    let (_clock, scheduler) = with_runtime(1);
    a_future_asks_for_its_own_end(&scheduler);
}

/// C15
#[test]
fn a_dropped_handle_withdraws_what_waits_and_tells_what_runs() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, job) = running(&clock, &scheduler);
    let (dropped_on, ran) = (Log::new(), Log::new());
    let note = |text: &'static str| {
        let (ran, witness) = (ran.clone(), witness(&dropped_on));
        move |_: Ctx| {
            let _witness = &witness;
            ran.add(text);
        }
    };
    let scheduled = scheduler.after(secs(1)).run(note("scheduled")).unwrap();
    let ready = scheduler.now().run(note("ready")).unwrap();
    assert_eq!((scheduler.snapshot().scheduled, scheduler.snapshot().ready), (1, 1));
    drop((scheduled, ready));
    assert_eq!((scheduler.snapshot().scheduled, scheduler.snapshot().ready), (0, 0), "at once");
    assert_eq!(dropped_on.len(), 2, "and so is what they captured");
    drop(job);
    assert_eq!((scheduler.snapshot().running, scheduler.snapshot().zombies), (1, 1));
    gate.open();
    clock.advance(secs(2)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.finished.cancelled, now.finished.total(), now.running), (3, 3, 0));
    assert_eq!(ran.len(), 0);
}

/// C15
#[test]
fn a_handle_dropped_after_the_end_drops_the_result_with_it() {
    let (clock, scheduler) = on_virtual_clock(1);
    let dropped_on = Log::new();
    let result = witness(&dropped_on);
    let job = scheduler.now().run(move |_| result).unwrap();
    clock.settle().unwrap();
    assert_eq!(dropped_on.len(), 0);
    drop(job);
    assert_eq!(dropped_on.len(), 1);
    assert_eq!(scheduler.snapshot().finished.succeeded, 1);
}

/// C15
#[test]
fn a_detached_job_goes_on_from_wherever_it_stands() {
    let (clock, scheduler) = on_virtual_clock(1);
    let dropped_on = Log::new();
    let (gate, job) = running(&clock, &scheduler);
    let results = [witness(&dropped_on), witness(&dropped_on)];
    let [one, two] = results;
    scheduler.after(secs(1)).run(move |_| one).unwrap().detach();
    scheduler.now().spawn(move |_| async move { two }).unwrap().detach();
    job.detach();
    gate.open();
    clock.advance(secs(1)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.finished.succeeded, now.finished.total()), (3, 3));
    assert_eq!(dropped_on.all(), ["punctual-worker", "punctual-worker"], "nobody takes the results");
    scheduler.now().run(|_| ()).unwrap().detach();
}

/// C15
#[test]
fn giving_up_a_wait_is_not_giving_up_the_job() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, mut job) = running(&clock, &scheduler);
    let waiting = thread::spawn(move || (job.wait_timeout(secs(5)), job));
    until("the waiter sleeps on the clock", || clock.pending().contains(&(clock.now() + secs(5))));
    clock.advance(secs(5)).unwrap();
    let (answer, mut job) = waiting.join().unwrap();
    assert_eq!(answer, None);
    assert_eq!(job.wait_timeout(Duration::ZERO), None);
    gate.open();
    assert_eq!(job.wait_timeout(Duration::MAX), Some(Ok(false)), "it was not cancelled meanwhile");
}

/// A handle polled by one task and then waited for by a thread.
#[test]
fn a_handle_may_change_from_a_future_to_a_blocking_wait() {
    use crate::queue::{Bell, poll};
    let (clock, scheduler) = on_virtual_clock(1);
    let mut job = scheduler.after(secs(1)).run(|_| 1).unwrap();
    let bell = Bell::new();
    assert!(poll(std::pin::Pin::new(&mut job), &bell).is_pending());
    assert_eq!(job.wait_timeout(Duration::ZERO), None);
    assert!(poll(std::pin::Pin::new(&mut job), &bell).is_pending());
    clock.advance(secs(1)).unwrap();
    assert_eq!(bell.rings(), 1);
    assert_eq!(job.wait(), Ok(1));
}

/// A job that has not fallen due can be moved both ways; any other cannot.
#[test]
fn a_job_can_be_rescheduled_until_it_is_due() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut earlier = scheduler.after(secs(100)).run(|ctx| ctx.due()).unwrap();
    let mut later = scheduler.after(secs(1)).run(|ctx| ctx.due()).unwrap();
    let mut dated = scheduler.after(secs(1)).run(|ctx| ctx.due()).unwrap();
    let start = clock.now();
    assert!(earlier.reschedule(secs(2)));
    assert!(later.reschedule(start + secs(50)));
    assert!(dated.reschedule(clock.wall() + secs(7)));
    clock.advance(secs(200)).unwrap();
    assert_eq!(earlier.wait(), Ok(start + secs(2)));
    assert_eq!(dated.wait(), Ok(start + secs(7)));
    assert_eq!(later.wait(), Ok(start + secs(50)));
    let mut never = scheduler.after(Duration::MAX).run(|_| ()).unwrap();
    assert!(never.reschedule(Duration::MAX));
    assert!(never.reschedule(Duration::ZERO));
    assert_eq!(never.wait(), Ok(()));
}

#[test]
fn a_job_that_is_ready_running_or_over_cannot_be_rescheduled() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, mut job) = running(&clock, &scheduler);
    let mut ready = scheduler.now().run(|_| 1).unwrap();
    let cancelled = scheduler.after(secs(1)).run(|_| ()).unwrap();
    cancelled.cancel();
    clock.settle().unwrap();
    assert!(!job.reschedule(secs(1)));
    assert!(!ready.reschedule(secs(1)));
    assert!(!cancelled.reschedule(secs(1)));
    gate.open();
    assert_eq!((job.wait(), ready.wait()), (Ok(false), Ok(1)));
    assert!(!ready.reschedule(secs(1)));
    assert_eq!(scheduler.snapshot().scheduled, 0);
}

/// C13, C29: against its start, a cancel either prevents a job or comes after it; never both, never neither.
#[test]
fn cancel_against_start_has_one_winner() {
    let (_clock, scheduler) = on_virtual_clock(2);
    let (started, mut prevented) = (Arc::new(AtomicUsize::new(0)), 0);
    let mut random = SplitMix(3);
    for round in 1..=5_000 {
        let counter = Arc::clone(&started);
        let mut job = scheduler.now().run(move |_| counter.fetch_add(1, Ordering::SeqCst)).unwrap();
        spin(random.below(3_000));
        let answer = job.cancel();
        match (answer, job.wait()) {
            (Cancel::Prevented, Err(JobError::Cancelled { cause: Cause::Handle, stage })) => {
                assert!(matches!(stage, Stage::Scheduled | Stage::Ready), "{stage}");
                prevented += 1;
            }
            (Cancel::Requested, Err(JobError::Cancelled { cause: Cause::Handle, stage: Stage::Running })) => {}
            (Cancel::TooLate, Ok(_)) => {}
            wrong => panic!("round {round}: {wrong:?}"),
        }
        job.stopped().wait();
        assert_eq!(started.load(Ordering::SeqCst) + prevented, round, "each job started or was prevented");
    }
    assert_eq!(scheduler.snapshot().finished.total(), 5_000);
}

pub(crate) fn spin(turns: u64) {
    for _ in 0..turns {
        std::hint::spin_loop();
    }
}

/// Counts how often it is dropped.
pub(crate) fn token(drops: &Arc<AtomicUsize>) -> OnDrop<impl FnMut() + Send + use<>> {
    let drops = Arc::clone(drops);
    OnDrop(move || _ = drops.fetch_add(1, Ordering::SeqCst))
}

/// C13: against its end, a cancel either settles the job or leaves its result alone; and no result is lost or doubled.
#[test]
fn cancel_against_finish_has_one_winner() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let (drops, mut random) = (Arc::new(AtomicUsize::new(0)), SplitMix(4));
    let (mut won, mut lost) = (0, 0);
    for round in 1..=3_000 {
        let (start, token) = (Arc::new(Barrier::new(2)), token(&drops));
        let (inner, turns) = (Arc::clone(&start), random.below(500));
        let job = scheduler.now().run(move |_| {
            inner.wait();
            spin(turns);
            token
        });
        let mut job = job.unwrap();
        start.wait();
        spin(random.below(2_000));
        match (job.cancel(), job.wait().map(drop)) {
            (Cancel::Requested, Err(JobError::Cancelled { cause: Cause::Handle, stage: Stage::Running })) => won += 1,
            (Cancel::TooLate, Ok(())) => lost += 1,
            wrong => panic!("round {round}: {wrong:?}"),
        }
        job.stopped().wait();
        drop(job);
        assert_eq!(drops.load(Ordering::SeqCst), round, "the result is dropped once, whoever has it");
    }
    let finished = scheduler.snapshot().finished;
    assert_eq!((finished.cancelled, finished.succeeded), (won, lost));
}

/// C30
#[test]
fn a_cancelled_job_takes_its_children_with_it() {
    let (clock, scheduler) = on_virtual_clock(3);
    let (send, children) = mpsc::channel();
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let parent = scheduler.now().run(move |ctx| {
        let gate = inner.clone();
        let running = ctx.now().run(move |_| gate.pass()).unwrap();
        send.send((running, ctx.after(secs(9)).run(|_| ()).unwrap())).unwrap();
        inner.pass();
        // Too late: it is cancelled as soon as it is there.
        send.send((ctx.after(secs(9)).run(|_| ()).unwrap(), ctx.after(secs(9)).run(|_| ()).unwrap())).unwrap();
    });
    clock.settle().unwrap();
    let (mut running, mut scheduled) = children.recv_timeout(SOON).unwrap();
    drop(parent);
    assert_eq!(running.wait(), Err(cancelled(Cause::Parent, Stage::Running)));
    assert_eq!(scheduled.wait(), Err(cancelled(Cause::Parent, Stage::Scheduled)));
    gate.open();
    let (mut late, _) = children.recv_timeout(SOON).unwrap();
    assert_eq!(late.wait(), Err(cancelled(Cause::Parent, Stage::Scheduled)));
    clock.settle().unwrap();
    assert_eq!(scheduler.snapshot().scheduled, 0);
}

/// C30: a job that ended well leaves its children alone.
#[test]
fn children_outlive_a_parent_that_has_ended() {
    let (clock, scheduler) = on_virtual_clock(2);
    let mut parent = scheduler.now().run(|ctx| ctx.after(secs(5)).run(|_| "alive").unwrap()).unwrap();
    let mut child = parent.wait().unwrap();
    assert_eq!(parent.cancel(), Cancel::TooLate);
    drop(parent);
    clock.advance(secs(5)).unwrap();
    assert_eq!(child.wait(), Ok("alive"));
}

/// C30, C36: a family may be as deep as memory allows; its end must not be a matter of stack.
#[test]
fn a_deep_family_is_cancelled_as_a_whole() {
    fn descend(ctx: &Ctx, left: u32) -> JobHandle<()> {
        let generation = move |ctx: Ctx| async move {
            let child = (left > 0).then(|| descend(&ctx, left - 1));
            std::future::pending::<()>().await;
            drop(child);
        };
        ctx.now().spawn(generation).unwrap()
    }
    in_own_process("cancel::a_deep_family_is_cancelled_as_a_whole", || {
        let (clock, scheduler) = on_virtual_clock(1);
        let job = scheduler.now().spawn(|ctx| async move {
            let _child = descend(&ctx, 20_000);
            std::future::pending::<()>().await;
        });
        clock.settle().unwrap();
        assert_eq!(scheduler.snapshot().running, 20_002);
        assert_eq!(job.unwrap().cancel(), Cancel::Requested);
        clock.settle().unwrap();
        assert_eq!(scheduler.snapshot().running, 0);
    });
}

/// C11: whatever is dropped or woken by a cancel may call back.
#[test]
fn a_destructor_may_call_back_while_its_job_is_cancelled() {
    in_time(|| {
        let (clock, scheduler) = on_virtual_clock(1);
        let calls = Arc::new(AtomicUsize::new(0));
        let meddler = || {
            let (scheduler, calls) = (scheduler.clone(), Arc::clone(&calls));
            OnDrop(move || {
                let snapshot = scheduler.snapshot();
                let job = scheduler.after(secs(1)).run(|_| ()).unwrap();
                assert_eq!(job.cancel(), Cancel::Prevented);
                scheduler.now().run(|_| ()).unwrap().detach();
                drop((snapshot, job));
                calls.fetch_add(1, Ordering::SeqCst);
            })
        };
        let (one, two, three) = (meddler(), meddler(), meddler());
        drop(scheduler.after(secs(1)).run(move |_| drop(one)).unwrap());
        let waits = scheduler.now().spawn(move |_| async move {
            let _two = two;
            std::future::pending::<()>().await;
        });
        let result = scheduler.now().run(move |_| three).unwrap();
        clock.settle().unwrap();
        drop(waits);
        drop(result);
        clock.settle().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 3);
    });
}

/// C11: so may whoever is woken by it.
#[test]
fn a_waker_may_call_back() {
    struct Meddler(Scheduler, AtomicUsize);
    impl Wake for Meddler {
        fn wake(self: Arc<Self>) {
            let job = self.0.after(secs(1)).run(|_| ()).unwrap();
            assert_eq!(job.cancel(), Cancel::Prevented);
            drop(self.0.snapshot());
            drop(self.0.now().run(|_| ()).unwrap());
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    in_time(|| {
        let (clock, scheduler) = on_virtual_clock(2);
        let meddler = Arc::new(Meddler(scheduler.clone(), AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&meddler));
        let mut cx = Context::from_waker(&waker);
        let (send, contexts) = mpsc::channel();
        let job = scheduler.now().run_timeout(secs(1)).run(move |ctx| {
            send.send(ctx.clone()).unwrap();
            block_on(ctx.cancelled());
        });
        let mut job = job.unwrap();
        let ctx: Ctx = contexts.recv_timeout(SOON).unwrap();
        let (mut stopped, mut told) = (job.stopped(), ctx.cancelled());
        assert!(Pin::new(&mut job).poll(&mut cx).is_pending());
        assert!(Pin::new(&mut stopped).poll(&mut cx).is_pending());
        assert!(Pin::new(&mut told).poll(&mut cx).is_pending());
        // The job blocks where the clock cannot see it, so the time-out is a cancel here and an expiry below.
        job.cancel();
        stopped.wait();
        until("all three wakers have been called", || meddler.1.load(Ordering::SeqCst) == 3);
        let mut expires = scheduler.now().run_timeout(secs(1)).spawn(|_| std::future::pending::<()>()).unwrap();
        assert!(Pin::new(&mut expires).poll(&mut cx).is_pending());
        clock.advance(secs(1)).unwrap();
        assert_eq!(meddler.1.load(Ordering::SeqCst), 4);
    });
}
