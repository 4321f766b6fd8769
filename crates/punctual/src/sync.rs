//! The primitives everything else is built from: std's, or a model checker's (`--cfg loom`, `--cfg shuttle`), chosen once.
//!
//! Why a wrapper around the mutex: no code of the user's ever runs under one of our locks, so a poisoned lock can only
//! mean a bug of ours, and a second panic would hide the first. The guard is handed out all the same.

#[cfg(loom)]
use loom as primitives;
#[cfg(shuttle)]
use shuttle as primitives;
#[cfg(not(any(loom, shuttle)))]
use std as primitives;

use std::sync::PoisonError;

pub(crate) use primitives::sync::MutexGuard;
pub(crate) use primitives::thread;
pub(crate) use primitives::thread_local;

/// A mutex that ignores poisoning.
#[derive(Debug)]
pub(crate) struct Mutex<T>(primitives::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(primitives::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable. Its timed wait is for the clock alone: see `clock/parker.rs`.
#[derive(Debug)]
pub(crate) struct Condvar(primitives::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(primitives::sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at most `timeout`. The model checkers' never times out: a model lets time pass on the virtual clock.
    #[allow(clippy::disallowed_methods, reason = "the one timed wait; only the clock calls it")]
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout(guard, timeout);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
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
