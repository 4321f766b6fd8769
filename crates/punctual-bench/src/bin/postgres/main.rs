//! How fast durable jobs are in PostgreSQL, through the whole engine, beside the physical limit and other libraries.
//! The server waits for the disk at every commit.
//!
//! Every (work, peer, run) is a process of its own in a database of its own, one at a time; runs go round all works in
//! turn. The server is started for the run and gone afterwards.
//!
//! ```text
//! cargo run --release -p punctual-bench --bin postgres                  everything
//! cargo run --release -p punctual-bench --bin postgres -- drain fair    works whose names begin so
//! ```
#![allow(clippy::print_stdout, reason = "the tables are the program's output")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod ideal;
mod nodes;
mod ours;
mod place;
mod works;

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use punctual_bench::durable::parent::{self, CHILD, Options, Peer, number};
use punctual_bench::durable::rival::rival;
use punctual_bench::durable::table::Sample;
use punctual_bench::durable::work::Work;

use nodes::NODE;
use place::{Bench, Databases};
use works::{APALIS, GRAPHILE, IDEAL, IDEAL_KEPT, Sizes, works};

const HELP: &str = "\
Durable jobs in PostgreSQL, through the whole engine, beside the physical limit and other libraries.

Usage: postgres [WORK]... [OPTION]...

Works (all if none is named; the beginning of a name is enough):
  enqueue-1 enqueue-16 enqueue-64 bulk-1 bulk-4
  drain-64 drain-256 tenants-64 tenants-256 crowd nodes-64 nodes-256 nodes-tenants-64 nodes-tenants-256
  latency latency-far dense sparse fair parked free held kill-2 kill-10

Options:
  --runs N      runs of each: 5 if not given, 1 with --quick
  --quick       a twentieth of the jobs and of the time: does everything work?
  --alone       without the other libraries, which are built at first use
  --parked N    how many jobs are parked: 1000000 if not given
  --seconds N   how long the drains called free and held go on: 24 if not given
  -h, --help    this text
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let done = match args.split_first() {
        Some((role, rest)) if [CHILD, IDEAL, IDEAL_KEPT, NODE].contains(&role.as_str()) => child(role, rest),
        _ => parent(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("postgres: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn child(role: &str, args: &[String]) -> Result<()> {
    let (work, rest) = Work::from_args(args, works(1, Sizes::USUAL))?;
    let (place, query) = rest.split_at_checked(2).context("a child has a place")?;
    let mut place = Databases::from_args(place)?;
    match role {
        NODE => {
            place.query = query.concat();
            nodes::work(&work, &place)?;
        }
        IDEAL | IDEAL_KEPT => println!("{}", ideal::measure(&work, &place, role == IDEAL_KEPT)?),
        _ => println!("{}", ours::measure(&work, &mut place)?),
    }
    // Nobody is interested in an orderly end.
    std::process::exit(0);
}

fn parent(args: &[String]) -> Result<()> {
    let (options, sizes) = understand(args)?;
    let works = works(options.divisor, sizes).into_iter().filter(|work| options.wants(work.name)).collect();
    let program = env::current_exe()?;
    let ours = Peer { name: "punctual", command: vec![program.clone().into(), CHILD.into()] };
    let limit = |name: &'static str| Peer { name, command: vec![program.clone().into(), name.into()] };
    let mut peers = vec![limit(IDEAL), limit(IDEAL_KEPT)];
    if !options.alone {
        peers.extend([APALIS, GRAPHILE].into_iter().filter_map(rival));
    }
    let bench = Bench::start()?;
    let table = parent::measure(works, (&ours, &peers), options.runs, |command, _| sample(command, &bench));
    println!("{table}\n{}", bench.settings()?);
    Ok(())
}

/// One measurement, in a database of its own.
fn sample(mut command: Command, bench: &Bench) -> Result<Sample> {
    let output = command.args(bench.fresh()?).output();
    parent::read(&output.context("starting a child process")?)
}

fn understand(args: &[String]) -> Result<(Options, Sizes)> {
    let mut sizes = Sizes::USUAL;
    let is_work = |name: &str| works(1, Sizes::USUAL).iter().any(|work| work.name.starts_with(name));
    let options = Options::parse(args, is_work, |option, rest| {
        match option {
            "--parked" => sizes.parked = number(option, rest)?,
            "--seconds" => sizes.seconds = number(option, rest)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((options, sizes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_arguments_are_named() {
        for args in [&["drian"][..], &["--runs"], &["--runs", "many"], &["--parked", "all"], &["--seconds", "some"]] {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let Err(error) = understand(&args) else { panic!("{args:?} are understood") };
            assert!(error.to_string().contains(&args[args.len() - 1]), "{error}");
        }
    }

    #[test]
    fn the_help_names_every_work() {
        for work in works(1, Sizes::USUAL) {
            assert!(HELP.split_whitespace().any(|word| word == work.name), "{} is missing", work.name);
        }
    }
}
