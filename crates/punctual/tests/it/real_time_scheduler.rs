//! The scheduler on the system's clock: never early, exactly; late, but within a loose bound.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use punctual::{Cancel, Clock, JobError, Scheduler, Stage};

use crate::cancel::{spin, token};
use crate::jobs::{Log, OnDrop, SOON, in_time, until, yield_once};
use crate::queue::{SplitMix, ms};

/// C13, 39 of the anchors: deadline, cancel and end compete for a job of either kind, and exactly one of them decides.
#[test]
fn deadline_against_cancel_against_finish_has_one_winner() {
    let scheduler = Scheduler::builder().workers(2).build().unwrap();
    let (drops, mut random) = (Arc::new(AtomicUsize::new(0)), SplitMix(5));
    let mut counts = [0; 3];
    for round in 1..=2_000u64 {
        let (token, turns) = (token(&drops), random.below(20_000));
        let plan = scheduler.now().run_timeout(Duration::from_micros(random.below(150)));
        let work = move || {
            spin(turns);
            token
        };
        let mut job = if round % 2 == 0 {
            plan.run(move |_| work()).unwrap()
        } else {
            plan.spawn(move |_| async move { work() }).unwrap()
        };
        let cancels = random.below(2) == 0;
        spin(random.below(20_000));
        let answer = cancels.then(|| job.cancel());
        match (answer, job.wait().map(drop)) {
            (None | Some(Cancel::TooLate), Ok(())) => counts[0] += 1,
            (Some(Cancel::Requested | Cancel::Prevented), Err(JobError::Cancelled { .. })) => counts[1] += 1,
            (None | Some(Cancel::TooLate), Err(JobError::Expired { stage: Stage::Running, .. })) => counts[2] += 1,
            wrong => panic!("round {round}: {wrong:?}"),
        }
        job.stopped().wait();
        drop(job);
        until("the token is dropped", || drops.load(Ordering::SeqCst) as u64 == round);
    }
    let finished = scheduler.snapshot().finished;
    assert_eq!([finished.succeeded, finished.cancelled, finished.expired], counts);
}

/// C20
#[test]
fn a_future_that_never_rests_starves_nobody() {
    in_time(|| {
        let scheduler = Scheduler::builder().workers(1).build().unwrap();
        let restless = scheduler.now().spawn(|_| async {
            loop {
                yield_once().await;
            }
        });
        assert_eq!(scheduler.now().run(|_| 1).unwrap().wait(), Ok(1));
        assert_eq!(scheduler.after(ms(5)).spawn(|_| async { 2 }).unwrap().wait(), Ok(2));
        let restless = restless.unwrap();
        assert_eq!(restless.cancel(), Cancel::Requested);
        restless.stopped().wait();
    });
}

/// C26: what a runtime leaks never stops, but its outcome is settled and nobody waits for it.
#[test]
fn a_runtime_that_leaks_a_future_leaves_a_zombie_and_no_hang() {
    let scheduler = Scheduler::builder().workers(1).futures_on(std::mem::forget).build().unwrap();
    let mut job = scheduler.now().run_timeout(ms(1)).spawn(|_| async {}).unwrap();
    assert!(matches!(job.wait(), Err(JobError::Expired { stage: Stage::Running, .. })));
    let now = scheduler.snapshot();
    assert_eq!((now.running, now.zombies, now.finished.expired), (1, 1, 1));
    assert_eq!(scheduler.now().run(|_| 1).unwrap().wait(), Ok(1));
    let report = in_time(move || scheduler.shutdown(ms(1)));
    assert_eq!(report.still_running, 1);
}

/// C1, C22
#[test]
fn no_job_starts_early() {
    let clock = Clock::system();
    let scheduler = Scheduler::builder().workers(2).clock(&clock).build().unwrap();
    let (starts, mut random) = (Log::new(), SplitMix(6));
    let begin = clock.now();
    for _ in 0..2_000 {
        let (due, starts, clock) =
            (begin + Duration::from_nanos(random.below(200_000_000)), starts.clone(), clock.clone());
        scheduler.at(due).run(move |_| starts.add((due, clock.now()))).unwrap().detach();
    }
    until("all have run", || starts.len() == 2_000);
    for (due, started) in starts.all() {
        assert!(started >= due, "{:?} early", due - started);
        assert!(started - due < SOON, "{:?} late", started - due);
    }
    let lateness = scheduler.snapshot().lateness;
    assert_eq!(lateness.count(), 2_000);
    assert!(lateness.max() < SOON);
}

/// C28
#[test]
fn deadlines_fire_while_every_worker_is_blocked() {
    let scheduler = Scheduler::builder().workers(1).build().unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    let blocker = scheduler.now().run(move |_| blocked.recv().is_err()).unwrap();
    let jobs: Vec<_> = (0..1_000).map(|_| scheduler.now().deadline(ms(50)).run(|_| ()).unwrap()).collect();
    for mut job in jobs {
        assert!(
            matches!(job.wait_timeout(SOON), Some(Err(JobError::Expired { stage: Stage::Ready, waited })) if waited >= ms(49))
        );
    }
    assert_eq!(scheduler.snapshot().ready, 0);
    drop(release);
    blocker.stopped().wait();
}

/// C17
#[test]
fn a_series_keeps_its_grid_in_real_time() {
    let clock = Clock::system();
    let scheduler = Scheduler::builder().workers(1).clock(&clock).build().unwrap();
    let (runs, noted) = (Log::new(), clock.clone());
    let log = runs.clone();
    let first = clock.now() + ms(20);
    let series = scheduler.every(ms(20)).first(first).run(move |ctx| log.add((ctx.due(), noted.now()))).unwrap();
    until("ten runs are over", || series.runs() >= 10);
    series.cancel();
    for (due, started) in runs.all() {
        assert!(started >= due);
        assert_eq!((due - first).as_nanos() % ms(20).as_nanos(), 0, "on the grid");
    }
}

/// C11: a deadline fires while the destructor of another blocks.
#[test]
fn a_blocking_destructor_delays_only_other_destructors() {
    in_time(|| {
        let scheduler = Scheduler::builder().workers(1).build().unwrap();
        let (release, blocked) = mpsc::channel::<()>();
        let (worker_release, worker_blocked) = mpsc::channel::<()>();
        let blocker = scheduler.now().run(move |_| worker_blocked.recv().is_err()).unwrap();
        let slow = OnDrop(move || _ = blocked.recv());
        let mut first = scheduler.now().deadline(ms(1)).run(move |_| drop(slow)).unwrap();
        assert!(first.wait().is_err(), "its outcome does not wait for its destructor");
        let mut second = scheduler.now().deadline(ms(1)).run(|_| ()).unwrap();
        assert!(second.wait().is_err());
        assert_eq!(scheduler.snapshot().finished.expired, 2);
        drop((release, worker_release));
        blocker.stopped().wait();
    });
}
