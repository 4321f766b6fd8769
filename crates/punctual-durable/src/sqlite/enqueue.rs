//! May it enter? Its id, its tenant, its time, its unique key, its tenant's limits: in this order.

use std::time::Duration;

use punctual::decide::{Load, Refusal, admit_due, admit_scheduled};
use punctual::{Reason, Stage};
use rusqlite::{Result, params};

use super::books::{Books, nanos};
use super::queries::{self, Live};
use super::rows::{Id, node_sql};
use crate::id::{JobId, NodeId};
use crate::state::{State, Step};
use crate::store::{Admitted, CancelCause, NewJob, OnConflict, Record, Refused};
use crate::time::Timestamp;

/// What came of one job.
type Answer = std::result::Result<Admitted, Refused>;

impl Books {
    pub(super) fn enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<Answer>> {
        jobs.iter()
            .map(|job| {
                let answer = self.enqueue_one(job)?;
                // The next of the batch sees this one as it stands.
                self.catch_up()?;
                Ok(answer)
            })
            .collect()
    }

    pub(super) fn enqueue_one(&mut self, job: &NewJob) -> Result<Answer> {
        if let Err(refused) = job.check() {
            return Ok(Err(refused));
        }
        let now = self.now;
        if queries::is_known(self.db(), job.id)? {
            return Ok(Ok(Admitted::New));
        }
        // Before anything is written: whatever SQLite would refuse is refused here, so a bad job fails alone.
        let (bytes, max) = (bytes(job), self.settings().job_bytes_max);
        if bytes > max {
            return Ok(Err(Refused::Bad(format!("the job has {bytes} bytes, and the store takes {max}"))));
        }
        if self.index.find_tenant(&job.tenant).is_some_and(|tenant| tenant.policy.closed) {
            return Ok(Err(rejected(Reason::Closed)));
        }
        let record = Record::new(job.clone(), now);
        let in_vain = record.deadline.is_some_and(|deadline| deadline <= record.due.max(now))
            || job.start_within.is_some_and(|within| within.is_zero());
        if in_vain {
            return Ok(Err(rejected(Reason::Expired)));
        }
        let Some(holder) = self.key_holder(job, now)? else {
            if let Err(refused) = self.admits(&record, &self.load_of(&job.tenant)) {
                return Ok(Err(refused));
            }
            self.take_in(record)?;
            return Ok(Ok(Admitted::New));
        };
        let on_conflict = job.unique.as_ref().map(|unique| unique.on_conflict).unwrap_or_default();
        match on_conflict {
            OnConflict::Join => {
                if let Some(node) = job.wanted_by {
                    self.want(holder, node)?;
                }
                Ok(Ok(Admitted::Joined(holder)))
            }
            OnConflict::Replace => self.replace(record, holder),
            OnConflict::Reject => Ok(Err(Refused::Conflict(holder))),
        }
    }

    /// Who keeps a job from its unique key.
    pub(super) fn key_holder(&self, job: &NewJob, now: Timestamp) -> Result<Option<JobId>> {
        let Some(unique) = &job.unique else { return Ok(None) };
        match queries::key_holder(self.db(), &job.tenant, &unique.key)? {
            Some((holder, until)) if until.is_some_and(|until| now < until) || queries::is_live(self.db(), holder)? => {
                Ok(Some(holder))
            }
            _ => Ok(None),
        }
    }

    /// In the place of another that waits, if the limits admit it once that one is gone.
    fn replace(&mut self, record: Record, other: JobId) -> Result<Answer> {
        let Some(waiting) = queries::load(self.db(), other)?.filter(|live| live.record.state.is_waiting()) else {
            return Ok(Err(Refused::Conflict(other)));
        };
        let mut load = self.load_of(&record.job.tenant);
        match waiting.record.state.stage {
            Stage::Scheduled => load.scheduled = load.scheduled.saturating_sub(1),
            Stage::Ready => load.waiting = load.waiting.saturating_sub(1),
            Stage::Running | Stage::Stopped => {}
        }
        if let Err(refused) = self.admits(&record, &load) {
            return Ok(Err(refused));
        }
        self.cancel_one(waiting, CancelCause::Replaced)?;
        self.take_in(record)?;
        Ok(Ok(Admitted::Replaced(other)))
    }

    fn load_of(&self, tenant: &str) -> Load {
        self.index.find_tenant(tenant).map(super::index::Tenant::load).unwrap_or_default()
    }

    fn admits(&self, record: &Record, load: &Load) -> std::result::Result<(), Refused> {
        let tenant = self.index.find_tenant(&record.job.tenant);
        let limits = tenant.map(|tenant| tenant.policy.limits).unwrap_or_default();
        let decision = if record.due <= self.now { admit_due(&limits, load) } else { admit_scheduled(&limits, load) };
        let name = || record.job.tenant.as_str().into();
        decision.map_err(|refusal| match refusal {
            Refusal::Backlog { count, max } => {
                let now_ns = nanos(self.now);
                let allowed = tenant.and_then(|tenant| tenant.held_back_until(now_ns));
                let reason = Reason::BacklogFull { tenant: name(), count, max };
                Refused::Rejected { reason, retry_after: allowed.map(|at| Duration::from_nanos(at - now_ns)) }
            }
            Refusal::Scheduled { count, max } => rejected(Reason::ScheduledFull { tenant: name(), count, max }),
        })
    }

    /// Writes an admitted job down.
    fn take_in(&mut self, mut record: Record) -> Result<()> {
        if record.due <= self.now {
            record.state = State::SCHEDULED.after(Step::FallDue).unwrap_or(State::READY);
        }
        let while_wanted = record.job.wanted_by.is_some();
        let live = Live { seq: self.next_seq, record, forget: false, while_wanted };
        self.admit(&live)?;
        self.next_seq += 1;
        let job = &live.record.job;
        queries::insert_tags(self.db(), job)?;
        queries::take_key(self.db(), job, live.record.enqueued_at)?;
        if let Some(node) = job.wanted_by {
            // The interest of a node that is not there could never end, so it does not count.
            self.want(job.id, node)?;
            self.cancel_unwanted(job.id)?;
        }
        let expires_at = live.record.expires_at();
        if live.record.state == State::READY {
            self.ready();
            expires_at.into_iter().for_each(|at| self.due(at));
        } else {
            self.due(expires_at.map_or(live.record.due, |at| at.min(live.record.due)));
        }
        Ok(())
    }

    /// A node wants a job's result; false if that is not to be had.
    pub(super) fn want(&mut self, id: JobId, node: NodeId) -> Result<bool> {
        match queries::load(self.db(), id)? {
            Some(live) if live.record.state.outcome.is_none() => {
                if !live.while_wanted {
                    return Ok(true);
                }
                if !self.index.nodes.contains_key(&node) {
                    return Ok(false);
                }
                self.db()
                    .prepare_cached("INSERT OR IGNORE INTO interest (job, node) VALUES (?1, ?2)")?
                    .execute(params![Id(id), node_sql(node)])?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// How much text a job has.
fn bytes(job: &NewJob) -> usize {
    let key = job.unique.as_ref().map_or(0, |unique| unique.key.len());
    let rest = [&job.schedule, &job.trace].into_iter().flatten().map(String::len).sum::<usize>();
    let tags = job.tags.iter().map(|tag| tag.len() + 4).sum::<usize>();
    job.payload.len() + job.kind.len() + job.tenant.len() + key + rest + tags
}

fn rejected(reason: Reason) -> Refused {
    Refused::Rejected { reason, retry_after: None }
}
