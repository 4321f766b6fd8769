//! What is to be done once the scheduler's lock is free: everything that may call the user's code or the kernel.

use std::sync::Arc;
use std::task::Waker;

use super::core::{Disposal, Handled};
use super::ctx::{Ctx, Run};
use super::event::Event;
use super::repeat::Series;
use super::work::{End, Step, Work};
use super::{Shared, worker};
use crate::error::{Cause, JobError};
use crate::panics::quietly;
use crate::queue::waiters::Wake;

/// What is left of a job that ended without a worker, for a thread of its own: code to be dropped, an event to be told.
pub(crate) struct Remains {
    pub(crate) work: Option<Arc<dyn Work>>,
    pub(crate) event: Option<Event>,
}

/// What is left of a job that has stopped.
pub(crate) struct Stopped {
    pub(crate) work: Arc<dyn Work>,
    /// The user's code goes first; else somebody else drops it.
    pub(crate) with_code: bool,
    pub(crate) run: Option<Arc<Run>>,
    pub(crate) series: Option<Box<Series>>,
}

/// Collected under the lock, done after it. Whoever does so again and again keeps one, and with it the memory.
#[derive(Default)]
#[must_use = "what was decided must be done"]
pub(crate) struct After {
    /// Results to be published: the error, or what the work holds.
    pub(crate) settled: Vec<(Arc<dyn Work>, Option<JobError>)>,
    /// Runs to be told that nobody wants them, and where their children are dropped.
    pub(crate) told: Vec<(Arc<Run>, JobError, Disposal)>,
    /// Jobs whose permit is to be handed to those who wait for it.
    pub(crate) granted: Vec<Arc<Run>>,
    pub(crate) events: Vec<Event>,
    pub(crate) stopped: Vec<Stopped>,
    pub(crate) wake: Wake,
    pub(crate) start_workers: usize,
    pub(crate) start_disposer: bool,
    /// The report of a shutdown is ready.
    pub(crate) closed: bool,
}

impl After {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.settled.is_empty()
            && self.told.is_empty()
            && self.granted.is_empty()
            && self.events.is_empty()
            && self.stopped.is_empty()
            && self.wake.is_empty()
            && self.start_workers == 0
            && !self.start_disposer
            && !self.closed
    }

    /// Does it, and is empty again. Wake-ups come first: they are what others wait for, and cannot take long.
    pub(crate) fn run(&mut self, shared: &Arc<Shared>) {
        if self.is_empty() {
            return;
        }
        // A loop and not a recursion: families may be deeper than the stack.
        let mut left = Vec::new();
        self.run_alone(shared, &mut left);
        while let Some(mut after) = left.pop() {
            after.run_alone(shared, &mut left);
        }
    }

    fn run_alone(&mut self, shared: &Arc<Shared>, more: &mut Vec<Self>) {
        std::mem::take(&mut self.wake).give();
        (0..std::mem::take(&mut self.start_workers)).for_each(|_| worker::start_another(shared));
        if std::mem::take(&mut self.start_disposer) {
            worker::start_disposer(shared);
        }
        for (work, error) in self.settled.drain(..) {
            work.settle(error);
            quietly(|| drop(work));
        }
        for (run, error, disposal) in self.told.drain(..) {
            more.extend(tell(shared, &run, error, disposal));
            quietly(|| drop(run));
        }
        self.events.drain(..).for_each(|event| shared.emit(&event));
        for run in self.granted.drain(..) {
            if let Step::Done(end) = run.work.step(&Ctx::new(Arc::clone(&run)), Waker::noop()) {
                more.push(end_run(shared, &run, end));
            }
        }
        for Stopped { work, with_code, run, series } in self.stopped.drain(..) {
            if with_code {
                work.drop_body();
            }
            work.head().stopped().open();
            quietly(|| drop((work, run, series)));
        }
        if std::mem::take(&mut self.closed) {
            shared.closed.open();
        }
    }
}

/// The end of a run that no worker has in hand.
fn end_run(shared: &Shared, run: &Run, end: End) -> After {
    let mut after = After::default();
    let mut core = shared.core.lock();
    core.handled(run.work.head().key(), Handled::Ended(end), &shared.clock, &mut after);
    core.rouse_for_turns(&shared.clock, &mut after);
    core.cover(&mut after);
    after
}

/// Tells a run, and cancels the jobs it submitted.
fn tell(shared: &Arc<Shared>, run: &Run, error: JobError, disposal: Disposal) -> Option<After> {
    let (wakers, children) = run.tell(error);
    for waker in wakers {
        quietly(|| waker.wake());
    }
    if children.is_empty() {
        return None;
    }
    let mut after = After::default();
    let mut core = shared.core.lock();
    core.now(&shared.clock);
    for child in children {
        core.cancel(child, Cause::Parent, disposal, &mut after);
    }
    Some(after)
}
