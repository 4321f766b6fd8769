//! Nodes in processes of their own: told what to do on their input, they answer on their output.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use punctual_bench::durable::Place;
use punctual_bench::durable::meter::cpu;
use punctual_bench::durable::table::Sample;
use punctual_bench::durable::wait::wait;
use punctual_bench::durable::work::Work;
use punctual_bench::durable::works::{Load, ONLY, Seen};

use crate::place::Databases;

/// The first argument of such a process.
pub(crate) const NODE: &str = "node";

/// A node, as the one who started it sees it. It is killed with this.
pub(crate) struct Node {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Node {
    /// Starts the node of a work; it has opened the store then, and works when it is told to.
    pub(crate) fn start(work: &Work, place: &Databases) -> Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .arg(NODE)
            .args(work.to_args())
            .args(place.to_args())
            .arg(&place.query)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = process.stdin.take().context("it has an input")?;
        let answers = BufReader::new(process.stdout.take().context("it has an output")?);
        let mut node = Self { process, orders, answers };
        ensure!(node.answer()? == "ready");
        Ok(node)
    }

    pub(crate) fn tell(&mut self) -> Result<()> {
        Ok(writeln!(self.orders)?)
    }

    pub(crate) fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "the node has ended: {line:?}");
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // With a signal that nobody can ignore: it has said what there was to say.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What such a process does.
pub(crate) fn work(work: &Work, place: &Databases) -> Result<()> {
    let jobs = place.open(ONLY)?;
    let seen = Arc::new(Seen::default());
    let starts = seen.clone();
    let begins_only = work.name.starts_with("kill");
    jobs.on(move |load: Load, _| {
        starts.since_call(&load);
        async move {
            if begins_only {
                answer("running");
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    });
    answer("ready");
    heard()?;
    let before = cpu()?;
    let node = wait(jobs.node().workers(work.callers.max(16) as usize).start())?;
    answer("works");
    match work.name {
        "latency-far" => {
            heard()?;
            wait(node.drain());
            answer(&seen.sample(work.jobs)?.to_string());
        }
        name if name.starts_with("nodes") => {
            wait(node.drain());
            let spent = (cpu()? - before).as_secs_f64();
            let done = node.snapshot().succeeded;
            answer(&Sample::default().with("cpu", spent).with("jobs", done as f64).to_string());
        }
        _ => {}
    }
    // Until it is killed.
    heard().map(drop)
}

#[allow(clippy::print_stdout, reason = "whoever started it reads it")]
fn answer(text: &str) {
    println!("{text}");
}

fn heard() -> Result<()> {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Err(anyhow!("nobody is there"));
    }
    Ok(())
}

/// CPU time and jobs that a node told of.
pub(crate) fn told(sample: &Sample) -> (Duration, u64) {
    let get = |name| sample.get(name).unwrap_or_default();
    (Duration::from_secs_f64(get("cpu")), get("jobs") as u64)
}
