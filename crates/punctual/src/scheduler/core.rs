//! Everything the scheduler decides, under one lock: who is due, who is next, who is done.
//!
//! Here is the road itself (admit, wait, pick, check, finish). Beside it: `interest` (cancel and expiry), `tenancy`,
//! `inside` (jobs that wait for jobs), `sleep` (who is armed, who is woken), `wall` (dates) and `gauges`.
//!
//! Nothing of the user's is called here. What is to be done once the lock is free (settle a result, wake somebody, drop
//! a payload, start a thread) is collected in `After`.
//!
//! # Invariants
//! 1. A job is in the ready list if and only if its turn is `Queued`, and has at most one alarm in the wheel.
//! 2. Before the lock is released, somebody is armed for the earliest alarm: an idle worker, or the watch.
//! 3. While the ready list holds more than awake workers will take, an idle worker has been roused or a thread asked
//!    for.
//! 4. The gauges equal the number of records in each stage.

mod gauges;
mod inside;
mod interest;
mod sleep;
mod tenancy;
mod wall;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::after::{After, Remains, Stopped};
use super::ctx::Run;
use super::event::Event;
use super::job::{Outcome, Record, Turn};
use super::list::{List, TURN};
use super::repeat::{Now, Series, Tick};
use super::shutdown::Phase;
use super::tenants::Tenants;
use super::work::End;
use crate::clock::{Clock, NEVER, Nanos};
use crate::error::{JobError, Stage};
use crate::metrics::{Histogram, Outcomes, Snapshot};
use crate::queue::waiters::Waiters;
use crate::queue::wheel::Wheel;
use crate::slab::{Slab, SlabKey};
pub(crate) use gauges::Gauges;
pub use interest::Cancel;
pub(crate) use interest::Disposal;
pub(crate) use wall::mono_of;

/// Alarms handled before the lock is given to others.
const BATCH: usize = 256;

pub(crate) struct Core {
    pub(crate) jobs: Slab<Record>,
    alarms: Wheel<Alarm>,
    /// Futures that were woken and are to be polled, in turn.
    polls: List<TURN>,
    /// Whether the last turn was a poll: polls and starts alternate, so that neither starves.
    polled_last: bool,
    pub(crate) tenants: Tenants,
    /// Jobs that wait inside for other jobs.
    waits: inside::Waits,
    waiters: Waiters,
    /// Payloads whose destructors run elsewhere, and the events that go with them.
    pub(crate) remains: VecDeque<Remains>,
    pub(crate) disposer_runs: bool,
    pub(crate) phase: Phase,
    /// The watch and the first worker run.
    pub(crate) started: bool,
    /// Worker threads started and not ended.
    pub(crate) workers: usize,
    workers_max: usize,
    /// How many jobs of all tenants together may run at once.
    running_max: usize,
    pub(crate) gauges: Gauges,
    pub(crate) finished: Outcomes,
    /// Runs that are over, in whatever way.
    pub(crate) ended: u64,
    pub(crate) rejected: u64,
    missed: u64,
    lateness: Histogram,
    timing_error: Histogram,
    /// Somebody wants to hear of events.
    listened_to: bool,
    /// The wall clock minus the monotonic one, as last seen; `None` while no job goes by dates.
    wall_origin: Option<SystemTime>,
    /// Whether nobody waits is asked again when all that is due has been fired.
    rests_later: bool,
    latest: Nanos,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Alarm {
    Job(SlabKey),
    /// Compare the wall clock.
    Wall,
    /// The grace of a shutdown is over.
    Grace,
    /// The rate of a tenant allows the next start.
    Tenant(SlabKey),
}

/// A job that a worker is to carry on with.
pub(crate) struct Picked {
    pub(crate) key: SlabKey,
    pub(crate) run: Arc<Run>,
    /// It has just started.
    pub(crate) first: bool,
    /// It is a future, not a closure.
    pub(crate) future: bool,
    /// Its outcome is settled: what is left of it is to be dropped, not run.
    pub(crate) drop_only: bool,
}

/// What came of it.
pub(crate) enum Handled {
    Pending,
    Ended(End),
    Dropped,
}

impl Core {
    pub(crate) fn new(workers_max: usize, running_max: usize, listened_to: bool) -> Self {
        Self {
            jobs: Slab::new(),
            alarms: Wheel::new(),
            polls: List::default(),
            polled_last: false,
            tenants: Tenants::new(),
            waits: inside::Waits::new(),
            waiters: Waiters::new(),
            remains: VecDeque::new(),
            disposer_runs: false,
            phase: Phase::Open,
            started: false,
            workers: 0,
            workers_max,
            running_max,
            gauges: Gauges::default(),
            finished: Outcomes::default(),
            ended: 0,
            rejected: 0,
            missed: 0,
            lateness: Histogram::new(),
            timing_error: Histogram::new(),
            listened_to,
            wall_origin: None,
            rests_later: false,
            latest: 0,
        }
    }

    pub(crate) fn now(&mut self, clock: &Clock) -> Nanos {
        self.latest = self.latest.max(clock.nanos());
        self.latest
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            scheduled: self.gauges.scheduled,
            ready: self.gauges.ready,
            running: self.gauges.running,
            zombies: self.gauges.zombies,
            workers: self.workers,
            finished: self.finished,
            rejected: self.rejected,
            missed: self.missed,
            lateness: self.lateness.clone(),
            timing_error: self.timing_error.clone(),
        }
    }

    /// Changes a record, keeping the gauges true.
    fn change<R>(&mut self, key: SlabKey, change: impl FnOnce(&mut Record) -> R) -> Option<R> {
        let record = self.jobs.get_mut(key)?;
        let mut tenant = self.tenants.get_mut(record.tenant);
        self.gauges.leave(record);
        tenant.iter_mut().for_each(|tenant| tenant.gauges.leave(record));
        let result = change(record);
        self.gauges.enter(record);
        tenant.iter_mut().for_each(|tenant| tenant.gauges.enter(record));
        Some(result)
    }

    // ---- 1 admit

    /// Takes a job in: to wait for its due instant, or straight to the ready list.
    pub(crate) fn admit(&mut self, mut record: Record, clock: &Clock, after: &mut After) -> SlabKey {
        let (due, tenant) = (record.due, record.tenant);
        record.pressing = due <= self.latest;
        self.gauges.enter(&record);
        if let Some(tenant) = self.tenants.get_mut(record.tenant) {
            tenant.gauges.enter(&record);
        }
        let key = self.jobs.insert(0, record);
        // Before anything else: a permit may be granted below, and then its key is told to whoever listens.
        if let Some(record) = self.jobs.get(key) {
            record.work.head().admitted_as(key);
        }
        self.tenants.adopt(&mut self.jobs, tenant, key);
        self.watch_wall(clock);
        // What is due now stands behind everything that is due already, also if that has not been noticed yet.
        if due <= self.latest && self.alarms.next_wake() > self.latest {
            self.make_ready(key);
            self.rouse_for_turns(clock, after);
        } else {
            self.set_alarm(key);
        }
        self.cover(after);
        key
    }

    // ---- 2 wait

    /// Handles what has fallen due by the time last read. Bounded, so that the lock is free for others in between; says
    /// whether it stopped short.
    pub(crate) fn fire(&mut self, clock: &Clock, after: &mut After) -> bool {
        let now = self.latest;
        for _ in 0..BATCH {
            let Some((_, alarm)) = self.alarms.pop(now) else {
                self.rest_if_put_off();
                return false;
            };
            match alarm {
                Alarm::Job(key) => self.job_alarm(key, clock, after),
                Alarm::Wall => {
                    self.wall_origin = None;
                    self.rederive_dates(clock);
                    self.watch_wall(clock);
                }
                Alarm::Grace => self.end_shutdown(after),
                Alarm::Tenant(tenant) => {
                    if let Some(tenant) = self.tenants.get_mut(tenant) {
                        tenant.alarm = None;
                    }
                    self.refresh(tenant);
                }
            }
        }
        true
    }

    fn job_alarm(&mut self, key: SlabKey, clock: &Clock, after: &mut After) {
        let now = self.latest;
        let Some(record) = self.jobs.get_mut(key) else { return };
        record.alarm = None;
        if record.stage() != Stage::Scheduled || record.due > now {
            return self.expire(key, clock, after);
        }
        if let Some(date) = record.wall_due {
            let wall = clock.wall();
            if wall < date {
                // The wall clock fell behind: the date has not come.
                return self.move_due(key, mono_of(date, wall, now));
            }
        }
        self.make_ready(key);
    }

    fn make_ready(&mut self, key: SlabKey) {
        let now = self.latest;
        let Some((due, tenant)) = self.change(key, |record| {
            record.make_ready(now);
            (record.due, record.tenant)
        }) else {
            return;
        };
        self.timing_error.record_ns(now.saturating_sub(due));
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.timing_error.record_ns(now.saturating_sub(due));
        }
        self.set_alarm(key);
        self.queue(key);
    }

    /// Lines a job up: to be started when its tenant's turn comes, or to be polled.
    fn queue(&mut self, key: SlabKey) {
        let Some(record) = self.jobs.get_mut(key) else { return };
        record.turn = Turn::Queued;
        let tenant = record.tenant;
        if record.stage() == Stage::Ready {
            self.tenants.queue(&mut self.jobs, key);
            self.refresh(tenant);
        } else {
            self.polls.push(&mut self.jobs, key);
        }
    }

    /// Puts the job's one alarm where its stage wants it.
    fn set_alarm(&mut self, key: SlabKey) {
        let Some(record) = self.jobs.get_mut(key) else { return };
        match (record.alarm, record.alarm_at()) {
            (None, NEVER) => {}
            (None, at) => record.alarm = Some(self.alarms.push(at, self.latest, Alarm::Job(key))),
            (Some(alarm), NEVER) => {
                record.alarm = None;
                self.alarms.cancel(alarm);
            }
            (Some(alarm), at) => {
                self.alarms.reschedule(alarm, at, self.latest);
            }
        }
    }

    /// Gives a job that still waits another due instant.
    pub(crate) fn reschedule(
        &mut self,
        key: SlabKey,
        (due, wall_due): (Nanos, Option<SystemTime>),
        clock: &Clock,
        after: &mut After,
    ) -> bool {
        if self.jobs.get(key).is_none_or(|record| record.stage() != Stage::Scheduled) {
            return false;
        }
        self.change(key, |record| (record.due, record.wall_due, record.pressing) = (due, wall_due, false));
        self.watch_wall(clock);
        self.set_alarm(key);
        self.cover(after);
        true
    }

    fn move_due(&mut self, key: SlabKey, due: Nanos) {
        self.change(key, |record| {
            (record.due, record.pressing) = (due, false);
            // A grid that begins at a date moves with it.
            if let Some(Series { tick: Tick::Mono(tick), .. }) = record.series.as_deref_mut() {
                *tick = due;
            }
        });
        self.set_alarm(key);
    }

    pub(crate) fn arm_grace(&mut self, at: Nanos) {
        if at < NEVER {
            self.alarms.push(at, self.latest, Alarm::Grace);
        }
    }

    // ---- 3 pick, 4 check

    /// The next job for a worker. Starting is the same step that cancel and expiry compete for: all are under the lock.
    pub(crate) fn pick(&mut self, clock: &Clock, after: &mut After) -> Option<Picked> {
        self.grant(clock, after);
        let (key, first) = self.next_turn(clock, after)?;
        if first {
            self.start(key, clock, after);
            self.refresh(self.jobs.get(key)?.tenant);
        }
        let record = self.jobs.get_mut(key)?;
        record.turn = if record.away { Turn::Away } else { Turn::InHand };
        let run = Arc::clone(record.run.as_ref()?);
        Some(Picked { key, run, first, future: record.future, drop_only: record.outcome().is_some() })
    }

    /// A poll or a start, in alternation if there are both.
    fn next_turn(&mut self, clock: &Clock, after: &mut After) -> Option<(SlabKey, bool)> {
        let poll = !self.polls.is_empty() && (!self.polled_last || !self.can_start());
        self.polled_last = poll;
        if poll {
            return self.polls.pop(&mut self.jobs).map(|key| (key, false));
        }
        // A permit that is left here was more than one batch: the next call grants it.
        let key = self.first_to_start(clock, after).filter(|&key| !self.is_permit(key))?;
        self.tenants.dispatch(&mut self.jobs, self.latest);
        Some((key, true))
    }

    /// The job that is next in the fair order and may still start.
    fn first_to_start(&mut self, clock: &Clock, after: &mut After) -> Option<SlabKey> {
        if !self.can_start() {
            return None;
        }
        while let Some(key) = self.tenants.first(&self.jobs) {
            if self.jobs.get(key).is_some_and(|record| record.alarm_at() > self.latest) {
                return Some(key);
            }
            // Its time to start is over, although its alarm is not handled yet: the process may have stood still.
            self.expire(key, clock, after);
        }
        None
    }

    fn is_permit(&self, key: SlabKey) -> bool {
        self.jobs.get(key).is_some_and(|record| record.permit)
    }

    /// Starts the permits that are next in the fair order: they take no worker. Bounded, as `fire` is.
    fn grant(&mut self, clock: &Clock, after: &mut After) {
        if self.gauges.permits == 0 {
            return;
        }
        for _ in 0..BATCH {
            let Some(key) = self.first_to_start(clock, after).filter(|&key| self.is_permit(key)) else { return };
            self.tenants.dispatch(&mut self.jobs, self.latest);
            self.start(key, clock, after);
            let Some(record) = self.jobs.get_mut(key) else { return };
            record.turn = Turn::Away;
            after.granted.extend(record.run.clone());
            let tenant = record.tenant;
            self.refresh(tenant);
        }
    }

    fn start(&mut self, key: SlabKey, clock: &Clock, after: &mut After) {
        let now = self.latest;
        let Some(record) = self.jobs.get_mut(key) else { return };
        let (mut missed, mut newly_missed) = (0, 0);
        if let Some(series) = &mut record.series {
            newly_missed = series.begin(Now { mono: now, wall: clock.wall() });
            missed = series.missed_now;
        }
        let run = Arc::new(Run::new(record, now, missed));
        let lateness = now.saturating_sub(record.due);
        if self.listened_to {
            after.events.push(Event::started(&record.work, Duration::from_nanos(lateness)));
        }
        self.lateness.record_ns(lateness);
        let tenant = record.tenant;
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.lateness.record_ns(lateness);
        }
        self.count_missed(tenant, newly_missed);
        self.change(key, |record| record.start(run, now));
        self.set_alarm(key);
    }

    // ---- 5 run happens outside; 6 finish

    /// A worker is done with a job for now, by the time last read.
    pub(crate) fn handled(&mut self, key: SlabKey, handled: Handled, clock: &Clock, after: &mut After) {
        match handled {
            Handled::Pending => {
                let Some(record) = self.jobs.get_mut(key) else { return };
                let again = record.turn == Turn::InHandAndWoken || record.outcome().is_some();
                record.turn = Turn::Waiting;
                if again {
                    self.queue(key);
                }
            }
            Handled::Ended(end) => self.finish(key, Some(end), clock, after),
            Handled::Dropped => self.finish(key, None, clock, after),
        }
    }

    fn finish(&mut self, key: SlabKey, end: Option<End>, clock: &Clock, after: &mut After) {
        let failed = matches!(end, Some(End::Failed(_) | End::Panicked(_)));
        if let Some(end) = end {
            self.settle_by_end(key, end, after);
        }
        let now = self.latest;
        let Some(record) = self.jobs.get_mut(key) else { return };
        let tenant = record.tenant;
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.ran_for(now.saturating_sub(record.since));
        }
        if let Some(outcome) = record.outcome().filter(|_| self.listened_to) {
            let took = Duration::from_nanos(now.saturating_sub(record.since));
            after.events.push(Event::finished(&record.work, outcome, took));
        }
        let over = now >= record.deadline;
        let next = record.series.as_mut().map(|series| {
            // While a run outlived its outcome nobody watched the deadline of the series.
            series.ended |= over;
            let now = Now { mono: now, wall: clock.wall() };
            (series.next(now, failed), now)
        });
        self.ended += 1;
        match next {
            Some(((Some(tick), _), now)) if !self.phase.is_closing() => self.repeat(key, tick, now, clock),
            // A series leaves its code behind when it ends.
            _ => self.remove(key, true, after),
        }
        self.count_missed(tenant, next.map_or(0, |((_, missed), _)| missed));
        // Its permit is free now, not earlier: the work has truly stopped.
        self.refresh(tenant);
        self.forget_if_unused(tenant);
        self.leaves_inside(key);
        self.end_if_drained(after);
        if self.phase.is_closed() {
            // The last one turns off the light.
            self.rouse_all(after);
        }
    }

    fn settle_by_end(&mut self, key: SlabKey, end: End, after: &mut After) {
        let (outcome, error) = match end {
            End::Succeeded => (Outcome::Succeeded, None),
            End::Failed(_) => (Outcome::Failed, None),
            End::Panicked(message) => {
                if let Some(record) = self.jobs.get(key).filter(|_| self.listened_to) {
                    after.events.push(Event::panicked(&record.work, &message));
                }
                (Outcome::Panicked, Some(JobError::Panicked(message)))
            }
        };
        if self.settle(key, outcome)
            && let Some(record) = self.jobs.get(key)
        {
            after.settled.push((Arc::clone(&record.work), error));
        }
    }

    /// Decides the outcome of a run, if it is undecided, and counts it.
    fn settle(&mut self, key: SlabKey, outcome: Outcome) -> bool {
        let settled = self.change(key, |record| (record.settle(outcome), record.tenant));
        let Some((true, tenant)) = settled else { return false };
        self.finished.count(outcome);
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.finished.count(outcome);
        }
        true
    }

    fn repeat(&mut self, key: SlabKey, tick: Tick, now: Now, clock: &Clock) {
        let (due, wall_due) = match tick {
            Tick::Mono(due) => (due, None),
            Tick::Wall(date) => (mono_of(date, now.wall, now.mono), Some(date)),
        };
        self.change(key, |record| record.repeat(due, wall_due, now.mono));
        self.watch_wall(clock);
        self.set_alarm(key);
    }

    /// The record of a job that has stopped goes, and with it the user's code, unless somebody else drops that.
    fn remove(&mut self, key: SlabKey, with_code: bool, after: &mut After) {
        if let Some(alarm) = self.jobs.get_mut(key).and_then(|record| record.alarm.take()) {
            self.alarms.cancel(alarm);
        }
        let now = self.latest;
        self.change(key, |record| record.stop(now));
        self.tenants.disown(&mut self.jobs, key);
        if let Some(record) = self.jobs.remove(key) {
            let Record { work, run, series, .. } = record;
            after.stopped.push(Stopped { work, with_code, run, series });
        }
    }

    fn unqueue(&mut self, key: SlabKey) {
        if let Some(record) = self.jobs.get_mut(key)
            && record.turn == Turn::Queued
        {
            record.turn = Turn::Waiting;
            let tenant = record.tenant;
            if record.stage() == Stage::Ready {
                self.tenants.unqueue(&mut self.jobs, key);
                self.refresh(tenant);
            } else {
                self.polls.unlink(&mut self.jobs, key);
            }
        }
    }

    /// The waker of a future was called.
    pub(crate) fn woken(&mut self, key: SlabKey, after: &mut After) {
        let Some(record) = self.jobs.get_mut(key) else { return };
        match record.turn {
            Turn::Waiting if record.stage() == Stage::Running => {
                self.queue(key);
                self.rouse(after);
                self.cover(after);
            }
            Turn::InHand => record.turn = Turn::InHandAndWoken,
            Turn::Waiting | Turn::Queued | Turn::InHandAndWoken | Turn::Away => {}
        }
    }
}
