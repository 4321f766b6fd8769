//! What is measured, how much of it, and what is to be reached.

use punctual_bench::durable::work::{Metric, Work, metric};

const CPU: Metric = metric("cpu_us", "us CPU a job", "");
const ENQUEUE: &[Metric] = &[metric("rate", "/s", ""), CPU];
const ENQUEUE_64: &[Metric] = &[metric("rate", "/s", "50,000"), CPU];
const DRAIN: &[Metric] = &[metric("rate", "/s", "35,000"), CPU];
const LATENCY: &[Metric] = &[metric("p50_ms", "ms p50", "2"), metric("p99_ms", "ms p99", "10")];
const LATENESS: &[Metric] =
    &[metric("p50_ms", "ms p50", "3"), metric("p99_ms", "ms p99", "10"), metric("early", "early", "0")];
const PARKED: &[Metric] = &[
    metric("share", "of its rate without them", "0.90"),
    metric("cpu_share", "times the CPU without them", ""),
    metric("rate", "/s", ""),
];
const REOPEN: &[Metric] =
    &[metric("open_ms", "ms", ""), metric("rss_mb", "MB resident", ""), metric("file_mb", "MB of file", "")];
const FAIR: &[Metric] = &[
    metric("small_ms", "ms until the small one's are done", "50"),
    metric("share", "of its rate for the big one", "0.90"),
];
const YEAR: &[Metric] = &[metric("seconds", "s", "below 1"), metric("tick_us", "us a tick", "")];

const APALIS: &[&str] = &["apalis"];
const NOBODY: &[&str] = &[];

/// All of them; `divisor` makes them small.
pub(crate) fn works(divisor: u64) -> Vec<Work> {
    let work = |name, title, (callers, jobs, millis), peers, metrics| {
        Work { name, title, callers, jobs, millis, peers, metrics }.divided(divisor)
    };
    vec![
        work("enqueue-1", "enqueue, 1 caller", (1, 0, 3_000), APALIS, ENQUEUE),
        work("enqueue-16", "enqueue, 16 callers", (16, 0, 3_000), APALIS, ENQUEUE),
        work("enqueue-64", "enqueue, 64 callers", (64, 0, 3_000), APALIS, ENQUEUE_64),
        work("bulk", "enqueue 1,000 at a time", (1, 200_000, 0), APALIS, ENQUEUE),
        work("drain-64", "drain, 64 at once", (64, 100_000, 0), NOBODY, DRAIN),
        work("drain-256", "drain, 256 at once", (256, 100_000, 0), NOBODY, DRAIN),
        work("latency", "from enqueue to start, 500 a second", (16, 5_000, 10_000), NOBODY, LATENCY),
        work("dense", "lateness, 5,000 over 10 s", (1, 5_000, 10_000), NOBODY, LATENESS),
        work("sparse", "lateness, 50 over 10 s", (1, 50, 10_000), NOBODY, LATENESS),
        work("parked", "drain beside 1,000,000 parked jobs", (256, 1_000_000, 0), NOBODY, PARKED),
        work("reopen", "open a file with 1,000,000 jobs", (1, 1_000_000, 0), NOBODY, REOPEN),
        work("fair", "10 jobs of a small tenant behind 50,000", (64, 50_000, 0), NOBODY, FAIR),
        work("year", "a year of an hourly cron, virtual clock, in memory", (1, 8_760, 0), NOBODY, YEAR),
    ]
}

/// The first half of `reopen`, which is a process of its own.
pub(crate) fn fill_work() -> Work {
    let (callers, jobs, millis) = (1, 0, 0);
    Work { name: "fill", title: "", callers, jobs, millis, peers: NOBODY, metrics: &[] }
}
