//! A process that crashes: `crash_child FOLDER ROLE SEED [FAULT]`. For `tests/crash.rs`, and by hand to replay one of
//! its failures.

use std::io::Write;
use std::path::Path;

use punctual_testkit::crash::child::{Role, run};
use punctual_testkit::crash::{Fault, Seen, install, seen};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, role, seed, fault) = match arguments.as_slice() {
        [folder, role, seed] => (folder, role, seed, None),
        [folder, role, seed, fault] => (folder, role, seed, Some(fault.parse::<Fault>().expect("a fault"))),
        _ => panic!("crash_child FOLDER finish|poison|STEPS SEED [FAULT]"),
    };
    let role = match role.as_str() {
        "finish" => Role::Finish,
        "poison" => Role::Poison,
        steps => Role::Work(steps.parse().expect("a number of steps")),
    };
    if let Some(fault) = fault {
        install(fault);
    }
    run(Path::new(folder), role, seed.parse().expect("a number"));
    if fault.is_some() {
        let Seen { calls, checkpoints, commits } = seen();
        // Whoever started it may have stopped listening.
        let _ = writeln!(std::io::stdout(), "seen {calls} {checkpoints} {commits:?}");
    }
}
