//! A store in memory: for tests, and as the model that every other store is compared with.
//!
//! It favours the obvious. One mutex; one map of jobs, scanned from end to end for every question; no index, no counter
//! that could be wrong but those of what has ended. It shares with the other stores only what must never differ: the
//! table of states and `punctual::decide`.
//!
//! # Invariants
//! 1. Before and after every operation nothing in the world is overdue: what is due is ready, what is past its time has
//!    expired. So no operation has to think of time.
//! 2. A job's state is changed by `World::step` alone, which asks `State::after`.
//! 3. Nobody is woken under the mutex: what there is to tell is collected as `News` and told after it is released.

mod claim;
mod enqueue;
mod nodes;
mod schedules;
mod tenants;
mod world;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual::Clock;

use crate::id::{JobId, NodeId};
use crate::signals::Signals;
use crate::store::{
    Admitted, Beat, CancelCause, Cancelled, Claim, Claimed, Edit, Edited, Erased, Explanation, Finish, Finished, Fire,
    Fired, NewJob, NodeRecord, Page, Pulse, Query, Record, Redriven, Refused, Reply, Retention, Schedule, Store,
    TenantChange, TenantRecord, Tended, Totals,
};
use crate::time::Timestamp;
use world::World;

/// A store in memory, gone with its process: for tests, with the clock they choose. Clones share it.
///
/// # Example
/// ```
/// use punctual::VirtualClock;
/// use punctual_durable::{MemoryStore, Store};
///
/// let clock = VirtualClock::new();
/// let store = MemoryStore::new(&clock);
/// assert_eq!(store.now().to_wall(), clock.wall());
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    clock: Clock,
    lease: Option<Duration>,
    signals: Signals,
    world: Mutex<World>,
}

impl MemoryStore {
    /// An empty store, owned by one node whose life is the lease.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{MemoryStore, Store};
    /// assert_eq!(MemoryStore::new(punctual::Clock::system()).lease(), None);
    /// ```
    #[must_use]
    pub fn new(clock: impl Into<Clock>) -> Self {
        Self::open(clock.into(), None)
    }

    /// An empty store for several nodes, each of which is taken for dead when it has not been heard of for `lease`.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{MemoryStore, Store};
    /// use std::time::Duration;
    /// let store = MemoryStore::with_lease(punctual::VirtualClock::new(), Duration::from_secs(10));
    /// assert_eq!(store.lease(), Some(Duration::from_secs(10)));
    /// ```
    #[must_use]
    pub fn with_lease(clock: impl Into<Clock>, lease: Duration) -> Self {
        Self::open(clock.into(), Some(lease))
    }

    /// The same store, in which jobs may be claimed so long [before they are due](Store::foresight), as one over a
    /// network allows.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{MemoryStore, Store};
    /// use std::time::Duration;
    /// let store = MemoryStore::new(punctual::VirtualClock::new()).foreseeing(Duration::from_millis(20));
    /// assert_eq!(store.foresight(), Duration::from_millis(20));
    /// ```
    #[must_use]
    pub fn foreseeing(self, foresight: Duration) -> Self {
        self.world().foresight = foresight;
        self
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // Poisoned by a panic of ours: a model that goes on with half a step would be a bad witness, but a caller's
        // other jobs should not suffer for it either.
        self.0.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(clock: Clock, lease: Option<Duration>) -> Self {
        let world = Mutex::new(World::new(lease));
        Self(Arc::new(Shared { clock, lease, signals: Signals::new(), world }))
    }

    /// Does the work at once, in a world that is as of now before and after.
    fn ask<T: Send + 'static>(&self, work: impl FnOnce(&mut World, Timestamp) -> T) -> Reply<T> {
        let mut world = self.world();
        // Read under the lock, so that time does not go back from one operation to the next.
        let now = self.now();
        world.catch_up(now);
        let answer = work(&mut world, now);
        world.catch_up(now);
        let news = world.take_news();
        drop(world);
        news.tell(&self.0.signals);
        Box::pin(std::future::ready(Ok(answer)))
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("lease", &self.0.lease).finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn now(&self) -> Timestamp {
        Timestamp::now_at(self.0.clock.wall())
    }

    fn has_local_clock(&self) -> bool {
        true
    }

    fn foresight(&self) -> Duration {
        self.world().foresight
    }

    fn lease(&self) -> Option<Duration> {
        self.0.lease
    }

    fn poll(&self) -> Option<Duration> {
        None
    }

    fn signals(&self) -> &Signals {
        &self.0.signals
    }

    fn enqueue(&self, jobs: Vec<NewJob>) -> Reply<Vec<Result<Admitted, Refused>>> {
        self.ask(|world, now| jobs.into_iter().map(|job| world.enqueue(job, now)).collect())
    }

    fn claim(&self, claim: Claim) -> Reply<Claimed> {
        self.ask(move |world, now| world.claim(&claim, now))
    }

    fn finish(&self, node: NodeId, finishes: Vec<Finish>) -> Reply<Vec<Finished>> {
        self.ask(move |world, now| finishes.into_iter().map(|finish| world.finish(node, finish, now)).collect())
    }

    fn cancel(&self, id: JobId, cause: CancelCause) -> Reply<Cancelled> {
        self.ask(move |world, now| world.cancel(id, cause, now))
    }

    fn edit(&self, id: JobId, edit: Edit) -> Reply<Edited> {
        self.ask(move |world, now| world.edit(id, edit, now))
    }

    fn join(&self, beat: Beat) -> Reply<()> {
        self.ask(move |world, now| world.join(beat, now))
    }

    fn heartbeat(&self, beat: Beat) -> Reply<Pulse> {
        self.ask(move |world, now| world.heartbeat(beat, now))
    }

    fn leave(&self, node: NodeId) -> Reply<()> {
        self.ask(move |world, now| world.leave(node, now))
    }

    fn tend(&self) -> Reply<Tended> {
        self.ask(World::tend)
    }

    fn want(&self, id: JobId, node: NodeId) -> Reply<bool> {
        self.ask(move |world, _| world.want(id, node))
    }

    fn unwant(&self, id: JobId, node: NodeId) -> Reply<()> {
        self.ask(move |world, now| world.unwant(id, node, now))
    }

    fn get(&self, id: JobId) -> Reply<Option<Record>> {
        self.ask(move |world, _| world.record(id).cloned())
    }

    fn query(&self, query: Query) -> Reply<Page> {
        self.ask(move |world, _| world.query(&query))
    }

    fn explain(&self, id: JobId) -> Reply<Option<Explanation>> {
        self.ask(move |world, now| world.explain(id, now))
    }

    fn redrive(&self, id: JobId) -> Reply<Redriven> {
        self.ask(move |world, now| world.redrive(id, now))
    }

    fn prune(&self, retention: Retention, max: usize) -> Reply<usize> {
        self.ask(move |world, now| world.prune(retention, max, now))
    }

    fn purge(&self, ids: Vec<JobId>) -> Reply<usize> {
        self.ask(move |world, _| world.purge(&ids))
    }

    fn set_tenant(&self, tenant: String, change: TenantChange) -> Reply<()> {
        self.ask(move |world, _| world.set_tenant(&tenant, change))
    }

    fn tenant(&self, tenant: String) -> Reply<TenantRecord> {
        self.ask(move |world, _| world.tenant_record(&tenant))
    }

    fn tenants(&self, after: Option<String>, max: usize) -> Reply<Vec<TenantRecord>> {
        self.ask(move |world, _| world.tenant_records(after.as_deref(), max))
    }

    fn cancel_tenant(&self, tenant: String) -> Reply<usize> {
        self.ask(move |world, now| world.cancel_tenant(&tenant, now))
    }

    fn erase(&self, tenant: String) -> Reply<Erased> {
        self.ask(move |world, now| world.erase(&tenant, now))
    }

    fn put_schedule(&self, schedule: Schedule) -> Reply<()> {
        if let Err(error) = schedule.check() {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.ask(move |world, _| world.put_schedule(schedule))
    }

    fn remove_schedule(&self, name: String) -> Reply<bool> {
        self.ask(move |world, _| world.remove_schedule(&name))
    }

    fn pause_schedule(&self, name: String, paused: bool) -> Reply<bool> {
        self.ask(move |world, _| world.pause_schedule(&name, paused))
    }

    fn schedules(&self, after: Option<String>, max: usize) -> Reply<Vec<Schedule>> {
        self.ask(move |world, _| world.schedules_after(after.as_deref(), max))
    }

    fn fire(&self, fire: Fire) -> Reply<Fired> {
        self.ask(move |world, now| world.fire(fire, now))
    }

    fn totals(&self) -> Reply<Totals> {
        self.ask(|world, _| world.totals())
    }

    fn nodes(&self) -> Reply<Vec<NodeRecord>> {
        self.ask(|world, _| world.node_records())
    }
}
