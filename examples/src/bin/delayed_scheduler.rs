//! `Future schedule(task, delay)`: a result, a cancel with three answers, and a shutdown that reports.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::{Cancel, JobError, Scheduler};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::builder().workers(2).build()?;

    let mut answer = scheduler.after(Duration::from_millis(20)).run(|_| 6 * 7)?;
    assert_eq!(answer.wait()?, 42);
    assert_eq!(answer.cancel(), Cancel::TooLate);

    let mut unwanted = scheduler.after(Duration::from_secs(3600)).run(|_| ())?;
    assert_eq!(unwanted.cancel(), Cancel::Prevented);
    println!("{}", unwanted.wait().expect_err("it never ran"));

    let (began, started) = std::sync::mpsc::channel();
    let mut stubborn = scheduler.now().run(move |ctx| {
        began.send(()).expect("somebody listens");
        while !ctx.is_cancelled() {
            std::hint::spin_loop();
        }
    })?;
    started.recv()?;
    assert_eq!(stubborn.cancel(), Cancel::Requested);
    assert!(matches!(stubborn.wait(), Err(JobError::Cancelled { .. })));
    stubborn.stopped().wait();

    let report = scheduler.shutdown(Duration::from_secs(1));
    println!("{report}");
    assert_eq!(report.still_running, 0);
    Ok(())
}
