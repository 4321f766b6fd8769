//! Settings of a store to be opened, and the opening.

use std::fmt;
use std::sync::{Arc, Mutex};

use punctual::{Clock, Scheduler};

use super::{Inner, Jobs, Tracer, enter_runtime};
use crate::error::{OpenError, StoreError};
use crate::handlers::Handlers;
use crate::heart::Heart;
use crate::id::Ids;
use crate::interest::Interests;
use crate::memory::MemoryStore;
use crate::store::{Retention, Store};

/// Settings of a store to be opened.
///
/// # Example
/// ```
/// # pollster::block_on(async {
/// use punctual_durable::Jobs;
/// let jobs = Jobs::builder().payload_max(1_000).open("memory:").await?;
/// # Ok::<(), punctual_durable::OpenError>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing is opened until `open` or `over`"]
pub struct JobsBuilder {
    clock: Clock,
    payload_max: usize,
    retention: Retention,
    seed: Option<u64>,
    tracer: Option<Tracer>,
}

impl fmt::Debug for JobsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobsBuilder")
            .field("clock", &self.clock)
            .field("payload_max", &self.payload_max)
            .finish_non_exhaustive()
    }
}

impl Default for JobsBuilder {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            payload_max: 64 * 1024,
            retention: Retention::default(),
            seed: None,
            tracer: None,
        }
    }
}

impl JobsBuilder {
    /// Where time comes from: a virtual clock, for tests.
    ///
    /// # Example
    /// ```
    /// let clock = punctual::VirtualClock::new();
    /// let builder = punctual_durable::Jobs::builder().clock(&clock);
    /// # drop(builder);
    /// ```
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// How large a payload may be, as JSON: 64 KiB by default. Larger things belong elsewhere, with the job naming the
    /// place.
    ///
    /// # Example
    /// ```
    /// let builder = punctual_durable::Jobs::builder().payload_max(1_000_000);
    /// # drop(builder);
    /// ```
    pub fn payload_max(mut self, bytes: usize) -> Self {
        self.payload_max = bytes;
        self
    }

    /// How long ended jobs are kept.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{Jobs, Retention};
    /// use std::time::Duration;
    /// let builder = Jobs::builder().retention(Retention { succeeded: Duration::ZERO, ..Retention::default() });
    /// # drop(builder);
    /// ```
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Where a job's trace comes from, if its plan names none: a function that gives the caller's W3C `traceparent`,
    /// for instance from OpenTelemetry's current context.
    ///
    /// # Example
    /// ```
    /// let builder = punctual_durable::Jobs::builder()
    ///     .trace_with(|| Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()));
    /// # drop(builder);
    /// ```
    pub fn trace_with(mut self, tracer: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.tracer = Some(Arc::new(tracer));
        self
    }

    /// Makes ids and jitter the same at every run: for tests that are to be repeated exactly. Never for real work: two
    /// processes with one seed make the same ids.
    ///
    /// # Example
    /// ```
    /// let builder = punctual_durable::Jobs::builder().seed(7);
    /// # drop(builder);
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Opens the store that a URL names: `memory:`, `sqlite:FILE`, or `postgres://HOST/DATABASE` if the feature
    /// `postgres` is on.
    ///
    /// # Errors
    /// If the URL names none, or the store cannot be opened.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// let jobs = punctual_durable::Jobs::builder().open("memory:").await?;
    /// # Ok::<(), punctual_durable::OpenError>(())
    /// # }).unwrap();
    /// ```
    pub async fn open(self, url: &str) -> Result<Jobs, OpenError> {
        let store: Arc<dyn Store> = match url.split_once(':') {
            Some(("memory", "")) => Arc::new(MemoryStore::new(self.clock.clone())),
            #[cfg(feature = "sqlite")]
            Some(("sqlite", path)) if !path.is_empty() => {
                Arc::new(crate::sqlite::SqliteStore::open(path.trim_start_matches("//"), self.clock.clone())?)
            }
            #[cfg(not(feature = "sqlite"))]
            Some(("sqlite", _)) => return Err(OpenError::NoFeature("sqlite")),
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                Arc::new(crate::postgres::PostgresOptions::new().clock(&self.clock).open(url).await?)
            }
            #[cfg(not(feature = "postgres"))]
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                return Err(OpenError::NoFeature("postgres"));
            }
            _ => return Err(OpenError::UnknownStore(beginning(url))),
        };
        self.over(store).await
    }

    /// Works on a store that is open already; several `Jobs` may share one, as several processes would.
    ///
    /// # Errors
    /// If the store cannot be asked.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// use punctual_durable::{Jobs, MemoryStore};
    /// let clock = punctual::VirtualClock::new();
    /// let store = MemoryStore::new(&clock);
    /// let jobs = Jobs::builder().clock(&clock).over(std::sync::Arc::new(store)).await?;
    /// # Ok::<(), punctual_durable::OpenError>(())
    /// # }).unwrap();
    /// ```
    pub async fn over(self, store: Arc<dyn Store>) -> Result<Jobs, OpenError> {
        let ids = Arc::new(Ids::new(self.seed));
        let heart = Arc::new(Heart::new(ids.node()));
        let joined = self.clock.now();
        store.join(heart.beat()).await?;
        let engine = enter_runtime(Scheduler::builder().workers(1).clock(&self.clock));
        let engine = engine.build().map_err(|error| StoreError::permanent(error.to_string()))?;
        let jobs = Jobs(Arc::new(Inner {
            interests: Interests::new(store.clone(), heart.clone(), engine.clone()),
            store,
            clock: self.clock,
            ids,
            heart,
            handlers: Handlers::default(),
            payload_max: self.payload_max,
            retention: self.retention,
            tracer: self.tracer,
            engine,
            started: Mutex::new(false),
        }));
        jobs.keep_alive(joined)?;
        Ok(jobs)
    }
}

/// As much as is fit for a log of a URL that names no store: its first word. In the rest a password may stand, and
/// where is not known.
fn beginning(url: &str) -> String {
    match url.char_indices().find(|&(_, c)| c.is_whitespace() || ":=?@".contains(c)) {
        // A bare word, or a file.
        None => url.to_owned(),
        Some((_, '@')) => "..".to_owned(),
        Some((end, c)) if end + c.len_utf8() == url.len() => url.to_owned(),
        Some((end, c)) => format!("{}{c}..", &url[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passwords were hidden in URLs of one form, and told in all others: in the words that libpq takes, in those of
    /// another driver, or with a slash too few.
    #[test]
    fn a_url_that_names_no_store_is_told_without_its_password() {
        assert_eq!(beginning("mysql://ann:secret@h/d"), "mysql:..");
        assert_eq!(beginning("postgres:/ann:secret@h/d"), "postgres:..");
        assert_eq!(beginning("jdbc:postgresql://h/d?user=ann&password=secret"), "jdbc:..");
        assert_eq!(beginning("host=db user=ann password=secret"), "host=..");
        assert_eq!(beginning("password=secret host=db"), "password=..");
        assert_eq!(beginning("secret@h/d"), "..");
        assert_eq!((beginning("jobs.db"), beginning("sqlite:")), ("jobs.db".to_owned(), "sqlite:".to_owned()));
    }
}
