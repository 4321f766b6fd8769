//! The front door: opens a store, enqueues, finds, and starts the node that works.

mod builder;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use punctual::{Clock, Cron, Scheduler};
use serde::de::DeserializeOwned;

use crate::ctx::Ctx;
use crate::error::{OpenError, Problem, StoreError};
use crate::handle::Handle;
use crate::handlers::{Handler, Handlers};
use crate::heart::{Body, Heart};
use crate::id::{Ids, JobId, NodeId};
use crate::interest::{Interest, Interests, Joining};
use crate::job::Job;
use crate::node::{Node, NodeBuilder, StartError};
use crate::plan::{Plan, When};
use crate::retry::Failure;
use crate::schedule::SchedulePlan;
use crate::state::Outcome;
use crate::store::{
    CancelCause, Cancelled, Edit, Edited, Explanation, NodeRecord, Page, Query, Record, Redriven, Retention, Schedule,
    Store, TenantRecord, Totals,
};
use crate::tenant::Tenant;

pub use builder::JobsBuilder;

/// Durable jobs: enqueue them, say what runs them, start a node. Clones share it.
///
/// # Example
/// ```
/// use punctual_durable::{Job, Jobs};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// #[derive(Serialize, Deserialize)]
/// struct Remind {
///     user: u64,
/// }
/// impl Job for Remind {
///     const KIND: &'static str = "remind";
///     type Output = String;
/// }
///
/// # pollster::block_on(async {
/// let jobs = Jobs::open("memory:").await?; // Or "sqlite:jobs.db".
/// jobs.on(|job: Remind, _ctx| async move { Ok(format!("user {} reminded", job.user)) });
/// let node = jobs.start().await?;
/// let handle = jobs.tenant("acme").after(Duration::from_millis(5)).enqueue(Remind { user: 7 }).await?;
/// assert_eq!(handle.await?, "user 7 reminded");
/// node.shutdown(Duration::from_secs(10)).await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Jobs(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    clock: Clock,
    ids: Arc<Ids>,
    heart: Arc<Heart>,
    handlers: Handlers,
    interests: Arc<Interests>,
    payload_max: usize,
    retention: Retention,
    tracer: Option<Tracer>,
    /// Runs what is ours: the node's loop, alarms. Never a handler, so it is never busy for long.
    engine: Scheduler,
    /// Whether a node works for these jobs at this moment.
    started: Mutex<bool>,
}

/// Says which trace the caller is in.
type Tracer = Arc<dyn Fn() -> Option<String> + Send + Sync>;

impl Jobs {
    /// Opens the store that a URL names: `memory:`, `sqlite:FILE`, or `postgres://HOST/DATABASE` if the feature
    /// `postgres` is on.
    ///
    /// # Errors
    /// If the URL names none, or the store cannot be opened.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// let jobs = punctual_durable::Jobs::open("memory:").await?;
    /// # Ok::<(), punctual_durable::OpenError>(())
    /// # }).unwrap();
    /// ```
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        Self::builder().open(url).await
    }

    /// To open a store with another clock or other settings.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// let clock = punctual::VirtualClock::new();
    /// let jobs = punctual_durable::Jobs::builder().clock(&clock).payload_max(1_000_000).open("memory:").await?;
    /// # Ok::<(), punctual_durable::OpenError>(())
    /// # }).unwrap();
    /// ```
    pub fn builder() -> JobsBuilder {
        JobsBuilder::default()
    }

    /// Says what runs the jobs of a kind: a function that gives a future. It must be able to run twice, since a crash
    /// between its end and the record of it means that it runs again.
    ///
    /// # Panics
    /// If the kind has a handler already.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Failure, Job, Jobs};
    /// fn install<J: Job<Output = ()>>(jobs: &Jobs) {
    ///     jobs.on(|_job: J, ctx| async move {
    ///         if ctx.attempt() == 1 {
    ///             return Err(Failure::retry("try me again"));
    ///         }
    ///         Ok(())
    ///     });
    /// }
    /// ```
    /// What handlers share, such as a pool of connections, each run gets a clone of:
    /// ```
    /// # use punctual_durable::{Job, Jobs};
    /// # use std::sync::Arc;
    /// # struct Pool;
    /// fn install<J: Job<Output = ()>>(jobs: &Jobs, pool: Arc<Pool>) {
    ///     jobs.on(move |_job: J, _ctx| {
    ///         let pool = pool.clone();
    ///         async move {
    ///             drop(pool);
    ///             Ok(())
    ///         }
    ///     });
    /// }
    /// ```
    pub fn on<J, F, Fut>(&self, handler: F)
    where
        J: Job,
        F: Fn(J, Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<J::Output, Failure>> + Send + 'static,
    {
        self.add(J::KIND, Handler::future(handler));
    }

    /// Says what runs the jobs of a kind: a function that blocks its thread. It is stopped by asking only: let it look
    /// at its `ctx`.
    ///
    /// # Panics
    /// If the kind has a handler already.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Job, Jobs};
    /// fn install<J: Job<Output = u64>>(jobs: &Jobs) {
    ///     jobs.on_blocking(|_job: J, ctx| {
    ///         let mut sum = 0;
    ///         for step in 0..1_000 {
    ///             ctx.checkpoint()?;
    ///             sum += step;
    ///         }
    ///         Ok(sum)
    ///     });
    /// }
    /// ```
    pub fn on_blocking<J, F>(&self, handler: F)
    where
        J: Job,
        F: Fn(J, Ctx) -> Result<J::Output, Failure> + Send + Sync + 'static,
    {
        self.add(J::KIND, Handler::blocking(handler));
    }

    fn add(&self, kind: &'static str, handler: Handler) {
        self.0.handlers.add(kind, handler);
        // A node that is at work already takes the kind up.
        self.0.store.signals().work();
    }

    /// Starts to work: this process runs jobs of the kinds it has handlers for. Without it, it only enqueues and waits.
    ///
    /// # Errors
    /// If a node is at work already, or the store cannot be asked.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// let jobs = punctual_durable::Jobs::open("memory:").await?;
    /// let node = jobs.start().await?;
    /// node.shutdown(std::time::Duration::ZERO).await;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn start(&self) -> Result<Node, StartError> {
        self.node().start().await
    }

    /// To start a node with other settings.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// let jobs = punctual_durable::Jobs::open("memory:").await?;
    /// let node = jobs.node().workers(8).concurrency("remind", 2).start().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn node(&self) -> NodeBuilder {
        NodeBuilder::new(self.clone())
    }

    /// One of the parties that jobs are worked for.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// # let jobs = punctual_durable::Jobs::open("memory:").await.unwrap();
    /// assert_eq!(jobs.tenant("acme").name(), "acme");
    /// # });
    /// ```
    pub fn tenant(&self, name: impl Into<String>) -> Tenant {
        Tenant::new(self.clone(), name.into())
    }

    /// A job due at once, of the tenant without a name.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{EnqueueError, Job, Jobs};
    /// async fn submit<J: Job>(jobs: &Jobs, job: J) -> Result<(), EnqueueError<J>> {
    ///     let _handle = jobs.now().enqueue(job).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn now(&self) -> Plan {
        self.tenant("").now()
    }

    /// A job due after a delay, of the tenant without a name.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, Plan};
    /// # use std::time::Duration;
    /// fn soon(jobs: &Jobs) -> Plan {
    ///     jobs.after(Duration::from_secs(60))
    /// }
    /// ```
    pub fn after(&self, delay: Duration) -> Plan {
        self.tenant("").after(delay)
    }

    /// A job due at a date, or after a delay, of the tenant without a name.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, Plan};
    /// fn then(jobs: &Jobs, date: std::time::SystemTime) -> Plan {
    ///     jobs.at(date)
    /// }
    /// ```
    pub fn at(&self, when: impl Into<When>) -> Plan {
        self.tenant("").at(when)
    }

    /// A schedule: a job every `period`. The name is what it is known by at every restart and on every node.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, SchedulePlan};
    /// # use std::time::Duration;
    /// fn hourly(jobs: &Jobs) -> SchedulePlan {
    ///     jobs.every("sweep", Duration::from_secs(3600))
    /// }
    /// ```
    pub fn every(&self, name: &str, period: Duration) -> SchedulePlan {
        self.tenant("").every(name, period)
    }

    /// A schedule: a job at each tick of a cron expression.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, SchedulePlan};
    /// # use punctual::Cron;
    /// fn nightly(jobs: &Jobs) -> SchedulePlan {
    ///     jobs.cron("report", Cron::parse("0 3 * * *").unwrap())
    /// }
    /// ```
    pub fn cron(&self, name: &str, cron: Cron) -> SchedulePlan {
        self.tenant("").cron(name, cron)
    }

    /// A handle to a job by its id, from whatever process enqueued it.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{DurableError, JobId, Jobs};
    /// async fn result_of(jobs: &Jobs, id: JobId) -> Result<String, DurableError> {
    ///     jobs.handle(id).await
    /// }
    /// ```
    pub fn handle<T: DeserializeOwned>(&self, id: JobId) -> Handle<T> {
        Handle::new(self.clone(), id, None)
    }

    /// All that the store knows about a job.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{JobId, Jobs, StoreError};
    /// async fn exists(jobs: &Jobs, id: JobId) -> Result<bool, StoreError> {
    ///     Ok(jobs.get(id).await?.is_some())
    /// }
    /// ```
    pub async fn get(&self, id: JobId) -> Result<Option<Record>, StoreError> {
        self.0.store.get(id).await
    }

    /// Jobs, live and ended, page by page.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, Query, StoreError};
    /// async fn mails_of_acme(jobs: &Jobs) -> Result<usize, StoreError> {
    ///     let query = Query { tenant: Some("acme".into()), tag: Some("mail".into()), ..Query::default() };
    ///     Ok(jobs.find(query).await?.jobs.len())
    /// }
    /// ```
    pub async fn find(&self, query: Query) -> Result<Page, StoreError> {
        self.0.store.query(query).await
    }

    /// The dead letters: jobs that failed for good, kept to be looked at, [redriven](Self::redrive) or
    /// [purged](Self::purge).
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, Query, StoreError};
    /// async fn redrive_all(jobs: &Jobs) -> Result<(), StoreError> {
    ///     for letter in jobs.dead_letters(Query::default()).await?.jobs {
    ///         jobs.redrive(letter.job.id).await?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn dead_letters(&self, query: Query) -> Result<Page, StoreError> {
        self.find(Query { outcome: Some(Outcome::Failed), ..query }).await
    }

    /// Lets an ended job run again, as new.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{JobId, Jobs, Redriven, StoreError};
    /// async fn again(jobs: &Jobs, id: JobId) -> Result<bool, StoreError> {
    ///     Ok(jobs.redrive(id).await? == Redriven::Done)
    /// }
    /// ```
    pub async fn redrive(&self, id: JobId) -> Result<Redriven, StoreError> {
        self.0.store.redrive(id).await
    }

    /// Forgets jobs that have ended; answers how many.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{JobId, Jobs, StoreError};
    /// async fn forget(jobs: &Jobs, id: JobId) -> Result<bool, StoreError> {
    ///     Ok(jobs.purge(vec![id]).await? == 1)
    /// }
    /// ```
    pub async fn purge(&self, ids: Vec<JobId>) -> Result<usize, StoreError> {
        self.0.store.purge(ids).await
    }

    /// Stops wanting a job, wherever it is.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Cancelled, JobId, Jobs, StoreError};
    /// async fn stop(jobs: &Jobs, id: JobId) -> Result<bool, StoreError> {
    ///     Ok(matches!(jobs.cancel(id).await?, Cancelled::Now(_)))
    /// }
    /// ```
    pub async fn cancel(&self, id: JobId) -> Result<Cancelled, StoreError> {
        self.0.store.cancel(id, CancelCause::Caller).await
    }

    /// Changes a job that waits.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Edit, Edited, JobId, Jobs, StoreError};
    /// async fn first(jobs: &Jobs, id: JobId) -> Result<bool, StoreError> {
    ///     let edit = Edit { priority: Some(-100), ..Edit::default() };
    ///     Ok(jobs.edit(id, edit).await? == Edited::Done)
    /// }
    /// ```
    pub async fn edit(&self, id: JobId, edit: Edit) -> Result<Edited, StoreError> {
        self.0.store.edit(id, edit).await
    }

    /// Moves the due instant of a job that waits.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Edited, JobId, Jobs, StoreError};
    /// # use std::time::Duration;
    /// async fn postpone(jobs: &Jobs, id: JobId) -> Result<Edited, StoreError> {
    ///     jobs.reschedule(id, Duration::from_secs(3600)).await
    /// }
    /// ```
    pub async fn reschedule(&self, id: JobId, when: impl Into<When>) -> Result<Edited, StoreError> {
        self.edit(id, Edit { due: Some(when.into().0), ..Edit::default() }).await
    }

    /// Why a job does not run at this moment: which gate holds it back, and since when.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Gate, JobId, Jobs, StoreError};
    /// async fn is_waiting_for_a_worker(jobs: &Jobs, id: JobId) -> Result<bool, StoreError> {
    ///     Ok(jobs.explain(id).await?.is_some_and(|why| why.gate == Gate::NoWorker))
    /// }
    /// ```
    pub async fn explain(&self, id: JobId) -> Result<Option<Explanation>, StoreError> {
        self.0.store.explain(id).await
    }

    /// How many jobs there are, and how they ended, of all tenants together.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, StoreError};
    /// async fn waiting(jobs: &Jobs) -> Result<usize, StoreError> {
    ///     let totals = jobs.totals().await?;
    ///     Ok(totals.scheduled + totals.ready)
    /// }
    /// ```
    pub async fn totals(&self) -> Result<Totals, StoreError> {
        self.0.store.totals().await
    }

    /// The tenants that have a policy or jobs, by name, after the given one.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, StoreError};
    /// async fn names(jobs: &Jobs) -> Result<Vec<String>, StoreError> {
    ///     Ok(jobs.tenants(None, 100).await?.into_iter().map(|tenant| tenant.name).collect())
    /// }
    /// ```
    pub async fn tenants(&self, after: Option<String>, max: usize) -> Result<Vec<TenantRecord>, StoreError> {
        self.0.store.tenants(after, max).await
    }

    /// The schedules, by name, after the given one.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, StoreError};
    /// async fn how_many(jobs: &Jobs) -> Result<usize, StoreError> {
    ///     Ok(jobs.schedules(None, 1_000).await?.len())
    /// }
    /// ```
    pub async fn schedules(&self, after: Option<String>, max: usize) -> Result<Vec<Schedule>, StoreError> {
        self.0.store.schedules(after, max).await
    }

    /// Takes a schedule away; false if there is none of that name. Jobs it made go on.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, StoreError};
    /// async fn no_more_reports(jobs: &Jobs) -> Result<bool, StoreError> {
    ///     jobs.remove_schedule("report").await
    /// }
    /// ```
    pub async fn remove_schedule(&self, name: &str) -> Result<bool, StoreError> {
        self.0.store.remove_schedule(name.to_owned()).await
    }

    /// Pauses or resumes a schedule; false if there is none of that name.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, StoreError};
    /// async fn holiday(jobs: &Jobs) -> Result<bool, StoreError> {
    ///     jobs.pause_schedule("report", true).await
    /// }
    /// ```
    pub async fn pause_schedule(&self, name: &str, paused: bool) -> Result<bool, StoreError> {
        self.0.store.pause_schedule(name.to_owned(), paused).await
    }

    /// The nodes that are alive.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Jobs, StoreError};
    /// async fn workers(jobs: &Jobs) -> Result<usize, StoreError> {
    ///     Ok(jobs.nodes().await?.iter().map(|node| node.beat.workers).sum())
    /// }
    /// ```
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        self.0.store.nodes().await
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(crate) fn engine(&self) -> &Scheduler {
        &self.0.engine
    }

    pub(crate) fn ids(&self) -> &Ids {
        &self.0.ids
    }

    pub(crate) fn handlers(&self) -> &Handlers {
        &self.0.handlers
    }

    pub(crate) fn node_id(&self) -> NodeId {
        self.0.heart.node()
    }

    /// A job as it is written down, if that is possible and not too large.
    pub(crate) fn payload_of<J: Job>(&self, job: &J) -> Result<String, Problem> {
        let payload =
            serde_json::to_string(job).map_err(|error| Problem::Payload { kind: J::KIND, error: error.to_string() })?;
        let (bytes, max) = (payload.len(), self.0.payload_max);
        if bytes > max { Err(Problem::TooLarge { kind: J::KIND, bytes, max }) } else { Ok(payload) }
    }

    pub(crate) fn retention(&self) -> Retention {
        self.0.retention
    }

    pub(crate) fn new_id(&self) -> JobId {
        self.0.ids.job(self.0.store.now())
    }

    pub(crate) fn current_trace(&self) -> Option<String> {
        self.0.tracer.as_ref().and_then(|tracer| tracer())
    }

    pub(crate) fn interest(&self, job: JobId) -> Interest {
        Interest::new(&self.0.interests, job)
    }

    pub(crate) fn joining(&self) -> Joining {
        Joining::new(&self.0.interests)
    }

    pub(crate) fn heart(&self) -> &Heart {
        &self.0.heart
    }

    /// Where leases end without a sign of life, gives one now and then.
    fn keep_alive(&self, joined: Instant) -> Result<(), StoreError> {
        let Some(lease) = self.0.store.lease() else { return Ok(()) };
        let body = Body {
            heart: self.0.heart.clone(),
            store: self.0.store.clone(),
            engine: self.0.engine.clone(),
            clock: self.0.clock.clone(),
            ids: self.0.ids.clone(),
            interests: self.0.interests.clone(),
        };
        match self.0.engine.now().name("heartbeat").spawn(move |_| body.live(lease, joined)) {
            Ok(heartbeat) => heartbeat.detach(),
            Err(rejected) => return Err(StoreError::permanent(rejected.to_string())),
        }
        Ok(())
    }

    pub(crate) fn started(&self) -> &Mutex<bool> {
        &self.0.started
    }

    /// Resolves after the store's poll period; never, if its signals cannot be lost or the store itself looks for those
    /// who wait.
    pub(crate) async fn poll_net(&self) {
        if self.0.store.signals().is_watched() {
            return std::future::pending().await;
        }
        let Some(period) = self.0.store.poll() else { return std::future::pending().await };
        match self.0.engine.after(period).run(|_| ()) {
            Ok(alarm) => drop(alarm.await),
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody here waits for a result any more; the call begins at once.
        drop(self.store.leave(self.heart.node()));
        // The heartbeat holds the engine it beats in.
        self.engine.shutdown(Duration::ZERO);
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("store", &self.0.store)
            .field("node", &self.0.heart.node())
            .field("kinds", &self.0.handlers.kinds())
            .field("started", &*self.0.started.lock().unwrap_or_else(PoisonError::into_inner))
            .finish_non_exhaustive()
    }
}

/// If this is called within a tokio runtime, the scheduler's threads are too, so that handlers can use its sockets and
/// timers.
pub(crate) fn enter_runtime(builder: punctual::Builder) -> punctual::Builder {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => builder.enter(move |run| {
            let _inside = runtime.enter();
            run();
        }),
        Err(_) => builder,
    }
}
