//! What a store tells those who wait: that there is work, that a job has ended, that a handler should stop.
//!
//! A signal is a hint. Whoever hears it looks into the store; a signal too many costs a look, and where one can be lost (over a
//! network) the store asks to be [polled](crate::Store::poll) too. Nobody is woken under the lock.

#[cfg(test)]
pub(crate) mod suite;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::id::{JobId, NodeId};

/// The place where a store tells of changes. Clones share it.
///
/// # Example
/// ```
/// let signals = punctual_durable::Signals::new();
/// signals.work();
/// ```
#[derive(Clone, Default)]
pub struct Signals(Arc<Mutex<Hub>>);

#[derive(Default)]
struct Hub {
    next: u64,
    /// Nodes that run jobs, by a number of their own.
    nodes: HashMap<u64, Inbox>,
    /// Those who wait for a job's end.
    ends: HashMap<JobId, HashMap<u64, EndWait>>,
}

#[derive(Default)]
struct Inbox {
    node: Option<NodeId>,
    work: bool,
    stop: Vec<(JobId, u64)>,
    waker: Option<Waker>,
}

impl Inbox {
    fn take(&mut self) -> Heard {
        Heard { work: std::mem::take(&mut self.work), stop: std::mem::take(&mut self.stop) }
    }
}

#[derive(Default)]
struct EndWait {
    told: bool,
    waker: Option<Waker>,
}

impl Signals {
    /// Nobody listens yet.
    ///
    /// # Example
    /// ```
    /// let signals = punctual_durable::Signals::new();
    /// # drop(signals);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A job may have become ready, or the instant to [`tend`](crate::Store::tend) the store has moved.
    ///
    /// # Example
    /// ```
    /// punctual_durable::Signals::new().work();
    /// ```
    pub fn work(&self) {
        let mut hub = self.lock();
        let woken: Vec<Waker> = hub
            .nodes
            .values_mut()
            .filter_map(|inbox| {
                inbox.work = true;
                inbox.waker.take()
            })
            .collect();
        drop(hub);
        woken.into_iter().for_each(Waker::wake);
    }

    /// A job's outcome is settled.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{JobId, Signals};
    /// Signals::new().ended([JobId::from_u128(7)]);
    /// ```
    pub fn ended(&self, jobs: impl IntoIterator<Item = JobId>) {
        let mut hub = self.lock();
        if hub.ends.is_empty() {
            return;
        }
        let mut woken = Vec::new();
        for id in jobs {
            for wait in hub.ends.get_mut(&id).into_iter().flat_map(HashMap::values_mut) {
                wait.told = true;
                woken.extend(wait.waker.take());
            }
        }
        drop(hub);
        woken.into_iter().for_each(Waker::wake);
    }

    /// A node should stop the handler of a job it runs.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{JobId, NodeId, Signals};
    /// Signals::new().stop(NodeId::from_u64(1), JobId::from_u128(7), 1);
    /// ```
    pub fn stop(&self, node: NodeId, job: JobId, fence: u64) {
        let mut hub = self.lock();
        let woken: Vec<Waker> = hub
            .nodes
            .values_mut()
            .filter(|inbox| inbox.node == Some(node))
            .filter_map(|inbox| {
                inbox.stop.push((job, fence));
                inbox.waker.take()
            })
            .collect();
        drop(hub);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Hears of work, and of what the node should stop.
    pub(crate) fn listen(&self, node: NodeId) -> Listener {
        let mut hub = self.lock();
        hub.next += 1;
        let key = hub.next;
        hub.nodes.insert(key, Inbox { node: Some(node), ..Inbox::default() });
        Listener { signals: self.clone(), key }
    }

    /// Hears of a job's end.
    pub(crate) fn end_of(&self, job: JobId) -> EndOf {
        let mut hub = self.lock();
        hub.next += 1;
        let key = hub.next;
        hub.ends.entry(job).or_default().insert(key, EndWait::default());
        EndOf { signals: self.clone(), job, key }
    }

    fn lock(&self) -> MutexGuard<'_, Hub> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signals")
    }
}

/// What a node has heard since it last asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) work: bool,
    pub(crate) stop: Vec<(JobId, u64)>,
}

/// A node's ear.
#[derive(Debug)]
pub(crate) struct Listener {
    signals: Signals,
    key: u64,
}

impl Listener {
    /// What was heard so far.
    pub(crate) fn heard(&self) -> Heard {
        self.signals.lock().nodes.get_mut(&self.key).map(Inbox::take).unwrap_or_default()
    }

    /// What was heard; waits until there is something.
    pub(crate) fn poll_heard(&self, cx: &mut Context<'_>) -> Poll<Heard> {
        let mut hub = self.signals.lock();
        let Some(inbox) = hub.nodes.get_mut(&self.key) else { return Poll::Pending };
        if inbox.work || !inbox.stop.is_empty() {
            return Poll::Ready(inbox.take());
        }
        let replaced = inbox.waker.replace(cx.waker().clone());
        drop(hub);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let gone = self.signals.lock().nodes.remove(&self.key);
        drop(gone);
    }
}

/// Resolves when a job may have ended; can be awaited again.
#[derive(Debug)]
pub(crate) struct EndOf {
    signals: Signals,
    job: JobId,
    key: u64,
}

impl Future for &EndOf {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut hub = self.signals.lock();
        let Some(wait) = hub.ends.get_mut(&self.job).and_then(|waits| waits.get_mut(&self.key)) else {
            return Poll::Pending;
        };
        if std::mem::take(&mut wait.told) {
            return Poll::Ready(());
        }
        let replaced = wait.waker.replace(cx.waker().clone());
        drop(hub);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for EndOf {
    fn drop(&mut self) {
        let mut hub = self.signals.lock();
        let mut gone = None;
        if let Some(waits) = hub.ends.get_mut(&self.job) {
            gone = waits.remove(&self.key);
            if waits.is_empty() {
                hub.ends.remove(&self.job);
            }
        }
        drop(hub);
        drop(gone);
    }
}
