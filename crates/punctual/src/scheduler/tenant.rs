//! What the caller of a tenant holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::after::After;
use super::plan::{Plan, SeriesPlan, When};
use crate::cron::Cron;
use crate::error::Cause;
use crate::metrics::Snapshot;
use crate::policy::Limits;
use crate::slab::SlabKey;

/// Jobs cancelled before the lock is given to others.
const CANCEL_BATCH: usize = 64;

/// One of the parties a scheduler works for, with its own limits, its own backlog and its fair share of the workers.
/// Cheap to clone. It has the same words as the scheduler: `now`, `after`, `at`, `every`, `cron`.
///
/// # Example
/// ```
/// use punctual::{Limits, Reason, Scheduler};
/// let scheduler = Scheduler::new();
/// let acme = scheduler.tenant("acme", Limits::new().running_max(1).backlog_max(0)).unwrap();
/// let (release, blocked) = std::sync::mpsc::channel::<()>();
/// let running = acme.now().run(move |_| blocked.recv().is_ok()).unwrap();
/// let rejected = acme.now().run(|_| ()).unwrap_err();
/// assert!(matches!(rejected.reason(), Reason::BacklogFull { count: 1, max: 1, .. }));
/// release.send(()).unwrap();
/// # drop(running);
/// ```
#[derive(Clone)]
pub struct Tenant {
    seat: Arc<Seat>,
}

/// Counted as one handle of the tenant, however many clones there are.
struct Seat {
    shared: Arc<Shared>,
    key: SlabKey,
}

impl Tenant {
    pub(crate) fn open(shared: &Arc<Shared>, name: &str, limits: Limits) -> Result<Self, TenantError> {
        let mut core = shared.core.lock();
        let now = core.now(&shared.clock);
        let opened = core.tenants.open(name, limits, now);
        drop(core);
        match opened {
            Ok(key) => Ok(Self { seat: Arc::new(Seat { shared: Arc::clone(shared), key }) }),
            Err(limits) => Err(TenantError { name: name.to_owned(), limits }),
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.seat.shared
    }

    /// A job of this tenant that is due now.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// assert_eq!(acme.now().run(|_| 1).unwrap().wait(), Ok(1));
    /// ```
    pub fn now(&self) -> Plan<'_> {
        self.after(Duration::ZERO)
    }

    /// A job of this tenant that is due after a delay.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// use std::time::Duration;
    /// assert_eq!(acme.after(Duration::from_millis(1)).run(|_| 1).unwrap().wait(), Ok(1));
    /// ```
    pub fn after(&self, delay: Duration) -> Plan<'_> {
        self.at(delay)
    }

    /// A job of this tenant that is due at an `Instant` or a date.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// assert_eq!(acme.at(std::time::UNIX_EPOCH).run(|_| 1).unwrap().wait(), Ok(1));
    /// ```
    pub fn at(&self, when: impl Into<When>) -> Plan<'_> {
        Plan::new(self.shared(), when.into()).for_tenant(self.seat.key)
    }

    /// A series of this tenant.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// use std::time::Duration;
    /// let series = acme.every(Duration::from_secs(1)).run(|_| ()).unwrap();
    /// # drop(series);
    /// ```
    pub fn every(&self, period: Duration) -> SeriesPlan<'_> {
        SeriesPlan::every(self.shared(), period).for_tenant(self.seat.key)
    }

    /// A series of this tenant by cron.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// let series = acme.cron("@daily".parse().unwrap()).run(|_| ()).unwrap();
    /// # drop(series);
    /// ```
    pub fn cron(&self, cron: Cron) -> SeriesPlan<'_> {
        SeriesPlan::cron(self.shared(), cron).for_tenant(self.seat.key)
    }

    /// The name it was opened with.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// assert_eq!(&*acme.name(), "acme");
    /// ```
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        let core = self.shared().core.lock();
        core.tenants.get(self.seat.key).map_or_else(|| Arc::from(""), |tenant| Arc::clone(&tenant.name))
    }

    /// Its limits at this moment.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// assert_eq!(acme.limits(), Limits::new());
    /// ```
    #[must_use]
    pub fn limits(&self) -> Limits {
        let core = self.shared().core.lock();
        core.tenants.get(self.seat.key).map_or_else(Limits::new, |tenant| tenant.limits)
    }

    /// Changes the limits from now on. A lower cap kills nothing, a smaller backlog evicts nothing: both drain down.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// acme.set_limits(Limits::new().running_max(2));
    /// assert_eq!(acme.limits(), Limits::new().running_max(2));
    /// ```
    pub fn set_limits(&self, limits: Limits) {
        self.change(|tenant| tenant.limits = limits);
    }

    /// Starts nothing more until [`resume`](Self::resume); what runs runs on. New work waits, as far as the backlog
    /// allows.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// acme.pause();
    /// let job = acme.now().run(|_| ()).unwrap();
    /// assert_eq!(acme.snapshot().ready, 1);
    /// # drop(job);
    /// ```
    pub fn pause(&self) {
        self.change(|tenant| tenant.paused = true);
    }

    /// Goes on.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// acme.pause();
    /// let mut job = acme.now().run(|_| ()).unwrap();
    /// acme.resume();
    /// assert_eq!(job.wait(), Ok(()));
    /// ```
    pub fn resume(&self) {
        self.change(|tenant| tenant.paused = false);
    }

    /// Takes no new work, for good; what is there goes on.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// acme.close();
    /// assert!(acme.now().run(|_| ()).is_err());
    /// ```
    pub fn close(&self) {
        self.change(|tenant| tenant.closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut super::tenants::TenantState)) {
        let (shared, mut after) = (self.shared(), After::default());
        let mut core = shared.core.lock();
        core.now(&shared.clock);
        core.change_tenant(self.seat.key, change, &shared.clock, &mut after);
        drop(core);
        after.run(shared);
    }

    /// Cancels everything it has, waiting and running. Returns how many jobs and series that were. Takes time for what
    /// the tenant has, whatever the others have.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// use std::time::Duration;
    /// let job = acme.after(Duration::from_secs(60)).run(|_| ()).unwrap();
    /// assert_eq!(acme.cancel_all(), 1);
    /// # drop(job);
    /// ```
    pub fn cancel_all(&self) -> usize {
        let shared = self.shared();
        let jobs = shared.core.lock().jobs_of(self.seat.key);
        // In parts, so that the lock is free for others in between.
        jobs.chunks(CANCEL_BATCH).map(|part| shared.cancel_each(part, Cause::Tenant)).sum()
    }

    /// Its gauges, counters and histograms at this moment.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// assert_eq!(acme.snapshot().running, 0);
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared().core.lock().tenant_snapshot(self.seat.key)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut core = self.shared.core.lock();
        core.now(&self.shared.clock);
        if let Some(tenant) = core.tenants.get_mut(self.key) {
            tenant.handles -= 1;
        }
        core.forget_if_unused(self.key);
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant").field("name", &self.name()).field("limits", &self.limits()).finish_non_exhaustive()
    }
}

/// A tenant of that name is open with other limits. [`Tenant::set_limits`] changes them.
///
/// # Example
/// ```
/// use punctual::{Limits, Scheduler};
/// let scheduler = Scheduler::new();
/// let acme = scheduler.tenant("acme", Limits::new().weight(2)).unwrap();
/// let error = scheduler.tenant("acme", Limits::new()).unwrap_err();
/// assert!(error.to_string().starts_with("tenant \"acme\" is open with other limits"));
/// # drop(acme);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantError {
    name: String,
    limits: Limits,
}

impl TenantError {
    /// The limits it is open with.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let _acme = scheduler.tenant("acme", Limits::new().weight(2)).unwrap();
    /// assert_eq!(scheduler.tenant("acme", Limits::new()).unwrap_err().limits(), Limits::new().weight(2));
    /// ```
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }
}

impl fmt::Display for TenantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant {:?} is open with other limits: {:?}", self.name, self.limits)
    }
}

impl std::error::Error for TenantError {}
