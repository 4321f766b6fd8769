//! The async consumer: a future that takes inside `poll`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::inner::Inner;
use super::waiters::WaiterId;
use crate::panics::quietly;

/// The future of [`DelayQueue::take_async`](crate::DelayQueue::take_async): resolves to the earliest entry once it is
/// due, or to `None` once the queue is closed and nothing is left.
///
/// # Example
/// ```
/// use std::task::{Context, Poll, Waker};
/// use std::time::Duration;
///
/// let queue = punctual::DelayQueue::new();
/// queue.push('x', Duration::ZERO).unwrap();
/// let take = std::pin::pin!(queue.take_async());
/// assert_eq!(take.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Some('x')));
/// ```
#[must_use = "a future does nothing unless polled"]
pub struct TakeAsync<'a, T: Send + 'static> {
    inner: &'a Arc<Inner<T>>,
    /// Set while the queue knows of this consumer.
    id: Option<WaiterId>,
}

impl<'a, T: Send + 'static> TakeAsync<'a, T> {
    pub(super) fn new(inner: &'a Arc<Inner<T>>) -> Self {
        Self { inner, id: None }
    }
}

impl<T: Send + 'static> Future for TakeAsync<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        // Cloned before the lock is taken: a waker is the user's code.
        let waker = cx.waker().clone();
        let inner = self.inner;
        let mut state = inner.state.lock();
        let now = state.now(&inner.clock);
        let taken = state.wheel.pop(now).map(|(_, item)| item);
        if taken.is_some() || (state.closed && state.wheel.is_empty()) {
            let old = self.id.take().and_then(|id| state.waiters.leave_async(id));
            let wake = state.cover(now);
            drop(state);
            inner.give(wake);
            quietly(|| drop(old));
            return Poll::Ready(taken);
        }
        let (id, old) = state.waiters.wait_async(self.id, waker);
        self.id = Some(id);
        let wake = state.cover(now);
        drop(state);
        inner.give(wake);
        quietly(|| drop(old));
        Poll::Pending
    }
}

impl<T: Send + 'static> Drop for TakeAsync<'_, T> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut state = self.inner.state.lock();
        let now = state.now(&self.inner.clock);
        let old = state.waiters.leave_async(id);
        // It may have been told of an entry that it now never takes: somebody else must know.
        let wake = state.cover(now);
        drop(state);
        self.inner.give(wake);
        quietly(|| drop(old));
    }
}

impl<T: Send + 'static> fmt::Debug for TakeAsync<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakeAsync").field("waiting", &self.id.is_some()).finish()
    }
}
