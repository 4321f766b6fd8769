//! Where three of the well-known write-ups that this library grew out of broke their own promise: a thread-safe
//! deferred callback executor, an account of how Java's `DelayQueue` works, and a scheduler with delays. Each test says
//! what went wrong there, why, and what holds here.

use std::collections::HashSet;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use punctual::DelayQueue;

use super::{
    Bell, DAY, YEAR, background_with, caught, ms, ns, on_virtual_clock, panic_quietly, poll, shown, wait_for_sleepers,
};

/// C2. The deferred-callback executor compared due times by subtracting them and casting the difference to a 32-bit
/// integer. Two callbacks more than 2^31 ms apart, some 24.8 days, changed places, because the cast turned the sign.
/// Here a due is 64 bits of nanoseconds, compared as such.
#[test]
fn entries_more_than_25_days_apart_keep_their_order() {
    let (clock, queue) = on_virtual_clock();
    let beyond = Duration::from_millis(1 << 31);
    for distance in [beyond - ms(1), beyond, beyond + ms(1), 2 * beyond, 50 * beyond] {
        queue.push("far", DAY + distance).unwrap();
        queue.push("near", DAY).unwrap();
        let keys: Vec<_> = queue.entries().iter().map(|entry| entry.due.unwrap() - clock.now()).collect();
        assert_eq!(keys, [DAY, DAY + distance]);
        assert_eq!(queue.clear(), ["near", "far"]);
    }
}

/// C11. The deferred-callback executor ran the callback while it held its lock: a slow one stopped every registration,
/// and one that threw left the lock held for ever, because nothing released it on that path. Here a consumer gets its
/// item after the lock is free, so its panic is its own.
#[test]
fn a_consumer_that_panics_leaves_no_lock_behind() {
    let (clock, queue) = on_virtual_clock();
    queue.push("explosive", ms(1)).unwrap();
    queue.push("harmless", ms(2)).unwrap();
    let unlucky = background_with(&queue, |queue| {
        caught(|| {
            assert_eq!(queue.take(), Some("explosive"));
            queue.push("registered in between", ms(5)).expect("the lock is free");
            panic_quietly();
        })
    });
    wait_for_sleepers(&clock, 1);
    clock.advance(ms(1)).unwrap();
    assert!(unlucky.outcome());
    let other = background_with(&queue, |queue| [queue.take(), queue.take()]);
    clock.advance(ms(10)).unwrap();
    assert_eq!(other.outcome(), [Some("harmless"), Some("registered in between")]);
}

/// C3. The deferred-callback executor signalled its sleeper on every registration, so a million callbacks for tomorrow
/// cost a million wake-ups today. Here a push wakes somebody only if it is due before whoever is armed.
#[test]
fn a_push_that_is_no_new_head_wakes_nobody() {
    let (clock, queue) = on_virtual_clock();
    let start = clock.now();
    queue.push(0, DAY).unwrap();
    let consumers: Vec<_> = (0..3).map(|_| background_with(&queue, DelayQueue::take)).collect();
    wait_for_sleepers(&clock, 3);
    for n in 1..=1000 {
        // As late as the head is no earlier than the head.
        queue.push(n, if n == 1 { DAY } else { DAY + n * ms(1) }).unwrap();
        assert_eq!(shown(&clock, "busy"), 0, "push {n} woke a sleeper");
    }
    assert_eq!(clock.pending(), [start + DAY]);
    queue.clear();
    queue.close();
    assert!(consumers.into_iter().all(|consumer| consumer.outcome().is_none()));
}

/// C3. The same for a future: it is told when an entry falls due, not when one arrives.
#[test]
fn a_push_that_is_not_due_rings_no_waker() {
    let (clock, queue) = on_virtual_clock();
    let bell = Bell::new();
    let mut future = pin!(queue.take_async());
    assert!(poll(future.as_mut(), &bell).is_pending());
    for n in 0..1000 {
        // Half of them are new heads, half are not.
        queue.push(n, if n % 2 == 0 { DAY - n * ms(1) } else { 2 * DAY }).unwrap();
    }
    clock.advance(DAY - 998 * ms(1) - ns(1)).unwrap();
    assert_eq!(bell.rings(), 0);
    clock.advance(ns(1)).unwrap();
    assert_eq!(bell.rings(), 1);
    assert_eq!(poll(future.as_mut(), &bell), Poll::Ready(Some(998)));
}

/// C3. What the deferred-callback executor did get right, and its own example: the sleeper is set for 30 minutes when a
/// callback for 5 minutes comes in. It must wake, set itself for the 5 minutes, and run the later one first.
#[test]
fn an_earlier_push_rearms_the_sleeper() {
    let (clock, queue) = on_virtual_clock();
    let (start, minute) = (clock.now(), Duration::from_secs(60));
    queue.push("in 30", 30 * minute).unwrap();
    let consumer = background_with(&queue, |queue| [queue.take(), queue.take()]);
    wait_for_sleepers(&clock, 1);
    assert_eq!(clock.pending(), [start + 30 * minute]);
    queue.push("in 5", 5 * minute).unwrap();
    clock.settle().unwrap();
    assert_eq!(clock.pending(), [start + 5 * minute]);
    clock.advance(5 * minute).unwrap();
    wait_for_sleepers(&clock, 1);
    assert_eq!(clock.pending(), [start + 30 * minute]);
    clock.advance(25 * minute).unwrap();
    assert_eq!(consumer.outcome(), [Some("in 5"), Some("in 30")]);
}

/// C7, C10. The deferred-callback executor had no way to take a callback back and no way to stop: its thread slept for
/// ever. Here every entry has a key, and a close ends every consumer.
#[test]
fn what_was_registered_can_be_taken_back_and_the_sleeper_sent_home() {
    let (clock, queue) = on_virtual_clock();
    let key = queue.push("changed my mind", DAY).unwrap();
    let sleeper = background_with(&queue, DelayQueue::take);
    wait_for_sleepers(&clock, 1);
    assert_eq!(queue.cancel(key), Some("changed my mind"));
    queue.close();
    assert_eq!(sleeper.outcome(), None);
    clock.settle().unwrap();
    assert_eq!(shown(&clock, "sleepers"), 0);
}

/// C2. The account of Java's `DelayQueue` promises first in, first out among equal delays; but its binary heap is not
/// stable, and the executor that does keep the order does so by a sequence number of its own. Here the order is the
/// queue's own promise, also after removals have reshaped whatever holds the entries.
#[test]
fn equal_delays_leave_first_in_first_out_even_after_removals() {
    let (clock, queue) = on_virtual_clock();
    let keys: Vec<_> = (0..1000u32).map(|n| queue.push(n, DAY).unwrap()).collect();
    let removed = |n: &u32| n % 3 == 1 || (200..400).contains(n);
    for n in (0..1000).filter(removed) {
        assert_eq!(queue.cancel(keys[n as usize]), Some(n));
    }
    clock.advance(DAY).unwrap();
    assert!(queue.drain_due(usize::MAX).into_iter().eq((0..1000).filter(|n| !removed(n))));
}

/// C3. In Java's `DelayQueue`, when a new head arrives, the leader is dethroned and some waiter signalled; if that is
/// another thread, the old leader sleeps on in a timed wait for an instant that no longer concerns it, and wakes for
/// nothing. Here the leader itself is woken and re-armed, so nobody is left in a stale timed wait.
#[test]
fn a_new_head_leaves_nobody_in_a_stale_timed_wait() {
    let (clock, queue) = on_virtual_clock();
    let start = clock.now();
    queue.push("old head", 30 * DAY).unwrap();
    let consumers: Vec<_> = (0..3).map(|_| background_with(&queue, DelayQueue::take)).collect();
    wait_for_sleepers(&clock, 3);
    for days in [25, 20, 15, 10, 5] {
        queue.push("new head", days * DAY).unwrap();
        clock.settle().unwrap();
        assert_eq!(clock.pending()[0], start + days * DAY);
        let armed: HashSet<_> = clock.pending().into_iter().collect();
        assert_eq!(armed.len(), clock.pending().len(), "no two are armed for one entry");
        assert!(armed.len() <= 2, "the leader and at most its deputy");
    }
    queue.close_now();
    assert!(consumers.into_iter().all(|consumer| consumer.outcome().is_none()));
}

/// C2. The comparator of the delayed scheduler asked the clock for the remaining delay of each side in turn, so the
/// order of two entries depended on the time between the two readings, and a heap built on it could corrupt itself.
/// Here a due is fixed once, at the push, and the passing of time changes no order.
#[test]
fn the_order_of_entries_does_not_depend_on_when_it_is_asked() {
    let (clock, queue) = on_virtual_clock();
    for n in 0..200u64 {
        queue.push(n, DAY + ns(n * 31 % 200)).unwrap();
        clock.advance(ns(1)).unwrap();
    }
    let order = queue.entries();
    let in_order = order.windows(2).all(|pair| pair[0].due <= pair[1].due);
    assert!(in_order);
    for _ in 0..100 {
        clock.advance(DAY / 50).unwrap();
        assert_eq!(queue.entries(), order);
    }
}

/// C8, C10. The delayed scheduler could cancel a task only by marking it: the entry stayed in the queue until its time
/// came. And its loop swallowed the interrupt that should have stopped it. Here a cancelled entry is gone, and close is
/// an answer that nobody can swallow: every later take says it again.
#[test]
fn cancel_removes_and_close_persists() {
    let (clock, queue) = on_virtual_clock();
    let keys: Vec<_> = (0..100).map(|n| queue.push(n, YEAR).unwrap()).collect();
    assert!(keys.into_iter().all(|key| queue.cancel(key).is_some()));
    assert_eq!((queue.len(), queue.entries().len()), (0, 0));
    let consumer = background_with(&queue, |queue| [queue.take(), queue.take(), queue.take()]);
    wait_for_sleepers(&clock, 1);
    queue.close();
    assert_eq!(consumer.outcome(), [None, None, None]);
}
