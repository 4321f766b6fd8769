//! The works that any store can do, on `Jobs`. Each call is one sample.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use punctual_durable::{Job, Jobs};
use serde::{Deserialize, Serialize};

use super::Place;
use super::meter::Meter;
use super::table::Sample;
use super::wait::{in_parallel, in_tasks, wait};
use super::work::Work;

/// The store of a sample that needs but one.
pub const ONLY: &str = "only";

/// When parked jobs are due.
pub const FAR: Duration = Duration::from_secs(24 * 3_600);

/// Jobs that are drained beside many parked ones, at most.
const BESIDE_MAX: u64 = 100_000;
const IN_BULK: u64 = 1_000;
/// Callers that enqueue delayed jobs.
const CALLERS: u64 = 64;

/// A hundred bytes of payload.
#[derive(Debug, Serialize, Deserialize)]
pub struct Load(String);

impl Job for Load {
    const KIND: &'static str = "load";
    type Output = ();
}

/// A payload that says a number.
#[must_use]
pub fn load(number: u64) -> Load {
    Load(format!("{number:098}"))
}

impl Load {
    /// The number that it says.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.parse().unwrap_or_default()
    }
}

/// Enqueues so many, a thousand at a time.
///
/// # Errors
/// If the store says no.
pub fn fill(jobs: &Jobs, tenant: &str, count: u64, delay: Duration) -> Result<()> {
    for batch in 0..count.div_ceil(IN_BULK) {
        let loads = (batch * IN_BULK..count.min((batch + 1) * IN_BULK)).map(load);
        for answer in wait(jobs.tenant(tenant).after(delay).enqueue_many(loads)) {
            answer?;
        }
    }
    Ok(())
}

/// Each caller waits for its one job before it asks for the next.
///
/// # Errors
/// If the store says no.
pub fn enqueue(work: &Work, place: &dyn Place) -> Result<Sample> {
    let jobs = place.open(ONLY)?;
    let (until, meter) = (Duration::from_millis(work.millis), Meter::start(place.server())?);
    let count = in_tasks(work.callers, |_| {
        let jobs = jobs.clone();
        async move {
            let mut count = 0;
            while meter.elapsed() < until {
                jobs.tenant("acme").now().enqueue(load(count)).await?;
                count += 1;
            }
            Ok(count)
        }
    })?;
    Ok(meter.rate(count)?.into_iter().collect())
}

/// Callers that enqueue a thousand at a time.
///
/// # Errors
/// If the store says no.
pub fn bulk(work: &Work, place: &dyn Place) -> Result<Sample> {
    let jobs = place.open(ONLY)?;
    let meter = Meter::start(place.server())?;
    in_parallel(work.callers, |_| fill(&jobs, "acme", work.jobs / work.callers, Duration::ZERO).map(|()| 0))?;
    Ok(meter.rate(work.jobs)?.into_iter().collect())
}

/// Runs empty jobs until none is left and the end of each is on disk.
///
/// # Errors
/// If not all of them ran.
pub fn drain(jobs: &Jobs, server: Option<u32>, workers: u64, count: u64) -> Result<Sample> {
    jobs.on(|_: Load, _| std::future::ready(Ok(())));
    let meter = Meter::start(server)?;
    let node = wait(jobs.node().workers(workers as usize).start())?;
    wait(node.drain());
    let sample = meter.rate(count)?.into_iter().collect();
    ensure!(node.snapshot().succeeded == count, "{:?}", node.snapshot());
    Ok(sample)
}

/// From the call that enqueues a job to its start, at a steady rate.
///
/// # Errors
/// If not all of them ran.
pub fn latency(work: &Work, place: &dyn Place) -> Result<Sample> {
    let jobs = place.open(ONLY)?;
    let seen = Arc::new(Seen::default());
    let starts = seen.clone();
    jobs.on(move |load: Load, _| {
        starts.since_call(&load);
        std::future::ready(Ok(()))
    });
    let node = wait(jobs.node().workers(64).start())?;
    call_steadily(&jobs, work)?;
    wait(node.drain());
    seen.sample(work.jobs)
}

/// Enqueues at a steady rate jobs that say when.
///
/// # Errors
/// If the store says no.
pub fn call_steadily(jobs: &Jobs, work: &Work) -> Result<()> {
    let gap = Duration::from_millis(work.millis) / u32::try_from(work.jobs)?;
    let origin = Instant::now();
    in_parallel(work.callers, |caller| {
        for number in (caller..work.jobs).step_by(work.callers as usize) {
            thread::sleep((gap * u32::try_from(number)?).saturating_sub(origin.elapsed()));
            let called = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            wait(jobs.tenant("acme").now().enqueue(load(called.as_nanos() as u64)))?;
        }
        Ok(0)
    })?;
    Ok(())
}

/// How late delayed jobs start, by the wall clock.
///
/// # Errors
/// If not all of them ran.
pub fn lateness(work: &Work, place: &dyn Place) -> Result<Sample> {
    let jobs = place.open(ONLY)?;
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

/// A drain in an empty store, and one in a store with many jobs that are far from due.
///
/// # Errors
/// If not all of them ran.
pub fn parked(work: &Work, place: &dyn Place) -> Result<Sample> {
    let count = BESIDE_MAX.min(work.jobs);
    let drained = |name: &str, parked: u64| {
        let jobs = place.open(name)?;
        in_parallel(4, |_| fill(&jobs, "acme", parked / 4, FAR).map(|()| 0))?;
        fill(&jobs, "acme", count, Duration::ZERO)?;
        place.settle()?;
        drain(&jobs, place.server(), work.callers, count)
    };
    let (normal, beside) = (drained("normal", 0)?, drained("beside", work.jobs)?);
    let get = |sample: &Sample, metric| sample.get(metric).context("a drain has it");
    let cpu = |sample: &Sample| Ok::<_, anyhow::Error>(get(sample, "cpu_us")? + sample.get("server_us").unwrap_or(0.0));
    Ok(Sample::default()
        .with("share", get(&beside, "rate")? / get(&normal, "rate")?)
        .with("cpu_share", cpu(&beside)? / cpu(&normal)?)
        .with("rate", get(&beside, "rate")?)
        .with("normal", get(&normal, "rate")?))
}

/// How soon a small tenant is served in spite of a big one, and what that costs the big one.
///
/// # Errors
/// If the store says no.
pub fn fair(work: &Work, place: &dyn Place) -> Result<Sample> {
    let big_alone = big_beside(work, place, "alone", 0)?;
    let beside = big_beside(work, place, "beside", 10)?;
    Ok(Sample::default().with("small_ms", beside.1 * 1e3).with("share", big_alone.0 / beside.0))
}

/// Seconds until the big tenant's jobs are done, and until the small one's are, from their enqueue.
fn big_beside(work: &Work, place: &dyn Place, name: &str, small: u64) -> Result<(f64, f64)> {
    let jobs = place.open(name)?;
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

/// How long after their instants jobs started.
#[derive(Debug, Default)]
pub struct Seen {
    late: Mutex<Vec<Duration>>,
    early: AtomicU64,
}

impl Seen {
    /// One that started so late; `None` for one that started early.
    pub fn add(&self, late: Option<Duration>) {
        self.early.fetch_add(u64::from(late.is_none()), Ordering::Relaxed);
        self.late.lock().unwrap_or_else(PoisonError::into_inner).push(late.unwrap_or_default());
    }

    /// One that starts now, and says when it was called for.
    pub fn since_call(&self, load: &Load) {
        let called = SystemTime::UNIX_EPOCH + Duration::from_nanos(load.number());
        self.add(SystemTime::now().duration_since(called).ok());
    }

    /// The middle, the tail, the worst, and how many were early.
    ///
    /// # Errors
    /// If there were not so many.
    pub fn sample(&self, wanted: u64) -> Result<Sample> {
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
