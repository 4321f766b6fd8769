//! What the node is told, and what it answers: one line each. What takes long is answered when it is done, and does not
//! keep others waiting.

use std::collections::BTreeMap;
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use punctual::{Clock, Reason};
use punctual_durable::{
    Finish, Finished, Handle, JobId, Jobs, Node, NodeId, OnConflict, PostgresStore, Problem, Refused, Store, Verdict,
};
use punctual_testkit::cluster::{Hold, Work};
use tokio::sync::{mpsc, watch};

use crate::handlers;
use crate::scribe::Scribe;

/// How many workers the node has.
const WORKERS: usize = 8;

/// All that orders are about.
pub(crate) struct Desk {
    jobs: Jobs,
    store: PostgresStore,
    scribe: Scribe,
    node: Option<Node>,
    /// Open: what is held may go.
    gate: watch::Sender<bool>,
    complaints: Arc<AtomicU64>,
    wanted: Mutex<BTreeMap<JobId, Handle<String>>>,
    /// Dropped: nothing more is enqueued.
    flow: Option<watch::Sender<()>>,
}

impl Desk {
    pub(crate) fn new(jobs: Jobs, store: PostgresStore, scribe: &Scribe, complaints: Arc<AtomicU64>) -> Self {
        let (gate, is_open) = watch::channel(false);
        handlers::install(&jobs, scribe, &is_open);
        Self { jobs, store, scribe: scribe.clone(), node: None, gate, complaints, wanted: Mutex::default(), flow: None }
    }

    /// Does what it is told, until it is told to stop.
    pub(crate) async fn obey(mut self) {
        let (tell, mut orders) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
            // Nobody is there any more.
            std::process::exit(0);
        });
        say(format_args!("ready {}", std::process::id()));
        while let Some(line) = orders.recv().await {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["stop", grace] => return self.stop(number(grace)).await,
                words => self.order(words).await,
            }
        }
    }

    async fn order(&mut self, words: &[&str]) {
        match words {
            ["start"] => {
                let node = self.jobs.node().workers(WORKERS).start().await.expect("the store");
                say(format_args!("started {}", self.node.insert(node).id().to_u64()));
            }
            ["open"] => {
                self.gate.send_replace(true);
                say(format_args!("opened"));
            }
            ["close"] => {
                self.gate.send_replace(false);
                say(format_args!("closed"));
            }
            ["status"] => self.status(),
            ["flow", tenant] => self.flow(tenant),
            ["ebb"] => self.flow = None,
            ["want", key] => self.want(key).await,
            ["drop", id] => {
                self.wanted.lock().expect("nobody panics here").remove(&id_of(id));
                say(format_args!("dropped {id}"));
            }
            ["await", id] => self.wait(id_of(id)),
            ["cancel", id] => {
                let answer = self.jobs.cancel(id_of(id)).await;
                say(format_args!("cancelled {answer:?}"));
            }
            ["finish", id, fence, node] => self.finish(id_of(id), number(fence), number(node)).await,
            ["keys", keys, tasks, conflict] => self.keys(number(keys), number(tasks), conflict).await,
            ["places", tenants, tasks] => self.places(number(tenants), number(tasks)).await,
            ["every", name, millis] => {
                let plan = self.jobs.every(name, Duration::from_millis(number(millis)));
                plan.enqueue(Work { millis: 0 }).await.expect("the store");
                say(format_args!("scheduled {name}"));
            }
            ["after", millis, count] => self.after(number(millis), number(count)).await,
            unknown => panic!("no such order: {unknown:?}"),
        }
    }

    async fn stop(mut self, grace: u64) {
        let report = match self.node.take() {
            Some(node) => node.shutdown(Duration::from_millis(grace)).await,
            None => punctual_durable::NodeReport::default(),
        };
        self.scribe.finish().await;
        say(format_args!("stopped {} {}", report.released, report.still_running));
    }

    fn status(&self) {
        let node = self.node.as_ref().map_or(0, |node| node.id().to_u64());
        let wall = Clock::system().wall().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let complaints = self.complaints.load(Ordering::Relaxed);
        say(format_args!("status {node} {complaints} {wall}"));
    }

    /// Enqueues one job after the other, each until that is acknowledged.
    fn flow(&mut self, tenant: &str) {
        let (flow, ebb) = watch::channel(());
        self.flow = Some(flow);
        let tenant = self.jobs.tenant(tenant);
        tokio::spawn(async move {
            let (mut acknowledged, mut failed) = (0, 0);
            while ebb.has_changed().is_ok() {
                // The same id at every try.
                let plan = tenant.now();
                let mut tried = plan.clone().enqueue(Work { millis: 1 }).await;
                while let Err(error) = &tried {
                    let Problem::Store { id, .. } = *error.problem() else { panic!("{error}") };
                    failed += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    tried = plan.clone().id(id).enqueue(Work { millis: 1 }).await;
                }
                say(format_args!("ack {}", tried.expect("no error").id()));
                acknowledged += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            say(format_args!("ebbed {acknowledged} {failed}"));
        });
    }

    /// A job that lives only while somebody wants it: this process, from now on, too.
    async fn want(&self, key: &str) {
        let plan = self.jobs.tenant("wanted").now().unique(key, OnConflict::Join).while_wanted();
        let handle = plan.enqueue(Hold {}).await.expect("the store");
        say(format_args!("wanted {}", handle.id()));
        self.wanted.lock().expect("nobody panics here").insert(handle.id(), handle);
    }

    fn wait(&self, id: JobId) {
        let handle = self.jobs.handle::<String>(id);
        tokio::spawn(async move {
            say(format_args!("waiting {id}"));
            match handle.await {
                Ok(result) => say(format_args!("result {id} {result}")),
                Err(error) => say(format_args!("result {id} {error}")),
            }
        });
    }

    /// Says that a run has succeeded, whether it has a right to or not.
    async fn finish(&self, id: JobId, fence: u64, node: u64) {
        let verdict = Verdict::Succeeded("\"from the grave\"".to_owned());
        let finish = Finish { id, fence, verdict };
        let answer = self.store.finish(NodeId::from_u64(node), vec![finish]).await.expect("the store");
        say(format_args!("finished {}", if answer == [Finished::Stale] { "stale" } else { "done" }));
    }

    /// So many tasks at once, each of which wants all the keys, and begins with another one.
    async fn keys(&self, keys: u64, tasks: u64, conflict: &str) {
        let conflict = match conflict {
            "reject" => OnConflict::Reject,
            "join" => OnConflict::Join,
            _ => OnConflict::Replace,
        };
        let jobs = self.jobs.clone();
        race(tasks, keys, move |key| {
            let own = JobId::from_u128(fastrand::u128(..));
            let plan = jobs.tenant("keys").now().id(own).unique(format!("key {key}"), conflict);
            async move {
                let id = match plan.enqueue(Hold {}).await {
                    Ok(handle) => handle.id(),
                    Err(error) => match *error.problem() {
                        Problem::Refused(Refused::Conflict(other)) => other,
                        ref other => panic!("{other}"),
                    },
                };
                say(format_args!("key {key} {id} {}", if id == own { "new" } else { "other" }));
            }
        })
        .await;
    }

    /// So many tasks at once, each of which wants a place at all the tenants, and begins with another one.
    async fn places(&self, tenants: u64, tasks: u64) {
        let jobs = self.jobs.clone();
        race(tasks, tenants, move |tenant| {
            let plan = jobs.tenant(format!("tenant {tenant}")).now();
            async move {
                let answer = match plan.enqueue(Hold {}).await {
                    Ok(_) => "new",
                    Err(error) => match *error.problem() {
                        Problem::Refused(Refused::Rejected { reason: Reason::BacklogFull { .. }, .. }) => "full",
                        ref other => panic!("{other}"),
                    },
                };
                say(format_args!("place {tenant} {answer}"));
            }
        })
        .await;
    }

    /// So many jobs, each due so much later than the one before.
    async fn after(&self, millis: u64, count: u64) {
        for number in 1..=count {
            let delay = Duration::from_millis(millis * number);
            let handle = self.jobs.tenant("later").after(delay).enqueue(Work { millis: 0 }).await.expect("the store");
            say(format_args!("ack {}", handle.id()));
        }
        say(format_args!("enqueued {count}"));
    }
}

/// So many tasks at once do so many things, one after the other, and begin with different ones.
async fn race<F: Future<Output = ()> + Send + 'static>(
    tasks: u64,
    things: u64,
    work: impl Fn(u64) -> F + Clone + Send + 'static,
) {
    let run = |first| {
        let work = work.clone();
        tokio::spawn(async move {
            for thing in (first..first + things).map(|thing| thing % things) {
                work(thing).await;
            }
        })
    };
    for task in (0..tasks).map(run).collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    say(format_args!("raced"));
}

fn id_of(word: &str) -> JobId {
    word.parse().expect("the id of a job")
}

fn number<T: FromStr<Err: std::fmt::Debug>>(word: &str) -> T {
    word.parse().expect("a number")
}

/// One line to whoever listens; if nobody does, nobody does.
fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
