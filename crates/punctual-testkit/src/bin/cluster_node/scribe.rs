//! Writes down what handlers say of their runs, on a connection of its own. A start is committed before the handler goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use postgres::{Client, Config, NoTls};
use punctual_durable::Ctx;
use tokio::sync::oneshot;

/// Where handlers hand in what they have to say.
#[derive(Debug, Clone)]
pub(crate) struct Scribe {
    lines: Sender<Line>,
    count: Arc<AtomicU64>,
}

/// A run that has begun; that it was broken off is written when this is dropped.
#[derive(Debug)]
pub(crate) struct Run {
    lines: Sender<Line>,
    token: String,
    how: &'static str,
}

#[derive(Debug)]
enum Line {
    Started { token: String, job: String, fence: i64, node: i64, done: oneshot::Sender<()> },
    Ended { token: String, how: &'static str },
}

/// How many lines are written at once.
const LINES_MAX: usize = 500;

pub(crate) fn start(url: &str, schema: &str) -> Scribe {
    let (lines, inbox) = channel();
    let config: Config = url.parse().expect("a URL");
    let schema = schema.to_owned();
    std::thread::spawn(move || write_all(&config, &schema, &inbox));
    Scribe { lines, count: Arc::default() }
}

impl Scribe {
    pub(crate) async fn started(&self, ctx: &Ctx) -> Run {
        let (run, done) = self.begin(ctx);
        let _ = done.await;
        run
    }

    /// The same, for a handler that blocks.
    pub(crate) fn started_blocking(&self, ctx: &Ctx) -> Run {
        let (run, done) = self.begin(ctx);
        let _ = done.blocking_recv();
        run
    }

    fn begin(&self, ctx: &Ctx) -> (Run, oneshot::Receiver<()>) {
        let token = format!("{}.{}", std::process::id(), self.count.fetch_add(1, Ordering::Relaxed));
        let (done, written) = oneshot::channel();
        let node = ctx.record().node.expect("it runs").to_u64().cast_signed();
        let (job, fence) = (ctx.id().to_string(), ctx.fence().cast_signed());
        let _ = self.lines.send(Line::Started { token: token.clone(), job, fence, node, done });
        (Run { lines: self.lines.clone(), token, how: "stopped" }, written)
    }
}

impl Run {
    pub(crate) fn done(mut self) {
        self.how = "done";
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.lines.send(Line::Ended { token: self.token.clone(), how: self.how });
    }
}

fn write_all(config: &Config, schema: &str, inbox: &Receiver<Line>) {
    let mut client = None;
    while let Ok(first) = inbox.recv() {
        let mut lines = vec![first];
        lines.extend(inbox.try_iter().take(LINES_MAX));
        // The server may be away; what was written twice is the same line.
        while let Err(error) = write(&mut client, config, schema, &lines) {
            eprintln!("cannot write down {} lines: {error}", lines.len());
            client = None;
            rest();
        }
        for line in lines {
            if let Line::Started { done, .. } = line {
                let _ = done.send(());
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a server that is away is waited for in real time")]
fn rest() {
    std::thread::sleep(Duration::from_millis(50));
}

fn write(client: &mut Option<Client>, config: &Config, schema: &str, lines: &[Line]) -> Result<(), postgres::Error> {
    let client = match client {
        Some(client) => client,
        None => {
            let mut new = config.clone().connect_timeout(Duration::from_secs(5)).connect(NoTls)?;
            new.batch_execute(&format!("SET search_path TO {schema}"))?;
            client.insert(new)
        }
    };
    let process = format!("process {}", std::process::id());
    let (mut tokens, mut jobs, mut fences, mut nodes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut ended, mut hows) = (Vec::new(), Vec::new());
    for line in lines {
        match line {
            Line::Started { token, job, fence, node, .. } => {
                tokens.push(token);
                jobs.push(job);
                fences.push(fence);
                nodes.push(node);
            }
            Line::Ended { token, how } => {
                ended.push(token);
                hows.push(how);
            }
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
        "UPDATE witness w SET ended_at = witness_clock(), how = e.how
         FROM unnest($1::text[], $2::text[]) AS e (token, how) WHERE w.token = e.token AND w.ended_at IS NULL",
        &[&ended, &hows],
    )?;
    transaction.commit()
}
