//! How many jobs are in each stage: the scheduler's own count, and one per tenant.
//!
//! A gauge changes only together with a record's stage: `Core::change` takes the record out and puts it back.

use crate::error::Stage;
use crate::scheduler::job::Record;

/// How many records are in each stage.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) scheduled: usize,
    /// Of the scheduled: those that were due at their submit, and stand behind alarms that are yet to be handled.
    pub(crate) pressing: usize,
    /// Of the scheduled: those that wait for a date.
    pub(super) by_wall: usize,
    pub(crate) ready: usize,
    /// Of the ready: permits, which need no worker.
    pub(super) permits: usize,
    pub(crate) running: usize,
    /// Of the running: futures that are polled here.
    pub(super) futures: usize,
    pub(super) zombies: usize,
}

impl Gauges {
    pub(super) fn enter(&mut self, record: &Record) {
        self.each(record, |gauge| *gauge += 1);
    }

    pub(super) fn leave(&mut self, record: &Record) {
        self.each(record, |gauge| *gauge -= 1);
    }

    fn each(&mut self, record: &Record, mut change: impl FnMut(&mut usize)) {
        match record.stage() {
            Stage::Scheduled => {
                change(&mut self.scheduled);
                if record.pressing {
                    change(&mut self.pressing);
                }
                if record.wall_due.is_some() {
                    change(&mut self.by_wall);
                }
            }
            Stage::Ready => {
                change(&mut self.ready);
                if record.permit {
                    change(&mut self.permits);
                }
            }
            Stage::Running => {
                change(&mut self.running);
                if record.future && !record.away {
                    change(&mut self.futures);
                }
                if record.outcome().is_some() {
                    change(&mut self.zombies);
                }
            }
            Stage::Stopped => {}
        }
    }
}
