//! The parent of all samples: what was asked for, and one child process after another.

use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

use super::table::{Row, Sample, table};
use super::work::Work;

/// The first argument of a child process.
pub const CHILD: &str = "measure";

/// What the command line asks for.
#[derive(Debug)]
pub struct Options {
    /// Works whose names begin so; all if there are none.
    pub works: Vec<String>,
    /// Runs of each.
    pub runs: usize,
    /// By how much works are smaller than they should be.
    pub divisor: u64,
    /// Without the rivals.
    pub alone: bool,
}

impl Options {
    /// Reads them. What is not known here is given to `other`, with what follows; it says whether it knows it.
    ///
    /// # Errors
    /// If one is wrong.
    pub fn parse(
        args: &[String],
        is_work: impl Fn(&str) -> bool,
        mut other: impl FnMut(&str, &mut std::slice::Iter<'_, String>) -> Result<bool>,
    ) -> Result<Self> {
        let mut options = Self { works: Vec::new(), runs: 0, divisor: 1, alone: false };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => options.divisor = 20,
                "--alone" => options.alone = true,
                "--runs" => options.runs = number(arg, &mut args)?,
                name if is_work(name) => options.works.push(name.to_owned()),
                name => {
                    if !other(name, &mut args)? {
                        bail!("no work or option is called {name:?} (--help says more)");
                    }
                }
            }
        }
        if options.runs == 0 {
            options.runs = if options.divisor > 1 { 1 } else { 5 };
        }
        Ok(options)
    }

    /// Whether a work was asked for, by name or by not asking for any.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        self.works.is_empty() || self.works.iter().any(|chosen| name.starts_with(chosen.as_str()))
    }
}

/// The number that follows an option.
///
/// # Errors
/// If none does.
pub fn number<T: std::str::FromStr>(option: &str, args: &mut std::slice::Iter<'_, String>) -> Result<T> {
    let number = args.next().with_context(|| format!("{option} needs a number"))?;
    number.parse().ok().with_context(|| format!("{option} needs a number, not {number:?}"))
}

/// Somebody who can do works, and how to start the process that does.
#[derive(Debug)]
pub struct Peer {
    /// The name, in the table too.
    pub name: &'static str,
    /// The program with its first arguments.
    pub command: Vec<std::ffi::OsString>,
}

/// Runs go round all works and peers in turn. `sample` starts a child in a place of its own. Answers the table.
/// One that fails is left out, with a word about it.
#[must_use]
pub fn measure(
    works: Vec<Work>,
    (ours, peers): (&Peer, &[Peer]),
    runs: usize,
    mut sample: impl FnMut(Command, &Work) -> Result<Sample>,
) -> String {
    let mut rows: Vec<Row> = works.into_iter().map(|work| Row::new(work, peers.len())).collect();
    for run in 1..=runs {
        for Row { work, ours: own, theirs } in &mut rows {
            let peers = peers.iter().zip(theirs).filter(|(peer, _)| work.peers.contains(&peer.name));
            for (peer, samples) in [(ours, own)].into_iter().chain(peers) {
                let mut command = Command::new(&peer.command[0]);
                command.args(&peer.command[1..]).args(work.to_args());
                match sample(command, work) {
                    Ok(sample) => {
                        eprintln!("{} {}, run {run}: {sample}", peer.name, work.name);
                        samples.push(sample);
                    }
                    Err(error) => eprintln!("{} {} failed: {error:#}", peer.name, work.name),
                }
            }
        }
    }
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    table(&rows, &names)
}

/// What a child saw.
///
/// # Errors
/// If it failed.
pub fn read(output: &Output) -> Result<Sample> {
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", output.status, talk.trim());
    Sample::parse(&String::from_utf8_lossy(&output.stdout))
}
