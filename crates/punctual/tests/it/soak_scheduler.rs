//! A random storm over a scheduler, for centuries of simulated time: jobs and series of every kind, with every term,
//! that return, fail, panic, block, wait, have children, are cancelled, dropped, detached and moved about, while the
//! wall clock is set to and fro. Every job keeps an account of what happened to it, and every number that the scheduler
//! tells is held against these accounts, again and again while it storms, and in the end.
//!
//! `PUNCTUAL_WEATHER_OPS` says how many operations, `PUNCTUAL_SOAK_SEED` which. A failure names the seed that replays
//! it.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::collections::HashMap;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use punctual::{
    Cancel, Cron, Ctx, DelayQueue, Event, JobError, JobHandle, JobId, Missed, OnFailure, Outcome, Plan, Report,
    Scheduler, SeriesHandle, SeriesPlan, VirtualClock,
};

use crate::jobs::{Log, SOON, Signal, panic_with, secs, yield_once};
use crate::queue::{DAY, SplitMix, YEAR, from_env, ns};

/// Operations of one round; each has a scheduler and a clock of its own, and so up to five centuries.
const ROUND: u64 = 1_500;
const WORKERS: usize = 3;

/// C36, and with it most other clauses: nothing is early, each job has one outcome and each payload one end, and all
/// numbers are true.
#[test]
fn every_account_balances_after_centuries_of_weather() {
    let (ops, first) = (from_env("PUNCTUAL_WEATHER_OPS", 15_000), from_env("PUNCTUAL_SOAK_SEED", 1));
    let mut elapsed = Duration::ZERO;
    for seed in first..first + ops.div_ceil(ROUND) {
        let round = catch_unwind(|| weather(seed, ROUND.min(ops)));
        elapsed +=
            round.unwrap_or_else(|_| panic!("PUNCTUAL_SOAK_SEED={seed} PUNCTUAL_WEATHER_OPS={ops} replays this"));
    }
    assert!(elapsed > YEAR * 100, "only {elapsed:?} passed");
}

/// One round; says how much time it took, on its own clock.
fn weather(seed: u64, ops: u64) -> Duration {
    let mut storm = Storm::new(seed);
    for op in 0..ops {
        storm.act();
        if op % 64 == 0 {
            storm.check_gauges();
        }
    }
    storm.calm_down();
    storm.check_gauges();
    let elapsed = storm.sky.clock.now() - storm.begin;
    storm.check_accounts();
    elapsed
}

/// What happened to one job or series.
struct Account {
    series: bool,
    id: OnceLock<JobId>,
    book: Mutex<Book>,
}

#[derive(Default, Clone, Debug)]
struct Book {
    refused: bool,
    future: bool,
    /// Its due instant is beyond all time.
    never: bool,
    not_before: Option<Instant>,
    starts: u64,
    returns: u64,
    failures: u64,
    panics: u64,
    /// Runs that are over: returned, panicked, or dropped half way.
    ends: u64,
    /// How often its code was dropped; and how many of its results were made, and dropped.
    freed: u64,
    results: u64,
    results_dropped: u64,
    /// What the handle said.
    outcome: Option<Outcome>,
}

impl Account {
    fn book(&self) -> MutexGuard<'_, Book> {
        // A check that failed with the book open must not hide behind another failure.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The code of a job, as far as its account is concerned: freed when this is dropped.
struct Payload(Arc<Account>);

impl Drop for Payload {
    fn drop(&mut self) {
        self.0.book().freed += 1;
    }
}

/// A result that wants to be dropped once.
struct Receipt(Arc<Account>);

impl Receipt {
    fn new(account: &Arc<Account>) -> Self {
        let mut book = account.book();
        book.returns += 1;
        book.results += 1;
        drop(book);
        Self(Arc::clone(account))
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.0.book().results_dropped += 1;
    }
}

/// One run, from its first instruction until nothing of it is left.
struct Inside(Arc<Account>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.book().ends += 1;
    }
}

/// What jobs know of the storm.
#[derive(Clone)]
struct Sky {
    clock: VirtualClock,
    accounts: Log<Arc<Account>>,
    violations: Log<String>,
    signals: Arc<Mutex<Vec<Signal>>>,
    refused: Arc<AtomicU64>,
}

impl Sky {
    fn open_account(&self, series: bool) -> Arc<Account> {
        let account = Arc::new(Account { series, id: OnceLock::new(), book: Mutex::default() });
        self.accounts.add(Arc::clone(&account));
        account
    }

    fn refuse(&self, account: &Account) {
        account.book().refused = true;
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A run begins. Is it allowed to?
    fn enter(&self, account: &Arc<Account>, ctx: &Ctx) -> Inside {
        let (now, mut book) = (self.clock.now(), account.book());
        book.starts += 1;
        if now < ctx.due() || book.not_before.is_some_and(|due| now < due) {
            self.violations.add(format!("{ctx:?} started at {now:?}: {book:?}"));
        }
        if book.refused || book.starts - book.ends != 1 || (!account.series && book.starts != 1) {
            self.violations.add(format!("{ctx:?} should not have started: {book:?}"));
        }
        drop(book);
        Inside(Arc::clone(account))
    }

    /// Blocks a worker for some time of the virtual clock.
    fn nap(&self, duration: Duration) {
        let _ = DelayQueue::<()>::with_clock(&self.clock).take_timeout(duration);
    }

    fn panic(account: &Account) -> ! {
        account.book().panics += 1;
        panic_with("in the storm")
    }

    /// What a closure does.
    fn live(&self, account: &Account, ctx: &Ctx, random: &mut SplitMix) {
        match random.below(8) {
            0 => Self::panic(account),
            1 => self.nap(ns(random.magnitude(52))),
            2 => {
                for _ in 0..20 {
                    if ctx.checkpoint().is_err() {
                        break;
                    }
                    self.nap(ns(random.magnitude(40)));
                }
            }
            3 => {
                let Some(mut child) = self.bear(ctx, random) else { return };
                match random.below(3) {
                    0 => child.detach(),
                    1 => drop(child),
                    _ => drop(child.wait_timeout(ns(random.magnitude(45)))),
                }
            }
            _ => {}
        }
    }

    /// What a future does.
    async fn linger(&self, account: &Account, ctx: &Ctx, mut random: SplitMix) {
        match random.below(7) {
            0 => Self::panic(account),
            1 => yield_once().await,
            2 | 3 => {
                let signal = Signal::default();
                self.signals.lock().unwrap().push(signal.clone());
                signal.await;
            }
            4 => {
                if let Some(child) = self.bear(ctx, &mut random) {
                    let _ = child.await;
                }
            }
            // Only if that will come.
            5 if ctx.remaining().is_some() => ctx.cancelled().await,
            _ => {}
        }
    }

    /// A child, of either kind.
    fn bear(&self, ctx: &Ctx, random: &mut SplitMix) -> Option<JobHandle<Receipt>> {
        let delay = ns(random.magnitude(54));
        let account = self.open_account(false);
        account.book().not_before = Some(self.clock.now() + delay);
        self.submit(ctx.after(delay), &account, random)
    }

    fn submit(&self, plan: Plan<'_>, account: &Arc<Account>, random: &mut SplitMix) -> Option<JobHandle<Receipt>> {
        let (sky, payload, mut fate) = (self.clone(), Payload(Arc::clone(account)), SplitMix(random.next()));
        let submitted = if random.below(3) > 0 {
            let closure = move |ctx: Ctx| {
                let _inside = sky.enter(&payload.0, &ctx);
                sky.live(&payload.0, &ctx, &mut fate);
                Receipt::new(&payload.0)
            };
            plan.run(closure).map_err(|rejected| drop(rejected.into_job()))
        } else {
            account.book().future = true;
            let future = move |ctx: Ctx| async move {
                let _inside = sky.enter(&payload.0, &ctx);
                sky.linger(&payload.0, &ctx, fate).await;
                Receipt::new(&payload.0)
            };
            plan.spawn(future).map_err(|rejected| drop(rejected.into_job()))
        };
        match submitted {
            Ok(job) => {
                account.id.set(job.id()).unwrap();
                Some(job)
            }
            Err(()) => {
                self.refuse(account);
                None
            }
        }
    }

    fn submit_series(&self, plan: SeriesPlan<'_>, random: &mut SplitMix) -> Option<SeriesHandle> {
        let account = self.open_account(true);
        let (sky, payload, mut fate) = (self.clone(), Payload(Arc::clone(&account)), SplitMix(random.next()));
        let submitted = if random.below(2) == 0 {
            let closure = move |ctx: Ctx| {
                let _inside = sky.enter(&payload.0, &ctx);
                sky.live(&payload.0, &ctx, &mut fate);
                Self::verdict(&payload.0, &mut fate)
            };
            plan.run(closure).map_err(|rejected| drop(rejected.into_job()))
        } else {
            account.book().future = true;
            let future = move |ctx: Ctx| {
                let (sky, account, mut fate) = (sky.clone(), Arc::clone(&payload.0), SplitMix(fate.next()));
                async move {
                    let _inside = sky.enter(&account, &ctx);
                    sky.linger(&account, &ctx, SplitMix(fate.next())).await;
                    Self::verdict(&account, &mut fate)
                }
            };
            plan.spawn(future).map_err(|rejected| drop(rejected.into_job()))
        };
        match submitted {
            Ok(series) => {
                account.id.set(series.id()).unwrap();
                Some(series)
            }
            Err(()) => {
                self.refuse(&account);
                None
            }
        }
    }

    /// How a run of a series ends that did not panic.
    fn verdict(account: &Account, random: &mut SplitMix) -> Result<(), &'static str> {
        let failed = random.below(4) == 0;
        let mut book = account.book();
        *if failed { &mut book.failures } else { &mut book.returns } += 1;
        if failed { Err("in the storm") } else { Ok(()) }
    }

    /// Wakes the futures that wait for somebody to do so; says whether there were any.
    fn wake(&self, all: bool) -> bool {
        let waiting = |signals: &mut Vec<Signal>| {
            let first = signals.iter().position(|signal| signal.waker().is_some())?;
            Some(signals.remove(first))
        };
        let mut woken = false;
        while let Some(signal) = waiting(&mut self.signals.lock().unwrap()) {
            signal.set();
            woken = true;
            if !all {
                break;
            }
        }
        woken
    }
}

/// The one who makes the weather.
struct Storm {
    sky: Sky,
    begin: Instant,
    scheduler: Scheduler,
    random: SplitMix,
    events: Log<Event>,
    jobs: Vec<(JobHandle<Receipt>, Arc<Account>)>,
    /// With the most ticks that each can have.
    series: Vec<(SeriesHandle, u64)>,
    /// Ticks missed by series that were let go of.
    missed: u64,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let (clock, events) = (VirtualClock::with_patience(SOON), Log::new());
        let heard = events.clone();
        let builder =
            Scheduler::builder().workers(WORKERS).clock(&clock).on_event(move |event| heard.add(event.clone()));
        let (scheduler, begin) = (builder.build().unwrap(), clock.now());
        let (accounts, violations) = (Log::new(), Log::new());
        let sky = Sky { clock, accounts, violations, signals: Arc::default(), refused: Arc::default() };
        let random = SplitMix(seed);
        Self { sky, begin, scheduler, random, events, jobs: Vec::new(), series: Vec::new(), missed: 0 }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random.below(n) == 0
    }

    fn act(&mut self) {
        match self.random.below(100) {
            0..55 => self.submit_job(),
            55..60 => self.submit_series(),
            60..65 => _ = self.sky.wake(false),
            65..83 => self.touch_a_job(),
            83..86 => self.touch_a_series(),
            86..88 => self.step_wall(),
            88..90 => {
                let duration = ns(self.random.below(1 << 58));
                self.let_pass(duration);
            }
            _ => {
                let duration = ns(self.random.magnitude(50));
                self.let_pass(duration);
            }
        }
    }

    fn let_pass(&self, duration: Duration) {
        // The end of time must stay far enough for all that is due to come.
        let room = (YEAR * 300).saturating_sub(self.sky.clock.now() - self.begin);
        self.sky.clock.advance(duration.min(room.max(secs(1)))).unwrap();
    }

    fn step_wall(&mut self) {
        let clock = &self.sky.clock;
        let distance = if self.random.below(10) == 0 { YEAR } else { DAY * 3 };
        let (ahead, back) = (self.random.below(1 << 30), self.random.below(1 << 30));
        // Around where it would be: it must not wander off.
        let origin = clock.wall().checked_sub(distance / 2).unwrap();
        clock.step_wall(origin + distance.mul_f64(ahead as f64 / (ahead + back + 1) as f64)).unwrap();
    }

    fn submit_job(&mut self) {
        let clock = self.sky.clock.clone();
        let random = &mut self.random;
        let never = random.below(50) == 0;
        let delay = if never { Duration::MAX } else { ns(random.magnitude(61)) };
        let account = self.sky.open_account(false);
        let kind = if never { 0 } else { random.below(4) };
        let mut plan = match kind {
            0 | 1 => self.scheduler.after(delay),
            2 => self.scheduler.at(clock.now() + delay),
            _ => self.scheduler.at(clock.wall() + delay),
        };
        account.book().never = never;
        // A date may come earlier than it seems now.
        account.book().not_before = (!never && kind < 3).then(|| clock.now() + delay);
        if random.below(4) == 0 {
            let patience = ns(random.magnitude(55));
            let early = random.below(8) == 0;
            plan = plan.deadline(if early { delay.saturating_sub(patience) } else { delay.saturating_add(patience) });
        }
        if random.below(5) == 0 {
            plan = plan.start_within(ns(random.magnitude(45)));
        }
        if random.below(4) == 0 {
            plan = plan.run_timeout(ns(random.magnitude(45)));
        }
        if let Some(job) = self.sky.submit(plan, &account, random) {
            self.jobs.push((job, account));
        }
    }

    fn submit_series(&mut self) {
        let random = &mut self.random;
        // None goes on for more than so many ticks, or the next ten years would take as long.
        let ticks = 1 + random.below(40);
        let kind = random.below(5);
        let (mut plan, unit) = if kind == 0 {
            let (text, unit) =
                [("0 * * * *", secs(3_600)), ("0 0 * * *", DAY), ("0 0 1 1 *", YEAR)][random.below(3) as usize];
            (self.scheduler.cron(Cron::parse(text).unwrap()), unit)
        } else {
            let period = ns(1 + random.magnitude(54));
            let plan = self.scheduler.every(period);
            (if kind == 1 { plan.fixed_delay() } else { plan }, period)
        };
        let mut deadline = unit * u32::try_from(ticks).unwrap();
        if random.below(3) == 0 && kind > 0 {
            let first = ns(random.magnitude(50));
            (plan, deadline) = (plan.first(first), deadline + first);
        }
        plan = plan.deadline(deadline).missed(match random.below(3) {
            0 => Missed::Once,
            1 => Missed::Skip,
            _ => Missed::All { max: u32::try_from(random.below(5)).unwrap() },
        });
        plan = plan.on_failure(match random.below(4) {
            0 => OnFailure::Stop,
            1 => OnFailure::Backoff { first: unit / 3, max: unit * 5 },
            _ => OnFailure::Continue,
        });
        // Whoever has no grid and all the time to start misses nothing, so that nobody need ask before letting go.
        let misses_nothing = kind == 1;
        if random.below(4) == 0 && !misses_nothing {
            plan = plan.start_within(ns(random.magnitude(45)));
        }
        if random.below(4) == 0 {
            plan = plan.run_timeout(ns(random.magnitude(45)));
        }
        let Some(series) = self.sky.submit_series(plan, random) else { return };
        if misses_nothing && random.below(2) == 0 {
            return series.detach();
        }
        // Crons tick by the wall clock, which may go through the same hours many times.
        self.series.push((series, if kind == 0 { u64::MAX } else { ticks + 1 }));
    }

    fn touch_a_job(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        self.sky.clock.settle().unwrap();
        let at = usize::try_from(self.random.next()).unwrap() % self.jobs.len();
        let (what, delay) = (self.random.below(6), ns(self.random.magnitude(60)));
        let (mut job, account) = self.jobs.swap_remove(at);
        let before = account.book().clone();
        match what {
            0 => {
                let expected = expected_answer(&job, &before);
                assert_eq!(job.cancel(), expected, "{before:?}");
                assert!(
                    before.starts > 0 || account.book().freed == 1,
                    "the code of what never ran is dropped at once"
                );
                self.jobs.push((job, account));
            }
            1 => drop(job),
            2 if !before.never => job.detach(),
            3 => {
                let (never, dated) = (self.random.below(20) == 0, self.one_in(3));
                let due = (!never && !dated).then(|| self.sky.clock.now() + delay);
                (account.book().never, account.book().not_before) = (never, due);
                let moved = match (never, dated) {
                    (true, _) => job.reschedule(Duration::MAX),
                    (false, true) => job.reschedule(self.sky.clock.wall() + delay),
                    (false, false) => job.reschedule(delay),
                };
                if !moved {
                    (account.book().never, account.book().not_before) = (before.never, before.not_before);
                }
                self.jobs.push((job, account));
            }
            _ => match job.wait_timeout(Duration::ZERO) {
                Some(result) => account.book().outcome = Some(outcome_of(&result)),
                None => self.jobs.push((job, account)),
            },
        }
    }

    fn touch_a_series(&mut self) {
        if self.series.is_empty() {
            return;
        }
        self.sky.clock.settle().unwrap();
        let at = usize::try_from(self.random.next()).unwrap() % self.series.len();
        if self.one_in(2) {
            self.series[at].0.cancel();
            assert_eq!(self.series[at].0.next_due(), None);
            assert_eq!(self.series[at].0.cancel(), Cancel::TooLate);
        } else {
            let (series, _) = self.series.swap_remove(at);
            self.missed += series.missed();
        }
    }

    /// Everything that can end ends by itself; what cannot is cancelled.
    fn calm_down(&mut self) {
        for _ in 0..25 {
            self.sky.clock.advance(YEAR * 4).unwrap();
            while self.sky.wake(true) {
                self.sky.clock.settle().unwrap();
            }
        }
        for (mut job, account) in std::mem::take(&mut self.jobs) {
            let never = account.book().never;
            let result = job.wait_timeout(Duration::ZERO).unwrap_or_else(|| {
                assert!(never, "it is still there: {job:?} {:?}", account.book());
                assert_eq!(job.cancel(), Cancel::Prevented);
                job.wait()
            });
            account.book().outcome = Some(outcome_of(&result));
        }
        self.sky.clock.settle().unwrap();
        for (series, ticks) in &self.series {
            assert!(series.next_due().is_none() && series.stopped().wait_timeout(Duration::ZERO), "{series:?}");
            assert!(series.runs() + series.missed() <= *ticks, "{series:?} has at most {ticks} ticks");
        }
    }

    /// When all is quiet, the gauges are the number of jobs whose code is there, and of those whose code runs.
    fn check_gauges(&self) {
        self.sky.clock.settle().unwrap();
        let (mut alive, mut running, mut blocking, mut starts) = (0, 0, 0, 0);
        for account in self.sky.accounts.all() {
            let book = account.book();
            (alive, running) = (alive + usize::from(book.freed == 0), running + (book.starts - book.ends));
            blocking += if book.future { 0 } else { usize::from(book.starts > book.ends) };
            starts += book.starts;
        }
        let now = self.scheduler.snapshot();
        assert_eq!((now.running as u64, now.lateness.count()), (running, starts), "{now:?}");
        assert_eq!(now.scheduled + now.ready + now.running, alive, "{now:?}");
        assert!(now.zombies <= now.running && now.timing_error.count() >= starts, "{now:?}");
        // Of what nobody wants any more, only closures may go on, if there was a worker to drop the futures.
        assert!(now.zombies <= blocking || blocking == WORKERS, "{now:?}, {blocking} closures");
        assert_eq!(now.rejected, self.sky.refused.load(Ordering::Relaxed));
        assert_eq!(self.sky.violations.all(), Vec::<String>::new());
    }

    fn check_accounts(mut self) {
        let now = self.scheduler.snapshot();
        assert_eq!((now.scheduled, now.ready, now.running, now.zombies), (0, 0, 0, 0));
        let mut told = Told::of(&self.events.all());
        let finished = now.finished;
        let counted = [finished.succeeded, finished.failed, finished.panicked, finished.cancelled, finished.expired];
        let kinds = [Outcome::Succeeded, Outcome::Failed, Outcome::Panicked, Outcome::Cancelled, Outcome::Expired];
        assert_eq!(counted, kinds.map(|kind| told.outcomes.get(&kind).copied().unwrap_or(0)));
        assert_eq!((now.rejected, now.lateness.count()), (told.rejected, told.started));
        for account in self.sky.accounts.all() {
            let life = account.id.get().and_then(|id| told.lives.remove(id)).unwrap_or_default();
            account.check(&life);
        }
        assert!(told.lives.is_empty(), "events of jobs that nobody submitted: {:?}", told.lives);
        for (series, _) in std::mem::take(&mut self.series) {
            let known = |account: &&Arc<Account>| account.id.get() == Some(&series.id());
            let accounts = self.sky.accounts.all();
            let book = accounts.iter().find(known).expect("it has an account").book().clone();
            assert_eq!((series.runs(), series.failures()), (book.starts, book.failures + book.panics), "{series:?}");
            self.missed += series.missed();
        }
        assert_eq!(now.missed, self.missed);
        assert_eq!(self.scheduler.shutdown(Duration::MAX), Report::default());
    }
}

/// What `cancel` must say of a job, if nothing happens meanwhile.
fn expected_answer(job: &JobHandle<Receipt>, book: &Book) -> Cancel {
    // Whether an outcome is settled that nobody has asked for is shown, but not told.
    let settled = format!("{job:?}").contains("settled: true");
    match (settled, book.starts) {
        (true, _) => Cancel::TooLate,
        (false, 0) => Cancel::Prevented,
        (false, _) => Cancel::Requested,
    }
}

fn outcome_of(result: &Result<Receipt, JobError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Succeeded,
        Err(JobError::Cancelled { .. }) => Outcome::Cancelled,
        Err(JobError::Expired { .. }) => Outcome::Expired,
        Err(JobError::Panicked(message)) => {
            assert_eq!(message, "in the storm");
            Outcome::Panicked
        }
        Err(other) => panic!("an error that nobody knows: {other}"),
    }
}

/// What the listener heard of one job.
#[derive(Default, Debug)]
struct Life {
    started: u64,
    panicked: u64,
    outcomes: Vec<Outcome>,
}

/// What the listener heard in all.
#[derive(Default)]
struct Told {
    lives: HashMap<JobId, Life>,
    outcomes: HashMap<Outcome, u64>,
    started: u64,
    rejected: u64,
}

impl Told {
    fn of(events: &[Event]) -> Self {
        let mut told = Self::default();
        for event in events {
            match event {
                Event::Started { id, .. } => {
                    told.started += 1;
                    told.lives.entry(*id).or_default().started += 1;
                }
                Event::Panicked { id, .. } => told.lives.entry(*id).or_default().panicked += 1,
                Event::Finished { id, outcome, .. } => {
                    *told.outcomes.entry(*outcome).or_default() += 1;
                    told.lives.entry(*id).or_default().outcomes.push(*outcome);
                }
                Event::Rejected { .. } => told.rejected += 1,
                other => panic!("an event that nobody knows: {other:?}"),
            }
        }
        told
    }
}

impl Account {
    /// Everything happened once, and what was told is what happened.
    fn check(&self, life: &Life) {
        let book = self.book().clone();
        let count = |outcome| life.outcomes.iter().filter(|&&other| other == outcome).count() as u64;
        let all = || format!("{book:?} {life:?}");
        assert_eq!((book.freed, book.ends), (1, book.starts), "{}", all());
        assert_eq!(book.results, book.results_dropped, "{}", all());
        assert_eq!((life.started, life.panicked), (book.starts, book.panics), "{}", all());
        // What was settled before the work ended is not what the work said.
        assert!(count(Outcome::Succeeded) <= book.returns, "{}", all());
        assert!(count(Outcome::Panicked) <= book.panics, "{}", all());
        assert!(count(Outcome::Failed) <= book.failures, "{}", all());
        let ended = count(Outcome::Succeeded) + count(Outcome::Panicked) + count(Outcome::Failed);
        assert!(ended <= book.starts, "{}", all());
        if book.refused {
            assert_eq!((book.starts, life.outcomes.len()), (0, 0), "{}", all());
        } else if self.series {
            assert!(life.outcomes.len() as u64 >= book.starts.max(1), "{}", all());
        } else {
            assert!(book.starts <= 1 && life.outcomes.len() == 1, "{}", all());
            assert!(book.outcome.is_none_or(|outcome| life.outcomes == [outcome]), "{}", all());
        }
    }
}
