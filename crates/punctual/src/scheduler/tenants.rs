//! The tenants of a scheduler, under its lock: what each has waiting and running, and whose turn it is.
//!
//! The decisions are `policy`'s; here is the state they are made on. A tenant that cannot run (no work, at its cap,
//! beyond its rate, paused) is not in the fair order at all, so it is never polled and holds nobody up; it comes back
//! by an event, or by an alarm when its rate allows the next start.
//!
//! # Invariants
//! 1. A tenant is in the fair order if and only if `can_run` says so: `refresh` is called after every change.
//! 2. A tenant's gauges equal the number of its records in each stage.
//! 3. A tenant is forgotten only when nothing would be lost by it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::core::Gauges;
use super::job::Record;
use super::list::{List, OWN, TURN};
use crate::clock::{NEVER, Nanos};
use crate::error::Reason;
use crate::metrics::{Histogram, Outcomes};
use crate::policy::Limits;
use crate::policy::admission::{Load, Refusal, admit_due, admit_scheduled};
use crate::policy::fair::{Fair, Tag};
use crate::policy::rate::Spent;
use crate::slab::{Slab, SlabKey};

/// A priority step counts as much as this much waiting: what waits long enough is overtaken by nobody.
const AGE_STEP: i128 = 30_000_000_000;

pub(crate) struct Tenants {
    all: Slab<TenantState>,
    by_name: HashMap<Arc<str>, SlabKey>,
    fair: Fair<SlabKey>,
    /// Unused, but not to be forgotten before what they have used is made up for by time or by others.
    owing: VecDeque<SlabKey>,
    /// The tenant of work that names none.
    pub(crate) default: SlabKey,
}

pub(crate) struct TenantState {
    pub(crate) name: Arc<str>,
    pub(crate) limits: Limits,
    pub(crate) paused: bool,
    pub(crate) closed: bool,
    /// Handles that callers hold.
    pub(crate) handles: usize,
    pub(crate) gauges: Gauges,
    /// All its jobs, whatever their stage. The default tenant, which nobody cancels as a whole, keeps no such list.
    pub(crate) jobs: List<OWN>,
    waiting: BTreeMap<i8, List<TURN>>,
    tag: Tag,
    spent: Spent,
    /// Set while the rate alone keeps it from running.
    pub(crate) alarm: Option<SlabKey>,
    pub(crate) finished: Outcomes,
    pub(crate) rejected: u64,
    pub(crate) missed: u64,
    pub(crate) lateness: Histogram,
    pub(crate) timing_error: Histogram,
    /// A running average of how long its jobs run.
    run_ns: Option<u64>,
    /// It is in `owing`.
    owing: bool,
}

impl TenantState {
    fn new(name: Arc<str>, limits: Limits) -> Self {
        Self {
            name,
            limits,
            paused: false,
            closed: false,
            handles: 0,
            gauges: Gauges::default(),
            jobs: List::default(),
            waiting: BTreeMap::new(),
            tag: Tag::default(),
            spent: Spent::default(),
            alarm: None,
            finished: Outcomes::default(),
            rejected: 0,
            missed: 0,
            lateness: Histogram::new(),
            timing_error: Histogram::new(),
            run_ns: None,
            owing: false,
        }
    }

    fn load(&self) -> Load {
        let Gauges { scheduled, pressing, ready, running, .. } = self.gauges;
        Load { scheduled: scheduled - pressing, waiting: ready + pressing, running, paused: self.paused }
    }

    fn has_permit(&self) -> bool {
        self.limits.running_max.is_none_or(|max| self.gauges.running < max)
    }

    /// Notes how long a run took.
    pub(crate) fn ran_for(&mut self, took: Nanos) {
        self.run_ns = Some(self.run_ns.map_or(took, |mean| mean - mean / 8 + took / 8));
    }

    /// When a place is likely to be free: exact if the rate alone is what holds it up, an estimate from the mean
    /// running time otherwise, and nothing if nothing is known.
    fn retry_after(&self, now: Nanos) -> Option<Duration> {
        if self.paused || self.limits.running_max == Some(0) {
            return None;
        }
        let until_allowed = self.held_by_rate_until(now).map(|until| until - now);
        let wait = match (until_allowed, self.limits.running_max) {
            // A place is free when the next one starts.
            (Some(wait), None) => Some(wait),
            // A place is free when the next one has started and ended.
            (Some(wait), Some(_)) if self.gauges.running == 0 => self.run_ns.map(|mean| wait.saturating_add(mean)),
            _ => self.run_ns.map(|mean| mean / u64::try_from(self.gauges.running.max(1)).unwrap_or(1)),
        };
        wait.map(|wait| Duration::from_nanos(wait.max(1)))
    }

    /// If nothing but its rate keeps it from starting a job: until when.
    fn held_by_rate_until(&self, now: Nanos) -> Option<Nanos> {
        let rate = self.limits.rate.as_ref().filter(|_| !self.paused && self.has_permit())?;
        Some(self.spent.allowed_at(rate, now)).filter(|&allowed| allowed > now)
    }
}

/// Who may run, and until when the others must wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Runs,
    /// Only its rate holds it up, until then.
    WaitsForRate(Nanos),
    Cannot,
}

impl Tenants {
    pub(crate) fn new() -> Self {
        let mut all = Slab::new();
        let default = all.insert(0, TenantState::new(Arc::from(""), Limits::new()));
        Self { all, by_name: HashMap::new(), fair: Fair::new(), owing: VecDeque::new(), default }
    }

    pub(crate) fn get(&self, key: SlabKey) -> Option<&TenantState> {
        self.all.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: SlabKey) -> Option<&mut TenantState> {
        self.all.get_mut(key)
    }

    /// Opens a tenant, or finds the one of that name.
    pub(crate) fn open(&mut self, name: &str, limits: Limits, now: Nanos) -> Result<SlabKey, Limits> {
        self.forget_some(now);
        let key = match self.by_name.get(name) {
            Some(&key) => key,
            None => {
                let name: Arc<str> = Arc::from(name);
                let key = self.all.insert(0, TenantState::new(Arc::clone(&name), limits));
                self.by_name.insert(name, key);
                key
            }
        };
        let Some(tenant) = self.all.get_mut(key) else { return Err(limits) };
        if tenant.limits != limits {
            return Err(tenant.limits);
        }
        tenant.handles += 1;
        Ok(key)
    }

    /// Forgets a tenant if nothing is lost by it: no handle, no job, no limits, not closed or paused, and nothing owed.
    /// One that owes is looked at again later: each time that a tenant is opened or falls idle, two of those are.
    pub(crate) fn forget_if_unused(&mut self, key: SlabKey, now: Nanos) {
        self.forget_or_note(key, now);
        self.forget_some(now);
    }

    fn forget_some(&mut self, now: Nanos) {
        for _ in 0..2.min(self.owing.len()) {
            let Some(key) = self.owing.pop_front() else { return };
            if let Some(tenant) = self.all.get_mut(key) {
                tenant.owing = false;
            }
            self.forget_or_note(key, now);
        }
    }

    fn forget_or_note(&mut self, key: SlabKey, now: Nanos) {
        let Some(tenant) = self.all.get_mut(key) else { return };
        let Gauges { scheduled, ready, running, .. } = tenant.gauges;
        let unused = key != self.default
            && tenant.handles == 0
            && scheduled + ready + running == 0
            && tenant.limits == Limits::new()
            && !tenant.paused
            && !tenant.closed;
        if !unused {
            return;
        }
        if !tenant.spent.is_rested(now) || !self.fair.owes_nothing(&tenant.tag) {
            if !std::mem::replace(&mut tenant.owing, true) {
                self.owing.push_back(key);
            }
        } else if let Some(tenant) = self.all.remove(key) {
            self.by_name.remove(&tenant.name);
        }
    }

    /// If nobody waits who could run, nobody has had more at the cost of others.
    pub(crate) fn rest_if_none_waits(&mut self) {
        if self.fair.is_empty() {
            self.fair.rest();
        }
    }

    /// How many tenants are known, the default one included.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// A job belongs to a tenant from now on.
    pub(crate) fn adopt(&mut self, jobs: &mut Slab<Record>, tenant: SlabKey, job: SlabKey) {
        if tenant != self.default
            && let Some(tenant) = self.all.get_mut(tenant)
        {
            tenant.jobs.push(jobs, job);
        }
    }

    /// And no longer.
    pub(crate) fn disown(&mut self, jobs: &mut Slab<Record>, job: SlabKey) {
        let Some(tenant) = jobs.get(job).map(|record| record.tenant) else { return };
        if tenant != self.default
            && let Some(tenant) = self.all.get_mut(tenant)
        {
            tenant.jobs.unlink(jobs, job);
        }
    }

    /// May a job enter?
    pub(crate) fn admit(&mut self, key: SlabKey, due_now: bool, now: Nanos) -> Result<(), (Reason, Option<Duration>)> {
        let Some(tenant) = self.all.get_mut(key) else { return Err((Reason::Closed, None)) };
        let decision = match (tenant.closed, due_now) {
            (true, _) => return Err((Reason::Closed, None)),
            (false, true) => admit_due(&tenant.limits, &tenant.load()),
            (false, false) => admit_scheduled(&tenant.limits, &tenant.load()),
        };
        let name = Arc::clone(&tenant.name);
        decision.map_err(|refusal| match refusal {
            Refusal::Backlog { count, max } if tenant.held_by_rate_until(now).is_some() => {
                (Reason::RateLimited { tenant: name, count, max }, tenant.retry_after(now))
            }
            Refusal::Backlog { count, max } => {
                (Reason::BacklogFull { tenant: name, count, max }, tenant.retry_after(now))
            }
            Refusal::Scheduled { count, max } => (Reason::ScheduledFull { tenant: name, count, max }, None),
        })
    }

    /// A job is due: it waits for its turn among its tenant's.
    pub(crate) fn queue(&mut self, jobs: &mut Slab<Record>, job: SlabKey) {
        let Some(record) = jobs.get(job) else { return };
        let (tenant, priority) = (record.tenant, record.priority);
        if let Some(tenant) = self.all.get_mut(tenant) {
            tenant.waiting.entry(priority).or_default().push(jobs, job);
        }
    }

    pub(crate) fn unqueue(&mut self, jobs: &mut Slab<Record>, job: SlabKey) {
        let Some(record) = jobs.get(job) else { return };
        let (tenant, priority) = (record.tenant, record.priority);
        if let Some(tenant) = self.all.get_mut(tenant)
            && let Some(level) = tenant.waiting.get_mut(&priority)
        {
            level.unlink(jobs, job);
            if level.is_empty() {
                tenant.waiting.remove(&priority);
            }
        }
    }

    /// Puts the tenant into the fair order, or takes it out.
    pub(crate) fn refresh(&mut self, key: SlabKey, now: Nanos) -> Standing {
        let Some(tenant) = self.all.get_mut(key) else { return Standing::Cannot };
        let standing = if tenant.waiting.is_empty() || tenant.paused || !tenant.has_permit() {
            Standing::Cannot
        } else {
            match tenant.limits.rate.map_or(now, |rate| tenant.spent.allowed_at(&rate, now)) {
                allowed if allowed > now => Standing::WaitsForRate(allowed),
                _ => Standing::Runs,
            }
        };
        if standing == Standing::Runs {
            self.fair.enter(key, &mut tenant.tag);
        } else {
            self.fair.leave(key, &mut tenant.tag);
        }
        standing
    }

    pub(crate) fn none_can_run(&self) -> bool {
        self.fair.is_empty()
    }

    /// The job whose turn it is.
    pub(crate) fn first(&self, jobs: &Slab<Record>) -> Option<SlabKey> {
        let tenant = self.all.get(self.fair.first()?)?;
        tenant.waiting.get(&tenant.first_level(jobs)?)?.first()
    }

    /// Takes it. Its tenant's virtual time moves on, and its rate is spent.
    pub(crate) fn dispatch(&mut self, jobs: &mut Slab<Record>, now: Nanos) -> Option<SlabKey> {
        let key = self.fair.first()?;
        let tenant = self.all.get_mut(key)?;
        let level = tenant.first_level(jobs)?;
        let list = tenant.waiting.get_mut(&level)?;
        let job = list.pop(jobs)?;
        if list.is_empty() {
            tenant.waiting.remove(&level);
        }
        let cost = jobs.get(job).map_or(1, |record| record.cost);
        self.fair.dispatch(key, &mut tenant.tag, cost, tenant.limits.weight);
        if let Some(rate) = &tenant.limits.rate {
            tenant.spent.spend(rate, now);
        }
        Some(job)
    }
}

impl TenantState {
    /// The level whose first job is next: due plus priority times the age step, which never changes while it waits.
    fn first_level(&self, jobs: &Slab<Record>) -> Option<i8> {
        if self.waiting.len() == 1 {
            return self.waiting.keys().next().copied();
        }
        let order = |(&level, list): (&i8, &List<TURN>)| {
            let due = list.first().and_then(|job| jobs.get(job)).map_or(NEVER, |record| record.due);
            (i128::from(due) + i128::from(level) * AGE_STEP, due, level)
        };
        self.waiting.iter().map(order).min().map(|(.., level)| level)
    }
}
