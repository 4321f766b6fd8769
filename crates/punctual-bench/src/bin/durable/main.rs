//! How fast durable jobs are in a file, through the whole engine; the enqueues beside apalis. Every number waits for the disk.
//!
//! Every (work, peer, run) is a process of its own with a file of its own, one at a time; runs go round all works in turn.
//!
//! ```text
//! cargo run --release -p punctual-bench --bin durable                  everything, in a folder below the temporary one
//! cargo run --release -p punctual-bench --bin durable -- drain fair    works whose names begin so
//! ```
#![allow(clippy::print_stdout, reason = "the tables are the program's output")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod ours;
mod rival;
mod store;
mod table;
mod wait;
mod works;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use anyhow::{Context, Result, bail, ensure};

use rival::Rival;
use table::{Row, Sample};
use works::{Work, works};

const HELP: &str = "\
Durable jobs in a file, through the whole engine; the enqueues beside apalis. Every number waits for the disk.

Usage: durable [WORK]... [OPTION]...

Works (all if none is named; the beginning of a name is enough):
  enqueue-1 enqueue-16 enqueue-64 bulk drain-64 drain-256 latency dense sparse parked reopen fair year
  store     the store by itself, without the engine; only if named

Options:
  --in FOLDER   on the disk of that folder
  --runs N      runs of each: 5 if not given, 1 with --quick
  --quick       a twentieth of the jobs and of the time: does everything work?
  --alone       without apalis, which is built at first use
  --relaxed     `store` with synchronous=NORMAL
  -h, --help    this text
";

/// The first argument of a child process.
const CHILD: &str = "measure";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let done = if args.first().is_some_and(|first| first == CHILD) { child(&args[1..]) } else { parent(&args) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("durable: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn child(args: &[String]) -> Result<()> {
    let (work, folder) = Work::from_args(args)?;
    println!("{}", ours::measure(&work, &folder)?);
    // Nobody is interested in an orderly end.
    std::process::exit(0);
}

fn parent(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let folder = options.folder.join(format!("punctual-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let done = measure(&options, &folder);
    fs::remove_dir_all(&folder)?;
    done
}

fn measure(options: &Options, folder: &Path) -> Result<()> {
    let chosen = |name: &str| options.works.iter().any(|chosen| name.starts_with(chosen.as_str()));
    if chosen("store") {
        store::measure(folder.join("store"), options.relaxed, options.divisor)?;
    }
    let works: Vec<Work> =
        works(options.divisor).into_iter().filter(|work| options.works.is_empty() || chosen(work.name)).collect();
    if works.is_empty() {
        return Ok(());
    }
    let rival = if options.alone { None } else { Rival::build() };
    let mut rows: Vec<Row> = works.into_iter().map(Row::new).collect();
    for run in 1..=options.runs {
        for row in &mut rows {
            let own = sample(Command::new(env::current_exe()?).arg(CHILD), &row.work, folder);
            keep("punctual", run, &row.work, own, &mut row.ours);
            if let Some(rival) = rival.as_ref().filter(|_| row.work.has_rival) {
                let theirs = sample(&mut rival.command(), &row.work, folder);
                keep("apalis", run, &row.work, theirs, &mut row.theirs);
            }
        }
    }
    println!("{}", table::table(&rows));
    if let Some(rival) = rival {
        println!("apalis says of its file: {}", rival.settings(folder)?);
    }
    Ok(())
}

/// One measurement, in a folder that is gone afterwards.
fn sample(command: &mut Command, work: &Work, folder: &Path) -> Result<Sample> {
    let own = folder.join("sample");
    fs::create_dir_all(&own)?;
    let output = command.args(work.to_args()).arg(&own).output();
    fs::remove_dir_all(&own)?;
    read(&output.context("starting a child process")?)
}

fn read(output: &Output) -> Result<Sample> {
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", output.status, talk.trim());
    Sample::parse(&String::from_utf8_lossy(&output.stdout))
}

fn keep(peer: &str, run: usize, work: &Work, sample: Result<Sample>, samples: &mut Vec<Sample>) {
    match sample {
        Ok(sample) => {
            eprintln!("{peer} {}, run {run}: {sample}", work.name);
            samples.push(sample);
        }
        Err(error) => eprintln!("{peer} {} failed: {error:#}", work.name),
    }
}

struct Options {
    works: Vec<String>,
    folder: PathBuf,
    runs: usize,
    divisor: u64,
    alone: bool,
    relaxed: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut options =
            Self { works: Vec::new(), folder: env::temp_dir(), runs: 0, divisor: 1, alone: false, relaxed: false };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => options.divisor = 20,
                "--alone" => options.alone = true,
                "--relaxed" => options.relaxed = true,
                "--in" => options.folder = args.next().context("--in needs a folder")?.into(),
                "--runs" => {
                    let number = args.next().context("--runs needs a number")?;
                    options.runs = number.parse().with_context(|| format!("--runs needs a number, not {number:?}"))?;
                }
                name if name == "store" || works(1).iter().any(|work| work.name.starts_with(name)) => {
                    options.works.push(name.to_owned());
                }
                other => bail!("no work or option is called {other:?} (--help says more)"),
            }
        }
        if options.runs == 0 {
            options.runs = if options.divisor > 1 { 1 } else { 5 };
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_arguments_are_named() {
        for args in [&["drian"][..], &["--runs"], &["--runs", "many"], &["--in"]] {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let error = Options::parse(&args).err().expect("they are wrong");
            assert!(error.to_string().contains(&args[args.len() - 1]), "{error}");
        }
    }

    #[test]
    fn the_help_names_every_work() {
        for work in works(1) {
            assert!(HELP.split_whitespace().any(|word| word == work.name), "{} is missing", work.name);
        }
    }

    #[test]
    fn a_child_understands_its_parent() {
        for work in works(20) {
            let mut args: Vec<String> = work.to_args().into();
            args.push("/tmp/x".into());
            let (read, folder) = Work::from_args(&args).unwrap();
            assert_eq!(
                (read.name, read.callers, read.jobs, read.millis),
                (work.name, work.callers, work.jobs, work.millis)
            );
            assert_eq!(folder, Path::new("/tmp/x"));
        }
    }
}
