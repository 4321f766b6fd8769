//! What the nodes of a cluster under test run, and what bears witness to it.
//!
//! The nodes are processes of their own (`cluster_node`), on a real server and in real time; `tests/postgres_cluster`
//! starts them, tells them what to do, and kills, stops and restarts them. Two independent records are kept of what
//! happens, both in the schema of the store, by the database's clock:
//!
//! - what the *handlers* say (`witness`): each run, its start and its end, written by the process that runs it;
//! - what the *store* did (`moves`, `leases`, `limit_log`): written by triggers, in the transaction that did it, so
//!   that it is as complete as the store is durable.

use std::time::Duration;

use punctual_durable::{Backoff, Job, Terms};
use serde::{Deserialize, Serialize};

/// Makes the tables and triggers of the witnesses in the schema of a store.
pub const WITNESS: &str = include_str!("cluster/witness.sql");

/// No number of crashes is the fault of these jobs.
const TERMS: Terms =
    Terms::new().max_crashes(1_000_000).backoff(Backoff::new(Duration::from_millis(1), Duration::from_millis(5)));

/// Takes some time and says who ran it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Work {
    /// How long it takes.
    pub millis: u64,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = String;
    const TERMS: Terms = TERMS;
}

/// Runs until its process is told to let it go.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hold {}

impl Job for Hold {
    const KIND: &'static str = "hold";
    type Output = String;
    const TERMS: Terms = TERMS;
}

/// Takes some time on a thread of its own, and does not look whether it should stop.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stubborn {
    /// How long it takes.
    pub millis: u64,
}

impl Job for Stubborn {
    const KIND: &'static str = "stubborn";
    type Output = String;
    const TERMS: Terms = TERMS;
}

/// Waits: for processes and servers, which nobody's virtual clock moves.
#[allow(clippy::disallowed_methods, reason = "processes run in real time")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
