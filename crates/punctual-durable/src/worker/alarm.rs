//! When the loop wakes by itself: at the next instant at which there is something to do, after a rest, or when it has
//! lingered long enough.
//!
//! # Invariants
//! 1. An instant of the store comes by the store's clock. Only where that is the wall clock of this process does
//!    setting that one move it; a span of time it never moves.
//! 2. Nothing that wakes the loop puts these off: a poll and the end of a rest are instants, and not so long after
//!    whatever happened last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use punctual::JobHandle;

use super::Worker;
use crate::error::StoreError;
use crate::time::Timestamp;

/// How long to leave a store alone that said no; doubles up to the second.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// After so many jobs were given at once by a store over a network, how long to wait for more than the first of them to
/// end: asked for two or three more it would work as hard as for all.
pub(super) const LINGER: (usize, Duration) = (8, Duration::from_millis(1));

impl Worker {
    /// What the instants that have come stood for is asked for now, however long the answer takes. If none has, it is
    /// time to look at everything.
    pub(super) fn heed_alarm(&mut self) {
        let now = self.jobs.store().now();
        let has_come = |at: &mut Option<Timestamp>| at.take_if(|at| *at <= now).is_some();
        let claims = has_come(&mut self.claim_at);
        let tends = has_come(&mut self.tend_at) | has_come(&mut self.due_at);
        let instant = self.jobs.clock().now();
        let polls = self.poll_at().is_some_and(|at| at <= instant);
        if polls {
            self.polled = instant;
        }
        // If it is not answered by then, it is asked again as long after.
        self.rest = self.rest.map(|(rest, until)| (rest, if until <= instant { instant + rest } else { until }));
        self.is_hungry = true;
        if tends || polls || !claims {
            self.want_tend();
        }
    }

    /// Rings at the next instant at which there is something to do.
    pub(super) fn set_alarm(&mut self) {
        let (now, instant) = (self.jobs.store().now(), self.jobs.clock().now());
        let by_store = |at: Instant| now.after(at.saturating_duration_since(instant));
        let (date, span) = if let Some((_, until)) = self.rest {
            (None, Some(by_store(until)))
        } else {
            // Otherwise that instant would come, and come again.
            let prune = self.may_prune().then_some(self.prune_at);
            let overdue = self.reserve.time_left(instant).map(|left| now.after(left));
            let poll = self.poll_at().map(by_store);
            let dates = [self.tend_at, self.due_at, self.claim_at, prune];
            (dates.into_iter().flatten().min(), [poll, overdue].into_iter().flatten().min())
        };
        let first = [date, span].into_iter().flatten().min();
        let Some(at) = first.filter(|&at| at != Timestamp::NEVER) else {
            self.alarm = None;
            return;
        };
        if self.alarm.as_ref().is_some_and(|(set, _)| *set == at) {
            return;
        }
        let (engine, left) = (self.jobs.engine(), at.since(now));
        let is_date = date == Some(at) && self.jobs.store().has_local_clock();
        let plan = if is_date { engine.at(self.jobs.clock().wall() + left) } else { engine.after(left) };
        let shared = self.shared.clone();
        self.alarm = plan.name("alarm").run(move |_| shared.rang()).ok().map(|alarm| (at, alarm));
    }

    /// When to look without having been told, whatever it was told meanwhile.
    fn poll_at(&self) -> Option<Instant> {
        self.jobs.store().poll().map(|period| self.polled + period)
    }

    /// The store says yes again.
    pub(super) fn went_well(&mut self) {
        self.rest = None;
        if self.shared.lock().snapshot.store_error.take().is_some() {
            tracing::info!(target: "punctual", node = %self.node, "the store can be asked again");
        }
    }

    /// The store said no: everything is asked again, later and later.
    pub(super) fn went_wrong(&mut self, error: StoreError) {
        // Said once, and not every second for as long as an outage lasts.
        let is_new = self.shared.lock().snapshot.store_error.as_ref() != Some(&error);
        if is_new {
            tracing::warn!(target: "punctual", node = %self.node, %error, "the store could not be asked");
        } else {
            tracing::debug!(target: "punctual", node = %self.node, %error, "the store still could not be asked");
        }
        let rest = self.rest.map_or(REST.0, |(rest, _)| (rest * 2).min(REST.1));
        self.rest = Some((rest, self.jobs.clock().now() + rest));
        self.is_hungry = true;
        self.want_tend();
        self.shared.lock().snapshot.store_error = Some(error);
    }

    pub(super) fn lingers(&self) -> bool {
        let Some((is_over, _)) = &self.linger else { return false };
        self.finishes.len() < self.running.len() && !is_over.load(Ordering::Acquire)
    }

    pub(super) fn linger(&mut self) {
        let is_over = Arc::new(AtomicBool::new(false));
        let alarm = self.ring_after(LINGER.1, is_over.clone());
        self.linger = alarm.map(|alarm| (is_over, alarm));
    }

    /// Wakes the loop when a time is over, and says that it is.
    pub(super) fn ring_after(&self, time: Duration, is_over: Arc<AtomicBool>) -> Option<JobHandle<()>> {
        let shared = self.shared.clone();
        let alarm = self.jobs.engine().after(time).run(move |_| {
            is_over.store(true, Ordering::Release);
            shared.bell.ring();
        });
        alarm.ok()
    }
}
