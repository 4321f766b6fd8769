//! How exactly entries run under a light load, and what the machine itself allows.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::{Case, MILLISECOND, Sample, WORKERS, paced, settle};
use crate::measure::{Lateness, Random, Usage, now_ns};
use crate::peer::{Peer, Producer};

const LONGEST: u64 = 500 * MILLISECOND;

pub(super) fn precision<P: Peer>(case: &Case) -> Result<Sample> {
    let (peer, lateness) = (P::start(WORKERS), Lateness::leaked());
    let mut producer = peer.producer();
    settle(&mut producer);
    let mut random = Random::new(1);
    let before = Usage::now();
    paced(case.entries, case.seconds, || {
        let delay = random.between(MILLISECOND, LONGEST);
        let handle = producer.after(Duration::from_nanos(delay), lateness.job(now_ns() + delay));
        producer.detach(handle);
    });
    lateness.wait_for(case.entries, now_ns() + LONGEST)?;
    Ok(used_since(before).with_lateness(lateness))
}

/// What a thread gets that does nothing but sleep for a millisecond, again and again, as exactly as the kernel can.
pub(crate) fn bare_wait(case: &Case) -> Sample {
    let lateness = Lateness::leaked();
    // A kernel that refuses leaves its own slack, which is then the floor.
    let _ = nix::sys::prctl::set_timerslack(1);
    let before = Usage::now();
    for _ in 0..case.seconds * 1000 {
        let due = now_ns() + MILLISECOND;
        thread::sleep(Duration::from_millis(1));
        lateness.record(due, now_ns());
    }
    used_since(before).with_lateness(lateness)
}

fn used_since(before: Usage) -> Sample {
    let now = Usage::now();
    Sample::default().with("cpu_ms", now.cpu_us_since(before) / 1e3).with("switches", now.switches_since(before))
}
