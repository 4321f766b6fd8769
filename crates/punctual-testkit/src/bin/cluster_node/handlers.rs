//! What the node runs; each run is witnessed.

use std::time::Duration;

use punctual_durable::{Ctx, Jobs};
use punctual_testkit::cluster::{Hold, Stubborn, Work};
use tokio::sync::watch;

use crate::scribe::Scribe;

/// Handlers that end when they should; those of [`Hold`] while the gate is open.
pub(crate) fn install(jobs: &Jobs, scribe: &Scribe, gate: &watch::Receiver<bool>) {
    let pen = scribe.clone();
    jobs.on(move |work: Work, ctx| {
        let scribe = pen.clone();
        async move {
            let run = scribe.started(&ctx).await;
            tokio::time::sleep(Duration::from_millis(work.millis)).await;
            run.done();
            Ok(who(&ctx))
        }
    });
    let (pen, gate) = (scribe.clone(), gate.clone());
    jobs.on(move |_: Hold, ctx| {
        let (scribe, mut gate) = (pen.clone(), gate.clone());
        async move {
            let run = scribe.started(&ctx).await;
            // The gate outlives the handlers.
            let _ = gate.wait_for(|&is_open| is_open).await;
            run.done();
            Ok(who(&ctx))
        }
    });
    let pen = scribe.clone();
    jobs.on_blocking(move |work: Stubborn, ctx| {
        let run = pen.started_blocking(&ctx);
        rest(Duration::from_millis(work.millis));
        run.done();
        Ok(who(&ctx))
    });
}

fn who(ctx: &Ctx) -> String {
    format!("process {} fence {}", std::process::id(), ctx.fence())
}

#[allow(clippy::disallowed_methods, reason = "work that cannot be stopped takes real time")]
fn rest(time: Duration) {
    std::thread::sleep(time);
}
