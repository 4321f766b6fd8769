//! What nodes ask a store for, what is done to jobs that it has, and what it answers.

use std::fmt;
use std::sync::Arc;

use punctual::Stage;

use super::{Moment, Record, Schedule};
use crate::id::{JobId, NodeId};
use crate::state::{Outcome, State};
use crate::time::Timestamp;

/// What a node asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who asks.
    pub node: NodeId,
    /// The node's era in which it asks. Once the store has heard of a newer one, this gets nothing, however late it is
    /// done.
    pub era: u64,
    /// How many jobs at most.
    pub max: usize,
    /// The kinds it can run at this moment, and how many more of each.
    pub kinds: Arc<[(String, usize)]>,
    /// How many of them may be such that fall due within the store's [foresight](super::Store::foresight): the node
    /// starts each at its instant.
    pub ahead: usize,
    /// How many of them wait at the node until a worker is free, in a moment. They may be had only of tenants who do
    /// not miss them meanwhile: such as have no rate, and are far from their limit.
    pub spare: usize,
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
    /// The next job falls due then, if the store looked for that as well.
    pub due_at: Option<Timestamp>,
    /// When there is something else to [tend](super::Store::tend), if the store looked for that as well.
    pub tend_at: Option<Timestamp>,
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
    /// Somebody's open transaction has the job in hand, or the key that it holds: nothing was changed, and it is to be
    /// said again.
    Held,
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
    /// Rises when the node does not know what came of something that would have given it jobs. What was asked for in an
    /// era before this one, and is not done yet, gives it nothing any more: so what runs there is what the answer to
    /// this says, and what it asks for from now on.
    pub era: u64,
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

/// A node that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its last sign of life.
    pub beat: Beat,
    /// When its lease ends without another.
    pub expires_at: Option<Timestamp>,
    /// How many jobs it runs.
    pub running: usize,
    /// How far the store's clock was ahead of its own with that sign of life, in microseconds.
    pub clock_offset_us: i64,
}
