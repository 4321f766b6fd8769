//! What only the inside shows, and what a model checker cannot run: panics, the thread's own parker, two clocks.

use std::panic::{panic_any, resume_unwind};
use std::sync::mpsc;

use super::*;
use crate::clock::Parker;
use crate::queue::waiters::Waiters;

/// Sleepers that never sleep: the decisions alone.
struct Beds {
    waiters: Waiters,
    parkers: Vec<Arc<Parker>>,
}

impl Beds {
    fn new() -> Self {
        Self { waiters: Waiters::new(), parkers: Vec::new() }
    }

    /// Says which bed it is and until when to sleep.
    fn lie_down(&mut self, head: Nanos, second: Nanos, give_up: Nanos) -> (usize, Nanos, Vec<usize>) {
        let parker = Arc::new(Parker::new());
        self.parkers.push(Arc::clone(&parker));
        let (id, until, wake) = self.waiters.lie_down(&parker, head, || second, give_up);
        assert_eq!(id, self.parkers.len() as u64, "beds are numbered from 1");
        (self.parkers.len() - 1, until, self.woken(&wake))
    }

    fn get_up(&mut self, bed: usize) {
        self.waiters.get_up(bed as u64 + 1);
    }

    fn cover(&mut self, head: Nanos) -> Vec<usize> {
        let wake = self.waiters.cover(head);
        self.woken(&wake)
    }

    fn woken(&self, wake: &waiters::Wake) -> Vec<usize> {
        let bed_of = |parker| self.parkers.iter().position(|other| Arc::ptr_eq(other, parker)).unwrap();
        wake.parkers.iter().map(bed_of).collect()
    }
}

/// C3: the new head wakes the leader and nobody else; any other entry wakes nobody.
#[test]
fn only_a_new_head_wakes_and_only_the_leader() {
    let mut beds = Beds::new();
    let leader = beds.lie_down(10, 20, NEVER);
    let deputy = beds.lie_down(10, 20, NEVER);
    let follower = beds.lie_down(10, 20, NEVER);
    assert_eq!([leader.1, deputy.1, follower.1], [10, 20, NEVER]);
    assert_eq!(beds.cover(15), []);
    assert_eq!(beds.cover(10), [], "behind its equal");
    assert_eq!(beds.cover(NEVER), []);
    assert_eq!(beds.cover(5), [leader.0]);
    assert_eq!(beds.cover(7), [], "the leader is on its way to 5");
}

/// C3: a leader that leaves is followed by its deputy, who is armed already: no wake-up at all.
#[test]
fn the_deputy_takes_over_in_its_sleep() {
    let mut beds = Beds::new();
    let leader = beds.lie_down(10, 20, NEVER);
    let deputy = beds.lie_down(10, 20, NEVER);
    beds.get_up(leader.0);
    assert_eq!(beds.cover(20), []);
    assert_eq!(beds.cover(12), [deputy.0], "it leads now");
    let gone = beds.lie_down(12, 20, NEVER);
    beds.get_up(gone.0);
    let deputy = beds.lie_down(12, 20, NEVER);
    assert_eq!(deputy.1, 20, "the place of a deputy that left is free");
}

/// C3: without a deputy the lead goes to the follower that waits longest, of those that will wait long enough.
#[test]
fn the_lead_goes_to_the_oldest_follower_that_stays() {
    let mut beds = Beds::new();
    let leader = beds.lie_down(10, NEVER, NEVER);
    let hurried = beds.lie_down(10, NEVER, 5);
    let oldest = beds.lie_down(10, NEVER, NEVER);
    let gone = beds.lie_down(10, NEVER, NEVER);
    let youngest = beds.lie_down(10, NEVER, NEVER);
    beds.get_up(gone.0);
    beds.get_up(leader.0);
    assert_eq!(beds.cover(8), [oldest.0]);
    beds.get_up(oldest.0);
    assert_eq!(beds.cover(8), [youngest.0]);
    beds.get_up(youngest.0);
    assert_eq!(beds.cover(8), [], "the hurried one is gone by then");
    assert_eq!(beds.cover(5), [hurried.0]);
}

/// C9: a consumer whose time-out ends before the head takes no role, and sees to it that another has it.
#[test]
fn a_hurried_sleeper_takes_no_role() {
    let mut beds = Beds::new();
    assert_eq!(beds.lie_down(10, 20, 5).1, 5);
    assert!(!beds.waiters.has_leader());
    let leader = beds.lie_down(10, 20, NEVER);
    let follower = beds.lie_down(10, 20, 15);
    assert_eq!((leader.1, follower.1), (10, 15));
    assert!(!beds.waiters.has_deputy(), "it would leave before 20");
    beds.get_up(leader.0);
    let (_, _, woken) = beds.lie_down(12, 20, 11);
    assert_eq!(woken, [follower.0]);
}

/// C3: as many async consumers are told as there are entries for them, those told before included.
#[test]
fn async_consumers_are_told_once_per_entry() {
    let mut waiters = Waiters::new();
    let ids = [0; 3].map(|_| waiters.wait_async(None, Waker::noop().clone()).0);
    let told = |waiters: &mut Waiters, entries| {
        let mut wake = waiters::Wake::default();
        waiters.tell(entries, &mut wake);
        wake.wakers.len()
    };
    assert_eq!(told(&mut waiters, 1), 1);
    assert_eq!(told(&mut waiters, 1), 0, "the entry is spoken for");
    assert_eq!(told(&mut waiters, 2), 1);
    waiters.leave_async(ids[0]);
    assert_eq!(told(&mut waiters, 2), 1, "it left without taking");
    waiters.wait_async(Some(ids[1]), Waker::noop().clone());
    assert_eq!(told(&mut waiters, 2), 1, "it polled and waits again");
}

/// C9, and a regression test. A leader with a time-out whose entry was cancelled lay down again as a follower; with
/// only async consumers beside it, nobody was armed for the next entry until its time-out ended, and the queue's own
/// thread was started at the last moment. Now whoever lies down without a role arms the standby, if there is nobody
/// else.
#[test]
fn a_hurried_leader_leaves_async_consumers_covered() {
    let timed = Arc::new(Timed::new());
    let mut awaiting = timed.queue.take_async();
    let head = timed.push(5);
    let hurried = timed.spawn(|timed| timed.take_until(10));
    timed.wait_for_sleeper(5);
    assert!(poll_once(&mut awaiting, Waker::noop()).is_pending());
    timed.push(20);
    assert_eq!(timed.queue.cancel(head), Some(5));
    timed.advance_to(5);
    assert_eq!(timed.clock.pending(), [timed.start + ms(10), timed.start + ms(20)]);
    timed.advance_to(10);
    assert_eq!(hurried.join().unwrap(), Err(TakeTimeoutError::TimedOut));
}

/// The queue's own thread is there while async consumers wait for a time to come, and a second after.
#[test]
fn the_standby_comes_and_goes() {
    let timed = Timed::new();
    let bell = Bell::new();
    let mut awaiting = timed.queue.take_async();
    assert!(poll_once(&mut awaiting, &Waker::from(Arc::clone(&bell))).is_pending());
    assert!(timed.is_without_standby(), "nothing to wait for");
    timed.push(10);
    timed.clock.settle().unwrap();
    assert_eq!(timed.clock.pending(), [timed.start + ms(10)]);
    timed.advance_to(10);
    assert!(bell.is_rung());
    assert_eq!(poll_once(&mut awaiting, Waker::noop()), Poll::Ready(Some(10)));
    timed.advance_to(1_009);
    assert!(!timed.is_without_standby(), "it lingers");
    timed.advance_to(1_010);
    assert!(timed.is_without_standby());
    assert_eq!(timed.clock.pending(), []);
}

/// C9: a blocking consumer keeps the time for async ones too; no thread is started.
#[test]
fn a_blocking_leader_serves_async_consumers() {
    let timed = Arc::new(Timed::new());
    let taker = timed.spawn(Timed::take);
    while !timed.queue.inner().state.lock().waiters.has_leader() {
        thread::yield_now();
    }
    let bell = Bell::new();
    let mut awaiting = timed.queue.take_async();
    assert!(poll_once(&mut awaiting, &Waker::from(Arc::clone(&bell))).is_pending());
    timed.push(10);
    timed.push(10);
    timed.advance_to(10);
    assert_eq!(taker.join().unwrap(), Some(10));
    assert!(bell.is_rung(), "the leader passed the second entry on");
    assert!(timed.is_without_standby());
}

impl Timed {
    /// Waits until a thread sleeps to this instant, and none to another.
    fn wait_for_sleeper(&self, milliseconds: u64) {
        while self.clock.pending() != [self.start + ms(milliseconds)] {
            thread::yield_now();
        }
    }

    fn is_without_standby(&self) -> bool {
        matches!(self.queue.inner().state.lock().waiters.standby, Standby::Absent)
    }
}

/// A parker serves all waits of its thread: a wake-up that came too late for one wait only makes the next look twice.
#[test]
fn a_wake_up_left_over_from_another_wait_is_harmless() {
    let timed = Arc::new(Timed::new());
    timed.push(10);
    let taker = timed.spawn(|timed| {
        Parker::of_this_thread().unpark();
        assert_eq!(timed.take_until(5), Err(TakeTimeoutError::TimedOut));
        Parker::of_this_thread().unpark();
        timed.take()
    });
    for next in [5, 10] {
        timed.wait_for_sleeper(next);
        timed.advance_to(next);
    }
    assert_eq!(taker.join().unwrap(), Some(10));
}

/// C7: the key of an entry that left finds nothing, although another entry has its place.
#[test]
fn a_stale_key_does_not_reach_the_next_entry() {
    let timed = Timed::new();
    let stale = timed.push(10);
    assert_eq!(timed.queue.cancel(stale), Some(10));
    let fresh = timed.push(20);
    assert_eq!(fresh.0.index, stale.0.index, "the place is used again");
    assert!(!timed.reschedule(stale, 0));
    assert_eq!(timed.queue.cancel(stale), None);
    assert_eq!(timed.queue.cancel(fresh), Some(20));
}

/// C2: an entry that is pushed out of order, and equals one that stands in order already, stays behind it.
#[test]
fn an_equal_due_pushed_out_of_order_stays_behind() {
    let clock = VirtualClock::new();
    let queue = DelayQueue::with_clock(&clock);
    let [sooner, later] = [5, 7].map(Duration::from_nanos);
    for (item, due) in [("first", sooner), ("fourth", later), ("second", sooner), ("third", sooner), ("fifth", later)] {
        queue.push(item, due).unwrap();
    }
    clock.advance(later).unwrap();
    assert_eq!(queue.drain_due(9), ["first", "second", "third", "fourth", "fifth"]);
}

/// What panics when it is called, and once more when what it threw is dropped.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic_any(Fallout);
    }
}

struct Fallout;

impl Drop for Fallout {
    fn drop(&mut self) {
        resume_unwind(Box::new("fallout"));
    }
}

/// C11: a waker that panics harms neither whoever calls it nor whoever is to be woken after it. The value it throws may
/// panic too when it is dropped; that once went through to the pusher, and would have ended the queue's own thread.
#[test]
fn a_waker_that_panics_is_contained() {
    let (timed, bell) = (Timed::new(), Bell::new());
    let mut consumers = [(); 2].map(|()| timed.queue.take_async());
    assert!(poll_once(&mut consumers[0], &Waker::from(Arc::new(Bomb))).is_pending());
    assert!(poll_once(&mut consumers[1], &Waker::from(Arc::clone(&bell))).is_pending());
    timed.push(10);
    timed.push(10);
    timed.advance_to(10);
    assert!(bell.is_rung());
    assert!(!timed.is_without_standby(), "the thread that called it lives on");
    for mut consumer in consumers {
        assert_eq!(poll_once(&mut consumer, &Waker::from(Arc::new(Bomb))), Poll::Ready(Some(10)));
    }
    let mut third = timed.queue.take_async();
    assert!(poll_once(&mut third, &Waker::from(Arc::new(Bomb))).is_pending());
    timed.push(10);
}

/// C3, C11: a waker whose destructor panics takes no other's wake-up with it. It once did: the old waker was dropped
/// before the wake-ups were given.
#[test]
fn a_waker_that_panics_when_dropped_costs_no_wake_up() {
    struct Touchy;
    impl Wake for Touchy {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Touchy {
        fn drop(&mut self) {
            resume_unwind(Box::new("touchy"));
        }
    }
    let (timed, bell) = (Timed::new(), Bell::new());
    let (mut first, mut second) = (timed.queue.take_async(), timed.queue.take_async());
    assert!(poll_once(&mut first, &Waker::from(Arc::new(Touchy))).is_pending());
    assert!(poll_once(&mut second, &Waker::from(Arc::clone(&bell))).is_pending());
    timed.push(10);
    timed.push(10);
    // The entries fall due, and the first consumer looks before the queue's own thread has told anybody.
    timed.queue.inner().state.lock().latest = duration_to_nanos(ms(10));
    assert_eq!(poll_once(&mut first, Waker::noop()), Poll::Ready(Some(10)));
    assert!(bell.is_rung(), "the second entry is for the second consumer");
}

/// C11: the conversion of a due is the user's code, and runs before the lock is taken. It once ran under it: a
/// conversion that looked at the queue hung.
#[test]
fn a_conversion_of_the_users_may_use_the_queue() {
    struct AfterTheLast(DelayQueue<u64>);
    impl From<AfterTheLast> for Due {
        fn from(after: AfterTheLast) -> Self {
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || tell.send(after.0.len()));
            let len = told.recv_timeout(Duration::from_secs(10)).expect("the queue is not locked");
            Duration::from_millis(len as u64).into()
        }
    }
    let timed = Timed::new();
    timed.push(0);
    let key = timed.queue.push(1, AfterTheLast(timed.queue.clone())).unwrap();
    assert!(timed.queue.reschedule(key, AfterTheLast(timed.queue.clone())));
    assert_eq!(timed.queue.entries()[1].due, Some(timed.start + ms(2)));
}

/// C21: a thread that is busy on one virtual clock waits on another: each clock counts it as its own. The second once
/// overwrote the first, which then waited for a thread that was long gone.
#[test]
fn a_thread_may_be_busy_on_one_clock_and_wait_on_another() {
    let job = VirtualClock::with_patience(ms(100));
    let timed = Arc::new(Timed::new());
    timed.push(10);
    job.expect_busy();
    let worker = {
        let job = job.clone();
        timed.spawn(move |timed| {
            let _presence = job.adopt_presence();
            timed.take()
        })
    };
    timed.wait_for_sleeper(10);
    timed.advance_to(10);
    assert_eq!(worker.join().unwrap(), Some(10));
    assert_eq!(job.settle(), Ok(()));
}
