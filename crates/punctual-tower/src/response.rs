//! One call on its way: queued for a permit, waiting for the inner service, running, done.
//!
//! # Invariants
//! 1. The inner future is dropped before the permit: a permit is free when the work has stopped, and not before.
//! 2. Panics of the inner service end here, also those of destructors. A future that panicked is not polled again.
//! 3. Cancellation is looked at before each poll and listened to after each that was not ready, so none is missed.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use punctual::{Cancelled, JobError, JobHandle, Outcome, Permit, Rejected};
use tower_service::Service;

use crate::layer::Pass;
use crate::{BoxError, CallError};

pin_project! {
    /// The response of a [`TenantService`](crate::TenantService). Dropping it is losing interest: a queued call leaves
    /// its place, a running one is dropped and its permit is free.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// use punctual_tower::TenantLayer;
    /// use tower::{Layer, Service, service_fn};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new().running_max(0).backlog_max(1)).unwrap();
    /// let waiting = acme.clone();
    /// let mut service = TenantLayer::new(move |_: &u8| acme.clone())
    ///     .layer(service_fn(|n: u8| async move { Ok::<_, std::io::Error>(n) }));
    /// let response = service.call(7);
    /// assert_eq!(waiting.snapshot().ready, 1);
    /// drop(response);
    /// assert_eq!(waiting.snapshot().ready, 0);
    /// ```
    #[must_use = "a call does nothing unless its response is polled"]
    pub struct ResponseFuture<S: Service<Request>, Request> {
        #[pin]
        stage: Stage<S, Request, S::Future>,
    }
}

pin_project! {
    #[project = Staged]
    enum Stage<S, Request, F> {
        Rejected { error: Option<CallError> },
        Queued { permit: JobHandle<Permit>, call: Option<Call<S, Request>> },
        // The permit is held; the inner service is not ready.
        Readying { call: Option<Call<S, Request>>, run: Run },
        // Declared in the order in which they are dropped.
        Running { #[pin] future: F, run: Run },
        Done,
    }
}

/// What is to be called, with what.
struct Call<S, Request> {
    service: S,
    request: Request,
    pass: Option<Arc<Pass<Request>>>,
}

/// A permit in use. If this is dropped as it is, the caller has gone away.
struct Run {
    permit: Option<Permit>,
    cancelled: Cancelled,
}

impl Run {
    fn new(permit: Permit) -> Self {
        Self { cancelled: permit.ctx().cancelled(), permit: Some(permit) }
    }

    /// Why nobody wants it any more, if so.
    fn unwanted(&self) -> Option<JobError> {
        self.permit.as_ref().and_then(|permit| permit.ctx().checkpoint().err())
    }

    /// The same, and wakes the task if it becomes so.
    fn unwanted_or_listen(&mut self, cx: &mut Context<'_>) -> Option<JobError> {
        match Pin::new(&mut self.cancelled).poll(cx) {
            Poll::Ready(()) => self.unwanted(),
            Poll::Pending => None,
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            permit.finish(if std::thread::panicking() { Outcome::Panicked } else { Outcome::Cancelled });
        }
    }
}

impl<S: Service<Request>, Request> ResponseFuture<S, Request> {
    pub(crate) fn rejected(rejected: Rejected<()>) -> Self {
        Self { stage: Stage::Rejected { error: Some(rejected.into()) } }
    }

    pub(crate) fn queued(
        permit: JobHandle<Permit>,
        request: Request,
        service: S,
        pass: Option<Arc<Pass<Request>>>,
    ) -> Self {
        Self { stage: Stage::Queued { permit, call: Some(Call { service, request, pass }) } }
    }
}

impl<S, Request> Future for ResponseFuture<S, Request>
where
    S: Service<Request>,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                Staged::Rejected { error } => {
                    let error = error.take().expect("a response is taken once");
                    return end(stage, None, Err(error.into()));
                }
                Staged::Queued { permit, call } => match ready!(Pin::new(permit).poll(cx)) {
                    Ok(permit) => {
                        let call = call.take();
                        stage.set(Stage::Readying { call, run: Run::new(permit) });
                    }
                    Err(error) => return end(stage, None, Err(CallError::from(error).into())),
                },
                Staged::Readying { call, run } => match start::<S, Request>(call, run, cx) {
                    Polled::Pending => return Poll::Pending,
                    Polled::Ready(Ok(future)) => {
                        let run = Run::new(run.permit.take().expect("a run has its permit until it ends"));
                        stage.set(Stage::Running { future, run });
                    }
                    Polled::Ready(Err(error)) => {
                        let permit = run.permit.take();
                        return end(stage, permit, Err(error.into()));
                    }
                    Polled::Ended(error) => {
                        let permit = run.permit.take();
                        return fail(stage, permit, error);
                    }
                },
                Staged::Running { future, run } => match watched(run, cx, |cx| future.poll(cx)) {
                    Polled::Pending => return Poll::Pending,
                    Polled::Ready(result) => {
                        let permit = run.permit.take();
                        return end(stage, permit, result.map_err(Into::into));
                    }
                    Polled::Ended(error) => {
                        let permit = run.permit.take();
                        return fail(stage, permit, error);
                    }
                },
                Staged::Done => panic!("a response is taken once"),
            }
        }
    }
}

/// What came of a poll of the inner service.
enum Polled<T> {
    Pending,
    Ready(T),
    /// It is not wanted any more, or has panicked.
    Ended(JobError),
}

/// Polls the inner service for as long as it is wanted.
fn watched<T>(run: &mut Run, cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Polled<T> {
    if let Some(error) = run.unwanted() {
        return Polled::Ended(error);
    }
    match caught(|| poll(cx)) {
        Ok(Poll::Ready(value)) => Polled::Ready(value),
        Ok(Poll::Pending) => run.unwanted_or_listen(cx).map_or(Polled::Pending, Polled::Ended),
        Err(error) => Polled::Ended(error),
    }
}

/// Calls the inner service once it is ready.
fn start<S: Service<Request>, Request>(
    call: &mut Option<Call<S, Request>>,
    run: &mut Run,
    cx: &mut Context<'_>,
) -> Polled<Result<S::Future, S::Error>> {
    let permit = run.permit.clone();
    watched(run, cx, |cx| {
        let ready = call.as_mut().expect("a service is called once").service.poll_ready(cx);
        if let Err(error) = ready!(ready) {
            return Poll::Ready(Err(error));
        }
        let Call { mut service, mut request, pass } = call.take().expect("a service is called once");
        if let (Some(pass), Some(permit)) = (pass, permit) {
            pass(&mut request, &permit);
        }
        Poll::Ready(Ok(service.call(request)))
    })
}

/// The call is over: first what is left of the work goes, then the permit.
fn end<S, Request, F, T>(
    stage: Pin<&mut Stage<S, Request, F>>,
    permit: Option<Permit>,
    result: Result<T, BoxError>,
) -> Poll<Result<T, BoxError>> {
    match clear(stage) {
        Ok(()) => {
            drop(permit);
            Poll::Ready(result)
        }
        Err(error) => {
            finish(permit, &error);
            Poll::Ready(Err(CallError::from(error).into()))
        }
    }
}

fn fail<S, Request, F, T>(
    stage: Pin<&mut Stage<S, Request, F>>,
    permit: Option<Permit>,
    error: JobError,
) -> Poll<Result<T, BoxError>> {
    // A destructor may panic as well; what ended the call is what the caller hears of.
    let _ = clear(stage);
    finish(permit, &error);
    Poll::Ready(Err(CallError::from(error).into()))
}

fn clear<S, Request, F>(mut stage: Pin<&mut Stage<S, Request, F>>) -> Result<(), JobError> {
    caught(|| stage.set(Stage::Done))
}

fn finish(permit: Option<Permit>, error: &JobError) {
    if let Some(permit) = permit {
        let panicked = matches!(error, JobError::Panicked(_));
        permit.finish(if panicked { Outcome::Panicked } else { Outcome::Cancelled });
    }
}

/// Runs code of the inner service; its panic is an error.
fn caught<T>(code: impl FnOnce() -> T) -> Result<T, JobError> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| JobError::Panicked(message_of(panic)))
}

fn message_of(panic: Box<dyn Any + Send>) -> String {
    let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a message".to_owned(),
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // A payload whose destructor panics with another such payload could go on for ever.
        std::mem::forget(again);
    }
    message
}

impl<S: Service<Request>, Request> fmt::Debug for ResponseFuture<S, Request> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stage {
            Stage::Rejected { .. } => "ResponseFuture::Rejected",
            Stage::Queued { .. } => "ResponseFuture::Queued",
            Stage::Readying { .. } => "ResponseFuture::Readying",
            Stage::Running { .. } => "ResponseFuture::Running",
            Stage::Done => "ResponseFuture::Done",
        })
    }
}
