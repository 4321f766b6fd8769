//! One sample in a process of its own, on a machine that does nothing else.
//!
//! A benchmark that shares its cores measures its neighbours. So the parent reads how much CPU time the machine spent
//! on others while the child ran (what hypervisors steal included), and takes the sample again if it was too much.

use std::env;
use std::fs;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

use crate::peer::java::Classes;
use crate::workload::{Case, Sample};

/// The first argument of a child process.
pub(crate) const CHILD: &str = "measure";

/// How often a disturbed sample is taken again before the least disturbed one is kept.
const ATTEMPTS: usize = 12;
/// How long to wait for others to end.
const PAUSE: Duration = Duration::from_secs(3);
/// CPU time of others that goes unnoticed: the kernel's own, and the resolution of its counters.
const UNNOTICED: Duration = Duration::from_millis(30);
/// Beyond that, the share of a core that others may have.
const TOLERATED: f64 = 0.05;

/// Whether a sample counts that was taken while others used the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Neighbours {
    Avoided,
    Tolerated,
}

/// Measures one case on one peer; `java` if it is one of Java's.
pub(crate) fn sample(peer: &str, case: &Case, java: Option<&Classes>, neighbours: Neighbours) -> Result<Sample> {
    let attempts = if neighbours == Neighbours::Avoided { ATTEMPTS } else { 1 };
    let mut best: Option<(Duration, Sample)> = None;
    for attempt in 1..=attempts {
        let (start, busy) = (Instant::now(), others_cpu()?);
        let output = command(peer, java)?.args(case.to_args()).output().context("starting a child process")?;
        let (elapsed, others) = (start.elapsed(), others_cpu()?.saturating_sub(busy));
        let sample = read(&output)?;
        if best.as_ref().is_none_or(|(least, _)| others < *least) {
            best = Some((others, sample));
        }
        if attempt == attempts || others <= UNNOTICED + elapsed.mul_f64(TOLERATED) {
            break;
        }
        eprintln!("{peer} {case}: others used {others:.0?} of {elapsed:.0?}, attempt {attempt} of {attempts}");
        thread::sleep(PAUSE);
    }
    Ok(best.context("at least one attempt was made")?.1)
}

fn command(peer: &str, java: Option<&Classes>) -> Result<Command> {
    if let Some(classes) = java {
        return Ok(classes.command(peer));
    }
    let mut command = Command::new(env::current_exe().context("this program's own path")?);
    command.args([CHILD, peer]);
    Ok(command)
}

fn read(output: &Output) -> Result<Sample> {
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", output.status, talk.trim());
    Sample::parse(&String::from_utf8_lossy(&output.stdout))
}

/// CPU time spent since boot on anything but this process and its children, and time stolen.
fn others_cpu() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("the machine's CPU time is read from /proc")?;
    let line = stat.lines().next().context("stat has a first line")?;
    // user nice system idle iowait irq softirq steal, in hundredths of a second.
    let fields: Vec<u64> = line.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    let busy: u64 =
        fields.iter().take(8).enumerate().filter(|(n, _)| ![3, 4].contains(n)).map(|(_, ticks)| ticks).sum();
    let own = cpu(UsageWho::RUSAGE_SELF)? + cpu(UsageWho::RUSAGE_CHILDREN)?;
    Ok(Duration::from_millis(busy * 10).saturating_sub(own))
}

fn cpu(who: UsageWho) -> Result<Duration> {
    let usage = getrusage(who)?;
    let (user, system) = (usage.user_time(), usage.system_time());
    let us = (user.tv_sec() + system.tv_sec()) * 1_000_000 + user.tv_usec() + system.tv_usec();
    Ok(Duration::from_micros(u64::try_from(us)?))
}
