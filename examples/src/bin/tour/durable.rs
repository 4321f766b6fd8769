//! The scene with a kill: the tour starts itself as another process, kills it, and goes on with its file.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use punctual_durable::{Job, Jobs, Outcome};
use serde::{Deserialize, Serialize};

use crate::scenes::Scene;
use crate::timeline::Timeline;

/// The argument by which the tour knows that it is the process to be killed.
pub(crate) const VICTIM: &str = "--victim";

#[derive(Serialize, Deserialize)]
struct Letter(u32);

impl Job for Letter {
    const KIND: &'static str = "letter";
    type Output = u32;
}

pub(crate) fn a_kill_and_a_restart() -> Scene {
    let timeline = Timeline::open(
        "9. A kill and a restart",
        "Another process enqueues ten durable jobs into one file and works on them. It is killed (SIGKILL) in the middle\nof the fourth. This process opens the file and goes on: nothing is lost, and the one that was cut short runs again.",
        Duration::from_millis(250),
    );
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("jobs.db");
    let victim = Command::new(std::env::current_exe()?).arg(VICTIM).arg(&file).stdout(Stdio::piped()).spawn();
    let mut victim = victim?;
    let output = victim.stdout.take().expect("its output is ours");
    for line in BufReader::new(output).lines() {
        let line = line?;
        timeline.note(&format!("process {}: {line}", victim.id()));
        if line == "letter 4 begins" {
            break;
        }
    }
    victim.kill()?;
    victim.wait()?;
    timeline.note(&format!("process {} is dead", victim.id()));

    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let jobs = Jobs::open(&format!("sqlite:{}", file.display())).await?;
        let lines = timeline.clone();
        jobs.on(move |letter: Letter, ctx| {
            if ctx.fence() > 1 {
                lines.note(&format!(
                    "letter {} again: fence {}, still attempt {}",
                    letter.0,
                    ctx.fence(),
                    ctx.attempt()
                ));
            }
            std::future::ready(Ok(letter.0))
        });
        let node = jobs.node().workers(1).start().await?;
        node.drain().await;
        let ended = jobs.totals().await?.ended;
        timeline.note(&format!("{} of 10 letters done, none lost", ended[&Outcome::Succeeded]));
        assert_eq!(ended[&Outcome::Succeeded], 10);
        Ok(())
    })
}

/// What the other process does: it begins the fourth letter and never ends it.
pub(crate) fn be_killed(file: &Path) -> Scene {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let jobs = Jobs::open(&format!("sqlite:{}", file.display())).await?;
        jobs.on(|letter: Letter, _| async move {
            println!("letter {} begins", letter.0);
            if letter.0 == 4 {
                std::future::pending::<()>().await;
            }
            Ok(letter.0)
        });
        let answers = jobs.now().enqueue_many((1..=10).map(Letter)).await;
        println!("{} letters are on disk", answers.iter().filter(|answer| answer.is_ok()).count());
        let _node = jobs.node().workers(1).start().await?;
        std::future::pending().await
    })
}
