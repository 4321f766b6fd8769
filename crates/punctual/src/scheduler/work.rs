//! The work of a job, with its types erased: what a worker calls, and what a handle waits for.
//!
//! All of the user's code is called from here, under no lock, and its panics end here.
//!
//! # Invariants
//! 1. At most one thread has the body out at a time: the record's turn sees to that.
//! 2. A result is *held* by the run that made it until the scheduler has decided that it counts; only then is it
//!    settled. A result that lost against a cancel or a deadline is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use super::ctx::Ctx;
use super::{JobId, Shared};
use crate::clock::{Nanos, Parker};
use crate::error::JobError;
use crate::panics::{message_of, quietly};
use crate::queue::together;
use crate::slab::SlabKey;
use crate::sync::Mutex;

/// No key: its generation is that of a retired slot.
const NOT_ADMITTED: u64 = u64::MAX;

/// What every job has, whatever its types.
pub(crate) struct Head {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Option<Box<str>>,
    /// The bits of the record's key, once it is admitted.
    key: AtomicU64,
    stopped: Latch,
}

impl Head {
    pub(crate) fn new(shared: &Arc<Shared>, name: Option<Box<str>>) -> Self {
        Self { shared: Arc::clone(shared), name, key: AtomicU64::new(NOT_ADMITTED), stopped: Latch::new() }
    }

    /// The job's record; set when it is admitted, before anybody else sees it.
    pub(crate) fn key(&self) -> SlabKey {
        // Relaxed: set under the scheduler's lock, before anybody else can have got hold of the job.
        let bits = self.key.load(Ordering::Relaxed);
        debug_assert_ne!(bits, NOT_ADMITTED, "a job has its key from admission on");
        SlabKey::from_bits(bits)
    }

    pub(crate) fn admitted_as(&self, key: SlabKey) {
        debug_assert_eq!(self.key.load(Ordering::Relaxed), NOT_ADMITTED, "a job is admitted once");
        self.key.store(key.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn id(&self) -> JobId {
        JobId(self.key().to_bits())
    }

    pub(crate) fn stopped(&self) -> &Latch {
        &self.stopped
    }

    pub(crate) fn label(&self) -> String {
        match &self.name {
            Some(name) => format!("job {} \"{name}\"", self.id()),
            None => format!("job {}", self.id()),
        }
    }
}

/// How far a worker got with a job.
pub(crate) enum Step {
    /// A future that is not ready.
    Pending,
    Done(End),
}

/// How a run ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Succeeded,
    /// A run of a series returned an error.
    Failed(String),
    Panicked(String),
}

pub(crate) trait Work: Send + Sync {
    fn head(&self) -> &Head;
    /// Runs the closure or polls the future.
    fn step(&self, ctx: &Ctx, waker: &Waker) -> Step;
    /// Settles what the handle sees: an error, or the result that the last step held.
    fn settle(&self, error: Option<JobError>);
    /// Drops what is left of the present run: a future that will not be polled again.
    fn drop_run(&self);
    /// Drops the user's code altogether.
    fn drop_body(&self);
}

/// A job that has a result for its handle.
pub(crate) trait Joined<T>: Work {
    fn cell(&self) -> &Outlet<T>;
}

/// The user's code, behind one call for closures and futures.
pub(crate) trait Body: Send {
    type Out: Send;
    fn step(&mut self, ctx: &Ctx, waker: &Waker) -> Poll<Self::Out>;
    /// Forgets a run that is under way.
    fn reset(&mut self) {}
}

pub(crate) struct Closure<F>(pub(crate) Option<F>);

impl<F: FnOnce(Ctx) -> T + Send, T: Send> Body for Closure<F> {
    type Out = T;
    fn step(&mut self, ctx: &Ctx, _: &Waker) -> Poll<T> {
        let run = self.0.take().expect("a closure is run once");
        Poll::Ready(run(ctx.clone()))
    }
}

pub(crate) enum Spawned<F, Fut> {
    Start(Option<F>),
    Polled(Pin<Box<Fut>>),
}

impl<F, Fut> Body for Spawned<F, Fut>
where
    F: FnOnce(Ctx) -> Fut + Send,
    Fut: Future + Send,
    Fut::Output: Send,
{
    type Out = Fut::Output;
    fn step(&mut self, ctx: &Ctx, waker: &Waker) -> Poll<Fut::Output> {
        if let Self::Start(start) = self {
            let start = start.take().expect("a future is started once");
            *self = Self::Polled(Box::pin(start(ctx.clone())));
        }
        match self {
            Self::Polled(future) => future.as_mut().poll(&mut Context::from_waker(waker)),
            Self::Start(_) => Poll::Pending,
        }
    }
}

/// What a run of a series may return: nothing, or a `Result` whose error counts as a failure.
///
/// # Example
/// ```
/// use std::time::Duration;
/// let scheduler = punctual::Scheduler::new();
/// scheduler.every(Duration::from_secs(1)).run(|_| ()).unwrap();
/// scheduler.every(Duration::from_secs(1)).run(|_| std::fs::read("/etc/hostname").map(drop)).unwrap();
/// ```
pub trait RunResult: sealed::Sealed {
    #[doc(hidden)]
    fn failure(self) -> Option<String>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<E: std::fmt::Display> Sealed for Result<(), E> {}
}

impl RunResult for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: std::fmt::Display> RunResult for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}

pub(crate) struct Repeated<F>(pub(crate) F);

impl<F: FnMut(Ctx) -> R + Send, R: RunResult> Body for Repeated<F> {
    type Out = Option<String>;
    fn step(&mut self, ctx: &Ctx, _: &Waker) -> Poll<Option<String>> {
        Poll::Ready((self.0)(ctx.clone()).failure())
    }
}

pub(crate) struct Respawned<F, Fut> {
    pub(crate) start: F,
    pub(crate) current: Option<Pin<Box<Fut>>>,
}

impl<F, Fut> Body for Respawned<F, Fut>
where
    F: FnMut(Ctx) -> Fut + Send,
    Fut: Future + Send,
    Fut::Output: RunResult,
{
    type Out = Option<String>;
    fn step(&mut self, ctx: &Ctx, waker: &Waker) -> Poll<Option<String>> {
        let start = &mut self.start;
        let future = self.current.get_or_insert_with(|| Box::pin(start(ctx.clone())));
        let polled = future.as_mut().poll(&mut Context::from_waker(waker));
        if polled.is_ready() {
            self.current = None;
        }
        polled.map(RunResult::failure)
    }

    fn reset(&mut self) {
        self.current = None;
    }
}

/// A job that runs once.
pub(crate) struct Single<B: Body> {
    head: Head,
    body: Mutex<Option<B>>,
    outlet: Outlet<B::Out>,
}

impl<B: Body> Single<B> {
    pub(crate) fn new(head: Head, body: B) -> Self {
        Self { head, body: Mutex::new(Some(body)), outlet: Outlet::new() }
    }

    /// The body, for giving a rejected job back.
    pub(crate) fn into_body(self) -> Option<B> {
        self.body.lock().take()
    }
}

impl<B: Body> Work for Single<B> {
    fn head(&self) -> &Head {
        &self.head
    }

    fn step(&self, ctx: &Ctx, waker: &Waker) -> Step {
        // Taken out, so that no lock is held while it runs.
        let Some(mut body) = self.body.lock().take() else { return Step::Pending };
        // Stepping and dropping are caught apart: a destructor that panics while a panic unwinds would end the process.
        match catch_unwind(AssertUnwindSafe(|| body.step(ctx, waker))) {
            Ok(Poll::Pending) => {
                *self.body.lock() = Some(body);
                Step::Pending
            }
            Ok(Poll::Ready(value)) => {
                self.outlet.hold(value);
                // The destructor of a future is part of the job.
                match catch_unwind(AssertUnwindSafe(|| drop(body))) {
                    Ok(()) => Step::Done(End::Succeeded),
                    Err(panic) => Step::Done(End::Panicked(message_of(panic))),
                }
            }
            Err(panic) => {
                quietly(|| drop(body));
                Step::Done(End::Panicked(message_of(panic)))
            }
        }
    }

    fn settle(&self, error: Option<JobError>) {
        self.outlet.settle(error);
    }

    fn drop_run(&self) {
        self.drop_body();
    }

    fn drop_body(&self) {
        let body = self.body.lock().take();
        quietly(|| drop(body));
        self.outlet.drop_late();
    }
}

impl<B: Body> Joined<B::Out> for Single<B> {
    fn cell(&self) -> &Outlet<B::Out> {
        &self.outlet
    }
}

/// A job that runs again and again.
pub(crate) struct Multiple<B> {
    head: Head,
    body: Mutex<Option<B>>,
}

impl<B> Multiple<B> {
    pub(crate) fn new(head: Head, body: B) -> Self {
        Self { head, body: Mutex::new(Some(body)) }
    }

    pub(crate) fn into_body(self) -> Option<B> {
        self.body.lock().take()
    }
}

impl<B: Body<Out = Option<String>>> Work for Multiple<B> {
    fn head(&self) -> &Head {
        &self.head
    }

    fn step(&self, ctx: &Ctx, waker: &Waker) -> Step {
        let Some(mut body) = self.body.lock().take() else { return Step::Pending };
        let stepped = catch_unwind(AssertUnwindSafe(|| body.step(ctx, waker)));
        let step = match stepped {
            Ok(Poll::Pending) => Step::Pending,
            Ok(Poll::Ready(None)) => Step::Done(End::Succeeded),
            Ok(Poll::Ready(Some(error))) => Step::Done(End::Failed(error)),
            Err(panic) => {
                quietly(|| body.reset());
                Step::Done(End::Panicked(message_of(panic)))
            }
        };
        *self.body.lock() = Some(body);
        step
    }

    fn settle(&self, _: Option<JobError>) {}

    fn drop_run(&self) {
        let body = self.body.lock().take();
        if let Some(mut body) = body {
            quietly(|| body.reset());
            *self.body.lock() = Some(body);
        }
    }

    fn drop_body(&self) {
        let body = self.body.lock().take();
        quietly(|| drop(body));
    }
}

/// Somebody who waits for one event, in a thread or in a task.
pub(crate) enum Listener {
    Thread(Arc<Parker>),
    Task(Waker),
}

impl Listener {
    pub(crate) fn wake(self) {
        match self {
            Self::Thread(parker) => parker.unpark(),
            Self::Task(waker) => quietly(|| waker.wake()),
        }
    }
}

/// Where a result passes from the worker to the handle.
pub(crate) struct Outlet<T> {
    state: Mutex<OutletState<T>>,
}

struct OutletState<T> {
    value: Value<T>,
    /// A result that lost against a cancel or a deadline: dropped by the worker that made it.
    late: Option<T>,
    /// The handle is gone: a result that comes is dropped by the worker.
    unwanted: bool,
    listener: Option<Listener>,
}

enum Value<T> {
    Empty,
    Held(T),
    Settled(Result<T, JobError>),
    Taken,
}

impl<T> Outlet<T> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(OutletState { value: Value::Empty, late: None, unwanted: false, listener: None }) }
    }

    pub(crate) fn hold(&self, value: T) {
        let mut state = self.state.lock();
        if matches!(state.value, Value::Empty) {
            state.value = Value::Held(value);
            return;
        }
        drop(state);
        quietly(|| drop(value));
    }

    pub(crate) fn settle(&self, error: Option<JobError>) {
        let mut state = self.state.lock();
        let old = std::mem::replace(&mut state.value, Value::Empty);
        state.value = match (old, error) {
            (Value::Held(value), None) if state.unwanted => {
                state.late = Some(value);
                Value::Taken
            }
            (Value::Held(value), None) => Value::Settled(Ok(value)),
            (Value::Held(value), Some(error)) => {
                state.late = Some(value);
                Value::Settled(Err(error))
            }
            (Value::Empty, Some(error)) => Value::Settled(Err(error)),
            (settled, _) => settled,
        };
        let listener = state.listener.take();
        drop(state);
        if let Some(listener) = listener {
            listener.wake();
        }
    }

    /// The handle goes. A result that is there is dropped here; its panic is nobody's.
    pub(crate) fn discard(&self) {
        let mut state = self.state.lock();
        state.unwanted = true;
        let settled = matches!(state.value, Value::Settled(_));
        let old = settled.then(|| std::mem::replace(&mut state.value, Value::Taken));
        let listener = state.listener.take();
        drop(state);
        quietly(|| drop((old, listener)));
    }

    pub(crate) fn drop_late(&self) {
        let late = self.state.lock().late.take();
        quietly(|| drop(late));
    }

    /// The handle was detached: nobody will take the result.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.state.lock().unwanted
    }

    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state.lock().value, Value::Settled(_) | Value::Taken)
    }

    /// Takes the result, or leaves somebody to be woken for it.
    ///
    /// # Panics
    /// If it was taken before.
    pub(crate) fn take_or_listen(&self, listener: Listener) -> Option<Result<T, JobError>> {
        let mut state = self.state.lock();
        let (taken, old) = match std::mem::replace(&mut state.value, Value::Taken) {
            Value::Settled(result) => (Some(result), state.listener.take()),
            Value::Taken => {
                drop(state);
                panic!("the result of a job is taken once");
            }
            waiting => {
                state.value = waiting;
                (None, state.listener.replace(listener))
            }
        };
        drop(state);
        drop(old);
        taken
    }
}

/// An event that happens once and can be waited for by many.
pub(crate) struct Latch {
    state: Mutex<LatchState>,
}

#[derive(Default)]
struct LatchState {
    open: bool,
    /// Boxed, for most latches open without anybody having waited.
    waiting: Option<Box<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    listeners: Vec<(u64, Listener)>,
    next: u64,
}

impl Waiting {
    fn remove(&mut self, id: u64) -> Option<Listener> {
        let at = self.listeners.iter().position(|(other, _)| *other == id)?;
        Some(self.listeners.swap_remove(at).1)
    }
}

impl Latch {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(LatchState::default()) }
    }

    pub(crate) fn open(&self) {
        let mut state = self.state.lock();
        state.open = true;
        let waiting = state.waiting.take();
        drop(state);
        if let Some(waiting) = waiting {
            waiting.listeners.into_iter().for_each(|(_, listener)| listener.wake());
        }
    }

    /// True if open; else somebody is woken when it is. `id` names a listener that listens on.
    pub(crate) fn is_open_or_listen(&self, id: &mut Option<u64>, listener: Listener) -> bool {
        let mut state = self.state.lock();
        if state.open {
            return true;
        }
        let waiting = state.waiting.get_or_insert_default();
        let number = id.unwrap_or(waiting.next);
        let old = waiting.remove(number);
        waiting.next = waiting.next.max(number + 1);
        waiting.listeners.push((number, listener));
        *id = Some(number);
        drop(state);
        drop(old);
        false
    }

    pub(crate) fn forget(&self, id: u64) {
        let mut state = self.state.lock();
        let old = state.waiting.as_mut().and_then(|waiting| waiting.remove(id));
        drop(state);
        drop(old);
    }

    /// Blocks until open, or until `give_up`. Says whether it is open.
    pub(crate) fn wait(&self, shared: &Shared, give_up: Nanos) -> bool {
        let _presence = shared.clock.presence();
        let parker = Parker::of_this_thread();
        let mut id = None;
        loop {
            if self.is_open_or_listen(&mut id, Listener::Thread(Arc::clone(&parker))) {
                return true;
            }
            if shared.clock.nanos() >= give_up {
                id.into_iter().for_each(|id| self.forget(id));
                return false;
            }
            together::wake_held();
            parker.park(&shared.clock, give_up);
        }
    }
}
