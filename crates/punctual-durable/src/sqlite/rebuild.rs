//! From the file to the index: at opening, and after a transaction that failed. And back, for the tenants' rows.

use std::collections::BTreeMap;

use punctual::decide::Spent;
use punctual::{Limits, Rate};
use rusqlite::{OptionalExtension, Result, params};

use super::books::{Books, nanos};
use super::index::{Index, Tenant};
use super::queries;
use super::rows::{node_id, tags};
use crate::state::Outcome;
use crate::store::{Beat, CancelCause, TenantPolicy};

impl Books {
    /// Builds the index anew.
    pub(super) fn read_index(&mut self) -> Result<()> {
        self.index = Index::new(self.index.window());
        self.index.is_now(nanos(self.now));
        self.read_tenants()?;
        self.read_nodes()?;
        self.read_jobs()?;
        self.next_seq = self.db().query_row(
            "SELECT max((SELECT ifnull(max(seq), 0) FROM job), (SELECT ifnull(max(seq), 0) FROM history))",
            [],
            |row| row.get::<_, i64>(0),
        )? + 1;
        self.look_ahead().map(drop)
    }

    fn read_tenants(&mut self) -> Result<()> {
        const TENANTS: &str = "SELECT name, has_policy, running_max, backlog_max, scheduled_max, weight, rate_gap, rate_burst, \
             paused, closed, rate_next, succeeded, failed, cancelled, expired, kept FROM tenant";
        let (file, index) = self.parts();
        let mut statement = file.prepare(TENANTS)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let key = index.tenant_key(row.get_ref(0)?.as_str()?);
            let mut limits = Limits::new().weight(row.get(5)?);
            limits.running_max = row.get(2)?;
            limits.backlog_max = row.get::<_, Option<usize>>(3)?.unwrap_or(usize::MAX);
            limits.scheduled_max = row.get::<_, Option<usize>>(4)?.unwrap_or(usize::MAX);
            if let Some(gap) = row.get::<_, Option<i64>>(6)? {
                let gap = std::time::Duration::from_nanos(gap.cast_unsigned());
                limits.rate = Some(Rate::per(1, gap).burst(row.get(7)?));
            }
            let policy = TenantPolicy { limits, paused: row.get(8)?, closed: row.get(9)? };
            let (has_policy, next) = (row.get(1)?, row.get::<_, i64>(10)?.cast_unsigned());
            let ended: [i64; 4] = [row.get(11)?, row.get(12)?, row.get(13)?, row.get(14)?];
            let kept = row.get(15)?;
            index.load_tenant(key, |tenant| {
                tenant.kept = kept;
                tenant.policy = policy;
                tenant.has_policy = has_policy;
                tenant.spent = Spent::from_next_ns(next);
                let counts = Outcome::ALL.into_iter().zip(ended.map(i64::cast_unsigned));
                tenant.totals.ended = counts.filter(|&(_, count)| count > 0).collect();
            });
        }
        Ok(())
    }

    fn read_nodes(&mut self) -> Result<()> {
        let (file, index) = self.parts();
        let mut statement = file.prepare("SELECT id, name, kinds, paused, workers FROM node")?;
        let nodes = statement.query_map([], |row| {
            let node = node_id(row.get(0)?);
            let (kinds, paused) = (tags(row, 2)?, tags(row, 3)?);
            Ok((node, Beat { node, name: row.get(1)?, kinds, paused, workers: row.get(4)?, era: 0 }))
        })?;
        index.nodes = nodes.collect::<Result<_>>()?;
        Ok(())
    }

    fn read_jobs(&mut self) -> Result<()> {
        const READY: &str =
            "SELECT tenant, kind, alone, count(*) FROM job WHERE stage = 'ready' GROUP BY tenant, kind, alone";
        // One pass over all live jobs: no index has the tenant of the scheduled, or the running.
        const OTHERS: &str = "SELECT seq, stage = 'running', tenant FROM job WHERE stage <> 'ready'";
        let (file, index) = self.parts();
        let mut statement = file.prepare(READY)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            index.load_ready(row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?, row.get(2)?, row.get(3)?);
        }
        let (mut scheduled, mut running) = (BTreeMap::<String, usize>::new(), Vec::new());
        let mut statement = file.prepare(OTHERS)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let tenant = row.get_ref(2)?.as_str()?;
            if row.get(1)? {
                running.push(row.get::<_, i64>(0)?);
            } else if let Some(count) = scheduled.get_mut(tenant) {
                *count += 1;
            } else {
                scheduled.insert(tenant.to_owned(), 1);
            }
        }
        for (tenant, count) in scheduled {
            let key = index.tenant_key(&tenant);
            index.load_tenant(key, |tenant| tenant.totals.scheduled = count);
        }
        for seq in running {
            if let Some(live) = queries::load_seq(file, seq)? {
                index.enter(&live);
            }
        }
        Ok(())
    }

    /// The process that ran these jobs is gone, and so are those who wanted them.
    pub(super) fn lose_all(&mut self) -> Result<()> {
        let running: Vec<_> = self.index.all_running().map(|(_, running)| running.seq).collect();
        for seq in running {
            if let Some(live) = queries::load_seq(self.db(), seq)? {
                self.lose(live)?;
            }
        }
        while let Some(seq) = self
            .db()
            .query_row("SELECT seq FROM job WHERE while_wanted = 1 LIMIT 1", [], |row| row.get::<_, i64>(0))
            .optional()?
        {
            if let Some(live) = queries::load_seq(self.db(), seq)? {
                self.cancel_one(live, CancelCause::Unwanted)?;
            }
        }
        self.brought = super::books::Brought::default();
        Ok(())
    }

    /// Writes the rows of the tenants that changed.
    pub(super) fn write_tenants(&mut self) -> Result<()> {
        const PUT: &str = "INSERT OR REPLACE INTO tenant (name, has_policy, running_max, backlog_max, scheduled_max, weight, \
             rate_gap, rate_burst, paused, closed, rate_next, succeeded, failed, cancelled, expired, kept) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";
        for key in self.index.take_dirty() {
            let tenant = self.index.tenant(key);
            if !tenant.is_written() {
                self.db().prepare_cached("DELETE FROM tenant WHERE name = ?1")?.execute([&tenant.name])?;
                continue;
            }
            let Tenant { name, policy, has_policy, totals, kept, spent, .. } = tenant;
            let limits = &policy.limits;
            let most = |max: usize| (max != usize::MAX).then_some(queries::limit(max));
            let ended = Outcome::ALL.map(|outcome| totals.ended.get(&outcome).map_or(0, |count| count.cast_signed()));
            self.db().prepare_cached(PUT)?.execute(params![
                name,
                has_policy,
                limits.running_max.map(queries::limit),
                most(limits.backlog_max),
                most(limits.scheduled_max),
                limits.weight,
                limits.rate.map(|rate| i64::try_from(rate.gap().as_nanos()).unwrap_or(i64::MAX)),
                limits.rate.map(|rate| rate.at_once()),
                policy.paused,
                policy.closed,
                spent.next_ns().cast_signed(),
                ended[0],
                ended[1],
                ended[2],
                ended[3],
                queries::limit(*kept),
            ])?;
        }
        Ok(())
    }
}
