//! Limits that are exact: many threads race for few places, and storms of everything leave every limit fully usable.
//!
//! `PUNCTUAL_RACE_OPS` says how many submits race, `PUNCTUAL_SOAK_SEED` which storm. A failure names what replays it.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::panic::catch_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use punctual::{
    Cancel, Ctx, DelayQueue, JobHandle, Limits, Rate, Reason, Scheduler, SeriesHandle, Snapshot, Tenant, VirtualClock,
};

use crate::jobs::{Log, SOON, panic_with, secs, until};
use crate::queue::{SplitMix, from_env, ms};

/// How many are inside at once, as they themselves count it.
#[derive(Default)]
struct Room {
    inside: Mutex<(usize, usize)>,
}

impl Room {
    /// Goes in, and comes out when this is dropped.
    fn enter(self: &Arc<Self>) -> Visit {
        let mut inside = self.inside.lock().unwrap();
        inside.0 += 1;
        inside.1 = inside.1.max(inside.0);
        Visit(Arc::clone(self))
    }

    /// The most there were at once, since this was last asked.
    fn most(&self) -> usize {
        let mut inside = self.inside.lock().unwrap();
        let now = inside.0;
        std::mem::replace(&mut inside.1, now)
    }
}

struct Visit(Arc<Room>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.inside.lock().unwrap().0 -= 1;
    }
}

/// Where jobs wait until all may go on.
#[derive(Default)]
struct Door {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Door {
    fn pass(&self) {
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }

    fn set(&self, open: bool) {
        *self.open.lock().unwrap() = open;
        self.opened.notify_all();
    }
}

fn is_quiet(snapshot: &Snapshot) -> bool {
    (snapshot.scheduled, snapshot.ready, snapshot.running, snapshot.zombies) == (0, 0, 0, 0)
}

/// Every place there is can be had, and not one more.
fn assert_fully_usable(tenant: &Tenant, (running, backlog, scheduled): (usize, usize, usize)) {
    until("all is quiet", || is_quiet(&tenant.snapshot()));
    let door = Arc::new(Door::default());
    let due: Vec<_> = (0..running + backlog)
        .map(|_| {
            let door = Arc::clone(&door);
            tenant.now().run(move |_| door.pass()).unwrap()
        })
        .collect();
    let reason = tenant.now().run(|_| ()).unwrap_err().reason().clone();
    assert!(matches!(reason, Reason::BacklogFull { count, max, .. } if (count, max) == (due.len(), due.len())));
    let later: Vec<_> = (0..scheduled).map(|_| tenant.after(secs(3_600)).run(|_| ()).unwrap()).collect();
    let reason = tenant.after(secs(3_600)).run(|_| ()).unwrap_err().reason().clone();
    assert!(matches!(reason, Reason::ScheduledFull { count, max, .. } if (count, max) == (scheduled, scheduled)));
    until("all permits are taken", || tenant.snapshot().running == running);
    door.set(true);
    due.into_iter().for_each(|mut job| job.wait().unwrap());
    drop(later);
    until("all is quiet again", || is_quiet(&tenant.snapshot()));
}

/// C23: 64 threads race into k places, again and again: exactly k are accepted, whatever else the wheel has in hand.
#[test]
fn sixty_four_threads_race_into_the_places_exactly() {
    const THREADS: usize = 64;
    const TRIES: usize = 4;
    let rounds = from_env("PUNCTUAL_RACE_OPS", 100_000) as usize / (THREADS * TRIES);
    let (running, backlog) = (3, 17);
    let scheduler = Scheduler::builder().workers(running + 1).build().unwrap();
    let acme = scheduler.tenant("acme", Limits::new().running_max(running).backlog_max(backlog)).unwrap();
    let (door, room) = (Arc::new(Door::default()), Arc::new(Room::default()));
    let (accepted, barrier) = (Mutex::new(Vec::new()), Barrier::new(THREADS + 1));
    let mut counts = Vec::new();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..rounds {
                    barrier.wait();
                    for _ in 0..TRIES {
                        let (door, visit) = (Arc::clone(&door), Arc::clone(&room));
                        let job = acme.now().run(move |_| {
                            let _visit = visit.enter();
                            door.pass();
                        });
                        if let Ok(job) = job {
                            accepted.lock().unwrap().push(job);
                        }
                        // Alarms that fall due all the time: a due job may have to stand behind them, and counts all
                        // the same.
                        scheduler.after(Duration::from_nanos(200)).run(|_| ()).unwrap().detach();
                    }
                    barrier.wait();
                }
            });
        }
        for _ in 0..rounds {
            barrier.wait();
            barrier.wait();
            let mut accepted = std::mem::take(&mut *accepted.lock().unwrap());
            // Nothing is asserted here: a panic would leave the others at the barrier.
            counts.push(accepted.len());
            door.set(true);
            accepted.iter_mut().for_each(|job| drop(job.wait()));
            door.set(false);
        }
    });
    assert_eq!(counts, vec![running + backlog; rounds]);
    assert!(room.most() <= running);
    let snapshot = acme.snapshot();
    assert_eq!(snapshot.finished.succeeded as usize, rounds * (running + backlog));
    assert_eq!(snapshot.rejected as usize, rounds * (THREADS * TRIES - running - backlog));
}

/// A waker that submits a job, the first few times.
struct Submitter {
    tenant: Tenant,
    left: AtomicUsize,
    accepted: Mutex<Vec<JobHandle<()>>>,
}

impl Wake for Submitter {
    fn wake(self: Arc<Self>) {
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            let job = self.tenant.now().run(|_| ());
            self.accepted.lock().unwrap().extend(job);
        }
    }
}

/// C23. What went wrong: what is due at its submit stands behind all alarms that are due already. If some of them were
/// yet to be handled it stood among them, and counted as not due, so that more were accepted than there were places.
/// Here the submits come from wakers, which are called between two batches of very many alarms of one instant.
#[test]
fn a_due_job_that_stands_behind_alarms_counts_as_waiting() {
    let clock = VirtualClock::with_patience(SOON);
    let scheduler = Scheduler::builder().workers(1).clock(&clock).build().unwrap();
    let crowd = scheduler.tenant("crowd", Limits::new().running_max(0)).unwrap();
    let tenant = scheduler.tenant("acme", Limits::new().running_max(0).backlog_max(2)).unwrap();
    let submitter = Arc::new(Submitter { tenant, left: AtomicUsize::new(50), accepted: Mutex::default() });
    let waker = Waker::from(Arc::clone(&submitter));
    let mut jobs: Vec<_> = (0..20_000).map(|_| crowd.now().deadline(ms(1)).run(|_| ()).unwrap()).collect();
    for job in &mut jobs {
        assert!(Pin::new(job).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    clock.advance(ms(1)).unwrap();
    assert_eq!((submitter.left.load(Ordering::SeqCst), submitter.accepted.lock().unwrap().len()), (0, 2));
    let snapshot = submitter.tenant.snapshot();
    assert_eq!((snapshot.scheduled, snapshot.ready, snapshot.rejected), (0, 2, 48));
    // The waker holds handles that hold the scheduler.
    submitter.accepted.lock().unwrap().clear();
}

/// C23, C27: as many threads as there are places, each with one job at a time. Whoever has left gets in again: no place
/// is counted a moment too long, and nobody is ever refused.
#[test]
fn who_leaves_a_place_gets_it_again() {
    const THREADS: usize = 64;
    let tries = from_env("PUNCTUAL_RACE_OPS", 100_000) as usize / THREADS;
    let running = 4;
    let scheduler = Scheduler::builder().workers(running).build().unwrap();
    let acme = scheduler.tenant("acme", Limits::new().running_max(running).backlog_max(THREADS - running)).unwrap();
    let room = Arc::new(Room::default());
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (acme, room) = (&acme, &room);
            scope.spawn(move || {
                let mut random = SplitMix(seed as u64);
                for n in 0..tries {
                    let visit = Arc::clone(room);
                    let body = move |_: Ctx| drop(visit.enter());
                    let plan = if random.below(4) == 0 { acme.now().deadline(secs(600)) } else { acme.now() };
                    let mut job = plan.run(body).unwrap_or_else(|refused| panic!("try {n} of {seed}: {refused}"));
                    match random.below(3) {
                        0 => assert!(job.wait().is_ok()),
                        // A place that a running job holds is free when it has stopped.
                        _ => {
                            if job.cancel() == Cancel::Requested {
                                job.stopped().wait();
                            }
                        }
                    }
                }
            });
        }
    });
    assert!(room.most() <= running);
    until("all is quiet", || is_quiet(&acme.snapshot()));
    assert_eq!((acme.snapshot().rejected, acme.snapshot().finished.total() as usize), (0, tries * THREADS));
}

/// C23, C26, C34: limits change under load. From the moment that a lower limit has drained down, the jobs themselves
/// never count more than it allows; and in the end every limit is fully usable.
#[test]
fn limits_that_change_under_load_are_never_exceeded() {
    let rounds = from_env("PUNCTUAL_RACE_OPS", 100_000) / 5_000;
    let scheduler = Scheduler::builder().workers(8).build().unwrap();
    let limits = Limits::new().backlog_max(64).scheduled_max(64);
    let acme = scheduler.tenant("acme", limits).unwrap();
    let (room, over) = (Arc::new(Room::default()), AtomicBool::new(false));
    let submit = |seed: u64| {
        let mut random = SplitMix(seed);
        while !over.load(Ordering::Relaxed) {
            let visit = Arc::clone(&room);
            let fails = random.below(8) == 0;
            let body = move |ctx: Ctx| {
                let _visit = visit.enter();
                (0..5).for_each(|_| thread::yield_now());
                if fails || ctx.is_cancelled() {
                    panic_with("some jobs panic");
                }
            };
            let dropped = match random.below(6) {
                0 => acme.now().run(body).map(drop).is_ok(),
                1 => acme.after(Duration::from_micros(random.below(50))).run(body).map(JobHandle::detach).is_ok(),
                2 => acme.now().deadline(Duration::from_micros(20)).run(body).map(JobHandle::detach).is_ok(),
                3 => acme.now().run(body).map(|job| job.cancel()).is_ok(),
                4 => acme.now().spawn(move |ctx| async move { body(ctx) }).map(JobHandle::detach).is_ok(),
                _ => acme.now().run(body).map(|mut job| drop(job.wait())).is_ok(),
            };
            if !dropped {
                thread::yield_now();
            }
        }
    };
    thread::scope(|scope| {
        (0..4).for_each(|seed| drop(scope.spawn(move || submit(seed))));
        let mut random = SplitMix(99);
        let held = catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..rounds {
                let cap = 1 + random.below(7) as usize;
                acme.set_limits(limits.running_max(cap).weight(1 + random.below(5) as u32));
                until("the lower limit has drained down", || acme.snapshot().running <= cap);
                room.most();
                let before = acme.snapshot().finished.total();
                until("work goes on", || acme.snapshot().finished.total() > before + 200);
                let most = room.most();
                assert!(most <= cap, "{most} at once, of {cap}");
                match random.below(4) {
                    0 => {
                        acme.pause();
                        until("what runs has stopped", || acme.snapshot().running == 0);
                        acme.resume();
                    }
                    1 => drop(acme.cancel_all()),
                    2 => acme.set_limits(limits.rate(Rate::per_second(1_000).burst(50))),
                    _ => {}
                }
            }
        }));
        over.store(true, Ordering::Relaxed);
        held.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
    });
    acme.set_limits(limits.running_max(3));
    assert_fully_usable(&acme, (3, 64, 64));
}

/// C36: thousands of tenants, each used by several threads and let go of, with every kind of end.
#[test]
fn thousands_of_tenants_come_and_go() {
    let tenants = from_env("PUNCTUAL_RACE_OPS", 100_000) / 50;
    let scheduler = Scheduler::builder().workers(4).build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let accepted = AtomicUsize::new(0);
    thread::scope(|scope| {
        for seed in 0..4u64 {
            let (scheduler, ran, accepted) = (&scheduler, &ran, &accepted);
            scope.spawn(move || {
                let mut random = SplitMix(seed);
                for n in 0..tenants {
                    // Threads meet in one tenant, or have one for themselves.
                    let name = format!("tenant {}", if random.below(2) == 0 { n } else { n * 4 + seed });
                    let tenant = scheduler.tenant(&name, Limits::new()).unwrap();
                    for _ in 0..random.below(5) {
                        let ran = Arc::clone(ran);
                        let body = move |_: Ctx| {
                            ran.fetch_add(1, Ordering::Relaxed);
                        };
                        let job = tenant.after(Duration::from_micros(random.below(100))).run(body).unwrap();
                        if random.below(2) == 0 {
                            job.detach();
                            accepted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    until("all is quiet", || is_quiet(&scheduler.snapshot()));
    assert!(ran.load(Ordering::Relaxed) >= accepted.load(Ordering::Relaxed), "what was accepted has run");
}

/// One tenant of a storm, and what the storm knows of it.
struct Exposed {
    tenant: Tenant,
    limits: (Option<usize>, usize, usize),
    paused: bool,
    /// How many may run at most: the limit, or what ran when it was lowered.
    ceiling: usize,
    jobs: Vec<JobHandle<()>>,
    series: Vec<SeriesHandle>,
}

/// A storm on a virtual clock: everything that can be done with tenants, in an order that a seed decides.
struct Storm {
    clock: VirtualClock,
    scheduler: Scheduler,
    random: SplitMix,
    tenants: Vec<Exposed>,
    /// Nothing ever comes out of it: a place to rest in.
    rest: DelayQueue<()>,
    starts: Log<(usize, u64)>,
    next: u64,
    wrong: Log<String>,
}

impl Storm {
    fn new(seed: u64, workers: usize) -> Self {
        let clock = VirtualClock::with_patience(SOON);
        let scheduler = Scheduler::builder().workers(workers).clock(&clock).build().unwrap();
        let rest = DelayQueue::with_clock(&clock);
        let mut storm = Self {
            clock,
            scheduler,
            random: SplitMix(seed),
            tenants: Vec::new(),
            rest,
            starts: Log::new(),
            next: 0,
            wrong: Log::new(),
        };
        for n in 0..4 {
            let tenant = storm.scheduler.tenant(&format!("tenant {n}"), Limits::new()).unwrap();
            let (limits, jobs, series) = ((None, usize::MAX, usize::MAX), Vec::new(), Vec::new());
            storm.tenants.push(Exposed { tenant, limits, paused: false, ceiling: usize::MAX, jobs, series });
        }
        storm
    }

    fn act(&mut self) {
        let at = self.random.below(self.tenants.len() as u64) as usize;
        match self.random.below(24) {
            0..10 => self.submit(at),
            10 => self.submit_series(at),
            11..14 => self.lose_interest(at),
            14 => self.change_limits(at),
            15 => {
                self.tenants[at].paused = !self.tenants[at].paused;
                if self.tenants[at].paused { self.tenants[at].tenant.pause() } else { self.tenants[at].tenant.resume() }
            }
            16 if self.random.below(8) == 0 => {
                self.tenants[at].tenant.cancel_all();
                let now = self.tenants[at].tenant.snapshot();
                assert_eq!((now.scheduled, now.ready, now.running), (0, 0, now.zombies));
            }
            _ => {
                let step = self.random.below(10);
                self.clock.advance(ms(step)).unwrap();
            }
        }
        self.clock.settle().unwrap();
        self.check();
    }

    /// C23, C24: accepted if and only if there is a place, by the promise and not by the code.
    fn submit(&mut self, at: usize) {
        let (delay, number) = (if self.random.below(3) == 0 { self.random.below(20) } else { 0 }, self.next);
        self.next += 1;
        let exposed = &mut self.tenants[at];
        let now = exposed.tenant.snapshot();
        let (running_max, backlog_max, scheduled_max) = exposed.limits;
        let expected = match running_max {
            _ if delay > 0 => now.scheduled < scheduled_max,
            _ if exposed.paused => now.ready + now.running < backlog_max,
            None => now.ready < backlog_max,
            Some(max) => now.ready + now.running < backlog_max.saturating_add(max),
        };
        let plan = exposed.tenant.after(ms(delay));
        let plan = if self.random.below(4) == 0 { plan.deadline(ms(delay + 1 + self.random.below(20))) } else { plan };
        let plan = if self.random.below(4) == 0 { plan.start_within(ms(1 + self.random.below(20))) } else { plan };
        let plan = if self.random.below(4) == 0 { plan.run_timeout(ms(self.random.below(5))) } else { plan };
        let plan = plan.cost(1 + self.random.below(3) as u32).priority(self.random.below(3) as i8 - 1);
        let (starts, rest) = (self.starts.clone(), self.rest.clone());
        let (takes, fails) = (ms(self.random.below(8)), self.random.below(8) == 0);
        let body = move |_: Ctx| {
            starts.add((at, number));
            if !takes.is_zero() {
                let _ = rest.take_timeout(takes);
            }
            if fails {
                panic_with("some jobs panic");
            }
        };
        let accepted = match self.random.below(4) {
            0 => {
                let (starts, pends) = (self.starts.clone(), self.random.below(2) == 0);
                let future = move |_: Ctx| async move {
                    starts.add((at, number));
                    if pends {
                        std::future::pending::<()>().await;
                    }
                };
                plan.spawn(future).map_err(punctual::Rejected::without_job)
            }
            _ => plan.run(body).map_err(punctual::Rejected::without_job),
        };
        if accepted.is_ok() != expected {
            self.wrong.add(format!("{accepted:?} with {now:?} and {:?}", self.tenants[at].limits));
        }
        self.tenants[at].jobs.extend(accepted);
    }

    fn submit_series(&mut self, at: usize) {
        let (starts, number) = (self.starts.clone(), self.next);
        self.next += 1;
        let plan = self.tenants[at].tenant.every(ms(1 + self.random.below(20))).deadline(ms(500));
        let plan = if self.random.below(2) == 0 { plan.start_within(ms(5)) } else { plan };
        let series = plan.run(move |_| starts.add((at, number)));
        self.tenants[at].series.extend(series);
    }

    fn lose_interest(&mut self, at: usize) {
        let how = self.random.below(4);
        let which = self.random.next() as usize;
        let Exposed { jobs, series, .. } = &mut self.tenants[at];
        if jobs.is_empty() {
            return;
        }
        let job = jobs.swap_remove(which % jobs.len());
        match how {
            0 => drop(job),
            1 => job.detach(),
            2 => drop(series.pop()),
            _ => {
                job.cancel();
                jobs.push(job);
            }
        }
    }

    fn change_limits(&mut self, at: usize) {
        let running_max = (self.random.below(3) > 0).then(|| self.random.below(4) as usize);
        let backlog_max = if self.random.below(3) == 0 { usize::MAX } else { self.random.below(20) as usize };
        let scheduled_max = if self.random.below(3) == 0 { usize::MAX } else { self.random.below(20) as usize };
        let limits = Limits::new().backlog_max(backlog_max).scheduled_max(scheduled_max);
        let limits = limits.weight(1 + self.random.below(4) as u32);
        let limits = running_max.map_or(limits, |max| limits.running_max(max));
        let fast = Rate::per_second(200 + self.random.below(2_000) as u32).burst(1 + self.random.below(5) as u32);
        let exposed = &mut self.tenants[at];
        exposed.ceiling = exposed.tenant.snapshot().running;
        exposed.limits = (running_max, backlog_max, scheduled_max);
        exposed.tenant.set_limits(if self.random.below(3) == 0 { limits.rate(fast) } else { limits });
    }

    fn check(&mut self) {
        assert!(self.wrong.len() == 0, "{:?}", self.wrong.all());
        let all = self.scheduler.snapshot();
        let mut sum = (0, 0, 0, 0);
        for exposed in &mut self.tenants {
            let now = exposed.tenant.snapshot();
            let max = exposed.limits.0.unwrap_or(usize::MAX);
            exposed.ceiling = exposed.ceiling.min(now.running).max(max);
            assert!(now.running <= exposed.ceiling, "{} run, of {}", now.running, exposed.ceiling);
            sum = (sum.0 + now.scheduled, sum.1 + now.ready, sum.2 + now.running, sum.3 + now.zombies);
        }
        assert_eq!(sum, (all.scheduled, all.ready, all.running, all.zombies), "the whole is the sum of its parts");
    }

    /// The storm is over: whatever it left comes to its end, and every limit is fully usable.
    fn calm_down(&mut self) {
        for exposed in &mut self.tenants {
            exposed.tenant.set_limits(Limits::new());
            exposed.tenant.resume();
            exposed.tenant.cancel_all();
            exposed.jobs.clear();
            exposed.series.clear();
        }
        self.clock.advance(secs(1)).unwrap();
        for exposed in &self.tenants {
            assert!(is_quiet(&exposed.tenant.snapshot()), "{:?}", exposed.tenant.snapshot());
            exposed.tenant.set_limits(Limits::new().running_max(1).backlog_max(3).scheduled_max(2));
            let due: Vec<_> = (0..4).map(|_| exposed.tenant.now().run(|_| ())).collect();
            assert!(due.iter().all(Result::is_ok));
            self.clock.settle().unwrap();
            let later: Vec<_> = (0..3).map(|_| exposed.tenant.after(ms(1)).run(|_| ()).is_ok()).collect();
            assert_eq!(later, [true; 3], "a handle that is dropped leaves its place at once");
            let held: Vec<_> = (0..3).map(|_| exposed.tenant.after(ms(1)).run(|_| ())).collect();
            assert_eq!(held.iter().filter(|job| job.is_ok()).count(), 2);
        }
    }
}

/// C23, C24, C26, C34, C36: every submit is answered as promised, no limit is exceeded, the sums are right at every
/// moment.
#[test]
fn a_storm_of_everything_keeps_every_promise_of_a_tenant() {
    let (ops, first) = (from_env("PUNCTUAL_RACE_OPS", 100_000) / 200, from_env("PUNCTUAL_SOAK_SEED", 1));
    for (round, workers) in [1, 2, 4, 8].into_iter().cycle().take(8).enumerate() {
        let seed = first + round as u64;
        let stormed = catch_unwind(|| {
            let mut storm = Storm::new(seed, workers);
            (0..ops).for_each(|_| storm.act());
            storm.calm_down();
        });
        assert!(stormed.is_ok(), "PUNCTUAL_SOAK_SEED={seed} with {workers} workers replays this");
    }
}

/// C21: with one worker, the same seed gives the same storm, start by start.
#[test]
fn a_storm_is_the_same_for_the_same_seed() {
    for seed in 1..12 {
        let starts = || {
            let mut storm = Storm::new(seed, 1);
            (0..300).for_each(|_| storm.act());
            storm.starts.all()
        };
        let (first, second) = (starts(), starts());
        assert!(first.len() > 5, "{}", first.len());
        assert_eq!(first, second, "seed {seed}");
    }
}
