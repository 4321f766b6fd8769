//! One job from its submit to its result: when it starts, where it runs, what it is told and what is counted.
//! Here are also the few tools that the other scheduler modules share.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::panic::resume_unwind;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use punctual::{
    BoxFuture, Cancel, Cause, Clock, Ctx, DelayQueue, Event, FlatError, JobError, JobHandle, Outcome, Reason,
    Scheduler, Stage, VirtualClock,
};

use crate::queue::{SplitMix, block_on, ms};

/// How long, in real time, something may take that should happen at once. Only a failing test waits that long.
pub(crate) const SOON: Duration = Duration::from_secs(40);

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A scheduler with so many workers, on a clock that stands still.
pub(crate) fn on_virtual_clock(workers: usize) -> (VirtualClock, Scheduler) {
    let clock = VirtualClock::with_patience(SOON);
    let scheduler = Scheduler::builder().workers(workers).clock(&clock).build().unwrap();
    (clock, scheduler)
}

/// Runs on a thread of its own, so that a hang is a failure and not a silence.
pub(crate) fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, outcome) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    outcome.recv_timeout(SOON).expect("it returns: it neither hangs nor panicked")
}

/// Runs the test of this name in a process of its own, if its failure would end the whole process.
pub(crate) fn in_own_process(test: &str, body: impl FnOnce()) {
    run_again(Command::new(std::env::current_exe().unwrap()), test, body);
}

/// The same, where the process may have so many KiB of addresses and no more.
#[cfg(target_os = "linux")]
pub(crate) fn in_own_process_of(kib: usize, test: &str, body: impl FnOnce()) {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {kib} && exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
    run_again(shell, test, body);
}

fn run_again(mut command: Command, test: &str, body: impl FnOnce()) {
    const MARK: &str = "PUNCTUAL_OWN_PROCESS";
    if std::env::var(MARK).is_ok_and(|marked| marked == test) {
        return body();
    }
    let output = command.args(["--exact", test, "--nocapture"]).env(MARK, test).output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// Waits, in real time, for something that other threads are about to bring about.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = Clock::system();
    let start = clock.now();
    while !is_so() {
        assert!(clock.now() - start < SOON, "it takes too long until {what}");
        thread::yield_now();
    }
}

/// What happened, in the order it happened; clones share it.
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn add(&self, entry: T) {
        self.0.lock().unwrap().push(entry);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn all(&self) -> Vec<T>
    where
        T: Clone,
    {
        self.0.lock().unwrap().clone()
    }
}

/// Does something when it is dropped.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Says on its log which thread dropped it.
pub(crate) fn witness(log: &Log<String>) -> OnDrop<impl FnMut() + Send + use<>> {
    let log = log.clone();
    OnDrop(move || log.add(this_thread()))
}

pub(crate) fn this_thread() -> String {
    thread::current().name().unwrap_or("a nameless thread").to_owned()
}

/// A panic that the panic hook does not print.
pub(crate) fn panic_with(message: &str) -> ! {
    resume_unwind(Box::new(message.to_owned()))
}

/// Where jobs block until they are let go, in a wait that the virtual clock knows of.
#[derive(Clone)]
pub(crate) struct Gate(DelayQueue<()>);

impl Gate {
    pub(crate) fn on(clock: &VirtualClock) -> Self {
        Self(DelayQueue::with_clock(clock))
    }

    pub(crate) fn pass(&self) {
        let _ = self.0.take();
    }

    /// Lets everybody through, also those who come later.
    pub(crate) fn open(&self) {
        self.0.close();
    }
}

/// A job that holds a worker until the gate is opened. The worker is taken when this returns.
pub(crate) fn block_a_worker(clock: &VirtualClock, scheduler: &Scheduler) -> (Gate, JobHandle<()>) {
    let gate = Gate::on(clock);
    let job = scheduler.now().name("blocker").run({
        let gate = gate.clone();
        move |_| gate.pass()
    });
    let job = job.unwrap();
    clock.settle().unwrap();
    (gate, job)
}

/// A runtime of one thread, for futures that are handed away.
pub(crate) struct Runtime {
    turns: mpsc::Sender<Arc<Task>>,
}

struct Task {
    future: Mutex<Option<BoxFuture>>,
    turns: mpsc::Sender<Arc<Task>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let turns = self.turns.clone();
        let _ = turns.send(self);
    }
}

impl Runtime {
    pub(crate) fn start() -> Self {
        let (turns, queue) = mpsc::channel::<Arc<Task>>();
        let poll_all = move || {
            for task in queue {
                let mut place = task.future.lock().unwrap();
                let waker = Waker::from(Arc::clone(&task));
                if place.as_mut().is_some_and(|f| f.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()) {
                    *place = None;
                }
            }
        };
        thread::Builder::new().name("another-runtime".into()).spawn(poll_all).unwrap();
        Self { turns }
    }

    pub(crate) fn spawn(&self, future: BoxFuture) {
        let task = Task { future: Mutex::new(Some(future)), turns: self.turns.clone() };
        let _ = self.turns.send(Arc::new(task));
    }
}

/// A scheduler that hands its futures to a runtime of its own.
pub(crate) fn with_runtime(workers: usize) -> (VirtualClock, Scheduler) {
    let clock = VirtualClock::with_patience(SOON);
    let runtime = Runtime::start();
    let builder = Scheduler::builder().workers(workers).clock(&clock);
    (clock, builder.futures_on(move |future| runtime.spawn(future)).build().unwrap())
}

/// Gives way once.
pub(crate) async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// C1
#[test]
fn a_job_starts_exactly_at_its_due_instant_if_a_worker_is_free() {
    let (clock, scheduler) = on_virtual_clock(2);
    let (mut random, starts) = (SplitMix(1), Log::new());
    let origin = clock.now();
    for _ in 0..2_000 {
        let due = origin + Duration::from_nanos(random.magnitude(60));
        let (starts, clock) = (starts.clone(), clock.clone());
        scheduler.at(due).run(move |ctx| starts.add((due, ctx.due(), clock.now()))).unwrap().detach();
    }
    clock.advance(Duration::from_nanos(1 << 60)).unwrap();
    assert_eq!(starts.len(), 2_000);
    for (due, told, started) in starts.all() {
        assert_eq!((due, due), (told, started));
    }
}

/// C2
#[test]
fn jobs_start_in_the_order_of_due_instant_and_then_of_submit() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let (mut random, starts) = (SplitMix(2), Log::new());
    let mut expected = Vec::new();
    for number in 0..3_000 {
        let due = ms(random.below(20));
        expected.push((due, number));
        let starts = starts.clone();
        scheduler.after(due).run(move |_| starts.add(number)).unwrap().detach();
    }
    clock.advance(ms(20)).unwrap();
    gate.open();
    clock.settle().unwrap();
    expected.sort();
    assert_eq!(starts.all(), expected.into_iter().map(|(_, number)| number).collect::<Vec<_>>());
}

/// C6
#[test]
fn a_job_that_is_due_now_or_long_ago_never_runs_in_the_caller() {
    let (clock, scheduler) = on_virtual_clock(1);
    let caller = thread::current().id();
    let past = clock.now().checked_sub(secs(5)).unwrap_or(clock.now());
    clock.advance(secs(10)).unwrap();
    let jobs = [scheduler.now(), scheduler.after(Duration::ZERO), scheduler.at(past), scheduler.at(clock.wall())];
    for job in jobs {
        let mut job = job.run(|ctx| (thread::current().id(), ctx.lateness())).unwrap();
        let (ran_on, lateness) = job.wait().unwrap();
        assert_ne!(ran_on, caller);
        assert_eq!(lateness, Duration::ZERO, "it was due when it was submitted, not before");
    }
}

/// C6
#[test]
fn a_job_that_is_due_now_stands_behind_everything_that_is_due_already() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, blocker) = block_a_worker(&clock, &scheduler);
    let order = Log::new();
    let note = |text: &'static str| {
        let order = order.clone();
        move |_: Ctx| order.add(text)
    };
    scheduler.after(ms(2)).run(note("second")).unwrap().detach();
    scheduler.after(ms(1)).run(note("first")).unwrap().detach();
    clock.advance(ms(5)).unwrap();
    scheduler.at(clock.now() - ms(4)).run(note("third")).unwrap().detach();
    scheduler.now().run(note("fourth")).unwrap().detach();
    gate.open();
    clock.settle().unwrap();
    assert_eq!(order.all(), ["first", "second", "third", "fourth"]);
    drop(blocker);
}

/// C13
#[test]
fn a_job_walks_through_its_stages_and_is_counted_in_one_at_a_time() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, mut blocker) = block_a_worker(&clock, &scheduler);
    let stages = || {
        let now = scheduler.snapshot();
        (now.scheduled, now.ready, now.running, now.finished.total())
    };
    let own_gate = Gate::on(&clock);
    let mut job = scheduler.after(secs(1)).run({
        let gate = own_gate.clone();
        move |_| gate.pass()
    });
    assert_eq!(stages(), (1, 0, 1, 0), "scheduled");
    clock.advance(secs(1)).unwrap();
    assert_eq!(stages(), (0, 1, 1, 0), "ready");
    gate.open();
    clock.settle().unwrap();
    assert_eq!(stages(), (0, 0, 1, 1), "running");
    own_gate.open();
    clock.settle().unwrap();
    assert_eq!(stages(), (0, 0, 0, 2), "stopped");
    assert_eq!((blocker.wait(), job.as_mut().unwrap().wait()), (Ok(()), Ok(())));
}

/// C20
#[test]
fn a_blocked_job_delays_nobody_while_a_worker_is_free() {
    let (clock, scheduler) = on_virtual_clock(3);
    let (_gates, _blockers): (Vec<_>, Vec<_>) = (0..2).map(|_| block_a_worker(&clock, &scheduler)).unzip();
    for n in 0..1_000 {
        scheduler.after(ms(n)).run(|_| ()).unwrap().detach();
    }
    clock.advance(ms(1_000)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.finished.succeeded, now.ready, now.running), (1_000, 0, 2));
    assert_eq!(now.lateness.max(), Duration::ZERO);
    _gates.iter().for_each(Gate::open);
}

/// C22
#[test]
fn lateness_is_the_workers_and_timing_error_the_schedulers() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let mut job = scheduler.after(secs(1)).run(|ctx| (ctx.lateness(), ctx.due())).unwrap();
    let due = clock.now() + secs(1);
    clock.advance(secs(5)).unwrap();
    assert_eq!(scheduler.snapshot().lateness.count(), 1, "only the blocker has started");
    assert_eq!(scheduler.snapshot().timing_error.count(), 2, "but both are ready");
    gate.open();
    assert_eq!(job.wait(), Ok((secs(4), due)));
    let now = scheduler.snapshot();
    assert_eq!((now.lateness.count(), now.lateness.max()), (2, secs(4)));
    assert_eq!((now.timing_error.count(), now.timing_error.max()), (2, Duration::ZERO));
}

/// C22
#[test]
fn every_run_of_a_series_is_measured() {
    let (clock, scheduler) = on_virtual_clock(1);
    let series = scheduler.every(secs(1)).run(|_| ()).unwrap();
    clock.advance(secs(100)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!((series.runs(), now.lateness.count(), now.timing_error.count()), (100, 100, 100));
}

#[test]
fn a_context_tells_what_the_job_was_submitted_with() {
    let (clock, scheduler) = on_virtual_clock(1);
    let plan = scheduler.after(secs(3)).name("tidy").run_timeout(secs(7)).deadline(secs(9));
    let told = |ctx: Ctx| (ctx.id(), ctx.name().map(str::to_owned), ctx.remaining(), ctx.due(), ctx.missed());
    let mut job = plan.run(told).unwrap();
    let (id, due) = (job.id(), clock.now() + secs(3));
    clock.advance(secs(3)).unwrap();
    assert_eq!(job.wait(), Ok((id, Some("tidy".to_owned()), Some(secs(6)), due, 0)), "the deadline is the nearer end");
    assert_eq!(scheduler.now().run(|ctx| ctx.remaining()).unwrap().wait(), Ok(None));
}

#[test]
fn a_job_that_returns_a_result_can_be_flattened() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let job = |text: &'static str| scheduler.now().run(move |_| text.parse::<u8>()).unwrap().flatten();
    assert_eq!(job("7").wait(), Ok(7));
    assert!(matches!(job("x").wait(), Err(FlatError::Failed(_))));
    assert!(matches!(block_on(job("x")), Err(FlatError::Failed(_))));
    let panics = scheduler.now().run(|_| -> Result<(), u8> { panic_with("no") }).unwrap();
    assert_eq!(panics.flatten().wait(), Err(FlatError::Job(JobError::Panicked("no".into()))));
    let inner = job("9").into_inner();
    assert_eq!(block_on(inner), Ok(Ok(9)));
}

#[test]
fn a_handle_can_be_awaited() {
    let (clock, scheduler) = on_virtual_clock(1);
    let job = scheduler.after(secs(1)).run(|_| 6 * 7).unwrap();
    let awaited = thread::spawn(move || block_on(job));
    clock.advance(secs(1)).unwrap();
    assert_eq!(awaited.join().unwrap(), Ok(42));
}

#[test]
fn job_numbers_are_never_reused() {
    let (clock, scheduler) = on_virtual_clock(2);
    let mut seen = std::collections::HashSet::new();
    for round in 0..10_000 {
        let job = scheduler.after(secs(1)).run(|_| ()).unwrap();
        assert!(seen.insert(job.id()), "number {} came twice", job.id());
        if round % 3 == 0 {
            job.detach();
        }
    }
    clock.advance(secs(1)).unwrap();
}

/// 26 of the anchors: no thread before the first use.
#[test]
fn threads_start_with_the_first_submit_and_never_exceed_the_limit() {
    let (clock, scheduler) = on_virtual_clock(3);
    assert_eq!(scheduler.snapshot().workers, 0);
    assert!(clock.pending().is_empty(), "nobody sleeps on the clock: {clock:?}");
    let widest = Arc::new(AtomicUsize::new(0));
    for n in 0..200 {
        let (widest, scheduler_too) = (Arc::clone(&widest), scheduler.clone());
        let look = move |_: Ctx| widest.fetch_max(scheduler_too.snapshot().workers, Ordering::Relaxed);
        scheduler.after(ms(n % 7)).run(look).unwrap().detach();
    }
    clock.advance(ms(10)).unwrap();
    assert!((1..=3).contains(&widest.load(Ordering::Relaxed)), "{widest:?}");
    assert_eq!(scheduler.snapshot().finished.succeeded, 200);
}

/// A stack that no machine has the addresses for, so that the system refuses the thread.
fn without_threads() -> Scheduler {
    Scheduler::builder().workers(1).clock(VirtualClock::new()).stack_size(1 << 46).build().unwrap()
}

/// C25: a thread that cannot be had is an answer, not a panic.
#[test]
fn a_thread_that_cannot_be_started_gives_the_job_back() {
    let scheduler = without_threads();
    let precious = String::from("precious");
    let rejected = scheduler.now().run(move |_| precious).unwrap_err();
    assert!(matches!(rejected.reason(), Reason::NoThread(_)), "{rejected}");
    let job = rejected.into_job();
    let rejected = scheduler.every(secs(1)).run(|_| ()).unwrap_err();
    assert!(matches!(rejected.reason(), Reason::NoThread(_)), "{rejected}");
    let now = scheduler.snapshot();
    assert_eq!((now.workers, now.scheduled, now.ready, now.rejected), (0, 0, 0, 2));
    let (_clock, healthy) = on_virtual_clock(1);
    assert_eq!(healthy.now().run(job).unwrap().wait(), Ok("precious".to_owned()));
    in_time(move || scheduler.shutdown(Duration::MAX));
}

/// 26 of the anchors: whoever submits while another is being refused is refused as well, and not left waiting.
#[test]
fn everybody_is_refused_when_no_thread_can_be_started() {
    for _ in 0..300 {
        let scheduler = without_threads();
        let start = Arc::new(Barrier::new(3));
        let callers = [(); 3].map(|()| {
            let (scheduler, start) = (scheduler.clone(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                scheduler.now().run(|_| ()).map(JobHandle::detach).map_err(|rejected| rejected.reason().clone())
            })
        });
        for caller in callers {
            let answer = caller.join().unwrap();
            assert!(matches!(answer, Err(Reason::NoThread(_))), "{answer:?}: accepted, and never to be run");
        }
        assert_eq!(scheduler.snapshot().ready, 0);
    }
}

/// A future between polls holds no worker.
#[test]
fn one_worker_carries_many_pending_futures() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut jobs = Vec::new();
    for n in 0..2_000 {
        let timer = scheduler.after(ms(n % 50 + 1)).run(move |_| n).unwrap();
        jobs.push(scheduler.now().spawn(|_| async move { timer.await.unwrap() }).unwrap());
    }
    clock.settle().unwrap();
    assert_eq!(scheduler.snapshot().running, 2_000, "all of them have begun");
    clock.advance(ms(50)).unwrap();
    for (n, mut job) in (0..).zip(jobs) {
        assert_eq!(job.wait(), Ok(n));
    }
    assert_eq!(scheduler.snapshot().running, 0);
}

/// Hands out its waker and is ready when told.
#[derive(Clone, Default)]
pub(crate) struct Signal(Arc<(AtomicBool, AtomicUsize, Mutex<Option<Waker>>)>);

impl Signal {
    pub(crate) fn polls(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }

    pub(crate) fn waker(&self) -> Option<Waker> {
        self.0.2.lock().unwrap().clone()
    }

    pub(crate) fn set(&self) {
        self.0.0.store(true, Ordering::SeqCst);
        self.waker().expect("it was polled").wake();
    }
}

impl Future for Signal {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.1.fetch_add(1, Ordering::SeqCst);
        *self.0.2.lock().unwrap() = Some(cx.waker().clone());
        if self.0.0.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// C11
#[test]
fn a_future_is_polled_when_it_is_woken_and_only_then() {
    let (clock, scheduler) = on_virtual_clock(1);
    let signal = Signal::default();
    let mut job = scheduler.now().spawn({
        let signal = signal.clone();
        move |_| signal
    });
    clock.advance(secs(1_000)).unwrap();
    assert_eq!(signal.polls(), 1);
    let waker = signal.waker().unwrap();
    thread::spawn(move || waker.wake()).join().unwrap();
    clock.settle().unwrap();
    assert_eq!(signal.polls(), 2, "woken from another thread, and not ready yet");
    signal.set();
    assert_eq!(job.as_mut().unwrap().wait(), Ok(()));
    signal.waker().unwrap().wake();
    clock.settle().unwrap();
    assert_eq!(signal.polls(), 3, "a waker that is called after the end does nothing");
}

#[test]
fn a_future_that_wakes_itself_during_its_poll_is_polled_again() {
    let (_clock, scheduler) = on_virtual_clock(1);
    let mut job = scheduler.now().spawn(|_| async {
        for _ in 0..1_000 {
            yield_once().await;
        }
        "done"
    });
    assert_eq!(job.as_mut().unwrap().wait(), Ok("done"));
}

/// Wakes from many threads at once, before, during and after each poll: none is lost.
#[test]
fn no_wake_up_of_a_future_is_lost() {
    const ROUNDS: usize = 3_000;
    let (_clock, scheduler) = on_virtual_clock(2);
    let (asked, answers) = mpsc::channel::<(Arc<AtomicBool>, Waker)>();
    let waking = thread::spawn(move || {
        for (ready, waker) in answers {
            ready.store(true, Ordering::SeqCst);
            waker.wake();
        }
    });
    let mut job = scheduler.now().spawn(move |_| async move {
        for _ in 0..ROUNDS {
            let ready = Arc::new(AtomicBool::new(false));
            let mut sent = false;
            std::future::poll_fn(|cx| {
                if !std::mem::replace(&mut sent, true) {
                    asked.send((Arc::clone(&ready), cx.waker().clone())).unwrap();
                }
                if ready.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        ROUNDS
    });
    assert_eq!(job.as_mut().unwrap().wait_timeout(Duration::MAX), Some(Ok(ROUNDS)));
    waking.join().unwrap();
}

#[test]
fn futures_can_run_on_another_runtime() {
    let (clock, scheduler) = with_runtime(1);
    let timer = scheduler.after(secs(1)).run(|_| "timer").unwrap();
    let mut job = scheduler.now().spawn(|ctx| async move { (timer.await, this_thread(), ctx.lateness()) }).unwrap();
    clock.advance(secs(1)).unwrap();
    assert_eq!(job.wait(), Ok((Ok("timer"), "another-runtime".to_owned(), Duration::ZERO)));
    let on_worker = scheduler.now().run(|_| this_thread()).unwrap().wait();
    assert_eq!(on_worker.as_deref(), Ok("punctual-worker"), "closures stay");
    until("the job is counted as stopped", || scheduler.snapshot().running == 0);
    assert_eq!(scheduler.snapshot().finished.succeeded, 3);
}

#[test]
fn a_series_can_run_on_another_runtime() {
    let (clock, scheduler) = with_runtime(1);
    let series = scheduler.every(secs(1)).spawn(|_| async {}).unwrap();
    for n in 1..=20 {
        clock.advance(secs(1)).unwrap();
        until("the run has ended", || series.runs() == n);
    }
    assert_eq!((series.missed(), series.failures()), (0, 0));
}

/// C26: a runtime that drops, or panics, settles the job and frees its place.
#[test]
fn a_runtime_that_drops_or_panics_settles_the_job() {
    type Spawner = fn(BoxFuture);
    let spawners: [Spawner; 2] = [drop, |_| panic_with("no runtime")];
    for spawner in spawners {
        let clock = VirtualClock::with_patience(SOON);
        let scheduler = Scheduler::builder().workers(1).clock(&clock).futures_on(spawner).build().unwrap();
        let dropped_on = Log::new();
        let witness = witness(&dropped_on);
        let mut job = scheduler.now().spawn(move |_| async move { drop(witness) }).unwrap();
        let error = JobError::Cancelled { cause: Cause::Runtime, stage: Stage::Running };
        assert_eq!(job.wait(), Err(error));
        job.stopped().wait();
        assert_eq!(dropped_on.len(), 1);
        assert_eq!(scheduler.now().run(|_| 1).unwrap().wait(), Ok(1), "the worker goes on");
        let now = scheduler.snapshot();
        assert_eq!((now.running, now.zombies, now.finished.cancelled), (0, 0, 1));
        clock.advance(secs(1)).unwrap();
    }
}

/// C30
#[test]
fn a_child_has_at_most_its_parents_deadline() {
    let (clock, scheduler) = on_virtual_clock(4);
    let parent = scheduler.now().deadline(secs(10)).run(|ctx| {
        let mut bare = ctx.now().run(|ctx| ctx.remaining()).unwrap();
        let mut longer = ctx.now().deadline(secs(99)).run(|ctx| ctx.remaining()).unwrap();
        let mut shorter = ctx.now().deadline(secs(3)).run(|ctx| ctx.remaining()).unwrap();
        let late = ctx.after(secs(11)).run(|_| ()).map(JobHandle::detach).map_err(|late| late.reason().clone());
        (bare.wait(), longer.wait(), shorter.wait(), late)
    });
    let expected = (Ok(Some(secs(10))), Ok(Some(secs(10))), Ok(Some(secs(3))), Err(Reason::Expired));
    assert_eq!(parent.unwrap().wait(), Ok(expected));
    drop(clock);
}

/// C30: the child of a future on another runtime, too.
#[test]
fn a_child_inherits_on_another_runtime_too() {
    let (clock, scheduler) = with_runtime(2);
    let (child, from_parent) = mpsc::channel();
    let parent = scheduler.now().deadline(secs(10)).spawn(move |ctx| async move {
        child.send(ctx.after(secs(5)).run(|_| ()).unwrap()).unwrap();
        ctx.cancelled().await;
    });
    let mut child = from_parent.recv_timeout(SOON).unwrap();
    assert_eq!(parent.unwrap().cancel(), Cancel::Requested);
    assert_eq!(child.wait(), Err(JobError::Cancelled { cause: Cause::Parent, stage: Stage::Scheduled }));
    drop(clock);
}

/// C36 as far as layer 2 has it: after any storm the numbers are the truth.
#[test]
fn every_number_is_true_after_a_storm() {
    for seed in 0..6 {
        storm(seed);
    }
}

fn storm(seed: u64) {
    let events = Log::new();
    let clock = VirtualClock::with_patience(SOON);
    let heard = events.clone();
    let builder = Scheduler::builder().workers(3).clock(&clock).on_event(move |event| heard.add(event.clone()));
    let scheduler = builder.build().unwrap();
    let submitted = Arc::new(AtomicUsize::new(0));
    let refused = Arc::new(AtomicUsize::new(0));
    let storming: Vec<_> = (0..3u64)
        .map(|thread| {
            let (scheduler, submitted, refused) = (scheduler.clone(), Arc::clone(&submitted), Arc::clone(&refused));
            let mut random = SplitMix(seed * 3 + thread);
            thread::spawn(move || {
                for _ in 0..1_500 {
                    let counter = if act(&scheduler, &mut random) { &submitted } else { &refused };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    while storming.iter().any(|thread| !thread.is_finished()) {
        clock.advance(ms(1)).unwrap();
    }
    storming.into_iter().for_each(|thread| thread.join().unwrap());
    clock.advance(secs(10)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.scheduled, now.ready, now.running, now.zombies), (0, 0, 0, 0), "seed {seed}");
    assert_eq!(now.finished.total(), submitted.load(Ordering::Relaxed) as u64, "seed {seed}: {:?}", now.finished);
    assert_eq!(now.rejected, refused.load(Ordering::Relaxed) as u64, "seed {seed}");
    let events = events.all();
    let count = |wanted: &dyn Fn(&Event) -> bool| events.iter().filter(|event| wanted(event)).count() as u64;
    let ended = |wanted| count(&|event| matches!(event, Event::Finished { outcome, .. } if *outcome == wanted));
    assert_eq!(count(&|event| matches!(event, Event::Started { .. })), now.lateness.count());
    // A job that panics after it was cancelled is reported, but counts as cancelled.
    assert!(count(&|event| matches!(event, Event::Panicked { .. })) >= now.finished.panicked, "seed {seed}");
    assert_eq!(count(&|event| matches!(event, Event::Rejected { .. })), now.rejected);
    let told = [Outcome::Succeeded, Outcome::Panicked, Outcome::Cancelled, Outcome::Expired].map(ended);
    let finished = now.finished;
    assert_eq!(told, [finished.succeeded, finished.panicked, finished.cancelled, finished.expired], "seed {seed}");
}

/// One random submit; says whether it was accepted.
fn act(scheduler: &Scheduler, random: &mut SplitMix) -> bool {
    let mut plan = scheduler.after(Duration::from_micros(random.below(3_000)));
    if random.below(3) == 0 {
        plan = plan.deadline(Duration::from_micros(random.below(4_000)));
    }
    if random.below(3) == 0 {
        plan = plan.start_within(Duration::from_micros(random.below(20)));
    }
    if random.below(3) == 0 {
        plan = plan.run_timeout(Duration::from_micros(random.below(400)));
    }
    let (kind, wait) = (random.below(4), Duration::from_micros(random.below(500)));
    let submitted = match kind {
        0 => plan.run(|_| ()).map_err(|rejected| rejected.without_job()),
        1 => plan.run(|_| panic_with("in the storm")).map_err(|rejected| rejected.without_job()),
        2 => plan.spawn(|_| yield_once()).map_err(|rejected| rejected.without_job()),
        _ => plan.run(move |ctx| _ = ctx.remaining().map(|left| left.min(wait))).map_err(|r| r.without_job()),
    };
    let Ok(mut job) = submitted else { return false };
    match random.below(5) {
        0 => _ = job.cancel(),
        1 => drop(job),
        2 => _ = job.reschedule(wait),
        3 => _ = job.wait_timeout(Duration::ZERO),
        _ => job.detach(),
    }
    true
}

/// An instant is as good as a delay.
#[test]
fn an_instant_is_read_on_the_schedulers_own_clock() {
    let (clock, scheduler) = on_virtual_clock(1);
    clock.advance(secs(77)).unwrap();
    let due: Instant = clock.now() + secs(3);
    let mut job = scheduler.at(due).run(|ctx| ctx.due()).unwrap();
    clock.advance(secs(2)).unwrap();
    assert_eq!(job.wait_timeout(Duration::ZERO), None);
    clock.advance(secs(1)).unwrap();
    assert_eq!(job.wait(), Ok(due));
}

/// C11
#[test]
fn the_event_hook_may_call_back() {
    in_time(|| {
        let clock = VirtualClock::with_patience(SOON);
        let (own, calls) = (Arc::new(OnceLock::<Scheduler>::new()), Arc::new(AtomicUsize::new(0)));
        let (known, counter) = (Arc::clone(&own), Arc::clone(&calls));
        let hook = move |_: &Event| {
            // Only twice, for its own jobs are events as well.
            if let Some(scheduler) = known.get().filter(|_| counter.fetch_add(1, Ordering::SeqCst) < 2) {
                let job = scheduler.after(secs(1)).run(|_| ()).unwrap();
                assert_eq!((job.cancel(), scheduler.snapshot().scheduled), (Cancel::Prevented, 0));
                scheduler.now().run(|_| ()).unwrap().detach();
            }
        };
        let scheduler = Scheduler::builder().workers(1).clock(&clock).on_event(hook).build().unwrap();
        own.set(scheduler.clone()).unwrap();
        let mut job = scheduler.now().run(|_| 1).unwrap();
        assert_eq!(job.wait(), Ok(1));
        clock.settle().unwrap();
        assert!(calls.load(Ordering::SeqCst) > 2);
        scheduler.shutdown(Duration::ZERO);
    });
}
