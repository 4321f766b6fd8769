//! The wheel against its oracle, a `BTreeMap<(due, seq), T>`: every answer the same, for any order of operations.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The obviously correct delay queue.
#[derive(Default)]
struct Model {
    entries: BTreeMap<(Nanos, u64), u32>,
    seq: u64,
}

impl Model {
    fn push(&mut self, due: Nanos, item: u32) -> (Nanos, u64) {
        self.seq += 1;
        self.entries.insert((due, self.seq), item);
        (due, self.seq)
    }

    fn pop(&mut self, now: Nanos) -> Option<(Nanos, u32)> {
        let (&(due, seq), _) = self.entries.first_key_value()?;
        if due > now {
            return None;
        }
        self.entries.remove(&(due, seq)).map(|item| (due, item))
    }
}

#[derive(Debug, Clone)]
enum Op {
    Push { delay: Nanos },
    Pop,
    PopAllDue,
    Cancel { which: usize },
    Reschedule { which: usize, delay: Nanos },
    Advance { by: Nanos },
    Look,
}

/// Delays of every magnitude: same instant, same tick, each level, years, never.
fn delays() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        2 => Just(0),
        2 => 0..1_000u64,
        3 => 0..(1u64 << TICK_BITS) * 3,
        3 => (0u32..63).prop_flat_map(|bits| 0..(1u64 << bits).max(1)),
        1 => (1u64..400).prop_map(|step| step << TICK_BITS),
        1 => Just(NEVER),
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => delays().prop_map(|delay| Op::Push { delay }),
        3 => Just(Op::Pop),
        1 => Just(Op::PopAllDue),
        3 => any::<usize>().prop_map(|which| Op::Cancel { which }),
        2 => (any::<usize>(), delays()).prop_map(|(which, delay)| Op::Reschedule { which, delay }),
        3 => delays().prop_map(|by| Op::Advance { by: by / 4 }),
        1 => Just(Op::Look),
    ]
}

/// Both sides, the keys given out so far, and the time.
#[derive(Default)]
struct Pair {
    wheel: Option<Wheel<u32>>,
    model: Model,
    keys: Vec<(SlabKey, (Nanos, u64))>,
    now: Nanos,
    items: u32,
}

impl Pair {
    fn new(start: Nanos) -> Self {
        Self { wheel: Some(Wheel::new()), now: start, ..Self::default() }
    }

    fn wheel(&mut self) -> &mut Wheel<u32> {
        self.wheel.as_mut().unwrap()
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Push { delay } => {
                let (due, now, item) = (self.now.saturating_add(delay), self.now, self.items);
                self.items += 1;
                let key = self.wheel().push(due, now, item);
                let model = self.model.push(due, item);
                self.keys.push((key, model));
            }
            Op::Pop => {
                let now = self.now;
                assert_eq!(self.wheel().pop(now), self.model.pop(now));
            }
            Op::PopAllDue => {
                let now = self.now;
                loop {
                    let taken = self.wheel().pop(now);
                    assert_eq!(taken, self.model.pop(now));
                    if taken.is_none() {
                        break;
                    }
                }
            }
            Op::Cancel { which } if !self.keys.is_empty() => {
                let (key, model) = self.keys[which % self.keys.len()];
                assert_eq!(self.wheel().cancel(key), self.model.entries.remove(&model));
            }
            Op::Reschedule { which, delay } if !self.keys.is_empty() => {
                let at = which % self.keys.len();
                let (key, old) = self.keys[at];
                let (due, now) = (self.now.saturating_add(delay), self.now);
                let item = self.model.entries.remove(&old);
                assert_eq!(self.wheel().reschedule(key, due, now), item.is_some());
                if let Some(item) = item {
                    self.keys[at].1 = self.model.push(due, item);
                }
            }
            Op::Advance { by } => self.now = self.now.saturating_add(by).min(NEVER - 1),
            Op::Cancel { .. } | Op::Reschedule { .. } => {}
            Op::Look => self.look(),
        }
        self.check();
    }

    /// The slow comparison: everything, in order.
    fn look(&mut self) {
        let dues: Vec<_> = self.wheel().entries_in_order().into_iter().map(|(_, due)| due).collect();
        let expected: Vec<_> = self.model.entries.keys().map(|&(due, _)| due).collect();
        assert_eq!(dues, expected);
        let now = self.now;
        let (due, next) = self.wheel().due_and_next(now);
        assert!(due >= self.model.entries.range(..=(now, u64::MAX)).count());
        let after = self.model.entries.range((now, u64::MAX)..).next().map_or(NEVER, |(&(due, _), _)| due);
        assert!(next <= after && next > now, "{next} for {after} at {now}");
    }

    fn check(&mut self) {
        assert_eq!(self.wheel().len(), self.model.entries.len());
        let mut dues = self.model.entries.keys().map(|&(due, _)| due);
        let (first, second) = (dues.next(), dues.next());
        assert_eq!(self.wheel().head().map(|(_, due)| due), first);
        assert!(self.wheel().next_wake() <= first.unwrap_or(NEVER), "woken after the earliest entry");
        assert!(self.wheel().second_wake() <= second.unwrap_or(NEVER), "woken after the second entry");
        let wheel = self.wheel();
        let bound = 2 * wheel.len() + (SLACK + 1) * (LEVELS * SLOTS + 1);
        assert!(wheel.stubs() <= bound, "{} stubs for {} entries", wheel.stubs(), wheel.len());
    }
}

proptest! {
    #![proptest_config(crate::model::cases(512))]

    /// C2, C5, C7: any operations, from any uptime, in the oracle's exact order.
    #[test]
    fn random_operations_match_the_model(start in prop_oneof![Just(0), 0..NEVER / 2], ops in prop::collection::vec(ops(), 1..300)) {
        let mut pair = Pair::new(start);
        for op in &ops {
            pair.apply(op);
        }
        pair.look();
        let items: Vec<_> = std::mem::take(&mut pair.model.entries).into_values().collect();
        assert_eq!(pair.wheel().take_all(), items);
        assert!(pair.wheel().is_empty());
    }
}

/// C2: entries of one due leave in the order they went in, although each stood on another level when it came.
#[test]
fn equal_dues_leave_in_insertion_order_across_cascades() {
    let due = 1u64 << 45;
    let mut wheel = Wheel::new();
    let mut now = 0;
    for item in 0..40u32 {
        wheel.push(due, now, item);
        now += (due - now) / 2;
        // Something near makes the wheel turn on the way.
        wheel.push(now, now, 1_000 + item);
        assert_eq!(wheel.pop(now), Some((now, 1_000 + item)));
    }
    let order: Vec<_> = std::iter::from_fn(|| wheel.pop(due)).map(|(_, item)| item).collect();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
}

/// C8: a million insert and cancel pairs of far entries leave the memory where it began.
#[test]
fn cancelled_far_entries_leave_no_memory_behind() {
    let mut wheel = Wheel::new();
    let hour = 3_600_000_000_000u64;
    let mut window = VecDeque::new();
    for n in 0..1_000_000u64 {
        window.push_back(wheel.push(hour + n * 1_000, n, n));
        if window.len() > 1_000 {
            assert!(wheel.cancel(window.pop_front().unwrap()).is_some());
        }
        assert!(wheel.stubs() <= 2 * wheel.len() + 64 * SLACK);
    }
    let busy = wheel.bytes();
    while let Some(key) = window.pop_front() {
        assert!(wheel.cancel(key).is_some());
    }
    assert!(busy < 1 << 20, "{busy} bytes for 1,000 entries");
    assert_eq!(wheel.stubs(), 0);
    assert!(wheel.bytes() < 1 << 18, "{} bytes for none", wheel.bytes());
}

/// A regression test in the terms of the first seed, whose comparator cast to `int` and misordered entries more than
/// 24.8 days apart.
#[test]
fn entries_a_month_apart_keep_their_order() {
    let day = 86_400_000_000_000u64;
    let mut wheel = Wheel::new();
    for days in [60, 30, 1, 365 * 100, 25, 24] {
        wheel.push(days * day, 0, days);
    }
    let order: Vec<_> = std::iter::from_fn(|| wheel.pop(NEVER - 1)).map(|(_, days)| days).collect();
    assert_eq!(order, [1, 24, 25, 30, 60, 36_500]);
}

/// C3: a crowded slot is woken for ahead of its earliest entry, by more the more crowded it is. That instant once moved
/// with every entry that came in, and each time a sleeper was woken to re-arm: it cost the scheduler half of every
/// submit.
#[test]
fn a_slot_that_fills_moves_its_wake_up_only_a_few_times() {
    let mut wheel = Wheel::new();
    let second = 1_000_000_000;
    let mut moves = 0;
    let mut armed = NEVER;
    for n in 0..100_000 {
        wheel.push(20 * second + n, 0, ());
        let wake = wheel.next_wake();
        moves += u32::from(wake != armed);
        armed = wake;
    }
    assert!(armed < 20 * second, "it wakes early for a crowd");
    assert!(moves <= 10, "it moved {moves} times");
}
