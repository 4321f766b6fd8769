//! What a scheduler counts: plain numbers, taken as a snapshot. No global state, no registry.

use std::fmt;
use std::time::Duration;

/// Sub-buckets per power of two: a recorded value is off by at most one part in 32.
const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = SUB * (64 - SUB_BITS as usize + 1);

/// A histogram of durations, from one nanosecond to centuries, exact to about 3 %.
///
/// # Example
/// ```
/// use punctual::Histogram;
/// use std::time::Duration;
///
/// let mut lateness = Histogram::new();
/// for micros in 1..=100 {
///     lateness.record(Duration::from_micros(micros));
/// }
/// assert_eq!(lateness.count(), 100);
/// assert_eq!(lateness.max(), Duration::from_micros(100));
/// let median = lateness.percentile(50.0).as_micros();
/// assert!((48..=53).contains(&median), "{median}");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Empty until the first value: most histograms of a large system stay so.
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Histogram {
    /// A histogram of nothing.
    ///
    /// # Example
    /// ```
    /// assert_eq!(punctual::Histogram::new().count(), 0);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { buckets: Vec::new(), count: 0, sum: 0, max: 0 }
    }

    /// Counts one duration.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let mut histogram = punctual::Histogram::new();
    /// histogram.record(Duration::from_millis(5));
    /// assert_eq!(histogram.count(), 1);
    /// ```
    pub fn record(&mut self, duration: Duration) {
        self.record_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn record_ns(&mut self, nanos: u64) {
        if self.buckets.is_empty() {
            self.buckets = vec![0; BUCKETS];
        }
        self.buckets[bucket_of(nanos)] += 1;
        self.count += 1;
        self.sum += u128::from(nanos);
        self.max = self.max.max(nanos);
    }

    /// How many durations were counted.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let mut histogram = punctual::Histogram::new();
    /// histogram.record(Duration::from_millis(5));
    /// assert_eq!(histogram.count(), 1);
    /// ```
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest, exactly.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let mut histogram = punctual::Histogram::new();
    /// histogram.record(Duration::from_millis(5));
    /// assert_eq!(histogram.max(), Duration::from_millis(5));
    /// ```
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// The average, exactly; zero if nothing was counted.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let mut histogram = punctual::Histogram::new();
    /// histogram.record(Duration::from_millis(5));
    /// assert_eq!(histogram.mean(), Duration::from_millis(5));
    /// ```
    #[must_use]
    pub fn mean(&self) -> Duration {
        let mean = self.sum.checked_div(u128::from(self.count)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// The duration that `percent` of all are at or below; zero if nothing was counted.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let mut histogram = punctual::Histogram::new();
    /// histogram.record(Duration::from_millis(5));
    /// assert_eq!(histogram.percentile(99.0), Duration::from_millis(5));
    /// ```
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank")]
    pub fn percentile(&self, percent: f64) -> Duration {
        let rank = (self.count as f64 * (percent / 100.0).clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(middle_of(bucket).min(self.max));
            }
        }
        self.max()
    }

    /// Adds all that another histogram counted.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let mut histogram = punctual::Histogram::new();
    /// histogram.record(Duration::from_millis(5));
    /// let mut all = punctual::Histogram::new();
    /// all.merge(&histogram);
    /// assert_eq!(all.count(), 1);
    /// ```
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.buckets.resize(BUCKETS, 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count)
            .field("p50", &self.percentile(50.0))
            .field("p99", &self.percentile(99.0))
            .field("max", &self.max())
            .finish()
    }
}

/// Values below 16 have a bucket each; above, each power of two has 16.
fn bucket_of(value: u64) -> usize {
    if value < SUB as u64 {
        return usize::try_from(value).expect("below 16");
    }
    let exponent = 63 - value.leading_zeros();
    let sub = usize::try_from((value >> (exponent - SUB_BITS)) & (SUB as u64 - 1)).expect("below 16");
    (exponent - SUB_BITS + 1) as usize * SUB + sub
}

fn middle_of(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = bucket / SUB - 1;
    let low = ((SUB + bucket % SUB) as u64) << shift;
    low + (1u64 << shift) / 2
}

/// How many jobs ended which way. A series counts each of its runs.
///
/// # Example
/// ```
/// let outcomes = punctual::Scheduler::new().snapshot().finished;
/// assert_eq!(outcomes.total(), 0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcomes {
    /// Returned.
    pub succeeded: u64,
    /// Runs of a series that returned an error.
    pub failed: u64,
    /// Panicked.
    pub panicked: u64,
    /// Nobody wanted them any more.
    pub cancelled: u64,
    /// Not started, or not finished, in time.
    pub expired: u64,
}

impl Outcomes {
    pub(crate) fn count(&mut self, outcome: crate::Outcome) {
        *match outcome {
            crate::Outcome::Succeeded => &mut self.succeeded,
            crate::Outcome::Failed => &mut self.failed,
            crate::Outcome::Panicked => &mut self.panicked,
            crate::Outcome::Cancelled => &mut self.cancelled,
            crate::Outcome::Expired => &mut self.expired,
        } += 1;
    }

    /// All of them.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let job = scheduler.now().run(|_| ()).unwrap();
    /// job.stopped().wait();
    /// assert_eq!(scheduler.snapshot().finished.total(), 1);
    /// ```
    #[must_use]
    pub fn total(&self) -> u64 {
        self.succeeded + self.failed + self.panicked + self.cancelled + self.expired
    }
}

/// The state of a scheduler at one moment, from [`Scheduler::snapshot`](crate::Scheduler::snapshot).
///
/// # Example
/// ```
/// use std::time::Duration;
/// let scheduler = punctual::Scheduler::new();
/// let later = scheduler.after(Duration::from_secs(3600)).run(|_| ()).unwrap();
/// let snapshot = scheduler.snapshot();
/// assert_eq!((snapshot.scheduled, snapshot.running), (1, 0));
/// # drop(later);
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Jobs that wait for their due instant.
    pub scheduled: usize,
    /// Jobs that are due and wait for a worker.
    pub ready: usize,
    /// Jobs that run; a future counts from its first poll to its last, also between polls.
    pub running: usize,
    /// Of those that run: the ones whose outcome is settled already, and that have yet to stop.
    pub zombies: usize,
    /// Worker threads alive.
    pub workers: usize,
    /// Jobs that ended, by outcome.
    pub finished: Outcomes,
    /// Submits that were refused.
    pub rejected: u64,
    /// Ticks that series missed.
    pub missed: u64,
    /// Start minus due, of every start.
    pub lateness: Histogram,
    /// Ready minus due: how exactly the scheduler itself keeps time, whatever the workers do.
    pub timing_error: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_within_a_thirtieth_of_its_bucket() {
        for shift in 0..64 {
            for value in [(1u64 << shift) - 1, 1 << shift, (1 << shift) + (1 << shift) / 3] {
                let middle = middle_of(bucket_of(value));
                assert!(middle.abs_diff(value) <= value / 30 + 1, "{value} counted as {middle}");
            }
        }
        assert!(bucket_of(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_of_nothing_are_zero() {
        assert_eq!(Histogram::new().percentile(99.0), Duration::ZERO);
        assert_eq!(Histogram::new().mean(), Duration::ZERO);
    }
}
