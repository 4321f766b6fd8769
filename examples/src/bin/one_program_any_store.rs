//! The same program in memory, in a file and on a cluster: only the URL differs. Without one it plays on a file, and on
//! PostgreSQL too if `PUNCTUAL_POSTGRES_URL` names a server.
//!
//! ```text
//! cargo run -p examples --bin one_program_any_store postgres://localhost/app    on two machines, if you like
//! ```
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::Limits;
use punctual_durable::{Job, Jobs, Outcome};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Resize {
    picture: u32,
}

impl Job for Resize {
    const KIND: &'static str = "resize";
    type Output = String;
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(url) = std::env::args().nth(1) {
        return play(&url).await;
    }
    let folder = tempfile::tempdir()?;
    play(&format!("sqlite:{}", folder.path().join("jobs.db").display())).await?;
    match std::env::var("PUNCTUAL_POSTGRES_URL") {
        Ok(server) => play(&format!("{server}?schema=example_{}", std::process::id())).await,
        Err(_) => Ok(()),
    }
}

async fn play(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let jobs = Jobs::open(url).await?;
    jobs.on(|job: Resize, ctx| async move { Ok(format!("picture {} for {}", job.picture, ctx.tenant())) });
    let (big, small) = (jobs.tenant("big"), jobs.tenant("small"));
    big.set_limits(Limits::new().running_max(2)).await?; // Over all nodes together.
    let node = jobs.start().await?;

    let many = big.now().enqueue_many((1..=20).map(|picture| Resize { picture })).await;
    let one = small.after(Duration::from_millis(20)).enqueue(Resize { picture: 21 }).await?;
    let said = one.await?;
    println!("{}: {said}", url.split(':').next().unwrap_or_default());
    assert_eq!(said, "picture 21 for small");
    for (picture, handle) in (1..).zip(many) {
        assert_eq!(handle?.await?, format!("picture {picture} for big"));
    }
    let ended = jobs.totals().await?.ended;
    println!("   {ended:?}");
    node.shutdown(Duration::from_secs(5)).await;
    // At least, for it may not be the first to play there.
    assert!(ended[&Outcome::Succeeded] >= 21);
    Ok(())
}
