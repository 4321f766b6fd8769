//! What ends a call: its caller, its deadline, its tenant, the scheduler.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use punctual::{Cause, JobError, Limits, Scheduler, Stage, Tenant};
use punctual_tower::{BoxError, CallError, TenantLayer};
use tower::{Layer, Service, ServiceExt};

use crate::{Gate, call_error, gated, on_virtual_clock, poll, secs};

#[test]
fn a_dropped_queued_call_leaves_its_place_at_once() {
    let (_clock, scheduler) = on_virtual_clock();
    let (acme, gate, mut service) = gated(&scheduler, Limits::new().running_max(1).backlog_max(1));
    let mut running = service.call(0);
    assert!(poll(&mut running).is_pending());
    for n in 1..=100 {
        let mut queued = service.call(n);
        assert!(poll(&mut queued).is_pending());
        assert_eq!(acme.snapshot().ready, 1);
        drop(queued);
        assert_eq!(acme.snapshot().ready, 0);
    }
    assert_eq!((gate.inside(), acme.snapshot().rejected, acme.snapshot().finished.cancelled), (1, 0, 100));
}

#[test]
fn a_dropped_running_call_stops_its_work_and_frees_its_permit() {
    let (_clock, scheduler) = on_virtual_clock();
    let (acme, gate, mut service) = gated(&scheduler, Limits::new().running_max(1));
    let (mut first, mut second) = (service.call(1), service.call(2));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    assert_eq!((gate.inside(), acme.snapshot().running, acme.snapshot().ready), (1, 1, 1));
    drop(first);
    assert_eq!((gate.inside(), acme.snapshot().running), (0, 1), "the permit has gone on to the second");
    assert!(poll(&mut second).is_pending());
    assert_eq!(gate.inside(), 1);
    drop(second);
    let snapshot = acme.snapshot();
    assert_eq!((snapshot.running, snapshot.zombies, snapshot.finished.cancelled), (0, 0, 2));
}

/// The permit is granted, but the caller goes before it hears of it.
#[test]
fn a_call_dropped_between_grant_and_start_gives_its_permit_on() {
    let (_clock, scheduler) = on_virtual_clock();
    let (acme, gate, mut service) = gated(&scheduler, Limits::new().running_max(1));
    let held = acme.now().acquire().unwrap().wait().unwrap();
    let (mut first, mut second) = (service.call(1), service.call(2));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    drop(held);
    assert_eq!((acme.snapshot().running, gate.inside()), (1, 0), "granted to the first, which has not been polled");
    drop(first);
    assert!(poll(&mut second).is_pending());
    assert_eq!((acme.snapshot().running, gate.inside()), (1, 1));
}

/// Callers come and go at all moments, on many threads; afterwards every place and every permit is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_that_go_at_any_moment_leave_nothing_behind() {
    let scheduler = Scheduler::new();
    let (acme, gate, service) = gated(&scheduler, Limits::new().running_max(2).backlog_max(8));
    let gone = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..400_u32)
        .map(|n| {
            let (mut service, gate, gone) = (service.clone(), gate.clone(), Arc::clone(&gone));
            tokio::spawn(async move {
                let mut call = service.call(n);
                // Between none and a few turns, then away; every third stays and opens the gate for somebody.
                for _ in 0..n % 7 {
                    tokio::select! {
                        biased;
                        _ = &mut call => return,
                        () = tokio::task::yield_now() => {}
                    }
                }
                if n.is_multiple_of(3) {
                    gate.open.notify_one();
                }
                drop(call);
                gone.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(gone.load(Ordering::Relaxed) > 0);
    assert!(gate.most.load(Ordering::SeqCst) <= 2);
    let snapshot = acme.snapshot();
    assert_eq!((gate.inside(), snapshot.ready, snapshot.running, snapshot.zombies), (0, 0, 0, 0));
    assert_eq!(snapshot.finished.total() + snapshot.rejected, 400);
}

/// The deadline wakes the caller's task, drops the inner future, and the next call starts.
#[tokio::test]
async fn a_deadline_ends_a_running_call() {
    let (clock, scheduler) = on_virtual_clock();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let (chosen, gate) = (acme.clone(), Gate::default());
    let service =
        TenantLayer::new(move |_: &u8| chosen.clone()).plan(|_, plan| plan.deadline(secs(5))).layer(gate.clone());
    let call = tokio::spawn(service.oneshot(1));
    while gate.inside() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(secs(5)).unwrap();
    let error = call.await.unwrap().unwrap_err();
    let expired = JobError::Expired { stage: Stage::Running, waited: secs(5) };
    assert!(matches!(call_error(&error), CallError::Ended(error) if *error == expired), "{error}");
    let snapshot = acme.snapshot();
    assert_eq!((gate.inside(), snapshot.running, snapshot.finished.expired), (0, 0, 1));
}

#[tokio::test]
async fn cancelling_a_tenant_ends_what_runs_and_what_waits() {
    let (_clock, scheduler) = on_virtual_clock();
    let (acme, gate, service) = gated(&scheduler, Limits::new().running_max(1));
    let calls: Vec<_> = (0..3).map(|n| tokio::spawn(service.clone().oneshot(n))).collect();
    while acme.snapshot().ready < 2 || gate.inside() < 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(acme.cancel_all(), 3);
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        let CallError::Ended(JobError::Cancelled { cause: Cause::Tenant, .. }) = call_error(&error) else {
            panic!("{error}");
        };
    }
    assert_eq!((gate.inside(), acme.snapshot().running), (0, 0));
}

#[tokio::test]
async fn a_shutdown_ends_what_runs_when_its_grace_is_over() {
    let (clock, scheduler) = on_virtual_clock();
    let (_acme, gate, service) = gated(&scheduler, Limits::new());
    let call = tokio::spawn(service.clone().oneshot(1));
    while gate.inside() == 0 {
        tokio::task::yield_now().await;
    }
    let report = scheduler.shutdown_async(secs(1));
    clock.advance(secs(1)).unwrap();
    assert_eq!(report.await.still_running, 1);
    let error = call.await.unwrap().unwrap_err();
    let CallError::Ended(JobError::Cancelled { cause: Cause::Shutdown, .. }) = call_error(&error) else {
        panic!("{error}");
    };
    assert_eq!(gate.inside(), 0);
    assert!(service.oneshot(2).await.is_err());
}

/// Work on another thread keeps the permit until it has truly stopped, although the caller is gone.
#[tokio::test]
async fn work_on_another_thread_holds_the_permit_until_it_stops() {
    let (_clock, scheduler) = on_virtual_clock();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let chosen = acme.clone();
    let changed = Arc::new(tokio::sync::Notify::new());
    let (told, heard) = tokio::sync::oneshot::channel();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let slots = Arc::new(std::sync::Mutex::new(Some((told, blocked))));
    let begun = Arc::clone(&changed);
    let service = TenantLayer::new(move |_: &Option<punctual::Permit>| chosen.clone())
        .pass_permit(|request, permit| *request = Some(permit.clone()))
        .layer(tower::service_fn(move |permit: Option<punctual::Permit>| {
            let (told, blocked) = slots.lock().unwrap().take().expect("called once");
            let begun = Arc::clone(&begun);
            async move {
                begun.notify_one();
                let work = tokio::task::spawn_blocking(move || {
                    let permit = permit.expect("the layer put it there");
                    while !permit.ctx().is_cancelled() {
                        std::thread::yield_now();
                    }
                    told.send(()).expect("somebody listens");
                    blocked.recv()
                });
                work.await
            }
        }));
    let call = tokio::spawn(service.oneshot(None));
    changed.notified().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    heard.await.unwrap();
    let mut next = acme.now().acquire().unwrap();
    assert_eq!((acme.snapshot().zombies, acme.snapshot().ready), (1, 1), "told, and still there");
    assert!(poll(&mut next).is_pending());
    release.send(()).unwrap();
    next.await.unwrap();
}

/// A call that was never polled is queued all the same, and dropping it is enough.
#[test]
fn a_call_that_is_never_polled_is_queued_and_dropped() {
    let (_clock, scheduler) = on_virtual_clock();
    let (acme, gate, mut service) = gated(&scheduler, Limits::new().running_max(1));
    let call = service.call(1);
    assert_eq!((acme.snapshot().running, gate.inside()), (1, 0));
    drop(call);
    assert_eq!(acme.snapshot().running, 0);
}

/// A future that notes, when it goes, whether its permit was still taken.
struct Leaving(Tenant, Arc<AtomicUsize>);

impl Future for Leaving {
    type Output = Result<(), BoxError>;
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.1.fetch_add(self.0.snapshot().running, Ordering::SeqCst);
    }
}

/// Whether the caller goes or the deadline comes: the permit is free when the inner future is gone, and not before.
#[test]
fn a_permit_is_free_only_after_the_inner_future_is_gone() {
    let (clock, scheduler) = on_virtual_clock();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
    let (chosen, inner, seen) = (acme.clone(), acme.clone(), Arc::new(AtomicUsize::new(0)));
    let left = Arc::clone(&seen);
    let mut service = TenantLayer::new(move |_: &u8| chosen.clone())
        .plan(|_, plan| plan.run_timeout(secs(1)))
        .layer(tower::service_fn(move |_: u8| Leaving(inner.clone(), Arc::clone(&left))));
    let mut call = service.call(1);
    assert!(poll(&mut call).is_pending());
    drop(call);
    let mut call = service.call(2);
    assert!(poll(&mut call).is_pending());
    clock.advance(secs(1)).unwrap();
    assert!(poll(&mut call).is_ready());
    assert_eq!((seen.load(Ordering::SeqCst), acme.snapshot().running), (2, 0));
}
