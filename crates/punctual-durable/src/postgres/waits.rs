//! Who waits here for the end of a job that may run elsewhere: written down, so that whoever ends it tells.
//!
//! Only what changes is written, in batches: while one is under way the next gathers. Every `LOOK` all of them are
//! asked for together, as a net under notifications that were lost; so a process that waits for a thousand jobs asks
//! one question and not a thousand.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Shared;
use super::connect::Function;
use super::error::Fault;
use super::rows::{Reader, job_id, node_sql, uuid};
use crate::id::JobId;
use crate::signals::{Awaited, Watch};

/// How often to look without having been told.
const LOOK: Duration = Duration::from_secs(1);

/// How many jobs in one call.
const JOBS_MAX: usize = 1_000;

const WAIT_FOR: Function = Function::new("wait_for", "wait for jobs");
const STOP_WAITING: Function = Function::new("stop_waiting", "stop waiting for jobs");
const ENDED: Function = Function::new("ended", "look for the ends of jobs").of_node().repeatable();

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
        let written = write(&shared, &began, &over).await;
        is_written = written.is_ok();
        let looked = if is_time { look(&shared, &watch.all()).await } else { Ok(()) };
        if let Err(fault) = written.and(looked) {
            // The next look makes up for it.
            tracing::debug!(target: "punctual", error = %fault.told, "those who wait may be told late");
        }
        if let Some(tell) = tell {
            let _ = tell.send(());
        }
    }
}

/// Somebody waits for these jobs, and nobody any more for those. On the line, which waits for no disk: it is worth
/// nothing after a crash.
async fn write(shared: &Shared, began: &[JobId], over: &[JobId]) -> Result<(), Fault> {
    let Some(node) = shared.waiting_node() else { return Ok(()) };
    let node = node_sql(node);
    for jobs in began.chunks(JOBS_MAX) {
        let ids = uuids(jobs);
        let call = shared.database.call_text(WAIT_FOR, 2);
        let rows = shared.line.hint(WAIT_FOR.what, &call, &[(&node, Type::INT8), (&ids, Type::UUID_ARRAY)]).await?;
        tell(shared, WAIT_FOR, &rows)?;
    }
    for jobs in over.chunks(JOBS_MAX) {
        let ids = uuids(jobs);
        let call = shared.database.call_text(STOP_WAITING, 2);
        shared.line.hint(STOP_WAITING.what, &call, &[(&node, Type::INT8), (&ids, Type::UUID_ARRAY)]).await?;
    }
    Ok(())
}

/// Asks which of these have ended. Not on the line: that may be the one that is lost.
async fn look(shared: &Shared, jobs: &[JobId]) -> Result<(), Fault> {
    for jobs in jobs.chunks(JOBS_MAX) {
        let (ids, at) = (uuids(jobs), shared.clock.given());
        let rows = shared.database.call(ENDED, "*", &[(&ids, Type::UUID_ARRAY), (&at, Type::INT8)]).await?;
        tell(shared, ENDED, &rows)?;
    }
    Ok(())
}

fn uuids(jobs: &[JobId]) -> Vec<Uuid> {
    jobs.iter().copied().map(uuid).collect()
}

/// The database says that these have ended.
fn tell(shared: &Shared, function: Function, rows: &[Row]) -> Result<(), Fault> {
    for row in rows {
        let ended: Vec<Uuid> = Reader::new(function.what, row).next()?;
        shared.signals.ended(ended.into_iter().map(job_id));
    }
    Ok(())
}
