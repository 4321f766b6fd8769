//! The enqueues of the durable benchmark on apalis, with the settings its `setup` makes. One call measures one work and
//! prints one line.
//!
//! The settings belong to a connection and `setup` makes them on one, so the pool has one: they hold for all there is.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use apalis::prelude::*;
use apalis_sqlite::{SqlitePool, SqliteStorage};
use serde::{Deserialize, Serialize};
use sqlx::pool::PoolOptions;

/// A hundred bytes of payload.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Load(String);

fn load(number: u64) -> Load {
    Load(format!("{number:098}"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["settings", folder] = args[..] {
        return settings(Path::new(folder)).await;
    }
    let [name, callers, jobs, millis, folder] = args[..] else { bail!("five arguments are needed") };
    let work = Work { callers: callers.parse()?, jobs: jobs.parse()?, millis: millis.parse()? };
    let folder = Path::new(folder);
    let sample = match name {
        "enqueue-1" | "enqueue-16" | "enqueue-64" => enqueue(&work, folder).await?,
        "bulk" => bulk(&work, folder).await?,
        other => bail!("{other} is unknown"),
    };
    println!("sample {sample}");
    std::process::exit(0);
}

struct Work {
    callers: u64,
    jobs: u64,
    millis: u64,
}

async fn open(folder: &Path) -> Result<SqlitePool> {
    let url = format!("sqlite://{}?mode=rwc", folder.join("apalis.db").display());
    let pool = PoolOptions::new().max_connections(1).connect(&url).await?;
    SqliteStorage::setup(&pool).await?;
    Ok(pool)
}

fn storage(pool: &SqlitePool) -> SqliteStorage<Load> {
    SqliteStorage::new(pool)
}

async fn settings(folder: &Path) -> Result<()> {
    let pool = open(folder).await?;
    let synchronous = number(&mut *pool.acquire().await?, "PRAGMA synchronous").await?;
    println!("synchronous={synchronous} (0 is OFF, 1 NORMAL, 2 FULL)");
    Ok(())
}

async fn number(connection: &mut sqlx::SqliteConnection, question: &'static str) -> Result<i64> {
    Ok(sqlx::query_scalar(question).fetch_one(connection).await?)
}

async fn enqueue(work: &Work, folder: &Path) -> Result<String> {
    let pool = open(folder).await?;
    let (began, cpu, until) = (Instant::now(), cpu()?, Duration::from_millis(work.millis));
    let callers = (0..work.callers).map(|_| {
        let mut storage = storage(&pool);
        tokio::spawn(async move {
            let mut count = 0;
            while began.elapsed() < until {
                storage.push(load(count)).await?;
                count += 1;
            }
            Ok::<_, anyhow::Error>(count)
        })
    });
    let mut count = 0;
    for caller in callers.collect::<Vec<_>>() {
        count += caller.await??;
    }
    rate(count, began, cpu)
}

async fn fill(pool: &SqlitePool, count: u64) -> Result<()> {
    let mut storage = storage(pool);
    for batch in 0..count.div_ceil(1_000) {
        storage.push_bulk((batch * 1_000..count.min((batch + 1) * 1_000)).map(load).collect()).await?;
    }
    Ok(())
}

async fn bulk(work: &Work, folder: &Path) -> Result<String> {
    let pool = open(folder).await?;
    let (began, cpu) = (Instant::now(), cpu()?);
    fill(&pool, work.jobs).await?;
    rate(work.jobs, began, cpu)
}

fn rate(jobs: u64, began: Instant, before: Duration) -> Result<String> {
    let (seconds, spent) = (began.elapsed().as_secs_f64(), cpu()? - before);
    Ok(format!("rate={:.1} cpu_us={:.2}", jobs as f64 / seconds, spent.as_secs_f64() * 1e6 / jobs.max(1) as f64))
}

/// CPU time of the process so far, in hundredths of a second.
fn cpu() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().context("a name in brackets")?.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 10))
}
