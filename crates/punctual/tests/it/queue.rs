//! The delay queue as its users see it, a module per promise, on the virtual clock. A test names the clause it proves.
//! Here are the few tools that they, and the other queue modules, share.

mod cancel;
mod consumers;
mod crowd;
mod end;
mod model;
mod order;
mod originals;
mod user_code;
mod wake_ups;

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use punctual::{Clock, DelayQueue, VirtualClock};

pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long, in real time, a thread may take that should return at once. Only a failing test waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const fn ns(n: u64) -> Duration {
    Duration::from_nanos(n)
}

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A queue on a clock that stands still.
pub(crate) fn on_virtual_clock<T>() -> (VirtualClock, DelayQueue<T>) {
    let clock = VirtualClock::new();
    let queue = DelayQueue::with_clock(&clock);
    (clock, queue)
}

/// Work on a thread of its own.
pub(crate) struct Background<R>(mpsc::Receiver<R>);

pub(crate) fn background<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Background<R> {
    let (done, outcome) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    Background(outcome)
}

/// The same with a handle of the queue.
pub(crate) fn background_with<T, R>(
    queue: &DelayQueue<T>,
    work: impl FnOnce(&DelayQueue<T>) -> R + Send + 'static,
) -> Background<R>
where
    T: Send + 'static,
    R: Send + 'static,
{
    let queue = queue.clone();
    background(move || work(&queue))
}

impl<R> Background<R> {
    /// What the work returned.
    pub(crate) fn outcome(self) -> R {
        self.0.recv_timeout(PATIENCE).expect("the thread returns: it neither panicked nor waits for a lost wake-up")
    }
}

/// Waits, in real time, until so many threads sleep on the clock and nobody is on the way.
pub(crate) fn wait_for_sleepers(clock: &VirtualClock, sleepers: usize) {
    let began = Clock::system();
    let start = began.now();
    while (shown(clock, "sleepers"), shown(clock, "busy")) != (sleepers, 0) {
        assert!(began.now() - start < PATIENCE, "{sleepers} threads fall asleep: {clock:?}");
        thread::yield_now();
    }
}

/// A number that the clock shows of itself.
pub(crate) fn shown(clock: &VirtualClock, field: &str) -> usize {
    let text = format!("{clock:?}");
    let (_, rest) = text.split_once(&format!("{field}: ")).expect("the clock shows this number");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("it is a number")
}

/// A waker that counts.
#[derive(Default)]
pub(crate) struct Bell(AtomicUsize);

impl Bell {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn rings(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls once; the bell rings when it is worth polling again.
pub(crate) fn poll<F: Future>(future: Pin<&mut F>, bell: &Arc<Bell>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(bell))))
}

/// A runtime for one future.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread, AtomicBool);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::SeqCst);
            self.0.unpark();
        }
    }
    let unpark = Arc::new(Unpark(thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        // Only a wake-up leads to another poll: a spurious return of `park` must not hide a lost one.
        while !unpark.1.swap(false, Ordering::SeqCst) {
            thread::park();
        }
    }
}

/// A panic that the panic hook does not print.
pub(crate) fn panic_quietly() {
    std::panic::resume_unwind(Box::new("on purpose"));
}

pub(crate) fn caught(work: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
}

/// A number from the environment, so that a script can make a test run longer or otherwise.
pub(crate) fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("the variable holds a number"))
}

/// A small random generator: the same numbers on every machine.
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number of up to `bits` bits, each length as likely as the next.
    pub(crate) fn magnitude(&mut self, bits: u64) -> u64 {
        let length = self.below(bits + 1);
        self.next() & ((1 << length) - 1)
    }
}
