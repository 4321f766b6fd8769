//! The PostgreSQL benchmark on graphile_worker, with its local queue and its batches of completions.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions, WorkerUtils,
};
use sqlx::{PgPool, pool::PoolOptions};

#[path = "../../driver.rs"]
mod driver;
use driver::{Load, Rival};

#[tokio::main]
async fn main() -> Result<()> {
    driver::main(open).await
}

impl TaskHandler for Load {
    const IDENTIFIER: &'static str = "load";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        driver::ran(&self);
        Ok::<(), String>(())
    }
}

async fn open(url: String) -> Result<Graphile> {
    let pool: PgPool = PoolOptions::new().max_connections(20).connect(&url).await?;
    // Makes the tables.
    let utils = worker(&pool, 1).await?.create_utils();
    Ok(Graphile { pool, utils })
}

async fn worker(pool: &PgPool, at_once: usize) -> Result<Worker> {
    Ok(WorkerOptions::default()
        .concurrency(at_once)
        .poll_interval(Duration::from_millis(100))
        .complete_job_batch_delay(Duration::from_millis(5))
        .local_queue(LocalQueueConfig::default().with_size(at_once))
        .define_job::<Load>()
        .pg_pool(pool.clone())
        .init()
        .await?)
}

#[derive(Clone)]
struct Graphile {
    pool: PgPool,
    utils: WorkerUtils,
}

impl Rival for Graphile {
    async fn push(&self, load: Load) -> Result<()> {
        self.utils.add_job(load, JobSpec::default()).await?;
        Ok(())
    }

    async fn push_many(&self, loads: Vec<Load>) -> Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<(Load, &JobSpec)> = loads.into_iter().map(|load| (load, &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn push_at(&self, load: Load, due: SystemTime) -> Result<()> {
        self.utils.add_job(load, JobSpec { run_at: Some(due.into()), ..JobSpec::default() }).await?;
        Ok(())
    }

    async fn start(&self, at_once: usize) -> Result<()> {
        let worker = worker(&self.pool, at_once).await?;
        tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("the worker ended: {error}");
            }
        });
        Ok(())
    }

    async fn left(&self) -> Result<u64> {
        let left: i64 =
            sqlx::query_scalar("SELECT count(*) FROM graphile_worker._private_jobs").fetch_one(&self.pool).await?;
        Ok(left as u64)
    }
}
