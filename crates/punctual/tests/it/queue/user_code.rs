//! What the user's own code may do, wherever the queue calls it: wakers and destructors call back and panic.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use punctual::{DelayQueue, Due, TakeAsync};

use super::{
    Bell, DAY, YEAR, background, background_with, caught, ms, on_virtual_clock, panic_quietly, poll, wait_for_sleepers,
};

/// C11
#[test]
fn a_waker_may_call_back_into_the_queue() {
    struct Meddler {
        queue: DelayQueue<u32>,
        rings: AtomicUsize,
    }
    impl Wake for Meddler {
        fn wake(self: Arc<Self>) {
            meddle(&self.queue);
            self.rings.fetch_add(1, Ordering::Relaxed);
        }
    }
    // On a thread of its own, so that a deadlock is a failure and not a silence.
    let everything_returns = background(|| {
        let (clock, queue) = on_virtual_clock();
        let meddler = Arc::new(Meddler { queue: queue.clone(), rings: AtomicUsize::new(0) });
        let waker = Waker::from(Arc::clone(&meddler));
        let rung_by = |provoke: &dyn Fn()| {
            let mut future = pin!(queue.take_async());
            assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let before = meddler.rings.load(Ordering::Relaxed);
            provoke();
            meddler.rings.load(Ordering::Relaxed) - before
        };
        let by_a_push = rung_by(&|| assert!(queue.push(1, Duration::ZERO).is_ok()));
        queue.clear();
        queue.push(2, DAY).unwrap();
        let by_the_queues_own_thread = rung_by(&|| clock.advance(DAY).unwrap());
        queue.clear();
        let key = queue.push(3, DAY).unwrap();
        let by_a_reschedule = rung_by(&|| assert!(queue.reschedule(key, Duration::ZERO)));
        queue.clear();
        let by_the_end = rung_by(&|| drop(queue.close()));
        [by_a_push, by_the_queues_own_thread, by_a_reschedule, by_the_end]
    });
    assert!(everything_returns.outcome().iter().all(|&rings| rings >= 1));
}

/// C11
#[test]
fn a_waker_may_call_back_into_the_queue_when_it_is_dropped() {
    struct Meddler(DelayQueue<u32>);
    impl Wake for Meddler {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Meddler {
        fn drop(&mut self) {
            meddle(&self.0);
        }
    }
    let everything_returns = background(|| {
        let (_clock, queue) = on_virtual_clock();
        let poll = |future: Pin<&mut TakeAsync<'_, u32>>| {
            let waker = Waker::from(Arc::new(Meddler(queue.clone())));
            future.poll(&mut Context::from_waker(&waker))
        };
        let mut future = Box::pin(queue.take_async());
        assert!(poll(future.as_mut()).is_pending());
        assert!(poll(future.as_mut()).is_pending(), "this one drops the first waker");
        drop(future);
        let mut future = Box::pin(queue.take_async());
        assert!(poll(future.as_mut()).is_pending());
        queue.push(1, Duration::ZERO).unwrap();
        assert_eq!(poll(future.as_mut()), Poll::Ready(Some(1)));
        assert!(poll(future.as_mut()).is_pending());
        queue.close_now()
    });
    assert!(everything_returns.outcome().is_empty());
}

/// C11
#[test]
fn a_conversion_into_a_due_may_call_back_into_the_queue() {
    struct BehindTheLast(DelayQueue<u32>);
    impl From<BehindTheLast> for Due {
        fn from(behind: BehindTheLast) -> Self {
            meddle(&behind.0);
            behind.0.entries().last().and_then(|entry| entry.due).expect("there is an entry").into()
        }
    }
    let everything_returns = background(|| {
        let (_clock, queue) = on_virtual_clock();
        let key = queue.push(1, DAY).unwrap();
        queue.push(2, BehindTheLast(queue.clone())).unwrap();
        assert!(queue.reschedule(key, BehindTheLast(queue.clone())));
        queue.clear()
    });
    assert_eq!(everything_returns.outcome(), [2, 1]);
}

/// C11
#[test]
fn a_destructor_of_an_item_may_call_back_into_the_queue() {
    struct Meddler {
        queue: DelayQueue<Meddler>,
        drops: Arc<AtomicUsize>,
    }
    impl Drop for Meddler {
        fn drop(&mut self) {
            drop((self.queue.peek(), self.queue.entries(), self.queue.clear(), self.queue.drain_due(1)));
            self.drops.fetch_add(1, Ordering::Relaxed);
        }
    }
    let everything_returns = background(|| {
        let (_clock, queue) = on_virtual_clock();
        let drops = Arc::new(AtomicUsize::new(0));
        let item = || Meddler { queue: queue.clone(), drops: Arc::clone(&drops) };
        drop(queue.cancel(queue.push(item(), DAY).unwrap()));
        queue.push(item(), Duration::ZERO).unwrap();
        drop(queue.try_take());
        queue.push(item(), Duration::ZERO).unwrap();
        drop(queue.take());
        queue.push(item(), DAY).unwrap();
        drop(queue.clear());
        queue.push(item(), Duration::MAX).unwrap();
        drop(queue.close());
        drop(queue.push(item(), DAY));
        drop(queue.close_now());
        drops.load(Ordering::Relaxed)
    });
    assert_eq!(everything_returns.outcome(), 6);
}

/// C11
#[test]
fn a_destructor_run_by_the_last_handle_may_use_other_queues_of_the_same_clock() {
    struct Forward(DelayQueue<&'static str>);
    impl Drop for Forward {
        fn drop(&mut self) {
            self.0.push("forwarded", Duration::ZERO).expect("the other queue is open");
        }
    }
    let (clock, other) = on_virtual_clock();
    let consumer = background_with(&other, DelayQueue::take);
    wait_for_sleepers(&clock, 1);
    let queue = DelayQueue::with_clock(&clock);
    queue.push(Forward(other.clone()), YEAR).unwrap();
    background(move || drop(queue)).outcome();
    assert_eq!(consumer.outcome(), Some("forwarded"));
}

/// C11
#[test]
fn a_panicking_waker_harms_nobody_else() {
    struct Rude;
    impl Wake for Rude {
        fn wake(self: Arc<Self>) {
            panic_quietly();
        }
    }
    let (clock, queue) = on_virtual_clock();
    let rude = Waker::from(Arc::new(Rude));
    let bell = Bell::new();
    let mut rude_ones: Vec<_> = (0..3).map(|_| Box::pin(queue.take_async())).collect();
    let mut polite = pin!(queue.take_async());
    for round in 0..3 {
        for future in &mut rude_ones {
            assert!(future.as_mut().poll(&mut Context::from_waker(&rude)).is_pending());
        }
        assert!(poll(polite.as_mut(), &bell).is_pending());
        let delay = if round == 0 { Duration::ZERO } else { DAY };
        for n in 0..4 {
            queue.push(n, delay).expect("a pusher is not told of somebody else's panic");
        }
        clock.advance(delay).unwrap();
        assert_eq!(bell.rings(), round + 1, "those behind the rude ones are told all the same");
        assert_eq!(queue.drain_due(usize::MAX), [0, 1, 2, 3]);
    }
    queue.close();
    assert_eq!(bell.rings(), 3, "all had been told already");
}

/// C11
#[test]
fn a_panic_that_panics_again_when_dropped_harms_nobody_else() {
    struct Firecracker;
    impl Drop for Firecracker {
        fn drop(&mut self) {
            panic_quietly();
        }
    }
    struct Rude;
    impl Wake for Rude {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new(Firecracker));
        }
    }
    let (clock, queue) = on_virtual_clock();
    let bell = Bell::new();
    for (round, delay) in [(1, Duration::ZERO), (2, DAY)] {
        let mut rude = Box::pin(queue.take_async());
        let mut polite = Box::pin(queue.take_async());
        assert!(rude.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Rude)))).is_pending());
        assert!(poll(polite.as_mut(), &bell).is_pending());
        assert!(!caught(|| (0..2).for_each(|n| assert!(queue.push(n, delay).is_ok()))));
        clock.advance(delay).unwrap();
        assert_eq!(bell.rings(), round, "neither a pusher nor the queue's own thread is lost to it");
        assert_eq!(queue.drain_due(2), [0, 1]);
    }
}

/// C7, C11
#[test]
fn a_waker_that_panics_when_dropped_costs_no_entry() {
    struct Firecracker;
    impl Wake for Firecracker {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Firecracker {
        fn drop(&mut self) {
            panic_quietly();
        }
    }
    let (_clock, queue) = on_virtual_clock();
    let (told, harmless) = (Bell::new(), Bell::new());
    let mut first = Box::pin(queue.take_async());
    assert!(poll(first.as_mut(), &told).is_pending());
    let mut second = Box::pin(queue.take_async());
    let explosive = Arc::new(Firecracker);
    let waker = Waker::from(Arc::clone(&explosive));
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // From here on the queue holds the last of it.
    drop((waker, explosive));
    queue.push(1, Duration::ZERO).unwrap();
    assert_eq!(told.rings(), 1);
    assert_eq!(poll(second.as_mut(), &harmless), Poll::Ready(Some(1)), "though the first was told");
    assert!(poll(first.as_mut(), &told).is_pending());
}

/// C11
#[test]
fn a_panicking_destructor_costs_only_its_own_item() {
    struct Firework(Arc<AtomicUsize>, bool);
    impl Drop for Firework {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            if self.1 {
                panic_quietly();
            }
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let (clock, queue) = on_virtual_clock();
    let key = queue.push(Firework(Arc::clone(&drops), true), DAY).unwrap();
    assert!(caught(|| drop(queue.cancel(key))), "the panic is the caller's, whose item it is");

    queue.push(Firework(Arc::clone(&drops), false), ms(1)).unwrap();
    let consumer = background_with(&queue, |queue| queue.take().is_some());
    wait_for_sleepers(&clock, 1);
    clock.advance(ms(1)).unwrap();
    assert!(consumer.outcome(), "the queue works on");

    for explosive in [false, true, false] {
        queue.push(Firework(Arc::clone(&drops), explosive), DAY).unwrap();
    }
    assert!(caught(move || drop(queue)));
    assert_eq!(drops.load(Ordering::Relaxed), 5, "each item was dropped, once");
}

/// Calls everything that takes the queue's lock.
fn meddle(queue: &DelayQueue<u32>) {
    let _ = (queue.len(), queue.is_closed(), queue.peek(), queue.entries(), format!("{queue:?}"));
    if let Ok(key) = queue.push(99, Duration::MAX) {
        queue.reschedule(key, DAY);
        assert_eq!(queue.cancel(key), Some(99));
    }
}
