//! Taking entries back: each is taken once or cancelled once, and a cancelled one leaves nothing behind.

use std::collections::HashSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use punctual::{DelayQueue, TryTakeError, VirtualClock};

use super::{Background, DAY, background_with, ms, on_virtual_clock};

/// C7
#[test]
fn cancel_and_take_race_for_an_entry_and_exactly_one_gets_it() {
    const ENTRIES: usize = 20_000;
    let (clock, queue) = on_virtual_clock();
    let push = |n: usize| queue.push(n, ms(n as u64 % 16)).unwrap();
    let keys: Arc<Vec<_>> = Arc::new((0..ENTRIES).map(push).collect());
    clock.advance(ms(16)).unwrap();
    queue.close();
    let start = Arc::new(Barrier::new(4));

    let mut racers = Vec::new();
    for from_the_end in [false, true] {
        let (keys, start) = (Arc::clone(&keys), Arc::clone(&start));
        racers.push(background_with(&queue, move |queue| {
            start.wait();
            let cancel = |&key| queue.cancel(key);
            if from_the_end {
                keys.iter().rev().filter_map(cancel).collect()
            } else {
                keys.iter().filter_map(cancel).collect()
            }
        }));
    }
    for _ in 0..2 {
        let start = Arc::clone(&start);
        racers.push(background_with(&queue, move |queue| {
            start.wait();
            std::iter::from_fn(|| queue.take()).collect()
        }));
    }
    let mut got: Vec<usize> = racers.into_iter().flat_map(|racer: Background<Vec<_>>| racer.outcome()).collect();
    got.sort_unstable();
    assert!(got.into_iter().eq(0..ENTRIES), "each entry once: none lost, none doubled");
}

/// C7
#[test]
fn a_stale_key_finds_nothing_for_ever() {
    let (_clock, queue) = on_virtual_clock();
    let cancelled = queue.push(-1, DAY).unwrap();
    assert_eq!(queue.cancel(cancelled), Some(-1));
    let taken = queue.push(-2, Duration::ZERO).unwrap();
    assert_eq!(queue.try_take(), Ok(-2));
    let cleared = queue.push(-3, Duration::MAX).unwrap();
    assert_eq!(queue.clear(), [-3]);

    // Whatever memory those entries had has had thousands of tenants since, and has one now.
    let mut seen = HashSet::from([cancelled, taken, cleared]);
    for n in 0..10_000 {
        let key = queue.push(n, DAY).unwrap();
        assert!(seen.insert(key), "a key is never given twice");
        if n % 3 != 0 {
            assert_eq!(queue.cancel(key), Some(n));
        }
    }
    let live = queue.len();
    for stale in [cancelled, taken, cleared] {
        assert_eq!(queue.cancel(stale), None);
        assert!(!queue.reschedule(stale, Duration::ZERO));
    }
    assert_eq!(queue.len(), live);
    assert!(queue.try_take().is_err(), "nothing was moved");
}

/// C7
#[test]
fn a_due_entry_can_be_cancelled_or_put_off_until_it_is_taken() {
    let (clock, queue) = on_virtual_clock();
    let cancelled = queue.push("cancelled", ms(1)).unwrap();
    let put_off = queue.push("put off", ms(1)).unwrap();
    clock.advance(DAY).unwrap();
    assert_eq!(queue.cancel(cancelled), Some("cancelled"));
    assert!(queue.reschedule(put_off, DAY));
    assert_eq!(queue.try_take(), Err(TryTakeError::NotDue(Some(clock.now() + DAY))));
    clock.advance(DAY).unwrap();
    assert_eq!(queue.try_take(), Ok("put off"));
    assert!(!queue.reschedule(put_off, DAY));
}

/// C8
#[test]
fn a_cancelled_entry_frees_its_place_and_its_item_at_once() {
    let clock = VirtualClock::new();
    let queue = DelayQueue::bounded_with_clock(1, &clock);
    let item = Arc::new(());
    for _ in 0..10_000 {
        let key = queue.push(Arc::clone(&item), Duration::MAX).expect("the place is free again");
        drop(queue.cancel(key).unwrap());
        assert_eq!(Arc::strong_count(&item), 1, "the queue keeps nothing of it");
    }
    assert!(queue.is_empty());
    assert_eq!(queue.peek(), None);
}

/// C8
#[test]
fn cancelling_leaves_the_others_as_they_were() {
    let (clock, queue) = on_virtual_clock();
    let keys: Vec<_> = (0..1000u32).map(|n| queue.push(n, n / 10 * DAY).unwrap()).collect();
    for (n, &key) in (0..).zip(&keys).filter(|(n, _)| n % 10 != 7) {
        assert_eq!(queue.cancel(key), Some(n));
    }
    clock.advance(100 * DAY).unwrap();
    assert!(queue.drain_due(usize::MAX).into_iter().eq((0..100).map(|n| n * 10 + 7)));
}
