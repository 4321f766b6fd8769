//! A permit by itself: the caller does the work, wherever it likes, while the scheduler counts it as running.
//!
//! For work that cannot be handed over: a future that must be polled by the task that made it, a request that a server
//! serves on its own threads. Such a job has no code of its own, so starting it takes no worker: whoever notices that
//! its turn has come grants the permit.
//!
//! # Invariants
//! 1. A granted permit reaches the handle, or is dropped there and then because nobody waits for it any more.
//! 2. The job stops when the last clone of its permit is dropped, and not before. How it ended may be settled earlier.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use super::after::After;
use super::core::{Disposal, Handled};
use super::ctx::Ctx;
use super::job::Outcome;
use super::work::{End, Head, Joined, Outlet, Step, Work};
use crate::error::{Cause, JobError, Stage};

/// The right to do one job's work now, made by [`Plan::acquire`](crate::Plan::acquire): one unit of a tenant's
/// concurrency, held until the last clone is dropped. Cheap to clone.
///
/// Dropping it counts as succeeded, or as panicked while the thread unwinds, unless [`finish`](Self::finish) said
/// otherwise. What holds a permit should look at its [`ctx`](Self::ctx): the permit does not stop the work when the
/// deadline has come, it only tells.
///
/// # Example
/// ```
/// use punctual::{Limits, Scheduler};
/// let scheduler = Scheduler::new();
/// let acme = scheduler.tenant("acme", Limits::new().running_max(1)).unwrap();
/// let permit = acme.now().acquire().unwrap().wait().unwrap();
/// let mut second = acme.now().acquire().unwrap();
/// assert_eq!((acme.snapshot().running, acme.snapshot().ready), (1, 1));
/// drop(permit);
/// second.wait().unwrap();
/// ```
#[derive(Clone)]
pub struct Permit {
    hold: Arc<Hold>,
}

/// Counted as one running job, however many clones there are.
struct Hold {
    ctx: Ctx,
}

impl Permit {
    /// Whether it is still wanted, and until when.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let scheduler = punctual::Scheduler::new();
    /// let permit = scheduler.now().run_timeout(Duration::from_secs(9)).acquire().unwrap().wait().unwrap();
    /// assert!(permit.ctx().remaining() <= Some(Duration::from_secs(9)));
    /// assert!(permit.ctx().checkpoint().is_ok());
    /// ```
    #[must_use]
    pub fn ctx(&self) -> &Ctx {
        &self.hold.ctx
    }

    /// Says how it ended, if that is undecided. Whoever holds a clone is told that nothing more is wanted, and keeps
    /// the permit taken until that clone is dropped too.
    ///
    /// # Example
    /// ```
    /// use punctual::{Outcome, Scheduler};
    /// let scheduler = Scheduler::new();
    /// let permit = scheduler.now().acquire().unwrap().wait().unwrap();
    /// let helper = permit.clone();
    /// permit.finish(Outcome::Cancelled);
    /// assert!(helper.ctx().is_cancelled());
    /// assert_eq!((scheduler.snapshot().finished.cancelled, scheduler.snapshot().zombies), (1, 1));
    /// drop(helper);
    /// assert_eq!(scheduler.snapshot().running, 0);
    /// ```
    #[allow(clippy::needless_pass_by_value, reason = "who has finished holds nothing")]
    pub fn finish(self, outcome: Outcome) {
        let run = self.hold.ctx.run();
        let (shared, mut after) = (Arc::clone(run.shared()), After::default());
        let error = JobError::Cancelled { cause: Cause::Handle, stage: Stage::Running };
        let mut core = shared.core.lock();
        core.now(&shared.clock);
        core.disown(run.work.head().key(), outcome, error, Disposal::Here, &mut after);
        drop(core);
        after.run(&shared);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let run = self.ctx.run();
        let end = if std::thread::panicking() {
            End::Panicked("a panic while a permit was held".to_owned())
        } else {
            End::Succeeded
        };
        let (shared, mut after) = (Arc::clone(run.shared()), After::default());
        let mut core = shared.core.lock();
        core.now(&shared.clock);
        core.handled(run.work.head().key(), Handled::Ended(end), &shared.clock, &mut after);
        core.rouse_for_turns(&shared.clock, &mut after);
        core.cover(&mut after);
        drop(core);
        after.run(&shared);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("ctx", &self.hold.ctx).finish()
    }
}

/// The work of such a job: none. Its one step hands the permit to whoever waits for it.
pub(crate) struct Grant {
    head: Head,
    outlet: Outlet<Permit>,
}

impl Grant {
    pub(crate) fn new(head: Head) -> Self {
        Self { head, outlet: Outlet::new() }
    }
}

impl Work for Grant {
    fn head(&self) -> &Head {
        &self.head
    }

    fn step(&self, ctx: &Ctx, _: &Waker) -> Step {
        // Over already; said and not done, because what comes of it is the next grant, and there may be a long line of
        // those.
        if self.outlet.is_unwanted() {
            return Step::Done(End::Succeeded);
        }
        self.outlet.hold(Permit { hold: Arc::new(Hold { ctx: ctx.clone() }) });
        self.outlet.settle(None);
        // Nobody waits any more, as of this moment: the permit is free again.
        self.outlet.drop_late();
        Step::Pending
    }

    fn settle(&self, error: Option<JobError>) {
        self.outlet.settle(error);
    }

    fn drop_run(&self) {}

    fn drop_body(&self) {
        self.outlet.drop_late();
    }
}

impl Joined<Permit> for Grant {
    fn cell(&self) -> &Outlet<Permit> {
        &self.outlet
    }
}
