//! Why a call has no response of the inner service.

use std::fmt;
use std::time::Duration;

use punctual::{JobError, Reason, Rejected};

/// Why a call was refused, or ended without a response. Errors of the inner service pass through as they are.
///
/// # Example
/// ```
/// use punctual::{Limits, Scheduler};
/// use punctual_tower::{CallError, TenantLayer};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let scheduler = Scheduler::new();
/// let limits = Limits::new().running_max(0).backlog_max(0);
/// let layer = TenantLayer::by_name(&scheduler, limits, |_: &u8| "acme");
/// let service = layer.layer(service_fn(|n: u8| async move { Ok::<_, std::io::Error>(n) }));
/// let error = service.oneshot(7).await.unwrap_err();
/// match error.downcast_ref::<CallError>() {
///     Some(CallError::Rejected(rejected)) => println!("429, try again after {:?}", rejected.retry_after()),
///     Some(ended) => println!("503, {ended}"),
///     None => println!("500, {error}"),
/// }
/// # assert_eq!(error.to_string(), "rejected: backlog of tenant \"acme\" is full (0 of 0)");
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// Refused at the door: the inner service was not called.
    Rejected(Rejected<()>),
    /// Accepted, and then cancelled, expired or panicked. `stage` says whether the inner service was called.
    Ended(JobError),
}

impl CallError {
    /// Why it was refused at the door, if it was.
    ///
    /// # Example
    /// ```
    /// use punctual::{Reason, Scheduler};
    /// use punctual_tower::CallError;
    /// let scheduler = Scheduler::new();
    /// scheduler.shutdown(std::time::Duration::ZERO);
    /// let error = CallError::from(scheduler.now().acquire().unwrap_err());
    /// assert_eq!(error.reason(), Some(&Reason::Closed));
    /// ```
    #[must_use]
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Rejected(rejected) => Some(rejected.reason()),
            Self::Ended(_) => None,
        }
    }

    /// When to try again, if it was refused and that is known.
    ///
    /// # Example
    /// ```
    /// use punctual_tower::CallError;
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.shutdown(std::time::Duration::ZERO);
    /// let error = CallError::from(scheduler.now().acquire().unwrap_err());
    /// assert_eq!(error.retry_after(), None);
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Rejected(rejected) => rejected.retry_after(),
            Self::Ended(_) => None,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => rejected.fmt(f),
            Self::Ended(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rejected(rejected) => Some(rejected),
            Self::Ended(error) => Some(error),
        }
    }
}

impl From<Rejected<()>> for CallError {
    fn from(rejected: Rejected<()>) -> Self {
        Self::Rejected(rejected)
    }
}

impl From<JobError> for CallError {
    fn from(error: JobError) -> Self {
        Self::Ended(error)
    }
}
