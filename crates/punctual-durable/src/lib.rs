//! Durable jobs for [`punctual`]: the same words, surviving a crash.
//!
//! An application opens a store by its URL (`sqlite:jobs.db`, `postgres://db/app` for a cluster, or `memory:` for
//! tests), says what runs each kind of [`Job`], and starts a [`Node`]. From then on there are background jobs, delays,
//! schedules, retries, dead letters, limits and fair shares, with no server to run beyond the database.
//!
//! ```
//! use punctual_durable::{Job, Jobs};
//! use serde::{Deserialize, Serialize};
//! use std::time::Duration;
//!
//! #[derive(Serialize, Deserialize)]
//! struct Remind {
//!     user: u64,
//! }
//! impl Job for Remind {
//!     const KIND: &'static str = "remind";
//!     type Output = String;
//! }
//!
//! # pollster::block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
//! let jobs = Jobs::open(&url).await?; // "sqlite:jobs.db"
//! jobs.on(|job: Remind, _ctx| async move { Ok(format!("user {} reminded", job.user)) });
//! let node = jobs.start().await?;
//! let handle = jobs.tenant("acme").after(Duration::from_millis(5)).enqueue(Remind { user: 7 }).await?;
//! assert_eq!(handle.await?, "user 7 reminded");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # What it means
//! - `Ok` from [`enqueue`](Plan::enqueue) means that the job is on disk. It runs **at least once**; a second run
//!   happens only after a failed attempt, a crash or a lost lease, and carries a higher [`fence`](Ctx::fence).
//! - A durable job outlives its caller: dropping its [`Handle`] changes nothing, unless it was enqueued
//!   [`while_wanted`](Plan::while_wanted).
//! - The [`Store`] is the contract: one suite of tests holds every store to it.
//!
//! No runtime is needed: handlers run on threads of their own. If [`Jobs`] are opened within a tokio runtime, those
//! threads are inside it, so that handlers can use its sockets and timers.

mod bell;
mod ctx;
mod error;
mod handle;
mod handlers;
mod hands;
mod heart;
mod id;
mod interest;
mod job;
mod jobs;
mod memory;
mod node;
mod plan;
#[cfg(feature = "postgres")]
mod postgres;
mod reserve;
mod retry;
mod run;
mod schedule;
mod signals;
#[cfg(feature = "sqlite")]
mod sqlite;
mod state;
mod store;
mod tenant;
mod time;
mod worker;

pub use ctx::Ctx;
pub use error::{DurableError, EnqueueError, OpenError, Problem, StoreError};
pub use handle::Handle;
pub use id::{BadJobId, JobId, NodeId};
pub use job::{Job, Terms};
pub use jobs::{Jobs, JobsBuilder};
pub use memory::MemoryStore;
pub use node::{Node, NodeBuilder, NodeReport, NodeSnapshot, StartError};
pub use plan::{Plan, When};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore, SqlStatement};
pub use retry::{Backoff, Failure};
pub use schedule::SchedulePlan;
pub use signals::Signals;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore};
pub use state::{Outcome, State, Step};
pub use store::{
    AGE_STEP, Admitted, Beat, CancelCause, Cancelled, Claim, Claimed, Edit, Edited, Erased, Explanation, Finish,
    Finished, Fire, Fired, Gate, Moment, NewJob, NodeRecord, OnConflict, Page, Pulse, Query, Record, Redriven, Refused,
    Reply, Retention, Rule, Schedule, Store, TenantChange, TenantPolicy, TenantRecord, Tended, Totals, Unique, Verdict,
    order_at,
};
pub use tenant::Tenant;
pub use time::Timestamp;

// The code of the README and of the guide is tested like any other.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide/survive-a-crash.md")]
    struct SurviveACrash;
    #[doc = include_str!("../../../docs/guide/test-durable-jobs.md")]
    struct TestDurableJobs;
    #[doc = include_str!("../../../docs/guide/cron-that-survives-restarts.md")]
    struct CronThatSurvivesRestarts;
    #[doc = include_str!("../../../docs/guide/change-a-payload.md")]
    struct ChangeAPayload;
    #[cfg(feature = "postgres")]
    #[doc = include_str!("../../../docs/guide/run-a-cluster.md")]
    struct RunACluster;
    #[cfg(feature = "postgres")]
    #[doc = include_str!("../../../docs/guide/enqueue-in-your-transaction.md")]
    struct EnqueueInYourTransaction;
}
