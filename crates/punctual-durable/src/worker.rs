//! The loop of a node: collect what ended, tell the store, tend it, claim, run, sleep until there is something to do.
//!
//! # Invariants
//! 1. A run's end is told to the store until the store has heard it; the fence makes saying it twice harmless.
//! 2. The loop sleeps exactly until the next instant at which the store has something to do, or a tenant's rate allows a start, and is
//!    woken by signals and by runs that end. It never polls, unless the store asks for it.
//! 3. What there is to tell and what there is to claim is not asked for again before the last was answered: meanwhile more comes together. A
//!    store in one file gets both at the same moment, so that it can write them in one commit. The loop goes on hearing what is to be stopped.
//! 4. It never runs a handler, and never waits for one.
//! 5. Between the loss of a lease and the next join it asks for nothing, and it does not wait for what it asked for before.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use punctual::{JobHandle, together};

use crate::error::StoreError;
use crate::hands::Hands;
use crate::id::{JobId, NodeId};
use crate::jobs::Jobs;
use crate::node::{NodeReport, Shared};
use crate::reserve::Reserve;
use crate::run::{Done, Run, Stop};
use crate::schedule::{self, Ticks};
use crate::signals::{Heard, Listener};
use crate::store::{Claim, Claimed, Finish, Finished, Record, Reply, Tended, Verdict};
use crate::time::Timestamp;

/// How long to leave a store alone that said no; doubles up to the second.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How long to leave a store alone that has something to give, but not now.
const CONTENDED: Duration = Duration::from_millis(2);

/// After so many jobs were given at once by a store over a network, how long to wait for more than the first of them to end: asked for two or three more it
/// would work as hard as for all.
const LINGER: (usize, Duration) = (8, Duration::from_millis(1));

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
    reserve: Reserve,
    finishes: Vec<Finish>,
    /// What the store was asked and has yet to answer, and what it has answered.
    finishing: Option<(Vec<Finish>, Reply<Vec<Finished>>)>,
    claiming: Option<(Claim, Reply<Claimed>)>,
    tending: Option<((), Reply<Tended>)>,
    pruning: Option<((), Reply<usize>)>,
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
    rest: Option<Duration>,
    alarm: Option<(Timestamp, JobHandle<()>)>,
    /// Those who wait until nothing is left to run.
    drains: Vec<tokio::sync::oneshot::Sender<()>>,
    stopping: Option<Shutdown>,
}

/// Whether time is to be looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tend {
    Not,
    /// Unless the claim that is under way says that there is no need to.
    WithClaim,
    /// The same of the next claim; now if none is to be made.
    AfterClaim,
    Now,
}

/// What was asked, and what the store says to it.
#[derive(Default)]
struct Answers {
    finished: Option<Answer<Vec<Finish>, Vec<Finished>>>,
    claimed: Option<Answer<Claim, Claimed>>,
    tended: Option<Answer<(), Tended>>,
    pruned: Option<Answer<(), usize>>,
}

impl Answers {
    const fn has_any(&self) -> bool {
        self.finished.is_some() || self.claimed.is_some() || self.tended.is_some() || self.pruned.is_some()
    }
}

type Answer<Q, T> = (Q, Result<T, StoreError>);

/// A shutdown under way.
struct Shutdown {
    tell: Option<tokio::sync::oneshot::Sender<NodeReport>>,
    is_over: Arc<AtomicBool>,
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
            reserve: Reserve::new(jobs.store().foresight(), workers, jobs.clock().now()),
            jobs,
            hands,
            shared,
            workers,
            concurrency,
            running: HashMap::new(),
            finishes: Vec::new(),
            finishing: None,
            claiming: None,
            tending: None,
            pruning: None,
            answers: Answers::default(),
            ticks: Ticks::default(),
            is_hungry: true,
            has_left: true,
            tend: Tend::Now,
            has_tick_ended: false,
            is_contended: false,
            is_scarce: false,
            is_unsure: false,
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

    /// What the instants that have come stood for is asked for now, however long the answer takes. If none has, it is time to look at everything.
    fn heed_alarm(&mut self) {
        let now = self.jobs.store().now();
        let has_come = |at: &mut Option<Timestamp>| at.take_if(|at| *at <= now).is_some();
        let claims = has_come(&mut self.claim_at);
        let tends = has_come(&mut self.tend_at) | has_come(&mut self.due_at);
        self.is_hungry = true;
        if tends || !claims {
            self.want_tend();
        }
    }

    fn lost_lease(&mut self) {
        self.running.values_mut().for_each(|run| run.stop(Stop::LeaseLost));
        self.reserve.take();
        self.finishes.clear();
        // Nor is it waited for what was asked under the old name: that may have been lost without a word. What it claimed goes back with the lease.
        (self.finishing, self.claiming, self.pruning) = (None, None, None);
        if self.tending.take().is_some() || self.tend == Tend::WithClaim {
            self.tend = Tend::Now;
        }
        self.node = self.jobs.node_id();
        self.listener = self.jobs.store().signals().listen(self.node);
        self.is_hungry = true;
    }

    fn finish(&mut self, done: Done) {
        // A run that was started anew, after the lease was lost, is not the one that ended.
        let Some(run) = self.running.get(&done.id).filter(|run| run.record.fence == done.fence) else { return };
        let verdict = run.verdict(done.ran, &self.jobs);
        self.has_tick_ended |= run.record.job.schedule.is_some();
        self.running.remove(&done.id);
        if let Some(verdict) = verdict {
            self.finishes.push(Finish { id: done.id, fence: done.fence, verdict });
        }
        // Otherwise nothing is there to be had; and if its end gives somebody else a place, the store says so.
        self.is_hungry |= self.has_left;
    }

    /// So many runs have ended: what waits for workers begins. What waited too long, or is no longer handled here, goes back.
    fn draw_on_reserve(&mut self, ended: usize) {
        let now = self.jobs.clock().now();
        self.reserve.ended(ended, now);
        if self.reserve.is_empty() {
            return;
        }
        let overdue = self.reserve.overdue(now);
        self.give_back(overdue);
        together(|| {
            while self.free() > 0
                && let Some(record) = self.reserve.pop()
            {
                if self.shared.lock().paused.contains(&record.job.kind) {
                    self.give_back(vec![record]);
                } else {
                    self.start(record);
                }
            }
        });
    }

    /// Jobs that were not begun are for others.
    fn give_back(&mut self, jobs: Vec<Record>) {
        let release = |record: Record| Finish { id: record.job.id, fence: record.fence, verdict: Verdict::Release };
        self.finishes.extend(jobs.into_iter().map(release));
    }

    /// One turn: everything there is to ask the store, and what it has answered.
    async fn turn(&mut self) -> Result<(), StoreError> {
        self.heed_answers().await?;
        if !self.jobs.heart().is_joined() {
            return Ok(());
        }
        self.introduce().await?;
        self.reconcile().await?;
        let (may_finish, may_claim) = (self.may_finish(), self.may_claim());
        if may_finish && !self.finishes.is_empty() {
            let finishes = std::mem::take(&mut self.finishes);
            self.finishing = Some((finishes.clone(), self.jobs.store().finish(self.node, finishes)));
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
        self.begin_pruning();
        Ok(())
    }

    /// Does what the answers that are there call for.
    async fn heed_answers(&mut self) -> Result<(), StoreError> {
        let Answers { finished, claimed, tended, pruned } = std::mem::take(&mut self.answers);
        // All are heeded before any error counts: what was claimed must run, whatever became of the rest.
        let mut is_well = Ok(());
        let said = [
            finished.as_ref().map(|(_, answer)| answer.is_ok()),
            claimed.as_ref().map(|(_, answer)| answer.is_ok()),
            tended.as_ref().map(|(_, answer)| answer.is_ok()),
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
        match finished {
            Some((finishes, Ok(answers))) => self.finished(&finishes, &answers),
            Some((finishes, Err(error))) => {
                self.finishes.splice(..0, finishes);
                is_well = Err(error);
            }
            None => {}
        }
        match pruned {
            Some(((), Ok(pruned))) => self.pruned(pruned),
            Some(((), Err(error))) => is_well = Err(error),
            None => {}
        }
        match tended {
            Some(((), Ok(tended))) => is_well.and(self.tended(tended).await),
            Some(((), Err(error))) => Err(error),
            None => is_well,
        }
    }

    /// Time is to be looked after. Where the store is asked over a network, a claim goes first: what is due is on its way with one answer.
    fn want_tend(&mut self) {
        if self.tend != Tend::Now {
            self.tend = if self.is_far() { Tend::AfterClaim } else { Tend::Now };
        }
    }

    /// A claim is back. What was wanted before it began, it may have answered.
    fn heed_tend_at(&mut self, tend_at: Option<Timestamp>) {
        if self.tend != Tend::WithClaim {
            return;
        }
        let now = self.jobs.store().now();
        let is_enough = tend_at.is_some_and(|at| at > now) && now < self.tend_by;
        self.tend = if is_enough { Tend::Not } else { Tend::Now };
        self.tend_at = tend_at;
    }

    /// Looks after time, if this is the moment: a claim that is under way may be waited for.
    fn begin_tending(&mut self) {
        if self.should_tend() {
            let store = self.jobs.store();
            self.tend = Tend::Not;
            self.due_at = None;
            self.tend_by = store.now().after(store.poll().unwrap_or_default());
            self.tending = Some(((), self.jobs.store().tend()));
        }
    }

    fn should_tend(&self) -> bool {
        self.tending.is_none()
            && match self.tend {
                Tend::Not | Tend::WithClaim => false,
                Tend::AfterClaim => self.claiming.is_none(),
                Tend::Now => true,
            }
    }

    /// After a claim whose answer was not heard: gives back what it was given and does not know of. Not while it could be about to hear of it.
    async fn reconcile(&mut self) -> Result<(), StoreError> {
        if !self.is_unsure {
            return Ok(());
        }
        self.listener.ask(false);
        if self.listener.places() > 0 {
            return Ok(());
        }
        let pulse = self.jobs.store().heartbeat(self.jobs.heart().beat()).await?;
        let is_known = |id, fence| {
            let runs =
                self.running.get(&id).is_some_and(|run| run.record.fence == fence) || self.reserve.contains(id, fence);
            let finishing = self.finishing.iter().flat_map(|(finishes, _)| finishes);
            runs || self.finishes.iter().chain(finishing).any(|finish| (finish.id, finish.fence) == (id, fence))
        };
        let strange: Vec<_> = pulse.running.into_iter().filter(|&(id, fence)| !is_known(id, fence)).collect();
        self.finishes.extend(strange.into_iter().map(|(id, fence)| Finish { id, fence, verdict: Verdict::Release }));
        self.is_unsure = false;
        Ok(())
    }

    /// What to claim, if there is room and hope.
    fn ask(&mut self) -> Option<Claim> {
        if !self.is_hungry {
            return None;
        }
        // From here on its places are for what it asks for.
        self.listener.ask(self.is_scarce);
        let kinds = self.open_kinds();
        if kinds.is_empty() {
            return None;
        }
        self.is_hungry = false;
        self.claim_at = None;
        self.has_left = kinds.len() < self.jobs.handlers().kinds().len();
        let (free, spare) = (self.free(), self.reserve.room(self.jobs.clock().now()));
        // Half of the hands stay free for what is ready.
        let ahead =
            if self.jobs.store().foresight().is_zero() { 0 } else { free.saturating_sub(self.workers.div_ceil(2)) };
        Some(Claim { node: self.node, max: free + spare, kinds: kinds.into(), ahead, spare })
    }

    /// When to claim what falls due at an instant. What was left although it could be foreseen is not asked for again at once.
    fn foresee(&self, due: Timestamp) -> Timestamp {
        let store = self.jobs.store();
        let foresight = store.foresight();
        due.before(foresight).max(due.min(store.now().after(foresight / 2)))
    }

    /// The kinds it can run at this moment, and how many more of each; none if it has no room.
    fn open_kinds(&self) -> Vec<(String, usize)> {
        let max = self.free() + self.reserve.room(self.jobs.clock().now());
        if max == 0 || self.stopping.is_some() {
            return Vec::new();
        }
        let places = self.listener.places();
        let room = |kind: &str| {
            let Some(&most) = self.concurrency.get(kind) else { return max };
            let running = self.running.values().filter(|run| run.record.job.kind == kind).count();
            most.saturating_sub(places + running + self.reserve.of_kind(kind))
        };
        let state = self.shared.lock();
        let kinds = self.jobs.handlers().kinds().into_iter().filter(|&kind| !state.paused.contains(kind));
        kinds.map(|kind| (kind.to_owned(), room(kind))).filter(|&(_, room)| room > 0).collect()
    }

    /// How many more jobs it can run.
    fn free(&self) -> usize {
        self.workers.saturating_sub(self.running.len() + self.listener.places())
    }

    /// Says what it could run at once, if it has nothing to ask the store for: whoever enqueues in this process may give it that, and nobody has to ask.
    fn offer(&self) {
        if self.claiming.is_some() {
            return;
        }
        let is_idle = self.is_far()
            && !self.is_hungry
            && !self.is_contended
            && !self.is_unsure
            && self.rest.is_none()
            && self.jobs.heart().is_joined();
        let kinds = if is_idle { self.open_kinds() } else { Vec::new() };
        self.listener.offer(self.free(), kinds);
    }

    fn run(&mut self, claim: &Claim, claimed: Claimed) {
        self.heed_tend_at(claimed.tend_at);
        // Its lease was lost meanwhile: others have, or will have, what it was given.
        if claim.node != self.node {
            return;
        }
        // Others were in the way of everything: they will be done in a moment.
        self.is_contended = claimed.more && claimed.jobs.is_empty() && claim.max > claim.spare;
        let now = self.jobs.clock().now();
        if claim.spare > 0 && claimed.more && claimed.jobs.len() <= claim.max - claim.spare {
            self.reserve.refused(now);
        }
        self.is_scarce = !claimed.more && claimed.jobs.len() < claim.max;
        let again = self.is_contended.then(|| self.jobs.store().now().after(CONTENDED));
        let due_at = claimed.due_at.map(|due| self.foresee(due));
        self.claim_at = [claimed.again_at, due_at, again].into_iter().flatten().min();
        if claimed.jobs.len() >= LINGER.0 && self.is_far() {
            self.linger();
        }
        self.is_hungry |= !self.is_contended && (claimed.more || claimed.jobs.len() == claim.max);
        self.has_left |= claim.kinds.iter().any(|(kind, room)| {
            *room < claim.max && claimed.jobs.iter().filter(|record| record.job.kind == *kind).count() >= *room
        });
        // So that the hands are woken once for all, and not for each.
        together(|| {
            for record in claimed.jobs {
                if self.free() > 0 {
                    self.start(record);
                } else {
                    self.reserve.push(record, now);
                }
            }
        });
    }

    fn start(&mut self, record: Record) {
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

    fn finished(&mut self, finishes: &[Finish], answers: &[Finished]) {
        // The next of its series may have waited for its end.
        if self.has_tick_ended {
            self.has_tick_ended = !self.finishes.is_empty();
            self.want_tend();
        }
        let mut state = self.shared.lock();
        for (finish, answer) in finishes.iter().zip(answers) {
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
            // What is due by now is asked for in its turn, with the claim that it is for.
            if tended.schedules.is_empty() {
                return Ok(());
            }
            tended = self.jobs.store().tend().await?;
        }
    }

    /// Has ended jobs forgotten, if it is time to.
    fn begin_pruning(&mut self) {
        if self.pruning.is_none() && self.may_prune() && self.prune_from <= self.jobs.store().now() {
            self.prune_at = Timestamp::NEVER;
            self.pruning = Some(((), self.jobs.store().prune(self.jobs.retention(), PRUNE_MAX)));
        }
    }

    fn may_prune(&self) -> bool {
        self.stopping.is_none() && self.jobs.heart().is_joined()
    }

    fn pruned(&mut self, pruned: usize) {
        let now = self.jobs.store().now();
        let shortest = crate::state::Outcome::ALL.map(|outcome| self.jobs.retention().of(outcome)).into_iter().min();
        let pause = shortest.unwrap_or(PRUNE_EVERY).clamp(Duration::from_secs(1), PRUNE_EVERY);
        let is_all = pruned < PRUNE_MAX;
        (self.prune_from, self.prune_at) = if is_all { (now.after(pause / 2), now.after(pause)) } else { (now, now) };
        if !is_all {
            self.want_tend();
        }
    }

    /// The store says yes again.
    fn went_well(&mut self) {
        self.rest = None;
        self.shared.lock().snapshot.store_error = None;
    }

    /// The store said no: everything is asked again, later and later.
    fn went_wrong(&mut self, error: StoreError) {
        tracing::warn!(target: "punctual", %error, "the store could not be asked");
        self.rest = Some(self.rest.map_or(REST.0, |rest| (rest * 2).min(REST.1)));
        self.is_hungry = true;
        self.want_tend();
        self.shared.lock().snapshot.store_error = Some(error);
    }

    /// Those who asked before this turn began have had everything looked at since.
    fn tell_drained(&mut self) {
        let heard = self.listener.heard();
        self.hear(heard);
        let is_idle = self.running.is_empty()
            && self.reserve.is_empty()
            && !self.has_asked()
            && !self.has_more_to_do()
            && !self.is_contended;
        if is_idle && self.rest.is_none() && self.jobs.heart().is_joined() {
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
            // Otherwise that instant would come, and come again.
            let prune = self.may_prune().then_some(self.prune_at);
            let overdue = self.reserve.time_left(self.jobs.clock().now()).map(|left| now.after(left));
            [self.tend_at, self.due_at, self.claim_at, poll, prune, overdue].into_iter().flatten().min()
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
        let heard = poll_fn(|cx| {
            let answers = &mut self.answers;
            answers.finished = answer(&mut self.finishing, cx);
            answers.claimed = answer(&mut self.claiming, cx);
            answers.tended = answer(&mut self.tending, cx);
            answers.pruned = answer(&mut self.pruning, cx);
            if answers.has_any() {
                return Poll::Ready(Heard::default());
            }
            match self.listener.poll_heard(cx) {
                Poll::Ready(heard) => Poll::Ready(heard),
                Poll::Pending => self.shared.bell.poll_rung(cx).map(|()| Heard::default()),
            }
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
        for (job, fence) in heard.stop {
            if let Some(run) = self.running.get_mut(&job).filter(|run| run.record.fence == fence) {
                run.stop(Stop::Settled);
            } else if self.reserve.remove(job, fence) {
                self.finishes.push(Finish { id: job, fence, verdict: Verdict::Stopped });
            }
        }
    }

    /// Whether another turn would ask the store for something.
    fn has_more_to_do(&self) -> bool {
        let has_more = self.should_tend()
            || (self.may_finish() && !self.finishes.is_empty())
            || (self.may_claim() && self.is_hungry && !self.open_kinds().is_empty());
        has_more && self.jobs.heart().is_joined()
    }

    /// Whether the next finishes may go. In one file they go with a claim, into one commit; over a network nothing waits for the other.
    fn may_finish(&self) -> bool {
        self.finishing.is_none() && (self.claiming.is_none() || self.is_far()) && !self.lingers()
    }

    /// Whether the next claim may go.
    fn may_claim(&self) -> bool {
        self.claiming.is_none() && (self.finishing.is_none() || self.is_far()) && !self.lingers()
    }

    /// Whether the store is asked over a network.
    fn is_far(&self) -> bool {
        self.jobs.store().poll().is_some()
    }

    fn lingers(&self) -> bool {
        let Some((is_over, _)) = &self.linger else { return false };
        self.finishes.len() < self.running.len() && !is_over.load(Ordering::Acquire)
    }

    fn linger(&mut self) {
        let is_over = Arc::new(AtomicBool::new(false));
        let alarm = self.ring_after(LINGER.1, is_over.clone());
        self.linger = alarm.map(|alarm| (is_over, alarm));
    }

    /// Wakes the loop when a time is over, and says that it is.
    fn ring_after(&self, time: Duration, is_over: Arc<AtomicBool>) -> Option<JobHandle<()>> {
        let shared = self.shared.clone();
        let alarm = self.jobs.engine().after(time).run(move |_| {
            is_over.store(true, Ordering::Release);
            shared.bell.ring();
        });
        alarm.ok()
    }

    /// Whether the store has something to answer, or has answered what is yet to be heeded.
    fn has_asked(&self) -> bool {
        let asks = self.finishing.is_some() || self.claiming.is_some() || self.tending.is_some();
        asks || self.pruning.is_some() || self.answers.has_any() || self.listener.places() > 0
    }

    fn begin_shutdown(&mut self, stop: crate::node::Stopping) {
        let is_over = Arc::new(AtomicBool::new(stop.grace.is_zero()));
        let alarm = self.ring_after(stop.grace, is_over.clone());
        let reserve = self.reserve.take();
        self.stopping = Some(Shutdown { tell: stop.tell, is_over, released: reserve.len(), _alarm: alarm });
        self.give_back(reserve);
        // Nobody here needs to know what was forgotten.
        self.pruning = None;
    }

    /// Once the grace is over, whatever runs is told to stop.
    fn press_on_with_shutdown(&mut self) {
        let has_asked = self.has_asked();
        let Some(stopping) = &mut self.stopping else { return };
        if stopping.is_over.load(Ordering::Acquire) {
            for run in self.running.values_mut().filter(|run| run.stop.is_none()) {
                stopping.released += usize::from(!run.is_blocking);
                run.stop(Stop::Shutdown);
            }
        }
        let is_quiet = self.finishes.is_empty()
            && !has_asked
            && self.running.values().all(|run| run.is_blocking && run.stop.is_some());
        if is_quiet && let Some(tell) = stopping.tell.take() {
            let report = NodeReport { released: stopping.released, still_running: self.running.len() };
            _ = tell.send(report);
        }
    }

    /// Whether nothing is left to be told. Blocking handlers that do not stop keep the loop, and their jobs, until they do.
    fn is_over(&self) -> bool {
        self.stopping.is_some() && self.running.is_empty() && self.finishes.is_empty() && !self.has_asked()
    }
}

/// What was asked and what came of it, if an answer is there.
fn answer<Q, T>(asked: &mut Option<(Q, Reply<T>)>, cx: &mut Context<'_>) -> Option<Answer<Q, T>> {
    let (_, reply) = asked.as_mut()?;
    let Poll::Ready(answer) = reply.as_mut().poll(cx) else { return None };
    asked.take().map(|(question, _)| (question, answer))
}
