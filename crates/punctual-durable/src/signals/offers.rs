//! What a node that found nothing could run at once: it says so, and whoever takes jobs in for the same store, in the
//! same process, may give it some in the same step. Then nobody has to ask.
//!
//! # Invariants
//! 1. What was offered is taken once, and counts from then until the node has heard what came of it.
//! 2. While it asks the store, it offers nothing.

use super::{Inbox, Listener};

/// What a node could run at once.
#[derive(Debug, Default)]
pub(super) struct Offer {
    /// The node's era in which it says so.
    pub(super) era: u64,
    pub(super) max: usize,
    pub(super) kinds: Vec<(String, usize)>,
    /// It asks for more at this moment, and does not expect to get all it could run.
    pub(super) is_to_come: bool,
    /// Places that were taken and are not heard of yet.
    pub(super) taken: usize,
}

impl Inbox {
    /// Places of which the node has yet to hear what came of them.
    fn places(&self) -> usize {
        self.offer.taken + self.heard.given.len()
    }
}

impl Listener {
    /// Says what the node could run at once if nothing was on its way to it, in place of what it said before. The
    /// places that are taken are counted here, under the lock: one that is taken while the node counts would be offered
    /// twice.
    pub(crate) fn offer(&self, era: u64, max: usize, mut kinds: Vec<(String, usize)>) {
        let mut hub = self.signals.lock();
        let Some(inbox) = hub.nodes.get_mut(&self.key) else { return };
        let places = inbox.places();
        kinds.iter_mut().for_each(|(_, room)| *room = room.saturating_sub(places));
        (inbox.offer.era, inbox.offer.max, inbox.offer.kinds) = (era, max.saturating_sub(places), kinds);
        if std::mem::take(&mut inbox.offer.is_to_come) {
            hub.offered.notify_waiters();
        }
    }

    /// Offers nothing, because it asks the store; or says that there will be an offer when it is answered.
    pub(crate) fn ask(&self, will_offer: bool) {
        self.offer(0, 0, Vec::new());
        let mut hub = self.signals.lock();
        if let Some(inbox) = hub.nodes.get_mut(&self.key) {
            inbox.offer.is_to_come = will_offer;
        }
    }

    /// How many places were taken of what it offered, and it has not heard what came of them.
    pub(crate) fn places(&self) -> usize {
        self.signals.lock().nodes.get(&self.key).map_or(0, Inbox::places)
    }
}
