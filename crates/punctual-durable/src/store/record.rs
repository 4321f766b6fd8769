//! What a store knows about jobs, and how it is asked for it.

use std::time::Duration;

use punctual::Stage;

use super::NewJob;
use crate::id::{JobId, NodeId};
use crate::state::{Outcome, State};
use crate::time::Timestamp;

/// All that a store knows about a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// What it was when it was taken in.
    pub job: NewJob,
    /// Where it stands.
    pub state: State,
    /// The instant it may start, or might have.
    pub due: Timestamp,
    /// The latest instant it may start.
    pub start_by: Option<Timestamp>,
    /// When nobody wants it any more.
    pub deadline: Option<Timestamp>,
    /// Which attempt it is at: 0 before the first, rises at every claim, and falls when an attempt does not count.
    pub attempt: u32,
    /// How many claims there were.
    pub fence: u64,
    /// How many processes died while they ran it.
    pub crashes: u32,
    /// Who runs it.
    pub node: Option<NodeId>,
    /// When it was taken in.
    pub enqueued_at: Timestamp,
    /// When its last run began.
    pub started_at: Option<Timestamp>,
    /// When it was last put where it is.
    pub since: Timestamp,
    /// Its result, as JSON.
    pub result: Option<String>,
    /// What went wrong last, or who cancelled it.
    pub last_error: Option<String>,
}

impl Record {
    /// A job that a store takes in now: it waits for its due instant, which may have come.
    pub(crate) fn new(job: NewJob, now: Timestamp) -> Self {
        let due = job.due.from(now);
        Self {
            state: State::SCHEDULED,
            due,
            start_by: job.start_within.map(|within| due.after(within)),
            deadline: job.deadline.map(|deadline| deadline.from(now)),
            attempt: 0,
            fence: 0,
            crashes: 0,
            node: None,
            enqueued_at: now,
            started_at: None,
            since: now,
            result: None,
            last_error: None,
            job: NewJob { is_id_fresh: false, ..job },
        }
    }

    /// A job that a store takes in now and gives to a node in the same step.
    #[cfg(feature = "postgres")]
    pub(crate) fn given(job: NewJob, node: NodeId, now: Timestamp) -> Self {
        let (state, node, started_at) = (State::RUNNING, Some(node), Some(now));
        Self { state, node, started_at, attempt: 1, fence: 1, ..Self::new(job, now) }
    }

    /// What ready jobs of a tenant are ordered by: what waits long enough is overtaken by nobody.
    #[must_use]
    pub fn order_at(&self) -> Timestamp {
        order_at(self.due, self.job.priority)
    }

    /// The earliest instant at which it expires if it does not move on: while it waits its deadline or the latest
    /// instant to start, while it runs its deadline.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        match (self.state.stage, self.state.outcome) {
            (Stage::Scheduled | Stage::Ready, None) => [self.start_by, self.deadline].into_iter().flatten().min(),
            (Stage::Running, None) => self.deadline,
            _ => None,
        }
    }

    /// Another crash would be its last, so it runs while no other such job does.
    pub(crate) fn has_last_chance(&self) -> bool {
        self.crashes > 0 && self.crashes.saturating_add(1) >= self.job.max_crashes
    }

    /// What its `last_error` says if it expires where it stands: which time ran out.
    pub(crate) fn expiry_error(&self) -> String {
        match (self.state.stage, self.start_by, self.deadline) {
            (Stage::Scheduled | Stage::Ready, Some(start_by), deadline) if deadline.is_none_or(|at| start_by < at) => {
                format!("it was not started by {start_by}")
            }
            (Stage::Running, _, Some(deadline)) => format!("its deadline, {deadline}, passed while it ran"),
            (_, _, Some(deadline)) => format!("its deadline, {deadline}, passed before it started"),
            (_, _, None) => "its time ran out".to_owned(),
        }
    }
}

/// What the `last_error` of a job says that processes died of too often.
pub(crate) fn crash_error(crashes: u32) -> String {
    let times = if crashes == 1 { "once".to_owned() } else { format!("{crashes} times") };
    format!("the process that ran it died {times}")
}

/// A priority step counts as much as this much waiting.
pub const AGE_STEP: Duration = Duration::from_secs(30);

/// What ready jobs of a tenant are ordered by: the due instant, moved by the priority.
#[must_use]
pub fn order_at(due: Timestamp, priority: i8) -> Timestamp {
    let step = i64::try_from(AGE_STEP.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(due.micros().saturating_add(step.saturating_mul(i64::from(priority))))
}

/// Which jobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// Of this tenant.
    pub tenant: Option<String>,
    /// Of this kind.
    pub kind: Option<String>,
    /// In this stage.
    pub stage: Option<Stage>,
    /// With this outcome.
    pub outcome: Option<Outcome>,
    /// With this tag.
    pub tag: Option<String>,
    /// Made by this schedule.
    pub schedule: Option<String>,
    /// After this one, which ended the page before.
    pub after: Option<JobId>,
    /// How many at most; 0 counts as 100, and so much is the most.
    pub max: usize,
}

impl Query {
    /// How many jobs a page may have.
    pub const PAGE_MAX: usize = 1_000;

    /// How many jobs this page may have.
    #[must_use]
    pub fn page_size(&self) -> usize {
        if self.max == 0 { 100 } else { self.max.min(Self::PAGE_MAX) }
    }

    /// Whether a job is one of them.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        let is = |wish: &Option<String>, value: &str| wish.as_deref().is_none_or(|wish| wish == value);
        is(&self.tenant, &record.job.tenant)
            && is(&self.kind, &record.job.kind)
            && self.stage.is_none_or(|stage| stage == record.state.stage)
            && self.outcome.is_none_or(|outcome| Some(outcome) == record.state.outcome)
            && self.tag.as_ref().is_none_or(|tag| record.job.tags.contains(tag))
            && self.schedule.as_ref().is_none_or(|name| record.job.schedule.as_ref() == Some(name))
            && self.after.is_none_or(|after| record.job.id > after)
    }
}

/// Some of the jobs that match a query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// In the order of their ids.
    pub jobs: Vec<Record>,
    /// What to put into [`Query::after`] for the next page, if there may be one.
    pub next: Option<JobId>,
}

/// Why a job does not run at this moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// What holds it back.
    pub gate: Gate,
    /// Since when it is where it is.
    pub since: Timestamp,
}

/// What holds a job back.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Gate {
    /// Its due instant has not come.
    NotDue(Timestamp),
    /// An attempt failed; the next one is then.
    Retry {
        /// When.
        at: Timestamp,
        /// What went wrong.
        error: String,
    },
    /// Its tenant is paused.
    TenantPaused,
    /// Its tenant runs as much as it may.
    TenantLimit {
        /// How many run.
        running: usize,
        /// How many may.
        max: usize,
    },
    /// Its tenant's rate allows the next start then.
    Rate(Timestamp),
    /// No live node handles its kind.
    NoWorker,
    /// Every live node that handles its kind has it paused.
    KindPaused,
    /// It crashed so often that it waits to run alone.
    Alone,
    /// Nothing but the jobs before it, of its own tenant and of others.
    Turn,
    /// Nothing: a node runs it.
    Running(NodeId),
    /// Its outcome is settled, and its handler has yet to stop.
    Stopping(Outcome),
    /// It has ended.
    Ended(Outcome),
}

/// What a redrive did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redriven {
    /// It waits to run again.
    Done,
    /// Another live job has its unique key.
    Conflict(JobId),
    /// It did not end, or ended well: it is in this state.
    NotEnded(State),
    /// No such job.
    Unknown,
}

/// How long ended jobs are kept.
///
/// # Example
/// ```
/// use punctual_durable::Retention;
/// use std::time::Duration;
/// let retention = Retention { succeeded: Duration::from_secs(3600), ..Retention::default() };
/// assert!(retention.failed > retention.succeeded);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Those that succeeded: 1 day by default.
    pub succeeded: Duration,
    /// Dead letters: 30 days by default.
    pub failed: Duration,
    /// Those that were cancelled: 1 day by default.
    pub cancelled: Duration,
    /// Those that expired: 7 days by default.
    pub expired: Duration,
}

impl Retention {
    /// How long jobs that ended like this are kept.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{Outcome, Retention};
    /// let retention = Retention::default();
    /// assert_eq!(retention.of(Outcome::Failed), retention.failed);
    /// ```
    #[must_use]
    pub const fn of(&self, outcome: Outcome) -> Duration {
        match outcome {
            Outcome::Succeeded => self.succeeded,
            Outcome::Failed => self.failed,
            Outcome::Cancelled => self.cancelled,
            Outcome::Expired => self.expired,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        Self { succeeded: days(1), failed: days(30), cancelled: days(1), expired: days(7) }
    }
}
