//! What a store must keep: the contract between the engine and the place where jobs live.
//!
//! # Promises every store makes
//! 1. A method answers `Ok` only when what it did is durable (C37). An error that [is transient](StoreError::is_transient) leaves it
//!    unknown whether it was done; repeating an enqueue with the same id, or a finish with the same fence, is harmless.
//! 2. State changes only by the table of [`State::after`]. A step that cannot happen changes nothing and is answered as such.
//! 3. Whatever a worker writes is guarded by `(id, fence, node)`: a stale run changes nothing (C38).
//! 4. A claim takes no tenant above its limit, and tenants take turns by weight (C40, C41). Limits are the ones of the claim.
//! 5. The store's own clock decides what is due and what has expired (C43). Nobody gives it the present.
//! 6. In a batch each item has its own answer; a bad one fails alone.
//!
//! The calls begin at once, not at the first poll, and dropping the future does not undo them: the engine may stop waiting, the
//! store may not stop halfway. The futures need no runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use punctual::{Limits, Missed, Reason, Stage};

use crate::error::StoreError;
use crate::id::{JobId, NodeId};
use crate::job::Terms;
use crate::retry::Backoff;
use crate::signals::Signals;
use crate::state::{Outcome, State};
use crate::time::Timestamp;

/// The answer of a store, once it has one.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Where durable jobs live. `memory:` and `sqlite:` are such places; see the [module's promises](Store#promises).
///
/// # Promises
/// `Ok` means durable; state changes only by [`State::after`]; writes by workers are fenced; limits hold at every claim; the
/// store's clock decides; each item of a batch is answered for itself.
///
/// # Example
/// ```
/// use punctual_durable::{MemoryStore, Store};
/// let store = MemoryStore::new(punctual::Clock::system());
/// assert!(store.lease().is_none()); // One process owns it, so there is nothing to renew.
/// ```
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// The present by the store's clock, as well as this process knows it.
    fn now(&self) -> Timestamp;

    /// How long a node's lease lasts without a heartbeat; `None` if one process owns the store, so that its life is the lease.
    fn lease(&self) -> Option<Duration>;

    /// How often to look without having been told, where signals can be lost; `None` if they cannot.
    fn poll(&self) -> Option<Duration>;

    /// The schema of its tables, as an identifier, if it is a database whose transactions a caller can share.
    fn sql_schema(&self) -> Option<String> {
        None
    }

    /// Where the store tells of work, of jobs that ended and of jobs to stop.
    fn signals(&self) -> &Signals;

    /// Takes jobs in. An id that is known already is answered like the first time.
    fn enqueue(&self, jobs: Vec<NewJob>) -> Reply<Vec<Result<Admitted, Refused>>>;

    /// Gives ready jobs of the asked kinds to a node: tenants in fair order, within a tenant by `(order_at, arrival)`. Each is running
    /// from then on, its `attempt` and `fence` one higher. What has expired is not given out.
    fn claim(&self, claim: Claim) -> Reply<Claimed>;

    /// Ends runs. One answer per item, in order.
    fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Reply<Vec<Finished>>;

    /// Stops wanting a job: waiting, it ends at once; running, its outcome is settled and its node is told to stop it.
    fn cancel(&self, id: JobId, cause: CancelCause) -> Reply<Cancelled>;

    /// Changes a job that waits.
    fn edit(&self, id: JobId, edit: Edit) -> Reply<Edited>;

    /// A node comes: from now on it can claim and want.
    fn join(&self, beat: Beat) -> Reply<()>;

    /// Says that a node is still alive, and what it handles; answers whether the store still knows it, and what it should stop.
    fn heartbeat(&self, beat: Beat) -> Reply<Pulse>;

    /// A node goes. What it still ran is ready again at once, with the attempt given back and no crash counted; its interest ends.
    fn leave(&self, node: NodeId) -> Reply<()>;

    /// What time brings: jobs that fall due become ready, jobs past their time expire, jobs of dead nodes are taken from them. Does
    /// some of it and says when there is more.
    fn tend(&self) -> Reply<Tended>;

    /// A node wants the result of a job enqueued [`while wanted`](NewJob::wanted_by); false if it has ended or is unknown. Saying it
    /// twice is saying it once.
    fn want(&self, id: JobId, node: NodeId) -> Reply<bool>;

    /// It does not any more: the last node that leaves cancels the job.
    fn unwant(&self, id: JobId, node: NodeId) -> Reply<()>;

    /// One job, live or ended; `None` if it never was or was pruned.
    fn get(&self, id: JobId) -> Reply<Option<Record>>;

    /// Jobs, live and ended, in the order of their ids.
    fn query(&self, query: Query) -> Reply<Page>;

    /// Why a job does not run at this moment; `None` if it is unknown.
    fn explain(&self, id: JobId) -> Reply<Option<Explanation>>;

    /// A person wants an ended job to run again: as new, with its old number of fences.
    fn redrive(&self, id: JobId) -> Reply<Redriven>;

    /// Forgets jobs that ended longer ago than this, at most `max`; answers how many.
    fn prune(&self, retention: Retention, max: usize) -> Reply<usize>;

    /// Forgets these jobs if they have ended; answers how many.
    fn purge(&self, ids: Vec<JobId>) -> Reply<usize>;

    /// Changes what a tenant may do. In force from the next claim and the next enqueue. What the change leaves open stays, so two who
    /// change different things at a time do not undo each other.
    fn set_tenant(&self, tenant: String, change: TenantChange) -> Reply<()>;

    /// A tenant's policy and numbers. One that was never heard of has no limits and nothing.
    fn tenant(&self, tenant: String) -> Reply<TenantRecord>;

    /// The tenants with a policy or with jobs, by name, after the given one.
    fn tenants(&self, after: Option<String>, max: usize) -> Reply<Vec<TenantRecord>>;

    /// Cancels everything of a tenant; answers how many it was.
    fn cancel_tenant(&self, tenant: String) -> Reply<usize>;

    /// Forgets all of one tenant: schedules, jobs that wait and that ended, its policy. What runs is cancelled and goes when it stops.
    fn erase(&self, tenant: String) -> Reply<Erased>;

    /// Adds a schedule, or changes it: one with the same rule keeps its next tick and its counts.
    fn put_schedule(&self, schedule: Schedule) -> Reply<()>;

    /// Takes a schedule away; false if there is none of that name. Jobs it made go on.
    fn remove_schedule(&self, name: String) -> Reply<bool>;

    /// Pauses or resumes a schedule; false if there is none of that name.
    fn pause_schedule(&self, name: String, paused: bool) -> Reply<bool>;

    /// The schedules, by name, after the given one.
    fn schedules(&self, after: Option<String>, max: usize) -> Reply<Vec<Schedule>>;

    /// Fires one tick, if nobody has: compares the schedule's next tick with `fire.tick`, and in the same step moves it on and takes
    /// the job in.
    fn fire(&self, fire: Fire) -> Reply<Fired>;

    /// The numbers of all tenants together, from counters.
    fn totals(&self) -> Reply<Totals>;

    /// The nodes that are alive.
    fn nodes(&self) -> Reply<Vec<NodeRecord>>;
}

/// An instant that the store works out by its own clock.
///
/// # Example
/// ```
/// use punctual_durable::{Moment, Timestamp};
/// use std::time::Duration;
/// let now = Timestamp::from_micros(5);
/// assert_eq!(Moment::After(Duration::from_micros(2)).from(now), Timestamp::from_micros(7));
/// assert_eq!(Moment::At(Timestamp::from_micros(3)).from(now), Timestamp::from_micros(3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// So long after the store has it.
    After(Duration),
    /// A date.
    At(Timestamp),
}

impl Moment {
    /// At once.
    pub const NOW: Self = Self::After(Duration::ZERO);

    /// The instant, if it is `now`.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{Moment, Timestamp};
    /// assert_eq!(Moment::NOW.from(Timestamp::from_micros(5)), Timestamp::from_micros(5));
    /// ```
    #[must_use]
    pub fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::After(delay) => now.after(delay),
            Self::At(at) => at,
        }
    }
}

/// A job to take in.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// Its id, made by whoever enqueues it.
    pub id: JobId,
    /// Which handler it is for.
    pub kind: String,
    /// Who is accounted; empty for work that names nobody.
    pub tenant: String,
    /// What the handler gets, as JSON.
    pub payload: String,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Earlier (negative) or later (positive) than others: a step counts like 30 s of waiting.
    pub priority: i8,
    /// What it costs its tenant of its share; at least 1.
    pub cost: u32,
    /// When it may start.
    pub due: Moment,
    /// How long after its due instant it may still start.
    pub start_within: Option<Duration>,
    /// How long one attempt may run.
    pub run_timeout: Option<Duration>,
    /// When nobody wants it any more.
    pub deadline: Option<Moment>,
    /// How many attempts it has.
    pub max_attempts: u32,
    /// How many processes may die while they run it.
    pub max_crashes: u32,
    /// How long to wait between attempts.
    pub backoff: Backoff,
    /// At most one live job of a tenant has this key.
    pub unique: Option<Unique>,
    /// It lives only while somebody wants its result; this node is the first.
    pub wanted_by: Option<NodeId>,
    /// The schedule that made it.
    pub schedule: Option<String>,
    /// How many ticks of its schedule it stands for besides its own.
    pub missed: u64,
    /// The trace it belongs to (a W3C `traceparent`).
    pub trace: Option<String>,
}

impl NewJob {
    /// A job due at once, of the tenant without a name, with an empty object for a payload and the terms that a kind has which says
    /// nothing ([`Terms::new`]).
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{JobId, NewJob};
    /// let job = NewJob { tenant: "acme".into(), ..NewJob::new(JobId::from_u128(7), "remind") };
    /// assert_eq!((job.kind.as_str(), job.payload.as_str(), job.max_attempts), ("remind", "{}", 10));
    /// ```
    #[must_use]
    pub fn new(id: JobId, kind: impl Into<String>) -> Self {
        let terms = Terms::new();
        Self {
            id,
            kind: kind.into(),
            tenant: String::new(),
            payload: "{}".to_owned(),
            tags: Vec::new(),
            priority: terms.priority,
            cost: terms.cost,
            due: Moment::NOW,
            start_within: None,
            run_timeout: None,
            deadline: None,
            max_attempts: terms.max_attempts,
            max_crashes: terms.max_crashes,
            backoff: terms.backoff,
            unique: None,
            wanted_by: None,
            schedule: None,
            missed: 0,
            trace: None,
        }
    }
}

/// A key that at most one live job of a tenant has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unique {
    /// The key.
    pub key: String,
    /// What becomes of a second job with it.
    pub on_conflict: OnConflict,
    /// The key stays taken at least so long after the job was enqueued, even if it ends before.
    pub period: Option<Duration>,
}

/// What becomes of a job whose unique key is taken.
///
/// # Example
/// ```
/// use punctual_durable::OnConflict;
/// assert_eq!(OnConflict::default(), OnConflict::Reject);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnConflict {
    /// It is refused, and the one that holds the key is named.
    #[default]
    Reject,
    /// The caller gets a handle to the one that holds the key.
    Join,
    /// It takes the place of the other, which is cancelled, unless that one runs already: then it is refused.
    Replace,
}

/// A job that was taken in, or another one for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// It is in the store.
    New,
    /// Another one had its unique key, and it asked to join.
    Joined(JobId),
    /// It is in the store, and this one, which had its key, was cancelled for it.
    Replaced(JobId),
}

/// Why a store does not take a job.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Refused {
    /// The tenant's limits, or its deadline, refuse it.
    Rejected {
        /// Which bound, its value and its limit.
        reason: Reason,
        /// When to try again, as far as that is known.
        retry_after: Option<Duration>,
    },
    /// This job has its unique key.
    Conflict(JobId),
    /// The store could not write this one, and would not another time.
    Bad(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { reason, .. } => reason.fmt(f),
            Self::Conflict(id) => write!(f, "its unique key is taken by job {id}"),
            Self::Bad(why) => f.write_str(why),
        }
    }
}

/// What a node asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who asks.
    pub node: NodeId,
    /// How many jobs at most.
    pub max: usize,
    /// The kinds it can run at this moment, and how many more of each.
    pub kinds: Arc<[(String, usize)]>,
}

/// What it gets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Claimed {
    /// Jobs that it runs from now on, in the order they were picked.
    pub jobs: Vec<Record>,
    /// There may be more at once: others were in the way, or the batch was cut.
    pub more: bool,
    /// Some tenant's rate allows its next start then.
    pub again_at: Option<Timestamp>,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Which job.
    pub id: JobId,
    /// The fence it was claimed with.
    pub fence: u64,
    /// What came of it.
    pub verdict: Verdict,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// A result, as JSON.
    Succeeded(String),
    /// An error, and no attempt is left or none would help.
    Failed(String),
    /// An error, and another attempt at this moment; failed instead, if its deadline is not after that.
    Retry {
        /// When.
        at: Moment,
        /// What went wrong.
        error: String,
    },
    /// Not now; the attempt does not count.
    Snooze(Moment),
    /// The handler says that nobody wants it.
    Cancelled(String),
    /// The node shuts down: ready again at once, and the attempt does not count.
    Release,
    /// The handler of a job whose outcome was settled has stopped.
    Stopped,
}

/// What the store made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    /// It is in this state now.
    Done(State),
    /// The run is not the present one: nothing was changed.
    Stale,
}

/// Who stopped wanting a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelCause {
    /// A caller cancelled it.
    Caller,
    /// Nobody was left who wanted its result.
    Unwanted,
    /// Everything of its tenant was cancelled.
    Tenant,
    /// Another one took its unique key.
    Replaced,
}

impl fmt::Display for CancelCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "cancelled by a caller",
            Self::Unwanted => "cancelled because nobody wanted its result any more",
            Self::Tenant => "cancelled with everything of its tenant",
            Self::Replaced => "cancelled because another job took its unique key",
        })
    }
}

/// What a cancel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It was in this stage; running, its handler has yet to stop.
    Now(Stage),
    /// Its outcome was settled before.
    Ended(Outcome),
    /// No such job.
    Unknown,
}

/// Changes to a job that waits; `None` leaves a thing as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edit {
    /// When it may start.
    pub due: Option<Moment>,
    /// Its priority.
    pub priority: Option<i8>,
    /// What the handler gets, as JSON.
    pub payload: Option<String>,
    /// When nobody wants it any more.
    pub deadline: Option<Moment>,
    /// How many attempts it has.
    pub max_attempts: Option<u32>,
}

/// What an edit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edited {
    /// It is as wished.
    Done,
    /// It does not wait: it is in this state.
    NotWaiting(State),
    /// No such job.
    Unknown,
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Whose.
    pub node: NodeId,
    /// What to call it: a host and a process.
    pub name: String,
    /// The kinds it handles; empty for one that only enqueues and waits.
    pub kinds: Vec<String>,
    /// Of these, the ones it has paused.
    pub paused: Vec<String>,
    /// How many jobs it can run at once.
    pub workers: usize,
}

/// What a node hears back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// False if its lease had ended: everything it ran was taken from it.
    pub known: bool,
    /// Everything the store takes to be running there, with the fences, in the order of the ids.
    pub running: Vec<(JobId, u64)>,
    /// Of these, the jobs whose outcome is settled and whose handlers should stop.
    pub stop: Vec<(JobId, u64)>,
}

/// What time brought.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tended {
    /// Jobs that fell due.
    pub promoted: usize,
    /// Jobs that expired.
    pub expired: usize,
    /// Jobs taken from dead nodes.
    pub lost: usize,
    /// Schedules whose next tick has come and whose last job has ended, to be fired.
    pub schedules: Vec<Schedule>,
    /// When there is something to do again; at or before the present, if it was not all done.
    pub next: Option<Timestamp>,
}

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
            job,
        }
    }

    /// What ready jobs of a tenant are ordered by: what waits long enough is overtaken by nobody.
    #[must_use]
    pub fn order_at(&self) -> Timestamp {
        order_at(self.due, self.job.priority)
    }

    /// The earliest instant at which it expires if it does not move on: while it waits its deadline or the latest instant to
    /// start, while it runs its deadline.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        match (self.state.stage, self.state.outcome) {
            (Stage::Scheduled | Stage::Ready, None) => [self.start_by, self.deadline].into_iter().flatten().min(),
            (Stage::Running, None) => self.deadline,
            _ => None,
        }
    }
}

impl Record {
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

/// What a tenant may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantPolicy {
    /// Its limits; none by default.
    pub limits: Limits,
    /// Nothing of it starts.
    pub paused: bool,
    /// Nothing of it is taken in.
    pub closed: bool,
}

/// Changes to what a tenant may do; `None` leaves a thing as it is.
///
/// # Example
/// ```
/// use punctual_durable::{TenantChange, TenantPolicy};
/// let mut policy = TenantPolicy { closed: true, ..TenantPolicy::default() };
/// TenantChange { paused: Some(true), ..TenantChange::default() }.apply(&mut policy);
/// assert!(policy.paused && policy.closed);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantChange {
    /// Its limits.
    pub limits: Option<Limits>,
    /// Whether nothing of it starts.
    pub paused: Option<bool>,
    /// Whether nothing of it is taken in.
    pub closed: Option<bool>,
}

impl TenantChange {
    /// Makes the change.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{TenantChange, TenantPolicy};
    /// let mut policy = TenantPolicy::default();
    /// TenantChange::default().apply(&mut policy);
    /// assert_eq!(policy, TenantPolicy::default());
    /// ```
    pub fn apply(self, policy: &mut TenantPolicy) {
        policy.limits = self.limits.unwrap_or(policy.limits);
        policy.paused = self.paused.unwrap_or(policy.paused);
        policy.closed = self.closed.unwrap_or(policy.closed);
    }
}

impl From<TenantPolicy> for TenantChange {
    /// Everything as the policy says.
    fn from(policy: TenantPolicy) -> Self {
        Self { limits: Some(policy.limits), paused: Some(policy.paused), closed: Some(policy.closed) }
    }
}

/// A tenant's policy and numbers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TenantRecord {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub policy: TenantPolicy,
    /// What it has and had.
    pub totals: Totals,
}

/// How many jobs there are in each stage, and how many have ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Waiting for their due instant.
    pub scheduled: usize,
    /// Due, and waiting for a node.
    pub ready: usize,
    /// Running, also those in `stopping`.
    pub running: usize,
    /// Their outcome is settled and their handlers have yet to stop.
    pub stopping: usize,
    /// How many have ever ended, by outcome; does not fall when they are pruned.
    pub ended: BTreeMap<Outcome, u64>,
}

/// What an erasure did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Erased {
    /// Jobs forgotten.
    pub removed: usize,
    /// Jobs that will be, when they stop.
    pub stopping: usize,
}

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
}

/// A node that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its last sign of life.
    pub beat: Beat,
    /// When its lease ends without another.
    pub expires_at: Option<Timestamp>,
    /// How many jobs it runs.
    pub running: usize,
}
