//! The words of a submit: *when*, *how long wanted*, then one verb. Builders that end in `run` or `spawn`.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Shared;
use super::after::After;
use super::core::mono_of;
use super::ctx::{Ctx, Run};
use super::event::Event;
use super::handle::{JobHandle, SeriesHandle};
use super::job::Record;
use super::repeat::{Missed, OnFailure, Repeat, Series, Tick};
use super::work::{Body, Closure, Head, Multiple, Repeated, Respawned, RunResult, Single, Spawned, Work};
use super::worker;
use crate::clock::{Clock, NEVER, Nanos, duration_to_nanos};
use crate::cron::Cron;
use crate::error::{Cause, Reason, Rejected};
use crate::queue::Due;
use crate::slab::SlabKey;

/// When a job is due: after a `Duration`, at an `Instant`, or at a date (`SystemTime`). A date moves with the wall clock,
/// the others do not.
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

/// A job about to be submitted; ends in [`run`](Plan::run) or [`spawn`](Plan::spawn).
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
#[must_use = "a plan does nothing until `run` or `spawn`"]
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

    /// The latest instant anyone wants the result, waiting and running together: a `Duration` from now, or an `Instant`.
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
    /// [`Rejected`] gives the closure back: the scheduler is shut down, the deadline is too early, or there is no thread.
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

/// Why, and when to try again.
type Refused = (Reason, Option<Duration>);

type Placed = ((Nanos, Option<SystemTime>), Option<Box<Series>>);

/// The first step of the road: may it enter? Then its record is made.
fn admit(
    shared: &Arc<Shared>,
    terms: &Terms,
    work: Arc<dyn Work>,
    future: bool,
    place: impl FnOnce(Nanos) -> Result<Placed, Reason>,
) -> Result<(), Refused> {
    let mut after = After::default();
    let admitted = try_admit(shared, terms, &work, future, place, &mut after);
    // The caller takes a rejected job apart: nobody else may hold it.
    drop(work);
    after.run(shared);
    match admitted {
        Ok(key) => {
            let unwanted = terms.parent.as_ref().map(|parent| parent.adopt(shared, key));
            for child in unwanted.unwrap_or_default() {
                shared.cancel(child, Cause::Parent);
            }
            Ok(())
        }
        Err(refused) => {
            let mut core = shared.core.lock();
            core.rejected += 1;
            let tenant = terms.tenant.unwrap_or(core.tenants.default);
            if let Some(tenant) = core.tenants.get_mut(tenant) {
                tenant.rejected += 1;
            }
            drop(core);
            if shared.is_listened_to() {
                shared.emit(&Event::Rejected { reason: refused.0.clone() });
            }
            Err(refused)
        }
    }
}

fn try_admit(
    shared: &Arc<Shared>,
    terms: &Terms,
    work: &Arc<dyn Work>,
    future: bool,
    place: impl FnOnce(Nanos) -> Result<Placed, Reason>,
    after: &mut After,
) -> Result<SlabKey, Refused> {
    let alone = |reason| (reason, None);
    let mut core = shared.core.lock();
    if !core.started && !core.phase.is_closing() {
        drop(core);
        worker::start_first(shared).map_err(|error| alone(Reason::NoThread(error.kind())))?;
        core = shared.core.lock();
    }
    if core.phase.is_closing() {
        return Err(alone(Reason::Closed));
    }
    let now = core.now(&shared.clock);
    let ((due, wall_due), series) = place(now).map_err(alone)?;
    let deadline = terms.deadline(&shared.clock, now);
    let no_time_to_start = terms.start_within.is_some_and(|wait| wait.is_zero());
    if (deadline != NEVER && deadline <= due.max(now)) || no_time_to_start {
        return Err(alone(Reason::Expired));
    }
    let tenant = terms.tenant.unwrap_or(core.tenants.default);
    core.tenants.admit(tenant, due <= now, now)?;
    let mut record = Record::new(Arc::clone(work), tenant, due, now);
    record.priority = terms.priority;
    record.cost = terms.cost.unwrap_or(1).max(1);
    record.wall_due = wall_due;
    record.start_within = terms.start_within.map_or(NEVER, duration_to_nanos);
    record.run_timeout = terms.run_timeout.map_or(NEVER, duration_to_nanos);
    record.deadline = deadline;
    record.series = series;
    record.future = future;
    record.away = future && shared.hooks.futures_on.is_some();
    let key = core.admit(record, &shared.clock, after);
    work.head().admitted_as(key);
    Ok(key)
}

/// A series about to be submitted; ends in [`run`](SeriesPlan::run) or [`spawn`](SeriesPlan::spawn).
///
/// # Example
/// ```
/// use punctual::{Missed, OnFailure, Scheduler, VirtualClock};
/// use std::time::Duration;
///
/// let clock = VirtualClock::new();
/// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
/// let sweep = scheduler
///     .every(Duration::from_secs(60))
///     .first(Duration::ZERO)
///     .missed(Missed::Once)
///     .on_failure(OnFailure::Continue)
///     .run(|ctx| assert_eq!(ctx.missed(), 0))
///     .unwrap();
/// clock.advance(Duration::from_secs(3600)).unwrap();
/// assert_eq!(sweep.runs(), 61);
/// ```
#[must_use = "a plan does nothing until `run` or `spawn`"]
pub struct SeriesPlan<'a> {
    shared: &'a Arc<Shared>,
    grid: Grid,
    first: Option<When>,
    missed: Missed,
    on_failure: OnFailure,
    terms: Terms,
}

#[derive(Debug)]
enum Grid {
    Every { period: Duration, fixed_delay: bool },
    Cron(Box<Cron>),
}

impl<'a> SeriesPlan<'a> {
    pub(crate) fn every(shared: &'a Arc<Shared>, period: Duration) -> Self {
        Self::new(shared, Grid::Every { period, fixed_delay: false })
    }

    pub(crate) fn cron(shared: &'a Arc<Shared>, cron: Cron) -> Self {
        Self::new(shared, Grid::Cron(Box::new(cron)))
    }

    fn new(shared: &'a Arc<Shared>, grid: Grid) -> Self {
        let (missed, on_failure) = (Missed::default(), OnFailure::default());
        Self { shared, grid, first: None, missed, on_failure, terms: Terms::default() }
    }

    pub(crate) fn for_tenant(mut self, tenant: SlabKey) -> Self {
        self.terms.tenant = Some(tenant);
        self
    }

    /// Counts each period from the end of the run before, instead of keeping to a grid. No effect on a cron.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let poll = scheduler.every(Duration::from_secs(5)).fixed_delay().run(|_| ()).unwrap();
    /// # drop(poll);
    /// ```
    pub fn fixed_delay(mut self) -> Self {
        if let Grid::Every { fixed_delay, .. } = &mut self.grid {
            *fixed_delay = true;
        }
        self
    }

    /// When the first run is due; by default one period from now. No effect on a cron.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let poll = scheduler.every(Duration::from_secs(5)).first(Duration::ZERO).run(|_| ()).unwrap();
    /// # drop(poll);
    /// ```
    pub fn first(mut self, when: impl Into<When>) -> Self {
        self.first = Some(when.into());
        self
    }

    /// What happens to ticks that pass while the series cannot run.
    ///
    /// # Example
    /// ```
    /// use punctual::{Missed, Scheduler};
    /// use std::time::Duration;
    /// let scheduler = Scheduler::new();
    /// let beat = scheduler.every(Duration::from_secs(5)).missed(Missed::Skip).run(|_| ()).unwrap();
    /// # drop(beat);
    /// ```
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// What happens when a run panics or returns an error.
    ///
    /// # Example
    /// ```
    /// use punctual::{OnFailure, Scheduler};
    /// use std::time::Duration;
    /// let scheduler = Scheduler::new();
    /// let beat = scheduler.every(Duration::from_secs(5)).on_failure(OnFailure::Stop).run(|_| ()).unwrap();
    /// # drop(beat);
    /// ```
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Names the series, for events and errors.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let beat = scheduler.every(Duration::from_secs(5)).name("heartbeat").run(|_| ()).unwrap();
    /// # drop(beat);
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.terms.name = Some(name.into().into_boxed_str());
        self
    }

    /// A run that has not started this long after its tick is given up, and counts as missed.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let beat = scheduler.every(Duration::from_secs(5)).start_within(Duration::from_secs(1)).run(|_| ()).unwrap();
    /// # drop(beat);
    /// ```
    pub fn start_within(mut self, wait: Duration) -> Self {
        self.terms.start_within = Some(wait);
        self
    }

    /// A run that takes longer expires and is told; the series goes on once it has stopped.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let beat = scheduler.every(Duration::from_secs(5)).run_timeout(Duration::from_secs(4)).run(|_| ()).unwrap();
    /// # drop(beat);
    /// ```
    pub fn run_timeout(mut self, timeout: Duration) -> Self {
        self.terms.run_timeout = Some(timeout);
        self
    }

    /// When the series ends: a `Duration` from now, or an `Instant`.
    ///
    /// # Example
    /// ```
    /// use punctual::{Scheduler, VirtualClock};
    /// use std::time::Duration;
    /// let clock = VirtualClock::new();
    /// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
    /// let beat = scheduler.every(Duration::from_secs(1)).deadline(Duration::from_millis(3500)).run(|_| ()).unwrap();
    /// clock.advance(Duration::from_secs(60)).unwrap();
    /// assert_eq!(beat.runs(), 3);
    /// ```
    pub fn deadline(mut self, deadline: impl Into<Due>) -> Self {
        self.terms.deadline = Some(deadline.into());
        self
    }

    /// Submits a closure, to be run at each tick. Runs of one series do not overlap.
    ///
    /// # Errors
    /// [`Rejected`] gives the closure back: the scheduler is shut down, the period is zero, the cron has no run left, the
    /// deadline is too early, or there is no thread.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// assert!(scheduler.every(Duration::ZERO).run(|_| ()).is_err());
    /// ```
    pub fn run<F, R>(self, job: F) -> Result<SeriesHandle, Rejected<F>>
    where
        F: FnMut(Ctx) -> R + Send + 'static,
        R: RunResult + 'static,
    {
        let submitted = self.submit(Repeated(job), false);
        submitted.map_err(|(reason, body)| Rejected::new(reason, body.0))
    }

    /// Submits a future for each tick, made by a closure.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let beat = scheduler.every(Duration::from_secs(5)).spawn(|_| async {}).unwrap();
    /// # drop(beat);
    /// ```
    pub fn spawn<F, Fut>(self, job: F) -> Result<SeriesHandle, Rejected<F>>
    where
        F: FnMut(Ctx) -> Fut + Send + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: RunResult,
    {
        let submitted = self.submit(Respawned { start: job, current: None }, true);
        submitted.map_err(|(reason, body)| Rejected::new(reason, body.start))
    }

    fn submit<B>(self, body: B, future: bool) -> Result<SeriesHandle, (Refused, B)>
    where
        B: Body<Out = Option<String>> + 'static,
    {
        let Self { shared, grid, first, missed, on_failure, mut terms } = self;
        let work = Arc::new(Multiple::new(Head::new(shared, terms.name.take()), body));
        let erased: Arc<dyn Work> = Arc::<Multiple<B>>::clone(&work);
        let mut tally = None;
        let place = |now| {
            let (placed, mut series) = grid.begin(first, &shared.clock, now)?;
            (series.missed_policy, series.on_failure) = (missed, on_failure);
            tally = Some(Arc::clone(&series.tally));
            Ok((placed, Some(Box::new(series))))
        };
        match admit(shared, &terms, erased, future, place) {
            Ok(()) => Ok(SeriesHandle::new(work, tally.expect("an admitted series was placed"))),
            Err(refused) => {
                let body = Arc::into_inner(work).and_then(Multiple::into_body);
                Err((refused, body.expect("nobody else has a rejected series")))
            }
        }
    }
}

impl Grid {
    /// The first tick, and the series from there.
    fn begin(
        self,
        first: Option<When>,
        clock: &Clock,
        now: Nanos,
    ) -> Result<((Nanos, Option<SystemTime>), Series), Reason> {
        match self {
            Self::Every { period, fixed_delay } => {
                if period.is_zero() {
                    return Err(Reason::ZeroPeriod);
                }
                let placed = first.unwrap_or_else(|| period.into()).resolve(clock, now);
                let period = duration_to_nanos(period);
                let repeat = if fixed_delay { Repeat::Delay { period } } else { Repeat::Rate { period } };
                Ok((placed, Series::new(repeat, Tick::Mono(placed.0))))
            }
            Self::Cron(cron) => {
                let wall = clock.wall();
                let date = cron.next_after(wall).ok_or(Reason::NoNextRun)?;
                Ok(((mono_of(date, wall, now), Some(date)), Series::new(Repeat::Cron(cron), Tick::Wall(date))))
            }
        }
    }
}

impl fmt::Debug for SeriesPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeriesPlan").field("grid", &self.grid).field("missed", &self.missed).finish_non_exhaustive()
    }
}
