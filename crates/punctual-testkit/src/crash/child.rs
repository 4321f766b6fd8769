//! The process that crashes: a client and a node on one file, who write down what they do.
//!
//! The client's log has a line before each thing it asks for (`try`) and one when it is answered: `ok`, `refused`
//! (nothing was done), or `failed` (nobody knows). No answer means the same as `failed`. The ledger has the `start` and
//! the `end` of every run. Both are written line by line, straight to the operating system, so that a crash of the
//! process loses none of them; and both are ordinary files, which the shim does not touch, so that they survive its
//! power cuts.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use punctual::{Limits, Stage};
use punctual_durable::{
    Backoff, Cancelled, Ctx, Failure, Handle, Job, JobId, Jobs, Node, OnConflict, Problem, Query, StoreError, Terms,
};
use serde::{Deserialize, Serialize};

use crate::block_on;

/// The file of the store in its folder.
pub const FILE: &str = "jobs.db";
/// The client's log in its folder.
pub const LOG: &str = "client.log";
/// The handlers' ledger in its folder.
pub const LEDGER: &str = "ledger.log";
/// The tenants, and how many jobs of each may run at once.
pub const TENANTS: [(&str, Option<usize>); 3] = [("two", Some(2)), ("one", Some(1)), ("free", None)];
/// The name of the schedule.
pub const SCHEDULE: &str = "tick";

/// The exit code of a child that could not open the file.
pub const CLOSED: i32 = 3;

/// How many clients work at the same time.
const CLIENTS: u64 = 2;

/// What a child is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Its clients ask for so many things each, and then it ends in good order, if it comes to that.
    Work(u64),
    /// Finishes all that there is, and shows that the limits can be used to the full.
    Finish,
    /// Runs a job that kills its process, and neighbours beside it, until nothing is left.
    Poison,
}

/// What the child's jobs do.
#[derive(Serialize, Deserialize)]
struct Work {
    how: How,
    key: String,
    pad: String,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
enum How {
    /// Ends at once.
    Quick,
    /// Fails the first time.
    Flaky,
    /// Ends when the clients have done so much more.
    Slow(u64),
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = ();
    // No number of crashes is this job's own fault.
    const TERMS: Terms =
        Terms::new().max_crashes(1_000_000).backoff(Backoff::new(Duration::from_millis(1), Duration::from_millis(5)));
}

/// Ends when as many of its tenant run as may.
#[derive(Serialize, Deserialize)]
struct Probe {
    together: u64,
}

impl Job for Probe {
    const KIND: &'static str = "probe";
    type Output = ();
}

/// Kills its process, or stands beside the one that does.
#[derive(Serialize, Deserialize)]
struct Poison {
    is_poison: bool,
    neighbours: u64,
}

impl Job for Poison {
    const KIND: &'static str = "poison";
    type Output = ();
}

/// Works in a folder, by a seed.
///
/// # Panics
/// If anything goes wrong that no fault explains.
pub fn run(folder: &Path, role: Role, seed: u64) {
    let desk = Arc::new(Desk::new(folder));
    desk.log(&format!("boot {role:?} {seed}"));
    desk.ledger("boot");
    let url = format!("sqlite:{}", folder.join(FILE).display());
    let jobs = match block_on(Jobs::open(&url)) {
        Ok(jobs) => jobs,
        Err(error) => {
            desk.log(&format!("closed {error}"));
            std::process::exit(CLOSED);
        }
    };
    install(&jobs, &desk);
    match role {
        Role::Work(steps) => work(&jobs, &desk, steps, seed),
        Role::Finish => finish(&jobs, &desk),
        Role::Poison => poison(&jobs, &desk),
    }
    drop(jobs);
    desk.log("done");
}

fn install(jobs: &Jobs, desk: &Arc<Desk>) {
    let at = desk.clone();
    jobs.on(move |work: Work, ctx| {
        let desk = at.clone();
        async move {
            let mut run = RunLines::start(&desk, &ctx, &work.key);
            match work.how {
                How::Flaky if ctx.attempt() == 1 => {
                    run.end = "retry";
                    return Err(Failure::retry("the first attempt fails"));
                }
                How::Quick | How::Flaky => {}
                How::Slow(more) => desk.steps.reached(desk.steps.now().saturating_add(more)).await,
            }
            run.end = "ok";
            Ok(())
        }
    });
    let at = desk.clone();
    jobs.on(move |probe: Probe, ctx| {
        let desk = at.clone();
        async move {
            let mut run = RunLines::start(&desk, &ctx, "-");
            let meeting = &desk.probes[usize::from(ctx.tenant() == "two")];
            meeting.count();
            meeting.reached(probe.together).await;
            run.end = "ok";
            Ok(())
        }
    });
    let at = desk.clone();
    jobs.on(move |job: Poison, ctx| {
        let desk = at.clone();
        async move {
            let mut run = RunLines::start(&desk, &ctx, "-");
            // The first times all of them are together when it happens; before the last time the store has to part
            // them.
            let is_last = ctx.record().crashes + 1 == ctx.record().job.max_crashes;
            desk.steps.count();
            if !is_last {
                desk.steps.reached(job.neighbours + 1).await;
            }
            if job.is_poison {
                std::process::abort();
            }
            if !is_last {
                std::future::pending::<()>().await;
            }
            run.end = "ok";
            Ok(())
        }
    });
}

fn work(jobs: &Jobs, desk: &Arc<Desk>, steps: u64, seed: u64) {
    for (tenant, max) in TENANTS {
        let limits = max.map_or(Limits::new(), |max| Limits::new().running_max(max));
        let is_told = |answer: &Result<(), StoreError>| answer.is_ok();
        desk.until(is_told, |desk| {
            let number = desk.attempt(&format!("limits {tenant}"));
            let answer = block_on(jobs.tenant(tenant).set_limits(limits));
            desk.answer(&number, answer.as_ref().map(|()| "set".to_owned()));
            answer
        });
    }
    let node = start(jobs, desk);
    desk.until(Result::is_ok, |desk| {
        let number = desk.attempt(&format!("schedule {SCHEDULE}"));
        let tick = Work { how: How::Quick, key: "-".to_owned(), pad: String::new() };
        let answer = block_on(jobs.tenant("free").every(SCHEDULE, Duration::from_millis(7)).enqueue(tick));
        let answer = answer.map_err(|error| match error.problem() {
            Problem::Store { error, .. } => error.clone(),
            other => panic!("{other}"),
        });
        desk.answer(&number, answer.as_ref().map(|()| "set".to_owned()));
        answer
    });
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            scope.spawn(move || Client::new(jobs, desk, seed * CLIENTS + number).work(steps));
        }
    });
    // Those who wait for more steps than there are.
    desk.steps.open();
    block_on(node.drain());
    block_on(node.shutdown(Duration::from_secs(60)));
}

fn start(jobs: &Jobs, desk: &Desk) -> Node {
    loop {
        match block_on(jobs.node().workers(4).start()) {
            Ok(node) => return node,
            Err(error) => desk.log(&format!("not-started {error}")),
        }
    }
}

/// Somebody who asks for things, one after the other.
struct Client<'a> {
    jobs: &'a Jobs,
    desk: &'a Desk,
    dice: fastrand::Rng,
    mine: Vec<JobId>,
    /// What it waits for, as long as it is there.
    wanted: Vec<Handle<()>>,
}

impl<'a> Client<'a> {
    fn new(jobs: &'a Jobs, desk: &'a Desk, seed: u64) -> Self {
        Self { jobs, desk, dice: fastrand::Rng::with_seed(seed), mine: Vec::new(), wanted: Vec::new() }
    }

    fn work(mut self, steps: u64) {
        for id in self.desk.unsure.clone() {
            if self.dice.bool() {
                // It may be there or not: the same id cannot make a second one.
                self.enqueue(id, How::Quick, None);
            }
        }
        for step in 0..steps {
            // Each kind of step comes early, then they come by chance.
            match if step < 7 { step } else { self.dice.u64(0..11) } {
                0 | 7 | 8 => self.enqueue_any(None),
                1 => self.enqueue_many(),
                2 | 9 => {
                    let key = self.dice.u8(0..2);
                    self.enqueue_any(Some(key));
                }
                3 => self.enqueue_delayed(),
                4 | 10 => self.cancel(),
                5 => self.enqueue_wanted(),
                _ => {
                    let id = self.new_id();
                    self.enqueue(id, How::Flaky, None);
                }
            }
            self.desk.steps.count();
        }
    }

    fn new_id(&mut self) -> JobId {
        JobId::from_u128(self.dice.u128(..))
    }

    fn tenant(&mut self) -> &'static str {
        TENANTS[self.dice.usize(..TENANTS.len())].0
    }

    fn how(&mut self) -> How {
        match self.dice.u8(0..4) {
            0 => How::Flaky,
            1 => How::Slow(self.dice.u64(1..6)),
            _ => How::Quick,
        }
    }

    fn enqueue_any(&mut self, key: Option<u8>) {
        let (id, how) = (self.new_id(), self.how());
        self.enqueue(id, how, key);
    }

    fn enqueue(&mut self, id: JobId, how: How, key: Option<u8>) {
        let tenant = if key.is_some() { "free" } else { self.tenant() };
        let word = key.map_or("-".to_owned(), |key| format!("key{key}"));
        // One in eight has more than fits on a page.
        let pad = "x".repeat(if self.dice.u8(0..8) == 0 { 9_000 } else { 10 });
        let conflict = [OnConflict::Join, OnConflict::Reject, OnConflict::Replace][self.dice.usize(..3)];
        let mut work = Work { how, key: word, pad };
        // What failed may be there or not: asked for again until it is clear, with the same id it cannot become two.
        loop {
            let mut plan = self.jobs.tenant(tenant).now().id(id);
            if key.is_some() {
                plan = plan.unique(&work.key, conflict);
            }
            let number = self.desk.attempt(&format!("enqueue {id} {}", work.key));
            let error = match block_on(plan.enqueue(work)) {
                Ok(handle) => {
                    let is_new = handle.id() == id;
                    let answer = if is_new { "new".to_owned() } else { format!("joined {}", handle.id()) };
                    self.mine.extend(is_new.then_some(id));
                    return self.desk.answer::<StoreError>(&number, Ok(answer));
                }
                Err(error) => error,
            };
            self.desk.problem(&number, error.problem());
            if !matches!(error.problem(), Problem::Store { .. }) {
                return;
            }
            work = error.into_job();
        }
    }

    fn enqueue_delayed(&mut self) {
        let (id, tenant, delay) = (self.new_id(), self.tenant(), self.dice.u64(1..15));
        let number = self.desk.attempt(&format!("enqueue {id} -"));
        let work = Work { how: How::Quick, key: "-".to_owned(), pad: String::new() };
        match block_on(self.jobs.tenant(tenant).after(Duration::from_millis(delay)).id(id).enqueue(work)) {
            Ok(_) => self.desk.answer::<StoreError>(&number, Ok("new".to_owned())),
            Err(error) => self.desk.problem(&number, error.problem()),
        }
        self.mine.push(id);
    }

    /// A job that ends with the interest in it, at the latest when this process does.
    fn enqueue_wanted(&mut self) {
        let (id, how) = (self.new_id(), self.how());
        let number = self.desk.attempt(&format!("enqueue {id} wanted"));
        let work = Work { how, key: "-".to_owned(), pad: String::new() };
        match block_on(self.jobs.tenant("free").now().id(id).while_wanted().enqueue(work)) {
            Ok(handle) => {
                self.desk.answer::<StoreError>(&number, Ok("new".to_owned()));
                // Or it is dropped at once.
                self.wanted.extend(self.dice.bool().then_some(handle));
            }
            Err(error) => self.desk.problem(&number, error.problem()),
        }
    }

    fn enqueue_many(&mut self) {
        let (tenant, count) = (self.tenant(), self.dice.usize(2..6));
        let number = self.desk.attempt("bulk");
        let one = |_| Work { how: How::Quick, key: "-".to_owned(), pad: String::new() };
        let answers = block_on(self.jobs.tenant(tenant).now().enqueue_many((0..count).map(one)));
        let ids: Result<Vec<String>, _> =
            answers.iter().map(|answer| answer.as_ref().map(|handle| handle.id().to_string())).collect();
        match ids {
            Ok(ids) => self.desk.answer::<StoreError>(&number, Ok(format!("bulk {}", ids.join(" ")))),
            Err(error) => self.desk.problem(&number, error.problem()),
        }
    }

    fn cancel(&mut self) {
        // The last ones may still wait, or run.
        let recent = self.mine.len().saturating_sub(3)..self.mine.len();
        if recent.is_empty() {
            return;
        }
        let id = self.mine[self.dice.usize(recent)];
        let number = self.desk.attempt(&format!("cancel {id}"));
        let answer = block_on(self.jobs.cancel(id));
        let word = |answer: &Cancelled| match answer {
            Cancelled::Now(_) => "cancelled".to_owned(),
            Cancelled::Ended(outcome) => format!("ended {outcome:?}"),
            Cancelled::Unknown => "unknown".to_owned(),
        };
        self.desk.answer(&number, answer.as_ref().map(word));
    }
}

/// Finishes everything, then shows that each tenant's limit is there to be used.
fn finish(jobs: &Jobs, desk: &Desk) {
    desk.steps.open();
    let node = start(jobs, desk);
    block_on(jobs.pause_schedule(SCHEDULE, true)).expect("no fault here");
    wait_for_all(jobs, &node);
    for (tenant, max) in TENANTS {
        let Some(max) = max else { continue };
        let record = block_on(jobs.tenant(tenant).record()).expect("no fault here");
        // A child that died before it set the limits.
        if record.policy.limits.running_max != Some(max) {
            continue;
        }
        let probes = (0..max + 2).map(|_| Probe { together: max as u64 });
        for handle in block_on(jobs.tenant(tenant).now().enqueue_many(probes)) {
            block_on(handle.expect("a probe").result()).expect("no fault here");
        }
    }
    let totals = block_on(jobs.totals()).expect("no fault here");
    assert_eq!((totals.scheduled, totals.ready, totals.running, totals.stopping), (0, 0, 0, 0), "{totals:?}");
    block_on(node.shutdown(Duration::from_secs(60)));
}

fn wait_for_all(jobs: &Jobs, node: &Node) {
    loop {
        let mut live = Vec::new();
        for stage in [Stage::Scheduled, Stage::Ready, Stage::Running] {
            let query = Query { stage: Some(stage), max: Query::PAGE_MAX, ..Query::default() };
            live.extend(block_on(jobs.find(query)).expect("no fault here").jobs);
        }
        if live.is_empty() {
            return;
        }
        for record in live {
            // How it ended is for the checker.
            let _ = block_on(jobs.handle::<()>(record.job.id).result());
        }
        block_on(node.drain());
    }
}

/// One poison job and its neighbours: enqueued by the first process, run until nothing is left by whoever survives.
fn poison(jobs: &Jobs, desk: &Desk) {
    const NEIGHBOURS: u64 = 3;
    let all = block_on(jobs.find(Query::default())).expect("no fault here").jobs;
    if all.is_empty() {
        let kinds = [true, false, false, false].map(|is_poison| Poison { is_poison, neighbours: NEIGHBOURS });
        for handle in block_on(jobs.tenant("free").now().enqueue_many(kinds)) {
            let id = handle.expect("enqueued").id();
            let number = desk.attempt(&format!("enqueue {id} -"));
            desk.answer::<StoreError>(&number, Ok("new".to_owned()));
        }
    }
    let node = start(jobs, desk);
    wait_for_all(jobs, &node);
    block_on(node.shutdown(Duration::from_secs(60)));
}

/// Where the child writes.
#[derive(Debug)]
struct Desk {
    log: File,
    ledger: File,
    number: AtomicU64,
    /// Which process this is, of those that worked here.
    boot: usize,
    /// Ids of jobs that may be there or not.
    unsure: Vec<JobId>,
    steps: Meter,
    probes: [Meter; 2],
}

impl Desk {
    fn new(folder: &Path) -> Self {
        let path = |name: &str| -> PathBuf { folder.join(name) };
        let append = |name| OpenOptions::new().create(true).append(true).open(path(name)).expect("a file to write to");
        let text = std::fs::read_to_string(path(LOG)).unwrap_or_default();
        Self {
            log: append(LOG),
            ledger: append(LEDGER),
            number: AtomicU64::new(0),
            boot: text.lines().filter(|line| line.starts_with("boot ")).count(),
            unsure: unsure(&text),
            steps: Meter::default(),
            probes: Default::default(),
        }
    }

    fn log(&self, line: &str) {
        tell(&self.log, &format!("{line}\n"));
    }

    fn ledger(&self, line: &str) {
        tell(&self.ledger, &format!("{line}\n"));
    }

    /// Says what is about to be asked for; answers its number.
    fn attempt(&self, what: &str) -> String {
        let number = format!("{}.{}", self.boot, self.number.fetch_add(1, Ordering::Relaxed));
        self.log(&format!("try {number} {what}"));
        number
    }

    fn answer<E: std::fmt::Display>(&self, number: &str, answer: Result<String, E>) {
        match answer {
            Ok(answer) => self.log(&format!("ok {number} {answer}")),
            Err(error) => self.log(&format!("failed {number} {error}")),
        }
    }

    fn problem(&self, number: &str, problem: &Problem) {
        let word = if matches!(problem, Problem::Store { .. }) { "failed" } else { "refused" };
        self.log(&format!("{word} {number} {problem}"));
    }

    /// Does a thing again until it is as it should be.
    fn until<T>(&self, is_well: impl Fn(&T) -> bool, mut work: impl FnMut(&Self) -> T) {
        while !is_well(&work(self)) {}
    }
}

/// Ids that were tried, without a key, and whose answer nobody heard.
fn unsure(log: &str) -> Vec<JobId> {
    let mut open: Vec<(&str, &str)> = Vec::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["try", number, "enqueue", id, "-"] => open.push((number, id)),
            ["ok" | "refused", number, ..] => open.retain(|(other, _)| other != number),
            _ => {}
        }
    }
    open.iter().filter_map(|(_, id)| JobId::from_str(id).ok()).collect()
}

/// One line, at once; and to whoever started the child, who may want to kill it at this line.
fn tell(mut file: &File, line: &str) {
    file.write_all(line.as_bytes()).expect("room for a line");
    let mut out = std::io::stdout().lock();
    // If nobody listens, nobody does.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// The lines of one run: the second is written whatever happens, but for a crash.
struct RunLines<'a> {
    desk: &'a Desk,
    id: JobId,
    fence: u64,
    end: &'static str,
}

impl<'a> RunLines<'a> {
    fn start(desk: &'a Desk, ctx: &Ctx, key: &str) -> Self {
        let (id, fence, kind) = (ctx.id(), ctx.fence(), &ctx.record().job.kind);
        desk.ledger(&format!("start {id} {fence} {} {} {kind} {key}", ctx.attempt(), ctx.tenant()));
        Self { desk, id, fence, end: "stopped" }
    }
}

impl Drop for RunLines<'_> {
    fn drop(&mut self) {
        self.desk.ledger(&format!("end {} {} {}", self.id, self.fence, self.end));
    }
}

/// A number that grows, and those who wait for it.
#[derive(Debug, Default)]
struct Meter(Mutex<(u64, Vec<Waker>)>);

impl Meter {
    fn now(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn count(&self) {
        self.set(|number| number.saturating_add(1));
    }

    /// Nobody waits any more.
    fn open(&self) {
        self.set(|_| u64::MAX);
    }

    fn set(&self, to: impl FnOnce(u64) -> u64) {
        let wakers = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = to(state.0);
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn reached(&self, number: u64) {
        std::future::poll_fn(|cx| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0 >= number {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
