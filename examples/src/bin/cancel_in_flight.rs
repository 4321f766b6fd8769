//! Work that nobody waits for any more does not start; work that runs is told; its caller is not kept waiting.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::{JobError, Limits, Scheduler};
use std::sync::mpsc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::new();
    let work = scheduler.tenant("work", Limits::new().running_max(1).backlog_max(100))?;

    // The caller's time-out fails its result at once. The work is told, and holds its permit until it has truly
    // stopped.
    let (stopped, told) = mpsc::channel();
    let mut slow = work.now().deadline(Duration::from_millis(20)).run(move |ctx| {
        while ctx.checkpoint().is_ok() {
            std::hint::spin_loop();
        }
        stopped.send(ctx.remaining())
    })?;
    let mut queued = work.now().deadline(Duration::from_millis(10)).run(|_| unreachable!("nobody waits for it"))?;
    println!("{}", queued.wait().expect_err("it waited too long"));
    assert!(matches!(slow.wait(), Err(JobError::Expired { .. })));
    assert_eq!(told.recv()?, Some(Duration::ZERO));

    // A job that panics frees its permit as well.
    let mut broken = work.now().run(|_| -> u8 { std::panic::resume_unwind(Box::new("out of paper")) })?;
    assert_eq!(broken.wait(), Err(JobError::Panicked("out of paper".to_owned())));
    assert_eq!(work.now().run(|_| "still here")?.wait()?, "still here");
    Ok(())
}
