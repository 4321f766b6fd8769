//! A job's future on another runtime.
//!
//! The future settles its job in every case: when it is ready, when it panics, and when the runtime drops it. So a
//! spawner may do with it what it likes, and no permit is lost.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::after::After;
use super::core::{Disposal, Handled};
use super::ctx::{Cancelled, Ctx, Run};
use super::job::Outcome;
use super::work::Step;
use super::worker::Inside;
use crate::clock::Running;
use crate::error::{Cause, JobError, Stage};

pub(crate) struct AwayFuture {
    run: Arc<Run>,
    /// Wakes the future when nobody wants it any more.
    cancelled: Cancelled,
    /// Counted as busy on a virtual clock until its first poll is over, and named there.
    expected: bool,
    named: Option<Running>,
    done: bool,
}

impl AwayFuture {
    pub(crate) fn new(run: &Arc<Run>) -> Self {
        run.shared().clock.expect_busy();
        let named = run.shared().clock.running(|| run.work.head().label());
        Self { run: Arc::clone(run), cancelled: Cancelled::of(run), expected: true, named, done: false }
    }

    fn finish(&mut self, handled: Handled) {
        self.done = true;
        let shared = Arc::clone(self.run.shared());
        let mut after = After::default();
        let mut core = shared.core.lock();
        core.now(&shared.clock);
        core.handled(self.run.work.head().key(), handled, &shared.clock, &mut after);
        core.rouse_for_turns(&shared.clock, &mut after);
        core.cover(&mut after);
        drop(core);
        after.run(&shared);
    }

    fn no_longer_expected(&mut self) {
        self.named = None;
        if std::mem::take(&mut self.expected) {
            self.run.shared().clock.no_longer_busy();
        }
    }
}

impl Future for AwayFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(());
        }
        let _inside = Inside::enter(this.run.shared(), this.run.work.head().key());
        if Pin::new(&mut this.cancelled).poll(cx).is_ready() {
            this.run.work.drop_run();
            this.finish(Handled::Dropped);
        } else if let Step::Done(end) = this.run.work.step(&Ctx::new(Arc::clone(&this.run)), cx.waker()) {
            this.finish(Handled::Ended(end));
        }
        this.no_longer_expected();
        if this.done { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for AwayFuture {
    fn drop(&mut self) {
        if !self.done {
            self.run.work.drop_run();
            let shared = Arc::clone(self.run.shared());
            let mut after = After::default();
            let error = JobError::Cancelled { cause: Cause::Runtime, stage: Stage::Running };
            shared.core.lock().disown(
                self.run.work.head().key(),
                Outcome::Cancelled,
                error,
                Disposal::Here,
                &mut after,
            );
            after.run(&shared);
            self.finish(Handled::Dropped);
        }
        self.no_longer_expected();
    }
}
