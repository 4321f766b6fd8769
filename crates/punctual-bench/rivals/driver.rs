//! The works of the PostgreSQL benchmark, for the programs of rivals, which include this file. One call measures one
//! work and prints one line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

#[path = "../src/durable/meter.rs"]
mod meter;
use meter::Meter;

/// A hundred bytes of payload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load(String);

pub fn load(number: u64) -> Load {
    Load(format!("{number:098}"))
}

/// What a library must be able to do.
pub trait Rival: Clone + Send + Sync + 'static {
    fn push(&self, load: Load) -> impl Future<Output = Result<()>> + Send;
    fn push_many(&self, loads: Vec<Load>) -> impl Future<Output = Result<()>> + Send;
    fn push_at(&self, load: Load, due: SystemTime) -> impl Future<Output = Result<()>> + Send;
    /// Starts a worker that runs so many at once. Its handler calls `ran`.
    fn start(&self, at_once: usize) -> impl Future<Output = Result<()>> + Send;
    /// How many jobs have yet to end, by the database.
    fn left(&self) -> impl Future<Output = Result<u64>> + Send;
}

/// A job starts now; if its payload is an instant, so long after it.
pub fn ran(load: &Load) {
    RAN.fetch_add(1, Ordering::Relaxed);
    let meant = SystemTime::UNIX_EPOCH + Duration::from_nanos(load.0.parse().unwrap_or_default());
    let late = match SystemTime::now().duration_since(meant) {
        Ok(late) => late.as_secs_f64() * 1e3,
        Err(early) => -early.duration().as_secs_f64() * 1e3,
    };
    LATE.lock().unwrap_or_else(PoisonError::into_inner).push(late);
}

static RAN: AtomicU64 = AtomicU64::new(0);
static LATE: Mutex<Vec<f64>> = Mutex::new(Vec::new());

const CALLERS: u64 = 64;
const IN_BULK: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// Does what the arguments say, in the database that they name.
pub async fn main<R: Rival, F: Future<Output = Result<R>>>(open: impl FnOnce(String) -> F) -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, callers, jobs, millis, url, server] = &args[..] else { bail!("six arguments are needed") };
    let (callers, jobs, millis) = (callers.parse()?, jobs.parse()?, Duration::from_millis(millis.parse()?));
    let bench = Bench { rival: open(url.clone()).await?, server: server.parse()?, callers, jobs, millis };
    let pairs = match name.as_str() {
        "enqueue-1" | "enqueue-16" | "enqueue-64" => bench.enqueue().await?,
        "bulk-1" | "bulk-4" => bench.bulk().await?,
        "drain-64" | "drain-256" => bench.drain().await?,
        "latency" => bench.latency().await?,
        "dense" | "sparse" => bench.lateness().await?,
        other => bail!("{other} is unknown"),
    };
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value:.4}")).collect();
    println!("sample {}", pairs.join(" "));
    std::process::exit(0);
}

type Pairs = Vec<(&'static str, f64)>;

struct Bench<R> {
    rival: R,
    server: u32,
    callers: u64,
    jobs: u64,
    millis: Duration,
}

impl<R: Rival> Bench<R> {
    async fn enqueue(&self) -> Result<Pairs> {
        let (meter, until) = (Meter::start(Some(self.server))?, self.millis);
        let count = in_parallel(self.callers, |_| {
            let rival = self.rival.clone();
            async move {
                let mut count = 0;
                while meter.elapsed() < until {
                    rival.push(load(count)).await?;
                    count += 1;
                }
                Ok(count)
            }
        });
        meter.rate(count.await?)
    }

    async fn bulk(&self) -> Result<Pairs> {
        let (meter, each) = (Meter::start(Some(self.server))?, self.jobs / self.callers);
        let filled = in_parallel(self.callers, |_| {
            let rival = self.rival.clone();
            async move { fill(&rival, each).await }
        });
        meter.rate(filled.await?)
    }

    async fn drain(&self) -> Result<Pairs> {
        fill(&self.rival, self.jobs).await?;
        let meter = Meter::start(Some(self.server))?;
        self.rival.start(self.callers as usize).await?;
        self.until_ran().await?;
        // The last of them are written down yet.
        while self.rival.left().await? > 0 {
            ensure!(meter.elapsed() < PATIENCE, "{} jobs never ended", self.rival.left().await?);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        meter.rate(self.jobs)
    }

    async fn latency(&self) -> Result<Pairs> {
        self.rival.start(64).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (origin, gap, jobs, callers) = (Instant::now(), self.millis / self.jobs as u32, self.jobs, self.callers);
        in_parallel(callers, |caller| {
            let rival = self.rival.clone();
            async move {
                for number in (caller..jobs).step_by(callers as usize) {
                    tokio::time::sleep_until((origin + gap * number as u32).into()).await;
                    let called = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
                    rival.push(load(called.as_nanos() as u64)).await?;
                }
                Ok(0)
            }
        })
        .await?;
        self.until_ran().await?;
        late()
    }

    async fn lateness(&self) -> Result<Pairs> {
        self.rival.start(64).await?;
        // Long enough for the slowest to be there in time.
        let (first, gap, jobs) =
            (SystemTime::now() + Duration::from_secs(12), self.millis / self.jobs as u32, self.jobs);
        in_parallel(CALLERS, |caller| {
            let rival = self.rival.clone();
            async move {
                for number in (caller..jobs).step_by(CALLERS as usize) {
                    let due = first + gap * number as u32;
                    let nanos = due.duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
                    rival.push_at(load(nanos), due).await?;
                }
                Ok(0)
            }
        })
        .await?;
        ensure!(SystemTime::now() < first, "the jobs were not enqueued before the first was due");
        self.until_ran().await?;
        late()
    }

    async fn until_ran(&self) -> Result<()> {
        let began = Instant::now();
        while RAN.load(Ordering::Relaxed) < self.jobs {
            ensure!(began.elapsed() < PATIENCE, "{} of {} jobs ran", RAN.load(Ordering::Relaxed), self.jobs);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

async fn fill(rival: &impl Rival, count: u64) -> Result<u64> {
    for batch in 0..count.div_ceil(IN_BULK) {
        rival.push_many((batch * IN_BULK..count.min((batch + 1) * IN_BULK)).map(load).collect()).await?;
    }
    Ok(count)
}

fn late() -> Result<Pairs> {
    let mut late = LATE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    late.sort_by(f64::total_cmp);
    let quantile = |share: f64| late.get(((late.len() as f64 * share) as usize).min(late.len() - 1)).copied();
    let early = late.iter().filter(|&&late| late < 0.0).count();
    let quantile = |share| quantile(share).context("something ran");
    Ok(vec![
        ("p50_ms", quantile(0.5)?),
        ("p99_ms", quantile(0.99)?),
        ("max_ms", quantile(1.0)?),
        ("min_ms", quantile(0.0)?),
        ("early", early as f64),
    ])
}

async fn in_parallel<F>(callers: u64, caller: impl Fn(u64) -> F) -> Result<u64>
where
    F: Future<Output = Result<u64>> + Send + 'static,
{
    let callers: Vec<_> = (0..callers).map(|number| tokio::spawn(caller(number))).collect();
    let mut sum = 0;
    for caller in callers {
        sum += caller.await??;
    }
    Ok(sum)
}
