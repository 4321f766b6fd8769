//! The words of a submit: *when*, *how long wanted*, then one verb. Builders that end in `run`, `spawn`
//! or `acquire`.

mod admit;
mod series;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Shared;
use super::core::mono_of;
use super::ctx::{Ctx, Run};
use super::handle::JobHandle;
use super::permit::{Grant, Permit};
use super::work::{Body, Closure, Head, Single, Spawned, Work};
use crate::clock::{Clock, NEVER, Nanos};
use crate::error::Rejected;
use crate::queue::Due;
use crate::slab::SlabKey;
use admit::{Refused, admit};
pub use series::SeriesPlan;

/// When a job is due: after a `Duration`, at an `Instant`, or at a date (`SystemTime`). A date moves with the wall
/// clock, the others do not.
///
/// # Example
/// ```
/// use punctual::When;
/// use std::time::{Duration, SystemTime};
/// let _soon: When = Duration::from_secs(1).into();
/// let _epoch: When = SystemTime::UNIX_EPOCH.into();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When(Moment);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Due(Due),
    Date(SystemTime),
}

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        Self(Moment::Due(delay.into()))
    }
}

impl From<Instant> for When {
    fn from(instant: Instant) -> Self {
        Self(Moment::Due(instant.into()))
    }
}

impl From<SystemTime> for When {
    fn from(date: SystemTime) -> Self {
        Self(Moment::Date(date))
    }
}

impl When {
    pub(crate) fn resolve(self, clock: &Clock, now: Nanos) -> (Nanos, Option<SystemTime>) {
        match self.0 {
            Moment::Due(due) => (due.resolve(clock, now), None),
            Moment::Date(date) => (mono_of(date, clock.wall(), now), Some(date)),
        }
    }
}

/// A job about to be submitted; ends in [`run`](Plan::run), [`spawn`](Plan::spawn) or [`acquire`](Plan::acquire).
///
/// # Example
/// ```
/// use std::time::Duration;
/// let scheduler = punctual::Scheduler::new();
/// let mut job = scheduler
///     .after(Duration::from_millis(1))
///     .name("greet")
///     .start_within(Duration::from_secs(5))
///     .run_timeout(Duration::from_secs(10))
///     .deadline(Duration::from_secs(60))
///     .run(|_| "hello")
///     .unwrap();
/// assert_eq!(job.wait(), Ok("hello"));
/// ```
#[must_use = "a plan does nothing until `run`, `spawn` or `acquire`"]
pub struct Plan<'a> {
    shared: &'a Arc<Shared>,
    when: When,
    terms: Terms,
}

/// How long a job is wanted, and what it is called.
#[derive(Default)]
struct Terms {
    name: Option<Box<str>>,
    start_within: Option<Duration>,
    run_timeout: Option<Duration>,
    deadline: Option<Due>,
    parent: Option<Arc<Run>>,
    tenant: Option<SlabKey>,
    priority: i8,
    cost: Option<u32>,
    /// The caller does the work.
    permit: bool,
}

impl Terms {
    fn deadline(&self, clock: &Clock, now: Nanos) -> Nanos {
        let own = self.deadline.map_or(NEVER, |deadline| deadline.instant(clock, now));
        own.min(self.parent.as_ref().map_or(NEVER, |parent| parent.deadline))
    }
}

impl<'a> Plan<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared>, when: When) -> Self {
        Self { shared, when, terms: Terms::default() }
    }

    /// A child belongs to its parent's tenant.
    pub(crate) fn child_of(mut self, parent: &Arc<Run>) -> Self {
        self.terms.parent = Some(Arc::clone(parent));
        self.terms.tenant = Some(parent.tenant);
        self
    }

    pub(crate) fn for_tenant(mut self, tenant: SlabKey) -> Self {
        self.terms.tenant = Some(tenant);
        self
    }

    /// Which of a tenant's waiting jobs goes first: the lower number, 0 by default. One step counts as much as 30 s of
    /// waiting, so nothing starves.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.now().priority(-1).run(|_| "sooner than others").unwrap().detach();
    /// ```
    pub fn priority(mut self, priority: i8) -> Self {
        self.terms.priority = priority;
        self
    }

    /// What a start counts against the tenant's fair share; 1 by default.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.now().cost(10).run(|_| "as much as ten others").unwrap().detach();
    /// ```
    pub fn cost(mut self, cost: u32) -> Self {
        self.terms.cost = Some(cost);
        self
    }

    /// Names the job, for events and errors.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.now().name("tidy up").run(|_| ()).unwrap().detach();
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.terms.name = Some(name.into().into_boxed_str());
        self
    }

    /// The job expires if it has not started this long after it is due. Zero is refused at submit: a start takes time.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.now().start_within(Duration::from_secs(1)).run(|_| ()).unwrap().detach();
    /// ```
    pub fn start_within(mut self, wait: Duration) -> Self {
        self.terms.start_within = Some(wait);
        self
    }

    /// The job expires if it is still running this long after its start: its outcome is settled, and it is told.
    ///
    /// # Example
    /// ```
    /// use punctual::{JobError, Scheduler, Stage};
    /// use std::time::Duration;
    /// let scheduler = Scheduler::new();
    /// let mut job = scheduler
    ///     .now()
    ///     .run_timeout(Duration::from_millis(5))
    ///     .run(|ctx| while !ctx.is_cancelled() { std::thread::yield_now() })
    ///     .unwrap();
    /// assert!(matches!(job.wait(), Err(JobError::Expired { stage: Stage::Running, .. })));
    /// ```
    pub fn run_timeout(mut self, timeout: Duration) -> Self {
        self.terms.run_timeout = Some(timeout);
        self
    }

    /// The latest instant anyone wants the result, waiting and running together: a `Duration` from now, or an
    /// `Instant`.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let late = scheduler.after(Duration::from_secs(9)).deadline(Duration::from_secs(5)).run(|_| ());
    /// assert!(late.is_err(), "it could never start in time");
    /// ```
    pub fn deadline(mut self, deadline: impl Into<Due>) -> Self {
        self.terms.deadline = Some(deadline.into());
        self
    }

    /// Submits a closure, to be run on a worker thread.
    ///
    /// # Errors
    /// [`Rejected`] gives the closure back: the scheduler is shut down, the deadline is too early, or there is no
    /// thread.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// assert_eq!(scheduler.now().run(|_| 6 * 7).unwrap().wait(), Ok(42));
    /// ```
    pub fn run<F, T>(self, job: F) -> Result<JobHandle<T>, Rejected<F>>
    where
        F: FnOnce(Ctx) -> T + Send + 'static,
        T: Send + 'static,
    {
        let submitted = self.submit(Closure(Some(job)), false);
        submitted.map_err(|(reason, body)| Rejected::new(reason, body.0.expect("a rejected closure has not run")))
    }

    /// Submits a future, made by a closure when it is due. It runs on the scheduler's own threads, or where
    /// [`Builder::futures_on`](crate::Builder::futures_on) says; between polls it holds no worker.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().spawn(|_| async { 6 * 7 }).unwrap();
    /// assert_eq!(job.wait(), Ok(42));
    /// ```
    pub fn spawn<F, Fut>(self, job: F) -> Result<JobHandle<Fut::Output>, Rejected<F>>
    where
        F: FnOnce(Ctx) -> Fut + Send + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: Send + 'static,
    {
        let submitted = self.submit(Spawned::<F, Fut>::Start(Some(job)), true);
        submitted.map_err(|(reason, body)| match body {
            Spawned::Start(Some(job)) => Rejected::new(reason, job),
            Spawned::Start(None) | Spawned::Polled(_) => unreachable!("a rejected future has not started"),
        })
    }

    /// Submits a job whose work is done by the caller, wherever it likes, while it holds the [`Permit`]. The handle
    /// resolves when the job's turn has come, and the job runs until the last clone of the permit is dropped. It stands
    /// in the same fair order as all else of the scheduler, but takes no worker.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// Dropping the handle gives up the place in the line, or the permit if it was granted in the same moment.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new().running_max(1).backlog_max(0)).unwrap();
    /// let permit = acme.now().acquire().unwrap().wait().unwrap();
    /// assert!(acme.now().acquire().is_err(), "the only permit is held");
    /// drop(permit);
    /// assert!(acme.now().acquire().is_ok());
    /// ```
    pub fn acquire(self) -> Result<JobHandle<Permit>, Rejected<()>> {
        let Self { shared, when, mut terms } = self;
        terms.permit = true;
        let work = Arc::new(Grant::new(Head::new(shared, terms.name.take())));
        let erased: Arc<dyn Work> = Arc::<Grant>::clone(&work);
        let place = |now| Ok((when.resolve(&shared.clock, now), None));
        match admit(shared, &terms, erased, false, place) {
            Ok(()) => Ok(JobHandle::new(work)),
            Err(refused) => Err(Rejected::new(refused, ())),
        }
    }

    fn submit<B: Body + 'static>(self, body: B, future: bool) -> Result<JobHandle<B::Out>, (Refused, B)> {
        let Self { shared, when, mut terms } = self;
        let work = Arc::new(Single::new(Head::new(shared, terms.name.take()), body));
        let erased: Arc<dyn Work> = Arc::<Single<B>>::clone(&work);
        let plan = |now| Ok((when.resolve(&shared.clock, now), None));
        match admit(shared, &terms, erased, future, plan) {
            Ok(()) => Ok(JobHandle::new(work)),
            Err(refused) => {
                let body = Arc::into_inner(work).and_then(Single::into_body);
                Err((refused, body.expect("nobody else has a rejected job")))
            }
        }
    }
}

impl fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("when", &self.when).field("name", &self.terms.name).finish_non_exhaustive()
    }
}
