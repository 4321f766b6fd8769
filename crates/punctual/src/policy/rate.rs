//! How fast? The generic cell rate algorithm: one instant of state per tenant, exact answers.
//!
//! `next` is the theoretical arrival time of the next start. A start is allowed while `next` is at most `tolerance`
//! ahead of now, and moves `next` on by one `gap`. Nothing is counted and nothing ticks.

use std::time::Duration;

/// A rate with a burst: so many starts in a period, and so many at once after a rest.
///
/// # Example
/// ```
/// use punctual::Rate;
/// let rate = Rate::per_second(50).burst(10);
/// assert_eq!(rate.gap(), std::time::Duration::from_millis(20));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    gap_ns: u64,
    burst: u32,
}

impl Rate {
    /// So many starts in every second; a rate of 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// use punctual::Rate;
    /// assert_eq!(Rate::per_second(50).gap(), std::time::Duration::from_millis(20));
    /// ```
    #[must_use]
    pub fn per_second(starts: u32) -> Self {
        Self::per(starts, Duration::from_secs(1))
    }

    /// So many starts in every minute; a rate of 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// use punctual::Rate;
    /// assert_eq!(Rate::per_minute(600).gap(), std::time::Duration::from_millis(100));
    /// ```
    #[must_use]
    pub fn per_minute(starts: u32) -> Self {
        Self::per(starts, Duration::from_secs(60))
    }

    /// So many starts in every `period`; a rate of 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// use punctual::Rate;
    /// use std::time::Duration;
    /// assert_eq!(Rate::per(4, Duration::from_secs(1)).gap(), Duration::from_millis(250));
    /// ```
    #[must_use]
    pub fn per(starts: u32, period: Duration) -> Self {
        let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        Self { gap_ns: (period / u64::from(starts.max(1))).max(1), burst: 1 }
    }

    /// So many at once after a rest; by default, and at least, 1.
    ///
    /// # Example
    /// ```
    /// use punctual::Rate;
    /// assert_ne!(Rate::per_second(1).burst(5), Rate::per_second(1));
    /// ```
    #[must_use]
    pub fn burst(mut self, starts: u32) -> Self {
        self.burst = starts.max(1);
        self
    }

    /// The time between two starts at this rate.
    ///
    /// # Example
    /// ```
    /// use punctual::Rate;
    /// assert_eq!(Rate::per_second(1_000).gap(), std::time::Duration::from_millis(1));
    /// ```
    #[must_use]
    pub fn gap(&self) -> Duration {
        Duration::from_nanos(self.gap_ns)
    }

    /// How many may start at once after a rest.
    ///
    /// # Example
    /// ```
    /// use punctual::Rate;
    /// assert_eq!(Rate::per_second(1).burst(5).at_once(), 5);
    /// ```
    #[must_use]
    pub fn at_once(&self) -> u32 {
        self.burst
    }

    fn tolerance(&self) -> u64 {
        self.gap_ns.saturating_mul(u64::from(self.burst - 1))
    }
}

/// How much of a rate is spent.
///
/// # Example
/// ```
/// use punctual::Rate;
/// use punctual::decide::Spent;
/// let (rate, mut spent) = (Rate::per_second(10), Spent::default());
/// spent.spend(&rate, 0);
/// assert_eq!(spent.allowed_at(&rate, 0), 100_000_000);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    next_ns: u64,
}

impl Spent {
    /// As [`next_ns`](Self::next_ns) told it: for those who keep it elsewhere.
    ///
    /// # Example
    /// ```
    /// assert_eq!(punctual::decide::Spent::from_next_ns(7).next_ns(), 7);
    /// ```
    #[must_use]
    pub fn from_next_ns(next_ns: u64) -> Self {
        Self { next_ns }
    }

    /// The theoretical instant of the next start.
    ///
    /// # Example
    /// ```
    /// assert_eq!(punctual::decide::Spent::default().next_ns(), 0);
    /// ```
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// When the next start is allowed: `now_ns` or later.
    ///
    /// # Example
    /// ```
    /// use punctual::Rate;
    /// use punctual::decide::Spent;
    /// let (rate, mut spent) = (Rate::per_second(10), Spent::default());
    /// spent.spend(&rate, 0);
    /// assert_eq!(spent.allowed_at(&rate, 0), 100_000_000);
    /// ```
    pub fn allowed_at(&self, rate: &Rate, now_ns: u64) -> u64 {
        self.next_ns.saturating_sub(rate.tolerance()).max(now_ns)
    }

    /// A start happens now.
    ///
    /// # Example
    /// ```
    /// use punctual::Rate;
    /// use punctual::decide::Spent;
    /// let (rate, mut spent) = (Rate::per_second(10), Spent::default());
    /// spent.spend(&rate, 0);
    /// assert!(!spent.is_rested(0));
    /// ```
    pub fn spend(&mut self, rate: &Rate, now_ns: u64) {
        self.next_ns = self.next_ns.max(now_ns).saturating_add(rate.gap_ns);
    }

    /// Whether nothing is owed: forgetting it now would change nothing.
    ///
    /// # Example
    /// ```
    /// use punctual::Rate;
    /// use punctual::decide::Spent;
    /// let (rate, mut spent) = (Rate::per_second(10), Spent::default());
    /// spent.spend(&rate, 0);
    /// assert!(spent.is_rested(100_000_000));
    /// ```
    pub fn is_rested(&self, now_ns: u64) -> bool {
        self.next_ns <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// C33
    #[test]
    fn a_burst_is_allowed_at_once_and_then_the_rate_holds() {
        let rate = Rate::per_second(10).burst(3);
        let mut spent = Spent::default();
        for _ in 0..3 {
            assert_eq!(spent.allowed_at(&rate, SECOND), SECOND);
            spent.spend(&rate, SECOND);
        }
        assert_eq!(spent.allowed_at(&rate, SECOND), SECOND + SECOND / 10);
    }

    /// C33
    #[test]
    fn over_a_long_time_no_more_than_rate_and_burst_start() {
        let rate = Rate::per_second(100).burst(5);
        let (mut spent, mut now, mut starts) = (Spent::default(), 0, 0u64);
        while now < 10 * SECOND {
            now = spent.allowed_at(&rate, now);
            spent.spend(&rate, now);
            starts += 1;
        }
        assert!((1_000..=1_006).contains(&starts), "{starts}");
    }

    #[test]
    fn a_rest_gives_the_burst_back_and_no_more() {
        let rate = Rate::per_second(1).burst(2);
        let mut spent = Spent::default();
        spent.spend(&rate, 0);
        spent.spend(&rate, 0);
        assert!(!spent.is_rested(SECOND));
        assert!(spent.is_rested(2 * SECOND));
        let later = 100 * SECOND;
        let at_once =
            std::iter::from_fn(|| (spent.allowed_at(&rate, later) == later).then(|| spent.spend(&rate, later)));
        assert_eq!(at_once.count(), 2);
    }
}
