//! A network between a node and its PostgreSQL that is bad all the time: connections break again and again while there
//! is work, or every answer is late. With a real server and real time, so instants are compared with loose bounds, and
//! what must never happen with none. Each test asserts that its fault happened.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests of real time, which panic when they fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use punctual_durable::{Ctx, Failure, Job, JobId, Jobs, Outcome, PostgresOptions, Store};
use punctual_testkit::postgres::{Schema, proxied};
use punctual_testkit::{NODE, beat, block_on};
use serde::{Deserialize, Serialize};

/// Nothing takes as long as this, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize, Deserialize)]
struct Note(u64);

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = u64;
}

/// The id of the job with this number.
fn id(number: u64) -> JobId {
    JobId::from_u128(number.into())
}

fn open(lease: Duration, schema: &Schema, url: &str) -> Jobs {
    let options = PostgresOptions::new().lease(lease).pool_size(POOL).schema(schema.name());
    let store = block_on(options.open(url)).unwrap();
    block_on(Jobs::builder().over(Arc::new(store))).unwrap()
}

const POOL: usize = 10;

/// The handler tells its number and its fence.
fn told(jobs: &Jobs) -> Receiver<(u64, u64)> {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    jobs.on(move |note: Note, ctx: Ctx| {
        tell.lock().unwrap().send((note.0, ctx.fence())).unwrap();
        std::future::ready(Ok::<_, Failure>(note.0))
    });
    told
}

/// A caller that enqueues one job after the other, each under its own id until that is acknowledged, and says so.
struct Caller {
    jobs: Jobs,
    next: Arc<AtomicU64>,
    acknowledged: Sender<u64>,
    failures: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Caller {
    fn call(self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            while block_on(self.jobs.now().id(id(number)).enqueue(Note(number))).is_err() {
                self.failures.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(5));
            }
            self.acknowledged.send(number).unwrap();
        }
    }
}

/// C37, C38, C51: connections are cut and reset again and again while a node works and callers enqueue, and repeat what
/// failed: nothing that was acknowledged is lost, every job ends well and runs once, for the lease is kept; and lost
/// connections are replaced, not more than that. Once some jobs were held by the node for ever, which knew nothing of
/// them: it had asked what a claim had given it whose answer was lost, and the server did that claim afterwards.
#[test]
fn connections_that_break_again_and_again_lose_nothing() {
    const BREAKS: usize = 20;
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    let jobs = open(Duration::from_secs(10), &schema, &url);
    let runs = told(&jobs);
    let node = block_on(jobs.node().workers(4).start()).unwrap();
    let was = node.id();

    let (acknowledged, acknowledgements) = channel();
    let (failures, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let next = Arc::new(AtomicU64::new(1));
    let callers: Vec<_> = (0..4)
        .map(|_| Caller {
            jobs: jobs.clone(),
            next: Arc::clone(&next),
            acknowledged: acknowledged.clone(),
            failures: Arc::clone(&failures),
            is_over: Arc::clone(&is_over),
        })
        .map(|caller| thread::spawn(move || caller.call()))
        .collect();
    let mut known = BTreeSet::new();
    for broken in 0..BREAKS {
        // Work is under way again.
        known.extend((0..20).map(|_| acknowledgements.recv_timeout(PATIENCE).unwrap()));
        if broken.is_multiple_of(2) {
            proxy.cut()
        } else {
            proxy.reset()
        };
    }
    is_over.store(true, Ordering::Relaxed);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    drop(acknowledged);
    known.extend(acknowledgements.try_iter());
    assert_eq!(known, (1..next.load(Ordering::Relaxed)).collect(), "each was acknowledged in the end");

    let near = open(Duration::from_secs(60), &schema, schema.url());
    let left = || block_on(near.totals()).map(|totals| totals.ready + totals.running).unwrap();
    let waited = Instant::now();
    while left() > 0 {
        assert!(waited.elapsed() < PATIENCE, "{} are left", left());
        thread::sleep(Duration::from_millis(10));
    }
    let mut fences: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    runs.try_iter().for_each(|(number, fence)| fences.entry(number).or_default().push(fence));
    for &number in &known {
        let record = block_on(near.get(id(number))).unwrap().unwrap_or_else(|| panic!("job {number} is lost"));
        assert_eq!(record.state.outcome, Some(Outcome::Succeeded), "{number}");
        // A claim that was not heard was given back, so the fence may be higher.
        assert_eq!(fences[&number], [record.fence], "{number}");
    }
    let totals = block_on(near.totals()).unwrap();
    assert_eq!((totals.ready, totals.running, totals.ended[&Outcome::Succeeded]), (0, 0, known.len() as u64));
    assert_eq!(node.id(), was, "it has its lease");
    let counts = proxy.counts();
    let (broken, failures) = (counts.cut + counts.reset, failures.load(Ordering::Relaxed));
    eprintln!("{counts:?}, {} jobs, {failures} failures", known.len());
    assert!(counts.cut > 0 && counts.reset > 0 && counts.broken_off > 0 && failures > 0, "{counts:?}");
    assert!(counts.connections <= broken + POOL as u64 + 1, "{counts:?}");
    block_on(node.shutdown(Duration::from_secs(5)));
}

/// C36, C38, C39: on a connection that is cut a server goes on. A node that has asked what came of its claim, has shut
/// down and will not ask again holds nothing by what is done only then, though its process lives on, and with it the
/// lease: once that was nobody's to run for as long.
#[test]
fn a_claim_that_the_server_does_after_the_node_has_stopped_gives_nothing() {
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    let (far, near) =
        (open(Duration::from_secs(60), &schema, &url), open(Duration::from_secs(60), &schema, schema.url()));
    let runs = told(&far);
    let node = block_on(far.node().workers(4).start()).unwrap();
    // From then on its tenant is known, and has nothing.
    block_on(near.now().enqueue(Note(0))).unwrap().detach();
    runs.recv_timeout(PATIENCE).unwrap();
    block_on(node.drain());

    let (mut holder, mut witness) = (schema.connect(), schema.connect());
    // Whoever would write there waits: of all that a node does, its claims, and not its heartbeats.
    let mut held = holder.transaction().unwrap();
    held.batch_execute("LOCK TABLE tenant IN EXCLUSIVE MODE").unwrap();
    let mut claims_held = || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%.claim(%' AND wait_event_type = 'Lock' AND query LIKE $1";
        witness.query_one(waiting, &[&format!("%{}%", schema.name())]).unwrap().get::<_, i64>(0)
    };
    block_on(near.now().enqueue(Note(1))).unwrap().detach();
    let waited = Instant::now();
    while claims_held() == 0 {
        assert!(waited.elapsed() < PATIENCE, "nothing was claimed");
        thread::sleep(Duration::from_millis(5));
    }
    proxy.cut();
    block_on(node.shutdown(Duration::ZERO));
    assert!(proxy.counts().broken_off > 0 && claims_held() > 0, "the fault happened");
    held.rollback().unwrap();
    while claims_held() > 0 {
        assert!(waited.elapsed() < PATIENCE, "a claim is still held");
        thread::sleep(Duration::from_millis(5));
    }
    // It is done when nobody has the tenant any more.
    witness.batch_execute("BEGIN; LOCK TABLE tenant IN EXCLUSIVE MODE; COMMIT").unwrap();
    let totals = block_on(near.totals()).unwrap();
    assert_eq!((totals.ready, totals.running), (1, 0), "it is there for others");
}

/// C38, C39: a node behind a network on which everything takes 200 ms each way keeps its lease over several of them,
/// and runs everything once. Once a heartbeat might have to wait for a connection to be made, which takes six times as
/// long as an answer, and then had all others closed; so the next was late as well, and what was claimed meanwhile was
/// not heard of.
#[test]
fn a_node_lives_behind_a_slow_network() {
    const DELAY: Duration = Duration::from_millis(200);
    const LEASE: Duration = Duration::from_secs(5);
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    let (far, near) = (open(LEASE, &schema, &url), open(LEASE, &schema, schema.url()));
    let runs = told(&far);
    let node = block_on(far.node().workers(4).start()).unwrap();
    let was = node.id();
    let at_start = proxy.counts().connections;
    proxy.delay(DELAY);
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() < LEASE * 5 / 2 {
        let jobs = (0..10).map(|_| {
            number += 1;
            Note(number)
        });
        assert!(block_on(near.now().enqueue_many(jobs)).iter().all(Result::is_ok));
        let mut ran: Vec<_> = (0..10).map(|_| runs.recv_timeout(PATIENCE).unwrap()).collect();
        ran.sort_unstable();
        assert_eq!(ran, (number - 9..=number).map(|number| (number, 1)).collect::<Vec<_>>(), "{:?}", began.elapsed());
    }
    assert_eq!(node.id(), was, "it has its lease");
    let (asked, before) = (Instant::now(), proxy.counts());
    assert_eq!(block_on(far.totals()).unwrap().ready, 0);
    assert!(asked.elapsed() >= DELAY * 2 && proxy.counts().delayed >= before.delayed + 2, "the fault happened");
    assert_eq!(before.connections, at_start, "it has all it needs");
    proxy.pass();
    block_on(node.shutdown(PATIENCE));
    assert!(runs.try_recv().is_err(), "one ran twice");
    assert_eq!(block_on(near.totals()).unwrap().ended[&Outcome::Succeeded], number);
}

/// C39: a heartbeat that is answered late costs no connection: others are doubted only when it would be too late for
/// the lease to wait any longer.
#[test]
fn a_slow_answer_costs_no_connection() {
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    // Half of the pool is the node's.
    let options = PostgresOptions::new().lease(Duration::from_secs(8)).pool_size(6).schema(schema.name());
    let store = block_on(options.open(&url)).unwrap();
    let beats = |count| {
        let sent: Vec<_> = (0..count).map(|_| store.heartbeat(beat(NODE, &[]))).collect();
        sent.into_iter().for_each(|answer| assert!(block_on(answer).unwrap().known));
    };
    block_on(store.join(beat(NODE, &[]))).unwrap();
    // Until each of its connections has been asked before.
    (0..3).for_each(|_| beats(3));
    let connections = proxy.counts().connections;
    // More than an eighth of the lease, and less than three.
    proxy.delay(Duration::from_millis(600));
    for count in [1, 3, 1, 3] {
        let sent = Instant::now();
        beats(count);
        assert!(sent.elapsed() >= Duration::from_millis(1_200), "the fault happened");
    }
    assert_eq!(proxy.counts().connections, connections);
}

/// C38, C39: a network that gets slower and slower, until a round trip takes two seconds, costs a node neither its
/// lease nor a connection, and everything runs once. Once whatever took longer than three seconds was begun again, over
/// new connections, which are made by five round trips and answer for the first time after two more: eight jobs ran in
/// a minute and a half, and the lease was lost.
#[test]
fn a_node_is_as_patient_as_the_network_is_slow() {
    const LEASE: Duration = Duration::from_secs(20);
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    let (far, near) = (open(LEASE, &schema, &url), open(LEASE, &schema, schema.url()));
    let runs = told(&far);
    let node = block_on(far.node().workers(10).start()).unwrap();
    let (was, at_start) = (node.id(), proxy.counts().connections);
    let began = Instant::now();
    let mut number = 0;
    for delay in [500, 500, 500, 1_000, 1_000, 1_000].map(Duration::from_millis) {
        proxy.delay(delay);
        let jobs = (number..).take(10).map(Note).collect::<Vec<_>>();
        assert!(block_on(near.now().enqueue_many(jobs)).iter().all(Result::is_ok));
        let mut ran: Vec<_> = (0..10).map(|_| runs.recv_timeout(PATIENCE).unwrap()).collect();
        ran.sort_unstable();
        assert_eq!(ran, (number..number + 10).map(|number| (number, 1)).collect::<Vec<_>>(), "{:?}", began.elapsed());
        number += 10;
    }
    let (asked, counts) = (Instant::now(), proxy.counts());
    assert_eq!(block_on(far.totals()).unwrap().ready, 0);
    assert!(asked.elapsed() >= Duration::from_secs(2), "the fault happened");
    assert_eq!((node.id(), counts.connections), (was, at_start), "it has its lease, and all it needs");
    proxy.pass();
    block_on(node.shutdown(PATIENCE));
    assert!(runs.try_recv().is_err(), "one ran twice");
}
