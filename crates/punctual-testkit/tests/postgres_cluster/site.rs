//! Where a cluster is: a schema with witnesses in it, and the test's own door to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postgres::Client;
use postgres::types::ToSql;
use punctual::{Clock, Limits};
use punctual_durable::{EnqueueError, Handle, Job, JobId, Jobs, Plan, PostgresOptions, Problem, Record};
use punctual_testkit::block_on;
use punctual_testkit::cluster::{Hold, WITNESS, pause};
use punctual_testkit::postgres::Schema;
use tempfile::TempDir;

use crate::process::{PATIENCE, Process};

/// A short lease, for tests in which nodes die.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// A lease during which nothing happens by itself: whatever happens was told.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A schema on a server. The test's own process has the store open too, and runs nothing.
pub(crate) struct Site {
    pub(crate) jobs: Jobs,
    pub(crate) schema: Schema,
    started: AtomicUsize,
    folder: TempDir,
}

impl Site {
    /// On the server that tests share.
    pub(crate) fn new() -> Self {
        Self::at(Schema::new())
    }

    pub(crate) fn at(schema: Schema) -> Self {
        let options = PostgresOptions::new().schema(schema.name()).lease(LONG).pool_size(4);
        let store = block_on(options.open(schema.url())).unwrap();
        let mut client = schema.connect();
        client.batch_execute(WITNESS).unwrap();
        // A function that is broken on purpose: see `scripts/sabotage`.
        if let Ok(broken) = std::env::var("PUNCTUAL_SABOTAGE") {
            client.batch_execute(&std::fs::read_to_string(broken).unwrap()).unwrap();
        }
        let jobs = block_on(Jobs::builder().over(Arc::new(store))).unwrap();
        Self { jobs, schema, started: AtomicUsize::new(0), folder: tempfile::tempdir().unwrap() }
    }

    /// Another process, which has the store open and does not work yet.
    pub(crate) fn process(&self, lease: Duration) -> Process {
        self.process_with_clock(lease, 0)
    }

    /// The same, whose clock is ahead by so many seconds.
    pub(crate) fn process_with_clock(&self, lease: Duration, skew: i64) -> Process {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let errors = self.folder.path().join(format!("errors-{number}"));
        Process::start(self.schema.url(), self.schema.name(), lease, skew, errors)
    }

    /// One that is at work.
    pub(crate) fn node(&self, lease: Duration) -> Process {
        let mut process = self.process(lease);
        process.work();
        process
    }

    /// So many jobs of a tenant that run until their nodes let them go.
    pub(crate) fn hold(&self, tenant: &str, count: usize) -> Vec<JobId> {
        enqueue(&self.jobs.tenant(tenant).now(), (0..count).map(|_| Hold {}))
    }

    pub(crate) fn set_limit(&self, tenant: &str, max: Option<usize>) {
        let limits = max.map_or(Limits::new(), |max| Limits::new().running_max(max));
        until("the limit is set", || block_on(self.jobs.tenant(tenant).set_limits(limits)).is_ok());
    }

    /// What became of a job, by its id.
    pub(crate) fn record(&self, id: JobId) -> Record {
        block_on(self.jobs.get(id)).unwrap().unwrap()
    }

    /// A connection of the test's own.
    pub(crate) fn client(&self) -> Client {
        self.schema.connect()
    }
}

/// Enqueues jobs, each until that is acknowledged, whatever happens to the server meanwhile.
pub(crate) fn enqueue<J: Job>(plan: &Plan, jobs: impl IntoIterator<Item = J>) -> Vec<JobId> {
    let answers = block_on(plan.clone().enqueue_many(jobs)).into_iter();
    let acknowledged = |mut answer: Result<Handle<J::Output>, EnqueueError<J>>| {
        loop {
            let error = match answer {
                Ok(handle) => return handle.id(),
                Err(error) => error,
            };
            let Problem::Store { id, .. } = *error.problem() else { panic!("{error}") };
            pause(Duration::from_millis(50));
            answer = block_on(plan.clone().id(id).enqueue(error.into_job()));
        }
    };
    answers.map(acknowledged).collect()
}

/// A number that the database answers.
pub(crate) fn number(client: &mut Client, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> i64 {
    client.query_one(sql, parameters).unwrap_or_else(|error| panic!("{sql}: {error}")).get(0)
}

/// Asks again and again, until the answer is yes; answers how long that took.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let clock = Clock::system();
    let began = clock.now();
    while !is_so() {
        let waited = clock.now() - began;
        assert!(waited < PATIENCE, "it was not so within {waited:?}: {what}");
        pause(Duration::from_millis(10));
    }
    clock.now() - began
}

/// How many runs handlers have begun, of a process, that have not ended.
pub(crate) fn running_in(client: &mut Client, process: &Process) -> i64 {
    number(client, "SELECT count(*) FROM witness WHERE process = $1 AND ended_at IS NULL", &[&process.name()])
}
