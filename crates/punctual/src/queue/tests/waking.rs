//! Async consumers, alone and beside blocking ones: told once per entry, and a wake-up is never lost with its future.

use super::*;

/// C3, C9. Only async consumers: the queue's own thread keeps the time. 3 threads.
#[test]
fn loom_an_async_consumer_needs_no_blocking_one() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let awaiting = timed.spawn(Timed::take_async);
        timed.push(10);
        timed.advance_to(10);
        assert_eq!(awaiting.join().unwrap(), Some(10));
    });
}

/// C3. A new head re-arms the queue's own thread. 3 threads.
#[test]
fn loom_a_new_head_rearms_the_standby() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(20);
        let awaiting = timed.spawn(Timed::take_async);
        timed.push(10);
        timed.advance_to(10);
        assert_eq!(awaiting.join().unwrap(), Some(10));
    });
}

/// C3, C7. Two async consumers, two entries. 4 threads.
#[test]
fn loom_two_async_consumers_share_two_entries() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(10);
        timed.push(20);
        let awaiting = [timed.spawn(Timed::take_async), timed.spawn(Timed::take_async)];
        timed.advance_to(20);
        assert_eq!(sorted(awaiting.map(|consumer| consumer.join().unwrap())), [Some(10), Some(20)]);
    });
}

/// C3. The queue's own thread lingers when idle, then ends; the next entry finds it or starts another. 4 threads.
#[test]
fn loom_an_idle_standby_is_rearmed_or_replaced() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let awaiting = timed.spawn(|timed| [timed.take_async(), timed.take_async()]);
        timed.push(10);
        timed.advance_to(10);
        // Its linger, a second, ends in this advance.
        timed.push(1_500);
        timed.advance_to(1_500);
        assert_eq!(awaiting.join().unwrap(), [Some(10), Some(1_500)]);
    });
}

/// C3, C9. An async consumer is dropped after it was told of an entry and before it polled: another async consumer
/// learns of it. 2 threads.
#[test]
fn loom_a_dropped_future_passes_its_wake_up_to_another_future() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let mut dropped = timed.queue.take_async();
        assert!(poll_once(&mut dropped, &Waker::from(Bell::new())).is_pending());
        let awaiting = timed.spawn(Timed::take_async);
        timed.push(0);
        drop(dropped);
        assert_eq!(awaiting.join().unwrap(), Some(0));
    });
}

/// C3, C9. The same with a blocking consumer beside it. 2 threads.
#[test]
fn loom_a_dropped_future_passes_its_wake_up_to_a_blocking_consumer() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let mut dropped = timed.queue.take_async();
        assert!(poll_once(&mut dropped, &Waker::from(Bell::new())).is_pending());
        let taker = timed.spawn(Timed::take);
        timed.push(0);
        drop(dropped);
        assert_eq!(taker.join().unwrap(), Some(0));
    });
}

/// C3, C9. The same when it is the queue's own thread that tells it, at the due instant, while it is being dropped.
/// 3 threads.
#[test]
fn loom_a_future_dropped_at_the_due_instant_passes_it_on() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let mut dropped = timed.queue.take_async();
        timed.push(10);
        assert!(poll_once(&mut dropped, &Waker::from(Bell::new())).is_pending());
        let awaiting = timed.spawn(Timed::take_async);
        timed.advance_to(10);
        drop(dropped);
        assert_eq!(awaiting.join().unwrap(), Some(10));
    });
}

/// C9. A blocking and an async consumer, two entries of one instant: both are taken. 4 threads.
#[test]
fn loom_blocking_and_async_consumers_share_two_entries() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(10);
        timed.push(10);
        let consumers = [timed.spawn(Timed::take), timed.spawn(Timed::take_async)];
        timed.advance_to(10);
        assert_eq!(consumers.map(|consumer| consumer.join().unwrap()), [Some(10), Some(10)]);
    });
}

/// C3, C9. The blocking leader leaves for good, with the entry or on its time-out: the async consumer gets what is
/// left. 4 threads.
#[test]
fn loom_a_blocking_leader_leaves_the_time_to_the_standby() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(20);
        let awaiting = timed.spawn(Timed::take_async);
        let hurried = timed.spawn(|timed| timed.take_until(10));
        let head = timed.push(5);
        timed.queue.cancel(head);
        timed.advance_to(20);
        let taken = hurried.join().unwrap().ok();
        timed.queue.close();
        assert_eq!(sorted([taken, awaiting.join().unwrap()]).last(), Some(&Some(20)));
        assert!(timed.queue.is_empty(), "nothing is left behind");
    });
}

/// C3. `try_take` steals the entry that an async consumer was told of; the next entry still finds it. 3 threads.
#[test]
fn loom_a_stolen_entry_leaves_the_async_consumer_waiting() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let awaiting = timed.spawn(Timed::take_async);
        timed.push(0);
        let stolen = timed.queue.try_take().ok();
        timed.push(10);
        timed.advance_to(10);
        let taken = [stolen, awaiting.join().unwrap(), timed.queue.try_take().ok()];
        assert_eq!(sorted(taken), [None, Some(0), Some(10)]);
    });
}

/// C7, C9. A future that is polled once and dropped takes the entry or leaves it, and tells whoever waits. 3 threads.
#[test]
fn loom_a_future_polled_and_dropped_loses_nothing() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let fickle = timed.spawn(|timed| {
            let mut take = timed.queue.take_async();
            match poll_once(&mut take, &Waker::from(Bell::new())) {
                Poll::Ready(taken) => taken,
                Poll::Pending => None,
            }
        });
        let awaiting = timed.spawn(Timed::take_async);
        timed.push(0);
        let taken = fickle.join().unwrap();
        timed.queue.close();
        assert_eq!(sorted([taken, awaiting.join().unwrap()]), [None, Some(0)]);
    });
}
