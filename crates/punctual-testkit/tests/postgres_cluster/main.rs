//! Nodes in processes of their own on one PostgreSQL, and what must hold whatever happens to them: they are killed,
//! stopped for longer than their lease, restarted, their clocks are wrong, and the server goes away.
//!
//! Real processes, a real server and so real time. What must never be is exact; what must happen in time has a loose
//! bound, because the machine may be busy with other things; and each test asserts that its fault happened.
//! `PUNCTUAL_SEED=7` replays the dice of a storm, `PUNCTUAL_SEEDS=50` tries many, `PUNCTUAL_STORM=60` makes each last
//! so many seconds.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

mod callers;
mod failover;
mod judge;
mod leases;
mod outage;
mod process;
mod schedules;
mod site;
mod skew;
mod storm;
mod transactions;
