//! A PostgreSQL to test with.
//!
//! Tests that need nothing but a database share one server: that of `PUNCTUAL_POSTGRES_URL`, as `scripts/postgres run`
//! sets it, or one that the first of them starts and that goes with the test process. Each has a [`Schema`] of its own
//! there. Tests that break the server have one to themselves ([`Server`]).
//!
//! Without an installed PostgreSQL such tests fail, and say what to install: a suite that passes because it did not run
//! is worth nothing.

use std::io::{BufRead, BufReader, Write};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use postgres::config::{Host, TargetSessionAttrs};
use postgres::{Client, Config, NoTls, SimpleQueryMessage, SimpleQueryRow};

use crate::proxy::Proxy;

/// A server that a test has to itself, to be stopped and started. It is gone when this is dropped, or when its process
/// is, however that one ends.
///
/// # Example
/// ```no_run
/// use punctual_testkit::postgres::Server;
///
/// let server = Server::start();
/// server.stop();
/// server.start_again();
/// println!("{}", server.url());
/// ```
#[derive(Debug)]
pub struct Server {
    keeper: Mutex<Keeper>,
    url: String,
}

/// `scripts/postgres hold`, which keeps the server as long as its input is open.
#[derive(Debug)]
struct Keeper {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Server {
    /// One that keeps what it has committed, whatever happens to it.
    ///
    /// # Panics
    /// If no PostgreSQL is installed; the script has said so then.
    #[must_use]
    pub fn start() -> Self {
        Self::hold(&[])
    }

    /// One that does not wait for the disk, and may forget when it is stopped.
    #[must_use]
    pub fn start_fast() -> Self {
        Self::hold(&["--fast"])
    }

    /// Two: what is committed at the first is at the second too, before anybody hears of it. The URL names both, the
    /// second before the first.
    #[must_use]
    pub fn start_pair() -> Self {
        let pair = Self::hold(&["--pair"]);
        let mut client = connect(&pair.url).unwrap();
        let is_safe = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        while client.query_one(is_safe, &[]).unwrap().get::<_, i64>(0) == 0 {
            crate::cluster::pause(Duration::from_millis(10));
        }
        pair
    }

    /// One that can encrypt. It shows the certificate `right` at first, for localhost and 127.0.0.1.
    ///
    /// # Panics
    /// If no PostgreSQL is installed, or no openssl; the script has said so then.
    #[must_use]
    pub fn start_encrypted() -> Self {
        Self::hold(&["--tls"])
    }

    /// Starts it again with another certificate: `right`, `misnamed`, `expired`, `v1` (of the first version), `itself`
    /// (its own authority) or `itself-expired`.
    pub fn present(&self, certificate: &str) {
        self.order(&format!("present {certificate}"), "presented");
    }

    /// Starts it again, and lets in over the network whom this line of `pg_hba.conf` does, and nobody else.
    pub fn admit(&self, line: &str) {
        self.order(&format!("admit {line}"), "admitted");
    }

    /// Where a certificate or an authority (`ca`, `foreign`) of one that can encrypt is.
    #[must_use]
    pub fn certificate(&self, name: &str) -> PathBuf {
        Path::new(&self.tell("folder")).join(name).with_extension("pem")
    }

    /// Where clients on this machine reach it without a network, and are always let in.
    #[must_use]
    pub fn socket_url(&self) -> String {
        let (_, port) = self.url.rsplit_once(':').unwrap();
        format!("postgres://postgres@{}:{port}", self.tell("folder").replace('/', "%2F"))
    }

    /// Lets the second server of a pair take the place of the first, which has been stopped.
    pub fn promote(&self) {
        self.order("promote", "promoted");
    }

    fn hold(options: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres");
        let mut command = Command::new(script);
        let mut process =
            command.arg("hold").args(options).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let orders = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut keeper = Keeper { process, orders, answers };
        let url = keeper.answer();
        Self { keeper: Mutex::new(keeper), url }
    }

    /// Where clients reach it: the same before a stop and after.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Stops it at once, as a crash would: connections break, and what was not committed is gone.
    pub fn stop(&self) {
        self.order("stop", "stopped");
    }

    /// Starts it again, with what it had, at the same place.
    pub fn start_again(&self) {
        self.order("start", "started");
    }

    /// Puts a PgBouncer before it, which gives out four connections by the transaction, and says where clients reach
    /// that. It goes with the server.
    ///
    /// # Panics
    /// If no PgBouncer is installed; the script has said so then.
    #[must_use]
    pub fn bouncer(&self) -> String {
        self.tell("bouncer")
    }

    fn order(&self, order: &str, expected: &str) {
        assert_eq!(self.tell(order), expected, "the server did not {order}");
    }

    fn tell(&self, order: &str) -> String {
        let mut keeper = self.keeper.lock().unwrap();
        let orders = keeper.orders.as_mut().unwrap();
        writeln!(orders, "{order}").unwrap();
        keeper.answer()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(keeper) = self.keeper.get_mut() {
            keeper.orders = None;
            let _ = keeper.process.wait();
        }
    }
}

impl Keeper {
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(
            line.ends_with('\n'),
            "there is no PostgreSQL, or no PgBouncer, to test with: see what `scripts/postgres hold` says"
        );
        line.trim_end().to_owned()
    }
}

/// Where the server that tests share is.
#[must_use]
pub fn url() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    // Never dropped: its keeper notices the end of the process.
    static SERVER: OnceLock<Server> = OnceLock::new();
    URL.get_or_init(|| {
        let given = std::env::var("PUNCTUAL_POSTGRES_URL").ok().filter(|url| !url.is_empty());
        given.unwrap_or_else(|| SERVER.get_or_init(Server::start_fast).url().to_owned())
    })
}

/// A connection to a server, or to what stands before it; of several to the one that takes writes.
///
/// # Errors
/// If nobody answers there.
pub fn connect(url: &str) -> Result<Client, postgres::Error> {
    let mut config: Config = url.parse()?;
    // A pooler's console does not know what that is.
    if config.get_hosts().len() > 1 {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    config.connect_timeout(Duration::from_secs(10)).connect(NoTls)
}

/// All that a question is answered with, as text: one line per row.
///
/// # Errors
/// What the server says against it.
pub fn ask(client: &mut Client, sql: &str) -> Result<Vec<String>, String> {
    let rows = client.simple_query(sql).map_err(|error| match error.as_db_error() {
        Some(error) => error.message().to_owned(),
        None => error.to_string(),
    })?;
    let line =
        |row: &SimpleQueryRow| (0..row.len()).map(|column| row.get(column).unwrap_or("")).collect::<Vec<_>>().join(" ");
    let rows = rows.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(line(row)),
        _ => None,
    });
    Ok(rows.collect())
}

/// The only answer.
///
/// # Panics
/// If the server says anything against it.
pub fn one(client: &mut Client, sql: &str) -> String {
    ask(client, sql).unwrap_or_else(|error| panic!("{sql}: {error}")).join("\n")
}

/// A proxy before a server, and where clients reach the server through it.
///
/// # Panics
/// If the URL does not name one host and its port.
#[must_use]
pub fn proxied(url: &str) -> (Proxy, String) {
    let config: Config = url.parse().unwrap();
    let ([Host::Tcp(host)], [port]) = (config.get_hosts(), config.get_ports()) else {
        panic!("{url} has not one host and its port")
    };
    let server = (host.as_str(), *port).to_socket_addrs().unwrap().next().unwrap();
    let proxy = Proxy::start(server);
    let url = url.replacen(&format!("{host}:{port}"), &proxy.addr().to_string(), 1);
    (proxy, url)
}

/// The name of a schema on a server that nobody else uses. Whoever opens a store creates it; it is dropped with this.
///
/// # Example
/// ```no_run
/// use punctual_testkit::postgres::Schema;
///
/// let schema = Schema::new();
/// println!("{} at {}", schema.name(), schema.url());
/// ```
#[derive(Debug)]
pub struct Schema {
    name: String,
    url: String,
}

impl Schema {
    /// On the server that tests share.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Self {
        Self::at(url())
    }

    /// On this server.
    #[must_use]
    pub fn at(url: &str) -> Self {
        // Other processes test at the same server, perhaps on other machines.
        let name = format!("test_{}_{:016x}", std::process::id(), fastrand::u64(..));
        Self { name, url: url.to_owned() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its server is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection that sees it.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn connect(&self) -> Client {
        let mut client = connect(&self.url).unwrap_or_else(|error| panic!("{}: {error}", self.url));
        client.batch_execute(&format!("SET search_path TO {}", self.name)).unwrap();
        client
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        // Nobody should be in the way, but a test that failed may have left somebody; and its server may be gone.
        let drop = format!(
            "SET lock_timeout = '10s'; SET client_min_messages = warning; DROP SCHEMA IF EXISTS {} CASCADE",
            self.name
        );
        let try_once = || connect(&self.url).and_then(|mut client| client.batch_execute(&drop));
        // Those who are about to leave may be in the middle of it: of a deadlock one side is told.
        let again = |error| if is_deadlock(&error) { try_once() } else { Err(error) };
        if let Err(error) = try_once().or_else(again).or_else(again) {
            let why = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
            eprintln!("schema {} stays: {why}", self.name);
        }
    }
}

fn is_deadlock(error: &postgres::Error) -> bool {
    error.code() == Some(&postgres::error::SqlState::T_R_DEADLOCK_DETECTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(client: &mut Client, sql: &str) -> i64 {
        client.query_one(sql, &[]).unwrap().get(0)
    }

    #[test]
    fn a_schema_is_dropped_with_its_name() {
        let (one, two) = (Schema::new(), Schema::new());
        assert_ne!(one.name(), two.name());
        let mut client = connect(one.url()).unwrap();
        for schema in [&one, &two] {
            client.batch_execute(&format!("CREATE SCHEMA {0}; CREATE TABLE {0}.t (n int)", schema.name())).unwrap();
            assert_eq!(number(&mut schema.connect(), "SELECT count(*) FROM t"), 0);
        }
        let there = format!("SELECT count(*) FROM pg_namespace WHERE nspname IN ('{}', '{}')", one.name(), two.name());
        assert_eq!(number(&mut client, &there), 2);
        drop(one);
        assert_eq!(number(&mut client, &there), 1);
        drop(two);
        assert_eq!(number(&mut client, &there), 0);
    }

    /// What was committed is there after a stop; what was not, and every connection, is gone.
    #[test]
    fn a_stop_is_a_crash_and_what_was_committed_survives_it() {
        let server = Server::start();
        let mut client = connect(server.url()).unwrap();
        client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").unwrap();
        client.batch_execute("BEGIN; INSERT INTO t VALUES (2)").unwrap();
        server.stop();
        assert!(client.batch_execute("COMMIT").is_err());
        assert!(connect(server.url()).is_err());
        server.start_again();
        let mut client = connect(server.url()).unwrap();
        assert_eq!(number(&mut client, "SELECT sum(n) FROM t"), 1);
        assert_eq!(client.query_one("SHOW fsync", &[]).unwrap().get::<_, String>(0), "on");
    }

    #[test]
    fn a_server_goes_with_what_it_was_dropped_with() {
        let server = Server::start_fast();
        let url = server.url().to_owned();
        let folder: String = connect(&url).unwrap().query_one("SHOW data_directory", &[]).unwrap().get(0);
        assert!(Path::new(&folder).exists());
        drop(server);
        assert!(connect(&url).is_err());
        assert!(!Path::new(&folder).exists());
    }

    /// The proxy knows PostgreSQL's messages as PostgreSQL and its client write them.
    #[test]
    fn a_reply_is_lost_after_the_commit_of_what_it_answers() {
        let server = Server::start_fast();
        let (proxy, url) = proxied(server.url());
        let mut direct = connect(server.url()).unwrap();
        direct.batch_execute("CREATE TABLE t (n int)").unwrap();

        let mut client = connect(&url).unwrap();
        client.execute("INSERT INTO t VALUES (1)", &[]).unwrap();
        proxy.lose_reply_to("INSERT INTO t");
        assert!(client.query_typed("INSERT INTO t VALUES (2)", &[]).is_err());
        assert_eq!((proxy.counts().replies_lost, number(&mut direct, "SELECT count(*) FROM t")), (1, 2));

        let mut client = connect(&url).unwrap();
        proxy.lose_reply_to("INSERT INTO t");
        let mut transaction = client.transaction().unwrap();
        transaction.execute("INSERT INTO t VALUES (3)", &[]).unwrap();
        assert_eq!(number(&mut direct, "SELECT count(*) FROM t"), 2);
        assert!(transaction.commit().is_err());
        assert_eq!((proxy.counts().replies_lost, number(&mut direct, "SELECT count(*) FROM t")), (2, 3));
    }
}
