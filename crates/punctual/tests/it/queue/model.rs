//! Random operations against a model: a `BTreeMap` in `(due, insertion)` order, which the queue must match exactly.

use std::collections::{BTreeMap, HashMap};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use punctual::{DelayQueue, Due, Key, TakeTimeoutError, TryTakeError, VirtualClock};

use super::{SplitMix, YEAR, from_env, on_virtual_clock};

#[derive(Debug, Clone)]
enum Op {
    Push(u64),
    /// At an instant so far before or after now.
    PushAt(i64),
    PushNever,
    Cancel(usize),
    Reschedule(usize, u64),
    TryTake,
    TakeTimeout,
    PollOnce,
    Drain(usize),
    Advance(u64),
    List,
    Clear,
}

/// The queue and its oracle, a `BTreeMap<(due, seq), item>`, in lockstep. Times are nanoseconds since the start.
struct Twins {
    clock: VirtualClock,
    start: Instant,
    /// Clones of one queue; every operation goes through another one.
    handles: Vec<DelayQueue<u64>>,
    turn: usize,
    model: BTreeMap<(u64, u64), u64>,
    /// Where an item stands in the model.
    place: HashMap<u64, (u64, u64)>,
    /// The latest keys given out, live and stale.
    keys: Vec<(Key, u64)>,
    seq: u64,
    now: u64,
}

/// As many keys as are remembered; older ones are overwritten.
const KEYS: usize = 4096;

impl Twins {
    fn new() -> Self {
        let (clock, queue) = on_virtual_clock();
        let handles = vec![queue; 8];
        Self {
            start: clock.now(),
            clock,
            handles,
            turn: 0,
            model: BTreeMap::new(),
            place: HashMap::new(),
            keys: Vec::new(),
            seq: 0,
            now: 0,
        }
    }

    fn queue(&mut self) -> &DelayQueue<u64> {
        self.turn = (self.turn + 1) % self.handles.len();
        if self.turn == 0 {
            // Handles come and go.
            let last = self.handles.len() - 1;
            self.handles[last] = self.handles[0].clone();
        }
        &self.handles[self.turn]
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Push(delay) => self.push(self.now.saturating_add(delay), |_| Duration::from_nanos(delay).into()),
            Op::PushAt(offset) => {
                let due = self.now.saturating_add_signed(offset).max(self.now);
                self.push(due, |twins| {
                    let distance = Duration::from_nanos(offset.unsigned_abs());
                    let now = twins.clock.now();
                    let at = if offset < 0 { now.checked_sub(distance) } else { now.checked_add(distance) };
                    at.expect("nanoseconds in 64 bits fit an instant").into()
                });
            }
            Op::PushNever => self.push(u64::MAX, |_| Duration::MAX.into()),
            Op::Cancel(which) => self.cancel(which),
            Op::Reschedule(which, delay) => self.reschedule(which, delay),
            Op::TryTake => {
                let expected = self.pop_due();
                let next = self.head_instant();
                let closed_or_next = |item: Option<u64>| item.ok_or(TryTakeError::NotDue(next));
                assert_eq!(self.queue().try_take(), closed_or_next(expected));
            }
            Op::TakeTimeout => {
                let expected = self.pop_due().ok_or(TakeTimeoutError::TimedOut);
                assert_eq!(self.queue().take_timeout(Duration::ZERO), expected);
            }
            Op::PollOnce => {
                let expected = self.pop_due().map_or(Poll::Pending, |item| Poll::Ready(Some(item)));
                let mut future = Box::pin(self.queue().take_async());
                assert_eq!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), expected);
            }
            Op::Drain(max) => {
                let expected: Vec<_> = std::iter::from_fn(|| self.pop_due()).take(max).collect();
                assert_eq!(self.queue().drain_due(max), expected);
            }
            Op::Advance(by) => {
                self.now = self.now.saturating_add(by).min(u64::MAX - 1);
                self.clock.advance(Duration::from_nanos(by)).expect("nobody is busy");
            }
            Op::List => self.compare_all(),
            Op::Clear => {
                let expected: Vec<_> = std::mem::take(&mut self.model).into_values().collect();
                self.place.clear();
                assert_eq!(self.queue().clear(), expected);
            }
        }
        let len = self.model.len();
        assert_eq!(self.queue().len(), len);
    }

    fn push(&mut self, due: u64, when: impl FnOnce(&Self) -> Due) {
        self.seq += 1;
        let item = self.seq;
        let when = when(self);
        let key = self.queue().push(item, when).expect("the queue is open and unbounded");
        self.model.insert((due, self.seq), item);
        self.place.insert(item, (due, self.seq));
        if self.keys.len() < KEYS {
            self.keys.push((key, item));
        } else {
            let slot = usize::try_from(item % KEYS as u64).expect("small");
            self.keys[slot] = (key, item);
        }
    }

    fn cancel(&mut self, which: usize) {
        let Some(&(key, item)) = self.keys.get(which % self.keys.len().max(1)) else { return };
        let expected = self.place.remove(&item).and_then(|place| self.model.remove(&place));
        assert_eq!(self.queue().cancel(key), expected);
    }

    fn reschedule(&mut self, which: usize, delay: u64) {
        let Some(&(key, item)) = self.keys.get(which % self.keys.len().max(1)) else { return };
        let found = self.place.get(&item).copied();
        assert_eq!(self.queue().reschedule(key, Duration::from_nanos(delay)), found.is_some());
        if let Some(old) = found {
            self.seq += 1;
            let new = (self.now.saturating_add(delay), self.seq);
            self.model.remove(&old);
            self.model.insert(new, item);
            self.place.insert(item, new);
        }
    }

    fn pop_due(&mut self) -> Option<u64> {
        let first = self.model.first_entry().filter(|entry| entry.key().0 <= self.now)?;
        let item = first.remove();
        self.place.remove(&item);
        Some(item)
    }

    fn head_instant(&self) -> Option<Instant> {
        self.model.keys().next().and_then(|&(due, _)| self.instant(due))
    }

    fn instant(&self, due: u64) -> Option<Instant> {
        (due != u64::MAX).then(|| self.start + Duration::from_nanos(due))
    }

    fn compare_head(&mut self) {
        let expected = self.head_instant();
        assert_eq!(self.queue().next_due(), expected);
    }

    fn compare_all(&mut self) {
        let expected: Vec<_> = self.model.keys().map(|&(due, _)| self.instant(due)).collect();
        let listed: Vec<_> = self.queue().entries().iter().map(|entry| entry.due).collect();
        assert_eq!(listed, expected);
        assert_eq!(self.queue().peek().map(|entry| entry.due), expected.first().copied());
    }
}

/// Delays of every magnitude, from nothing to centuries.
fn delay() -> impl Strategy<Value = u64> {
    (0..64u32, any::<u64>()).prop_map(|(magnitude, bits)| bits >> (63 - magnitude) >> 1)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => delay().prop_map(Op::Push),
        // Several at exactly the same instant, again and again.
        4 => (0..4u64).prop_map(|n| Op::Push(n << 20)),
        2 => any::<i64>().prop_map(|offset| Op::PushAt(offset >> 20)),
        1 => Just(Op::PushNever),
        4 => any::<usize>().prop_map(Op::Cancel),
        3 => (any::<usize>(), delay()).prop_map(|(which, delay)| Op::Reschedule(which, delay)),
        4 => Just(Op::TryTake),
        1 => Just(Op::TakeTimeout),
        1 => Just(Op::PollOnce),
        2 => (0..5usize).prop_map(Op::Drain),
        4 => delay().prop_map(|by| Op::Advance(by >> 8)),
        2 => (0..4u64).prop_map(|n| Op::Advance(n << 20)),
        1 => Just(Op::List),
        1 => Just(Op::Clear),
    ]
}

proptest! {
    // A fixed seed: the same cases on every run, and a failure is everybody's failure. The soak below varies.
    #![proptest_config(ProptestConfig {
        cases: from_env("PROPTEST_CASES", 128) as u32, rng_seed: RngSeed::Fixed(20), failure_persistence: None, ..ProptestConfig::default()
    })]

    /// C1, C2, C5, C6, C7
    #[test]
    fn random_operations_match_the_model(ops in prop::collection::vec(op(), 1..200)) {
        let mut twins = Twins::new();
        for op in &ops {
            twins.apply(op);
            twins.compare_head();
        }
        twins.compare_all();
    }
}

/// C1, C2, C5, C6, C7: hundreds of simulated years. `PUNCTUAL_SOAK_OPS` says how many operations, `PUNCTUAL_SOAK_SEED`
/// which.
#[test]
fn a_virtual_soak_of_centuries_matches_the_model() {
    let ops = from_env("PUNCTUAL_SOAK_OPS", 1_000_000);
    let mut random = SplitMix(from_env("PUNCTUAL_SOAK_SEED", 1));
    let mut lived = Duration::ZERO;
    let mut twins = Twins::new();
    for n in 0..ops {
        let op = soak_op(&mut random, twins.model.len());
        twins.apply(&op);
        if n % 16 == 0 {
            twins.compare_head();
        }
        if n % 4096 == 0 {
            twins.compare_all();
        }
        if twins.now > 500 * 365 * 24 * 3600 * 1_000_000_000 {
            // Near the end of time most of the above would be never.
            lived += Duration::from_nanos(twins.now);
            twins = Twins::new();
        }
    }
    lived += Duration::from_nanos(twins.now);
    assert!(ops < 100_000 || lived > 100 * YEAR, "only {lived:?} went by");
}

fn soak_op(random: &mut SplitMix, entries: usize) -> Op {
    let which = random.below(KEYS as u64) as usize;
    match random.below(100) {
        0..30 if entries < 10_000 => Op::Push(random.magnitude(58)),
        30..38 => Op::Push(random.below(4) << random.below(40)),
        38..40 => Op::PushAt(random.magnitude(50).cast_signed() - random.magnitude(50).cast_signed()),
        40 => Op::PushNever,
        41..55 => Op::Cancel(which),
        55..63 => Op::Reschedule(which, random.magnitude(58)),
        63..76 => Op::TryTake,
        76..80 => Op::TakeTimeout,
        80..84 => Op::Drain(which % 64),
        84..99 => Op::Advance(random.magnitude(52)),
        99 if random.below(1000) == 0 => Op::Clear,
        _ => Op::Drain(1000),
    }
}
