//! The PostgreSQL benchmark on apalis. Its due instants are whole seconds.

use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow};
use apalis::prelude::*;
use apalis_postgres::{Config, PgPool, PostgresStorage, Pubsub};
use sqlx::pool::PoolOptions;

#[path = "../../driver.rs"]
mod driver;
use driver::{Load, Rival};

const QUEUE: &str = "load";
const POLL: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> Result<()> {
    driver::main(open).await
}

async fn open(url: String) -> Result<Apalis> {
    let pool = PoolOptions::new().max_connections(20).connect(&url).await?;
    PostgresStorage::setup(&pool).await?;
    Ok(Apalis(pool))
}

#[derive(Clone)]
struct Apalis(PgPool);

impl Apalis {
    fn storage(&self, batch: usize) -> PostgresStorage<Load> {
        PostgresStorage::new(&self.0).with_config(Config::default().queue(QUEUE).batch_size(batch).lock_tasks(false))
    }
}

impl Rival for Apalis {
    async fn push(&self, load: Load) -> Result<()> {
        self.storage(1).push(load).await.map_err(|error| anyhow!("{error}"))
    }

    async fn push_many(&self, loads: Vec<Load>) -> Result<()> {
        self.storage(1_000).push_bulk(loads).await.map_err(|error| anyhow!("{error}"))
    }

    async fn push_at(&self, load: Load, due: SystemTime) -> Result<()> {
        let task = TaskBuilder::new(load).run_at_time(due).build();
        self.storage(1).push_task(task).await.map_err(|error| anyhow!("{error}"))
    }

    async fn start(&self, at_once: usize) -> Result<()> {
        async fn handle(load: Load) -> Result<(), BoxDynError> {
            driver::ran(&load);
            Ok(())
        }
        // Notifications are of what is due at once; the rest is found by looking.
        let told = Pubsub::new(self.0.clone(), QUEUE.to_owned());
        let backend = self.storage(at_once).poll_with_strategy(Strategy::new().stream(told).interval(POLL));
        let worker = WorkerBuilder::new("bench").backend(backend).concurrency(at_once).build(handle);
        tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("the worker ended: {error}");
            }
        });
        Ok(())
    }

    async fn left(&self) -> Result<u64> {
        let left: i64 =
            sqlx::query_scalar("SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'").fetch_one(&self.0).await?;
        Ok(left as u64)
    }
}
