//! First-in first-out lists through the records, so that leaving one takes constant time wherever a job stands in it.
//!
//! A record is in at most two: the one for its turn (to be started, or to be polled), and the one of all that its
//! tenant has.

use super::job::Record;
use crate::slab::{Slab, SlabKey};

/// The list of a job's turn.
pub(crate) const TURN: usize = 0;
/// The list of all jobs of a tenant.
pub(crate) const OWN: usize = 1;

/// A record's neighbours in one list.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Links {
    before: Option<SlabKey>,
    behind: Option<SlabKey>,
}

/// A list through one of the links that each record has.
#[derive(Debug, Default)]
pub(crate) struct List<const LINK: usize> {
    first: Option<SlabKey>,
    last: Option<SlabKey>,
}

impl<const LINK: usize> List<LINK> {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn first(&self) -> Option<SlabKey> {
        self.first
    }

    pub(crate) fn push(&mut self, jobs: &mut Slab<Record>, key: SlabKey) {
        let before = self.last.replace(key);
        match before.and_then(|before| jobs.get_mut(before)) {
            Some(record) => record.links[LINK].behind = Some(key),
            None => self.first = Some(key),
        }
        if let Some(record) = jobs.get_mut(key) {
            record.links[LINK] = Links { before, behind: None };
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
        let Links { before, behind } = std::mem::take(&mut record.links[LINK]);
        match before.and_then(|before| jobs.get_mut(before)) {
            Some(record) => record.links[LINK].behind = behind,
            None => self.first = behind,
        }
        match behind.and_then(|behind| jobs.get_mut(behind)) {
            Some(record) => record.links[LINK].before = before,
            None => self.last = before,
        }
    }

    /// From the first to the last.
    pub(crate) fn iter<'a>(
        &self,
        jobs: &'a Slab<Record>,
    ) -> impl Iterator<Item = (SlabKey, &'a Record)> + use<'a, LINK> {
        let mut next = self.first;
        std::iter::from_fn(move || {
            let key = next?;
            let record = jobs.get(key)?;
            next = record.links[LINK].behind;
            Some((key, record))
        })
    }
}
