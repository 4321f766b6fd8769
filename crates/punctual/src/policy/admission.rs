//! May it enter? Exact counts against exact bounds.

use super::Limits;

/// What a tenant has at this moment.
///
/// # Example
/// ```
/// use punctual::decide::Load;
/// let load = Load { waiting: 3, ..Load::default() };
/// assert_eq!(load.running, 0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Jobs not due yet.
    pub scheduled: usize,
    /// Jobs that are due and wait.
    pub waiting: usize,
    /// Jobs that run, also those whose outcome is settled and that have yet to stop.
    pub running: usize,
    /// The tenant is paused.
    pub paused: bool,
}

/// Which bound refuses a job: how many there are, and how many there may be.
///
/// # Example
/// ```
/// use punctual::Limits;
/// use punctual::decide::{Load, Refusal, admit_due};
/// let full = Load { waiting: 100, ..Load::default() };
/// assert_eq!(admit_due(&Limits::new().backlog_max(100), &full), Err(Refusal::Backlog { count: 100, max: 100 }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Too many are due and wait or run.
    Backlog {
        /// Waiting and running, as far as they count.
        count: usize,
        /// The bound.
        max: usize,
    },
    /// Too many are not due yet.
    Scheduled {
        /// Not due yet.
        count: usize,
        /// The bound.
        max: usize,
    },
}

/// A job that is due now enters if fewer than `backlog_max + running_max` wait or run; without a running limit, if
/// fewer than `backlog_max` wait; while paused, the running limit counts as 0.
///
/// # Errors
/// The bound that refuses it.
///
/// # Example
/// ```
/// use punctual::Limits;
/// use punctual::decide::{Load, admit_due};
/// assert!(admit_due(&Limits::new().running_max(1).backlog_max(0), &Load::default()).is_ok());
/// ```
pub fn admit_due(limits: &Limits, load: &Load) -> Result<(), Refusal> {
    let (count, max) = match limits.running_max {
        None if !load.paused => (load.waiting, limits.backlog_max),
        limit => {
            let running = if load.paused { 0 } else { limit.unwrap_or(0) };
            (load.waiting.saturating_add(load.running), limits.backlog_max.saturating_add(running))
        }
    };
    if count < max { Ok(()) } else { Err(Refusal::Backlog { count, max }) }
}

/// A job that is not due yet enters if fewer than `scheduled_max` wait for their due instant.
///
/// # Errors
/// The bound that refuses it.
///
/// # Example
/// ```
/// use punctual::Limits;
/// use punctual::decide::{Load, admit_scheduled};
/// assert!(admit_scheduled(&Limits::new().scheduled_max(0), &Load::default()).is_err());
/// ```
pub fn admit_scheduled(limits: &Limits, load: &Load) -> Result<(), Refusal> {
    let (count, max) = (load.scheduled, limits.scheduled_max);
    if count < max { Ok(()) } else { Err(Refusal::Scheduled { count, max }) }
}
