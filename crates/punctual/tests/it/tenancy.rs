//! Tenants: bounds that are exact, shares that are fair, capacity that is honest.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use punctual::{
    BoxFuture, Cancel, Cause, DelayQueue, JobError, JobHandle, Limits, Missed, Rate, Reason, Rejected, Scheduler,
    Stage, Tenant, VirtualClock,
};

use crate::jobs::{Gate, Log, OnDrop, SOON, on_virtual_clock, panic_with, secs, until};
use crate::queue::{Bell, ms, ns, poll};

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

/// C23, C25
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

/// C27, and the first defect of the tenant coordinator this grew out of: there, each cancel of queued work leaked a
/// place, and 51 of them bricked a tenant of 1 running and 50 waiting. Here a cancelled job's place is free at once.
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
    clock.advance(ms(50) - ns(1)).unwrap();
    assert_eq!(acme.snapshot().ready, 10_000, "not a nanosecond early");
    clock.advance(ns(1)).unwrap();
    let expired = JobError::Expired { stage: Stage::Ready, waited: ms(50) };
    for mut job in jobs {
        assert_eq!(job.wait_timeout(Duration::ZERO), Some(Err(expired.clone())));
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

/// C25: the reason says that the rate is the gate. Where a running limit is one too, a place is free when a job has
/// ended, so the answer is an estimate; where nothing is known of running times there is none.
#[test]
fn a_rejection_at_the_rate_says_so() {
    let (clock, scheduler) = on_virtual_clock(1);
    let limits = Limits::new().backlog_max(1).rate(Rate::per_second(10));
    let slow = scheduler.tenant("slow", limits).unwrap();
    let rest = DelayQueue::<()>::with_clock(&clock);
    let work = |takes: u64| {
        let rest = rest.clone();
        move |_: punctual::Ctx| {
            let _ = rest.take_timeout(ms(takes));
        }
    };
    slow.now().run(work(20)).unwrap().detach();
    clock.advance(ms(20)).unwrap();
    slow.now().run(work(20)).unwrap().detach();
    let rejected = slow.now().run(|_| ()).unwrap_err();
    assert_eq!(rejected.reason(), &Reason::RateLimited { tenant: Arc::from("slow"), count: 1, max: 1 });
    assert_eq!(
        rejected.to_string(),
        "rejected: tenant \"slow\" is at its rate and its backlog is full (1 of 1), try again after 80ms"
    );
    slow.set_limits(limits.running_max(1).backlog_max(0));
    let rejected = slow.now().run(|_| ()).unwrap_err();
    assert_eq!((rejected.reason().to_string().contains("rate"), rejected.retry_after()), (true, Some(ms(100))));
    slow.pause();
    let rejected = slow.now().run(|_| ()).unwrap_err();
    assert!(matches!(rejected.reason(), Reason::BacklogFull { .. }), "paused, it is not the rate that holds it up");
    assert_eq!(rejected.retry_after(), None);
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

/// C35. What went wrong: a job that waited inside was counted for its own tenant only if it waited for a job of that
/// tenant, but the end of its wait was counted in any case, for the tenant of the job it waited for. After one wait
/// across tenants a tenant believed that fewer of its permits waited than did, and the next wait that could never end
/// was not noticed. Now the waits themselves are kept, and nothing is counted that could go wrong.
#[test]
fn a_wait_for_another_tenant_does_not_hide_one_that_could_never_end() {
    let (clock, scheduler) = on_virtual_clock(8);
    let acme = scheduler.tenant("acme", Limits::new().running_max(2)).unwrap();
    let waits_for = |delay: Duration| {
        let acme = acme.clone();
        move |_: punctual::Ctx| acme.after(delay).run(|_| 7).unwrap().wait()
    };
    // One of two permits waits inside; it needs the other in a second.
    let mut first = acme.now().run(waits_for(secs(1))).unwrap();
    clock.settle().unwrap();
    // Somebody from outside waits for a job of this tenant, to the end. It holds none of its permits.
    let mut outside = scheduler.now().run(waits_for(Duration::ZERO)).unwrap();
    clock.settle().unwrap();
    assert_eq!(outside.wait_timeout(Duration::ZERO), Some(Ok(Ok(7))));
    let mut second = acme.now().run(waits_for(Duration::ZERO)).unwrap();
    clock.settle().unwrap();
    assert_eq!(second.wait_timeout(Duration::ZERO), Some(Ok(Err(JobError::WouldDeadlock))));
    clock.advance(secs(1)).unwrap();
    assert_eq!(first.wait_timeout(Duration::ZERO), Some(Ok(Ok(7))));
}

/// C35: two jobs of a tenant with two permits wait for jobs of it. The first wait may begin, the second may not.
#[test]
fn the_last_permit_may_not_wait() {
    let (clock, scheduler) = on_virtual_clock(8);
    let acme = scheduler.tenant("acme", Limits::new().running_max(2)).unwrap();
    let (outcomes, gate) = (Log::new(), Gate::on(&clock));
    let handles: Vec<_> = (0..2)
        .map(|_| {
            let (acme, outcomes, gate) = (acme.clone(), outcomes.clone(), gate.clone());
            let job = acme.clone().now().run(move |_| {
                // Both hold their permits before the first of them submits.
                gate.pass();
                let mut inner = acme.now().run(|_| ()).unwrap();
                outcomes.add(inner.wait());
            });
            job.unwrap()
        })
        .collect();
    clock.settle().unwrap();
    gate.open();
    clock.settle().unwrap();
    let mut outcomes = outcomes.all();
    outcomes.sort_by_key(Result::is_ok);
    assert_eq!(outcomes, [Err(JobError::WouldDeadlock), Ok(())]);
    drop(handles);
}

/// C35: a circle through two tenants, each with one permit; and one that only looks like it.
#[test]
fn a_circle_of_waits_through_two_tenants_is_refused() {
    let (clock, scheduler) = on_virtual_clock(8);
    let [a, b, c] = ["a", "b", "c"].map(|name| scheduler.tenant(name, Limits::new().running_max(1)).unwrap());
    let (both, then) = (Gate::on(&clock), Gate::on(&clock));
    let crossing = |own: &Tenant, other: &Tenant, gate: &Gate| {
        let (other, gate) = (other.clone(), gate.clone());
        let job = own.now().run(move |_| {
            gate.pass();
            other.now().run(|_| ()).unwrap().wait()
        });
        job.unwrap()
    };
    let (mut one, mut two) = (crossing(&a, &b, &both), crossing(&b, &a, &then));
    let mut beside = crossing(&c, &a, &both);
    clock.settle().unwrap();
    both.open();
    clock.settle().unwrap();
    // `one` waits for b's permit, which `two` holds; `beside` waits for a's, which `one` holds. All can end, as long as
    // `two` does not wait for a's.
    assert_eq!((one.wait_timeout(Duration::ZERO), beside.wait_timeout(Duration::ZERO)), (None, None));
    then.open();
    clock.settle().unwrap();
    assert_eq!(two.wait(), Ok(Err(JobError::WouldDeadlock)));
    assert_eq!((one.wait(), beside.wait()), (Ok(Ok(())), Ok(Ok(()))));
}

/// C35: workers, too, can be used up by a chain: one waits for a job that runs, and that one for a job that cannot
/// start.
#[test]
fn a_chain_of_waits_may_not_use_up_the_workers() {
    let (clock, scheduler) = on_virtual_clock(2);
    let gate = Gate::on(&clock);
    let outer_waits = gate.clone();
    let mut outer = scheduler
        .now()
        .run(move |ctx| {
            let middle = ctx.now().run(move |ctx| {
                outer_waits.pass();
                let mut inner = ctx.now().run(|_| "inner").unwrap();
                (inner.wait(), inner)
            });
            middle.unwrap().wait()
        })
        .unwrap();
    clock.settle().unwrap();
    gate.open();
    clock.settle().unwrap();
    let (refused, mut inner) = outer.wait().unwrap().unwrap();
    assert_eq!(refused, Err(JobError::WouldDeadlock));
    assert_eq!(inner.wait(), Ok("inner"));
}

/// C35: the same the other way round: it is the last wait that may not begin, be it the inner or the outer one.
#[test]
fn a_chain_of_waits_is_refused_at_its_other_end() {
    let (clock, scheduler) = on_virtual_clock(2);
    let gate = Gate::on(&clock);
    let inner_waits = gate.clone();
    let mut outer = scheduler
        .now()
        .run(move |ctx| {
            let mut middle = ctx.now().run(|ctx| ctx.now().run(|_| "inner").unwrap().wait()).unwrap();
            inner_waits.pass();
            (middle.wait(), middle)
        })
        .unwrap();
    clock.settle().unwrap();
    gate.open();
    clock.settle().unwrap();
    let (refused, mut middle) = outer.wait().unwrap();
    assert_eq!(refused, Err(JobError::WouldDeadlock));
    assert_eq!(middle.wait(), Ok(Ok("inner")));
}

/// C35: a wait that time ends is no deadlock, and no more is one for a job whose worker or permit will come.
#[test]
fn a_wait_that_will_end_is_not_refused() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut outer = scheduler
        .now()
        .run(|ctx| {
            let mut with_deadline = ctx.now().deadline(ms(5)).run(|_| ()).unwrap();
            let mut to_be_started = ctx.now().start_within(ms(5)).run(|_| ()).unwrap();
            (with_deadline.wait(), to_be_started.wait())
        })
        .unwrap();
    clock.settle().unwrap();
    clock.advance(ms(20)).unwrap();
    let (one, two) = outer.wait().unwrap();
    assert!(matches!((one, two), (Err(JobError::Expired { .. }), Err(JobError::Expired { .. }))));
}

/// C35: a permit takes no worker, so a job may wait for one with the only worker there is; but not for that of a tenant
/// whose last one it holds.
#[test]
fn a_job_may_wait_for_a_permit_that_it_does_not_hold_up() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (free, capped) = (
        scheduler.tenant("free", Limits::new()).unwrap(),
        scheduler.tenant("capped", Limits::new().running_max(1)).unwrap(),
    );
    let own = capped.clone();
    let mut job = capped
        .now()
        .run(move |_| {
            let [granted, refused] = [&free, &own].map(|tenant| tenant.now().acquire().unwrap().wait().map(drop));
            (granted, refused)
        })
        .unwrap();
    clock.settle().unwrap();
    assert_eq!(job.wait_timeout(Duration::ZERO), Some(Ok((Ok(()), Err(JobError::WouldDeadlock)))));
}

/// C35: nor may a job wait for itself.
#[test]
fn a_job_may_not_wait_for_itself() {
    let (clock, scheduler) = on_virtual_clock(4);
    let (own_handle, from_outside) = mpsc::channel::<JobHandle<()>>();
    let (answer, inside) = mpsc::channel();
    let job = scheduler.now().run(move |_| answer.send(from_outside.recv().unwrap().wait()).unwrap());
    own_handle.send(job.unwrap()).unwrap();
    assert_eq!(inside.recv(), Ok(Err(JobError::WouldDeadlock)));
    clock.settle().unwrap();
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

/// C17, C22: ticks that a series of a tenant misses are in that tenant's numbers.
#[test]
fn missed_ticks_are_counted_for_their_tenant() {
    let (clock, scheduler) = on_virtual_clock(2);
    let (acme, other) =
        (scheduler.tenant("acme", Limits::new()).unwrap(), scheduler.tenant("other", Limits::new()).unwrap());
    let rest = DelayQueue::<()>::with_clock(&clock);
    let slow = acme.every(ms(10)).missed(Missed::Skip).run({
        let rest = rest.clone();
        move |_| {
            let _ = rest.take_timeout(ms(35));
        }
    });
    let on_time = other.every(ms(10)).run(|_| ()).unwrap();
    acme.pause();
    clock.advance(ms(25)).unwrap();
    acme.resume();
    clock.advance(ms(200)).unwrap();
    let slow = slow.unwrap();
    assert!(slow.missed() > 10, "{}", slow.missed());
    assert_eq!((acme.snapshot().missed, other.snapshot().missed), (slow.missed(), 0));
    assert_eq!(scheduler.snapshot().missed, slow.missed());
    drop(on_time);
}

/// C34: only what is its own is cancelled and counted, and what is over already is not.
#[test]
fn cancelling_a_tenant_counts_what_was_still_wanted() {
    let (clock, scheduler) = on_virtual_clock(4);
    let (acme, other) =
        (scheduler.tenant("acme", Limits::new()).unwrap(), scheduler.tenant("other", Limits::new()).unwrap());
    let gate = Gate::on(&clock);
    let run = |tenant: &Tenant| {
        let gate = gate.clone();
        tenant.now().run(move |_| gate.pass()).unwrap()
    };
    let (zombie, running, bystander) = (run(&acme), run(&acme), run(&other));
    clock.settle().unwrap();
    zombie.cancel();
    let mut later: Vec<_> = (0..500).map(|n| (n, acme.after(secs(9)).run(|_| ()).unwrap())).collect();
    later.retain(|(n, _)| n % 2 == 0);
    let series = acme.every(secs(9)).run(|_| ()).unwrap();
    assert_eq!(acme.cancel_all(), 250 + 1 + 1, "half of the scheduled, the series, and one that runs");
    assert_eq!(acme.cancel_all(), 0);
    gate.open();
    clock.settle().unwrap();
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.scheduled, snapshot.ready, snapshot.running, snapshot.zombies), (0, 0, 0, 0));
    let mut bystander = bystander;
    assert_eq!(bystander.wait(), Ok(()));
    drop((zombie, running, later, series));
}

/// C26, and the second defect of the coordinator this grew out of: there, a worker that threw never freed its slot. A
/// permit is free after a panic, wherever it happens.
#[test]
fn a_job_that_panics_frees_its_permit() {
    let (clock, scheduler) = on_virtual_clock(2);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1).backlog_max(1)).unwrap();
    for round in 0..50 {
        let mut job = match round % 4 {
            0 => acme.now().run(|_| panic_with("closure")).map_err(Rejected::without_job),
            1 => acme.now().spawn(|_| async { panic_with("future") }).map_err(Rejected::without_job),
            2 => {
                let no_future = |_| -> std::future::Pending<()> { panic_with("before the future") };
                acme.now().spawn(no_future).map_err(Rejected::without_job)
            }
            _ => {
                let bomb = OnDrop(|| panic_with("in a drop"));
                acme.now().run(move |_| drop(bomb)).map_err(Rejected::without_job)
            }
        }
        .unwrap();
        assert!(matches!(job.wait(), Err(JobError::Panicked(_))));
    }
    clock.settle().unwrap();
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.running, snapshot.zombies, snapshot.finished.panicked), (0, 0, 50));
    assert_eq!(acme.now().run(|_| 1).unwrap().wait(), Ok(1));
}

/// C14, C26: what a job returns after its outcome was settled is dropped, and nobody ever sees it.
#[test]
fn a_late_result_is_discarded() {
    let (clock, scheduler) = on_virtual_clock(1);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let (gate, dropped) = (Gate::on(&clock), Log::new());
    let mut late = acme.now().deadline(ms(50)).run({
        let (gate, dropped) = (gate.clone(), dropped.clone());
        move |_| {
            gate.pass();
            OnDrop(move || dropped.add("the late result"))
        }
    });
    let late = late.as_mut().unwrap();
    clock.advance(ms(50)).unwrap();
    let error = late.wait().map(drop).unwrap_err();
    assert_eq!(error, JobError::Expired { stage: Stage::Running, waited: ms(50) });
    let mut next = acme.now().run(|_| "next").unwrap();
    clock.settle().unwrap();
    assert_eq!((acme.snapshot().zombies, next.wait_timeout(Duration::ZERO)), (1, None));
    gate.open();
    clock.settle().unwrap();
    assert_eq!((dropped.all(), next.wait()), (vec!["the late result"], Ok("next")));
    let finished = acme.snapshot().finished;
    assert_eq!((finished.succeeded, finished.expired, finished.total()), (1, 1, 2));
}

/// C28, C30, and the third: there, the caller's time-out was an idle timer that every message put off. Here the
/// caller's future fails at its deadline, to the nanosecond, whatever happens before.
#[test]
fn the_callers_future_fails_at_its_deadline_and_not_later() {
    let (clock, scheduler) = on_virtual_clock(2);
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let gate = Gate::on(&clock);
    let held = acme.now().run({
        let gate = gate.clone();
        move |_| gate.pass()
    });
    let bell = Bell::new();
    let mut queued = Box::pin(acme.now().deadline(ms(50)).run(|_| ()).unwrap());
    let mut parked = Box::pin(scheduler.now().deadline(ms(50)).spawn(|_| std::future::pending::<()>()).unwrap());
    clock.settle().unwrap();
    for _ in 0..49 {
        clock.advance(ms(1)).unwrap();
        // Messages, cancels and other traffic: nothing of it moves the deadline.
        drop(acme.now().run(|_| ()));
        scheduler.now().run(|_| ()).unwrap().detach();
        assert!(poll(queued.as_mut(), &bell).is_pending() && poll(parked.as_mut(), &bell).is_pending());
    }
    clock.advance(ms(1) - ns(1)).unwrap();
    assert!(poll(queued.as_mut(), &bell).is_pending() && poll(parked.as_mut(), &bell).is_pending());
    let rings = bell.rings();
    clock.advance(ns(1)).unwrap();
    assert_eq!(bell.rings(), rings + 2, "the caller is told, and need not ask");
    let expired = |stage| Poll::Ready(Err(JobError::Expired { stage, waited: ms(50) }));
    assert_eq!(poll(queued.as_mut(), &bell), expired(Stage::Ready));
    assert_eq!(poll(parked.as_mut(), &bell), expired(Stage::Running));
    gate.open();
    clock.settle().unwrap();
    assert_eq!(scheduler.snapshot().running, 0, "the parked future was woken to be dropped");
    drop(held);
}

/// C26: what another runtime does with a future, or fails to do, costs no permit of the tenant. One that leaks it keeps
/// the permit, for nobody can know that it will never run again.
#[test]
fn a_runtime_that_drops_or_panics_costs_no_permit() {
    let spawners: [fn(BoxFuture); 3] = [
        drop,
        |_| panic_with("no runtime"),
        |mut future| {
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            drop((polled, future));
        },
    ];
    for spawner in spawners {
        let clock = VirtualClock::with_patience(SOON);
        let scheduler = Scheduler::builder().workers(2).clock(&clock).futures_on(spawner).build().unwrap();
        let limits = Limits::new().running_max(1).backlog_max(2);
        let acme = scheduler.tenant("acme", limits).unwrap();
        for _ in 0..20 {
            let mut job = acme.now().spawn(|_| std::future::pending::<()>()).unwrap();
            let error = JobError::Cancelled { cause: Cause::Runtime, stage: Stage::Running };
            assert_eq!(job.wait(), Err(error));
            job.stopped().wait();
        }
        let snapshot = acme.snapshot();
        assert_eq!((snapshot.running, snapshot.zombies, snapshot.finished.cancelled), (0, 0, 20));
        assert_eq!(acme.now().run(|_| 1).unwrap().wait(), Ok(1));
    }
}

/// C26: a future that a runtime leaks is a zombie with its permit, and every outcome is settled all the same.
#[test]
fn a_runtime_that_leaks_a_future_keeps_its_permit_and_settles_its_job() {
    let leaked = Arc::new(Mutex::new(Vec::new()));
    let leak = Arc::clone(&leaked);
    let scheduler =
        Scheduler::builder().workers(2).futures_on(move |future| leak.lock().unwrap().push(future)).build().unwrap();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let mut job = acme.now().spawn(|_| async { 1 }).unwrap();
    until("it is handed over", || !leaked.lock().unwrap().is_empty());
    assert_eq!(job.cancel(), Cancel::Requested);
    assert!(matches!(job.wait(), Err(JobError::Cancelled { cause: Cause::Handle, .. })));
    let mut next = acme.now().run(|_| 2).unwrap();
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.running, snapshot.zombies, snapshot.ready), (1, 1, 1));
    // Found again, and dropped at last.
    leaked.lock().unwrap().clear();
    assert_eq!(next.wait(), Ok(2));
    assert_eq!(acme.snapshot().zombies, 0);
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
