//! Adding far entries, and adding and cancelling them: nothing falls due.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use anyhow::Result;

use super::{Case, SECOND, Sample, WORKERS, on_threads, settle};
use crate::measure::{Lateness, Random, Usage, resident_bytes};
use crate::peer::{Peer, Producer};

/// Entries a producer leaves pending before it cancels the oldest.
const WINDOW: usize = 1000;

pub(super) fn insert<P: Peer>(case: &Case) -> Sample {
    let (peer, lateness) = (P::start(WORKERS), Lateness::leaked());
    let before = Usage::now();
    let (wall_ns, _) = on_threads(case.threads, |number| {
        let mut producer = peer.producer();
        let mut random = Random::new(number as u64);
        for _ in 0..case.per_thread() {
            let delay = Duration::from_nanos(random.between(10 * SECOND, 70 * SECOND));
            let handle = producer.after(delay, lateness.job(0));
            producer.detach(handle);
        }
        // What it holds is pending; freeing it is not part of the work.
        mem::forget(producer);
    });
    settle(&mut peer.producer());
    let cpu_us = Usage::now().cpu_us_since(before);
    per_entry(case, wall_ns, cpu_us)
}

pub(super) fn cancel<P: Peer>(case: &Case) -> Result<Sample> {
    let (peer, lateness) = (P::start(WORKERS), Lateness::leaked());
    settle(&mut peer.producer());
    let (before, resident) = (Usage::now(), resident_bytes()?);
    let (wall_ns, _) = on_threads(case.threads, |_| {
        let mut producer = peer.producer();
        let mut window = VecDeque::with_capacity(WINDOW);
        for _ in 0..case.per_thread() {
            if window.len() == WINDOW
                && let Some(oldest) = window.pop_front()
            {
                producer.cancel(oldest);
            }
            window.push_back(producer.after(Duration::from_secs(30), lateness.job(0)));
        }
        window.into_iter().for_each(|handle| producer.cancel(handle));
    });
    settle(&mut peer.producer());
    let cpu_us = Usage::now().cpu_us_since(before);
    let left = (resident_bytes()? - resident) / 1e6;
    let sample = per_entry(case, wall_ns, cpu_us).with("left_mb", left);
    Ok(match peer.len() {
        Some(entries) => sample.with("left_entries", entries as f64),
        None => sample,
    })
}

fn per_entry(case: &Case, wall_ns: u64, cpu_us: f64) -> Sample {
    let entries = case.entries as f64;
    Sample::default().with("wall_ns", wall_ns as f64 / entries).with("cpu_ns", cpu_us * 1e3 / entries)
}
