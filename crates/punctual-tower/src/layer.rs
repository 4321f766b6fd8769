//! The layer and its service: whose request is it, on what terms, and may it enter?

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use punctual::{Limits, Permit, Plan, Scheduler, Tenant};
use tower_layer::Layer;
use tower_service::Service;

use crate::BoxError;
use crate::response::ResponseFuture;

/// Puts a tenant in front of a service. See the [crate](crate) for what that means.
///
/// # Example
/// ```
/// use punctual::{Limits, Scheduler};
/// use punctual_tower::TenantLayer;
/// use std::time::Duration;
/// use tower::{Layer, ServiceExt, service_fn};
///
/// struct Render { tenant: String, pages: u32 }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower::BoxError> {
/// let scheduler = Scheduler::builder().running_max(16).build()?;
/// let limits = Limits::new().running_max(4).backlog_max(50);
/// let layer = TenantLayer::by_name(&scheduler, limits, |request: &Render| request.tenant.clone())
///     .plan(|request, plan| plan.cost(request.pages).start_within(Duration::from_secs(2)).deadline(Duration::from_secs(10)));
/// let service = layer.layer(service_fn(|request: Render| async move { Ok::<_, tower::BoxError>(request.pages) }));
/// assert_eq!(service.oneshot(Render { tenant: "acme".to_owned(), pages: 3 }).await?, 3);
/// # Ok(())
/// # }
/// ```
pub struct TenantLayer<Request> {
    choose: Arc<Choose<Request>>,
    plan: Option<Arc<Terms<Request>>>,
    pass: Option<Arc<Pass<Request>>>,
}

// The user's closures are behind `dyn`, so that the layer and the service have types one can write down.
type Choose<Request> = dyn Fn(&Request) -> Tenant + Send + Sync;
type Terms<Request> = dyn for<'a> Fn(&Request, Plan<'a>) -> Plan<'a> + Send + Sync;
pub(crate) type Pass<Request> = dyn Fn(&mut Request, &Permit) + Send + Sync;

impl<Request> TenantLayer<Request> {
    /// The tenant of a request is what the closure gives. Whoever has the scheduler must keep it: a tenant alone does
    /// not keep it open.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// use punctual_tower::TenantLayer;
    /// let scheduler = Scheduler::new();
    /// let free = scheduler.tenant("free", Limits::new().running_max(2).backlog_max(10)).unwrap();
    /// let paid = scheduler.tenant("paid", Limits::new().running_max(8).weight(4)).unwrap();
    /// let layer = TenantLayer::new(move |pays: &bool| if *pays { paid.clone() } else { free.clone() });
    /// # drop(layer);
    /// ```
    pub fn new(choose: impl Fn(&Request) -> Tenant + Send + Sync + 'static) -> Self {
        Self { choose: Arc::new(choose), plan: None, pass: None }
    }

    /// The tenant of a request is the one of this name. One that is not open yet is opened with these limits; one that
    /// is keeps its own. The layer keeps the scheduler open.
    ///
    /// A tenant that has limits is remembered for good: let names come from those who were let in, not from just
    /// anybody.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// use punctual_tower::TenantLayer;
    /// let scheduler = Scheduler::new();
    /// let limits = Limits::new().running_max(4).backlog_max(50);
    /// let layer = TenantLayer::by_name(&scheduler, limits, |user: &u64| format!("user-{user}"));
    /// # drop(layer);
    /// ```
    pub fn by_name<Name: AsRef<str>>(
        scheduler: &Scheduler,
        limits: Limits,
        name: impl Fn(&Request) -> Name + Send + Sync + 'static,
    ) -> Self {
        let scheduler = scheduler.clone();
        Self::new(move |request| open(&scheduler, name(request).as_ref(), limits))
    }

    /// The terms of a request, in the words of a [`Plan`]: `start_within`, `run_timeout`, `deadline`, `priority`,
    /// `cost`, `name`. Fixed ones just ignore the request.
    ///
    /// # Example
    /// ```
    /// use punctual_tower::TenantLayer;
    /// use std::time::Duration;
    /// # let scheduler = punctual::Scheduler::new();
    /// # let limits = punctual::Limits::new();
    /// let layer = TenantLayer::by_name(&scheduler, limits, |_: &u8| "acme")
    ///     .plan(|_, plan| plan.start_within(Duration::from_secs(1)));
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn plan(mut self, plan: impl for<'a> Fn(&Request, Plan<'a>) -> Plan<'a> + Send + Sync + 'static) -> Self {
        self.plan = Some(Arc::new(plan));
        self
    }

    /// Called with the permit just before the inner service is called, to put a clone of it into the request: for work
    /// on other threads, which should look at its [`ctx`](Permit::ctx), and for bodies that are streamed after the
    /// response.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Permit, Scheduler};
    /// use punctual_tower::TenantLayer;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// #[derive(Default)]
    /// struct Request { permit: Option<Permit> }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower::BoxError> {
    /// let scheduler = Scheduler::new();
    /// let layer = TenantLayer::by_name(&scheduler, Limits::new().running_max(1), |_: &Request| "acme")
    ///     .pass_permit(|request, permit| request.permit = Some(permit.clone()));
    /// let service = layer.layer(service_fn(|request: Request| async move {
    ///     let work = tokio::task::spawn_blocking(move || {
    ///         let permit = request.permit; // Held until this closure ends, also if nobody waits for it any more.
    ///         permit.is_some_and(|permit| !permit.ctx().is_cancelled())
    ///     });
    ///     work.await
    /// }));
    /// assert!(service.oneshot(Request::default()).await?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pass_permit(mut self, pass: impl Fn(&mut Request, &Permit) + Send + Sync + 'static) -> Self {
        self.pass = Some(Arc::new(pass));
        self
    }
}

fn open(scheduler: &Scheduler, name: &str, mut limits: Limits) -> Tenant {
    loop {
        match scheduler.tenant(name, limits) {
            Ok(tenant) => return tenant,
            // It is open with other limits: those it has. They may change meanwhile, so this may take more than one
            // turn.
            Err(error) => limits = error.limits(),
        }
    }
}

impl<Request> Clone for TenantLayer<Request> {
    fn clone(&self) -> Self {
        Self { choose: Arc::clone(&self.choose), plan: self.plan.clone(), pass: self.pass.clone() }
    }
}

impl<Request> fmt::Debug for TenantLayer<Request> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantLayer").finish_non_exhaustive()
    }
}

impl<Request, S> Layer<S> for TenantLayer<Request> {
    type Service = TenantService<S, Request>;

    fn layer(&self, inner: S) -> TenantService<S, Request> {
        TenantService { inner, layer: self.clone() }
    }
}

/// A service with a tenant in front of it, made by [`TenantLayer`].
///
/// # Example
/// ```
/// use punctual::{Limits, Scheduler};
/// use punctual_tower::{TenantLayer, TenantService};
/// use tower::Layer;
/// struct Inner;
/// let scheduler = Scheduler::new();
/// let service: TenantService<Inner, u8> = TenantLayer::by_name(&scheduler, Limits::new(), |_| "acme").layer(Inner);
/// # drop(service);
/// ```
pub struct TenantService<S, Request> {
    inner: S,
    layer: TenantLayer<Request>,
}

impl<S: Clone, Request> Clone for TenantService<S, Request> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, Request> fmt::Debug for TenantService<S, Request> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, Request> Service<Request> for TenantService<S, Request>
where
    S: Service<Request> + Clone,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S, Request>;

    /// Always ready: see the [crate](crate#readiness).
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    /// Lines the request up at once, not at the first poll, so that requests stand in the order of their calls.
    fn call(&mut self, request: Request) -> ResponseFuture<S, Request> {
        let TenantLayer { choose, plan, pass } = &self.layer;
        let tenant = choose(&request);
        let terms = tenant.now();
        let terms = match plan {
            Some(plan) => plan(&request, terms),
            None => terms,
        };
        match terms.acquire() {
            Ok(permit) => ResponseFuture::queued(permit, request, self.inner.clone(), pass.clone()),
            Err(rejected) => ResponseFuture::rejected(rejected),
        }
    }
}
