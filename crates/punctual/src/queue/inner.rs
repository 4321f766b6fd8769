//! The inside of a [`DelayQueue`](crate::DelayQueue): what is decided under its lock, and what is done after.
//!
//! # Invariants
//! 1. An entry leaves through the wheel exactly once: by `pop`, by `cancel`, or with everything at the end.
//! 2. Before the lock is released with entries left, somebody who waits is armed for the earliest of them (`cover`).
//! 3. `latest` never goes back: it is the time the queue decides by.

use std::sync::Arc;

use super::together;
use super::waiters::{Standby, Waiters, Wake};
use super::wheel::Wheel;
use crate::clock::{Clock, NEVER, Nanos, Parker};
use crate::error::TakeTimeoutError;
use crate::sync::{self, Mutex};

/// How long the queue's own thread stays when there is nothing to be armed for.
const LINGER: Nanos = 1_000_000_000;

pub(super) struct Inner<T> {
    pub(super) clock: Clock,
    pub(super) capacity: usize,
    pub(super) state: Mutex<State<T>>,
}

pub(super) struct State<T> {
    pub(super) wheel: Wheel<T>,
    pub(super) waiters: Waiters,
    pub(super) closed: bool,
    /// No handle is left.
    pub(super) abandoned: bool,
    pub(super) latest: Nanos,
}

impl<T: Send + 'static> Inner<T> {
    pub(super) fn take_until(self: &Arc<Self>, give_up: Nanos) -> Result<T, TakeTimeoutError> {
        let _presence = self.clock.presence();
        let mut parker = None;
        let mut state = self.state.lock();
        loop {
            // What was due when time was last read is due still: a backlog is taken without reading it again.
            let mut now = state.latest;
            let mut taken = state.wheel.pop(now);
            if taken.is_none() {
                now = state.now(&self.clock);
                taken = state.wheel.pop(now);
            }
            if let Some((_, item)) = taken {
                let wake = state.cover(now);
                drop(state);
                self.give(wake);
                return Ok(item);
            }
            if state.closed && state.wheel.is_empty() {
                return Err(TakeTimeoutError::Closed);
            }
            if now >= give_up {
                let wake = state.cover(now);
                drop(state);
                self.give(wake);
                return Err(TakeTimeoutError::TimedOut);
            }
            let parker = parker.get_or_insert_with(Parker::of_this_thread);
            let head = state.wheel.next_wake();
            let State { wheel, waiters, .. } = &mut *state;
            let (id, until, mut wake) = waiters.lie_down(parker, head, || wheel.second_wake(), give_up);
            if !waiters.has_leader() {
                // It gives up before the earliest entry and no other sleeper is armed for it: async consumers need
                // somebody.
                wake.merge(state.cover(now).unwrap_or_default());
            }
            drop(state);
            self.give(Some(wake));
            together::wake_held();
            parker.park(&self.clock, until.min(give_up));
            state = self.state.lock();
            state.waiters.get_up(id);
        }
    }

    /// Gives the wake-ups of a decision made under the lock, after its release.
    #[inline]
    pub(super) fn give(self: &Arc<Self>, wake: Option<Wake>) {
        let Some(mut wake) = wake else { return };
        if let Some(parker) = wake.start_standby.take() {
            self.start_standby(parker);
        }
        wake.give();
    }

    /// Starts the queue's own thread, which keeps the time for async consumers.
    fn start_standby(self: &Arc<Self>, parker: Arc<Parker>) {
        let inner = Arc::clone(self);
        self.clock.expect_busy();
        let started = sync::spawn("punctual-queue", None, move || inner.keep_time(&parker));
        if started.is_err() {
            self.clock.no_longer_busy();
            let mut state = self.state.lock();
            state.waiters.standby = Standby::Absent;
            // No thread to be had: the consumer polls again, and asks again, until there is one. Slow, but nothing is
            // lost.
            let waker = state.waiters.tell_one();
            drop(state);
            Wake { wakers: waker.into_iter().collect(), ..Wake::default() }.give();
        }
    }

    /// What the queue's own thread does: wakes async consumers when entries fall due. Takes none itself.
    fn keep_time(&self, parker: &Arc<Parker>) {
        let _presence = self.clock.adopt_presence();
        let mut idle = false;
        loop {
            let mut state = self.state.lock();
            let now = state.now(&self.clock);
            let (next, wake) = state.tell_due(now);
            let needed = !state.waiters.has_leader() && state.waiters.has_async() && next < NEVER;
            if state.abandoned || (idle && !needed) {
                state.waiters.standby = Standby::Absent;
                drop(state);
                return wake.give();
            }
            idle = !needed;
            let armed_for = if needed { next } else { NEVER };
            state.waiters.standby = Standby::Armed { parker: Arc::clone(parker), until: armed_for };
            drop(state);
            wake.give();
            parker.park(&self.clock, if needed { next } else { now.saturating_add(LINGER) });
        }
    }
}

impl<T> Inner<T> {
    pub(super) fn new(clock: Clock, capacity: usize) -> Self {
        let state = State { wheel: Wheel::new(), waiters: Waiters::new(), closed: false, abandoned: false, latest: 0 };
        Self { clock, capacity, state: Mutex::new(state) }
    }

    /// Closes, empties and wakes all.
    pub(super) fn end(&self) -> Vec<T> {
        let mut state = self.state.lock();
        state.closed = true;
        let items = state.wheel.take_all();
        let wake = state.waiters.rouse_all();
        drop(state);
        wake.give();
        items
    }
}

/// Gives wake-ups that need no thread started.
#[inline]
pub(super) fn give(wake: Option<Wake>) {
    if let Some(wake) = wake {
        wake.give();
    }
}

impl<T> State<T> {
    pub(super) fn now(&mut self, clock: &Clock) -> Nanos {
        self.latest = self.latest.max(clock.nanos());
        self.latest
    }

    /// Makes sure that somebody is armed for the earliest entry, after somebody left.
    pub(super) fn cover(&mut self, now: Nanos) -> Option<Wake> {
        if self.wheel.is_empty() {
            return self.end_if_drained();
        }
        let head = self.wheel.next_wake();
        self.cover_new(head, now)
    }

    /// The same after an entry came in that is due at `due`: the others are covered already.
    #[inline]
    pub(super) fn cover_new(&mut self, due: Nanos, now: Nanos) -> Option<Wake> {
        // By far the most pushes end here.
        if self.waiters.covers(due) { None } else { Some(self.rearm(due, now)) }
    }

    fn rearm(&mut self, due: Nanos, now: Nanos) -> Wake {
        let mut wake = self.waiters.cover(due);
        if !self.waiters.has_leader() && self.waiters.has_untold() {
            let (next, told) = self.tell_due(now);
            wake.merge(told);
            if self.waiters.has_untold() && next < NEVER {
                wake.merge(self.waiters.arm_standby(next));
            }
        }
        wake
    }

    /// Tells async consumers of the entries that are due. Says when the next one after these is.
    fn tell_due(&mut self, now: Nanos) -> (Nanos, Wake) {
        let mut wake = Wake::default();
        let (due, next) = self.wheel.due_and_next(now);
        if !self.waiters.has_leader() {
            self.waiters.tell(due, &mut wake);
        }
        (next, wake)
    }

    /// On a closed queue that has nothing left, everybody learns of the end.
    #[inline]
    pub(super) fn end_if_drained(&mut self) -> Option<Wake> {
        (self.closed && self.wheel.is_empty()).then(|| self.waiters.rouse_all())
    }
}
