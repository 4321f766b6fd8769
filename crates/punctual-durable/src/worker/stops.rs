//! Which runs are to stop because their outcome was settled elsewhere.
//!
//! # Invariants
//! 1. A stop may overtake the answer that gives this node the job: in one file both may be in one commit, and the stop
//!    is told first. So it is kept for as long as such an answer is under way, and heeded when that has come. Otherwise
//!    it is for a run that has ended.

use super::Worker;
use crate::id::JobId;
use crate::run::Stop;
use crate::store::{Finish, Verdict};

impl Worker {
    pub(super) fn heed_stops(&mut self, stops: Vec<(JobId, u64)>) {
        for (id, fence) in stops {
            if let Some(run) = self.running.get_mut(&(id, fence)) {
                run.stop(Stop::Settled);
            } else if self.reserve.remove(id, fence) {
                self.finishes.push(Finish { id, fence, verdict: Verdict::Stopped });
            } else if self.may_be_given_more() {
                self.early_stops.push((id, fence));
            }
        }
    }

    /// Whether it may hear in a moment of jobs that it was given before now.
    fn may_be_given_more(&self) -> bool {
        self.claiming.is_some() || self.answers.claimed.is_some() || self.listener.places() > 0
    }
}
