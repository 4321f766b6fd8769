//! What time brings: when the store is tended, and when ended jobs are forgotten.

use std::time::Duration;

use super::Worker;
use crate::error::StoreError;
use crate::store::Tended;
use crate::time::Timestamp;

/// How many ended jobs are forgotten in one go, so that nobody waits long for it.
const PRUNE_MAX: usize = 1_000;

/// How often to look for jobs to forget.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// How long to wait when that has failed.
const PRUNE_AGAIN: Duration = Duration::from_secs(60);

/// Whether time is to be looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tend {
    Not,
    /// Unless the claim that is under way says that there is no need to.
    WithClaim,
    /// The same of the next claim; now if none is to be made.
    AfterClaim,
    Now,
}

impl Worker {
    /// Time is to be looked after. Where the store is asked over a network, a claim goes first: what is due is on its
    /// way with one answer.
    pub(super) fn want_tend(&mut self) {
        if self.tend != Tend::Now {
            self.tend = if self.is_far() { Tend::AfterClaim } else { Tend::Now };
        }
    }

    /// A claim is back. What was wanted before it began, it may have answered.
    pub(super) fn heed_tend_at(&mut self, tend_at: Option<Timestamp>) {
        let now = self.jobs.store().now();
        let is_overdue = now >= self.tend_by;
        match self.tend {
            Tend::WithClaim => {
                let tend_at = self.firing.at_the_latest(tend_at);
                let is_enough = tend_at.is_some_and(|at| at > now) && !is_overdue;
                self.tend = if is_enough { Tend::Not } else { Tend::Now };
                self.tend_at = tend_at;
            }
            // It was wanted again since that claim began, as it may be with each of them.
            Tend::AfterClaim if is_overdue => self.tend = Tend::Now,
            Tend::AfterClaim | Tend::Not | Tend::Now => {}
        }
    }

    /// Looks after time, if this is the moment: a claim that is under way may be waited for.
    pub(super) fn begin_tending(&mut self) {
        if self.should_tend() {
            let store = self.jobs.store();
            self.tend = Tend::Not;
            self.due_at = None;
            self.tend_by = store.now().after(store.poll().unwrap_or_default());
            self.tending = Some(((), self.jobs.store().tend()));
        }
    }

    pub(super) fn should_tend(&self) -> bool {
        self.tending.is_none()
            && self.firing.is_over()
            && match self.tend {
                Tend::Not | Tend::WithClaim => false,
                Tend::AfterClaim => self.claiming.is_none(),
                Tend::Now => true,
            }
    }

    pub(super) fn tended(&mut self, tended: Tended) {
        self.is_hungry |= tended.promoted > 0 || tended.lost > 0;
        self.will_fire(tended.schedules);
        self.tend_at = self.firing.at_the_latest(tended.next);
    }

    /// Has ended jobs forgotten, if it is time to.
    pub(super) fn begin_pruning(&mut self) {
        if self.pruning.is_none() && self.may_prune() && self.prune_from <= self.jobs.store().now() {
            self.prune_at = Timestamp::NEVER;
            self.pruning = Some(((), self.jobs.store().prune(self.jobs.retention(), PRUNE_MAX)));
        }
    }

    pub(super) fn may_prune(&self) -> bool {
        self.stopping.is_none() && self.jobs.heart().is_joined()
    }

    pub(super) fn pruned(&mut self, pruned: usize) {
        let now = self.jobs.store().now();
        let shortest = crate::state::Outcome::ALL.map(|outcome| self.jobs.retention().of(outcome)).into_iter().min();
        let pause = shortest.unwrap_or(PRUNE_EVERY).clamp(Duration::from_secs(1), PRUNE_EVERY);
        let is_all = pruned < PRUNE_MAX;
        (self.prune_from, self.prune_at) = if is_all { (now.after(pause / 2), now.after(pause)) } else { (now, now) };
        if !is_all {
            self.want_tend();
        }
    }

    /// Nobody waits for it, so it is tried again after a while, and meanwhile the node does what else there is to do.
    pub(super) fn did_not_prune(&mut self, error: &StoreError) {
        tracing::warn!(target: "punctual", %error, "ended jobs could not be forgotten");
        let again = self.jobs.store().now().after(PRUNE_AGAIN);
        (self.prune_from, self.prune_at) = (again, again);
    }
}
