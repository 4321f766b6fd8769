//! Who is next, what came of it, and why not this one?

use std::collections::HashMap;

use punctual::Stage;
use rusqlite::{Result, params};

use super::books::{Books, from_nanos, give_back, nanos, set_due};
use super::index::{KindKey, Next, Running, TenantKey};
use super::queries::{self, Live};
use super::rows::{list, node_id, node_sql};
use crate::id::{JobId, NodeId};
use crate::state::{Outcome, State, Step};
use crate::store::{Beat, Claim, Claimed, Explanation, Finish, Finished, Gate, NodeRecord, Pulse, Record, Verdict};

/// How many more of each kind a node can take.
type Room = HashMap<KindKey, usize>;

impl Books {
    pub(super) fn claim(&mut self, claim: &Claim) -> Result<Claimed> {
        if self.index.nodes.get(&claim.node).is_none_or(|beat| beat.era > claim.era) {
            return Ok(Claimed::default());
        }
        let mut room = Room::new();
        for (kind, more) in claim.kinds.iter() {
            if let Some(kind) = self.index.find_kind(kind) {
                *room.entry(kind).or_default() += more;
            }
        }
        let mut claimed = Claimed::default();
        // Those that have nothing of the asked kinds are passed over, and come back afterwards.
        let mut passed = Vec::new();
        while let Some((tenant, live)) = self.whose_turn(&room, &mut passed)? {
            if claimed.jobs.len() == claim.max {
                claimed.more = true;
                break;
            }
            let record = self.start(tenant, live, claim.node)?;
            if let Some(more) = self.index.find_kind(&record.job.kind).and_then(|kind| room.get_mut(&kind)) {
                *more -= 1;
            }
            claimed.jobs.push(record);
        }
        passed.into_iter().for_each(|tenant| self.index.step_back(tenant));
        claimed.again_at = self.index.next_allowed(&room).map(from_nanos);
        Ok(claimed)
    }

    /// The tenant that has had least for its weight, of those that can run, and its first job.
    fn whose_turn(&mut self, room: &Room, passed: &mut Vec<TenantKey>) -> Result<Option<(TenantKey, Live)>> {
        while let Some(tenant) = self.index.first() {
            match self.index.next_of(tenant, room) {
                Next::None => {
                    self.index.step_aside(tenant);
                    passed.push(tenant);
                }
                Next::Unread(kind, alone) => self.read_lane(tenant, kind, alone)?,
                Next::Job((_, seq)) => {
                    let Some(live) = queries::load_seq(self.db(), seq)? else {
                        // The index says what the file does not: the next transaction reads it anew.
                        return Err(rusqlite::Error::QueryReturnedNoRows);
                    };
                    if live.record.expires_at().is_some_and(|at| at <= self.now) {
                        self.expire_one(live)?;
                    } else {
                        return Ok(Some((tenant, live)));
                    }
                }
            }
        }
        Ok(None)
    }

    fn read_lane(&mut self, tenant: TenantKey, kind: KindKey, alone: bool) -> Result<()> {
        let (tenant_name, kind_name) = (&self.index.tenant(tenant).name, self.index.kind_name(kind));
        let first = queries::first_ready(self.db(), tenant_name, &kind_name, alone, self.index.window())?;
        if first.is_empty() {
            return Err(rusqlite::Error::QueryReturnedNoRows);
        }
        self.index.fill(tenant, (kind, alone), first);
        Ok(())
    }

    fn start(&mut self, tenant: TenantKey, mut live: Live, node: NodeId) -> Result<Record> {
        let now = self.now;
        self.index.spend(tenant, live.record.job.cost);
        self.index.leave(&live);
        let record = &mut live.record;
        record.state = record.state.after(Step::Claim).unwrap_or(State::RUNNING);
        record.attempt += 1;
        record.fence += 1;
        record.node = Some(node);
        record.started_at = Some(now);
        record.since = now;
        queries::update_claim(self.db(), &live)?;
        self.enter(&live);
        Ok(live.record)
    }

    pub(super) fn finish(&mut self, node: NodeId, finishes: &[Finish]) -> Result<Vec<Finished>> {
        finishes.iter().map(|finish| self.finish_one(node, finish)).collect()
    }

    fn finish_one(&mut self, node: NodeId, finish: &Finish) -> Result<Finished> {
        let id = finish.id;
        let Some(run) = self.index.running(id).filter(|run| run.node == node && run.fence == finish.fence).cloned()
        else {
            return Ok(Finished::Stale);
        };
        if run.outcome.is_some() {
            return self.finish_run(id, &run, Step::Stop, None, None);
        }
        let now = self.now;
        match &finish.verdict {
            Verdict::Succeeded(result) => self.finish_run(id, &run, Step::End(Outcome::Succeeded), Some(result), None),
            Verdict::Failed(error) => self.finish_run(id, &run, Step::End(Outcome::Failed), None, Some(error)),
            Verdict::Cancelled(reason) => self.finish_run(id, &run, Step::End(Outcome::Cancelled), None, Some(reason)),
            Verdict::Retry { at, error } => {
                let at = at.from(now);
                let live = queries::load_seq(self.db(), run.seq)?;
                if live.is_some_and(|live| live.record.deadline.is_some_and(|deadline| deadline <= at)) {
                    return self.finish_run(id, &run, Step::End(Outcome::Failed), None, Some(error));
                }
                self.run_again(&run, |record| {
                    record.last_error = Some(error.clone());
                    set_due(record, at);
                })
            }
            Verdict::Snooze(at) => self.run_again(&run, |record| {
                record.attempt = record.attempt.saturating_sub(1);
                set_due(record, at.from(now));
            }),
            Verdict::Release | Verdict::Stopped => self.run_again(&run, |record| give_back(record, now)),
        }
    }

    /// The handler has stopped, and the job with it.
    fn finish_run(
        &mut self,
        id: JobId,
        run: &Running,
        step: Step,
        result: Option<&str>,
        error: Option<&str>,
    ) -> Result<Finished> {
        let after = State::new(Stage::Running, run.outcome).after(step);
        let Some((state, outcome)) = after.and_then(|state| Some((state, state.outcome?))) else {
            return Ok(Finished::Stale);
        };
        self.end_running(id, run, outcome, result, error)?;
        Ok(Finished::Done(state))
    }

    /// The handler has stopped, and the job is to run again.
    fn run_again(&mut self, run: &Running, terms: impl FnOnce(&mut Record)) -> Result<Finished> {
        let Some(mut live) = queries::load_seq(self.db(), run.seq)? else { return Ok(Finished::Stale) };
        self.wait_again(&mut live, Step::Retry, terms)?;
        if live.record.expires_at().is_some_and(|at| at <= self.now) {
            self.expire_one(live)?;
            return Ok(Finished::Done(State::new(Stage::Stopped, Some(Outcome::Expired))));
        }
        Ok(Finished::Done(live.record.state))
    }

    pub(super) fn join(&mut self, beat: &Beat) -> Result<()> {
        self.put_node(beat)?;
        self.work();
        Ok(())
    }

    fn put_node(&mut self, beat: &Beat) -> Result<()> {
        self.db()
            .prepare_cached(
                "INSERT OR REPLACE INTO node (id, name, kinds, paused, workers) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                node_sql(beat.node),
                beat.name,
                list(&beat.kinds).unwrap_or_else(|| "[]".to_owned()),
                list(&beat.paused).unwrap_or_else(|| "[]".to_owned()),
                queries::limit(beat.workers)
            ])?;
        // Not in the file: an era ends with its process. One that is over does not come back, whatever is heard late.
        let era = self.index.nodes.get(&beat.node).map_or(0, |known| known.era).max(beat.era);
        self.index.nodes.insert(beat.node, Beat { era, ..beat.clone() });
        Ok(())
    }

    pub(super) fn heartbeat(&mut self, beat: &Beat) -> Result<Pulse> {
        if !self.index.nodes.contains_key(&beat.node) {
            return Ok(Pulse { known: false, running: Vec::new(), stop: Vec::new() });
        }
        if self.index.nodes.get(&beat.node) != Some(beat) {
            self.put_node(beat)?;
        }
        let of_node = || self.index.all_running().filter(|(_, run)| run.node == beat.node);
        let in_order = |runs: &mut dyn Iterator<Item = (JobId, u64)>| {
            let mut runs: Vec<_> = runs.collect();
            runs.sort_unstable();
            runs
        };
        let running = in_order(&mut of_node().map(|(id, run)| (id, run.fence)));
        let stop = in_order(&mut of_node().filter(|(_, run)| run.outcome.is_some()).map(|(id, run)| (id, run.fence)));
        Ok(Pulse { known: true, running, stop })
    }

    pub(super) fn leave(&mut self, node: NodeId) -> Result<()> {
        if self.index.nodes.remove(&node).is_none() {
            return Ok(());
        }
        self.db().prepare_cached("DELETE FROM node WHERE id = ?1")?.execute([node_sql(node)])?;
        let mut runs: Vec<JobId> =
            self.index.all_running().filter(|(_, run)| run.node == node).map(|(id, _)| id).collect();
        runs.sort_unstable();
        for id in runs {
            if let Some(live) = queries::load(self.db(), id)? {
                self.hand_back(live)?;
            }
        }
        let wanted: Vec<JobId> = self
            .db()
            .prepare_cached("SELECT job FROM interest WHERE node = ?1 ORDER BY job")?
            .query_map([node_sql(node)], |row| row.get::<_, super::rows::Id>(0))?
            .map(|id| id.map(|id| id.0))
            .collect::<Result<_>>()?;
        for id in wanted {
            self.lose_interest(id, node)?;
        }
        Ok(())
    }

    pub(super) fn node_records(&self) -> Vec<NodeRecord> {
        let running = |node| self.index.all_running().filter(|(_, run)| run.node == node).count();
        let record = |beat: &Beat| NodeRecord {
            beat: beat.clone(),
            expires_at: None,
            running: running(beat.node),
            clock_offset_us: 0,
        };
        self.index.nodes.values().map(record).collect()
    }

    pub(super) fn explain(&self, id: JobId) -> Result<Option<Explanation>> {
        let record = self.get(id)?;
        Ok(record.map(|record| Explanation { gate: self.gate(&record), since: record.since }))
    }

    fn gate(&self, record: &Record) -> Gate {
        match (record.state.stage, record.state.outcome, record.node) {
            (Stage::Stopped, Some(outcome), _) => return Gate::Ended(outcome),
            (Stage::Running, Some(outcome), _) => return Gate::Stopping(outcome),
            (Stage::Running, None, node) => return Gate::Running(node.unwrap_or(node_id(0))),
            (Stage::Scheduled, ..) => {
                return match &record.last_error {
                    Some(error) if record.attempt > 0 => Gate::Retry { at: record.due, error: error.clone() },
                    _ => Gate::NotDue(record.due),
                };
            }
            _ => {}
        }
        let tenant = self.index.find_tenant(&record.job.tenant);
        let policy = tenant.map(|tenant| tenant.policy).unwrap_or_default();
        if policy.paused {
            return Gate::TenantPaused;
        }
        let kind = &record.job.kind;
        let mut handlers = self.index.nodes.values().filter(|beat| beat.kinds.contains(kind)).peekable();
        if handlers.peek().is_none() {
            return Gate::NoWorker;
        }
        if handlers.all(|beat| beat.paused.contains(kind)) {
            return Gate::KindPaused;
        }
        let running = tenant.map_or(0, |tenant| tenant.totals.running);
        if let Some(max) = policy.limits.running_max.filter(|&max| running >= max) {
            return Gate::TenantLimit { running, max };
        }
        if let Some(until) = tenant.and_then(|tenant| tenant.held_back_until(nanos(self.now))) {
            return Gate::Rate(from_nanos(until));
        }
        if record.has_last_chance() && self.index.somebody_is_alone() { Gate::Alone } else { Gate::Turn }
    }
}
