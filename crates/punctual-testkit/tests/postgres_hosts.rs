//! A URL that names several hosts, as people write it: whichever takes writes is found, whatever the others do.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use postgres::Config;
use punctual::Clock;
use punctual_durable::{Ctx, Failure, Job, JobId, Jobs, Moment, NewJob, PostgresOptions, PostgresStore, Store};
use punctual_testkit::block_on;
use punctual_testkit::cluster::pause;
use punctual_testkit::postgres::{Schema, Server, connect};
use punctual_testkit::proxy::Proxy;
use serde::{Deserialize, Serialize};

/// Nothing takes as long as this, on any machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Nobody is there.
const DOWN: &str = "127.0.0.1:1";

#[derive(Debug, Serialize, Deserialize)]
struct Echo(u32);

impl Job for Echo {
    const KIND: &'static str = "echo";
    type Output = u32;
}

/// The hosts of a server's URL, in their order.
fn hosts(server: &Server) -> Vec<String> {
    let ports = server.url().parse::<Config>().unwrap().get_ports().to_vec();
    ports.into_iter().map(|port| format!("127.0.0.1:{port}")).collect()
}

fn url(hosts: &[&str]) -> String {
    format!("postgres://postgres@{}/postgres", hosts.join(","))
}

fn open(url: &str, schema: &Schema) -> PostgresStore {
    let options = PostgresOptions::new().schema(schema.name()).timeout(Duration::from_secs(4));
    block_on(options.open(url)).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = Clock::system();
    let began = clock.now();
    while !is_so() {
        assert!(clock.now() - began < PATIENCE, "it was not so in time: {what}");
        pause(Duration::from_millis(10));
    }
}

/// A node at work there, and what it does.
fn works(url: &str, schema: &Schema) {
    let jobs = block_on(Jobs::builder().over(Arc::new(open(url, schema)))).unwrap();
    jobs.on(|echo: Echo, _: Ctx| async move { Ok::<_, Failure>(echo.0) });
    let node = block_on(jobs.start()).unwrap();
    let handle = block_on(jobs.now().enqueue(Echo(7))).unwrap();
    assert_eq!(block_on(handle.into_future()), Ok(7), "{url}");
    block_on(node.shutdown(Duration::from_secs(1)));
}

/// C51: a standby, a machine that is down, and one that takes a connection and never says a word, stand before it.
#[test]
fn the_host_that_takes_writes_is_found_wherever_it_stands() {
    let pair = Server::start_pair();
    let [standby, primary] = &hosts(&pair)[..] else { panic!("two hosts") };
    let schema = Schema::at(pair.url());
    works(pair.url(), &schema);
    // Its connections are made by the system, and nobody takes them.
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = &hangs.local_addr().unwrap().to_string();
    works(&url(&[primary, standby]), &schema);
    works(&url(&[DOWN, primary]), &schema);
    works(&url(&[silent, primary]), &schema);
    works(&url(&[silent, DOWN, standby, silent, primary]), &schema);
    hangs.set_nonblocking(true).unwrap();
    assert!(hangs.accept().is_ok(), "the fault happened");
}

/// C51: the primary falls silent, and is never heard of again. While it is asked in vain its standby is asked again and
/// again, until that takes its place.
#[test]
fn a_standby_is_found_while_the_primary_is_silent() {
    let pair = Server::start_pair();
    let [standby, primary] = &hosts(&pair)[..] else { panic!("two hosts") };
    let proxy = Proxy::start(primary.parse().unwrap());
    let schema = Schema::at(pair.url());
    let both = &url(&[standby, &proxy.addr().to_string()]);
    let store = open(both, &schema);
    let enqueue = |id| {
        let job = NewJob { due: Moment::After(PATIENCE), ..NewJob::new(JobId::from_u128(id), "k") };
        block_on(store.enqueue(vec![job])).map(|mut answers| answers.remove(0).unwrap())
    };
    enqueue(1).unwrap();
    proxy.blackhole();
    let error = enqueue(2).unwrap_err();
    assert!(error.is_transient(), "{error}");
    let before = proxy.counts().connections;
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| block_on(PostgresOptions::new().schema(schema.name()).open(both)).unwrap());
        // The standby has said no by then, and this one will say nothing.
        until("the newcomer waits", || proxy.counts().connections > before);
        pair.promote();
        newcomer.join().unwrap();
    });
    until("it goes on", || enqueue(3).is_ok());
    let mut client = connect(&url(&[standby])).unwrap();
    let jobs = format!("SELECT count(*) FROM {}.sched", schema.name());
    assert_eq!(client.query_one(&jobs, &[]).unwrap().get::<_, i64>(0), 2, "what was acknowledged");
    assert!(proxy.counts().swallowed > 0, "the fault happened");
}

/// C51: a server that takes no writes any more need not end connections. The one that listens writes nothing, so it
/// does not notice by itself; and nobody says anything there any more.
#[test]
fn the_connection_that_listens_leaves_a_server_that_takes_no_writes() {
    let (first, second) = (Server::start_fast(), Server::start_fast());
    let schema = &Schema::at(first.url());
    let both = url(&[&hosts(&first)[0], &hosts(&second)[0]]);
    let ear = format!("{both}?application_name=ear");
    // A store of the same name is at both.
    drop(open(second.url(), schema));
    let options = PostgresOptions::new().schema(schema.name()).listen_url(&ear);
    let store = block_on(options.open(&both)).unwrap();
    let ears = |server: &Server| -> i64 {
        let asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ear'";
        let mut client = server.url().parse::<Config>().unwrap().connect(postgres::NoTls).unwrap();
        client.query_one(asked, &[]).unwrap().get(0)
    };
    assert_eq!((ears(&first), ears(&second)), (1, 0));
    let mut admin = connect(first.url()).unwrap();
    let mut set = |value: &str| {
        admin.batch_execute("SET default_transaction_read_only = off").unwrap();
        admin.batch_execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}")).unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").unwrap();
    };
    set("on");
    until("it listens at the other", || (ears(&first), ears(&second)) == (0, 1));
    drop(store);
    set("off");
}
