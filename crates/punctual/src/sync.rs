//! The primitives everything else is built from, or a model checker's (`--cfg loom`, `--cfg shuttle`), chosen once.
//!
//! The mutex is `parking_lot`'s: under contention it spins and yields before it sleeps, where std's goes to the kernel
//! once per hand-over. Figures are in `docs/design/one-lock.md`.
//!
//! No lock is poisoned: no code of the user's ever runs under one of ours, so a poisoned lock could only mean a bug of
//! ours, and a second panic would hide the first. The checkers' guard is handed out all the same.

#[cfg(loom)]
use loom as primitives;
#[cfg(shuttle)]
use shuttle as primitives;
#[cfg(not(any(loom, shuttle)))]
use std as primitives;

pub(crate) use locks::{Condvar, Mutex, MutexGuard};
pub(crate) use primitives::thread;
pub(crate) use primitives::thread_local;

#[cfg(not(any(loom, shuttle)))]
mod locks {
    use std::time::Duration;

    pub(crate) use parking_lot::MutexGuard;

    /// A mutex without poisoning.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock()
        }
    }

    /// A condition variable. Its timed wait is for the clock alone: see `clock/parker.rs`.
    #[derive(Debug)]
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(parking_lot::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(&mut guard);
            guard
        }

        /// Waits at most `timeout`.
        pub(crate) fn wait_timeout<'a, T>(&self, mut guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
            self.0.wait_for(&mut guard, timeout);
            guard
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(any(loom, shuttle))]
mod locks {
    use std::sync::PoisonError;
    use std::time::Duration;

    use super::primitives::sync;
    pub(crate) use sync::MutexGuard;

    /// A mutex that ignores poisoning.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    #[derive(Debug)]
    pub(crate) struct Condvar(sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(sync::Condvar::new())
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        /// Never times out: a model lets time pass on the virtual clock.
        #[allow(clippy::disallowed_methods, reason = "the one timed wait; only the clock calls it")]
        pub(crate) fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
            self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

/// Starts a thread of our own, with the platform's stack size unless another is given.
///
/// # Errors
/// What the operating system answered when it has no thread to give.
pub(crate) fn spawn(
    name: &str,
    stack_size: Option<usize>,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let mut builder = thread::Builder::new().name(name.to_owned());
    if let Some(size) = stack_size {
        builder = builder.stack_size(size);
    }
    builder.spawn(body).map(drop)
}
