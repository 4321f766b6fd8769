//! Many jobs submitted at once, and those who run them woken once.
//!
//! A worker that is woken for the first of many short jobs takes the processor from the thread that submits the second:
//! the two change places with every job. Held back to the end, the wake-ups are as few as there are workers.

use std::cell::RefCell;

use super::waiters::Wake;
use crate::sync::thread_local;

#[allow(clippy::missing_const_for_thread_local, reason = "the model checkers' macro knows no const")]
mod held {
    use super::{RefCell, Wake, thread_local};
    thread_local! {
    /// The wake-ups that this thread holds back, if it does.
    pub(super) static HELD: RefCell<Option<Wake>> = RefCell::new(None);
    }
}
use held::HELD;

/// Submits many jobs at once: the workers that sleep are woken when `body` is over, once for all that it submitted.
/// What it returns, and its panic, are passed on.
///
/// Worth it for many short jobs. Without it each of them may wake a worker, which costs more than the job itself. If
/// `body` waits for one of its jobs, by a handle's own methods, those so far are told first; it must not wait for one
/// by other means, such as a channel.
///
/// # Example
/// ```
/// use punctual::{Scheduler, together};
///
/// let scheduler = Scheduler::builder().workers(4).build()?;
/// let handles: Vec<_> = together(|| (0..100).map(|n| scheduler.now().run(move |_| n * n)).collect::<Result<_, _>>())?;
/// let sum: u64 = handles.into_iter().map(|mut handle| handle.wait()).sum::<Result<_, _>>()?;
/// assert_eq!(sum, 328_350);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn together<T>(body: impl FnOnce() -> T) -> T {
    let is_first = HELD.with(|held| {
        let mut held = held.borrow_mut();
        let is_first = held.is_none();
        held.get_or_insert_default();
        is_first
    });
    // Dropped in any case, a panic of the body included. Within another one there must be none, not even for a moment:
    // that one wakes.
    let _release = if is_first { Some(Release) } else { None };
    body()
}

struct Release;

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(wake) = HELD.with(RefCell::take) {
            wake.give_now();
        }
    }
}

/// Keeps wake-ups for later if this thread does things together; hands them back if not.
pub(crate) fn hold(wake: Wake) -> Option<Wake> {
    let mut wake = Some(wake);
    // Past the destruction of the thread's locals nothing is held.
    let _ = HELD.try_with(|held| {
        if let Some(held) = held.borrow_mut().as_mut() {
            held.merge(wake.take().unwrap_or_default());
        }
    });
    wake
}

/// This thread is about to wait, perhaps for those it has yet to wake.
pub(crate) fn wake_held() {
    let held = HELD.try_with(|held| held.borrow_mut().as_mut().map(std::mem::take));
    if let Ok(Some(wake)) = held {
        wake.give_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inner_one_leaves_the_waking_to_the_outer() {
        let is_held = || hold(Wake::default()).is_none();
        together(|| {
            together(|| assert!(is_held()));
            assert!(is_held());
        });
        assert!(!is_held());
    }
}
