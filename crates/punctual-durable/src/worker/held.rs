//! Ends of runs that somebody's open transaction keeps from being written down: it has their jobs, or keys that they
//! hold.
//!
//! # Invariants
//! 1. They rest, and are told again by themselves: so no other end waits with them.
//! 2. Finding out who is held takes time in which no other end is told. They rest for several times as long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use punctual::JobHandle;

use super::Worker;
use crate::id::JobId;
use crate::store::Finish;

/// How long they rest: at least, and so many times what it took to find them.
const REST: (Duration, u32) = (Duration::from_millis(250), 4);

#[derive(Default)]
pub(super) struct Held {
    ends: Vec<Finish>,
    /// Whether they have rested, and who says so.
    rest: Option<(Arc<AtomicBool>, JobHandle<()>)>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Finish> {
        self.ends.iter()
    }

    /// Whether it is time to tell them again.
    pub(super) fn have_rested(&self) -> bool {
        !self.is_empty() && self.rest.as_ref().is_none_or(|(is_over, _)| is_over.load(Ordering::Acquire))
    }

    pub(super) fn take(&mut self) -> Vec<Finish> {
        self.rest = None;
        std::mem::take(&mut self.ends)
    }
}

impl Worker {
    /// These were told since then, and not written down.
    pub(super) fn hold(&mut self, ends: impl IntoIterator<Item = Finish>, since: Instant) {
        self.held.ends.extend(ends);
        let took = self.jobs.clock().now().saturating_duration_since(since);
        let is_over = Arc::new(AtomicBool::new(false));
        let alarm = self.ring_after(REST.0.max(took * REST.1), is_over.clone());
        self.held.rest = alarm.map(|alarm| (is_over, alarm));
    }

    /// What is told next, if there is anything.
    pub(super) fn next_finishes(&mut self) -> Option<Vec<Finish>> {
        if self.held.have_rested() {
            return Some(self.held.take());
        }
        (!self.finishes.is_empty()).then(|| std::mem::take(&mut self.finishes))
    }

    pub(super) fn has_finishes(&self) -> bool {
        self.held.have_rested() || !self.finishes.is_empty()
    }

    /// Whether the end of a run is to be told, or was told and is not answered yet.
    pub(super) fn has_ended(&self, id: JobId, fence: u64) -> bool {
        let finishing = self.finishing.iter().flat_map(|asked| &asked.0.ends);
        let mut ends = self.finishes.iter().chain(self.held.iter()).chain(finishing);
        ends.any(|finish| (finish.id, finish.fence) == (id, fence))
    }
}
