//! One test binary: a module per capability. Time passes on a virtual clock; nothing sleeps.

mod admission;
#[cfg(feature = "http")]
mod body;
mod ending;
mod inner;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use punctual::{Limits, Scheduler, Tenant, VirtualClock};
use punctual_tower::{BoxError, CallError, TenantLayer, TenantService};
use tokio::sync::Notify;
use tower::{Layer, Service};

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn on_virtual_clock() -> (VirtualClock, Scheduler) {
    let clock = VirtualClock::new();
    let scheduler = Scheduler::builder().clock(&clock).build().expect("good settings");
    (clock, scheduler)
}

/// A service that works until it is let go, and counts who is inside.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    pub(crate) inside: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
    pub(crate) open: Arc<Notify>,
}

/// Counts one caller as inside while it lives.
struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gate {
    pub(crate) fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }

    pub(crate) async fn pass<T>(self, request: T) -> Result<T, BoxError> {
        let inside = Inside(Arc::clone(&self.inside));
        self.most.fetch_max(1 + self.inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
        self.open.notified().await;
        drop(inside);
        Ok(request)
    }
}

impl<T: Send + 'static> Service<T> for Gate {
    type Response = T;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: T) -> Self::Future {
        Box::pin(self.clone().pass(request))
    }
}

/// A tenant with limits, and a gate behind it.
pub(crate) fn gated(scheduler: &Scheduler, limits: Limits) -> (Tenant, Gate, TenantService<Gate, u32>) {
    let tenant = scheduler.tenant("acme", limits).expect("a new tenant");
    let gate = Gate::default();
    let chosen = tenant.clone();
    let service = TenantLayer::new(move |_: &u32| chosen.clone()).layer(gate.clone());
    (tenant, gate, service)
}

/// Polls once.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

pub(crate) fn call_error(error: &BoxError) -> &CallError {
    error.downcast_ref().expect("an error of the layer")
}
