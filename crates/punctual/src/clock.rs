//! Where time comes from: the only room that reads it.
//!
//! # Invariants
//! 1. `Instant::now` and `SystemTime::now` are called here and nowhere else; every timed wait is `Parker::park`.
//! 2. Time inside the crate is a `u64` of nanoseconds since the clock's origin. It reaches 584 years; what lies beyond,
//!    or cannot be represented, is [`NEVER`]. What lies before the origin is 0, which is due.
//!
//! Why a struct and not a trait: the real clock must cost nothing (one predictable branch), and one concrete type keeps
//! type parameters out of every signature that holds a clock.

mod parker;
mod slack;
mod virtual_clock;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

pub(crate) use parker::Parker;
use virtual_clock::Virtual;
pub(crate) use virtual_clock::{Presence, Running};
pub use virtual_clock::{Stalled, VirtualClock};

/// Nanoseconds since the origin of a clock.
pub(crate) type Nanos = u64;

/// Later than every instant.
pub(crate) const NEVER: Nanos = u64::MAX;

/// Where a queue or a scheduler takes its time from: the system's clock, or a [`VirtualClock`].
///
/// # Example
/// ```
/// use punctual::{Clock, DelayQueue, VirtualClock};
///
/// let virtual_clock = VirtualClock::new();
/// let queue: DelayQueue<&str> = DelayQueue::with_clock(&virtual_clock);
/// let real: DelayQueue<&str> = DelayQueue::with_clock(Clock::system());
/// # drop((queue, real));
/// ```
#[derive(Clone)]
pub struct Clock {
    source: Source,
}

#[derive(Clone)]
enum Source {
    Real(Real),
    Virtual(Arc<Virtual>),
}

#[derive(Clone, Copy)]
struct Real {
    origin: Instant,
    exact_sleep: bool,
}

impl Clock {
    /// The system's clock. Threads that sleep to an instant ask the kernel for exact wake-ups (on Linux: a timer slack
    /// of 1 ns), which halves the median lateness.
    ///
    /// # Example
    /// ```
    /// let clock = punctual::Clock::system();
    /// assert!(clock.now() <= clock.now());
    /// ```
    #[must_use]
    pub fn system() -> Self {
        Self::real(true)
    }

    /// The system's clock with the kernel's own timer slack left as it is: some 50 us later, a little less CPU.
    ///
    /// # Example
    /// ```
    /// use punctual::{Clock, DelayQueue};
    /// let queue: DelayQueue<u8> = DelayQueue::with_clock(Clock::coarse());
    /// # drop(queue);
    /// ```
    #[must_use]
    pub fn coarse() -> Self {
        Self::real(false)
    }

    #[allow(clippy::disallowed_methods, reason = "the clock is where time is read")]
    fn real(exact_sleep: bool) -> Self {
        Self { source: Source::Real(Real { origin: Instant::now(), exact_sleep }) }
    }

    /// The monotonic time.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// let before = clock.now();
    /// clock.advance(Duration::from_secs(60)).unwrap();
    /// assert_eq!(clock.now() - before, Duration::from_secs(60));
    /// ```
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the clock is where time is read")]
    pub fn now(&self) -> Instant {
        match &self.source {
            Source::Real(_) => Instant::now(),
            Source::Virtual(time) => time.instant(),
        }
    }

    /// The wall-clock time: what `at` a date and cron go by.
    ///
    /// # Example
    /// ```
    /// let clock = punctual::Clock::system();
    /// assert!(clock.wall() > std::time::UNIX_EPOCH);
    /// ```
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the clock is where time is read")]
    pub fn wall(&self) -> SystemTime {
        match &self.source {
            Source::Real(_) => SystemTime::now(),
            Source::Virtual(time) => time.wall(),
        }
    }

    /// Counts something as under way until the guard is dropped: a virtual clock does not go on meanwhile. For work
    /// that the clock cannot see by itself, such as an answer that another thread, or another runtime, is about to
    /// give. On the system's clock it is nothing.
    ///
    /// # Example
    /// ```
    /// use punctual::{Clock, VirtualClock};
    /// use std::time::Duration;
    ///
    /// let clock = VirtualClock::with_patience(Duration::from_millis(1));
    /// let busy = Clock::from(&clock).busy();
    /// assert!(clock.advance(Duration::from_secs(1)).is_err());
    /// drop(busy);
    /// assert!(clock.advance(Duration::from_secs(1)).is_ok());
    /// ```
    #[must_use = "it is over when the guard is dropped"]
    pub fn busy(&self) -> Busy {
        self.expect_busy();
        Busy(self.clone())
    }

    /// Whether it is a [`VirtualClock`]: for those who have another clock to go by unless a test gives them one.
    ///
    /// # Example
    /// ```
    /// use punctual::{Clock, VirtualClock};
    /// assert!(Clock::from(&VirtualClock::new()).is_virtual() && !Clock::system().is_virtual());
    /// ```
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        matches!(self.source, Source::Virtual(_))
    }

    /// Whether sleepers are woken when the wall clock is set. The system's has no such notification that is portable.
    pub(crate) fn tells_of_steps(&self) -> bool {
        self.is_virtual()
    }

    /// Now, as the rest of the crate counts it.
    #[allow(clippy::disallowed_methods, reason = "the clock is where time is read")]
    #[inline]
    pub(crate) fn nanos(&self) -> Nanos {
        match &self.source {
            Source::Real(real) => nanos_between(real.origin, Instant::now()),
            Source::Virtual(time) => time.nanos(),
        }
    }

    fn origin(&self) -> Instant {
        match &self.source {
            Source::Real(real) => real.origin,
            Source::Virtual(time) => time.origin,
        }
    }

    /// An instant as nanoseconds; before the origin is 0.
    pub(crate) fn to_nanos(&self, instant: Instant) -> Nanos {
        nanos_between(self.origin(), instant)
    }

    /// The other way; `None` for [`NEVER`] and for what the platform cannot represent.
    pub(crate) fn to_instant(&self, nanos: Nanos) -> Option<Instant> {
        if nanos == NEVER {
            return None;
        }
        self.origin().checked_add(Duration::from_nanos(nanos))
    }

    /// Counts the calling thread while it reacts to a wake-up, so that a virtual clock knows when all is quiet.
    pub(crate) fn presence(&self) -> Presence<'_> {
        match &self.source {
            Source::Real(_) => Presence::absent(),
            Source::Virtual(time) => Presence::new(time),
        }
    }

    /// A thread or a future that is about to become busy on another's behalf: counted from now, not from when it first
    /// runs, so that no moment in between looks quiet.
    pub(crate) fn expect_busy(&self) {
        if let Source::Virtual(time) = &self.source {
            time.woke_somebody();
        }
    }

    /// Takes back one [`expect_busy`](Self::expect_busy).
    pub(crate) fn no_longer_busy(&self) {
        if let Source::Virtual(time) = &self.source {
            time.fell_quiet();
        }
    }

    /// Adopts a count made by [`expect_busy`](Self::expect_busy) for the calling thread.
    pub(crate) fn adopt_presence(&self) -> Presence<'_> {
        match &self.source {
            Source::Real(_) => Presence::absent(),
            Source::Virtual(time) => Presence::adopt(time),
        }
    }

    /// Names what the calling thread is busy with, for the error of a stalled virtual clock.
    pub(crate) fn running(&self, name: impl FnOnce() -> String) -> Option<Running> {
        match &self.source {
            Source::Real(_) => None,
            Source::Virtual(time) => Some(time.running(name())),
        }
    }
}

/// Something under way, as far as a [virtual clock](VirtualClock) is concerned; see [`Clock::busy`].
///
/// # Example
/// ```
/// let busy = punctual::Clock::system().busy();
/// drop(busy);
/// ```
#[derive(Debug)]
pub struct Busy(Clock);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.no_longer_busy();
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl From<&Clock> for Clock {
    fn from(clock: &Clock) -> Self {
        clock.clone()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.source {
            Source::Real(_) => "Clock(system)",
            Source::Virtual(_) => "Clock(virtual)",
        })
    }
}

#[inline]
fn nanos_between(origin: Instant, instant: Instant) -> Nanos {
    duration_to_nanos(instant.saturating_duration_since(origin))
}

/// A duration in nanoseconds; [`NEVER`] if it is too long to count.
#[inline]
pub(crate) fn duration_to_nanos(duration: Duration) -> Nanos {
    duration
        .as_secs()
        .checked_mul(1_000_000_000)
        .and_then(|nanos| nanos.checked_add(u64::from(duration.subsec_nanos())))
        .unwrap_or(NEVER)
}
