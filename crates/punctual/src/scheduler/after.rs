//! What is to be done once the scheduler's lock is free: everything that may call the user's code or the kernel.

use std::sync::Arc;
use std::task::Waker;

use super::core::Disposal;
use super::ctx::{Ctx, Run};
use super::event::Event;
use super::job::Record;
use super::work::Work;
use super::{Shared, worker};
use crate::error::{Cause, JobError};
use crate::panics::quietly;
use crate::queue::waiters::Wake;

/// What is left of a job that ended without a worker, for a thread of its own: code to be dropped, an event to be told.
pub(crate) struct Remains {
    pub(crate) work: Option<Arc<dyn Work>>,
    pub(crate) event: Option<Event>,
}

/// Collected under the lock, done after it.
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
    /// Work whose code is to be dropped here.
    pub(crate) dropped: Vec<Arc<dyn Work>>,
    pub(crate) stopped: Vec<Arc<dyn Work>>,
    pub(crate) wake: Wake,
    pub(crate) start_workers: usize,
    pub(crate) start_disposer: bool,
    /// The report of a shutdown is ready.
    pub(crate) closed: bool,
    /// Records to be dropped.
    pub(crate) records: Vec<Record>,
}

impl After {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.settled.is_empty()
            && self.told.is_empty()
            && self.granted.is_empty()
            && self.events.is_empty()
            && self.dropped.is_empty()
            && self.stopped.is_empty()
            && self.wake.is_empty()
            && self.start_workers == 0
            && !self.start_disposer
            && !self.closed
            && self.records.is_empty()
    }

    /// Does it. Wake-ups come first: they are what others wait for, and cannot take long.
    pub(crate) fn run(self, shared: &Arc<Shared>) {
        // A loop and not a recursion: families may be deeper than the stack.
        let mut left = vec![self];
        while let Some(after) = left.pop() {
            after.run_alone(shared, &mut left);
        }
    }

    fn run_alone(self, shared: &Arc<Shared>, more: &mut Vec<Self>) {
        self.wake.give();
        (0..self.start_workers).for_each(|_| worker::start_another(shared));
        if self.start_disposer {
            worker::start_disposer(shared);
        }
        for (work, error) in self.settled {
            work.settle(error);
            quietly(|| drop(work));
        }
        for (run, error, disposal) in self.told {
            more.extend(tell(shared, &run, error, disposal));
            quietly(|| drop(run));
        }
        self.events.iter().for_each(|event| shared.emit(event));
        for run in self.granted {
            run.work.step(&Ctx::new(Arc::clone(&run)), Waker::noop());
        }
        for work in self.dropped {
            work.drop_body();
            quietly(|| drop(work));
        }
        for work in self.stopped {
            work.head().stopped().open();
            quietly(|| drop(work));
        }
        if self.closed {
            shared.closed.open();
        }
        for record in self.records {
            quietly(|| drop(record));
        }
    }
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
