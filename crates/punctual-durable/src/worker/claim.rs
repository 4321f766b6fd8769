//! What a node asks the store for, and what it does with what it is given: it begins it, or keeps it until a worker is
//! free.

use std::time::Duration;

use punctual::together;

use super::Worker;
use super::alarm::LINGER;
use crate::run::{Run, at_deadline};
use crate::store::{Claim, Claimed, Finish, Record, Verdict};
use crate::time::Timestamp;

/// How long to leave a store alone that has something to give, but not now.
const CONTENDED: Duration = Duration::from_millis(2);

impl Worker {
    /// What to claim, if there is room and hope.
    pub(super) fn ask(&mut self) -> Option<Claim> {
        if !self.is_hungry {
            return None;
        }
        // From here on its places are for what it asks for.
        self.listener.ask(self.is_scarce);
        let kinds = self.open_kinds();
        if kinds.is_empty() {
            return None;
        }
        self.is_hungry = false;
        self.claim_at = None;
        self.has_left = kinds.len() < self.jobs.handlers().kinds().len();
        let (free, spare) = (self.free(), self.reserve.room(self.jobs.clock().now()));
        // Half of the hands stay free for what is ready.
        let ahead =
            if self.jobs.store().foresight().is_zero() { 0 } else { free.saturating_sub(self.workers.div_ceil(2)) };
        Some(Claim {
            node: self.node,
            era: self.jobs.heart().era(),
            max: free + spare,
            kinds: kinds.into(),
            ahead,
            spare,
        })
    }

    /// The kinds it can run at this moment, and how many more of each; none if it has no room.
    pub(super) fn open_kinds(&self) -> Vec<(String, usize)> {
        self.open_kinds_beside(self.listener.places())
    }

    /// The same, if so many jobs are on their way to it.
    fn open_kinds_beside(&self, places: usize) -> Vec<(String, usize)> {
        let max = self.free_beside(places) + self.reserve.room(self.jobs.clock().now());
        if max == 0 || self.stopping.is_some() {
            return Vec::new();
        }
        let room = |kind: &str| {
            let Some(&most) = self.concurrency.get(kind) else { return max };
            let running = self.running.values().filter(|run| run.record.job.kind == kind).count();
            most.saturating_sub(places + running + self.reserve.of_kind(kind))
        };
        let state = self.shared.lock();
        let kinds = self.jobs.handlers().kinds().into_iter().filter(|&kind| !state.paused.contains(kind));
        kinds.map(|kind| (kind.to_owned(), room(kind))).filter(|&(_, room)| room > 0).collect()
    }

    /// How many more jobs it can run.
    pub(super) fn free(&self) -> usize {
        self.free_beside(self.listener.places())
    }

    /// The same, if so many jobs are on their way to it.
    fn free_beside(&self, places: usize) -> usize {
        self.workers.saturating_sub(self.running.len() + places)
    }

    /// When to claim what falls due at an instant. What was left although it could be foreseen is not asked for again
    /// at once.
    pub(super) fn foresee(&self, due: Timestamp) -> Timestamp {
        let store = self.jobs.store();
        let foresight = store.foresight();
        due.before(foresight).max(due.min(store.now().after(foresight / 2)))
    }

    /// Says what it could run at once, if it has nothing to ask the store for: whoever enqueues in this process may
    /// give it that, and nobody has to ask.
    pub(super) fn offer(&self) {
        if self.claiming.is_some() {
            return;
        }
        let is_idle = self.is_far()
            && !self.is_hungry
            && !self.is_contended
            && !self.is_unsure
            && self.rest.is_none()
            && self.jobs.heart().is_joined();
        // What is on its way is counted where it may become more at any moment.
        let kinds = if is_idle { self.open_kinds_beside(0) } else { Vec::new() };
        self.listener.offer(self.jobs.heart().era(), self.free_beside(0), kinds);
    }

    pub(super) fn run(&mut self, claim: &Claim, claimed: Claimed) {
        self.heed_tend_at(claimed.tend_at);
        // Its lease was lost meanwhile: others have, or will have, what it was given.
        if claim.node != self.node {
            return;
        }
        // Others were in the way of everything: they will be done in a moment.
        self.is_contended = claimed.more && claimed.jobs.is_empty() && claim.max > claim.spare;
        let now = self.jobs.clock().now();
        if claim.spare > 0 && claimed.more && claimed.jobs.len() <= claim.max - claim.spare {
            self.reserve.refused(now);
        }
        self.is_scarce = !claimed.more && claimed.jobs.len() < claim.max;
        let again = self.is_contended.then(|| self.jobs.store().now().after(CONTENDED));
        let due_at = claimed.due_at.map(|due| self.foresee(due));
        self.claim_at = [claimed.again_at, due_at, again].into_iter().flatten().min();
        if claimed.jobs.len() >= LINGER.0 && self.is_far() {
            self.linger();
        }
        self.is_hungry |= !self.is_contended && (claimed.more || claimed.jobs.len() == claim.max);
        self.has_left |= claim.kinds.iter().any(|(kind, room)| {
            *room < claim.max && claimed.jobs.iter().filter(|record| record.job.kind == *kind).count() >= *room
        });
        // So that the hands are woken once for all, and not for each.
        let mut jobs = claimed.jobs;
        let waits = jobs.split_off(self.free().min(jobs.len()));
        together(|| jobs.into_iter().for_each(|record| self.start(record)));
        self.reserve.add(waits, now);
    }

    pub(super) fn start(&mut self, record: Record) {
        let (id, fence, deadline) = (record.job.id, record.fence, record.deadline);
        let code = self.jobs.handlers().get(&record.job.kind);
        let run = code.and_then(|code| Run::start(&self.jobs, &self.hands, &self.shared, record, code));
        match run {
            Some(run) => {
                self.jobs.heart().carry(self.node, run.handle());
                self.running.insert((id, fence), run);
            }
            // Its deadline is this instant, or there is no thread for it: the store decides.
            None => {
                let over = deadline.filter(|&deadline| deadline <= self.jobs.store().now());
                let verdict = over.map_or(Verdict::Stopped, at_deadline);
                self.finishes.push(Finish { id, fence, verdict });
            }
        }
    }

    /// So many runs have ended: what waits for workers begins. What waited too long, or is no longer handled here, goes
    /// back.
    pub(super) fn draw_on_reserve(&mut self, ended: usize) {
        let now = self.jobs.clock().now();
        self.reserve.ended(ended, now);
        if self.reserve.is_empty() {
            return;
        }
        let overdue = self.reserve.overdue(now);
        self.give_back(overdue);
        together(|| {
            while self.free() > 0
                && let Some(record) = self.reserve.pop()
            {
                if self.shared.lock().paused.contains(&record.job.kind) {
                    self.give_back(vec![record]);
                } else {
                    self.start(record);
                }
            }
        });
    }

    /// Jobs that were not begun are for others.
    pub(super) fn give_back(&mut self, jobs: Vec<Record>) {
        let release = |record: Record| Finish { id: record.job.id, fence: record.fence, verdict: Verdict::Release };
        self.finishes.extend(jobs.into_iter().map(release));
    }
}
