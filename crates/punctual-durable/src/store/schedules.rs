//! Series of jobs that a store keeps.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual::Missed;

use super::{NewJob, Refused};
use crate::error::StoreError;
use crate::id::JobId;
use crate::time::Timestamp;

/// A stored series of jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// What it is known by, at every restart and on every node.
    pub name: String,
    /// When its ticks are.
    pub rule: Rule,
    /// What becomes of ticks that nobody was there for.
    pub missed: Missed,
    /// The job of a tick; its id and due instant are made for each.
    pub template: NewJob,
    /// The next tick; none if there is none left.
    pub next: Option<Timestamp>,
    /// No tick fires while it is set; they count as missed.
    pub paused: bool,
    /// The job of the last tick that fired.
    pub last: Option<JobId>,
    /// How many ticks have fired.
    pub fired: u64,
    /// How many were missed.
    pub missed_count: u64,
}

impl Schedule {
    /// Whether its name and its jobs are within the bounds that hold in every store.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let named = NewJob { schedule: Some(self.name.clone()), ..NewJob::new(self.template.id, "") };
        named.check().and_then(|()| self.template.check()).map_err(|refused| StoreError::permanent(refused.to_string()))
    }
}

/// When the ticks of a schedule are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rule {
    /// By a cron expression, in a time zone.
    Cron {
        /// The expression.
        expression: String,
        /// The zone's name.
        zone: String,
    },
    /// Every so often, on the grid that begins at `anchor`.
    Every {
        /// The time between two ticks.
        period: Duration,
        /// A tick.
        anchor: Timestamp,
    },
}

/// One tick to fire.
#[derive(Debug, Clone, PartialEq)]
pub struct Fire {
    /// Whose.
    pub schedule: String,
    /// The tick that the schedule must still be at.
    pub tick: Timestamp,
    /// Where it is afterwards.
    pub next: Option<Timestamp>,
    /// How many ticks were missed before, and are made up for by none.
    pub missed: u64,
    /// The job, unless this tick is to be missed.
    pub job: Option<NewJob>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Fired {
    /// Its job is in the store.
    Enqueued(JobId),
    /// The job of the tick before is still live, so the schedule rests; nothing was changed.
    Overlapped(JobId),
    /// The tenant does not take it: missed.
    Refused(Refused),
    /// It was to be missed.
    Missed,
    /// Somebody else fired it, or the schedule is gone, changed or paused.
    Lost,
    /// Somebody's open transaction holds a lock that it needs, such as the turn of its tenant; nothing was changed, and
    /// it is to be tried again.
    Held,
}

/// The schedules that cannot be read, by name, and why; as of the last look for ticks. Each is told of once, and not at
/// every look.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(BTreeMap<String, String>);

impl Unreadable {
    /// The next look has found these, and no others.
    pub(crate) fn found(&mut self, unreadable: BTreeMap<String, String>) {
        for (schedule, error) in &unreadable {
            if self.0.get(schedule) != Some(error) {
                tracing::warn!(target: "punctual", schedule, error, "a schedule cannot be read, so it does not fire");
            }
        }
        self.0 = unreadable;
    }
}
