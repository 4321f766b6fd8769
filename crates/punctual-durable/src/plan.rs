//! A durable job about to be enqueued: when, how long wanted, then `enqueue`.

use std::time::{Duration, SystemTime};

use crate::error::{EnqueueError, Problem, StoreError};
use crate::handle::Handle;
use crate::id::{JobId, NodeId};
use crate::interest::Interest;
use crate::job::{Job, Terms};
use crate::jobs::Jobs;
use crate::retry::Backoff;
use crate::store::{Admitted, Moment, NewJob, OnConflict, Unique};
use crate::time::Timestamp;

/// When a durable job is due or not wanted any more: a date, or a while from the moment the store has it.
///
/// # Example
/// ```
/// use punctual_durable::When;
/// use std::time::{Duration, SystemTime};
/// let _soon: When = Duration::from_secs(1).into();
/// let _epoch: When = SystemTime::UNIX_EPOCH.into();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When(pub(crate) Moment);

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        Self(Moment::After(delay))
    }
}

impl From<SystemTime> for When {
    fn from(date: SystemTime) -> Self {
        Self(Moment::At(Timestamp::not_before(date)))
    }
}

impl From<Timestamp> for When {
    fn from(at: Timestamp) -> Self {
        Self(Moment::At(at))
    }
}

/// A durable job about to be enqueued; ends in [`enqueue`](Self::enqueue) or [`enqueue_many`](Self::enqueue_many). What
/// it leaves open is as the job's kind [says](Job::TERMS).
///
/// # Example
/// ```
/// # use punctual_durable::{EnqueueError, Job, Jobs, OnConflict};
/// # use std::time::Duration;
/// async fn remind<J: Job>(jobs: &Jobs, remind: J) -> Result<(), EnqueueError<J>> {
///     let _handle = jobs
///         .tenant("acme")
///         .after(Duration::from_secs(3600))
///         .deadline(Duration::from_secs(7200))
///         .unique("remind-7", OnConflict::Join)
///         .tag("mail")
///         .enqueue(remind)
///         .await?;
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a plan does nothing until it is enqueued"]
pub struct Plan {
    jobs: Jobs,
    tenant: String,
    when: When,
    own: Own,
}

/// What a plan says itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Own {
    pub(crate) id: Option<JobId>,
    pub(crate) priority: Option<i8>,
    pub(crate) cost: Option<u32>,
    pub(crate) start_within: Option<Duration>,
    pub(crate) run_timeout: Option<Duration>,
    pub(crate) deadline: Option<When>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) max_crashes: Option<u32>,
    pub(crate) backoff: Option<Backoff>,
    pub(crate) tags: Vec<String>,
    pub(crate) unique: Option<Unique>,
    pub(crate) while_wanted: bool,
    pub(crate) trace: Option<String>,
}

impl Plan {
    pub(crate) fn new(jobs: Jobs, tenant: String, when: When) -> Self {
        Self { jobs, tenant, when, own: Own::default() }
    }

    /// Its id, for instance to enqueue it again after an answer was lost: an id makes one job.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{JobId, Plan};
    /// fn again(plan: Plan, id: JobId) -> Plan {
    ///     plan.id(id)
    /// }
    /// ```
    pub fn id(mut self, id: JobId) -> Self {
        self.own.id = Some(id);
        self
    }

    /// Earlier (negative) or later (positive) than others of its tenant: a step counts like 30 s of waiting, so nothing
    /// starves.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// fn urgent(plan: Plan) -> Plan {
    ///     plan.priority(-10)
    /// }
    /// ```
    pub fn priority(mut self, priority: i8) -> Self {
        self.own.priority = Some(priority);
        self
    }

    /// What it costs its tenant of its share of the workers; 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// fn heavy(plan: Plan) -> Plan {
    ///     plan.cost(20)
    /// }
    /// ```
    pub fn cost(mut self, cost: u32) -> Self {
        self.own.cost = Some(cost.max(1));
        self
    }

    /// How long after its due instant it may still start; later it expires.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// # use std::time::Duration;
    /// fn now_or_never(plan: Plan) -> Plan {
    ///     plan.start_within(Duration::from_secs(5))
    /// }
    /// ```
    pub fn start_within(mut self, wait: Duration) -> Self {
        self.own.start_within = Some(wait);
        self
    }

    /// How long one attempt may run; then it has failed.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// # use std::time::Duration;
    /// fn quick(plan: Plan) -> Plan {
    ///     plan.run_timeout(Duration::from_secs(10))
    /// }
    /// ```
    pub fn run_timeout(mut self, timeout: Duration) -> Self {
        self.own.run_timeout = Some(timeout);
        self
    }

    /// When nobody wants it any more, waiting or running: a date, or a while from now.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// # use std::time::Duration;
    /// fn today(plan: Plan) -> Plan {
    ///     plan.deadline(Duration::from_secs(86_400))
    /// }
    /// ```
    pub fn deadline(mut self, deadline: impl Into<When>) -> Self {
        self.own.deadline = Some(deadline.into());
        self
    }

    /// How many attempts it has; 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// fn once(plan: Plan) -> Plan {
    ///     plan.max_attempts(1)
    /// }
    /// ```
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.own.max_attempts = Some(attempts.max(1));
        self
    }

    /// How many processes may die while they run it; 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// fn dangerous(plan: Plan) -> Plan {
    ///     plan.max_crashes(1)
    /// }
    /// ```
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.own.max_crashes = Some(crashes.max(1));
        self
    }

    /// How long to wait between attempts.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Backoff, Plan};
    /// # use std::time::Duration;
    /// fn patient(plan: Plan) -> Plan {
    ///     plan.backoff(Backoff::new(Duration::from_secs(60), Duration::from_secs(3600)))
    /// }
    /// ```
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.own.backoff = Some(backoff);
        self
    }

    /// A word to find it by; may be given several times.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// fn tagged(plan: Plan) -> Plan {
    ///     plan.tag("import").tag("monday")
    /// }
    /// ```
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.own.tags.push(tag.into());
        self
    }

    /// At most one live job of its tenant has this key.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{OnConflict, Plan};
    /// fn one_at_a_time(plan: Plan) -> Plan {
    ///     plan.unique("sync-42", OnConflict::Join)
    /// }
    /// ```
    pub fn unique(mut self, key: impl Into<String>, on_conflict: OnConflict) -> Self {
        let period = self.own.unique.take().and_then(|unique| unique.period);
        self.own.unique = Some(Unique { key: key.into(), on_conflict, period });
        self
    }

    /// The unique key stays taken at least this long after the job was enqueued, even if it ends before.
    ///
    /// # Panics
    /// Without a [`unique`](Self::unique) key before it.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{OnConflict, Plan};
    /// # use std::time::Duration;
    /// fn once_an_hour(plan: Plan) -> Plan {
    ///     plan.unique("digest", OnConflict::Reject).unique_for(Duration::from_secs(3600))
    /// }
    /// ```
    pub fn unique_for(mut self, period: Duration) -> Self {
        self.own.unique.as_mut().expect("`unique_for` comes after `unique`").period = Some(period);
        self
    }

    /// It lives only while somebody holds a handle to it: when the last one is dropped, or its process is gone, the job
    /// is cancelled, on whatever node it waits or runs.
    ///
    /// The store is told beside. A process that drops the handle and ends in the same moment may be gone before that:
    /// then the job is cancelled when its lease has ended. Who does not want to leave it to that says
    /// [`cancel`](crate::Handle::cancel) before.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// fn for_this_request(plan: Plan) -> Plan {
    ///     plan.while_wanted()
    /// }
    /// ```
    pub fn while_wanted(mut self) -> Self {
        self.own.while_wanted = true;
        self
    }

    /// The trace it belongs to, as a W3C `traceparent`; shown in the span of each run.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Plan;
    /// fn traced(plan: Plan) -> Plan {
    ///     plan.trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    /// }
    /// ```
    pub fn trace(mut self, traceparent: impl Into<String>) -> Self {
        self.own.trace = Some(traceparent.into());
        self
    }

    /// Enqueues it: `Ok` means that it is durable.
    ///
    /// # Errors
    /// The job is given back with the reason.
    ///
    /// # Cancel safety
    /// Dropped before it answers, the job may be in the store or not; enqueued [`while_wanted`](Self::while_wanted), it
    /// is not.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{EnqueueError, Job, JobId, Jobs};
    /// async fn submit<J: Job>(jobs: &Jobs, job: J) -> Result<JobId, EnqueueError<J>> {
    ///     Ok(jobs.now().enqueue(job).await?.id())
    /// }
    /// ```
    pub async fn enqueue<J: Job>(self, job: J) -> Result<Handle<J::Output>, EnqueueError<J>> {
        let mut answers = self.enqueue_many([job]).await;
        answers.pop().expect("one answer per job")
    }

    /// Enqueues many in one step; each has its own answer, and one that is refused does not hinder the others.
    ///
    /// # Panics
    /// With more than one job and an [`id`](Self::id) or a [`unique`](Self::unique) key, which can be of one only.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Job, Jobs};
    /// async fn import<J: Job>(jobs: &Jobs, rows: Vec<J>) -> usize {
    ///     let answers = jobs.tenant("acme").now().enqueue_many(rows).await;
    ///     answers.iter().filter(|answer| answer.is_ok()).count()
    /// }
    /// ```
    pub async fn enqueue_many<J: Job>(
        self,
        jobs: impl IntoIterator<Item = J>,
    ) -> Vec<Result<Handle<J::Output>, EnqueueError<J>>> {
        let given: Vec<J> = jobs.into_iter().collect();
        let single = self.own.id.is_none() && self.own.unique.is_none();
        assert!(given.len() <= 1 || single, "an id or a unique key can be of one job only");
        let mut wanted = Vec::with_capacity(given.len());
        let prepared: Vec<Result<(), Problem>> =
            given.iter().map(|job| self.prepare(job).map(|new| wanted.push(new))).collect();
        let interests: Vec<Option<Interest>> =
            wanted.iter().map(|job| self.own.while_wanted.then(|| self.jobs.interest(job.id))).collect();
        // Held until the handles are made: see `interest`.
        let joining = self.own.while_wanted.then(|| self.jobs.joining());
        let is_known = self.be_known(&mut wanted).await;
        let ids: Vec<(JobId, Option<NodeId>)> = wanted.iter().map(|job| (job.id, job.wanted_by)).collect();
        for job in &wanted {
            tracing::debug!(
                target: "punctual", id = %job.id, kind = job.kind, tenant = job.tenant, traceparent = job.trace, "enqueue"
            );
        }
        let stored = match (&joining, is_known) {
            _ if wanted.is_empty() => Ok(Vec::new()),
            (_, Err(error)) => Err(error),
            (Some(joining), _) if self.may_join() => joining.enqueue(wanted).await,
            _ => self.jobs.store().enqueue(wanted).await,
        };
        let mut stored = match stored {
            Ok(answers) => answers.into_iter().map(|answer| answer.map_err(Problem::Refused)).collect::<Vec<_>>(),
            Err(error) => ids.iter().map(|&(id, _)| Err(Problem::Store { error: error.clone(), id })).collect(),
        }
        .into_iter()
        .zip(ids)
        .zip(interests);
        given
            .into_iter()
            .zip(prepared)
            .map(|(job, prepared)| {
                let answer = prepared.and_then(|()| {
                    let ((answer, id), interest) = stored.next().expect("one answer per job sent");
                    answer.map(|admitted| self.handle_of(admitted, id, interest))
                });
                answer.map_err(|problem| EnqueueError::new(job, problem))
            })
            .collect()
    }

    /// Between the loss of a lease and the next join the store does not know this process: nobody would want the jobs.
    /// So it joins before; to join twice is to join once.
    async fn be_known(&self, wanted: &mut [NewJob]) -> Result<(), StoreError> {
        if !self.own.while_wanted || wanted.is_empty() || self.jobs.heart().is_joined() {
            return Ok(());
        }
        let beat = self.jobs.heart().beat();
        let node = beat.node;
        self.jobs.store().join(beat).await?;
        wanted.iter_mut().for_each(|job| job.wanted_by = Some(node));
        Ok(())
    }

    /// Whether it may be answered with a job that others want too.
    fn may_join(&self) -> bool {
        self.own.unique.as_ref().is_some_and(|unique| unique.on_conflict == OnConflict::Join)
    }

    fn handle_of<T>(
        &self,
        admitted: Admitted,
        (id, wanted_by): (JobId, Option<NodeId>),
        interest: Option<Interest>,
    ) -> Handle<T>
    where
        T: serde::de::DeserializeOwned,
    {
        let job = admitted.job(id);
        let interest = interest.map(|own| if job == id { own } else { self.jobs.interest(job) });
        if let (Some(interest), Some(node)) = (&interest, wanted_by) {
            interest.was_heard_of(node);
        }
        Handle::new(self.jobs.clone(), job, interest)
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub(crate) fn prepare<J: Job>(&self, job: &J) -> Result<NewJob, Problem> {
        let payload = self.jobs.payload_of(job)?;
        let id = self.own.id.unwrap_or_else(|| self.jobs.new_id());
        let mut new = self.own.job(id, J::KIND, &J::TERMS, self.tenant.clone(), payload);
        new.is_id_fresh = self.own.id.is_none();
        new.due = self.when.0;
        new.wanted_by = self.own.while_wanted.then(|| self.jobs.node_id());
        new.trace = new.trace.or_else(|| self.jobs.current_trace());
        new.check().map_err(Problem::Refused)?;
        Ok(new)
    }
}

impl Own {
    /// The job, with what its kind says where this says nothing; due at once.
    pub(crate) fn job(&self, id: JobId, kind: &str, terms: &Terms, tenant: String, payload: String) -> NewJob {
        NewJob {
            tenant,
            payload,
            tags: self.tags.clone(),
            priority: self.priority.unwrap_or(terms.priority),
            cost: self.cost.unwrap_or(terms.cost),
            start_within: self.start_within.or(terms.start_within),
            run_timeout: self.run_timeout.or(terms.run_timeout),
            deadline: self.deadline.map(|when| when.0).or(terms.deadline.map(Moment::After)),
            max_attempts: self.max_attempts.unwrap_or(terms.max_attempts),
            max_crashes: self.max_crashes.unwrap_or(terms.max_crashes),
            backoff: self.backoff.unwrap_or(terms.backoff),
            unique: self.unique.clone(),
            trace: self.trace.clone(),
            ..NewJob::new(id, kind)
        }
    }
}
