//! How fast durable jobs are in a file, through the whole engine; the enqueues beside apalis. Every number waits for
//! the disk.
//!
//! Every (work, peer, run) is a process of its own with a file of its own, one at a time; runs go round all works in
//! turn.
//!
//! ```text
//! cargo run --release -p punctual-bench --bin durable                  everything, in a folder below the temporary one
//! cargo run --release -p punctual-bench --bin durable -- drain fair    works whose names begin so
//! ```
#![allow(clippy::print_stdout, reason = "the tables are the program's output")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod ours;
mod store;
mod works;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use punctual_bench::durable::parent::{self, CHILD, Options, Peer};
use punctual_bench::durable::rival::rival;
use punctual_bench::durable::table::Sample;
use punctual_bench::durable::work::Work;

use works::{fill_work, works};

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
    let (work, folder) = understand(args)?;
    println!("{}", ours::measure(&work, folder)?);
    // Nobody is interested in an orderly end.
    std::process::exit(0);
}

fn understand(args: &[String]) -> Result<(Work, &Path)> {
    let (work, rest) = Work::from_args(args, works(1).into_iter().chain([fill_work()]))?;
    let [folder] = rest else { bail!("a child has one folder, not {rest:?}") };
    Ok((work, Path::new(folder)))
}

fn parent(args: &[String]) -> Result<()> {
    let Asked { options, folder, relaxed } = Asked::parse(args)?;
    let folder = folder.join(format!("punctual-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let done = measure(&options, &folder, relaxed);
    fs::remove_dir_all(&folder)?;
    done
}

fn measure(options: &Options, folder: &Path, relaxed: bool) -> Result<()> {
    if !options.works.is_empty() && options.wants("store") {
        store::measure(folder.join("store"), relaxed, options.divisor)?;
    }
    let works: Vec<Work> = works(options.divisor).into_iter().filter(|work| options.wants(work.name)).collect();
    if works.is_empty() {
        return Ok(());
    }
    let ours = Peer { name: "punctual", command: vec![env::current_exe()?.into(), CHILD.into()] };
    let peers: Vec<Peer> = if options.alone { Vec::new() } else { rival("apalis").into_iter().collect() };
    let table = parent::measure(works, (&ours, &peers), options.runs, |command, _| sample(command, folder));
    println!("{table}");
    for apalis in peers {
        println!("apalis says of its file: {}", settings(&apalis, folder)?);
    }
    Ok(())
}

/// One measurement, in a folder that is gone afterwards.
fn sample(mut command: Command, folder: &Path) -> Result<Sample> {
    let own = folder.join("sample");
    fs::create_dir_all(&own)?;
    let output = command.arg(&own).output();
    fs::remove_dir_all(&own)?;
    parent::read(&output.context("starting a child process")?)
}

/// What the rival's SQLite says about its durability.
fn settings(rival: &Peer, folder: &Path) -> Result<String> {
    let output = Command::new(&rival.command[0]).arg("settings").arg(folder).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

struct Asked {
    options: Options,
    folder: PathBuf,
    relaxed: bool,
}

impl Asked {
    fn parse(args: &[String]) -> Result<Self> {
        let (mut folder, mut relaxed) = (env::temp_dir(), false);
        let is_work = |name: &str| name == "store" || works(1).iter().any(|work| work.name.starts_with(name));
        let options = Options::parse(args, is_work, |option, rest| {
            match option {
                "--relaxed" => relaxed = true,
                "--in" => folder = rest.next().context("--in needs a folder")?.into(),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(Self { options, folder, relaxed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_arguments_are_named() {
        for args in [&["drian"][..], &["--runs"], &["--runs", "many"], &["--in"]] {
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let error = Asked::parse(&args).err().expect("they are wrong");
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
            let (read, folder) = understand(&args).unwrap();
            assert_eq!(
                (read.name, read.callers, read.jobs, read.millis),
                (work.name, work.callers, work.jobs, work.millis)
            );
            assert_eq!(folder, Path::new("/tmp/x"));
        }
    }
}
