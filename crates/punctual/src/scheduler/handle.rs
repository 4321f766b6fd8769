//! What the caller holds: interest in a job. Letting go of it is losing interest, unless it is detached.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::after::After;
use super::core::Cancel;
use super::plan::When;
use super::repeat::Tally;
use super::work::{Joined, Listener, Work};
use super::{JobId, worker};
use crate::clock::{NEVER, Nanos, Parker, duration_to_nanos};
use crate::error::{Cause, FlatError, JobError};
use crate::queue::together;

/// The caller's end of a job: a future of its result, and a blocking wait.
///
/// **Dropping it cancels the job**: nobody wants the result any more. [`detach`](Self::detach) lets go without
/// cancelling.
///
/// # Example
/// ```
/// let scheduler = punctual::Scheduler::new();
/// let mut job = scheduler.now().run(|_| 6 * 7).unwrap();
/// assert_eq!(job.wait(), Ok(42));
/// ```
#[must_use = "dropping a handle cancels its job; `detach` lets go without cancelling"]
pub struct JobHandle<T> {
    work: Arc<dyn Joined<T>>,
    detached: bool,
}

impl<T> JobHandle<T> {
    pub(crate) fn new(work: Arc<dyn Joined<T>>) -> Self {
        Self { work, detached: false }
    }

    /// Blocks until the job has an outcome.
    ///
    /// # Errors
    /// [`JobError`] says why there is no result. [`JobError::WouldDeadlock`], from inside a job, says that there never
    /// could be one; then the handle is as it was.
    ///
    /// # Panics
    /// If the result was taken before.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// assert_eq!(scheduler.now().run(|_| 1).unwrap().wait(), Ok(1));
    /// ```
    pub fn wait(&mut self) -> Result<T, JobError> {
        let (shared, key) = (Arc::clone(&self.work.head().shared), self.work.head().key());
        let Some(waiter) = worker::current_job(&shared) else {
            return self.wait_until(NEVER).expect("a wait without an end ends with the result");
        };
        // Inside a job: does anybody remain who could run the other?
        if !shared.core.lock().begin_wait(waiter, key) {
            return Err(JobError::WouldDeadlock);
        }
        let result = self.wait_until(NEVER).expect("a wait without an end ends with the result");
        shared.core.lock().end_wait(waiter);
        result
    }

    /// As [`wait`](Self::wait), for at most `timeout`. Giving up the wait is not giving up the job: the handle is still
    /// held.
    ///
    /// # Panics
    /// If the result was taken before.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.after(Duration::from_secs(60)).run(|_| ()).unwrap();
    /// assert_eq!(job.wait_timeout(Duration::from_millis(1)), None);
    /// ```
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<T, JobError>> {
        let now = self.work.head().shared.clock.nanos();
        self.wait_until(now.saturating_add(duration_to_nanos(timeout)))
    }

    fn wait_until(&mut self, give_up: Nanos) -> Option<Result<T, JobError>> {
        let clock = &self.work.head().shared.clock;
        let _presence = clock.presence();
        let parker = Parker::of_this_thread();
        loop {
            let result = self.work.cell().take_or_listen(Listener::Thread(Arc::clone(&parker)));
            if result.is_some() || clock.nanos() >= give_up {
                return result;
            }
            together::wake_held();
            parker.park(clock, give_up);
        }
    }

    /// Stops wanting the job. What has not started never will; what runs is told.
    ///
    /// # Example
    /// ```
    /// use punctual::{Cancel, Scheduler};
    /// use std::time::Duration;
    /// let scheduler = Scheduler::new();
    /// let job = scheduler.after(Duration::from_secs(60)).run(|_| ()).unwrap();
    /// assert_eq!(job.cancel(), Cancel::Prevented);
    /// ```
    pub fn cancel(&self) -> Cancel {
        let head = self.work.head();
        head.shared.cancel(head.key(), Cause::Handle)
    }

    /// Waits until the work has truly stopped, which may be after its outcome is settled. From inside the job itself it
    /// returns at once.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let job = scheduler.now().run(|ctx| while !ctx.is_cancelled() { std::thread::yield_now() }).unwrap();
    /// job.cancel();
    /// job.stopped().wait();
    /// assert_eq!(scheduler.snapshot().running, 0);
    /// ```
    pub fn stopped(&self) -> Stopped
    where
        T: 'static,
    {
        Stopped { work: Arc::<dyn Joined<T>>::clone(&self.work), listener: None }
    }

    /// Gives the job another due instant. False if it is due already, or over.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.after(Duration::from_secs(3600)).run(|_| "now").unwrap();
    /// assert!(job.reschedule(Duration::ZERO));
    /// assert_eq!(job.wait(), Ok("now"));
    /// ```
    pub fn reschedule(&self, when: impl Into<When>) -> bool {
        let head = self.work.head();
        let (shared, mut after) = (&head.shared, After::default());
        let mut core = shared.core.lock();
        let now = core.now(&shared.clock);
        let due = when.into().resolve(&shared.clock, now);
        let moved = core.reschedule(head.key(), due, &shared.clock, &mut after);
        drop(core);
        after.run(shared);
        moved
    }

    /// Lets go without cancelling: the job runs on, its result is dropped.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.now().run(|_| ()).unwrap().detach();
    /// ```
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// The number of the job.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let (one, two) = (scheduler.now().run(|_| ()).unwrap(), scheduler.now().run(|_| ()).unwrap());
    /// assert_ne!(one.id(), two.id());
    /// ```
    #[must_use]
    pub fn id(&self) -> JobId {
        self.work.head().id()
    }
}

impl<T, E> JobHandle<Result<T, E>> {
    /// For a job that returns a `Result`: one `Result` instead of two.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().run(|_| "7".parse::<u8>()).unwrap().flatten();
    /// assert_eq!(job.wait(), Ok(7));
    /// ```
    pub fn flatten(self) -> FlatHandle<T, E> {
        FlatHandle { job: self }
    }
}

impl<T> Future for JobHandle<T> {
    type Output = Result<T, JobError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let listener = Listener::Task(cx.waker().clone());
        self.work.cell().take_or_listen(listener).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> Drop for JobHandle<T> {
    fn drop(&mut self) {
        if !self.detached && !self.work.cell().is_settled() {
            let head = self.work.head();
            head.shared.cancel(head.key(), Cause::Dropped);
        }
        self.work.cell().discard();
    }
}

impl<T> fmt::Debug for JobHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobHandle").field("id", &self.id()).field("settled", &self.work.cell().is_settled()).finish()
    }
}

/// A [`JobHandle`] of a job that returns a `Result`, with both errors in one.
///
/// # Example
/// ```
/// let scheduler = punctual::Scheduler::new();
/// let mut job = scheduler.now().run(|_| "x".parse::<u8>()).unwrap().flatten();
/// assert!(job.wait().is_err());
/// ```
#[must_use = "dropping a handle cancels its job; `detach` lets go without cancelling"]
#[derive(Debug)]
pub struct FlatHandle<T, E> {
    job: JobHandle<Result<T, E>>,
}

impl<T, E> FlatHandle<T, E> {
    /// As [`JobHandle::wait`].
    ///
    /// # Errors
    /// What the job returned, or why it did not.
    ///
    /// # Panics
    /// If the result was taken before.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().run(|_| "7".parse::<u8>()).unwrap().flatten();
    /// assert_eq!(job.wait(), Ok(7));
    /// ```
    pub fn wait(&mut self) -> Result<T, FlatError<E>> {
        flat(self.job.wait())
    }

    /// As [`JobHandle::wait_timeout`].
    ///
    /// # Panics
    /// If the result was taken before.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().run(|_| "7".parse::<u8>()).unwrap().flatten();
    /// assert_eq!(job.wait_timeout(std::time::Duration::from_secs(60)), Some(Ok(7)));
    /// ```
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<T, FlatError<E>>> {
        self.job.wait_timeout(timeout).map(flat)
    }

    /// The handle as it was.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let mut job = scheduler.now().run(|_| "7".parse::<u8>()).unwrap().flatten();
    /// job.into_inner().detach();
    /// ```
    pub fn into_inner(self) -> JobHandle<Result<T, E>> {
        self.job
    }
}

impl<T, E> Future for FlatHandle<T, E> {
    type Output = Result<T, FlatError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.job).poll(cx).map(flat)
    }
}

fn flat<T, E>(result: Result<Result<T, E>, JobError>) -> Result<T, FlatError<E>> {
    match result {
        Ok(returned) => returned.map_err(FlatError::Failed),
        Err(error) => Err(FlatError::Job(error)),
    }
}

/// The caller's end of a series.
///
/// **Dropping it cancels the series**; [`detach`](Self::detach) lets go without cancelling.
///
/// # Example
/// ```
/// use punctual::{Scheduler, VirtualClock};
/// use std::time::Duration;
/// let clock = VirtualClock::new();
/// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
/// let series = scheduler.every(Duration::from_secs(1)).run(|_| ()).unwrap();
/// clock.advance(Duration::from_secs(10)).unwrap();
/// assert_eq!(series.runs(), 10);
/// ```
#[must_use = "dropping a handle cancels its series; `detach` lets go without cancelling"]
pub struct SeriesHandle {
    work: Arc<dyn Work>,
    tally: Arc<Tally>,
    detached: bool,
}

impl SeriesHandle {
    pub(crate) fn new(work: Arc<dyn Work>, tally: Arc<Tally>) -> Self {
        Self { work, tally, detached: false }
    }

    /// Ends the series: no further run; one that runs is told.
    ///
    /// # Example
    /// ```
    /// use punctual::{Cancel, Scheduler};
    /// use std::time::Duration;
    /// let scheduler = Scheduler::new();
    /// let series = scheduler.every(Duration::from_secs(60)).run(|_| ()).unwrap();
    /// assert_eq!(series.cancel(), Cancel::Prevented);
    /// assert_eq!(series.next_due(), None);
    /// ```
    pub fn cancel(&self) -> Cancel {
        let head = self.work.head();
        head.shared.cancel(head.key(), Cause::Handle)
    }

    /// When the next run is due; `None` while one runs, and after the end.
    ///
    /// # Example
    /// ```
    /// use punctual::{Scheduler, VirtualClock};
    /// use std::time::Duration;
    /// let clock = VirtualClock::new();
    /// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
    /// let series = scheduler.every(Duration::from_secs(60)).run(|_| ()).unwrap();
    /// assert_eq!(series.next_due(), Some(clock.now() + Duration::from_secs(60)));
    /// ```
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let head = self.work.head();
        let core = head.shared.core.lock();
        let waiting = core.jobs.get(head.key()).filter(|record| record.run.is_none())?;
        head.shared.clock.to_instant(waiting.due)
    }

    /// How many runs have ended.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// let scheduler = punctual::Scheduler::builder().clock(&clock).build().unwrap();
    /// let series = scheduler.every(Duration::from_secs(1)).run(|_| ()).unwrap();
    /// clock.advance(Duration::from_secs(3)).unwrap();
    /// assert_eq!(series.runs(), 3);
    /// ```
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.tally.runs.load(Ordering::Relaxed)
    }

    /// How many ticks were missed.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// let scheduler = punctual::Scheduler::builder().clock(&clock).build().unwrap();
    /// let series = scheduler.every(Duration::from_secs(1)).run(|_| ()).unwrap();
    /// clock.advance(Duration::from_secs(3)).unwrap();
    /// assert_eq!(series.missed(), 0);
    /// ```
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.tally.missed.load(Ordering::Relaxed)
    }

    /// How many runs panicked or returned an error.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// let scheduler = punctual::Scheduler::builder().clock(&clock).build().unwrap();
    /// let series = scheduler.every(Duration::from_secs(1)).run(|_| Err::<(), _>("no")).unwrap();
    /// clock.advance(Duration::from_secs(3)).unwrap();
    /// assert_eq!(series.failures(), 3);
    /// ```
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.tally.failures.load(Ordering::Relaxed)
    }

    /// Waits until the series is over and its last run has stopped. From inside one of its runs it returns at once.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let series = scheduler.every(Duration::from_secs(60)).run(|_| ()).unwrap();
    /// series.cancel();
    /// series.stopped().wait();
    /// ```
    pub fn stopped(&self) -> Stopped {
        Stopped { work: Arc::clone(&self.work), listener: None }
    }

    /// Lets go without cancelling: the series runs on until the scheduler ends.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// scheduler.every(Duration::from_secs(60)).run(|_| ()).unwrap().detach();
    /// ```
    pub fn detach(mut self) {
        self.detached = true;
    }

    /// The number of the series.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let series = scheduler.every(std::time::Duration::from_secs(1)).run(|_| ()).unwrap();
    /// println!("series {}", series.id());
    /// ```
    #[must_use]
    pub fn id(&self) -> JobId {
        self.work.head().id()
    }
}

impl Drop for SeriesHandle {
    fn drop(&mut self) {
        if !self.detached {
            let head = self.work.head();
            head.shared.cancel(head.key(), Cause::Dropped);
        }
    }
}

impl fmt::Debug for SeriesHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeriesHandle")
            .field("id", &self.id())
            .field("runs", &self.runs())
            .field("missed", &self.missed())
            .field("failures", &self.failures())
            .finish()
    }
}

/// Waits until work has truly stopped: a future, and a blocking [`wait`](Stopped::wait).
///
/// # Example
/// ```
/// let scheduler = punctual::Scheduler::new();
/// let job = scheduler.now().run(|_| ()).unwrap();
/// job.stopped().wait();
/// ```
#[must_use = "a future does nothing unless polled or waited for"]
pub struct Stopped {
    work: Arc<dyn Work>,
    listener: Option<u64>,
}

impl Stopped {
    /// Blocks until the work has stopped; returns at once from inside the work itself.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let job = scheduler.now().run(|_| ()).unwrap();
    /// job.stopped().wait();
    /// ```
    pub fn wait(self) {
        if !self.is_own_job() {
            let head = self.work.head();
            head.stopped().wait(&head.shared, NEVER);
        }
    }

    /// As [`wait`](Self::wait), for at most `timeout`; says whether the work has stopped.
    ///
    /// # Example
    /// ```
    /// let scheduler = punctual::Scheduler::new();
    /// let job = scheduler.now().run(|_| ()).unwrap();
    /// assert!(job.stopped().wait_timeout(std::time::Duration::from_secs(60)));
    /// ```
    #[must_use]
    pub fn wait_timeout(self, timeout: Duration) -> bool {
        let head = self.work.head();
        let give_up = head.shared.clock.nanos().saturating_add(duration_to_nanos(timeout));
        !self.is_own_job() && head.stopped().wait(&head.shared, give_up)
    }

    /// Work that waits for its own end would wait for ever.
    fn is_own_job(&self) -> bool {
        let head = self.work.head();
        worker::current_job(&head.shared) == Some(head.key())
    }
}

impl Future for Stopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let listener = Listener::Task(cx.waker().clone());
        let this = &mut *self;
        let open = this.is_own_job() || this.work.head().stopped().is_open_or_listen(&mut this.listener, listener);
        if open { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(id) = self.listener {
            self.work.head().stopped().forget(id);
        }
    }
}

impl fmt::Debug for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopped").field("job", &self.work.head().id()).finish()
    }
}
