//! What is read off the machine: time, CPU, context switches, memory, and how late work ran.
//!
//! # Invariants
//! 1. Recording costs a peer the same wherever its work runs: each thread writes only its own shard, without a lock.
//! 2. A lateness is kept to 1.6 %: 64 buckets per power of two.
//!
//! Why not one array with a slot per entry: 8 MB of random writes would be charged to whoever fires in due order.

use std::cell::Cell;
use std::fs;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since this process first asked.
pub(crate) fn now_ns() -> u64 {
    u64::try_from(ORIGIN.elapsed().as_nanos()).expect("a benchmark ends within 584 years")
}

/// Sleeps to an instant of [`now_ns`].
pub(crate) fn sleep_until_ns(until: u64) {
    thread::sleep(Duration::from_nanos(until.saturating_sub(now_ns())));
}

/// What the whole process has used so far, threads that ended included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    cpu_us: i64,
    switches: i64,
}

impl Usage {
    pub(crate) fn now() -> Self {
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("asking about oneself is always allowed");
        let (user, system) = (usage.user_time(), usage.system_time());
        let cpu_us = (user.tv_sec() + system.tv_sec()) * 1_000_000 + user.tv_usec() + system.tv_usec();
        Self { cpu_us, switches: usage.voluntary_context_switches() }
    }

    pub(crate) fn cpu_us_since(self, before: Self) -> f64 {
        (self.cpu_us - before.cpu_us) as f64
    }

    pub(crate) fn switches_since(self, before: Self) -> f64 {
        (self.switches - before.switches) as f64
    }
}

/// Memory the kernel has given this process.
pub(crate) fn resident_bytes() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status").context("resident memory is read from /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("status names the memory")?;
    let kilobytes: u32 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(f64::from(kilobytes) * 1024.0)
}

/// SplitMix64: the same delays in every process and language.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `from` up to but not including `to`; `from` if there is none.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        let span = u128::from(to.saturating_sub(from));
        from + ((u128::from(self.next()) * span) >> 64) as u64
    }
}

const SUB_BITS: u32 = 6;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) << SUB_BITS;
const SHARDS: usize = 64;

/// Collects how late entries ran, from any number of threads.
#[derive(Debug)]
pub(crate) struct Lateness {
    shards: Vec<Shard>,
}

/// Written by one thread only, so a load and a store make an increment.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    buckets: Vec<AtomicU32>,
    count: AtomicU64,
    early: AtomicU64,
    max: AtomicU64,
    last_ran: AtomicU64,
}

impl Lateness {
    /// Lives as long as the process: entries refer to it from any thread.
    pub(crate) fn leaked() -> &'static Self {
        let shard = || Shard {
            buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
            count: AtomicU64::new(0),
            early: AtomicU64::new(0),
            max: AtomicU64::new(0),
            last_ran: AtomicU64::new(0),
        };
        Box::leak(Box::new(Self { shards: (0..SHARDS).map(|_| shard()).collect() }))
    }

    /// The work of every entry: 16 bytes that note how late they ran. Running early counts as early and as 0 late.
    pub(crate) fn job(&'static self, due: u64) -> impl FnOnce() + Send + 'static {
        move || self.record(due, now_ns())
    }

    pub(crate) fn record(&self, due: u64, now: u64) {
        let shard = &self.shards[own_shard()];
        let late = now.saturating_sub(due);
        if now < due {
            add(&shard.early, 1);
        }
        let bucket = &shard.buckets[bucket_of(late)];
        bucket.store(bucket.load(Relaxed) + 1, Relaxed);
        shard.max.store(shard.max.load(Relaxed).max(late), Relaxed);
        shard.last_ran.store(now, Relaxed);
        add(&shard.count, 1);
    }

    pub(crate) fn count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.count.load(Relaxed)).sum()
    }

    pub(crate) fn early(&self) -> f64 {
        self.shards.iter().map(|shard| shard.early.load(Relaxed)).sum::<u64>() as f64
    }

    pub(crate) fn last_ran(&self) -> u64 {
        self.shards.iter().map(|shard| shard.last_ran.load(Relaxed)).max().unwrap_or(0)
    }

    pub(crate) fn max_us(&self) -> f64 {
        self.shards.iter().map(|shard| shard.max.load(Relaxed)).max().unwrap_or(0) as f64 / 1e3
    }

    /// The lateness in us that the share `quantile` of all entries did not exceed.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        let rank = ((self.count() as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        for index in 0..BUCKETS {
            seen += self.shards.iter().map(|shard| u64::from(shard.buckets[index].load(Relaxed))).sum::<u64>();
            if seen >= rank {
                return value_of(index) as f64 / 1e3;
            }
        }
        self.max_us()
    }

    /// Waits until `entries` have run; looks only from `from` on, so that looking does not disturb the work.
    pub(crate) fn wait_for(&self, entries: usize, from: u64) -> Result<()> {
        sleep_until_ns(from);
        while self.count() < entries as u64 {
            ensure!(now_ns() < from + 120_000_000_000, "{} of {entries} entries ran within two minutes", self.count());
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Relaxed));
            assert!(shard.get() < SHARDS, "at most {SHARDS} threads run entries");
        }
        shard.get()
    })
}

fn bucket_of(value: u64) -> usize {
    if value < 1 << SUB_BITS {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    ((shift as usize) << SUB_BITS) + (value >> shift) as usize
}

/// The middle of a bucket.
fn value_of(bucket: usize) -> u64 {
    if bucket < 2 << SUB_BITS {
        return bucket as u64;
    }
    let shift = (bucket >> SUB_BITS) - 1;
    let low = ((bucket & ((1 << SUB_BITS) - 1)) as u64 | 1 << SUB_BITS) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_value_within_two_percent() {
        for value in (0..60).map(|bit| 1u64 << bit).flat_map(|value| [value - 1, value, value + value / 3]) {
            let kept = value_of(bucket_of(value));
            assert!(kept.abs_diff(value) <= value / 50 + 1, "{value} was kept as {kept}");
        }
    }

    #[test]
    fn buckets_follow_one_another_without_a_gap() {
        let mut last = 0;
        for value in 0..100_000 {
            let bucket = bucket_of(value);
            assert!(bucket == last || bucket == last + 1);
            last = bucket;
        }
    }

    #[test]
    fn quantiles_early_and_max_come_from_all_threads() {
        let lateness = Lateness::leaked();
        thread::scope(|scope| {
            for half in 0..2u64 {
                scope.spawn(move || (1..=500).for_each(|n| lateness.record(1_000, 1_000 + (half * 500 + n) * 1_000)));
            }
        });
        lateness.record(10, 9);
        assert_eq!(lateness.count(), 1001);
        assert_eq!(lateness.early(), 1.0);
        assert_eq!(lateness.max_us(), 1000.0);
        assert!((lateness.quantile_us(0.5) - 500.0).abs() < 10.0);
        assert!((lateness.quantile_us(0.99) - 990.0).abs() < 20.0);
    }
}
