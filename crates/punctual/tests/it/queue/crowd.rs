//! A random crowd of consumers, threads and futures, patient and not, who come and go while entries do the same.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use punctual::{Clock, DelayQueue, Key, TakeAsync, VirtualClock};

use super::{Bell, PATIENCE, SplitMix, from_env, ms, on_virtual_clock, poll};

/// C3, C7, C9: whatever happened before, an entry that is due and a consumer that waits find each other, without time
/// passing and without anybody's help; and in the end every entry has gone exactly one way.
#[test]
fn a_random_crowd_never_misses_an_entry() {
    let rounds = from_env("PUNCTUAL_SOAK_OPS", 1_000_000) / 50;
    for (threads, futures) in [(4, 0), (0, 4), (1, 3), (4, 4)] {
        let (clock, queue) = on_virtual_clock();
        let mut random = SplitMix(from_env("PUNCTUAL_SOAK_SEED", 1));
        let mut crowd = Crowd::new(&clock, &queue, threads, futures);
        for _ in 0..rounds / 4 {
            crowd.act(&mut random);
            // A slow executor does not poll at once; what it was told must not be lost meanwhile.
            if random.below(4) > 0 {
                crowd.come_to_rest();
            }
        }
        crowd.go_home();
    }
}

struct Crowd<'a> {
    clock: &'a VirtualClock,
    queue: &'a DelayQueue<u64>,
    threads: Vec<Member>,
    futures: Vec<Told<'a>>,
    futures_max: usize,
    keys: Vec<Key>,
    pushed: u64,
    gone: Vec<u64>,
    taken: mpsc::Receiver<u64>,
}

/// A thread that takes once for each order it gets.
struct Member {
    orders: mpsc::Sender<Option<Duration>>,
    waits: Arc<AtomicBool>,
}

/// A future, and how often its bell had rung when it was last polled.
struct Told<'a> {
    future: Pin<Box<TakeAsync<'a, u64>>>,
    bell: Arc<Bell>,
    heard: usize,
}

impl<'a> Crowd<'a> {
    fn new(clock: &'a VirtualClock, queue: &'a DelayQueue<u64>, threads: usize, futures_max: usize) -> Self {
        let (report, taken) = mpsc::channel();
        let threads = (0..threads).map(|_| Member::new(queue.clone(), report.clone())).collect();
        let (futures, keys, gone) = (Vec::new(), Vec::new(), Vec::new());
        Self { clock, queue, threads, futures, futures_max, keys, pushed: 0, gone, taken }
    }

    fn act(&mut self, random: &mut SplitMix) {
        let delay = ms(random.below(20));
        let which = random.next() as usize;
        match random.below(20) {
            // Few entries for many consumers: what matters happens where somebody waits.
            0..6 if self.queue.len() < 4 => {
                self.keys.truncate(8);
                self.keys.insert(0, self.queue.push(self.pushed, delay).expect("the queue is open"));
                self.pushed += 1;
            }
            6..8 if !self.keys.is_empty() => {
                let key = self.keys[which % self.keys.len()];
                self.queue.reschedule(key, delay);
            }
            8 if !self.keys.is_empty() => {
                let key = self.keys.swap_remove(which % self.keys.len());
                self.gone.extend(self.queue.cancel(key));
            }
            9..12 if !self.threads.is_empty() => self.threads[which % self.threads.len()].take(None),
            12..14 if !self.threads.is_empty() => self.threads[which % self.threads.len()].take(Some(delay)),
            14..16 if self.futures.len() < self.futures_max => {
                let mut told = Told { future: Box::pin(self.queue.take_async()), bell: Bell::new(), heard: 0 };
                if let Poll::Ready(item) = poll(told.future.as_mut(), &told.bell) {
                    self.gone.extend(item);
                } else {
                    self.futures.push(told);
                }
            }
            16 if !self.futures.is_empty() => drop(self.futures.swap_remove(which % self.futures.len())),
            17 => self.gone.extend(self.queue.drain_due(1)),
            _ => self.clock.advance(ms(random.below(8))).expect("whoever was woken comes to rest"),
        }
    }

    /// Polls the futures that were told, until no entry is due or nobody waits.
    fn come_to_rest(&mut self) {
        let system = Clock::system();
        let began = system.now();
        loop {
            self.poll_the_told();
            let is_due = self.queue.next_due().is_some_and(|due| due <= self.clock.now());
            let somebody_waits = !self.futures.is_empty() || self.threads.iter().any(Member::waits);
            if !(is_due && somebody_waits) {
                break;
            }
            assert!(system.now() - began < PATIENCE, "an entry is due, somebody waits, and nothing happens");
            thread::yield_now();
        }
        self.gone.extend(self.taken.try_iter());
    }

    fn poll_the_told(&mut self) {
        let gone = &mut self.gone;
        self.futures.retain_mut(|told| {
            let rings = told.bell.rings();
            if rings == told.heard {
                return true;
            }
            told.heard = rings;
            match poll(told.future.as_mut(), &told.bell) {
                Poll::Ready(item) => {
                    gone.extend(item);
                    false
                }
                Poll::Pending => true,
            }
        });
    }

    fn go_home(mut self) {
        self.gone.extend(self.queue.close_now());
        self.futures.clear();
        self.threads.clear();
        // Ends when the last thread has dropped its end.
        while let Ok(item) = self.taken.recv_timeout(PATIENCE) {
            self.gone.push(item);
        }
        assert_eq!(self.taken.try_recv(), Err(mpsc::TryRecvError::Disconnected), "every thread went home");
        self.gone.sort_unstable();
        assert!(self.gone.iter().copied().eq(0..self.pushed), "every entry went one way, once");
    }
}

impl Member {
    fn new(queue: DelayQueue<u64>, report: mpsc::Sender<u64>) -> Self {
        let (orders, inbox) = mpsc::channel::<Option<Duration>>();
        let waits = Arc::new(AtomicBool::new(false));
        let waiting = Arc::clone(&waits);
        thread::spawn(move || {
            for timeout in inbox {
                let item = timeout.map_or_else(|| queue.take(), |timeout| queue.take_timeout(timeout).ok());
                // Whoever hears of it counts what was taken first, and only then who waits.
                let counted = item.is_none_or(|item| report.send(item).is_ok());
                waiting.store(false, Ordering::SeqCst);
                if !counted {
                    return;
                }
            }
        });
        Self { orders, waits }
    }

    fn waits(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    fn take(&self, timeout: Option<Duration>) {
        if !self.waits.swap(true, Ordering::SeqCst) {
            self.orders.send(timeout).expect("the thread is there");
        }
    }
}
