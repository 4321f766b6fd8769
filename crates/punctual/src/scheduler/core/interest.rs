//! Lost interest: jobs that are cancelled, or that were not started or finished in time.
//!
//! A job that waits is withdrawn: it never starts, and its place is free at once. A job that runs is disowned: its
//! outcome is settled now, the work is told, and what it holds returns when it has truly stopped.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use crate::clock::Clock;
use crate::error::{Cause, JobError, Stage};
use crate::scheduler::after::{After, Remains};
use crate::scheduler::event::Event;
use crate::scheduler::job::{Outcome, Turn};
use crate::scheduler::repeat::Now;
use crate::slab::SlabKey;

/// `cancel` has three answers.
///
/// # Example
/// ```
/// use punctual::{Cancel, Scheduler};
/// use std::time::Duration;
/// let scheduler = Scheduler::new();
/// let job = scheduler.after(Duration::from_secs(60)).run(|_| ()).unwrap();
/// assert_eq!(job.cancel(), Cancel::Prevented);
/// assert_eq!(job.cancel(), Cancel::TooLate);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cancel {
    /// It never started and never will.
    Prevented,
    /// It runs: the outcome is Cancelled now, the work has been told, a result that comes later is dropped.
    Requested,
    /// Its outcome was settled already.
    TooLate,
}

/// Where the payload of a job that never ran is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposal {
    /// By the caller, who decided that it should end.
    Here,
    /// On a thread for it: the caller keeps the time, and a destructor may take long.
    Elsewhere,
}
impl Core {
    pub(crate) fn cancel(&mut self, key: SlabKey, cause: Cause, disposal: Disposal, after: &mut After) -> Cancel {
        let Some(record) = self.jobs.get_mut(key) else { return Cancel::TooLate };
        if let Some(series) = &mut record.series
            && std::mem::replace(&mut series.ended, true)
        {
            return Cancel::TooLate;
        }
        let (stage, settled, series) = (record.stage(), record.outcome().is_some(), record.series.is_some());
        if settled && !series {
            return Cancel::TooLate;
        }
        let error = JobError::Cancelled { cause, stage };
        if stage == Stage::Running {
            self.disown(key, Outcome::Cancelled, error, disposal, after);
            return Cancel::Requested;
        }
        self.withdraw(key, Outcome::Cancelled, error, disposal, after);
        self.end_if_drained(after);
        Cancel::Prevented
    }

    /// A stage took too long, or the deadline has come.
    pub(super) fn expire(&mut self, key: SlabKey, clock: &Clock, after: &mut After) {
        let now = self.latest;
        let Some(record) = self.jobs.get_mut(key) else { return };
        let (stage, over) = (record.stage(), now >= record.deadline);
        let error = JobError::Expired { stage, waited: Duration::from_nanos(now.saturating_sub(record.since)) };
        if over && let Some(series) = &mut record.series {
            series.ended = true;
        }
        match stage {
            Stage::Running => self.disown(key, Outcome::Expired, error, Disposal::Elsewhere, after),
            Stage::Ready if record.series.is_some() && !over => self.skip_run(key, clock, error, after),
            Stage::Scheduled | Stage::Ready => self.withdraw(key, Outcome::Expired, error, Disposal::Elsewhere, after),
            Stage::Stopped => {}
        }
        self.end_if_drained(after);
    }

    /// A run of a series was not started in time; the series goes on.
    fn skip_run(&mut self, key: SlabKey, clock: &Clock, error: JobError, after: &mut After) {
        let now = Now { mono: self.latest, wall: clock.wall() };
        let Some(record) = self.jobs.get_mut(key) else { return };
        let next = record.series.as_mut().map(|series| series.skip_run(now));
        let tenant = record.tenant;
        self.count_missed(tenant, next.map_or(0, |(_, missed)| missed));
        let Some((Some(tick), _)) = next else {
            return self.withdraw(key, Outcome::Expired, error, Disposal::Elsewhere, after);
        };
        self.unqueue(key);
        self.settle(key, Outcome::Expired);
        self.ended += 1;
        let event = self.finished_event(key, Outcome::Expired);
        self.leave(Remains { work: None, event }, after);
        self.repeat(key, tick, now, clock);
    }

    fn finished_event(&self, key: SlabKey, outcome: Outcome) -> Option<Event> {
        let record = self.jobs.get(key).filter(|_| self.listened_to)?;
        let took = Duration::from_nanos(self.latest.saturating_sub(record.since));
        Some(Event::finished(&record.work, outcome, took))
    }

    /// Something is left for another thread to do.
    fn leave(&mut self, remains: Remains, after: &mut After) {
        if remains.work.is_some() || remains.event.is_some() {
            self.remains.push_back(remains);
            after.start_disposer |= !std::mem::replace(&mut self.disposer_runs, true);
        }
    }

    /// The same, if no thread could be had for it.
    pub(crate) fn orphaned_remains(&mut self) -> Option<Remains> {
        if self.disposer_runs { None } else { self.remains.pop_front() }
    }

    /// A job that has not started never will.
    fn withdraw(&mut self, key: SlabKey, outcome: Outcome, error: JobError, disposal: Disposal, after: &mut After) {
        self.unqueue(key);
        self.settle(key, outcome);
        self.ended += 1;
        let event = self.finished_event(key, outcome);
        let Some(record) = self.jobs.get(key) else { return };
        let tenant = record.tenant;
        after.settled.push((Arc::clone(&record.work), Some(error)));
        match disposal {
            Disposal::Here => {
                after.events.extend(event);
                self.remove(key, true, after);
            }
            Disposal::Elsewhere => {
                let work = Some(Arc::clone(&record.work));
                self.leave(Remains { work, event }, after);
                self.remove(key, false, after);
            }
        }
        self.forget_if_unused(tenant);
    }

    /// A job that runs is not wanted any more: the outcome is settled now, the work is told and stops when it stops.
    pub(crate) fn disown(
        &mut self,
        key: SlabKey,
        outcome: Outcome,
        error: JobError,
        disposal: Disposal,
        after: &mut After,
    ) {
        let first = self.settle(key, outcome);
        let Some(record) = self.jobs.get_mut(key) else { return };
        if first {
            after.settled.push((Arc::clone(&record.work), Some(error.clone())));
        }
        if let Some(run) = &record.run {
            after.told.push((Arc::clone(run), error, disposal));
        }
        // A future that waits for its waker is dropped by the next worker that is free.
        if record.turn == Turn::Waiting {
            self.queue(key);
            self.rouse(after);
        }
        self.set_alarm(key);
    }
}
