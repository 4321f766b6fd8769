//! How a queue ends: close, close now, and the last handle.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use punctual::{DelayQueue, PushError, TakeTimeoutError, TryTakeError};

use super::{Background, Bell, DAY, YEAR, background_with, block_on, on_virtual_clock, poll, shown, wait_for_sleepers};

/// C10
#[test]
fn a_closed_queue_gives_pushes_back_and_serves_what_is_left() {
    let (clock, queue) = on_virtual_clock();
    queue.push("second", 2 * DAY).unwrap();
    queue.push("first", DAY).unwrap();
    assert!(queue.close().is_empty());
    assert!(queue.is_closed());
    assert_eq!(queue.push("late", DAY), Err(PushError::Closed("late")));

    assert!(matches!(queue.try_take(), Err(TryTakeError::NotDue(Some(_)))), "closed, but not at its end");
    let consumer = background_with(&queue, |queue| std::iter::from_fn(|| queue.take()).collect::<Vec<_>>());
    clock.advance(2 * DAY).unwrap();
    assert_eq!(consumer.outcome(), ["first", "second"], "as they fall due, then the end");
    assert_eq!(queue.try_take(), Err(TryTakeError::Closed));
    assert_eq!(queue.take_timeout(DAY), Err(TakeTimeoutError::Closed));
    assert_eq!(block_on(queue.take_async()), None);
}

/// C10
#[test]
fn closing_gives_back_what_can_never_fall_due_in_order() {
    let (clock, queue) = on_virtual_clock();
    queue.push("never", Duration::MAX).unwrap();
    queue.push("far", 500 * YEAR).unwrap();
    queue.push("never either", 600 * YEAR).unwrap();
    assert_eq!(queue.close(), ["never", "never either"]);
    assert!(queue.close().is_empty(), "closing again changes nothing");
    clock.advance(500 * YEAR).unwrap();
    assert_eq!(queue.take(), Some("far"));
    assert_eq!(queue.take(), None);
}

/// C10
#[test]
fn closing_an_empty_queue_ends_every_wait() {
    every_wait_ends(|queue| assert!(queue.close().is_empty()));
}

/// C10
#[test]
fn close_now_ends_every_wait_and_gives_all_entries_back_in_order() {
    every_wait_ends(|queue| {
        queue.push(3, Duration::MAX).unwrap();
        queue.push(2, YEAR).unwrap();
        queue.push(1, DAY).unwrap();
        assert_eq!(queue.close_now(), [1, 2, 3]);
        assert!(queue.close_now().is_empty());
    });
}

/// C10
#[test]
fn a_closed_queue_ends_every_wait_when_its_last_entry_leaves_early() {
    every_wait_ends(|queue| {
        let last = queue.push(1, YEAR).unwrap();
        queue.close();
        assert_eq!(queue.cancel(last), Some(1));
    });
    every_wait_ends(|queue| {
        queue.push(1, YEAR).unwrap();
        queue.close();
        assert_eq!(queue.clear(), [1]);
    });
}

/// C10
#[test]
fn a_closed_queue_ends_every_wait_when_its_last_entry_is_taken() {
    // Seven consumers wait for one entry: one of them gets it, and the others get the end.
    let (clock, queue) = on_virtual_clock();
    queue.push(1, DAY).unwrap();
    queue.close();
    let consumers: Vec<_> = (0..7).map(|_| background_with(&queue, DelayQueue::take)).collect();
    wait_for_sleepers(&clock, 7);
    clock.advance(DAY).unwrap();
    let got: Vec<_> = consumers.into_iter().filter_map(Background::outcome).collect();
    assert_eq!(got, [1]);
}

/// C10
#[test]
fn whoever_takes_the_last_entry_of_a_closed_queue_tells_the_others() {
    type Way = fn(&DelayQueue<u32>) -> Option<u32>;
    let ways: [Way; 5] = [
        |queue| queue.take(),
        |queue| queue.take_timeout(DAY).ok(),
        |queue| queue.try_take().ok(),
        |queue| queue.drain_due(1).pop(),
        |queue| block_on(queue.take_async()),
    ];
    for way in ways {
        let (clock, queue) = on_virtual_clock();
        queue.push(1, DAY).unwrap();
        queue.close();
        let (told, untold) = (Bell::new(), Bell::new());
        let mut first = Box::pin(queue.take_async());
        let mut second = Box::pin(queue.take_async());
        assert!(poll(first.as_mut(), &told).is_pending());
        assert!(poll(second.as_mut(), &untold).is_pending());
        clock.advance(DAY).unwrap();
        assert_eq!((told.rings(), untold.rings()), (1, 0));

        assert_eq!(way(&queue), Some(1), "ahead of the one that was told");
        assert_eq!(untold.rings(), 1);
        assert_eq!(poll(first.as_mut(), &told), Poll::Ready(None));
        assert_eq!(poll(second.as_mut(), &untold), Poll::Ready(None));
    }
}

/// C10
#[test]
fn dropping_the_last_handle_drops_the_entries_and_ends_its_thread() {
    let (clock, queue) = on_virtual_clock();
    let item = Arc::new(());
    for delay in [Duration::ZERO, DAY, Duration::MAX] {
        queue.push(Arc::clone(&item), delay).unwrap();
    }
    drop(queue.try_take().unwrap());
    // A future that is never dropped must not keep the queue's own thread either.
    let handle = queue.clone();
    let mut leaked = Box::pin(handle.take_async());
    assert!(poll(leaked.as_mut(), &Bell::new()).is_pending());
    std::mem::forget(leaked);
    drop(handle);
    clock.settle().unwrap();
    assert_eq!(shown(&clock, "sleepers"), 1);

    drop(queue);
    assert_eq!(Arc::strong_count(&item), 1);
    clock.settle().unwrap();
    assert_eq!(shown(&clock, "sleepers"), 0);
}

/// Every way to wait comes to its end, whether it began before or begins after.
fn every_wait_ends(end: impl FnOnce(&DelayQueue<u32>)) {
    let (clock, queue) = on_virtual_clock();
    let threads: Vec<_> = (0..3).map(|_| background_with(&queue, DelayQueue::take)).collect();
    let timed: Vec<_> = (0..3).map(|_| background_with(&queue, |queue| queue.take_timeout(YEAR))).collect();
    let bells: Vec<_> = (0..3).map(|_| Bell::new()).collect();
    let mut futures: Vec<_> = bells.iter().map(|_| Box::pin(queue.take_async())).collect();
    for (future, bell) in futures.iter_mut().zip(&bells) {
        assert!(poll(future.as_mut(), bell).is_pending());
    }
    wait_for_sleepers(&clock, 6);
    end(&queue);
    assert!(threads.into_iter().all(|consumer| consumer.outcome().is_none()));
    assert!(timed.into_iter().all(|consumer| consumer.outcome() == Err(TakeTimeoutError::Closed)));
    for (future, bell) in futures.iter_mut().zip(&bells) {
        assert_eq!(bell.rings(), 1);
        assert_eq!(poll(future.as_mut(), bell), Poll::Ready(None));
    }
    assert_eq!(queue.take(), None);
    assert_eq!(queue.take_timeout(YEAR), Err(TakeTimeoutError::Closed));
    assert_eq!(block_on(queue.take_async()), None);
}

/// C10: on a closed queue nothing can be put off for ever, or consumers would wait for an end that never comes.
#[test]
fn a_closed_queue_puts_nothing_off_for_ever() {
    let (_clock, queue) = on_virtual_clock();
    let key = queue.push("entry", DAY).unwrap();
    assert!(queue.close().is_empty());
    assert!(!queue.reschedule(key, Duration::MAX));
    assert!(queue.reschedule(key, Duration::ZERO));
    assert_eq!(queue.take(), Some("entry"));
    assert_eq!(queue.take(), None);
}
