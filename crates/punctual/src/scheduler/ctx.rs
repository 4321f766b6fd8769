//! What running work looks at: whether it is still wanted, and until when.
//!
//! Cancellation is level-triggered: once set it stays set, so no question asked later can miss it.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::job::Record;
use super::plan::{Plan, When};
use super::work::Work;
use super::{JobId, Shared};
use crate::clock::{NEVER, Nanos};
use crate::error::JobError;
use crate::slab::SlabKey;
use crate::sync::Mutex;

/// What a job is given: is it still wanted, until when, how late is it? Owned and cheap to clone.
///
/// # Example
/// ```
/// let scheduler = punctual::Scheduler::new();
/// let mut sum = scheduler
///     .now()
///     .run(|ctx| {
///         let mut sum = 0u64;
///         for n in 0..1_000 {
///             ctx.checkpoint()?; // Returns early once nobody wants the result.
///             sum += n;
///         }
///         Ok::<_, punctual::JobError>(sum)
///     })
///     .unwrap()
///     .flatten();
/// assert_eq!(sum.wait().unwrap(), 499_500);
/// ```
#[derive(Clone)]
pub struct Ctx {
    run: Arc<Run>,
}

/// One run of a job, shared by its contexts and the scheduler.
pub(crate) struct Run {
    pub(crate) work: Arc<dyn Work>,
    pub(crate) tenant: SlabKey,
    pub(crate) due: Nanos,
    pub(crate) started: Nanos,
    /// The earlier of the deadline and the end of the run time-out.
    pub(crate) stop_by: Nanos,
    pub(crate) deadline: Nanos,
    pub(crate) missed: u64,
    /// Brings the future back to a worker; made when it is first polled.
    pub(crate) waker: OnceLock<Waker>,
    cancelled: AtomicBool,
    interest: Mutex<Interest>,
}

#[derive(Default)]
struct Interest {
    why: Option<JobError>,
    /// Futures that wait for the cancellation, by number.
    wakers: Vec<(u64, Waker)>,
    next: u64,
    /// Jobs submitted by this one, to be cancelled with it.
    children: Vec<SlabKey>,
}

impl Run {
    pub(crate) fn new(record: &Record, started: Nanos, missed: u64) -> Self {
        Self {
            work: Arc::clone(&record.work),
            tenant: record.tenant,
            due: record.due,
            started,
            stop_by: started.saturating_add(record.run_timeout).min(record.deadline),
            deadline: record.deadline,
            missed,
            waker: OnceLock::new(),
            cancelled: AtomicBool::new(false),
            interest: Mutex::new(Interest::default()),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.work.head().shared
    }

    /// Tells the work that nobody wants it any more. Returns whom to wake and which children to cancel, once.
    pub(crate) fn tell(&self, why: JobError) -> (Vec<Waker>, Vec<SlabKey>) {
        let mut interest = self.interest.lock();
        if interest.why.is_some() {
            return Default::default();
        }
        interest.why = Some(why);
        self.cancelled.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut interest.wakers).into_iter().map(|(_, waker)| waker).collect();
        (wakers, std::mem::take(&mut interest.children))
    }

    /// Remembers a child. Returns those to be cancelled, because this run was.
    pub(crate) fn adopt(&self, shared: &Shared, child: SlabKey) -> Vec<SlabKey> {
        let mut interest = self.interest.lock();
        interest.children.push(child);
        // A job that lives long may have many children, one after the other: those that are over are forgotten.
        if interest.children.len() >= 64 && interest.children.len().is_power_of_two() {
            let children = std::mem::take(&mut interest.children);
            drop(interest);
            let core = shared.core.lock();
            let live: Vec<_> = children.into_iter().filter(|&child| core.jobs.get(child).is_some()).collect();
            drop(core);
            interest = self.interest.lock();
            interest.children.extend(live);
        }
        if interest.why.is_some() { std::mem::take(&mut interest.children) } else { Vec::new() }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

impl Ctx {
    pub(crate) fn new(run: Arc<Run>) -> Self {
        Self { run }
    }

    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Whether nobody wants the result any more. Once true, it stays true.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().run(|ctx| ctx.is_cancelled()).unwrap();
    /// assert_eq!(job.wait(), Ok(false));
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.run.is_cancelled()
    }

    /// Goes on, or says why there is no point in it: made for `?`.
    ///
    /// # Errors
    /// [`JobError::Cancelled`] or [`JobError::Expired`], as the caller sees it.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().run(|ctx| ctx.checkpoint()).unwrap();
    /// assert_eq!(job.wait().unwrap(), Ok(()));
    /// ```
    pub fn checkpoint(&self) -> Result<(), JobError> {
        if !self.is_cancelled() {
            return Ok(());
        }
        match &self.run.interest.lock().why {
            Some(why) => Err(why.clone()),
            None => Ok(()),
        }
    }

    /// Resolves when nobody wants the result any more.
    ///
    /// # Example
    /// ```
    /// use punctual::Scheduler;
    /// let scheduler = Scheduler::new();
    /// let (told, heard) = std::sync::mpsc::channel();
    /// let (began, running) = std::sync::mpsc::channel();
    /// let job = scheduler.now().run(move |ctx| {
    ///     began.send(ctx.clone()).unwrap();
    ///     while !ctx.is_cancelled() { std::thread::yield_now() }
    ///     told.send(()).unwrap();
    /// }).unwrap();
    /// let ctx = running.recv().unwrap();
    /// let watcher = scheduler.now().spawn(move |_| async move { ctx.cancelled().await }).unwrap();
    /// job.cancel();
    /// heard.recv().unwrap();
    /// # let mut watcher = watcher; watcher.wait().unwrap();
    /// ```
    pub fn cancelled(&self) -> Cancelled {
        Cancelled { run: Arc::clone(&self.run), id: None }
    }

    /// How much time is left until the deadline or the end of the run time-out. `None`: as much as it takes.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().run_timeout(Duration::from_secs(9)).run(|ctx| ctx.remaining()).unwrap();
    /// assert!(job.wait().unwrap().unwrap() <= Duration::from_secs(9));
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let now = self.run.shared().clock.nanos();
        (self.run.stop_by != NEVER).then(|| Duration::from_nanos(self.run.stop_by.saturating_sub(now)))
    }

    /// When this run was due.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// let scheduler = punctual::Scheduler::builder().clock(&clock).build().unwrap();
    /// let due = clock.now() + Duration::from_secs(1);
    /// let mut job = scheduler.at(due).run(|ctx| ctx.due()).unwrap();
    /// clock.advance(Duration::from_secs(1)).unwrap();
    /// assert_eq!(job.wait().unwrap(), due);
    /// ```
    #[must_use]
    pub fn due(&self) -> Instant {
        let clock = &self.run.shared().clock;
        clock.to_instant(self.run.due).unwrap_or_else(|| clock.now())
    }

    /// How long after its due instant this run started.
    ///
    /// # Example
    /// ```
    /// let clock = punctual::VirtualClock::new();
    /// let scheduler = punctual::Scheduler::builder().clock(&clock).build().unwrap();
    /// let mut job = scheduler.now().run(|ctx| ctx.lateness()).unwrap();
    /// assert!(job.wait().unwrap().is_zero());
    /// ```
    #[must_use]
    pub fn lateness(&self) -> Duration {
        Duration::from_nanos(self.run.started.saturating_sub(self.run.due))
    }

    /// In a series: how many ticks were missed since the last run. Otherwise 0.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().run(|ctx| ctx.missed()).unwrap();
    /// assert_eq!(job.wait(), Ok(0));
    /// ```
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.run.missed
    }

    /// The number of this job.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().run(|ctx| ctx.id()).unwrap();
    /// let id = job.id();
    /// assert_eq!(job.wait(), Ok(id));
    /// ```
    #[must_use]
    pub fn id(&self) -> JobId {
        self.run.work.head().id()
    }

    /// The name of the tenant this job belongs to; empty for work that names none.
    ///
    /// # Example
    /// ```
    /// use punctual::{Limits, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let acme = scheduler.tenant("acme", Limits::new()).unwrap();
    /// let mut job = acme.now().run(|ctx| ctx.tenant()).unwrap();
    /// assert_eq!(&*job.wait().unwrap(), "acme");
    /// ```
    #[must_use]
    pub fn tenant(&self) -> Arc<str> {
        let core = self.run.shared().core.lock();
        core.tenants.get(self.run.tenant).map_or_else(|| Arc::from(""), |tenant| Arc::clone(&tenant.name))
    }

    /// The name given to this job, if any.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().name("tidy").run(|ctx| ctx.name().map(str::to_owned)).unwrap();
    /// assert_eq!(job.wait().unwrap().as_deref(), Some("tidy"));
    /// ```
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.run.work.head().name.as_deref()
    }

    /// Submits a child job that runs now. A child has at most its parent's deadline and is cancelled with it.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::builder().workers(2).build().unwrap();
    /// let mut job = scheduler.now().run(|ctx| ctx.now().run(|_| 6 * 7).unwrap().wait()).unwrap();
    /// assert_eq!(job.wait().unwrap(), Ok(42));
    /// ```
    #[must_use = "a plan does nothing until `run` or `spawn`"]
    pub fn now(&self) -> Plan<'_> {
        self.after(Duration::ZERO)
    }

    /// Submits a child job that runs after a delay.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// let scheduler = punctual::Scheduler::builder().clock(&clock).build().unwrap();
    /// scheduler.now().run(|ctx| ctx.after(Duration::from_secs(1)).run(|_| ()).unwrap().detach()).unwrap().detach();
    /// clock.advance(Duration::from_secs(1)).unwrap();
    /// assert_eq!(scheduler.snapshot().finished.succeeded, 2);
    /// ```
    #[must_use = "a plan does nothing until `run` or `spawn`"]
    pub fn after(&self, delay: Duration) -> Plan<'_> {
        self.at(delay)
    }

    /// Submits a child job that runs at an `Instant` or a `SystemTime`.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::builder().workers(2).build().unwrap();
    /// let mut job = scheduler.now().run(|ctx| ctx.at(ctx.due()).run(|_| 1).unwrap().wait()).unwrap();
    /// assert_eq!(job.wait().unwrap(), Ok(1));
    /// ```
    #[must_use = "a plan does nothing until `run` or `spawn`"]
    pub fn at(&self, when: impl Into<When>) -> Plan<'_> {
        Plan::new(self.run.shared(), when.into()).child_of(&self.run)
    }
}

impl fmt::Debug for Ctx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx").field("id", &self.id()).field("cancelled", &self.is_cancelled()).finish()
    }
}

/// The future of [`Ctx::cancelled`].
///
/// # Example
/// ```
/// let scheduler = punctual::Scheduler::new();
/// let job = scheduler.now().spawn(|ctx| async move { ctx.cancelled().await }).unwrap();
/// job.cancel();
/// job.stopped().wait();
/// ```
#[must_use = "a future does nothing unless polled"]
pub struct Cancelled {
    run: Arc<Run>,
    id: Option<u64>,
}

impl Cancelled {
    pub(crate) fn of(run: &Arc<Run>) -> Self {
        Self { run: Arc::clone(run), id: None }
    }
}

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let run = Arc::clone(&self.run);
        let mut interest = run.interest.lock();
        if interest.why.is_some() {
            return Poll::Ready(());
        }
        let known = self.id.and_then(|id| interest.wakers.iter().position(|(other, _)| *other == id));
        let old = if let Some(at) = known {
            Some(std::mem::replace(&mut interest.wakers[at].1, waker))
        } else {
            self.id = Some(interest.next);
            let id = interest.next;
            interest.next += 1;
            interest.wakers.push((id, waker));
            None
        };
        drop(interest);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut interest = self.run.interest.lock();
        let known = interest.wakers.iter().position(|(other, _)| *other == id);
        let old = known.map(|at| interest.wakers.swap_remove(at));
        drop(interest);
        drop(old);
    }
}

impl fmt::Debug for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancelled").field("cancelled", &self.run.is_cancelled()).finish()
    }
}
