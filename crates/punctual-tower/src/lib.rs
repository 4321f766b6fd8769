//! A tenant in front of any [tower](tower_service) service.
//!
//! [`TenantLayer`] chooses a [`Tenant`](punctual::Tenant) for each request and lets the inner service be called only
//! while it holds one of that tenant's permits. So each tenant has its limits exactly, all of them share
//! [`running_max`](punctual::Builder::running_max) by weight, overload is refused at once with a reason and a time to
//! try again, and a caller that goes away takes its work with it, queued or running.
//!
//! ```
//! use punctual::{Limits, Reason, Scheduler};
//! use punctual_tower::{CallError, TenantLayer};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), tower::BoxError> {
//! let scheduler = Scheduler::builder().running_max(64).build()?;
//! let limits = Limits::new().running_max(4).backlog_max(50);
//! // A request is a pair of a tenant's name and a number here.
//! let by_name = TenantLayer::by_name(&scheduler, limits, |request: &(&str, u32)| request.0);
//! let service = ServiceBuilder::new()
//!     .layer(by_name)
//!     .service(service_fn(|(_, n): (&str, u32)| async move { Ok::<_, std::io::Error>(n * 2) }));
//! assert_eq!(service.clone().oneshot(("acme", 21)).await?, 42);
//!
//! scheduler.tenant("zeta", limits)?.close();
//! let refused = service.oneshot(("zeta", 21)).await.unwrap_err();
//! assert_eq!(refused.downcast_ref::<CallError>().unwrap().reason(), Some(&Reason::Closed));
//! # Ok(())
//! # }
//! ```
//!
//! # Where the inner future runs
//!
//! On the caller's task, polled by whoever polls the response. The alternative, to hand it to the scheduler or to spawn
//! it, would move it to another thread and out of its context: tokio's reactor and timers, task-locals and the current
//! tracing span would be gone or have to be carried over, futures would have to be `Send + 'static`, and to drop a
//! response would only *ask* another task to stop. Polled in place, all of these are as if the layer were not there,
//! and dropping the response drops the inner future there and then: when the drop returns, the work has stopped and the
//! permit is free. What the scheduler adds is a [`Permit`](punctual::Permit), which takes none of its threads.
//!
//! # Readiness
//!
//! The service is always ready: the place to wait is the tenant's bounded backlog, and the answer to overload is a
//! rejection. (Were it ready only when the inner service is, one tenant's load would hold up the others at the door,
//! before anybody knows whose request it is.) The inner service is cloned for each call, and its own readiness is
//! waited for once the permit is held. A clone that was never asked whether it is ready reserves nothing while its call
//! is queued.
//!
//! # What ends a call
//!
//! | what happens | the caller sees | the inner service |
//! |---|---|---|
//! | the backlog is full, the tenant closed, the deadline past | [`CallError::Rejected`], at once | is not called |
//! | `start_within` or the deadline passes in the queue | [`CallError::Ended`] with `Expired` | is not called |
//! | `run_timeout` or the deadline passes, `cancel_all`, a shutdown | [`CallError::Ended`] | its future is dropped |
//! | the inner service panics | [`CallError::Ended`] with `Panicked` | its future is dropped |
//! | the caller drops the response | nothing | is not called, or its future is dropped |
//!
//! In each case the place or the permit is free as soon as the work has stopped, and not before.
//!
//! # Until when a permit is held
//!
//! Until the inner future is ready: for HTTP that is the head of the response. A body that is streamed afterwards, and
//! work that the inner service gave to other threads, can hold a clone of the permit: [`TenantLayer::pass_permit`] puts
//! one into the request, and `HoldBodyLayer` (feature `http`) keeps it until the body has ended.

mod error;
#[cfg(feature = "http")]
mod hold_body;
mod layer;
mod response;

pub use error::CallError;
#[cfg(feature = "http")]
pub use hold_body::{HoldBody, HoldBodyFuture, HoldBodyLayer, HoldBodyService};
pub use layer::{TenantLayer, TenantService};
pub use response::ResponseFuture;

/// Any error, as tower has it.
///
/// # Example
/// ```
/// let error: punctual_tower::BoxError = "any".into();
/// # drop(error);
/// ```
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
