//! What happens between two steps of the loop, which nobody outside can bring about at will.

use punctual::{Stage, VirtualClock};

use super::*;
use crate::handlers::Handler;
use crate::memory::MemoryStore;
use crate::store::NewJob;

const JOB: JobId = JobId::from_u128(7);

/// A node whose loop does not go by itself, and a job in the store that it could run.
fn worker() -> Worker {
    let clock = VirtualClock::new();
    let store = Arc::new(MemoryStore::new(&clock));
    let jobs = pollster::block_on(Jobs::builder().clock(&clock).seed(1).over(store)).unwrap();
    jobs.handlers().add("say", Handler::Async(Arc::new(|_| Box::pin(std::future::pending()))));
    pollster::block_on(jobs.store().enqueue(vec![NewJob::new(JOB, "say")])).unwrap();
    let hands = Hands::new(1, jobs.clock()).unwrap();
    Worker::new(jobs, hands, Arc::default(), 1, BTreeMap::new())
}

/// C36, C37, C38: what an idle node offered stood until its loop had gone. Whoever enqueued in the same process between
/// the loop's last look and its end took a place there: the job was written down as running on a node that nobody was,
/// and since the process lived on, its lease kept the job from everybody else, for ever. A node that is told to stop
/// offers nothing from that step on, and waits for what came of the places that were taken before.
#[cfg(feature = "postgres")]
#[test]
fn a_node_that_is_to_stop_offers_nothing() {
    let mut worker = worker();
    let signals = worker.jobs.store().signals().clone();
    let place = || pollster::block_on(signals.places("say", 1));
    worker.listener.offer(0, 2, vec![("say".to_owned(), 2)]);
    let before = place();
    worker.begin_shutdown(crate::node::Stopping { grace: Duration::ZERO, tell: None });
    assert!(before.is_some() && place().is_none());
    worker.is_unsure = false;
    assert!(!worker.is_over(), "a job is on its way here");
    before.unwrap().give_back();
    assert!(worker.is_over());
}

/// C38, C40: a node in doubt about what it was given, because of a place of which nothing was said, asked the store
/// while a claim of its was under way. What that claim had just got it took for something that nobody knew of, and gave
/// it back; then the answer came, and the job ran here and a second time elsewhere. Now it asks when it has heard of
/// every claim.
#[test]
fn what_a_claim_under_way_gives_is_not_given_back() {
    let mut worker = worker();
    let stage = |worker: &Worker| pollster::block_on(worker.jobs.store().get(JOB)).unwrap().unwrap().state.stage;
    let claim = worker.ask().unwrap();
    let answer = pollster::block_on(worker.jobs.store().claim(claim.clone()));
    worker.claiming = Some((claim.clone(), Box::pin(std::future::pending())));
    worker.is_unsure = true;
    pollster::block_on(worker.turn()).unwrap();
    assert!(worker.is_unsure && stage(&worker) == Stage::Running);
    worker.claiming = None;
    worker.answers.claimed = Some((claim, answer));
    pollster::block_on(worker.turn()).unwrap();
    assert!(!worker.is_unsure && worker.running.contains_key(&(JOB, 1)));
    assert_eq!(stage(&worker), Stage::Running);
}
