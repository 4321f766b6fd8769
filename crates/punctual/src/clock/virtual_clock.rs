//! Time that passes only when a test says so, under the real threads.
//!
//! # How it knows that all is quiet
//! `busy` counts the threads and futures that may still do something at the present instant. Whoever wakes a sleeper
//! raises the count *on the sleeper's behalf* before it can run, and the sleeper lowers it by falling asleep again or
//! by leaving. So there is no moment between "woken" and "running" in which the system looks quiet and is not.
//!
//! # Invariants
//! 1. `now` never goes back, and moves only while `busy` is 0.
//! 2. A clock counts a thread at most once; `COUNTED_ON` says which clock its next sleep or leave is an answer to.
//! 3. A bed is occupied from `fall_asleep` to `got_up` by the same thread.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::parker::GIVE_WAY;
use super::{Clock, NEVER, Nanos, Parker, Source, duration_to_nanos};
use crate::sync::{Condvar, Mutex, MutexGuard, thread, thread_local};

#[allow(clippy::missing_const_for_thread_local, reason = "the model checkers' macro knows no const")]
mod counted {
    use super::{Cell, thread_local};
    thread_local! {
    /// The address of the virtual clock that counts this thread as busy; 0 for none.
    pub(super) static COUNTED_ON: Cell<usize> = Cell::new(0);
    }
}
use counted::COUNTED_ON;

// Through `with`, because the model checkers' keys know no other way.
fn counted_on() -> usize {
    COUNTED_ON.with(Cell::get)
}

fn set_counted_on(address: usize) {
    COUNTED_ON.with(|clock| clock.set(address));
}

/// How long, in real time, `advance` waits for a busy job unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shared side of a virtual clock.
#[derive(Debug)]
pub(crate) struct Virtual {
    pub(super) origin: Instant,
    wall_origin: SystemTime,
    patience: Duration,
    state: Mutex<State>,
    /// Somebody waits in `advance` for `busy` to reach 0.
    quiet: Condvar,
}

#[derive(Debug)]
struct State {
    now: Nanos,
    /// The wall clock is `wall_origin + now + wall_step`.
    wall_step: i128,
    /// Who sleeps until when; the number tells sleepers of one instant apart, in the order they lay down.
    sleepers: BTreeMap<Bed, Arc<Parker>>,
    next_bed: u64,
    busy: usize,
    /// What is running, by the order it began.
    running: BTreeMap<u64, String>,
    next_running: u64,
}

/// A place among the sleepers: until when, and a number.
pub(super) type Bed = (Nanos, u64);

impl Virtual {
    #[allow(clippy::disallowed_methods, reason = "the clock is where time is read")]
    fn new(patience: Duration) -> Self {
        Self {
            origin: Instant::now(),
            // 2001-09-09T01:46:40Z: the same for every run, so that a test that prints dates prints the same ones.
            wall_origin: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
            patience,
            state: Mutex::new(State {
                now: 0,
                wall_step: 0,
                sleepers: BTreeMap::new(),
                next_bed: 0,
                busy: 0,
                running: BTreeMap::new(),
                next_running: 0,
            }),
            quiet: Condvar::new(),
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(super) fn nanos(&self) -> Nanos {
        self.state.lock().now
    }

    pub(super) fn instant(&self) -> Instant {
        let now = self.nanos();
        self.origin.checked_add(Duration::from_nanos(now)).unwrap_or(self.origin)
    }

    pub(super) fn wall(&self) -> SystemTime {
        let state = self.state.lock();
        shift(self.wall_origin, i128::from(state.now) + state.wall_step)
    }

    /// The calling thread goes to sleep. `None` if `until` has come already.
    pub(super) fn fall_asleep(&self, until: Nanos, parker: &Arc<Parker>) -> Option<Bed> {
        let mut state = self.state.lock();
        if until <= state.now {
            return None;
        }
        let bed = (until, state.next_bed);
        state.next_bed += 1;
        state.sleepers.insert(bed, Arc::clone(parker));
        if counted_on() == self.address() {
            set_counted_on(0);
            self.lower(&mut state);
        }
        Some(bed)
    }

    /// The calling thread was woken; whoever woke it has counted it.
    pub(super) fn got_up(&self, bed: Bed) {
        self.state.lock().sleepers.remove(&bed);
        set_counted_on(self.address());
    }

    /// Counts one more that is busy.
    pub(super) fn woke_somebody(&self) {
        self.state.lock().busy += 1;
    }

    pub(super) fn fell_quiet(&self) {
        self.lower(&mut self.state.lock());
    }

    fn lower(&self, state: &mut MutexGuard<'_, State>) {
        debug_assert!(state.busy > 0, "a thread fell quiet that was not counted as busy");
        state.busy = state.busy.saturating_sub(1);
        if state.busy == 0 {
            self.quiet.notify_all();
        }
    }

    pub(super) fn running(self: &Arc<Self>, name: String) -> Running {
        let mut state = self.state.lock();
        let id = state.next_running;
        state.next_running += 1;
        state.running.insert(id, name);
        drop(state);
        Running { time: Arc::clone(self), id }
    }

    /// Waits until nobody is busy.
    #[allow(clippy::disallowed_methods, reason = "patience is counted in real time")]
    fn wait_for_quiet(&self) -> Result<MutexGuard<'_, State>, Stalled> {
        let mut state = self.state.lock();
        let began = Instant::now();
        let mut yields = GIVE_WAY;
        while state.busy > 0 {
            if yields > 0 {
                yields -= 1;
                drop(state);
                thread::yield_now();
                state = self.state.lock();
                continue;
            }
            let left = self.patience.saturating_sub(began.elapsed());
            if left.is_zero() && !cfg!(any(loom, shuttle)) {
                let busy = state.running.values().cloned().collect();
                return Err(Stalled { patience: self.patience, busy });
            }
            state = self.quiet.wait_timeout(state, left);
        }
        Ok(state)
    }

    /// A job that moves the clock would wait for itself.
    fn refuse_inside(&self) -> Result<(), Stalled> {
        if counted_on() != self.address() {
            return Ok(());
        }
        let busy = self.state.lock().running.values().cloned().collect();
        Err(Stalled { patience: Duration::ZERO, busy })
    }

    /// Steps from due instant to due instant up to `target`, waiting for quiet in between.
    fn advance_to(&self, target: Nanos) -> Result<(), Stalled> {
        self.refuse_inside()?;
        loop {
            let mut state = self.wait_for_quiet()?;
            let next = state.sleepers.keys().next().map_or(NEVER, |&(until, _)| until);
            state.now = state.now.max(next.min(target));
            if next > target {
                return Ok(());
            }
            let due: Vec<_> = state.sleepers.range(..=(next, u64::MAX)).map(|(_, parker)| Arc::clone(parker)).collect();
            drop(state);
            due.iter().for_each(|parker| parker.unpark());
        }
    }

    fn step_wall(&self, to: SystemTime) -> Result<(), Stalled> {
        self.refuse_inside()?;
        let mut state = self.wait_for_quiet()?;
        state.wall_step = offset(self.wall_origin, to) - i128::from(state.now);
        // A step is noticed at once, as on a platform that tells of it: everybody looks again.
        let sleepers: Vec<_> = state.sleepers.values().map(Arc::clone).collect();
        drop(state);
        sleepers.iter().for_each(|parker| parker.unpark());
        self.wait_for_quiet().map(drop)
    }
}

/// `to - from` in nanoseconds, of either sign.
fn offset(from: SystemTime, to: SystemTime) -> i128 {
    match to.duration_since(from) {
        Ok(ahead) => ahead.as_nanos().cast_signed(),
        Err(behind) => -behind.duration().as_nanos().cast_signed(),
    }
}

fn shift(from: SystemTime, nanos: i128) -> SystemTime {
    let (seconds, rest) = (nanos.unsigned_abs() / 1_000_000_000, nanos.unsigned_abs() % 1_000_000_000);
    let distance = Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX))
        .saturating_add(Duration::from_nanos(u64::try_from(rest).expect("less than a second")));
    let shifted = if nanos < 0 { from.checked_sub(distance) } else { from.checked_add(distance) };
    shifted.unwrap_or(from)
}

/// The calling thread is counted as busy on a virtual clock from its first wake-up until this is dropped.
pub(crate) struct Presence<'a> {
    time: Option<&'a Virtual>,
    /// The clock that counted the thread before: a job on one clock may wait on another.
    before: usize,
}

impl<'a> Presence<'a> {
    pub(super) fn absent() -> Self {
        Self { time: None, before: 0 }
    }

    /// A thread that comes and goes, such as a caller of `take`. Not counted until it has slept.
    pub(super) fn new(time: &'a Virtual) -> Self {
        // Inside a job the thread is counted already, and stays so when this wait is over.
        let before = counted_on();
        Self { time: (before != time.address()).then_some(time), before }
    }

    pub(super) fn adopt(time: &'a Virtual) -> Self {
        let before = counted_on();
        set_counted_on(time.address());
        Self { time: Some(time), before }
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if let Some(time) = self.time
            && counted_on() == time.address()
        {
            set_counted_on(self.before);
            time.fell_quiet();
        }
    }
}

/// A named piece of work that runs now.
pub(crate) struct Running {
    time: Arc<Virtual>,
    id: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.time.state.lock().running.remove(&self.id);
    }
}

/// A clock for tests: time stands still until it is told to pass, and then passes at once.
///
/// The code under test is the code that ships, with its real threads and its blocking jobs. [`advance`] goes from due
/// instant to due instant and waits in between until all is quiet: every worker idle or waiting inside this crate,
/// every future pending. A job that schedules another therefore sees it run in the same `advance`, in order.
///
/// Derefs to [`Clock`] for reading the time.
///
/// [`advance`]: VirtualClock::advance
///
/// # Example
/// ```
/// use punctual::{Scheduler, VirtualClock};
/// use std::time::Duration;
///
/// let clock = VirtualClock::new();
/// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
/// let mut tomorrow = scheduler.after(Duration::from_secs(86_400)).run(|_| "good morning").unwrap();
/// clock.advance(Duration::from_secs(86_400)).unwrap();
/// assert_eq!(tomorrow.wait().unwrap(), "good morning");
/// ```
#[derive(Clone)]
pub struct VirtualClock {
    clock: Clock,
}

impl VirtualClock {
    /// A clock that stands at some instant; its wall clock stands at 2001-09-09 01:46:40 UTC.
    ///
    /// # Example
    /// ```
    /// let clock = punctual::VirtualClock::new();
    /// assert_eq!(clock.now(), clock.now());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::with_patience(PATIENCE)
    }

    /// A clock whose [`advance`](Self::advance) waits for a busy job up to `patience` of real time (10 s by default).
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let clock = punctual::VirtualClock::with_patience(Duration::from_secs(1));
    /// clock.advance(Duration::from_secs(3600)).unwrap();
    /// ```
    #[must_use]
    pub fn with_patience(patience: Duration) -> Self {
        Self { clock: Clock { source: Source::Virtual(Arc::new(Virtual::new(patience))) } }
    }

    /// Lets `duration` pass, due instant by due instant. A thread of the test's own counts from when it is woken inside
    /// this crate until it leaves it: what it does after a `take` or a `wait` has returned is not waited for.
    ///
    /// # Errors
    /// [`Stalled`] if a job stayed busy, or blocked outside this crate, for longer than the clock's patience. The time
    /// stands where the job began; a later call goes on from there.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// clock.advance(Duration::from_millis(1)).unwrap();
    /// ```
    pub fn advance(&self, duration: Duration) -> Result<(), Stalled> {
        let time = self.time();
        time.advance_to(time.nanos().saturating_add(duration_to_nanos(duration)).min(NEVER - 1))
    }

    /// Lets time pass until `instant`; nothing if that has passed.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// let noon = clock.now() + Duration::from_secs(12 * 3600);
    /// clock.advance_to(noon).unwrap();
    /// assert_eq!(clock.now(), noon);
    /// ```
    pub fn advance_to(&self, instant: Instant) -> Result<(), Stalled> {
        self.time().advance_to(self.clock.to_nanos(instant).min(NEVER - 1))
    }

    /// Sets the wall clock alone, as an administrator or a time server would; the monotonic time stands still.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    ///
    /// # Example
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// let clock = punctual::VirtualClock::new();
    /// let before = clock.now();
    /// clock.step_wall(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
    /// assert_eq!(clock.wall(), UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    /// assert_eq!(clock.now(), before);
    /// ```
    pub fn step_wall(&self, to: SystemTime) -> Result<(), Stalled> {
        self.time().step_wall(to)
    }

    /// The instants at which somebody is armed to wake up, earliest first. A queue or scheduler arms one or two
    /// sleepers for its earliest entries, not one for each entry.
    ///
    /// # Example
    /// ```
    /// use punctual::{Scheduler, VirtualClock};
    /// use std::time::Duration;
    ///
    /// let clock = VirtualClock::new();
    /// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
    /// let hour = scheduler.after(Duration::from_secs(3600)).run(|_| ()).unwrap();
    /// clock.settle().unwrap();
    /// assert_eq!(clock.pending()[0] - clock.now(), Duration::from_secs(3600));
    /// # drop(hour);
    /// ```
    #[must_use]
    pub fn pending(&self) -> Vec<Instant> {
        let state = self.time().state.lock();
        state.sleepers.keys().filter_map(|&(until, _)| self.clock.to_instant(until)).collect()
    }

    /// Waits until all is quiet, without letting time pass: work that is due now has run when this returns.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    ///
    /// # Example
    /// ```
    /// use punctual::{Scheduler, VirtualClock};
    ///
    /// let clock = VirtualClock::new();
    /// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
    /// scheduler.now().run(|_| ()).unwrap().detach();
    /// clock.settle().unwrap();
    /// assert_eq!(scheduler.snapshot().finished.succeeded, 1);
    /// ```
    pub fn settle(&self) -> Result<(), Stalled> {
        self.advance(Duration::ZERO)
    }

    fn time(&self) -> &Arc<Virtual> {
        match &self.clock.source {
            Source::Virtual(time) => time,
            Source::Real(_) => unreachable!("a VirtualClock is made with a virtual source"),
        }
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl std::ops::Deref for VirtualClock {
    type Target = Clock;
    fn deref(&self) -> &Clock {
        &self.clock
    }
}

impl From<&VirtualClock> for Clock {
    fn from(clock: &VirtualClock) -> Self {
        clock.clock.clone()
    }
}

impl From<VirtualClock> for Clock {
    fn from(clock: VirtualClock) -> Self {
        clock.clock
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.time().state.lock();
        f.debug_struct("VirtualClock")
            .field("elapsed", &Duration::from_nanos(state.now))
            .field("busy", &state.busy)
            .field("sleepers", &state.sleepers.len())
            .finish()
    }
}

/// A virtual clock could not go on: something stayed busy for longer than its patience.
///
/// # Example
/// ```
/// use punctual::{Scheduler, VirtualClock};
/// use std::{sync::mpsc, time::Duration};
///
/// let clock = VirtualClock::with_patience(Duration::from_millis(20));
/// let scheduler = Scheduler::builder().clock(&clock).build().unwrap();
/// let (release, blocked) = mpsc::channel::<()>();
/// scheduler.now().name("stuck").run(move |_| blocked.recv().is_ok()).unwrap().detach();
/// let stalled = clock.advance(Duration::from_secs(1)).unwrap_err();
/// assert!(stalled.busy()[0].contains("stuck"));
/// release.send(()).unwrap();
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stalled {
    patience: Duration,
    busy: Vec<String>,
}

impl Stalled {
    /// The names of the jobs that run, the longest-running first.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// let scheduler = punctual::Scheduler::builder().clock(&clock).build().unwrap();
    /// let own = clock.clone();
    /// let mut job = scheduler.now().name("me").run(move |_| own.advance(Duration::ZERO)).unwrap();
    /// assert_eq!(job.wait().unwrap().unwrap_err().busy().len(), 1, "a job cannot move its own clock");
    /// ```
    #[must_use]
    pub fn busy(&self) -> &[String] {
        &self.busy
    }
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virtual clock stalled for {:?} waiting for ", self.patience)?;
        if self.busy.is_empty() {
            return f.write_str("a thread that left a punctual wait");
        }
        f.write_str(&self.busy.join(", "))
    }
}

impl std::error::Error for Stalled {}
