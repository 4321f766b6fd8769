//! How a scheduler ends: what drains, what never starts, who is waited for, and that its threads are really gone.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use punctual::{Cancel, Cause, JobError, Reason, Report, Scheduler, Stage};

use crate::jobs::{
    Gate, Log, SOON, Signal, block_a_worker, in_time, on_virtual_clock, panic_with, secs, until, with_runtime, witness,
};
use crate::queue::{block_on, ms};

fn numbers(report: Report) -> (usize, usize, usize, usize) {
    (report.done, report.cancelled, report.never_started, report.still_running)
}

fn by_shutdown(stage: Stage) -> JobError {
    JobError::Cancelled { cause: Cause::Shutdown, stage }
}

/// Begins a shutdown on a thread of its own, because it waits.
fn shutting_down(scheduler: &Scheduler, grace: Duration) -> mpsc::Receiver<Report> {
    let (scheduler, (done, report)) = (scheduler.clone(), mpsc::channel());
    let (began, begun) = mpsc::channel();
    thread::spawn(move || {
        let ending = scheduler.shutdown_async(grace);
        began.send(()).unwrap();
        done.send(block_on(ending))
    });
    begun.recv_timeout(SOON).unwrap();
    report
}

/// C19
#[test]
fn what_is_due_drains_and_the_rest_never_starts() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, mut blocker) = block_a_worker(&clock, &scheduler);
    let mut due: Vec<_> = (0..10).map(|n| scheduler.now().run(move |_| n).unwrap()).collect();
    let mut later = scheduler.after(ms(1)).run(|_| ()).unwrap();
    let series = scheduler.every(secs(1)).run(|_| ()).unwrap();
    let report = shutting_down(&scheduler, secs(10));
    assert_eq!(later.wait(), Err(by_shutdown(Stage::Scheduled)), "at once");
    assert_eq!(series.cancel(), Cancel::TooLate);
    gate.open();
    assert_eq!(numbers(report.recv_timeout(SOON).unwrap()), (11, 0, 2, 0));
    assert_eq!(blocker.wait(), Ok(()));
    for (n, job) in (0..).zip(&mut due) {
        assert_eq!(job.wait(), Ok(n));
    }
}

/// C19
#[test]
fn an_idle_scheduler_shuts_down_at_once() {
    let (_clock, scheduler) = on_virtual_clock(1);
    assert_eq!(numbers(scheduler.shutdown(Duration::MAX)), (0, 0, 0, 0), "without a thread");
    let (clock, scheduler) = on_virtual_clock(1);
    scheduler.now().run(|_| ()).unwrap().detach();
    clock.settle().unwrap();
    assert_eq!(numbers(in_time(move || scheduler.shutdown(Duration::MAX))), (0, 0, 0, 0), "what ended before is past");
}

/// C19
#[test]
fn the_report_comes_when_the_grace_is_over_whoever_is_blocked() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, mut blocker) = block_a_worker(&clock, &scheduler);
    let mut queued = scheduler.now().run(|_| ()).unwrap();
    let report = shutting_down(&scheduler, secs(10));
    clock.advance(secs(10) - Duration::from_nanos(1)).unwrap();
    assert!(report.try_recv().is_err(), "the grace is not over");
    clock.advance(Duration::from_nanos(1)).unwrap();
    assert_eq!(numbers(report.recv_timeout(SOON).unwrap()), (0, 1, 0, 1));
    assert_eq!(queued.wait(), Err(by_shutdown(Stage::Ready)));
    assert_eq!(blocker.wait(), Err(by_shutdown(Stage::Running)));
    assert_eq!((scheduler.snapshot().running, scheduler.snapshot().zombies), (1, 1));
    gate.open();
    blocker.stopped().wait();
    until("the worker has ended", || scheduler.snapshot().workers == 0);
    assert_eq!(scheduler.snapshot().running, 0);
}

/// C19
#[test]
fn a_grace_of_zero_is_over_at_once() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let ends = scheduler.clone();
    let report = in_time(move || ends.shutdown(Duration::ZERO));
    assert_eq!(numbers(report), (0, 0, 0, 1));
    gate.open();
}

/// C19: done, cancelled, never started or still running; not two of these.
#[test]
fn every_job_is_counted_once_in_the_report() {
    let (clock, scheduler) = on_virtual_clock(1);
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let zombie = scheduler.now().run_timeout(secs(5)).run(move |_| inner.pass()).unwrap();
    clock.settle().unwrap();
    let report = shutting_down(&scheduler, secs(10));
    clock.advance(secs(10)).unwrap();
    assert_eq!(numbers(report.recv_timeout(SOON).unwrap()), (0, 0, 0, 1), "its outcome is settled, but it runs");
    gate.open();
    drop(zombie);
}

/// C19
#[test]
fn everybody_who_asks_gets_the_report_of_the_first() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let reports: Vec<_> = [secs(10), secs(1), Duration::MAX, Duration::ZERO]
        .into_iter()
        .map(|grace| shutting_down(&scheduler, grace))
        .collect();
    clock.advance(secs(5)).unwrap();
    assert!(reports.iter().all(|report| report.try_recv().is_err()), "the first grace counts");
    gate.open();
    for report in reports {
        assert_eq!(numbers(report.recv_timeout(SOON).unwrap()), (1, 0, 0, 0));
    }
    assert_eq!(numbers(scheduler.shutdown(secs(1))), (1, 0, 0, 0), "also long after");
}

/// C19, with real threads that begin at the same moment.
#[test]
fn two_shutdowns_at_once_are_one() {
    for _ in 0..200 {
        let (_clock, scheduler) = on_virtual_clock(2);
        let jobs: Vec<_> = (0..5).map(|_| scheduler.now().run(|_| ()).unwrap()).collect();
        let threads = [(); 2].map(|()| {
            let scheduler = scheduler.clone();
            thread::spawn(move || scheduler.shutdown(Duration::MAX))
        });
        let [one, two] = threads.map(|thread| thread.join().unwrap());
        assert_eq!(one, two);
        assert_eq!((one.cancelled, one.never_started, one.still_running), (0, 0, 0));
        assert_eq!(scheduler.snapshot().finished.succeeded, 5);
        drop(jobs);
    }
}

/// C19
#[test]
fn a_job_submitted_too_late_is_given_back() {
    let (clock, scheduler) = on_virtual_clock(2);
    let (gate, blocker) = block_a_worker(&clock, &scheduler);
    let (inner, inner_gate) = (scheduler.clone(), gate.clone());
    let mut drains = scheduler.now().run(move |ctx| {
        inner_gate.pass();
        let from_a_job = inner.now().run(|_| ()).unwrap_err().reason().clone();
        (from_a_job, ctx.now().run(|_| ()).unwrap_err().reason().clone())
    });
    clock.settle().unwrap();
    let report = shutting_down(&scheduler, secs(10));
    let precious = String::from("precious");
    let rejected = scheduler.now().run(move |_| precious).unwrap_err();
    assert_eq!(rejected.reason(), &Reason::Closed);
    let back = rejected.into_job();
    assert_eq!(scheduler.every(secs(1)).run(|_| ()).unwrap_err().reason(), &Reason::Closed);
    gate.open();
    assert_eq!(drains.as_mut().unwrap().wait(), Ok((Reason::Closed, Reason::Closed)), "also from a job that drains");
    report.recv_timeout(SOON).unwrap();
    let back = scheduler.now().run(back).unwrap_err().into_job();
    let (_clock, other) = on_virtual_clock(1);
    assert_eq!(other.now().run(back).unwrap().wait(), Ok("precious".to_owned()));
    assert_eq!(scheduler.snapshot().rejected, 5);
    drop(blocker);
}

/// C19
#[test]
fn a_shutdown_from_inside_a_job_does_not_wait_for_that_job() {
    let (clock, scheduler) = on_virtual_clock(2);
    let (gate, blocker) = block_a_worker(&clock, &scheduler);
    let inner = scheduler.clone();
    let mut job = scheduler.now().run(move |_| inner.shutdown(Duration::MAX)).unwrap();
    clock.settle().unwrap();
    assert!(job.wait_timeout(Duration::ZERO).is_none(), "it waits for the other one");
    gate.open();
    let report = in_time(move || job.wait());
    assert_eq!(report.map(numbers), Ok((1, 0, 0, 0)));
    drop(blocker);
}

/// C19
#[test]
fn two_jobs_may_shut_down_at_once() {
    let (_clock, scheduler) = on_virtual_clock(2);
    let ready = std::sync::Arc::new(std::sync::Barrier::new(2));
    let jobs = [(); 2].map(|()| {
        let (inner, ready) = (scheduler.clone(), ready.clone());
        let job = scheduler.now().run(move |_| {
            ready.wait();
            inner.shutdown(Duration::MAX)
        });
        job.unwrap()
    });
    for mut job in jobs {
        assert_eq!(in_time(move || job.wait()).map(numbers), Ok((0, 0, 0, 0)));
    }
}

/// C19
#[test]
fn a_future_may_await_the_shutdown_of_its_own_scheduler() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let inner = scheduler.clone();
    let mut job = scheduler.now().spawn(move |_| async move { inner.shutdown_async(Duration::MAX).await }).unwrap();
    assert_eq!(in_time(move || job.wait()).map(numbers), Ok((0, 0, 0, 0)));
}

/// C19: the future that waits for the end must still be there to hear of it, although all workers go.
#[test]
fn a_future_that_awaits_the_shutdown_is_told_when_another_job_ends_it() {
    let (clock, scheduler) = on_virtual_clock(1);
    let signal = Signal::default();
    let other = scheduler.now().spawn({
        let signal = signal.clone();
        move |_| signal
    });
    clock.settle().unwrap();
    let inner = scheduler.clone();
    let mut job = scheduler.now().spawn(move |_| async move { inner.shutdown_async(Duration::MAX).await }).unwrap();
    clock.settle().unwrap();
    signal.set();
    let report = in_time(move || job.wait());
    assert_eq!(report.map(numbers), Ok((1, 0, 0, 0)));
    drop(other);
}

/// C19: after the report, such a future still has something to do.
#[test]
fn a_future_that_awaited_the_shutdown_goes_on_to_its_end() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (inner, signal) = (scheduler.clone(), Signal::default());
    let own_signal = signal.clone();
    let job = scheduler.now().spawn(move |_| async move {
        inner.shutdown_async(Duration::MAX).await;
        own_signal.await;
        "done"
    });
    clock.settle().unwrap();
    until("it waits for the signal", || signal.polls() == 1);
    signal.set();
    let mut job = job.unwrap();
    assert_eq!(in_time(move || job.wait()), Ok("done"));
}

/// C28: "every worker busy, none alive": a deadline outlives the shutdown for a job that does.
#[test]
fn a_job_that_shut_its_scheduler_down_still_has_its_deadline() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (inner, gate) = (scheduler.clone(), Gate::on(&clock));
    let inner_gate = gate.clone();
    let mut job = scheduler.now().deadline(secs(5)).run(move |_| {
        inner.shutdown(Duration::ZERO);
        inner_gate.pass();
    });
    clock.settle().unwrap();
    clock.advance(secs(5)).unwrap();
    let answer = job.as_mut().unwrap().wait_timeout(Duration::ZERO);
    assert_eq!(answer, Some(Err(JobError::Expired { stage: Stage::Running, waited: secs(5) })));
    gate.open();
}

/// C19: the job that began the shutdown has ended; whoever holds the future of the report waits for the others.
#[test]
fn a_job_that_hands_the_shutdown_on_is_not_counted_as_waiting_for_it() {
    let (clock, scheduler) = on_virtual_clock(2);
    let (gate, mut blocker) = block_a_worker(&clock, &scheduler);
    let inner = scheduler.clone();
    let mut job = scheduler.now().run(move |_| inner.shutdown_async(secs(60))).unwrap();
    let ending = job.wait().unwrap();
    let report = thread::spawn(move || block_on(ending));
    clock.advance(secs(1)).unwrap();
    assert!(blocker.wait_timeout(Duration::ZERO).is_none(), "there is grace left for the one that runs");
    gate.open();
    assert_eq!(blocker.wait(), Ok(()));
    assert_eq!(report.join().unwrap().still_running, 0);
}

/// C19: a job that asks twice and takes one question back still waits from inside.
#[test]
fn a_job_that_asks_twice_does_not_wait_for_itself() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let inner = scheduler.clone();
    let job = scheduler.now().spawn(move |_| async move {
        let other = inner.now().run(|_| ()).unwrap();
        let first = inner.shutdown_async(Duration::MAX);
        let second = inner.shutdown_async(Duration::MAX);
        drop(first);
        let report = second.await;
        drop(other);
        report
    });
    let mut job = job.unwrap();
    assert_eq!(in_time(move || job.wait()).map(numbers), Ok((1, 0, 0, 0)));
}

/// C19: wherever the future is polled.
#[test]
fn a_future_on_another_runtime_may_await_the_shutdown_of_its_own_scheduler() {
    let (_clock, scheduler) = with_runtime(1);
    let inner = scheduler.clone();
    let mut job = scheduler.now().spawn(move |_| async move { inner.shutdown_async(Duration::MAX).await }).unwrap();
    let report = in_time(move || job.wait());
    assert_eq!(report.map(numbers), Ok((0, 0, 0, 0)));
}

/// C19: `shutdown_async` begins with the call and goes on without its future, and without the scheduler.
#[test]
fn a_shutdown_goes_on_when_its_future_is_dropped() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, mut blocker) = block_a_worker(&clock, &scheduler);
    drop(scheduler.shutdown_async(secs(10)));
    assert_eq!(scheduler.now().run(|_| ()).unwrap_err().reason(), &Reason::Closed);
    clock.advance(secs(9)).unwrap();
    gate.open();
    assert_eq!(blocker.wait(), Ok(()));
    assert_eq!(numbers(in_time(move || scheduler.shutdown(secs(1)))), (1, 0, 0, 0));
}

/// C19: the grace was promised; letting go of the scheduler meanwhile does not take it back.
#[test]
fn a_scheduler_dropped_during_its_shutdown_keeps_the_grace() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, mut blocker) = block_a_worker(&clock, &scheduler);
    let mut due = scheduler.now().run(|_| "drained").unwrap();
    let ending = scheduler.shutdown_async(secs(10));
    drop(scheduler);
    clock.advance(secs(1)).unwrap();
    gate.open();
    assert_eq!((blocker.wait(), due.wait()), (Ok(()), Ok("drained")));
    assert_eq!(numbers(block_on(ending)), (2, 0, 0, 0));
}

/// C19
#[test]
fn dropping_a_scheduler_cancels_what_waits_tells_what_runs_and_does_not_block() {
    let (clock, scheduler) = on_virtual_clock(1);
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let mut runs = scheduler.now().run(move |ctx| {
        inner.pass();
        ctx.is_cancelled()
    });
    let dropped_on = Log::new();
    let payloads = [witness(&dropped_on), witness(&dropped_on)];
    let [one, two] = payloads;
    let mut later = scheduler.after(secs(1)).run(move |_| drop(one)).unwrap();
    clock.settle().unwrap();
    let mut ready = scheduler.now().run(move |_| drop(two)).unwrap();
    let clone = scheduler.clone();
    drop(scheduler);
    assert_eq!(later.wait_timeout(Duration::ZERO), None, "a clone is as good as the first");
    in_time(move || drop(clone));
    assert_eq!(later.wait(), Err(by_shutdown(Stage::Scheduled)));
    assert_eq!(ready.wait(), Err(by_shutdown(Stage::Ready)));
    let runs = runs.as_mut().unwrap();
    assert_eq!(runs.wait(), Err(by_shutdown(Stage::Running)));
    gate.open();
    runs.stopped().wait();
    until("the payloads are gone", || dropped_on.len() == 2);
}

/// C19, 23 of the anchors
#[test]
fn a_job_may_drop_the_last_scheduler() {
    let (clock, scheduler) = on_virtual_clock(1);
    let gate = Gate::on(&clock);
    let (inner, last) = (gate.clone(), scheduler.clone());
    let (said, heard) = mpsc::channel();
    let job = scheduler.now().run(move |ctx| {
        inner.pass();
        drop(last);
        said.send(ctx.is_cancelled()).unwrap();
    });
    let job = job.unwrap();
    drop(scheduler);
    gate.open();
    assert!(heard.recv_timeout(SOON).expect("it goes on after that"));
    job.stopped().wait();
}

/// C19: everything a handle can do, it can do without its scheduler.
#[test]
fn handles_outlive_their_scheduler() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut done = scheduler.now().run(|_| String::from("kept")).unwrap();
    let mut later = scheduler.after(secs(1)).run(|_| ()).unwrap();
    let series = scheduler.every(secs(1)).run(|_| ()).unwrap();
    clock.advance(ms(1)).unwrap();
    drop(scheduler);
    assert_eq!(done.wait(), Ok("kept".to_owned()));
    assert_eq!((done.cancel(), later.cancel(), series.cancel()), (Cancel::TooLate, Cancel::TooLate, Cancel::TooLate));
    assert!(!later.reschedule(secs(1)) && !done.reschedule(secs(1)));
    done.stopped().wait();
    later.stopped().wait();
    block_on(series.stopped());
    assert_eq!((series.runs(), series.next_due()), (0, None));
    assert!(format!("{later:?} {series:?}").contains("JobHandle"));
    assert_eq!(later.wait(), Err(by_shutdown(Stage::Scheduled)));
}

/// C19: a context that outlives its scheduler is harmless, too.
#[test]
fn contexts_outlive_their_scheduler() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let ctx = scheduler.now().deadline(secs(5)).run(|ctx| ctx).unwrap().wait().unwrap();
    drop(scheduler);
    assert_eq!(ctx.now().run(|_| ()).unwrap_err().reason(), &Reason::Closed);
    assert_eq!((ctx.is_cancelled(), ctx.checkpoint(), ctx.remaining()), (false, Ok(()), Some(secs(5))));
}

/// C19: a series that runs at the end finishes its run and is over.
#[test]
fn a_run_of_a_series_drains_but_no_other_follows() {
    let (clock, scheduler) = on_virtual_clock(1);
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let series = scheduler.every(secs(1)).run(move |_| inner.pass()).unwrap();
    clock.advance(secs(1)).unwrap();
    let report = shutting_down(&scheduler, secs(100));
    clock.advance(secs(10)).unwrap();
    gate.open();
    assert_eq!(numbers(report.recv_timeout(SOON).unwrap()), (1, 0, 0, 0));
    assert_eq!((series.runs(), series.next_due()), (1, None));
    series.stopped().wait();
}

/// C19: while it drains, deadlines, cancels and panics are what they always are.
#[test]
fn a_draining_scheduler_keeps_its_other_promises() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let mut expires = scheduler.now().deadline(secs(1)).run(|_| ()).unwrap();
    let mut cancelled = scheduler.now().run(|_| ()).unwrap();
    let mut panics = scheduler.now().run(|_| panic_with("drained")).unwrap();
    let report = shutting_down(&scheduler, secs(100));
    clock.advance(secs(2)).unwrap();
    assert!(matches!(expires.wait(), Err(JobError::Expired { stage: Stage::Ready, .. })));
    assert_eq!(cancelled.cancel(), Cancel::Prevented);
    gate.open();
    assert_eq!(panics.wait(), Err::<(), _>(JobError::Panicked("drained".into())));
    assert!(cancelled.wait().is_err());
    assert_eq!(numbers(report.recv_timeout(SOON).unwrap()), (4, 0, 0, 0));
}

/// C19: cancelling the last thing that drains ends the shutdown.
#[test]
fn the_last_job_that_is_cancelled_ends_the_shutdown() {
    let (clock, scheduler) = on_virtual_clock(1);
    let waits = scheduler.now().spawn(|_| std::future::pending::<()>()).unwrap();
    clock.settle().unwrap();
    let report = shutting_down(&scheduler, Duration::MAX);
    drop(waits);
    assert_eq!(numbers(report.recv_timeout(SOON).unwrap()), (1, 0, 0, 0));
}

/// C19: really gone, not only told to go. In a process of its own, where no other scheduler has threads.
#[cfg(target_os = "linux")]
#[test]
fn no_thread_is_left_after_the_end() {
    fn threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("punctual-")).count()
    }
    crate::jobs::in_own_process("shutdown::no_thread_is_left_after_the_end", || {
        for how in 0..4 {
            let (clock, scheduler) = on_virtual_clock(4);
            assert_eq!(threads(), 0, "none before the first submit");
            let gate = Gate::on(&clock);
            for n in 0..8 {
                let gate = gate.clone();
                scheduler.now().run_timeout(secs(n + 1)).run(move |_| gate.pass()).unwrap().detach();
                scheduler.now().deadline(secs(3)).run(|_| ()).unwrap().detach();
            }
            scheduler.every(secs(1)).spawn(|_| std::future::pending::<()>()).unwrap().detach();
            clock.advance(secs(5)).unwrap();
            assert!(threads() >= 5, "four workers and the watch");
            match how {
                0 => drop(scheduler.shutdown(Duration::ZERO)),
                1 => drop(scheduler),
                2 => {
                    gate.open();
                    scheduler.shutdown(Duration::ZERO);
                }
                _ => {
                    let last = scheduler.clone();
                    gate.open();
                    drop(scheduler);
                    let (send, last_one) = mpsc::channel::<Scheduler>();
                    last.now().run(move |_| drop(last_one.recv())).unwrap().detach();
                    send.send(last).unwrap();
                }
            }
            gate.open();
            until("every thread has ended", || threads() == 0);
        }
    });
}
