//! What people do: look, cancel, edit, redrive, forget, and set what tenants may do.

use punctual::Stage;
use rusqlite::{OptionalExtension, Result, params};

use super::books::{Books, set_due};
use super::queries::{self, Live};
use super::rows::{Id, Length, OutcomeSql};
use crate::id::JobId;
use crate::state::{Outcome, Step};
use crate::store::{
    CancelCause, Cancelled, Edit, Edited, Erased, Record, Redriven, Retention, TenantChange, TenantRecord,
};
use crate::time::Timestamp;

impl Books {
    pub(super) fn get(&self, id: JobId) -> Result<Option<Record>> {
        match queries::load(self.db(), id)? {
            Some(live) => Ok(Some(live.record)),
            None => Ok(queries::load_ended(self.db(), id)?.map(|(_, record)| record)),
        }
    }

    pub(super) fn cancel(&mut self, id: JobId, cause: CancelCause) -> Result<Cancelled> {
        if let Some(live) = queries::load(self.db(), id)? {
            return self.cancel_one(live, cause);
        }
        let ended = queries::load_ended(self.db(), id)?.and_then(|(_, record)| record.state.outcome);
        Ok(ended.map_or(Cancelled::Unknown, Cancelled::Ended))
    }

    pub(super) fn edit(&mut self, id: JobId, edit: &Edit) -> Result<Edited> {
        let now = self.now;
        let Some(mut live) = queries::load(self.db(), id)? else {
            let ended = queries::load_ended(self.db(), id)?;
            return Ok(ended.map_or(Edited::Unknown, |(_, record)| Edited::NotWaiting(record.state)));
        };
        if live.record.state.after(Step::Reschedule).is_none() {
            return Ok(Edited::NotWaiting(live.record.state));
        }
        self.wait_again(&mut live, Step::Reschedule, |record| {
            if let Some(due) = edit.due {
                set_due(record, due.from(now));
            }
            if let Some(deadline) = edit.deadline {
                record.deadline = Some(deadline.from(now));
            }
            let job = &mut record.job;
            job.priority = edit.priority.unwrap_or(job.priority);
            job.max_attempts = edit.max_attempts.unwrap_or(job.max_attempts);
            if let Some(payload) = &edit.payload {
                job.payload.clone_from(payload);
            }
        })?;
        queries::update_asked(self.db(), &live)?;
        Ok(Edited::Done)
    }

    pub(super) fn redrive(&mut self, id: JobId) -> Result<Redriven> {
        let now = self.now;
        let Some((seq, mut record)) = queries::load_ended(self.db(), id)? else {
            let live = queries::load(self.db(), id)?;
            return Ok(live.map_or(Redriven::Unknown, |live| Redriven::NotEnded(live.record.state)));
        };
        let Some(state) = record.state.after(Step::Redrive) else {
            return Ok(Redriven::NotEnded(record.state));
        };
        if let Some(holder) = self.key_holder(&record.job, now)?.filter(|&holder| holder != id) {
            return Ok(Redriven::Conflict(holder));
        }
        (record.attempt, record.crashes, record.result) = (0, 0, None);
        record.deadline = record.deadline.filter(|&deadline| deadline > now);
        set_due(&mut record, now);
        record.state = state.after(Step::FallDue).unwrap_or(state);
        record.since = now;
        self.db().prepare_cached("DELETE FROM history WHERE seq = ?1")?.execute([seq])?;
        self.index.uncount(&record.job.tenant);
        // The person who redrives it wants it, and holds no interest that could end.
        let live = Live { seq, record, forget: false, while_wanted: false };
        self.admit(&live)?;
        queries::take_key(self.db(), &live.record.job, live.record.enqueued_at)?;
        self.work();
        Ok(Redriven::Done)
    }

    pub(super) fn prune(&mut self, retention: Retention, max: usize) -> Result<usize> {
        let mut old: Vec<(i64, JobId, i64)> = Vec::new();
        for outcome in Outcome::ALL {
            old.extend(self.past_retention(retention, outcome, max)?);
        }
        old.sort_unstable();
        old.truncate(max);
        for &(_, _, seq) in &old {
            self.forget_ended(seq)?;
        }
        // Keys of jobs that are gone.
        const KEYS: &str =
            "DELETE FROM live_key WHERE taken_until <= ?1 AND NOT EXISTS (SELECT 1 FROM job WHERE id = live_key.job)";
        self.db().prepare_cached(KEYS)?.execute([self.now.micros()])?;
        if !old.is_empty() {
            // Gives pages back to the file system, few at a time.
            self.db().prepare_cached("PRAGMA incremental_vacuum(256)")?.query_map([], |_| Ok(()))?.for_each(drop);
        }
        Ok(old.len())
    }

    /// Jobs that ended so, long enough ago: when, which, and the order of their arrival.
    fn past_retention(&self, retention: Retention, outcome: Outcome, max: usize) -> Result<Vec<(i64, JobId, i64)>> {
        const OLD: &str = "SELECT since, id, seq, enqueued_at, unique_period FROM history \
                           WHERE outcome = ?1 AND since <= ?2 ORDER BY since";
        let kept = Timestamp::from_micros(0).after(retention.of(outcome)).micros();
        let mut statement = self.db().prepare_cached(OLD)?;
        let mut rows = statement.query(params![OutcomeSql(outcome), self.now.micros().saturating_sub(kept)])?;
        let mut old = Vec::new();
        while old.len() < max
            && let Some(row) = rows.next()?
        {
            // A key that its period still holds would be forgotten with it.
            let period: Option<Length> = row.get(4)?;
            let enqueued_at = Timestamp::from_micros(row.get(3)?);
            if period.is_none_or(|period| enqueued_at.after(period.0) <= self.now) {
                old.push((row.get(0)?, row.get::<_, Id>(1)?.0, row.get(2)?));
            }
        }
        Ok(old)
    }

    fn forget_ended(&mut self, seq: i64) -> Result<bool> {
        let tenant = queries::forget_ended(self.db(), seq)?;
        if let Some(tenant) = &tenant {
            self.index.uncount(tenant);
        }
        Ok(tenant.is_some())
    }

    pub(super) fn purge(&mut self, ids: &[JobId]) -> Result<usize> {
        let mut gone = 0;
        for &id in ids {
            let seq: Option<i64> = self
                .db()
                .prepare_cached("SELECT seq FROM history WHERE id = ?1")?
                .query_row([Id(id)], |row| row.get(0))
                .optional()?;
            if let Some(seq) = seq {
                gone += usize::from(self.forget_ended(seq)?);
            }
        }
        Ok(gone)
    }

    pub(super) fn set_tenant(&mut self, name: &str, change: TenantChange) {
        let key = self.index.tenant_key(name);
        self.index.change_tenant(key, |tenant| {
            change.apply(&mut tenant.policy);
            tenant.has_policy = true;
        });
        self.work();
    }

    pub(super) fn tenant_record(&self, name: &str) -> TenantRecord {
        let unheard_of = || TenantRecord { name: name.to_owned(), ..TenantRecord::default() };
        self.index.find_tenant(name).map_or_else(unheard_of, super::index::Tenant::record)
    }

    pub(super) fn tenant_records(&self, after: Option<&str>, max: usize) -> Vec<TenantRecord> {
        let there = self.index.tenants_after(after).filter(|tenant| tenant.is_there());
        there.take(max).map(super::index::Tenant::record).collect()
    }

    pub(super) fn cancel_tenant(&mut self, tenant: &str) -> Result<usize> {
        let mut cancelled = 0;
        for id in self.live_of(tenant)? {
            if let Some(live) = queries::load(self.db(), id)? {
                cancelled += usize::from(matches!(self.cancel_one(live, CancelCause::Tenant)?, Cancelled::Now(_)));
            }
        }
        Ok(cancelled)
    }

    pub(super) fn erase(&mut self, tenant: &str) -> Result<Erased> {
        self.db().prepare_cached("DELETE FROM schedule WHERE tenant = ?1")?.execute([tenant])?;
        let mut erased = Erased { removed: 0, stopping: 0 };
        for id in self.live_of(tenant)? {
            let Some(mut live) = queries::load(self.db(), id)? else { continue };
            if live.record.state.stage == Stage::Running {
                erased.stopping += 1;
                self.change(&mut live, |live| live.forget = true)?;
                self.cancel_one(live, CancelCause::Tenant)?;
            } else {
                erased.removed += 1;
                self.index.leave(&live);
                self.forget(live.seq, id)?;
            }
        }
        let ended: Vec<i64> = self
            .db()
            .prepare_cached("SELECT seq FROM history WHERE tenant = ?1")?
            .query_map([tenant], |row| row.get(0))?
            .collect::<Result<_>>()?;
        for &seq in &ended {
            queries::forget_ended(self.db(), seq)?;
        }
        erased.removed += ended.len();
        self.index.erase_tenant(tenant);
        Ok(erased)
    }

    /// The live jobs of a tenant, by id. Reads all there are: rare enough not to pay for an index with every job.
    fn live_of(&self, tenant: &str) -> Result<Vec<JobId>> {
        self.db()
            .prepare_cached("SELECT id FROM job WHERE tenant = ?1 ORDER BY id")?
            .query_map([tenant], |row| row.get::<_, Id>(0))?
            .map(|id| id.map(|id| id.0))
            .collect()
    }
}
