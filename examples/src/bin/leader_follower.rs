//! Four threads wait for one queue: one sleeps to the earliest entry, the others until they are needed.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::DelayQueue;
use std::thread;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let queue = DelayQueue::new();
    let consumers: Vec<_> = (1..=4)
        .map(|consumer| {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut taken = Vec::new();
                while let Some(entry) = queue.take() {
                    println!("consumer {consumer} took {entry}");
                    taken.push(entry);
                }
                taken
            })
        })
        .collect();
    for (entry, delay) in [("third", 30), ("first", 10), ("second", 20)] {
        queue.push(entry, Duration::from_millis(delay))?;
    }
    let never = queue.push("cancelled", Duration::from_secs(3600))?;
    assert_eq!(queue.cancel(never), Some("cancelled"));
    queue.close(); // What is left is taken when it is due; then `take` returns `None`.
    let taken: Vec<_> = consumers.into_iter().flat_map(|consumer| consumer.join().expect("no panic")).collect();
    assert_eq!(taken.len(), 3);
    Ok(())
}
