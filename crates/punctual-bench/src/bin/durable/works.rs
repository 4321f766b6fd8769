//! What is measured, how much of it, and what is to be reached.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// One thing to measure.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Callers that enqueue, or jobs that run at once.
    pub(crate) callers: u64,
    pub(crate) jobs: u64,
    /// How long it goes on, where that is given.
    pub(crate) millis: u64,
    pub(crate) has_rival: bool,
    pub(crate) metrics: &'static [Metric],
}

/// One number of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// The target, as it is written in the table.
    pub(crate) wanted: &'static str,
}

const fn metric(name: &'static str, unit: &'static str, wanted: &'static str) -> Metric {
    Metric { name, unit, wanted }
}

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

/// All of them; `divisor` makes them small.
pub(crate) fn works(divisor: u64) -> Vec<Work> {
    let work = |name, title, (callers, jobs, millis), has_rival, metrics| Work {
        name,
        title,
        callers,
        jobs: if jobs > 1_000 { jobs / divisor } else { jobs },
        millis: if millis > 1_000 { millis / divisor.min(10) } else { millis },
        has_rival,
        metrics,
    };
    vec![
        work("enqueue-1", "enqueue, 1 caller", (1, 0, 3_000), true, ENQUEUE),
        work("enqueue-16", "enqueue, 16 callers", (16, 0, 3_000), true, ENQUEUE),
        work("enqueue-64", "enqueue, 64 callers", (64, 0, 3_000), true, ENQUEUE_64),
        work("bulk", "enqueue 1,000 at a time", (1, 200_000, 0), true, ENQUEUE),
        work("drain-64", "drain, 64 at once", (64, 100_000, 0), false, DRAIN),
        work("drain-256", "drain, 256 at once", (256, 100_000, 0), false, DRAIN),
        work("latency", "from enqueue to start, 500 a second", (16, 5_000, 10_000), false, LATENCY),
        work("dense", "lateness, 5,000 over 10 s", (1, 5_000, 10_000), false, LATENESS),
        work("sparse", "lateness, 50 over 10 s", (1, 50, 10_000), false, LATENESS),
        work("parked", "drain beside 1,000,000 parked jobs", (256, 1_000_000, 0), false, PARKED),
        work("reopen", "open a file with 1,000,000 jobs", (1, 1_000_000, 0), false, REOPEN),
        work("fair", "10 jobs of a small tenant behind 50,000", (64, 50_000, 0), false, FAIR),
        work("year", "a year of an hourly cron, virtual clock, in memory", (1, 8_760, 0), false, YEAR),
    ]
}

/// The first half of `reopen`, which is a process of its own.
pub(crate) fn fill() -> Work {
    let (callers, jobs, millis) = (1, 0, 0);
    Work { name: "fill", title: "", callers, jobs, millis, has_rival: false, metrics: &[] }
}

impl Work {
    /// As arguments of a child process.
    pub(crate) fn to_args(&self) -> [String; 4] {
        [self.name.to_owned(), self.callers.to_string(), self.jobs.to_string(), self.millis.to_string()]
    }

    pub(crate) fn from_args(args: &[String]) -> Result<(Self, PathBuf)> {
        let [name, callers, jobs, millis, folder] = args else {
            bail!("a child has five arguments, not {}", args.len())
        };
        let known = works(1).into_iter().chain([fill()]).find(|work| work.name == name);
        let known = known.with_context(|| format!("no work is called {name:?}"))?;
        let (callers, jobs, millis) = (callers.parse()?, jobs.parse()?, millis.parse()?);
        Ok((Self { callers, jobs, millis, ..known }, PathBuf::from(folder)))
    }
}
