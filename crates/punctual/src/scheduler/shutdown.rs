//! How a scheduler ends: no new work, what is due drains for a while, the rest is cancelled, and a report says so.
//!
//! # Invariants
//! 1. A shutdown ends when nothing that it waits for is ready or running, or when its grace is over: an alarm like any
//!    other, so it needs no thread of its own and is on time with every worker busy.
//! 2. A job that waits for the shutdown is not waited for.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Shared;
use super::after::After;
use super::core::{Core, Disposal};
use super::job::{Outcome, Record};
use super::work::Listener;
use super::worker;
use crate::clock::{Clock, NEVER, duration_to_nanos};
use crate::error::{Cause, JobError, Stage};
use crate::slab::SlabKey;

/// Where a scheduler stands in its own life.
pub(crate) enum Phase {
    Open,
    Closing(Closing),
    Closed(Report),
}

#[derive(Default)]
pub(crate) struct Closing {
    /// Runs that had ended when the shutdown began.
    ended_before: u64,
    never_started: usize,
    /// Jobs that wait for the shutdown from inside, and how many times each.
    inside: BTreeMap<SlabKey, usize>,
}

impl Phase {
    pub(crate) fn is_closing(&self) -> bool {
        !matches!(self, Self::Open)
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }
}

/// What became of the jobs when a scheduler was shut down.
///
/// # Example
/// ```
/// use punctual::{Scheduler, VirtualClock};
/// use std::time::Duration;
///
/// let clock = VirtualClock::new();
/// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
/// let due = scheduler.now().run(|_| ()).unwrap();
/// let tomorrow = scheduler.after(Duration::from_secs(86_400)).run(|_| ()).unwrap();
/// let report = scheduler.shutdown(Duration::from_secs(1));
/// assert_eq!((report.never_started, report.still_running), (1, 0));
/// # drop((due, tomorrow));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Report {
    /// Jobs that ended between the call and its return, whatever their outcome.
    pub done: usize,
    /// Jobs that were due but had not started when the grace was over.
    pub cancelled: usize,
    /// Jobs and series that were not due yet.
    pub never_started: usize,
    /// Jobs that were running when the grace was over. They have been told; closures that do not look run on.
    pub still_running: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, cancelled, never_started, still_running } = self;
        write!(f, "{done} done, {cancelled} cancelled, {never_started} never started, {still_running} still running")
    }
}

impl Core {
    /// No new work from here on; what is not due now never starts.
    pub(crate) fn begin_shutdown(&mut self, grace: Duration, clock: &Clock, after: &mut After) {
        if self.phase.is_closing() {
            return;
        }
        let now = self.now(clock);
        while self.fire(clock, after) {}
        let scheduled = |(key, record): (SlabKey, &Record)| (record.stage() == Stage::Scheduled).then_some(key);
        let waiting: Vec<_> = self.jobs.iter().filter_map(scheduled).collect();
        for &key in &waiting {
            self.cancel(key, Cause::Shutdown, Disposal::Elsewhere, after);
        }
        let (never_started, ended_before) = (waiting.len(), self.ended);
        self.phase = Phase::Closing(Closing { ended_before, never_started, inside: BTreeMap::new() });
        self.arm_grace(now.saturating_add(duration_to_nanos(grace)));
        self.end_if_drained(after);
        self.rouse_for_turns(clock, after);
        self.cover(after);
    }

    /// A job began or ceased to wait for the shutdown.
    pub(crate) fn waits_inside(&mut self, job: SlabKey, waits: bool, after: &mut After) {
        let Phase::Closing(closing) = &mut self.phase else { return };
        if waits {
            *closing.inside.entry(job).or_default() += 1;
        } else if let Some(times) = closing.inside.get_mut(&job) {
            *times -= 1;
            if *times == 0 {
                closing.inside.remove(&job);
            }
        }
        self.end_if_drained(after);
    }

    /// A job that has ended waits for nothing, whatever it left behind.
    pub(crate) fn leaves_inside(&mut self, job: SlabKey) {
        if let Phase::Closing(closing) = &mut self.phase {
            closing.inside.remove(&job);
        }
    }

    pub(crate) fn end_if_drained(&mut self, after: &mut After) {
        if let Phase::Closing(closing) = &self.phase
            && self.gauges.ready == 0
            && self.gauges.running <= closing.inside.len()
        {
            self.end_shutdown(after);
        }
    }

    /// Cancels what is left and writes the report.
    pub(crate) fn end_shutdown(&mut self, after: &mut After) {
        let Phase::Closing(closing) = &mut self.phase else { return };
        let closing = std::mem::take(closing);
        let done = self.ended - closing.ended_before;
        let mut report = Report { never_started: closing.never_started, ..Report::default() };
        report.done = usize::try_from(done).unwrap_or(usize::MAX);
        let left: Vec<_> = self.jobs.iter().map(|(key, record)| (key, record.stage())).collect();
        // Closed before the cancels, so that they do not end the shutdown again.
        self.phase = Phase::Closed(report);
        for (key, stage) in left {
            match stage {
                Stage::Running if closing.inside.contains_key(&key) => {}
                Stage::Running => {
                    report.still_running += 1;
                    let error = JobError::Cancelled { cause: Cause::Shutdown, stage };
                    self.disown(key, Outcome::Cancelled, error, Disposal::Elsewhere, after);
                }
                Stage::Scheduled | Stage::Ready | Stage::Stopped => {
                    report.cancelled += 1;
                    self.cancel(key, Cause::Shutdown, Disposal::Elsewhere, after);
                }
            }
        }
        self.phase = Phase::Closed(report);
        after.closed = true;
        self.rouse_all(after);
    }
}

/// Waits for the report of a shutdown; a future, and a blocking wait.
#[must_use = "a future does nothing unless polled"]
pub(crate) struct Ending {
    shared: Arc<Shared>,
    inside: Option<SlabKey>,
    listener: Option<u64>,
}

impl Ending {
    pub(crate) fn begin(shared: &Arc<Shared>, grace: Duration) -> Self {
        let mut after = After::default();
        let mut core = shared.core.lock();
        core.begin_shutdown(grace, &shared.clock, &mut after);
        let inside = worker::current_job(shared);
        if let Some(job) = inside {
            core.waits_inside(job, true, &mut after);
        }
        drop(core);
        after.run(shared);
        Self { shared: Arc::clone(shared), inside, listener: None }
    }

    pub(crate) fn wait(self) -> Report {
        self.shared.closed.wait(&self.shared, NEVER);
        self.report().unwrap_or_default()
    }

    fn report(&self) -> Option<Report> {
        match self.shared.core.lock().phase {
            Phase::Closed(report) => Some(report),
            Phase::Open | Phase::Closing(_) => None,
        }
    }
}

impl Future for Ending {
    type Output = Report;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Report> {
        let waker = Listener::Task(cx.waker().clone());
        let this = &mut *self;
        if !this.shared.closed.is_open_or_listen(&mut this.listener, waker) {
            return Poll::Pending;
        }
        this.report().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(id) = self.listener {
            self.shared.closed.forget(id);
        }
        if let Some(job) = self.inside {
            let mut after = After::default();
            self.shared.core.lock().waits_inside(job, false, &mut after);
            after.run(&self.shared);
        }
    }
}
