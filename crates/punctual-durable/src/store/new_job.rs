//! What is asked of a store that takes a job in, and what it answers.

use std::fmt;
use std::time::Duration;

use punctual::Reason;

use crate::id::{JobId, NodeId};
use crate::job::Terms;
use crate::retry::Backoff;
use crate::time::Timestamp;

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
    /// The id was made for this job and nobody was ever told of it: no store can have it, so none need look.
    pub is_id_fresh: bool,
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
    /// How many bytes each of its words may have: tenant, kind, unique key, schedule, each tag. Databases find jobs by
    /// them, and an index takes no more than a third of a page: a job that was taken in with longer ones could run and
    /// never end.
    pub const WORD_MAX: usize = 512;

    /// How many tags it may have.
    pub const TAGS_MAX: usize = 64;

    /// A job due at once, of the tenant without a name, with an empty object for a payload and the terms that a kind
    /// has which says nothing ([`Terms::new`]).
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
            is_id_fresh: false,
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

    /// Whether it is within the bounds that hold in every store.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        let words = [
            ("tenant", Some(&self.tenant)),
            ("kind", Some(&self.kind)),
            ("unique key", self.unique.as_ref().map(|unique| &unique.key)),
            ("schedule", self.schedule.as_ref()),
        ];
        let words = words.into_iter().filter_map(|(what, word)| word.map(|word| (what, word)));
        for (what, word) in words.chain(self.tags.iter().map(|tag| ("tag", tag))) {
            if word.len() > Self::WORD_MAX {
                return Err(Refused::TooLong { what, bytes: word.len(), max: Self::WORD_MAX });
            }
        }
        if self.tags.len() > Self::TAGS_MAX {
            return Err(Refused::TooManyTags { count: self.tags.len(), max: Self::TAGS_MAX });
        }
        Ok(())
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

impl Admitted {
    /// The job that stands for one with this id.
    pub(crate) const fn job(self, id: JobId) -> JobId {
        match self {
            Self::New | Self::Replaced(_) => id,
            Self::Joined(other) => other,
        }
    }
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
    /// One of its words is longer than stores take.
    TooLong {
        /// Which.
        what: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be: [`NewJob::WORD_MAX`].
        max: usize,
    },
    /// It has more tags than stores take.
    TooManyTags {
        /// How many.
        count: usize,
        /// How many it may have: [`NewJob::TAGS_MAX`].
        max: usize,
    },
    /// The store could not write this one, and would not another time.
    Bad(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { reason, .. } => reason.fmt(f),
            Self::Conflict(id) => write!(f, "its unique key is taken by job {id}"),
            Self::TooLong { what, bytes, max } => write!(f, "the job's {what} has {bytes} bytes (at most {max})"),
            Self::TooManyTags { count, max } => write!(f, "the job has {count} tags (at most {max})"),
            Self::Bad(why) => f.write_str(why),
        }
    }
}
