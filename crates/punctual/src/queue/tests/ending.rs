//! Close, and what it leaves: the end reaches everybody, once nothing is left.

use super::*;

/// C10. Blocked takers get the end. 3 threads.
#[test]
fn loom_close_ends_every_blocked_taker() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let takers = [timed.spawn(Timed::take), timed.spawn(Timed::take)];
        timed.queue.close();
        assert_eq!(takers.map(|taker| taker.join().unwrap()), [None, None]);
    });
}

/// C10. A close with an entry left: one taker gets it when it is due, the other then gets the end. 3 threads.
#[test]
fn loom_close_lets_what_is_left_fall_due() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(10);
        let takers = [timed.spawn(Timed::take), timed.spawn(Timed::take)];
        assert_eq!(timed.queue.close(), []);
        timed.advance_to(10);
        assert_eq!(sorted(takers.map(|taker| taker.join().unwrap())), [None, Some(10)]);
    });
}

/// C10. The same with async consumers: whoever takes the last entry tells the other of the end. 4 threads.
#[test]
fn loom_close_lets_what_is_left_fall_due_for_async_consumers() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(10);
        let awaiting = [timed.spawn(Timed::take_async), timed.spawn(Timed::take_async)];
        timed.queue.close();
        timed.advance_to(10);
        assert_eq!(sorted(awaiting.map(|consumer| consumer.join().unwrap())), [None, Some(10)]);
    });
}

/// C10. The last entry of a closed queue is taken without waiting: those who wait learn of the end. 3 threads.
#[test]
fn loom_try_take_of_the_last_entry_ends_a_closed_queue() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let takers = [timed.spawn(Timed::take), timed.spawn(Timed::take)];
        timed.push(0);
        timed.queue.close();
        let taken = timed.queue.try_take().ok();
        let [first, second] = takers.map(|taker| taker.join().unwrap());
        assert_eq!(sorted([taken, first, second]), [None, None, Some(0)]);
    });
}

/// C10. The same, taken by `drain_due`. 3 threads.
#[test]
fn loom_draining_the_last_entry_ends_a_closed_queue() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let takers = [timed.spawn(Timed::take), timed.spawn(Timed::take)];
        timed.push(0);
        timed.queue.close();
        let taken = timed.queue.drain_due(2).pop();
        let [first, second] = takers.map(|taker| taker.join().unwrap());
        assert_eq!(sorted([taken, first, second]), [None, None, Some(0)]);
    });
}

/// C10. The last entry of a closed queue is cancelled: nobody will come, and everybody learns it. 4 threads.
#[test]
fn loom_cancelling_the_last_entry_of_a_closed_queue_ends_it() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let key = timed.push(10);
        let taker = timed.spawn(Timed::take);
        let awaiting = timed.spawn(Timed::take_async);
        timed.queue.close();
        assert_eq!(timed.queue.cancel(key), Some(10));
        assert_eq!([taker.join().unwrap(), awaiting.join().unwrap()], [None, None]);
    });
}

/// C7, C10. A push races the close: the item is back with the pusher, or taken. 3 threads.
#[test]
fn loom_a_push_that_races_the_close_is_refused_or_taken() {
    model(|| {
        let timed = Arc::new(Timed::new());
        let taker = timed.spawn(Timed::take);
        let pusher = timed.spawn(|timed| timed.queue.push(0, Duration::ZERO).is_ok());
        timed.queue.close();
        let accepted = pusher.join().unwrap();
        assert_eq!(taker.join().unwrap().is_some(), accepted);
    });
}

/// C7, C10. `close_now` races a take of a due entry: one of them gets it, and the taker does not hang. 2 threads.
#[test]
fn loom_close_now_or_a_take_gets_the_entry() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(0);
        let taker = timed.spawn(Timed::take);
        let left = timed.queue.close_now();
        assert!(taker.join().unwrap().is_some() != (left == [0]));
    });
}

/// C10. Leader, deputy and follower all get the end at once. 4 threads.
#[test]
fn loom_close_now_ends_leader_deputy_and_follower() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(10);
        timed.push(20);
        let takers = [(); 3].map(|()| timed.spawn(Timed::take));
        assert_eq!(timed.queue.close_now(), [10, 20]);
        assert_eq!(takers.map(|taker| taker.join().unwrap()), [None; 3]);
    });
}

/// C10. The end reaches async consumers, and the queue's own thread, wherever it is. 3 threads.
#[test]
fn loom_close_now_ends_an_async_consumer_and_its_standby() {
    model(|| {
        let timed = Arc::new(Timed::new());
        timed.push(10);
        let awaiting = timed.spawn(Timed::take_async);
        assert_eq!(timed.queue.close_now(), [10]);
        assert_eq!(awaiting.join().unwrap(), None);
    });
}

/// The queue's own thread ends with the last handle, wherever it is: starting, armed or lingering. 2 threads, and the
/// model would not end before all threads have.
#[test]
fn loom_an_abandoned_queue_ends_its_standby() {
    model(|| {
        let timed = Timed::new();
        let bell = Bell::new();
        let mut awaiting = timed.queue.take_async();
        assert!(poll_once(&mut awaiting, &Waker::from(bell)).is_pending());
        timed.push(10);
        drop(awaiting);
        drop(timed.queue);
    });
}
