//! The loop of a node: collect what ended, tell the store, tend it, claim, run, sleep until there is something to do.
//!
//! # Invariants
//! 1. A run's end is told to the store until the store has heard it; the fence makes saying it twice harmless.
//! 2. The loop sleeps exactly until the next instant at which the store has something to do, or a tenant's rate allows
//!    a start, and is woken by signals and by runs that end. It never polls, unless the store asks for it.
//! 3. What there is to tell and what there is to claim is not asked for again before the last was answered: meanwhile
//!    more comes together. A store in one file gets both at the same moment, so that it can write them in one commit.
//!    The loop goes on hearing what is to be stopped.
//! 4. It never runs a handler, and never waits for one.
//! 5. What the store says that runs here is known here, or given back. A claim whose answer was not heard may be done
//!    later than anybody asks what came of it: so who asks that begins another era, in which it gives nothing. A
//!    shutdown is over when that is known too.
//! 6. Between the loss of a lease and the next join it asks for nothing, and it does not wait for what it asked for
//!    before.

mod alarm;
mod claim;
mod fire;
mod held;
mod shutdown;
mod stops;
mod tend;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use punctual::{JobHandle, together};

use crate::error::StoreError;
use crate::hands::Hands;
use crate::id::{JobId, NodeId};
use crate::jobs::Jobs;
use crate::node::Shared;
use crate::reserve::Reserve;
use crate::run::{Done, Run, Stop};
use crate::schedule::Ticks;
use crate::signals::{Heard, Listener};
use crate::store::{Claim, Claimed, Finish, Finished, Fired, Reply, Schedule, Tended, Verdict};
use crate::time::Timestamp;
use fire::Firing;
use held::Held;
use shutdown::Shutdown;
use tend::Tend;

pub(crate) struct Worker {
    jobs: Jobs,
    hands: Hands,
    shared: Arc<Shared>,
    listener: Listener,
    workers: usize,
    concurrency: BTreeMap<String, usize>,
    /// Who it was when it claimed what it runs.
    node: NodeId,
    /// By fence too: a blocking handler that does not stop when its lease is lost may run beside its successor.
    running: HashMap<(JobId, u64), Run>,
    reserve: Reserve,
    finishes: Vec<Finish>,
    held: Held,
    /// What the store was asked and has yet to answer, and what it has answered.
    finishing: Option<(Told, Reply<Vec<Finished>>)>,
    claiming: Option<(Claim, Reply<Claimed>)>,
    tending: Option<((), Reply<Tended>)>,
    pruning: Option<((), Reply<usize>)>,
    firing: Firing,
    answers: Answers,
    ticks: Ticks,
    /// The store may have something to give.
    is_hungry: bool,
    /// The last claim may have left something for want of room here.
    has_left: bool,
    /// The store may have something to do.
    tend: Tend,
    /// A job of a series has ended, and the store has yet to confirm that.
    has_tick_ended: bool,
    /// The store has something to give, but others are in the way.
    is_contended: bool,
    /// The last claim gave all there was.
    is_scarce: bool,
    /// The answer to a claim was not heard, or what came of a place that it offered.
    is_unsure: bool,
    /// Stops that came before the answer which gives the job.
    early_stops: Vec<(JobId, u64)>,
    /// The store has yet to hear what this node handles.
    has_news: bool,
    /// When there is something to tend: as of the last look, and as was heard since it began.
    tend_at: Option<Timestamp>,
    due_at: Option<Timestamp>,
    /// It is tended then whatever claims say: they do not see all that there is to do.
    tend_by: Timestamp,
    claim_at: Option<Timestamp>,
    /// When to forget ended jobs at the latest, and from when on if the loop is awake anyway.
    prune_at: Timestamp,
    prune_from: Timestamp,
    /// Not so soon after so many were given, unless most of them have ended.
    linger: Option<(Arc<AtomicBool>, JobHandle<()>)>,
    /// When it last looked without having been told.
    polled: Instant,
    /// How long the store is left alone that said no, and until when.
    rest: Option<(Duration, Instant)>,
    alarm: Option<(Timestamp, JobHandle<()>)>,
    /// Those who wait until nothing is left to run.
    drains: Vec<tokio::sync::oneshot::Sender<()>>,
    stopping: Option<Shutdown>,
}

/// Ends of runs that the store was told of, since this instant.
struct Told {
    ends: Vec<Finish>,
    since: Instant,
}

/// What was asked, and what the store says to it.
#[derive(Default)]
struct Answers {
    finished: Option<Answer<Told, Vec<Finished>>>,
    claimed: Option<Answer<Claim, Claimed>>,
    tended: Option<Answer<(), Tended>>,
    pruned: Option<Answer<(), usize>>,
    fired: Vec<Answer<Schedule, Fired>>,
}

impl Answers {
    const fn has_any(&self) -> bool {
        let has_one = self.finished.is_some() || self.claimed.is_some() || self.tended.is_some();
        has_one || self.pruned.is_some() || !self.fired.is_empty()
    }
}

type Answer<Q, T> = (Q, Result<T, StoreError>);

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
            polled: jobs.clock().now(),
            reserve: Reserve::new(jobs.store().foresight(), workers, jobs.clock().now()),
            jobs,
            hands,
            shared,
            workers,
            concurrency,
            running: HashMap::new(),
            finishes: Vec::new(),
            held: Held::default(),
            finishing: None,
            claiming: None,
            tending: None,
            pruning: None,
            firing: Firing::default(),
            answers: Answers::default(),
            ticks: Ticks::default(),
            is_hungry: true,
            has_left: true,
            tend: Tend::Now,
            has_tick_ended: false,
            is_contended: false,
            is_scarce: false,
            // A node of this process that was there before may have been given what it never heard of.
            is_unsure: true,
            early_stops: Vec::new(),
            has_news: false,
            tend_at: None,
            due_at: None,
            tend_by: Timestamp::from_micros(0),
            claim_at: None,
            linger: None,
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
        let is_news = self.jobs.heart().describe(|beat| {
            beat.kinds = kinds.iter().map(|&kind| kind.to_owned()).collect();
            beat.paused = paused;
            beat.workers = self.workers;
        });
        self.has_news |= is_news;
        // What it can run only now may have waited.
        self.is_hungry |= is_news;
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
                Ok(()) => self.shared.lock().snapshot.running = self.running.len(),
                Err(error) => self.went_wrong(error),
            }
            self.press_on_with_shutdown();
            if self.is_over() {
                break;
            }
            self.tell_drained();
            self.set_alarm();
            self.offer();
            self.sleep().await;
        }
        *self.jobs.started().lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Takes in what happened: runs that ended, a lease that was lost, a shutdown.
    fn collect(&mut self) {
        let (done, stop, is_asked, rang) = {
            let mut state = self.shared.lock();
            let stop = state.stop.take();
            let rang = std::mem::take(&mut state.rang);
            let asked = std::mem::take(&mut state.drains);
            let is_asked = !asked.is_empty();
            self.drains.extend(asked);
            (std::mem::take(&mut state.done), stop, is_asked, rang)
        };
        if self.jobs.node_id() != self.node {
            self.lost_lease();
        }
        let ended = done.len();
        for done in done {
            self.finish(done);
        }
        self.draw_on_reserve(ended);
        if rang {
            self.alarm = None;
            self.heed_alarm();
        }
        if is_asked {
            self.is_hungry = true;
            self.want_tend();
        }
        if let Some(stop) = stop {
            self.begin_shutdown(stop);
        }
        self.press_on_with_shutdown();
    }

    fn lost_lease(&mut self) {
        // Not again those that went on the last time.
        let lost = self.running.values_mut().filter(|run| run.stop != Some(Stop::LeaseLost));
        let overlaps = lost.filter_map(|run| {
            run.stop(Stop::LeaseLost);
            run.goes_on().then_some(1)
        });
        self.shared.lock().snapshot.overlaps += overlaps.sum::<u64>();
        self.reserve.take();
        self.finishes.clear();
        self.held.take();
        self.early_stops.clear();
        // Nor is it waited for what was asked under the old name: that may have been lost without a word. What it
        // claimed goes back with the lease.
        (self.finishing, self.claiming, self.pruning) = (None, None, None);
        if self.tending.take().is_some() || self.tend == Tend::WithClaim {
            self.tend = Tend::Now;
        }
        self.give_up_firing();
        self.node = self.jobs.node_id();
        self.listener = self.jobs.store().signals().listen(self.node);
        self.is_hungry = true;
        // Whoever it is now has been given nothing.
        self.is_unsure = false;
    }

    fn finish(&mut self, done: Done) {
        // Of one that could not be begun the store has been told.
        let Some(run) = self.running.remove(&(done.id, done.fence)) else { return };
        self.has_tick_ended |= run.record.job.schedule.is_some();
        let (id, fence) = (done.id, done.fence);
        if let Some(verdict) = run.verdict(done, &self.jobs) {
            run.log(&verdict);
            self.finishes.push(Finish { id, fence, verdict });
        }
        // Otherwise nothing is there to be had; and if its end gives somebody else a place, the store says so.
        self.is_hungry |= self.has_left;
    }

    /// One turn: everything there is to ask the store, and what it has answered.
    async fn turn(&mut self) -> Result<(), StoreError> {
        self.heed_answers()?;
        if !self.jobs.heart().is_joined() {
            return Ok(());
        }
        self.introduce().await?;
        self.reconcile().await?;
        let (may_finish, may_claim) = (self.may_finish(), self.may_claim());
        if may_finish && let Some(ends) = self.next_finishes() {
            let told = Told { ends: ends.clone(), since: self.jobs.clock().now() };
            self.finishing = Some((told, self.jobs.store().finish(self.node, ends)));
        }
        if self.tend == Tend::Now {
            self.begin_tending();
        }
        if may_claim && let Some(claim) = self.ask() {
            // Not while another answer is to come, which would be the older one.
            if self.tend == Tend::AfterClaim && self.tending.is_none() {
                self.tend = Tend::WithClaim;
                self.due_at = None;
            }
            self.claiming = Some((claim.clone(), self.jobs.store().claim(claim)));
        }
        self.begin_tending();
        self.begin_firing();
        self.begin_pruning();
        Ok(())
    }

    /// Does what the answers that are there call for.
    fn heed_answers(&mut self) -> Result<(), StoreError> {
        let Answers { finished, claimed, tended, pruned, fired } = std::mem::take(&mut self.answers);
        // All are heeded before any error counts: what was claimed must run, whatever became of the rest.
        let mut is_well = Ok(());
        let said = [
            finished.as_ref().map(|(_, answer)| answer.is_ok()),
            claimed.as_ref().map(|(_, answer)| answer.is_ok()),
            tended.as_ref().map(|(_, answer)| answer.is_ok()),
            (!fired.is_empty()).then(|| fired.iter().all(|(_, answer)| answer.is_ok())),
        ];
        if said.contains(&Some(true)) && !said.contains(&Some(false)) {
            self.went_well();
        }
        match claimed {
            Some((claim, Ok(claimed))) => self.run(&claim, claimed),
            Some((_, Err(error))) => {
                self.heed_tend_at(None);
                self.is_unsure = true;
                is_well = Err(error);
            }
            None => {}
        }
        let early = std::mem::take(&mut self.early_stops);
        self.heed_stops(early);
        match finished {
            Some((told, Ok(answers))) => self.finished(told, &answers),
            Some((told, Err(error))) => {
                self.finishes.splice(..0, told.ends);
                is_well = Err(error);
            }
            None => {}
        }
        match pruned {
            Some(((), Ok(pruned))) => self.pruned(pruned),
            Some(((), Err(error))) => self.did_not_prune(&error),
            None => {}
        }
        match tended {
            Some(((), Ok(tended))) => self.tended(tended),
            Some(((), Err(error))) => is_well = Err(error),
            None => {}
        }
        is_well.and(self.fired(fired))
    }

    /// After a claim whose answer was not heard: gives back what it was given and does not know of, and makes sure that
    /// nothing can follow. Not while it could be about to hear of it.
    async fn reconcile(&mut self) -> Result<(), StoreError> {
        if !self.is_unsure {
            return Ok(());
        }
        self.listener.ask(false);
        if !self.may_reconcile() {
            return Ok(());
        }
        self.jobs.heart().describe(|beat| beat.era += 1);
        let pulse = self.jobs.store().heartbeat(self.jobs.heart().beat()).await?;
        let strange: Vec<_> = pulse.running.into_iter().filter(|&(id, fence)| !self.is_known(id, fence)).collect();
        self.finishes.extend(strange.into_iter().map(|(id, fence)| Finish { id, fence, verdict: Verdict::Release }));
        self.is_unsure = false;
        Ok(())
    }

    /// Whether nothing is on its way here that it could take for something that is not.
    fn may_reconcile(&self) -> bool {
        self.is_unsure && self.claiming.is_none() && self.listener.places() == 0
    }

    /// Whether a run is under way here, or its end is.
    fn is_known(&self, id: JobId, fence: u64) -> bool {
        self.running.contains_key(&(id, fence)) || self.reserve.contains(id, fence) || self.has_ended(id, fence)
    }

    fn finished(&mut self, Told { ends, since }: Told, answers: &[Finished]) {
        let (held, ends): (Vec<_>, Vec<_>) =
            ends.into_iter().zip(answers).partition(|(_, answer)| **answer == Finished::Held);
        if !held.is_empty() {
            self.hold(held.into_iter().map(|(finish, _)| finish), since);
        }
        // The next of its series may have waited for its end.
        if self.has_tick_ended {
            self.has_tick_ended = !self.finishes.is_empty() || !self.held.is_empty();
            self.want_tend();
        }
        let mut state = self.shared.lock();
        for (finish, answer) in ends {
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

    /// Those who asked before this turn began have had everything looked at since.
    fn tell_drained(&mut self) {
        let heard = self.listener.heard();
        self.hear(heard);
        let is_idle = self.running.is_empty()
            && self.reserve.is_empty()
            && self.held.is_empty()
            && !self.has_asked()
            && !self.has_more_to_do()
            && self.firing.again_at().is_none()
            && !self.is_unsure
            && !self.is_contended;
        if is_idle && self.rest.is_none() && self.jobs.heart().is_joined() {
            self.drains.drain(..).for_each(|drain| _ = drain.send(()));
        }
    }

    /// Sleeps until something happens, unless there is more to do at once.
    async fn sleep(&mut self) {
        if self.has_more_to_do() && self.rest.is_none() {
            return;
        }
        let heard = poll_fn(|cx| {
            let answers = &mut self.answers;
            answers.finished = answer(&mut self.finishing, cx);
            answers.claimed = answer(&mut self.claiming, cx);
            answers.tended = answer(&mut self.tending, cx);
            answers.pruned = answer(&mut self.pruning, cx);
            answers.fired = self.firing.answers(cx);
            if answers.has_any() {
                return Poll::Ready(Heard::default());
            }
            if let Poll::Ready(heard) = self.listener.poll_heard(cx) {
                return Poll::Ready(heard);
            }
            self.shared.bell.poll_rung(cx).map(|()| Heard::default())
        })
        .await;
        self.hear(heard);
    }

    fn hear(&mut self, heard: Heard) {
        self.is_unsure |= heard.is_unsure;
        together(|| heard.given.into_iter().for_each(|record| self.start(record)));
        self.is_hungry |= heard.is_ready;
        if heard.is_changed {
            self.want_tend();
        }
        let due = heard.due.map(|due| due.before(self.jobs.store().foresight()));
        self.due_at = [self.due_at, due].into_iter().flatten().min();
        self.heed_stops(heard.stop);
    }

    /// Whether another turn would ask the store for something.
    fn has_more_to_do(&self) -> bool {
        let has_more = self.should_tend()
            || self.firing.may_ask()
            || self.may_reconcile()
            || (self.may_finish() && self.has_finishes())
            || (self.may_claim() && self.is_hungry && !self.open_kinds().is_empty());
        has_more && self.jobs.heart().is_joined()
    }

    /// Whether the next finishes may go. In one file they go with a claim, into one commit; over a network nothing
    /// waits for the other.
    fn may_finish(&self) -> bool {
        self.finishing.is_none() && (self.claiming.is_none() || self.is_far()) && !self.lingers()
    }

    /// Whether the next claim may go: not before it is known what came of the last.
    fn may_claim(&self) -> bool {
        self.claiming.is_none() && !self.is_unsure && (self.finishing.is_none() || self.is_far()) && !self.lingers()
    }

    /// Whether the store is asked over a network.
    fn is_far(&self) -> bool {
        self.jobs.store().poll().is_some()
    }

    /// Whether the store has something to answer, or has answered what is yet to be heeded.
    fn has_asked(&self) -> bool {
        let asks = self.finishing.is_some() || self.claiming.is_some() || self.tending.is_some();
        asks || self.firing.has_asked()
            || self.pruning.is_some()
            || self.answers.has_any()
            || self.listener.places() > 0
    }
}

/// What was asked and what came of it, if an answer is there.
fn answer<Q, T>(asked: &mut Option<(Q, Reply<T>)>, cx: &mut Context<'_>) -> Option<Answer<Q, T>> {
    let (_, reply) = asked.as_mut()?;
    let Poll::Ready(answer) = reply.as_mut().poll(cx) else { return None };
    asked.take().map(|(question, _)| (question, answer))
}
