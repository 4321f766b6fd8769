//! Where values live that others point at by number: a chunked slab with generational keys.
//!
//! # Invariants
//! 1. A key finds the value it was made for, or nothing: a slot's generation rises whenever its value leaves, and a
//!    slot whose generation can rise no further is retired. Freed chunks leave a floor that later generations start
//!    above.
//! 2. No value ever moves once a chunk is full-sized, and growing never copies more than one small chunk: this runs
//!    under a lock.
//!
//! Why chunks and not one `Vec`: doubling ten million entries copies hundreds of megabytes while every thread waits.

/// Slots per chunk. The first chunk grows to this size by doubling, so that a small slab stays small.
const CHUNK: usize = 4096;
/// Chunks kept when the slab falls empty; the rest is given back.
const KEPT_CHUNKS: usize = 4;
const NO_SLOT: u32 = u32::MAX;

/// Names one value, for good: never reused for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlabKey {
    pub(crate) index: u32,
    generation: u32,
}

impl SlabKey {
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    #[allow(clippy::cast_possible_truncation, reason = "each half of the bits is one number")]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    first_free: u32,
    len: usize,
    /// Generations of new slots start here: above all that freed chunks ever gave out.
    generation_floor: u32,
    generation_max: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    /// Vacant: the next vacant slot. Occupied: whatever the owner marks it with.
    mark: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), first_free: NO_SLOT, len: 0, generation_floor: 0, generation_max: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// # Panics
    /// When four billion values are stored: memory ends long before.
    pub(crate) fn insert(&mut self, mark: u32, value: T) -> SlabKey {
        self.len += 1;
        if self.first_free == NO_SLOT {
            return self.grow(mark, value);
        }
        let index = self.first_free;
        let slot = &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK];
        self.first_free = slot.mark;
        slot.mark = mark;
        slot.value = Some(value);
        SlabKey { index, generation: slot.generation }
    }

    fn grow(&mut self, mark: u32, value: T) -> SlabKey {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            let capacity = if self.chunks.is_empty() { 16 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        let full_before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("a chunk was pushed above");
        let index = u32::try_from(full_before + chunk.len()).expect("fewer than four billion entries fit in memory");
        assert!(index < NO_SLOT, "fewer than four billion entries fit in memory");
        let generation = self.generation_floor;
        chunk.push(Slot { generation, mark, value: Some(value) });
        SlabKey { index, generation }
    }

    pub(crate) fn get(&self, key: SlabKey) -> Option<&T> {
        let slot = self.slot(key.index)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        let slot = self.chunks.get_mut(key.index as usize / CHUNK)?.get_mut(key.index as usize % CHUNK)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// The value at an index, if its mark is the one given.
    pub(crate) fn marked(&self, index: u32, mark: u32) -> Option<&T> {
        let slot = self.slot(index)?;
        if slot.mark == mark { slot.value.as_ref() } else { None }
    }

    /// Marks the value anew.
    pub(crate) fn set_mark(&mut self, key: SlabKey, mark: u32) {
        debug_assert!(self.get(key).is_some(), "only an occupied slot is marked");
        self.chunks[key.index as usize / CHUNK][key.index as usize % CHUNK].mark = mark;
    }

    pub(crate) fn key_at(&self, index: u32) -> Option<SlabKey> {
        let slot = self.slot(index)?;
        slot.value.as_ref().map(|_| SlabKey { index, generation: slot.generation })
    }

    pub(crate) fn remove(&mut self, key: SlabKey) -> Option<T> {
        let slot = self.chunks.get_mut(key.index as usize / CHUNK)?.get_mut(key.index as usize % CHUNK)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        self.vacate(key.index);
        Some(value)
    }

    /// Takes the value at an index, if its mark is the one given and it is the one meant.
    pub(crate) fn remove_marked(&mut self, index: u32, mark: u32, is_it: impl FnOnce(&T) -> bool) -> Option<T> {
        let slot = self.chunks.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)?;
        if slot.mark != mark {
            return None;
        }
        let value = slot.value.take_if(|value| is_it(value))?;
        self.vacate(index);
        Some(value)
    }

    #[inline]
    fn vacate(&mut self, index: u32) {
        let slot = &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK];
        self.len -= 1;
        // A slot at the last generation is retired: reusing it could give an old key a new meaning.
        if slot.generation < u32::MAX - 1 {
            slot.generation += 1;
            slot.mark = self.first_free;
            self.first_free = index;
        } else {
            slot.generation = u32::MAX;
        }
        self.generation_max = self.generation_max.max(slot.generation);
        if self.len == 0 && self.chunks.len() > KEPT_CHUNKS {
            self.give_back();
        }
    }

    /// Frees everything of a slab that has fallen empty.
    #[cold]
    fn give_back(&mut self) {
        self.generation_floor = self.generation_max;
        self.first_free = NO_SLOT;
        self.chunks = Vec::new();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlabKey, &T)> {
        self.chunks.iter().flatten().zip(0u32..).filter_map(|(slot, index)| {
            slot.value.as_ref().map(|value| (SlabKey { index, generation: slot.generation }, value))
        })
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)
    }

    /// Bytes held, for tests that watch memory.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.capacity() * size_of::<Slot<T>>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_its_value_harmlessly() {
        let mut slab = Slab::new();
        let old = slab.insert(0, "old");
        assert_eq!(slab.remove(old), Some("old"));
        let new = slab.insert(0, "new");
        assert_eq!(new.index, old.index, "the slot is reused");
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(new), Some(&"new"));
    }

    #[test]
    fn a_slot_at_its_last_generation_is_retired() {
        let mut slab = Slab::new();
        let key = slab.insert(0, 1);
        slab.chunks[0][0].generation = u32::MAX - 1;
        let last = SlabKey { index: key.index, generation: u32::MAX - 1 };
        assert_eq!(slab.remove(last), Some(1));
        assert_ne!(slab.insert(0, 2).index, key.index);
    }

    #[test]
    fn memory_returns_when_the_slab_falls_empty_and_old_keys_stay_dead() {
        let mut slab = Slab::new();
        let keys: Vec<_> = (0..100_000).map(|n| slab.insert(0, n)).collect();
        assert!(slab.bytes() > 1_000_000);
        assert!(keys.iter().all(|&key| slab.remove(key).is_some()));
        assert_eq!(slab.bytes(), 0);
        let fresh: Vec<_> = (0..100_000).map(|n| slab.insert(0, n)).collect();
        assert!(keys.iter().all(|&key| slab.get(key).is_none()));
        assert!(fresh.iter().all(|&key| slab.get(key).is_some()));
    }
}
