//! The delay queue on the system's clock: never early, exactly; late only within a bound so loose that a busy machine
//! keeps it. And what only the operating system can tell: who was woken, and how much memory is held.
#![allow(clippy::disallowed_methods, reason = "this module is about real time")]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use punctual::{Clock, DelayQueue, TakeTimeoutError};

use crate::queue::{Background, SplitMix, background, background_with, block_on, ms};

/// A bound on lateness that only a lost wake-up breaks.
const FAR_TOO_LATE: Duration = Duration::from_secs(30);

/// C1
#[test]
fn on_the_system_clock_nothing_is_early_and_nothing_is_forgotten() {
    for clock in [Clock::system(), Clock::coarse()] {
        let queue = DelayQueue::with_clock(clock);
        let consumers: Vec<_> = (0..4)
            .map(|n| {
                background_with(&queue, move |queue: &DelayQueue<Instant>| {
                    let take = || if n % 2 == 0 { queue.take() } else { block_on(queue.take_async()) };
                    std::iter::from_fn(take).map(|due| (due, Instant::now())).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut random = SplitMix(7);
        let start = Instant::now();
        for _ in 0..2000 {
            let due = start + Duration::from_nanos(random.below(300_000_000));
            queue.push(due, due).unwrap();
        }
        assert!(queue.close().is_empty());
        let taken: Vec<_> = consumers.into_iter().flat_map(Background::outcome).collect();
        assert_eq!(taken.len(), 2000);
        for (due, at) in taken {
            assert!(at >= due, "early by {:?}", due - at);
            assert!(at - due < FAR_TOO_LATE, "late by {:?}", at - due);
        }
    }
}

/// C1
#[test]
fn a_delay_is_counted_from_the_push() {
    let queue = DelayQueue::new();
    for delay in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(10), ms(1), ms(20)] {
        let before = Instant::now();
        queue.push("x", delay).unwrap();
        assert_eq!(queue.take(), Some("x"));
        assert!(before.elapsed() >= delay);
    }
}

/// C3
#[test]
fn an_earlier_push_ends_a_long_sleep() {
    let queue = DelayQueue::new();
    queue.push("tomorrow", Duration::from_secs(24 * 3600)).unwrap();
    let blocking = background_with(&queue, DelayQueue::take);
    let awaiting = background_with(&queue, |queue| block_on(queue.take_async()));
    thread::sleep(ms(20));
    queue.push("now", Duration::ZERO).unwrap();
    queue.push("soon", ms(20)).unwrap();
    let mut got = [blocking.outcome(), awaiting.outcome()];
    got.sort_unstable();
    assert_eq!(got, [Some("now"), Some("soon")]);
}

/// C9
#[test]
fn take_timeout_waits_its_time_and_not_for_ever() {
    let queue = DelayQueue::new();
    queue.push("x", Duration::from_secs(24 * 3600)).unwrap();
    let before = Instant::now();
    assert_eq!(queue.take_timeout(ms(20)), Err(TakeTimeoutError::TimedOut));
    let waited = before.elapsed();
    assert!(waited >= ms(20), "{waited:?}");
    assert!(waited < FAR_TOO_LATE, "{waited:?}");
    queue.push("y", ms(5)).unwrap();
    assert_eq!(queue.take_timeout(FAR_TOO_LATE), Ok("y"));
}

/// C3, C7, C9: everything at once, with as many threads as it takes to collide.
#[test]
fn producers_cancellers_threads_and_futures_lose_nothing_and_double_nothing() {
    const EACH: u64 = 2000;
    let queue = DelayQueue::new();
    let (report, gone) = mpsc::channel();
    let takers: Vec<_> = (0..4u64)
        .map(|n| {
            let report = report.clone();
            background_with(&queue, move |queue: &DelayQueue<u64>| {
                while let Some(item) = take_somehow(queue, n) {
                    report.send(item).expect("the test listens");
                }
            })
        })
        .collect();
    let producers: Vec<_> = (0..3u64)
        .map(|producer| {
            let report = report.clone();
            background_with(&queue, move |queue: &DelayQueue<u64>| {
                let mut random = SplitMix(producer);
                for n in 0..EACH {
                    let delay = Duration::from_nanos(random.below(5_000_000));
                    let key = queue.push(producer * EACH + n, delay).expect("the queue is open");
                    match random.below(8) {
                        0 => {
                            queue.cancel(key).into_iter().for_each(|item| report.send(item).expect("the test listens"))
                        }
                        1 => drop(queue.reschedule(key, Duration::from_nanos(random.below(5_000_000)))),
                        _ => {}
                    }
                }
            })
        })
        .collect();
    drop(report);
    producers.into_iter().for_each(Background::outcome);
    assert!(queue.close().is_empty());
    takers.into_iter().for_each(Background::outcome);
    let mut gone: Vec<_> = gone.iter().collect();
    gone.sort_unstable();
    assert!(gone.into_iter().eq(0..3 * EACH), "each entry once");
}

/// One taker blocks, one gives up and comes back, one awaits, one drops its future now and then.
fn take_somehow(queue: &DelayQueue<u64>, how: u64) -> Option<u64> {
    loop {
        match how {
            0 => return queue.take(),
            1 => match queue.take_timeout(Duration::from_micros(300)) {
                Ok(item) => return Some(item),
                Err(TakeTimeoutError::TimedOut) => {}
                Err(TakeTimeoutError::Closed) => return None,
            },
            2 => return block_on(queue.take_async()),
            _ => {
                let mut future = Box::pin(queue.take_async());
                let bell = crate::queue::Bell::new();
                if let std::task::Poll::Ready(item) = crate::queue::poll(future.as_mut(), &bell) {
                    return item;
                }
                thread::yield_now();
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    //! What the kernel counted. Tests that are about the whole process run in one of their own.

    use super::*;

    /// C3
    #[test]
    fn only_a_new_head_wakes_the_sleeper_and_then_only_the_leader() {
        let queue = DelayQueue::new();
        let head = Instant::now() + Duration::from_secs(3600);
        queue.push(0, head).unwrap();
        let leader = Sleeper::new(&queue);
        leader.wait_until_asleep();
        let followers: Vec<_> = (0..3).map(|_| Sleeper::new(&queue)).collect();
        followers.iter().for_each(Sleeper::wait_until_asleep);

        let everybody = || std::iter::once(&leader).chain(&followers).map(Sleeper::switches).collect::<Vec<_>>();
        let before = everybody();
        for n in 1..=5000 {
            queue.push(n, head + ms(n)).unwrap();
        }
        assert_eq!(everybody(), before, "none of these was a new head");

        for n in 1..=50 {
            queue.push(n, head - ms(n)).unwrap();
            leader.wait_until_asleep();
        }
        let after = everybody();
        assert!(after[0] >= before[0] + 50, "the leader was woken each time and armed itself anew");
        assert_eq!(after[1..], before[1..], "its followers slept on");
        queue.close_now();
    }

    /// C4
    #[test]
    fn a_million_far_entries_cause_no_wake_ups_at_all() {
        alone("real_time_queue::linux::a_million_far_entries_cause_no_wake_ups_at_all", || {
            let queue = DelayQueue::new();
            for n in 0..1_000_000u64 {
                queue.push(n, Duration::from_secs(3600) + ms(n)).unwrap();
            }
            let blocking = Sleeper::new(&queue);
            blocking.wait_until_asleep();
            let futures = DelayQueue::new();
            futures.push(0, Duration::from_secs(3600)).unwrap();
            // Nobody leads this queue, so its own thread keeps the time.
            let awaiting = background_with(&futures, |futures| block_on(futures.take_async()));

            let before = switches_when_all_sleep();
            thread::sleep(ms(500));
            assert_eq!(switches_of_all_other_threads(), before);
            queue.close_now();
            futures.close_now();
            assert_eq!(awaiting.outcome(), None);
        });
    }

    /// C8
    #[test]
    fn a_million_cancelled_far_entries_leave_memory_where_it_began() {
        alone("real_time_queue::linux::a_million_cancelled_far_entries_leave_memory_where_it_began", || {
            let queue = DelayQueue::new();
            queue.push([0u64; 16], Duration::from_secs(3600)).unwrap();
            let churn = |pairs: u64| {
                for n in 0..pairs {
                    let key = queue.push([n; 16], Duration::from_secs(3600 + n)).unwrap();
                    assert_eq!(queue.cancel(key), Some([n; 16]));
                }
            };
            churn(1000);
            let before = resident_kib();
            churn(1_000_000);
            let grown = resident_kib().saturating_sub(before);
            // An entry is 150 bytes or more and its bookkeeping 16: kept, they would be 16 MiB at the very least.
            assert!(grown < 4 * 1024, "{grown} KiB more");
        });
    }

    /// Runs the test again in a process of its own, where its numbers are about nothing else.
    fn alone(test: &str, body: impl FnOnce()) {
        if std::env::var_os("PUNCTUAL_TEST_ALONE").is_some() {
            return body();
        }
        let this = std::env::current_exe().expect("the test binary has a path");
        let run = std::process::Command::new(this)
            .args(["--exact", test, "--test-threads=1"])
            .env("PUNCTUAL_TEST_ALONE", "1")
            .output()
            .expect("the test binary starts");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
    }

    /// A thread that blocks in `take` until the queue ends.
    struct Sleeper {
        task: String,
    }

    impl Sleeper {
        fn new(queue: &DelayQueue<u64>) -> Self {
            let (tell, told) = mpsc::channel();
            let queue = queue.clone();
            drop(background(move || {
                tell.send(own_task()).expect("the test listens");
                while queue.take().is_some() {}
            }));
            Self { task: told.recv().expect("the thread says which one it is") }
        }

        fn switches(&self) -> u64 {
            switches(&self.task).expect("the thread is there")
        }

        /// Asleep, and for good: twice the same count, with time in between.
        fn wait_until_asleep(&self) {
            loop {
                let before = self.switches();
                thread::sleep(ms(2));
                if field(&self.task, "State:").is_some_and(|state| state.starts_with('S')) && self.switches() == before
                {
                    return;
                }
            }
        }
    }

    /// Where the kernel describes the calling thread.
    fn own_task() -> String {
        let link = std::fs::read_link("/proc/thread-self").expect("Linux has /proc");
        format!("/proc/{}", link.display())
    }

    /// How often a thread went to sleep of its own accord: once for every wake-up.
    fn switches(task: &str) -> Option<u64> {
        field(task, "voluntary_ctxt_switches:")?.parse().ok()
    }

    fn switches_of_all_other_threads() -> Vec<(String, u64)> {
        let own = own_task();
        let own_id = own.rsplit('/').next().expect("a path has a last part").to_owned();
        let mut all: Vec<_> = std::fs::read_dir("/proc/self/task")
            .expect("Linux has /proc")
            .filter_map(|task| Some(task.ok()?.file_name().to_string_lossy().into_owned()))
            .filter(|id| *id != own_id)
            .filter_map(|id| Some((id.clone(), switches(&format!("/proc/self/task/{id}"))?)))
            .collect();
        all.sort_unstable();
        all
    }

    /// Waits until the queue's own thread is there and everybody has gone to sleep.
    fn switches_when_all_sleep() -> Vec<(String, u64)> {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < FAR_TOO_LATE, "the threads go to sleep");
            let before = switches_of_all_other_threads();
            thread::sleep(ms(50));
            let is = |id: &str, name, value| {
                field(&format!("/proc/self/task/{id}"), name).is_some_and(|is| is.starts_with(value))
            };
            let started = before.iter().any(|(id, _)| is(id, "Name:", "punctual-queue"));
            let asleep = before.iter().all(|(id, _)| is(id, "State:", "S"));
            if started && asleep && switches_of_all_other_threads() == before {
                return before;
            }
        }
    }

    fn resident_kib() -> u64 {
        let rss = field("/proc/self", "VmRSS:").expect("the kernel tells");
        rss.trim_end_matches("kB").trim().parse().expect("a number of KiB")
    }

    fn field(task: &str, name: &str) -> Option<String> {
        let status = std::fs::read_to_string(format!("{task}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    }
}
