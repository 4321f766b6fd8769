//! Jobs that a node has claimed and not begun: they wait here until a worker is free, in a moment.
//!
//! A store over a network takes some milliseconds for a claim, and hardly more for hundreds of jobs than for one. A
//! node whose jobs are shorter than that would stand still between claims. So it claims beforehand what it will have
//! begun within the store's foresight, at the pace at which its jobs end.
//!
//! # Invariants
//! 1. It asks for what it will have begun within the foresight at the present pace: a node with long jobs holds
//!    nothing.
//! 2. Nothing waits here while a worker is free.
//! 3. What waits much longer than it should goes back to the store, where others find it.
//! 4. Where the store says that somebody would miss them, none are asked for for a while.
//! 5. What comes together for a tenant of which nothing waits here goes before what waits: so a newcomer need not wait
//!    for all that was claimed beforehand of others. But nothing is passed twice, or with many tenants it would be for
//!    ever. Otherwise the order is the claim's.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::id::JobId;
use crate::store::Record;

/// The pace is that of so much time.
const WINDOW: Duration = Duration::from_millis(5);

/// So many times the foresight are waited for before a job goes back.
const PATIENCE: u32 = 5;

/// How long to ask for none that the store would not give.
const REFUSED: Duration = Duration::from_millis(200);

/// How many wait at most, for each worker and at all.
const MAX_A_WORKER: usize = 8;
const MAX: usize = 1_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Reserve {
    foresight: Duration,
    max: usize,
    waiting: VecDeque<(Record, Instant)>,
    /// So many of them, the first, are not passed any more.
    passed: usize,
    /// Jobs that ended since an instant, and how many did in a second before that.
    ended: usize,
    since: Instant,
    pace: f64,
    refused_until: Option<Instant>,
}

impl Reserve {
    pub(crate) fn new(foresight: Duration, workers: usize, now: Instant) -> Self {
        let max = workers.saturating_mul(MAX_A_WORKER).min(MAX);
        let waiting = VecDeque::new();
        Self { foresight, max, waiting, passed: 0, ended: 0, since: now, pace: 0.0, refused_until: None }
    }

    /// So many jobs have ended.
    pub(crate) fn ended(&mut self, count: usize, now: Instant) {
        self.ended += count;
        if now.duration_since(self.since) >= WINDOW {
            self.pace = self.pace_at(now);
            (self.ended, self.since) = (0, now);
        }
    }

    /// Jobs a second, as of late.
    fn pace_at(&self, now: Instant) -> f64 {
        let span = now.duration_since(self.since);
        if span < WINDOW { self.pace } else { self.ended as f64 / span.as_secs_f64() }
    }

    /// How many jobs to ask for, beside those that can be begun at once.
    pub(crate) fn room(&self, now: Instant) -> usize {
        if self.foresight.is_zero() || self.refused_until.is_some_and(|until| now < until) {
            return 0;
        }
        let wanted = ((self.pace_at(now) * self.foresight.as_secs_f64()) as usize).min(self.max);
        // Half of them at a time: asked for a few it would work as hard.
        if self.waiting.len() > wanted / 2 { 0 } else { wanted - self.waiting.len() }
    }

    /// The store would not give them.
    pub(crate) fn refused(&mut self, now: Instant) {
        self.refused_until = Some(now + REFUSED);
    }

    /// What a claim gave that cannot begin yet.
    pub(crate) fn add(&mut self, jobs: Vec<Record>, now: Instant) {
        let known: HashSet<&str> = self.waiting.iter().map(|(record, _)| record.job.tenant.as_str()).collect();
        let jobs = jobs.into_iter().map(|record| (record, now));
        let (others, newcomers): (Vec<_>, Vec<_>) =
            jobs.partition(|(record, _)| known.contains(record.job.tenant.as_str()));
        let passed = self.waiting.split_off(self.passed);
        let passes = !newcomers.is_empty() && !passed.is_empty();
        self.waiting.extend(newcomers);
        self.waiting.extend(passed);
        if passes {
            self.passed = self.waiting.len();
        }
        self.waiting.extend(others);
    }

    /// The one that begins next.
    pub(crate) fn pop(&mut self) -> Option<Record> {
        let (record, _) = self.waiting.pop_front()?;
        self.passed = self.passed.saturating_sub(1);
        Some(record)
    }

    /// What has waited for too long.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<Record> {
        let patience = self.patience();
        let is_overdue = |since: Instant| now.duration_since(since) >= patience;
        if !self.waiting.iter().any(|(_, since)| is_overdue(*since)) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.waiting);
        let (overdue, waiting): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(|(_, since)| is_overdue(*since));
        // Some of those that are left may be passed once more.
        (self.waiting, self.passed) = (waiting, 0);
        overdue.into_iter().map(|(record, _)| record).collect()
    }

    /// How long until something has waited for too long.
    pub(crate) fn time_left(&self, now: Instant) -> Option<Duration> {
        let since = self.waiting.iter().map(|(_, since)| *since).min()?;
        Some((since + self.patience()).saturating_duration_since(now))
    }

    fn patience(&self) -> Duration {
        self.foresight * PATIENCE
    }

    /// Takes one out that is not to be begun.
    pub(crate) fn remove(&mut self, id: JobId, fence: u64) -> bool {
        let Some(place) = self.waiting.iter().position(|(record, _)| is(record, id, fence)) else { return false };
        self.passed -= usize::from(place < self.passed);
        self.waiting.remove(place).is_some()
    }

    pub(crate) fn contains(&self, id: JobId, fence: u64) -> bool {
        self.waiting.iter().any(|(record, _)| is(record, id, fence))
    }

    pub(crate) fn of_kind(&self, kind: &str) -> usize {
        self.waiting.iter().filter(|(record, _)| record.job.kind == kind).count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes all of them out.
    pub(crate) fn take(&mut self) -> Vec<Record> {
        self.passed = 0;
        self.waiting.drain(..).map(|(record, _)| record).collect()
    }
}

fn is(record: &Record, id: JobId, fence: u64) -> bool {
    (record.job.id, record.fence) == (id, fence)
}

#[cfg(test)]
mod tests {
    use punctual::{Clock, VirtualClock};

    use super::*;
    use crate::store::NewJob;
    use crate::time::Timestamp;

    const MILLI: Duration = Duration::from_millis(1);

    fn reserve(workers: usize) -> (Reserve, Instant) {
        let now = Clock::from(VirtualClock::new()).now();
        (Reserve::new(20 * MILLI, workers, now), now)
    }

    fn job(number: u128) -> Record {
        Record::new(NewJob::new(JobId::from_u128(number), "mail"), Timestamp::from_micros(0))
    }

    /// Five ended in five milliseconds: twenty will in twenty.
    #[test]
    fn it_holds_what_is_begun_within_the_foresight() {
        let (mut reserve, start) = reserve(100);
        assert_eq!(reserve.room(start), 0, "nothing is known yet");
        reserve.ended(5, start + WINDOW);
        let now = start + WINDOW;
        assert_eq!(reserve.room(now), 20);
        reserve.add((0..11).map(job).collect(), now);
        assert_eq!(reserve.room(now), 0, "more than half is there");
        assert_eq!(reserve.pop().map(|record| record.job.id), Some(JobId::from_u128(0)));
        assert_eq!(reserve.room(now), 10);
        assert_eq!(reserve.room(now + 1_000 * MILLI), 0, "none has ended for a second");
    }

    /// C31
    #[test]
    fn a_newcomer_goes_before_what_waits() {
        let (mut reserve, now) = reserve(100);
        let of = |tenant: &str, number| {
            let mut record = job(number);
            record.job.tenant = tenant.into();
            record
        };
        reserve.add(vec![of("big", 1), of("big", 2)], now);
        reserve.add(vec![of("big", 3), of("small", 4), of("tiny", 5), of("small", 6)], now);
        let order: Vec<u128> = std::iter::from_fn(|| reserve.pop()).map(|record| record.job.id.to_u128()).collect();
        assert_eq!(order, [4, 5, 6, 1, 2, 3]);
    }

    /// With ever other tenants nobody is passed for ever.
    #[test]
    fn nothing_is_passed_twice() {
        let (mut reserve, now) = reserve(100);
        let of =
            |number: u128| Record { job: NewJob { tenant: format!("t{number}"), ..job(number).job }, ..job(number) };
        (0..4).for_each(|number| reserve.add(vec![of(number)], now));
        let order: Vec<u128> = std::iter::from_fn(|| reserve.pop()).map(|record| record.job.id.to_u128()).collect();
        assert_eq!(order, [1, 0, 3, 2]);
        reserve.add(vec![of(4), of(5)], now);
        reserve.add(vec![of(6)], now);
        assert!(reserve.remove(of(6).job.id, 0));
        reserve.add(vec![of(7)], now);
        let order: Vec<u128> = std::iter::from_fn(|| reserve.pop()).map(|record| record.job.id.to_u128()).collect();
        assert_eq!(order, [4, 5, 7]);
    }

    #[test]
    fn it_is_bounded_by_the_workers() {
        let (mut reserve, start) = reserve(2);
        reserve.ended(1_000, start + WINDOW);
        assert_eq!(reserve.room(start + WINDOW), 2 * MAX_A_WORKER);
        let (mut reserve, start) = self::reserve(usize::MAX);
        reserve.ended(1_000_000, start + WINDOW);
        assert_eq!(reserve.room(start + WINDOW), MAX);
    }

    #[test]
    fn what_is_refused_is_not_asked_for_again_at_once() {
        let (mut reserve, start) = reserve(100);
        let now = start + WINDOW;
        reserve.ended(50, now);
        reserve.refused(now);
        assert_eq!(reserve.room(now), 0);
        reserve.ended(2_000, now + REFUSED);
        assert_ne!(reserve.room(now + REFUSED), 0);
    }

    #[test]
    fn what_waits_too_long_goes_back() {
        let (mut reserve, start) = reserve(100);
        assert_eq!(reserve.time_left(start), None);
        reserve.add(vec![job(1)], start);
        reserve.add(vec![job(2)], start + MILLI);
        assert_eq!(reserve.time_left(start + MILLI), Some(99 * MILLI));
        assert!(reserve.overdue(start + 99 * MILLI).is_empty());
        assert_eq!(reserve.overdue(start + 100 * MILLI), [job(1)]);
        assert_eq!(reserve.time_left(start + 200 * MILLI), Some(Duration::ZERO));
        assert!(reserve.contains(job(2).job.id, 0) && reserve.of_kind("mail") == 1);
        assert!(!reserve.remove(job(2).job.id, 1) && reserve.remove(job(2).job.id, 0));
        assert!(reserve.is_empty() && reserve.take().is_empty());
    }
}
