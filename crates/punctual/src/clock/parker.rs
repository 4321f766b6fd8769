//! How one thread sleeps: until told, or until an instant, on the real or on the virtual clock.
//!
//! Every timed wait of the crate is [`Parker::park`]. A parker belongs to one sleeping thread at a time; anybody may
//! [`unpark`](Parker::unpark) it, and a wake-up given before the sleep is kept for it. A wake-up promises nothing:
//! callers look again at what they waited for.
//!
//! Lock order: parker, then virtual clock. The clock never calls `unpark` while it holds its own lock.
//!
//! Why not `std::thread::park`: its token belongs to the user's code too, and the model checkers have no timed one.

use std::sync::Arc;
use std::time::Duration;

use super::virtual_clock::Virtual;
use super::{Clock, NEVER, Nanos, Source};
use crate::sync::{Condvar, Mutex, thread};

/// The longest single sleep; a longer one is made of several.
const LONGEST_SLEEP: Duration = Duration::from_secs(365 * 24 * 3600);

/// How often a thread gives way on a virtual clock before it sleeps. No time passes there, so if it is to be woken it
/// is soon, and threads that wake each other by the kernel, on different processors, take longer for that than for all
/// they do. A model has no processors.
#[cfg(not(any(loom, shuttle)))]
pub(super) const GIVE_WAY: u32 = 100;
#[cfg(any(loom, shuttle))]
pub(super) const GIVE_WAY: u32 = 0;

#[derive(Debug)]
pub(crate) struct Parker {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug)]
enum State {
    Awake,
    /// A wake-up came while nobody slept.
    Notified,
    /// Asleep; on a virtual clock with the account that counts who is busy.
    Parked(Option<Arc<Virtual>>),
}

impl Parker {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State::Awake), wake: Condvar::new() }
    }

    /// The calling thread's own parker, for waits that begin and end within one call.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn of_this_thread() -> Arc<Self> {
        std::thread_local! {
            static PARKER: Arc<Parker> = Arc::new(Parker::new());
        }
        // The thread may be past the destruction of its locals: then a parker of its own serves as well.
        PARKER.try_with(Arc::clone).unwrap_or_else(|_| Arc::new(Self::new()))
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn of_this_thread() -> Arc<Self> {
        Arc::new(Self::new())
    }

    /// Sleeps until unparked or until `until`, whichever is first. May return for no reason.
    pub(crate) fn park(self: &Arc<Self>, clock: &Clock, until: Nanos) {
        match &clock.source {
            Source::Real(real) => {
                if until != NEVER && real.exact_sleep {
                    super::slack::tighten();
                }
                self.park_real(clock, until);
            }
            Source::Virtual(time) => self.park_virtual(time, until),
        }
    }

    fn park_real(&self, clock: &Clock, until: Nanos) {
        let mut state = self.state.lock();
        if matches!(*state, State::Notified) {
            *state = State::Awake;
            return;
        }
        *state = State::Parked(None);
        if until == NEVER {
            while matches!(*state, State::Parked(_)) {
                state = self.wake.wait(state);
            }
        } else {
            let left = Duration::from_nanos(until.saturating_sub(clock.nanos()));
            if !left.is_zero() {
                state = self.wake.wait_timeout(state, left.min(LONGEST_SLEEP));
            }
        }
        *state = State::Awake;
    }

    fn park_virtual(self: &Arc<Self>, time: &Arc<Virtual>, until: Nanos) {
        let mut state = self.state.lock();
        if matches!(*state, State::Notified) {
            *state = State::Awake;
            return;
        }
        let Some(bed) = time.fall_asleep(until, self) else { return };
        *state = State::Parked(Some(Arc::clone(time)));
        let mut yields = GIVE_WAY;
        while matches!(*state, State::Parked(_)) {
            if yields > 0 {
                yields -= 1;
                drop(state);
                thread::yield_now();
                state = self.state.lock();
            } else {
                state = self.wake.wait(state);
            }
        }
        drop(state);
        time.got_up(bed);
    }

    /// Wakes the sleeper, or spares the thread its next sleep.
    pub(crate) fn unpark(&self) {
        let mut state = self.state.lock();
        if let State::Parked(time) = &*state {
            if let Some(time) = time {
                time.woke_somebody();
            }
            *state = State::Awake;
            drop(state);
            self.wake.notify_one();
        } else {
            *state = State::Notified;
        }
    }
}
