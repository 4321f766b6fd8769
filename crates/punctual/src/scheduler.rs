//! Layer 2: [`Scheduler`], which runs closures and futures at their due instant, on its own threads.
//!
//! The road of a job: `plan` admits it, the wheel in `core` lets it wait, a `worker` picks it, checks that it is still
//! wanted and runs it, `core` finishes it, and its `handle` resolves. Decisions are made under one lock in `core`;
//! whatever may call the user's code or the kernel is collected in `after` and done when the lock is free.
//!
//! Lock order: `starting`, then the core's lock, then the clock's. No other lock is held together with these.

mod after;
mod away;
mod core;
mod ctx;
mod event;
mod handle;
mod job;
mod list;
mod permit;
mod plan;
mod repeat;
mod shutdown;
mod tenant;
mod tenants;
mod work;
mod worker;

#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use self::after::After;
use self::core::{Core, Disposal};
use self::shutdown::Ending;
use self::work::Latch;
use crate::clock::Clock;
use crate::cron::Cron;
use crate::error::Cause;
use crate::metrics::Snapshot;
use crate::panics::quietly;
use crate::policy::Limits;
use crate::slab::SlabKey;
use crate::sync::Mutex;

pub use self::core::Cancel;
pub use ctx::{Cancelled, Ctx};
pub use event::Event;
pub use handle::{FlatHandle, JobHandle, SeriesHandle, Stopped};
pub use job::Outcome;
pub use permit::Permit;
pub use plan::{Plan, SeriesPlan, When};
pub use repeat::{Missed, OnFailure};
pub use shutdown::Report;
pub use tenant::{Tenant, TenantError};
pub use work::RunResult;

/// Runs closures and futures at their due instant, on its own threads. Clones are handles to the same scheduler.
///
/// Threads are started when first needed. Dropping the last handle cancels what waits, tells what runs, and does not
/// block; [`shutdown`](Self::shutdown) waits.
///
/// # Example
/// ```
/// use punctual::Scheduler;
/// use std::time::Duration;
///
/// let scheduler = Scheduler::new();
/// let mut answer = scheduler.after(Duration::from_millis(5)).run(|_| 6 * 7).unwrap();
/// assert_eq!(answer.wait(), Ok(42));
/// ```
#[derive(Clone)]
pub struct Scheduler {
    owner: Arc<Owner>,
}

/// The last of these to go ends the scheduler. Its threads and jobs hold only the inside.
struct Owner {
    shared: Arc<Shared>,
}

/// What the threads and jobs of a scheduler share.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) core: Mutex<Core>,
    pub(crate) hooks: Hooks,
    /// Held while the first threads are started.
    pub(crate) starting: Mutex<()>,
    /// Opens when the report of the shutdown is ready.
    pub(crate) closed: Latch,
}

/// The user's code that goes with the scheduler rather than with a job.
#[derive(Default)]
pub(crate) struct Hooks {
    on_event: Option<Listener>,
    pub(crate) enter: Option<Enter>,
    pub(crate) futures_on: Option<Spawner>,
    pub(crate) stack_size: Option<usize>,
}

type Listener = Box<dyn Fn(&Event) + Send + Sync>;
type Enter = Box<dyn Fn(&mut dyn FnMut()) + Send + Sync>;
type Spawner = Box<dyn Fn(BoxFuture) + Send + Sync>;

/// A job's future as it is handed to another runtime, see [`Builder::futures_on`].
///
/// # Example
/// ```
/// fn spawner(future: punctual::BoxFuture) {
///     drop(future); // Or, with a runtime: `handle.spawn(future)`.
/// }
/// let scheduler = punctual::Scheduler::builder().futures_on(spawner).build().unwrap();
/// # drop(scheduler);
/// ```
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Shared {
    pub(crate) fn cancel(self: &Arc<Self>, key: SlabKey, cause: Cause) -> Cancel {
        let mut after = After::default();
        let mut core = self.core.lock();
        core.now(&self.clock);
        let answer = core.cancel(key, cause, Disposal::Here, &mut after);
        drop(core);
        after.run(self);
        answer
    }

    /// Cancels these jobs; says how many of them were not over already.
    pub(crate) fn cancel_each(self: &Arc<Self>, jobs: &[SlabKey], cause: Cause) -> usize {
        let mut after = After::default();
        let mut core = self.core.lock();
        core.now(&self.clock);
        let mut cancel = |&job: &SlabKey| core.cancel(job, cause, Disposal::Here, &mut after) != Cancel::TooLate;
        let cancelled = jobs.iter().filter(|job| cancel(job)).count();
        drop(core);
        after.run(self);
        cancelled
    }

    pub(crate) fn is_listened_to(&self) -> bool {
        self.hooks.on_event.is_some() || cfg!(feature = "tracing")
    }

    pub(crate) fn emit(&self, event: &Event) {
        event::trace(event);
        if let Some(hook) = &self.hooks.on_event {
            quietly(|| hook(event));
        }
    }
}

/// The number of a job: never reused within its scheduler.
///
/// # Example
/// ```
/// let scheduler = punctual::Scheduler::new();
/// let job = scheduler.now().run(|_| ()).unwrap();
/// println!("job {}", job.id());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub(crate) u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The slot, and how often it was used: short for the first few thousand jobs.
        write!(f, "#{}.{}", self.0 & u64::from(u32::MAX), self.0 >> 32)
    }
}

impl Scheduler {
    /// A scheduler on the system's clock with as many workers as the machine has processors, but at least two.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// assert_eq!(scheduler.snapshot().workers, 0, "threads start when first needed");
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Builder::default().make(default_workers())
    }

    /// A scheduler with other settings.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::builder().workers(8).build().unwrap();
    /// # drop(scheduler);
    /// ```
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.owner.shared
    }

    /// A job that is due now. It stands behind everything that is due already, and never runs inline.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// assert_eq!(scheduler.now().run(|_| 1).unwrap().wait(), Ok(1));
    /// ```
    pub fn now(&self) -> Plan<'_> {
        self.after(Duration::ZERO)
    }

    /// A job that is due after a delay.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// assert_eq!(scheduler.after(Duration::from_millis(1)).run(|_| 1).unwrap().wait(), Ok(1));
    /// ```
    pub fn after(&self, delay: Duration) -> Plan<'_> {
        self.at(delay)
    }

    /// A job that is due at an `Instant`, or at a date (`SystemTime`), which moves with the wall clock.
    ///
    /// # Example
    /// ```
    /// use std::time::SystemTime;
    /// let scheduler = punctual::Scheduler::new();
    /// let mut long_past = scheduler.at(SystemTime::UNIX_EPOCH).run(|_| "now, then").unwrap();
    /// assert_eq!(long_past.wait(), Ok("now, then"));
    /// ```
    pub fn at(&self, when: impl Into<When>) -> Plan<'_> {
        Plan::new(self.shared(), when.into())
    }

    /// A series that is due once in every period, on a fixed grid.
    ///
    /// # Example
    /// ```
    /// use punctual::{Scheduler, VirtualClock};
    /// use std::time::Duration;
    /// let clock = VirtualClock::new();
    /// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
    /// let series = scheduler.every(Duration::from_secs(1)).run(|_| ()).unwrap();
    /// clock.advance(Duration::from_secs(60)).unwrap();
    /// assert_eq!(series.runs(), 60);
    /// ```
    pub fn every(&self, period: Duration) -> SeriesPlan<'_> {
        SeriesPlan::every(self.shared(), period)
    }

    /// A series that is due whenever a cron expression says.
    ///
    /// # Example
    /// ```
    /// use punctual::{Cron, Scheduler, VirtualClock};
    /// use std::time::Duration;
    /// let clock = VirtualClock::new();
    /// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
    /// let hourly = scheduler.cron(Cron::parse("0 * * * *").unwrap()).run(|_| ()).unwrap();
    /// clock.advance(Duration::from_secs(24 * 3600)).unwrap();
    /// assert_eq!(hourly.runs(), 24);
    /// ```
    pub fn cron(&self, cron: Cron) -> SeriesPlan<'_> {
        SeriesPlan::cron(self.shared(), cron)
    }

    /// Opens a tenant: a party with its own limits and its fair share. Opening it again gives the same one.
    ///
    /// # Errors
    /// [`TenantError`] if it is open with other limits.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new().running_max(4).backlog_max(100)).unwrap();
    /// assert_eq!(acme.now().run(|_| 1).unwrap().wait(), Ok(1));
    /// ```
    pub fn tenant(&self, name: &str, limits: Limits) -> Result<Tenant, TenantError> {
        Tenant::open(self.shared(), name, limits)
    }

    /// The state of the scheduler at this moment: gauges, counters, histograms of lateness.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.now().run(|_| ()).unwrap().wait().unwrap();
    /// assert_eq!(scheduler.snapshot().lateness.count(), 1);
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared().core.lock().snapshot()
    }

    /// Ends the scheduler and blocks until that is done: no new work; what is due now may run for `grace`; what is not
    /// due never starts. When the grace is over the rest is cancelled, and the report returned at once. A second call
    /// joins the first. From inside a job, that job is not waited for.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let job = scheduler.now().run(|_| ()).unwrap();
    /// let report = scheduler.shutdown(Duration::from_secs(10));
    /// assert_eq!(report.still_running, 0);
    /// # drop(job);
    /// ```
    pub fn shutdown(&self, grace: Duration) -> Report {
        Ending::begin(self.shared(), grace).wait()
    }

    /// As [`shutdown`](Self::shutdown), for async code. The shutdown begins with the call, not with the first poll, and
    /// goes on if the future is dropped.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let (old, new) = (punctual::Scheduler::new(), punctual::Scheduler::new());
    /// let mut job = new.now().spawn(move |_| async move { old.shutdown_async(Duration::from_secs(1)).await }).unwrap();
    /// assert_eq!(job.wait().unwrap().still_running, 0);
    /// ```
    pub fn shutdown_async(&self, grace: Duration) -> impl Future<Output = Report> + Send + use<> {
        Ending::begin(self.shared(), grace)
    }
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.snapshot();
        f.debug_struct("Scheduler")
            .field("scheduled", &snapshot.scheduled)
            .field("ready", &snapshot.ready)
            .field("running", &snapshot.running)
            .field("workers", &snapshot.workers)
            .finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut after = After::default();
        let mut core = self.shared.core.lock();
        // A shutdown that is under way keeps its grace.
        if !core.phase.is_closing() {
            core.begin_shutdown(Duration::ZERO, &self.shared.clock, &mut after);
            core.end_shutdown(&mut after);
        }
        drop(core);
        after.run(&self.shared);
    }
}

fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(2, NonZeroUsize::get).max(2)
}

/// The settings of a [`Scheduler`].
///
/// # Example
/// ```
/// use punctual::{Scheduler, VirtualClock};
/// let scheduler = Scheduler::builder().workers(4).clock(&VirtualClock::new()).build().unwrap();
/// # drop(scheduler);
/// ```
#[derive(Default)]
pub struct Builder {
    workers: Option<usize>,
    running_max: Option<usize>,
    clock: Option<Clock>,
    hooks: Hooks,
}

impl Builder {
    /// How many worker threads there may be; by default as many as processors, but at least two.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::builder().workers(8).build().unwrap();
    /// # drop(scheduler);
    /// ```
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// How many jobs may run at once, those of all tenants together; by default as many as there are. Closures are
    /// bounded by the workers in any case; futures and permits hold none, so this is the room that their tenants share
    /// fairly.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::builder().running_max(1).build().unwrap();
    /// let (acme, zeta) = (scheduler.tenant("acme", Limits::new()).unwrap(), scheduler.tenant("zeta", Limits::new()).unwrap());
    /// let permit = acme.now().acquire().unwrap().wait().unwrap();
    /// let mut second = zeta.now().acquire().unwrap();
    /// assert_eq!(zeta.snapshot().ready, 1);
    /// drop(permit);
    /// second.wait().unwrap();
    /// ```
    #[must_use]
    pub fn running_max(mut self, jobs: usize) -> Self {
        self.running_max = Some(jobs);
        self
    }

    /// Where time comes from; by default the system.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::builder().clock(&punctual::VirtualClock::new()).build().unwrap();
    /// # drop(scheduler);
    /// ```
    #[must_use]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = Some(clock.into());
        self
    }

    /// The stack size of worker threads in bytes; by default the platform's.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::builder().stack_size(1 << 20).build().unwrap();
    /// # drop(scheduler);
    /// ```
    #[must_use]
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.hooks.stack_size = Some(bytes);
        self
    }

    /// Called with everything that happens, outside all locks, on the thread where it happened. A slow hook slows that
    /// thread; a panic in it is ignored.
    ///
    /// # Example
    /// ```
    /// use punctual::Scheduler;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// let events = Arc::new(AtomicU32::new(0));
    /// let counter = Arc::clone(&events);
    /// let scheduler = Scheduler::builder().on_event(move |_| _ = counter.fetch_add(1, Ordering::Relaxed)).build().unwrap();
    /// let job = scheduler.now().run(|_| ()).unwrap();
    /// job.stopped().wait();
    /// assert_eq!(events.load(Ordering::Relaxed), 2, "started and finished");
    /// ```
    #[must_use]
    pub fn on_event(mut self, hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.hooks.on_event = Some(Box::new(hook));
        self
    }

    /// Wraps the life of every worker thread, for instance to make a runtime's I/O available to the futures that run
    /// there. The hook must call what it is given, once. (It wraps rather than returns a guard, because a guard that
    /// borrows from the closure that made it cannot be expressed.)
    ///
    /// # Example
    /// ```
    /// // With tokio: `.enter(move |work| { let _entered = handle.enter(); work() })`
    /// let scheduler = punctual::Scheduler::builder().enter(|work| work()).build().unwrap();
    /// assert_eq!(scheduler.now().run(|_| 1).unwrap().wait(), Ok(1));
    /// ```
    #[must_use]
    pub fn enter(mut self, enter: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) -> Self {
        self.hooks.enter = Some(Box::new(enter));
        self
    }

    /// Hands futures to another runtime instead of polling them here. Closures stay here. A spawner that drops the
    /// future or panics settles the job as cancelled.
    ///
    /// # Example
    /// ```
    /// // With tokio: `.futures_on(move |future| { handle.spawn(future); })`
    /// let scheduler = punctual::Scheduler::builder().futures_on(drop).build().unwrap();
    /// let mut job = scheduler.now().spawn(|_| async { 1 }).unwrap();
    /// assert!(job.wait().is_err(), "this runtime drops everything");
    /// ```
    #[must_use]
    pub fn futures_on(mut self, spawner: impl Fn(BoxFuture) + Send + Sync + 'static) -> Self {
        self.hooks.futures_on = Some(Box::new(spawner));
        self
    }

    /// Makes the scheduler. No thread is started yet.
    ///
    /// # Errors
    /// [`BuildError`] names a setting that cannot be.
    ///
    /// # Example
    /// ```
    /// let refused = punctual::Scheduler::builder().workers(0).build().unwrap_err();
    /// assert_eq!(refused.to_string(), "0 workers (the least is 1)");
    /// ```
    pub fn build(self) -> Result<Scheduler, BuildError> {
        match self.workers {
            _ if self.running_max == Some(0) => Err(BuildError::NoRoom),
            Some(0) => Err(BuildError::NoWorkers),
            Some(workers) => Ok(self.make(workers)),
            None => Ok(self.make(default_workers())),
        }
    }

    fn make(self, workers: usize) -> Scheduler {
        let listened_to = self.hooks.on_event.is_some() || cfg!(feature = "tracing");
        let shared = Shared {
            clock: self.clock.unwrap_or_default(),
            core: Mutex::new(Core::new(workers, self.running_max.unwrap_or(usize::MAX), listened_to)),
            hooks: self.hooks,
            starting: Mutex::new(()),
            closed: Latch::new(),
        };
        Scheduler { owner: Arc::new(Owner { shared: Arc::new(shared) }) }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("workers", &self.workers).field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// A setting of a [`Builder`] that cannot be.
///
/// # Example
/// ```
/// use punctual::{BuildError, Scheduler};
/// assert_eq!(Scheduler::builder().workers(0).build().unwrap_err(), BuildError::NoWorkers);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// A scheduler without workers would never run anything.
    NoWorkers,
    /// Nor would one in which nothing may run.
    NoRoom,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoWorkers => "0 workers (the least is 1)",
            Self::NoRoom => "0 jobs may run at once (the least is 1)",
        })
    }
}

impl std::error::Error for BuildError {}
