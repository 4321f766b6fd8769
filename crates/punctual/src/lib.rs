//! One scheduler for work that must happen at the right time.
mod clock;
mod cron;
mod error;
mod metrics;
mod queue;
mod scheduler;
mod slab;
mod sync;

pub use clock::{Clock, Stalled, VirtualClock};
pub use cron::{Cron, CronError};
pub use error::{Cause, FlatError, JobError, PushError, Reason, Rejected, Stage, TakeTimeoutError, TryTakeError};
pub use metrics::{Histogram, Outcomes, Snapshot};
pub use queue::{DelayQueue, Due, Entry, Key, TakeAsync};
pub use scheduler::{
    BoxFuture, BuildError, Builder, Cancel, Cancelled, Ctx, Event, FlatHandle, JobHandle, JobId, Missed, OnFailure,
    Outcome, Plan, Report, RunResult, Scheduler, SeriesHandle, SeriesPlan, Stopped, When,
};
