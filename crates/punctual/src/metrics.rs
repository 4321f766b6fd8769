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
    buckets: Buckets,
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
        Self { buckets: Buckets::Few(Vec::new()), count: 0, sum: 0, max: 0 }
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
        self.buckets.add(bucket_of(nanos), 1);
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
        let reached = self.buckets.iter().find(|&(_, count)| {
            seen += count;
            seen >= rank
        });
        reached.map_or(self.max(), |(bucket, _)| Duration::from_nanos(middle_of(bucket).min(self.max)))
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
        other.buckets.iter().for_each(|(bucket, count)| self.buckets.add(bucket, count));
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

/// How many values each bucket has.
///
/// Most histograms of a large system are those of tenants that have few jobs, and all buckets are 8 KB: zeroing them
/// for the first job of a tenant took longer than everything else that was done for it. `All` if and only if more than
/// `FEW` are in use, so that equal histograms look alike.
#[derive(Clone, PartialEq, Eq)]
enum Buckets {
    /// Those in use, in order.
    Few(Vec<(u16, u64)>),
    All(Box<[u64]>),
}

/// Found within five steps, and a thirtieth of the memory.
const FEW: usize = 16;

impl Buckets {
    fn add(&mut self, bucket: usize, values: u64) {
        match self {
            Self::All(all) => all[bucket] += values,
            Self::Few(few) => match few.binary_search_by_key(&bucket, |&(bucket, _)| usize::from(bucket)) {
                Ok(at) => few[at].1 += values,
                Err(at) if few.len() < FEW => few.insert(at, (u16::try_from(bucket).expect("below 976"), values)),
                Err(_) => {
                    let mut all = vec![0; BUCKETS].into_boxed_slice();
                    few.iter().for_each(|&(bucket, values)| all[usize::from(bucket)] = values);
                    all[bucket] = values;
                    *self = Self::All(all);
                }
            },
        }
    }

    /// Those in use, in order.
    fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let (few, all): (&[_], &[_]) = match self {
            Self::Few(few) => (few, &[]),
            Self::All(all) => (&[], all),
        };
        let few = few.iter().map(|&(bucket, values)| (usize::from(bucket), values));
        few.chain(all.iter().copied().enumerate().filter(|&(_, values)| values > 0))
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

    /// With few buckets in use and with all of them, the same is counted; and the same by merging as by recording.
    #[test]
    fn few_buckets_tell_what_all_would() {
        for values in [1, FEW as u64, FEW as u64 + 1, 200] {
            let nanos = |n: u64| (n * 7_919) % values * 1_000_000 + 5;
            let (mut histogram, mut odd, mut even) = (Histogram::new(), Histogram::new(), Histogram::new());
            for n in 0..values * 3 {
                histogram.record_ns(nanos(n));
                if n % 2 == 0 { even.record_ns(nanos(n)) } else { odd.record_ns(nanos(n)) }
            }
            let mut sorted: Vec<_> = (0..values * 3).map(nanos).collect();
            sorted.sort_unstable();
            for percent in [1, 25, 50, 75, 99, 100] {
                let rank = (sorted.len() * percent).div_ceil(100).max(1);
                let counted = histogram.percentile(percent as f64);
                let expected = middle_of(bucket_of(sorted[rank - 1])).min(sorted[sorted.len() - 1]);
                assert_eq!(counted, Duration::from_nanos(expected), "{percent} % of {values}");
            }
            odd.merge(&even);
            assert!(odd == histogram, "{odd:?} merged, {histogram:?} recorded");
        }
    }

    #[test]
    fn percentiles_of_nothing_are_zero() {
        assert_eq!(Histogram::new().percentile(99.0), Duration::ZERO);
        assert_eq!(Histogram::new().mean(), Duration::ZERO);
    }
}
