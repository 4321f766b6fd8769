//! Blocking consumers: who leads, who follows, and what happens when a leader leaves.

use super::*;

/// C3. A push that is the new head reaches the leader, which sleeps to a later one. 2 threads.
#[test]
fn loom_a_new_head_rearms_the_sleeping_leader() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(20);
        let taker = timed.spawn(Timed::take);
        timed.push(10);
        timed.advance_to(10);
        assert_eq!(taker.join().unwrap(), Some(10));
    });
}

/// C3. The first entry of an empty queue finds whoever waits for any. 3 threads.
#[test]
fn loom_a_first_entry_wakes_one_of_two_waiting() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let takers = [timed.spawn(Timed::take), timed.spawn(Timed::take)];
        timed.push(0);
        timed.push(10);
        timed.advance_to(10);
        assert_eq!(sorted(takers.map(|taker| taker.join().unwrap())), [Some(0), Some(10)]);
    });
}

/// C3, C7. Two takers, two entries of one instant: each gets one. 3 threads.
#[test]
fn loom_two_takers_share_two_entries() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(10);
        timed.push(10);
        let takers = [timed.spawn(Timed::take), timed.spawn(Timed::take)];
        timed.advance_to(10);
        assert_eq!(takers.map(|taker| taker.join().unwrap()), [Some(10), Some(10)]);
        assert!(timed.queue.is_empty());
    });
}

/// Takers that keep what they took and never come back for more.
struct Gone {
    taken: Mutex<Vec<u64>>,
    all: Condvar,
    expected: usize,
}

impl Gone {
    fn new(expected: usize) -> Arc<Self> {
        Arc::new(Self { taken: Mutex::new(Vec::new()), all: Condvar::new(), expected })
    }

    fn spawn<const N: usize>(self: &Arc<Self>, timed: &Arc<Timed>) -> [thread::JoinHandle<()>; N] {
        [(); N].map(|()| {
            let gone = Arc::clone(self);
            timed.spawn(move |timed| gone.take_and_stay_away(timed))
        })
    }

    /// Takes one entry, then blocks until all have one: whoever took first is of no help to the others.
    fn take_and_stay_away(&self, timed: &Timed) {
        let item = timed.take();
        let mut taken = self.taken.lock();
        taken.extend(item);
        if taken.len() == self.expected {
            self.all.notify_all();
        }
        while taken.len() < self.expected {
            taken = self.all.wait(taken);
        }
    }
}

/// C3. The leader leaves with the first entry and never returns; the next one falls due all the same. 3 threads.
#[test]
fn loom_a_leader_that_leaves_for_good_is_replaced() {
    model(|| {
        let (timed, gone) = (Arc::new(Timed::new()), Gone::new(2));
        timed.push(10);
        timed.push(20);
        let takers =
            [Arc::clone(&gone), Arc::clone(&gone)].map(|gone| timed.spawn(move |timed| gone.take_and_stay_away(timed)));
        timed.advance_to(20);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
}

/// C3. The same when the second entry comes in while the leader sleeps or leaves: no deputy is armed for it. 3 threads.
#[test]
fn loom_a_leader_that_leaves_covers_an_entry_pushed_behind_its_back() {
    model(|| {
        let (timed, gone) = (Arc::new(Timed::new()), Gone::new(2));
        timed.push(10);
        let takers =
            [Arc::clone(&gone), Arc::clone(&gone)].map(|gone| timed.spawn(move |timed| gone.take_and_stay_away(timed)));
        timed.push(20);
        timed.advance_to(20);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
}

/// C3. Leader, deputy and a follower; the deputy's entry is cancelled, so that it is armed for nothing. 4 threads.
#[test]
fn loom_a_deputy_of_a_cancelled_entry_still_takes_over() {
    model(|| {
        let (timed, gone) = (Arc::new(Timed::new()), Gone::new(3));
        let cancelled = timed.push(15);
        for due in [10, 20, 30] {
            timed.push(due);
        }
        let takers = gone.spawn::<3>(&timed);
        assert_eq!(timed.queue.cancel(cancelled), Some(15));
        timed.advance_to(30);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
}

/// C3. A deputy that took over in its sleep is found by the next new head. 3 threads.
#[test]
fn loom_a_new_head_rearms_a_deputy_that_took_over() {
    model(|| {
        let (timed, gone) = (Arc::new(Timed::new()), Gone::new(2));
        timed.push(10);
        timed.push(20);
        let takers = gone.spawn::<2>(&timed);
        timed.advance_to(10);
        timed.push(15);
        timed.advance_to(15);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        let mut taken = gone.taken.lock();
        taken.sort_unstable();
        assert_eq!(*taken, [10, 15]);
    });
}

/// C3. Leader and deputy leave at one instant, in either order, and the follower takes over. 4 threads.
#[test]
fn loom_a_follower_replaces_leader_and_deputy() {
    model(|| {
        let (timed, gone) = (Arc::new(Timed::new()), Gone::new(3));
        for due in [10, 10, 20] {
            timed.push(due);
        }
        let takers = gone.spawn::<3>(&timed);
        timed.advance_to(20);
        takers.into_iter().for_each(|taker| taker.join().unwrap());
    });
}

/// C3, C7. A time-out that ends just when the entry falls due: either it takes the entry, or the entry is left to the
/// other, who is woken for it. 3 threads.
#[test]
fn loom_a_timeout_and_a_due_entry_have_one_outcome() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let hurried = timed.spawn(|timed| timed.take_until(10));
        let patient = timed.spawn(Timed::take);
        timed.push(10);
        timed.advance_to(10);
        match hurried.join().unwrap() {
            Ok(10) => {
                timed.queue.close();
                assert_eq!(patient.join().unwrap(), None);
            }
            Err(TakeTimeoutError::TimedOut) => assert_eq!(patient.join().unwrap(), Some(10)),
            other => panic!("neither taken nor timed out: {other:?}"),
        }
    });
}

/// C3. A time-out races the push itself: the entry stays for whoever comes. 2 threads.
#[test]
fn loom_a_timeout_loses_no_entry() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let hurried = timed.spawn(|timed| timed.take_until(5));
        timed.advance_to(5);
        timed.push(5);
        let taken = hurried.join().unwrap();
        assert_eq!(taken.is_ok(), timed.queue.is_empty());
        assert!(taken.is_ok() || timed.take() == Some(5));
    });
}

/// C9. A consumer whose time-out ends before the head does not lead, and does not stop another from leading. 3 threads.
#[test]
fn loom_a_hurried_consumer_does_not_take_the_lead() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(20);
        let hurried = timed.spawn(|timed| timed.take_until(10));
        let patient = timed.spawn(Timed::take);
        timed.advance_to(20);
        // It may have come so late that the entry was due already; then the other gets the end.
        let taken = hurried.join().unwrap();
        timed.queue.close();
        assert_eq!(patient.join().unwrap(), if taken.is_ok() { None } else { Some(20) });
    });
}

/// C3, C9. The head is cancelled while a consumer leads that will not wait for the next one: it hands the lead over.
/// 3 threads.
#[test]
fn loom_a_leader_whose_head_is_cancelled_hands_over() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let head = timed.push(5);
        timed.push(20);
        let hurried = timed.spawn(|timed| timed.take_until(10));
        let patient = timed.spawn(Timed::take);
        assert_eq!(timed.queue.cancel(head), Some(5));
        timed.advance_to(20);
        let taken = hurried.join().unwrap();
        timed.queue.close();
        assert_eq!(patient.join().unwrap(), if taken.is_ok() { None } else { Some(20) });
    });
}

/// C3. A leader times out while an entry is left that came in behind its back: whoever follows is armed for it.
/// 3 threads.
#[test]
fn loom_a_leader_that_times_out_hands_over() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let head = timed.push(10);
        let hurried = timed.spawn(|timed| timed.take_until(10));
        let patient = timed.spawn(Timed::take);
        timed.push(20);
        assert_eq!(timed.queue.cancel(head), Some(10));
        timed.advance_to(20);
        let taken = hurried.join().unwrap();
        timed.queue.close();
        assert_eq!(patient.join().unwrap(), if taken.is_ok() { None } else { Some(20) });
    });
}

/// C7. Of a cancel and a take that race, exactly one gets the item. 3 threads.
#[test]
fn loom_cancel_or_take_but_never_both() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let key = timed.push(10);
        let taker = timed.spawn(Timed::take);
        let canceller = timed.spawn(move |timed| timed.queue.cancel(key));
        timed.advance_to(10);
        let cancelled = canceller.join().unwrap();
        timed.queue.close();
        let taken = taker.join().unwrap();
        assert!(cancelled.is_some() != taken.is_some(), "cancelled {cancelled:?}, taken {taken:?}");
        assert_eq!(timed.queue.cancel(key), None);
    });
}

/// C3. A reschedule to an earlier instant is a new head. 2 threads.
#[test]
fn loom_a_reschedule_to_earlier_rearms_the_leader() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let key = timed.push(20);
        let taker = timed.spawn(|timed| timed.queue.take());
        assert!(timed.reschedule(key, 10));
        timed.advance_to(10);
        assert_eq!(taker.join().unwrap(), Some(20));
    });
}

/// C1, C7. A reschedule to later races the take: either it comes too late, or the entry leaves at its new instant.
/// 3 threads.
#[test]
fn loom_a_reschedule_to_later_or_a_take() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let key = timed.push(10);
        let taker = timed.spawn(|timed| (timed.queue.take(), timed.clock.now()));
        let mover = timed.spawn(move |timed| timed.reschedule(key, 20));
        timed.advance_to(10);
        let moved = mover.join().unwrap();
        timed.advance_to(20);
        let (taken, when) = taker.join().unwrap();
        assert_eq!(taken, Some(10));
        assert!(!moved || when >= timed.start + ms(20), "the entry left before its new instant");
        assert!(!timed.reschedule(key, 30), "the entry has left");
    });
}

/// C3, C21. A consumer that pushes the next entry itself: one advance goes through the whole chain. 2 threads.
#[test]
fn loom_a_chain_runs_through_one_advance() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(10);
        let taker = timed.spawn(|timed| {
            let first = timed.take();
            timed.push(20);
            [first, timed.take()]
        });
        timed.advance_to(20);
        assert_eq!(taker.join().unwrap(), [Some(10), Some(20)]);
    });
}

/// C21. Two threads move one clock: every sleeper wakes at its instant, and both come back. 3 threads.
#[test]
fn loom_two_threads_may_advance_one_clock() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(10);
        timed.push(20);
        let taker = timed.spawn(|timed| [timed.take(), timed.take()]);
        let other = timed.spawn(|timed| timed.advance_to(10));
        timed.advance_to(20);
        other.join().unwrap();
        assert_eq!(taker.join().unwrap(), [Some(10), Some(20)]);
    });
}

/// C3. `try_take` steals the entry for which the leader was woken; the next entry still finds the leader. 3 threads.
#[test]
fn loom_a_stolen_entry_leaves_the_leader_armed() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let taker = timed.spawn(Timed::take);
        timed.push(0);
        let thief = timed.spawn(|timed| timed.queue.try_take().ok());
        timed.push(10);
        timed.advance_to(10);
        let taken = [taker.join().unwrap(), thief.join().unwrap(), timed.queue.try_take().ok()];
        assert_eq!(sorted(taken), [None, Some(0), Some(10)]);
    });
}
