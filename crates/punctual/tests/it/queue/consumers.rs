//! The ways to take, to look and to be refused; threads and futures on one queue.

use std::cell::Cell;
use std::error::Error;
use std::pin::pin;
use std::sync::{Arc, Barrier, mpsc};
use std::task::Poll;
use std::time::Duration;

use punctual::{DelayQueue, PushError, TakeTimeoutError, TryTakeError, VirtualClock};

use super::{
    Background, Bell, DAY, YEAR, background_with, block_on, ms, ns, on_virtual_clock, poll, shown, wait_for_sleepers,
};

/// C9
#[test]
fn threads_and_futures_share_one_queue() {
    for delay in [Duration::ZERO, ms(3), DAY] {
        let (clock, queue) = on_virtual_clock();
        let threads = (0..4).map(|_| background_with(&queue, DelayQueue::take));
        let futures = (0..4).map(|_| background_with(&queue, |queue| block_on(queue.take_async())));
        let consumers: Vec<_> = threads.chain(futures).collect();
        for n in 0..8 {
            queue.push(n, delay).unwrap();
        }
        clock.advance(delay).unwrap();
        let mut got: Vec<_> = consumers.into_iter().map(|consumer| consumer.outcome().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}

/// C9
#[test]
fn a_consumer_that_would_give_up_first_does_not_take_the_lead() {
    let (clock, queue) = on_virtual_clock();
    let start = clock.now();
    queue.push("x", 10 * DAY).unwrap();
    let impatient = background_with(&queue, |queue| queue.take_timeout(3 * DAY));
    wait_for_sleepers(&clock, 1);
    assert_eq!(clock.pending(), [start + 3 * DAY]);
    let patient = background_with(&queue, DelayQueue::take);
    wait_for_sleepers(&clock, 2);
    assert_eq!(clock.pending(), [start + 3 * DAY, start + 10 * DAY], "the lead was free for the patient one");

    clock.advance(10 * DAY).unwrap();
    assert_eq!(impatient.outcome(), Err(TakeTimeoutError::TimedOut));
    assert_eq!(patient.outcome(), Some("x"));
}

/// C9
#[test]
fn take_timeout_ends_exactly_when_it_says() {
    let (clock, queue) = on_virtual_clock::<&str>();
    let start = clock.now();
    let consumer = background_with(&queue, |queue| queue.take_timeout(DAY));
    wait_for_sleepers(&clock, 1);
    assert_eq!(clock.pending(), [start + DAY]);
    clock.advance(DAY - ns(1)).unwrap();
    assert_eq!(shown(&clock, "sleepers"), 1);
    clock.advance(ns(1)).unwrap();
    assert_eq!(consumer.outcome(), Err(TakeTimeoutError::TimedOut));
}

/// C9
#[test]
fn an_entry_due_with_the_time_out_is_still_taken() {
    let (clock, queue) = on_virtual_clock();
    let consumer = background_with(&queue, |queue| queue.take_timeout(DAY));
    wait_for_sleepers(&clock, 1);
    queue.push("x", DAY).unwrap();
    clock.advance(DAY).unwrap();
    assert_eq!(consumer.outcome(), Ok("x"));
}

/// C5, C9
#[test]
fn an_endless_time_out_is_no_time_out() {
    let (clock, queue) = on_virtual_clock();
    let consumer = background_with(&queue, |queue| queue.take_timeout(Duration::MAX));
    wait_for_sleepers(&clock, 1);
    clock.advance(500 * YEAR).unwrap();
    queue.push("x", Duration::ZERO).unwrap();
    assert_eq!(consumer.outcome(), Ok("x"));
}

/// C9
#[test]
fn take_async_needs_no_runtime() {
    let (clock, queue) = on_virtual_clock();
    let consumer =
        background_with(&queue, |queue| block_on(async { [queue.take_async().await, queue.take_async().await] }));
    queue.push("second", 2 * DAY).unwrap();
    queue.push("first", DAY).unwrap();
    clock.advance(2 * DAY).unwrap();
    assert_eq!(consumer.outcome(), [Some("first"), Some("second")]);
}

/// C9
#[test]
fn a_dropped_future_has_taken_nothing() {
    let (clock, queue) = on_virtual_clock();
    queue.push("x", DAY).unwrap();
    for _ in 0..100 {
        let mut future = Box::pin(queue.take_async());
        assert!(poll(future.as_mut(), &Bell::new()).is_pending());
    }
    let mut told = Box::pin(queue.take_async());
    let bell = Bell::new();
    assert!(poll(told.as_mut(), &bell).is_pending());
    clock.advance(DAY).unwrap();
    assert_eq!(bell.rings(), 1);
    drop(told);
    assert_eq!(queue.try_take(), Ok("x"));
}

/// C9
#[test]
fn a_future_polled_again_rings_only_its_latest_waker() {
    let (clock, queue) = on_virtual_clock();
    let (old, new) = (Bell::new(), Bell::new());
    let mut future = pin!(queue.take_async());
    assert!(poll(future.as_mut(), &old).is_pending());
    assert!(poll(future.as_mut(), &new).is_pending());
    queue.push("x", DAY).unwrap();
    clock.advance(DAY).unwrap();
    assert_eq!((old.rings(), new.rings()), (0, 1));
    assert_eq!(Arc::strong_count(&old), 1, "the old waker was dropped");
    assert_eq!(poll(future.as_mut(), &new), Poll::Ready(Some("x")));
}

/// C9
#[test]
fn a_consumer_blocked_elsewhere_delays_nobody() {
    let (clock, queue) = on_virtual_clock();
    let (hold, held) = mpsc::channel::<()>();
    let slow = background_with(&queue, move |queue| (queue.take(), held.recv().is_err()));
    wait_for_sleepers(&clock, 1);
    queue.push("first", ms(1)).unwrap();
    queue.push("second", ms(2)).unwrap();
    clock.advance(ms(1)).unwrap();
    let free = background_with(&queue, DelayQueue::take);
    clock.advance(ms(1)).unwrap();
    assert_eq!(free.outcome(), Some("second"), "while the first consumer is still at it");
    drop(hold);
    assert_eq!(slow.outcome(), (Some("first"), true));
}

#[test]
fn drain_due_takes_at_most_what_is_asked_for_and_only_what_is_due() {
    let (clock, queue) = on_virtual_clock();
    for n in 0..10u32 {
        queue.push(n, n * DAY).unwrap();
    }
    clock.advance(4 * DAY).unwrap();
    assert!(queue.drain_due(0).is_empty());
    assert_eq!(queue.drain_due(3), [0, 1, 2]);
    assert_eq!(queue.drain_due(usize::MAX), [3, 4]);
    assert!(queue.drain_due(1).is_empty());
    assert_eq!(queue.len(), 5);
}

#[test]
fn peek_next_due_and_entries_look_without_taking() {
    let (clock, queue) = on_virtual_clock();
    assert_eq!((queue.peek(), queue.next_due()), (None, None));
    assert!(queue.entries().is_empty());
    let start = clock.now();
    let never = queue.push("never", Duration::MAX).unwrap();
    let late = queue.push("late", 2 * DAY).unwrap();
    let early = queue.push("early", DAY).unwrap();
    for _ in 0..2 {
        let listed: Vec<_> = queue.entries().iter().map(|entry| (entry.key, entry.due)).collect();
        assert_eq!(listed, [(early, Some(start + DAY)), (late, Some(start + 2 * DAY)), (never, None)]);
        assert_eq!(queue.peek(), Some(queue.entries()[0]));
        assert_eq!(queue.next_due(), Some(start + DAY));
        clock.advance(3 * DAY).unwrap();
    }
    assert_eq!(queue.len(), 3);
    assert_eq!(queue.drain_due(usize::MAX), ["early", "late"]);
    assert_eq!(queue.peek().map(|entry| entry.key), Some(never));
}

#[test]
fn clear_gives_everything_back_in_order_and_leaves_a_working_queue() {
    let (clock, queue) = on_virtual_clock();
    queue.push("never", Duration::MAX).unwrap();
    queue.push("due", Duration::ZERO).unwrap();
    queue.push("far", YEAR).unwrap();
    queue.push("near", ms(1)).unwrap();
    assert_eq!(queue.clear(), ["due", "near", "far", "never"]);
    assert!(queue.is_empty() && queue.clear().is_empty() && !queue.is_closed());
    queue.push("again", ms(1)).unwrap();
    clock.advance(ms(1)).unwrap();
    assert_eq!(queue.try_take(), Ok("again"));
}

#[test]
fn clones_are_handles_to_the_same_queue() {
    let (clock, queue) = on_virtual_clock();
    let clone = queue.clone();
    let key = clone.push("x", DAY).unwrap();
    assert_eq!(queue.cancel(key), Some("x"));
    clone.push("y", DAY).unwrap();
    drop(clone);
    assert!(!queue.is_closed(), "only the last handle ends it");
    clock.advance(DAY).unwrap();
    assert_eq!(queue.try_take(), Ok("y"));
}

#[test]
fn items_need_to_be_send_and_nothing_else() {
    fn crosses_threads<T: Send + Sync>(_: &T) {}
    fn moves_to_a_thread<T: Send>(_: &T) {}
    // A `Cell` is neither `Sync` nor `Ord`, `Hash` or `Clone` here.
    struct Opaque(Cell<u8>);
    let queue = DelayQueue::new();
    crosses_threads(&queue);
    moves_to_a_thread(&queue.take_async());
    queue.push(Opaque(Cell::new(7)), Duration::ZERO).unwrap();
    assert!(format!("{queue:?}").contains("len: 1"));
    assert_eq!(queue.take().unwrap().0.get(), 7);
}

#[test]
fn a_bounded_queue_gives_back_what_does_not_fit() {
    let clock = VirtualClock::new();
    let queue = DelayQueue::bounded_with_clock(2, &clock);
    let far = queue.push("far", YEAR).unwrap();
    queue.push("due", Duration::ZERO).unwrap();
    assert_eq!(queue.push("due too", Duration::ZERO), Err(PushError::Full("due too")));
    assert_eq!(queue.push("never", Duration::MAX), Err(PushError::Full("never")), "every entry counts, due or not");

    assert_eq!(queue.try_take(), Ok("due"));
    queue.push("into the place of the taken one", DAY).unwrap();
    assert!(queue.reschedule(far, DAY), "moving an entry needs no further place");
    queue.cancel(far).unwrap();
    queue.push("into the place of the cancelled one", DAY).unwrap();
    assert!(queue.push("one too many", DAY).is_err());

    let nothing_fits = DelayQueue::bounded(0);
    assert_eq!(nothing_fits.push((), Duration::ZERO), Err(PushError::Full(())));
}

#[test]
fn a_bound_is_exact_under_racing_producers() {
    let clock = VirtualClock::new();
    let queue = DelayQueue::bounded_with_clock(100, &clock);
    let start = Arc::new(Barrier::new(8));
    let producers: Vec<_> = (0..8)
        .map(|_| {
            let start = Arc::clone(&start);
            background_with(&queue, move |queue: &DelayQueue<u32>| {
                start.wait();
                (0..1000).filter(|&n| queue.push(n, DAY).is_ok()).count()
            })
        })
        .collect();
    assert_eq!(producers.into_iter().map(Background::outcome).sum::<usize>(), 100);
    assert_eq!(queue.len(), 100);
}

#[test]
fn what_is_printed_says_what_matters() {
    let (clock, queue) = on_virtual_clock();
    queue.push("x", Duration::MAX).unwrap();
    assert_eq!(format!("{queue:?}"), "DelayQueue { len: 1, next_due: None, closed: false }");
    let mut future = pin!(queue.take_async());
    assert_eq!(format!("{future:?}"), "TakeAsync { waiting: false }");
    assert!(poll(future.as_mut(), &Bell::new()).is_pending());
    assert_eq!(format!("{future:?}"), "TakeAsync { waiting: true }");
    queue.close();
    let refused = queue.push("secret", DAY).unwrap_err();
    assert_eq!(format!("{refused} {refused:?}"), "the queue is closed Closed(..)", "the item itself is not shown");
    assert_eq!(refused.into_item(), "secret");

    fn message(error: impl Error) -> String {
        error.to_string()
    }
    assert_eq!(message(PushError::Full(())), "the queue is full");
    assert_eq!(message(queue.try_take().unwrap_err()), "the queue is closed and empty");
    assert_eq!(message(queue.take_timeout(DAY).unwrap_err()), "the queue is closed and empty");
    assert_eq!(message(TryTakeError::NotDue(Some(clock.now()))), "nothing is due");
    assert_eq!(message(TakeTimeoutError::TimedOut), "nothing fell due in time");
}
