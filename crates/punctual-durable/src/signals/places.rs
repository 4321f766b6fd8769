//! Places at a node that offered some: what is taken in is given to it in the same step.
//!
//! # Invariants
//! 1. A node to which something else was told gets nothing: it is about to ask, and others may come first.
//! 2. An offer that is known to come is waited for, but not for long: it saves the node from asking again.
//! 3. A place of which nothing is said is in doubt: the node asks the store what it was given.

use std::task::Waker;
use std::time::Duration;

use super::{Hub, Inbox, Signals};
use crate::id::NodeId;
use crate::store::Record;

/// How long to wait for an offer that is to come.
const PATIENCE: Duration = Duration::from_millis(10);

impl Signals {
    /// Places for so many jobs of a kind at a node of this process, if there is one that has them, or will have in a moment.
    pub(crate) async fn places(&self, kind: &str, count: usize) -> Option<Place> {
        let offered = {
            let mut hub = self.lock();
            let is_to_come = hub.nodes.values().any(|inbox| inbox.offer.is_to_come);
            let place = hub.take(kind, count);
            if place.is_some() || !is_to_come {
                return place.map(|(key, node)| Place { signals: self.clone(), key, node, count });
            }
            hub.offered.clone().notified_owned()
        };
        let _ = tokio::time::timeout(PATIENCE, offered).await;
        let (key, node) = self.lock().take(kind, count)?;
        Some(Place { signals: self.clone(), key, node, count })
    }
}

impl Inbox {
    /// Takes so many places for jobs of a kind, if they are offered.
    fn take(&mut self, kind: &str, count: usize) -> Option<NodeId> {
        let node = self.node?;
        if self.heard.is_ready || self.heard.is_changed || self.offer.max < count {
            return None;
        }
        let (_, room) = self.offer.kinds.iter_mut().find(|(of, room)| of == kind && *room >= count)?;
        *room -= count;
        self.offer.max -= count;
        self.offer.taken += count;
        Some(node)
    }
}

impl Hub {
    fn take(&mut self, kind: &str, count: usize) -> Option<(u64, NodeId)> {
        self.nodes.iter_mut().find_map(|(&key, inbox)| inbox.take(kind, count).map(|node| (key, node)))
    }
}

/// Places that were taken at a node.
#[derive(Debug)]
pub(crate) struct Place {
    signals: Signals,
    key: u64,
    node: NodeId,
    count: usize,
}

impl Place {
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// The node runs these now.
    pub(crate) fn give(mut self, jobs: Vec<Record>) {
        self.end(|inbox| inbox.heard.given.extend(jobs));
    }

    /// Nothing came of it.
    pub(crate) fn give_back(mut self) {
        self.end(|_| ());
    }

    fn end(&mut self, what: impl FnOnce(&mut Inbox)) {
        let waker: Option<Waker> = {
            let mut hub = self.signals.lock();
            let count = std::mem::take(&mut self.count);
            hub.nodes.get_mut(&self.key).filter(|_| count > 0).and_then(|inbox| {
                inbox.offer.taken -= count;
                what(inbox);
                inbox.waker.take()
            })
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end(|inbox| inbox.heard.is_unsure = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::JobId;
    use crate::signals::Listener;
    use crate::store::NewJob;
    use crate::time::Timestamp;

    const NODE: NodeId = NodeId::from_u64(1);

    fn mail(room: usize) -> Vec<(String, usize)> {
        vec![("mail".to_owned(), room)]
    }

    fn offering(max: usize, room: usize) -> (Signals, Listener) {
        let signals = Signals::new();
        let listener = signals.listen(NODE);
        listener.offer(max, mail(room));
        (signals, listener)
    }

    /// What can be had at once.
    fn take(signals: &Signals, kind: &str, count: usize) -> Option<Place> {
        pollster::block_on(signals.places(kind, count))
    }

    fn job(number: u128) -> Record {
        Record::new(NewJob::new(JobId::from_u128(number), "mail"), Timestamp::from_micros(0))
    }

    #[test]
    fn no_more_is_taken_than_was_offered() {
        let (signals, listener) = offering(3, 2);
        assert!(take(&signals, "print", 1).is_none() && take(&signals, "mail", 3).is_none());
        let place = take(&signals, "mail", 2).unwrap();
        assert_eq!((place.node(), listener.places()), (NODE, 2));
        assert!(take(&signals, "mail", 1).is_none(), "there is no room for this kind");
        listener.offer(1, mail(9));
        let other = take(&signals, "mail", 1).unwrap();
        assert!(take(&signals, "mail", 1).is_none(), "there is no room at all");
        place.give_back();
        other.give_back();
        assert_eq!(listener.places(), 0);
        listener.ask(false);
        assert!(take(&signals, "mail", 1).is_none(), "it asks for itself");
    }

    #[test]
    fn a_place_counts_until_the_node_has_heard() {
        let (signals, listener) = offering(1, 1);
        take(&signals, "mail", 1).unwrap().give(vec![job(7)]);
        assert_eq!(listener.places(), 1);
        let heard = listener.heard();
        assert_eq!((heard.given, heard.is_unsure, listener.places()), (vec![job(7)], false, 0));
    }

    #[test]
    fn whoever_was_told_of_work_is_given_nothing() {
        let (signals, listener) = offering(1, 1);
        signals.ready();
        assert!(take(&signals, "mail", 1).is_none());
        listener.heard();
        assert!(take(&signals, "mail", 1).is_some());
    }

    #[test]
    fn a_place_of_which_nothing_is_said_is_in_doubt() {
        let (signals, listener) = offering(1, 1);
        drop(take(&signals, "mail", 1));
        let heard = listener.heard();
        assert_eq!((heard.given.len(), heard.is_unsure, listener.places()), (0, true, 0));
        // And of a node that has gone meanwhile nobody asks.
        listener.offer(1, mail(1));
        let place = take(&signals, "mail", 1).unwrap();
        drop(listener);
        place.give(vec![job(7)]);
    }

    /// On a clock of tokio's that stands still unless everybody waits.
    #[tokio::test(start_paused = true)]
    async fn an_offer_that_is_to_come_is_waited_for_and_not_for_long() {
        let (signals, listener) = offering(1, 1);
        listener.ask(true);
        let begun = tokio::time::Instant::now();
        assert!(signals.places("mail", 1).await.is_none());
        assert_eq!(begun.elapsed(), PATIENCE);
        let offer = async { listener.offer(1, mail(1)) };
        let (place, ()) = tokio::join!(signals.places("mail", 1), offer);
        assert!(place.is_some() && begun.elapsed() == PATIENCE);
    }
}
