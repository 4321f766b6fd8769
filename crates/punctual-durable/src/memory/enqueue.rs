//! May it enter? The unique key first, then the tenant's limits.

use punctual::decide::{Load, Refusal, admit_due, admit_scheduled};
use punctual::{Reason, Stage};

use super::tenants::nanos;
use super::world::{Kept, World};
use crate::id::JobId;
use crate::store::{Admitted, CancelCause, NewJob, OnConflict, Record, Refused};
use crate::time::Timestamp;

impl World {
    pub(super) fn enqueue(&mut self, job: NewJob, now: Timestamp) -> Result<Admitted, Refused> {
        job.check()?;
        if self.jobs.contains_key(&job.id) {
            return Ok(Admitted::New);
        }
        if self.policy(&job.tenant).closed {
            return Err(Refused::Rejected { reason: Reason::Closed, retry_after: None });
        }
        let record = Record::new(job, now);
        let in_vain = record.deadline.is_some_and(|deadline| deadline <= record.due.max(now))
            || record.job.start_within.is_some_and(|within| within.is_zero());
        if in_vain {
            return Err(Refused::Rejected { reason: Reason::Expired, retry_after: None });
        }
        let Some(holder) = self.holder_for(&record, now) else {
            self.admit(&record, &self.load(&record.job.tenant), now)?;
            self.take_in(record, now);
            return Ok(Admitted::New);
        };
        let holder = holder.clone();
        let on_conflict = record.job.unique.as_ref().map(|unique| unique.on_conflict).unwrap_or_default();
        match on_conflict {
            OnConflict::Join => {
                if let Some(node) = record.job.wanted_by {
                    self.want(holder.job.id, node);
                }
                Ok(Admitted::Joined(holder.job.id))
            }
            OnConflict::Replace if holder.state.is_waiting() => self.replace(record, &holder, now),
            OnConflict::Reject | OnConflict::Replace => Err(Refused::Conflict(holder.job.id)),
        }
    }

    fn holder_for(&self, record: &Record, now: Timestamp) -> Option<&Record> {
        let unique = record.job.unique.as_ref()?;
        self.key_holder(&record.job.tenant, &unique.key, now)
    }

    /// In the place of another, if the limits admit it once that one is gone.
    fn replace(&mut self, record: Record, other: &Record, now: Timestamp) -> Result<Admitted, Refused> {
        let mut load = self.load(&record.job.tenant);
        match other.state.stage {
            Stage::Scheduled => load.scheduled -= 1,
            Stage::Ready => load.waiting -= 1,
            Stage::Running | Stage::Stopped => {}
        }
        self.admit(&record, &load, now)?;
        self.cancel(other.job.id, CancelCause::Replaced, now);
        self.take_in(record, now);
        Ok(Admitted::Replaced(other.job.id))
    }

    fn admit(&self, record: &Record, load: &Load, now: Timestamp) -> Result<(), Refused> {
        let tenant = &record.job.tenant;
        let limits = self.policy(tenant).limits;
        let decision = if record.due <= now { admit_due(&limits, load) } else { admit_scheduled(&limits, load) };
        decision.map_err(|refusal| {
            let name = tenant.as_str().into();
            match refusal {
                Refusal::Backlog { count, max } => Refused::Rejected {
                    reason: Reason::BacklogFull { tenant: name, count, max },
                    retry_after: self
                        .held_by_rate(tenant, now)
                        .map(|until_ns| std::time::Duration::from_nanos(until_ns - nanos(now))),
                },
                Refusal::Scheduled { count, max } => {
                    Refused::Rejected { reason: Reason::ScheduledFull { tenant: name, count, max }, retry_after: None }
                }
            }
        })
    }

    fn take_in(&mut self, record: Record, now: Timestamp) {
        let id: JobId = record.job.id;
        self.tenant_mut(&record.job.tenant);
        if let Some(unique) = &record.job.unique {
            self.keys.insert((record.job.tenant.clone(), unique.key.clone()), id);
        }
        // The interest of a node that is not there could never end, so it does not count.
        let wanted_by = record.job.wanted_by;
        let interest = wanted_by.map(|node| [node].into_iter().filter(|node| self.nodes.contains_key(node)).collect());
        self.jobs.insert(id, Kept { record, arrival: self.arrivals, interest, erased: false });
        self.arrivals += 1;
        self.news.work = true;
        self.cancel_unwanted(id, now);
        // The next of the batch sees this one as it stands.
        self.catch_up(now);
    }
}
