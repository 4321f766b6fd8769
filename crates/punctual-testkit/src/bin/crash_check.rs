//! The judge of what crashed processes left: `crash_check FOLDER`. Reads the client's log, the ledger and the file, and
//! nothing else.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use punctual_testkit::crash::check::check;

fn main() -> ExitCode {
    let folder = std::env::args().nth(1).expect("crash_check FOLDER");
    let (text, code) = match check(Path::new(&folder)) {
        Ok(report) => (format!("{report:?}"), ExitCode::SUCCESS),
        Err(broken) => (broken.join("\n"), ExitCode::FAILURE),
    };
    writeln!(std::io::stdout(), "{text}").expect("somebody reads this");
    code
}
