//! Who is there: leases, the runs and the interest that end with them, and what time brings.

use super::world::{World, give_back};
use crate::id::{JobId, NodeId};
use crate::state::{Outcome, State, Step};
use crate::store::{Beat, CancelCause, NodeRecord, Pulse, Record, Schedule, Tended, crash_error};
use crate::time::Timestamp;

pub(super) struct Node {
    pub(super) beat: Beat,
    expires_at: Option<Timestamp>,
}

impl Node {
    /// Whether its lease has ended, whether or not anybody has noticed.
    pub(super) fn is_dead(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

impl World {
    pub(super) fn join(&mut self, mut beat: Beat, now: Timestamp) {
        // An era that is over does not come back, whatever is heard late.
        beat.era = self.nodes.get(&beat.node).map_or(0, |known| known.beat.era).max(beat.era);
        let expires_at = self.lease.map(|lease| now.after(lease));
        self.nodes.insert(beat.node, Node { beat, expires_at });
        // Whoever sleeps until the next instant to tend has a new one to know of.
        self.news.work = true;
    }

    pub(super) fn heartbeat(&mut self, mut beat: Beat, now: Timestamp) -> Pulse {
        let node = beat.node;
        let Some(known) = self.nodes.get(&node) else {
            return Pulse { known: false, running: Vec::new(), stop: Vec::new() };
        };
        beat.era = beat.era.max(known.beat.era);
        let expires_at = self.lease.map(|lease| now.after(lease));
        self.nodes.insert(node, Node { beat, expires_at });
        let here = self.jobs.values().map(|kept| &kept.record).filter(|record| record.node == Some(node));
        let named = |record: &Record| (record.job.id, record.fence);
        let running = here.clone().map(named).collect();
        Pulse { known: true, running, stop: here.filter(|record| record.state.outcome.is_some()).map(named).collect() }
    }

    pub(super) fn leave(&mut self, node: NodeId, now: Timestamp) {
        if self.nodes.remove(&node).is_none() {
            return;
        }
        for id in self.ids(|record| record.node == Some(node)) {
            if let Some(kept) = self.jobs.get_mut(&id).filter(|kept| kept.record.state == State::RUNNING) {
                give_back(&mut kept.record, now);
            }
            self.step(id, Step::Lose, now);
        }
        self.end_interest(node, now);
    }

    pub(super) fn tend(&mut self, now: Timestamp) -> Tended {
        let dead = self.nodes.iter().filter(|(_, node)| node.is_dead(now));
        let dead: Vec<NodeId> = dead.map(|(&id, _)| id).collect();
        let lost = dead.into_iter().map(|node| self.reap(node, now)).sum();
        self.catch_up(now);
        let due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        let awake =
            self.schedules.values().filter(|&schedule| !schedule.paused && self.live_job_of(schedule).is_none());
        let schedules: Vec<Schedule> = awake.filter(|schedule| due(schedule.next)).cloned().collect();
        Tended {
            promoted: std::mem::take(&mut self.promoted),
            expired: std::mem::take(&mut self.expired),
            lost,
            schedules,
            next: self.next_instant(now),
        }
    }

    /// The next instant at which time brings something. Ticks that have come are given out, not waited for.
    fn next_instant(&self, now: Timestamp) -> Option<Timestamp> {
        let records = || self.jobs.values().map(|kept| &kept.record);
        let dues = records().filter(|record| record.state == State::SCHEDULED).map(|record| record.due);
        let expiries = records().filter_map(crate::store::Record::expires_at);
        let leases = self.nodes.values().filter_map(|node| node.expires_at);
        let ticks = self.schedules.values().filter(|schedule| !schedule.paused).filter_map(|schedule| schedule.next);
        dues.chain(expiries).chain(leases).chain(ticks).filter(|&at| at > now).min()
    }

    /// A node is dead: its runs are lost, its interest ends. Answers how many runs it was.
    fn reap(&mut self, node: NodeId, now: Timestamp) -> usize {
        self.nodes.remove(&node);
        let runs = self.ids(|record| record.node == Some(node));
        runs.iter().for_each(|&id| self.lose(id, now));
        self.end_interest(node, now);
        runs.len()
    }

    fn lose(&mut self, id: JobId, now: Timestamp) {
        let Some(record) = self.jobs.get_mut(&id).map(|kept| &mut kept.record) else { return };
        if record.state.outcome.is_none() {
            record.crashes += 1;
            if record.crashes >= record.job.max_crashes {
                record.attempt -= 1;
                record.last_error = Some(crash_error(record.crashes));
                self.step(id, Step::End(Outcome::Failed), now);
                return;
            }
            give_back(record, now);
        }
        self.step(id, Step::Lose, now);
    }

    pub(super) fn want(&mut self, id: JobId, node: NodeId) -> bool {
        let known = self.nodes.contains_key(&node);
        match self.jobs.get_mut(&id) {
            Some(kept) if kept.record.state.outcome.is_none() => match &mut kept.interest {
                Some(interest) if known => {
                    interest.insert(node);
                    true
                }
                Some(_) => false,
                None => true,
            },
            _ => false,
        }
    }

    pub(super) fn unwant(&mut self, id: JobId, node: NodeId, now: Timestamp) {
        if let Some(interest) = self.jobs.get_mut(&id).and_then(|kept| kept.interest.as_mut()) {
            interest.remove(&node);
            self.cancel_unwanted(id, now);
        }
    }

    fn end_interest(&mut self, node: NodeId, now: Timestamp) {
        for id in self.ids(|record| record.state.outcome.is_none()) {
            self.unwant(id, node, now);
        }
    }

    /// Cancels a job that lives only while it is wanted, and is not.
    pub(super) fn cancel_unwanted(&mut self, id: JobId, now: Timestamp) {
        let interest = self.jobs.get(&id).and_then(|kept| kept.interest.as_ref());
        if interest.is_some_and(std::collections::BTreeSet::is_empty) {
            self.cancel(id, CancelCause::Unwanted, now);
        }
    }

    pub(super) fn node_records(&self) -> Vec<NodeRecord> {
        let record = |(&id, node): (&NodeId, &Node)| NodeRecord {
            beat: node.beat.clone(),
            expires_at: node.expires_at,
            running: self.count(|record| record.node == Some(id)),
            clock_offset_us: 0,
        };
        self.nodes.iter().map(record).collect()
    }
}
