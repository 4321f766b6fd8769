//! One run of one job: from the claim to its end, on the threads that run handlers. Whatever happens to it, its end is
//! reported once.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use punctual::JobHandle;
use tracing::Instrument;

use crate::ctx::Ctx;
use crate::handlers::{Handler, Ran};
use crate::hands::Hands;
use crate::id::JobId;
use crate::jobs::Jobs;
use crate::node::Shared;
use crate::retry::Failure;
use crate::store::{Moment, Record, Verdict};
use crate::time::Timestamp;

/// A run, as its node sees it.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) record: Arc<Record>,
    /// It cannot be stopped but by itself.
    pub(crate) is_blocking: bool,
    /// Why it was told to stop, if it was.
    pub(crate) stop: Option<Stop>,
    handle: Arc<JobHandle<()>>,
}

/// Why a run is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Its outcome was settled elsewhere.
    Settled,
    /// The node shuts down.
    Shutdown,
    /// The lease is gone, and with it the right to say anything about the job.
    LeaseLost,
}

/// The end of a run.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) id: JobId,
    pub(crate) fence: u64,
    /// What the handler gave; nothing if it was dropped before it gave anything.
    pub(crate) ran: Option<Ran>,
    /// What it had reached then, unless it was told to stop.
    pub(crate) limit: Limit,
}

/// What ends a run that gives nothing by itself: whichever is the nearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Deadline,
    RunTimeout,
}

impl Run {
    /// Starts the handler. `None` if that is impossible at this moment; then its end has been reported already.
    pub(crate) fn start(
        jobs: &Jobs,
        hands: &Hands,
        shared: &Arc<Shared>,
        record: Record,
        code: Handler,
    ) -> Option<Self> {
        let record = Arc::new(record);
        let report = Report {
            shared: shared.clone(),
            id: record.job.id,
            fence: record.fence,
            ran: None,
            limit: Limit::Deadline,
        };
        // Not before its instant, though it was claimed a moment before that.
        let wait = record.due.since(jobs.store().at_least()).min(jobs.store().foresight());
        let hands = hands.of(&code);
        let mut plan = if wait.is_zero() { hands.now() } else { hands.after(wait) }.name(record.job.kind.clone());
        if let Some(timeout) = record.job.run_timeout {
            plan = plan.run_timeout(timeout);
        }
        if let Some(deadline) = record.deadline {
            plan = plan.deadline(deadline.since(jobs.store().now()));
        }
        let span = tracing::info_span!(
            target: "punctual", "job", id = %record.job.id, kind = record.job.kind, tenant = record.job.tenant,
            attempt = record.attempt, fence = record.fence, traceparent = record.job.trace,
        );
        let (jobs, of) = (jobs.clone(), record.clone());
        let (is_blocking, handle) = match code {
            Handler::Async(code) => {
                let run = move |ctx| {
                    async move {
                        let mut report = report;
                        report.started(&jobs, &of);
                        let ctx = Ctx::new(ctx, of, jobs);
                        let made = catch_unwind(AssertUnwindSafe(|| code(ctx)));
                        report.ran = Some(match made {
                            Ok(run) => Caught(run).await,
                            Err(panic) => Err(panicked(&*panic)),
                        });
                    }
                    .instrument(span)
                };
                (false, plan.spawn(run).map_err(drop))
            }
            Handler::Blocking(code) => {
                let run = move |ctx: punctual::Ctx| {
                    let mut report = report;
                    report.started(&jobs, &of);
                    let ran =
                        span.in_scope(|| catch_unwind(AssertUnwindSafe(|| code(Ctx::new(ctx.clone(), of, jobs)))));
                    // A result that comes too late is none.
                    if ctx.checkpoint().is_ok() {
                        report.ran = Some(ran.unwrap_or_else(|panic| Err(panicked(&*panic))));
                    }
                };
                (true, plan.run(run).map_err(drop))
            }
        };
        Some(Self { record, is_blocking, stop: None, handle: Arc::new(handle.ok()?) })
    }

    /// What stops it.
    pub(crate) const fn handle(&self) -> &Arc<JobHandle<()>> {
        &self.handle
    }

    /// Tells it to stop: a future is dropped, a blocking handler sees it when it looks.
    pub(crate) fn stop(&mut self, why: Stop) {
        if self.stop.is_none() || why == Stop::LeaseLost {
            self.stop = Some(why);
        }
        self.handle.cancel();
    }

    /// Whether it was told to stop, and does not. A future is dropped, by and by.
    pub(crate) fn goes_on(&self) -> bool {
        self.is_blocking && !self.handle.stopped().wait_timeout(Duration::ZERO)
    }

    /// What to tell the store about its end; nothing, if it has no right to.
    pub(crate) fn verdict(&self, done: Done, jobs: &Jobs) -> Option<Verdict> {
        let job = &self.record.job;
        let judge = |failure: Failure| {
            failure.verdict(self.record.attempt, job.max_attempts, &job.backoff, jobs.ids().fraction())
        };
        match (done.ran, self.stop) {
            (_, Some(Stop::LeaseLost)) => None,
            (Some(Ok(result)), _) => Some(Verdict::Succeeded(result)),
            (_, Some(Stop::Settled)) => Some(Verdict::Stopped),
            (_, Some(Stop::Shutdown)) => Some(Verdict::Release),
            (Some(Err(failure)), None) => Some(judge(failure)),
            (None, None) => Some(match done.limit {
                Limit::Deadline => self.record.deadline.map_or(Verdict::Stopped, at_deadline),
                Limit::RunTimeout => {
                    judge(Failure::retry(format!("ran longer than {:?}", job.run_timeout.unwrap_or_default())))
                }
            }),
        }
    }

    /// Says what went wrong, so that it is seen also where nobody looks at jobs.
    pub(crate) fn log(&self, verdict: &Verdict) {
        let Record { job, attempt, .. } = &*self.record;
        match verdict {
            Verdict::Failed(error) => tracing::warn!(
                target: "punctual", id = %job.id, kind = job.kind, tenant = job.tenant, attempt, error, "a job has failed",
            ),
            Verdict::Retry { error, .. } => tracing::info!(
                target: "punctual", id = %job.id, kind = job.kind, tenant = job.tenant, attempt, error,
                "an attempt has failed, and is made again",
            ),
            _ => {}
        }
    }
}

/// What to tell the store of a job whose deadline has come here. By the store's clock, which decides, it may be a
/// moment until then: so the job waits for that instant, and does not outlive it. Given back it would begin a second
/// time for that moment, and it has not failed.
pub(crate) fn at_deadline(deadline: Timestamp) -> Verdict {
    Verdict::Snooze(Moment::At(deadline))
}

/// Tells of a run's end when it is dropped, so that no way of ending is forgotten.
struct Report {
    shared: Arc<Shared>,
    id: JobId,
    fence: u64,
    ran: Option<Ran>,
    /// Until it has begun, it cannot have run for too long.
    limit: Limit,
}

impl Report {
    fn started(&mut self, jobs: &Jobs, record: &Record) {
        let now = jobs.store().now();
        self.shared.started(now.since(record.due));
        let left = record.deadline.map(|deadline| deadline.since(now));
        if record.job.run_timeout.is_some_and(|timeout| left.is_none_or(|left| timeout < left)) {
            self.limit = Limit::RunTimeout;
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.shared.done(Done { id: self.id, fence: self.fence, ran: self.ran.take(), limit: self.limit });
    }
}

/// A handler's future whose panics are failures of the attempt.
struct Caught(Pin<Box<dyn Future<Output = Ran> + Send>>);

impl Future for Caught {
    type Output = Ran;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ran> {
        catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)))
            .unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Failure::retry(format!("panicked: {}", said.unwrap_or("(no message)")))
}
