//! The scheduler on a clock that only moves when told: the same threads, the same jobs, and every step in order.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use punctual::{Clock, Cron, Ctx, JobHandle, Scheduler, VirtualClock};

use crate::jobs::{Gate, Log, SOON, block_a_worker, in_time, on_virtual_clock, secs, until};
use crate::queue::{DAY, SplitMix, YEAR, ms, shown};

/// C21
#[test]
fn chains_scheduled_by_jobs_fire_in_the_same_advance_in_order() {
    fn link(ctx: &Ctx, clock: &VirtualClock, log: &Log<Duration>, start: std::time::Instant, left: u32) {
        log.add(clock.now() - start);
        if left > 0 {
            let (clock, log) = (clock.clone(), log.clone());
            let next = move |ctx: Ctx| link(&ctx, &clock, &log, start, left - 1);
            ctx.after(secs(1)).run(next).unwrap().detach();
        }
    }
    let (clock, scheduler) = on_virtual_clock(2);
    let (log, start) = (Log::new(), clock.now());
    let (inner_clock, inner_log) = (clock.clone(), log.clone());
    scheduler.now().run(move |ctx| link(&ctx, &inner_clock, &inner_log, start, 99)).unwrap().detach();
    clock.advance(secs(60)).unwrap();
    assert_eq!(log.all(), (0..=60).map(secs).collect::<Vec<_>>());
    clock.advance(secs(60)).unwrap();
    assert_eq!(log.len(), 100);
}

/// C21: a chain of which every link waits, blocking, for the next.
#[test]
fn a_job_may_block_on_another_jobs_handle() {
    let (clock, scheduler) = on_virtual_clock(3);
    let mut job = scheduler.now().run(|ctx| {
        let mut sum = 0;
        for n in 1..=10 {
            sum += ctx.after(secs(n)).run(move |_| n).unwrap().wait().unwrap();
        }
        sum
    });
    clock.advance(secs(54)).unwrap();
    let job = job.as_mut().unwrap();
    assert_eq!(job.wait_timeout(Duration::ZERO), None);
    clock.advance(secs(1)).unwrap();
    assert_eq!(job.wait(), Ok(55));
}

/// C21: waits with a time-out, and waits for the end, count as quiet too.
#[test]
fn every_wait_of_the_library_counts_as_quiet() {
    let (clock, scheduler) = on_virtual_clock(6);
    let gate = Gate::on(&clock);
    let run = |job: Box<dyn FnOnce(Ctx) + Send>| scheduler.now().run(job).unwrap();
    let never = || scheduler.after(Duration::MAX).run(|_| ()).unwrap();
    let (mut one, mut two, three) = (never(), never(), never());
    let stopped = three.stopped();
    let inner = gate.clone();
    let jobs: Vec<JobHandle<()>> = vec![
        run(Box::new(move |_| _ = one.wait())),
        run(Box::new(move |_| assert_eq!(two.wait_timeout(secs(5)), None))),
        run(Box::new(move |_| stopped.wait())),
        run(Box::new(move |_| inner.pass())),
    ];
    clock.advance(secs(4)).unwrap();
    assert_eq!(scheduler.snapshot().running, 4);
    clock.advance(secs(1)).unwrap();
    assert_eq!(scheduler.snapshot().running, 3, "the one with a time-out gave up");
    three.cancel();
    gate.open();
    clock.settle().unwrap();
    assert_eq!(scheduler.snapshot().running, 1);
    drop(jobs);
}

/// C21
#[test]
fn a_job_that_blocks_elsewhere_stalls_the_clock_and_is_named() {
    let clock = VirtualClock::with_patience(ms(30));
    let scheduler = Scheduler::builder().workers(2).clock(&clock).build().unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    let mut stuck = scheduler.now().name("stuck").run(move |_| blocked.recv().is_err()).unwrap();
    scheduler.after(secs(5)).name("innocent").run(|_| ()).unwrap().detach();
    let before = clock.now();
    let stalled = clock.advance(secs(10)).unwrap_err();
    assert_eq!(stalled.busy().len(), 1, "{stalled}");
    assert!(stalled.busy()[0].contains("\"stuck\""), "{stalled}");
    assert!(stalled.to_string().contains("stuck"), "{stalled}");
    assert_eq!(clock.now(), before, "time stands where the job began");
    assert_eq!(clock.settle().unwrap_err().busy().len(), 1);
    drop(release);
    assert_eq!(stuck.wait(), Ok(true));
    while clock.settle().is_err() {}
    clock.advance(secs(10)).unwrap();
    assert_eq!(scheduler.snapshot().finished.succeeded, 2, "and goes on from there");
}

/// C21
#[test]
fn moving_the_clock_from_inside_a_job_is_an_error_and_not_a_hang() {
    in_time(|| {
        let clock = VirtualClock::with_patience(SOON * 10);
        let scheduler = Scheduler::builder().workers(1).clock(&clock).build().unwrap();
        let inner = clock.clone();
        let mut job = scheduler.now().name("mover").run(move |_| {
            let errors = [inner.advance(secs(1)), inner.settle(), inner.advance_to(inner.now() + secs(1))];
            errors.map(|error| error.unwrap_err().busy().to_vec())
        });
        for busy in job.as_mut().unwrap().wait().unwrap() {
            assert!(busy[0].contains("mover"), "{busy:?}");
        }
    });
}

/// C21: the wall clock of a virtual clock as well.
#[test]
fn stepping_the_wall_from_inside_a_job_is_an_error_and_not_a_hang() {
    in_time(|| {
        let clock = VirtualClock::with_patience(SOON * 10);
        let scheduler = Scheduler::builder().workers(1).clock(&clock).build().unwrap();
        let inner = clock.clone();
        let mut job = scheduler.now().run(move |_| inner.step_wall(UNIX_EPOCH).is_err()).unwrap();
        assert_eq!(job.wait(), Ok(true));
    });
}

/// C21
#[test]
fn a_simulated_year_of_an_hourly_cron_is_quick() {
    let (clock, scheduler) = on_virtual_clock(2);
    let hourly = Cron::parse("0 * * * *").unwrap().in_zone("Europe/Paris").unwrap();
    let series = scheduler.cron(hourly).run(|_| ()).unwrap();
    let real = Clock::system();
    let start = real.now();
    clock.advance(YEAR).unwrap();
    let took = real.now() - start;
    println!("a year of an hourly cron took {took:?}");
    assert_eq!((series.runs(), series.missed()), (365 * 24, 0));
    assert!(took < secs(20), "{took:?}");
}

/// C21: a date ten years ahead costs no more than a delay of ten years.
#[test]
fn a_far_date_is_reached_without_many_steps() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut job = scheduler.at(clock.wall() + YEAR * 10).run(|_| "there").unwrap();
    let real = Clock::system();
    let start = real.now();
    clock.advance(YEAR * 10).unwrap();
    let took = real.now() - start;
    println!("ten years to a date took {took:?}");
    assert_eq!(job.wait(), Ok("there"));
    assert!(took < secs(20), "{took:?}");
}

/// C21
#[test]
fn the_same_seed_gives_the_same_order_of_starts() {
    fn order(seed: u64) -> Vec<(u64, Duration)> {
        let (clock, scheduler) = on_virtual_clock(1);
        let (starts, random) = (Log::new(), Arc::new(Mutex::new(SplitMix(seed))));
        let start = clock.now();
        for n in 0..300 {
            let delay = ms(random.lock().unwrap().below(100));
            let (starts, random, clock) = (starts.clone(), Arc::clone(&random), clock.clone());
            let job = move |ctx: Ctx| {
                starts.add((n, clock.now() - start));
                let delay = ms(random.lock().unwrap().below(50));
                let log = starts.clone();
                ctx.after(delay).run(move |_| log.add((n + 1_000, clock.now() - start))).unwrap().detach();
            };
            scheduler.after(delay + ms(1)).run(job).unwrap().detach();
        }
        clock.advance(secs(1)).unwrap();
        starts.all()
    }
    for seed in 0..5 {
        let first = order(seed);
        assert_eq!(first.len(), 600);
        assert_eq!(first, order(seed), "seed {seed}");
    }
}

/// C21: every due instant is a step of its own, and those of one instant are one step.
#[test]
fn a_job_sees_the_very_instant_it_was_due_at() {
    let (clock, scheduler) = on_virtual_clock(1);
    let late = Log::new();
    let mut random = SplitMix(9);
    for _ in 0..500 {
        let (late, clock) = (late.clone(), clock.clone());
        let job = move |ctx: Ctx| {
            if clock.now() != ctx.due() {
                late.add((ctx.due(), clock.now()));
            }
        };
        scheduler.after(Duration::from_nanos(random.magnitude(50))).run(job).unwrap().detach();
    }
    clock.advance(Duration::from_nanos(1 << 51)).unwrap();
    assert_eq!(late.all(), []);
    assert_eq!(scheduler.snapshot().finished.succeeded, 500);
}

/// C21: two schedulers and a queue may share one clock.
#[test]
fn schedulers_that_share_a_clock_are_quiet_together() {
    let clock = VirtualClock::with_patience(SOON);
    let schedulers = [(); 2].map(|()| Scheduler::builder().workers(1).clock(&clock).build().unwrap());
    let other = schedulers[1].clone();
    let mut job = schedulers[0]
        .now()
        .run(move |_| (0..50u64).fold(0, |sum, n| sum + other.after(secs(1)).run(move |_| n).unwrap().wait().unwrap()));
    clock.advance(secs(50)).unwrap();
    assert_eq!(job.as_mut().unwrap().wait(), Ok((0..50).sum::<u64>()));
}

/// C21: a job of one clock may wait for a job of another; both clocks stay usable.
#[test]
fn a_job_may_wait_for_a_job_on_another_clock() {
    let (here, scheduler) = on_virtual_clock(1);
    let (there, other) = on_virtual_clock(1);
    let mut far = other.after(secs(5)).run(|_| "far").unwrap();
    let mut job = scheduler.now().run(move |_| far.wait()).unwrap();
    until("worker, watch and the job sleep on the other clock", || sleepers(&there) >= 3);
    there.advance(secs(5)).unwrap();
    assert_eq!(job.wait(), Ok(Ok("far")));
    let mut next = scheduler.after(secs(1)).run(|_| "next").unwrap();
    here.advance(secs(1)).expect("this clock is quiet again");
    assert_eq!(next.wait(), Ok("next"));
    there.advance(secs(1)).expect("and so is the other");
}

fn sleepers(clock: &VirtualClock) -> usize {
    shown(clock, "sleepers")
}

/// C21: whoever waits outside of all jobs is quiet as well.
#[test]
fn threads_outside_may_wait_while_the_clock_moves() {
    let (clock, scheduler) = on_virtual_clock(2);
    let waiting: Vec<_> = (1..=20)
        .map(|n| {
            let mut job = scheduler.after(secs(n)).run(move |_| n).unwrap();
            thread::spawn(move || job.wait().unwrap())
        })
        .collect();
    until("all of them sleep", || sleepers(&clock) >= 22);
    clock.advance(secs(20)).unwrap();
    assert_eq!(scheduler.snapshot().finished.succeeded, 20, "all in one advance");
    for (n, thread) in (1..).zip(waiting) {
        assert_eq!(thread.join().unwrap(), n);
    }
}

/// C21: nothing happens by itself.
#[test]
fn time_stands_still_until_it_is_told_to_pass() {
    let (clock, scheduler) = on_virtual_clock(1);
    let before = (clock.now(), clock.wall());
    let mut job = scheduler.after(Duration::from_nanos(1)).run(|_| ()).unwrap();
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    gate.open();
    for _ in 0..100 {
        clock.settle().unwrap();
    }
    assert_eq!((clock.now(), clock.wall()), before);
    assert_eq!(job.wait_timeout(Duration::ZERO), None);
    clock.advance(DAY).unwrap();
    assert_eq!(job.wait(), Ok(()));
}
