//! What can be refused, and why. One small type per operation; work that is refused is given back.

use std::fmt;
use std::time::Instant;

/// Why [`DelayQueue::push`](crate::DelayQueue::push) refused an item, with the item.
///
/// # Example
/// ```
/// use punctual::{DelayQueue, PushError};
/// use std::time::Duration;
/// let queue = DelayQueue::new();
/// queue.close();
/// let refused = queue.push("mine", Duration::ZERO).unwrap_err();
/// assert_eq!(refused.to_string(), "the queue is closed");
/// assert_eq!(refused.into_item(), "mine");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushError<T> {
    /// The queue is closed: no entry will ever be accepted.
    Closed(T),
    /// The queue holds as many entries as it may.
    Full(T),
}

impl<T> PushError<T> {
    /// The item that was refused.
    ///
    /// # Example
    /// ```
    /// use punctual::{DelayQueue, PushError};
    /// let queue = DelayQueue::new();
    /// queue.close();
    /// assert_eq!(queue.push(7, std::time::Duration::ZERO).map_err(PushError::into_item), Err(7));
    /// ```
    #[must_use]
    pub fn into_item(self) -> T {
        match self {
            Self::Closed(item) | Self::Full(item) => item,
        }
    }
}

impl<T> fmt::Display for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "the queue is closed",
            Self::Full(_) => "the queue is full",
        })
    }
}

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "Closed(..)",
            Self::Full(_) => "Full(..)",
        })
    }
}

impl<T> std::error::Error for PushError<T> {}

/// Why [`DelayQueue::try_take`](crate::DelayQueue::try_take) took nothing.
///
/// # Example
/// ```
/// use punctual::{DelayQueue, TryTakeError};
/// let queue = DelayQueue::<u8>::new();
/// queue.close();
/// assert_eq!(queue.try_take(), Err(TryTakeError::Closed));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryTakeError {
    /// Nothing is due; the earliest entry will be at this instant, if there is one that ever will.
    NotDue(Option<Instant>),
    /// The queue is closed and nothing is left.
    Closed,
}

impl fmt::Display for TryTakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotDue(_) => "nothing is due",
            Self::Closed => "the queue is closed and empty",
        })
    }
}

impl std::error::Error for TryTakeError {}

/// Why [`DelayQueue::take_timeout`](crate::DelayQueue::take_timeout) took nothing.
///
/// # Example
/// ```
/// use punctual::{DelayQueue, TakeTimeoutError};
/// use std::time::Duration;
/// let queue = DelayQueue::<u8>::new();
/// assert_eq!(queue.take_timeout(Duration::ZERO), Err(TakeTimeoutError::TimedOut));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeTimeoutError {
    /// Nothing fell due in time.
    TimedOut,
    /// The queue is closed and nothing is left.
    Closed,
}

impl fmt::Display for TakeTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "nothing fell due in time",
            Self::Closed => "the queue is closed and empty",
        })
    }
}

impl std::error::Error for TakeTimeoutError {}

/// Where a job stands on its way.
///
/// # Example
/// ```
/// use punctual::{JobError, Scheduler, Stage};
/// use std::time::Duration;
/// let scheduler = Scheduler::new();
/// let mut job = scheduler.after(Duration::from_secs(60)).run(|_| ()).unwrap();
/// job.cancel();
/// assert!(matches!(job.wait(), Err(JobError::Cancelled { stage: Stage::Scheduled, .. })));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Waits for its due instant.
    Scheduled,
    /// Due; waits for a worker.
    Ready,
    /// Runs.
    Running,
    /// Does nothing any more, and never will.
    Stopped,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Stopped => "stopped",
        })
    }
}

/// Who stopped wanting a job.
///
/// # Example
/// ```
/// use punctual::{Cause, JobError, Scheduler};
/// use std::time::Duration;
/// let scheduler = Scheduler::new();
/// let mut job = scheduler.after(Duration::from_secs(60)).run(|_| ()).unwrap();
/// scheduler.shutdown(Duration::ZERO);
/// assert!(matches!(job.wait(), Err(JobError::Cancelled { cause: Cause::Shutdown, .. })));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// `cancel` was called on its handle.
    Handle,
    /// Its handle was dropped.
    Dropped,
    /// The job that submitted it was cancelled or expired.
    Parent,
    /// Everything of its tenant was cancelled.
    Tenant,
    /// The scheduler was shut down or dropped.
    Shutdown,
    /// The runtime that was to run its future dropped it.
    Runtime,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handle => "by its handle",
            Self::Dropped => "because its handle was dropped",
            Self::Parent => "with the job that submitted it",
            Self::Tenant => "with everything of its tenant",
            Self::Shutdown => "by the scheduler's shutdown",
            Self::Runtime => "by the runtime it was handed to",
        })
    }
}

/// Why a job has no result.
///
/// # Example
/// ```
/// let scheduler = punctual::Scheduler::new();
/// let mut job = scheduler.now().run(|_| -> u8 { panic!("out of paper") }).unwrap();
/// assert_eq!(job.wait().unwrap_err().to_string(), "the job panicked: out of paper");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobError {
    /// Somebody stopped wanting it.
    Cancelled {
        /// Who.
        cause: Cause,
        /// Where it stood at that moment.
        stage: Stage,
    },
    /// It was not started, or not finished, in time.
    Expired {
        /// Where it stood at that moment.
        stage: Stage,
        /// How long it had been there.
        waited: std::time::Duration,
    },
    /// It panicked, with this message.
    Panicked(String),
    /// A blocking wait inside a job that could never end: the workers or permits that could end it are all held by jobs
    /// that wait in the same way. The handle is as it was. An `await` is not refused: a future may be waiting for other
    /// things too, and nobody but itself can know.
    WouldDeadlock,
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled { cause, stage } => write!(f, "the job was cancelled while {stage}, {cause}"),
            Self::Expired { stage, waited } => write!(f, "the job expired while {stage}, after {waited:?}"),
            Self::Panicked(message) => write!(f, "the job panicked: {message}"),
            Self::WouldDeadlock => f.write_str("the wait could never end: all that could run the job wait as well"),
        }
    }
}

impl std::error::Error for JobError {}

/// What went wrong with a job that returns a `Result`: the job as such, or what it did. See
/// [`JobHandle::flatten`](crate::JobHandle::flatten).
///
/// # Example
/// ```
/// use punctual::{FlatError, Scheduler};
/// let scheduler = Scheduler::new();
/// let mut job = scheduler.now().run(|_| "x".parse::<u8>()).unwrap().flatten();
/// assert!(matches!(job.wait(), Err(FlatError::Failed(_))));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlatError<E> {
    /// The job did not get to return.
    Job(JobError),
    /// The job returned this error.
    Failed(E),
}

impl<E: fmt::Display> fmt::Display for FlatError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(error) => error.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for FlatError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Job(error) => Some(error),
            Self::Failed(error) => Some(error),
        }
    }
}

/// Why a submit was refused.
///
/// # Example
/// ```
/// use punctual::{Reason, Scheduler};
/// use std::time::Duration;
/// let scheduler = Scheduler::new();
/// scheduler.shutdown(Duration::ZERO);
/// assert_eq!(scheduler.now().run(|_| ()).unwrap_err().reason(), &Reason::Closed);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The scheduler, or the tenant, takes no new work.
    Closed,
    /// Too many jobs of the tenant are due and wait or run.
    BacklogFull {
        /// The tenant's name; empty for work that names none.
        tenant: std::sync::Arc<str>,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// The same, and nothing but the tenant's rate keeps those that wait from starting. `retry_after` is exact, unless
    /// the tenant has a `running_max` too.
    RateLimited {
        /// The tenant's name; empty for work that names none.
        tenant: std::sync::Arc<str>,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// Too many jobs of the tenant wait for their due instant.
    ScheduledFull {
        /// The tenant's name; empty for work that names none.
        tenant: std::sync::Arc<str>,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// Its deadline is before it could start.
    Expired,
    /// A period of zero: a series would run for ever at one instant.
    ZeroPeriod,
    /// The cron expression has no run left.
    NoNextRun,
    /// No worker thread could be started; this is what the operating system said.
    NoThread(std::io::ErrorKind),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed to new work"),
            Self::BacklogFull { tenant, count, max } => {
                write!(f, "backlog of tenant {tenant:?} is full ({count} of {max})")
            }
            Self::RateLimited { tenant, count, max } => {
                write!(f, "tenant {tenant:?} is at its rate and its backlog is full ({count} of {max})")
            }
            Self::ScheduledFull { tenant, count, max } => {
                write!(f, "tenant {tenant:?} has too many scheduled jobs ({count} of {max})")
            }
            Self::Expired => f.write_str("the job's deadline is before it could start"),
            Self::ZeroPeriod => f.write_str("a period of 0 s (the least is 1 ns)"),
            Self::NoNextRun => f.write_str("the cron expression has no run left"),
            Self::NoThread(kind) => write!(f, "no worker thread could be started: {kind}"),
        }
    }
}

/// A job that was refused, with the reason: small, and `Send + Sync` whatever the job is, so that `?` turns it into any
/// error type.
///
/// # Example
/// ```
/// use punctual::{Reason, Scheduler};
/// use std::time::Duration;
///
/// let scheduler = Scheduler::new();
/// scheduler.shutdown(Duration::ZERO);
/// let rejected = scheduler.now().run(|_| "precious").unwrap_err();
/// assert_eq!(rejected.reason(), &Reason::Closed);
/// let _job = rejected.into_job(); // Nothing is lost: run it elsewhere.
/// ```
pub struct Rejected<F>(Box<Refusal<F>>);

struct Refusal<F> {
    reason: Reason,
    retry_after: Option<std::time::Duration>,
    /// A mutex only so that the error is `Sync` even if the job is not.
    job: std::sync::Mutex<F>,
}

impl<F> Rejected<F> {
    pub(crate) fn new((reason, retry_after): (Reason, Option<std::time::Duration>), job: F) -> Self {
        Self(Box::new(Refusal { reason, retry_after, job: std::sync::Mutex::new(job) }))
    }

    /// The job, to be run elsewhere or later.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.shutdown(std::time::Duration::ZERO);
    /// let job = scheduler.now().run(|_| ()).unwrap_err().into_job();
    /// assert!(punctual::Scheduler::new().now().run(job).is_ok());
    /// ```
    #[must_use]
    pub fn into_job(self) -> F {
        self.0.job.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Why it was refused.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.shutdown(std::time::Duration::ZERO);
    /// assert_eq!(scheduler.now().run(|_| ()).unwrap_err().reason().to_string(), "closed to new work");
    /// ```
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.0.reason
    }

    /// When to try again, if that is known.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.shutdown(std::time::Duration::ZERO);
    /// assert_eq!(scheduler.now().run(|_| ()).unwrap_err().retry_after(), None);
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<std::time::Duration> {
        self.0.retry_after
    }

    /// The same without the job, which is dropped: for passing the error on.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.shutdown(std::time::Duration::ZERO);
    /// let error: punctual::Rejected<()> = scheduler.now().run(|_| "big").unwrap_err().without_job();
    /// # drop(error);
    /// ```
    #[must_use]
    pub fn without_job(self) -> Rejected<()> {
        let Refusal { reason, retry_after, .. } = *self.0;
        Rejected(Box::new(Refusal { reason, retry_after, job: std::sync::Mutex::new(()) }))
    }
}

impl<F> fmt::Debug for Rejected<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").field("reason", &self.0.reason).finish_non_exhaustive()
    }
}

impl<F> fmt::Display for Rejected<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rejected: {}", self.0.reason)?;
        match self.0.retry_after {
            Some(wait) => write!(f, ", try again after {wait:?}"),
            None => Ok(()),
        }
    }
}

impl<F> std::error::Error for Rejected<F> {}
