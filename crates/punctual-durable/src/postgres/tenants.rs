//! Tenants: what they may do, what they have, and their end.

use tokio_postgres::types::Type;

use super::Shared;
use super::connect::Function;
use super::error::Fault;
use super::rows::{Parameter, Reader, TENANT, TOTALS, count, limit, nanos, tenant, totals};
use crate::store::{Erased, TenantChange, TenantRecord, Totals};

const CHANGE: Function = Function::new("set_tenant", "change a tenant").repeatable();
const LOOK_UP: Function = Function::new("tenant_records", "look up tenants").repeatable();
const TOTAL: Function = Function::new("totals", "count jobs").repeatable();
const CANCEL: Function = Function::new("cancel_tenant", "cancel the jobs of a tenant");
const ERASE: Function = Function::new("erase", "erase a tenant");

impl Shared {
    pub(super) async fn set_tenant(&self, name: String, change: TenantChange) -> Result<(), Fault> {
        let (is_limited, limits) = (change.limits.is_some(), change.limits.unwrap_or_default());
        let at = self.clock.given();
        let (running, weight) = (limits.running_max.map(count), i64::from(limits.weight));
        let (backlog, scheduled) = (limit(limits.backlog_max), limit(limits.scheduled_max));
        let gap = limits.rate.map(|rate| nanos(rate.gap()));
        let burst = limits.rate.map(|rate| i64::from(rate.at_once()));
        let parameters: [Parameter<'_>; 11] = [
            (&name, Type::TEXT),
            (&is_limited, Type::BOOL),
            (&running, Type::INT8),
            (&backlog, Type::INT8),
            (&scheduled, Type::INT8),
            (&weight, Type::INT8),
            (&gap, Type::INT8),
            (&burst, Type::INT8),
            (&change.paused, Type::BOOL),
            (&change.closed, Type::BOOL),
            (&at, Type::INT8),
        ];
        self.database.call(CHANGE, "*", &parameters).await?;
        self.tell_work();
        Ok(())
    }

    pub(super) async fn tenant(&self, name: String) -> Result<TenantRecord, Fault> {
        let found = self.tenant_records(Some(&name), None, 1).await?.pop();
        Ok(found.unwrap_or(TenantRecord { name, ..TenantRecord::default() }))
    }

    pub(super) async fn tenant_records(
        &self,
        only: Option<&str>,
        after: Option<&str>,
        max: usize,
    ) -> Result<Vec<TenantRecord>, Fault> {
        let (max, at) = (count(max), self.clock.given());
        let parameters: [Parameter<'_>; 4] =
            [(&only, Type::TEXT), (&after, Type::TEXT), (&max, Type::INT8), (&at, Type::INT8)];
        let rows = self.database.call(LOOK_UP, TENANT, &parameters).await?;
        rows.iter().map(|row| tenant(&mut Reader::new(LOOK_UP.what, row))).collect()
    }

    pub(super) async fn totals(&self) -> Result<Totals, Fault> {
        let at = self.clock.given();
        let rows = self.database.call(TOTAL, TOTALS, &[(&at, Type::INT8)]).await?;
        rows.first().map_or(Ok(Totals::default()), |row| totals(&mut Reader::new(TOTAL.what, row)))
    }

    pub(super) async fn cancel_tenant(&self, name: String) -> Result<usize, Fault> {
        let at = self.clock.given();
        let cancelled = self.number(CANCEL, &[(&name, Type::TEXT), (&at, Type::INT8)]).await?;
        self.signals.look();
        self.tell_work();
        Ok(cancelled)
    }

    pub(super) async fn erase(&self, name: String) -> Result<Erased, Fault> {
        let at = self.clock.given();
        let rows = self.database.call(ERASE, "*", &[(&name, Type::TEXT), (&at, Type::INT8)]).await?;
        let mut erased = Erased { removed: 0, stopping: 0 };
        if let Some(row) = rows.first() {
            let mut read = Reader::new(ERASE.what, row);
            (erased.removed, erased.stopping) = (read.number()?, read.number()?);
        }
        self.signals.look();
        self.tell_work();
        Ok(erased)
    }
}
