//! The behaviour of durable jobs, on every store that needs no server, on the virtual clock.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bed;
mod cancel;
mod clocks;
mod enqueue;
mod explain;
mod foresight;
mod lease;
mod outage;
mod reserve;
mod retry;
mod run;
mod schedule;
mod shutdown;
mod sqlite;
mod tenants;
mod trace;
mod wanted;
