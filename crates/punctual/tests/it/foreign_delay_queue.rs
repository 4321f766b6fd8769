//! What others promise of their delay queues, held against ours: the behaviours that the JDK's conformance kit asserts
//! of Java's `DelayQueue`, and that tokio-util's tests assert of its own. Written anew in our terms;
//! `docs/foreign-suites.md` lists which is which, and what has no counterpart.

mod jdk {
    use std::collections::HashSet;
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    use punctual::{DelayQueue, PushError, TakeTimeoutError, TryTakeError, VirtualClock};

    use crate::queue::{Background, DAY, background_with, ms, ns, on_virtual_clock, wait_for_sleepers};

    const SIZE: u64 = 32;

    /// A queue in which 0, 1, 2 .. are due in this order, pushed in another.
    fn filled() -> (VirtualClock, DelayQueue<u64>) {
        let (clock, queue) = on_virtual_clock();
        let now = clock.now();
        for n in (0..SIZE).rev().step_by(2).chain((0..SIZE).step_by(2)) {
            queue.push(n, now + ns(n)).expect("the queue is open");
        }
        clock.advance(ns(SIZE)).expect("nobody is busy");
        assert_eq!(queue.len() as u64, SIZE);
        (clock, queue)
    }

    #[test]
    fn a_new_queue_has_no_bound() {
        let (_clock, queue) = on_virtual_clock();
        assert!((0..50_000).all(|n| queue.push(n, DAY).is_ok()));
        assert_eq!(queue.len(), 50_000);
    }

    #[test]
    fn everything_pushed_comes_out_in_order() {
        let (_clock, queue) = filled();
        assert!((0..SIZE).all(|n| queue.try_take() == Ok(n)));
        assert!(queue.is_empty());
    }

    #[test]
    fn empty_before_the_first_push_and_after_the_last_take() {
        let (_clock, queue) = on_virtual_clock();
        assert!(queue.is_empty());
        queue.push(1, Duration::ZERO).unwrap();
        assert!(!queue.is_empty());
        queue.push(2, Duration::ZERO).unwrap();
        assert_eq!((queue.try_take(), queue.try_take()), (Ok(1), Ok(2)));
        assert!(queue.is_empty());
    }

    #[test]
    fn the_length_counts_up_with_pushes_and_down_with_takes() {
        let (_clock, queue) = on_virtual_clock();
        for n in 0..20 {
            assert_eq!(queue.len(), n);
            queue.push(n, Duration::ZERO).unwrap();
        }
        for n in 0..20 {
            assert_eq!(queue.len(), 20 - n);
            assert_eq!(queue.try_take(), Ok(n));
        }
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_push_waits_for_nobody() {
        let queue = DelayQueue::bounded_with_clock(4, VirtualClock::new());
        let producer =
            background_with(&queue, |queue| (0..6).filter_map(|n| queue.push(n, DAY).err()).collect::<Vec<_>>());
        assert_eq!(producer.outcome(), [PushError::Full(4), PushError::Full(5)], "refused at once, not after a while");
        assert_eq!(queue.len(), 4);
    }

    #[test]
    fn take_gives_what_is_due_in_order_and_then_blocks() {
        let (clock, queue) = filled();
        let consumer = background_with(&queue, |queue| {
            let due: Vec<_> = (0..SIZE).map(|_| queue.take()).collect();
            (due, queue.take())
        });
        wait_for_sleepers(&clock, 1);
        queue.close();
        assert_eq!(consumer.outcome(), ((0..SIZE).map(Some).collect(), None));
    }

    #[test]
    fn try_take_succeeds_until_nothing_is_left() {
        let (_clock, queue) = filled();
        let taken: Vec<_> = std::iter::from_fn(|| queue.try_take().ok()).collect();
        assert!(taken.into_iter().eq(0..SIZE));
        assert_eq!(queue.try_take(), Err(TryTakeError::NotDue(None)));
    }

    #[test]
    fn a_zero_time_out_takes_what_is_due_and_waits_for_nothing() {
        let (_clock, queue) = filled();
        assert!((0..SIZE).all(|n| queue.take_timeout(Duration::ZERO) == Ok(n)));
        assert_eq!(queue.take_timeout(Duration::ZERO), Err(TakeTimeoutError::TimedOut));
    }

    #[test]
    fn take_timeout_takes_at_once_while_it_can_and_then_waits_its_time() {
        let (clock, queue) = filled();
        let before = clock.now();
        assert!(
            (0..SIZE).all(|n| queue.take_timeout(DAY) == Ok(n)),
            "nobody moves the clock: these cannot have waited"
        );
        let consumer = background_with(&queue, |queue| queue.take_timeout(DAY));
        wait_for_sleepers(&clock, 1);
        assert_eq!(clock.pending(), [before + DAY]);
        clock.advance(DAY).unwrap();
        assert_eq!(consumer.outcome(), Err(TakeTimeoutError::TimedOut));
    }

    #[test]
    fn peek_names_the_next_to_leave_or_nothing() {
        let (_clock, queue) = filled();
        for n in 0..SIZE {
            let next = queue.peek().unwrap();
            assert_eq!(queue.try_take(), Ok(n));
            assert_ne!(queue.peek().map(|entry| entry.key), Some(next.key));
            assert_eq!(queue.cancel(next.key), None, "it was the one that left");
        }
        assert_eq!(queue.peek(), None);
    }

    #[test]
    fn an_entry_is_listed_until_it_leaves() {
        let (_clock, queue) = on_virtual_clock();
        let keys: Vec<_> = (0..20).map(|n| queue.push(n, Duration::ZERO).unwrap()).collect();
        let is_listed = |key| queue.entries().iter().any(|entry| entry.key == key);
        for (n, &key) in keys.iter().enumerate() {
            assert!(is_listed(key));
            assert_eq!(queue.try_take(), Ok(n));
            assert!(!is_listed(key));
        }
    }

    #[test]
    fn clear_empties_and_the_queue_can_be_filled_again() {
        let (_clock, queue) = filled();
        assert!(queue.clear().into_iter().eq(0..SIZE));
        assert_eq!((queue.len(), queue.is_empty()), (0, true));
        let key = queue.push(1, DAY).unwrap();
        assert_eq!(queue.peek().map(|entry| entry.key), Some(key));
        assert_eq!(queue.clear(), [1]);
        assert!(queue.is_empty());
    }

    #[test]
    fn entries_lists_everything_once_in_the_order_of_leaving() {
        let (_clock, queue) = filled();
        let listed = queue.entries();
        let distinct: HashSet<_> = listed.iter().map(|entry| entry.key).collect();
        assert_eq!(distinct.len() as u64, SIZE);
        for entry in listed {
            assert_eq!(queue.peek(), Some(entry));
            queue.try_take().unwrap();
        }
        assert!(queue.entries().is_empty());
    }

    #[test]
    fn what_is_listed_can_be_cancelled() {
        let (_clock, queue) = on_virtual_clock();
        for n in [2, 1, 3] {
            queue.push(n, n * DAY).unwrap();
        }
        assert_eq!(queue.cancel(queue.entries()[0].key), Some(1));
        assert_eq!(queue.clear(), [2, 3]);
    }

    #[test]
    fn a_timed_take_on_one_thread_gets_what_another_pushes() {
        let (clock, queue) = on_virtual_clock();
        let consumer = background_with(&queue, |queue| (queue.try_take(), queue.take_timeout(DAY), queue.is_empty()));
        wait_for_sleepers(&clock, 1);
        let producer = background_with(&queue, |queue| queue.push(1, Duration::ZERO).is_ok());
        assert!(producer.outcome());
        assert_eq!(consumer.outcome(), (Err(TryTakeError::NotDue(None)), Ok(1), true));
    }

    #[test]
    fn entries_pushed_in_reverse_leave_in_order_each_after_its_delay() {
        let (clock, queue) = on_virtual_clock();
        for n in (1..=SIZE).rev() {
            queue.push(n, ms(n)).unwrap();
        }
        for n in 1..=SIZE {
            clock.advance(ms(1) - ns(1)).unwrap();
            assert!(queue.try_take().is_err());
            clock.advance(ns(1)).unwrap();
            assert_eq!(queue.take(), Some(n));
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn an_entry_far_from_due_is_seen_but_not_taken() {
        let (clock, queue) = on_virtual_clock();
        queue.push("x", Duration::from_nanos(i64::MAX.unsigned_abs())).unwrap();
        assert!(queue.peek().is_some());
        assert!(matches!(queue.try_take(), Err(TryTakeError::NotDue(Some(_)))));
        let consumer = background_with(&queue, |queue| queue.take_timeout(ms(12)));
        wait_for_sleepers(&clock, 1);
        clock.advance(ms(12)).unwrap();
        assert_eq!(consumer.outcome(), Err(TakeTimeoutError::TimedOut));
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn drain_due_moves_the_first_n_in_order() {
        for n in 0..SIZE + 2 {
            let (_clock, queue) = filled();
            let drained = queue.drain_due(usize::try_from(n).unwrap());
            assert!(drained.into_iter().eq(0..n.min(SIZE)));
            assert_eq!(queue.len() as u64, SIZE - n.min(SIZE));
        }
        let (_clock, queue) = filled();
        assert!(queue.drain_due(usize::MAX).into_iter().eq(0..SIZE));
        queue.push(7, Duration::ZERO).unwrap();
        queue.push(8, Duration::ZERO).unwrap();
        assert_eq!(queue.drain_due(usize::MAX), [7, 8], "and again");
    }

    #[test]
    fn draining_none_changes_nothing() {
        let (_clock, queue) = on_virtual_clock();
        assert!(queue.drain_due(0).is_empty());
        queue.push(1, Duration::ZERO).unwrap();
        assert!(queue.drain_due(0).is_empty());
        assert_eq!(queue.try_take(), Ok(1));
    }

    #[test]
    fn draining_while_others_push_and_look_loses_nothing_and_keeps_the_order() {
        const COUNT: u64 = 20_000;
        let (_clock, queue) = filled();
        queue.clear();
        let start = Arc::new(Barrier::new(3));
        let at_once = |work: fn(&DelayQueue<u64>) -> Vec<u64>| {
            let start = Arc::clone(&start);
            background_with(&queue, move |queue| {
                start.wait();
                work(queue)
            })
        };
        let producer = at_once(|queue| {
            assert!((0..COUNT).all(|n| queue.push(n, Duration::ZERO).is_ok()));
            queue.close()
        });
        let drainer = at_once(|queue| {
            let mut drained = Vec::new();
            while !(queue.is_closed() && queue.is_empty()) {
                drained.extend(queue.drain_due(if drained.len() % 2 == 0 { 100 } else { usize::MAX }));
            }
            drained
        });
        let onlooker = at_once(|queue| {
            while !queue.is_closed() {
                let listed = queue.entries();
                assert!(listed.windows(2).all(|pair| pair[0].due <= pair[1].due && pair[0].key != pair[1].key));
            }
            Vec::new()
        });
        assert!(producer.outcome().is_empty() && onlooker.outcome().is_empty());
        assert!(drainer.outcome().into_iter().eq(0..COUNT));
    }

    #[test]
    fn whoever_pushes_and_then_takes_always_finds_something() {
        let (_clock, queue) = on_virtual_clock();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                background_with(&queue, |queue| {
                    let pushed_and_found = |n| {
                        queue.push(n, Duration::ZERO).expect("the queue is open");
                        queue.peek().is_some() && queue.try_take().is_ok()
                    };
                    (0..5000).filter(|&n| !pushed_and_found(n)).count()
                })
            })
            .collect();
        assert_eq!(threads.into_iter().map(Background::outcome).sum::<usize>(), 0);
    }

    #[test]
    fn a_timed_take_fails_before_the_push_and_succeeds_after() {
        let (clock, queue) = on_virtual_clock();
        let consumer = background_with(&queue, |queue| [queue.take_timeout(ms(12)), queue.take_timeout(DAY)]);
        wait_for_sleepers(&clock, 1);
        clock.advance(ms(12)).unwrap();
        wait_for_sleepers(&clock, 1);
        queue.push("x", Duration::ZERO).unwrap();
        assert_eq!(consumer.outcome(), [Err(TakeTimeoutError::TimedOut), Ok("x")]);
    }

    #[test]
    fn waits_on_an_empty_queue_can_be_ended_and_begin_no_more() {
        let (clock, queue) = on_virtual_clock::<u8>();
        let untimed = background_with(&queue, DelayQueue::take);
        let timed = background_with(&queue, |queue| queue.take_timeout(DAY));
        wait_for_sleepers(&clock, 2);
        queue.close();
        assert_eq!(untimed.outcome(), None);
        assert_eq!(timed.outcome(), Err(TakeTimeoutError::Closed));
        assert_eq!(queue.take(), None);
        assert_eq!(queue.take_timeout(DAY), Err(TakeTimeoutError::Closed));
    }

    #[test]
    fn cancelling_twice_finds_each_entry_once_and_spares_its_neighbours() {
        let (_clock, queue) = on_virtual_clock();
        let keys: Vec<_> = (0..20).map(|n| queue.push(n, DAY).unwrap()).collect();
        let is_listed = |n: usize| queue.entries().iter().any(|entry| entry.key == keys[n]);
        for n in (1..20).step_by(2) {
            assert_eq!((queue.cancel(keys[n]), queue.cancel(keys[n])), (Some(n), None));
            assert!(is_listed(n - 1) && !is_listed(n) && (n + 1 == 20 || is_listed(n + 1)));
        }
        for n in (0..20).step_by(2).rev() {
            assert_eq!((queue.cancel(keys[n]), queue.cancel(keys[n + 1])), (Some(n), None));
        }
        assert!(queue.is_empty());
    }
}

mod tokio_util {
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use punctual::DelayQueue;

    use crate::queue::{Bell, DAY, YEAR, ms, ns, on_virtual_clock, poll};

    /// One poll of a new future, for tests in which nobody waits.
    fn poll_once<T: Send + 'static>(queue: &DelayQueue<T>) -> Poll<Option<T>> {
        poll(pin!(queue.take_async()), &Bell::new())
    }

    #[test]
    fn pushes_for_now_are_ready_at_the_first_poll_in_order() {
        let (clock, queue) = on_virtual_clock();
        for n in 1..=3 {
            queue.push(n, clock.now()).unwrap();
        }
        for n in 1..=3 {
            assert_eq!(poll_once(&queue), Poll::Ready(Some(n)));
        }
        assert!(poll_once(&queue).is_pending());
    }

    #[test]
    fn a_future_is_told_at_the_due_instant_and_not_before() {
        let (clock, queue) = on_virtual_clock();
        queue.push("x", ms(5)).unwrap();
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        assert!(poll(take.as_mut(), &bell).is_pending());
        clock.advance(ms(5) - ns(1)).unwrap();
        assert_eq!(bell.rings(), 0);
        clock.advance(ns(1)).unwrap();
        assert_eq!(bell.rings(), 1);
        assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("x")));
    }

    #[test]
    fn delays_of_many_magnitudes_ring_once_each_and_never_in_between() {
        let (clock, queue) = on_virtual_clock();
        let delays = [1000, 2, 234, 300_000, 60, 10];
        for n in delays {
            queue.push(n, ms(n)).unwrap();
        }
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        let mut heard = 0;
        assert!(poll(take.as_mut(), &bell).is_pending());
        for elapsed in 1..=1200 {
            clock.advance(ms(1)).unwrap();
            if delays.contains(&elapsed) {
                heard += 1;
                assert_eq!(bell.rings(), heard, "at {elapsed} ms");
                assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some(elapsed)));
                assert!(poll(take.as_mut(), &bell).is_pending());
            }
            assert_eq!(bell.rings(), heard, "at {elapsed} ms");
        }
    }

    #[test]
    fn a_past_instant_is_ready_at_once() {
        let (clock, queue) = on_virtual_clock();
        let past = clock.now();
        clock.advance(ms(10)).unwrap();
        queue.push("x", past).unwrap();
        assert_eq!(poll_once(&queue), Poll::Ready(Some("x")));
    }

    #[test]
    fn a_past_push_rings_a_waiting_future_at_once() {
        let (clock, queue) = on_virtual_clock();
        let start = clock.now();
        queue.push("later", ms(200)).unwrap();
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        assert!(poll(take.as_mut(), &bell).is_pending());
        clock.advance(ms(80)).unwrap();
        assert_eq!(bell.rings(), 0);
        queue.push("past", start + ms(40)).unwrap();
        assert_eq!(bell.rings(), 1);
        assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("past")));
    }

    #[test]
    fn a_cancelled_entry_never_comes_due_or_not() {
        let (clock, queue) = on_virtual_clock();
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        let waiting = queue.push("waiting", ms(5)).unwrap();
        assert!(poll(take.as_mut(), &bell).is_pending());
        assert_eq!(queue.cancel(waiting), Some("waiting"));
        clock.advance(ms(10)).unwrap();
        assert_eq!(bell.rings(), 0);
        assert!(poll(take.as_mut(), &bell).is_pending());

        let due = queue.push("due", clock.now() - ms(10)).unwrap();
        assert_eq!(queue.cancel(due), Some("due"));
        assert!(poll(take.as_mut(), &bell).is_pending());
    }

    #[test]
    fn a_postponed_entry_rings_at_its_new_instant_only() {
        let (clock, queue) = on_virtual_clock();
        let start = clock.now();
        let key = queue.push("x", ms(5)).unwrap();
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        assert!(poll(take.as_mut(), &bell).is_pending());
        clock.advance(ms(1)).unwrap();
        assert!(queue.reschedule(key, start + ms(10)));
        clock.advance(ms(9) - ns(1)).unwrap();
        assert_eq!(bell.rings(), 0);
        clock.advance(ns(1)).unwrap();
        assert_eq!(bell.rings(), 1);
        assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("x")));
    }

    #[test]
    fn an_entry_moved_into_the_past_rings_at_once() {
        let (clock, queue) = on_virtual_clock();
        let past = clock.now();
        clock.advance(DAY).unwrap();
        let key = queue.push("x", ms(10_000)).unwrap();
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        assert!(poll(take.as_mut(), &bell).is_pending());
        assert!(queue.reschedule(key, past));
        assert_eq!(bell.rings(), 1);
        assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("x")));
    }

    #[test]
    fn an_entry_brought_forward_rings_early_however_often_it_is_moved() {
        for moves in [&[10][..], &[50, 40], &[150, 100, 170, 30]] {
            let (clock, queue) = on_virtual_clock();
            let start = clock.now();
            let key = queue.push("x", ms(200)).unwrap();
            let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
            assert!(poll(take.as_mut(), &bell).is_pending());
            for &to in moves {
                clock.advance(ms(3)).unwrap();
                assert!(queue.reschedule(key, start + ms(to)));
            }
            let last = start + ms(*moves.last().unwrap());
            clock.advance_to(last - ns(1)).unwrap();
            assert_eq!(bell.rings(), 0, "{moves:?}");
            clock.advance_to(last).unwrap();
            assert_eq!(bell.rings(), 1, "{moves:?}");
            assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("x")));
        }
    }

    #[test]
    fn a_due_entry_can_be_postponed_again_and_again() {
        let (clock, queue) = on_virtual_clock();
        let start = clock.now();
        clock.advance(ms(100)).unwrap();
        let key = queue.push("x", start).unwrap();
        for to in [300, 250, 100, 200] {
            assert!(queue.reschedule(key, start + ms(to)));
            assert_eq!(queue.len(), 1);
        }
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        assert!(poll(take.as_mut(), &bell).is_pending());
        clock.advance(ms(100)).unwrap();
        assert_eq!(bell.rings(), 1);
        assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("x")));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn one_of_two_equals_can_be_cancelled_after_the_other_left() {
        // Where digits of the time roll over, in whatever unit a wheel may count.
        for delay in [ms(64), ns(64 << 20), ms(4096), ns(4096 << 20), ns(1 << 42)] {
            let (clock, queue) = on_virtual_clock();
            queue.push("first", delay).unwrap();
            let second = queue.push("second", delay).unwrap();
            clock.advance(delay + ms(16)).unwrap();
            assert_eq!(poll_once(&queue), Poll::Ready(Some("first")));
            assert_eq!(queue.cancel(second), Some("second"), "{delay:?}");
        }
    }

    #[test]
    fn a_push_before_the_head_is_told_in_time() {
        for (head, earlier) in [(10_000, 600), (200, 100)] {
            let (clock, queue) = on_virtual_clock();
            queue.push("head", ms(head)).unwrap();
            let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
            assert!(poll(take.as_mut(), &bell).is_pending());
            queue.push("earlier", ms(earlier)).unwrap();
            clock.advance(ms(earlier - 1)).unwrap();
            assert_eq!(bell.rings(), 0);
            assert!(poll(take.as_mut(), &bell).is_pending());
            clock.advance(ms(1)).unwrap();
            assert_eq!(bell.rings(), 1);
            assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("earlier")));
        }
    }

    #[test]
    fn entries_postponed_past_each_other_leave_in_their_new_order() {
        let (clock, queue) = on_virtual_clock();
        let start = clock.now();
        let one = queue.push("one", ms(200)).unwrap();
        let two = queue.push("two", ms(250)).unwrap();
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        assert!(poll(take.as_mut(), &bell).is_pending());
        for (key, to) in [(one, 300), (two, 350), (one, 400)] {
            assert!(queue.reschedule(key, start + ms(to)));
        }
        clock.advance(ms(350) - ns(1)).unwrap();
        assert!(poll(take.as_mut(), &bell).is_pending());
        clock.advance(ns(1)).unwrap();
        assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("two")));
        assert!(poll(take.as_mut(), &bell).is_pending());
        clock.advance(ms(50)).unwrap();
        assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("one")));
    }

    #[test]
    fn either_of_two_can_be_brought_forward() {
        for which in ["one", "two"] {
            let (clock, queue) = on_virtual_clock();
            let one = queue.push("one", ms(200)).unwrap();
            let two = queue.push("two", ms(250)).unwrap();
            let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
            assert!(poll(take.as_mut(), &bell).is_pending());
            assert!(queue.reschedule(if which == "one" { one } else { two }, ms(100)));
            clock.advance(ms(100)).unwrap();
            assert_eq!(bell.rings(), 1);
            assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some(which)));
        }
    }

    #[test]
    fn postponing_the_first_uncovers_the_second() {
        let (clock, queue) = on_virtual_clock();
        let one = queue.push("one", ms(200)).unwrap();
        queue.push("two", ms(250)).unwrap();
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        assert!(poll(take.as_mut(), &bell).is_pending());
        assert!(queue.reschedule(one, ms(300)));
        clock.advance(ms(250)).unwrap();
        assert_eq!(bell.rings(), 1);
        assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("two")));
    }

    #[test]
    fn pushes_between_takes_do_not_disturb_what_is_due() {
        let (clock, queue) = on_virtual_clock();
        for n in 1..=3 {
            queue.push(n, ms(100)).unwrap();
        }
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        assert!(poll(take.as_mut(), &bell).is_pending());
        clock.advance(ms(100)).unwrap();
        assert_eq!(bell.rings(), 1);
        for n in 1..=3 {
            assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some(n)));
            queue.push(0, ms(400)).unwrap();
        }
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn an_entry_moved_long_after_the_last_poll_rings_at_its_new_instant_only() {
        for first in [100, 200] {
            let (clock, queue) = on_virtual_clock();
            let start = clock.now();
            let key = queue.push("x", ms(first)).unwrap();
            let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
            assert!(poll(take.as_mut(), &bell).is_pending());
            clock.advance(ms(80)).unwrap();
            assert!(queue.reschedule(key, start + ms(120)));
            clock.advance(ms(40) - ns(1)).unwrap();
            assert_eq!(bell.rings(), 0);
            clock.advance(ns(1)).unwrap();
            assert_eq!(bell.rings(), 1);
            assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("x")));
        }
    }

    #[test]
    fn an_open_queue_that_falls_empty_keeps_its_futures_waiting() {
        let (clock, queue) = on_virtual_clock();
        let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
        let key = queue.push("x", ms(1000)).unwrap();
        assert!(poll(take.as_mut(), &bell).is_pending());
        queue.cancel(key).unwrap();
        queue.push("y", ms(1000)).unwrap();
        queue.clear();
        assert_eq!(bell.rings(), 0, "there may be more to come");
        assert!(poll(take.as_mut(), &bell).is_pending());
        queue.push("z", Duration::ZERO).unwrap();
        assert_eq!(bell.rings(), 1);
        clock.settle().unwrap();
        assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(Some("z")));
    }

    #[test]
    fn a_closed_queue_that_falls_empty_tells_its_futures() {
        for cancel in [true, false] {
            let (_clock, queue) = on_virtual_clock();
            let (mut take, bell) = (pin!(queue.take_async()), Bell::new());
            let key = queue.push("x", ms(1000)).unwrap();
            queue.close();
            assert!(poll(take.as_mut(), &bell).is_pending());
            let left = if cancel { queue.cancel(key).into_iter().collect() } else { queue.clear() };
            assert_eq!(left, ["x"]);
            assert_eq!(bell.rings(), 1);
            assert_eq!(poll(take.as_mut(), &bell), Poll::Ready(None));
        }
    }

    #[test]
    fn keys_outlast_the_comings_and_goings_of_others() {
        let (clock, queue) = on_virtual_clock();
        let gone: Vec<_> = (0..5000).map(|n| queue.push(n, ms(10)).unwrap()).collect();
        let cancelled = queue.push(-1, ms(20)).unwrap();
        let moved = queue.push(-2, ms(20)).unwrap();
        clock.advance(ms(10)).unwrap();
        assert_eq!(queue.drain_due(usize::MAX).len(), 5000);
        queue.push(-3, ms(5)).unwrap();
        assert_eq!(queue.cancel(cancelled), Some(-1));
        assert!(queue.reschedule(moved, ms(5)));
        assert!(gone.iter().all(|&key| queue.cancel(key).is_none()), "a key of an entry that left is harmless");
        clock.advance(ms(5)).unwrap();
        assert_eq!(queue.drain_due(usize::MAX), [-3, -2]);
    }

    #[test]
    fn more_uptime_than_a_wheel_of_milliseconds_has_is_nothing_special() {
        let (clock, queue) = on_virtual_clock();
        for _ in 0..4 {
            clock.advance(Duration::from_millis(1 << 35)).unwrap();
            queue.push(0, Duration::ZERO).unwrap();
            assert_eq!(poll_once(&queue), Poll::Ready(Some(0)));
        }
        assert!(queue.push(1, ms(1)).is_ok());
        assert!(queue.push(2, 3 * YEAR).is_ok(), "nor is a delay longer than that");
        clock.advance(3 * YEAR).unwrap();
        assert_eq!(queue.drain_due(usize::MAX), [1, 2]);
    }

    #[test]
    fn peek_agrees_with_what_is_taken_next_at_every_step() {
        let (clock, queue) = on_virtual_clock();
        let second = queue.push("second", ms(5)).unwrap();
        let first = queue.push("first", Duration::ZERO).unwrap();
        let third = queue.push("third", ms(10)).unwrap();
        let peeked = || queue.peek().map(|entry| entry.key);
        assert_eq!(peeked(), Some(first));
        clock.advance(ms(6)).unwrap();
        assert_eq!(peeked(), Some(first));
        assert_eq!(poll_once(&queue), Poll::Ready(Some("first")));
        assert_eq!(peeked(), Some(second));
        assert_eq!(poll_once(&queue), Poll::Ready(Some("second")));
        assert_eq!(peeked(), Some(third));
        assert!(poll_once(&queue).is_pending());
        clock.advance(ms(5)).unwrap();
        assert_eq!(peeked(), Some(third));
        assert_eq!(poll_once(&queue), Poll::Ready(Some("third")));
        assert_eq!(peeked(), None);
    }
}
