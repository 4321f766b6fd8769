//! Eight consumers block for entries; producers add them at a steady rate.

use std::time::Duration;

use anyhow::Result;

use super::{Case, MILLISECOND, Sample, on_threads, paced, settle};
use crate::measure::{Lateness, Random, Usage, now_ns};
use crate::peer::{Peer, Producer};

const CONSUMERS: usize = 8;
const LONGEST: u64 = 100 * MILLISECOND;

pub(super) fn consumers<P: Peer>(case: &Case) -> Result<Sample> {
    let (peer, lateness) = (P::start(CONSUMERS), Lateness::leaked());
    settle(&mut peer.producer());
    let before = Usage::now();
    on_threads(case.threads, |number| {
        let mut producer = peer.producer();
        let mut random = Random::new(number as u64);
        paced(case.per_thread(), case.seconds, || {
            let delay = random.between(MILLISECOND, LONGEST);
            let handle = producer.after(Duration::from_nanos(delay), lateness.job(now_ns() + delay));
            producer.detach(handle);
        });
    });
    lateness.wait_for(case.entries, now_ns() + LONGEST)?;
    let now = Usage::now();
    Ok(Sample::default()
        .with("cpu_ms", now.cpu_us_since(before) / 1e3)
        .with("switches", now.switches_since(before))
        .with_lateness(lateness))
}
