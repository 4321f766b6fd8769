//! tokio-util's `DelayQueue` behind a mutex, one task that drains it and runs the work itself.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use super::{Job, Peer, Producer};

/// Entries taken per lock.
const BATCH: usize = 64;

type Queue = Arc<Mutex<DelayQueue<Job>>>;

pub(crate) struct Driver {
    runtime: &'static Runtime,
    queue: Queue,
}

pub(crate) struct Inserter {
    queue: Queue,
    /// Inserting may start a timer of the runtime.
    _inside: EnterGuard<'static>,
}

impl Peer for Driver {
    type Producer = Inserter;

    fn start(_threads: usize) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime starts");
        let runtime: &'static Runtime = Box::leak(Box::new(runtime));
        let queue: Queue = Arc::default();
        let driven = Arc::clone(&queue);
        runtime.spawn(async move {
            let mut batch = Vec::with_capacity(BATCH);
            loop {
                poll_fn(|cx| fill(&driven, cx, &mut batch)).await;
                batch.drain(..).for_each(|job| job());
            }
        });
        Self { runtime, queue }
    }

    fn producer(&self) -> Inserter {
        Inserter { queue: Arc::clone(&self.queue), _inside: self.runtime.enter() }
    }

    fn len(&self) -> Option<usize> {
        Some(self.queue.lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}

/// Takes a batch of due entries; at least one.
fn fill(queue: &Queue, cx: &mut Context<'_>, batch: &mut Vec<Job>) -> Poll<()> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    while batch.len() < BATCH {
        match queue.poll_expired(cx) {
            Poll::Ready(Some(expired)) => batch.push(expired.into_inner()),
            // Empty, or nothing due: either way the queue has kept the waker.
            Poll::Ready(None) | Poll::Pending => break,
        }
    }
    if batch.is_empty() { Poll::Pending } else { Poll::Ready(()) }
}

impl Producer for Inserter {
    type Handle = Key;

    fn after(&mut self, delay: Duration, job: impl FnOnce() + Send + 'static) -> Key {
        let job: Job = Box::new(job);
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).insert(job, delay)
    }

    fn cancel(&mut self, key: Key) {
        let removed = self.queue.lock().unwrap_or_else(PoisonError::into_inner).try_remove(&key);
        drop(removed);
    }
}
