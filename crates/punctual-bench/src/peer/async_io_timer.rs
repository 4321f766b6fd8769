//! `async_io::Timer`, polled once with a waker that is the work: it runs on the reactor's own thread.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use async_io::Timer;

use super::{Peer, Producer};

/// The reactor is a global of the library.
pub(crate) struct Timers;

/// Runs its work when woken.
struct Callback<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static> Wake for Callback<F> {
    fn wake(self: Arc<Self>) {
        let job = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(job) = job {
            job();
        }
    }
}

impl Peer for Timers {
    type Producer = Self;

    fn start(_threads: usize) -> Self {
        Self
    }

    fn producer(&self) -> Self {
        Self
    }
}

impl Producer for Timers {
    type Handle = Timer;

    fn after(&mut self, delay: Duration, job: impl FnOnce() + Send + 'static) -> Timer {
        let waker = Waker::from(Arc::new(Callback(Mutex::new(Some(job)))));
        let mut timer = Timer::after(delay);
        let _ = Future::poll(Pin::new(&mut timer), &mut Context::from_waker(&waker));
        timer
    }

    fn cancel(&mut self, timer: Timer) {
        drop(timer);
    }

    /// The reactor holds the entry; dropping the timer would take it out.
    fn detach(&mut self, timer: Timer) {
        mem::forget(timer);
    }
}
