//! What it costs to hold entries that are far away.

use std::mem;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::{Case, Sample, WORKERS, settle};
use crate::measure::{Lateness, Random, Usage, resident_bytes};
use crate::peer::{Peer, Producer};

pub(super) fn idle<P: Peer>(case: &Case) -> Result<Sample> {
    let (peer, lateness) = (P::start(WORKERS), Lateness::leaked());
    let mut producer = peer.producer();
    settle(&mut producer);
    let empty = resident_bytes()?;
    let mut random = Random::new(1);
    for _ in 0..case.entries {
        let delay = Duration::from_nanos(random.between(3_600_000_000_000, 3_660_000_000_000));
        let handle = producer.after(delay, lateness.job(0));
        producer.detach(handle);
    }
    settle(&mut producer);
    thread::sleep(Duration::from_millis(500));
    let full = resident_bytes()?;
    let before = Usage::now();
    thread::sleep(Duration::from_secs(case.seconds));
    let after = Usage::now();
    mem::forget(producer);
    Ok(Sample::default()
        // The measuring thread's own sleep is one switch.
        .with("switches", (after.switches_since(before) - 1.0).max(0.0))
        .with("cpu_us", after.cpu_us_since(before))
        .with("entry_bytes", (full - empty) / case.entries as f64))
}
