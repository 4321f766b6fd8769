//! Writes down what handlers say of their runs, on a connection of its own, by the database's clock.
//!
//! # Invariants
//! 1. A start is committed before the handler goes on, and dated when it is written: no sooner than it was.
//! 2. An end is dated when the handler ends, however late it is written: no later than it was. The database's clock
//!    showed at least what was read of it when the start was written, and since that was heard so much time has passed
//!    as this process saw pass.
//!
//! So what is written down of a run lies within it, and handlers that overlap there did so in truth.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use postgres::Client;
use punctual::Clock;
use punctual_durable::Ctx;
use punctual_testkit::postgres::connect;
use tokio::sync::oneshot;

/// Where handlers hand in what they have to say.
#[derive(Debug, Clone)]
pub(crate) struct Scribe {
    lines: Sender<Line>,
    count: Arc<AtomicU64>,
}

/// A run that has begun; its end is written when this is dropped, which is where the handler ends, in whatever way.
#[derive(Debug)]
pub(crate) struct Run {
    lines: Sender<Line>,
    token: String,
    how: &'static str,
    /// When its start was written; nothing if it is dropped before that was heard.
    began: Option<Reading>,
}

/// What the database's clock showed, in microseconds, and when that had been heard here.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: i64,
    heard: Instant,
}

impl Reading {
    /// What it shows now at the least.
    fn at_least(self) -> i64 {
        let passed = Clock::system().now().saturating_duration_since(self.heard);
        self.at + i64::try_from(passed.as_micros()).expect("less than a lifetime")
    }
}

#[derive(Debug)]
enum Line {
    Started {
        token: String,
        job: String,
        fence: i64,
        node: i64,
        done: oneshot::Sender<Reading>,
    },
    /// At this instant of the database's clock; nothing if it ended as it began.
    Ended {
        token: String,
        how: &'static str,
        at: Option<i64>,
    },
    /// Nothing; but whoever waits for it knows that everything before is written.
    End {
        done: oneshot::Sender<Reading>,
    },
}

/// How many lines are written at once.
const LINES_MAX: usize = 500;

pub(crate) fn start(url: &str, schema: &str) -> Scribe {
    let (lines, inbox) = channel();
    let (url, schema) = (url.to_owned(), schema.to_owned());
    std::thread::spawn(move || write_all(&url, &schema, &inbox));
    Scribe { lines, count: Arc::default() }
}

impl Scribe {
    pub(crate) async fn started(&self, ctx: &Ctx) -> Run {
        let (mut run, done) = self.begin(ctx);
        run.began = done.await.ok();
        run
    }

    /// The same, for a handler that blocks.
    pub(crate) fn started_blocking(&self, ctx: &Ctx) -> Run {
        let (mut run, done) = self.begin(ctx);
        run.began = done.blocking_recv().ok();
        run
    }

    /// Waits until everything that was said is written.
    pub(crate) async fn finish(&self) {
        let (done, written) = oneshot::channel();
        let _ = self.lines.send(Line::End { done });
        let _ = written.await;
    }

    fn begin(&self, ctx: &Ctx) -> (Run, oneshot::Receiver<Reading>) {
        let token = format!("{}.{}", std::process::id(), self.count.fetch_add(1, Ordering::Relaxed));
        let (done, written) = oneshot::channel();
        let node = ctx.record().node.expect("it runs").to_u64().cast_signed();
        let (job, fence) = (ctx.id().to_string(), ctx.fence().cast_signed());
        let _ = self.lines.send(Line::Started { token: token.clone(), job, fence, node, done });
        (Run { lines: self.lines.clone(), token, how: "stopped", began: None }, written)
    }
}

impl Run {
    pub(crate) fn done(mut self) {
        self.how = "done";
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let at = self.began.map(Reading::at_least);
        let _ = self.lines.send(Line::Ended { token: self.token.clone(), how: self.how, at });
    }
}

fn write_all(url: &str, schema: &str, inbox: &Receiver<Line>) {
    let mut client = None;
    while let Ok(first) = inbox.recv() {
        let mut lines = vec![first];
        lines.extend(inbox.try_iter().take(LINES_MAX));
        // The server may be away; what was written twice is the same line.
        let written = loop {
            match write(&mut client, url, schema, &lines) {
                Ok(reading) => break reading,
                Err(error) => eprintln!("cannot write down {} lines: {error}", lines.len()),
            }
            client = None;
            rest();
        };
        for line in lines {
            if let Line::Started { done, .. } | Line::End { done } = line {
                let _ = done.send(written);
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a server that is away is waited for in real time")]
fn rest() {
    std::thread::sleep(Duration::from_millis(50));
}

/// Answers what the database's clock showed when all was written.
fn write(client: &mut Option<Client>, url: &str, schema: &str, lines: &[Line]) -> Result<Reading, postgres::Error> {
    let client = match client {
        Some(client) => client,
        None => {
            let mut new = connect(url)?;
            new.batch_execute(&format!("SET search_path TO {schema}"))?;
            client.insert(new)
        }
    };
    let process = format!("process {}", std::process::id());
    let (mut tokens, mut jobs, mut fences, mut nodes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut ended, mut hows, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        match line {
            Line::Started { token, job, fence, node, .. } => {
                tokens.push(token);
                jobs.push(job);
                fences.push(fence);
                nodes.push(node);
            }
            Line::Ended { token, how, at } => {
                ended.push(token);
                hows.push(how);
                ends.push(at);
            }
            Line::End { .. } => {}
        }
    }
    let mut transaction = client.transaction()?;
    transaction.execute(
        "INSERT INTO witness (token, process, job, fence, node, was_claimed, started_at)
         SELECT s.token, $5, s.job::uuid, s.fence, s.node,
                EXISTS (SELECT FROM moves m WHERE m.job = s.job::uuid AND m.fence = s.fence AND m.node = s.node AND m.what = 'claimed'),
                witness_clock()
         FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS s (token, job, fence, node)
         ON CONFLICT (token) DO NOTHING",
        &[&tokens, &jobs, &fences, &nodes, &process],
    )?;
    transaction.execute(
        "UPDATE witness w SET ended_at = coalesce(e.at, w.started_at), how = e.how
         FROM unnest($1::text[], $2::text[], $3::bigint[]) AS e (token, how, at) WHERE w.token = e.token AND w.ended_at IS NULL",
        &[&ended, &hows, &ends],
    )?;
    let at = transaction.query_one("SELECT witness_clock()", &[])?.get(0);
    transaction.commit()?;
    Ok(Reading { at, heard: Clock::system().now() })
}
