//! Interest is taken and given up in the order of the calls, although each call is a task and a connection of its own.
//!
//! A handle that is dropped gives its job up; an enqueue right after it may join the same job. If the second overtook
//! the first, the job would be cancelled under somebody's hands; the other way round it would be wanted for ever.
//!
//! # Invariants
//! 1. Calls of one side go together: they do not wait for each other.
//! 2. A call waits for all calls of the other side that began before it. Only the last group of these need be asked: it
//!    has itself waited for those before it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;

/// What a call does with interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Take,
    Give,
}

#[derive(Debug, Default)]
pub(super) struct Order(Mutex<Groups>);

#[derive(Debug, Default)]
struct Groups {
    /// The last group of each side.
    take: Weak<Group>,
    give: Weak<Group>,
    last: Option<Side>,
}

/// Calls of one side with none of the other in between; over when the last of them is.
#[derive(Debug)]
struct Group {
    after: Option<watch::Receiver<()>>,
    over: watch::Sender<()>,
}

/// A call's place; the others are let past when it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Group>);

impl Order {
    /// Takes the next place.
    pub(super) fn line_up(&self, side: Side) -> Turn {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Groups { take, give, last } = &mut *groups;
        let (own, other) = if side == Side::Take { (take, &*give) } else { (give, &*take) };
        if *last == Some(side)
            && let Some(group) = own.upgrade()
        {
            return Turn(group);
        }
        let after = other.upgrade().map(|group| group.over.subscribe());
        let group = Arc::new(Group { after, over: watch::Sender::new(()) });
        *own = Arc::downgrade(&group);
        *last = Some(side);
        Turn(group)
    }
}

impl Turn {
    /// Waits until it may begin.
    pub(super) async fn come(&self) {
        if let Some(mut after) = self.0.after.clone() {
            // Nothing is ever sent: it closes when the group is over.
            while after.changed().await.is_ok() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn may_begin(turn: &Turn) -> bool {
        pin!(turn.come()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn each_side_waits_for_what_the_other_began_before() {
        let order = Order::default();
        let [one, two] = [order.line_up(Side::Give), order.line_up(Side::Give)];
        let join = order.line_up(Side::Take);
        let late = order.line_up(Side::Give);
        assert!(may_begin(&one) && may_begin(&two) && !may_begin(&join) && !may_begin(&late));
        drop(one);
        assert!(!may_begin(&join), "one of two is not all");
        drop(two);
        assert!(may_begin(&join) && !may_begin(&late));
        drop(join);
        assert!(may_begin(&late));
    }

    #[test]
    fn whoever_comes_to_an_empty_room_begins_at_once() {
        let order = Order::default();
        drop(order.line_up(Side::Give));
        assert!(may_begin(&order.line_up(Side::Take)));
        assert!(may_begin(&order.line_up(Side::Give)));
    }
}
