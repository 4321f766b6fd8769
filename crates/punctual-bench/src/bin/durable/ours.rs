//! The works on `Jobs` over a file: those that any store can do, and those of a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use punctual::{Cron, VirtualClock};
use punctual_bench::durable::Place;
use punctual_bench::durable::parent::CHILD;
use punctual_bench::durable::table::Sample;
use punctual_bench::durable::wait::wait;
use punctual_bench::durable::work::Work;
use punctual_bench::durable::works::{self, FAR, Load, ONLY, drain, fill, load};
use punctual_durable::Jobs;

use crate::works::fill_work;

const HOUR: Duration = Duration::from_secs(3_600);

/// A folder, with a file for each store.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Place for Folder {
    fn open(&self, name: &str) -> Result<Jobs> {
        Ok(wait(Jobs::open(&format!("sqlite:{}", self.0.join(name).with_extension("db").display())))?)
    }

    fn server(&self) -> Option<u32> {
        None
    }
}

pub(crate) fn measure(work: &Work, folder: &Path) -> Result<Sample> {
    let place = Folder(folder.to_owned());
    match work.name {
        "enqueue-1" | "enqueue-16" | "enqueue-64" => works::enqueue(work, &place),
        "bulk" => works::bulk(work, &place),
        "drain-64" | "drain-256" => {
            let jobs = place.open(ONLY)?;
            fill(&jobs, "acme", work.jobs, Duration::ZERO)?;
            drain(&jobs, place.server(), work.callers, work.jobs)
        }
        "latency" => works::latency(work, &place),
        "dense" | "sparse" => works::lateness(work, &place),
        "parked" => works::parked(work, &place),
        "fill" => fill(&place.open(ONLY)?, "acme", work.jobs, FAR).map(|()| Sample::default()),
        "reopen" => reopen(work, &place),
        "fair" => works::fair(work, &place),
        "year" => year(work),
        other => Err(anyhow!("{other} is unknown")),
    }
}

/// Another process fills the file, so that the memory seen here is that of opening it.
fn reopen(work: &Work, place: &Folder) -> Result<Sample> {
    let fill = Work { jobs: work.jobs, ..fill_work() };
    let output = Command::new(std::env::current_exe()?).arg(CHILD).args(fill.to_args()).arg(&place.0).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let began = Instant::now();
    let jobs = place.open(ONLY)?;
    let totals = wait(jobs.totals())?;
    let took = began.elapsed();
    ensure!(totals.scheduled as u64 == work.jobs, "{totals:?}");
    let bytes: u64 = fs::read_dir(&place.0)?.map(|entry| Ok(entry?.metadata()?.len())).sum::<Result<u64>>()?;
    let megabytes = |bytes: f64| bytes / 1e6;
    Ok(Sample::default()
        .with("open_ms", took.as_secs_f64() * 1e3)
        .with("rss_mb", megabytes(resident_bytes()?))
        .with("file_mb", megabytes(bytes as f64)))
}

/// The real engine on a clock that is moved.
fn year(work: &Work) -> Result<Sample> {
    let clock = VirtualClock::new();
    let jobs = wait(Jobs::builder().clock(&clock).open("memory:"))?;
    let runs = Arc::new(AtomicU64::new(0));
    let counted = runs.clone();
    jobs.on(move |_: Load, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(()))
    });
    let _node = wait(jobs.start())?;
    let hourly = Cron::parse("0 * * * *")?.in_zone("Europe/Paris")?;
    wait(jobs.cron("hourly", hourly).enqueue(load(0)))?;
    let began = Instant::now();
    clock.advance(HOUR * u32::try_from(work.jobs)?)?;
    let seconds = began.elapsed().as_secs_f64();
    ensure!(runs.load(Ordering::Relaxed) == work.jobs, "{runs:?} of {} ticks ran", work.jobs);
    Ok(Sample::default().with("seconds", seconds).with("tick_us", seconds * 1e6 / work.jobs as f64))
}

fn resident_bytes() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? * 1024.0)
}
