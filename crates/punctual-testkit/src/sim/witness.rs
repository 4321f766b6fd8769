//! Watches a simulation and believes nobody: what it counts, it counts from the answers alone.
//!
//! # What must hold
//! 1. A job is given out only while nobody has it: not before its last run was finished, given back, or lost with its
//!    node. Each time its fence is one higher (C38).
//! 2. No claim takes a tenant above the limit in force (C40).
//! 3. Whoever has a job can finish it; nobody else can (C38).
//! 4. An outcome is settled once, and is what the job ends with (C38). Every job that was taken in ends (C37).

use std::collections::BTreeMap;

use punctual::Stage;
use punctual_durable::{Admitted, Cancelled, Finished, JobId, NodeId, NodeRecord, Outcome, Record, Refused};

use super::Summary;
use crate::Bed;

#[derive(Default)]
pub(super) struct Witness {
    pub(super) summary: Summary,
    pub(super) limits: BTreeMap<String, Option<usize>>,
    jobs: BTreeMap<JobId, Seen>,
}

struct Seen {
    tenant: String,
    fence: u64,
    /// Who has it.
    held_by: Option<NodeId>,
    /// What it ends with, once that was said.
    outcome: Option<Outcome>,
}

impl Witness {
    pub(super) fn enqueued(
        &mut self,
        id: JobId,
        tenant: &str,
        answer: &Result<Admitted, Refused>,
    ) -> Result<(), String> {
        if *answer != Ok(Admitted::New) {
            return Err(format!("job {id} was not taken in: {answer:?}"));
        }
        self.summary.jobs += 1;
        self.jobs.insert(id, Seen { tenant: tenant.to_owned(), fence: 0, held_by: None, outcome: None });
        Ok(())
    }

    pub(super) fn cancelled(&mut self, id: JobId, cancelled: Cancelled) -> Result<(), String> {
        match (cancelled, self.jobs.contains_key(&id)) {
            (Cancelled::Now(_), true) => self.settled(id, Outcome::Cancelled),
            (Cancelled::Ended(outcome), true) => self.settled_as(id, outcome),
            (Cancelled::Unknown, false) => Ok(()),
            (answer, _) => Err(format!("job {id}: cancel answers {answer:?}")),
        }
    }

    pub(super) fn claimed(&mut self, node: NodeId, claimed: &[Record]) -> Result<(), String> {
        for record in claimed {
            let id = record.job.id;
            self.summary.runs += 1;
            let Some(seen) = self.jobs.get_mut(&id) else { return Err(format!("job {id} was never taken in")) };
            if let Some(holder) = seen.held_by {
                return Err(format!("job {id} is given to {node} while {holder} has it"));
            }
            if let Some(outcome) = seen.outcome {
                return Err(format!("job {id} is given out although it is {outcome}"));
            }
            if record.fence != seen.fence + 1 {
                return Err(format!("the fence of job {id} goes from {} to {}", seen.fence, record.fence));
            }
            seen.fence = record.fence;
            seen.held_by = Some(node);
        }
        for record in claimed {
            let tenant = &record.job.tenant;
            let held = self.jobs.values().filter(|seen| &seen.tenant == tenant && seen.held_by.is_some()).count();
            if let Some(Some(max)) = self.limits.get(tenant)
                && held > *max
            {
                return Err(format!("a claim takes tenant {tenant:?} to {held} of {max}"));
            }
        }
        Ok(())
    }

    pub(super) fn finished(&mut self, node: NodeId, run: &Record, finished: Finished) -> Result<(), String> {
        let id = run.job.id;
        let Some(seen) = self.jobs.get_mut(&id) else { return Err(format!("job {id} was never taken in")) };
        let has_it = seen.held_by == Some(node) && seen.fence == run.fence;
        match finished {
            Finished::Held => Err(format!("{node} is told that somebody has job {id} in hand")),
            Finished::Stale if has_it => Err(format!("{node} has job {id} and cannot finish it")),
            Finished::Stale => {
                self.summary.stale += 1;
                Ok(())
            }
            Finished::Done(_) if !has_it => Err(format!("{node} finishes job {id}, which it does not have")),
            Finished::Done(state) => {
                seen.held_by = None;
                match (state.stage, state.outcome, seen.outcome) {
                    (Stage::Stopped, Some(outcome), None) => self.settled(id, outcome),
                    (Stage::Stopped, Some(outcome), Some(_)) => self.settled_as(id, outcome),
                    (Stage::Scheduled | Stage::Ready, None, None) => Ok(()),
                    _ => Err(format!("job {id} is finished into {state:?}")),
                }
            }
        }
    }

    pub(super) fn left(&mut self, node: NodeId) {
        self.jobs.values_mut().filter(|seen| seen.held_by == Some(node)).for_each(|seen| seen.held_by = None);
    }

    /// Whoever was there before and is not there after was taken for dead.
    pub(super) fn tended(&mut self, before: &[NodeRecord], after: &[NodeRecord], lost: usize) -> Result<(), String> {
        let dead = before.iter().map(|node| node.beat.node).filter(|id| after.iter().all(|node| node.beat.node != *id));
        let dead: Vec<NodeId> = dead.collect();
        let held = self.jobs.values().filter(|seen| seen.held_by.is_some_and(|node| dead.contains(&node))).count();
        if held != lost {
            return Err(format!("{dead:?} had {held} jobs, and {lost} were lost"));
        }
        self.summary.lost += lost;
        dead.into_iter().for_each(|node| self.left(node));
        Ok(())
    }

    /// Every job ended, as was said, and nobody has one.
    pub(super) fn at_the_end(&mut self, bed: &Bed) -> Result<(), String> {
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            let Some(record) = bed.find(id) else { return Err(format!("job {id} is gone")) };
            let Some(outcome) = record.state.outcome.filter(|_| record.state.stage == Stage::Stopped) else {
                return Err(format!("job {id} is {:?}", record.state));
            };
            self.settled_as(id, outcome)?;
            let seen = &self.jobs[&id];
            if seen.fence != record.fence {
                return Err(format!("job {id} was given out {} times, not {}", seen.fence, record.fence));
            }
        }
        Ok(())
    }

    /// Its outcome is settled now.
    fn settled(&mut self, id: JobId, outcome: Outcome) -> Result<(), String> {
        match self.jobs.get_mut(&id).map(|seen| seen.outcome.replace(outcome)) {
            Some(None) => Ok(()),
            before => Err(format!("job {id} is {outcome} after it was {before:?}")),
        }
    }

    /// It was settled before, maybe by time, which nobody saw.
    fn settled_as(&mut self, id: JobId, outcome: Outcome) -> Result<(), String> {
        match self.jobs.get_mut(&id).map(|seen| *seen.outcome.get_or_insert(outcome)) {
            Some(settled) if settled == outcome => Ok(()),
            settled => Err(format!("job {id} is {outcome}, and was {settled:?}")),
        }
    }
}
