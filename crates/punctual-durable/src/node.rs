//! A process at work: what the one who started it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual::Histogram;
use tokio::sync::oneshot;

use crate::bell::Bell;
use crate::error::StoreError;
use crate::hands::Hands;
use crate::id::NodeId;
use crate::jobs::Jobs;
use crate::run::Done;
use crate::worker::Worker;

/// Settings of a node to be started.
///
/// # Example
/// ```
/// # pollster::block_on(async {
/// let jobs = punctual_durable::Jobs::open("memory:").await?;
/// let node = jobs.node().workers(4).start().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "no node works until it is started"]
pub struct NodeBuilder {
    jobs: Jobs,
    workers: usize,
    concurrency: BTreeMap<String, usize>,
}

impl NodeBuilder {
    pub(crate) fn new(jobs: Jobs) -> Self {
        Self { jobs, workers: 32, concurrency: BTreeMap::new() }
    }

    /// How many jobs run at once: 32 by default; 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::NodeBuilder;
    /// fn small(node: NodeBuilder) -> NodeBuilder {
    ///     node.workers(2)
    /// }
    /// ```
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// How many jobs of a kind run at once on this node; of a kind it is not said for, as many as there are workers.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::NodeBuilder;
    /// fn one_printer(node: NodeBuilder) -> NodeBuilder {
    ///     node.concurrency("print", 1)
    /// }
    /// ```
    pub fn concurrency(mut self, kind: impl Into<String>, jobs: usize) -> Self {
        self.concurrency.insert(kind.into(), jobs);
        self
    }

    /// Starts to work.
    ///
    /// # Errors
    /// If a node is at work for these jobs already, or the store cannot be asked.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{Node, NodeBuilder, StartError};
    /// async fn go(node: NodeBuilder) -> Result<Node, StartError> {
    ///     node.start().await
    /// }
    /// ```
    pub async fn start(self) -> Result<Node, StartError> {
        let jobs = self.jobs;
        if std::mem::replace(&mut *jobs.started().lock().unwrap_or_else(PoisonError::into_inner), true) {
            return Err(StartError::AlreadyStarted);
        }
        let begun = Begun(&jobs);
        let hands = Hands::new(self.workers, jobs.clock())?;
        let shared = Arc::new(Shared::default());
        let mut worker = Worker::new(jobs.clone(), hands, shared.clone(), self.workers, self.concurrency);
        worker.introduce().await?;
        if let Err(error) = jobs.store().get_ready(jobs.node_id()).await {
            // It will be slow at first, that is all.
            tracing::debug!(target: "punctual", %error, "the store is not ready for a node");
        }
        let loop_of_work = jobs.engine().now().name("node").spawn(move |_| worker.work());
        loop_of_work.map_err(|rejected| StoreError::permanent(rejected.to_string()))?.detach();
        std::mem::forget(begun);
        Ok(Node { jobs, shared })
    }
}

/// Takes the start back if it does not come off.
struct Begun<'a>(&'a Jobs);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        *self.0.started().lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// Why a node was not started.
///
/// # Example
/// ```
/// # pollster::block_on(async {
/// use punctual_durable::{Jobs, StartError};
/// let jobs = Jobs::open("memory:").await.unwrap();
/// let node = jobs.start().await.unwrap();
/// assert_eq!(jobs.start().await.unwrap_err(), StartError::AlreadyStarted);
/// # });
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// A node is at work for these jobs already.
    AlreadyStarted,
    /// The store could not be asked.
    Store(StoreError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyStarted => f.write_str("a node is at work for these jobs already"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

impl From<StoreError> for StartError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// A node at work. Dropping it stops it at once: what it runs is cancelled and given back; [`shutdown`](Self::shutdown)
/// lets it finish first.
///
/// # Example
/// ```
/// # pollster::block_on(async {
/// let jobs = punctual_durable::Jobs::open("memory:").await?;
/// let node = jobs.start().await?;
/// let report = node.shutdown(std::time::Duration::from_secs(10)).await;
/// assert_eq!(report.still_running, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[must_use = "a node that is dropped stops"]
pub struct Node {
    jobs: Jobs,
    shared: Arc<Shared>,
}

impl Node {
    /// Who it is to the store; another one after its lease was lost.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Node;
    /// fn label(node: &Node) -> String {
    ///     node.id().to_string()
    /// }
    /// ```
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.jobs.node_id()
    }

    /// Starts no more jobs of a kind on this node, until it is resumed. What runs goes on.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Node;
    /// fn printer_is_broken(node: &Node) {
    ///     node.pause("print");
    /// }
    /// ```
    pub fn pause(&self, kind: &str) {
        self.shared.lock().paused.insert(kind.to_owned());
        self.shared.bell.ring();
    }

    /// Starts jobs of a kind again.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Node;
    /// fn printer_is_repaired(node: &Node) {
    ///     node.resume("print");
    /// }
    /// ```
    pub fn resume(&self, kind: &str) {
        self.shared.lock().paused.remove(kind);
        self.shared.bell.ring();
    }

    /// Resolves when nothing is left that this node could run now: what is due has run, and what that enqueued, and so
    /// on.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Node;
    /// async fn all_done(node: &Node) {
    ///     node.drain().await;
    /// }
    /// ```
    pub async fn drain(&self) {
        let (tell, told) = oneshot::channel();
        self.shared.lock().drains.push(tell);
        self.shared.bell.ring();
        // An error means that the node has stopped: nothing is left that it could run.
        let _ = told.await;
    }

    /// What it does and has done.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Node;
    /// fn median_lateness(node: &Node) -> std::time::Duration {
    ///     node.snapshot().lateness.percentile(50.0)
    /// }
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> NodeSnapshot {
        self.shared.lock().snapshot.clone()
    }

    /// Takes no more jobs, lets those that run finish for up to `grace`, then tells them to stop and gives them back to
    /// the store, with the attempt not counted. It has ended when the store knows all of this, or the lease has ended,
    /// which says the same.
    ///
    /// # Cancel safety
    /// Dropping the future drops the node, so that the grace is over.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::Node;
    /// # use std::time::Duration;
    /// async fn goodbye(node: Node) {
    ///     let report = node.shutdown(Duration::from_secs(30)).await;
    ///     assert_eq!(report.still_running, 0, "a blocking handler does not look at its ctx");
    /// }
    /// ```
    pub async fn shutdown(self, grace: Duration) -> NodeReport {
        let (tell, told) = oneshot::channel();
        self.shared.stop(grace, Some(tell));
        told.await.unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.stop(Duration::ZERO, None);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("id", &self.id()).field("snapshot", &self.snapshot()).finish()
    }
}

/// What became of the jobs that ran when a node was shut down.
///
/// # Example
/// ```
/// # use punctual_durable::NodeReport;
/// let report = NodeReport { released: 2, still_running: 0 };
/// assert_eq!(report.to_string(), "2 given back, 0 still running");
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Given back to the store, to run elsewhere or later.
    pub released: usize,
    /// Blocking handlers that have yet to stop. Their jobs stay theirs until they do.
    pub still_running: usize,
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { released, still_running } = self;
        write!(f, "{released} given back, {still_running} still running")
    }
}

/// What a node does and has done since it was started.
///
/// # Example
/// ```
/// # use punctual_durable::NodeSnapshot;
/// assert_eq!(NodeSnapshot::default().running, 0);
/// ```
#[derive(Debug, Clone, Default)]
pub struct NodeSnapshot {
    /// Runs under way.
    pub running: usize,
    /// Runs begun.
    pub started: u64,
    /// Runs that gave a result.
    pub succeeded: u64,
    /// Runs that gave an error, panicked or took too long, and are tried again.
    pub retried: u64,
    /// Runs after which the job failed for good.
    pub failed: u64,
    /// Runs that were stopped, snoozed, given back, or came too late to count.
    pub other: u64,
    /// Blocking handlers that were at work when the node lost its lease. They are told to stop, and cannot be stopped:
    /// those that do not look go on, counted in `running`, while their jobs may run again elsewhere. What they return
    /// counts for nothing.
    pub overlaps: u64,
    /// How long after their due instants runs began.
    pub lateness: Histogram,
    /// What the store said last, if the last thing it said was no.
    pub store_error: Option<StoreError>,
}

/// What the loop of work shares with the one who started it and with the runs.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) bell: Bell,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) done: Vec<Done>,
    pub(crate) paused: BTreeSet<String>,
    pub(crate) drains: Vec<oneshot::Sender<()>>,
    pub(crate) rang: bool,
    pub(crate) stop: Option<Stopping>,
    pub(crate) snapshot: NodeSnapshot,
}

/// A shutdown under way.
#[derive(Debug)]
pub(crate) struct Stopping {
    pub(crate) grace: Duration,
    pub(crate) tell: Option<oneshot::Sender<NodeReport>>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn started(&self, lateness: Duration) {
        let mut state = self.lock();
        state.snapshot.started += 1;
        state.snapshot.lateness.record(lateness);
    }

    pub(crate) fn done(&self, done: Done) {
        self.lock().done.push(done);
        self.bell.ring();
    }

    pub(crate) fn rang(&self) {
        self.lock().rang = true;
        self.bell.ring();
    }

    fn stop(&self, grace: Duration, tell: Option<oneshot::Sender<NodeReport>>) {
        {
            let mut state = self.lock();
            match &mut state.stop {
                Some(stop) => stop.grace = grace,
                None => state.stop = Some(Stopping { grace, tell }),
            }
        }
        self.bell.ring();
    }
}
