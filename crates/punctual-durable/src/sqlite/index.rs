//! The scheduling state in memory: who may run next, and how many of what there are. No file, no clock.
//!
//! # Invariants
//! 1. Gauges and the counts of lanes are exact: they are what the table of live jobs says.
//! 2. A lane knows the first jobs of those that are ready, not all: whatever is ready on disk and not in memory comes
//!    after the last one in memory. So memory does not grow with the jobs that wait.
//! 3. A tenant is in `fair` if and only if it has a ready job, is not paused, is below its limit and is not held back
//!    by its rate.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use punctual::Stage;
use punctual::decide::{Fair, Load, Spent, Tag};

use super::queries::Live;
use crate::id::{JobId, NodeId};
use crate::state::Outcome;
use crate::store::{Beat, TenantPolicy, TenantRecord, Totals};

/// A tenant's number.
pub(super) type TenantKey = u32;

/// A kind's number.
pub(super) type KindKey = u32;

/// Where a ready job stands in its lane: `order_at` and the order of arrival.
pub(super) type Turn = (i64, i64);

/// Everything that is known without looking into the file.
#[derive(Debug)]
pub(super) struct Index {
    /// How many jobs of a lane are in memory at most.
    window: usize,
    tenants: Vec<Tenant>,
    by_name: BTreeMap<Arc<str>, TenantKey>,
    kinds: HashMap<Arc<str>, KindKey>,
    kind_names: Vec<Arc<str>>,
    fair: Fair<TenantKey>,
    /// Tenants held back by their rate alone, and until when (in nanoseconds).
    held: BTreeSet<(u64, TenantKey)>,
    running: HashMap<JobId, Running>,
    /// How many of those must be alone.
    alone: usize,
    pub(super) nodes: BTreeMap<NodeId, Beat>,
    /// Tenants whose rows have to be written.
    dirty: BTreeSet<TenantKey>,
    /// The present, in nanoseconds.
    now_ns: u64,
}

/// One tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) name: Arc<str>,
    pub(super) policy: TenantPolicy,
    pub(super) has_policy: bool,
    pub(super) totals: Totals,
    /// How many ended jobs of it are kept.
    pub(super) kept: usize,
    pub(super) spent: Spent,
    tag: Tag,
    held_until: Option<u64>,
    lanes: BTreeMap<(KindKey, bool), Lane>,
}

/// The ready jobs of one tenant and kind; those that must run alone apart.
#[derive(Debug, Default)]
struct Lane {
    count: usize,
    first: BTreeSet<Turn>,
}

/// A job that runs.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) seq: i64,
    pub(super) tenant: TenantKey,
    pub(super) fence: u64,
    pub(super) node: NodeId,
    pub(super) outcome: Option<Outcome>,
    pub(super) unique: Option<Box<str>>,
    pub(super) while_wanted: bool,
    pub(super) forget: bool,
    pub(super) alone: bool,
}

/// The next job of a tenant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This one.
    Job(Turn),
    /// The lane's first jobs have to be read.
    Unread(KindKey, bool),
    /// None of the asked kinds.
    None,
}

impl Lane {
    fn insert(&mut self, turn: Turn, window: usize) {
        let complete = self.count == self.first.len();
        self.count += 1;
        if complete || self.first.last().is_some_and(|&last| turn < last) {
            self.first.insert(turn);
            if self.first.len() > window {
                self.first.pop_last();
            }
        }
    }

    fn remove(&mut self, turn: Turn) {
        debug_assert!(self.count > 0, "a job left a lane that had none");
        self.count = self.count.saturating_sub(1);
        self.first.remove(&turn);
    }
}

impl Index {
    pub(super) fn new(window: usize) -> Self {
        Self {
            window: window.max(1),
            tenants: Vec::new(),
            by_name: BTreeMap::new(),
            kinds: HashMap::new(),
            kind_names: Vec::new(),
            fair: Fair::new(),
            held: BTreeSet::new(),
            running: HashMap::new(),
            alone: 0,
            nodes: BTreeMap::new(),
            dirty: BTreeSet::new(),
            now_ns: 0,
        }
    }

    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// The tenant of this name, known or new.
    pub(super) fn tenant_key(&mut self, name: &str) -> TenantKey {
        if let Some(&key) = self.by_name.get(name) {
            return key;
        }
        let key = TenantKey::try_from(self.tenants.len()).expect("fewer than 2^32 tenants");
        let name: Arc<str> = name.into();
        self.by_name.insert(Arc::clone(&name), key);
        self.tenants.push(Tenant {
            name,
            policy: TenantPolicy::default(),
            has_policy: false,
            totals: Totals::default(),
            kept: 0,
            spent: Spent::default(),
            tag: Tag::default(),
            held_until: None,
            lanes: BTreeMap::new(),
        });
        key
    }

    pub(super) fn find_tenant(&self, name: &str) -> Option<&Tenant> {
        self.by_name.get(name).map(|&key| self.tenant(key))
    }

    pub(super) fn tenant(&self, key: TenantKey) -> &Tenant {
        &self.tenants[key as usize]
    }

    /// Changes a tenant's terms; its row is written with the next commit.
    pub(super) fn change_tenant(&mut self, key: TenantKey, change: impl FnOnce(&mut Tenant)) {
        change(&mut self.tenants[key as usize]);
        self.dirty.insert(key);
        self.refresh(key);
    }

    /// As a row said.
    pub(super) fn load_tenant(&mut self, key: TenantKey, change: impl FnOnce(&mut Tenant)) {
        change(&mut self.tenants[key as usize]);
        self.refresh(key);
    }

    /// A tenant is forgotten. What still runs of it is accounted to one of that name that starts anew.
    pub(super) fn erase_tenant(&mut self, name: &str) {
        let Some(old) = self.by_name.remove(name) else { return };
        let tenant = &mut self.tenants[old as usize];
        let (running, stopping) = (tenant.totals.running, tenant.totals.stopping);
        tenant.totals = Totals::default();
        tenant.policy = TenantPolicy::default();
        tenant.lanes.clear();
        tenant.kept = 0;
        tenant.spent = Spent::default();
        self.refresh(old);
        // Its row is taken away under its name.
        let new = self.tenant_key(name);
        self.dirty.remove(&old);
        self.dirty.insert(new);
        let totals = &mut self.tenants[new as usize].totals;
        (totals.running, totals.stopping) = (running, stopping);
        self.running.values_mut().filter(|running| running.tenant == old).for_each(|running| running.tenant = new);
    }

    pub(super) fn tenants_after<'a>(&'a self, after: Option<&str>) -> impl Iterator<Item = &'a Tenant> + use<'a> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.by_name.range::<str, _>((from, Unbounded)).map(|(_, &key)| self.tenant(key))
    }

    /// The tenants whose rows have to be written.
    pub(super) fn take_dirty(&mut self) -> BTreeSet<TenantKey> {
        std::mem::take(&mut self.dirty)
    }

    pub(super) fn kind_key(&mut self, name: &str) -> KindKey {
        if let Some(&key) = self.kinds.get(name) {
            return key;
        }
        let key = KindKey::try_from(self.kind_names.len()).expect("fewer than 2^32 kinds");
        let name: Arc<str> = name.into();
        self.kind_names.push(Arc::clone(&name));
        self.kinds.insert(name, key);
        key
    }

    pub(super) fn find_kind(&self, name: &str) -> Option<KindKey> {
        self.kinds.get(name).copied()
    }

    pub(super) fn kind_name(&self, key: KindKey) -> Arc<str> {
        Arc::clone(&self.kind_names[key as usize])
    }

    /// A live job is where its record says from now on.
    pub(super) fn enter(&mut self, live: &Live) {
        let record = &live.record;
        let tenant = self.tenant_key(&record.job.tenant);
        match record.state.stage {
            Stage::Scheduled => self.tenants[tenant as usize].totals.scheduled += 1,
            Stage::Ready => {
                let kind = self.kind_key(&record.job.kind);
                self.enter_ready(tenant, kind, live.record.has_last_chance(), live.turn());
            }
            Stage::Running => {
                let totals = &mut self.tenants[tenant as usize].totals;
                totals.running += 1;
                totals.stopping += usize::from(record.state.outcome.is_some());
                let running = Running {
                    seq: live.seq,
                    tenant,
                    fence: record.fence,
                    node: record.node.unwrap_or(NodeId::from_u64(0)),
                    outcome: record.state.outcome,
                    unique: record.job.unique.as_ref().map(|unique| unique.key.as_str().into()),
                    while_wanted: live.while_wanted,
                    forget: live.forget,
                    alone: live.record.has_last_chance(),
                };
                self.alone += usize::from(running.alone);
                self.running.insert(record.job.id, running);
                self.refresh(tenant);
            }
            Stage::Stopped => debug_assert!(false, "an ended job is no live one"),
        }
    }

    /// It is not there any more.
    pub(super) fn leave(&mut self, live: &Live) {
        let record = &live.record;
        let tenant = self.tenant_key(&record.job.tenant);
        match record.state.stage {
            Stage::Scheduled => {
                let totals = &mut self.tenants[tenant as usize].totals;
                totals.scheduled = totals.scheduled.saturating_sub(1);
            }
            Stage::Ready => {
                let kind = self.kind_key(&record.job.kind);
                let lane = (kind, live.record.has_last_chance());
                let state = &mut self.tenants[tenant as usize];
                state.totals.ready = state.totals.ready.saturating_sub(1);
                if let Some(jobs) = state.lanes.get_mut(&lane) {
                    jobs.remove(live.turn());
                    if jobs.count == 0 {
                        state.lanes.remove(&lane);
                    }
                }
                self.refresh(tenant);
            }
            Stage::Running => drop(self.leave_running(record.job.id)),
            Stage::Stopped => debug_assert!(false, "an ended job is no live one"),
        }
    }

    /// A job that waited for its due instant is ready.
    pub(super) fn fall_due(&mut self, tenant: &str, kind: &str, alone: bool, turn: Turn) {
        let (tenant, kind) = (self.tenant_key(tenant), self.kind_key(kind));
        let totals = &mut self.tenants[tenant as usize].totals;
        totals.scheduled = totals.scheduled.saturating_sub(1);
        self.enter_ready(tenant, kind, alone, turn);
    }

    fn enter_ready(&mut self, tenant: TenantKey, kind: KindKey, alone: bool, turn: Turn) {
        let window = self.window;
        let state = &mut self.tenants[tenant as usize];
        state.totals.ready += 1;
        state.lanes.entry((kind, alone)).or_default().insert(turn, window);
        self.refresh(tenant);
    }

    /// So many are ready on disk, none of them in memory yet.
    pub(super) fn load_ready(&mut self, tenant: &str, kind: &str, alone: bool, count: usize) {
        let (tenant, kind) = (self.tenant_key(tenant), self.kind_key(kind));
        let state = &mut self.tenants[tenant as usize];
        state.totals.ready += count;
        state.lanes.entry((kind, alone)).or_default().count += count;
        self.refresh(tenant);
    }

    /// These are the first of a lane.
    pub(super) fn fill(&mut self, tenant: TenantKey, lane: (KindKey, bool), first: BTreeSet<Turn>) {
        if let Some(jobs) = self.tenants[tenant as usize].lanes.get_mut(&lane) {
            debug_assert!(!first.is_empty(), "a lane counts jobs that are not there");
            jobs.first = first;
        }
    }

    pub(super) fn running(&self, id: JobId) -> Option<&Running> {
        self.running.get(&id)
    }

    pub(super) fn all_running(&self) -> impl Iterator<Item = (JobId, &Running)> {
        self.running.iter().map(|(&id, running)| (id, running))
    }

    /// A run is over.
    pub(super) fn leave_running(&mut self, id: JobId) -> Option<Running> {
        let running = self.running.remove(&id)?;
        self.alone -= usize::from(running.alone);
        let totals = &mut self.tenants[running.tenant as usize].totals;
        totals.running = totals.running.saturating_sub(1);
        totals.stopping = totals.stopping.saturating_sub(usize::from(running.outcome.is_some()));
        self.refresh(running.tenant);
        Some(running)
    }

    /// A job has ended so.
    pub(super) fn count_end(&mut self, tenant: TenantKey, outcome: Outcome) {
        let tenant_state = &mut self.tenants[tenant as usize];
        *tenant_state.totals.ended.entry(outcome).or_default() += 1;
        tenant_state.kept += 1;
        self.dirty.insert(tenant);
    }

    /// An ended job of it is not kept any more.
    pub(super) fn uncount(&mut self, tenant: &str) {
        let tenant = self.tenant_key(tenant);
        let state = &mut self.tenants[tenant as usize];
        state.kept = state.kept.saturating_sub(1);
        self.dirty.insert(tenant);
    }

    /// Lets tenants back whose rate allows a start now.
    pub(super) fn is_now(&mut self, now_ns: u64) {
        // Set back, the clock may hold some back that were let go: they are found when it is their turn.
        self.now_ns = now_ns;
        while let Some(&(until, tenant)) = self.held.first()
            && until <= now_ns
        {
            self.refresh(tenant);
        }
    }

    /// Whose turn it is.
    pub(super) fn first(&self) -> Option<TenantKey> {
        self.fair.first()
    }

    /// The tenant is passed over for the rest of a claim.
    pub(super) fn step_aside(&mut self, tenant: TenantKey) {
        self.fair.leave(tenant, &mut self.tenants[tenant as usize].tag);
    }

    /// It may be chosen again, if it can run.
    pub(super) fn step_back(&mut self, tenant: TenantKey) {
        self.refresh(tenant);
    }

    /// The earliest instant at which a tenant that only its rate holds back may start a job of these kinds.
    pub(super) fn next_allowed(&self, room: &HashMap<KindKey, usize>) -> Option<u64> {
        let wants = |tenant| self.tenant(tenant).has_place() && self.next_of(tenant, room) != Next::None;
        self.held.iter().find(|&&(_, tenant)| wants(tenant)).map(|&(until, _)| until)
    }

    /// The next job of a tenant among the kinds that have room.
    pub(super) fn next_of(&self, tenant: TenantKey, room: &HashMap<KindKey, usize>) -> Next {
        let mut next: Option<Turn> = None;
        for (&(kind, alone), lane) in &self.tenant(tenant).lanes {
            if room.get(&kind).copied().unwrap_or(0) == 0 || (alone && self.alone > 0) {
                continue;
            }
            let Some(&first) = lane.first.first() else { return Next::Unread(kind, alone) };
            next = Some(next.map_or(first, |next| next.min(first)));
        }
        next.map_or(Next::None, Next::Job)
    }

    /// The tenant's job starts: its share and its rate are spent.
    pub(super) fn spend(&mut self, tenant: TenantKey, cost: u32) {
        let state = &mut self.tenants[tenant as usize];
        self.fair.dispatch(tenant, &mut state.tag, cost, state.policy.limits.weight);
        if let Some(rate) = &state.policy.limits.rate {
            state.spent.spend(rate, self.now_ns);
            self.dirty.insert(tenant);
        }
        self.refresh(tenant);
    }

    /// Whether another job that must be alone runs.
    pub(super) fn somebody_is_alone(&self) -> bool {
        self.alone > 0
    }

    /// All tenants together.
    pub(super) fn totals(&self) -> Totals {
        let mut all = Totals::default();
        for tenant in &self.tenants {
            let totals = &tenant.totals;
            all.scheduled += totals.scheduled;
            all.ready += totals.ready;
            all.running += totals.running;
            all.stopping += totals.stopping;
            for (&outcome, count) in &totals.ended {
                *all.ended.entry(outcome).or_default() += count;
            }
        }
        all
    }

    /// Restores invariant 3.
    fn refresh(&mut self, tenant: TenantKey) {
        let state = &mut self.tenants[tenant as usize];
        let until = state.held_back_until(self.now_ns);
        if until != state.held_until {
            if let Some(before) = std::mem::replace(&mut state.held_until, until) {
                self.held.remove(&(before, tenant));
            }
            self.held.extend(until.map(|until| (until, tenant)));
        }
        if state.has_place() && state.held_until.is_none() {
            self.fair.enter(tenant, &mut state.tag);
        } else {
            self.fair.leave(tenant, &mut state.tag);
        }
    }
}

impl Tenant {
    /// Whether it has a ready job and may run one more, its rate apart.
    fn has_place(&self) -> bool {
        !self.policy.paused
            && self.totals.ready > 0
            && self.policy.limits.running_max.is_none_or(|max| self.totals.running < max)
    }

    /// What its limits are compared with.
    pub(super) fn load(&self) -> Load {
        Load {
            scheduled: self.totals.scheduled,
            waiting: self.totals.ready,
            running: self.totals.running,
            paused: self.policy.paused,
        }
    }

    /// When its rate allows the next start; `None` if it has none, or it does now, or a pause holds it back anyway.
    pub(super) fn held_back_until(&self, now_ns: u64) -> Option<u64> {
        let rate = self.policy.limits.rate.as_ref().filter(|_| !self.policy.paused)?;
        let allowed = self.spent.allowed_at(rate, now_ns);
        (allowed > now_ns).then_some(allowed)
    }

    /// Whether somebody has said something about it, or it has jobs.
    pub(super) fn is_there(&self) -> bool {
        let totals = &self.totals;
        self.has_policy || totals.scheduled + totals.ready + totals.running > 0 || self.kept > 0
    }

    /// Whether it has a row.
    pub(super) fn is_written(&self) -> bool {
        self.has_policy || !self.totals.ended.is_empty()
    }

    pub(super) fn record(&self) -> TenantRecord {
        TenantRecord { name: self.name.to_string(), policy: self.policy, totals: self.totals.clone() }
    }
}
