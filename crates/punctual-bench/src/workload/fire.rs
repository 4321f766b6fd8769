//! Many entries fall due within a second, or at one instant.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Case, MILLISECOND, SECOND, Sample, WORKERS, on_threads, settle};
use crate::measure::{Lateness, Random, Usage, now_ns, sleep_until_ns};
use crate::peer::{Peer, Producer};

/// Time to add one entry before the first falls due: enough for the slowest peer.
const LEAD_NS: u64 = 6_000;

pub(super) fn fire<P: Peer>(case: &Case) -> Result<Sample> {
    let (peer, lateness) = (P::start(WORKERS), Lateness::leaked());
    let begin = now_ns() + SECOND / 2 + case.entries as u64 * LEAD_NS;
    let end = begin + case.seconds * SECOND;
    on_threads(case.threads, |number| {
        let mut producer = peer.producer();
        let mut random = Random::new(number as u64);
        for _ in 0..case.per_thread() {
            let due = random.between(begin, end);
            let handle = producer.after(Duration::from_nanos(due.saturating_sub(now_ns())), lateness.job(due));
            producer.detach(handle);
        }
    });
    settle(&mut peer.producer());
    ensure!(now_ns() + 30 * MILLISECOND < begin, "adding the entries took until they were due");
    sleep_until_ns(begin - 20 * MILLISECOND);
    let before = Usage::now();
    lateness.wait_for(case.entries, end)?;
    let cpu_us = Usage::now().cpu_us_since(before);
    let switches = Usage::now().switches_since(before);
    Ok(Sample::default()
        .with("wall_ms", lateness.last_ran().saturating_sub(begin) as f64 / 1e6)
        .with("cpu_ms", cpu_us / 1e3)
        .with("switches", switches)
        .with_lateness(lateness))
}
