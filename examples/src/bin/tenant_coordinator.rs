//! A tenant's work: so many at once, so many waiting, the rest refused at the door; gone when its caller goes.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::{Limits, Reason, Scheduler};
use std::sync::mpsc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::new();
    let acme = scheduler.tenant("acme", Limits::new().running_max(1).backlog_max(50))?;
    let (release, blocked) = mpsc::channel::<()>();
    let mut running = acme.now().run(move |_| blocked.recv().is_ok())?;

    // Cancelling queued work frees its place at once: 51 times over changes nothing.
    for _ in 0..51 {
        drop(acme.now().run(|_| ())?);
    }
    let waiting: Vec<_> = (0..50).map(|n| acme.now().run(move |_| n)).collect::<Result<_, _>>()?;
    let rejected = acme.now().run(|_| 50).expect_err("every place is taken");
    println!("{rejected}");
    assert!(matches!(rejected.reason(), Reason::BacklogFull { count: 51, max: 51, .. }));

    release.send(())?;
    assert!(running.wait()?);
    for (mut job, n) in waiting.into_iter().zip(0..) {
        assert_eq!(job.wait()?, n);
    }
    println!(
        "{} ran, {} were cancelled, {} was refused",
        51,
        acme.snapshot().finished.cancelled,
        acme.snapshot().rejected
    );
    Ok(())
}
