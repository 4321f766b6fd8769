//! A store for many machines: PostgreSQL is the record, the index and the clock.
//!
//! Every operation is one call of a function in the database (`queries/`), so it is one round trip and one transaction,
//! and the same from whatever language. This side holds no scheduling state. What it adds: enqueues of concurrent
//! callers share a commit (`coalesce`), others are told of work after it (`notify`), and one connection hears what they
//! tell (`listen`).
//!
//! The store has a small runtime of its own, on which its connections live: so its futures need none, and begin at
//! once.

mod clock;
mod coalesce;
mod columns;
mod connect;
mod direct;
mod error;
mod finish;
mod hosts;
mod jobs;
mod listen;
mod nodes;
mod notify;
mod options;
mod order;
mod rows;
mod schedules;
mod schema;
mod snapshots;
mod template;
mod tenants;
mod threads;
mod tls;
mod transaction;
mod waits;

use std::fmt;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};

use crate::error::StoreError;
use crate::id::{JobId, NodeId};
use crate::signals::Signals;
use crate::store::{
    Admitted, Beat, CancelCause, Cancelled, Claim, Claimed, Edit, Edited, Erased, Explanation, Finish, Finished, Fire,
    Fired, NewJob, NodeRecord, Page, Pulse, Query, Record, Redriven, Refused, Reply, Retention, Schedule, Store,
    TenantChange, TenantRecord, Tended, Totals, Unreadable,
};
use crate::time::Timestamp;
use clock::DatabaseClock;
use coalesce::Coalescer;
use connect::{Database, Function};
use error::Fault;
use listen::{Line, Told};
use notify::Notifier;
pub use options::PostgresOptions;
use options::Settings;
use order::{Order, Side};
use rows::Reader;
use threads::Threads;
pub use transaction::SqlStatement;

/// A store in a PostgreSQL database, which processes on many machines have open at a time. Clones share it.
///
/// An answer means that it is committed, as durably as the database is set up to: with a synchronous standby it
/// survives the loss of the machine. The database's clock decides what is due.
///
/// # Example
/// ```no_run
/// # pollster::block_on(async {
/// use punctual_durable::{Jobs, PostgresStore};
/// let store = PostgresStore::open("postgres://db1,db2/app").await?;
/// let jobs = Jobs::builder().over(std::sync::Arc::new(store)).await?; // Or Jobs::open("postgres://db1,db2/app").
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct PostgresStore(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    enqueues: Coalescer,
    threads: Threads,
}

/// What operations work with.
struct Shared {
    database: Database,
    clock: DatabaseClock,
    lease: Duration,
    foresight: Duration,
    signals: Signals,
    line: Line,
    notifier: Notifier,
    order: Order,
    /// The nodes of this process.
    nodes: Mutex<Vec<NodeId>>,
    /// It has none, for its role may only enqueue.
    is_guest: AtomicBool,
    unreadable: Mutex<Unreadable>,
    /// All who wait are to be written down anew.
    waits_anew: Notify,
    settle: mpsc::UnboundedSender<oneshot::Sender<()>>,
    /// Tells this store's notifications from others'.
    who: u64,
}

/// How often to look without having been told.
const POLL: Duration = Duration::from_secs(1);

/// Work that is further away need not be told: whoever tends the store comes back before, and learns of it.
const SOON: Duration = Duration::from_secs(2);

impl PostgresStore {
    /// Opens the store, and makes its tables if there are none; see [`PostgresOptions`] for what the URL can say.
    ///
    /// # Errors
    /// If the URL has a mistake, which is permanent; if the database cannot be reached, or refuses.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// let error = punctual_durable::PostgresStore::open("postgres://localhost/app?lease=soon").await.unwrap_err();
    /// assert!(!error.is_transient());
    /// # });
    /// ```
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        PostgresOptions::new().open(url).await
    }

    async fn start(settings: Settings) -> Result<Self, StoreError> {
        let threads = Threads::start()?;
        let opening = async {
            let shared = Shared::open(settings).await?;
            let (sender, timeout) = (shared.clone(), shared.database.timeout());
            let send = move |jobs, lock_wait| sender.clone().enqueue(jobs, lock_wait);
            Ok((shared, Coalescer::start(timeout, send)))
        };
        let (shared, enqueues) = threads.run((), opening).await?;
        Ok(Self(Arc::new(Handle { shared, enqueues, threads })))
    }

    /// How far the database's clock is ahead of this machine's, in microseconds, as well as that is known.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::PostgresStore;
    /// fn is_close(store: &PostgresStore) -> bool {
    ///     store.clock_offset_us().abs() < 1_000_000
    /// }
    /// ```
    #[must_use]
    pub fn clock_offset_us(&self) -> i64 {
        self.0.shared.clock.offset_us()
    }

    /// For how long the oldest transaction that holds up vacuum has been open; `None` if there is none. While one is
    /// held, nobody can clean away what queues leave behind, and they slow down: so a node warns of one older than five
    /// minutes, once a minute.
    ///
    /// It is about transactions of this database, prepared ones too. Those of other users are seen only by a role that
    /// is a member of `pg_monitor` (or `pg_read_all_stats`), or a superuser.
    ///
    /// # Errors
    /// If the database does not answer.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{PostgresStore, StoreError};
    /// # use std::time::Duration;
    /// async fn is_vacuum_free(store: &PostgresStore) -> Result<bool, StoreError> {
    ///     Ok(store.oldest_snapshot().await?.is_none_or(|age| age < Duration::from_secs(60)))
    /// }
    /// ```
    pub async fn oldest_snapshot(&self) -> Result<Option<Duration>, StoreError> {
        self.ask(|shared| async move { shared.oldest_snapshot().await }).await
    }

    /// Begins an operation.
    fn ask<T, E, F>(&self, work: impl FnOnce(Arc<Shared>) -> F) -> Reply<T>
    where
        T: Send + 'static,
        E: Into<StoreError>,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let shared = self.0.shared.clone();
        // A virtual clock waits for the answer.
        let busy = shared.clock.local().busy();
        let work = work(shared.clone());
        self.0.threads.run(busy, async move {
            let done = work.await.map_err(Into::into);
            shared.settle().await;
            done
        })
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = &self.0.shared.database;
        f.debug_struct("PostgresStore")
            .field("schema", &database.schema().plain())
            .field("prepares", &database.can_prepare())
            .finish_non_exhaustive()
    }
}

impl Shared {
    async fn open(settings: Settings) -> Result<Arc<Self>, StoreError> {
        let Settings { clock, schema, server, direct, lease, timeout, pool_size, foresight, edition } = settings;
        let database = Database::new(&server, schema.clone(), pool_size, timeout)?;
        schema::install(&database, &schema, &edition).await?;
        let (settle, settled) = mpsc::unbounded_channel();
        let shared = Arc::new(Self {
            database,
            clock: DatabaseClock::new(clock),
            lease,
            foresight,
            signals: Signals::new(),
            line: Line::new(&direct)?,
            notifier: Notifier::default(),
            order: Order::default(),
            nodes: Mutex::default(),
            is_guest: AtomicBool::new(false),
            unreadable: Mutex::default(),
            waits_anew: Notify::new(),
            settle,
            who: fastrand::u64(..),
        });
        listen::listen(&shared).await?;
        tokio::spawn(notify::notify(shared.clone()));
        tokio::spawn(waits::wait(shared.clone(), shared.signals.watch(), settled));
        Ok(shared)
    }

    /// Something has changed, of which this process and others should know.
    fn tell_work(&self) {
        self.signals.work();
        self.notifier.work();
    }

    /// There is something to claim.
    fn tell_ready(&self) {
        self.signals.ready();
        self.notifier.ready();
    }

    /// There is something to do at an instant that is to come.
    fn tell_due(&self, due: Timestamp) {
        self.signals.due(due);
        // Others look before it comes if that is later.
        if due <= self.clock.now().after(SOON) {
            self.notifier.due(due);
        }
    }

    /// What another process says.
    fn hear(&self, told: Told) {
        self.notifier.has_company(true);
        match told {
            Told::Work(None) => self.signals.work(),
            Told::Work(Some(due)) if due <= self.clock.now() => self.signals.ready(),
            Told::Work(Some(due)) => self.signals.due(due),
            Told::Ended(jobs) => self.signals.ended(jobs),
            Told::Look => self.signals.look(),
            Told::Stop(node, job, fence) => self.signals.stop(node, job, fence),
        }
    }

    /// Nobody listened for a moment, so everybody looks.
    fn missed_something(&self) {
        self.signals.work();
        self.signals.look();
        self.waits_anew.notify_one();
    }

    /// Asks what time it is there.
    async fn measure(&self) -> Result<(), Fault> {
        const CLOCK: Function = Function::new("clock", "ask for the time");
        let sent = self.clock.local().now();
        let rows = self.line.say(CLOCK.what, &self.database.sql(CLOCK, "*", 0), &[]).await?;
        if let Some(row) = rows.first() {
            self.clock.heard(sent, Reader::new(CLOCK.what, row).next()?);
            self.database.measured(self.clock.local().now() - sent, self.lease);
        }
        Ok(())
    }

    /// A virtual clock stands still until everything that was said has been heard.
    async fn settle(&self) {
        if self.clock.local().is_virtual() {
            let (tell, told) = oneshot::channel();
            if self.settle.send(tell).is_ok() {
                let _ = told.await;
            }
            self.line.settle().await;
        }
    }
}

impl Store for PostgresStore {
    fn now(&self) -> Timestamp {
        self.0.shared.clock.now()
    }

    fn has_local_clock(&self) -> bool {
        self.0.shared.clock.given().is_some()
    }

    fn lease(&self) -> Option<Duration> {
        (!self.0.shared.is_guest()).then_some(self.0.shared.lease)
    }

    fn sql_schema(&self) -> Option<String> {
        Some(self.0.shared.database.schema().quoted().to_owned())
    }

    fn foresight(&self) -> Duration {
        self.0.shared.foresight
    }

    fn at_least(&self) -> Timestamp {
        self.0.shared.clock.at_least()
    }

    fn poll(&self) -> Option<Duration> {
        Some(POLL)
    }

    fn signals(&self) -> &Signals {
        &self.0.shared.signals
    }

    fn enqueue(&self, jobs: Vec<NewJob>) -> Reply<Vec<Result<Admitted, Refused>>> {
        let is_wanted = jobs.iter().any(|job| job.wanted_by.is_some());
        let turn = is_wanted.then(|| self.0.shared.order.line_up(Side::Take));
        let enqueues = self.0.enqueues.clone();
        self.ask(move |shared| async move {
            if is_wanted && shared.is_guest() {
                let why = "cannot want a job: permission denied, for the role of this process may only enqueue";
                return Err(StoreError::permanent(why));
            }
            if let Some(turn) = &turn {
                turn.come().await;
            }
            enqueues.enqueue(jobs).await
        })
    }

    fn get_ready(&self, node: NodeId) -> Reply<()> {
        self.ask(move |shared| async move { shared.get_ready(node).await })
    }

    fn claim(&self, claim: Claim) -> Reply<Claimed> {
        self.ask(move |shared| async move { shared.claim(claim).await })
    }

    fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Reply<Vec<Finished>> {
        self.ask(move |shared| async move { shared.finish(node, finishes).await })
    }

    fn cancel(&self, id: JobId, cause: CancelCause) -> Reply<Cancelled> {
        self.ask(move |shared| async move { shared.cancel(id, cause).await })
    }

    fn edit(&self, id: JobId, edit: Edit) -> Reply<Edited> {
        self.ask(move |shared| async move { shared.edit(id, edit).await })
    }

    fn join(&self, beat: Beat) -> Reply<()> {
        self.ask(move |shared| async move { shared.join(beat).await })
    }

    fn heartbeat(&self, beat: Beat) -> Reply<Pulse> {
        self.ask(move |shared| async move { shared.heartbeat(beat).await })
    }

    fn leave(&self, node: NodeId) -> Reply<()> {
        self.ask(move |shared| async move { shared.leave(node).await })
    }

    fn tend(&self) -> Reply<Tended> {
        self.ask(|shared| async move { shared.tend().await })
    }

    fn want(&self, id: JobId, node: NodeId) -> Reply<bool> {
        let turn = self.0.shared.order.line_up(Side::Take);
        self.ask(move |shared| async move {
            turn.come().await;
            shared.want(id, node).await
        })
    }

    fn unwant(&self, id: JobId, node: NodeId) -> Reply<()> {
        let turn = self.0.shared.order.line_up(Side::Give);
        self.ask(move |shared| async move {
            turn.come().await;
            shared.unwant(id, node).await
        })
    }

    fn get(&self, id: JobId) -> Reply<Option<Record>> {
        self.ask(move |shared| async move { shared.get(id).await })
    }

    fn query(&self, query: Query) -> Reply<Page> {
        self.ask(move |shared| async move { shared.query(query).await })
    }

    fn explain(&self, id: JobId) -> Reply<Option<Explanation>> {
        self.ask(move |shared| async move { shared.explain(id).await })
    }

    fn redrive(&self, id: JobId) -> Reply<Redriven> {
        self.ask(move |shared| async move { shared.redrive(id).await })
    }

    fn prune(&self, retention: Retention, max: usize) -> Reply<usize> {
        self.ask(move |shared| async move { shared.prune(retention, max).await })
    }

    fn purge(&self, ids: Vec<JobId>) -> Reply<usize> {
        self.ask(move |shared| async move { shared.purge(ids).await })
    }

    fn set_tenant(&self, tenant: String, change: TenantChange) -> Reply<()> {
        self.ask(move |shared| async move { shared.set_tenant(tenant, change).await })
    }

    fn tenant(&self, tenant: String) -> Reply<TenantRecord> {
        self.ask(move |shared| async move { shared.tenant(tenant).await })
    }

    fn tenants(&self, after: Option<String>, max: usize) -> Reply<Vec<TenantRecord>> {
        self.ask(move |shared| async move { shared.tenant_records(None, after.as_deref(), max).await })
    }

    fn cancel_tenant(&self, tenant: String) -> Reply<usize> {
        self.ask(move |shared| async move { shared.cancel_tenant(tenant).await })
    }

    fn erase(&self, tenant: String) -> Reply<Erased> {
        self.ask(move |shared| async move { shared.erase(tenant).await })
    }

    fn put_schedule(&self, schedule: Schedule) -> Reply<()> {
        if let Err(error) = schedule.check() {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.ask(move |shared| async move { shared.put_schedule(schedule).await })
    }

    fn remove_schedule(&self, name: String) -> Reply<bool> {
        self.ask(move |shared| async move { shared.remove_schedule(name).await })
    }

    fn pause_schedule(&self, name: String, paused: bool) -> Reply<bool> {
        self.ask(move |shared| async move { shared.pause_schedule(name, paused).await })
    }

    fn schedules(&self, after: Option<String>, max: usize) -> Reply<Vec<Schedule>> {
        self.ask(move |shared| async move { shared.schedules(after, max).await })
    }

    fn fire(&self, fire: Fire) -> Reply<Fired> {
        self.ask(move |shared| async move { shared.fire(fire).await })
    }

    fn totals(&self) -> Reply<Totals> {
        self.ask(|shared| async move { shared.totals().await })
    }

    fn nodes(&self) -> Reply<Vec<NodeRecord>> {
        self.ask(|shared| async move { shared.node_records().await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_testkit::postgres::Schema;

    #[test]
    fn what_happens_is_told() {
        let schemas = Mutex::new(Vec::new());
        crate::signals::suite::exercise(|clock| {
            let schema = Schema::new();
            let opened =
                pollster::block_on(PostgresOptions::new().clock(clock).schema(schema.name()).open(schema.url()));
            schemas.lock().unwrap().push(schema);
            Arc::new(opened.unwrap())
        });
    }
}
