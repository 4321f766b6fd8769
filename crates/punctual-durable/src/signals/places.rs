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
    /// Places for so many jobs of a kind at a node of this process, if there is one that has them, or will have in a
    /// moment.
    pub(crate) async fn places(&self, kind: &str, count: usize) -> Option<Place> {
        let offered = {
            let mut hub = self.lock();
            let is_to_come = hub.nodes.values().any(|inbox| inbox.offer.is_to_come);
            let place = hub.take(kind, count);
            if place.is_some() || !is_to_come {
                return place.map(|(key, node, era)| Place { signals: self.clone(), key, node, era, count });
            }
            hub.offered.clone().notified_owned()
        };
        let _ = tokio::time::timeout(PATIENCE, offered).await;
        let (key, node, era) = self.lock().take(kind, count)?;
        Some(Place { signals: self.clone(), key, node, era, count })
    }
}

impl Inbox {
    /// Takes so many places for jobs of a kind, if they are offered.
    fn take(&mut self, kind: &str, count: usize) -> Option<(NodeId, u64)> {
        let node = self.node?;
        if self.heard.is_ready || self.heard.is_changed || self.offer.max < count {
            return None;
        }
        let (_, room) = self.offer.kinds.iter_mut().find(|(of, room)| of == kind && *room >= count)?;
        *room -= count;
        self.offer.max -= count;
        self.offer.taken += count;
        Some((node, self.offer.era))
    }
}

impl Hub {
    fn take(&mut self, kind: &str, count: usize) -> Option<(u64, NodeId, u64)> {
        self.nodes.iter_mut().find_map(|(&key, inbox)| inbox.take(kind, count).map(|(node, era)| (key, node, era)))
    }
}

/// Places that were taken at a node.
#[derive(Debug)]
pub(crate) struct Place {
    signals: Signals,
    key: u64,
    node: NodeId,
    era: u64,
    count: usize,
}

impl Place {
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// The node's era in which it offered them.
    pub(crate) fn era(&self) -> u64 {
        self.era
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
mod tests;
