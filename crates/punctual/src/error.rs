//! What can be refused, and why. One small type per operation; work that is refused is given back.

use std::fmt;
use std::time::Instant;

/// Why [`DelayQueue::push`](crate::DelayQueue::push) refused an item, with the item.
///
/// # Example
/// ```
/// use punctual::{DelayQueue, PushError};
/// use std::time::Duration;
/// let queue = DelayQueue::new();
/// queue.close();
/// let refused = queue.push("mine", Duration::ZERO).unwrap_err();
/// assert_eq!(refused.to_string(), "the queue is closed");
/// assert_eq!(refused.into_item(), "mine");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushError<T> {
    /// The queue is closed: no entry will ever be accepted.
    Closed(T),
    /// The queue holds as many entries as it may.
    Full(T),
}

impl<T> PushError<T> {
    /// The item that was refused.
    #[must_use]
    pub fn into_item(self) -> T {
        match self {
            Self::Closed(item) | Self::Full(item) => item,
        }
    }
}

impl<T> fmt::Display for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "the queue is closed",
            Self::Full(_) => "the queue is full",
        })
    }
}

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "Closed(..)",
            Self::Full(_) => "Full(..)",
        })
    }
}

impl<T> std::error::Error for PushError<T> {}

/// Why [`DelayQueue::try_take`](crate::DelayQueue::try_take) took nothing.
///
/// # Example
/// ```
/// use punctual::{DelayQueue, TryTakeError};
/// let queue = DelayQueue::<u8>::new();
/// queue.close();
/// assert_eq!(queue.try_take(), Err(TryTakeError::Closed));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryTakeError {
    /// Nothing is due; the earliest entry will be at this instant, if there is one that ever will.
    NotDue(Option<Instant>),
    /// The queue is closed and nothing is left.
    Closed,
}

impl fmt::Display for TryTakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotDue(_) => "nothing is due",
            Self::Closed => "the queue is closed and empty",
        })
    }
}

impl std::error::Error for TryTakeError {}

/// Why [`DelayQueue::take_timeout`](crate::DelayQueue::take_timeout) took nothing.
///
/// # Example
/// ```
/// use punctual::{DelayQueue, TakeTimeoutError};
/// use std::time::Duration;
/// let queue = DelayQueue::<u8>::new();
/// assert_eq!(queue.take_timeout(Duration::ZERO), Err(TakeTimeoutError::TimedOut));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeTimeoutError {
    /// Nothing fell due in time.
    TimedOut,
    /// The queue is closed and nothing is left.
    Closed,
}

impl fmt::Display for TakeTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimedOut => "nothing fell due in time",
            Self::Closed => "the queue is closed and empty",
        })
    }
}

impl std::error::Error for TakeTimeoutError {}
