//! Jobs that are submitted together: they run like any others, and nobody sleeps through them.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use punctual::{DelayQueue, Scheduler, together};

use crate::jobs::{SOON, on_virtual_clock};
use crate::queue::ms;

/// A scheduler whose threads are there and sleep: only a wake-up makes them run.
fn asleep(workers: usize) -> Scheduler {
    let (clock, scheduler) = on_virtual_clock(workers);
    let meet = Arc::new(Barrier::new(workers));
    for _ in 0..workers {
        let meet = Arc::clone(&meet);
        scheduler.now().run(move |_| _ = meet.wait()).unwrap().detach();
    }
    clock.advance(ms(1)).unwrap();
    scheduler
}

#[test]
fn all_run_when_the_body_is_over() {
    let scheduler = asleep(3);
    let handles: Vec<_> = together(|| (0..100).map(|n| scheduler.now().run(move |_| n).unwrap()).collect());
    let sum: usize = handles.into_iter().map(|mut handle| handle.wait().unwrap()).sum();
    assert_eq!(sum, 4_950);
}

#[test]
fn the_outer_one_wakes() {
    let scheduler = asleep(1);
    let (tell, told) = mpsc::channel();
    together(|| {
        together(|| scheduler.now().run(move |_| tell.send(()).unwrap()).unwrap().detach());
    });
    told.recv_timeout(SOON).unwrap();
}

#[test]
fn whoever_waits_inside_is_not_left_waiting() {
    let scheduler = asleep(1);
    let answer = together(|| scheduler.now().run(|_| 7).unwrap().wait().unwrap());
    assert_eq!(answer, 7);
    let (queue, taker) = (DelayQueue::new(), DelayQueue::new());
    std::thread::scope(|scope| {
        let (queue, back) = (queue.clone(), taker.clone());
        let from = queue.clone();
        scope.spawn(move || back.push(from.take().unwrap(), Duration::ZERO).unwrap());
        together(|| {
            queue.push(7, Duration::ZERO).unwrap();
            assert_eq!(taker.take(), Some(7));
        });
    });
}

#[test]
fn a_panic_of_the_body_wakes_too() {
    let scheduler = asleep(2);
    let ran = Arc::new(AtomicUsize::new(0));
    let (tell, told) = mpsc::channel();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        together(|| {
            let ran = Arc::clone(&ran);
            let job = move |_: punctual::Ctx| {
                ran.fetch_add(1, Ordering::Relaxed);
                tell.send(()).unwrap();
            };
            scheduler.now().run(job).unwrap().detach();
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    told.recv_timeout(SOON).unwrap();
    // And nothing is held back from now on.
    scheduler.now().run(|_| ()).unwrap().wait().unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}
