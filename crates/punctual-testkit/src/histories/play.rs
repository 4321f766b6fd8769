//! Plays a history on two stores and compares what they say.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use punctual::{Stage, VirtualClock};
use punctual_durable::{
    CancelCause, Claim, Finish, Fire, MemoryStore, Moment, NewJob, NodeId, Query, Record, TenantPolicy, Tended,
    Timestamp,
};

use super::op::{Op, TENANTS};
use crate::{Bed, NODE, SECOND, beat};

/// Plays a history; the first difference, if there is one.
pub(super) fn play(open: &impl Fn(&VirtualClock) -> Bed, ops: &[Op]) -> Result<(), String> {
    watch(open, ops, &mut |_| ())
}

/// Plays a history and shows every answer, and the state of every job.
pub(super) fn watch(
    open: &impl Fn(&VirtualClock) -> Bed,
    ops: &[Op],
    seen: &mut impl FnMut(&str),
) -> Result<(), String> {
    let clock = VirtualClock::new();
    let subject = open(&clock);
    let model = match subject.store().lease() {
        Some(lease) => MemoryStore::with_lease(&clock, lease),
        None => MemoryStore::new(&clock),
    };
    let model = model.foreseeing(subject.store().foresight());
    let mut pair = Pair { subject, model: Bed::new(&clock, model), runs: Vec::new() };
    for tenant in TENANTS {
        pair.same("SetTenant", |bed| bed.set_policy(tenant, TenantPolicy::default()))?;
    }
    pair.same_world()?;
    for (at, op) in ops.iter().enumerate() {
        let answer = pair.step(op).map_err(|difference| format!("at operation {at}: {difference}"))?;
        seen(&answer);
        let world = pair.same_world().map_err(|difference| format!("after operation {at}: {difference}"))?;
        world.iter().for_each(|record| seen(&format!("{:?}", record.state)));
        if matches!(op, Op::Claim { .. }) {
            pair.same_gates(&world)?.iter().for_each(|gate| seen(gate));
        }
        check(&pair.model, &world).map_err(|broken| format!("after operation {at}: {broken}"))?;
    }
    Ok(())
}

struct Pair {
    subject: Bed,
    model: Bed,
    /// Every run that was ever given out: also those that are long over.
    runs: Vec<Record>,
}

impl Pair {
    fn same<T: Debug + PartialEq>(&self, what: &str, question: impl Fn(&Bed) -> T) -> Result<T, String> {
        let (model, subject) = (question(&self.model), question(&self.subject));
        if model == subject {
            return Ok(model);
        }
        Err(differ(what, &format!("{model:#?}"), &format!("{subject:#?}")))
    }

    /// One operation on both. Answers what both said.
    fn step(&mut self, op: &Op) -> Result<String, String> {
        let text = |told: &dyn Debug| format!("{told:?}");
        Ok(match op.clone() {
            Op::Enqueue(jobs) => text(&self.same("enqueue", |bed| bed.ask(|store| store.enqueue(jobs.clone())))?),
            Op::Claim { node, max, kinds, ahead } => self.claim(node, max, &kinds, ahead)?,
            Op::Finish { .. } => self.finish(op)?,
            Op::Cancel(id) => text(&self.same("cancel", |bed| bed.ask(|store| store.cancel(id, CancelCause::Caller)))?),
            Op::Edit(id, edit) => text(&self.same("edit", |bed| bed.ask(|store| store.edit(id, edit.clone())))?),
            Op::Explain(id) => text(&self.same("explain", |bed| bed.ask(|store| store.explain(id)))?),
            Op::Redrive(id) => {
                format!("Redriven::{:?}", self.same("redrive", |bed| bed.ask(|store| store.redrive(id)))?)
            }
            Op::Want(id, node) => text(&self.same("want", |bed| bed.ask(|store| store.want(id, node)))?),
            Op::Unwant(id, node) => text(&self.same("unwant", |bed| bed.ask(|store| store.unwant(id, node)))?),
            Op::Advance(duration) => text(&self.model.advance(duration)),
            Op::Tend => self.tend()?,
            Op::Crash => {
                self.model.advance(10 * SECOND);
                let tended = self.tend()?;
                self.same("join", |bed| bed.join(NODE, kinds_of(NODE)))?;
                tended
            }
            Op::Join(node) => text(&self.same("join", |bed| bed.join(node, kinds_of(node)))?),
            Op::Beat(node) => {
                let beat = beat(node, kinds_of(node));
                text(&self.same("heartbeat", |bed| bed.ask(|store| store.heartbeat(beat.clone())))?)
            }
            Op::Leave(node) => text(&self.same("leave", |bed| bed.ask(|store| store.leave(node)))?),
            Op::SetTenant(tenant, policy) => text(&self.same("set_tenant", |bed| bed.set_policy(&tenant, policy))?),
            Op::CancelTenant(tenant) => {
                text(&self.same("cancel_tenant", |bed| bed.ask(|store| store.cancel_tenant(tenant.clone())))?)
            }
            Op::Erase(tenant) => {
                let erased = self.same("erase", |bed| bed.ask(|store| store.erase(tenant.clone())))?;
                self.same("set_tenant", |bed| bed.set_policy(&tenant, TenantPolicy::default()))?;
                text(&erased)
            }
            Op::Prune(keep) => text(&self.same("prune", |bed| bed.ask(|store| store.prune(keep, 1_000)))?),
            Op::Purge(ids) => text(&self.same("purge", |bed| bed.ask(|store| store.purge(ids.clone())))?),
            Op::PutSchedule(schedule) => {
                text(&self.same("put_schedule", |bed| bed.ask(|store| store.put_schedule((*schedule).clone())))?)
            }
            Op::RemoveSchedule(name) => {
                text(&self.same("remove_schedule", |bed| bed.ask(|store| store.remove_schedule(name.clone())))?)
            }
            Op::PauseSchedule(name, paused) => {
                text(&self.same("pause_schedule", |bed| bed.ask(|store| store.pause_schedule(name.clone(), paused)))?)
            }
            Op::Fire { schedule, wrong, missed, job } => self.fire(&schedule, wrong, missed, job.map(|job| *job))?,
        })
    }

    fn claim(&mut self, node: NodeId, max: usize, kinds: &[(String, usize)], ahead: usize) -> Result<String, String> {
        let claim = || Claim { node, max, kinds: Arc::from(kinds), ahead, spare: 0, era: 0 };
        let [model, subject] = [&self.model, &self.subject].map(|bed| bed.ask(|store| store.claim(claim())));
        let plain = |jobs: &[Record]| jobs.iter().cloned().map(plain).collect::<Vec<_>>();
        let told = [&model, &subject].map(|claimed| (plain(&claimed.jobs), claimed.again_at));
        if told[0] != told[1] {
            return Err(differ("claim", &format!("{:#?}", told[0]), &format!("{:#?}", told[1])));
        }
        if model.more && !subject.more {
            return Err("claim: there is more at once, and the store does not say so".into());
        }
        // C40: a cap that was lowered drains, but no claim takes a tenant above it.
        for tenant in model.jobs.iter().map(|record| &record.job.tenant) {
            let record = self.model.ask(|store| store.tenant(tenant.clone()));
            let (running, max) = (record.totals.running, record.policy.limits.running_max);
            if max.is_some_and(|max| running > max) {
                return Err(format!("tenant {tenant:?} runs {running} of {max:?}"));
            }
        }
        let now = self.model.store().now();
        let foreseen = model.jobs.iter().filter(|record| record.due > now).count();
        self.runs.extend(model.jobs);
        Ok(format!("claimed {}, foreseen {foreseen}", subject.jobs.len()))
    }

    fn finish(&self, op: &Op) -> Result<String, String> {
        let Op::Finish { back, wrong_node, wrong_fence, verdict } = op else { return Ok(String::new()) };
        let Some(run) = self.runs.len().checked_sub(1 + back).and_then(|at| self.runs.get(at)) else {
            return Ok("nothing ran".into());
        };
        let node = if *wrong_node { NodeId::from_u64(3) } else { run.node.unwrap_or(NODE) };
        let fence = run.fence + u64::from(*wrong_fence);
        let finish = || Finish { id: run.job.id, fence, verdict: verdict.clone() };
        let told = self.same("finish", |bed| bed.ask(|store| store.finish(node, vec![finish()])))?;
        Ok(format!("{told:?}"))
    }

    fn tend(&self) -> Result<String, String> {
        let [model, subject] = [&self.model, &self.subject].map(|bed| bed.ask(|store| store.tend()));
        let told = |tended: &Tended| format!("lost: {} {:#?}", tended.lost, tended.schedules);
        if told(&model) != told(&subject) {
            return Err(differ("tend", &told(&model), &told(&subject)));
        }
        // Waking too early costs a look; waking too late loses time.
        match (model.next, subject.next) {
            (Some(due), next) if next.is_none_or(|next| next > due) => {
                Err(format!("tend: something happens at {due}, and the store says {next:?}"))
            }
            _ => Ok(told(&model)),
        }
    }

    fn fire(&self, name: &str, wrong: bool, missed: u64, job: Option<NewJob>) -> Result<String, String> {
        let schedules = self.model.ask(|store| store.schedules(None, 9));
        let next = schedules.iter().find(|schedule| schedule.name == name).and_then(|schedule| schedule.next);
        let tick = if wrong { Timestamp::from_micros(1) } else { next.unwrap_or(Timestamp::from_micros(2)) };
        let job = job.map(|job| NewJob { schedule: Some(name.to_owned()), ..job });
        let fire =
            || Fire { schedule: name.to_owned(), tick, next: Some(tick.after(SECOND)), missed, job: job.clone() };
        Ok(format!("{:?}", self.same("fire", |bed| bed.ask(|store| store.fire(fire())))?))
    }

    /// Why nothing more was given out.
    fn same_gates(&self, jobs: &[Record]) -> Result<Vec<String>, String> {
        let live = jobs.iter().filter(|record| record.state.stage != Stage::Stopped);
        let gate = |record: &Record| self.same("explain", |bed| bed.gate(record.job.id));
        live.map(|record| gate(record).map(|gate| format!("{gate:?}"))).collect()
    }

    /// All jobs, numbers, nodes and schedules of both. Answers the jobs.
    fn same_world(&self) -> Result<Vec<Record>, String> {
        let jobs = self.same("the jobs", |bed| {
            bed.all(&Query { max: 50, ..Query::default() }).into_iter().map(plain).collect::<Vec<_>>()
        })?;
        self.same("the totals", Bed::totals)?;
        for tenant in TENANTS {
            self.same("a tenant's totals", |bed| bed.totals_of(tenant))?;
        }
        self.same("the schedules", |bed| bed.ask(|store| store.schedules(None, 9)))?;
        self.same("the nodes", |bed| {
            let mut nodes = bed.ask(|store| store.nodes());
            nodes.sort_by_key(|node| node.beat.node);
            nodes
        })?;
        Ok(jobs)
    }
}

/// Node 3 only enqueues and waits.
fn kinds_of(node: NodeId) -> &'static [&'static str] {
    match node.to_u64() {
        1 => &["k", "other"],
        2 => &["k"],
        _ => &[],
    }
}

/// The moments of a record's job may be told as they were given, or as the dates they became.
fn plain(record: Record) -> Record {
    let job = NewJob { due: Moment::NOW, deadline: None, ..record.job };
    Record { job, ..record }
}

/// What must hold whatever happens, in the model itself.
fn check(model: &Bed, jobs: &[Record]) -> Result<(), String> {
    model.assert_totals_are_true();
    let mut keys = BTreeSet::new();
    for record in jobs.iter().filter(|record| record.state.stage != Stage::Stopped) {
        if let Some(unique) = &record.job.unique
            && !keys.insert((&record.job.tenant, &unique.key))
        {
            return Err(format!("two live jobs have the key {:?}", unique.key));
        }
    }
    for record in jobs {
        let runs = record.state.stage == Stage::Running;
        if runs != record.node.is_some() || record.fence < u64::from(record.attempt) {
            return Err(format!("no job can be like this: {record:?}"));
        }
    }
    Ok(())
}

/// The first lines that differ, with what is around them.
fn differ(what: &str, model: &str, subject: &str) -> String {
    let mut told = format!("{what}: the model (-) and the store (+) differ\n");
    let (model, subject): (Vec<&str>, Vec<&str>) = (model.lines().collect(), subject.lines().collect());
    let first = model.iter().zip(&subject).take_while(|(one, two)| one == two).count();
    let before = model[first.saturating_sub(8)..first].iter().map(|line| format!("    {line}\n"));
    let one = model[first..].iter().take(8).map(|line| format!("  - {line}\n"));
    let two = subject[first..].iter().take(8).map(|line| format!("  + {line}\n"));
    told.extend(before.chain(one).chain(two));
    told
}
