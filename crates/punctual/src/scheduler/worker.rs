//! The threads of a scheduler: workers, the watch, and now and then a disposer.
//!
//! A worker walks the road again and again: pick, check, run, finish. While it has nothing to do it leads: it sleeps
//! exactly until the earliest alarm, so that a due job starts on the thread that slept for it. The watch leads while
//! all workers are busy. It runs no job code, so deadlines are met whatever the jobs do.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use super::Shared;
use super::after::{After, Remains};
use super::away::AwayFuture;
use super::core::{Handled, Picked};
use super::ctx::Ctx;
use super::work::Step;
use crate::clock::Parker;
use crate::panics::quietly;
use crate::slab::SlabKey;
use crate::sync::{self, thread_local};

#[allow(clippy::missing_const_for_thread_local, reason = "the model checkers' macro knows no const")]
mod current {
    use super::{Cell, SlabKey, thread_local};
    thread_local! {
    /// The job this thread is running: the scheduler's address and the job's key.
    pub(super) static CURRENT: Cell<Option<(usize, SlabKey)>> = Cell::new(None);
    }
}
use current::CURRENT;

/// The job of this scheduler that the calling thread is running.
pub(crate) fn current_job(shared: &Arc<Shared>) -> Option<SlabKey> {
    CURRENT.with(Cell::get).and_then(|(scheduler, key)| (scheduler == Arc::as_ptr(shared).addr()).then_some(key))
}

/// The calling thread runs a job until this is dropped.
pub(crate) struct Inside {
    outside: Option<(usize, SlabKey)>,
}

impl Inside {
    pub(crate) fn enter(shared: &Arc<Shared>, key: SlabKey) -> Self {
        let job = Some((Arc::as_ptr(shared).addr(), key));
        Self { outside: CURRENT.with(|current| current.replace(job)) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CURRENT.with(|current| current.set(self.outside));
    }
}

/// Starts the watch and the first worker.
///
/// # Errors
/// What the operating system answered; then neither runs.
pub(crate) fn start_first(shared: &Arc<Shared>) -> std::io::Result<()> {
    // Whoever comes second waits for the outcome: a job must not be admitted on the strength of a start that fails.
    let _one_at_a_time = shared.starting.lock();
    let parker = Arc::new(Parker::new());
    let mut core = shared.core.lock();
    if core.started {
        return Ok(());
    }
    core.workers += 1;
    core.arm_watch(&parker);
    drop(core);
    let started = start(shared, "punctual-watch", {
        let parker = Arc::clone(&parker);
        move |shared| watch(shared, &parker)
    });
    let started = started.and_then(|()| start_worker(shared));
    let mut core = shared.core.lock();
    core.started = started.is_ok();
    if started.is_err() {
        core.workers -= 1;
        core.watch_ends();
    }
    drop(core);
    if started.is_err() {
        parker.unpark();
    }
    started
}

/// Starts a worker that was asked for. If there is no thread to be had, those that run do its work.
pub(crate) fn start_another(shared: &Arc<Shared>) {
    if start_worker(shared).is_err() {
        let mut after = After::default();
        let mut core = shared.core.lock();
        core.workers -= 1;
        core.cover(&mut after);
        drop(core);
        after.run(shared);
    }
}

fn start_worker(shared: &Arc<Shared>) -> std::io::Result<()> {
    start(shared, "punctual-worker", |shared| {
        let mut worked = false;
        if let Some(enter) = &shared.hooks.enter {
            let mut body = || {
                if !std::mem::replace(&mut worked, true) {
                    work(shared);
                }
            };
            quietly(|| enter(&mut body));
        }
        // Without a hook; or the hook panicked, or never called: its jobs run all the same.
        if !worked {
            work(shared);
        }
    })
}

fn start(shared: &Arc<Shared>, name: &str, body: impl FnOnce(&Arc<Shared>) + Send + 'static) -> std::io::Result<()> {
    let inside = Arc::clone(shared);
    // Counted before it runs, so that a virtual clock does not think all is quiet meanwhile.
    shared.clock.expect_busy();
    let started = sync::spawn(name, shared.hooks.stack_size, move || {
        let presence = inside.clock.adopt_presence();
        body(&inside);
        drop(presence);
    });
    if started.is_err() {
        shared.clock.no_longer_busy();
    }
    started
}

/// The road: pick, check, run, finish, again and again.
fn work(shared: &Arc<Shared>) {
    let parker = Arc::new(Parker::new());
    let mut after = After::default();
    let mut handled = None;
    while let Some(picked) = next(shared, &parker, handled.take(), &mut after) {
        handled = run(shared, picked);
    }
}

/// Reports what came of the last job, and sleeps until there is another. `None`: the scheduler is closed.
fn next(
    shared: &Arc<Shared>,
    parker: &Arc<Parker>,
    handled: Option<(SlabKey, Handled)>,
    after: &mut After,
) -> Option<Picked> {
    let mut core = shared.core.lock();
    core.now(&shared.clock);
    if let Some((key, handled)) = handled {
        core.handled(key, handled, &shared.clock, after);
    }
    loop {
        let more = core.fire(&shared.clock, after);
        let picked = core.pick(&shared.clock, after);
        if picked.is_some() {
            core.rouse_for_turns(&shared.clock, after);
        }
        let ends = picked.is_none() && core.needs_no_workers();
        if ends {
            core.workers -= 1;
        }
        if picked.is_some() || ends || !after.is_empty() {
            // About to run the user's code: somebody else keeps the time.
            core.cover(after);
            drop(core);
            after.run(shared);
            if picked.is_some() || ends {
                return picked;
            }
            core = shared.core.lock();
            core.now(&shared.clock);
        } else if let Some(remains) = core.orphaned_remains() {
            core.cover(after);
            drop(core);
            after.run(shared);
            bury(shared, remains);
            core = shared.core.lock();
            core.now(&shared.clock);
        } else if !more {
            let (id, until) = core.lie_down(parker, after);
            drop(core);
            after.run(shared);
            parker.park(&shared.clock, until);
            core = shared.core.lock();
            core.now(&shared.clock);
            core.get_up(id);
            core.check_wall(&shared.clock);
        }
    }
}

fn run(shared: &Arc<Shared>, picked: Picked) -> Option<(SlabKey, Handled)> {
    let Picked { key, run, first, future, drop_only } = picked;
    let _running = shared.clock.running(|| run.work.head().label());
    let inside = Inside::enter(shared, key);
    let handled = if drop_only {
        run.work.drop_run();
        Some(Handled::Dropped)
    } else if let Some(spawner) = shared.hooks.futures_on.as_ref().filter(|_| future && first) {
        // Whatever the spawner does with it, the future settles the job: when it ends, or when it is dropped.
        quietly(|| spawner(Box::pin(AwayFuture::new(&run))));
        None
    } else {
        let waker = if future { run.waker.get_or_init(|| JobWaker::make(shared, key)) } else { Waker::noop() };
        Some(match run.work.step(&Ctx::new(Arc::clone(&run)), waker) {
            Step::Pending => Handled::Pending,
            Step::Done(end) => Handled::Ended(end),
        })
    };
    drop(inside);
    quietly(|| drop(run));
    handled.map(|handled| (key, handled))
}

/// Brings a future back to a worker.
struct JobWaker {
    shared: Weak<Shared>,
    key: SlabKey,
}

impl JobWaker {
    fn make(shared: &Arc<Shared>, key: SlabKey) -> Waker {
        Waker::from(Arc::new(Self { shared: Arc::downgrade(shared), key }))
    }
}

impl Wake for JobWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            let mut after = After::default();
            shared.core.lock().woken(self.key, &mut after);
            after.run(&shared);
        }
    }
}

/// Leads while all workers are busy.
fn watch(shared: &Arc<Shared>, parker: &Arc<Parker>) {
    let mut after = After::default();
    loop {
        let mut core = shared.core.lock();
        core.now(&shared.clock);
        core.check_wall(&shared.clock);
        let more = core.fire(&shared.clock, &mut after);
        core.rouse_for_turns(&shared.clock, &mut after);
        if !core.is_watch(parker) || core.is_over() {
            if core.is_watch(parker) {
                core.watch_ends();
            }
            drop(core);
            return after.run(shared);
        }
        let until = core.arm_watch(parker);
        drop(core);
        after.run(shared);
        if !more {
            parker.park(&shared.clock, until);
        }
    }
}

/// Starts the thread that drops what jobs leave behind that ended without a worker.
pub(crate) fn start_disposer(shared: &Arc<Shared>) {
    if start(shared, "punctual-disposer", dispose).is_err() {
        // No thread to be had: a worker that is idle does it, or the next thread that is needed.
        shared.core.lock().disposer_runs = false;
    }
}

fn dispose(shared: &Arc<Shared>) {
    loop {
        let mut core = shared.core.lock();
        let Some(remains) = core.remains.pop_front() else {
            core.disposer_runs = false;
            return;
        };
        drop(core);
        bury(shared, remains);
    }
}

fn bury(shared: &Arc<Shared>, remains: Remains) {
    if let Some(work) = &remains.work {
        let _running = shared.clock.running(|| work.head().label());
        work.drop_body();
    }
    if let Some(event) = &remains.event {
        shared.emit(event);
    }
    quietly(|| drop(remains));
}
