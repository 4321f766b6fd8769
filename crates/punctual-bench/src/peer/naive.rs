//! The classic "deferred callback executor": a heap, a mutex, a condition variable. Every push notifies, a cancel only
//! sets a flag, equal dues run in any order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::atomic::{self, AtomicBool};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Job, Peer, Producer};

pub(crate) struct Executor(Arc<Shared>);

#[derive(Default)]
pub(crate) struct Shared {
    heap: Mutex<BinaryHeap<Reverse<Entry>>>,
    arrived: Condvar,
}

struct Entry {
    due: Instant,
    cancelled: Arc<AtomicBool>,
    job: Job,
}

impl Peer for Executor {
    type Producer = Arc<Shared>;

    fn start(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        for _ in 0..threads {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                loop {
                    let entry = shared.take();
                    if !entry.cancelled.load(atomic::Ordering::Acquire) {
                        (entry.job)();
                    }
                }
            });
        }
        Self(shared)
    }

    fn producer(&self) -> Arc<Shared> {
        Arc::clone(&self.0)
    }

    fn len(&self) -> Option<usize> {
        Some(self.0.heap.lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}

impl Shared {
    fn take(&self) -> Entry {
        let mut heap = self.heap.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(Reverse(head)) = heap.peek() else {
                heap = self.arrived.wait(heap).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = head.due.saturating_duration_since(Instant::now());
            if left.is_zero()
                && let Some(Reverse(entry)) = heap.pop()
            {
                return entry;
            }
            heap = self.arrived.wait_timeout(heap, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Producer for Arc<Shared> {
    type Handle = Arc<AtomicBool>;

    fn after(&mut self, delay: Duration, job: impl FnOnce() + Send + 'static) -> Arc<AtomicBool> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let entry = Entry { due: Instant::now() + delay, cancelled: Arc::clone(&cancelled), job: Box::new(job) };
        self.heap.lock().unwrap_or_else(PoisonError::into_inner).push(Reverse(entry));
        self.arrived.notify_one();
        cancelled
    }

    fn cancel(&mut self, cancelled: Arc<AtomicBool>) {
        cancelled.store(true, atomic::Ordering::Release);
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.due.cmp(&other.due)
    }
}
