//! A test without sleeping: a year of an hourly report, on the real threads, in a fraction of a second.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::{Cron, Scheduler, VirtualClock};
use std::time::{Duration, UNIX_EPOCH};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = VirtualClock::new();
    clock.step_wall(UNIX_EPOCH + Duration::from_secs(1_767_225_600))?; // 2026-01-01T00:00:00Z
    let scheduler = Scheduler::builder().clock(&clock).build()?;
    let hourly = scheduler.cron(Cron::parse("0 * * * *")?.in_zone("Europe/Paris")?).run(|_| ())?;
    let nightly = scheduler.cron(Cron::parse("30 2 * * *")?.in_zone("Europe/Paris")?).run(|_| ())?;
    clock.advance(Duration::from_secs(365 * 24 * 3600))?;
    assert_eq!(hourly.runs(), 8760);
    assert_eq!(nightly.runs(), 365, "also on the night that has no 02:30, and once on the one that has two");
    println!("{} hourly and {} nightly runs", hourly.runs(), nightly.runs());
    Ok(())
}
