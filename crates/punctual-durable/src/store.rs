//! What a store must keep: the contract between the engine and the place where jobs live.
//!
//! # Promises every store makes
//! 1. A method answers `Ok` only when what it did is durable (C37). An error that [is
//!    transient](StoreError::is_transient) leaves it unknown whether it was done; repeating an enqueue with the same
//!    id, or a finish with the same fence, is harmless.
//! 2. State changes only by the table of [`State::after`](crate::State::after). A step that cannot happen changes
//!    nothing and is answered as such.
//! 3. Whatever a worker writes is guarded by `(id, fence, node)`: a stale run changes nothing (C38).
//! 4. A claim takes no tenant above its limit, and tenants take turns by weight (C40, C41). Limits are the ones of the
//!    claim.
//! 5. The store's own clock decides what is due and what has expired (C43). Nobody gives it the present.
//! 6. In a batch each item has its own answer; a bad one fails alone.
//!
//! The calls begin at once, not at the first poll, and dropping the future does not undo them: the engine may stop
//! waiting, the store may not stop halfway. The futures need no runtime.

mod new_job;
mod record;
mod runs;
mod schedules;
mod tenants;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::error::StoreError;
use crate::id::{JobId, NodeId};
use crate::signals::Signals;
use crate::time::Timestamp;

pub use new_job::{Admitted, Moment, NewJob, OnConflict, Refused, Unique};
pub(crate) use record::crash_error;
pub use record::{AGE_STEP, Explanation, Gate, Page, Query, Record, Redriven, Retention, order_at};
pub use runs::{
    Beat, CancelCause, Cancelled, Claim, Claimed, Edit, Edited, Finish, Finished, NodeRecord, Pulse, Tended, Verdict,
};
pub(crate) use schedules::Unreadable;
pub use schedules::{Fire, Fired, Rule, Schedule};
pub use tenants::{Erased, TenantChange, TenantPolicy, TenantRecord, Totals};

/// The answer of a store, once it has one.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// Where durable jobs live. `memory:` and `sqlite:` are such places; see the [module's promises](Store#promises).
///
/// # Promises
/// `Ok` means durable; state changes only by [`State::after`](crate::State::after); writes by workers are fenced;
/// limits hold at every claim; the store's clock decides; each item of a batch is answered for itself.
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

    /// How long a node's lease lasts without a heartbeat; `None` if there is none to renew: one process owns the store,
    /// so that its life is the lease, or this process may not have one.
    fn lease(&self) -> Option<Duration>;

    /// How often to look without having been told, where signals can be lost; `None` if they cannot.
    fn poll(&self) -> Option<Duration>;

    /// How long before its due instant a job may be claimed. Zero where a claim takes no time to speak of.
    fn foresight(&self) -> Duration {
        Duration::ZERO
    }

    /// What the store's clock shows at this moment at the least: what is due by this is due.
    fn at_least(&self) -> Timestamp {
        self.now()
    }

    /// Whether its clock is the wall clock of this process, so that setting that one sets the store's as well. One that
    /// has a clock of its own does not care.
    fn has_local_clock(&self) -> bool {
        false
    }

    /// The schema of its tables, as an identifier, if it is a database whose transactions a caller can share.
    fn sql_schema(&self) -> Option<String> {
        None
    }

    /// Where the store tells of work, of jobs that ended and of jobs to stop.
    fn signals(&self) -> &Signals;

    /// Takes jobs in. An id that is known already is answered like the first time.
    fn enqueue(&self, jobs: Vec<NewJob>) -> Reply<Vec<Result<Admitted, Refused>>>;

    /// A node is about to begin: what a store does slowly when it does it for the first time, it may do now.
    fn get_ready(&self, node: NodeId) -> Reply<()> {
        _ = node;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Gives ready jobs of the asked kinds to a node: tenants in fair order, within a tenant by `(order_at, arrival)`.
    /// Each is running from then on, its `attempt` and `fence` one higher. What has expired is not given out, and
    /// nothing is to whoever asks in an [era](Beat::era) that is over. When nothing more is ready, a store with
    /// [foresight](Store::foresight) may give some that are [about to fall due](Claim::ahead).
    fn claim(&self, claim: Claim) -> Reply<Claimed>;

    /// Ends runs. One answer per item, in order.
    fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Reply<Vec<Finished>>;

    /// Stops wanting a job: waiting, it ends at once; running, its outcome is settled and its node is told to stop it.
    fn cancel(&self, id: JobId, cause: CancelCause) -> Reply<Cancelled>;

    /// Changes a job that waits.
    fn edit(&self, id: JobId, edit: Edit) -> Reply<Edited>;

    /// A node comes: from now on it can claim and want.
    fn join(&self, beat: Beat) -> Reply<()>;

    /// Says that a node is still alive, and what it handles; answers whether the store still knows it, and what it
    /// should stop.
    fn heartbeat(&self, beat: Beat) -> Reply<Pulse>;

    /// A node goes. What it still ran is ready again at once, with the attempt given back and no crash counted; its
    /// interest ends.
    fn leave(&self, node: NodeId) -> Reply<()>;

    /// What time brings: jobs that fall due become ready, jobs past their time expire, jobs of dead nodes are taken
    /// from them. Does some of it and says when there is more.
    fn tend(&self) -> Reply<Tended>;

    /// A node wants the result of a job enqueued [`while wanted`](NewJob::wanted_by); false if it has ended or is
    /// unknown. Saying it twice is saying it once.
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

    /// Changes what a tenant may do. In force from the next claim and the next enqueue. What the change leaves open
    /// stays, so two who change different things at a time do not undo each other.
    fn set_tenant(&self, tenant: String, change: TenantChange) -> Reply<()>;

    /// A tenant's policy and numbers. One that was never heard of has no limits and nothing.
    fn tenant(&self, tenant: String) -> Reply<TenantRecord>;

    /// The tenants with a policy or with jobs, by name, after the given one.
    fn tenants(&self, after: Option<String>, max: usize) -> Reply<Vec<TenantRecord>>;

    /// Cancels everything of a tenant; answers how many it was.
    fn cancel_tenant(&self, tenant: String) -> Reply<usize>;

    /// Forgets all of one tenant: schedules, jobs that wait and that ended, its policy. What runs is cancelled and goes
    /// when it stops.
    fn erase(&self, tenant: String) -> Reply<Erased>;

    /// Adds a schedule, or changes it: one with the same rule keeps its next tick and its counts.
    fn put_schedule(&self, schedule: Schedule) -> Reply<()>;

    /// Takes a schedule away; false if there is none of that name. Jobs it made go on.
    fn remove_schedule(&self, name: String) -> Reply<bool>;

    /// Pauses or resumes a schedule; false if there is none of that name.
    fn pause_schedule(&self, name: String, paused: bool) -> Reply<bool>;

    /// The schedules, by name, after the given one. One that cannot be read is left out, with a warning: it does not
    /// hide the others.
    fn schedules(&self, after: Option<String>, max: usize) -> Reply<Vec<Schedule>>;

    /// Fires one tick, if nobody has: compares the schedule's next tick with `fire.tick`, and in the same step moves it
    /// on and takes the job in.
    fn fire(&self, fire: Fire) -> Reply<Fired>;

    /// The numbers of all tenants together, from counters.
    fn totals(&self) -> Reply<Totals>;

    /// The nodes that are alive.
    fn nodes(&self) -> Reply<Vec<NodeRecord>>;
}
