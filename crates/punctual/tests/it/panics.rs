//! A panic in the user's code, wherever it happens, fails that job alone: no thread is lost and no number is wrong.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::any::Any;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use punctual::{BoxFuture, Cancel, Ctx, JobError, JobHandle, OnFailure, Outcomes, Scheduler, VirtualClock};

use crate::jobs::{Gate, Log, OnDrop, SOON, in_own_process, in_time, on_virtual_clock, panic_with, secs, witness};

/// One worker, so that a lost thread is a hang. What a test leaves behind is checked by `still_works`.
fn one_worker() -> (VirtualClock, Scheduler) {
    on_virtual_clock(1)
}

fn still_works(clock: &VirtualClock, scheduler: &Scheduler) -> Outcomes {
    let mut next = scheduler.now().run(|_| "next").unwrap();
    let answer = in_time(move || next.wait());
    assert_eq!(answer, Ok("next"), "the next job runs");
    clock.settle().unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.workers, now.scheduled, now.ready, now.running, now.zombies), (1, 0, 0, 0, 0));
    now.finished
}

fn panicked(message: &str) -> JobError {
    JobError::Panicked(message.to_owned())
}

fn wait<T: Send + 'static>(mut job: JobHandle<T>) -> Result<T, JobError> {
    in_time(move || job.wait())
}

/// C16
#[test]
fn a_job_that_panics_fails_alone_with_the_message() {
    let (clock, scheduler) = one_worker();
    let closure = scheduler.now().run(|_| panic_with("in the job")).unwrap();
    assert_eq!(wait::<()>(closure), Err(panicked("in the job")));
    let future = scheduler.now().spawn(|_| async { panic_with("in the future") }).unwrap();
    assert_eq!(wait::<()>(future), Err(panicked("in the future")));
    let maker = scheduler.now().spawn(|_| -> std::future::Ready<()> { panic_with("in its maker") }).unwrap();
    assert_eq!(wait(maker), Err(panicked("in its maker")));
    assert_eq!(still_works(&clock, &scheduler).panicked, 3);
}

/// C16: every kind of payload.
#[test]
fn the_message_of_a_panic_is_kept_whatever_its_type() {
    let (clock, scheduler) = one_worker();
    let job = |payload: fn() -> Box<dyn Any + Send>| {
        wait::<()>(scheduler.now().run(move |_| resume_unwind(payload())).unwrap())
    };
    assert_eq!(job(|| Box::new("a str")), Err(panicked("a str")));
    assert_eq!(job(|| Box::new(String::from("a string"))), Err(panicked("a string")));
    assert_eq!(job(|| Box::new(7)), Err(panicked("a panic without a message")));
    assert_eq!(still_works(&clock, &scheduler).panicked, 3);
}

/// C16
#[test]
fn a_panic_in_the_drop_of_a_captured_value_fails_the_job() {
    let (clock, scheduler) = one_worker();
    let captured = OnDrop(|| panic_with("in a captured value"));
    let closure = scheduler.now().run(move |_| {
        let _captured = &captured;
        1
    });
    assert_eq!(wait(closure.unwrap()), Err(panicked("in a captured value")));
    let captured = OnDrop(|| panic_with("in a captured value"));
    let future = scheduler.now().spawn(move |_| async move {
        let _captured = captured;
        1
    });
    assert_eq!(wait(future.unwrap()), Err(panicked("in a captured value")));
    assert_eq!(still_works(&clock, &scheduler).panicked, 2);
}

/// A future that is ready at once, and panics when it is dropped.
struct ReadyThenPanic;

impl Future for ReadyThenPanic {
    type Output = u8;
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u8> {
        Poll::Ready(1)
    }
}

impl Drop for ReadyThenPanic {
    fn drop(&mut self) {
        panic_with("in the future's drop");
    }
}

/// C16
#[test]
fn a_panic_in_the_drop_of_a_future_fails_the_job() {
    let (clock, scheduler) = one_worker();
    let job = scheduler.now().spawn(|_| ReadyThenPanic).unwrap();
    assert_eq!(wait(job), Err(panicked("in the future's drop")));
    assert_eq!(still_works(&clock, &scheduler).panicked, 1);
}

/// C16: a future that is dropped because it was cancelled, and one that is dropped before its first poll.
#[test]
fn a_panic_in_the_drop_of_a_cancelled_job_is_ignored() {
    let (clock, scheduler) = one_worker();
    let guard = OnDrop(|| panic_with("in the drop"));
    let waits = scheduler.now().spawn(move |_| async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    let waits = waits.unwrap();
    clock.settle().unwrap();
    assert_eq!(waits.cancel(), Cancel::Requested);
    clock.settle().unwrap();
    let guard = OnDrop(|| panic_with("in the drop"));
    let scheduled = scheduler.after(secs(1)).run(move |_| drop(guard)).unwrap();
    assert_eq!(scheduled.cancel(), Cancel::Prevented, "the panic does not reach the caller");
    let finished = still_works(&clock, &scheduler);
    assert_eq!((finished.cancelled, finished.panicked), (2, 0));
    drop((waits, scheduled));
}

/// C16
#[test]
fn a_panic_in_the_drop_of_a_result_that_nobody_takes_is_ignored() {
    let (clock, scheduler) = one_worker();
    let result = || OnDrop(|| panic_with("in the result"));
    scheduler.now().run(move |_| result()).unwrap().detach();
    scheduler.now().spawn(move |_| async move { result() }).unwrap().detach();
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let late = scheduler.now().run(move |_| {
        inner.pass();
        result()
    });
    clock.settle().unwrap();
    late.unwrap().cancel();
    gate.open();
    clock.settle().unwrap();
    let finished = still_works(&clock, &scheduler);
    assert_eq!((finished.succeeded, finished.cancelled), (3, 1));
}

/// A panic payload that panics when it is dropped.
struct Grudge(&'static str);

impl Drop for Grudge {
    fn drop(&mut self) {
        // Once: the payload of this second panic must not start over.
        resume_unwind(Box::new(self.0));
    }
}

/// C16
#[test]
fn a_panic_in_the_drop_of_a_panics_payload_is_contained() {
    let (clock, scheduler) = one_worker();
    let throw = || resume_unwind(Box::new(Grudge("in the payload")));
    let closure = scheduler.now().run(move |_| throw()).unwrap();
    assert_eq!(wait::<()>(closure), Err(panicked("a panic without a message")));
    let future = scheduler.now().spawn(move |_| async move { throw() }).unwrap();
    assert_eq!(wait::<()>(future), Err(panicked("a panic without a message")));
    let guard = OnDrop(throw);
    drop(scheduler.after(secs(1)).run(move |_| drop(guard)).unwrap());
    let series = scheduler.every(secs(1)).run(move |_: Ctx| -> () { throw() }).unwrap();
    clock.advance(secs(3)).unwrap();
    assert_eq!((series.runs(), series.failures()), (3, 3));
    drop(series);
    assert_eq!(still_works(&clock, &scheduler).panicked, 5);
}

/// C16: poll panics, and the drop of what is left panics again. Two panics at once would end the process.
#[test]
fn a_future_that_panics_in_its_poll_and_again_in_its_drop_fails_alone() {
    struct Twice;
    impl Future for Twice {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            panic_with("in the poll")
        }
    }
    impl Drop for Twice {
        fn drop(&mut self) {
            panic_with("in the drop")
        }
    }
    in_own_process("panics::a_future_that_panics_in_its_poll_and_again_in_its_drop_fails_alone", || {
        let (clock, scheduler) = one_worker();
        assert_eq!(wait(scheduler.now().spawn(|_| Twice).unwrap()), Err(panicked("in the poll")));
        let series = scheduler.every(secs(1)).spawn(|_| Twice).unwrap();
        clock.advance(secs(2)).unwrap();
        assert_eq!((series.runs(), series.failures()), (2, 2));
        drop(series);
        assert_eq!(still_works(&clock, &scheduler).panicked, 3);
    });
}

/// C11, C16
#[test]
fn a_panic_in_a_waker_is_ignored() {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            panic_with("in a waker");
        }
    }
    let (clock, scheduler) = one_worker();
    let waker = Waker::from(Arc::new(Bomb));
    let poll = |future: Pin<&mut dyn Future<Output = ()>>| {
        assert!(future.poll(&mut Context::from_waker(&waker)).is_pending());
    };
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let (send, contexts) = std::sync::mpsc::channel();
    let job = scheduler.now().run(move |ctx| {
        send.send(ctx).unwrap();
        inner.pass();
    });
    let job = job.unwrap();
    let ctx: Ctx = contexts.recv_timeout(SOON).unwrap();
    let mut stopped = Box::pin(job.stopped());
    let mut cancelled = Box::pin(ctx.cancelled());
    let mut ending = Box::pin(async { _ = scheduler.shutdown_async(secs(9)).await });
    let mut done = Box::pin(async { _ = job.await });
    poll(stopped.as_mut());
    poll(cancelled.as_mut());
    poll(ending.as_mut());
    poll(done.as_mut());
    clock.advance(secs(9)).unwrap();
    assert!(ctx.is_cancelled(), "the grace is over: the job was told, and three wakers panicked");
    gate.open();
    clock.settle().unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.running, now.finished.cancelled), (0, 1));
    crate::jobs::until("the worker has ended", || scheduler.snapshot().workers == 0);
}

/// C16
#[test]
fn a_panic_in_the_event_hook_is_ignored() {
    let clock = VirtualClock::with_patience(SOON);
    let builder = Scheduler::builder().workers(1).clock(&clock);
    let scheduler = builder.on_event(|_| panic_with("in the hook")).build().unwrap();
    assert_eq!(wait(scheduler.now().run(|_| 1).unwrap()), Ok(1));
    assert_eq!(wait::<()>(scheduler.now().run(|_| panic_with("no")).unwrap()), Err(panicked("no")));
    assert!(scheduler.now().deadline(Duration::ZERO).run(|_| ()).is_err(), "a rejection is an event too");
    drop(scheduler.after(secs(1)).run(|_| ()).unwrap());
    assert_eq!(still_works(&clock, &scheduler).total(), 4);
}

/// C16, C36: a worker whose set-up failed works all the same.
#[test]
fn a_panic_in_the_enter_hook_loses_no_job() {
    let clock = VirtualClock::with_patience(SOON);
    let first = Arc::new(AtomicBool::new(true));
    let enter = move |work: &mut dyn FnMut()| {
        if first.swap(false, Ordering::SeqCst) {
            panic_with("not today");
        }
        work();
    };
    let scheduler = Scheduler::builder().workers(1).clock(&clock).enter(enter).build().unwrap();
    let mut job = scheduler.now().run(|_| 1).unwrap();
    let answer = in_time(move || job.wait());
    assert_eq!(answer, Ok(1));
    still_works(&clock, &scheduler);
}

/// C16, C26
#[test]
fn a_panic_in_the_spawner_settles_the_job() {
    let clock = VirtualClock::with_patience(SOON);
    let spawner = |_: BoxFuture| panic_with("no room");
    let scheduler = Scheduler::builder().workers(1).clock(&clock).futures_on(spawner).build().unwrap();
    let dropped_on = Log::new();
    let guard = witness(&dropped_on);
    let job = scheduler.now().spawn(move |_| async move { drop(guard) }).unwrap();
    assert!(matches!(wait(job), Err(JobError::Cancelled { .. })));
    assert_eq!(still_works(&clock, &scheduler).cancelled, 1);
    assert_eq!(dropped_on.len(), 1);
}

/// C16: an error that panics when it is shown is a panic of that run.
#[test]
fn a_series_survives_every_kind_of_failure() {
    struct Unspeakable;
    impl std::fmt::Display for Unspeakable {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic_with("cannot say")
        }
    }
    let (clock, scheduler) = one_worker();
    let mut run = 0;
    let series = scheduler.every(secs(1)).on_failure(OnFailure::Continue).run(move |_| {
        run += 1;
        match run {
            1 => panic_with("first"),
            2 => Err(Unspeakable),
            3 => resume_unwind(Box::new(3)),
            _ => Ok(()),
        }
    });
    let series = series.unwrap();
    clock.advance(secs(5)).unwrap();
    assert_eq!((series.runs(), series.failures()), (5, 3));
    drop(series);
    let finished = still_works(&clock, &scheduler);
    assert_eq!((finished.panicked, finished.failed, finished.succeeded, finished.cancelled), (3, 0, 3, 1));
}

/// C16: many panics from many jobs, and every worker is still there.
#[test]
fn no_thread_is_lost_to_a_thousand_panics() {
    let (clock, scheduler) = on_virtual_clock(4);
    let jobs: Vec<_> = (0..1_000).map(|_| scheduler.now().run(|_| panic_with("again")).unwrap()).collect();
    for mut job in jobs {
        assert_eq!(job.wait(), Err::<(), _>(panicked("again")));
    }
    let gate = Gate::on(&clock);
    for _ in 0..4 {
        let gate = gate.clone();
        scheduler.now().run(move |_| gate.pass()).unwrap().detach();
    }
    clock.settle().unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.running, now.workers, now.finished.panicked), (4, 4, 1_000), "all four can be busy at once");
    gate.open();
}
