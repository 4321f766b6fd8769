//! One test binary for the public behaviour of the crate: a module per capability. One binary, because every further
//! one would be linked anew. Tests run on the virtual clock, without sleeping; only the `real_time` modules use real
//! time.

mod bad_input;
mod cancel;
mod deadlines;
mod foreign_delay_queue;
mod foreign_executor;
mod jobs;
mod panics;
mod permits;
mod queue;
mod real_time_queue;
mod real_time_scheduler;
#[allow(clippy::unwrap_used, reason = "its helpers are those of tests")]
mod rules;
mod series;
mod shutdown;
mod soak_scheduler;
mod tenancy;
mod tenant_fairness;
mod tenant_storm;
mod together;
mod virtual_clock;
