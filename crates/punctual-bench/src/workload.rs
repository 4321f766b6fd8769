//! The work every peer does. One call measures one case in this process and returns what was seen.

mod consumers;
mod fill;
mod fire;
mod idle;
mod precision;
pub(crate) mod tenants;

use std::fmt;
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::measure::{Lateness, now_ns, sleep_until_ns};
use crate::peer::{Peer, Producer};
pub(crate) use precision::bare_wait;

/// Threads that run due entries, unless the workload is about their number.
const WORKERS: usize = 2;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Add entries due in 10 to 70 s.
    Insert,
    /// Add an entry, cancel the one added 1,000 earlier.
    Cancel,
    /// Add entries, then run them all when they fall due: within so many seconds, or at one instant if that is 0.
    Fire,
    /// Add entries at a steady rate with delays of 1 to 500 ms.
    Precision,
    /// Eight consumers block for entries that come at a steady rate with delays of 1 to 100 ms.
    Consumers,
    /// Add entries due in an hour and do nothing.
    Idle,
    /// Submit empty jobs and run them.
    Tenants,
    /// Run the jobs of so many tenants that all have work.
    Pick,
    /// Cancel jobs that are due and wait.
    Revoke,
    /// Submit ten times as much as can be done.
    Overload,
}

const NAMES: [(Workload, &str); 10] = [
    (Workload::Insert, "insert"),
    (Workload::Cancel, "cancel"),
    (Workload::Fire, "fire"),
    (Workload::Precision, "precision"),
    (Workload::Consumers, "consumers"),
    (Workload::Idle, "idle"),
    (Workload::Tenants, "tenants"),
    (Workload::Pick, "pick"),
    (Workload::Revoke, "revoke"),
    (Workload::Overload, "overload"),
];

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(workload, _)| workload == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Workload {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(workload, _)| *workload).with_context(|| format!("no workload is called {text:?}"))
    }
}

/// One workload at one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) workload: Workload,
    /// Threads that add entries.
    pub(crate) threads: usize,
    /// Entries in all.
    pub(crate) entries: usize,
    pub(crate) seconds: u64,
}

impl Case {
    /// As arguments of a child process, here and in Java.
    pub(crate) fn to_args(self) -> [String; 4] {
        [self.workload.to_string(), self.threads.to_string(), self.entries.to_string(), self.seconds.to_string()]
    }

    pub(crate) fn from_args(args: &[String]) -> Result<Self> {
        let [workload, threads, entries, seconds] = args else {
            bail!("a case has four arguments, not {}", args.len())
        };
        Ok(Self {
            workload: workload.parse()?,
            threads: threads.parse()?,
            entries: entries.parse()?,
            seconds: seconds.parse()?,
        })
    }

    fn per_thread(&self) -> usize {
        self.entries / self.threads
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_args().join(" "))
    }
}

/// What one run saw: named numbers, printed as one line.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample(Vec<(String, f64)>);

/// Every sample line begins so; a child may print other things.
const MARK: &str = "sample";

impl Sample {
    fn with(mut self, name: &str, value: f64) -> Self {
        self.0.push((name.to_owned(), value));
        self
    }

    fn with_lateness(self, lateness: &Lateness) -> Self {
        self.with("p50_us", lateness.quantile_us(0.5))
            .with("p99_us", lateness.quantile_us(0.99))
            .with("p999_us", lateness.quantile_us(0.999))
            .with("max_us", lateness.max_us())
            .with("early", lateness.early())
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Finds the sample in what a child printed.
    pub(crate) fn parse(output: &str) -> Result<Self> {
        let line = output.lines().find_map(|line| line.strip_prefix(MARK)).context("the child printed no sample")?;
        let pair = |word: &str| -> Result<(String, f64)> {
            let (name, value) = word.split_once('=').with_context(|| format!("{word:?} is no name=value"))?;
            Ok((name.to_owned(), value.parse()?))
        };
        line.split_whitespace().map(pair).collect::<Result<_>>().map(Self)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MARK)?;
        self.0.iter().try_for_each(|(name, value)| write!(f, " {name}={value:.3}"))
    }
}

/// Measures one case on one peer.
pub(crate) fn measure<P: Peer>(case: &Case) -> Result<Sample> {
    match case.workload {
        Workload::Insert => Ok(fill::insert::<P>(case)),
        Workload::Cancel => fill::cancel::<P>(case),
        Workload::Fire => fire::fire::<P>(case),
        Workload::Precision => precision::precision::<P>(case),
        Workload::Consumers => consumers::consumers::<P>(case),
        Workload::Idle => idle::idle::<P>(case),
        Workload::Tenants | Workload::Pick | Workload::Revoke | Workload::Overload => {
            bail!("{case} is for those who run jobs at once")
        }
    }
}

/// Waits until the peer has absorbed all that was added: an entry added now and due soon has run.
fn settle<R: Producer>(producer: &mut R) {
    let (done, wait) = mpsc::channel();
    let handle = producer.after(Duration::from_millis(1), move || {
        let _ = done.send(());
    });
    producer.detach(handle);
    // A peer that runs nothing drops the work at once, and has nothing to absorb.
    let _ = wait.recv();
}

/// Calls `add` for each entry at a steady rate: a burst every millisecond, as a server under load sees them.
fn paced(entries: usize, seconds: u64, mut add: impl FnMut()) {
    let bursts = seconds * 1000;
    let start = now_ns();
    let mut added = 0;
    for burst in 1..=bursts {
        let until = entries as u64 * burst / bursts;
        while added < until {
            add();
            added += 1;
        }
        sleep_until_ns(start + burst * MILLISECOND);
    }
}

/// Runs `body` on `threads` producing threads at once; returns wall time from the first start to the last end, and what
/// they returned.
fn on_threads<T: Send>(threads: usize, body: impl Fn(usize) -> T + Sync) -> (u64, Vec<T>) {
    let barrier = std::sync::Barrier::new(threads);
    let (barrier, body) = (&barrier, &body);
    let ran: Vec<_> = thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|number| {
                scope.spawn(move || {
                    barrier.wait();
                    let start = now_ns();
                    let value = body(number);
                    (start, now_ns(), value)
                })
            })
            .collect();
        spawned.into_iter().map(|thread| thread.join().expect("no producer panics")).collect()
    });
    let start = ran.iter().map(|(start, ..)| *start).min().unwrap_or(0);
    let end = ran.iter().map(|(_, end, _)| *end).max().unwrap_or(0);
    (end - start, ran.into_iter().map(|(.., value)| value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_survives_its_line() {
        let sample = Sample::default().with("wall_ns", 12.5).with("early", 0.0);
        let output = format!("talk\n{sample}\nmore talk\n");
        assert_eq!(Sample::parse(&output).unwrap(), sample);
    }

    #[test]
    fn a_case_survives_its_arguments() {
        let case = Case { workload: Workload::Precision, threads: 2, entries: 50_000, seconds: 5 };
        assert_eq!(Case::from_args(&case.to_args()).unwrap(), case);
    }
}
