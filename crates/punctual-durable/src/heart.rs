//! A process's lease: who it is, and the heartbeat that keeps it.
//!
//! # Invariants
//! 1. An identity is never used again once its lease may have ended. Losing the lease is taking a new identity, and what ran under the
//!    old one is told to stop at that moment, by the heart itself: the loop of the node may be waiting for a store that does not answer.
//! 2. The lease is given up by the monotonic clock before the store can take it: a heartbeat counts from when it was sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use punctual::{Clock, JobHandle, Scheduler};

use crate::error::StoreError;
use crate::id::{Ids, NodeId};
use crate::store::{Beat, Store};

/// Beats in a lease.
const BEATS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Heart {
    node: AtomicU64,
    beat: Mutex<Beat>,
    /// What runs on the lease.
    runs: Mutex<Vec<Weak<JobHandle<()>>>>,
}

impl Heart {
    pub(crate) fn new(node: NodeId) -> Self {
        let name = format!("process {}", std::process::id());
        let beat = Beat { node, name, kinds: Vec::new(), paused: Vec::new(), workers: 0 };
        Self { node: AtomicU64::new(node.to_u64()), beat: Mutex::new(beat), runs: Mutex::default() }
    }

    /// Who this process is at this moment.
    pub(crate) fn node(&self) -> NodeId {
        NodeId::from_u64(self.node.load(Ordering::Acquire))
    }

    /// What it says of itself; answers whether that is news.
    pub(crate) fn describe(&self, change: impl FnOnce(&mut Beat)) -> bool {
        let mut beat = self.lock();
        let before = beat.clone();
        change(&mut beat);
        *beat != before
    }

    pub(crate) fn beat(&self) -> Beat {
        self.lock().clone()
    }

    /// A run that goes on only while `node` is who this process is.
    pub(crate) fn carry(&self, node: NodeId, run: &Arc<JobHandle<()>>) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        // Room for those to come is made by those who went.
        if runs.len() == runs.capacity() {
            runs.retain(|run| run.strong_count() > 0);
        }
        runs.push(Arc::downgrade(run));
        drop(runs);
        if self.node() != node {
            run.cancel();
        }
    }

    fn become_new(&self, ids: &Ids) {
        {
            let mut beat = self.lock();
            beat.node = ids.node();
            self.node.store(beat.node.to_u64(), Ordering::Release);
        }
        // Who it is now is known first: so nothing is said about a run that ends because of this.
        let runs = std::mem::take(&mut *self.runs.lock().unwrap_or_else(PoisonError::into_inner));
        runs.iter().filter_map(Weak::upgrade).for_each(|run| _ = run.cancel());
    }

    fn lock(&self) -> MutexGuard<'_, Beat> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a heart beats.
pub(crate) struct Body {
    pub(crate) heart: Arc<Heart>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) engine: Scheduler,
    pub(crate) clock: Clock,
    pub(crate) ids: Arc<Ids>,
}

impl Body {
    /// Beats until the engine is gone. The lease began at the earliest when the join was sent.
    pub(crate) async fn live(self, lease: Duration, joined: Instant) {
        let mut renewed = joined;
        loop {
            if !rest(&self.engine, lease / BEATS).await {
                return;
            }
            let sent = self.clock.now();
            let left = (lease * (BEATS - 1) / BEATS).saturating_sub(sent - renewed);
            let answer = within(&self.engine, left, self.store.heartbeat(self.heart.beat())).await;
            let is_lost = match answer {
                Some(Ok(pulse)) => {
                    renewed = sent;
                    for (job, fence) in pulse.stop {
                        self.store.signals().stop(self.heart.node(), job, fence);
                    }
                    !pulse.known
                }
                // What is left of the lease is there to try again.
                Some(Err(error)) => {
                    tracing::warn!(target: "punctual", %error, "a heartbeat failed");
                    left.is_zero()
                }
                None => true,
            };
            if is_lost {
                tracing::warn!(target: "punctual", node = %self.heart.node(), "the lease was lost");
                renewed = self.start_anew().await;
            }
        }
    }

    async fn start_anew(&self) -> Instant {
        self.heart.become_new(&self.ids);
        self.store.signals().work();
        loop {
            let sent = self.clock.now();
            match self.store.join(self.heart.beat()).await {
                Ok(()) => {
                    self.store.signals().work();
                    return sent;
                }
                Err(error) => tracing::warn!(target: "punctual", %error, "could not join again"),
            }
            rest(&self.engine, Duration::from_secs(1)).await;
        }
    }
}

/// Waits; false if the engine is gone.
pub(crate) async fn rest(engine: &Scheduler, time: Duration) -> bool {
    match engine.after(time).run(|_| ()) {
        Ok(alarm) => alarm.await.is_ok(),
        Err(_) => false,
    }
}

/// What the store answers, if it does so in time.
async fn within<T>(
    engine: &Scheduler,
    time: Duration,
    mut answer: crate::store::Reply<T>,
) -> Option<Result<T, StoreError>> {
    let mut timeout = std::pin::pin!(rest(engine, time));
    std::future::poll_fn(|cx| {
        if let std::task::Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return std::task::Poll::Ready(Some(answer));
        }
        timeout.as_mut().poll(cx).map(|_| None)
    })
    .await
}
