//! A store under test on its virtual clock, and short words for what tests do with it.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use punctual::{Limits, Stage, VirtualClock};
use punctual_durable::{
    Admitted, Beat, CancelCause, Cancelled, Claim, Claimed, Explanation, Finish, Finished, Gate, JobId, NewJob, NodeId,
    OnConflict, Outcome, Query, Record, Refused, Reply, Store, TenantPolicy, Timestamp, Totals, Unique, Verdict,
};

/// The node that the short words speak for. It has joined.
pub const NODE: NodeId = NodeId::from_u64(1);
/// Another one, which has not.
pub const OTHER: NodeId = NodeId::from_u64(2);
/// A second.
pub const SECOND: Duration = Duration::from_secs(1);

type Reopen = Box<dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync>;

/// A store under test.
pub struct Bed {
    /// The clock it goes by.
    pub clock: VirtualClock,
    store: Mutex<Option<Arc<dyn Store>>>,
    reopen: Option<Reopen>,
    // Last, so that a folder outlives the store in it.
    keep: Vec<Box<dyn Any + Send + Sync>>,
}

impl std::fmt::Debug for Bed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bed").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A job of kind `k`, for tenant `acme`, due now; the rest is plain.
#[must_use]
pub fn job(id: u128) -> NewJob {
    NewJob { tenant: "acme".into(), max_attempts: 3, ..NewJob::new(JobId::from_u128(id), "k") }
}

/// A unique key.
#[must_use]
pub fn unique(key: &str, on_conflict: OnConflict) -> Option<Unique> {
    Some(Unique { key: key.to_owned(), on_conflict, period: None })
}

/// A node that handles these kinds.
#[must_use]
pub fn beat(node: NodeId, kinds: &[&str]) -> Beat {
    let kinds = kinds.iter().map(|&kind| kind.to_owned()).collect();
    Beat { node, name: format!("host-{node}"), kinds, paused: Vec::new(), workers: 8, era: 0 }
}

/// Waits for a future, without a runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl Bed {
    /// A fresh store; [`NODE`] has joined it and handles kind `k`.
    #[must_use]
    pub fn new(clock: &VirtualClock, store: impl Store) -> Self {
        let store: Arc<dyn Store> = Arc::new(store);
        let bed = Self { clock: clock.clone(), store: Mutex::new(Some(store)), reopen: None, keep: Vec::new() };
        bed.join(NODE, &["k"]);
        bed
    }

    /// Keeps something as long as the store, such as its folder.
    #[must_use]
    pub fn keeping(mut self, thing: impl Any + Send + Sync) -> Self {
        self.keep.push(Box::new(thing));
        self
    }

    /// How to kill the process and start it again, for a store that survives this: drop the old, open the new.
    #[must_use]
    pub fn reopening(mut self, reopen: impl Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync + 'static) -> Self {
        self.reopen = Some(Box::new(reopen));
        self
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(self.store.lock().unwrap().as_ref().unwrap())
    }

    /// Whether it outlives its process.
    #[must_use]
    pub fn survives(&self) -> bool {
        self.reopen.is_some()
    }

    /// Closes the store and opens it again, if it [survives](Self::survives) that.
    pub fn restart(&self) {
        let reopen = self.reopen.as_ref().unwrap();
        let mut store = self.store.lock().unwrap();
        let old = store.take().unwrap();
        *store = Some(reopen(old));
    }

    /// All nodes die and [`NODE`] comes back under its old name: by the lease, or by a restart. False if the store
    /// knows neither.
    pub fn crash(&self) -> bool {
        if let Some(lease) = self.store().lease() {
            self.advance(lease);
            self.ask(|store| store.tend());
        } else if self.survives() {
            self.restart();
        } else {
            return false;
        }
        self.join(NODE, &["k"]);
        true
    }

    /// Asks the store, and waits for its answer.
    pub fn ask<T>(&self, question: impl FnOnce(&dyn Store) -> Reply<T>) -> T {
        block_on(question(self.store().as_ref())).unwrap()
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.store().now()
    }

    /// Lets time pass.
    pub fn advance(&self, duration: Duration) {
        self.clock.advance(duration).unwrap();
    }

    /// A node comes, and handles these kinds.
    pub fn join(&self, node: NodeId, kinds: &[&str]) {
        self.ask(|store| store.join(beat(node, kinds)));
    }

    /// One job.
    ///
    /// # Errors
    /// What the store answers.
    pub fn enqueue(&self, job: NewJob) -> Result<Admitted, Refused> {
        self.ask(|store| store.enqueue(vec![job])).remove(0)
    }

    /// One job that must be taken in.
    pub fn take_in(&self, job: NewJob) -> JobId {
        let id = job.id;
        assert_eq!(self.enqueue(job), Ok(Admitted::New));
        id
    }

    /// Jobs that must be taken in, one after the other.
    pub fn take_in_all(&self, jobs: impl IntoIterator<Item = NewJob>) {
        for job in jobs {
            self.take_in(job);
        }
    }

    /// Up to `max` jobs of kind `k`, for [`NODE`].
    #[must_use]
    pub fn claim(&self, max: usize) -> Vec<Record> {
        self.claim_as(NODE, max, &[("k", usize::MAX >> 1)]).jobs
    }

    /// Their ids.
    #[must_use]
    pub fn claim_ids(&self, max: usize) -> Vec<u128> {
        self.claim(max).iter().map(|record| record.job.id.to_u128()).collect()
    }

    /// A claim in full.
    #[must_use]
    pub fn claim_as(&self, node: NodeId, max: usize, kinds: &[(&str, usize)]) -> Claimed {
        let kinds = kinds.iter().map(|&(kind, room)| (kind.to_owned(), room)).collect();
        self.ask(|store| store.claim(Claim { node, max, kinds, ahead: 0, spare: 0, era: 0 }))
    }

    /// Takes a job in and claims it.
    #[must_use]
    pub fn running(&self, job: NewJob) -> Record {
        let id = self.take_in(job);
        let mut claimed = self.claim(1);
        assert_eq!(claimed.first().map(|record| record.job.id), Some(id), "the wrong job was claimed");
        claimed.remove(0)
    }

    /// The end of a run by the node that has it.
    pub fn finish(&self, record: &Record, verdict: Verdict) -> Finished {
        self.finish_as(record.node.unwrap(), record.job.id, record.fence, verdict)
    }

    /// The end of a run, in full.
    pub fn finish_as(&self, node: NodeId, id: JobId, fence: u64, verdict: Verdict) -> Finished {
        self.ask(|store| store.finish(node, vec![Finish { id, fence, verdict }])).remove(0)
    }

    /// A caller cancels it.
    pub fn cancel(&self, id: JobId) -> Cancelled {
        self.ask(|store| store.cancel(id, CancelCause::Caller))
    }

    /// A job that must be there.
    #[must_use]
    pub fn get(&self, id: JobId) -> Record {
        self.find(id).unwrap_or_else(|| panic!("job {id} is gone"))
    }

    /// A job, if it is there.
    #[must_use]
    pub fn find(&self, id: JobId) -> Option<Record> {
        self.ask(|store| store.get(id))
    }

    /// How a job that must be there ended, if it did.
    #[must_use]
    pub fn outcome(&self, id: JobId) -> Option<Outcome> {
        self.get(id).state.outcome
    }

    /// What holds a job back.
    #[must_use]
    pub fn gate(&self, id: JobId) -> Gate {
        let Some(Explanation { gate, .. }) = self.ask(|store| store.explain(id)) else { panic!("job {id} is gone") };
        gate
    }

    /// Sets what tenant `acme` may do.
    pub fn limit(&self, limits: Limits) {
        self.limit_of("acme", limits);
    }

    /// Sets what a tenant may do.
    pub fn limit_of(&self, tenant: &str, limits: Limits) {
        self.set_policy(tenant, TenantPolicy { limits, ..TenantPolicy::default() });
    }

    /// Sets a tenant's policy.
    pub fn set_policy(&self, tenant: &str, policy: TenantPolicy) {
        self.ask(|store| store.set_tenant(tenant.to_owned(), policy.into()));
    }

    /// All jobs that match, page by page.
    #[must_use]
    pub fn all(&self, query: &Query) -> Vec<Record> {
        let (mut jobs, mut query) = (Vec::new(), query.clone());
        loop {
            let page = self.ask(|store| store.query(query.clone()));
            jobs.extend(page.jobs);
            match page.next {
                Some(next) => query.after = Some(next),
                None => return jobs,
            }
        }
    }

    /// The store's totals, outcomes that never were left out.
    #[must_use]
    pub fn totals(&self) -> Totals {
        tidy(self.ask(|store| store.totals()))
    }

    /// The numbers of a tenant.
    #[must_use]
    pub fn totals_of(&self, tenant: &str) -> Totals {
        tidy(self.ask(|store| store.tenant(tenant.to_owned())).totals)
    }

    /// C58: checks the totals, of all and of each tenant, against the jobs themselves; of what ended, at least what is
    /// still kept.
    pub fn assert_totals_are_true(&self) {
        let jobs = self.all(&Query::default());
        check_totals(&self.totals(), jobs.iter());
        let tenants = self.ask(|store| store.tenants(None, usize::MAX >> 1));
        for tenant in tenants {
            check_totals(&tidy(tenant.totals), jobs.iter().filter(|record| record.job.tenant == tenant.name));
        }
    }
}

fn tidy(mut totals: Totals) -> Totals {
    totals.ended.retain(|_, count| *count > 0);
    totals
}

fn check_totals<'a>(totals: &Totals, jobs: impl Iterator<Item = &'a Record> + Clone) {
    let count = |stage| jobs.clone().filter(|record| record.state.stage == stage).count();
    let stopping = jobs.clone().filter(|record| record.state.stage == Stage::Running && record.state.outcome.is_some());
    assert_eq!(totals.scheduled, count(Stage::Scheduled), "scheduled");
    assert_eq!(totals.ready, count(Stage::Ready), "ready");
    assert_eq!(totals.running, count(Stage::Running), "running");
    assert_eq!(totals.stopping, stopping.count(), "stopping");
    let mut kept: BTreeMap<Outcome, u64> = BTreeMap::new();
    for record in jobs.filter(|record| record.state.stage == Stage::Stopped) {
        *kept.entry(record.state.outcome.unwrap()).or_default() += 1;
    }
    for (outcome, count) in kept {
        assert!(totals.ended.get(&outcome).is_some_and(|&ended| ended >= count), "{outcome}: {totals:?}");
    }
}
