//! Jobs that wait inside for other jobs: each holds a worker and a permit while it waits, so a wait that could never end
//! is refused when it begins.

use super::Core;
use crate::clock::NEVER;
use crate::error::Stage;
use crate::slab::SlabKey;

impl Core {
    /// A job begins to wait inside for another. False if that could never end: all that could run it wait as well.
    pub(crate) fn begin_wait(&mut self, waiter: SlabKey, target: SlabKey) -> bool {
        let Some(record) = self.jobs.get(target) else { return true };
        let ends_by_itself = record.deadline != NEVER || (record.start_within != NEVER && record.due != NEVER);
        if matches!(record.stage(), Stage::Running | Stage::Stopped) || ends_by_itself || record.waited_for_by.is_some()
        {
            return true;
        }
        let own_tenant = self.jobs.get(waiter).is_some_and(|waiter| waiter.tenant == record.tenant);
        let tenant = record.tenant;
        let out_of_permits = own_tenant
            && self
                .tenants
                .get(tenant)
                .is_some_and(|tenant| tenant.limits.running_max.is_some_and(|max| tenant.blocked + 1 >= max));
        let out_of_workers =
            self.jobs.get(waiter).is_some_and(|waiter| !waiter.future) && self.blocked + 1 >= self.workers_max;
        let out_of_room = self.blocked + 1 >= self.running_max;
        if out_of_permits || out_of_workers || out_of_room {
            return false;
        }
        self.blocked += 1;
        if own_tenant && let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.blocked += 1;
        }
        if let Some(record) = self.jobs.get_mut(target) {
            record.waited_for_by = Some(waiter);
        }
        true
    }

    /// The wait is over, also if the job has not started.
    pub(crate) fn end_wait(&mut self, waiter: SlabKey, target: SlabKey) {
        if let Some(record) = self.jobs.get_mut(target)
            && record.waited_for_by == Some(waiter)
        {
            record.waited_for_by = None;
            let tenant = record.tenant;
            self.unblock(tenant);
        }
    }

    pub(super) fn unblock(&mut self, tenant: SlabKey) {
        self.blocked = self.blocked.saturating_sub(1);
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.blocked = tenant.blocked.saturating_sub(1);
        }
    }
}
