//! Three clocks with three names: `start_within`, `run_timeout`, `deadline`. They fire on time whatever the workers do,
//! and what is left behind is dropped where it delays nobody.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use punctual::{Cancel, Cause, Event, JobError, Outcome, Reason, Scheduler, Stage, VirtualClock};

use crate::jobs::{
    Gate, Log, OnDrop, SOON, block_a_worker, in_time, on_virtual_clock, panic_with, secs, this_thread, until, witness,
};
use crate::queue::ms;

fn expired(stage: Stage, waited: Duration) -> JobError {
    JobError::Expired { stage, waited }
}

/// C28
#[test]
fn ten_thousand_queued_deadlines_fire_on_time_behind_a_blocked_worker() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut jobs: Vec<_> = (0..10_000)
        .map(|_| {
            let dropped = Arc::clone(&dropped);
            let payload = OnDrop(move || _ = dropped.fetch_add(1, Ordering::Relaxed));
            scheduler.now().deadline(ms(50)).run(move |_| drop(payload)).unwrap()
        })
        .collect();
    clock.advance(ms(50) - Duration::from_nanos(1)).unwrap();
    assert_eq!(scheduler.snapshot().ready, 10_000);
    clock.advance(Duration::from_nanos(1)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.ready, now.running, now.finished.expired), (0, 1, 10_000), "all places are free");
    assert_eq!(dropped.load(Ordering::Relaxed), 10_000, "and all payloads gone");
    for job in &mut jobs {
        assert_eq!(job.wait(), Err(expired(Stage::Ready, ms(50))));
    }
    let mut next = scheduler.now().run(|_| "accepted").unwrap();
    gate.open();
    assert_eq!(next.wait(), Ok("accepted"));
    assert_eq!(scheduler.snapshot().lateness.count(), 2, "no dead job was ever started");
}

/// C30
#[test]
fn start_within_counts_from_the_due_instant() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let mut impatient = scheduler.after(secs(10)).start_within(secs(2)).run(|_| ()).unwrap();
    let mut patient = scheduler.after(secs(10)).start_within(secs(3)).run(|_| "started").unwrap();
    clock.advance(secs(12) - Duration::from_nanos(1)).unwrap();
    assert_eq!(impatient.wait_timeout(Duration::ZERO), None);
    clock.advance(Duration::from_nanos(1)).unwrap();
    assert_eq!(impatient.wait(), Err(expired(Stage::Ready, secs(2))));
    gate.open();
    assert_eq!(patient.wait(), Ok("started"));
    clock.advance(secs(100)).unwrap();
    assert_eq!(scheduler.snapshot().finished.expired, 1, "what has started in time may take its time");
}

/// C26, C30
#[test]
fn a_run_timeout_settles_a_blocking_closure_at_once_and_leaves_a_zombie() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, dropped_on) = (Gate::on(&clock), Log::new());
    let (inner, result) = (gate.clone(), witness(&dropped_on));
    let told = Arc::new(AtomicUsize::new(0));
    let hears = Arc::clone(&told);
    let job = scheduler.after(secs(1)).run_timeout(secs(2)).run(move |ctx| {
        assert_eq!(ctx.remaining(), Some(secs(2)));
        inner.pass();
        assert_eq!(ctx.checkpoint(), Err(expired(Stage::Running, secs(2))));
        hears.fetch_add(1, Ordering::SeqCst);
        result
    });
    let mut job = job.unwrap();
    clock.advance(secs(3) - Duration::from_nanos(1)).unwrap();
    assert!(job.wait_timeout(Duration::ZERO).is_none());
    clock.advance(Duration::from_nanos(1)).unwrap();
    assert_eq!(job.wait().map(drop), Err(expired(Stage::Running, secs(2))));
    assert_eq!(job.cancel(), Cancel::TooLate);
    let now = scheduler.snapshot();
    assert_eq!((now.running, now.zombies, now.finished.expired), (1, 1, 1));
    gate.open();
    job.stopped().wait();
    assert_eq!(told.load(Ordering::SeqCst), 1);
    assert_eq!(dropped_on.all(), ["punctual-worker"], "the late result is dropped where it was made");
    assert_eq!((scheduler.snapshot().zombies, scheduler.snapshot().finished.succeeded), (0, 0));
}

/// C26: a future's capacity returns when it has been dropped.
#[test]
fn a_run_timeout_drops_a_future_that_waits() {
    let (clock, scheduler) = on_virtual_clock(1);
    let dropped_on = Log::new();
    let guard = witness(&dropped_on);
    let job = scheduler.now().run_timeout(secs(2)).spawn(move |_| async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    clock.advance(secs(2)).unwrap();
    assert_eq!(job.unwrap().wait(), Err(expired(Stage::Running, secs(2))));
    assert_eq!(dropped_on.all(), ["punctual-worker"]);
    assert_eq!((scheduler.snapshot().running, scheduler.snapshot().zombies), (0, 0));
}

/// C30
#[test]
fn a_deadline_counts_from_the_submit_through_every_stage() {
    let (clock, scheduler) = on_virtual_clock(2);
    let mut too_long = scheduler.after(secs(3)).deadline(secs(5)).spawn(|_| std::future::pending::<()>()).unwrap();
    let mut moved = scheduler.after(secs(3)).deadline(clock.now() + secs(5)).run(|_| ()).unwrap();
    assert!(moved.reschedule(secs(60)), "beyond its deadline");
    clock.advance(secs(5)).unwrap();
    assert_eq!(too_long.wait(), Err(expired(Stage::Running, secs(2))));
    assert_eq!(moved.wait(), Err(expired(Stage::Scheduled, secs(5))));
    let now = scheduler.snapshot();
    assert_eq!((now.scheduled, now.ready, now.running, now.finished.expired), (0, 0, 0, 2));
}

/// C30: the nearest end wins, whichever it is.
#[test]
fn of_two_ends_the_nearer_one_counts() {
    let (clock, scheduler) = on_virtual_clock(4);
    let forever = |_| std::future::pending::<()>();
    let mut by_deadline = scheduler.now().run_timeout(secs(9)).deadline(secs(2)).spawn(forever).unwrap();
    let mut by_timeout = scheduler.now().run_timeout(secs(2)).deadline(secs(9)).spawn(forever).unwrap();
    clock.advance(secs(2)).unwrap();
    assert_eq!(by_deadline.wait(), Err(expired(Stage::Running, secs(2))));
    assert_eq!(by_timeout.wait(), Err(expired(Stage::Running, secs(2))));
}

/// C25, C30
#[test]
fn what_is_expired_at_submit_is_given_back() {
    let (clock, scheduler) = on_virtual_clock(1);
    clock.advance(secs(60)).unwrap();
    let precious = String::from("precious");
    let rejected = scheduler.now().deadline(clock.now() - secs(1)).run(move |_| precious).unwrap_err();
    assert_eq!(rejected.reason(), &Reason::Expired);
    let back = rejected.into_job();
    let rejected = scheduler.now().deadline(Duration::ZERO).run(back).unwrap_err();
    assert_eq!(rejected.to_string(), "rejected: the job's deadline is before it could start");
    let back = rejected.into_job();
    let rejected = scheduler.after(secs(9)).deadline(secs(8)).run(back).unwrap_err();
    let back = rejected.into_job();
    let future = scheduler.now().deadline(Duration::ZERO).spawn(|_| async {});
    assert_eq!(future.map(drop).unwrap_err().reason(), &Reason::Expired);
    assert_eq!(scheduler.snapshot().rejected, 4);
    assert_eq!(scheduler.snapshot().finished.total(), 0, "it never got in");
    assert_eq!(scheduler.now().deadline(secs(1)).run(back).unwrap().wait(), Ok("precious".to_owned()));
}

/// C11: the thread that keeps the time drops nothing of the user's.
#[test]
fn what_expires_is_never_dropped_by_the_thread_that_keeps_the_time() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let dropped_on = Log::new();
    let payloads = [(); 4].map(|()| witness(&dropped_on));
    let [ready, scheduled, future, series] = payloads;
    scheduler.now().start_within(secs(1)).run(move |_| drop(ready)).unwrap().detach();
    let moved = scheduler.after(ms(1)).deadline(secs(1)).run(move |_| drop(scheduled)).unwrap();
    assert!(moved.reschedule(secs(60)));
    moved.detach();
    scheduler.now().deadline(secs(1)).spawn(move |_| async move { drop(future) }).unwrap().detach();
    let run = move |_| _ = &series;
    scheduler.every(secs(9)).deadline(secs(10)).run(run).unwrap().detach();
    clock.advance(secs(20)).unwrap();
    assert_eq!(dropped_on.len(), 4);
    assert!(!dropped_on.all().contains(&"punctual-watch".to_owned()), "{:?}", dropped_on.all());
    gate.open();
}

/// C11: nor when a job expires and its children go with it.
#[test]
fn the_children_of_an_expired_job_are_not_dropped_by_the_thread_that_keeps_the_time() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (dropped_on, gate) = (Log::new(), Gate::on(&clock));
    let (payload, inner) = (witness(&dropped_on), gate.clone());
    let parent = scheduler.now().run_timeout(secs(1)).run(move |ctx| {
        ctx.after(secs(60)).run(move |_| drop(payload)).unwrap().detach();
        inner.pass();
    });
    clock.advance(secs(1)).unwrap();
    assert!(parent.unwrap().wait().is_err());
    assert_eq!(dropped_on.len(), 1, "the child was cancelled with its parent");
    assert_ne!(dropped_on.all(), ["punctual-watch"]);
    gate.open();
}

/// C11: nor is the hook called there, for it may block as well.
#[test]
fn the_hook_is_not_called_by_the_thread_that_keeps_the_time() {
    let clock = VirtualClock::with_patience(SOON);
    let called_on = Log::new();
    let log = called_on.clone();
    let hook = move |event: &Event| log.add((format!("{event:?}"), this_thread()));
    let scheduler = Scheduler::builder().workers(1).clock(&clock).on_event(hook).build().unwrap();
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let parent = scheduler.now().run_timeout(secs(1)).run(move |ctx| {
        ctx.after(secs(60)).run(|_| ()).unwrap().detach();
        inner.pass();
    });
    let queued = scheduler.now().start_within(secs(1)).run(|_| ()).unwrap();
    clock.advance(secs(1)).unwrap();
    gate.open();
    clock.settle().unwrap();
    let on_watch: Vec<_> = called_on.all().into_iter().filter(|(_, thread)| thread == "punctual-watch").collect();
    assert_eq!(on_watch, []);
    drop((parent, queued));
}

/// C11: a series that ends because it never got to run is dropped elsewhere as well.
#[test]
fn a_series_without_a_further_tick_is_not_dropped_by_the_thread_that_keeps_the_time() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let dropped_on = Log::new();
    let payload = witness(&dropped_on);
    let plan = scheduler.every(Duration::MAX).first(Duration::ZERO).start_within(secs(1));
    plan.run(move |_| _ = &payload).unwrap().detach();
    clock.advance(secs(1)).unwrap();
    assert_eq!(dropped_on.len(), 1, "its only run was not started in time");
    assert_ne!(dropped_on.all(), ["punctual-watch"]);
    gate.open();
}

/// C11
#[test]
fn a_destructor_that_blocks_delays_no_deadline_and_no_job() {
    let (clock, scheduler) = on_virtual_clock(2);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let (release, blocked) = mpsc::channel::<()>();
    let (in_destructor, reached) = mpsc::channel();
    let mut slow = Some(OnDrop(move || {
        in_destructor.send(()).unwrap();
        let _ = blocked.recv();
    }));
    scheduler.at(clock.now() + secs(1)).run(|_| ()).unwrap().detach();
    let moved = scheduler.after(ms(1)).deadline(ms(2)).run(move |_| drop(slow.take())).unwrap();
    assert!(moved.reschedule(secs(60)));
    // The destructor blocks where the clock cannot see it, so the clock is moved from elsewhere and never gets quiet.
    let moving = thread::spawn({
        let clock = clock.clone();
        move || clock.advance(ms(2))
    });
    reached.recv_timeout(SOON).expect("the destructor runs");
    let mut job = scheduler.now().run(|_| this_thread()).unwrap();
    assert_eq!(job.wait().as_deref(), Ok("punctual-worker"), "a job runs meanwhile");
    release.send(()).unwrap();
    moving.join().unwrap().unwrap();
    gate.open();
}

/// C11: a result that comes at the very moment of its deadline belongs to nobody; it is dropped all the same, but not
/// by the thread that keeps the time.
#[test]
fn a_result_that_loses_against_its_deadline_is_not_dropped_by_the_thread_that_keeps_the_time() {
    let (clock, scheduler) = on_virtual_clock(1);
    let dropped_on = Log::new();
    let stop = Arc::new(AtomicBool::new(false));
    // Others want the scheduler's lock as well, so that the end of a job and its deadline meet more often.
    let crowd = [(); 2].map(|()| {
        let (scheduler, stop) = (scheduler.clone(), Arc::clone(&stop));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                drop(scheduler.snapshot());
            }
        })
    });
    for _ in 0..3_000 {
        let (result, mut never) = (witness(&dropped_on), scheduler.after(Duration::MAX).run(|_| ()).unwrap());
        let job = scheduler.now().run_timeout(ms(1)).run(move |_| {
            assert_eq!(never.wait_timeout(ms(1)), None);
            result
        });
        clock.advance(ms(1)).unwrap();
        drop(job);
    }
    stop.store(true, Ordering::Relaxed);
    crowd.into_iter().for_each(|thread| thread.join().unwrap());
    clock.settle().unwrap();
    let by_watch = dropped_on.all().iter().filter(|name| *name == "punctual-watch").count();
    assert_eq!((dropped_on.len(), by_watch), (3_000, 0));
}

/// C11: destructors, wakers and hooks may call back into the scheduler that calls them.
#[test]
fn what_expires_may_call_back() {
    in_time(|| {
        let (clock, scheduler) = on_virtual_clock(1);
        let (gate, _blocker) = block_a_worker(&clock, &scheduler);
        let calls = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let (inner, calls) = (scheduler.clone(), Arc::clone(&calls));
            let meddler = OnDrop(move || {
                let job = inner.after(secs(1)).run(|_| ()).unwrap();
                assert_eq!((job.cancel(), inner.snapshot().scheduled), (Cancel::Prevented, 0));
                calls.fetch_add(1, Ordering::SeqCst);
            });
            scheduler.now().deadline(ms(1)).run(move |_| drop(meddler)).unwrap().detach();
        }
        clock.advance(ms(1)).unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 100);
        gate.open();
    });
}

/// C16: a panic in a destructor is nobody's but its own.
#[test]
fn a_panic_in_the_destructor_of_an_expired_job_stops_nothing() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let mut jobs: Vec<_> = (0..50)
        .map(|_| {
            let payload = OnDrop(|| panic_with("in a destructor"));
            scheduler.now().deadline(ms(1)).run(move |_| drop(payload)).unwrap()
        })
        .collect();
    clock.advance(ms(1)).unwrap();
    for job in &mut jobs {
        assert_eq!(job.wait(), Err(expired(Stage::Ready, ms(1))));
    }
    gate.open();
    assert_eq!(scheduler.now().run(|_| 1).unwrap().wait(), Ok(1));
    let now = scheduler.snapshot();
    assert_eq!((now.finished.expired, now.workers, now.running), (50, 1, 0));
}

/// C13
#[test]
fn every_expiry_is_reported_once() {
    let clock = VirtualClock::with_patience(SOON);
    let ended = Log::new();
    let log = ended.clone();
    let hook = move |event: &Event| {
        if let Event::Finished { name, outcome, .. } = event {
            log.add((name.clone().unwrap_or_default().into_string(), *outcome));
        }
    };
    let scheduler = Scheduler::builder().workers(1).clock(&clock).on_event(hook).build().unwrap();
    let (gate, blocker) = block_a_worker(&clock, &scheduler);
    scheduler.now().name("ready").deadline(secs(1)).run(|_| ()).unwrap().detach();
    let series = scheduler.every(secs(1)).name("series").first(Duration::ZERO).start_within(ms(1)).run(|_| ()).unwrap();
    clock.advance(ms(1_500)).unwrap();
    assert_eq!(scheduler.snapshot().finished.expired, 3, "one job, and two runs of the series");
    assert_eq!(series.missed(), 2);
    gate.open();
    clock.settle().unwrap();
    let count =
        |wanted: &str, how| ended.all().iter().filter(|(name, outcome)| name == wanted && *outcome == how).count();
    assert_eq!(count("ready", Outcome::Expired), 1);
    assert_eq!(count("series", Outcome::Expired), 2, "a run that will never start is reported too");
    drop(blocker);
}

/// C28, C30: a parent's deadline reaches a child that nobody has started.
#[test]
fn an_expired_parent_cancels_its_children() {
    let (clock, scheduler) = on_virtual_clock(1);
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let (send, children) = mpsc::channel();
    let mut parent = scheduler.now().run_timeout(secs(5)).run(move |ctx| {
        send.send(ctx.after(secs(9)).run(|_| ()).unwrap()).unwrap();
        send.send(ctx.now().run(|_| ()).unwrap()).unwrap();
        inner.pass();
    });
    clock.advance(secs(5)).unwrap();
    assert_eq!(parent.as_mut().unwrap().wait(), Err(expired(Stage::Running, secs(5))));
    let stages = [Stage::Scheduled, Stage::Ready];
    for stage in stages {
        let mut child = children.recv_timeout(SOON).unwrap();
        assert_eq!(child.wait(), Err(JobError::Cancelled { cause: Cause::Parent, stage }));
    }
    gate.open();
    until("the parent has stopped", || scheduler.snapshot().running == 0);
}
