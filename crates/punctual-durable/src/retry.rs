//! What becomes of a failed attempt: how long to wait, and whether to try again at all. Pure.

use std::time::Duration;

use crate::store::{Moment, Verdict};

/// How long to wait between attempts: up to `base`, then up to twice that, and so on up to `cap`, each time a random
/// part of it (full jitter, so that jobs that failed together do not come back together).
///
/// # Example
/// ```
/// use punctual_durable::Backoff;
/// use std::time::Duration;
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// assert_eq!(backoff.most(1), Duration::from_secs(1));
/// assert_eq!(backoff.most(4), Duration::from_secs(8));
/// assert_eq!(backoff.most(100), Duration::from_secs(60));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
}

impl Backoff {
    /// From at most `base` after the first attempt to at most `cap` after many.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Backoff;
    /// use std::time::Duration;
    /// let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    /// assert_eq!(backoff.base(), Duration::from_millis(100));
    /// ```
    #[must_use]
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap }
    }

    /// The most after the first attempt.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Backoff;
    /// assert_eq!(Backoff::default().base(), std::time::Duration::from_secs(1));
    /// ```
    #[must_use]
    pub const fn base(&self) -> Duration {
        self.base
    }

    /// The most after any number of attempts.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Backoff;
    /// assert_eq!(Backoff::default().cap(), std::time::Duration::from_secs(3600));
    /// ```
    #[must_use]
    pub const fn cap(&self) -> Duration {
        self.cap
    }

    /// The most after this many attempts.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Backoff;
    /// assert_eq!(Backoff::default().most(3), std::time::Duration::from_secs(4));
    /// ```
    #[must_use]
    pub fn most(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }

    /// The wait after this many attempts; `fraction`, from 0 to 1, is the dice.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Backoff;
    /// assert_eq!(Backoff::default().wait(3, 0.5), std::time::Duration::from_secs(2));
    /// ```
    #[must_use]
    pub fn wait(&self, attempt: u32, fraction: f64) -> Duration {
        self.most(attempt).mul_f64(fraction.clamp(0.0, 1.0))
    }
}

impl Default for Backoff {
    /// From 1 second to 1 hour.
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(3600))
    }
}

/// Why an attempt did not succeed, and what to do about it. Every error converts into one that is tried again, in a box
/// or not; so do `anyhow::Error` and a text.
///
/// # Example
/// ```
/// use punctual_durable::Failure;
/// fn mail(address: &str) -> Result<(), Failure> {
///     if !address.contains('@') {
///         return Err(Failure::give_up(format!("{address:?} is no address")));
///     }
///     std::fs::read("/no/such/letter")?; // Tried again, with backoff.
///     Ok(())
/// }
/// assert_eq!(mail("nobody").unwrap_err().to_string(), "\"nobody\" is no address");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    error: String,
    decision: Decision,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Retry,
    RetryAt(Moment),
    Snooze(Moment),
    GiveUp,
    Cancel,
}

impl Failure {
    /// Try again, with backoff, while attempts are left.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Failure;
    /// assert_eq!(Failure::retry("the printer is out of paper").to_string(), "the printer is out of paper");
    /// ```
    #[must_use]
    pub fn retry(error: impl Into<String>) -> Self {
        Self { error: error.into(), decision: Decision::Retry }
    }

    /// Try again at a certain time, for instance when the other side said so, while attempts are left.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Failure;
    /// use std::time::Duration;
    /// let busy = Failure::retry_after(Duration::from_secs(30), "429 Too Many Requests");
    /// # drop(busy);
    /// ```
    #[must_use]
    pub fn retry_after(delay: Duration, error: impl Into<String>) -> Self {
        Self { error: error.into(), decision: Decision::RetryAt(Moment::After(delay)) }
    }

    /// Try again at a date, while attempts are left.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Failure;
    /// use std::time::{Duration, SystemTime};
    /// let monday = SystemTime::UNIX_EPOCH + Duration::from_secs(4 * 86_400);
    /// let closed = Failure::retry_at(monday, "the office is closed");
    /// # drop(closed);
    /// ```
    #[must_use]
    pub fn retry_at(date: std::time::SystemTime, error: impl Into<String>) -> Self {
        let at = Moment::At(crate::time::Timestamp::not_before(date));
        Self { error: error.into(), decision: Decision::RetryAt(at) }
    }

    /// Not now: run again later, and do not count this as an attempt.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Failure;
    /// use std::time::Duration;
    /// let not_yet = Failure::snooze(Duration::from_secs(60));
    /// # drop(not_yet);
    /// ```
    #[must_use]
    pub fn snooze(delay: Duration) -> Self {
        Self { error: String::new(), decision: Decision::Snooze(Moment::After(delay)) }
    }

    /// Trying again would not help: the job fails now, and is kept as a dead letter.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Failure;
    /// let hopeless = Failure::give_up("no such user");
    /// # drop(hopeless);
    /// ```
    #[must_use]
    pub fn give_up(error: impl Into<String>) -> Self {
        Self { error: error.into(), decision: Decision::GiveUp }
    }

    /// Nobody wants it any more: the job ends as cancelled.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Failure;
    /// let moot = Failure::cancel("the order was withdrawn");
    /// # drop(moot);
    /// ```
    #[must_use]
    pub fn cancel(reason: impl Into<String>) -> Self {
        Self { error: reason.into(), decision: Decision::Cancel }
    }

    /// What to tell the store after this attempt.
    pub(crate) fn verdict(self, attempt: u32, max_attempts: u32, backoff: &Backoff, fraction: f64) -> Verdict {
        let left = attempt < max_attempts;
        match self.decision {
            Decision::Snooze(at) => Verdict::Snooze(at),
            Decision::Cancel => Verdict::Cancelled(self.error),
            Decision::RetryAt(at) if left => Verdict::Retry { at, error: self.error },
            Decision::Retry if left => {
                Verdict::Retry { at: Moment::After(backoff.wait(attempt, fraction)), error: self.error }
            }
            Decision::GiveUp | Decision::Retry | Decision::RetryAt(_) => Verdict::Failed(self.error),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.error)
    }
}

// Not an `Error` itself, so that every error can convert into it; also those that are none themselves, but hold one:
// boxes, and what applications collect errors in.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Self { error: text, decision: Decision::Retry }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

    /// C46
    #[test]
    fn the_last_attempt_is_not_tried_again() {
        let verdict = |attempt| Failure::retry("no").verdict(attempt, 3, &BACKOFF, 1.0);
        assert_eq!(verdict(2), Verdict::Retry { at: Moment::After(Duration::from_secs(2)), error: "no".into() });
        assert_eq!(verdict(3), Verdict::Failed("no".into()));
    }

    /// C46
    #[test]
    fn giving_up_cancelling_and_snoozing_do_not_look_at_the_attempts() {
        let of = |failure: Failure, attempt| failure.verdict(attempt, 3, &BACKOFF, 1.0);
        assert_eq!(of(Failure::give_up("no"), 1), Verdict::Failed("no".into()));
        assert_eq!(of(Failure::cancel("moot"), 1), Verdict::Cancelled("moot".into()));
        let later = Duration::from_secs(9);
        assert_eq!(of(Failure::snooze(later), 3), Verdict::Snooze(Moment::After(later)));
    }

    #[test]
    fn an_error_is_told_with_its_causes() {
        #[derive(Debug)]
        struct Outer(std::num::ParseIntError);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bad page number")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let outer = || Outer("x".parse::<i32>().unwrap_err());
        let boxed: Box<dyn std::error::Error + Send + Sync> = outer().into();
        for failure in [Failure::from(outer()), Failure::from(boxed)] {
            assert_eq!(failure, Failure::retry("bad page number: invalid digit found in string"));
        }
        assert_eq!(Failure::from("no such page"), Failure::retry("no such page"));
    }
}
