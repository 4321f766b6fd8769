//! What the benchmarks of durable jobs, `--bin durable` and `--bin postgres`, share. Those in process are a program by
//! themselves (`main.rs`).
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

pub mod durable;
