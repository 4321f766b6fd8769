//! How fast, and with how much CPU time. The programs of rivals include this file as it is: it may use nothing of ours.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::{SysconfVar, sysconf};

/// Wall and CPU time from its start on.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    began: Instant,
    own: Duration,
    server: Option<(u32, Duration)>,
}

impl Meter {
    /// Begins to measure this process, and a server by its first process.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn start(server: Option<u32>) -> Result<Self> {
        let server = server.map(|id| Ok::<_, anyhow::Error>((id, server_cpu(id)?))).transpose()?;
        Ok(Self { own: cpu()?, server, began: Instant::now() })
    }

    /// Jobs a second, and CPU time for each in microseconds: names and numbers.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn rate(&self, jobs: u64) -> Result<Vec<(&'static str, f64)>> {
        self.rate_with(jobs, Duration::ZERO)
    }

    /// The same, when other processes took part with this much CPU time.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn rate_with(&self, jobs: u64, others: Duration) -> Result<Vec<(&'static str, f64)>> {
        let seconds = self.began.elapsed().as_secs_f64();
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / jobs.max(1) as f64;
        let mut pairs = vec![("rate", jobs as f64 / seconds), ("cpu_us", each(cpu()? - self.own + others))];
        if let Some((id, before)) = self.server {
            pairs.push(("server_us", each(server_cpu(id)?.saturating_sub(before))));
        }
        Ok(pairs)
    }

    /// Since its start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// CPU time of this process so far.
///
/// # Errors
/// If the system does not say.
pub fn cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let time = |time: TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1_000);
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

/// CPU time of a process and its children so far, also of those that have ended.
fn server_cpu(server: u32) -> Result<Duration> {
    let second = sysconf(SysconfVar::CLK_TCK)?.context("the system counts ticks")? as u64;
    let mut ticks = 0;
    for entry in fs::read_dir("/proc")? {
        // Others come and go meanwhile.
        let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else { continue };
        // The name, in brackets, may have blanks in it; state and parent follow.
        let (Some((id, _)), Some((_, fields))) = (stat.split_once(' '), stat.rsplit_once(") ")) else { continue };
        let fields: Vec<&str> = fields.split(' ').collect();
        let count = |places: &[usize]| places.iter().map(|&place| fields[place].parse::<u64>()).sum::<Result<u64, _>>();
        if id.parse() == Ok(server) {
            ticks += count(&[11, 12, 13, 14])?;
        } else if fields[1].parse() == Ok(server) {
            ticks += count(&[11, 12])?;
        }
    }
    Ok(Duration::from_micros(ticks * 1_000_000 / second))
}
