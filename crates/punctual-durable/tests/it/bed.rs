//! What the tests share: a store on a virtual clock, a few kinds of jobs, and a log of what ran.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual::VirtualClock;
use punctual_durable::{Ctx, Failure, Job, Jobs, JobsBuilder, MemoryStore, Store, Terms};
use punctual_testkit::faults::Faulty;
use serde::{Deserialize, Serialize};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// A job that says a word; what its handler does is up to the test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Say(pub(crate) String);

impl Job for Say {
    const KIND: &'static str = "say";
    type Output = String;
    const TERMS: Terms = Terms::new().max_attempts(3);
}

/// Another kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shout(pub(crate) String);

impl Job for Shout {
    const KIND: &'static str = "shout";
    type Output = String;
}

pub(crate) fn say(word: &str) -> Say {
    Say(word.to_owned())
}

/// A store on a clock that stands still.
pub(crate) struct Bed {
    pub(crate) clock: VirtualClock,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) jobs: Jobs,
    line: Option<Faulty>,
    _folder: Option<tempfile::TempDir>,
}

impl Bed {
    /// The store does not hear of the first process any more, nor the other way.
    pub(crate) fn cut_off(&self) {
        self.line().set_outage(true);
    }

    /// As [`cut_off`](Self::cut_off), but without a word: the first process waits for answers that do not come.
    pub(crate) fn fall_silent(&self) {
        self.line().set_silence(true);
    }

    /// What lies between the first process and its store.
    pub(crate) fn line(&self) -> &Faulty {
        self.line.as_ref().unwrap()
    }

    /// Another process with the same store open.
    pub(crate) fn another(&self) -> Jobs {
        wait(builder(&self.clock).seed(2).over(self.store.clone())).unwrap()
    }

    pub(crate) fn advance(&self, duration: Duration) {
        self.clock.advance(duration).unwrap();
    }

    pub(crate) fn settle(&self) {
        self.clock.settle().unwrap();
    }
}

fn builder(clock: &VirtualClock) -> JobsBuilder {
    Jobs::builder().clock(clock).seed(1)
}

/// Runs a test on every store that one process can open.
pub(crate) fn on_every_store(test: impl Fn(Bed)) {
    let clock = VirtualClock::new();
    test(bed(&clock, Arc::new(MemoryStore::new(&clock)), None));
    let clock = VirtualClock::new();
    let folder = tempfile::tempdir().unwrap();
    let store = punctual_durable::SqliteStore::open(folder.path().join("jobs.db"), &clock).unwrap();
    test(bed(&clock, Arc::new(store), Some(folder)));
}

/// A store that several nodes share, each with a lease.
pub(crate) fn with_leases(lease: Duration) -> Bed {
    let clock = VirtualClock::new();
    faulty(&clock, MemoryStore::with_lease(&clock, lease)).0
}

/// The same, which the first process asks over a network.
pub(crate) fn far_with_leases(lease: Duration) -> Bed {
    let clock = VirtualClock::new();
    let store = MemoryStore::with_lease(&clock, lease);
    let line = Faulty::new(store.clone(), 7).far(SECOND);
    let jobs = wait(builder(&clock).over(Arc::new(line.clone()))).unwrap();
    Bed { clock, store: Arc::new(store), jobs, line: Some(line), _folder: None }
}

/// A store in which jobs may be claimed so long before they are due.
pub(crate) fn with_foresight(foresight: Duration) -> Bed {
    let clock = VirtualClock::new();
    bed(&clock, Arc::new(MemoryStore::new(&clock).foreseeing(foresight)), None)
}

/// A store whose faults can be set, as the first process sees it.
pub(crate) fn with_faults() -> (Bed, Faulty) {
    let clock = VirtualClock::new();
    faulty(&clock, MemoryStore::new(&clock))
}

/// A store over a network, which the first process sees as `line` says, and the clock that the store goes by.
pub(crate) fn over_a_network(line: impl FnOnce(Faulty) -> Faulty) -> (Bed, VirtualClock) {
    let (clock, theirs) = (VirtualClock::new(), VirtualClock::new());
    let store = MemoryStore::new(&theirs);
    let line = line(Faulty::new(store.clone(), 7));
    let jobs = wait(builder(&clock).over(Arc::new(line.clone()))).unwrap();
    (Bed { clock, store: Arc::new(store), jobs, line: Some(line), _folder: None }, theirs)
}

fn faulty(clock: &VirtualClock, store: MemoryStore) -> (Bed, Faulty) {
    let line = Faulty::new(store.clone(), 7);
    let jobs = wait(builder(clock).over(Arc::new(line.clone()))).unwrap();
    let bed = Bed { clock: clock.clone(), store: Arc::new(store), jobs, line: Some(line.clone()), _folder: None };
    (bed, line)
}

fn bed(clock: &VirtualClock, store: Arc<dyn Store>, folder: Option<tempfile::TempDir>) -> Bed {
    let jobs = wait(builder(clock).over(store.clone())).unwrap();
    Bed { clock: clock.clone(), store, jobs, line: None, _folder: folder }
}

pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    pollster::block_on(future)
}

/// What ran, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// A handler that writes the word down and gives it back.
    pub(crate) fn handler(
        &self,
    ) -> impl Fn(Say, Ctx) -> std::future::Ready<Result<String, Failure>> + Send + Sync + 'static {
        let log = self.clone();
        move |say: Say, _| {
            log.add(say.0.clone());
            std::future::ready(Ok(say.0))
        }
    }
}
