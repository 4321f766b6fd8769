//! Everything the scheduler decides, under one lock: who is due, who is next, who is done.
//!
//! Nothing of the user's is called here. What is to be done once the lock is free (settle a result, wake somebody, drop a
//! payload, start a thread) is collected in `After`.
//!
//! # Invariants
//! 1. A job is in the ready list if and only if its turn is `Queued`, and has at most one alarm in the wheel.
//! 2. Before the lock is released, somebody is armed for the earliest alarm: an idle worker, or the watch.
//! 3. While the ready list holds more than awake workers will take, an idle worker has been roused or a thread asked for.
//! 4. The gauges equal the number of records in each stage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::after::{After, Remains};
use super::ctx::Run;
use super::event::Event;
use super::job::{Outcome, Record, Turn};
use super::ready::Ready;
use super::repeat::{Now, Series, Tick};
use super::shutdown::Phase;
use super::tenants::{Standing, TenantState, Tenants};
use super::work::End;
use crate::clock::{Clock, NEVER, Nanos, Parker, duration_to_nanos};
use crate::error::{Cause, JobError, Stage};
use crate::metrics::{Histogram, Outcomes, Snapshot};
use crate::queue::waiters::{Standby, WaiterId, Waiters};
use crate::queue::wheel::Wheel;
use crate::slab::{Slab, SlabKey};

/// Alarms handled before the lock is given to others.
const BATCH: usize = 256;
/// While jobs wait for a date, the wall clock is compared this often.
const WALL_CHECK: Nanos = 30_000_000_000;
/// A smaller disagreement of the clocks is drift, which each job meets at its own due instant.
const WALL_TOLERANCE: Duration = Duration::from_millis(1);

pub(crate) struct Core {
    pub(crate) jobs: Slab<Record>,
    alarms: Wheel<Alarm>,
    /// Futures that were woken and are to be polled, in turn.
    polls: Ready,
    /// Whether the last turn was a poll: polls and starts alternate, so that neither starves.
    polled_last: bool,
    pub(crate) tenants: Tenants,
    /// Jobs that wait inside for jobs that have not started: each holds a worker.
    blocked: usize,
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

/// How many records are in each stage.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) scheduled: usize,
    /// Of the scheduled: those that wait for a date.
    by_wall: usize,
    pub(crate) ready: usize,
    pub(crate) running: usize,
    /// Of the running: futures that are polled here.
    futures: usize,
    zombies: usize,
}

impl Gauges {
    fn enter(&mut self, record: &Record) {
        self.each(record, |gauge| *gauge += 1);
    }

    fn leave(&mut self, record: &Record) {
        self.each(record, |gauge| *gauge -= 1);
    }

    fn each(&mut self, record: &Record, mut change: impl FnMut(&mut usize)) {
        match record.stage() {
            Stage::Scheduled => {
                change(&mut self.scheduled);
                if record.wall_due.is_some() {
                    change(&mut self.by_wall);
                }
            }
            Stage::Ready => change(&mut self.ready),
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
    pub(crate) fn new(workers_max: usize, listened_to: bool) -> Self {
        Self {
            jobs: Slab::new(),
            alarms: Wheel::new(),
            polls: Ready::default(),
            polled_last: false,
            tenants: Tenants::new(),
            blocked: 0,
            waiters: Waiters::new(),
            remains: VecDeque::new(),
            disposer_runs: false,
            phase: Phase::Open,
            started: false,
            workers: 0,
            workers_max,
            gauges: Gauges::default(),
            finished: Outcomes::default(),
            ended: 0,
            rejected: 0,
            missed: 0,
            lateness: Histogram::new(),
            timing_error: Histogram::new(),
            listened_to,
            wall_origin: None,
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
    pub(crate) fn admit(&mut self, record: Record, clock: &Clock, after: &mut After) -> SlabKey {
        let due = record.due;
        self.gauges.enter(&record);
        if let Some(tenant) = self.tenants.get_mut(record.tenant) {
            tenant.gauges.enter(&record);
        }
        let key = self.jobs.insert(0, record);
        self.watch_wall(clock);
        // What is due now stands behind everything that is due already, also if that has not been noticed yet.
        if due <= self.latest && self.alarms.next_wake() > self.latest {
            self.make_ready(key);
            self.rouse_for_turns(after);
        } else {
            self.set_alarm(key);
        }
        self.cover(after);
        key
    }

    // ---- 2 wait

    /// Handles what has fallen due. Bounded, so that the lock is free for others in between; says whether it stopped short.
    pub(crate) fn fire(&mut self, clock: &Clock, after: &mut After) -> bool {
        let now = self.now(clock);
        for _ in 0..BATCH {
            let Some((_, alarm)) = self.alarms.pop(now) else { return false };
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

    /// Something changed about a tenant: can it run?
    fn refresh(&mut self, tenant: SlabKey) {
        let standing = self.tenants.refresh(tenant, self.latest);
        let Some(state) = self.tenants.get_mut(tenant) else { return };
        match (standing, state.alarm) {
            (Standing::WaitsForRate(until), None) => {
                state.alarm = Some(self.alarms.push(until, self.latest, Alarm::Tenant(tenant)));
            }
            (Standing::WaitsForRate(until), Some(alarm)) => {
                self.alarms.reschedule(alarm, until, self.latest);
            }
            (Standing::Runs | Standing::Cannot, Some(alarm)) => {
                state.alarm = None;
                self.alarms.cancel(alarm);
            }
            (Standing::Runs | Standing::Cannot, None) => {}
        }
    }

    /// Changes the settings of a tenant.
    pub(crate) fn change_tenant(&mut self, tenant: SlabKey, change: impl FnOnce(&mut TenantState), after: &mut After) {
        if let Some(state) = self.tenants.get_mut(tenant) {
            change(state);
        }
        self.refresh(tenant);
        self.rouse_for_turns(after);
        self.cover(after);
    }

    /// All jobs of a tenant, those that run last: their permits must not go to those about to be cancelled.
    pub(crate) fn jobs_of(&self, tenant: SlabKey) -> Vec<SlabKey> {
        let own = || self.jobs.iter().filter(|(_, record)| record.tenant == tenant);
        let is_running = |record: &Record| record.stage() == Stage::Running;
        let waiting = own().filter(|(_, record)| !is_running(record));
        waiting.chain(own().filter(|(_, record)| is_running(record))).map(|(key, _)| key).collect()
    }

    pub(crate) fn tenant_snapshot(&self, tenant: SlabKey) -> Snapshot {
        let Some(tenant) = self.tenants.get(tenant) else { return Snapshot::default() };
        Snapshot {
            scheduled: tenant.gauges.scheduled,
            ready: tenant.gauges.ready,
            running: tenant.gauges.running,
            zombies: tenant.gauges.zombies,
            workers: self.workers,
            finished: tenant.finished,
            rejected: tenant.rejected,
            missed: 0,
            lateness: tenant.lateness.clone(),
            timing_error: tenant.timing_error.clone(),
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
        self.change(key, |record| (record.due, record.wall_due) = (due, wall_due));
        self.watch_wall(clock);
        self.set_alarm(key);
        self.cover(after);
        true
    }

    fn move_due(&mut self, key: SlabKey, due: Nanos) {
        if let Some(record) = self.jobs.get_mut(key) {
            record.due = due;
            // A grid that begins at a date moves with it.
            if let Some(Series { tick: Tick::Mono(tick), .. }) = record.series.as_deref_mut() {
                *tick = due;
            }
        }
        self.set_alarm(key);
    }

    pub(crate) fn arm_grace(&mut self, at: Nanos) {
        if at < NEVER {
            self.alarms.push(at, self.latest, Alarm::Grace);
        }
    }

    // ---- the wall clock

    /// While jobs wait for dates, the two clocks are compared now and then.
    fn watch_wall(&mut self, clock: &Clock) {
        if self.gauges.by_wall > 0 && self.wall_origin.is_none() {
            self.wall_origin = Some(origin_of(clock.wall(), self.latest));
            if clock.tells_of_steps() {
                return;
            }
            self.alarms.push(self.latest.saturating_add(WALL_CHECK), self.latest, Alarm::Wall);
        }
    }

    /// After a sleep: was the wall clock set meanwhile?
    pub(crate) fn check_wall(&mut self, clock: &Clock) {
        let Some(known) = self.wall_origin else { return };
        let now = self.now(clock);
        let origin = origin_of(clock.wall(), now);
        let apart = origin.duration_since(known).unwrap_or_else(|error| error.duration());
        if apart > WALL_TOLERANCE {
            self.wall_origin = Some(origin);
            self.rederive_dates(clock);
        }
    }

    /// Computes anew when each date comes. Drift between the clocks makes this worth doing at every comparison.
    fn rederive_dates(&mut self, clock: &Clock) {
        let (wall, now) = (clock.wall(), self.latest);
        let dated = |(key, record): (SlabKey, &Record)| {
            let date = record.wall_due.filter(|_| record.stage() == Stage::Scheduled)?;
            Some((key, mono_of(date, wall, now)))
        };
        let moved: Vec<_> =
            if self.gauges.by_wall == 0 { Vec::new() } else { self.jobs.iter().filter_map(dated).collect() };
        for (key, due) in moved {
            self.move_due(key, due);
        }
    }

    // ---- 3 pick, 4 check

    /// The next job for a worker. Starting is the same step that cancel and expiry compete for: all are under the lock.
    pub(crate) fn pick(&mut self, clock: &Clock, after: &mut After) -> Option<Picked> {
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
        let poll = !self.polls.is_empty() && (!self.polled_last || self.tenants.none_can_run());
        self.polled_last = poll;
        if poll {
            return self.polls.pop(&mut self.jobs).map(|key| (key, false));
        }
        while let Some(key) = self.tenants.first(&self.jobs) {
            if self.jobs.get(key).is_some_and(|record| record.alarm_at() > self.latest) {
                break;
            }
            // Its time to start is over, although its alarm is not handled yet: the process may have stood still.
            self.expire(key, clock, after);
        }
        let key = self.tenants.dispatch(&mut self.jobs, self.latest)?;
        Some((key, true))
    }

    fn start(&mut self, key: SlabKey, clock: &Clock, after: &mut After) {
        let now = self.latest;
        let Some(record) = self.jobs.get_mut(key) else { return };
        let mut missed = 0;
        if let Some(series) = &mut record.series {
            self.missed += series.begin(Now { mono: now, wall: clock.wall() });
            missed = series.missed_now;
        }
        let run = Arc::new(Run::new(record, now, missed));
        let lateness = now.saturating_sub(record.due);
        if self.listened_to {
            after.events.push(Event::started(&record.work, Duration::from_nanos(lateness)));
        }
        self.lateness.record_ns(lateness);
        let (tenant, waiter) = (record.tenant, record.waited_for_by.take());
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.lateness.record_ns(lateness);
        }
        if waiter.is_some() {
            self.unblock(tenant);
        }
        self.change(key, |record| record.start(run, now));
        self.set_alarm(key);
    }

    // ---- 5 run happens outside; 6 finish

    /// A worker is done with a job for now.
    pub(crate) fn handled(&mut self, key: SlabKey, handled: Handled, clock: &Clock, after: &mut After) {
        self.now(clock);
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
        let now = Now { mono: self.latest, wall: clock.wall() };
        let Some(record) = self.jobs.get_mut(key) else { return };
        let tenant = record.tenant;
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.ran_for(now.mono.saturating_sub(record.since));
        }
        if let Some(outcome) = record.outcome().filter(|_| self.listened_to) {
            let took = Duration::from_nanos(now.mono.saturating_sub(record.since));
            after.events.push(Event::finished(&record.work, outcome, took));
        }
        let over = now.mono >= record.deadline;
        let next = record.series.as_mut().map(|series| {
            // While a run outlived its outcome nobody watched the deadline of the series.
            series.ended |= over;
            series.next(now, failed)
        });
        self.missed += next.map_or(0, |(_, missed)| missed);
        self.ended += 1;
        match next {
            Some((Some(tick), _)) if !self.phase.is_closing() => self.repeat(key, tick, now, clock),
            _ => {
                // A series leaves its code behind when it ends.
                after.dropped.push(Arc::clone(&record.work));
                self.remove(key, after);
            }
        }
        // Its permit is free now, not earlier: the work has truly stopped.
        self.refresh(tenant);
        self.tenants.forget_if_unused(tenant, now.mono);
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

    /// The record of a job that has stopped goes.
    fn remove(&mut self, key: SlabKey, after: &mut After) {
        if let Some(alarm) = self.jobs.get_mut(key).and_then(|record| record.alarm.take()) {
            self.alarms.cancel(alarm);
        }
        let now = self.latest;
        self.change(key, |record| record.stop(now));
        if let Some(record) = self.jobs.remove(key) {
            if record.waited_for_by.is_some() {
                self.unblock(record.tenant);
            }
            after.stopped.push(Arc::clone(&record.work));
            after.records.push(record);
        }
    }

    // ---- lost interest

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
    fn expire(&mut self, key: SlabKey, clock: &Clock, after: &mut After) {
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
        self.missed += next.map_or(0, |(_, missed)| missed);
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
        let work = Arc::clone(&record.work);
        after.settled.push((Arc::clone(&work), Some(error)));
        match disposal {
            Disposal::Here => {
                after.events.extend(event);
                after.dropped.push(work);
            }
            Disposal::Elsewhere => self.leave(Remains { work: Some(work), event }, after),
        }
        self.remove(key, after);
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

    /// A job begins to wait inside for another. False if that could never end: all that could run it wait as well.
    pub(crate) fn begin_wait(&mut self, waiter: SlabKey, target: SlabKey) -> bool {
        let Some(record) = self.jobs.get(target) else { return true };
        let ends_by_itself = record.deadline != NEVER || (record.start_within != NEVER && record.due != NEVER);
        if matches!(record.stage(), Stage::Running | Stage::Stopped) || ends_by_itself || record.waited_for_by.is_some()
        {
            return true;
        }
        let own_tenant = self.jobs.get(waiter).is_some_and(|waiter| waiter.tenant == record.tenant);
        let tenant = record.tenant;
        let out_of_permits = own_tenant
            && self
                .tenants
                .get(tenant)
                .is_some_and(|tenant| tenant.limits.running_max.is_some_and(|max| tenant.blocked + 1 >= max));
        let out_of_workers =
            self.jobs.get(waiter).is_some_and(|waiter| !waiter.future) && self.blocked + 1 >= self.workers_max;
        if out_of_permits || out_of_workers {
            return false;
        }
        self.blocked += 1;
        if own_tenant && let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.blocked += 1;
        }
        if let Some(record) = self.jobs.get_mut(target) {
            record.waited_for_by = Some(waiter);
        }
        true
    }

    /// The wait is over, also if the job has not started.
    pub(crate) fn end_wait(&mut self, waiter: SlabKey, target: SlabKey) {
        if let Some(record) = self.jobs.get_mut(target)
            && record.waited_for_by == Some(waiter)
        {
            record.waited_for_by = None;
            let tenant = record.tenant;
            self.unblock(tenant);
        }
    }

    fn unblock(&mut self, tenant: SlabKey) {
        self.blocked = self.blocked.saturating_sub(1);
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.blocked = tenant.blocked.saturating_sub(1);
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

    // ---- who sleeps

    /// One turn more than awake workers will take: wakes an idle worker, or asks for a new one.
    fn rouse(&mut self, after: &mut After) {
        if let Some(parker) = self.waiters.rouse_one() {
            after.wake.parkers.push(parker);
        } else if self.workers < self.workers_max {
            self.workers += 1;
            after.start_workers += 1;
        }
    }

    /// The same, if there is a turn left at all.
    pub(crate) fn rouse_for_turns(&mut self, after: &mut After) {
        if self.has_turns() {
            self.rouse(after);
        }
    }

    /// Makes sure that somebody is armed for the earliest alarm: an idle worker, else the watch.
    pub(crate) fn cover(&mut self, after: &mut After) {
        let head = self.alarms.next_wake();
        after.wake.merge(self.waiters.cover(head));
        if !self.waiters.has_leader() && head < NEVER && self.watch_runs() {
            after.wake.merge(self.waiters.arm_standby(head));
        }
    }

    fn watch_runs(&self) -> bool {
        matches!(self.waiters.standby, Standby::Armed { .. })
    }

    /// Whether this parker is the watch's: a start that failed half way may have left another.
    pub(crate) fn is_watch(&self, parker: &Arc<Parker>) -> bool {
        matches!(&self.waiters.standby, Standby::Armed { parker: watch, .. } if Arc::ptr_eq(watch, parker))
    }

    fn has_turns(&self) -> bool {
        !self.polls.is_empty() || !self.tenants.none_can_run()
    }

    /// Closed, and no alarm matters any more.
    pub(crate) fn is_over(&self) -> bool {
        self.phase.is_closed() && self.gauges.running == self.gauges.zombies
    }

    /// Closed, and nothing is left to be started or polled.
    pub(crate) fn needs_no_workers(&self) -> bool {
        self.phase.is_closed() && !self.has_turns() && self.gauges.futures == 0
    }

    /// A worker has nothing to do: says until when to sleep.
    pub(crate) fn lie_down(&mut self, parker: &Arc<Parker>, after: &mut After) -> (WaiterId, Nanos) {
        let head = self.alarms.next_wake();
        let Self { alarms, waiters, .. } = self;
        let (id, until, wake) = waiters.lie_down(parker, head, || alarms.second_wake(), NEVER);
        after.wake.merge(wake);
        (id, until)
    }

    pub(crate) fn get_up(&mut self, id: WaiterId) {
        self.waiters.get_up(id);
    }

    /// The watch has looked: says until when it sleeps. It stands in for the leader, or else for its deputy, so that a
    /// leader that leaves need not wake it.
    pub(crate) fn arm_watch(&mut self, parker: &Arc<Parker>) -> Nanos {
        let until = match (self.waiters.has_leader(), self.waiters.has_deputy()) {
            (false, _) => self.alarms.next_wake(),
            (true, false) => self.alarms.second_wake(),
            (true, true) => NEVER,
        };
        self.waiters.standby = Standby::Armed { parker: Arc::clone(parker), until };
        until
    }

    pub(crate) fn watch_ends(&mut self) {
        self.waiters.standby = Standby::Absent;
    }

    pub(crate) fn rouse_all(&mut self, after: &mut After) {
        after.wake.merge(self.waiters.rouse_all());
    }
}

/// The wall clock's reading when the monotonic one stood at 0.
fn origin_of(wall: SystemTime, now: Nanos) -> SystemTime {
    wall.checked_sub(Duration::from_nanos(now)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// When a date comes, by the monotonic clock.
pub(crate) fn mono_of(date: SystemTime, wall: SystemTime, now: Nanos) -> Nanos {
    let ahead = date.duration_since(wall).unwrap_or(Duration::ZERO);
    now.saturating_add(duration_to_nanos(ahead))
}
