//! Layer 3: what a tenant costs, beside the ways people bound work today; and what it costs when there are many
//! tenants, much queued work, or too much of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, Thread};
use std::time::Duration;

use anyhow::{Result, bail};
use punctual::{Limits, Scheduler, Tenant};

use super::{Case, Sample, WORKERS, Workload, on_threads, paced};
use crate::measure::{Random, Usage, now_ns, resident_bytes};
use crate::peer::{TENANT, pools};

/// Jobs that the experiment about many tenants runs in all.
const PICKED: usize = 200_000;

/// How much more is submitted than can be done.
const OVERLOAD: u64 = 10;

pub(crate) fn measure(peer: &str, case: &Case) -> Result<Sample> {
    match (case.workload, peer) {
        (Workload::Tenants, TENANT) => {
            let scheduler = scheduler();
            let tenant = open(&scheduler, "tenant", Limits::new().running_max(WORKERS));
            Ok(submit_and_run(case, |job| tenant.now().run(move |_| job()).expect("no bound is set").detach()))
        }
        (Workload::Tenants, "punctual-scheduler") => {
            let scheduler = scheduler();
            Ok(submit_and_run(case, |job| scheduler.now().run(move |_| job()).expect("no bound is set").detach()))
        }
        (Workload::Tenants, "crossbeam-pool") => Ok(pools::crossbeam(WORKERS, |spawn| submit_and_run(case, spawn))),
        (Workload::Tenants, "tokio-semaphore") => Ok(pools::tokio(WORKERS, |spawn| submit_and_run(case, spawn))),
        (Workload::Tenants, "rayon") => Ok(pools::rayon(WORKERS, |spawn| submit_and_run(case, spawn))),
        (Workload::Pick, TENANT) => Ok(pick(case)),
        (Workload::Revoke, TENANT) => Ok(revoke(case)),
        (Workload::Overload, TENANT) => overload(case),
        (workload, peer) => bail!("{peer} takes no part in {workload}"),
    }
}

fn scheduler() -> Scheduler {
    Scheduler::builder().workers(WORKERS).build().expect("a scheduler starts")
}

fn open(scheduler: &Scheduler, name: &str, limits: Limits) -> Tenant {
    scheduler.tenant(name, limits).expect("a new tenant")
}

/// Counts jobs down; the last one wakes whoever waits.
struct Countdown {
    left: AtomicUsize,
    waits: Thread,
}

impl Countdown {
    fn new(jobs: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(jobs), waits: thread::current() })
    }

    fn job(self: &Arc<Self>) -> Box<dyn FnOnce() + Send> {
        let countdown = Arc::clone(self);
        Box::new(move || {
            if countdown.left.fetch_sub(1, Relaxed) == 1 {
                countdown.waits.unpark();
            }
        })
    }

    fn wait(&self) {
        while self.left.load(Relaxed) > 0 {
            thread::park();
        }
    }
}

/// Submits empty jobs from so many threads and waits for the last to end.
fn submit_and_run(case: &Case, spawn: impl Fn(Box<dyn FnOnce() + Send>) + Sync) -> Sample {
    let (jobs, each) = (case.per_thread() * case.threads, case.per_thread());
    let countdown = Countdown::new(jobs);
    let (start, before) = (now_ns(), Usage::now());
    let (submit_ns, _) = on_threads(case.threads, |_| (0..each).for_each(|_| spawn(countdown.job())));
    countdown.wait();
    let (wall, cpu) = ((now_ns() - start) as f64, Usage::now().cpu_us_since(before));
    Sample::default()
        .with("wall_ns", wall / jobs as f64)
        .with("cpu_ns", cpu * 1e3 / jobs as f64)
        .with("submit_ns", submit_ns as f64 / jobs as f64)
        .with("jobs_per_s", jobs as f64 * 1e9 / wall)
}

/// So many tenants all have work; one worker takes it, job by job, from whoever's turn it is.
fn pick(case: &Case) -> Sample {
    let scheduler = Scheduler::builder().workers(1).build().expect("a scheduler starts");
    let tenants: Vec<_> = (0..case.entries).map(|n| open(&scheduler, &n.to_string(), Limits::new())).collect();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocker = scheduler.now().run(move |_| blocked.recv().is_ok()).expect("the scheduler is open");
    let jobs = PICKED.max(case.entries);
    let countdown = Countdown::new(jobs);
    for tenant in tenants.iter().cycle().take(jobs) {
        let job = countdown.job();
        tenant.now().run(move |_| job()).expect("no bound is set").detach();
    }
    let (start, before) = (now_ns(), Usage::now());
    release.send(()).expect("the blocker waits");
    countdown.wait();
    let (wall, cpu) = ((now_ns() - start) as f64, Usage::now().cpu_us_since(before));
    drop(blocker);
    Sample::default().with("wall_ns", wall / jobs as f64).with("cpu_ns", cpu * 1e3 / jobs as f64)
}

/// So many jobs are queued; all are cancelled, in no order.
fn revoke(case: &Case) -> Sample {
    let scheduler = scheduler();
    let tenant = open(&scheduler, "tenant", Limits::new().running_max(0));
    let submit = |_| tenant.now().run(|_| ()).expect("no bound is set");
    let mut handles: Vec<_> = (0..case.entries).map(submit).collect();
    let mut random = Random::new(1);
    for last in (1..handles.len()).rev() {
        let other = random.between(0, last as u64 + 1) as usize;
        handles.swap(last, other);
    }
    let (start, before) = (now_ns(), Usage::now());
    for handle in &handles {
        handle.cancel();
    }
    let (wall, cpu) = ((now_ns() - start) as f64, Usage::now().cpu_us_since(before));
    let left = tenant.snapshot().ready;
    Sample::default()
        .with("wall_ns", wall / case.entries as f64)
        .with("cpu_ns", cpu * 1e3 / case.entries as f64)
        .with("left_entries", left as f64)
}

/// Jobs of a millisecond, ten times as many as two workers can do, for a while.
fn overload(case: &Case) -> Result<Sample> {
    let scheduler = scheduler();
    let limits = Limits::new().running_max(WORKERS).backlog_max(100);
    let tenant = open(&scheduler, "tenant", limits);
    let capacity = WORKERS as u64 * 1000;
    let (mut rejected, mut rejecting_ns, mut early_bytes) = (0u64, 0u64, None);
    let (start, warm) = (now_ns(), case.seconds * 1_000_000_000 / 10);
    paced((capacity * OVERLOAD * case.seconds) as usize, case.seconds, || {
        let began = now_ns();
        match tenant.now().run(|_| thread::sleep(Duration::from_millis(1))) {
            Ok(handle) => handle.detach(),
            Err(refused) => {
                drop(refused);
                rejected += 1;
                rejecting_ns += now_ns() - began;
            }
        }
        if early_bytes.is_none() && began - start > warm {
            early_bytes = resident_bytes().ok();
        }
    });
    let grown = resident_bytes()? - early_bytes.unwrap_or_default();
    let snapshot = tenant.snapshot();
    Ok(Sample::default()
        .with("reject_ns", rejecting_ns as f64 / rejected.max(1) as f64)
        .with("rejected", rejected as f64)
        .with("accepted", snapshot.lateness.count() as f64)
        .with("p50_us", snapshot.lateness.percentile(50.0).as_nanos() as f64 / 1e3)
        .with("p99_us", snapshot.lateness.percentile(99.0).as_nanos() as f64 / 1e3)
        .with("max_us", snapshot.lateness.max().as_nanos() as f64 / 1e3)
        .with("grown_kb", grown / 1024.0))
}
