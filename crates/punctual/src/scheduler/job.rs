//! One job as the scheduler sees it: its two fields, stage and outcome, and the only place where they change.
//!
//! | from | to | by |
//! |---|---|---|
//! | Scheduled | Ready | its due instant |
//! | Ready | Running | a worker that picks it, or a grant |
//! | Running | Stopped | the end of its code, or of the last clone of its permit |
//! | Scheduled, Ready | Stopped | cancel, expiry: it never starts |
//! | Running, Ready | Scheduled | the next run of a series |
//!
//! The outcome is set once per run: before the start by the step that competes with starting, while running by the step
//! that competes with finishing. All of these happen under the scheduler's one lock, so exactly one wins.

use std::sync::Arc;
use std::time::SystemTime;

use super::ctx::Run;
use super::list::Links;
use super::repeat::Series;
use super::work::Work;
use crate::clock::{NEVER, Nanos};
use crate::error::Stage;
use crate::slab::SlabKey;

/// How a run ended.
///
/// # Example
/// ```
/// use punctual::{Event, Outcome, Scheduler};
/// use std::sync::{Arc, Mutex};
/// let outcomes = Arc::new(Mutex::new(Vec::new()));
/// let seen = Arc::clone(&outcomes);
/// let scheduler = Scheduler::builder()
///     .on_event(move |event| if let Event::Finished { outcome, .. } = event { seen.lock().unwrap().push(*outcome) })
///     .build()
///     .unwrap();
/// let job = scheduler.now().run(|_| ()).unwrap();
/// job.stopped().wait();
/// assert_eq!(*outcomes.lock().unwrap(), [Outcome::Succeeded]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It returned.
    Succeeded,
    /// It returned an error (a run of a series).
    Failed,
    /// It panicked.
    Panicked,
    /// Somebody stopped wanting it.
    Cancelled,
    /// It was not started, or not finished, in time.
    Expired,
}

/// Whether a worker has the job in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// In no list, in no hands: waits for its due instant, or for a waker.
    Waiting,
    /// In the ready list, to be started or polled.
    Queued,
    InHand,
    /// In hand, and its waker was called meanwhile: to be polled again.
    InHandAndWoken,
    /// Its future was given to another runtime, or its permit to its caller.
    Away,
}

pub(crate) struct Record {
    pub(crate) work: Arc<dyn Work>,
    pub(crate) tenant: SlabKey,
    /// Lower goes first; and what one start costs its tenant.
    pub(crate) priority: i8,
    pub(crate) cost: u32,
    stage: Stage,
    outcome: Option<Outcome>,
    pub(crate) turn: Turn,
    /// It is a future, not a closure; and is that given to another runtime?
    pub(crate) future: bool,
    pub(crate) away: bool,
    /// It is a permit for its caller: it takes no worker.
    pub(crate) permit: bool,
    /// When it may start; and the same as a date, if it goes by the wall clock.
    pub(crate) due: Nanos,
    pub(crate) wall_due: Option<SystemTime>,
    /// It was due at its submit: it counts as waiting for its turn from then on.
    pub(crate) pressing: bool,
    /// When the present stage began.
    pub(crate) since: Nanos,
    pub(crate) start_within: Nanos,
    pub(crate) run_timeout: Nanos,
    pub(crate) deadline: Nanos,
    /// The one timer of a job: its due instant, or whatever ends the present stage.
    pub(crate) alarm: Option<SlabKey>,
    /// Its places in the lists it is in.
    pub(crate) links: [Links; 2],
    pub(crate) run: Option<Arc<Run>>,
    pub(crate) series: Option<Box<Series>>,
}

impl Record {
    pub(crate) fn new(work: Arc<dyn Work>, tenant: SlabKey, due: Nanos, now: Nanos) -> Self {
        Self {
            work,
            tenant,
            priority: 0,
            cost: 1,
            stage: Stage::Scheduled,
            outcome: None,
            turn: Turn::Waiting,
            future: false,
            away: false,
            permit: false,
            due,
            wall_due: None,
            pressing: false,
            since: now,
            start_within: NEVER,
            run_timeout: NEVER,
            deadline: NEVER,
            alarm: None,
            links: Default::default(),
            run: None,
            series: None,
        }
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// How the present run ended, once that is decided. The run may have yet to stop.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    fn is_settled(&self) -> bool {
        self.outcome.is_some()
    }

    pub(crate) fn make_ready(&mut self, now: Nanos) {
        debug_assert!(self.stage == Stage::Scheduled && !self.is_settled() && now >= self.due);
        // What was due at its submit has waited for its turn since then.
        self.enter(Stage::Ready, if self.pressing { self.since } else { now });
    }

    pub(crate) fn start(&mut self, run: Arc<Run>, now: Nanos) {
        debug_assert!(self.stage == Stage::Ready && !self.is_settled() && now >= self.due);
        self.run = Some(run);
        self.enter(Stage::Running, now);
    }

    /// Decides the outcome. False if it was decided before.
    pub(crate) fn settle(&mut self, outcome: Outcome) -> bool {
        debug_assert_ne!(self.stage, Stage::Stopped);
        let first = self.outcome.is_none();
        if first {
            self.outcome = Some(outcome);
        }
        first
    }

    pub(crate) fn stop(&mut self, now: Nanos) {
        debug_assert!(self.is_settled(), "what stops has an outcome");
        self.enter(Stage::Stopped, now);
    }

    /// A series goes on: back to waiting, for a new due instant.
    pub(crate) fn repeat(&mut self, due: Nanos, wall_due: Option<SystemTime>, now: Nanos) {
        debug_assert!(self.series.is_some() && self.is_settled());
        (self.outcome, self.run, self.turn) = (None, None, Turn::Waiting);
        (self.due, self.wall_due, self.pressing) = (due, wall_due, false);
        self.enter(Stage::Scheduled, now);
    }

    fn enter(&mut self, stage: Stage, now: Nanos) {
        (self.stage, self.since) = (stage, now);
    }

    /// What ends the present stage, if nothing else does.
    pub(crate) fn alarm_at(&self) -> Nanos {
        let own = match self.stage {
            Stage::Scheduled => self.due,
            Stage::Ready => self.due.saturating_add(self.start_within),
            Stage::Running if self.is_settled() => return NEVER,
            Stage::Running => self.since.saturating_add(self.run_timeout),
            Stage::Stopped => return NEVER,
        };
        own.min(self.deadline)
    }
}
