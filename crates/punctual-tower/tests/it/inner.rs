//! The inner service: its readiness, its errors, its panics, and the context it runs in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use punctual::{JobError, Limits, Scheduler};
use punctual_tower::{BoxError, CallError, TenantLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::{Gate, call_error, on_virtual_clock, poll};

fn layer(scheduler: &Scheduler) -> TenantLayer<u32> {
    TenantLayer::by_name(scheduler, Limits::new().running_max(1), |_| "acme")
}

#[tokio::test]
async fn errors_of_the_inner_service_pass_through_as_they_are() {
    let (_clock, scheduler) = on_virtual_clock();
    let failing = service_fn(|_: u32| async { Err::<(), _>(std::io::Error::other("out of paper")) });
    let error = layer(&scheduler).layer(failing).oneshot(1).await.unwrap_err();
    assert_eq!(error.downcast_ref::<std::io::Error>().unwrap().to_string(), "out of paper");
    assert_eq!(scheduler.snapshot().running, 0);
}

/// Where a service may panic: when asked whether it is ready, when called, when polled, and when its future is dropped.
#[derive(Clone, Copy, PartialEq)]
enum PanicsIn {
    Ready,
    Call,
    Poll,
    Drop,
}

#[derive(Clone)]
struct Panicking(PanicsIn);

struct PanickingFuture(PanicsIn);

impl Service<u32> for Panicking {
    type Response = u32;
    type Error = BoxError;
    type Future = PanickingFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        assert!(self.0 != PanicsIn::Ready, "not ready for this");
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: u32) -> PanickingFuture {
        assert!(self.0 != PanicsIn::Call, "not ready for this");
        PanickingFuture(self.0)
    }
}

impl Future for PanickingFuture {
    type Output = Result<u32, BoxError>;
    fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(self.0 != PanicsIn::Poll, "not ready for this");
        Poll::Ready(Ok(1))
    }
}

impl Drop for PanickingFuture {
    fn drop(&mut self) {
        assert!(self.0 != PanicsIn::Drop, "not ready for this");
    }
}

#[tokio::test]
async fn a_panic_of_the_inner_service_is_an_error_and_frees_the_permit() {
    let (_clock, scheduler) = on_virtual_clock();
    for panics in [PanicsIn::Ready, PanicsIn::Call, PanicsIn::Poll, PanicsIn::Drop] {
        let error = layer(&scheduler).layer(Panicking(panics)).oneshot(1).await.unwrap_err();
        let panicked = JobError::Panicked("not ready for this".to_owned());
        assert!(matches!(call_error(&error), CallError::Ended(error) if *error == panicked), "{error}");
        assert_eq!(scheduler.snapshot().running, 0);
    }
    assert_eq!(scheduler.snapshot().finished.panicked, 4);
    let mut good = layer(&scheduler).layer(service_fn(|n: u32| async move { Ok::<_, BoxError>(n) }));
    assert_eq!(good.ready().await.unwrap().call(7).await.unwrap(), 7);
}

/// A panic that unwinds through a dropped call frees the permit as well.
#[test]
fn a_destructor_that_panics_in_a_dropped_call_frees_the_permit() {
    let (_clock, scheduler) = on_virtual_clock();
    struct Pending(#[allow(dead_code)] PanickingFuture);
    impl Future for Pending {
        type Output = Result<u32, BoxError>;
        fn poll(self: std::pin::Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            Poll::Pending
        }
    }
    let mut service = layer(&scheduler).layer(service_fn(|_: u32| Pending(PanickingFuture(PanicsIn::Drop))));
    let mut call = service.call(1);
    assert!(poll(&mut call).is_pending());
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(call)));
    assert!(dropped.is_err(), "as with any future");
    let snapshot = scheduler.snapshot();
    assert_eq!((snapshot.running, snapshot.finished.panicked), (0, 1));
}

/// A service that is not ready until it is told, and must not be called before.
#[derive(Clone, Default)]
struct Slow {
    ready: Arc<AtomicBool>,
}

impl Service<u32> for Slow {
    type Response = u32;
    type Error = BoxError;
    type Future = std::future::Ready<Result<u32, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.ready.load(Ordering::SeqCst) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, request: u32) -> Self::Future {
        assert!(self.ready.load(Ordering::SeqCst), "called before it was ready");
        std::future::ready(Ok(request))
    }
}

/// The layer is ready when the inner service is not; the call waits for it, with its permit, and can be given up there.
#[test]
fn the_inner_services_readiness_is_waited_for_with_the_permit() {
    let (_clock, scheduler) = on_virtual_clock();
    let slow = Slow::default();
    let mut service = layer(&scheduler).layer(slow.clone());
    assert!(service.poll_ready(&mut Context::from_waker(std::task::Waker::noop())).is_ready());
    let (mut first, mut second) = (service.call(1), service.call(2));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    assert_eq!(format!("{first:?} {second:?}"), "ResponseFuture::Readying ResponseFuture::Queued");
    drop(first);
    assert!(poll(&mut second).is_pending());
    assert_eq!(format!("{second:?}"), "ResponseFuture::Readying");
    slow.ready.store(true, Ordering::SeqCst);
    assert!(matches!(poll(&mut second), Poll::Ready(Ok(2))));
    assert_eq!(scheduler.snapshot().running, 0);
}

/// What is queued reserves nothing of the inner service: its one place goes to whoever holds a permit.
#[tokio::test]
async fn a_queued_call_reserves_no_capacity_of_the_inner_service() {
    let (_clock, scheduler) = on_virtual_clock();
    let gate = Gate::default();
    let mut service = ServiceBuilder::new()
        .layer(TenantLayer::by_name(&scheduler, Limits::new().running_max(1), |name: &&'static str| *name))
        .concurrency_limit(2)
        .service(gate.clone());
    let mut calls: Vec<_> = ["a", "a", "a", "b"].into_iter().map(|name| service.call(name)).collect();
    calls.iter_mut().for_each(|call| assert!(poll(call).is_pending()));
    assert_eq!(gate.inside(), 2, "one of a's, and b's although a's stood before it");
}

tokio::task_local! {
    static USER: &'static str;
}

/// The inner future runs on the caller's task: task-locals are there, tokio's I/O works, and it need not be on any
/// thread of the scheduler.
#[tokio::test]
async fn the_inner_future_runs_in_its_callers_context() {
    let scheduler = Scheduler::new();
    let service = layer(&scheduler).layer(service_fn(|_: u32| async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let mut client = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
        let (mut server, _) = listener.accept().await?;
        client.write_all(USER.get().as_bytes()).await?;
        drop(client);
        let mut text = String::new();
        server.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>((text, tokio::task::id()))
    }));
    let task = tokio::spawn(async {
        let response = USER.scope("ada", service.oneshot(1)).await.unwrap();
        assert_eq!(response, ("ada".to_owned(), tokio::task::id()));
    });
    task.await.unwrap();
}

#[test]
fn responses_are_send_and_errors_fit_any_error_type() {
    fn is_send<T: Send + 'static>(_: &T) {}
    fn is_error<E: std::error::Error + Send + Sync + 'static>() {}
    let (_clock, scheduler) = on_virtual_clock();
    is_send(&layer(&scheduler).layer(Gate::default()).call(1));
    is_error::<CallError>();
}
