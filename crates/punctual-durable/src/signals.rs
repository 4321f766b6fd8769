//! What a store tells those who wait: that there is work, that a job has ended, that a handler should stop.
//!
//! A signal is a hint. Whoever hears it looks into the store; a signal too many costs a look, and where one can be lost
//! (over a network) the store asks to be [polled](crate::Store::poll) too. Nobody is woken under the lock.

mod offers;
#[cfg(feature = "postgres")]
mod places;
#[cfg(test)]
pub(crate) mod suite;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::id::{JobId, NodeId};
use crate::store::Record;
use crate::time::Timestamp;

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
    ends: HashMap<JobId, Waits>,
    /// A store that must be told which ends are awaited.
    watch: Option<Watched>,
    /// Rings when a node offers what it was known to offer soon.
    offered: Arc<tokio::sync::Notify>,
}

/// All who wait for the end of one job.
#[derive(Default)]
struct Waits {
    all: HashMap<u64, EndWait>,
    /// It was told that the job has ended.
    is_told: bool,
}

/// What has changed since the store last asked.
#[derive(Default)]
struct Watched {
    /// Jobs whose end is awaited now, or not any more; each once, as it stands.
    changed: HashMap<JobId, bool>,
    waker: Option<Waker>,
}

impl Watched {
    fn note(&mut self, job: JobId, is_awaited: bool) -> Option<Waker> {
        // What began and ended before anybody looked is nothing.
        if self.changed.get(&job) == Some(&!is_awaited) {
            self.changed.remove(&job);
            return None;
        }
        self.changed.insert(job, is_awaited);
        self.waker.take()
    }
}

#[derive(Default)]
struct Inbox {
    node: Option<NodeId>,
    heard: Heard,
    offer: offers::Offer,
    waker: Option<Waker>,
}

#[derive(Default)]
struct EndWait {
    told: bool,
    waker: Option<Waker>,
}

impl EndWait {
    fn tell(&mut self) -> Option<Waker> {
        self.told = true;
        self.waker.take()
    }
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

    /// A job may have become ready, or the instant to [`tend`](crate::Store::tend) the store has moved: whatever it is,
    /// every node looks. A store that knows better says [`ready`](Signals::ready) or [`due`](Signals::due), which cost
    /// less.
    ///
    /// # Example
    /// ```
    /// punctual_durable::Signals::new().work();
    /// ```
    pub fn work(&self) {
        self.tell(|_| true, |heard| (heard.is_ready, heard.is_changed) = (true, true));
    }

    /// A job may have become ready, or there is room for one that was.
    ///
    /// # Example
    /// ```
    /// punctual_durable::Signals::new().ready();
    /// ```
    pub fn ready(&self) {
        self.tell(|_| true, |heard| heard.is_ready = true);
    }

    /// There is something to [`tend`](crate::Store::tend) at an instant.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{Signals, Timestamp};
    /// Signals::new().due(Timestamp::from_micros(1_700_000_000_000_000));
    /// ```
    pub fn due(&self, at: Timestamp) {
        self.tell(|_| true, |heard| heard.due = Some(heard.due.map_or(at, |due| due.min(at))));
    }

    fn tell(&self, to: impl Fn(Option<NodeId>) -> bool, what: impl Fn(&mut Heard)) {
        let mut hub = self.lock();
        let woken: Vec<Waker> = hub
            .nodes
            .values_mut()
            .filter(|inbox| to(inbox.node))
            .filter_map(|inbox| {
                what(&mut inbox.heard);
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
            if let Some(waits) = hub.ends.get_mut(&id) {
                waits.is_told = true;
                woken.extend(waits.all.values_mut().filter_map(EndWait::tell));
            }
        }
        drop(hub);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Any job's outcome may be settled: whoever waits for one looks.
    ///
    /// # Example
    /// ```
    /// punctual_durable::Signals::new().look();
    /// ```
    pub fn look(&self) {
        let mut hub = self.lock();
        let waits = hub.ends.values_mut().flat_map(|waits| waits.all.values_mut());
        let woken: Vec<Waker> = waits.filter_map(EndWait::tell).collect();
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
        self.tell(|to| to == Some(node), |heard| heard.stop.push((job, fence)));
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
        let waits = hub.ends.entry(job).or_default();
        let is_first = waits.all.is_empty();
        waits.all.insert(key, EndWait::default());
        let woken = if is_first { hub.watch.as_mut().and_then(|watch| watch.note(job, true)) } else { None };
        drop(hub);
        woken.into_iter().for_each(Waker::wake);
        EndOf { signals: self.clone(), job, key }
    }

    /// For a store over a network: hears which ends are awaited here, so that it can ask to be told of those and of no
    /// others. From then on it is the store that looks now and then, for all of them together.
    #[cfg(feature = "postgres")]
    pub(crate) fn watch(&self) -> Watch {
        self.lock().watch = Some(Watched::default());
        Watch(self.clone())
    }

    /// Whether the store looks for those who wait.
    pub(crate) fn is_watched(&self) -> bool {
        self.lock().watch.is_some()
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
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Heard {
    /// A job may have become ready.
    pub(crate) is_ready: bool,
    /// Anything may have.
    pub(crate) is_changed: bool,
    /// There is something to tend then.
    pub(crate) due: Option<Timestamp>,
    pub(crate) stop: Vec<(JobId, u64)>,
    /// It was given these, because it had said that it could run them.
    pub(crate) given: Vec<Record>,
    /// It may have been given something that nobody knows of.
    pub(crate) is_unsure: bool,
}

impl Heard {
    fn is_silence(&self) -> bool {
        *self == Self::default()
    }
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
        self.signals.lock().nodes.get_mut(&self.key).map(|inbox| std::mem::take(&mut inbox.heard)).unwrap_or_default()
    }

    /// What was heard; waits until there is something.
    pub(crate) fn poll_heard(&self, cx: &mut Context<'_>) -> Poll<Heard> {
        let mut hub = self.signals.lock();
        let Some(inbox) = hub.nodes.get_mut(&self.key) else { return Poll::Pending };
        if !inbox.heard.is_silence() {
            return Poll::Ready(std::mem::take(&mut inbox.heard));
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

/// A store's ear for what is awaited.
#[cfg(feature = "postgres")]
#[derive(Debug)]
pub(crate) struct Watch(Signals);

/// What has changed about it.
#[cfg(feature = "postgres")]
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// Somebody waits for the end of these.
    pub(crate) began: Vec<JobId>,
    /// Nobody waits for these any more, and nobody was told of their end.
    pub(crate) over: Vec<JobId>,
}

#[cfg(feature = "postgres")]
impl Watch {
    /// What has changed since it was last asked.
    pub(crate) fn changed(&self) -> Awaited {
        let changed = self.0.lock().watch.as_mut().map(|watch| std::mem::take(&mut watch.changed)).unwrap_or_default();
        let mut awaited = Awaited::default();
        for (job, is_awaited) in changed {
            if is_awaited { awaited.began.push(job) } else { awaited.over.push(job) }
        }
        awaited
    }

    /// Waits until something has.
    pub(crate) fn poll_changed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut hub = self.0.lock();
        let Some(watch) = &mut hub.watch else { return Poll::Pending };
        if !watch.changed.is_empty() {
            return Poll::Ready(());
        }
        let replaced = watch.waker.replace(cx.waker().clone());
        drop(hub);
        drop(replaced);
        Poll::Pending
    }

    /// All that is awaited at this moment.
    pub(crate) fn all(&self) -> Vec<JobId> {
        self.0.lock().ends.keys().copied().collect()
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
        let Some(wait) = hub.ends.get_mut(&self.job).and_then(|waits| waits.all.get_mut(&self.key)) else {
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
        let Some(waits) = hub.ends.get_mut(&self.job) else { return };
        let (gone, is_told) = (waits.all.remove(&self.key), waits.is_told);
        let mut woken = None;
        if waits.all.is_empty() {
            hub.ends.remove(&self.job);
            match &mut hub.watch {
                Some(watch) if is_told => drop(watch.changed.remove(&self.job)),
                Some(watch) => woken = watch.note(self.job, false),
                None => {}
            }
        }
        drop(hub);
        drop(gone);
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    const JOB: JobId = JobId::from_u128(7);

    fn changed(watch: &Watch) -> (Vec<JobId>, Vec<JobId>) {
        let Awaited { began, over } = watch.changed();
        (began, over)
    }

    #[test]
    fn the_first_wait_and_the_last_are_told_and_none_in_between() {
        let signals = Signals::new();
        let watch = signals.watch();
        let one = signals.end_of(JOB);
        assert_eq!(changed(&watch), (vec![JOB], vec![]));
        let other = signals.end_of(JOB);
        drop(one);
        assert_eq!(changed(&watch), (vec![], vec![]));
        assert_eq!(watch.all(), [JOB]);
        drop(other);
        assert_eq!(changed(&watch), (vec![], vec![JOB]));
        assert_eq!(watch.all(), []);
    }

    #[test]
    fn a_wait_that_was_over_before_anybody_looked_is_none() {
        let signals = Signals::new();
        let watch = signals.watch();
        drop(signals.end_of(JOB));
        assert_eq!(changed(&watch), (vec![], vec![]));
        let long = signals.end_of(JOB);
        watch.changed();
        drop(long);
        let again = signals.end_of(JOB);
        assert_eq!(changed(&watch), (vec![], vec![]), "it is awaited as before");
        drop(again);
    }

    /// Whoever told of the end knows that nobody waits any more.
    #[test]
    fn a_wait_that_was_told_of_the_end_need_not_be_taken_back() {
        let signals = Signals::new();
        let watch = signals.watch();
        let wait = signals.end_of(JOB);
        watch.changed();
        signals.ended([JOB]);
        drop(wait);
        assert_eq!(changed(&watch), (vec![], vec![]));
        let unseen = signals.end_of(JOB);
        signals.ended([JOB]);
        drop(unseen);
        assert_eq!(changed(&watch), (vec![], vec![]));
    }

    #[test]
    fn a_look_wakes_all_and_ends_no_wait() {
        let signals = Signals::new();
        let watch = signals.watch();
        let ends = [1, 2].map(|id| signals.end_of(JobId::from_u128(id)));
        signals.look();
        let cx = &mut Context::from_waker(Waker::noop());
        for end in &ends {
            assert!(std::pin::pin!(end).poll(cx).is_ready());
            assert!(std::pin::pin!(end).poll(cx).is_pending());
        }
        drop(ends);
        assert!(watch.changed().began.is_empty());
    }

    #[test]
    fn whoever_watches_is_woken() {
        let signals = Signals::new();
        let watch = signals.watch();
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(watch.poll_changed(cx).is_pending());
        let _end = signals.end_of(JOB);
        assert!(watch.poll_changed(cx).is_ready());
        assert!(signals.is_watched() && !Signals::new().is_watched());
    }
}
