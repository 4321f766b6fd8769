//! Layer 3's decisions, pure: may it enter, who is next, how fast. `now` is an argument; no locks, clocks or threads.
//!
//! The scheduler keeps the state these functions work on, and so can a store.

pub(crate) mod admission;
pub(crate) mod fair;
pub(crate) mod rate;

pub use rate::Rate;

/// What a tenant may have and do. Every limit is off until it is set.
///
/// # Example
/// ```
/// use punctual::{Limits, Rate};
/// let limits = Limits::new().running_max(4).backlog_max(100).weight(3).rate(Rate::per_second(50).burst(10));
/// assert_ne!(limits, Limits::new());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How many jobs may run at once, if that is limited.
    pub running_max: Option<usize>,
    /// How many jobs may wait although they are due, beyond those that run.
    pub backlog_max: usize,
    /// How many jobs may wait for their due instant.
    pub scheduled_max: usize,
    /// The share of the workers, against the weights of the others; at least 1.
    pub weight: u32,
    /// How many jobs may start in a time, if that is limited.
    pub rate: Option<Rate>,
}

impl Limits {
    /// No limits, weight 1.
    ///
    /// # Example
    /// ```
    /// use punctual::Limits;
    /// assert_eq!(Limits::new(), Limits::default());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { running_max: None, backlog_max: usize::MAX, scheduled_max: usize::MAX, weight: 1, rate: None }
    }

    /// How many jobs may run at once. 0 runs nothing until it is raised.
    ///
    /// # Example
    /// ```
    /// use punctual::Limits;
    /// assert_ne!(Limits::new().running_max(4), Limits::new());
    /// ```
    #[must_use]
    pub fn running_max(mut self, jobs: usize) -> Self {
        self.running_max = Some(jobs);
        self
    }

    /// How many jobs may wait although they are due, beyond those that run. With 0 a job runs at once or is rejected.
    ///
    /// # Example
    /// ```
    /// use punctual::Limits;
    /// assert_ne!(Limits::new().backlog_max(100), Limits::new());
    /// ```
    #[must_use]
    pub fn backlog_max(mut self, jobs: usize) -> Self {
        self.backlog_max = jobs;
        self
    }

    /// How many jobs may wait for their due instant.
    ///
    /// # Example
    /// ```
    /// use punctual::Limits;
    /// assert_ne!(Limits::new().scheduled_max(1_000), Limits::new());
    /// ```
    #[must_use]
    pub fn scheduled_max(mut self, jobs: usize) -> Self {
        self.scheduled_max = jobs;
        self
    }

    /// The share of the workers, against the weights of the other tenants that have work. 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// use punctual::Limits;
    /// assert_ne!(Limits::new().weight(3), Limits::new());
    /// ```
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight.max(1);
        self
    }

    /// How many jobs may start in a time.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Rate};
    /// let limits = Limits::new().rate(Rate::per_second(50));
    /// # drop(limits);
    /// ```
    #[must_use]
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}
