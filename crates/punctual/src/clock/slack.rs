//! How exactly the kernel ends a timed sleep.
//!
//! Linux rounds the end of a sleep up by 50 us (the thread's *timer slack*) to batch wake-ups. For a scheduler that is
//! most of its lateness: the median fell from 94 to 48 us without it. It is set once per thread that sleeps to an
//! instant.

/// Asks the kernel to end this thread's sleeps at the nanosecond. Best effort: a refusal only costs exactness.
#[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
pub(super) fn tighten() {
    use std::cell::Cell;
    std::thread_local! {
        static TIGHT: Cell<bool> = const { Cell::new(false) };
    }
    // A thread past the destruction of its locals sleeps with whatever slack it has.
    let done = TIGHT.try_with(|tight| tight.replace(true)).unwrap_or(true);
    if !done {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

#[cfg(not(all(target_os = "linux", not(any(loom, shuttle)))))]
pub(super) fn tighten() {}
