//! The waiter protocol under model checkers. Every `loom_` test is one small body that `model` runs plainly, under loom
//! and under shuttle; the `shuttle_` test is too big for loom, and the tests in `inside` are ordinary ones.
//!
//! Time in a model is virtual, and `advance` waits only for threads that it has woken. A thread that has not gone to
//! sleep yet finds the time passed when it first looks, so a model uses absolute instants and ends either way. A
//! wake-up that is lost leaves a thread asleep for ever: the checkers report it as a deadlock, the plain run hangs.
//!
//! A doc comment names the clause a model proves, the threads that run at once (the main one and the queue's own
//! included; loom has room for five). The bound on preemptions is the default for all of them: 2, or what
//! `PUNCTUAL_LOOM_PREEMPTIONS` says.

mod ending;
#[cfg(not(any(loom, shuttle)))]
mod inside;
#[cfg(not(loom))]
mod random;
mod sleeping;
mod waking;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::waiters::Standby;
use super::*;
use crate::clock::VirtualClock;
use crate::model::model;
use crate::sync::{Condvar, Mutex, thread};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A queue whose items are the instant they are due at, in milliseconds from the start.
struct Timed {
    clock: VirtualClock,
    queue: DelayQueue<u64>,
    start: Instant,
}

impl Timed {
    fn new() -> Self {
        let clock = VirtualClock::new();
        let start = clock.now();
        Self { queue: DelayQueue::with_clock(&clock), clock, start }
    }

    fn push(&self, due: u64) -> Key {
        let key = self.queue.push(due, self.start + ms(due)).unwrap();
        self.assert_covered();
        key
    }

    fn reschedule(&self, key: Key, due: u64) -> bool {
        let found = self.queue.reschedule(key, self.start + ms(due));
        self.assert_covered();
        found
    }

    fn advance_to(&self, milliseconds: u64) {
        self.clock.advance_to(self.start + ms(milliseconds)).unwrap();
        self.assert_covered();
    }

    /// Invariant 1 of the waiters, at any moment the lock is free: `cover` finds nothing left to do.
    fn assert_covered(&self) {
        let mut state = self.queue.inner().state.lock();
        let now = state.latest;
        let on_its_way = matches!(state.waiters.standby, Standby::Armed { until, .. } if until <= now);
        if state.wheel.is_empty() || on_its_way {
            return;
        }
        let wake = state.cover(now).unwrap_or_default();
        drop(state);
        let nobody = wake.parkers.is_empty() && wake.wakers.is_empty() && wake.start_standby.is_none();
        assert!(nobody, "the earliest entry was not covered: {wake:?}");
    }

    /// C1: checks on the way that nothing is early.
    fn take(&self) -> Option<u64> {
        self.queue.take().inspect(|&due| self.assert_due(due))
    }

    /// Takes until an instant, so that it does not matter when the call begins.
    fn take_until(&self, milliseconds: u64) -> Result<u64, TakeTimeoutError> {
        let give_up = duration_to_nanos(ms(milliseconds));
        self.queue.inner().take_until(give_up).inspect(|&due| self.assert_due(due))
    }

    fn take_async(&self) -> Option<u64> {
        block_on(self.queue.take_async()).inspect(|&due| self.assert_due(due))
    }

    fn assert_due(&self, due: u64) {
        assert!(self.clock.now() >= self.start + ms(due), "the entry due at {due} ms was early");
    }

    /// Runs `body` on a thread of its own.
    fn spawn<R: Send + 'static>(
        self: &Arc<Self>,
        body: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> thread::JoinHandle<R> {
        let timed = Arc::clone(self);
        thread::spawn(move || body(&timed))
    }
}

/// A waker that remembers that it was called.
struct Bell {
    rung: Mutex<bool>,
    wake: Condvar,
}

impl Bell {
    fn new() -> Arc<Self> {
        Arc::new(Self { rung: Mutex::new(false), wake: Condvar::new() })
    }

    fn wait(&self) {
        let mut rung = self.rung.lock();
        while !*rung {
            rung = self.wake.wait(rung);
        }
        *rung = false;
    }

    fn is_rung(&self) -> bool {
        *self.rung.lock()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock() = true;
        self.wake.notify_one();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let bell = Bell::new();
    let waker = Waker::from(Arc::clone(&bell));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => bell.wait(),
        }
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(waker))
}

fn sorted<const N: usize>(mut taken: [Option<u64>; N]) -> [Option<u64>; N] {
    taken.sort_unstable();
    taken
}
