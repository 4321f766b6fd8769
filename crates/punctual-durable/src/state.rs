//! The states of a durable job and the one table by which they change. Every store asks it; none decides for itself.
//!
//! ```text
//!             ┌────────── retry, release, reschedule, lose ──────────┐
//!             ▼                                                      │
//! enqueue ► Scheduled ── fall due ──► Ready ── claim ──► Running ────┤
//!             │                         │                  │         ├── end ────────────► Stopped(outcome)
//!             └──── end ────────────────┴── end ─────────► │         │
//!                                                          └ settle ► Running(outcome) ── stop, lose ► Stopped
//! Stopped(Failed, Cancelled, Expired) ── redrive ──► Scheduled
//! ```
//! `Running(outcome)`: the outcome is known (cancelled, expired) and the caller has been told, but the handler has yet
//! to stop; its permit is still held.

use punctual::Stage;

/// How a durable job ended.
///
/// # Example
/// ```
/// use punctual_durable::Outcome;
/// assert_eq!(Outcome::Failed.to_string(), "failed");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Its handler returned a result.
    Succeeded,
    /// Its attempts were used up, or its handler gave up. Kept as a dead letter.
    Failed,
    /// Somebody stopped wanting it.
    Cancelled,
    /// It was not started, or not finished, in time.
    Expired,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::Failed, Self::Cancelled, Self::Expired];
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        })
    }
}

/// Where a durable job stands: its stage, and its outcome once that is settled.
///
/// # Example
/// ```
/// use punctual::Stage;
/// use punctual_durable::{Outcome, State, Step};
///
/// let running = State::new(Stage::Running, None);
/// let stopping = running.after(Step::Settle(Outcome::Cancelled)).unwrap();
/// assert_eq!(stopping, State::new(Stage::Running, Some(Outcome::Cancelled)));
/// assert!(stopping.after(Step::End(Outcome::Succeeded)).is_none()); // Too late: an outcome is settled once.
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    /// Where it stands.
    pub stage: Stage,
    /// How it ended; set once.
    pub outcome: Option<Outcome>,
}

/// What can happen to a durable job.
///
/// # Example
/// ```
/// use punctual_durable::{State, Step};
/// let due = State::SCHEDULED.after(Step::FallDue).unwrap();
/// assert!(due.after(Step::Claim).is_some());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Its due instant has come.
    FallDue,
    /// A node takes it and will run it.
    Claim,
    /// It ends with this outcome, and nothing of it runs any more.
    End(Outcome),
    /// Its outcome is settled while its handler still runs.
    Settle(Outcome),
    /// The handler of a settled job has stopped.
    Stop,
    /// Its handler stopped, and it is to run again: a retry, a snooze, a release by a node that shuts down.
    Retry,
    /// The node that ran it is gone.
    Lose,
    /// Its due instant, or another of its terms, is changed while it waits.
    Reschedule,
    /// A person wants it to run again.
    Redrive,
}

impl State {
    /// Waiting for its due instant.
    pub const SCHEDULED: Self = Self { stage: Stage::Scheduled, outcome: None };
    /// Due, and waiting for a node.
    pub const READY: Self = Self { stage: Stage::Ready, outcome: None };
    /// Running.
    pub const RUNNING: Self = Self { stage: Stage::Running, outcome: None };

    /// A state of these two parts.
    ///
    /// # Example
    /// ```
    /// use punctual::Stage;
    /// assert_eq!(punctual_durable::State::new(Stage::Ready, None), punctual_durable::State::READY);
    /// ```
    #[must_use]
    pub const fn new(stage: Stage, outcome: Option<Outcome>) -> Self {
        Self { stage, outcome }
    }

    /// Whether it waits to be run.
    ///
    /// # Example
    /// ```
    /// assert!(punctual_durable::State::READY.is_waiting());
    /// ```
    #[must_use]
    pub const fn is_waiting(self) -> bool {
        matches!(self.stage, Stage::Scheduled | Stage::Ready)
    }

    /// What comes of a step; `None` if it cannot happen in this state, so nothing does.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{State, Step};
    /// assert_eq!(State::READY.after(Step::Claim), Some(State::RUNNING));
    /// assert_eq!(State::SCHEDULED.after(Step::Claim), None);
    /// ```
    #[must_use]
    pub const fn after(self, step: Step) -> Option<Self> {
        use Stage::{Ready, Running, Scheduled, Stopped};
        Some(match (self.stage, self.outcome, step) {
            (Scheduled, None, Step::FallDue) => Self::READY,
            (Ready, None, Step::Claim) => Self::RUNNING,
            (Scheduled | Ready | Running, None, Step::End(outcome)) => Self::new(Stopped, Some(outcome)),
            (Running, None, Step::Settle(outcome)) => Self::new(Running, Some(outcome)),
            (Running, Some(outcome), Step::Stop | Step::Lose) => Self::new(Stopped, Some(outcome)),
            (Running, None, Step::Retry | Step::Lose) => Self::SCHEDULED,
            (Scheduled | Ready, None, Step::Reschedule) => Self::SCHEDULED,
            (Stopped, Some(Outcome::Failed | Outcome::Cancelled | Outcome::Expired), Step::Redrive) => Self::SCHEDULED,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C38: written out a second time, as a person would check it.
    #[test]
    fn an_outcome_is_settled_once_and_only_a_person_takes_it_back() {
        let steps = [Step::FallDue, Step::Claim, Step::Settle(Outcome::Failed), Step::Stop, Step::Retry, Step::Lose];
        for outcome in Outcome::ALL {
            let stopped = State::new(Stage::Stopped, Some(outcome));
            for step in steps.into_iter().chain(Outcome::ALL.map(Step::End)).chain([Step::Reschedule]) {
                assert_eq!(stopped.after(step), None, "{outcome} {step:?}");
            }
            assert_eq!(stopped.after(Step::Redrive).is_some(), outcome != Outcome::Succeeded);
            let stopping = State::new(Stage::Running, Some(outcome));
            for step in [Step::Retry, Step::Claim, Step::FallDue, Step::Settle(Outcome::Succeeded), Step::Redrive] {
                assert_eq!(stopping.after(step), None, "{outcome} {step:?}");
            }
        }
    }

    #[test]
    fn what_waits_holds_no_outcome_and_what_stopped_has_one() {
        let stages = [Stage::Scheduled, Stage::Ready, Stage::Running, Stage::Stopped];
        let outcomes = || std::iter::once(None).chain(Outcome::ALL.map(Some));
        let steps = [Step::FallDue, Step::Claim, Step::Stop, Step::Retry, Step::Lose, Step::Reschedule, Step::Redrive];
        let steps = || steps.into_iter().chain(Outcome::ALL.map(Step::End)).chain(Outcome::ALL.map(Step::Settle));
        for stage in stages {
            for (outcome, step) in outcomes().flat_map(|outcome| steps().map(move |step| (outcome, step))) {
                if let Some(next) = State::new(stage, outcome).after(step) {
                    assert!(!next.is_waiting() || next.outcome.is_none(), "{stage} {outcome:?} {step:?}");
                    assert!(next.stage != Stage::Stopped || next.outcome.is_some(), "{stage} {outcome:?} {step:?}");
                }
            }
        }
    }
}
