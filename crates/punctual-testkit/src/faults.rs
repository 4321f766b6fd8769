//! A store that cannot be relied on: it refuses, or it does what it was asked and the answer is lost or late, or it
//! says nothing at all.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use punctual::{Clock, DelayQueue};
use punctual_durable::{
    Admitted, Beat, CancelCause, Cancelled, Claim, Claimed, Edit, Edited, Erased, Explanation, Finish, Finished, Fire,
    Fired, JobId, NewJob, NodeId, NodeRecord, Page, Pulse, Query, Record, Redriven, Refused, Reply, Retention,
    Schedule, Signals, Store, StoreError, TenantChange, TenantRecord, Tended, Timestamp, Totals,
};

/// A store with faults. Clones share them.
///
/// # Example
/// ```
/// use punctual_durable::{MemoryStore, Store};
/// use punctual_testkit::{block_on, faults::Faulty};
///
/// let store = Faulty::new(MemoryStore::new(punctual::VirtualClock::new()), 7);
/// store.set_outage(true);
/// assert!(block_on(store.totals()).unwrap_err().is_transient());
/// store.set_outage(false);
/// assert!(block_on(store.totals()).is_ok());
/// ```
#[derive(Debug, Clone)]
pub struct Faulty {
    store: Arc<dyn Store>,
    faults: Arc<Mutex<Faults>>,
    poll: Option<Duration>,
    /// What is listened to instead of the store.
    deaf: Option<Signals>,
}

#[derive(Debug)]
struct Faults {
    rng: Rng,
    outage: bool,
    /// Those who wait for an answer meanwhile.
    silence: Option<Vec<Waker>>,
    /// Those whose answers are held back.
    held: Option<Vec<Waker>>,
    /// Of this method alone.
    held_of: Option<&'static str>,
    swallows: bool,
    delay: Option<(Clock, Duration)>,
    delayed: u64,
    unheard_one_in: u32,
    /// Which operation is to be overtaken, and one that was.
    overtake: Option<&'static str>,
    overtaken: Option<Overtaken>,
    refusals: u64,
}

/// What is done to the store later than its caller thinks.
type Work = Box<dyn FnOnce(&dyn Store) + Send>;

/// An operation that is under way although nobody waits for it any more.
struct Overtaken {
    name: &'static str,
    work: Work,
}

impl fmt::Debug for Overtaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Faulty {
    /// A store without faults, until they are set. The seed is for the dice.
    #[must_use]
    pub fn new(store: impl Store, seed: u64) -> Self {
        let faults = Faults {
            rng: Rng::with_seed(seed),
            outage: false,
            silence: None,
            held: None,
            held_of: None,
            swallows: false,
            delay: None,
            delayed: 0,
            unheard_one_in: 0,
            overtake: None,
            overtaken: None,
            refusals: 0,
        };
        let poll = store.poll();
        Self { store: Arc::new(store), faults: Arc::new(Mutex::new(faults)), poll, deaf: None }
    }

    /// The same store over a network: it asks to be looked at so often, and has a clock of its own.
    #[must_use]
    pub fn far(mut self, poll: Duration) -> Self {
        self.poll = Some(poll);
        self
    }

    /// The same store, of which nothing is heard but its answers.
    #[must_use]
    pub fn deaf(mut self) -> Self {
        self.deaf = Some(Signals::new());
        self
    }

    /// While it is out, the store does nothing and says so.
    pub fn set_outage(&self, outage: bool) {
        self.faults.lock().unwrap().outage = outage;
        if !outage {
            // As a connection that is back would: whoever waits looks again.
            self.store.signals().work();
        }
    }

    /// While it is silent, the store does nothing and says nothing. Who asked meanwhile hears when it is over that it
    /// was not done.
    pub fn set_silence(&self, silence: bool) {
        let mut faults = self.faults.lock().unwrap();
        let waiting = std::mem::replace(&mut faults.silence, silence.then(Vec::new));
        drop(faults);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    /// While they are held back, what is asked is done, and the answers come when it is over.
    pub fn hold_answers(&self, hold: bool) {
        let mut faults = self.faults.lock().unwrap();
        faults.held_of = None;
        let waiting = std::mem::replace(&mut faults.held, hold.then(Vec::new));
        drop(faults);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    /// The same of the answers of one method, until answers are no longer held.
    pub fn hold_answers_of(&self, method: &'static str) {
        self.hold_answers(true);
        self.faults.lock().unwrap().held_of = Some(method);
    }

    /// What is asked while it swallows is not done, and never answered: as on a connection that both ends take to be
    /// sound, and is not.
    pub fn swallow(&self, swallows: bool) {
        self.faults.lock().unwrap().swallows = swallows;
    }

    /// From now on what is asked is done at once, and each answer comes so much later, by this clock.
    pub fn delay_answers(&self, clock: impl Into<Clock>, delay: Duration) {
        self.faults.lock().unwrap().delay = Some((clock.into(), delay));
    }

    /// How many answers came later.
    #[must_use]
    pub fn delayed(&self) -> u64 {
        self.faults.lock().unwrap().delayed
    }

    /// One answer in so many is lost, after what was asked is done; 0 for none.
    pub fn lose_answers(&self, one_in: u32) {
        self.faults.lock().unwrap().unheard_one_in = one_in;
    }

    /// Of the next operation of this name nothing is heard, as if its connection was cut; but it is under way, and is
    /// done when the next one is asked, just before it. Once.
    pub fn overtake(&self, name: &'static str) {
        self.faults.lock().unwrap().overtake = Some(name);
    }

    /// Whether something was overtaken, and is done.
    #[must_use]
    pub fn has_overtaken(&self) -> bool {
        let faults = self.faults.lock().unwrap();
        faults.overtake.is_none() && faults.overtaken.is_none()
    }

    /// How often it said that it is out.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.faults.lock().unwrap().refusals
    }

    fn pass<T: Send + 'static>(
        &self,
        method: &'static str,
        question: impl FnOnce(&dyn Store) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let overtaken = self.faults.lock().unwrap().overtaken.take_if(|overtaken| overtaken.name == method);
        if let Some(overtaken) = overtaken {
            (overtaken.work)(self.store.as_ref());
        }
        let (unheard, held, delay) = {
            let mut faults = self.faults.lock().unwrap();
            if faults.overtake.take_if(|overtake| *overtake == method).is_some() {
                let work = Box::new(|store: &dyn Store| drop(crate::block_on(question(store))));
                faults.overtaken = Some(Overtaken { name: method, work });
                return Box::pin(std::future::ready(Err(StoreError::transient("the connection was cut"))));
            }
            if faults.swallows {
                return Box::pin(std::future::pending());
            }
            if faults.outage {
                faults.refusals += 1;
                return Box::pin(std::future::ready(Err(StoreError::transient("the store is out"))));
            }
            if faults.silence.is_some() {
                let faults = Arc::clone(&self.faults);
                return Box::pin(poll_fn(move |cx| match &mut faults.lock().unwrap().silence {
                    Some(waiting) => {
                        waiting.push(cx.waker().clone());
                        Poll::Pending
                    }
                    None => Poll::Ready(Err(StoreError::transient("the store did not answer"))),
                }));
            }
            let one_in = faults.unheard_one_in;
            let unheard = one_in > 0 && faults.rng.u32(0..one_in) == 0;
            let holds = faults.held.is_some() && faults.held_of.is_none_or(|held| held == method);
            faults.delayed += u64::from(faults.delay.is_some());
            (unheard, holds, faults.delay.clone())
        };
        let mut reply = question(self.store.as_ref());
        if let Some((clock, delay)) = delay {
            let way = DelayQueue::with_clock(clock);
            way.push((), delay).expect("it is open");
            reply = Box::pin(async move {
                way.take_async().await;
                reply.await
            });
        }
        if held {
            let faults = Arc::clone(&self.faults);
            return Box::pin(async move {
                let answer = reply.await;
                poll_fn(|cx| match &mut faults.lock().unwrap().held {
                    Some(waiting) => {
                        waiting.push(cx.waker().clone());
                        Poll::Pending
                    }
                    None => Poll::Ready(()),
                })
                .await;
                answer
            });
        }
        if !unheard {
            return reply;
        }
        Box::pin(async move {
            reply.await?;
            Err(StoreError::transient("the answer was lost"))
        })
    }
}

macro_rules! pass_on {
    ($($method:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Store for Faulty {
            fn now(&self) -> Timestamp {
                self.store.now()
            }

            fn lease(&self) -> Option<Duration> {
                self.store.lease()
            }

            fn poll(&self) -> Option<Duration> {
                self.poll
            }

            fn foresight(&self) -> Duration {
                self.store.foresight()
            }

            fn at_least(&self) -> Timestamp {
                self.store.at_least()
            }

            fn has_local_clock(&self) -> bool {
                self.poll.is_none() && self.store.has_local_clock()
            }

            fn signals(&self) -> &Signals {
                self.deaf.as_ref().unwrap_or_else(|| self.store.signals())
            }

            $(fn $method(&self, $($argument: $type),*) -> Reply<$answer> {
                self.pass(stringify!($method), move |store| store.$method($($argument),*))
            })*
        }
    };
}

pass_on! {
    enqueue(jobs: Vec<NewJob>) -> Vec<Result<Admitted, Refused>>;
    claim(claim: Claim) -> Claimed;
    finish(node: NodeId, finishes: Vec<Finish>) -> Vec<Finished>;
    cancel(id: JobId, cause: CancelCause) -> Cancelled;
    edit(id: JobId, edit: Edit) -> Edited;
    join(beat: Beat) -> ();
    heartbeat(beat: Beat) -> Pulse;
    leave(node: NodeId) -> ();
    tend() -> Tended;
    want(id: JobId, node: NodeId) -> bool;
    unwant(id: JobId, node: NodeId) -> ();
    get(id: JobId) -> Option<Record>;
    query(query: Query) -> Page;
    explain(id: JobId) -> Option<Explanation>;
    redrive(id: JobId) -> Redriven;
    prune(retention: Retention, max: usize) -> usize;
    purge(ids: Vec<JobId>) -> usize;
    set_tenant(tenant: String, change: TenantChange) -> ();
    tenant(tenant: String) -> TenantRecord;
    tenants(after: Option<String>, max: usize) -> Vec<TenantRecord>;
    cancel_tenant(tenant: String) -> usize;
    erase(tenant: String) -> Erased;
    put_schedule(schedule: Schedule) -> ();
    remove_schedule(name: String) -> bool;
    pause_schedule(name: String, paused: bool) -> bool;
    schedules(after: Option<String>, max: usize) -> Vec<Schedule>;
    fire(fire: Fire) -> Fired;
    totals() -> Totals;
    nodes() -> Vec<NodeRecord>;
}

#[cfg(test)]
mod tests {
    use punctual::VirtualClock;
    use punctual_durable::MemoryStore;

    use super::*;
    use crate::{block_on, job};

    /// C37: whether it was done is unknown, and asking again under the same id is harmless.
    #[test]
    fn a_lost_answer_is_an_error_of_something_done() {
        let store = Faulty::new(MemoryStore::new(VirtualClock::new()), 7);
        store.lose_answers(1);
        assert!(block_on(store.enqueue(vec![job(1)])).unwrap_err().is_transient());
        store.lose_answers(0);
        assert_eq!(block_on(store.totals()).unwrap().ready, 1);
        assert_eq!(block_on(store.enqueue(vec![job(1)])).unwrap(), [Ok(Admitted::New)]);
        assert_eq!(block_on(store.totals()).unwrap().ready, 1);
        store.set_outage(true);
        assert!(block_on(store.enqueue(vec![job(2)])).unwrap_err().is_transient());
        store.set_outage(false);
        assert_eq!(block_on(store.totals()).unwrap().ready, 1, "in an outage nothing is done");
    }
}
