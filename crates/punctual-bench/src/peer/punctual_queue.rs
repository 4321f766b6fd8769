//! `punctual::DelayQueue`, with threads that take and run: one entry at a time, or all that are due.

use std::thread;
use std::time::Duration;

use punctual::{DelayQueue, Key};

use super::{Job, Peer, Producer};

/// Entries taken per lock by the batching consumer.
const BATCH: usize = 64;

/// Consumers that `take` one entry at a time.
pub(crate) struct OneByOne(DelayQueue<Job>);

impl Peer for OneByOne {
    type Producer = DelayQueue<Job>;

    fn start(threads: usize) -> Self {
        let queue = DelayQueue::<Job>::new();
        for _ in 0..threads {
            let queue = queue.clone();
            thread::spawn(move || {
                while let Some(job) = queue.take() {
                    job();
                }
            });
        }
        Self(queue)
    }

    fn producer(&self) -> DelayQueue<Job> {
        self.0.clone()
    }

    fn len(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// Consumers that `take` the first and drain what else is due.
pub(crate) struct InBatches(DelayQueue<Job>);

impl Peer for InBatches {
    type Producer = DelayQueue<Job>;

    fn start(threads: usize) -> Self {
        let queue = DelayQueue::<Job>::new();
        for _ in 0..threads {
            let queue = queue.clone();
            thread::spawn(move || {
                while let Some(job) = queue.take() {
                    job();
                    queue.drain_due(BATCH).into_iter().for_each(|job| job());
                }
            });
        }
        Self(queue)
    }

    fn producer(&self) -> DelayQueue<Job> {
        self.0.clone()
    }

    fn len(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

impl Producer for DelayQueue<Job> {
    type Handle = Key;

    fn after(&mut self, delay: Duration, job: impl FnOnce() + Send + 'static) -> Key {
        self.push(Box::new(job), delay).expect("the queue is open and unbounded")
    }

    fn cancel(&mut self, key: Key) {
        DelayQueue::cancel(self, key);
    }
}
