//! One scheduler for work that must happen at the right time, and only while someone still wants it.
//!
//! # A tour of the crate
//!
//! **Layer 1, [`DelayQueue`]**: entries that can be taken only once they are due, in the order `(due, insertion)`, by
//! any number of blocking and async consumers. Nothing leaves early, nothing ticks, cancelling is O(1) and gives the
//! item back.
//!
//! ```
//! use punctual::DelayQueue;
//! use std::time::Duration;
//!
//! let queue = DelayQueue::new();
//! let key = queue.push("never mind", Duration::from_secs(5))?;
//! queue.push("hello", Duration::from_millis(5))?;
//! assert_eq!(queue.cancel(key), Some("never mind"));
//! assert_eq!(queue.take(), Some("hello"));
//! # Ok::<(), punctual::PushError<&str>>(())
//! ```
//!
//! **Layer 2, [`Scheduler`]**: closures and futures, run at their due instant on the scheduler's own threads. One
//! builder, the same words everywhere: *when* ([`now`](Scheduler::now), [`after`](Scheduler::after),
//! [`at`](Scheduler::at), [`every`](Scheduler::every), [`cron`](Scheduler::cron)), *how long wanted*
//! ([`start_within`](Plan::start_within), [`run_timeout`](Plan::run_timeout), [`deadline`](Plan::deadline)), then one
//! verb ([`run`](Plan::run) a closure, [`spawn`](Plan::spawn) a future, [`acquire`](Plan::acquire) a permit and do the
//! work yourself).
//!
//! ```
//! use punctual::Scheduler;
//! use std::time::Duration;
//!
//! let scheduler = Scheduler::new();
//! let mut answer = scheduler.after(Duration::from_millis(5)).run(|_| 6 * 7)?;
//! assert_eq!(answer.wait()?, 42);
//! let report = scheduler.shutdown(Duration::from_secs(10));
//! assert_eq!(report.still_running, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Layer 3, [`Tenant`]**: one of the parties a scheduler works for, with the same words, its own [`Limits`] and its
//! fair share of the workers. Overload is refused at the door, with the work given back.
//!
//! ```
//! use punctual::{Limits, Scheduler};
//!
//! let scheduler = Scheduler::new();
//! let acme = scheduler.tenant("acme", Limits::new().running_max(4).backlog_max(100).weight(3))?;
//! assert_eq!(acme.now().run(|_| 6 * 7)?.wait()?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Tests without sleeping, [`VirtualClock`]**: the same code, with its real threads, on time that passes when it is
//! told.
//!
//! # What a handle means
//!
//! A [`JobHandle`] is interest in a job. Dropping it cancels the job; [`detach`](JobHandle::detach) lets go without
//! cancelling. A job that runs is told through its [`Ctx`]; what it still does after that is counted, not hidden.
//!
//! # Threads, forks, suspends
//!
//! - No thread is started before it is needed; an idle queue or scheduler causes no wake-ups at all.
//! - With `panic = "abort"` a panic in a job ends the process, as everywhere; with unwinding it ends that job alone.
//! - After `fork` only the calling thread exists in the child: use a new scheduler there.
//! - Delays count monotonic time, which on Linux and macOS stands still while the machine is suspended. Dates
//!   (`SystemTime`) and cron go by the wall clock: after a resume, or when the clock is set, they are re-derived within
//!   30 s.

mod clock;
mod cron;
mod error;
mod metrics;
#[cfg(test)]
mod model;
mod panics;
mod policy;
mod queue;
mod scheduler;
mod slab;
mod sync;

pub use clock::{Busy, Clock, Stalled, VirtualClock};
pub use cron::{Cron, CronError};
pub use error::{Cause, FlatError, JobError, PushError, Reason, Rejected, Stage, TakeTimeoutError, TryTakeError};
pub use metrics::{Histogram, Outcomes, Snapshot};
pub use policy::{Limits, Rate};
pub use queue::{DelayQueue, Due, Entry, Key, TakeAsync, together};
pub use scheduler::{
    BoxFuture, BuildError, Builder, Cancel, Cancelled, Ctx, Event, FlatHandle, JobHandle, JobId, Missed, OnFailure,
    Outcome, Permit, Plan, Report, RunResult, Scheduler, SeriesHandle, SeriesPlan, Stopped, Tenant, TenantError, When,
};

/// Layer 3's decisions, pure: for those who keep tenants in a place of their own, as a store does. `now` is an
/// argument.
///
/// # Example
/// ```
/// use punctual::Limits;
/// use punctual::decide::{Load, admit_due};
/// assert!(admit_due(&Limits::new(), &Load::default()).is_ok());
/// ```
pub mod decide {
    pub use crate::policy::admission::{Load, Refusal, admit_due, admit_scheduled};
    pub use crate::policy::fair::{Fair, Tag};
    pub use crate::policy::rate::Spent;
}

// The code of the guide is tested like any other; that of the README by `punctual-durable`, which has all it names.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/run-work-later.md")]
    struct RunWorkLater;
    #[doc = include_str!("../../../docs/guide/stop-work-nobody-wants.md")]
    struct StopWorkNobodyWants;
    #[doc = include_str!("../../../docs/guide/repeat-work.md")]
    struct RepeatWork;
    #[doc = include_str!("../../../docs/guide/keep-tenants-fair.md")]
    struct KeepTenantsFair;
    #[doc = include_str!("../../../docs/guide/test-without-sleeping.md")]
    struct TestWithoutSleeping;
}
