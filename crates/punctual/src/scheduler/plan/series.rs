//! The words of a series: on which grid it runs, and what becomes of missed and failed runs.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::admit::{Refused, admit};
use super::{Terms, When};
use crate::clock::{Clock, Nanos, duration_to_nanos};
use crate::cron::Cron;
use crate::error::{Reason, Rejected};
use crate::queue::Due;
use crate::scheduler::Shared;
use crate::scheduler::core::mono_of;
use crate::scheduler::ctx::Ctx;
use crate::scheduler::handle::SeriesHandle;
use crate::scheduler::repeat::{Missed, OnFailure, Repeat, Series, Tick};
use crate::scheduler::work::{Body, Head, Multiple, Repeated, Respawned, RunResult, Work};
use crate::slab::SlabKey;

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

    /// Which of a tenant's waiting jobs goes first: the lower number, 0 by default. One step counts as much as 30 s of
    /// waiting, so nothing starves.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let beat = scheduler.every(Duration::from_secs(5)).priority(-1).run(|_| ()).unwrap();
    /// # drop(beat);
    /// ```
    pub fn priority(mut self, priority: i8) -> Self {
        self.terms.priority = priority;
        self
    }

    /// What each run counts against the tenant's fair share; 1 by default.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let sweep = scheduler.every(Duration::from_secs(5)).cost(10).run(|_| ()).unwrap();
    /// # drop(sweep);
    /// ```
    pub fn cost(mut self, cost: u32) -> Self {
        self.terms.cost = Some(cost);
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
    /// [`Rejected`] gives the closure back: the scheduler is shut down, the period is zero, the cron has no run left,
    /// the deadline is too early, or there is no thread.
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
