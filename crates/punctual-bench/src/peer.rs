//! The libraries that are measured, behind one small trait: start, schedule, cancel.
//!
//! Each file adapts one of them as its own documentation would have it used, and no better.

mod async_io_timer;
mod crossbeam_after;
mod hash_wheel;
pub(crate) mod java;
mod naive;
pub(crate) mod pools;
mod punctual_queue;
mod punctual_scheduler;
mod scheduled_pool;
mod tokio_delay_queue;
mod tokio_spawn;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::workload::{self, Case, Sample, Workload};

/// The peer all ratios refer to.
pub(crate) const BASELINE: &str = "punctual-queue";
/// Layer 3, which stands beside other peers: those that run jobs at once.
pub(crate) const TENANT: &str = "punctual-tenant";
/// Not a peer: what a thread gets that does nothing but sleep.
pub(crate) const BARE_WAIT: &str = "bare-wait";

/// A delay queue, timer or pool, started.
pub(crate) trait Peer: Sync + Sized {
    type Producer: Producer;

    /// Starts it with `threads` that run due entries, where the peer can be told how many.
    fn start(threads: usize) -> Self;

    /// One producing thread's access; made on that thread.
    fn producer(&self) -> Self::Producer;

    /// Entries it still holds, if it can say.
    fn len(&self) -> Option<usize> {
        None
    }
}

/// Schedules work on a peer.
pub(crate) trait Producer {
    type Handle;

    fn after(&mut self, delay: Duration, job: impl FnOnce() + Send + 'static) -> Self::Handle;

    fn cancel(&mut self, handle: Self::Handle);

    /// Lets the entry go its way. Most handles may just be dropped.
    fn detach(&mut self, handle: Self::Handle) {
        drop(handle);
    }
}

/// What peers store that do not box the work themselves.
type Job = Box<dyn FnOnce() + Send>;

/// What a peer can do, so that the tables leave out what it cannot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    pub(crate) name: &'static str,
    /// Runs work when it is due. Without, only adding and cancelling are measured.
    pub(crate) fires: bool,
    /// Many consumers may block for the next entry.
    pub(crate) takes: bool,
    /// Keeps entries until they are due.
    pub(crate) delays: bool,
    /// Runs jobs at once, for the experiments about tenants.
    pub(crate) jobs: bool,
    pub(crate) java: bool,
}

const fn rust(name: &'static str, fires: bool, takes: bool) -> Traits {
    Traits { name, fires, takes, delays: true, jobs: false, java: false }
}

const fn pool(name: &'static str) -> Traits {
    Traits { name, fires: false, takes: false, delays: false, jobs: true, java: false }
}

/// All that run in this process. Java's come from `java::available`.
pub(crate) const RUST: &[Traits] = &[
    rust(BASELINE, true, true),
    rust("punctual-queue-batch", true, true),
    Traits { jobs: true, ..rust("punctual-scheduler", true, true) },
    rust("tokio-delayqueue", true, false),
    rust("tokio-spawn", true, false),
    rust("async-io", true, false),
    rust("scheduled-thread-pool", true, true),
    rust("hash-wheel", true, false),
    rust("crossbeam-after", false, false),
    rust("naive", true, true),
    pool(TENANT),
    pool("crossbeam-pool"),
    pool("tokio-semaphore"),
    pool("rayon"),
];

/// Measures one case on the peer of that name, in this process.
pub(crate) fn measure(name: &str, case: &Case) -> Result<Sample> {
    if matches!(case.workload, Workload::Tenants | Workload::Pick | Workload::Revoke | Workload::Overload) {
        return workload::tenants::measure(name, case);
    }
    match name {
        BARE_WAIT => Ok(workload::bare_wait(case)),
        BASELINE => workload::measure::<punctual_queue::OneByOne>(case),
        "punctual-queue-batch" => workload::measure::<punctual_queue::InBatches>(case),
        "punctual-scheduler" => workload::measure::<punctual_scheduler::Pool>(case),
        "tokio-delayqueue" => workload::measure::<tokio_delay_queue::Driver>(case),
        "tokio-spawn" => workload::measure::<tokio_spawn::Tasks>(case),
        "async-io" => workload::measure::<async_io_timer::Timers>(case),
        "scheduled-thread-pool" => workload::measure::<scheduled_pool::Pool>(case),
        "hash-wheel" => workload::measure::<hash_wheel::Wheel>(case),
        "crossbeam-after" => workload::measure::<crossbeam_after::Channels>(case),
        "naive" => workload::measure::<naive::Executor>(case),
        other => bail!("no peer is called {other:?}"),
    }
}
