//! The database's clock, as well as this process knows it.
//!
//! The database decides what is due. This estimate only says how long to sleep, so it must not run ahead: whoever
//! thinks that an instant has come, and is told that it has not, would ask again and again until it has.
//!
//! # Invariants
//! 1. It counts by the monotonic clock: setting the local wall clock does not move it.
//! 2. Of the last answers the one that took least counts: its error is at most half its round trip.
//! 3. It never contradicts the last answer: the database's present lay between the question and the answer. So whoever
//!    asked too early asks once more, and not again and again.
//! 4. What it shows [at the least](DatabaseClock::at_least) it does show, unless it was set back since the last answer:
//!    when an answer came, it was not earlier than the answer says, and since then it has not run slower than clocks do
//!    that are being corrected.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use punctual::Clock;

use crate::time::Timestamp;

/// One part in so many: by how much one clock may run slower than another while it is being corrected.
const SLOWEST: i64 = 2_000;

/// Clocks that are further apart than this are warned of, in microseconds.
const FAR: u64 = 1_000_000;

/// How many answers are remembered: less than half a minute, in which no clock drifts noticeably.
const REMEMBERED: usize = 8;

#[derive(Debug)]
pub(super) struct DatabaseClock {
    local: Clock,
    origin: Instant,
    estimate: Mutex<Estimate>,
}

impl DatabaseClock {
    pub(super) fn new(local: Clock) -> Self {
        let at_origin = Timestamp::now_at(local.wall()).micros();
        let estimate = Mutex::new(Estimate { at_origin, answers: VecDeque::new(), floor: None });
        Self { origin: local.now(), estimate, local }
    }

    pub(super) fn local(&self) -> &Clock {
        &self.local
    }

    /// The present to give to the database: a test's. Otherwise it has its own.
    pub(super) fn given(&self) -> Option<i64> {
        self.local.is_virtual().then(|| Timestamp::now_at(self.local.wall()).micros())
    }

    pub(super) fn now(&self) -> Timestamp {
        let micros = self.given().unwrap_or_else(|| self.lock().at(self.micros(self.local.now())));
        Timestamp::from_micros(micros)
    }

    /// What it shows at this moment at the least; nothing to speak of before the first answer.
    pub(super) fn at_least(&self) -> Timestamp {
        let micros = self.given().unwrap_or_else(|| self.lock().at_least(self.micros(self.local.now())));
        Timestamp::from_micros(micros)
    }

    /// How far the database's clock is ahead of the local wall clock, in microseconds.
    pub(super) fn offset_us(&self) -> i64 {
        self.now().micros().saturating_sub(Timestamp::now_at(self.local.wall()).micros())
    }

    /// Says so, if the two clocks are far apart. Nothing here goes wrong by it, but dates that the application makes up
    /// do.
    pub(super) fn warn_if_off(&self) {
        let offset_us = self.offset_us();
        if is_far(offset_us) {
            tracing::warn!(target: "punctual", offset_us, "the clock of this machine is not that of the database");
        }
    }

    /// The database was asked for its present, and says that it was `told`.
    pub(super) fn heard(&self, sent: Instant, told: i64) {
        let heard = self.micros(self.local.now());
        self.lock().measure(self.micros(sent), heard, told);
    }

    /// It was asked for something else, and says besides what its present was: when it began, and when it was done.
    pub(super) fn overheard(&self, sent: Instant, told: (i64, i64)) {
        let heard = self.micros(self.local.now());
        self.lock().bound(self.micros(sent), heard, told);
    }

    /// Since the origin.
    fn micros(&self, instant: Instant) -> i64 {
        i64::try_from(instant.saturating_duration_since(self.origin).as_micros()).unwrap_or(i64::MAX / 2)
    }

    fn lock(&self) -> MutexGuard<'_, Estimate> {
        self.estimate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_far(offset_us: i64) -> bool {
    offset_us.unsigned_abs() > FAR
}

/// How the database's clock goes against the local one. All in microseconds, local ones since the origin.
#[derive(Debug)]
struct Estimate {
    /// The database's present at the origin.
    at_origin: i64,
    /// How long each answer took, and what it made of `at_origin`; the newest first.
    answers: VecDeque<(i64, i64)>,
    /// What it was at the origin at the least, and when that was heard.
    floor: Option<(i64, i64)>,
}

impl Estimate {
    fn at(&self, local: i64) -> i64 {
        self.at_origin.saturating_add(local)
    }

    fn at_least(&self, local: i64) -> i64 {
        let Some((floor, heard)) = self.floor else { return i64::MIN };
        floor.saturating_add(local).saturating_sub((local - heard) / SLOWEST)
    }

    /// An answer to a question that was about nothing else.
    fn measure(&mut self, sent: i64, heard: i64, told: i64) {
        self.answers.truncate(REMEMBERED - 1);
        self.answers.push_front((heard - sent, told - sent.midpoint(heard)));
        if let Some(&(_, best)) = self.answers.iter().min_by_key(|(took, _)| took) {
            self.at_origin = best;
        }
        self.bound(sent, heard, (told, told));
    }

    /// Any other answer: it may have taken long, so it says what cannot be, and nothing else.
    fn bound(&mut self, sent: i64, heard: i64, (began, done): (i64, i64)) {
        let (least, most) = (done - heard, began - sent);
        self.at_origin = self.at_origin.min(most).max(least);
        let floor = self.at_least(heard).saturating_sub(heard);
        // Later than it can be: the clock was set back.
        self.floor = Some((if floor > most { least } else { floor.max(least) }, heard));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The database is 1,000,000 us ahead.
    const AHEAD: i64 = 1_000_000;

    fn estimate() -> Estimate {
        Estimate { at_origin: 0, answers: VecDeque::new(), floor: None }
    }

    #[test]
    fn the_answer_that_took_least_counts() {
        let mut estimate = estimate();
        estimate.measure(0, 5_000, AHEAD + 4_900);
        assert_eq!(estimate.at(0), AHEAD + 2_400, "half a round trip wrong");
        estimate.measure(10_000, 10_100, AHEAD + 10_060);
        estimate.measure(20_000, 25_000, AHEAD + 20_100);
        assert_eq!(estimate.at(0), AHEAD + 10);
    }

    #[test]
    fn old_answers_are_forgotten() {
        let mut estimate = estimate();
        estimate.measure(0, 10, AHEAD + 5);
        // The database's clock is set while answers take long: at first they only say what cannot be.
        for at in (1..=8).map(|at| at * 1_000) {
            estimate.measure(at, at + 100, AHEAD - 400 + at + 50);
        }
        assert_eq!(estimate.at(0), AHEAD - 400);
    }

    #[test]
    fn who_was_told_that_it_is_too_early_knows_how_long_to_wait() {
        let mut estimate = estimate();
        estimate.measure(0, 40_000, AHEAD + 40_000);
        let due = AHEAD + 100_000;
        assert!(estimate.at(81_000) >= due, "it thinks that the instant has come");
        // It asks, and the database says that it is 19 ms too early.
        estimate.bound(81_000, 81_300, (AHEAD + 81_100, AHEAD + 81_100));
        let rest = due - estimate.at(81_300);
        assert!((18_600..=18_900).contains(&rest), "{rest}");
    }

    /// C1, C43.
    #[test]
    fn at_the_least_is_never_too_much() {
        let mut estimate = estimate();
        assert!(estimate.at_least(0) < 0, "nothing is known");
        // The answer took long to come: the clock shows 4 ms more by now, for all that is known.
        estimate.measure(0, 5_000, AHEAD + 1_000);
        assert_eq!(estimate.at_least(5_000), AHEAD + 1_000);
        // A claim that took long tells at its end what time it is.
        estimate.bound(10_000, 30_000, (AHEAD + 10_100, AHEAD + 29_900));
        assert_eq!(estimate.at_least(30_000), AHEAD + 29_900);
        // Less is known as time goes by, and a worse answer takes nothing away.
        assert_eq!(estimate.at_least(1_030_000), AHEAD + 1_029_900 - 500);
        estimate.measure(1_000_000, 1_030_000, AHEAD + 1_001_000);
        assert_eq!(estimate.at_least(1_030_000), AHEAD + 1_029_900 - 500);
        // It was set back.
        estimate.measure(1_040_000, 1_040_200, AHEAD + 940_100);
        assert_eq!(estimate.at_least(1_040_200), AHEAD + 940_100);
    }

    #[test]
    fn clocks_are_far_apart_from_more_than_a_second_on_either_way() {
        assert_eq!(
            [i64::MIN, -1_000_001, -1_000_000, 0, 1_000_000, 1_000_001].map(is_far),
            [true, true, false, false, false, true]
        );
    }

    #[test]
    fn a_virtual_clock_is_the_databases_too() {
        let clock = punctual::VirtualClock::new();
        let database = DatabaseClock::new(Clock::from(&clock));
        database.heard(clock.now(), 7);
        clock.advance(std::time::Duration::from_secs(3)).unwrap();
        assert_eq!(database.now(), Timestamp::now_at(clock.wall()));
        assert_eq!(database.given(), Some(database.now().micros()));
        assert_eq!(DatabaseClock::new(Clock::system()).given(), None);
    }
}
