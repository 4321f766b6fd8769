//! A process's lease: who it is, and the heartbeat that keeps it.
//!
//! # Invariants
//! 1. An identity is never used again once its lease may have ended. Losing the lease is taking a new identity, and
//!    what ran under the old one is told to stop at that moment, by the heart itself: the loop of the node may be
//!    waiting for a store that does not answer.
//! 2. The lease is given up by the monotonic clock before the store can take it: a heartbeat counts from when it was
//!    sent.
//! 3. It beats whether or not it was answered, and so it joins again: whoever asked once and waited would lose the
//!    lease with the connection that the question went by, though another one would do; and whoever did not wait for
//!    late answers would never be back on a slow network.

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
        let beat = Beat { node, name, kinds: Vec::new(), paused: Vec::new(), workers: 0, era: 0 };
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

    /// The era in which it asks for jobs.
    pub(crate) fn era(&self) -> u64 {
        self.lock().era
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

/// A heartbeat, or a wish to join, on its way: when it was sent, and what the store says to it.
type Sent<T> = (Instant, Reply<T>);

impl Body {
    /// Beats until the engine is gone. The lease began at the earliest when the join was sent.
    pub(crate) async fn live(self, lease: Duration, joined: Instant) {
        let (period, kept) = (lease / BEATS, lease * (BEATS - 1) / BEATS);
        // Since when the lease lasts, and when the last beat was sent: after a join that was answered late the first
        // goes at once.
        let (mut renewed, mut last) = (joined, joined);
        // No beat waits for the answer to another: its connection may have been lost without a word.
        let mut beats: Vec<Sent<Pulse>> = Vec::new();
        loop {
            let now = self.clock.now();
            let left = kept.saturating_sub(now - renewed).min(period.saturating_sub(now - last));
            let mut pause = std::pin::pin!(rest(&self.engine, left));
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
                last = now;
                continue;
            }
            tracing::warn!(target: "punctual", node = %self.heart.node(), "the lease was lost");
            beats.clear();
            let Some(joined) = self.start_anew(period, kept).await else { return };
            (renewed, last) = (joined, joined);
        }
    }

    /// Takes a new identity and joins under it, however often that takes. Answers when the join was sent; `None` if the
    /// engine is gone.
    async fn start_anew(&self, patience: Duration, kept: Duration) -> Option<Instant> {
        self.heart.become_new(&self.ids);
        self.store.signals().work();
        // To join twice is to join once, so the answer to any of them will do; but not one that comes when the lease is
        // as good as over.
        let mut joins: Vec<Sent<()>> = Vec::new();
        let mut said = None;
        loop {
            let now = self.clock.now();
            joins.retain(|(sent, _)| now - *sent < kept);
            joins.push((now, self.store.join(self.heart.beat())));
            let mut pause = std::pin::pin!(rest(&self.engine, patience));
            match first(&mut joins, pause.as_mut()).await {
                First::Answer(sent, Ok(())) => {
                    // First of all, as the node may reap who it was before. If it takes longer than this, it goes on
                    // beside.
                    let mut wants = vec![(sent, self.interests.want_again())];
                    first(&mut wants, std::pin::pin!(rest(&self.engine, patience)).as_mut()).await;
                    self.heart.is_joined.store(true, Ordering::Release);
                    self.store.signals().work();
                    tracing::info!(target: "punctual", node = %self.heart.node(), "joined again");
                    return Some(sent);
                }
                // Said once, and not every second for as long as an outage lasts.
                First::Answer(_, Err(error)) if said.as_ref() == Some(&error) => {
                    tracing::debug!(target: "punctual", %error, "still could not join again");
                }
                First::Answer(_, Err(error)) => {
                    tracing::warn!(target: "punctual", %error, "could not join again");
                    said = Some(error);
                }
                First::Time { is_alive: true } => {
                    tracing::warn!(target: "punctual", "nobody answers who could be joined");
                }
                First::Time { is_alive: false } => return None,
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
enum First<T> {
    /// The answer to what was sent then.
    Answer(Instant, Result<T, StoreError>),
    /// The end of the pause, unless the engine is gone.
    Time { is_alive: bool },
}

/// Waits for an answer to any of what was sent, which is then none of it any more, or for the end of the pause.
async fn first<T>(sent: &mut Vec<Sent<T>>, mut pause: Pin<&mut impl Future<Output = bool>>) -> First<T> {
    poll_fn(|cx| {
        for at in 0..sent.len() {
            if let Poll::Ready(answer) = sent[at].1.as_mut().poll(cx) {
                return Poll::Ready(First::Answer(sent.remove(at).0, answer));
            }
        }
        pause.as_mut().poll(cx).map(|is_alive| First::Time { is_alive })
    })
    .await
}
