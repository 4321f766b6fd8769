//! A process's lease: who it is, and the heartbeat that keeps it.
//!
//! # Invariants
//! 1. An identity is never used again once its lease may have ended. Losing the lease is taking a new identity, and what ran under the
//!    old one is told to stop at that moment, by the heart itself: the loop of the node may be waiting for a store that does not answer.
//! 2. The lease is given up by the monotonic clock before the store can take it: a heartbeat counts from when it was sent.
//! 3. It beats whether or not it was answered, and joins again without waiting long for one answer: whoever asked once and waited would lose the lease
//!    with the connection that the question went by, though another one would do.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use punctual::{Clock, JobHandle, Scheduler};

use crate::error::StoreError;
use crate::id::{Ids, NodeId};
use crate::interest::Interests;
use crate::store::{Beat, Pulse, Reply, Store};

/// Beats in a lease.
const BEATS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Heart {
    node: AtomicU64,
    /// The store knows of it.
    is_joined: AtomicBool,
    beat: Mutex<Beat>,
    /// What runs on the lease.
    runs: Mutex<Vec<Weak<JobHandle<()>>>>,
}

impl Heart {
    pub(crate) fn new(node: NodeId) -> Self {
        let name = format!("process {}", std::process::id());
        let beat = Beat { node, name, kinds: Vec::new(), paused: Vec::new(), workers: 0 };
        Self {
            node: AtomicU64::new(node.to_u64()),
            is_joined: AtomicBool::new(true),
            beat: Mutex::new(beat),
            runs: Mutex::default(),
        }
    }

    /// Who this process is at this moment.
    pub(crate) fn node(&self) -> NodeId {
        NodeId::from_u64(self.node.load(Ordering::Acquire))
    }

    /// Whether there is any use in asking for work. Whoever waits for it is woken.
    pub(crate) fn is_joined(&self) -> bool {
        self.is_joined.load(Ordering::Acquire)
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
            self.is_joined.store(false, Ordering::Release);
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
    pub(crate) interests: Arc<Interests>,
}

/// A heartbeat on its way: when it was sent, and what the store says to it.
type Sent = (Instant, Reply<Pulse>);

impl Body {
    /// Beats until the engine is gone. The lease began at the earliest when the join was sent.
    pub(crate) async fn live(self, lease: Duration, joined: Instant) {
        let (period, kept) = (lease / BEATS, lease * (BEATS - 1) / BEATS);
        let mut renewed = joined;
        // No beat waits for the answer to another: its connection may have been lost without a word.
        let mut beats: Vec<Sent> = Vec::new();
        loop {
            let left = kept.saturating_sub(self.clock.now() - renewed);
            let mut pause = std::pin::pin!(rest(&self.engine, period.min(left)));
            let is_known = loop {
                match first(&mut beats, pause.as_mut()).await {
                    First::Answer(sent, Ok(pulse)) if pulse.known => {
                        renewed = renewed.max(sent);
                        beats.retain(|(at, _)| *at > sent);
                        for (job, fence) in pulse.stop {
                            self.store.signals().stop(self.heart.node(), job, fence);
                        }
                    }
                    First::Answer(_, Ok(_)) => break false,
                    // What is left of the lease is there to try again.
                    First::Answer(_, Err(error)) => {
                        tracing::warn!(target: "punctual", %error, "a heartbeat failed");
                    }
                    First::Time { is_alive: true } => break true,
                    First::Time { is_alive: false } => return,
                }
            };
            let now = self.clock.now();
            if is_known && now - renewed < kept {
                beats.push((now, self.store.heartbeat(self.heart.beat())));
                continue;
            }
            tracing::warn!(target: "punctual", node = %self.heart.node(), "the lease was lost");
            beats.clear();
            let Some(joined) = self.start_anew(period).await else { return };
            renewed = joined;
        }
    }

    /// Takes a new identity and joins under it, however often that takes. Answers when the join was sent; `None` if the engine is gone.
    async fn start_anew(&self, patience: Duration) -> Option<Instant> {
        self.heart.become_new(&self.ids);
        self.store.signals().work();
        loop {
            let sent = self.clock.now();
            match within(&self.engine, patience, self.store.join(self.heart.beat())).await {
                Some(Ok(())) => {
                    // First of all, as the node may reap who it was before. If it takes longer than this, it goes on beside.
                    within(&self.engine, patience, self.interests.want_again()).await;
                    self.heart.is_joined.store(true, Ordering::Release);
                    self.store.signals().work();
                    return Some(sent);
                }
                Some(Err(error)) => tracing::warn!(target: "punctual", %error, "could not join again"),
                None => tracing::warn!(target: "punctual", "nobody answers who could be joined"),
            }
            if !rest(&self.engine, Duration::from_secs(1)).await {
                return None;
            }
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

/// What comes first.
enum First {
    /// The answer to a heartbeat that was sent then.
    Answer(Instant, Result<Pulse, StoreError>),
    /// The end of the pause, unless the engine is gone.
    Time { is_alive: bool },
}

/// Waits for an answer to any of the heartbeats, which is then none of them any more, or for the end of the pause.
async fn first(beats: &mut Vec<Sent>, mut pause: Pin<&mut impl Future<Output = bool>>) -> First {
    poll_fn(|cx| {
        for at in 0..beats.len() {
            if let Poll::Ready(answer) = beats[at].1.as_mut().poll(cx) {
                return Poll::Ready(First::Answer(beats.remove(at).0, answer));
            }
        }
        pause.as_mut().poll(cx).map(|is_alive| First::Time { is_alive })
    })
    .await
}

/// What the store answers, if it does so in time.
async fn within<T>(engine: &Scheduler, time: Duration, mut answer: Reply<T>) -> Option<Result<T, StoreError>> {
    let mut timeout = std::pin::pin!(rest(engine, time));
    poll_fn(|cx| {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        timeout.as_mut().poll(cx).map(|_| None)
    })
    .await
}
