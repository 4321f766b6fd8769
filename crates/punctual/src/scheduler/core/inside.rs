//! Jobs that wait inside for other jobs. Each holds its permit meanwhile, and the worker it runs on, so a wait that
//! could never end is refused when it begins.
//!
//! A wait is *stuck* if its target can only go on with a permit or a worker that stuck waits hold. The set of stuck
//! waits is found from above: all waits, less those whose target can go on, again and again until nothing changes. A
//! wait that is accepted leaves that set empty, so waits end as long as nobody lowers a limit under them.
//!
//! Only waits that block count. A future that awaits a handle may be waiting for other things as well, a time-out for
//! instance, and nobody but itself can know; it holds no worker, and a deadline ends it. Timed waits end by themselves.

use std::collections::BTreeMap;

use super::Core;
use crate::clock::NEVER;
use crate::error::Stage;
use crate::scheduler::job::{Record, Turn};
use crate::slab::SlabKey;

/// Who waits, for whom.
pub(super) type Waits = BTreeMap<SlabKey, SlabKey>;

impl Core {
    /// A job begins to wait inside for another. False if that could never end.
    pub(crate) fn begin_wait(&mut self, waiter: SlabKey, target: SlabKey) -> bool {
        self.waits.insert(waiter, target);
        let ends = !self.is_stuck(waiter, target);
        if !ends {
            self.waits.remove(&waiter);
        }
        ends
    }

    /// The wait is over.
    pub(crate) fn end_wait(&mut self, waiter: SlabKey) {
        self.waits.remove(&waiter);
    }

    fn is_stuck(&self, waiter: SlabKey, target: SlabKey) -> bool {
        // Nearly always: somebody is there who could run it.
        if self.can_go_on(target, &self.waits) {
            return false;
        }
        let mut stuck = self.waits.clone();
        loop {
            let free: Vec<_> =
                stuck.iter().filter(|&(_, &target)| self.can_go_on(target, &stuck)).map(|(&key, _)| key).collect();
            if free.is_empty() {
                return stuck.contains_key(&waiter);
            }
            stuck.retain(|key, _| !free.contains(key));
        }
    }

    /// Whether a job can get on, or come to its end, if all of these waits go on for ever.
    fn can_go_on(&self, job: SlabKey, stuck: &Waits) -> bool {
        let Some(record) = self.jobs.get(job) else { return true };
        if record.outcome().is_some() || ends_by_itself(record) {
            return true;
        }
        let held = |is_it: &dyn Fn(&Record) -> bool| {
            stuck.keys().filter(|&&waiter| self.jobs.get(waiter).is_some_and(is_it)).count()
        };
        let has_worker = || held(&|waiter| !waiter.away) < self.workers_max;
        let has_room = stuck.len() < self.running_max;
        let has_permit = || {
            let max = self.tenants.get(record.tenant).and_then(|tenant| tenant.limits.running_max);
            // A limit of 0 is a pause: it ends from outside.
            max.is_none_or(|max| held(&|waiter| waiter.tenant == record.tenant) < max.max(1))
        };
        match (record.stage(), record.turn) {
            (Stage::Running, Turn::Waiting | Turn::Queued) => has_worker(),
            (Stage::Running | Stage::Stopped, _) => !stuck.contains_key(&job),
            (Stage::Scheduled | Stage::Ready, _) => has_room && has_permit() && (record.permit || has_worker()),
        }
    }
}

/// Whether time alone ends the stage it is in.
fn ends_by_itself(record: &Record) -> bool {
    let own = match record.stage() {
        Stage::Scheduled | Stage::Ready if record.due == NEVER => NEVER,
        Stage::Scheduled | Stage::Ready => record.start_within,
        Stage::Running => record.run_timeout,
        Stage::Stopped => 0,
    };
    own.min(record.deadline) != NEVER
}
