//! Who is accounted: policies, numbers, and what holds a tenant back.

use std::collections::BTreeMap;

use punctual::Stage;
use punctual::decide::{Load, Spent, Tag};

use super::world::World;
use crate::state::Outcome;
use crate::store::{CancelCause, Cancelled, Erased, TenantChange, TenantPolicy, TenantRecord, Totals};
use crate::time::Timestamp;

#[derive(Default)]
pub(super) struct Tenant {
    /// Its name, short: the order in which tenants came, which decides between equals.
    pub(super) number: u64,
    pub(super) policy: Option<TenantPolicy>,
    pub(super) tag: Tag,
    pub(super) spent: Spent,
    pub(super) ended: BTreeMap<Outcome, u64>,
}

/// Whether a tenant may start a job now.
pub(super) enum Standing {
    May,
    Paused,
    AtLimit {
        running: usize,
        max: usize,
    },
    /// Its rate allows the next start then, in nanoseconds.
    BeyondRate(u64),
}

impl World {
    pub(super) fn policy(&self, tenant: &str) -> TenantPolicy {
        self.tenants.get(tenant).and_then(|tenant| tenant.policy).unwrap_or_default()
    }

    /// The tenant, which is heard of from now on.
    pub(super) fn tenant_mut(&mut self, name: &str) -> &mut Tenant {
        let number = self.tenant_count;
        if !self.tenants.contains_key(name) {
            self.tenant_count += 1;
        }
        self.tenants.entry(name.to_owned()).or_insert_with(|| Tenant { number, ..Tenant::default() })
    }

    pub(super) fn load(&self, tenant: &str) -> Load {
        let in_stage = |stage| self.count(|record| record.job.tenant == tenant && record.state.stage == stage);
        Load {
            scheduled: in_stage(Stage::Scheduled),
            waiting: in_stage(Stage::Ready),
            running: in_stage(Stage::Running),
            paused: self.policy(tenant).paused,
        }
    }

    pub(super) fn standing(&self, tenant: &str, now: Timestamp) -> Standing {
        let policy = self.policy(tenant);
        let running = self.count(|record| record.job.tenant == tenant && record.state.stage == Stage::Running);
        match (policy.limits.running_max, self.held_by_rate(tenant, now)) {
            _ if policy.paused => Standing::Paused,
            (Some(max), _) if running >= max => Standing::AtLimit { running, max },
            (_, Some(until_ns)) => Standing::BeyondRate(until_ns),
            _ => Standing::May,
        }
    }

    /// When its rate allows the next start, if that is not now.
    pub(super) fn held_by_rate(&self, tenant: &str, now: Timestamp) -> Option<u64> {
        let policy = self.policy(tenant);
        let rate = policy.limits.rate.filter(|_| !policy.paused)?;
        let spent = self.tenants.get(tenant).map(|tenant| tenant.spent).unwrap_or_default();
        Some(spent.allowed_at(&rate, nanos(now))).filter(|&until| until > nanos(now))
    }

    pub(super) fn set_tenant(&mut self, tenant: &str, change: TenantChange) {
        change.apply(self.tenant_mut(tenant).policy.get_or_insert_default());
        self.news.work = true;
    }

    pub(super) fn tenant_record(&self, name: &str) -> TenantRecord {
        let Load { scheduled, waiting: ready, running, .. } = self.load(name);
        let stopping = self.count(|record| {
            record.job.tenant == name && record.state.stage == Stage::Running && record.state.outcome.is_some()
        });
        let ended = self.tenants.get(name).map(|tenant| tenant.ended.clone()).unwrap_or_default();
        let totals = Totals { scheduled, ready, running, stopping, ended };
        TenantRecord { name: name.to_owned(), policy: self.policy(name), totals }
    }

    pub(super) fn tenant_records(&self, after: Option<&str>, max: usize) -> Vec<TenantRecord> {
        let there = |name: &str| self.tenants.get(name).is_some_and(|tenant| tenant.policy.is_some());
        let has_jobs = |name: &str| self.count(|record| record.job.tenant == name) > 0;
        let names = self.tenants.keys().filter(|name| after.is_none_or(|after| name.as_str() > after));
        let names = names.filter(|name| there(name) || has_jobs(name));
        names.take(max).map(|name| self.tenant_record(name)).collect()
    }

    pub(super) fn totals(&self) -> Totals {
        let mut all = Totals::default();
        for name in self.tenants.keys() {
            let one = self.tenant_record(name).totals;
            all.scheduled += one.scheduled;
            all.ready += one.ready;
            all.running += one.running;
            all.stopping += one.stopping;
            one.ended.into_iter().for_each(|(outcome, count)| *all.ended.entry(outcome).or_default() += count);
        }
        all
    }

    pub(super) fn cancel_tenant(&mut self, tenant: &str, now: Timestamp) -> usize {
        let ids = self.ids(|record| record.job.tenant == tenant);
        let cancelled = ids.into_iter().map(|id| self.cancel(id, CancelCause::Tenant, now));
        cancelled.filter(|cancelled| matches!(cancelled, Cancelled::Now(_))).count()
    }

    pub(super) fn erase(&mut self, tenant: &str, now: Timestamp) -> Erased {
        self.schedules.retain(|_, schedule| schedule.template.tenant != tenant);
        let mut erased = Erased { removed: 0, stopping: 0 };
        for id in self.ids(|record| record.job.tenant == tenant) {
            match self.jobs.get_mut(&id) {
                Some(kept) if kept.record.state.stage == Stage::Running => {
                    kept.erased = true;
                    erased.stopping += 1;
                    self.cancel(id, CancelCause::Tenant, now);
                }
                _ => {
                    erased.removed += 1;
                    self.forget(id);
                }
            }
        }
        self.tenants.remove(tenant);
        // What still runs is accounted to a tenant that starts anew.
        if erased.stopping > 0 {
            self.tenant_mut(tenant);
        }
        erased
    }
}

/// Nanoseconds since 1970, as rates count.
pub(super) fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.micros()).unwrap_or(0).saturating_mul(1_000)
}

/// Back again, never early.
pub(super) fn timestamp(nanos: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(nanos.div_ceil(1_000)).unwrap_or(i64::MAX))
}
