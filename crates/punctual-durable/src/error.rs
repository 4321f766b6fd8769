//! What can go wrong.

use std::fmt;

use crate::id::JobId;
use crate::store::Refused;

/// A store that did not do what it was asked.
///
/// # Example
/// ```
/// use punctual_durable::StoreError;
/// let error = StoreError::transient("the connection was lost");
/// assert!(error.is_transient());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    message: String,
    transient: bool,
}

impl StoreError {
    /// It may work another time: an outage, a full disk. Whether it was done is unknown.
    ///
    /// # Example
    /// ```
    /// let error = punctual_durable::StoreError::transient("the disk is full");
    /// assert_eq!(error.to_string(), "the disk is full");
    /// ```
    #[must_use]
    pub fn transient(message: impl Into<String>) -> Self {
        Self { message: message.into(), transient: true }
    }

    /// It will not work another time: a damaged file, a wrong version. Nothing was done.
    ///
    /// # Example
    /// ```
    /// let error = punctual_durable::StoreError::permanent("not a store");
    /// assert!(!error.is_transient());
    /// ```
    #[must_use]
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { message: message.into(), transient: false }
    }

    /// Whether trying again makes sense.
    ///
    /// # Example
    /// ```
    /// assert!(punctual_durable::StoreError::transient("busy").is_transient());
    /// ```
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.transient
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

/// Why a durable job has no result.
///
/// # Example
/// ```
/// use punctual_durable::DurableError;
/// let error = DurableError::Failed { attempts: 3, last_error: "no such user".into() };
/// assert_eq!(error.to_string(), "the job failed after 3 attempts: no such user");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DurableError {
    /// Its attempts were used up, or its handler gave up. It is kept as a dead letter.
    Failed {
        /// How many attempts there were.
        attempts: u32,
        /// What went wrong last.
        last_error: String,
    },
    /// Somebody stopped wanting it.
    Cancelled {
        /// Who.
        reason: String,
    },
    /// It was not started, or not finished, in time.
    Expired {
        /// Which time ran out.
        reason: String,
    },
    /// The store does not know it any more, or never did.
    Gone,
    /// It succeeded, but its result is not what this program takes for the output of its kind.
    Output(String),
    /// The store could not be asked.
    Store(StoreError),
}

impl fmt::Display for DurableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { attempts: 1, last_error } => write!(f, "the job failed at its attempt: {last_error}"),
            Self::Failed { attempts, last_error } => {
                write!(f, "the job failed after {attempts} attempts: {last_error}")
            }
            Self::Cancelled { reason } => write!(f, "the job was cancelled: {reason}"),
            Self::Expired { reason } => write!(f, "the job expired: {reason}"),
            Self::Gone => f.write_str("the store does not know the job (any more)"),
            Self::Output(problem) => write!(f, "the job's result does not fit: {problem}"),
            Self::Store(error) => write!(f, "the store could not be asked: {error}"),
        }
    }
}

impl std::error::Error for DurableError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<StoreError> for DurableError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// A job that was not enqueued, with the reason: gives the job back.
///
/// # Example
/// ```
/// # use punctual_durable::{EnqueueError, Job, Problem};
/// fn retry_later<J: Job>(error: EnqueueError<J>) -> Option<(J, std::time::Duration)> {
///     let wait = error.retry_after()?;
///     Some((error.into_job(), wait))
/// }
/// ```
pub struct EnqueueError<J>(Box<(J, Problem)>);

/// Why a job was not enqueued.
///
/// # Example
/// ```
/// use punctual_durable::Problem;
/// let problem = Problem::TooLarge { kind: "remind", bytes: 70_000, max: 65_536 };
/// assert_eq!(problem.to_string(), "the payload of kind \"remind\" has 70000 bytes (at most 65536)");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Problem {
    /// The tenant's limits, its deadline or its unique key refuse it.
    Refused(Refused),
    /// Its payload is larger than the jobs allow.
    TooLarge {
        /// Which kind.
        kind: &'static str,
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        max: usize,
    },
    /// Its payload cannot be written down.
    Payload {
        /// Which kind.
        kind: &'static str,
        /// What serde said.
        error: String,
    },
    /// The store failed. If that [is transient](StoreError::is_transient) it is unknown whether the job is in it:
    /// enqueue it again with the same id, which cannot make a second one.
    Store {
        /// What it said.
        error: StoreError,
        /// The id it was tried with.
        id: JobId,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::TooLarge { kind, bytes, max } => {
                write!(f, "the payload of kind {kind:?} has {bytes} bytes (at most {max})")
            }
            Self::Payload { kind, error } => write!(f, "the payload of kind {kind:?} cannot be written down: {error}"),
            Self::Store { error, id } => write!(f, "job {id} may not be stored: {error}"),
        }
    }
}

impl<J> EnqueueError<J> {
    pub(crate) fn new(job: J, problem: Problem) -> Self {
        Self(Box::new((job, problem)))
    }

    /// The job, given back.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::EnqueueError;
    /// fn give_back<J>(error: EnqueueError<J>) -> J {
    ///     error.into_job()
    /// }
    /// ```
    #[must_use]
    pub fn into_job(self) -> J {
        self.0.0
    }

    /// Why it was not enqueued.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{EnqueueError, Problem};
    /// fn is_full<J>(error: &EnqueueError<J>) -> bool {
    ///     matches!(error.problem(), Problem::Refused(_))
    /// }
    /// ```
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.0.1
    }

    /// When to try again, as far as that is known.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::EnqueueError;
    /// fn seconds<J>(error: &EnqueueError<J>) -> Option<u64> {
    ///     error.retry_after().map(|wait| wait.as_secs())
    /// }
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        match self.problem() {
            Problem::Refused(Refused::Rejected { retry_after, .. }) => *retry_after,
            _ => None,
        }
    }
}

impl<J> fmt::Debug for EnqueueError<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EnqueueError").field(self.problem()).finish()
    }
}

impl<J> fmt::Display for EnqueueError<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem().fmt(f)
    }
}

impl<J> std::error::Error for EnqueueError<J> {}

/// A store that was not opened.
///
/// # Example
/// ```
/// # pollster::block_on(async {
/// let error = punctual_durable::Jobs::open("mysql://localhost").await.unwrap_err();
/// assert!(error.to_string().starts_with("\"mysql:..\" names no store"));
/// # });
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL names no store. Its first word, without what may be a password.
    UnknownStore(String),
    /// The URL names a store that this build does not have: the feature of that name is off.
    NoFeature(&'static str),
    /// The store said no.
    Store(StoreError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownStore(url) => {
                write!(f, "{url:?} names no store (memory:, sqlite:FILE or postgres://HOST/DATABASE is expected)")
            }
            Self::NoFeature(feature) => {
                write!(f, "this build has no such store: turn the feature {feature:?} of punctual-durable on")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
