//! What becomes of failures: tried again with backoff, given up, kept as dead letters, and redriven once the cause is
//! gone.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::VirtualClock;
use punctual_durable::{Failure, Job, Jobs, Query, Terms};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Charge {
    cents: u32,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
    type Output = u32;
    const TERMS: Terms = Terms::new().max_attempts(4);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = VirtualClock::new(); // So that a day of backoff takes no time. Leave it out for real work.
    let jobs = Jobs::builder().clock(&clock).open("memory:").await?;
    let open = Arc::new(AtomicBool::new(false));
    let bank = Arc::clone(&open);
    jobs.on(move |charge: Charge, ctx| {
        let is_open = bank.load(Ordering::SeqCst);
        async move {
            match charge.cents {
                0 => Err(Failure::give_up("nothing to charge")), // Trying again would not help.
                _ if !is_open => Err(Failure::retry(format!("the bank is closed, attempt {}", ctx.attempt()))),
                cents => Ok(cents),
            }
        }
    });
    let node = jobs.start().await?;
    let answers = jobs.now().enqueue_many([Charge { cents: 500 }, Charge { cents: 0 }]).await;
    clock.advance(Duration::from_secs(24 * 3600))?;

    let dead = jobs.dead_letters(Query::default()).await?.jobs;
    for letter in &dead {
        println!("dead after {} attempts: {}", letter.attempt, letter.last_error.as_deref().unwrap_or_default());
    }
    assert_eq!(dead.len(), 2);
    open.store(true, Ordering::SeqCst);
    jobs.redrive(dead[0].job.id).await?;
    let charged = answers.into_iter().next().expect("two were enqueued")?.await?;
    println!("redriven: {charged} cents charged; {} attempts were retried", node.snapshot().retried);
    assert_eq!((charged, node.snapshot().retried), (500, 3));
    Ok(())
}
