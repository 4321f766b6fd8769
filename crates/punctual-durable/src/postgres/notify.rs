//! Tells other processes that there is work: after the commit, and not for each.
//!
//! Why not inside the transaction: a notification holds a lock that all commits of the database wait for, until it is
//! flushed. Here it is sent on a connection of its own that waits for no disk, at most once in `PAUSE`, whatever has
//! happened meanwhile. Who comes after a longer silence does not wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use super::Shared;
use super::listen::say_work;
use crate::time::Timestamp;

/// At most one notification in this time, from its beginning to that of the next. A timer of the runtime may take a
/// millisecond longer: with two, jobs that came two milliseconds after each other waited for 1.4 ms longer at the
/// median.
const PAUSE: Duration = Duration::from_millis(1);

/// An instant that has passed on every clock: there is something to claim, and that is all.
const READY: Timestamp = Timestamp::from_micros(0);

/// There may be work at an instant; whatever it is, if that is none.
#[derive(Debug, PartialEq, Eq)]
struct Work(Option<Timestamp>);

/// What is to be told with the next notification.
#[derive(Debug, Default)]
struct News {
    has_changed: bool,
    is_ready: bool,
    due: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub(super) struct Notifier {
    news: Mutex<News>,
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
        self.work();
    }

    /// Anything may have changed.
    pub(super) fn work(&self) {
        self.add(|news| news.has_changed = true);
    }

    /// There is something to claim.
    pub(super) fn ready(&self) {
        self.add(|news| news.is_ready = true);
    }

    /// There is something to do at an instant.
    pub(super) fn due(&self, at: Timestamp) {
        self.add(|news| news.due = Some(news.due.map_or(at, |due| due.min(at))));
    }

    fn add(&self, what: impl FnOnce(&mut News)) {
        if self.is_alone.load(Ordering::Relaxed) {
            return;
        }
        what(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_one();
    }

    /// What there is to tell, in one word: who should claim now and come back later too must look for both.
    fn take(&self) -> Option<Work> {
        let news = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        match news {
            News { has_changed: false, is_ready: false, due: None } => None,
            News { has_changed: false, is_ready: true, due: None } => Some(Work(Some(READY))),
            News { has_changed: false, is_ready: false, due } => Some(Work(due)),
            News { .. } => Some(Work(None)),
        }
    }
}

/// Tells, for as long as the store is open.
pub(super) async fn notify(shared: Arc<Shared>) {
    let mut pause = tokio::time::interval(PAUSE);
    pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        shared.notifier.bell.notified().await;
        pause.tick().await;
        if let Some(Work(due)) = shared.notifier.take()
            && let Err(fault) = say_work(&shared, due).await
        {
            // Others look by themselves before long.
            tracing::debug!(target: "punctual", error = %fault.told, "others were not told of work");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_tells_nobody_until_somebody_comes() {
        let notifier = Notifier::default();
        notifier.has_company(false);
        notifier.work();
        assert_eq!(notifier.take(), None);
        notifier.has_company(true);
        notifier.work();
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
            notifier.due(Timestamp::from_micros(due));
        }
        assert_eq!(notifier.take(), Some(Work(Some(Timestamp::from_micros(5)))));
        assert_eq!(notifier.take(), None);
    }

    #[test]
    fn who_should_claim_now_hears_of_a_later_instant_too() {
        let notifier = Notifier::default();
        notifier.ready();
        assert_eq!(notifier.take(), Some(Work(Some(READY))));
        notifier.ready();
        notifier.due(Timestamp::from_micros(5));
        assert_eq!(notifier.take(), Some(Work(None)));
        notifier.due(Timestamp::from_micros(5));
        notifier.work();
        assert_eq!(notifier.take(), Some(Work(None)));
    }
}
