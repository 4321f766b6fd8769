//! The tour: what the library does, live, with a time line of what was due when and how late it started.
//!
//! `cargo run --release` at the root of the repository plays it; it takes about five seconds.
#![allow(clippy::print_stdout, reason = "a tour is shown")]

mod durable;
mod scenes;
mod timeline;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|argument| argument == durable::VICTIM) {
        return durable::be_killed(arguments.next().unwrap_or_default().as_ref());
    }
    println!("punctual: work at the right time, and only while someone still wants it");
    scenes::ten_callbacks()?;
    scenes::late_then_early()?;
    scenes::leader_and_followers()?;
    scenes::cancelled_work()?;
    scenes::expired_work()?;
    scenes::a_series_that_misses_ticks()?;
    scenes::tenants()?;
    scenes::a_year_in_a_moment()?;
    durable::a_kill_and_a_restart()?;
    println!("\nThat was layers 1 to 4. `scripts/test` proves it; docs/guarantees.md says what is promised.");
    Ok(())
}
