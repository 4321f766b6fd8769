//! Who may enter, whose turn it is, and on what terms.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use punctual::{JobError, Limits, Rate, Reason, Scheduler, Stage};
use punctual_tower::{BoxError, CallError, TenantLayer};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::{Gate, call_error, gated, on_virtual_clock, poll, secs};

/// A hundred callers at once, on many threads: never more inside than the limit allows, and each gets its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_calls_are_never_above_the_limit() {
    let scheduler = Scheduler::new();
    let acme = scheduler.tenant("acme", Limits::new().running_max(3)).unwrap();
    let chosen = acme.clone();
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&inside), Arc::clone(&most));
    let service = TenantLayer::new(move |_: &u32| chosen.clone()).layer(service_fn(move |n: u32| {
        let (inside, most) = counts.clone();
        async move {
            most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, std::io::Error>(n)
        }
    }));
    let calls: Vec<_> = (0..100).map(|n| tokio::spawn(service.clone().oneshot(n))).collect();
    for (n, call) in (0..).zip(calls) {
        assert_eq!(call.await.unwrap().unwrap(), n);
    }
    assert!(most.load(Ordering::SeqCst) <= 3);
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.ready, snapshot.running, snapshot.finished.succeeded), (0, 0, 100));
}

#[test]
fn a_full_backlog_is_refused_at_once_with_the_bound() {
    let (_clock, scheduler) = on_virtual_clock();
    let (acme, gate, mut service) = gated(&scheduler, Limits::new().running_max(1).backlog_max(2));
    let mut accepted: Vec<_> = (0..3).map(|n| service.call(n)).collect();
    accepted.iter_mut().for_each(|call| assert!(poll(call).is_pending()));
    let std::task::Poll::Ready(Err(error)) = poll(&mut service.call(3)) else { panic!("no place is left") };
    assert_eq!(call_error(&error).reason(), Some(&Reason::BacklogFull { tenant: Arc::from("acme"), count: 3, max: 3 }));
    assert_eq!(error.to_string(), "rejected: backlog of tenant \"acme\" is full (3 of 3)");
    assert_eq!((gate.inside(), acme.snapshot().ready, acme.snapshot().rejected), (1, 2, 1));
}

/// The rate is what holds it up, so the time to try again is exact.
#[test]
fn a_refusal_says_when_to_try_again() {
    let (clock, scheduler) = on_virtual_clock();
    let limits = Limits::new().backlog_max(1).rate(Rate::per_second(1));
    let (_acme, _gate, mut service) = gated(&scheduler, limits);
    let _started = service.call(0);
    let _queued = service.call(1);
    clock.advance(secs(1) / 4).unwrap();
    let std::task::Poll::Ready(Err(error)) = poll(&mut service.call(2)) else { panic!("no place is left") };
    assert_eq!(call_error(&error).retry_after(), Some(secs(3) / 4));
}

#[test]
fn a_closed_tenant_refuses_and_finishes_what_it_has() {
    let (_clock, scheduler) = on_virtual_clock();
    let (acme, gate, mut service) = gated(&scheduler, Limits::new());
    let mut running = service.call(7);
    assert!(poll(&mut running).is_pending());
    acme.close();
    let std::task::Poll::Ready(Err(error)) = poll(&mut service.call(8)) else { panic!("closed is closed") };
    assert_eq!(call_error(&error).reason(), Some(&Reason::Closed));
    gate.open.notify_one();
    assert!(matches!(poll(&mut running), std::task::Poll::Ready(Ok(7))));
}

#[test]
fn a_call_that_was_not_started_in_time_expires() {
    let (clock, scheduler) = on_virtual_clock();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let chosen = acme.clone();
    let gate = Gate::default();
    let mut service = TenantLayer::new(move |_: &u64| chosen.clone())
        .plan(|&wait, plan| plan.start_within(secs(wait)))
        .layer(gate.clone());
    let mut calls: Vec<_> = [9, 1, 2].into_iter().map(|wait| service.call(wait)).collect();
    calls.iter_mut().for_each(|call| assert!(poll(call).is_pending()));
    clock.advance(secs(1)).unwrap();
    let std::task::Poll::Ready(Err(error)) = poll(&mut calls[1]) else { panic!("its time is over") };
    let expired = JobError::Expired { stage: Stage::Ready, waited: secs(1) };
    assert!(matches!(call_error(&error), CallError::Ended(error) if *error == expired));
    assert!(poll(&mut calls[2]).is_pending());
    assert_eq!((gate.inside(), acme.snapshot().ready), (1, 1));
    let std::task::Poll::Ready(Err(error)) = poll(&mut service.call(0)) else { panic!("it has no time at all") };
    assert_eq!(call_error(&error).reason(), Some(&Reason::Expired));
}

/// Two tenants want all there is: what runs at once over both is shared by weight, whoever asked first and most.
#[test]
fn tenants_share_the_room_by_weight() {
    let scheduler = Scheduler::builder().running_max(2).build().unwrap();
    let started = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&started);
    scheduler.tenant("heavy", Limits::new().weight(3)).unwrap();
    let mut service = ServiceBuilder::new()
        .layer(TenantLayer::by_name(&scheduler, Limits::new(), |name: &&'static str| *name))
        .service(service_fn(move |name: &'static str| {
            record.lock().unwrap().push(name);
            std::future::pending::<Result<(), BoxError>>()
        }));
    // The light one fills the line before the heavy one comes.
    let mut calls: Vec<_> = ["light"; 60].into_iter().chain(["heavy"; 60]).map(|name| service.call(name)).collect();
    for turn in 0..40 {
        calls.iter_mut().for_each(|call| assert!(poll(call).is_pending()));
        // Whoever has been let in leaves, and the next two come.
        let inside: Vec<_> = (0..calls.len()).filter(|&at| format!("{:?}", calls[at]).ends_with("Running")).collect();
        assert_eq!(inside.len(), 2, "in turn {turn}");
        inside.into_iter().rev().for_each(|at| drop(calls.remove(at)));
    }
    let started = started.lock().unwrap();
    let heavy = started.iter().filter(|&&name| name == "heavy").count();
    assert_eq!(started.len(), 80);
    assert!((57..=60).contains(&heavy), "{heavy} of 80 were the heavy one's, who has three shares in four");
}

/// A name that is not open is opened with the layer's limits; one that is keeps its own.
#[test]
fn names_open_tenants_and_keep_limits_that_were_set() {
    let (_clock, scheduler) = on_virtual_clock();
    let small = Limits::new().running_max(1).backlog_max(0);
    let big = scheduler.tenant("big", Limits::new().running_max(9)).unwrap();
    let mut service =
        TenantLayer::by_name(&scheduler, small, |name: &&'static str| (*name).to_owned()).layer(Gate::default());
    let mut calls: Vec<_> = ["big", "big", "small", "small"].into_iter().map(|name| service.call(name)).collect();
    let refused: Vec<_> = calls.iter_mut().map(|call| poll(call).is_ready()).collect();
    assert_eq!(refused, [false, false, false, true]);
    big.set_limits(Limits::new().running_max(2).backlog_max(0));
    assert!(poll(&mut service.call("big")).is_ready(), "its limits were changed, and it is still the same tenant");
}

/// Of one tenant's waiting calls the lower priority goes first; and calls stand in the order of `call`, not of polls.
#[test]
fn calls_stand_in_the_order_of_priority_and_call() {
    let (_clock, scheduler) = on_virtual_clock();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let chosen = acme.clone();
    let mut service = TenantLayer::new(move |_: &i8| chosen.clone())
        .plan(|&priority, plan| plan.priority(priority))
        .layer(service_fn(|priority: i8| std::future::ready(Ok::<_, BoxError>(priority))));
    let held = acme.now().acquire().unwrap().wait().unwrap();
    let mut calls: Vec<_> = [1, 0, -1, 0].into_iter().map(|priority| service.call(priority)).collect();
    drop(held);
    let mut order = Vec::new();
    for _ in 0..4 {
        let ready = (0..4).rev().find(|&at| !order.contains(&at) && poll(&mut calls[at]).is_ready());
        order.push(ready.expect("one of them has its turn"));
    }
    assert_eq!(order, [2, 1, 3, 0]);
}
