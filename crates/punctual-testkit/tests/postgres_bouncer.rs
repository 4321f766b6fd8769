//! A PgBouncer between stores and their server, which gives out few connections and each by the transaction: everything
//! works, woken by a connection of its own to the server or, without one, by looking; and nothing is left behind in the
//! connections that others get next.
//!
//! In real time, since nobody's virtual clock moves a pooler; but nothing is measured.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use postgres::fallible_iterator::FallibleIterator;
use postgres::{Client, SimpleQueryMessage};
use punctual::{Limits, Stage};
use punctual_durable::{
    Backoff, Cancelled, Ctx, DurableError, Failure, Job, Jobs, Node, OnConflict, Outcome, PostgresOptions, Problem,
    Refused, Terms,
};
use punctual_testkit::block_on;
use punctual_testkit::postgres::{Schema, Server, connect};
use serde::{Deserialize, Serialize};

/// Nothing takes as long as this, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// So long that a node's heartbeat, a quarter of it, tells nothing before all patience is lost.
const LONG_LEASE: Duration = Duration::from_secs(600);

/// How many connections the pooler has.
const POOLED: usize = 4;

/// How many have the store open: more than the pooler has connections.
const STORES: usize = 6;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Work {
    Answer(u64),
    /// Fails at first.
    Insist,
    /// Says that it runs.
    Sweep,
    /// Runs until it is told to stop.
    Hold,
    /// Says how many run at this moment.
    Count,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = u64;
    const TERMS: Terms = Terms::new().backoff(Backoff::new(Duration::from_millis(1), Duration::from_millis(5)));
}

/// What a handler says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Sweeps,
    Holds,
    Stops,
}

/// Says so when it is dropped.
struct Stops(Sender<Said>);

impl Drop for Stops {
    fn drop(&mut self) {
        let _ = self.0.send(Said::Stops);
    }
}

/// Waits until others have had their chance.
async fn others_first() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A cluster behind a pooler: one process that runs jobs, and one that only asks for them.
struct Cluster {
    jobs: Jobs,
    node: Node,
    caller: Jobs,
    said: Receiver<Said>,
    /// They have the store open too.
    _others: Vec<Jobs>,
    /// It is dropped when they are.
    schema: Schema,
    /// Through the pooler.
    url: String,
    server: Server,
}

impl Cluster {
    fn new(listening: impl FnOnce(&Server) -> PostgresOptions) -> Self {
        // One that waits for the disk: who does not is to be noticed.
        let server = Server::start();
        let url = server.bouncer();
        let schema = Schema::at(server.url());
        let options = listening(&server).schema(schema.name());
        let (say, said) = channel();
        let mut others = open_at_a_time(&options, &url);
        let (jobs, caller) = (others.remove(0), others.remove(0));
        handle(&jobs, say);
        let node = block_on(jobs.node().workers(8).start()).unwrap();
        Self { jobs, node, caller, said, _others: others, schema, url, server }
    }

    fn hear(&self) -> Said {
        self.said.recv_timeout(PATIENCE).expect("a handler says something")
    }

    /// Everything that a store is asked for.
    fn exercise(&self) {
        self.assert_nothing_is_left_in_sessions();
        self.enqueue_singly_and_in_bulk();
        self.reject_a_key_that_is_taken();
        self.try_again();
        self.keep_a_limit();
        self.fire_a_schedule_once();
        self.cancel_what_runs();
        let totals = block_on(self.caller.totals()).unwrap();
        assert_eq!((totals.ready, totals.running, totals.stopping), (0, 0, 0));
        assert!(self.said.try_recv().is_err(), "something ran once more");
        self.assert_nothing_is_left_in_sessions();
    }

    fn enqueue_singly_and_in_bulk(&self) {
        thread::scope(|scope| {
            for (number, caller) in (0..16).zip(std::iter::repeat(&self.caller)) {
                scope.spawn(move || {
                    let job = block_on(caller.now().enqueue(Work::Answer(number))).unwrap();
                    assert_eq!(block_on(job.result()).unwrap(), number);
                });
            }
        });
        let many = block_on(self.caller.now().enqueue_many((0..500).map(Work::Answer)));
        for (number, job) in (0..).zip(many) {
            assert_eq!(block_on(job.unwrap().result()).unwrap(), number);
        }
    }

    fn reject_a_key_that_is_taken(&self) {
        let keyed = || self.caller.after(PATIENCE * 60).unique("key", OnConflict::Reject).enqueue(Work::Answer(0));
        let first = block_on(keyed()).unwrap();
        let refused = block_on(keyed()).unwrap_err();
        assert_eq!(refused.problem(), &Problem::Refused(Refused::Conflict(first.id())));
        assert_eq!(block_on(first.cancel()).unwrap(), Cancelled::Now(Stage::Scheduled));
        block_on(keyed()).unwrap();
    }

    fn try_again(&self) {
        let job = block_on(self.caller.now().max_attempts(3).enqueue(Work::Insist)).unwrap();
        assert_eq!(block_on(job.result()).unwrap(), 3, "the attempt that succeeds");
    }

    fn keep_a_limit(&self) {
        let tenant = self.caller.tenant("small");
        block_on(tenant.set_limits(Limits::new().running_max(2))).unwrap();
        let jobs = block_on(tenant.now().enqueue_many((0..60).map(|_| Work::Count)));
        let most = jobs.into_iter().map(|job| block_on(job.unwrap().result()).unwrap()).max();
        assert!(matches!(most, Some(1..=2)), "{most:?} ran at a time");
    }

    fn fire_a_schedule_once(&self) {
        let sweep = self.caller.every("sweep", PATIENCE * 60).first(Duration::from_secs(3));
        block_on(sweep.enqueue(Work::Sweep)).unwrap();
        assert_eq!(self.hear(), Said::Sweeps);
        let schedule = block_on(self.jobs.schedules(None, 2)).unwrap().pop().unwrap();
        assert_eq!((schedule.fired, schedule.missed_count), (1, 0));
    }

    /// And whoever listens at the server is told of each step.
    fn cancel_what_runs(&self) {
        let (mut witness, mut looker) = (self.schema.connect(), self.schema.connect());
        witness.batch_execute(&format!("LISTEN {}", self.schema.name())).unwrap();
        let mut told = |start: &str| {
            let told =
                witness.notifications().timeout_iter(PATIENCE).find(|said| Ok(said.payload().starts_with(start)));
            assert!(told.unwrap().is_some(), "nobody is told {start:?}");
        };
        let job = block_on(self.caller.now().enqueue(Work::Hold)).unwrap();
        told("w");
        assert_eq!(self.hear(), Said::Holds);
        let handle = self.jobs.handle::<u64>(job.id());
        let waiting = thread::spawn(move || block_on(handle.result()));
        while !waiting.is_finished() && texts(&mut looker, "SELECT job FROM waiter").is_empty() {}
        assert_eq!(block_on(job.cancel()).unwrap(), Cancelled::Now(Stage::Running));
        told(&format!("e{}", job.id()));
        for result in [waiting.join().unwrap(), block_on(job.result())] {
            assert!(matches!(result, Err(DurableError::Cancelled { .. })), "{result:?}");
        }
        assert_eq!(self.hear(), Said::Stops, "who runs it hears of it");
        block_on(self.node.drain());
        let record = block_on(self.jobs.get(job.id())).unwrap().unwrap();
        assert_eq!(record.state.outcome, Some(Outcome::Cancelled));
    }

    /// The pooler was in the way: it has given out its few connections by the transaction, and the server knows of no
    /// others but `besides`.
    fn assert_it_was_pooled(&self, besides: usize) {
        let mut console = connect(&self.url.replace("/postgres", "/pgbouncer")).unwrap();
        let pool = of_database(&mut console, "SHOW POOLS");
        assert_eq!(pool["pool_mode"], "transaction");
        let clients: usize = pool["cl_active"].parse().unwrap();
        assert!(clients > POOLED, "{clients} clients have been there, each with a connection of its own");
        let stats = of_database(&mut console, "SHOW STATS");
        let transactions: u64 = stats["total_xact_count"].parse().unwrap();
        assert!(transactions > 100, "{transactions} transactions");
        let connections = "SELECT count(*) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let connections: i64 = connect(self.server.url()).unwrap().query_one(connections, &[]).unwrap().get(0);
        let pooled = usize::try_from(connections).unwrap().saturating_sub(besides);
        assert!((1..=POOLED).contains(&pooled), "{pooled} connections");
    }

    /// Whoever gets a connection of the pooler next finds nothing in its session: no setting, no prepared statement, no
    /// temporary table, no lock.
    fn assert_nothing_is_left_in_sessions(&self) {
        // Those of PL/pgSQL are there when a function has been called.
        let settings = "SELECT name || ' = ' || setting FROM pg_settings
            WHERE name <> 'application_name' AND name NOT LIKE 'plpgsql.%'";
        let left = "SELECT 'prepared: ' || statement FROM pg_prepared_statements
            UNION ALL SELECT 'temporary: ' || relname FROM pg_class WHERE relpersistence = 't'
            UNION ALL SELECT 'locked: ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        let usual = texts(&mut connect(self.server.url()).unwrap(), settings);
        // One transaction in each of them, all at a time.
        let mut sessions: Vec<Client> = (0..POOLED).map(|_| connect(&self.url).unwrap()).collect();
        for session in &mut sessions {
            session.batch_execute("BEGIN").unwrap();
            let mut found = texts(session, settings);
            found.retain(|setting| !usual.contains(setting));
            found.extend(texts(session, left));
            assert_eq!(found, [""; 0]);
        }
        sessions.iter_mut().for_each(|session| session.batch_execute("ROLLBACK").unwrap());
    }
}

/// All open the store at the same moment: one makes the tables.
fn open_at_a_time(options: &PostgresOptions, url: &str) -> Vec<Jobs> {
    let open = || {
        let store = block_on(options.clone().open(url)).unwrap();
        assert!(format!("{store:?}").contains("prepares: false"), "{store:?}");
        block_on(Jobs::builder().over(Arc::new(store))).unwrap()
    };
    thread::scope(|scope| {
        let opening: Vec<_> = (0..STORES).map(|_| scope.spawn(open)).collect();
        opening.into_iter().map(|opening| opening.join().unwrap()).collect()
    })
}

fn handle(jobs: &Jobs, say: Sender<Said>) {
    let say = Mutex::new(say);
    let running = Arc::new(AtomicUsize::new(0));
    jobs.on(move |work: Work, ctx: Ctx| {
        let say = say.lock().unwrap().clone();
        let running = Arc::clone(&running);
        async move {
            match work {
                Work::Answer(number) => Ok(number),
                Work::Insist if ctx.attempt() < 3 => Err(Failure::retry("not yet")),
                Work::Insist => Ok(u64::from(ctx.attempt())),
                Work::Sweep => {
                    say.send(Said::Sweeps).unwrap();
                    Ok(0)
                }
                Work::Hold => {
                    say.send(Said::Holds).unwrap();
                    let _stops = Stops(say);
                    std::future::pending().await
                }
                Work::Count => {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    others_first().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok(now.try_into().unwrap())
                }
            }
        }
    });
}

/// What the pooler's console answers of the database that the stores are in.
fn of_database(console: &mut Client, question: &str) -> BTreeMap<String, String> {
    let answer = console.simple_query(question).unwrap();
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) if row.get("database") == Some("postgres") => Some(row),
        _ => None,
    });
    let row = row.unwrap_or_else(|| panic!("{question} says nothing of the database"));
    let names = row.columns().iter().map(|column| column.name());
    names.map(|name| (name.to_owned(), row.get(name).unwrap_or_default().to_owned())).collect()
}

/// The first column of an answer.
fn texts(client: &mut Client, question: &str) -> Vec<String> {
    let answer = client.simple_query(question).unwrap();
    let text = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    answer.iter().filter_map(text).collect()
}

/// C42, C49: the lease is so long that only a notification can tell in time that a job is to stop.
#[test]
fn behind_a_pooler_with_a_line_of_its_own_a_node_is_woken() {
    let cluster = Cluster::new(|server| PostgresOptions::new().listen_url(server.url()).lease(LONG_LEASE));
    cluster.exercise();
    cluster.assert_it_was_pooled(STORES);
}

/// C37, C42, C49: notifications do not arrive, so what is to be known is looked for. Once the connection that would
/// hear them, and that waits for no disk, said so in its session; so did then whoever got that session next, whose
/// commits were not durable.
#[test]
fn behind_a_pooler_without_a_line_of_its_own_a_node_looks() {
    let cluster = Cluster::new(|_| PostgresOptions::new().lease(Duration::from_secs(2)));
    cluster.exercise();
    cluster.assert_it_was_pooled(0);
}
