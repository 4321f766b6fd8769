//! Ticks of schedules that have come, each fired by a question to the store, a few at a time.
//!
//! # Invariants
//! 1. The loop waits for none of them: though a thousand come at one instant, jobs begin and are stopped meanwhile.
//! 2. Time is looked after again when all are fired: until then they would be named again, and then those are whose
//!    next tick has come already.
//! 3. One that is held up by somebody's lock holds up no other: it is left out of the next looks, and tried again when
//!    it has rested, a few at a time after all others.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::task::{Context, Poll};
use std::time::Duration;

use super::tend::Tend;
use super::{Answer, Worker};
use crate::error::StoreError;
use crate::schedule;
use crate::store::{Fired, Reply, Schedule, Unreadable};
use crate::time::Timestamp;

/// How many at a time: in one file they share a commit, over a network they leave connections to others.
const FEW: usize = 4;

/// How long those rest that are held up by a lock: five times as long as they wait for it, so that time is looked after
/// in between.
const HELD_REST: Duration = Duration::from_millis(250);

/// What is fired, and what is to be.
#[derive(Default)]
pub(super) struct Firing {
    due: VecDeque<Schedule>,
    asked: Vec<(Schedule, Reply<Fired>)>,
    /// Those that wait for a lock that somebody holds, as far as is known; the next to be tried first. And when.
    held: VecDeque<Held>,
    again_at: Option<Timestamp>,
    unreadable: Unreadable,
}

/// A schedule that waits for a lock.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    name: String,
    tenant: String,
}

impl From<Schedule> for Held {
    fn from(schedule: Schedule) -> Self {
        Self { name: schedule.name, tenant: schedule.template.tenant }
    }
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
    pub(super) fn answers(&mut self, cx: &mut Context<'_>) -> Vec<Answer<Schedule, Fired>> {
        let mut answers = Vec::new();
        for (schedule, mut reply) in std::mem::take(&mut self.asked) {
            match reply.as_mut().poll(cx) {
                Poll::Ready(answer) => answers.push((schedule, answer)),
                Poll::Pending => self.asked.push((schedule, reply)),
            }
        }
        answers
    }

    /// When those are tried again that are held up, if there are any.
    pub(super) fn again_at(&self) -> Option<Timestamp> {
        self.again_at.filter(|_| !self.held.is_empty())
    }

    /// The first instant at which there is something to tend: this, or earlier.
    pub(super) fn at_the_latest(&self, next: Option<Timestamp>) -> Option<Timestamp> {
        [next, self.again_at()].into_iter().flatten().min()
    }

    /// The ticks of these have come. Those that are held up are left out, or a few of them tried again after the
    /// others.
    fn take(&mut self, schedules: Vec<Schedule>, now: Timestamp) {
        let names: HashSet<&str> = schedules.iter().map(|due| due.name.as_str()).collect();
        self.held.retain(|held| names.contains(held.name.as_str()));
        // No longer than that, though the store's clock may have been set back meanwhile.
        let rest = self.again_at.is_some_and(|at| now < at && at <= now.after(HELD_REST));
        let tried = if rest { 0 } else { self.held.len().min(FEW) };
        if tried > 0 {
            self.again_at = None;
            self.held.rotate_left(tried);
        }
        let rests = self.held.len() - tried;
        let is_in = |from: usize, to: usize| self.held.range(from..to).map(|held| held.name.clone()).collect();
        let (resting, tried): (HashSet<String>, HashSet<String>) = (is_in(0, rests), is_in(rests, self.held.len()));
        let may_go = schedules.into_iter().filter(|due| !resting.contains(&due.name));
        let (last, first): (Vec<_>, Vec<_>) = may_go.partition(|due| tried.contains(&due.name));
        self.due.extend(first.into_iter().chain(last));
    }

    /// One waits for a lock, and others of its tenant may have to as well: they come after all others, and if a second
    /// one waits too, they are not tried for themselves.
    fn hold(&mut self, held: Held, again_at: Timestamp) {
        let is_second = self.held.iter().any(|other| other.tenant == held.tenant && other.name != held.name);
        let (same, others): (Vec<_>, Vec<_>) = self.due.drain(..).partition(|due| due.template.tenant == held.tenant);
        self.due.extend(others);
        let mut aside = vec![held];
        if is_second {
            aside.extend(same.into_iter().map(Held::from));
        } else {
            self.due.extend(same);
        }
        for held in aside {
            if !self.held.contains(&held) {
                self.held.push_back(held);
            }
        }
        self.again_at = Some(again_at);
    }

    /// One was fired, or need not be. If it was held up, so may the others be no longer.
    fn passed(&mut self, schedule: Schedule) {
        if self.held.contains(&schedule.into()) {
            self.held.clear();
        }
    }
}

impl Worker {
    /// The ticks of these have come. One whose rule is not understood here stays where it is: by what is not known when
    /// the next tick is, it would have none.
    pub(super) fn will_fire(&mut self, schedules: Vec<Schedule>) {
        let (mut due, mut unreadable) = (Vec::with_capacity(schedules.len()), BTreeMap::new());
        for schedule in schedules {
            match self.ticks.understand(&schedule.rule) {
                Ok(()) => due.push(schedule),
                Err(error) => _ = unreadable.insert(schedule.name, error),
            }
        }
        self.firing.unreadable.found(unreadable);
        self.firing.take(due, self.jobs.store().now());
    }

    pub(super) fn begin_firing(&mut self) {
        while self.firing.may_ask()
            && let Some(due) = self.firing.due.pop_front()
        {
            // The store's clock may be a moment ahead, and has decided.
            let now = self.jobs.store().now();
            let now = due.next.map_or(now, |tick| tick.max(now));
            if let Some(fire) = schedule::fire(&mut self.ticks, &due, now, self.jobs.new_id()) {
                self.firing.asked.push((due, self.jobs.store().fire(fire)));
            }
        }
    }

    pub(super) fn fired(&mut self, answers: Vec<Answer<Schedule, Fired>>) -> Result<(), StoreError> {
        let mut is_well = Ok(());
        for (schedule, answer) in answers {
            match answer {
                Ok(Fired::Held) => {
                    let again_at = self.jobs.store().now().after(HELD_REST);
                    self.firing.hold(schedule.into(), again_at);
                }
                Ok(_) => {
                    self.is_hungry = true;
                    self.firing.passed(schedule);
                }
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

#[cfg(test)]
mod tests {
    use punctual::Missed;

    use super::*;
    use crate::id::JobId;
    use crate::store::{NewJob, Rule};

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    fn due(names: &str, tenant: &str) -> Vec<Schedule> {
        let one = |name: char| Schedule {
            name: name.to_string(),
            rule: Rule::Every { period: Duration::from_secs(1), anchor: NOW },
            missed: Missed::Once,
            template: NewJob { tenant: tenant.to_owned(), ..NewJob::new(JobId::from_u128(1), "k") },
            next: Some(NOW),
            paused: false,
            last: None,
            fired: 0,
            missed_count: 0,
        };
        names.chars().map(one).collect()
    }

    /// What is asked for after a look, in order.
    fn asked(firing: &mut Firing, now: Timestamp) -> String {
        firing.take([due("abcdef", "held"), due("z", "free")].concat(), now);
        firing.due.drain(..).map(|due| due.name).collect()
    }

    /// C36
    #[test]
    fn those_that_are_held_up_come_last_and_a_few_at_a_time() {
        let mut firing = Firing::default();
        firing.take([due("abcdef", "held"), due("z", "free")].concat(), NOW);
        let again_at = NOW.after(HELD_REST);
        let first: Vec<Schedule> = firing.due.drain(..FEW).collect();
        let mut left = Vec::new();
        for schedule in first {
            firing.hold(schedule.into(), again_at);
            left.push(firing.due.iter().map(|due| due.name.as_str()).collect::<String>());
        }
        assert_eq!(left, ["zef", "z", "z", "z"]);
        assert_eq!((firing.due.drain(..).count(), firing.again_at()), (1, Some(again_at)));
        assert_eq!(asked(&mut firing, NOW), "z");
        let tries = [again_at, again_at, again_at].map(|at| asked(&mut firing, at));
        assert_eq!(tries, ["zabef", "zabcd", "zcdef"], "in turn");
        firing.passed(due("d", "held").remove(0));
        assert_eq!((asked(&mut firing, again_at), firing.again_at()), ("abcdefz".to_owned(), None));
    }

    /// A clock that is set back by an hour does not put them off for one.
    #[test]
    fn a_rest_is_no_longer_than_it_was_to_be() {
        let mut firing = Firing::default();
        let [held] = due("a", "held").try_into().expect("one");
        firing.hold(Held::from(held), NOW.after(HELD_REST));
        assert_eq!(asked(&mut firing, NOW.before(Duration::from_secs(3600))), "bcdefza");
    }
}
