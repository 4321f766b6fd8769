//! A wall clock that is wrong, for the whole process: the standard library and everything above it ask the C library
//! for the time, and what a program defines itself comes before what is in a library.
//!
//! So the store and the clock under test are those that are shipped, and know nothing. The monotonic clock is as it
//! was.

#[cfg(target_os = "linux")]
mod shim {
    #![allow(unsafe_code, reason = "it stands for a function of the C library")]

    use std::sync::atomic::{AtomicI64, Ordering};

    use libc::{CLOCK_REALTIME, SYS_clock_gettime, c_int, c_long, clockid_t, syscall, timespec};

    pub(super) static WRONG_BY: AtomicI64 = AtomicI64::new(0);

    /// As the C library's, which it takes the place of.
    ///
    /// # Safety
    /// As there: `time` is where a `timespec` can be written.
    // SAFETY: the name and the signature are those of POSIX, and so is what it does, but for the wrong time.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
        // SAFETY: the system call of this name, with the caller's own arguments; it writes nothing unless it succeeds.
        let answer = unsafe { syscall(SYS_clock_gettime, c_long::from(clock), time) };
        if answer == 0 && clock == CLOCK_REALTIME {
            // SAFETY: the call before has written it.
            unsafe { (*time).tv_sec += WRONG_BY.load(Ordering::Relaxed) };
        }
        // 0 or -1.
        if answer == 0 { 0 } else { -1 }
    }
}

/// From now on the wall clock of this process is ahead by so many seconds.
#[cfg(target_os = "linux")]
pub(crate) fn set_wrong_by(seconds: i64) {
    shim::WRONG_BY.store(seconds, std::sync::atomic::Ordering::Relaxed);
}

/// Nobody knows how to do it elsewhere.
#[cfg(not(target_os = "linux"))]
pub(crate) fn set_wrong_by(seconds: i64) {
    assert_eq!(seconds, 0, "clocks can be set wrong on Linux only");
}
