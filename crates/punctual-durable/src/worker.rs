//! The loop of a node: collect what ended, tell the store, tend it, claim, run, sleep until there is something to do.
//!
//! # Invariants
//! 1. A run's end is told to the store until the store has heard it; the fence makes saying it twice harmless.
//! 2. The loop sleeps exactly until the next instant at which the store has something to do, or a tenant's rate allows a start, and is
//!    woken by signals and by runs that end. It never polls, unless the store asks for it.
//! 3. What is told, tended and claimed in one turn is asked for together, so that a store can write it in one commit.
//! 4. It never runs a handler, and never waits for one.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use punctual::JobHandle;

use crate::error::StoreError;
use crate::hands::Hands;
use crate::id::{JobId, NodeId};
use crate::jobs::Jobs;
use crate::node::{NodeReport, Shared};
use crate::run::{Done, Run, Stop};
use crate::schedule::{self, Ticks};
use crate::signals::{Heard, Listener};
use crate::store::{Claim, Claimed, Finish, Finished, Reply, Tended, Verdict};
use crate::time::Timestamp;

/// How long to leave a store alone that said no; doubles up to the second.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How long to leave a store alone that has something to give, but not now.
const CONTENDED: Duration = Duration::from_millis(2);

/// How many ended jobs are forgotten in one go, so that nobody waits long for it.
const PRUNE_MAX: usize = 1_000;

/// How often to look for jobs to forget.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

pub(crate) struct Worker {
    jobs: Jobs,
    hands: Hands,
    shared: Arc<Shared>,
    listener: Listener,
    workers: usize,
    concurrency: BTreeMap<String, usize>,
    /// Who it was when it claimed what it runs.
    node: NodeId,
    running: HashMap<JobId, Run>,
    finishes: Vec<Finish>,
    ticks: Ticks,
    /// The store may have something to give.
    is_hungry: bool,
    /// The store may have something to do.
    is_tending: bool,
    /// The store has something to give, but others are in the way.
    is_contended: bool,
    /// The answer to a claim was not heard.
    is_unsure: bool,
    /// The store has yet to hear what this node handles.
    has_news: bool,
    tend_at: Option<Timestamp>,
    claim_at: Option<Timestamp>,
    /// When to forget ended jobs at the latest, and from when on if the loop is awake anyway.
    prune_at: Timestamp,
    prune_from: Timestamp,
    rest: Option<Duration>,
    alarm: Option<(Timestamp, JobHandle<()>)>,
    /// Those who wait until nothing is left to run.
    drains: Vec<tokio::sync::oneshot::Sender<()>>,
    stopping: Option<Shutdown>,
}

/// A shutdown under way.
struct Shutdown {
    tell: Option<tokio::sync::oneshot::Sender<NodeReport>>,
    is_over: Arc<std::sync::atomic::AtomicBool>,
    released: usize,
    _alarm: Option<JobHandle<()>>,
}

impl Worker {
    pub(crate) fn new(
        jobs: Jobs,
        hands: Hands,
        shared: Arc<Shared>,
        workers: usize,
        concurrency: BTreeMap<String, usize>,
    ) -> Self {
        let node = jobs.node_id();
        Self {
            listener: jobs.store().signals().listen(node),
            node,
            prune_at: jobs.store().now(),
            prune_from: jobs.store().now(),
            jobs,
            hands,
            shared,
            workers,
            concurrency,
            running: HashMap::new(),
            finishes: Vec::new(),
            ticks: Ticks::default(),
            is_hungry: true,
            is_tending: true,
            is_contended: false,
            is_unsure: false,
            has_news: false,
            tend_at: None,
            claim_at: None,
            rest: None,
            alarm: None,
            drains: Vec::new(),
            stopping: None,
        }
    }

    /// Tells the store what this node handles, if that is news.
    pub(crate) async fn introduce(&mut self) -> Result<(), StoreError> {
        let kinds = self.jobs.handlers().kinds();
        let paused = self.shared.lock().paused.iter().cloned().collect();
        self.has_news |= self.jobs.heart().describe(|beat| {
            beat.kinds = kinds.iter().map(|&kind| kind.to_owned()).collect();
            beat.paused = paused;
            beat.workers = self.workers;
        });
        if self.has_news {
            self.jobs.store().heartbeat(self.jobs.heart().beat()).await?;
            self.has_news = false;
        }
        Ok(())
    }

    pub(crate) async fn work(mut self) {
        loop {
            self.collect();
            match self.turn().await {
                Ok(()) => self.went_well(),
                Err(error) => self.went_wrong(error),
            }
            self.press_on_with_shutdown();
            if self.is_over() {
                break;
            }
            self.tell_drained();
            self.set_alarm();
            self.sleep().await;
        }
        *self.jobs.started().lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Takes in what happened: runs that ended, a lease that was lost, a shutdown.
    fn collect(&mut self) {
        let (done, stop, is_asked, rang) = {
            let mut state = self.shared.lock();
            let stop = if self.stopping.is_none() { state.stop.take() } else { None };
            let rang = std::mem::take(&mut state.rang);
            let asked = std::mem::take(&mut state.drains);
            let is_asked = !asked.is_empty();
            self.drains.extend(asked);
            (std::mem::take(&mut state.done), stop, is_asked, rang)
        };
        if self.jobs.node_id() != self.node {
            self.lost_lease();
        }
        for done in done {
            self.finish(done);
        }
        if rang {
            self.alarm = None;
        }
        self.is_hungry |= is_asked || rang;
        self.is_tending |= is_asked || rang;
        if let Some(stop) = stop {
            self.begin_shutdown(stop);
        }
        self.press_on_with_shutdown();
    }

    fn lost_lease(&mut self) {
        self.running.values_mut().for_each(|run| run.stop(Stop::LeaseLost));
        self.finishes.clear();
        self.node = self.jobs.node_id();
        self.listener = self.jobs.store().signals().listen(self.node);
        self.is_hungry = true;
    }

    fn finish(&mut self, done: Done) {
        // A run that was started anew, after the lease was lost, is not the one that ended.
        let Some(run) = self.running.get(&done.id).filter(|run| run.record.fence == done.fence) else { return };
        let verdict = run.verdict(done.ran, &self.jobs);
        self.running.remove(&done.id);
        if let Some(verdict) = verdict {
            self.finishes.push(Finish { id: done.id, fence: done.fence, verdict });
        }
        self.is_hungry = true;
    }

    /// One turn: everything there is to ask the store, at once.
    async fn turn(&mut self) -> Result<(), StoreError> {
        self.introduce().await?;
        self.reconcile().await?;
        let finished = (!self.finishes.is_empty()).then(|| self.jobs.store().finish(self.node, self.finishes.clone()));
        let tended = std::mem::take(&mut self.is_tending).then(|| self.jobs.store().tend());
        let claimed = self.ask().map(|claim| (claim.max, self.jobs.store().claim(claim)));
        // All are awaited before any error counts: what was claimed must run, whatever became of the rest.
        let finished = answer(finished).await;
        let tended = answer(tended).await;
        let claimed = match claimed {
            Some((max, claimed)) => claimed.await.map(|claimed| Some((max, claimed))),
            None => Ok(None),
        };
        self.is_unsure = claimed.is_err();
        if let Some((max, claimed)) = claimed? {
            self.run(max, claimed);
        }
        if let Some(finished) = finished? {
            self.finished(&finished);
        }
        if let Some(tended) = tended? {
            self.tended(tended).await?;
        }
        self.prune().await
    }

    /// After a claim whose answer was not heard: gives back what it was given and does not know of.
    async fn reconcile(&mut self) -> Result<(), StoreError> {
        if !self.is_unsure {
            return Ok(());
        }
        let pulse = self.jobs.store().heartbeat(self.jobs.heart().beat()).await?;
        let is_known = |id, fence| {
            let runs = self.running.get(&id).is_some_and(|run| run.record.fence == fence);
            runs || self.finishes.iter().any(|finish| (finish.id, finish.fence) == (id, fence))
        };
        let strange: Vec<_> = pulse.running.into_iter().filter(|&(id, fence)| !is_known(id, fence)).collect();
        self.finishes.extend(strange.into_iter().map(|(id, fence)| Finish { id, fence, verdict: Verdict::Release }));
        self.is_unsure = false;
        Ok(())
    }

    /// What to claim, if there is room and hope.
    fn ask(&mut self) -> Option<Claim> {
        let kinds = self.open_kinds();
        if !self.is_hungry || kinds.is_empty() {
            return None;
        }
        self.is_hungry = false;
        self.claim_at = None;
        Some(Claim { node: self.node, max: self.workers - self.running.len(), kinds: kinds.into() })
    }

    /// The kinds it can run at this moment, and how many more of each; none if it has no room.
    fn open_kinds(&self) -> Vec<(String, usize)> {
        if self.running.len() >= self.workers || self.stopping.is_some() {
            return Vec::new();
        }
        let room = |kind: &str| {
            let Some(&most) = self.concurrency.get(kind) else { return self.workers };
            most.saturating_sub(self.running.values().filter(|run| run.record.job.kind == kind).count())
        };
        let state = self.shared.lock();
        let kinds = self.jobs.handlers().kinds().into_iter().filter(|&kind| !state.paused.contains(kind));
        kinds.map(|kind| (kind.to_owned(), room(kind))).filter(|&(_, room)| room > 0).collect()
    }

    fn run(&mut self, max: usize, claimed: Claimed) {
        // Others were in the way of everything: they will be done in a moment.
        self.is_contended = claimed.more && claimed.jobs.is_empty();
        let again = self.is_contended.then(|| self.jobs.store().now().after(CONTENDED));
        self.claim_at = [claimed.again_at, again].into_iter().flatten().min();
        self.is_hungry |= !self.is_contended && (claimed.more || claimed.jobs.len() == max);
        for record in claimed.jobs {
            let (id, fence) = (record.job.id, record.fence);
            let code = self.jobs.handlers().get(&record.job.kind);
            let run = code.and_then(|code| Run::start(&self.jobs, &self.hands, &self.shared, record, code));
            match run {
                Some(run) => {
                    self.jobs.heart().carry(self.node, run.handle());
                    self.running.insert(id, run);
                }
                // No thread for it, or its deadline is this instant: the store decides.
                None => self.finishes.push(Finish { id, fence, verdict: Verdict::Stopped }),
            }
        }
    }

    fn finished(&mut self, answers: &[Finished]) {
        let mut state = self.shared.lock();
        for (finish, answer) in self.finishes.drain(..answers.len()).zip(answers) {
            let counter = match (&finish.verdict, answer) {
                (_, Finished::Stale) => &mut state.snapshot.other,
                (Verdict::Succeeded(_), _) => &mut state.snapshot.succeeded,
                (Verdict::Failed(_), _) => &mut state.snapshot.failed,
                (Verdict::Retry { .. }, _) => &mut state.snapshot.retried,
                _ => &mut state.snapshot.other,
            };
            *counter += 1;
        }
    }

    async fn tended(&mut self, mut tended: Tended) -> Result<(), StoreError> {
        loop {
            self.is_hungry |= tended.promoted > 0 || tended.lost > 0;
            let now = self.jobs.store().now();
            for due in &tended.schedules {
                if let Some(fire) = schedule::fire(&mut self.ticks, due, now, self.jobs.new_id()) {
                    self.jobs.store().fire(fire).await?;
                    self.is_hungry = true;
                }
            }
            self.tend_at = tended.next;
            if tended.schedules.is_empty() && tended.next.is_none_or(|next| next > now) {
                return Ok(());
            }
            tended = self.jobs.store().tend().await?;
        }
    }

    async fn prune(&mut self) -> Result<(), StoreError> {
        let now = self.jobs.store().now();
        if now < self.prune_from {
            return Ok(());
        }
        let pruned = self.jobs.store().prune(self.jobs.retention(), PRUNE_MAX).await?;
        let shortest = crate::state::Outcome::ALL.map(|outcome| self.jobs.retention().of(outcome)).into_iter().min();
        let pause = shortest.unwrap_or(PRUNE_EVERY).clamp(Duration::from_secs(1), PRUNE_EVERY);
        let is_all = pruned < PRUNE_MAX;
        (self.prune_from, self.prune_at) = if is_all { (now.after(pause / 2), now.after(pause)) } else { (now, now) };
        self.is_tending |= !is_all;
        Ok(())
    }

    fn went_well(&mut self) {
        self.rest = None;
        let mut state = self.shared.lock();
        state.snapshot.running = self.running.len();
        state.snapshot.store_error = None;
    }

    /// The store said no: everything is asked again, later and later.
    fn went_wrong(&mut self, error: StoreError) {
        tracing::warn!(target: "punctual", %error, "the store could not be asked");
        self.rest = Some(self.rest.map_or(REST.0, |rest| (rest * 2).min(REST.1)));
        (self.is_hungry, self.is_tending) = (true, true);
        self.shared.lock().snapshot.store_error = Some(error);
    }

    /// Those who asked before this turn began have had everything looked at since.
    fn tell_drained(&mut self) {
        let heard = self.listener.heard();
        self.hear(heard);
        let is_idle = self.running.is_empty() && !self.has_more_to_do() && !self.is_contended;
        if is_idle && self.rest.is_none() {
            self.drains.drain(..).for_each(|drain| _ = drain.send(()));
        }
    }

    /// Rings at the next instant at which there is something to do.
    fn set_alarm(&mut self) {
        let store = self.jobs.store();
        let now = store.now();
        let poll = store.poll().map(|period| now.after(period));
        let rest = self.rest.map(|rest| now.after(rest));
        let wanted = if rest.is_some() {
            rest
        } else {
            [self.tend_at, self.claim_at, poll, Some(self.prune_at)].into_iter().flatten().min()
        };
        let Some(at) = wanted.filter(|&at| at != Timestamp::NEVER) else {
            self.alarm = None;
            return;
        };
        if self.alarm.as_ref().is_some_and(|(set, _)| *set == at) {
            return;
        }
        // By the local clock, so that a virtual one that is set or advanced rings it.
        let wall = self.jobs.clock().wall() + at.since(now);
        let shared = self.shared.clone();
        self.alarm =
            self.jobs.engine().at(wall).name("alarm").run(move |_| shared.rang()).ok().map(|alarm| (at, alarm));
    }

    /// Sleeps until something happens, unless there is more to do at once.
    async fn sleep(&mut self) {
        if self.has_more_to_do() && self.rest.is_none() {
            return;
        }
        let heard = poll_fn(|cx| match self.listener.poll_heard(cx) {
            Poll::Ready(heard) => Poll::Ready(heard),
            Poll::Pending => self.shared.bell.poll_rung(cx).map(|()| Heard::default()),
        })
        .await;
        self.hear(heard);
    }

    fn hear(&mut self, heard: Heard) {
        self.is_hungry |= heard.work;
        self.is_tending |= heard.work;
        for (job, fence) in heard.stop {
            if let Some(run) = self.running.get_mut(&job).filter(|run| run.record.fence == fence) {
                run.stop(Stop::Settled);
            }
        }
    }

    /// Whether another turn would ask the store for something.
    fn has_more_to_do(&self) -> bool {
        self.is_tending || !self.finishes.is_empty() || (self.is_hungry && !self.open_kinds().is_empty())
    }

    fn begin_shutdown(&mut self, stop: crate::node::Stopping) {
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(stop.grace.is_zero()));
        let (flag, shared) = (is_over.clone(), self.shared.clone());
        let alarm = self.jobs.engine().after(stop.grace).run(move |_| {
            flag.store(true, std::sync::atomic::Ordering::Release);
            shared.bell.ring();
        });
        self.stopping = Some(Shutdown { tell: stop.tell, is_over, released: 0, _alarm: alarm.ok() });
    }

    /// Once the grace is over, whatever runs is told to stop.
    fn press_on_with_shutdown(&mut self) {
        let Some(stopping) = &mut self.stopping else { return };
        if stopping.is_over.load(std::sync::atomic::Ordering::Acquire) {
            for run in self.running.values_mut().filter(|run| run.stop.is_none()) {
                stopping.released += usize::from(!run.is_blocking);
                run.stop(Stop::Shutdown);
            }
        }
        let is_quiet =
            self.finishes.is_empty() && self.running.values().all(|run| run.is_blocking && run.stop.is_some());
        if is_quiet && let Some(tell) = stopping.tell.take() {
            let report = NodeReport { released: stopping.released, still_running: self.running.len() };
            _ = tell.send(report);
        }
    }

    /// Whether nothing is left to be told. Blocking handlers that do not stop keep the loop, and their jobs, until they do.
    fn is_over(&self) -> bool {
        self.stopping.is_some() && self.running.is_empty() && self.finishes.is_empty()
    }
}

async fn answer<T>(asked: Option<Reply<T>>) -> Result<Option<T>, StoreError> {
    match asked {
        Some(asked) => asked.await.map(Some),
        None => Ok(None),
    }
}
