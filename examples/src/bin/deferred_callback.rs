//! Callbacks from ten threads, each run at its time, the earliest first, with no busy thread (the first write-up's
//! task).
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::Scheduler;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::new();
    let (done, ran) = mpsc::channel();
    // Ten threads register a callback each: the later the thread, the earlier its callback is due.
    let threads: Vec<_> = (1..=10)
        .map(|n| {
            let (scheduler, done) = (scheduler.clone(), done.clone());
            thread::spawn(move || {
                let callback = scheduler.after(Duration::from_millis(220 - 20 * n)).run(move |ctx| {
                    println!("callback {n:2}: {:>6} us late", ctx.lateness().as_micros());
                    done.send(n)
                });
                callback.expect("the scheduler is open").detach();
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no callback runs on the thread that registers it"));
    let order: Vec<u64> = ran.iter().take(10).collect();
    assert_eq!(order, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
    Ok(())
}
