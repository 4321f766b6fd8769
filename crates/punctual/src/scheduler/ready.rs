//! Whose turn is next: a first-in first-out list through the records, so that leaving it takes constant time.

use super::job::Record;
use crate::slab::{Slab, SlabKey};

#[derive(Debug, Default)]
pub(crate) struct Ready {
    first: Option<SlabKey>,
    last: Option<SlabKey>,
}

impl Ready {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn first(&self) -> Option<SlabKey> {
        self.first
    }

    pub(crate) fn push(&mut self, jobs: &mut Slab<Record>, key: SlabKey) {
        let before = self.last.replace(key);
        match before.and_then(|before| jobs.get_mut(before)) {
            Some(record) => record.behind = Some(key),
            None => self.first = Some(key),
        }
        if let Some(record) = jobs.get_mut(key) {
            (record.before, record.behind) = (before, None);
        }
    }

    pub(crate) fn pop(&mut self, jobs: &mut Slab<Record>) -> Option<SlabKey> {
        let key = self.first?;
        self.unlink(jobs, key);
        Some(key)
    }

    /// Takes a job out, wherever it stands.
    pub(crate) fn unlink(&mut self, jobs: &mut Slab<Record>, key: SlabKey) {
        let Some(record) = jobs.get_mut(key) else { return };
        let (before, behind) = (record.before.take(), record.behind.take());
        match before.and_then(|before| jobs.get_mut(before)) {
            Some(record) => record.behind = behind,
            None => self.first = behind,
        }
        match behind.and_then(|behind| jobs.get_mut(behind)) {
            Some(record) => record.before = before,
            None => self.last = before,
        }
    }
}
