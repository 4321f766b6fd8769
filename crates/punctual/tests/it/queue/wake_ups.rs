//! Who is woken when: whoever is needed, and nobody else.

use std::collections::HashSet;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use punctual::{DelayQueue, TakeTimeoutError};

use super::{Background, Bell, DAY, YEAR, background_with, ms, ns, on_virtual_clock, poll, shown, wait_for_sleepers};

/// C3
#[test]
fn a_blocked_take_is_woken_by_a_push() {
    let (clock, queue) = on_virtual_clock();
    let consumer = background_with(&queue, DelayQueue::take);
    wait_for_sleepers(&clock, 1);
    queue.push("x", Duration::ZERO).unwrap();
    assert_eq!(consumer.outcome(), Some("x"));
}

/// C3
#[test]
fn an_entry_brought_forward_rearms_the_sleeper() {
    let (clock, queue) = on_virtual_clock();
    let key = queue.push("x", DAY).unwrap();
    let consumer = background_with(&queue, DelayQueue::take);
    wait_for_sleepers(&clock, 1);
    assert!(queue.reschedule(key, ms(5)));
    clock.settle().unwrap();
    assert_eq!(clock.pending(), [clock.now() + ms(5)]);
    clock.advance(ms(5)).unwrap();
    assert_eq!(consumer.outcome(), Some("x"));
}

/// C3
#[test]
fn eight_blocked_consumers_each_get_one_of_eight_entries() {
    for delay in [Duration::ZERO, ms(1), DAY] {
        let (clock, queue) = on_virtual_clock();
        let consumers: Vec<_> = (0..8).map(|_| background_with(&queue, DelayQueue::take)).collect();
        wait_for_sleepers(&clock, 8);
        for n in 0..8 {
            queue.push(n, delay).unwrap();
        }
        clock.advance(delay).unwrap();
        let mut got: Vec<_> = consumers.into_iter().map(|consumer| consumer.outcome().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(queue.is_empty());
    }
}

/// C3
#[test]
fn eight_waiting_futures_each_get_one_of_eight_entries() {
    for delay in [Duration::ZERO, ms(1), DAY] {
        let (clock, queue) = on_virtual_clock();
        let mut futures: Vec<_> = (0..8).map(|_| (Box::pin(queue.take_async()), Bell::new())).collect();
        assert!(futures.iter_mut().all(|(future, bell)| poll(future.as_mut(), bell).is_pending()));
        for n in 0..8 {
            queue.push(n, delay).unwrap();
        }
        clock.advance(delay).unwrap();
        for (n, (future, bell)) in futures.iter_mut().enumerate() {
            assert_eq!(bell.rings(), 1, "nobody is told twice");
            assert_eq!(poll(future.as_mut(), bell), Poll::Ready(Some(n)), "whoever waits longest is told first");
        }
    }
}

/// C3
#[test]
fn whoever_leaves_with_an_entry_leaves_the_next_one_covered() {
    let (clock, queue) = on_virtual_clock();
    let start = clock.now();
    for n in 1..=5 {
        queue.push(n, n * DAY).unwrap();
    }
    let consumers: Vec<_> = (0..5).map(|_| background_with(&queue, DelayQueue::take)).collect();
    wait_for_sleepers(&clock, 5);
    for n in 1..=5 {
        assert_eq!(clock.pending().first(), Some(&(start + n * DAY)), "somebody is armed for the head");
        clock.advance(DAY).unwrap();
        assert_eq!(queue.len(), 5 - n as usize);
    }
    let got: HashSet<_> = consumers.into_iter().map(Background::outcome).collect();
    assert_eq!(got, (1..=5).map(Some).collect());
}

/// C3
#[test]
fn a_leader_whose_time_runs_out_leaves_the_head_covered() {
    let (clock, queue) = on_virtual_clock();
    let start = clock.now();
    let key = queue.push("x", 5 * DAY).unwrap();
    let impatient = background_with(&queue, |queue| queue.take_timeout(10 * DAY));
    wait_for_sleepers(&clock, 1);
    let patient = background_with(&queue, DelayQueue::take);
    wait_for_sleepers(&clock, 2);
    assert_eq!(clock.pending(), [start + 5 * DAY], "the impatient one leads: it can stay to the head");

    assert!(queue.reschedule(key, 20 * DAY));
    clock.advance(5 * DAY).unwrap();
    assert_eq!(
        clock.pending(),
        [start + 10 * DAY, start + 20 * DAY],
        "it cannot stay to the new one, so another leads"
    );
    clock.advance(5 * DAY).unwrap();
    assert_eq!(impatient.outcome(), Err(TakeTimeoutError::TimedOut));
    clock.advance(10 * DAY).unwrap();
    assert_eq!(patient.outcome(), Some("x"));
}

/// C3
#[test]
fn a_blocking_leader_that_gives_up_hands_over_to_a_future() {
    let (clock, queue) = on_virtual_clock();
    let bell = Bell::new();
    let mut future = pin!(queue.take_async());
    let impatient = background_with(&queue, |queue| queue.take_timeout(10 * DAY));
    wait_for_sleepers(&clock, 1);
    let head = queue.push("head", 5 * DAY).unwrap();
    queue.push("next", 20 * DAY).unwrap();
    assert!(poll(future.as_mut(), &bell).is_pending());
    assert_eq!(queue.cancel(head), Some("head"));

    clock.advance(10 * DAY).unwrap();
    assert_eq!(impatient.outcome(), Err(TakeTimeoutError::TimedOut));
    clock.advance(10 * DAY).unwrap();
    assert_eq!(bell.rings(), 1);
    assert_eq!(poll(future.as_mut(), &bell), Poll::Ready(Some("next")));
}

/// C3, C9
#[test]
fn a_future_dropped_after_its_wake_up_passes_it_on() {
    let (clock, queue) = on_virtual_clock();
    let (first_bell, second_bell) = (Bell::new(), Bell::new());
    let mut first = Box::pin(queue.take_async());
    let mut second = pin!(queue.take_async());
    assert!(poll(first.as_mut(), &first_bell).is_pending());
    assert!(poll(second.as_mut(), &second_bell).is_pending());
    queue.push("x", DAY).unwrap();
    clock.advance(DAY).unwrap();
    assert_eq!((first_bell.rings(), second_bell.rings()), (1, 0));

    drop(first);
    assert_eq!(second_bell.rings(), 1);
    assert_eq!(poll(second.as_mut(), &second_bell), Poll::Ready(Some("x")));
}

/// C3
#[test]
fn a_cancelled_head_costs_one_idle_look_and_no_more() {
    let (clock, queue) = on_virtual_clock();
    let start = clock.now();
    let head = queue.push("head", DAY).unwrap();
    queue.push("next", 3 * DAY).unwrap();
    let consumer = background_with(&queue, DelayQueue::take);
    wait_for_sleepers(&clock, 1);
    queue.cancel(head).unwrap();
    assert_eq!(shown(&clock, "busy"), 0, "nobody is woken by the cancel itself");
    clock.advance(2 * DAY).unwrap();
    assert_eq!(clock.pending(), [start + 3 * DAY]);
    clock.advance(DAY).unwrap();
    assert_eq!(consumer.outcome(), Some("next"));
}

/// C4: every timed wait goes through the clock, so the instants it lists are all the wake-ups there will be.
#[test]
fn far_entries_cause_one_wake_up_each_and_none_in_between() {
    let (clock, queue) = on_virtual_clock();
    let start = clock.now();
    for n in 0..10_000 {
        queue.push(n, YEAR + n * ms(1)).unwrap();
    }
    let bell = Bell::new();
    let mut future = pin!(queue.take_async());
    assert!(poll(future.as_mut(), &bell).is_pending());
    clock.settle().unwrap();
    for _ in 0..364 {
        assert_eq!(clock.pending(), [start + YEAR], "one sleeper, armed for the head and nothing else");
        clock.advance(DAY).unwrap();
    }
    clock.advance(DAY - ns(1)).unwrap();
    assert_eq!(bell.rings(), 0);
    clock.advance(ns(1)).unwrap();
    assert_eq!(bell.rings(), 1);
}

/// C4
#[test]
fn a_queue_without_entries_or_consumers_keeps_no_thread() {
    let (clock, queue) = on_virtual_clock();
    let mut future = Box::pin(queue.take_async());
    assert!(poll(future.as_mut(), &Bell::new()).is_pending());
    queue.push("x", DAY).unwrap();
    clock.settle().unwrap();
    assert_eq!(shown(&clock, "sleepers"), 1, "a thread keeps the time for the future");
    drop(future);
    clock.advance(2 * DAY).unwrap();
    assert_eq!(shown(&clock, "sleepers"), 0, "and goes when nobody waits");
    assert_eq!(queue.try_take(), Ok("x"));
}
