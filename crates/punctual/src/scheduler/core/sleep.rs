//! Who sleeps: which worker is armed for the earliest alarm, and who is woken when there is work.
//!
//! # Invariants
//! 1. Before the lock is released, somebody is armed for the earliest alarm: an idle worker, or the watch.
//! 2. While more turns wait than awake workers will take, an idle worker has been roused or a thread asked for.

use std::sync::Arc;

use super::Core;
use crate::clock::{Clock, NEVER, Nanos, Parker};
use crate::queue::waiters::{Standby, WaiterId};
use crate::scheduler::after::After;

impl Core {
    /// One turn more than awake workers will take: wakes an idle worker, or asks for a new one.
    pub(super) fn rouse(&mut self, after: &mut After) {
        if let Some(parker) = self.waiters.rouse_one() {
            after.wake.parkers.push(parker);
        } else if self.workers < self.workers_max {
            self.workers += 1;
            after.start_workers += 1;
        }
    }

    /// The same, if there is a turn left at all. Permits need nobody.
    pub(crate) fn rouse_for_turns(&mut self, clock: &Clock, after: &mut After) {
        self.grant(clock, after);
        if self.has_turns() {
            self.rouse(after);
        }
    }

    /// Makes sure that somebody is armed for the earliest alarm: an idle worker, else the watch.
    pub(crate) fn cover(&mut self, after: &mut After) {
        let head = self.alarms.next_wake();
        // By far the most calls end here.
        if self.waiters.covers(head) {
            return;
        }
        after.wake.merge(self.waiters.cover(head));
        if !self.waiters.has_leader() && head < NEVER && self.watch_runs() {
            after.wake.merge(self.waiters.arm_standby(head));
        }
    }

    fn watch_runs(&self) -> bool {
        matches!(self.waiters.standby, Standby::Armed { .. })
    }

    /// Whether this parker is the watch's: a start that failed half way may have left another.
    pub(crate) fn is_watch(&self, parker: &Arc<Parker>) -> bool {
        matches!(&self.waiters.standby, Standby::Armed { parker: watch, .. } if Arc::ptr_eq(watch, parker))
    }

    fn has_turns(&self) -> bool {
        !self.polls.is_empty() || self.can_start()
    }

    /// Whether there is a job to start, and room for it to run.
    pub(super) fn can_start(&self) -> bool {
        self.gauges.running < self.running_max && !self.tenants.none_can_run()
    }

    /// Closed, and no alarm matters any more.
    pub(crate) fn is_over(&self) -> bool {
        self.phase.is_closed() && self.gauges.running == self.gauges.zombies
    }

    /// Closed, and nothing is left to be started or polled.
    pub(crate) fn needs_no_workers(&self) -> bool {
        self.phase.is_closed() && !self.has_turns() && self.gauges.futures == 0
    }

    /// A worker has nothing to do: says until when to sleep.
    pub(crate) fn lie_down(&mut self, parker: &Arc<Parker>, after: &mut After) -> (WaiterId, Nanos) {
        let head = self.alarms.next_wake();
        let Self { alarms, waiters, .. } = self;
        let (id, until, wake) = waiters.lie_down(parker, head, || alarms.second_wake(), NEVER);
        after.wake.merge(wake);
        (id, until)
    }

    pub(crate) fn get_up(&mut self, id: WaiterId) {
        self.waiters.get_up(id);
    }

    /// The watch has looked: says until when it sleeps. It stands in for the leader, or else for its deputy, so that a
    /// leader that leaves need not wake it.
    pub(crate) fn arm_watch(&mut self, parker: &Arc<Parker>) -> Nanos {
        let until = match (self.waiters.has_leader(), self.waiters.has_deputy()) {
            (false, _) => self.alarms.next_wake(),
            (true, false) => self.alarms.second_wake(),
            (true, true) => NEVER,
        };
        self.waiters.standby = Standby::Armed { parker: Arc::clone(parker), until };
        until
    }

    pub(crate) fn watch_ends(&mut self) {
        self.waiters.standby = Standby::Absent;
    }

    pub(crate) fn rouse_all(&mut self, after: &mut After) {
        after.wake.merge(self.waiters.rouse_all());
    }
}
