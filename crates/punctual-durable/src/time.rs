//! Instants as stores count them.
//!
//! A store keeps microseconds since 1970: fine enough for a start that is milliseconds late at worst, and what every
//! database can hold. An instant that something must not happen before is rounded up, and the present is rounded down,
//! so nothing is ever early.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant by the store's clock, in microseconds since 1970.
///
/// # Example
/// ```
/// use punctual_durable::Timestamp;
/// use std::time::{Duration, UNIX_EPOCH};
///
/// let due = Timestamp::not_before(UNIX_EPOCH + Duration::from_nanos(1_001));
/// assert_eq!(due.micros(), 2);
/// assert_eq!(due.to_wall(), UNIX_EPOCH + Duration::from_micros(2));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than every instant: about the year 292,000.
    pub const NEVER: Self = Self(i64::MAX);

    /// So many microseconds since 1970.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Timestamp;
    /// assert_eq!(Timestamp::from_micros(7).micros(), 7);
    /// ```
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The microseconds since 1970.
    ///
    /// # Example
    /// ```
    /// assert_eq!(punctual_durable::Timestamp::from_micros(7).micros(), 7);
    /// ```
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// The present: rounded down, so that nothing seems due before it is.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Timestamp;
    /// use std::time::{Duration, UNIX_EPOCH};
    /// assert_eq!(Timestamp::now_at(UNIX_EPOCH + Duration::from_nanos(1_999)).micros(), 1);
    /// ```
    #[must_use]
    pub fn now_at(wall: SystemTime) -> Self {
        match wall.duration_since(UNIX_EPOCH) {
            Ok(since) => Self(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
            Err(before) => Self(-i64::try_from(before.duration().as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)),
        }
    }

    /// An instant that something must not happen before: rounded up.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Timestamp;
    /// use std::time::{Duration, UNIX_EPOCH};
    /// assert_eq!(Timestamp::not_before(UNIX_EPOCH + Duration::from_nanos(1_999)).micros(), 2);
    /// ```
    #[must_use]
    pub fn not_before(wall: SystemTime) -> Self {
        match wall.duration_since(UNIX_EPOCH) {
            Ok(since) => Self(i64::try_from(since.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)),
            Err(before) => Self(-i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX)),
        }
    }

    /// As the system's type; what it cannot represent is cut to what it can.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Timestamp;
    /// assert_eq!(Timestamp::from_micros(0).to_wall(), std::time::UNIX_EPOCH);
    /// ```
    #[must_use]
    pub fn to_wall(self) -> SystemTime {
        let since = Duration::from_micros(self.0.unsigned_abs());
        let wall = if self.0 >= 0 { UNIX_EPOCH.checked_add(since) } else { UNIX_EPOCH.checked_sub(since) };
        wall.unwrap_or(UNIX_EPOCH)
    }

    /// This much later; beyond the end of time is [`NEVER`](Self::NEVER). Parts of a microsecond count as one.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Timestamp;
    /// use std::time::Duration;
    /// assert_eq!(Timestamp::from_micros(1).after(Duration::MAX), Timestamp::NEVER);
    /// ```
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// This much earlier, or the beginning of time.
    pub(crate) fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long from `earlier` to this; zero if it is not later.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::Timestamp;
    /// use std::time::Duration;
    /// let (one, three) = (Timestamp::from_micros(1), Timestamp::from_micros(3));
    /// assert_eq!((three.since(one), one.since(three)), (Duration::from_micros(2), Duration::ZERO));
    /// ```
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    /// As a date and time in UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(date) => date.fmt(f),
            Err(_) => f.write_str(if self.0 > 0 { "never" } else { "long ago" }),
        }
    }
}
