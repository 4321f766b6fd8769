//! The server, and the databases of samples.

use std::fs;

use anyhow::{Context, Result};
use postgres::{Client, NoTls};
use punctual_bench::durable::Place;
use punctual_bench::durable::wait::wait;
use punctual_bench::durable::works::ONLY;
use punctual_durable::Jobs;
use punctual_testkit::postgres::Server;

/// The database of a sample. One that needs several has others beside it, whose names begin so.
const DATABASE: &str = "sample";

/// More than a sample touches, so that pages are not read again.
const SHARED_BUFFERS: &str = "512MB";

/// How much of its log a server keeps to write over: more than a sample writes. And in how many files that is.
const LOG_KEPT: &str = "640MB";
const LOG_FILES: u64 = 40;

/// A server that keeps its promises: it waits for the disk at every commit.
pub(crate) struct Bench {
    server: Server,
    id: u32,
}

impl Bench {
    pub(crate) fn start() -> Result<Self> {
        let server = Server::start();
        let mut client = connect(server.url())?;
        for (name, value) in [("shared_buffers", SHARED_BUFFERS), ("min_wal_size", LOG_KEPT)] {
            client.batch_execute(&format!("ALTER SYSTEM SET {name} = '{value}'"))?;
        }
        server.stop();
        server.start_again();
        let mut client = connect(server.url())?;
        write_log_files(&mut client)?;
        let id = server_id(&mut client)?;
        Ok(Self { server, id })
    }

    /// An empty database, with nothing left to be written of what was before: how a child is told of it.
    pub(crate) fn fresh(&self) -> Result<[String; 2]> {
        let mut client = connect(self.server.url())?;
        let rows = client.query("SELECT datname FROM pg_database WHERE starts_with(datname, $1)", &[&DATABASE])?;
        for row in rows {
            client.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", row.get::<_, &str>(0)))?;
        }
        client.batch_execute(&format!("CREATE DATABASE {DATABASE}"))?;
        client.batch_execute("CHECKPOINT")?;
        Ok([at(self.server.url(), DATABASE), self.id.to_string()])
    }

    /// What it says about itself.
    pub(crate) fn settings(&self) -> Result<String> {
        let mut client = connect(self.server.url())?;
        let mut show = |name| Ok::<String, anyhow::Error>(client.query_one(&format!("SHOW {name}"), &[])?.get(0));
        let mut text = format!("PostgreSQL {}", show("server_version")?);
        for name in
            ["fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "min_wal_size", "max_wal_size"]
        {
            text.push_str(&format!(", {name}={}", show(name)?));
        }
        Ok(text)
    }
}

/// The databases of one sample, as a child sees them.
pub(crate) struct Databases {
    pub(crate) url: String,
    pub(crate) server: u32,
    /// What the URL says of the store.
    pub(crate) query: String,
}

impl Databases {
    pub(crate) fn from_args(args: &[String]) -> Result<Self> {
        let [url, server] = args else { anyhow::bail!("a child has a URL and a process id, not {args:?}") };
        Ok(Self { url: url.clone(), server: server.parse()?, query: String::new() })
    }

    pub(crate) fn to_args(&self) -> [String; 2] {
        [self.url.clone(), self.server.to_string()]
    }
}

impl Place for Databases {
    fn open(&self, name: &str) -> Result<Jobs> {
        let mut url = self.url.clone();
        if name != ONLY {
            let name = format!("{DATABASE}_{name}");
            connect(&url)?.batch_execute(&format!("CREATE DATABASE {name}"))?;
            url = at(&url, &name);
        }
        Ok(wait(Jobs::open(&(url + &self.query)))?)
    }

    fn server(&self) -> Option<u32> {
        Some(self.server)
    }

    fn settle(&self) -> Result<()> {
        Ok(connect(&self.url)?.batch_execute("CHECKPOINT")?)
    }
}

pub(crate) fn connect(url: &str) -> Result<Client> {
    Client::connect(url, NoTls).context("connecting to the server")
}

/// Another database of the same server.
fn at(url: &str, database: &str) -> String {
    let (server, _) = url.rsplit_once('/').unwrap_or((url, ""));
    format!("{server}/{database}")
}

/// Makes of a new server one that has run for a while: it writes its log over old files. A new one makes each of them
/// first, full of zeros, which takes a tenth of the time of the first samples.
fn write_log_files(client: &mut Client) -> Result<()> {
    for _ in 0..LOG_FILES {
        client.batch_execute("SELECT pg_logical_emit_message(false, 'bench', ''); SELECT pg_switch_wal()")?;
    }
    // What was written before the last checkpoint is kept for the next; so the second finds all of them.
    Ok(client.batch_execute("CHECKPOINT; CHECKPOINT")?)
}

/// The process that all others of the server are children of.
fn server_id(client: &mut Client) -> Result<u32> {
    let backend: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let status = fs::read_to_string(format!("/proc/{backend}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).context("a process has a parent")?;
    Ok(parent.trim().parse()?)
}
