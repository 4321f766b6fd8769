//! What is measured, how much of it, and what is to be reached.

use punctual_bench::durable::work::{Metric, Work, metric};

const OWN: Metric = metric("cpu_us", "us CPU a job", "");
const SERVER: Metric = metric("server_us", "us CPU of the server a job", "");
const ENQUEUE_1: &[Metric] = &[metric("rate", "/s", "1,500"), OWN, SERVER];
const ENQUEUE_16: &[Metric] = &[metric("rate", "/s", "10,000"), OWN, SERVER];
const RATE: &[Metric] = &[metric("rate", "/s", ""), OWN, SERVER];
const BULK: &[Metric] = &[metric("rate", "/s", "120,000"), OWN, SERVER];
const DRAIN: &[Metric] = &[metric("rate", "/s", "40,000; x 0.60 of ideal"), OWN, SERVER];
const DRAIN_TENANTS: &[Metric] = &[metric("rate", "/s", "20,000; x 0.60 of ideal"), OWN, SERVER];
const LATENCY: &[Metric] = &[metric("p50_ms", "ms p50", "2"), metric("p99_ms", "ms p99", "10")];
const LATENESS: &[Metric] =
    &[metric("p50_ms", "ms p50", "3"), metric("p99_ms", "ms p99", "10"), metric("early", "early", "0")];
const PARKED: &[Metric] = &[
    metric("share", "of its rate without them", "0.90"),
    metric("cpu_share", "times the CPU without them", ""),
    metric("rate", "/s", ""),
];
const FAIR: &[Metric] = &[
    metric("small_ms", "ms until the small one's are done", "50"),
    metric("share", "of its rate for the big one", "0.90"),
];
const KILL: &[Metric] = &[metric("seconds", "s until its job runs again", "")];
const KILL_10: &[Metric] = &[metric("seconds", "s until its job runs again", "15")];
const WINDOWS: &[Metric] = &[
    metric("first", "/s in the first eighth", ""),
    metric("last", "/s in the last eighth", ""),
    metric("share", "the last of the first", ""),
];

pub(crate) const IDEAL: &str = "ideal";
pub(crate) const IDEAL_KEPT: &str = "ideal that keeps";
pub(crate) const APALIS: &str = "apalis-postgres";
pub(crate) const GRAPHILE: &str = "graphile_worker";

const ALL: &[&str] = &[IDEAL, APALIS, GRAPHILE];
const RIVALS: &[&str] = &[APALIS, GRAPHILE];
const LIMIT: &[&str] = &[IDEAL, IDEAL_KEPT];
const ALL_THAT_DRAIN: &[&str] = &[IDEAL, IDEAL_KEPT, APALIS, GRAPHILE];
const NOBODY: &[&str] = &[];

/// How large works are, where that can be chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// How many jobs are parked.
    pub(crate) parked: u64,
    /// How long a drain in windows goes on.
    pub(crate) seconds: u64,
}

impl Sizes {
    pub(crate) const USUAL: Self = Self { parked: 1_000_000, seconds: 24 };
}

/// All of them, by theme; `divisor` makes them small.
pub(crate) fn works(divisor: u64, sizes: Sizes) -> Vec<Work> {
    let Sizes { parked, seconds } = sizes;
    let work = |name, title, (callers, jobs, millis), peers, metrics| {
        Work { name, title, callers, jobs, millis, peers, metrics }.divided(divisor)
    };
    vec![
        work("enqueue-1", "enqueue, 1 caller", (1, 0, 3_000), ALL, ENQUEUE_1),
        work("enqueue-16", "enqueue, 16 callers", (16, 0, 3_000), ALL, ENQUEUE_16),
        work("enqueue-64", "enqueue, 64 callers", (64, 0, 3_000), ALL, RATE),
        work("bulk-1", "enqueue 1,000 at a time, 1 caller", (1, 200_000, 0), ALL, BULK),
        work("bulk-4", "enqueue 1,000 at a time, 4 callers", (4, 200_000, 0), ALL, BULK),
        work("drain-64", "drain of 100,000, 1 node, 64 at once", (64, 100_000, 0), ALL_THAT_DRAIN, DRAIN),
        work("drain-256", "drain, 1 node, 256 at once", (256, 100_000, 0), ALL_THAT_DRAIN, DRAIN),
        work("tenants-64", "drain, 1,000 tenants, 1 node, 64 at once", (64, 100_000, 0), LIMIT, DRAIN_TENANTS),
        work("tenants-256", "drain, 1,000 tenants, 1 node, 256 at once", (256, 100_000, 0), LIMIT, DRAIN_TENANTS),
        work("crowd", "drain, one job of each of 20,000 tenants, 256 at once", (256, 20_000, 0), NOBODY, RATE),
        work("nodes-64", "drain, 4 nodes, 64 at once each", (64, 100_000, 0), LIMIT, DRAIN),
        work("nodes-256", "drain, 4 nodes, 256 at once each", (256, 100_000, 0), LIMIT, DRAIN),
        work("nodes-tenants-64", "drain, 1,000 tenants, 4 nodes, 64 each", (64, 100_000, 0), LIMIT, DRAIN_TENANTS),
        work("nodes-tenants-256", "drain, 1,000 tenants, 4 nodes, 256 each", (256, 100_000, 0), LIMIT, DRAIN_TENANTS),
        work("latency", "from enqueue to start, 500 a second", (16, 5_000, 10_000), RIVALS, LATENCY),
        work("latency-far", "the same, enqueued by another process", (16, 5_000, 10_000), NOBODY, LATENCY),
        work("dense", "lateness, 5,000 over 10 s", (1, 5_000, 10_000), RIVALS, LATENESS),
        work("sparse", "lateness, 50 over 10 s", (1, 50, 10_000), RIVALS, LATENESS),
        work("fair", "10 jobs of a small tenant behind 50,000", (64, 50_000, 0), NOBODY, FAIR),
        work("parked", "drain beside parked jobs, 256 at once", (256, parked, 0), NOBODY, PARKED),
        work("free", "drain while 100,000 wait, 256 at once", (256, 100_000, seconds * 1_000), NOBODY, WINDOWS),
        work("held", "the same, beside an open snapshot", (256, 100_000, seconds * 1_000), NOBODY, WINDOWS),
        work("kill-2", "kill -9 of a node, lease 2 s", (1, 2, 0), NOBODY, KILL),
        work("kill-10", "kill -9 of a node, lease 10 s", (1, 10, 0), NOBODY, KILL_10),
    ]
}
