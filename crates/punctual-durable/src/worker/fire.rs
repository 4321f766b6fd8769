//! Ticks of schedules that have come, each fired by a question to the store, a few at a time.
//!
//! # Invariants
//! 1. The loop waits for none of them: though a thousand come at one instant, jobs begin and are stopped meanwhile.
//! 2. Time is looked after again when all are fired: until then they would be named again, and then those are whose next tick has come already.

use std::collections::{BTreeMap, VecDeque};
use std::task::{Context, Poll};

use super::Worker;
use super::tend::Tend;
use crate::error::StoreError;
use crate::schedule;
use crate::store::{Fired, Reply, Schedule, Unreadable};

/// How many at a time: in one file they share a commit, over a network they leave connections to others.
const FEW: usize = 4;

/// What is fired, and what is to be.
#[derive(Default)]
pub(super) struct Firing {
    due: VecDeque<Schedule>,
    asked: Vec<Reply<Fired>>,
    unreadable: Unreadable,
}

impl Firing {
    pub(super) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    pub(super) fn may_ask(&self) -> bool {
        self.asked.len() < FEW && !self.due.is_empty()
    }

    pub(super) fn is_over(&self) -> bool {
        self.due.is_empty() && self.asked.is_empty()
    }

    /// The answers that are there.
    pub(super) fn answers(&mut self, cx: &mut Context<'_>) -> Vec<Result<Fired, StoreError>> {
        let mut answers = Vec::new();
        self.asked.retain_mut(|reply| match reply.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                answers.push(answer);
                false
            }
            Poll::Pending => true,
        });
        answers
    }
}

impl Worker {
    /// The ticks of these have come. One whose rule is not understood here stays where it is: by what is not known when the next tick is, it would have none.
    pub(super) fn will_fire(&mut self, schedules: Vec<Schedule>) {
        let mut unreadable = BTreeMap::new();
        for schedule in schedules {
            match self.ticks.understand(&schedule.rule) {
                Ok(()) => self.firing.due.push_back(schedule),
                Err(error) => _ = unreadable.insert(schedule.name, error),
            }
        }
        self.firing.unreadable.found(unreadable);
    }

    pub(super) fn begin_firing(&mut self) {
        while self.firing.may_ask()
            && let Some(due) = self.firing.due.pop_front()
        {
            // The store's clock may be a moment ahead, and has decided.
            let now = self.jobs.store().now();
            let now = due.next.map_or(now, |tick| tick.max(now));
            if let Some(fire) = schedule::fire(&mut self.ticks, &due, now, self.jobs.new_id()) {
                self.firing.asked.push(self.jobs.store().fire(fire));
            }
        }
    }

    pub(super) fn fired(&mut self, answers: Vec<Result<Fired, StoreError>>) -> Result<(), StoreError> {
        let mut is_well = Ok(());
        for answer in answers {
            match answer {
                Ok(_) => self.is_hungry = true,
                Err(error) => {
                    // The next look names them again.
                    self.firing.due.clear();
                    is_well = Err(error);
                }
            }
            if self.firing.is_over() {
                self.tend = Tend::Now;
            }
        }
        is_well
    }

    /// Nobody waits any more for what was asked; it is looked at again.
    pub(super) fn give_up_firing(&mut self) {
        if !std::mem::take(&mut self.firing).is_over() {
            self.tend = Tend::Now;
        }
    }
}
