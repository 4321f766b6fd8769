//! Who waits here for the end of a job that may run elsewhere: written down, so that whoever ends it tells.
//!
//! Only what changes is written, in batches: while one is under way the next gathers. Every `LOOK` all of them are asked for together, as a
//! net under notifications that were lost; so a process that waits for a thousand jobs asks one question and not a thousand.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Shared;
use super::error::Fault;
use super::rows::{Parameter, Reader, job_id, node_sql, uuid};
use crate::id::JobId;
use crate::signals::{Awaited, Watch};

/// How often to look without having been told.
const LOOK: Duration = Duration::from_secs(1);

/// How many jobs in one call.
const JOBS_MAX: usize = 1_000;

const WAITING: &str = "wait for jobs";

/// Asks to hear when everything has been written down.
pub(super) type Settled = mpsc::UnboundedReceiver<oneshot::Sender<()>>;

/// Keeps the database informed, for as long as the store is open.
pub(super) async fn wait(shared: Arc<Shared>, watch: Watch, mut settled: Settled) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_written = true;
    loop {
        let (mut tell, mut is_time) = (None, false);
        tokio::select! {
            () = poll_fn(|cx| watch.poll_changed(cx)) => {}
            asked = settled.recv() => tell = asked,
            () = shared.waits_anew.notified() => is_written = false,
            _ = tick.tick() => is_time = true,
        }
        let Awaited { began, over } = watch.changed();
        let began = if is_written { began } else { watch.all() };
        is_written = told(&write(&shared, &began, &over).await);
        if is_time {
            told(&look(&shared, &watch.all()).await);
        }
        if let Some(tell) = tell {
            let _ = tell.send(());
        }
    }
}

fn told(done: &Result<(), Fault>) -> bool {
    if let Err(fault) = done {
        // The next look makes up for it.
        tracing::debug!(target: "punctual", error = %fault.told, "those who wait may be told late");
    }
    done.is_ok()
}

/// Somebody waits for these jobs, and nobody any more for those. On the line, which waits for no disk: it is worth nothing after a crash.
async fn write(shared: &Shared, began: &[JobId], over: &[JobId]) -> Result<(), Fault> {
    let Some(node) = shared.waiting_node() else { return Ok(()) };
    let node = node_sql(node);
    for (function, jobs) in [("wait_for", began), ("stop_waiting", over)] {
        for jobs in jobs.chunks(JOBS_MAX) {
            let ids = uuids(jobs);
            let parameters: [Parameter<'_>; 2] = [(&node, Type::INT8), (&ids, Type::UUID_ARRAY)];
            let rows = shared.line.say(WAITING, &shared.database.sql("*", function, 2), &parameters).await?;
            if function == "wait_for" {
                tell(shared, &rows)?;
            }
        }
    }
    Ok(())
}

/// Asks which of these have ended. Not on the line: that may be the one that is lost.
async fn look(shared: &Shared, jobs: &[JobId]) -> Result<(), Fault> {
    for jobs in jobs.chunks(JOBS_MAX) {
        let (ids, at) = (uuids(jobs), shared.clock.given());
        let parameters: [Parameter<'_>; 2] = [(&ids, Type::UUID_ARRAY), (&at, Type::INT8)];
        tell(shared, &shared.database.call_first(WAITING, "*", "ended", &parameters).await?)?;
    }
    Ok(())
}

fn uuids(jobs: &[JobId]) -> Vec<Uuid> {
    jobs.iter().copied().map(uuid).collect()
}

/// The database says that these have ended.
fn tell(shared: &Shared, rows: &[Row]) -> Result<(), Fault> {
    for row in rows {
        let ended: Vec<Uuid> = Reader::new(WAITING, row).next()?;
        shared.signals.ended(ended.into_iter().map(job_id));
    }
    Ok(())
}
