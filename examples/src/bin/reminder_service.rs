//! A reminder service that survives its own death: reminders, a nightly digest and one reminder per user, in one file.
//! Run it with a file name, kill it, run it again: what was promised is kept. Without one it plays on a temporary file.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::{Cron, Missed};
use punctual_durable::{Job, Jobs, OnConflict};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Remind {
    user: u64,
    of: String,
}

impl Job for Remind {
    const KIND: &'static str = "remind";
    type Output = String;
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let file = std::env::args().nth(1).unwrap_or_else(|| folder.path().join("jobs.db").display().to_string());
    let jobs = Jobs::open(&format!("sqlite:{file}")).await?;
    jobs.on(|remind: Remind, ctx| async move {
        println!("user {} ({}): {}, attempt {}", remind.user, ctx.tenant(), remind.of, ctx.attempt());
        Ok(format!("user {} reminded of {}", remind.user, remind.of))
    });
    let digest = Remind { user: 0, of: "the daily digest".into() };
    jobs.cron("digest", Cron::parse("0 7 * * *")?.in_zone("Europe/Paris")?)
        .missed(Missed::Once)
        .enqueue(digest)
        .await?;
    let node = jobs.start().await?;

    let acme = jobs.tenant("acme");
    let soon = acme.after(Duration::from_millis(50)).deadline(Duration::from_secs(60));
    let soon = soon.unique("user-7", OnConflict::Join).enqueue(Remind { user: 7, of: "the meeting".into() }).await?;
    assert_eq!(soon.await?, "user 7 reminded of the meeting");
    node.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
