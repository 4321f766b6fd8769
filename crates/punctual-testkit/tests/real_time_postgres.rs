//! A PostgreSQL that dies and comes back, and a network that is gone for longer than a lease: with real servers and
//! real time, so instants are compared with loose bounds, and what must never happen with none.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests of real time, which panic when they fail")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use punctual_durable::{Ctx, Failure, Job, JobId, Jobs, Node, Outcome, PostgresOptions, Terms};
use punctual_testkit::block_on;
use punctual_testkit::postgres::{Schema, Server, proxied};
use serde::{Deserialize, Serialize};

/// Nothing takes as long as this, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize, Deserialize)]
struct Note(u128);

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = u128;
    const TERMS: Terms = Terms::new().max_attempts(3);
}

fn open(options: PostgresOptions, schema: &Schema, url: &str) -> Jobs {
    let store = block_on(options.schema(schema.name()).open(url)).unwrap();
    block_on(Jobs::builder().over(Arc::new(store))).unwrap()
}

/// Enqueues one job after the other, each under its own id until that is acknowledged, and says so. When it fails it
/// waits until the server is back, so as not to be the one who asks too often.
struct Feeder {
    jobs: Jobs,
    next: Arc<AtomicU64>,
    acknowledged: Sender<u128>,
    failures: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    back: Arc<Barrier>,
}

impl Feeder {
    fn feed(self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let number = u128::from(self.next.fetch_add(1, Ordering::Relaxed));
            let enqueue = || block_on(self.jobs.now().id(JobId::from_u128(number)).enqueue(Note(number)));
            if enqueue().is_err() {
                self.failures.fetch_add(1, Ordering::Relaxed);
                self.back.wait();
                while enqueue().is_err() {
                    thread::sleep(Duration::from_millis(50));
                }
            }
            self.acknowledged.send(number).unwrap();
        }
    }
}

/// C37, C38, C51: a server that dies with work under way loses nothing that was acknowledged; nobody asks it to death
/// while it is away; and when it is back, so is the work.
#[test]
fn a_server_that_dies_under_load_loses_nothing_and_work_resumes() {
    const FEEDERS: usize = 4;
    let server = Server::start();
    let schema = Schema::at(server.url());
    let (proxy, url) = proxied(server.url());
    let jobs = open(PostgresOptions::new().lease(Duration::from_secs(60)), &schema, &url);
    let (ran, runs) = channel();
    let ran = Mutex::new(ran);
    jobs.on(move |note: Note, _: Ctx| {
        ran.lock().unwrap().send((note.0, Instant::now())).unwrap();
        std::future::ready(Ok::<_, Failure>(note.0))
    });
    let node = block_on(jobs.node().workers(4).start()).unwrap();

    let (acknowledged, acknowledgements) = channel();
    let (failures, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (next, back) = (Arc::new(AtomicU64::new(1)), Arc::new(Barrier::new(FEEDERS + 1)));
    let feeders: Vec<_> = (0..FEEDERS)
        .map(|_| Feeder {
            jobs: jobs.clone(),
            next: Arc::clone(&next),
            acknowledged: acknowledged.clone(),
            failures: Arc::clone(&failures),
            is_over: Arc::clone(&is_over),
            back: Arc::clone(&back),
        })
        .map(|feeder| thread::spawn(move || feeder.feed()))
        .collect();
    let mut known = take(&acknowledgements, 200);

    server.stop();
    let before = proxy.counts();
    thread::sleep(Duration::from_secs(3));
    let tries = proxy.counts().connections - before.connections;
    // The engine, its heart, and the connection that listens each rest up to a second in between.
    assert!((1..=150).contains(&tries), "{tries} tries in three seconds");
    let restarted = Instant::now();
    server.start_again();
    back.wait();
    assert_eq!(failures.load(Ordering::Relaxed), 4, "every feeder was in the middle of something");

    known.extend(take(&acknowledgements, 200));
    is_over.store(true, Ordering::Relaxed);
    feeders.into_iter().for_each(|feeder| feeder.join().unwrap());
    drop(acknowledged);
    known.extend(acknowledgements.try_iter());
    for &number in &known {
        let result = block_on(jobs.handle::<u128>(JobId::from_u128(number)).result());
        assert_eq!(result.unwrap_or_else(|error| panic!("job {number}: {error}")), number);
    }

    let mut count: BTreeMap<u128, u64> = BTreeMap::new();
    let mut first_after = None;
    for (number, at) in runs.try_iter() {
        *count.entry(number).or_default() += 1;
        first_after = first_after.or_else(|| at.checked_duration_since(restarted));
    }
    assert!(first_after.is_some_and(|late| late < Duration::from_secs(15)), "{first_after:?}");
    for number in known {
        let record = block_on(jobs.get(JobId::from_u128(number))).unwrap();
        let record = record.unwrap_or_else(|| panic!("job {number} is lost"));
        assert_eq!(record.state.outcome, Some(Outcome::Succeeded), "{number}");
        // Its lease outlived the outage, so there was no reason for a second run.
        let times = count.get(&number).copied().unwrap_or_default();
        assert_eq!(times, 1, "job {number}, with fence {}", record.fence);
    }
    let totals = block_on(jobs.totals()).unwrap();
    assert_eq!((totals.ready, totals.running), (0, 0));

    // C42: and with nothing to do it asks little.
    let before = proxy.counts().requests;
    thread::sleep(Duration::from_secs(3));
    let asked = proxy.counts().requests - before;
    assert!((1..=40).contains(&asked), "{asked} requests of an idle node in three seconds");
    block_on(node.shutdown(Duration::from_secs(5)));
}

fn take(from: &Receiver<u128>, count: usize) -> Vec<u128> {
    (0..count).map(|_| from.recv_timeout(PATIENCE).unwrap()).collect()
}

/// What a handler says: who it is, the fence it has, and that it was told to stop.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Begins(&'static str, u64),
    Stops(&'static str, u64),
}

/// Says something when it is dropped.
struct Stops(Sender<Said>, Option<Said>);

impl Drop for Stops {
    fn drop(&mut self) {
        let _ = self.0.send(self.1.take().unwrap());
    }
}

/// C38, C39, C40, C51: a node that the network has cut off stops its jobs before its lease ends, another one runs them,
/// and whatever the first says later counts for nothing. When the network is back, so is its work.
#[test]
fn a_node_that_is_cut_off_stops_before_another_takes_over() {
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    let options = PostgresOptions::new().lease(Duration::from_secs(2));
    let (tell, told) = channel();
    let start = |name: &'static str, url: &str| -> (Jobs, Node) {
        let jobs = open(options.clone(), &schema, url);
        let tell = Mutex::new(tell.clone());
        jobs.on(move |note: Note, ctx: Ctx| {
            let tell = tell.lock().unwrap().clone();
            async move {
                tell.send(Said::Begins(name, ctx.fence())).unwrap();
                if name == "far" {
                    // A future that is to stop is dropped.
                    let _stops = Stops(tell, Some(Said::Stops(name, ctx.fence())));
                    std::future::pending::<()>().await;
                }
                Ok::<_, Failure>(note.0)
            }
        });
        let node = block_on(jobs.start()).unwrap();
        (jobs, node)
    };
    let hear = || told.recv_timeout(PATIENCE).unwrap();

    let (far, far_node) = start("far", &url);
    let handle = block_on(far.now().id(JobId::from_u128(7)).enqueue(Note(7))).unwrap();
    assert_eq!(hear(), Said::Begins("far", 1));
    let (near, near_node) = start("near", schema.url());
    proxy.blackhole();
    assert_eq!(hear(), Said::Stops("far", 1), "it stops before the other begins");
    assert_eq!(hear(), Said::Begins("near", 2));
    assert!(proxy.counts().swallowed > 0, "the fault happened");
    assert_eq!(block_on(near.handle::<u128>(JobId::from_u128(7)).result()).unwrap(), 7);

    // The network is back, and has forgotten the connections: what was asked meanwhile is never answered.
    proxy.forget();
    let back = Instant::now();
    block_on(near_node.shutdown(Duration::from_secs(5)));
    block_on(near.now().id(JobId::from_u128(8)).enqueue(Note(8))).unwrap();
    assert_eq!(hear(), Said::Begins("far", 1));
    // C51 says 5 s; this is the path, with room for a busy machine. Whoever waited for an answer would wait for 30 s.
    assert!(back.elapsed() < Duration::from_secs(20), "{:?}", back.elapsed());
    assert_eq!(block_on(handle.result()).unwrap(), 7, "the one who was cut off hears of the end too");
    let record = block_on(near.get(JobId::from_u128(7))).unwrap().unwrap();
    assert_eq!((record.state.outcome, record.fence, record.crashes), (Some(Outcome::Succeeded), 2, 1));
    block_on(far_node.shutdown(Duration::ZERO));
    assert_eq!(hear(), Said::Stops("far", 1));
    assert!(told.try_recv().is_err(), "it ran once more");
}

/// C39, C51: connections that are lost without a word cost neither the lease nor, for long, the work: what was asked
/// over them is asked again over new ones.
#[test]
fn a_node_whose_connections_are_lost_without_a_word_goes_on() {
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    // So long that even on a busy machine one heartbeat of two is answered in time.
    let far = open(PostgresOptions::new().lease(Duration::from_secs(20)), &schema, &url);
    let near = open(PostgresOptions::new(), &schema, schema.url());
    let (ran, runs) = channel();
    let ran = Mutex::new(ran);
    far.on(move |note: Note, _: Ctx| {
        ran.lock().unwrap().send(note.0).unwrap();
        std::future::ready(Ok::<_, Failure>(note.0))
    });
    let node = block_on(far.start()).unwrap();
    let (id, enqueue) = (node.id(), |number| block_on(near.now().enqueue(Note(number))).unwrap());
    let renewed = || {
        let nodes = block_on(near.nodes()).unwrap();
        nodes.into_iter().find(|node| node.beat.node == id).expect("it has its lease").expires_at
    };
    enqueue(1);
    assert_eq!(take(&runs, 1), [1]);
    let before = renewed();
    assert!(proxy.forget() > 2);
    let forgotten = Instant::now();
    enqueue(2);
    assert_eq!(take(&runs, 1), [2]);
    // As above.
    assert!(forgotten.elapsed() < Duration::from_secs(20), "{:?}", forgotten.elapsed());
    assert!(proxy.counts().swallowed > 0, "the fault happened");
    while renewed() == before {
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(node.id(), id);
    // The first look for jobs to forget may be among what was not answered: a shutdown does not wait for it.
    block_on(node.shutdown(Duration::from_secs(5)));
    assert!(forgotten.elapsed() < Duration::from_secs(25), "{:?}", forgotten.elapsed());
}

/// C1, C43: what a node is given before it is due starts no sooner, by the clock that both read.
#[test]
fn what_is_foreseen_is_never_early() {
    let schema = Schema::new();
    let jobs = open(PostgresOptions::new(), &schema, schema.url());
    let (tell, told) = channel();
    jobs.on(move |note: Note, ctx: Ctx| {
        let (now, record) = (SystemTime::now(), ctx.record());
        tell.send((now, record.due.to_wall(), record.started_at == Some(record.due))).unwrap();
        std::future::ready(Ok::<_, Failure>(note.0))
    });
    let _node = block_on(jobs.start()).unwrap();
    for number in 0..200 {
        let delay = Duration::from_micros(100_000 + 3_137 * u64::from(number % 100_u16));
        block_on(jobs.after(delay).enqueue(Note(u128::from(number)))).unwrap();
    }
    let mut foreseen = 0;
    for _ in 0..200 {
        let (now, due, is_foreseen) = told.recv_timeout(PATIENCE).unwrap();
        assert!(now >= due, "early by {:?}", due.duration_since(now));
        foreseen += u32::from(is_foreseen);
    }
    assert!(foreseen > 0, "nothing was given before it was due");
}

/// C38, C58: what is enqueued beside a node that has nothing to do is given to it in the same step; it runs once, and
/// all numbers are the true ones.
#[test]
fn what_is_enqueued_beside_an_idle_node_is_given_to_it() {
    let schema = Schema::new();
    let jobs = open(PostgresOptions::new(), &schema, schema.url());
    let (tell, told) = channel();
    jobs.on(move |note: Note, _: Ctx| {
        tell.send(note.0).unwrap();
        std::future::ready(Ok::<_, Failure>(note.0))
    });
    let node = block_on(jobs.node().workers(2).start()).unwrap();
    for number in 0..100 {
        block_on(jobs.now().enqueue(Note(number))).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), number);
    }
    block_on(node.drain());
    assert!(told.try_recv().is_err(), "one ran twice");
    let mut client = schema.connect();
    let given =
        "SELECT count(*) FILTER (WHERE started_at = enqueued_at), count(*) FILTER (WHERE fence = 1) FROM history";
    let row = client.query_one(given, &[]).unwrap();
    let (given, once): (i64, i64) = (row.get(0), row.get(1));
    assert!(given > 0 && once == 100, "{given} {once}");
    let totals = block_on(jobs.totals()).unwrap();
    assert_eq!((totals.ready, totals.running, totals.ended[&Outcome::Succeeded]), (0, 0, 100));
}
