//! Where entries wait: a hierarchical timing wheel in exact `(due, insertion)` order. Pure: no lock, no clock.
//!
//! # Shape
//! A *tick* is 2^20 ns (about a millisecond). Ticks are read as base-64 digits; an entry stands on the level of the
//! highest digit in which its tick differs from the cursor's, in the slot of that digit. Eight levels cover every
//! `u64`, so nothing wraps, nothing overflows into a list, and no delay or uptime is too long. The entries of the
//! cursor's own tick, and whatever is inserted behind it, form the *run*, which is sorted.
//!
//! Slots are append-only arrays of 16-byte *stubs*; the entries themselves sit in a slab. A cascade streams the stubs
//! and drops the dead ones. Intrusive lists were measured at 7 times the p99 lateness: they chase cold pointers.
//!
//! # Invariants
//! 1. An entry's place is a pure function of `(due, cursor)`: run if its tick is not after the cursor's, else
//!    `place_of`. So a cancel finds the slot without a stored position.
//! 2. Among entries of equal due, stubs stand in insertion order in whatever slot they share: appended at the tail,
//!    cascaded from the front, sorted stably. The run's stragglers carry their number (`seq`) in the key.
//! 3. A slot's `min` is at most the due of each of its live entries, and exact unless `min_is_stale`.
//! 4. Dead stubs of a slot number at most its live ones plus `SLACK`: cancelling compacts.
//! 5. A lower occupied level is earlier than a higher one, and slots of a level are in order: the earliest slot is
//!    found by two `trailing_zeros`.

use std::collections::{BTreeMap, VecDeque};

use crate::clock::{NEVER, Nanos};
use crate::slab::{Slab, SlabKey};

const TICK_BITS: u32 = 20;
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
/// 20 + 8 x 6 bits cover a `u64`.
const LEVELS: usize = 8;
/// Dead stubs a slot may hold beyond as many as it has live ones, so that a small slot is not compacted all the time.
const SLACK: usize = 32;
/// A slot of a higher level with this many stubs is cascaded ahead of its earliest due, by this much a stub.
const CROWD: usize = 4096;
const CASCADE_NS: u64 = 20;
/// Emptied slot arrays up to this capacity are kept for reuse.
const KEPT_STUBS: usize = 64;

#[derive(Debug)]
pub(crate) struct Wheel<T> {
    entries: Slab<Entry<T>>,
    /// The tick up to which everything is in the run.
    cursor: u64,
    levels: [Level; LEVELS],
    /// Bit n: level n has an occupied slot.
    occupied_levels: u32,
    /// Sorted by due, equal ones in insertion order.
    run: VecDeque<Stub>,
    /// Entries inserted into the run's range out of order.
    stragglers: BTreeMap<(Nanos, u64), Stub>,
    /// Dead stubs in `run` and `stragglers`.
    run_dead: usize,
    /// Numbers insertions; its low half stamps the entry, so that a stub left behind by a reschedule is known as dead.
    seq: u64,
}

#[derive(Debug)]
struct Entry<T> {
    due: Nanos,
    item: T,
}

#[derive(Debug, Clone, Copy)]
struct Stub {
    due: Nanos,
    index: u32,
    stamp: u32,
}

#[derive(Debug, Default)]
struct Level {
    occupied: u64,
    /// Empty until the level is first used.
    slots: Vec<Slot>,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    stubs: Vec<Stub>,
    min: Nanos,
    min_is_stale: bool,
    dead: usize,
}

/// Where a due stands, for a given cursor.
enum Place {
    Run,
    Slot { level: usize, digit: usize },
}

impl<T> Wheel<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Slab::new(),
            cursor: 0,
            levels: Default::default(),
            occupied_levels: 0,
            run: VecDeque::new(),
            stragglers: BTreeMap::new(),
            run_dead: 0,
            seq: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// Adds an entry. `now` only helps to place it well; order and due do not depend on it.
    pub(crate) fn push(&mut self, due: Nanos, now: Nanos, item: T) -> SlabKey {
        self.catch_up(now);
        self.seq += 1;
        let stamp = stamp_of(self.seq);
        let key = self.entries.insert(stamp, Entry { due, item });
        self.place(Stub { due, index: key.index, stamp });
        key
    }

    /// Takes the earliest entry if it is due at `now`.
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<(Nanos, T)> {
        loop {
            while let Some(stub) = self.pop_run(now) {
                if let Some(entry) = self.entries.remove_marked(stub.index, stub.stamp, |entry| entry.due == stub.due) {
                    return Some((entry.due, entry.item));
                }
                self.run_dead = self.run_dead.saturating_sub(1);
            }
            if !self.run_is_empty() || !self.refill(now) {
                return None;
            }
        }
    }

    /// Takes an entry out, if the key still names one.
    pub(crate) fn cancel(&mut self, key: SlabKey) -> Option<T> {
        let entry = self.entries.remove(key)?;
        self.bury(entry.due);
        Some(entry.item)
    }

    /// Gives an entry a new due, and a new place behind its equals.
    pub(crate) fn reschedule(&mut self, key: SlabKey, due: Nanos, now: Nanos) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let old = std::mem::replace(&mut entry.due, due);
        self.seq += 1;
        let stamp = stamp_of(self.seq);
        self.entries.set_mark(key, stamp);
        self.bury(old);
        self.catch_up(now);
        self.place(Stub { due, index: key.index, stamp });
        true
    }

    /// When to look again: at most the earliest due, and usually exactly it. [`NEVER`] when empty. O(1).
    pub(crate) fn next_wake(&mut self) -> Nanos {
        self.drop_dead_heads();
        match self.run_head() {
            Some(due) => due,
            None => self.first_slot().map_or(NEVER, |(level, digit)| self.wake_for(level, digit)),
        }
    }

    /// When to wake for a slot: at its earliest entry, or before it if so many must be cascaded that they would be
    /// late.
    fn wake_for(&self, level: usize, digit: usize) -> Nanos {
        let slot = &self.levels[level].slots[digit];
        if level == 0 || slot.stubs.len() < CROWD {
            return slot.min;
        }
        // Rounded up, so that a slot that fills moves this instant a few times and not with every entry: each move
        // wakes whoever sleeps to it.
        let lead = CASCADE_NS * slot.stubs.len().next_power_of_two() as u64;
        slot.min.saturating_sub(lead).max(self.slot_begin(level, digit) << TICK_BITS).min(slot.min)
    }

    /// The same for the entry after the earliest, for whoever stands by to take over.
    pub(crate) fn second_wake(&mut self) -> Nanos {
        self.drop_dead_heads();
        let mut stragglers = self.stragglers.keys().map(|&(due, _)| due);
        let mut firsts = [
            self.run.front().map(|stub| stub.due),
            self.run.get(1).map(|stub| stub.due),
            stragglers.next(),
            stragglers.next(),
        ]
        .map(|due| due.unwrap_or(NEVER));
        firsts.sort_unstable();
        if self.run.len() + self.stragglers.len() > 1 {
            return firsts[1];
        }
        let Some((level, digit)) = self.first_slot() else { return NEVER };
        let slot = &self.levels[level].slots[digit];
        if !self.run_is_empty() || slot.stubs.len().saturating_sub(slot.dead) > 1 {
            return slot.min;
        }
        self.slot_after(level, digit).map_or(NEVER, |(level, digit)| self.levels[level].slots[digit].min)
    }

    /// The earliest entry, exactly.
    pub(crate) fn head(&mut self) -> Option<(SlabKey, Nanos)> {
        self.drop_dead_heads();
        let straggler = self.stragglers.first_key_value().map(|(_, stub)| *stub);
        // On a tie `min_by_key` keeps the first: the run is older.
        let mut first = self.run.front().copied().into_iter().chain(straggler).min_by_key(|stub| stub.due);
        if first.is_none() {
            let (level, digit) = self.first_slot()?;
            let (entries, slot) = (&self.entries, &mut self.levels[level].slots[digit]);
            if slot.min_is_stale {
                slot.retain_live(entries);
            }
            first = slot.stubs.iter().copied().find(|stub| stub.due == slot.min && stub.is_live(entries));
        }
        let stub = first?;
        Some((self.entries.key_at(stub.index)?, stub.due))
    }

    /// How many entries are due at `now` (dead ones may be counted), and when the first after them is.
    pub(crate) fn due_and_next(&mut self, now: Nanos) -> (usize, Nanos) {
        while self.refill(now) {}
        self.drop_dead_heads();
        let in_run = self.run.partition_point(|stub| stub.due <= now);
        let straggling = self.stragglers.range(..=(now, u64::MAX)).count();
        let next = [
            self.run.get(in_run).map(|stub| stub.due),
            self.stragglers.range((now, u64::MAX)..).next().map(|(&(due, _), _)| due),
            self.first_slot().map(|(level, digit)| self.levels[level].slots[digit].min),
        ];
        (in_run + straggling, next.into_iter().flatten().min().unwrap_or(NEVER))
    }

    /// Keys and dues of all entries, in the order they will leave.
    pub(crate) fn entries_in_order(&self) -> Vec<(SlabKey, Nanos)> {
        let slots = self.levels.iter().flat_map(|level| level.slots.iter().flat_map(|slot| &slot.stubs));
        let mut stubs: Vec<Stub> = self
            .run
            .iter()
            .chain(self.stragglers.values())
            .chain(slots)
            .filter(|stub| self.is_live(**stub))
            .copied()
            .collect();
        // Equal dues share a place, where they stand in insertion order already: a stable sort keeps it.
        stubs.sort_by_key(|stub| stub.due);
        stubs.iter().filter_map(|stub| self.entries.key_at(stub.index).map(|key| (key, stub.due))).collect()
    }

    /// Takes everything out, in order.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        let mut items = Vec::with_capacity(self.len());
        while let Some((_, item)) = self.pop(NEVER) {
            items.push(item);
        }
        *self = Self { seq: self.seq, entries: std::mem::replace(&mut self.entries, Slab::new()), ..Self::new() };
        items
    }

    /// Takes out the entries that can never fall due, in order.
    pub(crate) fn take_never(&mut self) -> Vec<T> {
        let keys: Vec<_> = self.entries_in_order().into_iter().filter(|&(_, due)| due == NEVER).collect();
        keys.into_iter().filter_map(|(key, _)| self.cancel(key)).collect()
    }

    /// Moves the cursor up to `now` if no occupied slot begins before it, so that what comes next stands as low as it
    /// can.
    fn catch_up(&mut self, now: Nanos) {
        let tick = now >> TICK_BITS;
        if tick == self.cursor && !self.is_empty() {
            return;
        }
        if self.is_empty() {
            // Nothing depends on the cursor: it may even go back.
            debug_assert!(self.run_dead <= self.run.len() + self.stragglers.len());
            self.run.clear();
            self.stragglers.clear();
            self.run_dead = 0;
            self.clear_slots();
            self.cursor = tick;
        } else if tick > self.cursor {
            let first_begins = self.first_slot().map_or(u64::MAX, |(level, digit)| self.slot_begin(level, digit));
            self.cursor = self.cursor.max(tick.min(first_begins - 1));
        }
    }

    fn clear_slots(&mut self) {
        while let Some((level, digit)) = self.first_slot() {
            self.levels[level].slots[digit].clear();
            self.vacate(level, digit);
        }
    }

    fn place(&mut self, stub: Stub) {
        match place_of(stub.due, self.cursor) {
            Place::Run => self.place_in_run(stub),
            Place::Slot { level, digit } => self.place_in_slot(stub, level, digit),
        }
    }

    fn place_in_run(&mut self, stub: Stub) {
        // On a tie the run goes before the stragglers, so the tail of the run is only for what is later than all of
        // them.
        let after_run = self.run.back().is_none_or(|last| last.due <= stub.due);
        if after_run && self.stragglers.last_key_value().is_none_or(|(&(last, _), _)| last < stub.due) {
            self.run.push_back(stub);
        } else {
            self.stragglers.insert((stub.due, self.seq), stub);
        }
    }

    fn place_in_slot(&mut self, stub: Stub, level: usize, digit: usize) {
        let place = &mut self.levels[level];
        if place.slots.is_empty() {
            place.slots = vec![Slot::default(); SLOTS];
        }
        place.occupied |= 1 << digit;
        self.occupied_levels |= 1 << level;
        place.slots[digit].push(stub);
    }

    /// Moves the earliest slot into the run, cascading as needed, if it begins by `now`. False if there is none.
    fn refill(&mut self, now: Nanos) -> bool {
        let tick = now >> TICK_BITS;
        while let Some((level, digit)) = self.first_slot() {
            let begin = self.slot_begin(level, digit);
            if begin > tick {
                return false;
            }
            let span = 1u64 << (DIGIT_BITS * u32::try_from(level).expect("8 levels"));
            let end = begin + (span - 1);
            self.cursor = if end <= tick { end } else { begin };
            let mut stubs = std::mem::take(&mut self.levels[level].slots[digit].stubs);
            if self.levels[level].slots[digit].dead > 0 {
                stubs.retain(|&stub| self.is_live(stub));
            }
            self.levels[level].slots[digit].clear();
            self.vacate(level, digit);
            if end <= tick {
                self.append_to_run(&mut stubs);
            } else {
                self.cascade(&stubs);
            }
            self.recycle(stubs, level, digit);
            if !self.run.is_empty() {
                return true;
            }
        }
        false
    }

    /// A slot wholly past becomes part of the run without walking down the levels.
    fn append_to_run(&mut self, stubs: &mut [Stub]) {
        debug_assert!(stubs.iter().all(|&stub| self.is_live(stub)));
        stubs.sort_by_key(|stub| stub.due);
        debug_assert!(self.run.back().zip(stubs.first()).is_none_or(|(last, first)| last.due <= first.due));
        self.run.extend(stubs.iter());
    }

    fn cascade(&mut self, stubs: &[Stub]) {
        let mut current = Vec::new();
        for &stub in stubs {
            match place_of(stub.due, self.cursor) {
                Place::Run => current.push(stub),
                Place::Slot { level, digit } => self.place_in_slot(stub, level, digit),
            }
        }
        self.append_to_run(&mut current);
    }

    /// Keeps a small emptied array for its slot's next turn.
    fn recycle(&mut self, mut stubs: Vec<Stub>, level: usize, digit: usize) {
        if stubs.capacity() <= KEPT_STUBS {
            stubs.clear();
            self.levels[level].slots[digit].stubs = stubs;
        }
    }

    /// Accounts for the stub of an entry that left before its time.
    fn bury(&mut self, due: Nanos) {
        match place_of(due, self.cursor) {
            Place::Run => {
                self.run_dead += 1;
                if self.run_dead > SLACK && self.run_dead * 2 > self.run.len() + self.stragglers.len() {
                    self.compact_run();
                }
            }
            Place::Slot { level, digit } => {
                let (entries, slot) = (&self.entries, &mut self.levels[level].slots[digit]);
                slot.bury(due, entries);
                if slot.stubs.is_empty() {
                    self.vacate(level, digit);
                }
            }
        }
    }

    fn compact_run(&mut self) {
        let entries = &self.entries;
        self.run.retain(|stub| stub.is_live(entries));
        self.stragglers.retain(|_, stub| stub.is_live(entries));
        if self.run.capacity() > 4 * self.run.len().max(KEPT_STUBS) {
            self.run.shrink_to(2 * self.run.len());
        }
        self.run_dead = 0;
    }

    fn vacate(&mut self, level: usize, digit: usize) {
        let place = &mut self.levels[level];
        place.occupied &= !(1 << digit);
        if place.occupied == 0 {
            self.occupied_levels &= !(1 << level);
        }
    }

    fn run_is_empty(&self) -> bool {
        self.run.is_empty() && self.stragglers.is_empty()
    }

    fn run_head(&self) -> Option<Nanos> {
        let straggler = self.stragglers.keys().next().map(|&(due, _)| due);
        let first = self.run.front().map(|stub| stub.due);
        straggler.into_iter().chain(first).min()
    }

    /// Takes the first stub of the run, dead or alive, if it is due. On a tie the run goes first: it is older.
    fn pop_run(&mut self, now: Nanos) -> Option<Stub> {
        let run = self.run.front().map_or(NEVER, |stub| stub.due);
        if let Some(straggler) = self.stragglers.first_entry()
            && (self.run.is_empty() || straggler.key().0 < run)
        {
            return (straggler.key().0 <= now).then(|| straggler.remove());
        }
        if run <= now { self.run.pop_front() } else { None }
    }

    fn drop_dead_heads(&mut self) {
        while self.run.front().is_some_and(|&stub| !self.is_live(stub)) {
            self.run.pop_front();
            self.run_dead = self.run_dead.saturating_sub(1);
        }
        while let Some(straggler) = self.stragglers.first_entry()
            && !straggler.get().is_live(&self.entries)
        {
            straggler.remove();
            self.run_dead = self.run_dead.saturating_sub(1);
        }
    }

    fn is_live(&self, stub: Stub) -> bool {
        stub.is_live(&self.entries)
    }

    fn first_slot(&self) -> Option<(usize, usize)> {
        if self.occupied_levels == 0 {
            return None;
        }
        let level = self.occupied_levels.trailing_zeros() as usize;
        Some((level, self.levels[level].occupied.trailing_zeros() as usize))
    }

    fn slot_after(&self, level: usize, digit: usize) -> Option<(usize, usize)> {
        let later = self.levels[level].occupied & (u64::MAX << digit) & !(1 << digit);
        if later != 0 {
            return Some((level, later.trailing_zeros() as usize));
        }
        let higher = self.occupied_levels & (u32::MAX << level) & !(1 << level);
        let level = (higher != 0).then(|| higher.trailing_zeros() as usize)?;
        Some((level, self.levels[level].occupied.trailing_zeros() as usize))
    }

    /// The first tick of a slot: the cursor's digits above the level, the slot's digit, zeros below.
    fn slot_begin(&self, level: usize, digit: usize) -> u64 {
        let shift = DIGIT_BITS * u32::try_from(level).expect("8 levels");
        let above = (self.cursor >> shift) & !(SLOTS as u64 - 1);
        (above | digit as u64) << shift
    }

    #[cfg(test)]
    pub(crate) fn stubs(&self) -> usize {
        let slots = self.levels.iter().flat_map(|level| &level.slots).map(|slot| slot.stubs.len()).sum::<usize>();
        self.run.len() + self.stragglers.len() + slots
    }

    /// Bytes held, for tests that watch memory.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        let slots = self.levels.iter().flat_map(|level| &level.slots).map(|slot| slot.stubs.capacity()).sum::<usize>();
        self.entries.bytes() + (self.run.capacity() + slots) * size_of::<Stub>()
    }
}

impl Stub {
    /// The entry is there, was not rescheduled since, and the slot was not given to another.
    fn is_live<T>(self, entries: &Slab<Entry<T>>) -> bool {
        entries.marked(self.index, self.stamp).is_some_and(|entry| entry.due == self.due)
    }
}

impl Slot {
    fn push(&mut self, stub: Stub) {
        if self.stubs.is_empty() {
            (self.min, self.min_is_stale) = (stub.due, false);
        } else if stub.due < self.min {
            // A stale minimum was at most every live due, so a smaller one is exact again.
            (self.min, self.min_is_stale) = (stub.due, false);
        }
        self.stubs.push(stub);
    }

    fn bury<T>(&mut self, due: Nanos, entries: &Slab<Entry<T>>) {
        self.dead += 1;
        self.min_is_stale |= due == self.min;
        if self.dead == self.stubs.len() {
            self.clear();
        } else if self.dead > SLACK && self.dead * 2 > self.stubs.len() {
            self.retain_live(entries);
        }
    }

    fn retain_live<T>(&mut self, entries: &Slab<Entry<T>>) {
        self.stubs.retain(|stub| stub.is_live(entries));
        if self.stubs.capacity() > 4 * self.stubs.len().max(KEPT_STUBS) {
            self.stubs.shrink_to(2 * self.stubs.len());
        }
        self.dead = 0;
        self.min = self.stubs.iter().map(|stub| stub.due).min().unwrap_or(NEVER);
        self.min_is_stale = false;
    }

    fn clear(&mut self) {
        self.stubs.clear();
        if self.stubs.capacity() > KEPT_STUBS {
            self.stubs = Vec::new();
        }
        (self.dead, self.min_is_stale) = (0, false);
    }
}

fn place_of(due: Nanos, cursor: u64) -> Place {
    let tick = due >> TICK_BITS;
    if tick <= cursor {
        return Place::Run;
    }
    let highest_bit = 63 - (tick ^ cursor).leading_zeros();
    let level = highest_bit / DIGIT_BITS;
    let digit = (tick >> (level * DIGIT_BITS)) & (SLOTS as u64 - 1);
    Place::Slot { level: level as usize, digit: digit as usize }
}

#[allow(clippy::cast_possible_truncation, reason = "a stamp is the low half of the number, by definition")]
fn stamp_of(seq: u64) -> u32 {
    seq as u32
}

#[cfg(test)]
mod tests;
