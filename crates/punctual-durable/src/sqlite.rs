//! A store in one local file: SQLite is the record, memory is its index.
//!
//! One thread owns the file. Callers hand it operations through a queue; it does what has gathered in one transaction
//! and answers when that is on disk (`writer`). The scheduling state (`index`) is in memory and holds the first of the
//! ready jobs only, so that jobs that wait are not bounded by memory. `books` keeps the two in step; the other files
//! are the operations.
//!
//! Why not read on other threads: every answer is about the present, which only the writer knows; its reads cost
//! microseconds. Only queries may read a lot: they have a thread of their own, from the first one on (`reader`).

mod books;
mod claim;
mod enqueue;
mod file;
mod index;
mod manage;
mod queries;
mod reader;
mod rebuild;
mod rows;
mod schedules;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use punctual::{Clock, DelayQueue};
use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::id::{JobId, NodeId};
use crate::signals::Signals;
use crate::store::{
    Admitted, Beat, CancelCause, Cancelled, Claim, Claimed, Edit, Edited, Erased, Explanation, Finish, Finished, Fire,
    Fired, NewJob, NodeRecord, Page, Pulse, Query, Record, Redriven, Refused, Reply, Retention, Schedule, Store,
    TenantChange, TenantRecord, Tended, Totals,
};
use crate::time::Timestamp;
use books::Books;
use reader::Reader;
use writer::{Ask, Operation};

/// A store in one local file, which one process has open at a time. Clones share it; when the last one goes, what was
/// asked for is finished, and the file is closed.
///
/// An answer means that it is on disk. The file is a SQLite database: any tool can read it meanwhile, and its view
/// `jobs` shows what is in it.
///
/// # Example
/// ```
/// use punctual_durable::{SqliteStore, Store};
///
/// let folder = std::env::temp_dir().join(format!("punctual-doc-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// let store = SqliteStore::open(folder.join("jobs.db"), punctual::Clock::system())?;
/// assert!(store.lease().is_none()); // The process is the lease.
/// # drop(store);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SqliteStore(Arc<Handle>);

struct Handle {
    path: PathBuf,
    clock: Clock,
    signals: Signals,
    queue: DelayQueue<Box<dyn Operation>>,
    writer: Option<JoinHandle<()>>,
    reader: Mutex<Option<Reader>>,
}

/// How to open a [`SqliteStore`].
///
/// # Example
/// ```
/// use punctual_durable::SqliteStore;
///
/// let folder = std::env::temp_dir().join(format!("punctual-doc-options-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// let store = SqliteStore::options().relaxed().bytes_max(1 << 30).open(folder.join("jobs.db"), punctual::Clock::system())?;
/// # drop(store);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SqliteOptions(Settings);

#[derive(Debug, Clone, Copy)]
struct Settings {
    relaxed: bool,
    window: usize,
    catch_up: usize,
    bytes_max: Option<u64>,
    job_bytes_max: usize,
}

impl SqliteOptions {
    /// An answer means that the operating system has it: a crash of the process loses nothing, a power failure the last
    /// moments. Several times faster where few callers wait for one commit.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::SqliteStore::options().relaxed();
    /// # drop(options);
    /// ```
    #[must_use]
    pub fn relaxed(mut self) -> Self {
        self.0.relaxed = true;
        self
    }

    /// How many ready jobs of each tenant and kind are in memory at most; 1,000 by default. More wait on disk.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::SqliteStore::options().window(100);
    /// # drop(options);
    /// ```
    #[must_use]
    pub fn window(mut self, jobs: usize) -> Self {
        self.0.window = jobs.max(1);
        self
    }

    /// How many jobs fall due, and how many expire, in one transaction at most; 10,000 by default. If more do at one
    /// instant, the rest follows in the next ones, so that no caller waits for all of them.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::SqliteStore::options().catch_up(500);
    /// # drop(options);
    /// ```
    #[must_use]
    pub fn catch_up(mut self, jobs: usize) -> Self {
        self.0.catch_up = jobs.max(1);
        self
    }

    /// How large the file may grow, its log apart. Beyond that the store says that the disk is full, and goes on when
    /// jobs are forgotten.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::SqliteStore::options().bytes_max(1 << 30);
    /// # drop(options);
    /// ```
    #[must_use]
    pub fn bytes_max(mut self, bytes: u64) -> Self {
        self.0.bytes_max = Some(bytes);
        self
    }

    /// How many bytes of text one job may have; 64 MiB by default. A larger one is refused as bad, alone of its batch.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::SqliteStore::options().job_bytes_max(1 << 20);
    /// # drop(options);
    /// ```
    #[must_use]
    pub fn job_bytes_max(mut self, bytes: usize) -> Self {
        // SQLite itself holds no row of a gigabyte.
        self.0.job_bytes_max = bytes.min(512 << 20);
        self
    }

    /// Opens the file, and makes it if there is none.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    ///
    /// # Example
    /// ```
    /// use punctual_durable::SqliteStore;
    /// let missing = SqliteStore::options().open("/no/such/folder/jobs.db", punctual::Clock::system());
    /// assert!(missing.unwrap_err().to_string().contains("/no/such/folder/jobs.db"));
    /// ```
    pub fn open(self, path: impl AsRef<Path>, clock: impl Into<Clock>) -> Result<SqliteStore, StoreError> {
        let (path, clock, signals) = (path.as_ref().to_owned(), clock.into(), Signals::new());
        let file = file::open(&path, &self.0)?;
        let books =
            Books::open(file, clock.clone(), self.0, signals.clone()).map_err(|error| file::explain(&path, &error))?;
        let queue = DelayQueue::with_clock(clock.clone());
        let taken = queue.clone();
        let writer = std::thread::Builder::new().name("punctual-sqlite".to_owned());
        let writer = writer.spawn(move || writer::write(books, &taken)).map_err(|error| {
            StoreError::transient(format!("cannot start the thread of {}: {error}", path.display()))
        })?;
        // Wherever the process goes meanwhile, queries find it.
        let path = path.canonicalize().unwrap_or(path);
        let reader = Mutex::new(None);
        Ok(SqliteStore(Arc::new(Handle { path, clock, signals, queue, writer: Some(writer), reader })))
    }
}

impl SqliteStore {
    /// Opens the file, and makes it if there is none. Jobs that ran when its last process ended are ready again, or
    /// failed if that happened to them too often.
    ///
    /// # Errors
    /// If it is open already, here or in another process; if it is not a database, or one of another application or of
    /// a newer version; if the file system refuses it. All of these name the file and are permanent.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::SqliteStore;
    /// let missing = SqliteStore::open("/no/such/folder/jobs.db", punctual::Clock::system());
    /// assert!(!missing.unwrap_err().is_transient());
    /// ```
    pub fn open(path: impl AsRef<Path>, clock: impl Into<Clock>) -> Result<Self, StoreError> {
        Self::options().open(path, clock)
    }

    /// Settings to open a file with.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::SqliteStore::options().relaxed();
    /// # drop(options);
    /// ```
    #[must_use]
    pub fn options() -> SqliteOptions {
        SqliteOptions(Settings {
            relaxed: false,
            window: 1_000,
            catch_up: 10_000,
            bytes_max: None,
            job_bytes_max: 64 << 20,
        })
    }

    /// Hands an operation to the writer.
    fn ask<T: Send + 'static>(&self, work: impl FnMut(&mut Books) -> rusqlite::Result<T> + Send + 'static) -> Reply<T> {
        let (operation, answer) = Ask::new(&self.0.clock, work);
        // The queue is closed only when the last handle goes, and this is one.
        let _ = self.0.queue.push(Box::new(operation), Duration::ZERO);
        Box::pin(
            async move { answer.await.unwrap_or_else(|_| Err(StoreError::transient("the store's thread has ended"))) },
        )
    }
}

impl Handle {
    /// Asks the reader, which starts when it is first needed.
    fn read(&self, query: Query) -> Result<oneshot::Receiver<Result<Page, StoreError>>, StoreError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = match &mut *reader {
            Some(reader) => reader,
            none => none.insert(Reader::start(&self.path, &self.clock)?),
        };
        Ok(reader.ask(&self.clock, query))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Before the writer, which holds the lock of the owner: then nobody of this process has the file open any more.
        drop(self.reader.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        self.queue.close();
        // The last handle may go with an answer, on the writer's own thread.
        if let Some(writer) = self.writer.take().filter(|writer| writer.thread().id() != std::thread::current().id()) {
            // It catches the panics of its operations, and has answered those who waited.
            let _ = writer.join();
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.0.path).finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    fn now(&self) -> Timestamp {
        Timestamp::now_at(self.0.clock.wall())
    }

    fn has_local_clock(&self) -> bool {
        true
    }

    fn lease(&self) -> Option<Duration> {
        None
    }

    fn poll(&self) -> Option<Duration> {
        None
    }

    fn signals(&self) -> &Signals {
        &self.0.signals
    }

    fn enqueue(&self, jobs: Vec<NewJob>) -> Reply<Vec<Result<Admitted, Refused>>> {
        self.ask(move |books| books.enqueue(&jobs))
    }

    fn claim(&self, claim: Claim) -> Reply<Claimed> {
        self.ask(move |books| books.claim(&claim))
    }

    fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Reply<Vec<Finished>> {
        self.ask(move |books| books.finish(node, &finishes))
    }

    fn cancel(&self, id: JobId, cause: CancelCause) -> Reply<Cancelled> {
        self.ask(move |books| books.cancel(id, cause))
    }

    fn edit(&self, id: JobId, edit: Edit) -> Reply<Edited> {
        self.ask(move |books| books.edit(id, &edit))
    }

    fn join(&self, beat: Beat) -> Reply<()> {
        self.ask(move |books| books.join(&beat))
    }

    fn heartbeat(&self, beat: Beat) -> Reply<Pulse> {
        self.ask(move |books| books.heartbeat(&beat))
    }

    fn leave(&self, node: NodeId) -> Reply<()> {
        self.ask(move |books| books.leave(node))
    }

    fn tend(&self) -> Reply<Tended> {
        self.ask(Books::tend)
    }

    fn want(&self, id: JobId, node: NodeId) -> Reply<bool> {
        self.ask(move |books| books.want(id, node))
    }

    fn unwant(&self, id: JobId, node: NodeId) -> Reply<()> {
        self.ask(move |books| books.lose_interest(id, node))
    }

    fn get(&self, id: JobId) -> Reply<Option<Record>> {
        self.ask(move |books| books.get(id))
    }

    fn query(&self, query: Query) -> Reply<Page> {
        let (store, written) = (self.clone(), self.ask(|_| Ok(())));
        Box::pin(async move {
            written.await?;
            let answer = store.0.read(query)?;
            answer.await.unwrap_or_else(|_| Err(StoreError::transient("the thread for queries has ended")))
        })
    }

    fn explain(&self, id: JobId) -> Reply<Option<Explanation>> {
        self.ask(move |books| books.explain(id))
    }

    fn redrive(&self, id: JobId) -> Reply<Redriven> {
        self.ask(move |books| books.redrive(id))
    }

    fn prune(&self, retention: Retention, max: usize) -> Reply<usize> {
        self.ask(move |books| books.prune(retention, max))
    }

    fn purge(&self, ids: Vec<JobId>) -> Reply<usize> {
        self.ask(move |books| books.purge(&ids))
    }

    fn set_tenant(&self, tenant: String, change: TenantChange) -> Reply<()> {
        self.ask(move |books| {
            books.set_tenant(&tenant, change);
            Ok(())
        })
    }

    fn tenant(&self, tenant: String) -> Reply<TenantRecord> {
        self.ask(move |books| Ok(books.tenant_record(&tenant)))
    }

    fn tenants(&self, after: Option<String>, max: usize) -> Reply<Vec<TenantRecord>> {
        self.ask(move |books| Ok(books.tenant_records(after.as_deref(), max)))
    }

    fn cancel_tenant(&self, tenant: String) -> Reply<usize> {
        self.ask(move |books| books.cancel_tenant(&tenant))
    }

    fn erase(&self, tenant: String) -> Reply<Erased> {
        self.ask(move |books| books.erase(&tenant))
    }

    fn put_schedule(&self, schedule: Schedule) -> Reply<()> {
        if let Err(error) = schedule.check() {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.ask(move |books| books.put_schedule(&schedule))
    }

    fn remove_schedule(&self, name: String) -> Reply<bool> {
        self.ask(move |books| books.remove_schedule(&name))
    }

    fn pause_schedule(&self, name: String, paused: bool) -> Reply<bool> {
        self.ask(move |books| books.pause_schedule(&name, paused))
    }

    fn schedules(&self, after: Option<String>, max: usize) -> Reply<Vec<Schedule>> {
        self.ask(move |books| books.schedules(after.as_deref(), max))
    }

    fn fire(&self, fire: Fire) -> Reply<Fired> {
        self.ask(move |books| books.fire(&fire))
    }

    fn totals(&self) -> Reply<Totals> {
        self.ask(|books| Ok(books.index.totals()))
    }

    fn nodes(&self) -> Reply<Vec<NodeRecord>> {
        self.ask(|books| Ok(books.node_records()))
    }
}
