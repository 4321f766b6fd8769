//! One of the parties that jobs are worked for.

use std::time::Duration;

use punctual::{Cron, Limits};

use crate::error::StoreError;
use crate::jobs::Jobs;
use crate::plan::{Plan, When};
use crate::schedule::SchedulePlan;
use crate::store::{Erased, TenantChange, TenantRecord};

/// One of the parties that jobs are worked for, with the same words, its own limits and its fair share. A name nobody
/// used before is a tenant without limits; there is nothing to declare.
///
/// # Example
/// ```
/// # pollster::block_on(async {
/// use punctual::Limits;
/// let jobs = punctual_durable::Jobs::open("memory:").await?;
/// let acme = jobs.tenant("acme");
/// acme.set_limits(Limits::new().running_max(4).backlog_max(1_000)).await?;
/// assert_eq!(acme.record().await?.policy.limits.running_max, Some(4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Tenant {
    jobs: Jobs,
    name: String,
}

impl Tenant {
    pub(crate) fn new(jobs: Jobs, name: String) -> Self {
        Self { jobs, name }
    }

    /// Its name.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// # let jobs = punctual_durable::Jobs::open("memory:").await.unwrap();
    /// assert_eq!(jobs.tenant("acme").name(), "acme");
    /// # });
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A job of this tenant, due at once.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{EnqueueError, Job, Tenant};
    /// async fn submit<J: Job>(acme: &Tenant, job: J) -> Result<(), EnqueueError<J>> {
    ///     let _handle = acme.now().enqueue(job).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn now(&self) -> Plan {
        self.after(Duration::ZERO)
    }

    /// A job of this tenant, due after a delay.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Plan, Tenant};
    /// # use std::time::Duration;
    /// fn soon(acme: &Tenant) -> Plan {
    ///     acme.after(Duration::from_secs(60))
    /// }
    /// ```
    pub fn after(&self, delay: Duration) -> Plan {
        self.at(delay)
    }

    /// A job of this tenant, due at a date, or after a delay.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Plan, Tenant};
    /// fn then(acme: &Tenant, date: std::time::SystemTime) -> Plan {
    ///     acme.at(date)
    /// }
    /// ```
    pub fn at(&self, when: impl Into<When>) -> Plan {
        Plan::new(self.jobs.clone(), self.name.clone(), when.into())
    }

    /// A schedule of this tenant: a job every `period`. The name is what it is known by at every restart.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{SchedulePlan, Tenant};
    /// # use std::time::Duration;
    /// fn hourly(acme: &Tenant) -> SchedulePlan {
    ///     acme.every("acme-sweep", Duration::from_secs(3600))
    /// }
    /// ```
    pub fn every(&self, name: &str, period: Duration) -> SchedulePlan {
        SchedulePlan::every(self.jobs.clone(), self.name.clone(), name.to_owned(), period)
    }

    /// A schedule of this tenant: a job at each tick of a cron expression.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{SchedulePlan, Tenant};
    /// # use punctual::Cron;
    /// fn nightly(acme: &Tenant) -> SchedulePlan {
    ///     acme.cron("acme-report", Cron::parse("0 3 * * *").unwrap())
    /// }
    /// ```
    #[allow(clippy::needless_pass_by_value, reason = "the same words as in process")]
    pub fn cron(&self, name: &str, cron: Cron) -> SchedulePlan {
        SchedulePlan::cron(self.jobs.clone(), self.name.clone(), name.to_owned(), &cron)
    }

    /// What it may do, and its numbers.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{StoreError, Tenant};
    /// async fn is_idle(acme: &Tenant) -> Result<bool, StoreError> {
    ///     Ok(acme.record().await?.totals.running == 0)
    /// }
    /// ```
    pub async fn record(&self) -> Result<TenantRecord, StoreError> {
        self.jobs.store().tenant(self.name.clone()).await
    }

    /// Changes its limits; in force from the next enqueue and the next claim, on every node.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{StoreError, Tenant};
    /// # use punctual::Limits;
    /// async fn throttle(acme: &Tenant) -> Result<(), StoreError> {
    ///     acme.set_limits(Limits::new().running_max(1)).await
    /// }
    /// ```
    pub async fn set_limits(&self, limits: Limits) -> Result<(), StoreError> {
        self.change(TenantChange { limits: Some(limits), ..TenantChange::default() }).await
    }

    /// Starts nothing of it until it is resumed. What runs goes on.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{StoreError, Tenant};
    /// async fn hold(acme: &Tenant) -> Result<(), StoreError> {
    ///     acme.pause().await
    /// }
    /// ```
    pub async fn pause(&self) -> Result<(), StoreError> {
        self.change(TenantChange { paused: Some(true), ..TenantChange::default() }).await
    }

    /// Starts its jobs again.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{StoreError, Tenant};
    /// async fn go_on(acme: &Tenant) -> Result<(), StoreError> {
    ///     acme.resume().await
    /// }
    /// ```
    pub async fn resume(&self) -> Result<(), StoreError> {
        self.change(TenantChange { paused: Some(false), ..TenantChange::default() }).await
    }

    /// Takes no new jobs of it, until [`reopen`](Self::reopen).
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{StoreError, Tenant};
    /// async fn no_more(acme: &Tenant) -> Result<(), StoreError> {
    ///     acme.close().await
    /// }
    /// ```
    pub async fn close(&self) -> Result<(), StoreError> {
        self.change(TenantChange { closed: Some(true), ..TenantChange::default() }).await
    }

    /// Takes new jobs of it again.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{StoreError, Tenant};
    /// async fn welcome_back(acme: &Tenant) -> Result<(), StoreError> {
    ///     acme.reopen().await
    /// }
    /// ```
    pub async fn reopen(&self) -> Result<(), StoreError> {
        self.change(TenantChange { closed: Some(false), ..TenantChange::default() }).await
    }

    /// Cancels everything of it; answers how many jobs that was.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{StoreError, Tenant};
    /// async fn stop_everything(acme: &Tenant) -> Result<usize, StoreError> {
    ///     acme.cancel_all().await
    /// }
    /// ```
    pub async fn cancel_all(&self) -> Result<usize, StoreError> {
        self.jobs.store().cancel_tenant(self.name.clone()).await
    }

    /// Forgets everything of it: jobs, results, dead letters, schedules, limits.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{StoreError, Tenant};
    /// async fn right_to_be_forgotten(acme: &Tenant) -> Result<(), StoreError> {
    ///     acme.erase().await?;
    ///     Ok(())
    /// }
    /// ```
    pub async fn erase(&self) -> Result<Erased, StoreError> {
        self.jobs.store().erase(self.name.clone()).await
    }

    async fn change(&self, change: TenantChange) -> Result<(), StoreError> {
        self.jobs.store().set_tenant(self.name.clone(), change).await
    }
}
