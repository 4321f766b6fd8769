//! Layer 1: [`DelayQueue`], a queue whose entries can be taken only once they are due.
//!
//! Here is its face. One mutex guards the wheel (where entries wait) and the waiters (who sleeps); what is decided
//! under it is in `inner`, and wake-ups, wakers and destructors run after it is released.

mod inner;
mod take_async;
pub(crate) mod together;
pub(crate) mod waiters;
pub(crate) mod wheel;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::{Clock, NEVER, Nanos, duration_to_nanos};
use crate::error::{PushError, TakeTimeoutError, TryTakeError};
use crate::slab::SlabKey;
use inner::{Inner, give};
pub use take_async::TakeAsync;
pub use together::together;

/// A queue whose entries can be taken only once they are due, in the order `(due, insertion)`.
///
/// Any number of producers, blocking consumers and async consumers share one queue; clones are handles to the same one.
/// Nothing leaves early, compared in nanoseconds. Nothing ticks: one consumer sleeps exactly until the earliest entry,
/// the others until they are needed. Pushing and cancelling take constant time for any delay.
///
/// When the last handle is dropped, the entries left are dropped with it.
///
/// # Example
/// ```
/// use punctual::DelayQueue;
/// use std::time::Duration;
///
/// let queue = DelayQueue::new();
/// queue.push("second", Duration::from_millis(20)).unwrap();
/// queue.push("first", Duration::from_millis(10)).unwrap();
/// assert_eq!(queue.take(), Some("first"));
/// assert_eq!(queue.take(), Some("second"));
/// ```
pub struct DelayQueue<T> {
    owner: Arc<Owner<T>>,
}

/// The last of these to go ends the queue. The queue's own thread holds only the inside.
struct Owner<T> {
    inner: Arc<Inner<T>>,
}

/// When something is due: after a `Duration`, or at an `Instant`.
///
/// # Example
/// ```
/// use punctual::Due;
/// use std::time::{Duration, Instant};
/// let _in_a_second: Due = Duration::from_secs(1).into();
/// let _at: Due = punctual::Clock::system().now().into();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due(DueKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DueKind {
    After(Duration),
    At(Instant),
}

impl From<Duration> for Due {
    fn from(delay: Duration) -> Self {
        Self(DueKind::After(delay))
    }
}

impl From<Instant> for Due {
    fn from(instant: Instant) -> Self {
        Self(DueKind::At(instant))
    }
}

impl Due {
    /// The instant meant, never before `now`. What cannot be represented is never.
    pub(crate) fn resolve(self, clock: &Clock, now: Nanos) -> Nanos {
        self.instant(clock, now).max(now)
    }

    /// The instant meant, which may have passed.
    pub(crate) fn instant(self, clock: &Clock, now: Nanos) -> Nanos {
        match self.0 {
            DueKind::After(delay) => now.saturating_add(duration_to_nanos(delay)),
            DueKind::At(instant) => clock.to_nanos(instant),
        }
    }
}

/// Names one entry of a queue, for cancelling and rescheduling it. A key whose entry has left is harmless: it finds
/// nothing, for ever. A key belongs to the queue that made it.
///
/// # Example
/// ```
/// use punctual::DelayQueue;
/// use std::time::Duration;
/// let queue = DelayQueue::new();
/// let key = queue.push('x', Duration::from_secs(60)).unwrap();
/// assert_eq!(queue.cancel(key), Some('x'));
/// assert_eq!(queue.cancel(key), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(SlabKey);

impl<T> DelayQueue<T> {
    /// An empty queue on the system's clock, without a bound.
    ///
    /// # Example
    /// ```
    /// let queue: punctual::DelayQueue<String> = punctual::DelayQueue::new();
    /// assert!(queue.is_empty());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::make(Clock::system(), usize::MAX)
    }

    /// A queue that refuses entries beyond `capacity`, giving them back.
    ///
    /// # Example
    /// ```
    /// use punctual::{DelayQueue, PushError};
    /// use std::time::Duration;
    /// let queue = DelayQueue::bounded(1);
    /// queue.push(1, Duration::ZERO).unwrap();
    /// assert!(matches!(queue.push(2, Duration::ZERO), Err(PushError::Full(2))));
    /// ```
    #[must_use]
    pub fn bounded(capacity: usize) -> Self {
        Self::make(Clock::system(), capacity)
    }

    /// A queue on a given clock, such as a [`VirtualClock`](crate::VirtualClock).
    ///
    /// # Example
    /// ```
    /// use punctual::{DelayQueue, VirtualClock};
    /// use std::time::Duration;
    /// let clock = VirtualClock::new();
    /// let queue = DelayQueue::with_clock(&clock);
    /// queue.push('x', Duration::from_secs(3600)).unwrap();
    /// clock.advance(Duration::from_secs(3600)).unwrap();
    /// assert_eq!(queue.try_take(), Ok('x'));
    /// ```
    #[must_use]
    pub fn with_clock(clock: impl Into<Clock>) -> Self {
        Self::make(clock.into(), usize::MAX)
    }

    /// A bounded queue on a given clock.
    ///
    /// # Example
    /// ```
    /// use punctual::{DelayQueue, VirtualClock};
    /// let queue: DelayQueue<u8> = DelayQueue::bounded_with_clock(10, &VirtualClock::new());
    /// # drop(queue);
    /// ```
    #[must_use]
    pub fn bounded_with_clock(capacity: usize, clock: impl Into<Clock>) -> Self {
        Self::make(clock.into(), capacity)
    }

    fn make(clock: Clock, capacity: usize) -> Self {
        Self { owner: Arc::new(Owner { inner: Arc::new(Inner::new(clock, capacity)) }) }
    }

    fn inner(&self) -> &Arc<Inner<T>> {
        &self.owner.inner
    }

    /// How many entries wait, due or not.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// queue.push((), Duration::MAX).unwrap();
    /// assert_eq!(queue.len(), 1);
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner().state.lock().wheel.len()
    }

    /// Whether nothing waits.
    ///
    /// # Example
    /// ```
    /// assert!(punctual::DelayQueue::<u8>::new().is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the queue takes no more entries.
    ///
    /// # Example
    /// ```
    /// let queue = punctual::DelayQueue::<u8>::new();
    /// queue.close();
    /// assert!(queue.is_closed());
    /// ```
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner().state.lock().closed
    }

    /// When the earliest entry is due. `None` if there is none, or if it is due beyond all time.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let clock = punctual::VirtualClock::new();
    /// let queue = punctual::DelayQueue::with_clock(&clock);
    /// queue.push((), Duration::from_secs(5)).unwrap();
    /// assert_eq!(queue.next_due(), Some(clock.now() + Duration::from_secs(5)));
    /// ```
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.peek().and_then(|entry| entry.due)
    }

    /// The earliest entry: its key and when it is due. The item itself stays inside.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// let key = queue.push('x', Duration::from_secs(5)).unwrap();
    /// assert_eq!(queue.peek().unwrap().key, key);
    /// ```
    #[must_use]
    pub fn peek(&self) -> Option<Entry> {
        let (key, due) = self.inner().state.lock().wheel.head()?;
        Some(Entry { key: Key(key), due: self.inner().clock.to_instant(due) })
    }

    /// All entries in the order they will leave: a snapshot for inspection, in time proportional to their number.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// let late = queue.push("late", Duration::from_secs(9)).unwrap();
    /// let early = queue.push("early", Duration::from_secs(1)).unwrap();
    /// let keys: Vec<_> = queue.entries().iter().map(|entry| entry.key).collect();
    /// assert_eq!(keys, [early, late]);
    /// ```
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let entries = self.inner().state.lock().wheel.entries_in_order();
        let clock = &self.inner().clock;
        entries.into_iter().map(|(key, due)| Entry { key: Key(key), due: clock.to_instant(due) }).collect()
    }

    /// Takes the earliest entry if it is due.
    ///
    /// # Errors
    /// [`TryTakeError::NotDue`] with the instant of the earliest entry, if there is one;
    /// [`TryTakeError::Closed`] if nothing is left and nothing will come.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// use punctual::{DelayQueue, TryTakeError};
    /// let queue = DelayQueue::new();
    /// assert_eq!(queue.try_take(), Err(TryTakeError::NotDue(None)));
    /// queue.push('x', Duration::ZERO).unwrap();
    /// assert_eq!(queue.try_take(), Ok('x'));
    /// ```
    pub fn try_take(&self) -> Result<T, TryTakeError> {
        let inner = self.inner();
        let mut state = inner.state.lock();
        let now = state.now(&inner.clock);
        if let Some((_, item)) = state.wheel.pop(now) {
            let wake = state.end_if_drained();
            drop(state);
            give(wake);
            return Ok(item);
        }
        if state.closed && state.wheel.is_empty() {
            return Err(TryTakeError::Closed);
        }
        let next = state.wheel.head().and_then(|(_, due)| inner.clock.to_instant(due));
        Err(TryTakeError::NotDue(next))
    }

    /// Takes up to `max` due entries at once, in order.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// for n in 0..10 {
    ///     queue.push(n, Duration::ZERO).unwrap();
    /// }
    /// assert_eq!(queue.drain_due(3), [0, 1, 2]);
    /// ```
    pub fn drain_due(&self, max: usize) -> Vec<T> {
        let inner = self.inner();
        let mut state = inner.state.lock();
        let now = state.now(&inner.clock);
        let mut items = Vec::new();
        while items.len() < max
            && let Some((_, item)) = state.wheel.pop(now)
        {
            items.push(item);
        }
        let wake = state.end_if_drained();
        drop(state);
        give(wake);
        items
    }

    /// Takes an entry out before its time and gives the item back. `None` if it has left already: of a cancel and a
    /// take that race, exactly one gets the item. Constant time, and its memory is free at once.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// let key = queue.push("never mind", Duration::from_secs(3600)).unwrap();
    /// assert_eq!(queue.cancel(key), Some("never mind"));
    /// ```
    pub fn cancel(&self, key: Key) -> Option<T> {
        let mut state = self.inner().state.lock();
        let item = state.wheel.cancel(key.0);
        // Whoever is armed for it wakes for nothing once, which is cheaper than waking it now.
        let wake = state.end_if_drained();
        drop(state);
        give(wake);
        item
    }

    /// Takes everything out, due or not, in order.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// queue.push(2, Duration::from_secs(2)).unwrap();
    /// queue.push(1, Duration::from_secs(1)).unwrap();
    /// assert_eq!(queue.clear(), [1, 2]);
    /// ```
    pub fn clear(&self) -> Vec<T> {
        let mut state = self.inner().state.lock();
        let items = state.wheel.take_all();
        let wake = state.end_if_drained();
        drop(state);
        give(wake);
        items
    }

    /// Closes the queue: no more entries; consumers get those that are left as they fall due, then the end. Returns the
    /// entries that can never fall due, in order.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// queue.push("soon", Duration::ZERO).unwrap();
    /// queue.push("never", Duration::MAX).unwrap();
    /// assert_eq!(queue.close(), ["never"]);
    /// assert_eq!(queue.take(), Some("soon"));
    /// assert_eq!(queue.take(), None);
    /// ```
    pub fn close(&self) -> Vec<T> {
        let mut state = self.inner().state.lock();
        state.closed = true;
        let never = state.wheel.take_never();
        let wake = state.end_if_drained();
        drop(state);
        give(wake);
        never
    }

    /// Closes the queue and takes everything out, in order: consumers get the end at once.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// queue.push("later", Duration::from_secs(60)).unwrap();
    /// assert_eq!(queue.close_now(), ["later"]);
    /// assert_eq!(queue.take(), None);
    /// ```
    pub fn close_now(&self) -> Vec<T> {
        self.inner().end()
    }
}

impl<T: Send + 'static> DelayQueue<T> {
    /// Adds an entry that can be taken once it is due: after a `Duration`, or at an `Instant`. One that lies in the
    /// past is due now, behind everything due already; one beyond the clock's range is never due, but counted and
    /// cancellable.
    ///
    /// # Errors
    /// [`PushError`] gives the item back if the queue is closed or full.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// queue.push("in a millisecond", Duration::from_millis(1)).unwrap();
    /// assert_eq!(queue.take(), Some("in a millisecond"));
    /// ```
    pub fn push(&self, item: T, due: impl Into<Due>) -> Result<Key, PushError<T>> {
        // Before the lock is taken: a conversion may be the user's code.
        let due = due.into();
        let inner = self.inner();
        let mut state = inner.state.lock();
        if state.closed {
            return Err(PushError::Closed(item));
        }
        if state.wheel.len() >= inner.capacity {
            return Err(PushError::Full(item));
        }
        // Read inside the lock: an entry that is due now stands behind everything due already.
        let now = state.now(&inner.clock);
        let due = due.resolve(&inner.clock, now);
        let key = state.wheel.push(due, now, item);
        let wake = state.cover_new(due, now);
        drop(state);
        inner.give(wake);
        Ok(Key(key))
    }

    /// Gives an entry a new due, behind its equals. False if it has left already, or if the queue is closed and the new
    /// due would never come.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// let key = queue.push("x", Duration::from_secs(3600)).unwrap();
    /// assert!(queue.reschedule(key, Duration::ZERO));
    /// assert_eq!(queue.take(), Some("x"));
    /// assert!(!queue.reschedule(key, Duration::ZERO));
    /// ```
    pub fn reschedule(&self, key: Key, due: impl Into<Due>) -> bool {
        let due = due.into();
        let inner = self.inner();
        let mut state = inner.state.lock();
        let now = state.now(&inner.clock);
        let due = due.resolve(&inner.clock, now);
        // On a closed queue an entry that can never fall due would keep consumers waiting for an end that never comes.
        if (state.closed && due == NEVER) || !state.wheel.reschedule(key.0, due, now) {
            return false;
        }
        let wake = state.cover_new(due, now);
        drop(state);
        inner.give(wake);
        true
    }

    /// Takes the earliest entry, sleeping until it is due. `None` once the queue is closed and nothing is left: a
    /// consumer holds a handle itself, so it is [`close`](Self::close) that ends it, not the dropping of all other
    /// handles.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// let queue = punctual::DelayQueue::new();
    /// queue.push(7, Duration::from_millis(5)).unwrap();
    /// assert_eq!(queue.take(), Some(7));
    /// queue.close();
    /// assert_eq!(queue.take(), None);
    /// ```
    #[must_use]
    pub fn take(&self) -> Option<T> {
        self.inner().take_until(NEVER).ok()
    }

    /// As [`take`](Self::take), for at most `timeout`.
    ///
    /// # Errors
    /// [`TakeTimeoutError::TimedOut`] if nothing fell due in time, [`TakeTimeoutError::Closed`] if nothing will come.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// use punctual::{DelayQueue, TakeTimeoutError};
    /// let queue: DelayQueue<u8> = DelayQueue::new();
    /// assert_eq!(queue.take_timeout(Duration::from_millis(1)), Err(TakeTimeoutError::TimedOut));
    /// ```
    pub fn take_timeout(&self, timeout: Duration) -> Result<T, TakeTimeoutError> {
        let inner = self.inner();
        inner.take_until(inner.clock.nanos().saturating_add(duration_to_nanos(timeout)))
    }

    /// As [`take`](Self::take), for async code; needs no runtime. If a queue has no blocking consumer, a thread of its
    /// own keeps the time while async consumers wait.
    ///
    /// # Cancel safety
    /// The entry is taken inside `poll`, so a future that is dropped has taken nothing, and passes on a wake-up it got.
    ///
    /// # Example
    /// ```
    /// # use std::time::Duration;
    /// # fn block_on<F: Future>(f: F) -> F::Output {
    /// #     use std::{pin::pin, sync::Arc, task::{Context, Poll, Wake, Waker}, thread};
    /// #     struct Unpark(thread::Thread);
    /// #     impl Wake for Unpark { fn wake(self: Arc<Self>) { self.0.unpark() } }
    /// #     let waker = Waker::from(Arc::new(Unpark(thread::current())));
    /// #     let mut f = pin!(f);
    /// #     loop { match f.as_mut().poll(&mut Context::from_waker(&waker)) {
    /// #         Poll::Ready(out) => return out, Poll::Pending => thread::park() } }
    /// # }
    /// let queue = punctual::DelayQueue::new();
    /// queue.push("awaited", Duration::from_millis(5)).unwrap();
    /// assert_eq!(block_on(queue.take_async()), Some("awaited"));
    /// ```
    pub fn take_async(&self) -> TakeAsync<'_, T> {
        TakeAsync::new(self.inner())
    }
}

/// An entry as seen from outside: what [`DelayQueue::entries`] and [`DelayQueue::peek`] list.
///
/// # Example
/// ```
/// # use std::time::Duration;
/// let queue = punctual::DelayQueue::new();
/// queue.push('x', Duration::MAX).unwrap();
/// assert_eq!(queue.peek().unwrap().due, None, "never");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The key the push returned.
    pub key: Key,
    /// When it is due; `None` is never.
    pub due: Option<Instant>,
}

impl<T> Clone for DelayQueue<T> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner) }
    }
}

impl<T> Default for DelayQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for DelayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayQueue")
            .field("len", &self.len())
            .field("next_due", &self.next_due())
            .field("closed", &self.is_closed())
            .finish()
    }
}

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        self.inner.state.lock().abandoned = true;
        drop(self.inner.end());
    }
}
