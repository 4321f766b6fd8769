//! Permits by themselves: the caller does the work, the scheduler counts it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use punctual::{Cancel, Cause, JobError, Limits, Outcome, Rate, Reason, Scheduler, Stage, VirtualClock};

use crate::jobs::{on_virtual_clock, secs};
use crate::queue::ms;

fn on_virtual_clock_with_room(workers: usize, room: usize) -> (VirtualClock, Scheduler) {
    let clock = VirtualClock::new();
    let scheduler =
        Scheduler::builder().workers(workers).running_max(room).clock(&clock).build().expect("good settings");
    (clock, scheduler)
}

/// C23: threads race for permits; there are never more holders than permits, and in the end all are free.
#[test]
fn permits_are_never_held_by_more_than_the_limit_allows() {
    let scheduler = Scheduler::new();
    let acme = scheduler.tenant("acme", Limits::new().running_max(3)).unwrap();
    let (holders, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let permit = acme.now().acquire().unwrap().wait().unwrap();
                    most.fetch_max(1 + holders.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                    thread::yield_now();
                    holders.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert!(most.load(Ordering::SeqCst) <= 3);
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.ready, snapshot.running, snapshot.finished.succeeded), (0, 0, 1600));
}

/// A permit takes no worker: the only one is blocked, and stays so.
#[test]
fn a_permit_is_granted_and_given_back_while_every_worker_is_blocked() {
    let scheduler = Scheduler::builder().workers(1).build().unwrap();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let (began, running) = std::sync::mpsc::channel();
    let blocker = scheduler.now().run(move |_| (began.send(()).is_ok(), blocked.recv().is_ok())).unwrap();
    running.recv().unwrap();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let first = acme.now().acquire().unwrap().wait().unwrap();
    let mut second = acme.now().acquire().unwrap();
    drop(first);
    drop(second.wait().unwrap());
    assert_eq!((acme.snapshot().running, acme.snapshot().finished.succeeded), (0, 2));
    release.send(()).unwrap();
    blocker.stopped().wait();
}

/// C25, C27: what waits for a permit has a place in the backlog, and leaves it at once when nobody waits any more.
#[test]
fn a_dropped_wait_for_a_permit_frees_its_place_at_once() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1).backlog_max(1)).unwrap();
    let held = acme.now().acquire().unwrap().wait().unwrap();
    for _ in 0..100 {
        let waiting = acme.now().acquire().unwrap();
        let rejected = acme.now().acquire().unwrap_err();
        assert!(matches!(rejected.reason(), Reason::BacklogFull { count: 2, max: 2, .. }));
        drop(waiting);
    }
    let mut next = acme.now().acquire().unwrap();
    drop(held);
    drop(next.wait().unwrap());
    let finished = acme.snapshot().finished;
    assert_eq!((finished.succeeded, finished.cancelled), (2, 100));
}

/// C26: a permit is taken until its last clone is gone, whatever was said before about how it ended.
#[test]
fn a_permit_is_free_when_its_last_clone_is_dropped() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let permit = acme.now().acquire().unwrap().wait().unwrap();
    let clone = permit.clone();
    permit.finish(Outcome::Cancelled);
    let told = JobError::Cancelled { cause: Cause::Handle, stage: Stage::Running };
    assert_eq!(clone.ctx().checkpoint(), Err(told));
    let mut next = acme.now().acquire().unwrap();
    assert_eq!((acme.snapshot().running, acme.snapshot().zombies, acme.snapshot().ready), (1, 1, 1));
    drop(clone);
    next.wait().unwrap();
    let finished = acme.snapshot().finished;
    assert_eq!((finished.succeeded, finished.cancelled), (1, 1));
}

/// C16
#[test]
fn a_panic_while_a_permit_is_held_frees_it() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let permit = scheduler.now().acquire().unwrap().wait().unwrap();
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _held = permit;
        panic!("dropped on the way");
    }));
    assert!(unwound.is_err());
    assert_eq!((scheduler.snapshot().running, scheduler.snapshot().finished.panicked), (0, 1));
}

/// C28, C30: a wait for a permit ends with `start_within`, a held permit is told at its deadline.
#[test]
fn permits_expire_like_everything_else() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let held = acme.now().deadline(secs(2)).acquire().unwrap().wait().unwrap();
    let mut waiting = acme.now().start_within(secs(1)).acquire().unwrap();
    clock.advance(secs(1)).unwrap();
    let expired = JobError::Expired { stage: Stage::Ready, waited: secs(1) };
    assert_eq!(waiting.wait().unwrap_err(), expired);
    assert!(held.ctx().checkpoint().is_ok());
    clock.advance(secs(1)).unwrap();
    let expired = JobError::Expired { stage: Stage::Running, waited: secs(2) };
    assert_eq!(held.ctx().checkpoint(), Err(expired));
    assert_eq!((acme.snapshot().running, acme.snapshot().zombies), (1, 1));
    drop(held);
    assert_eq!((acme.snapshot().running, acme.snapshot().finished.expired), (0, 2));
}

/// C32, C33: a permit comes when it is due and its rate allows, to the nanosecond.
#[test]
fn permits_wait_for_their_due_and_for_the_rate() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().rate(Rate::per_second(10))).unwrap();
    let mut permits: Vec<_> = (0..3).map(|_| acme.after(secs(1)).acquire().unwrap()).collect();
    for (nth, permit) in permits.iter_mut().enumerate() {
        let before = if nth == 0 { secs(1) } else { ms(100) };
        clock.advance(before - ms(1)).unwrap();
        assert!(permit.wait_timeout(secs(0)).is_none());
        clock.advance(ms(1)).unwrap();
        assert!(permit.wait_timeout(secs(0)).unwrap().is_ok());
    }
}

/// C31: what the tenants share is the room to run, and they share it by weight.
#[test]
fn tenants_share_the_room_to_run_by_weight() {
    let (clock, scheduler) = on_virtual_clock_with_room(1, 2);
    let heavy = scheduler.tenant("heavy", Limits::new().weight(3)).unwrap();
    let light = scheduler.tenant("light", Limits::new()).unwrap();
    let room: Vec<_> = (0..2).map(|_| scheduler.now().acquire().unwrap().wait().unwrap()).collect();
    let mut waiting: Vec<_> =
        (0..80).flat_map(|_| [&heavy, &light]).map(|tenant| tenant.now().acquire().unwrap()).collect();
    assert_eq!((heavy.snapshot().running, light.snapshot().running), (0, 0));
    drop(room);
    for _ in 0..40 {
        assert_eq!(scheduler.snapshot().running, 2);
        let granted = waiting.iter_mut().position(|wait| wait.wait_timeout(secs(0)).is_some());
        drop(waiting.remove(granted.expect("there is room for two")));
    }
    clock.settle().unwrap();
    let (heavy, light) = (heavy.snapshot(), light.snapshot());
    let started = |snapshot: &punctual::Snapshot| snapshot.finished.succeeded + snapshot.running as u64;
    assert!((30..=33).contains(&started(&heavy)), "{}", started(&heavy));
    assert_eq!(started(&heavy) + started(&light), 42);
}

/// C23: closures, futures and permits together never run beyond the room.
#[test]
fn the_room_to_run_bounds_closures_futures_and_permits_together() {
    let scheduler = Scheduler::builder().workers(4).running_max(2).build().unwrap();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let inside = || {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        move || {
            most.fetch_max(1 + now.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let work = inside();
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..200).for_each(|_| {
                let _permit = scheduler.now().acquire().unwrap().wait().unwrap();
                work();
            })
        });
        let mut jobs: Vec<_> = (0..200)
            .flat_map(|_| {
                let (closure, future) = (inside(), inside());
                let closure = scheduler.now().run(move |_| closure()).unwrap();
                [closure, scheduler.now().spawn(move |_| async move { future() }).unwrap()]
            })
            .collect();
        jobs.iter_mut().for_each(|job| job.wait().unwrap());
    });
    assert!(most.load(Ordering::SeqCst) <= 2);
    assert_eq!(scheduler.snapshot().finished.succeeded, 600);
}

/// C35: the only room is held by the job that waits.
#[test]
fn a_wait_for_room_that_the_waiter_holds_is_refused() {
    let scheduler = Scheduler::builder().workers(4).running_max(1).build().unwrap();
    let mut job = scheduler.now().run(|ctx| ctx.now().run(|_| ()).unwrap().wait()).unwrap();
    assert_eq!(job.wait(), Ok(Err(JobError::WouldDeadlock)));
}

/// More permits than one batch come free in one moment; all are granted.
#[test]
fn a_thousand_permits_are_granted_when_a_tenant_is_resumed() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    acme.pause();
    let waiting: Vec<_> = (0..1000).map(|_| acme.now().acquire().unwrap()).collect();
    acme.resume();
    clock.settle().unwrap();
    assert_eq!((acme.snapshot().ready, acme.snapshot().running), (0, 1000));
    drop(waiting);
    assert_eq!((acme.snapshot().running, acme.snapshot().finished.succeeded), (0, 1000));
}

/// C19: a shutdown waits for what holds a permit, for its grace; then it is told.
#[test]
fn a_shutdown_tells_whoever_holds_a_permit() {
    let (clock, scheduler) = on_virtual_clock(1);
    let permit = scheduler.now().acquire().unwrap().wait().unwrap();
    let report = thread::scope(|scope| {
        let closer = scope.spawn(|| scheduler.shutdown(secs(1)));
        // The grace counts from the call, which is another thread's: time passes until that was.
        while !permit.ctx().is_cancelled() {
            clock.advance(secs(1)).unwrap();
        }
        closer.join().unwrap()
    });
    assert_eq!((report.done, report.still_running), (0, 1));
    drop(permit);
    assert_eq!(scheduler.snapshot().running, 0);
}

/// A handle that was detached waits for nothing: its permit is granted and given back at once.
#[test]
fn a_detached_wait_holds_no_permit() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let held = acme.now().acquire().unwrap().wait().unwrap();
    acme.now().acquire().unwrap().detach();
    let waiting = acme.now().acquire().unwrap();
    assert_eq!(waiting.cancel(), Cancel::Prevented);
    drop(held);
    clock.settle().unwrap();
    assert_eq!((acme.snapshot().ready, acme.snapshot().running), (0, 0));
}

/// Each of them is over in the moment it is granted, which grants the next: a loop, and not a stack of so many calls.
#[test]
fn a_long_line_of_detached_waits_is_no_recursion() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let held = acme.now().acquire().unwrap().wait().unwrap();
    (0..100_000).for_each(|_| acme.now().acquire().unwrap().detach());
    drop(held);
    clock.settle().unwrap();
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.ready, snapshot.running, snapshot.finished.succeeded), (0, 0, 100_001));
}

/// A permit that is granted while it is asked for is told of like any other start. The event was once made before the
/// job knew its own id, which an assertion noticed only where somebody listened.
#[test]
fn a_permit_granted_at_once_is_told_with_its_id() {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let scheduler = Scheduler::builder()
        .clock(VirtualClock::new())
        .on_event(move |event| {
            if let punctual::Event::Started { id, .. } = event {
                tell.lock().unwrap().send(*id).unwrap();
            }
        })
        .build()
        .unwrap();
    let mut permit = scheduler.now().acquire().unwrap();
    let id = permit.id();
    let _held = permit.wait().unwrap();
    assert_eq!(told.recv().unwrap(), id);
}
