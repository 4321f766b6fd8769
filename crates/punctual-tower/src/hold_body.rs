//! Until when an HTTP response holds its permit: until its body has ended.
//!
//! A layer of its own, inside the tenant's, because it changes the type of the body, and because it must not be paid
//! for by services whose responses are whole when their head is.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use punctual::{Cancelled, JobError, Outcome, Permit};
use tower_layer::Layer;
use tower_service::Service;

use crate::{BoxError, CallError};

/// Holds the permit that is in the extensions of a request until the body of its response has ended or is dropped. Goes
/// inside a [`TenantLayer`](crate::TenantLayer) that puts it there.
///
/// The deadline counts for the body too: when it has come the body ends with an error, and the server breaks off the
/// response.
///
/// # Example
/// ```
/// use http::{Request, Response};
/// use punctual::{Limits, Scheduler};
/// use punctual_tower::{HoldBodyLayer, TenantLayer};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower::BoxError> {
/// let scheduler = Scheduler::new();
/// let acme = scheduler.tenant("acme", Limits::new().running_max(1))?;
/// let tenant = acme.clone();
/// let layer = TenantLayer::new(move |_: &Request<()>| tenant.clone())
///     .pass_permit(|request, permit| _ = request.extensions_mut().insert(permit.clone()));
/// let service = ServiceBuilder::new()
///     .layer(layer)
///     .layer(HoldBodyLayer::new())
///     .service(service_fn(|_: Request<()>| async { Ok::<_, std::io::Error>(Response::new("a body".to_owned())) }));
/// let response = service.oneshot(Request::new(())).await?;
/// assert_eq!(acme.snapshot().running, 1, "the head is there, the body is not sent");
/// drop(response);
/// assert_eq!(acme.snapshot().running, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct HoldBodyLayer {}

impl HoldBodyLayer {
    /// The layer; it has no settings.
    ///
    /// # Example
    /// ```
    /// let layer = punctual_tower::HoldBodyLayer::new();
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self {}
    }
}

impl<S> Layer<S> for HoldBodyLayer {
    type Service = HoldBodyService<S>;

    fn layer(&self, inner: S) -> HoldBodyService<S> {
        HoldBodyService { inner }
    }
}

/// A service whose bodies hold their permit, made by [`HoldBodyLayer`].
///
/// # Example
/// ```
/// use tower::Layer;
/// let service = punctual_tower::HoldBodyLayer::new().layer("any service");
/// # drop(service);
/// ```
#[derive(Debug, Clone)]
pub struct HoldBodyService<S> {
    inner: S,
}

impl<S, B, Sent> Service<Request<B>> for HoldBodyService<S>
where
    S: Service<Request<B>, Response = Response<Sent>>,
    Sent: Body,
{
    type Response = Response<HoldBody<Sent>>;
    type Error = S::Error;
    type Future = HoldBodyFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> HoldBodyFuture<S::Future> {
        let permit = request.extensions().get::<Permit>().cloned();
        HoldBodyFuture { future: self.inner.call(request), permit }
    }
}

pin_project! {
    /// The response of a [`HoldBodyService`].
    ///
    /// # Example
    /// ```
    /// fn is_a_future<F: std::future::Future>() {}
    /// is_a_future::<punctual_tower::HoldBodyFuture<std::future::Ready<Result<http::Response<String>, ()>>>>();
    /// ```
    #[derive(Debug)]
    pub struct HoldBodyFuture<F> {
        #[pin]
        future: F,
        permit: Option<Permit>,
    }
}

impl<F, B: Body, E> Future for HoldBodyFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<HoldBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.future.poll(cx))?;
        let permit = this.permit.take();
        Poll::Ready(Ok(response.map(|body| HoldBody::new(body, permit))))
    }
}

pin_project! {
    /// A body that holds the permit of its request until it has ended.
    ///
    /// # Example
    /// ```
    /// fn is_a_body<B: http_body::Body>() {}
    /// is_a_body::<punctual_tower::HoldBody<String>>();
    /// ```
    pub struct HoldBody<B> {
        // Declared in the order in which they are dropped.
        #[pin]
        body: B,
        hold: Option<Hold>,
    }
}

/// A permit in use. If this is dropped as it is, the body did not get to its end.
struct Hold {
    permit: Option<Permit>,
    cancelled: Cancelled,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            permit.finish(Outcome::Cancelled);
        }
    }
}

impl<B: Body> HoldBody<B> {
    fn new(body: B, permit: Option<Permit>) -> Self {
        let permit = permit.filter(|_| !body.is_end_stream());
        let hold = permit.map(|permit| Hold { cancelled: permit.ctx().cancelled(), permit: Some(permit) });
        Self { body, hold }
    }
}

impl<B> Body for HoldBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        if let Some(error) = this.hold.as_ref().and_then(Hold::unwanted) {
            *this.hold = None;
            return Poll::Ready(Some(Err(CallError::from(error).into())));
        }
        let polled = this.body.as_mut().poll_frame(cx);
        match &polled {
            Poll::Pending => {
                let told = this.hold.as_mut().is_some_and(|hold| Pin::new(&mut hold.cancelled).poll(cx).is_ready());
                if told && let Some(error) = this.hold.take().and_then(|hold| hold.unwanted()) {
                    return Poll::Ready(Some(Err(CallError::from(error).into())));
                }
            }
            Poll::Ready(Some(Ok(_))) if this.body.is_end_stream() => release(this.hold),
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(_)) | None) => release(this.hold),
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Hold {
    fn unwanted(&self) -> Option<JobError> {
        self.permit.as_ref().and_then(|permit| permit.ctx().checkpoint().err())
    }
}

/// The body has ended by itself.
fn release(hold: &mut Option<Hold>) {
    if let Some(mut hold) = hold.take() {
        drop(hold.permit.take());
    }
}

impl<B: fmt::Debug> fmt::Debug for HoldBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldBody").field("body", &self.body).field("held", &self.hold.is_some()).finish()
    }
}
