//! All that a memory store knows, and how a job in it moves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use punctual::Stage;
use punctual::decide::Fair;

use super::nodes::Node;
use super::tenants::Tenant;
use crate::id::{JobId, NodeId};
use crate::signals::Signals;
use crate::state::{Outcome, State, Step};
use crate::store::{
    CancelCause, Cancelled, Edit, Edited, Finish, Finished, Page, Query, Record, Redriven, Retention, Schedule, Verdict,
};
use crate::time::Timestamp;

/// Everything.
pub(super) struct World {
    pub(super) lease: Option<Duration>,
    pub(super) foresight: Duration,
    pub(super) jobs: BTreeMap<JobId, Kept>,
    /// How many jobs were ever taken in: the next one's arrival.
    pub(super) arrivals: u64,
    /// Who took a unique key last, by tenant and key. Whether it still has it is another question.
    pub(super) keys: BTreeMap<(String, String), JobId>,
    pub(super) tenants: BTreeMap<String, Tenant>,
    /// How many tenants there ever were: the next one's number.
    pub(super) tenant_count: u64,
    pub(super) fair: Fair<u64>,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) schedules: BTreeMap<String, Schedule>,
    /// What fell due and what expired since the last `tend`.
    pub(super) promoted: usize,
    pub(super) expired: usize,
    pub(super) news: News,
}

/// A job, and what only the store has to know about it.
pub(super) struct Kept {
    pub(super) record: Record,
    pub(super) arrival: u64,
    /// The nodes that want it; `None` if it does not depend on that.
    pub(super) interest: Option<BTreeSet<NodeId>>,
    /// Its tenant was erased while it ran: it goes when it stops.
    pub(super) erased: bool,
}

/// What to tell once the mutex is released.
#[derive(Default)]
pub(super) struct News {
    pub(super) work: bool,
    ended: Vec<JobId>,
    stop: Vec<(NodeId, JobId, u64)>,
}

impl News {
    pub(super) fn tell(self, signals: &Signals) {
        if !self.ended.is_empty() {
            signals.ended(self.ended);
        }
        for (node, job, fence) in self.stop {
            signals.stop(node, job, fence);
        }
        if self.work {
            signals.work();
        }
    }
}

impl World {
    pub(super) fn new(lease: Option<Duration>) -> Self {
        Self {
            lease,
            foresight: Duration::ZERO,
            jobs: BTreeMap::new(),
            arrivals: 0,
            keys: BTreeMap::new(),
            tenants: BTreeMap::new(),
            tenant_count: 0,
            fair: Fair::new(),
            nodes: BTreeMap::new(),
            schedules: BTreeMap::new(),
            promoted: 0,
            expired: 0,
            news: News::default(),
        }
    }

    pub(super) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    pub(super) fn record(&self, id: JobId) -> Option<&Record> {
        self.jobs.get(&id).map(|kept| &kept.record)
    }

    /// The jobs for which this holds, by id: a list, so that they can be changed while it is walked.
    pub(super) fn ids(&self, matches: impl Fn(&Record) -> bool) -> Vec<JobId> {
        self.jobs.iter().filter(|(_, kept)| matches(&kept.record)).map(|(&id, _)| id).collect()
    }

    pub(super) fn count(&self, matches: impl Fn(&Record) -> bool) -> usize {
        self.jobs.values().filter(|kept| matches(&kept.record)).count()
    }

    /// What time brings. Each change is dated by the instant it happened, not by when it was noticed.
    pub(super) fn catch_up(&mut self, now: Timestamp) {
        let is_over = |record: &Record| record.expires_at().is_some_and(|at| at <= now);
        let is_due = |record: &Record| record.state == State::SCHEDULED && record.due <= now;
        for id in self.ids(|record| is_over(record) || is_due(record)) {
            let Some(record) = self.record(id) else { continue };
            if is_over(record) {
                self.expire(id);
                self.expired += 1;
            } else {
                let at = record.due.max(record.since);
                self.step(id, Step::FallDue, at);
                self.promoted += 1;
            }
        }
    }

    fn expire(&mut self, id: JobId) {
        let Some(record) = self.jobs.get_mut(&id).map(|kept| &mut kept.record) else { return };
        let Some(at) = record.expires_at() else { return };
        let at = at.max(record.since);
        record.last_error = Some(record.expiry_error());
        self.settle(id, Outcome::Expired, at);
    }

    /// Gives a live job its outcome: at once if it waits; if it runs, its node is told to stop it.
    fn settle(&mut self, id: JobId, outcome: Outcome, at: Timestamp) {
        let Some(record) = self.record(id) else { return };
        if let (Stage::Running, Some(node)) = (record.state.stage, record.node) {
            let fence = record.fence;
            if self.step(id, Step::Settle(outcome), at).is_some() {
                self.news.stop.push((node, id, fence));
            }
        } else {
            self.step(id, Step::End(outcome), at);
        }
    }

    /// The only place where a state changes. `None` if it cannot: nothing happened.
    pub(super) fn step(&mut self, id: JobId, step: Step, at: Timestamp) -> Option<State> {
        let kept = self.jobs.get_mut(&id)?;
        let before = kept.record.state;
        let after = before.after(step)?;
        kept.record.state = after;
        kept.record.since = at;
        if after.stage != Stage::Running {
            kept.record.node = None;
        }
        if before.outcome.is_none() && after.outcome.is_some() {
            self.news.ended.push(id);
        }
        // Something may be claimable: this job, or another for which it has made room. Or a schedule has rested for it.
        let has_stopped = before.stage != Stage::Stopped && after.stage == Stage::Stopped;
        let made_room = before.stage == Stage::Running && after.stage != Stage::Running;
        self.news.work |= after.is_waiting() || made_room || (has_stopped && kept.record.job.schedule.is_some());
        if let (Stage::Stopped, Some(outcome)) = (after.stage, after.outcome) {
            if kept.erased {
                self.forget(id);
            } else {
                let tenant = kept.record.job.tenant.clone();
                *self.tenant_mut(&tenant).ended.entry(outcome).or_default() += 1;
            }
        }
        Some(after)
    }

    /// Takes a job out of the world. Whoever waits for it will look, and find it gone.
    pub(super) fn forget(&mut self, id: JobId) {
        let Some(kept) = self.jobs.remove(&id) else { return };
        if kept.record.state.outcome.is_none() {
            self.news.ended.push(id);
        }
        self.keys.retain(|_, holder| *holder != id);
    }

    /// The job that has this unique key now.
    pub(super) fn key_holder(&self, tenant: &str, key: &str, now: Timestamp) -> Option<&Record> {
        let id = self.keys.get(&(tenant.to_owned(), key.to_owned()))?;
        self.record(*id).filter(|record| holds_its_key(record, now))
    }

    pub(super) fn finish(&mut self, node: NodeId, finish: Finish, now: Timestamp) -> Finished {
        let id = finish.id;
        let Some(kept) = self.jobs.get_mut(&id) else { return Finished::Stale };
        let record = &mut kept.record;
        if record.state.stage != Stage::Running || record.node != Some(node) || record.fence != finish.fence {
            return Finished::Stale;
        }
        let step = if record.state.outcome.is_some() {
            Step::Stop
        } else {
            match finish.verdict {
                Verdict::Succeeded(result) => {
                    record.result = Some(result);
                    Step::End(Outcome::Succeeded)
                }
                Verdict::Failed(error) => {
                    record.last_error = Some(error);
                    Step::End(Outcome::Failed)
                }
                Verdict::Cancelled(reason) => {
                    record.last_error = Some(reason);
                    Step::End(Outcome::Cancelled)
                }
                Verdict::Retry { at, error } => {
                    record.last_error = Some(error);
                    let at = at.from(now);
                    if record.deadline.is_some_and(|deadline| deadline <= at) {
                        Step::End(Outcome::Failed)
                    } else {
                        set_due(record, at);
                        Step::Retry
                    }
                }
                Verdict::Snooze(at) => {
                    record.attempt -= 1;
                    set_due(record, at.from(now));
                    Step::Retry
                }
                Verdict::Release | Verdict::Stopped => {
                    give_back(record, now);
                    Step::Retry
                }
            }
        };
        let state = self.step(id, step, now).unwrap_or(State::RUNNING);
        self.catch_up(now);
        // What falls due at once is ready by now; what is gone with its tenant is told as it went.
        Finished::Done(self.record(id).map_or(state, |record| record.state))
    }

    pub(super) fn cancel(&mut self, id: JobId, cause: CancelCause, now: Timestamp) -> Cancelled {
        let Some(record) = self.jobs.get_mut(&id).map(|kept| &mut kept.record) else { return Cancelled::Unknown };
        if let Some(outcome) = record.state.outcome {
            return Cancelled::Ended(outcome);
        }
        let stage = record.state.stage;
        record.last_error = Some(cause.to_string());
        self.settle(id, Outcome::Cancelled, now);
        Cancelled::Now(stage)
    }

    pub(super) fn edit(&mut self, id: JobId, edit: Edit, now: Timestamp) -> Edited {
        let Some(record) = self.jobs.get_mut(&id).map(|kept| &mut kept.record) else { return Edited::Unknown };
        if record.state.after(Step::Reschedule).is_none() {
            return Edited::NotWaiting(record.state);
        }
        if let Some(due) = edit.due {
            set_due(record, due.from(now));
        }
        if let Some(priority) = edit.priority {
            record.job.priority = priority;
        }
        if let Some(payload) = edit.payload {
            record.job.payload = payload;
        }
        if let Some(deadline) = edit.deadline {
            record.deadline = Some(deadline.from(now));
        }
        if let Some(max_attempts) = edit.max_attempts {
            record.job.max_attempts = max_attempts;
        }
        self.step(id, Step::Reschedule, now);
        Edited::Done
    }

    pub(super) fn redrive(&mut self, id: JobId, now: Timestamp) -> Redriven {
        let Some(record) = self.record(id) else { return Redriven::Unknown };
        if record.state.after(Step::Redrive).is_none() {
            return Redriven::NotEnded(record.state);
        }
        if let Some(unique) = record.job.unique.clone() {
            let tenant = record.job.tenant.clone();
            if let Some(holder) = self.key_holder(&tenant, &unique.key, now).filter(|holder| holder.job.id != id) {
                return Redriven::Conflict(holder.job.id);
            }
            self.keys.insert((tenant, unique.key), id);
        }
        if let Some(kept) = self.jobs.get_mut(&id) {
            let record = &mut kept.record;
            (record.attempt, record.crashes, record.result) = (0, 0, None);
            record.deadline = record.deadline.filter(|&deadline| deadline > now);
            set_due(record, now);
            // The person who redrives it wants it, and holds no interest that could end.
            kept.interest = None;
        }
        self.step(id, Step::Redrive, now);
        Redriven::Done
    }

    pub(super) fn query(&self, query: &Query) -> Page {
        let mut matching = self.jobs.values().map(|kept| &kept.record).filter(|record| query.matches(record));
        let jobs: Vec<Record> = matching.by_ref().take(query.page_size()).cloned().collect();
        let next = matching.next().and(jobs.last()).map(|last| last.job.id);
        Page { jobs, next }
    }

    pub(super) fn prune(&mut self, retention: Retention, max: usize, now: Timestamp) -> usize {
        let mut old = self.ids(|record| match record.state.outcome {
            // A key that its period still holds would be forgotten with it.
            Some(outcome) if record.state.stage == Stage::Stopped && !holds_its_key(record, now) => {
                record.since.after(retention.of(outcome)) <= now
            }
            _ => false,
        });
        old.sort_by_key(|&id| self.record(id).map(|record| (record.since, id)));
        old.truncate(max);
        old.iter().for_each(|&id| self.forget(id));
        old.len()
    }

    pub(super) fn purge(&mut self, ids: &[JobId]) -> usize {
        let ended = self.ids(|record| record.state.stage == Stage::Stopped && ids.contains(&record.job.id));
        ended.iter().for_each(|&id| self.forget(id));
        ended.len()
    }
}

/// Whether a job keeps others from its unique key, provided that nobody took it since.
fn holds_its_key(record: &Record, now: Timestamp) -> bool {
    let Some(unique) = &record.job.unique else { return false };
    record.state.stage != Stage::Stopped || unique.period.is_some_and(|period| now < record.enqueued_at.after(period))
}

pub(super) fn set_due(record: &mut Record, due: Timestamp) {
    record.due = due;
    record.start_by = record.job.start_within.map(|within| due.after(within));
}

/// A run that does not count: due as it was, with the whole time to start again.
pub(super) fn give_back(record: &mut Record, now: Timestamp) {
    record.attempt -= 1;
    record.start_by = record.job.start_within.map(|within| now.max(record.due).after(within));
}
