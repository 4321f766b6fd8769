//! When an entry may leave, and in which order.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use punctual::{DelayQueue, Key, TakeTimeoutError, TryTakeError};

use super::{Background, DAY, YEAR, background_with, ms, ns, on_virtual_clock, wait_for_sleepers};

/// C1
#[test]
fn nothing_leaves_before_its_due_to_the_nanosecond() {
    let around = |bit: u32| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1];
    for delay in (1..63).flat_map(around).map(Duration::from_nanos) {
        let (clock, queue) = on_virtual_clock();
        let due = clock.now() + delay;
        queue.push("x", delay).unwrap();

        clock.advance(delay - ns(1)).unwrap();
        assert_eq!(queue.try_take(), Err(TryTakeError::NotDue(Some(due))), "{delay:?} less a nanosecond");
        assert_eq!(queue.take_timeout(Duration::ZERO), Err(TakeTimeoutError::TimedOut));
        assert!(queue.drain_due(usize::MAX).is_empty());

        clock.advance(ns(1)).unwrap();
        assert_eq!(queue.try_take(), Ok("x"), "{delay:?}");
    }
}

/// C1
#[test]
fn neighbours_of_one_nanosecond_fall_due_one_by_one() {
    let (clock, queue) = on_virtual_clock();
    // 7 and 1000 have no common divisor, so this visits every number once, out of order.
    for n in (0..1000u64).map(|n| n * 7 % 1000) {
        queue.push(n, ns(n + 1)).unwrap();
    }
    for n in 0..1000 {
        clock.advance(ns(1)).unwrap();
        assert_eq!(queue.drain_due(usize::MAX), [n]);
    }
}

/// C1
#[test]
fn a_sleeping_consumer_is_not_served_early() {
    let (clock, queue) = on_virtual_clock();
    queue.push("x", DAY).unwrap();
    let consumer = background_with(&queue, DelayQueue::take);
    wait_for_sleepers(&clock, 1);

    clock.advance(DAY - ns(1)).unwrap();
    assert_eq!(queue.len(), 1);
    clock.advance(ns(1)).unwrap();
    assert_eq!(queue.len(), 0, "and not late either: `advance` returns when all is quiet");
    assert_eq!(consumer.outcome(), Some("x"));
}

/// C2
#[test]
fn entries_leave_by_due_whatever_the_order_of_insertion() {
    let (clock, queue) = on_virtual_clock();
    let mut delays: Vec<_> = (0..2000u64).map(|n| n * 7919 % 2000).collect();
    for &n in &delays {
        queue.push(n, ms(n * n)).unwrap();
    }
    delays.sort_unstable();
    clock.advance(ms(2000 * 2000)).unwrap();
    assert_eq!(queue.drain_due(usize::MAX), delays);
}

/// C2
#[test]
fn equals_leave_in_the_order_they_went_in_across_every_rebucketing() {
    let (clock, queue) = on_virtual_clock();
    let mut left = 400 * DAY;
    let due = clock.now() + left;
    let mut pushed = 0;
    let mut expected = Vec::new();
    // Every round stands half as far from the same instant, until it stands at the instant itself.
    loop {
        let keys: Vec<_> = (pushed..pushed + 5).map(|n| (n, queue.push(n, due).unwrap())).collect();
        pushed += 5;
        assert_eq!(queue.cancel(keys[2].1), Some(keys[2].0), "a gap must not disturb the others");
        expected.extend(keys.iter().map(|&(n, _)| n).filter(|&n| n != keys[2].0));
        if left.is_zero() {
            break;
        }
        assert!(queue.try_take().is_err());
        let step = (left / 2).max(ns(1));
        clock.advance(step).unwrap();
        left -= step;
    }
    assert_eq!(queue.drain_due(usize::MAX), expected);
}

/// C2
#[test]
fn a_rescheduled_entry_stands_behind_its_equals() {
    let (clock, queue) = on_virtual_clock();
    let due = clock.now() + DAY;
    let first = queue.push("first", due).unwrap();
    queue.push("second", due).unwrap();
    assert!(queue.reschedule(first, due), "to the very instant it had");
    clock.advance(DAY).unwrap();
    assert_eq!(queue.drain_due(2), ["second", "first"]);
}

/// C2: insertion order across threads is lock order, so each producer's own order is kept.
#[test]
fn each_producers_equals_keep_their_order() {
    let (clock, queue) = on_virtual_clock();
    let due = clock.now() + DAY;
    let producers = (0..4).map(|producer| {
        let push_all = move |queue: &DelayQueue<_>| {
            let push = |n| (queue.push((producer, n), due).expect("the queue is open"), (producer, n));
            (0..500).map(push).collect::<Vec<_>>()
        };
        background_with(&queue, push_all)
    });
    let producers: Vec<_> = producers.collect();
    let names: HashMap<Key, _> = producers.into_iter().flat_map(Background::outcome).collect();
    let listed: Vec<_> = queue.entries().iter().map(|entry| names[&entry.key]).collect();
    clock.advance(DAY).unwrap();
    let left = queue.drain_due(usize::MAX);
    assert_eq!(listed, left, "what `entries` lists is what happens");
    for producer in 0..4 {
        let own = left.iter().filter(|(from, _)| *from == producer).map(|&(_, n)| n);
        assert!(own.eq(0..500), "producer {producer}");
    }
}

/// C5
#[test]
fn an_endless_delay_is_never_due_but_counted_and_cancellable() {
    let (clock, queue) = on_virtual_clock();
    let key = queue.push("never", Duration::MAX).unwrap();
    queue.push("never either", Duration::MAX - ns(1)).unwrap();
    assert_eq!(queue.len(), 2);
    assert_eq!(queue.next_due(), None);
    assert_eq!(queue.peek().map(|entry| (entry.key, entry.due)), Some((key, None)));

    clock.advance(500 * YEAR).unwrap();
    assert_eq!(queue.try_take(), Err(TryTakeError::NotDue(None)));
    assert_eq!(queue.cancel(key), Some("never"));
    assert_eq!(queue.clear(), ["never either"]);
}

/// C5
#[test]
fn instants_as_far_as_the_platform_goes_are_accepted() {
    let (clock, queue) = on_virtual_clock();
    queue.push("past", furthest(|distance| clock.now().checked_sub(distance))).unwrap();
    let key = queue.push("future", furthest(|distance| clock.now().checked_add(distance))).unwrap();
    assert_eq!(queue.try_take(), Ok("past"), "long past is due now");
    assert!(matches!(queue.try_take(), Err(TryTakeError::NotDue(_))));
    assert!(queue.reschedule(key, Duration::ZERO), "and never is not for ever");
    assert_eq!(queue.try_take(), Ok("future"));
}

/// C5
#[test]
fn an_uptime_of_centuries_changes_nothing() {
    let (clock, queue) = on_virtual_clock();
    queue.push(u32::MAX, 600 * YEAR).unwrap();
    for century in 0..5 {
        clock.advance(100 * YEAR).unwrap();
        queue.push(century, ms(1)).unwrap();
        clock.advance(ms(1) - ns(1)).unwrap();
        assert!(queue.try_take().is_err());
        clock.advance(ns(1)).unwrap();
        assert_eq!(queue.try_take(), Ok(century));
    }
    assert_eq!(queue.len(), 1);
}

/// C5: a rival's wheel put short delays beside a far one after 12 days of uptime, where they starved.
#[test]
fn one_far_entry_never_delays_the_near_ones() {
    let (clock, queue) = on_virtual_clock();
    queue.push(0, 100 * YEAR).unwrap();
    for day in 1..1000 {
        clock.advance(DAY).unwrap();
        queue.push(day, ms(20)).unwrap();
        clock.advance(ms(20)).unwrap();
        assert_eq!(queue.drain_due(usize::MAX), [day]);
    }
}

/// C5
#[test]
fn at_the_end_of_time_now_still_works_and_later_is_never() {
    let (clock, queue) = on_virtual_clock();
    queue.push("long", 580 * YEAR).unwrap();
    clock.advance(Duration::MAX).unwrap();
    clock.advance(Duration::MAX).unwrap();
    assert_eq!(queue.try_take(), Ok("long"));
    queue.push("now", Duration::ZERO).unwrap();
    queue.push("later", ns(1)).unwrap();
    assert_eq!(queue.try_take(), Ok("now"));
    assert_eq!(queue.try_take(), Err(TryTakeError::NotDue(None)));
    assert_eq!(queue.take_timeout(Duration::ZERO), Err(TakeTimeoutError::TimedOut));
    assert_eq!(queue.close(), ["later"]);
}

/// C6
#[test]
fn a_zero_delay_stands_behind_everything_already_due() {
    let (clock, queue) = on_virtual_clock();
    queue.push("due for an hour", ms(1)).unwrap();
    queue.push("due for a minute", Duration::from_secs(3540)).unwrap();
    clock.advance(Duration::from_secs(3600)).unwrap();
    queue.push("zero", Duration::ZERO).unwrap();
    assert_eq!(queue.drain_due(usize::MAX), ["due for an hour", "due for a minute", "zero"]);
}

/// C6
#[test]
fn past_instants_are_due_in_the_order_they_were_pushed() {
    let (clock, queue) = on_virtual_clock();
    let start = clock.now();
    clock.advance(DAY).unwrap();
    queue.push("an hour ago", start + 23 * DAY / 24).unwrap();
    queue.push("a day ago", start).unwrap();
    queue.push("now", clock.now()).unwrap();
    queue.push("zero", Duration::ZERO).unwrap();
    assert!(queue.entries().iter().all(|entry| entry.due == Some(clock.now())), "max(given, now)");
    assert_eq!(queue.drain_due(usize::MAX), ["an hour ago", "a day ago", "now", "zero"]);
}

/// C6
#[test]
fn a_zero_delay_is_handed_over_never_run_in_the_pusher() {
    let (clock, queue) = on_virtual_clock();
    let me = thread::current().id();
    let consumer = background_with(&queue, move |queue| (queue.take(), thread::current().id() == me));
    wait_for_sleepers(&clock, 1);
    queue.push("x", Duration::ZERO).unwrap();
    assert_eq!(consumer.outcome(), (Some("x"), false));

    queue.push("y", Duration::ZERO).unwrap();
    assert_eq!(queue.len(), 1, "without a consumer it waits, due as it is");
    assert_eq!(queue.try_take(), Ok("y"));
}

/// C12
#[test]
fn a_step_of_the_wall_clock_moves_nothing() {
    let (clock, queue) = on_virtual_clock();
    queue.push("x", DAY).unwrap();
    let consumer = background_with(&queue, DelayQueue::take);
    wait_for_sleepers(&clock, 1);
    let armed = clock.pending();
    for wall in [clock.wall() + 50 * YEAR, clock.wall() - 20 * YEAR] {
        clock.step_wall(wall).unwrap();
        assert_eq!(queue.len(), 1);
        assert_eq!(clock.pending(), armed);
    }
    clock.advance(DAY).unwrap();
    assert_eq!(consumer.outcome(), Some("x"));
}

/// C12
#[test]
fn the_clock_never_goes_back() {
    let (clock, queue) = on_virtual_clock();
    let start = clock.now();
    queue.push("x", DAY).unwrap();
    clock.advance(DAY).unwrap();
    clock.advance_to(start).unwrap();
    assert_eq!(clock.now(), start + DAY);
    assert_eq!(queue.try_take(), Ok("x"), "what was due stays due");
}

/// The furthest instant in a direction, to within a second.
fn furthest(go: impl Fn(Duration) -> Option<Instant>) -> Instant {
    let (mut reachable, mut step) = (Duration::ZERO, Duration::from_secs(1 << 62));
    while step >= Duration::from_secs(1) {
        if go(reachable + step).is_some() {
            reachable += step;
        }
        step /= 2;
    }
    go(reachable).expect("it was reached above")
}
