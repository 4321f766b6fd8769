//! Which results this process still wants: counted here, so that the store hears of the first and of the last.
//!
//! # Invariants
//! 1. While an enqueue is under way that may join a job, nothing is given up: which job that is only its answer says,
//!    and it could be cancelled under its hands (see `joining`).
//! 2. What the store did not hear it is told again, until it has. Whether a job is wanted is looked up at the moment
//!    that it is told.
//! 3. A process that lost its lease has another name, under which it wants nothing until it has told the store. See
//!    [`Interests::want_again`].
//! 4. What was detached is wanted until it ends, and not forgotten before.
//!
//! The store is told under the lock, so that what is told later comes later; its answers are waited for without.

mod joining;

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual::Scheduler;

use crate::heart::{Heart, rest};
use crate::id::{JobId, NodeId};
use crate::store::{Reply, Store};
pub(crate) use joining::Joining;

/// How long to leave a store alone that did not hear; doubles up to the second.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Of so many detached jobs it is not worth looking whether they have ended.
const KEPT_FEW: usize = 64;

/// The interests of one process.
#[derive(Debug)]
pub(crate) struct Interests {
    store: Arc<dyn Store>,
    heart: Arc<Heart>,
    engine: Scheduler,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    count: HashMap<JobId, usize>,
    /// Those that were detached, and how many there may be before it is looked which of them have ended.
    kept: HashSet<JobId>,
    kept_max: usize,
    /// Enqueues under way that may join a job.
    joining: usize,
    /// Jobs to give up once nobody joins.
    put_off: Vec<JobId>,
    /// Jobs of which the store did not hear whether they are wanted, and whether somebody is at it to tell it again.
    unheard: VecDeque<JobId>,
    is_insisting: bool,
}

impl Held {
    fn wants(&self, job: JobId) -> bool {
        self.count.contains_key(&job) || self.kept.contains(&job)
    }
}

/// What the store was told of a job. It answers whether there is any more to say about it.
type Told = (JobId, Reply<bool>);

impl Interests {
    pub(crate) fn new(store: Arc<dyn Store>, heart: Arc<Heart>, engine: Scheduler) -> Arc<Self> {
        Arc::new(Self { store, heart, engine, held: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Held)) {
        let mut held = self.lock();
        change(&mut held);
        if held.joining > 0 || held.put_off.is_empty() {
            return;
        }
        let mut given_up = std::mem::take(&mut held.put_off);
        given_up.retain(|&job| !held.wants(job));
        let told: Vec<Told> = given_up.into_iter().map(|job| self.give_up(job)).collect();
        drop(held);
        if !told.is_empty() {
            self.begin(|all| all.hear(told));
        }
    }

    fn give_up(&self, job: JobId) -> Told {
        let reply = self.store.unwant(job, self.heart.node());
        (job, Box::pin(async { reply.await.map(|()| true) }))
    }

    fn want(&self, job: JobId) -> Told {
        (job, self.store.want(job, self.heart.node()))
    }

    /// The process has joined under another name: the store is told what it wants, and answers when it has heard it.
    ///
    /// What the old name wants ends when it is reaped, which is after its lease has ended. The heart gives a lease up a
    /// quarter of it before that: if the store can be asked in that time, this comes first. If not, another process may
    /// have reaped it before, and the jobs are cancelled, as those of a process that died would be. Nobody of this
    /// process reaps anything meanwhile: its node asks for nothing before it has joined, and it has not until this is
    /// heard.
    pub(crate) fn want_again(self: &Arc<Self>) -> Reply<()> {
        let told: Vec<Told> = {
            let held = self.lock();
            let wanted: HashSet<JobId> = held.count.keys().chain(&held.kept).copied().collect();
            wanted.into_iter().map(|job| self.want(job)).collect()
        };
        let (tell, heard) = tokio::sync::oneshot::channel();
        self.begin(|all| async move {
            all.hear(told).await;
            let _ = tell.send(());
        });
        Box::pin(async {
            let _ = heard.await;
            Ok(())
        })
    }

    /// Waits for the store's answers; it is told again what it did not hear.
    async fn hear(self: Arc<Self>, told: Vec<Told>) {
        let mut unheard = Vec::new();
        for (job, reply) in told {
            match reply.await {
                Ok(true) => {}
                // It has ended.
                Ok(false) => _ = self.lock().kept.remove(&job),
                Err(error) => {
                    tracing::debug!(target: "punctual", id = %job, %error, "the store did not hear whether a job is wanted");
                    unheard.push(job);
                }
            }
        }
        self.insist_on(unheard);
    }

    fn insist_on(self: &Arc<Self>, unheard: Vec<JobId>) {
        let is_first = {
            let mut held = self.lock();
            held.unheard.extend(unheard);
            !held.unheard.is_empty() && !std::mem::replace(&mut held.is_insisting, true)
        };
        if is_first {
            self.begin(Self::insist);
        }
    }

    /// Tells the store again what it did not hear, one thing at a time, and leaves it alone for a while when it does
    /// not hear that either.
    async fn insist(self: Arc<Self>) {
        let mut pause = REST.0;
        while rest(&self.engine, pause).await {
            pause = (pause * 2).min(REST.1);
            loop {
                let Some((job, reply)) = self.next_unheard() else { return };
                match reply.await {
                    Ok(_) => pause = REST.0,
                    Err(_) => {
                        self.lock().unheard.push_back(job);
                        break;
                    }
                }
            }
        }
    }

    /// Tells the store one more thing that it did not hear; `None` if there is nothing left, and nobody is at it from
    /// then on.
    fn next_unheard(&self) -> Option<Told> {
        let mut held = self.lock();
        while let Some(job) = held.unheard.pop_front() {
            if held.wants(job) {
                return Some(self.want(job));
            }
            if held.joining == 0 {
                return Some(self.give_up(job));
            }
            held.put_off.push(job);
        }
        held.is_insisting = false;
        None
    }

    /// Forgets detached jobs that have ended.
    async fn sweep(self: Arc<Self>) {
        let kept: Vec<JobId> = self.lock().kept.iter().copied().collect();
        for job in kept {
            match self.store.get(job).await {
                Ok(Some(record)) if record.state.outcome.is_none() => {}
                Ok(_) => _ = self.lock().kept.remove(&job),
                // Another time.
                Err(_) => break,
            }
        }
        let mut held = self.lock();
        held.kept_max = KEPT_FEW.max(2 * held.kept.len());
    }

    /// Does something beside, until the process is gone.
    fn begin<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<Self>) -> F + Send + 'static,
    ) {
        let all = self.clone();
        if let Ok(task) = self.engine.now().name("interest").spawn(move |_| work(all)) {
            task.detach();
        }
    }
}

/// One handle's interest in one job; dropping the last one tells the store.
#[derive(Debug)]
pub(crate) struct Interest {
    all: Arc<Interests>,
    job: JobId,
}

impl Interest {
    pub(crate) fn new(all: &Arc<Interests>, job: JobId) -> Self {
        all.change(|held| *held.count.entry(job).or_default() += 1);
        Self { all: all.clone(), job }
    }

    /// The store has heard of it in the name of this node. If the process has another one by now, it is told once more.
    pub(crate) fn was_heard_of(&self, node: NodeId) {
        if self.all.heart.node() != node {
            self.all.insist_on(vec![self.job]);
        }
    }

    /// Counts until the job ends.
    pub(crate) fn keep(self) {
        let is_much = {
            let mut held = self.all.lock();
            held.kept.insert(self.job);
            let is_much = held.kept.len() > held.kept_max.max(KEPT_FEW);
            if is_much {
                // Until it is known how many are left.
                held.kept_max = usize::MAX;
            }
            is_much
        };
        if is_much {
            self.all.begin(Interests::sweep);
        }
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.all.change(|held| {
            let Some(count) = held.count.get_mut(&self.job) else { return };
            *count -= 1;
            if *count == 0 {
                held.count.remove(&self.job);
                held.put_off.push(self.job);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use punctual::VirtualClock;

    use super::*;
    use crate::memory::MemoryStore;
    use crate::store::{CancelCause, NewJob};

    /// Every detached job left an entry for the life of the process. Now those that have ended are forgotten, before
    /// there are twice as many as have not.
    #[test]
    fn detached_jobs_that_have_ended_are_forgotten() {
        let clock = VirtualClock::new();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(&clock));
        let heart = Arc::new(Heart::new(NodeId::from_u64(1)));
        pollster::block_on(store.join(heart.beat())).unwrap();
        let engine = Scheduler::builder().workers(1).clock(&clock).build().unwrap();
        let all = Interests::new(store.clone(), heart.clone(), engine.clone());
        let goes_on = |id: u128| id.is_multiple_of(10);
        for id in 1..=400 {
            let job = JobId::from_u128(id);
            let wanted = NewJob { wanted_by: Some(heart.node()), ..NewJob::new(job, "k") };
            pollster::block_on(store.enqueue(vec![wanted])).unwrap().remove(0).unwrap();
            Interest::new(&all, job).keep();
            if !goes_on(id) {
                pollster::block_on(store.cancel(job, CancelCause::Caller)).unwrap();
            }
            clock.settle().unwrap();
        }
        let kept = all.lock().kept.len();
        assert!((40..=160).contains(&kept), "{kept} are kept");
        assert!(all.lock().count.is_empty());
        let totals = pollster::block_on(store.totals()).unwrap();
        assert_eq!(totals.ready, 40, "none was given up");
        engine.shutdown(Duration::ZERO);
    }
}
