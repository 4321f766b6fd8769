//! Punctual beside its peers: the same work on each, ratios of medians.
//!
//! Every (peer, case, run) is a child process of its own, one at a time; runs go round all peers in turn, so that a
//! slow minute of the machine hits them alike. A child prints one line, the parent prints tables.
//!
//! ```text
//! cargo run --release -p punctual-bench                    everything (an hour)
//! cargo run --release -p punctual-bench -- insert cancel   some experiments
//!     --runs N        runs per cell, 5 if not given
//!     --only a,b      these peers
//!     --quick         small sizes, one run: does everything work?
//!     --shared        take every sample as it comes, though others use the machine; implied by --quick
//! ```
#![allow(clippy::print_stdout, reason = "the tables are the program's output")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod child;
mod measure;
mod peer;
mod report;
mod suite;
mod workload;

use std::env;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use child::{CHILD, Neighbours};
use peer::java::Classes;
use peer::{BARE_WAIT, BASELINE};
use report::Row;
use suite::{Experiment, Scale, experiments};
use workload::Case;

/// Cases of this size take minutes a run over all peers: three runs must do.
const LARGE: usize = 10_000_000;
const LARGE_RUNS: usize = 3;

const HELP: &str = "\
Punctual beside its peers: the same work on each, ratios of medians.

Usage: punctual-bench [EXPERIMENT]... [OPTION]...

Experiments (all if none is named; that takes an hour):
  insert cancel growth fire burst precision consumers idle
  tenants pick revoke overload

Options:
  --runs N      runs per cell: 5 if not given, 1 with --quick
  --only A,B    these peers, beside punctual-queue
  --quick       small sizes: does everything work?
  --shared      take every sample as it comes, though others use the machine; implied by --quick
  -h, --help    this text
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    // One line and no backtrace: the mistake is in the arguments.
    if args.first().is_none_or(|first| first != CHILD)
        && let Err(error) = Options::parse(&args)
    {
        eprintln!("punctual-bench: {error:#} (--help says more)");
        return ExitCode::from(2);
    }
    match measure(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("punctual-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &[String]) -> Result<()> {
    if let [first, peer, case @ ..] = args
        && first == CHILD
    {
        println!("{}", peer::measure(peer, &Case::from_args(case)?)?);
        // Neither freeing what is pending nor waiting for the peer's threads is of interest.
        std::process::exit(0);
    }
    let options = Options::parse(args)?;
    let classes = Classes::compile()?;
    for experiment in experiments(options.scale) {
        if options.experiments.is_empty() || options.experiments.iter().any(|name| name == experiment.name) {
            let rows = run(&experiment, &options, classes.as_ref());
            println!("{}", report::table(&experiment.title, &experiment.columns, rows));
        }
    }
    Ok(())
}

struct Options {
    experiments: Vec<String>,
    only: Vec<String>,
    runs: usize,
    scale: Scale,
    neighbours: Neighbours,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self {
            experiments: Vec::new(),
            only: Vec::new(),
            runs: 0,
            scale: Scale::Full,
            neighbours: Neighbours::Avoided,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => (options.scale, options.neighbours) = (Scale::Quick, Neighbours::Tolerated),
                "--shared" => options.neighbours = Neighbours::Tolerated,
                "--runs" => {
                    let number = args.next().context("--runs needs a number")?;
                    options.runs = number.parse().with_context(|| format!("--runs needs a number, not {number:?}"))?;
                }
                "--only" => {
                    let peers = args.next().context("--only needs names of peers")?;
                    options.only = peers.split(',').map(str::to_owned).collect();
                }
                name if experiments(Scale::Quick).iter().any(|known| known.name == name) => {
                    options.experiments.push(name.to_owned());
                }
                other => bail!("no experiment or option is called {other:?}"),
            }
        }
        if options.runs == 0 {
            options.runs = if options.scale == Scale::Quick { 1 } else { 5 };
        }
        Ok(options)
    }

    /// The baseline always takes part: the ratios refer to it.
    fn includes(&self, peer: &str) -> bool {
        self.only.is_empty() || peer == BASELINE || peer == BARE_WAIT || self.only.iter().any(|name| name == peer)
    }
}

/// Measures all cells of an experiment.
fn run(experiment: &Experiment, options: &Options, classes: Option<&Classes>) -> Vec<Row> {
    let peers = peer::RUST.iter().copied().chain(classes.into_iter().flat_map(Classes::peers));
    let taking_part = peers.filter(|peer| (experiment.takes_part)(peer)).map(|peer| (peer.name, peer.java));
    let bare = experiment.beside_bare_wait.then_some((BARE_WAIT, false));
    let chosen: Vec<_> = taking_part.chain(bare).filter(|(name, _)| options.includes(name)).collect();
    let mut rows: Vec<_> = chosen.iter().map(|(name, _)| Row::new(name, experiment.cases.len())).collect();
    for number in 0..options.runs {
        for (row, &(name, java)) in rows.iter_mut().zip(&chosen) {
            for (index, case) in experiment.cases.iter().enumerate() {
                if case.entries >= LARGE && number >= LARGE_RUNS {
                    continue;
                }
                match child::sample(name, case, classes.filter(|_| java), options.neighbours) {
                    Ok(sample) => {
                        eprintln!("{name} {case}, run {}: {sample}", number + 1);
                        row.samples[index].push(sample);
                    }
                    Err(error) => eprintln!("{name} {case} failed: {error:#}"),
                }
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options> {
        Options::parse(&args.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn wrong_arguments_are_named_on_one_line() {
        for args in [&["insrt"][..], &["--runs"], &["--runs", "many"], &["--only"]] {
            let error = parse(args).err().expect("they are wrong");
            let line = format!("{error:#}");
            assert!(line.contains(args[args.len() - 1]) && !line.contains('\n'), "{line}");
        }
        assert!(parse(&["insert", "--runs", "3"]).is_ok());
    }

    #[test]
    fn the_help_names_every_experiment() {
        for experiment in experiments(Scale::Quick) {
            assert!(HELP.contains(experiment.name), "{}", experiment.name);
        }
    }
}
