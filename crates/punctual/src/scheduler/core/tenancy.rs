//! What the scheduler does about a tenant as a whole.
//!
//! Whether a tenant can run is asked after every change of it (`refresh`), so that the fair order holds those that can
//! and nobody else. One that waits for its rate has an alarm.

use super::{Alarm, Core};
use crate::clock::Clock;
use crate::error::Stage;
use crate::metrics::Snapshot;
use crate::scheduler::after::After;
use crate::scheduler::job::Record;
use crate::scheduler::tenants::{Standing, TenantState};
use crate::slab::SlabKey;

impl Core {
    /// Something changed about a tenant: can it run?
    pub(super) fn refresh(&mut self, tenant: SlabKey) {
        let standing = self.tenants.refresh(tenant, self.latest);
        let Some(state) = self.tenants.get_mut(tenant) else { return };
        match (standing, state.alarm) {
            (Standing::WaitsForRate(until), None) => {
                state.alarm = Some(self.alarms.push(until, self.latest, Alarm::Tenant(tenant)));
            }
            (Standing::WaitsForRate(until), Some(alarm)) => {
                self.alarms.reschedule(alarm, until, self.latest);
            }
            (Standing::Runs | Standing::Cannot, Some(alarm)) => {
                state.alarm = None;
                self.alarms.cancel(alarm);
            }
            (Standing::Runs | Standing::Cannot, None) => {}
        }
    }

    /// Changes the settings of a tenant.
    pub(crate) fn change_tenant(
        &mut self,
        tenant: SlabKey,
        change: impl FnOnce(&mut TenantState),
        clock: &Clock,
        after: &mut After,
    ) {
        if let Some(state) = self.tenants.get_mut(tenant) {
            change(state);
        }
        self.refresh(tenant);
        self.rouse_for_turns(clock, after);
        self.cover(after);
    }

    /// All jobs of a tenant, those that run last: their permits must not go to those about to be cancelled.
    pub(crate) fn jobs_of(&self, tenant: SlabKey) -> Vec<SlabKey> {
        let Some(tenant) = self.tenants.get(tenant) else { return Vec::new() };
        let own = || tenant.jobs.iter(&self.jobs);
        let is_running = |record: &Record| record.stage() == Stage::Running;
        let waiting = own().filter(|(_, record)| !is_running(record));
        waiting.chain(own().filter(|(_, record)| is_running(record))).map(|(key, _)| key).collect()
    }

    /// Ticks of a series of this tenant passed without a run.
    pub(super) fn count_missed(&mut self, tenant: SlabKey, ticks: u64) {
        self.missed += ticks;
        if ticks > 0
            && let Some(tenant) = self.tenants.get_mut(tenant)
        {
            tenant.missed += ticks;
        }
    }

    /// A job, or a handle, of this tenant has gone. Forgets it if nothing is lost by that.
    pub(crate) fn forget_if_unused(&mut self, tenant: SlabKey) {
        // What is due at this very instant may be a job that waits, and whether its alarm has been handled yet depends on
        // which thread came first: the order of starts must not.
        self.rests_later |= self.alarms.next_wake() <= self.latest;
        if !self.rests_later {
            self.tenants.rest_if_none_waits();
        }
        self.tenants.forget_if_unused(tenant, self.latest);
    }

    /// All that is due has been fired.
    pub(super) fn rest_if_put_off(&mut self) {
        if std::mem::take(&mut self.rests_later) {
            self.tenants.rest_if_none_waits();
        }
    }

    pub(crate) fn tenant_snapshot(&self, tenant: SlabKey) -> Snapshot {
        let Some(tenant) = self.tenants.get(tenant) else { return Snapshot::default() };
        Snapshot {
            scheduled: tenant.gauges.scheduled,
            ready: tenant.gauges.ready,
            running: tenant.gauges.running,
            zombies: tenant.gauges.zombies,
            workers: self.workers,
            finished: tenant.finished,
            rejected: tenant.rejected,
            missed: tenant.missed,
            lateness: tenant.lateness.clone(),
            timing_error: tenant.timing_error.clone(),
        }
    }
}
