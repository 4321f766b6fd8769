//! The works, on `Jobs` over a file. One call measures one work in this process.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, anyhow, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use punctual::{Cron, VirtualClock};
use punctual_durable::{Job, Jobs};
use serde::{Deserialize, Serialize};

use crate::table::Sample;
use crate::wait::wait;
use crate::works::{self, Work};

const HOUR: Duration = Duration::from_secs(3_600);
/// Jobs that are drained beside a million parked ones are a tenth of those.
const PARKED_PER_JOB: u64 = 10;
const IN_BULK: u64 = 1_000;
/// Callers that enqueue delayed jobs.
const CALLERS: u64 = 64;

pub(crate) fn measure(work: &Work, folder: &Path) -> Result<Sample> {
    match work.name {
        "enqueue-1" | "enqueue-16" | "enqueue-64" => enqueue(work, folder),
        "bulk" => bulk(work, folder),
        "drain-64" | "drain-256" => {
            let jobs = open(folder)?;
            fill(&jobs, "acme", work.jobs, Duration::ZERO)?;
            drain(&jobs, work.callers, work.jobs)
        }
        "latency" => latency(work, folder),
        "dense" | "sparse" => lateness(work, folder),
        "parked" => parked(work, folder),
        "fill" => fill(&open(folder)?, "acme", work.jobs, HOUR * 24).map(|()| Sample::default()),
        "reopen" => reopen(work, folder),
        "fair" => fair(work, folder),
        "year" => year(work),
        other => Err(anyhow!("{other} is unknown")),
    }
}

/// A hundred bytes of payload.
#[derive(Debug, Serialize, Deserialize)]
struct Load(String);

impl Job for Load {
    const KIND: &'static str = "load";
    type Output = ();
}

fn load(number: u64) -> Load {
    Load(format!("{number:098}"))
}

fn open(folder: &Path) -> Result<Jobs> {
    Ok(wait(Jobs::open(&format!("sqlite:{}", folder.join("jobs.db").display())))?)
}

fn fill(jobs: &Jobs, tenant: &str, count: u64, delay: Duration) -> Result<()> {
    for batch in 0..count.div_ceil(IN_BULK) {
        let loads = (batch * IN_BULK..count.min((batch + 1) * IN_BULK)).map(load);
        for answer in wait(jobs.tenant(tenant).after(delay).enqueue_many(loads)) {
            answer?;
        }
    }
    Ok(())
}

/// Each caller waits for its one job before it asks for the next.
fn enqueue(work: &Work, folder: &Path) -> Result<Sample> {
    let jobs = open(folder)?;
    let (until, began, cpu) = (Duration::from_millis(work.millis), Instant::now(), cpu()?);
    let count = in_parallel(work.callers, |_| {
        let mut count = 0;
        while began.elapsed() < until {
            wait(jobs.tenant("acme").now().enqueue(load(count)))?;
            count += 1;
        }
        Ok(count)
    })?;
    rate(count, began, cpu)
}

fn bulk(work: &Work, folder: &Path) -> Result<Sample> {
    let jobs = open(folder)?;
    let (began, cpu) = (Instant::now(), cpu()?);
    fill(&jobs, "acme", work.jobs, Duration::ZERO)?;
    rate(work.jobs, began, cpu)
}

/// Runs empty jobs until none is left and the end of each is on disk.
fn drain(jobs: &Jobs, workers: u64, count: u64) -> Result<Sample> {
    jobs.on(|_: Load, _| std::future::ready(Ok(())));
    let (began, cpu) = (Instant::now(), cpu()?);
    let node = wait(jobs.node().workers(workers as usize).start())?;
    wait(node.drain());
    ensure!(node.snapshot().succeeded == count, "{:?}", node.snapshot());
    rate(count, began, cpu)
}

fn latency(work: &Work, folder: &Path) -> Result<Sample> {
    let jobs = open(folder)?;
    let origin = Instant::now();
    let called: Arc<Vec<AtomicU64>> = Arc::new((0..work.jobs).map(|_| AtomicU64::new(0)).collect());
    let seen = Arc::new(Seen::default());
    let (calls, starts) = (called.clone(), seen.clone());
    jobs.on(move |load: Load, _| {
        let number: usize = load.0.parse().unwrap_or_default();
        let call = calls[number].load(Ordering::Acquire);
        starts.add((origin.elapsed().as_nanos() as u64).checked_sub(call).map(Duration::from_nanos));
        std::future::ready(Ok(()))
    });
    let node = wait(jobs.node().workers(64).start())?;
    let gap = Duration::from_millis(work.millis) / u32::try_from(work.jobs)?;
    in_parallel(work.callers, |caller| {
        for number in (caller..work.jobs).step_by(work.callers as usize) {
            thread::sleep((gap * u32::try_from(number)?).saturating_sub(origin.elapsed()));
            called[number as usize].store(origin.elapsed().as_nanos() as u64, Ordering::Release);
            wait(jobs.tenant("acme").now().enqueue(load(number)))?;
        }
        Ok(0)
    })?;
    wait(node.drain());
    seen.sample(work.jobs)
}

/// How late delayed jobs start, by the wall clock.
fn lateness(work: &Work, folder: &Path) -> Result<Sample> {
    let jobs = open(folder)?;
    let seen = Arc::new(Seen::default());
    let starts = seen.clone();
    jobs.on(move |_: Load, ctx| {
        starts.add(SystemTime::now().duration_since(ctx.due().to_wall()).ok());
        std::future::ready(Ok(()))
    });
    let node = wait(jobs.node().workers(64).start())?;
    let first = SystemTime::now() + Duration::from_secs(4);
    let gap = Duration::from_millis(work.millis) / u32::try_from(work.jobs)?;
    // Many callers share a commit, so that all are in before the first is due.
    in_parallel(CALLERS, |caller| {
        for number in (caller..work.jobs).step_by(CALLERS as usize) {
            wait(jobs.tenant("acme").at(first + gap * u32::try_from(number)?).enqueue(load(number)))?;
        }
        Ok(0)
    })?;
    ensure!(SystemTime::now() < first, "the jobs were not enqueued before the first was due");
    let last = first + Duration::from_millis(work.millis);
    thread::sleep(last.duration_since(SystemTime::now())? + Duration::from_millis(500));
    wait(node.drain());
    seen.sample(work.jobs)
}

/// A drain in an empty file, and one in a file with many jobs that are far from due.
fn parked(work: &Work, folder: &Path) -> Result<Sample> {
    let count = work.jobs / PARKED_PER_JOB;
    let drained = |name: &str, parked| {
        let folder = folder.join(name);
        fs::create_dir(&folder)?;
        let jobs = open(&folder)?;
        fill(&jobs, "acme", parked, HOUR * 24)?;
        fill(&jobs, "acme", count, Duration::ZERO)?;
        let sample = drain(&jobs, work.callers, count)?;
        let get = |metric| sample.get(metric).unwrap_or_default();
        Ok::<_, anyhow::Error>((get("rate"), get("cpu_us")))
    };
    let ((normal, normal_cpu), (beside, beside_cpu)) = (drained("normal", 0)?, drained("beside", work.jobs)?);
    let shares = Sample::default().with("share", beside / normal).with("cpu_share", beside_cpu / normal_cpu);
    Ok(shares.with("rate", beside).with("normal", normal))
}

/// Another process fills the file, so that the memory seen here is that of opening it.
fn reopen(work: &Work, folder: &Path) -> Result<Sample> {
    let fill = Work { jobs: work.jobs, ..works::fill() };
    let output = Command::new(std::env::current_exe()?).arg(crate::CHILD).args(fill.to_args()).arg(folder).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let began = Instant::now();
    let jobs = open(folder)?;
    let totals = wait(jobs.totals())?;
    let took = began.elapsed();
    ensure!(totals.scheduled as u64 == work.jobs, "{totals:?}");
    let bytes: u64 = fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum::<Result<u64>>()?;
    let megabytes = |bytes: f64| bytes / 1e6;
    Ok(Sample::default()
        .with("open_ms", took.as_secs_f64() * 1e3)
        .with("rss_mb", megabytes(resident_bytes()?))
        .with("file_mb", megabytes(bytes as f64)))
}

/// How soon a small tenant is served in spite of a big one, and what that costs the big one.
fn fair(work: &Work, folder: &Path) -> Result<Sample> {
    let big_alone = big_beside(work, &folder.join("alone"), 0)?;
    let beside = big_beside(work, &folder.join("beside"), 10)?;
    Ok(Sample::default().with("small_ms", beside.1 * 1e3).with("share", big_alone.0 / beside.0))
}

/// Seconds until the big tenant's jobs are done, and until the small one's are, from their enqueue.
fn big_beside(work: &Work, folder: &Path, small: u64) -> Result<(f64, f64)> {
    fs::create_dir(folder)?;
    let jobs = open(folder)?;
    let ends: Arc<Mutex<[Option<Instant>; 2]>> = Arc::default();
    let noted = ends.clone();
    jobs.on(move |_: Load, ctx| {
        let place = usize::from(ctx.tenant() == "small");
        noted.lock().unwrap_or_else(PoisonError::into_inner)[place] = Some(Instant::now());
        std::future::ready(Ok(()))
    });
    fill(&jobs, "big", work.jobs, Duration::ZERO)?;
    let began = Instant::now();
    let node = wait(jobs.node().workers(work.callers as usize).start())?;
    // In the midst of it.
    while node.snapshot().succeeded < work.jobs / 10 {
        thread::sleep(Duration::from_millis(1));
    }
    let called = Instant::now();
    fill(&jobs, "small", small, Duration::ZERO)?;
    wait(node.drain());
    let [big, small] = *ends.lock().unwrap_or_else(PoisonError::into_inner);
    let since = |end: Option<Instant>, start| end.map_or(0.0, |end: Instant| end.duration_since(start).as_secs_f64());
    Ok((since(big, began), since(small, called)))
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

/// How long after their instants jobs started.
#[derive(Debug, Default)]
struct Seen {
    late: Mutex<Vec<Duration>>,
    early: AtomicU64,
}

impl Seen {
    /// `None` for one that started early.
    fn add(&self, late: Option<Duration>) {
        self.early.fetch_add(u64::from(late.is_none()), Ordering::Relaxed);
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(late.unwrap_or_default());
    }

    fn sample(&self, wanted: u64) -> Result<Sample> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ensure!(late.len() as u64 == wanted, "{} of {wanted} jobs ran", late.len());
        late.sort_unstable();
        let quantile =
            |share: f64| late[((late.len() as f64 * share) as usize).min(late.len() - 1)].as_secs_f64() * 1e3;
        let early = self.early.load(Ordering::Relaxed) as f64;
        Ok(Sample::default()
            .with("p50_ms", quantile(0.5))
            .with("p99_ms", quantile(0.99))
            .with("max_ms", quantile(1.0))
            .with("early", early))
    }
}

fn rate(jobs: u64, began: Instant, before: Duration) -> Result<Sample> {
    let (seconds, spent) = (began.elapsed().as_secs_f64(), cpu()? - before);
    let each = spent.as_secs_f64() * 1e6 / jobs.max(1) as f64;
    Ok(Sample::default().with("rate", jobs as f64 / seconds).with("cpu_us", each))
}

/// CPU time of the process so far.
pub(crate) fn cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let time = |time: TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1_000);
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

fn resident_bytes() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? * 1024.0)
}

/// The sum of what the callers answer.
pub(crate) fn in_parallel(callers: u64, caller: impl Fn(u64) -> Result<u64> + Sync) -> Result<u64> {
    let caller = &caller;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|number| scope.spawn(move || caller(number))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a caller panicked"))?).sum()
    })
}
