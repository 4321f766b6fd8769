//! Who is next, and why not this one?

use std::collections::BTreeMap;

use punctual::Stage;

use super::nodes::Node;
use super::tenants::{Standing, nanos, timestamp};
use super::world::{Kept, World};
use crate::id::{JobId, NodeId};
use crate::state::{State, Step};
use crate::store::{Claim, Claimed, Explanation, Gate, Record, TenantPolicy};
use crate::time::Timestamp;

/// How many more of each kind a node can take.
type Room<'a> = BTreeMap<&'a str, usize>;

impl World {
    pub(super) fn claim(&mut self, claim: &Claim, now: Timestamp) -> Claimed {
        if self.nodes.get(&claim.node).is_none_or(|node| node.beat.era > claim.era) {
            return Claimed::default();
        }
        let mut room = Room::new();
        claim.kinds.iter().for_each(|(kind, more)| *room.entry(kind).or_default() += more);
        let mut jobs = Vec::new();
        let misses = |(name, _): &(String, JobId)| self.misses(name, claim.max);
        let spare = if self.who_can_run(&room, now).iter().any(misses) { 0 } else { claim.spare };
        let max = claim.max - claim.spare + spare;
        while jobs.len() < max {
            let Some((tenant, id)) = self.whose_turn(&room, now) else { break };
            let Some(record) = self.start(&tenant, id, claim.node, now) else { break };
            if let Some(more) = room.get_mut(record.job.kind.as_str()) {
                *more -= 1;
            }
            jobs.push(record);
        }
        self.foresee(claim, &room, &mut jobs, now);
        let more = !self.who_can_run(&room, now).is_empty();
        Claimed { jobs, more, again_at: self.next_by_rate(&room, now), due_at: self.next_due(), tend_at: None }
    }

    /// Whether a tenant would miss so many jobs that wait at a node: they count against its rate or, more than half of
    /// it, its limit.
    fn misses(&self, tenant: &str, jobs: usize) -> bool {
        let limits = self.policy(tenant).limits;
        let running = self.count(|record| record.job.tenant == tenant && record.state.stage == Stage::Running);
        limits.rate.is_some() || limits.running_max.is_some_and(|max| 2 * (running + jobs) > max)
    }

    /// Gives what falls due in a moment: the first due first, and one turn for each tenant.
    fn foresee(&mut self, claim: &Claim, room: &Room<'_>, jobs: &mut Vec<Record>, now: Timestamp) {
        let least_room = room.values().copied().filter(|&more| more > 0).min().unwrap_or(0);
        let most = claim.ahead.min(claim.max).saturating_sub(jobs.len()).min(least_room);
        let mut near: Vec<&Kept> = self.jobs.values().filter(|kept| self.is_near(&kept.record, room, now)).collect();
        near.sort_by_key(|kept| (kept.record.due, kept.arrival));
        let near: Vec<Record> = near.into_iter().take(most).map(|kept| kept.record.clone()).collect();
        let mut costs = BTreeMap::<&str, u32>::new();
        for record in &near {
            let cost = costs.entry(&record.job.tenant).or_default();
            *cost = cost.saturating_add(record.job.cost.max(1));
        }
        for name in costs.keys() {
            let Some(tenant) = self.tenants.get_mut(*name) else { continue };
            self.fair.enter(tenant.number, &mut tenant.tag);
        }
        for (name, cost) in costs {
            let weight = self.policy(name).limits.weight;
            let Some(tenant) = self.tenants.get_mut(name) else { continue };
            self.fair.dispatch(tenant.number, &mut tenant.tag, cost, weight);
        }
        for record in &near {
            // Both happen then, though they are written down now.
            let at = record.due.max(record.since);
            self.step(record.job.id, Step::FallDue, at);
            jobs.extend(self.start(&record.job.tenant, record.job.id, claim.node, at));
        }
    }

    /// When the next job falls due, for whoever looks ahead.
    fn next_due(&self) -> Option<Timestamp> {
        let scheduled = self.jobs.values().map(|kept| &kept.record).filter(|record| record.state == State::SCHEDULED);
        scheduled.map(|record| record.due).min().filter(|_| !self.foresight.is_zero())
    }

    /// Whether a job is due in a moment and may be given out before: not if its tenant's starts are counted, for a
    /// place would be taken before its time; nor if it may expire by then, nor if it is its last chance.
    fn is_near(&self, record: &Record, room: &Room<'_>, now: Timestamp) -> bool {
        let until = now.after(self.foresight);
        let TenantPolicy { limits, paused, .. } = self.policy(&record.job.tenant);
        record.state == State::SCHEDULED
            && record.due <= until
            && record.expires_at().is_none_or(|at| at > until)
            && room.get(record.job.kind.as_str()).is_some_and(|&more| more > 0)
            && !record.has_last_chance()
            && (limits.running_max, limits.rate, paused) == (None, None, false)
    }

    /// Start-time fair queueing among the tenants that can run: whoever has had least for its weight.
    fn whose_turn(&mut self, room: &Room<'_>, now: Timestamp) -> Option<(String, JobId)> {
        let able = self.who_can_run(room, now);
        for (name, _) in &able {
            let tenant = self.tenants.get_mut(name)?;
            self.fair.enter(tenant.number, &mut tenant.tag);
        }
        let first = self.fair.first()?;
        let (name, id) = able.iter().find(|(name, _)| self.tenants[name].number == first)?.clone();
        let (cost, weight) = (self.record(id)?.job.cost, self.policy(&name).limits.weight);
        let chosen = self.tenants.get_mut(&name)?;
        self.fair.dispatch(first, &mut chosen.tag, cost, weight);
        // The others come back with the next question, which may be for other kinds.
        for (name, _) in &able {
            let tenant = self.tenants.get_mut(name)?;
            self.fair.leave(tenant.number, &mut tenant.tag);
        }
        Some((name, id))
    }

    /// The tenants that can run something of the asked kinds, each with its first job.
    fn who_can_run(&self, room: &Room<'_>, now: Timestamp) -> Vec<(String, JobId)> {
        let able = self.tenants.keys().filter(|name| matches!(self.standing(name, now), Standing::May));
        able.filter_map(|name| Some((name.clone(), self.first_of(name, room)?))).collect()
    }

    fn first_of(&self, tenant: &str, room: &Room<'_>) -> Option<JobId> {
        let ready = self.jobs.values().filter(|kept| {
            let record = &kept.record;
            record.job.tenant == tenant
                && record.state == State::READY
                && room.get(record.job.kind.as_str()).is_some_and(|&more| more > 0)
                && !self.waits_to_be_alone(record)
        });
        ready.min_by_key(|kept| (kept.record.order_at(), kept.arrival)).map(|kept| kept.record.job.id)
    }

    /// Another crash would be its last, and another such job runs.
    fn waits_to_be_alone(&self, record: &Record) -> bool {
        let runs = |other: &Record| other.state.stage == Stage::Running && other.has_last_chance();
        record.has_last_chance() && self.count(runs) > 0
    }

    fn start(&mut self, tenant: &str, id: JobId, node: NodeId, now: Timestamp) -> Option<Record> {
        self.step(id, Step::Claim, now)?;
        if let Some(rate) = self.policy(tenant).limits.rate {
            self.tenant_mut(tenant).spent.spend(&rate, nanos(now));
        }
        let record = &mut self.jobs.get_mut(&id)?.record;
        record.attempt += 1;
        record.fence += 1;
        record.node = Some(node);
        record.started_at = Some(now);
        Some(record.clone())
    }

    /// When the first of those that only their rate holds back may start.
    fn next_by_rate(&self, room: &Room<'_>, now: Timestamp) -> Option<Timestamp> {
        let held = self.tenants.keys().filter_map(|name| match self.standing(name, now) {
            Standing::BeyondRate(until) => self.first_of(name, room).and(Some(timestamp(until))),
            Standing::May | Standing::Paused | Standing::AtLimit { .. } => None,
        });
        held.min()
    }

    pub(super) fn explain(&self, id: JobId, now: Timestamp) -> Option<Explanation> {
        let record = self.record(id)?;
        Some(Explanation { gate: self.gate(record, now), since: record.since })
    }

    fn gate(&self, record: &Record, now: Timestamp) -> Gate {
        match (record.state.stage, record.state.outcome, record.node) {
            (Stage::Stopped, Some(outcome), _) => return Gate::Ended(outcome),
            (Stage::Running, Some(outcome), _) => return Gate::Stopping(outcome),
            (Stage::Running, None, Some(node)) => return Gate::Running(node),
            (Stage::Scheduled, ..) => {
                return match &record.last_error {
                    Some(error) if record.attempt > 0 => Gate::Retry { at: record.due, error: error.clone() },
                    _ => Gate::NotDue(record.due),
                };
            }
            _ => {}
        }
        let standing = self.standing(&record.job.tenant, now);
        if matches!(standing, Standing::Paused) {
            return Gate::TenantPaused;
        }
        let kind = &record.job.kind;
        let handles = |node: &&Node| !node.is_dead(now) && node.beat.kinds.contains(kind);
        let mut handlers = self.nodes.values().filter(handles).peekable();
        if handlers.peek().is_none() {
            return Gate::NoWorker;
        }
        if handlers.all(|node| node.beat.paused.contains(kind)) {
            return Gate::KindPaused;
        }
        match standing {
            Standing::AtLimit { running, max } => Gate::TenantLimit { running, max },
            Standing::BeyondRate(until) => Gate::Rate(timestamp(until)),
            Standing::May | Standing::Paused if self.waits_to_be_alone(record) => Gate::Alone,
            Standing::May | Standing::Paused => Gate::Turn,
        }
    }
}
