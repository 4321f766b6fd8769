//! What a handler is given besides its job.

use std::sync::Arc;
use std::time::Duration;

use punctual::{Cancelled, JobError};

use crate::id::JobId;
use crate::jobs::Jobs;
use crate::store::Record;
use crate::time::Timestamp;

/// A run, as its handler sees it: whose job it is, which attempt, and whether anybody still wants it. Cheap to clone.
///
/// # Example
/// ```
/// # use punctual_durable::{Ctx, Failure};
/// async fn render(pages: u32, ctx: Ctx) -> Result<u32, Failure> {
///     for _page in 0..pages {
///         ctx.checkpoint()?; // Cancelled, or out of time: stop here.
///     }
///     Ok(ctx.attempt())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Ctx {
    run: punctual::Ctx,
    record: Arc<Record>,
    jobs: Jobs,
}

impl Ctx {
    pub(crate) fn new(run: punctual::Ctx, record: Arc<Record>, jobs: Jobs) -> Self {
        Self { run, record, jobs }
    }

    /// The job's id: the same at every attempt, so good for making side effects happen once.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// fn key(ctx: &Ctx) -> String {
    ///     format!("order-{}", ctx.id())
    /// }
    /// ```
    #[must_use]
    pub fn id(&self) -> JobId {
        self.record.job.id
    }

    /// Which attempt this is: 1 at first. Runs cut short by a crash or a shutdown do not count.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// fn is_last(ctx: &Ctx) -> bool {
    ///     ctx.attempt() == ctx.record().job.max_attempts
    /// }
    /// ```
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.record.attempt
    }

    /// A number that is higher at every run of this job, whatever became of the runs before: whoever takes orders from
    /// several runs can refuse the stale ones.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// fn header(ctx: &Ctx) -> String {
    ///     format!("fence: {}", ctx.fence())
    /// }
    /// ```
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.record.fence
    }

    /// The tenant it runs for; empty for work that names none.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// fn bucket(ctx: &Ctx) -> String {
    ///     format!("files/{}", ctx.tenant())
    /// }
    /// ```
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.record.job.tenant
    }

    /// The instant it was due.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Ctx, Timestamp};
    /// fn report_of(ctx: &Ctx) -> Timestamp {
    ///     ctx.due() // The tick of a schedule, however late it runs.
    /// }
    /// ```
    #[must_use]
    pub fn due(&self) -> Timestamp {
        self.record.due
    }

    /// How many ticks of its schedule this run stands for besides its own.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// fn hours_to_sum_up(ctx: &Ctx) -> u64 {
    ///     1 + ctx.missed()
    /// }
    /// ```
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.record.job.missed
    }

    /// The trace it belongs to, as a W3C `traceparent`, if whoever enqueued it gave one.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// fn header(ctx: &Ctx) -> Option<(&str, &str)> {
    ///     ctx.trace().map(|trace| ("traceparent", trace))
    /// }
    /// ```
    #[must_use]
    pub fn trace(&self) -> Option<&str> {
        self.record.job.trace.as_deref()
    }

    /// All that the store knew about the job when this run began.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// fn tags(ctx: &Ctx) -> &[String] {
    ///     &ctx.record().job.tags
    /// }
    /// ```
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Whether nobody wants the result any more: cancelled, out of time, or the node is shutting down.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// fn crunch(ctx: &Ctx) {
    ///     while !ctx.is_cancelled() {
    ///         // One more step.
    ///         # break;
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.run.is_cancelled()
    }

    /// Goes on only while somebody wants it: `ctx.checkpoint()?`.
    ///
    /// # Errors
    /// Why nobody does.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Ctx, Failure};
    /// fn step(ctx: &Ctx) -> Result<(), Failure> {
    ///     ctx.checkpoint()?;
    ///     Ok(())
    /// }
    /// ```
    pub fn checkpoint(&self) -> Result<(), JobError> {
        self.run.checkpoint()
    }

    /// Resolves when nobody wants it any more.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// async fn tidy_up_after(ctx: Ctx) {
    ///     ctx.cancelled().await;
    /// }
    /// ```
    pub fn cancelled(&self) -> Cancelled {
        self.run.cancelled()
    }

    /// How long it may still run: until its run time-out or its deadline.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Ctx;
    /// fn is_worth_starting(ctx: &Ctx) -> bool {
    ///     ctx.remaining().is_none_or(|left| left > std::time::Duration::from_secs(1))
    /// }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.run.remaining()
    }

    /// The jobs it is one of: for enqueueing more.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Ctx, Failure, Job};
    /// async fn then<J: Job>(next: J, ctx: Ctx) -> Result<(), Failure> {
    ///     ctx.jobs().tenant(ctx.tenant()).now().enqueue(next).await?;
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }
}
