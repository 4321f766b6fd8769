//! Tells other processes that there is work: after the commit, and not for each.
//!
//! Why not inside the transaction: a notification holds a lock that all commits of the database wait for, until it is flushed. Here it is sent on
//! a connection of its own that waits for no disk, at most once in `PAUSE`, whatever has happened meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Shared;
use super::listen::say_work;
use crate::time::Timestamp;

/// At most one notification in this time.
const PAUSE: Duration = Duration::from_millis(2);

/// Earlier than every instant.
const AT_ONCE: Timestamp = Timestamp::from_micros(i64::MIN);

/// There may be work: at an instant, or at once.
#[derive(Debug, PartialEq, Eq)]
struct Work(Option<Timestamp>);

#[derive(Debug, Default)]
pub(super) struct Notifier {
    due: Mutex<Option<Timestamp>>,
    bell: Notify,
    /// There is nobody to tell.
    is_alone: AtomicBool,
}

impl Notifier {
    /// Whether there are other nodes, as a heartbeat said. Who comes after that greets, and looks for itself first.
    pub(super) fn has_company(&self, has_company: bool) {
        // Relaxed: it is a hint, and who misses a notification looks within a second.
        self.is_alone.store(!has_company, Ordering::Relaxed);
    }

    /// A node has come: others tell it of work from now on.
    pub(super) fn greet(&self) {
        self.has_company(true);
        self.work(None);
    }

    /// There may be work at an instant; at once, if it is none.
    pub(super) fn work(&self, due: Option<Timestamp>) {
        if self.is_alone.load(Ordering::Relaxed) {
            return;
        }
        let due = due.unwrap_or(AT_ONCE);
        let mut earliest = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        *earliest = Some(earliest.map_or(due, |earliest| earliest.min(due)));
        drop(earliest);
        self.bell.notify_one();
    }

    /// What there is to tell.
    fn take(&self) -> Option<Work> {
        let due = self.due.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Work(Some(due).filter(|&due| due != AT_ONCE)))
    }
}

/// Tells, for as long as the store is open.
pub(super) async fn notify(shared: Arc<Shared>) {
    loop {
        shared.notifier.bell.notified().await;
        if let Some(Work(due)) = shared.notifier.take()
            && let Err(fault) = say_work(&shared, due).await
        {
            // Others look by themselves before long.
            tracing::debug!(target: "punctual", error = %fault.told, "others were not told of work");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_tells_nobody_until_somebody_comes() {
        let notifier = Notifier::default();
        notifier.has_company(false);
        notifier.work(None);
        assert_eq!(notifier.take(), None);
        notifier.has_company(true);
        notifier.work(None);
        assert_eq!(notifier.take(), Some(Work(None)));
        notifier.has_company(false);
        notifier.greet();
        assert_eq!(notifier.take(), Some(Work(None)), "who comes says so");
    }

    #[test]
    fn of_several_instants_the_earliest_is_told_and_that_once() {
        let notifier = Notifier::default();
        assert_eq!(notifier.take(), None);
        for due in [7, 5, 9] {
            notifier.work(Some(Timestamp::from_micros(due)));
        }
        assert_eq!(notifier.take(), Some(Work(Some(Timestamp::from_micros(5)))));
        assert_eq!(notifier.take(), None);
        notifier.work(Some(Timestamp::from_micros(5)));
        notifier.work(None);
        assert_eq!(notifier.take(), Some(Work(None)), "at once is earlier than every instant");
    }
}
