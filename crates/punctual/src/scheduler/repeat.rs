//! When a series runs again. Pure: the time is an argument.
//!
//! # Invariants
//! 1. A fixed rate and a cron never leave their grid: the next tick is computed from a tick, not from when a run began
//!    or ended, so nothing drifts.
//! 2. Every tick is run or counted as missed, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::clock::{Clock, NEVER, Nanos, duration_to_nanos};
use crate::cron::Cron;

/// Past ticks of a cron are counted one by one, up to this many.
const COUNTED_TICKS: u64 = 100_000;

/// What happens to the ticks of a series that pass while it cannot run: a run took too long, or the process stood
/// still.
///
/// # Example
/// ```
/// use punctual::{Missed, Scheduler, VirtualClock};
/// use std::time::Duration;
///
/// let clock = VirtualClock::new();
/// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
/// let series = scheduler.every(Duration::from_secs(1)).missed(Missed::Skip).run(|_| ()).unwrap();
/// clock.advance(Duration::from_secs(3)).unwrap();
/// assert_eq!((series.runs(), series.missed()), (3, 0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Missed {
    /// One run makes up for all of them, at once; it is told how many there were. Then the grid goes on.
    #[default]
    Once,
    /// They are skipped; the next run is at the next tick.
    Skip,
    /// Each is made up for, one after the other; of more than `max` the oldest are skipped.
    All {
        /// How many at most.
        max: u32,
    },
}

/// What a series does when a run panics or returns an error. Either is counted and reported in every case.
///
/// # Example
/// ```
/// use punctual::{OnFailure, Scheduler, VirtualClock};
/// use std::time::Duration;
///
/// let clock = VirtualClock::new();
/// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
/// let series = scheduler
///     .every(Duration::from_secs(1))
///     .on_failure(OnFailure::Stop)
///     .run(|_| Err::<(), _>("out of paper"))
///     .unwrap();
/// clock.advance(Duration::from_secs(10)).unwrap();
/// assert_eq!((series.runs(), series.failures()), (1, 1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnFailure {
    /// The next tick runs as if nothing had happened.
    #[default]
    Continue,
    /// Ticks are left out for `first` after one failure, twice as long after each further one, at most `max`, until a
    /// run succeeds.
    Backoff {
        /// The pause after the first failure.
        first: Duration,
        /// The longest pause.
        max: Duration,
    },
    /// The series ends.
    Stop,
}

/// The grid of a series.
#[derive(Debug, Clone)]
pub(crate) enum Repeat {
    Rate { period: Nanos },
    Delay { period: Nanos },
    Cron(Box<Cron>),
}

/// A point of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tick {
    Mono(Nanos),
    Wall(SystemTime),
}

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) mono: Nanos,
    pub(crate) wall: SystemTime,
}

/// A series between and during its runs.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) repeat: Repeat,
    pub(crate) missed_policy: Missed,
    pub(crate) on_failure: OnFailure,
    pub(crate) tick: Tick,
    /// Ticks missed since the last run, to be given to the next.
    pub(crate) missed_now: u64,
    pub(crate) failures_in_a_row: u32,
    /// Cancelled, expired or failed for good: no further run.
    pub(crate) ended: bool,
    pub(crate) tally: Arc<Tally>,
}

/// What the holder of a series reads.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) runs: AtomicU64,
    pub(crate) missed: AtomicU64,
    pub(crate) failures: AtomicU64,
}

impl Series {
    pub(crate) fn new(repeat: Repeat, first: Tick) -> Self {
        Self {
            repeat,
            missed_policy: Missed::Once,
            on_failure: OnFailure::Continue,
            tick: first,
            missed_now: 0,
            failures_in_a_row: 0,
            ended: false,
            tally: Arc::default(),
        }
    }

    /// A run begins. Under `Once`, ticks that passed while it waited are made up for by this very run. Returns how many
    /// are newly missed.
    pub(crate) fn begin(&mut self, now: Now) -> u64 {
        if self.missed_policy != Missed::Once {
            return 0;
        }
        let passed = self.pass(now);
        self.missed_now += passed;
        self.count_missed(passed)
    }

    // Relaxed: each is a number by itself, read for information.
    fn count_missed(&self, missed: u64) -> u64 {
        self.tally.missed.fetch_add(missed, Ordering::Relaxed);
        missed
    }

    /// A run ended: what is the next tick, and how many were newly missed? `None`: the series is over.
    pub(crate) fn next(&mut self, now: Now, failed: bool) -> (Option<Tick>, u64) {
        self.tally.runs.fetch_add(1, Ordering::Relaxed);
        self.tally.failures.fetch_add(u64::from(failed), Ordering::Relaxed);
        self.advance(now, failed)
    }

    fn advance(&mut self, now: Now, failed: bool) -> (Option<Tick>, u64) {
        self.missed_now = 0;
        self.failures_in_a_row = if failed { self.failures_in_a_row.saturating_add(1) } else { 0 };
        if self.ended || (failed && self.on_failure == OnFailure::Stop) {
            self.ended = true;
            return (None, 0);
        }
        let pause = self.pause();
        let missed = if pause.is_zero() { self.step_by_policy(now) } else { self.step_past(now, pause) };
        self.missed_now = self.count_missed(missed);
        (self.tick_or_end(), missed)
    }

    /// A run was not started in time and is given up; the series goes on.
    pub(crate) fn skip_run(&mut self, now: Now) -> (Option<Tick>, u64) {
        let carried = self.missed_now;
        let (tick, missed) = self.advance(now, false);
        self.missed_now = missed + carried + self.count_missed(1);
        (tick, missed + 1)
    }

    fn tick_or_end(&mut self) -> Option<Tick> {
        if self.tick == Tick::Mono(NEVER) {
            self.ended = true;
            return None;
        }
        Some(self.tick)
    }

    /// Backing off: what falls into the pause is left out, and so not missed.
    fn step_past(&mut self, now: Now, pause: Duration) -> u64 {
        let mono = now.mono.saturating_add(duration_to_nanos(pause));
        if let Repeat::Delay { period } = self.repeat {
            self.tick = Tick::Mono(mono.max(now.mono.saturating_add(period)));
        } else if let Some(wall) = now.wall.checked_add(pause) {
            self.pass(Now { mono, wall });
            self.step();
        } else {
            self.tick = Tick::Mono(NEVER);
        }
        0
    }

    fn pause(&self) -> Duration {
        match self.on_failure {
            OnFailure::Backoff { first, max } if self.failures_in_a_row > 0 => {
                let doublings = (self.failures_in_a_row - 1).min(31);
                first.saturating_mul(1u32 << doublings).min(max)
            }
            _ => Duration::ZERO,
        }
    }

    /// One run ended without a pause: the next tick by the missed policy. Returns how many ticks are missed.
    fn step_by_policy(&mut self, now: Now) -> u64 {
        if let Repeat::Delay { period } = self.repeat {
            self.tick = Tick::Mono(now.mono.saturating_add(period));
            return 0;
        }
        match self.missed_policy {
            Missed::Once => {
                let first = self.tick;
                match self.pass(now) {
                    // Nothing passed: the next tick is ahead.
                    0 => self.step(),
                    // The last one that passed runs now and stands for all.
                    passed => {
                        debug_assert_ne!(first, self.tick);
                        return passed - 1;
                    }
                }
                0
            }
            Missed::Skip => {
                let passed = self.pass(now);
                self.step();
                passed
            }
            Missed::All { max } => {
                let start = self.tick;
                let left_out = self.pass(now).saturating_sub(u64::from(max));
                self.tick = start;
                self.leave_out(left_out);
                self.step();
                left_out
            }
        }
    }

    fn leave_out(&mut self, ticks: u64) {
        if let (Repeat::Rate { period }, Tick::Mono(tick)) = (&self.repeat, self.tick) {
            self.tick = Tick::Mono(tick.saturating_add(period.saturating_mul(ticks)));
        } else {
            (0..ticks).for_each(|_| self.step());
        }
    }

    /// Moves to the last tick that is not after `now`; returns how many steps that took. Beyond `COUNTED_TICKS` of a
    /// cron the count stops, and the present instant stands for the last tick: the next one is computed from there.
    fn pass(&mut self, now: Now) -> u64 {
        match (&self.repeat, self.tick) {
            (Repeat::Rate { period }, Tick::Mono(tick)) => {
                let passed = now.mono.saturating_sub(tick) / period;
                self.tick = Tick::Mono(tick.saturating_add(passed.saturating_mul(*period)));
                passed
            }
            (Repeat::Cron(cron), Tick::Wall(mut tick)) => {
                let mut passed = 0;
                while passed < COUNTED_TICKS
                    && let Some(next) = cron.next_after(tick)
                    && next <= now.wall
                {
                    (tick, passed) = (next, passed + 1);
                }
                if passed == COUNTED_TICKS {
                    tick = tick.max(now.wall);
                }
                self.tick = Tick::Wall(tick);
                passed
            }
            _ => 0,
        }
    }

    fn step(&mut self) {
        self.tick = match (&self.repeat, self.tick) {
            (Repeat::Rate { period } | Repeat::Delay { period }, Tick::Mono(tick)) => {
                Tick::Mono(tick.saturating_add(*period))
            }
            (Repeat::Cron(cron), Tick::Wall(tick)) => cron.next_after(tick).map_or(Tick::Mono(NEVER), Tick::Wall),
            (_, tick) => tick,
        };
    }
}

impl Cron {
    /// The next `n` runs from now on, for a preview. (Here and not with the rest of `Cron`, which reads no clock.)
    ///
    /// # Example
    /// ```
    /// let nine = punctual::Cron::parse("0 9 * * MON-FRI").unwrap().in_zone("Europe/Paris").unwrap();
    /// for run in nine.next_runs(5) {
    ///     println!("{run}");
    /// }
    /// # assert_eq!(nine.next_runs(5).len(), 5);
    /// ```
    #[must_use]
    pub fn next_runs(&self, n: usize) -> Vec<jiff::Zoned> {
        self.next_runs_after(Clock::system().wall(), n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn rate(missed: Missed) -> Series {
        let mut series = Series::new(Repeat::Rate { period: SECOND }, Tick::Mono(10 * SECOND));
        series.missed_policy = missed;
        series
    }

    fn at(mono: Nanos) -> Now {
        Now { mono, wall: SystemTime::UNIX_EPOCH }
    }

    /// C17
    #[test]
    fn a_fixed_rate_stays_on_its_grid_however_late_the_runs_are() {
        let mut series = rate(Missed::Once);
        for tick in 11..1_000 {
            let late = tick * SECOND - 1;
            assert_eq!(series.next(at(late), false), (Some(Tick::Mono(tick * SECOND)), 0));
        }
    }

    /// C17
    #[test]
    fn once_makes_up_for_all_missed_ticks_with_one_run() {
        let mut series = rate(Missed::Once);
        assert_eq!(series.next(at(14 * SECOND + 1), false), (Some(Tick::Mono(14 * SECOND)), 3));
        assert_eq!(series.missed_now, 3);
        assert_eq!(series.begin(at(14 * SECOND + 2)), 0);
        assert_eq!(series.next(at(14 * SECOND + 3), false), (Some(Tick::Mono(15 * SECOND)), 0));
    }

    /// C17: after the process stood still there is one run, not two.
    #[test]
    fn once_takes_ticks_that_passed_before_the_start_into_the_same_run() {
        let mut series = rate(Missed::Once);
        assert_eq!(series.begin(at(20 * SECOND)), 10);
        assert_eq!(series.next(at(20 * SECOND), false), (Some(Tick::Mono(21 * SECOND)), 0));
    }

    /// C17
    #[test]
    fn skip_goes_on_with_the_next_tick() {
        let mut series = rate(Missed::Skip);
        assert_eq!(series.next(at(14 * SECOND + 1), false), (Some(Tick::Mono(15 * SECOND)), 4));
    }

    /// C17
    #[test]
    fn all_repeats_each_tick_up_to_its_cap() {
        let mut series = rate(Missed::All { max: 100 });
        assert_eq!(series.next(at(14 * SECOND), false), (Some(Tick::Mono(11 * SECOND)), 0));
        let mut capped = rate(Missed::All { max: 2 });
        assert_eq!(capped.next(at(14 * SECOND), false), (Some(Tick::Mono(13 * SECOND)), 2));
    }

    /// C17
    #[test]
    fn a_fixed_delay_counts_from_the_end_of_the_run() {
        let mut series = Series::new(Repeat::Delay { period: SECOND }, Tick::Mono(10 * SECOND));
        assert_eq!(series.next(at(77 * SECOND + 5), false), (Some(Tick::Mono(78 * SECOND + 5)), 0));
    }

    /// C17
    #[test]
    fn backoff_doubles_on_the_grid_and_ends_with_a_success() {
        let mut series = rate(Missed::Once);
        series.on_failure = OnFailure::Backoff { first: Duration::from_secs(2), max: Duration::from_secs(5) };
        assert_eq!(series.next(at(10 * SECOND), true).0, Some(Tick::Mono(13 * SECOND)));
        assert_eq!(series.next(at(13 * SECOND), true).0, Some(Tick::Mono(18 * SECOND)));
        assert_eq!(series.next(at(18 * SECOND), true).0, Some(Tick::Mono(24 * SECOND)));
        assert_eq!(series.next(at(24 * SECOND), false).0, Some(Tick::Mono(25 * SECOND)));
    }

    /// C17
    #[test]
    fn stop_ends_the_series_at_the_first_failure() {
        let mut series = rate(Missed::Once);
        series.on_failure = OnFailure::Stop;
        assert_eq!(series.next(at(10 * SECOND), true), (None, 0));
    }

    /// C5: a period longer than all time is one tick, and then the end.
    #[test]
    fn a_tick_beyond_all_time_ends_the_series() {
        let mut series = Series::new(Repeat::Rate { period: NEVER }, Tick::Mono(SECOND));
        assert_eq!(series.next(at(2 * SECOND), false).0, None);
    }
}
