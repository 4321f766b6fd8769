//! What a user's type must be to become a durable job.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::retry::Backoff;

/// A durable job: plain data with a kind, which says what handler it is for.
///
/// The kind and the data are what is written down. Renaming the type changes nothing; renaming the kind, or a field,
/// means that jobs enqueued before do not find their handler, or do not fit it.
///
/// # Example
/// ```
/// use punctual_durable::{Job, Terms};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// #[derive(Serialize, Deserialize)]
/// struct Remind {
///     user: u64,
/// }
///
/// impl Job for Remind {
///     const KIND: &'static str = "remind";
///     type Output = String;
///     const TERMS: Terms = Terms::new().max_attempts(5).run_timeout(Duration::from_secs(30));
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name that its handler, and jobs already enqueued, are found by.
    const KIND: &'static str;

    /// What its handler gives back.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// What holds for each job of this kind that says nothing else.
    const TERMS: Terms = Terms::new();
}

/// What holds for the jobs of a kind unless one says otherwise.
///
/// # Example
/// ```
/// use punctual_durable::{Backoff, Terms};
/// use std::time::Duration;
/// const TERMS: Terms = Terms::new().max_attempts(3).backoff(Backoff::new(Duration::from_secs(5), Duration::from_secs(60)));
/// # let _ = TERMS;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub(crate) max_attempts: u32,
    pub(crate) max_crashes: u32,
    pub(crate) backoff: Backoff,
    pub(crate) start_within: Option<Duration>,
    pub(crate) run_timeout: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) priority: i8,
    pub(crate) cost: u32,
}

impl Terms {
    /// 10 attempts with a backoff from 1 second to 1 hour, 3 crashes, no time limits, priority 0, cost 1.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Terms;
    /// assert_eq!(Terms::new(), Terms::default());
    /// ```
    #[must_use]
    pub const fn new() -> Self {
        Self {
            max_attempts: 10,
            max_crashes: 3,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(3600)),
            start_within: None,
            run_timeout: None,
            deadline: None,
            priority: 0,
            cost: 1,
        }
    }

    /// How many attempts a job has; 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Terms;
    /// assert_ne!(Terms::new().max_attempts(1), Terms::new());
    /// ```
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = if attempts == 0 { 1 } else { attempts };
        self
    }

    /// How many processes may die while they run it, before it is held to be the reason; 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Terms;
    /// assert_ne!(Terms::new().max_crashes(1), Terms::new());
    /// ```
    #[must_use]
    pub const fn max_crashes(mut self, crashes: u32) -> Self {
        self.max_crashes = if crashes == 0 { 1 } else { crashes };
        self
    }

    /// How long to wait between attempts.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Backoff, Terms};
    /// # use std::time::Duration;
    /// let patient = Terms::new().backoff(Backoff::new(Duration::from_secs(60), Duration::from_secs(86_400)));
    /// assert_ne!(patient, Terms::new());
    /// ```
    #[must_use]
    pub const fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How long after its due instant a job may still start.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Terms;
    /// # use std::time::Duration;
    /// assert_ne!(Terms::new().start_within(Duration::from_secs(60)), Terms::new());
    /// ```
    #[must_use]
    pub const fn start_within(mut self, wait: Duration) -> Self {
        self.start_within = Some(wait);
        self
    }

    /// How long one attempt may run.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Terms;
    /// # use std::time::Duration;
    /// assert_ne!(Terms::new().run_timeout(Duration::from_secs(60)), Terms::new());
    /// ```
    #[must_use]
    pub const fn run_timeout(mut self, timeout: Duration) -> Self {
        self.run_timeout = Some(timeout);
        self
    }

    /// How long after it was enqueued a job is wanted at all.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Terms;
    /// # use std::time::Duration;
    /// assert_ne!(Terms::new().deadline(Duration::from_secs(3600)), Terms::new());
    /// ```
    #[must_use]
    pub const fn deadline(mut self, wanted: Duration) -> Self {
        self.deadline = Some(wanted);
        self
    }

    /// Earlier (negative) or later (positive) than others of its tenant: a step counts like 30 s of waiting.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Terms;
    /// assert_ne!(Terms::new().priority(-1), Terms::new());
    /// ```
    #[must_use]
    pub const fn priority(mut self, priority: i8) -> Self {
        self.priority = priority;
        self
    }

    /// What a job costs its tenant of its share; 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Terms;
    /// assert_ne!(Terms::new().cost(5), Terms::new());
    /// ```
    #[must_use]
    pub const fn cost(mut self, cost: u32) -> Self {
        self.cost = if cost == 0 { 1 } else { cost };
        self
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self::new()
    }
}
