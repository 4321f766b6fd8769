//! Tenants: bounds that are exact, shares that are fair, capacity that is honest.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use punctual::{Cause, JobError, JobHandle, Limits, Rate, Reason, Scheduler, Tenant, VirtualClock};

use crate::jobs::{on_virtual_clock, secs};
use crate::queue::ms;

/// A job that runs until it is let go.
fn blocker(tenant: &Tenant) -> (JobHandle<bool>, mpsc::Sender<()>) {
    let (release, blocked) = mpsc::channel();
    (tenant.now().run(move |_| blocked.recv().is_ok()).expect("the tenant has a place"), release)
}

fn counting(count: &Arc<AtomicUsize>) -> impl FnOnce(punctual::Ctx) + Send + 'static + use<> {
    let count = Arc::clone(count);
    move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// C23: many callers race into few places; exactly as many are accepted as there are, and all of them run.
#[test]
fn racing_callers_fill_the_places_exactly() {
    let scheduler = Scheduler::builder().workers(2).build().unwrap();
    let limits = Limits::new().running_max(1).backlog_max(50);
    let acme = scheduler.tenant("acme", limits).unwrap();
    for _ in 0..20 {
        let (running, release) = blocker(&acme);
        let ran = Arc::new(AtomicUsize::new(0));
        let accepted: Vec<_> = thread::scope(|scope| {
            let callers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| (0..50).filter_map(|_| acme.now().run(counting(&ran)).ok()).collect::<Vec<_>>())
                })
                .collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        assert_eq!(accepted.len(), 50);
        release.send(()).unwrap();
        running.stopped().wait();
        accepted.into_iter().for_each(|mut job| job.wait().unwrap());
        assert_eq!(ran.load(Ordering::Relaxed), 50);
    }
    assert_eq!(acme.snapshot().rejected, 20 * 350);
}

/// C25
#[test]
fn a_rejection_names_the_bound_and_gives_the_job_back() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().running_max(0).backlog_max(1).scheduled_max(2)).unwrap();
    let _waiting = acme.now().run(|_| "waiting").unwrap();
    let rejected = acme.now().run(|_| "mine").unwrap_err();
    assert_eq!(rejected.reason(), &Reason::BacklogFull { tenant: Arc::from("acme"), count: 1, max: 1 });
    assert_eq!(rejected.to_string(), "rejected: backlog of tenant \"acme\" is full (1 of 1)");
    assert_eq!(rejected.retry_after(), None, "nothing is known about when it will be free");
    let job = rejected.into_job();
    let mut elsewhere = scheduler.now().run(job).unwrap();
    clock.settle().unwrap();
    assert_eq!(elsewhere.wait(), Ok("mine"));
    let _two = [acme.after(secs(1)).run(|_| ()).unwrap(), acme.after(secs(1)).run(|_| ()).unwrap()];
    let rejected = acme.after(secs(1)).run(|_| ()).unwrap_err();
    assert_eq!(rejected.reason(), &Reason::ScheduledFull { tenant: Arc::from("acme"), count: 2, max: 2 });
}

/// C24: what was accepted for later is not rejected when it falls due, although the backlog is full by then.
#[test]
fn an_accepted_job_may_overdraw_the_backlog() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().running_max(0).backlog_max(1)).unwrap();
    let later: Vec<_> = (0..3).map(|_| acme.after(secs(1)).run(|_| ()).unwrap()).collect();
    let now = acme.now().run(|_| ()).unwrap();
    clock.advance(secs(1)).unwrap();
    assert_eq!(acme.snapshot().ready, 4);
    assert!(acme.now().run(|_| ()).is_err());
    acme.set_limits(Limits::new());
    clock.settle().unwrap();
    assert_eq!(acme.snapshot().finished.succeeded, 4);
    drop((later, now));
}

/// C26: the outcome is settled at once, the permit is free when the closure has returned, and no earlier.
#[test]
fn a_zombie_holds_its_permit_until_it_stops() {
    let scheduler = Scheduler::builder().workers(4).build().unwrap();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let (mut zombie, release) = blocker(&acme);
    while acme.snapshot().running == 0 {
        thread::yield_now();
    }
    zombie.cancel();
    assert!(matches!(zombie.wait(), Err(JobError::Cancelled { .. })));
    let ran = Arc::new(AtomicUsize::new(0));
    let mut next = acme.now().run(counting(&ran)).unwrap();
    assert_eq!(next.wait_timeout(ms(20)), None);
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.running, snapshot.zombies, snapshot.ready, ran.load(Ordering::Relaxed)), (1, 1, 1, 0));
    release.send(()).unwrap();
    assert_eq!(next.wait(), Ok(()));
    assert_eq!(acme.snapshot().zombies, 0);
}

/// C27, and the first defect of the tenant coordinator this grew out of: there, each cancel of queued work leaked a place,
/// and 51 of them bricked a tenant of 1 running and 50 waiting. Here a cancelled job's place is free at once.
#[test]
fn cancelled_queued_work_leaves_the_tenant_fully_usable() {
    let scheduler = Scheduler::builder().workers(2).build().unwrap();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1).backlog_max(50)).unwrap();
    let (_running, release) = blocker(&acme);
    for _ in 0..51 {
        let queued = acme.now().run(|_| ()).unwrap();
        drop(queued);
    }
    let full: Vec<_> = (0..50).map(|_| acme.now().run(|_| ()).unwrap()).collect();
    assert!(acme.now().run(|_| ()).is_err(), "and not one place more");
    release.send(()).unwrap();
    full.into_iter().for_each(|mut job| job.wait().unwrap());
}

/// C28: one worker blocked for ever, 10,000 queued jobs with a deadline: all expire on time, all places are free.
#[test]
fn ten_thousand_deadlines_fire_with_the_only_worker_blocked() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().backlog_max(10_000)).unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    let stuck = scheduler.now().run(move |ctx| {
        let never = ctx.after(Duration::MAX).run(|_| ()).unwrap();
        // A wait inside the library: the clock may go on while this worker is away.
        let mut never = never;
        while blocked.try_recv().is_err() {
            let _ = never.wait_timeout(ms(500));
        }
    });
    clock.settle().unwrap();
    let jobs: Vec<_> = (0..10_000).map(|_| acme.now().deadline(ms(50)).run(|_| ()).unwrap()).collect();
    assert!(acme.now().run(|_| ()).is_err(), "the backlog is full");
    clock.advance(ms(50)).unwrap();
    for mut job in jobs {
        assert!(matches!(job.wait_timeout(Duration::ZERO), Some(Err(JobError::Expired { .. }))));
    }
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.ready, snapshot.finished.expired), (0, 10_000));
    let next = acme.now().run(|_| ()).unwrap();
    release.send(()).unwrap();
    clock.advance(secs(1)).unwrap();
    assert_eq!(acme.snapshot().finished.succeeded, 1);
    drop((stuck, next));
}

/// C31: shares follow the weights; a newcomer waits for no more than the jobs that run.
#[test]
fn backlogged_tenants_share_the_workers_by_weight() {
    let (clock, scheduler) = on_virtual_clock(1);
    let order = Arc::new(Mutex::new(String::new()));
    let gate = scheduler.tenant("gate", Limits::new()).unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    let held = gate.now().run(move |_| blocked.recv().is_ok()).unwrap();
    for (name, weight) in [("a", 1), ("b", 2), ("c", 4)] {
        let tenant = scheduler.tenant(name, Limits::new().weight(weight)).unwrap();
        for _ in 0..200 {
            let order = Arc::clone(&order);
            tenant.now().run(move |_| order.lock().unwrap().push_str(name)).unwrap().detach();
        }
    }
    release.send(()).unwrap();
    clock.settle().unwrap();
    drop(held);
    let order = order.lock().unwrap();
    let served = |name: char, first: usize| order.chars().take(first).filter(|&n| n == name).count();
    for first in [70, 140, 280] {
        assert!(served('a', first).abs_diff(first / 7) <= 2, "{order}");
        assert!(served('b', first).abs_diff(2 * first / 7) <= 3, "{order}");
        assert!(served('c', first).abs_diff(4 * first / 7) <= 4, "{order}");
    }
}

/// C31: a tenant with very many queued jobs does not delay a newcomer's first start.
#[test]
fn a_newcomer_waits_only_for_what_runs() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (big, small) =
        (scheduler.tenant("big", Limits::new()).unwrap(), scheduler.tenant("small", Limits::new()).unwrap());
    let (release, blocked) = mpsc::channel::<()>();
    let held = big.now().run(move |_| blocked.recv().is_ok()).unwrap();
    let before = Arc::new(AtomicUsize::new(0));
    for _ in 0..100_000 {
        big.now().run(counting(&before)).unwrap().detach();
    }
    let seen = Arc::clone(&before);
    let mut first = small.now().run(move |_| seen.load(Ordering::Relaxed)).unwrap();
    release.send(()).unwrap();
    assert!(first.wait().unwrap() <= 1);
    clock.settle().unwrap();
    drop(held);
}

/// C32, C33: a rate holds back its own tenant alone, and lets go at the exact instant; nobody polls.
#[test]
fn a_rate_limits_starts_and_holds_nobody_else_up() {
    let (clock, scheduler) = on_virtual_clock(1);
    let slow = scheduler.tenant("slow", Limits::new().rate(Rate::per_second(10).burst(2))).unwrap();
    let start = clock.now();
    let starts = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..6 {
        let (starts, clock) = (Arc::clone(&starts), clock.clone());
        slow.now().run(move |_| starts.lock().unwrap().push(clock.now() - start)).unwrap().detach();
    }
    let mut other = scheduler.now().run(|_| ()).unwrap();
    clock.settle().unwrap();
    assert_eq!(other.wait_timeout(Duration::ZERO), Some(Ok(())));
    clock.advance(secs(2)).unwrap();
    assert_eq!(*starts.lock().unwrap(), [0, 0, 100, 200, 300, 400].map(ms));
}

/// C25: when the rate is what holds the backlog up, `retry_after` is exact.
#[test]
fn retry_after_is_exact_when_the_rate_is_the_gate() {
    let (clock, scheduler) = on_virtual_clock(1);
    let slow = scheduler.tenant("slow", Limits::new().backlog_max(1).rate(Rate::per_second(10))).unwrap();
    let _first = slow.now().run(|_| ()).unwrap();
    clock.settle().unwrap();
    let _second = slow.now().run(|_| ()).unwrap();
    clock.advance(ms(30)).unwrap();
    let rejected = slow.now().run(|_| ()).unwrap_err();
    assert_eq!(rejected.retry_after(), Some(ms(70)));
    clock.advance(ms(70)).unwrap();
    assert!(slow.now().run(|_| ()).is_ok());
}

/// C34
#[test]
fn limits_change_live_and_kill_nothing() {
    let (clock, scheduler) = on_virtual_clock(4);
    let acme = scheduler.tenant("acme", Limits::new().running_max(4)).unwrap();
    let blockers: Vec<_> = (0..4).map(|_| blocker(&acme)).collect();
    while acme.snapshot().running < 4 {
        thread::yield_now();
    }
    acme.set_limits(Limits::new().running_max(1));
    let ran = Arc::new(AtomicUsize::new(0));
    let mut waits = acme.now().run(counting(&ran)).unwrap();
    for (n, (job, release)) in blockers.into_iter().enumerate() {
        assert_eq!(ran.load(Ordering::Relaxed), 0, "{n} have stopped");
        release.send(()).unwrap();
        job.stopped().wait();
    }
    assert_eq!(waits.wait(), Ok(()));
    acme.pause();
    let mut paused = acme.now().run(|_| ()).unwrap();
    clock.settle().unwrap();
    assert_eq!(paused.wait_timeout(Duration::ZERO), None);
    acme.resume();
    clock.settle().unwrap();
    assert_eq!(paused.wait_timeout(Duration::ZERO), Some(Ok(())));
    acme.close();
    assert_eq!(acme.now().run(|_| ()).unwrap_err().reason(), &Reason::Closed);
}

/// C34
#[test]
fn cancelling_a_tenant_cancels_all_it_has_and_nothing_else() {
    let (clock, scheduler) = on_virtual_clock(2);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let mut running = acme.now().spawn(|_| std::future::pending::<()>()).unwrap();
    let mut queued = acme.now().run(|_| ()).unwrap();
    let mut scheduled = acme.after(secs(9)).run(|_| ()).unwrap();
    let series = acme.every(secs(1)).run(|_| ()).unwrap();
    let mut other = scheduler.after(secs(9)).run(|_| ()).unwrap();
    clock.settle().unwrap();
    assert_eq!(acme.cancel_all(), 4);
    for job in [&mut running, &mut queued, &mut scheduled] {
        assert!(matches!(job.wait(), Err(JobError::Cancelled { cause: Cause::Tenant, .. })));
    }
    clock.advance(secs(9)).unwrap();
    assert_eq!((series.runs(), other.wait()), (0, Ok(())));
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.scheduled, snapshot.ready, snapshot.running), (0, 0, 0));
}

/// C35: a wait that could never end is reported when it begins, and the handle survives.
#[test]
fn a_wait_that_could_never_end_is_refused() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut outer = scheduler
        .now()
        .run(|ctx| {
            let mut inner = ctx.now().run(|_| "inner").unwrap();
            let first = inner.wait();
            (first, inner)
        })
        .unwrap();
    clock.settle().unwrap();
    let (first, mut inner) = outer.wait().unwrap();
    assert_eq!(first, Err(JobError::WouldDeadlock));
    assert_eq!(inner.wait(), Ok("inner"));
}

/// C35: the same for the permits of one tenant, with workers to spare.
#[test]
fn a_wait_for_a_permit_that_the_waiter_holds_is_refused() {
    let (clock, scheduler) = on_virtual_clock(4);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let (same, other) = (acme.clone(), scheduler.tenant("other", Limits::new()).unwrap());
    let mut job = acme
        .now()
        .run(move |_| (same.now().run(|_| ()).unwrap().wait(), other.now().run(|_| 1).unwrap().wait()))
        .unwrap();
    clock.settle().unwrap();
    assert_eq!(job.wait(), Ok((Err(JobError::WouldDeadlock), Ok(1))));
}

/// C30: a child belongs to its parent's tenant.
#[test]
fn a_child_counts_for_its_parents_tenant() {
    let (clock, scheduler) = on_virtual_clock(2);
    let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    let mut job = acme.now().run(|ctx| ctx.now().run(|ctx| ctx.tenant()).unwrap().wait()).unwrap();
    clock.settle().unwrap();
    assert_eq!(&*job.wait().unwrap().unwrap(), "acme");
}

/// Priorities: the lower number first, but what has waited long enough is overtaken by nobody.
#[test]
fn priority_is_weighed_against_waiting() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    let order = Arc::new(Mutex::new(String::new()));
    let add = |name: &'static str, priority| {
        let order = Arc::clone(&order);
        acme.now().priority(priority).run(move |_| order.lock().unwrap().push_str(name)).unwrap().detach();
    };
    acme.pause();
    add("c", 2);
    clock.advance(secs(31)).unwrap();
    add("d", 1);
    add("a", -1);
    add("b", 0);
    clock.advance(secs(1)).unwrap();
    acme.resume();
    clock.settle().unwrap();
    assert_eq!(*order.lock().unwrap(), "abcd");
}

/// C36: after a storm of everything, every counter is at zero and every limit is fully usable.
#[test]
fn after_a_storm_every_limit_is_fully_usable() {
    let scheduler = Scheduler::builder().workers(4).build().unwrap();
    let limits = Limits::new().running_max(2).backlog_max(8).scheduled_max(8);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    thread::scope(|scope| {
        for seed in 0..4u64 {
            let tenant = scheduler.tenant("acme", limits).unwrap();
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            scope.spawn(move || {
                for n in 0..3_000u64 {
                    let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                    let body = move |_: punctual::Ctx| {
                        let running = now.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(running, Ordering::SeqCst);
                        thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                        assert!(!(n + seed).is_multiple_of(7), "some jobs panic");
                    };
                    match (n + seed) % 5 {
                        0 => drop(tenant.now().run(body)),
                        1 => drop(tenant.after(Duration::from_micros(n % 50)).run(body).map(JobHandle::detach)),
                        2 => drop(tenant.now().deadline(Duration::from_micros(20)).run(body).map(JobHandle::detach)),
                        3 => drop(tenant.now().run(body).map(|job| job.cancel())),
                        _ => drop(tenant.now().run(body).map(|mut job| job.wait())),
                    }
                }
            });
        }
    });
    let acme = scheduler.tenant("acme", limits).unwrap();
    while acme.snapshot().running + acme.snapshot().ready + acme.snapshot().scheduled > 0 {
        thread::yield_now();
    }
    assert!(most.load(Ordering::SeqCst) <= 2, "the cap was exceeded");
    let blockers: Vec<_> = (0..2).map(|_| blocker(&acme)).collect();
    let full: Vec<_> = (0..8).map(|_| acme.now().run(|_| ()).unwrap()).collect();
    assert!(acme.now().run(|_| ()).is_err());
    blockers.iter().for_each(|(_, release)| release.send(()).unwrap());
    full.into_iter().for_each(|mut job| job.wait().unwrap());
}

/// C34: an unused tenant is forgotten, and its limits with it; one with a handle is not.
#[test]
fn opening_again_gives_the_same_tenant_until_it_is_forgotten() {
    let clock = VirtualClock::new();
    let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
    let first = scheduler.tenant("acme", Limits::new()).unwrap();
    assert!(scheduler.tenant("acme", Limits::new().weight(2)).is_err());
    drop(first);
    let second = scheduler.tenant("acme", Limits::new().weight(2)).expect("it was forgotten");
    drop(second);
    let error = scheduler.tenant("acme", Limits::new()).unwrap_err();
    assert_eq!(error.limits(), Limits::new().weight(2), "limits that were set are not forgotten");
}
