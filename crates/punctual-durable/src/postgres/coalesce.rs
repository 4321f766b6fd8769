//! Concurrent enqueues of one process become one call, and one commit.
//!
//! A commit costs as much for a hundred jobs as for one. Whoever finds nothing under way leaves at once, alone; those
//! who come meanwhile gather, and leave together when it is back.
//!
//! # Invariants
//! 1. Whoever is alone waits for nobody.
//! 2. Nobody waits longer than `PATIENCE` for a call to come back, unless `CALLS_MAX` are under way: one that is held
//!    up by somebody's lock holds up no others.
//! 3. Nobody waits longer than `LOCK_WAIT` with others for a lock: the call comes back, and its callers go aside (see
//!    `aside`), where they are told apart and wait for themselves.
//! 4. Each caller hears of its own jobs.

mod aside;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use crate::error::StoreError;
use crate::id::JobId;
use crate::store::{Admitted, NewJob, Refused};
use aside::Aside;

/// What came of one job.
pub(super) type Answer = Result<Admitted, Refused>;

/// What came of some.
type Answers = Result<Vec<Answer>, StoreError>;

/// What a call says of one job.
#[derive(Debug)]
pub(super) enum Said {
    Answer(Answer),
    /// It waits for a lock that somebody holds, and nothing was done.
    Held(Box<NewJob>),
}

/// How many calls are under way at most, besides those that wait for locks.
const CALLS_MAX: usize = 4;

/// So many jobs are worth a call of their own, though another is under way.
const WORTH_A_CALL: usize = 64;

/// How many jobs, and about how many bytes, go in one call at most.
pub(super) const JOBS_MAX: usize = 1_000;
const BYTES_MAX: usize = 4 << 20;

/// How long to wait for those under way.
const PATIENCE: Duration = Duration::from_millis(3);

/// How long those who go together wait for a lock. Enqueues of a bounded tenant take turns, so some milliseconds are
/// nothing special.
pub(super) const LOCK_WAIT: Duration = Duration::from_millis(50);

/// Where callers hand their jobs in.
#[derive(Debug, Clone)]
pub(super) struct Coalescer(mpsc::UnboundedSender<Ask>);

/// The jobs of one caller.
#[derive(Debug)]
struct Ask {
    /// Those without an answer, in their order.
    jobs: Vec<NewJob>,
    answers: Vec<Option<Answer>>,
    /// Whether it has waited for a lock for as long as it may, if it waits for one.
    is_late: Option<Arc<AtomicBool>>,
    reply: oneshot::Sender<Answers>,
}

impl Ask {
    /// What it may have to wait for: who wants the same tenant and key, or the same id, has to as well.
    fn place(&self) -> Place {
        self.jobs.first().map_or_else(Place::default, |job| Place {
            common: (job.tenant.clone(), job.unique.as_ref().map(|unique| unique.key.clone())),
            id: (!job.is_id_fresh).then_some(job.id),
        })
    }

    // Whoever does not wait any more does not need the answer.
    fn reply(self, answers: Answers) {
        let _ = self.reply.send(answers);
    }
}

/// What a caller may have to wait for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    common: Common,
    /// The id, if the caller gave one: somebody else may be about to take in the same job.
    id: Option<JobId>,
}

/// A tenant, and a unique key if there is one.
type Common = (String, Option<String>);

impl Coalescer {
    /// Calls go through `send`, which answers for each job, and waits only so long for locks. Nobody waits longer than
    /// the time-out for one.
    pub(super) fn start<S, F>(timeout: Duration, send: S) -> Self
    where
        S: Fn(Vec<NewJob>, Duration) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Vec<Said>, StoreError>> + Send + 'static,
    {
        let (asks, inbox) = mpsc::unbounded_channel();
        tokio::spawn(dispatch(inbox, Arc::new(send), timeout));
        Self(asks)
    }

    pub(super) fn enqueue(&self, jobs: Vec<NewJob>) -> impl Future<Output = Answers> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let answers = jobs.iter().map(|_| None).collect();
        // Nobody is there only if the runtime is gone, and then the answer says so.
        let _ = self.0.send(Ask { jobs, answers, is_late: None, reply });
        async move { answer.await.unwrap_or_else(|_| Err(StoreError::transient("the store was closed"))) }
    }
}

async fn dispatch<S, F>(mut inbox: mpsc::UnboundedReceiver<Ask>, send: Arc<S>, timeout: Duration)
where
    S: Fn(Vec<NewJob>, Duration) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Vec<Said>, StoreError>> + Send + 'static,
{
    let mut waiting = VecDeque::new();
    let mut calls = JoinSet::new();
    let mut aside = Aside::new(timeout);
    let mut patience: Option<Pin<Box<Sleep>>> = None;
    loop {
        let mut is_over = false;
        tokio::select! {
            ask = inbox.recv() => match ask {
                Some(ask) => waiting.extend(aside.pass(ask)),
                None => return,
            },
            Some(held) = calls.join_next() => aside.take(held.unwrap_or_default()),
            () = aside.heard() => {}
            () = lasts(&mut patience) => is_over = true,
        }
        while let Ok(ask) = inbox.try_recv() {
            waiting.extend(aside.pass(ask));
        }
        while calls.len() < CALLS_MAX && !waiting.is_empty() {
            let count: usize = waiting.iter().map(|ask: &Ask| ask.jobs.len()).sum();
            if !calls.is_empty() && count < WORTH_A_CALL && !is_over {
                break;
            }
            calls.spawn(call(batch(&mut waiting), send.clone(), LOCK_WAIT));
        }
        aside.try_again(&send);
        if waiting.is_empty() || is_over {
            patience = None;
        }
        if !waiting.is_empty() && patience.is_none() {
            patience = Some(Box::pin(tokio::time::sleep(PATIENCE)));
        }
    }
}

async fn lasts(patience: &mut Option<Pin<Box<Sleep>>>) {
    match patience {
        Some(sleep) => sleep.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Those who go together: the first, and as many more as fit.
fn batch(waiting: &mut VecDeque<Ask>) -> Vec<Ask> {
    let (mut jobs, mut bytes) = (0, 0);
    let mut fits = 0;
    for ask in waiting.iter() {
        jobs += ask.jobs.len();
        bytes += ask.jobs.iter().map(|job| job.payload.len()).sum::<usize>();
        if fits > 0 && (jobs > JOBS_MAX || bytes > BYTES_MAX) {
            break;
        }
        fits += 1;
    }
    waiting.drain(..fits).collect()
}

/// Asks for all of them, and tells each what came of it. Answers those that are held up.
async fn call<S, F>(mut batch: Vec<Ask>, send: Arc<S>, lock_wait: Duration) -> Vec<Ask>
where
    S: Fn(Vec<NewJob>, Duration) -> F,
    F: Future<Output = Result<Vec<Said>, StoreError>>,
{
    let mut jobs = Vec::new();
    batch.iter_mut().for_each(|ask| jobs.append(&mut ask.jobs));
    let mut said = match send(jobs, lock_wait).await {
        Ok(said) => said.into_iter(),
        Err(error) => {
            batch.into_iter().for_each(|ask| ask.reply(Err(error.clone())));
            return Vec::new();
        }
    };
    let mut held = Vec::new();
    for mut ask in batch {
        for answer in ask.answers.iter_mut().filter(|answer| answer.is_none()) {
            match said.next() {
                Some(Said::Answer(said)) => *answer = Some(said),
                Some(Said::Held(job)) => ask.jobs.push(*job),
                None => {}
            }
        }
        if ask.jobs.is_empty() {
            let answers = std::mem::take(&mut ask.answers);
            ask.reply(Ok(answers.into_iter().flatten().collect()));
        } else {
            held.push(ask);
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A database that answers when it is told to.
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<Vec<Call>>>);

    /// The jobs of a call, and what makes it answer: whether somebody holds a lock that it needs.
    type Call = (Vec<u128>, oneshot::Sender<bool>);

    const TIMEOUT: Duration = Duration::from_secs(30);

    impl Slow {
        fn start(&self) -> Coalescer {
            let slow = self.clone();
            Coalescer::start(TIMEOUT, move |jobs: Vec<NewJob>, _| {
                let (go, gone) = oneshot::channel();
                slow.0.lock().unwrap().push((jobs.iter().map(|job| job.id.to_u128()).collect(), go));
                async move {
                    let is_held = gone.await.map_err(|_| StoreError::transient("the connection was lost"))?;
                    let held = |job| Said::Held(Box::new(job));
                    let answer = |job: NewJob| Said::Answer(outcome(job.id.to_u128()));
                    Ok(jobs.into_iter().map(|job| if is_held { held(job) } else { answer(job) }).collect())
                }
            })
        }

        /// Lets those who can run do so.
        async fn quiet() {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
        }

        /// The calls under way.
        async fn calls(&self) -> Vec<Vec<u128>> {
            Self::quiet().await;
            self.0.lock().unwrap().iter().map(|(jobs, _)| jobs.clone()).collect()
        }

        async fn answer(&self, call: usize) {
            self.say(call, false).await;
        }

        /// Somebody has the lock that one of a call's jobs needs.
        async fn hold(&self, call: usize) {
            self.say(call, true).await;
        }

        async fn say(&self, call: usize, is_held: bool) {
            let (_, go) = self.0.lock().unwrap().remove(call);
            let _ = go.send(is_held);
            Self::quiet().await;
        }
    }

    /// Each job has an answer of its own.
    fn outcome(id: u128) -> Answer {
        if id.is_multiple_of(2) { Ok(Admitted::New) } else { Err(Refused::Conflict(JobId::from_u128(id))) }
    }

    fn jobs(ids: impl IntoIterator<Item = u128>) -> Vec<NewJob> {
        ids.into_iter().map(|id| NewJob { is_id_fresh: true, ..NewJob::new(JobId::from_u128(id), "k") }).collect()
    }

    /// A job of a tenant.
    fn of(tenant: &str, id: u128) -> Vec<NewJob> {
        jobs([id]).into_iter().map(|job| NewJob { tenant: tenant.to_owned(), ..job }).collect()
    }

    /// A job whose id was given by its caller.
    fn given(tenant: &str, id: u128) -> Vec<NewJob> {
        of(tenant, id).into_iter().map(|job| NewJob { is_id_fresh: false, ..job }).collect()
    }

    fn play<F: Future<Output = ()>>(test: impl FnOnce(Slow, Coalescer) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let slow = Slow::default();
            let coalescer = slow.start();
            test(slow, coalescer).await;
        });
    }

    #[test]
    fn whoever_is_alone_leaves_at_once_and_those_who_come_meanwhile_leave_together() {
        play(async |slow, coalescer| {
            let first = coalescer.enqueue(jobs([1]));
            assert_eq!(slow.calls().await, [[1]]);
            let [second, third] = [coalescer.enqueue(jobs([2, 3])), coalescer.enqueue(jobs([4]))];
            assert_eq!(slow.calls().await, [[1]], "they wait for the one under way");
            slow.answer(0).await;
            assert_eq!(slow.calls().await, [[2, 3, 4]]);
            slow.answer(0).await;
            assert_eq!(first.await, Ok(vec![outcome(1)]));
            assert_eq!(second.await, Ok(vec![outcome(2), outcome(3)]), "each hears of its own");
            assert_eq!(third.await, Ok(vec![outcome(4)]));
        });
    }

    #[test]
    fn one_that_is_held_up_does_not_hold_up_the_others() {
        play(async |slow, coalescer| {
            let _stuck = coalescer.enqueue(jobs([0]));
            slow.calls().await;
            let next = coalescer.enqueue(jobs([2]));
            assert_eq!(slow.calls().await.len(), 1);
            tokio::time::advance(PATIENCE).await;
            assert_eq!(slow.calls().await, [[0], [2]]);
            slow.answer(1).await;
            assert_eq!(next.await, Ok(vec![outcome(2)]));
        });
    }

    #[test]
    fn calls_and_their_size_are_bounded() {
        play(async |slow, coalescer| {
            let many: Vec<_> = (0..60).map(|at| coalescer.enqueue(jobs(at * 100..at * 100 + 100))).collect();
            let calls = slow.calls().await;
            assert_eq!(calls.iter().map(Vec::len).collect::<Vec<_>>(), [JOBS_MAX; CALLS_MAX]);
            let more = coalescer.enqueue(jobs([9]));
            tokio::time::advance(10 * PATIENCE).await;
            assert_eq!(slow.calls().await.len(), CALLS_MAX);
            for _ in 0..7 {
                slow.answer(0).await;
            }
            assert_eq!(more.await, Ok(vec![outcome(9)]));
            for (at, answer) in (0..).zip(many) {
                assert_eq!(answer.await, Ok((at * 100..at * 100 + 100).map(outcome).collect()));
            }
        });
    }

    #[test]
    fn large_payloads_go_in_smaller_calls() {
        let large = |id| vec![NewJob { payload: "x".repeat(BYTES_MAX), ..NewJob::new(JobId::from_u128(id), "k") }];
        play(async |slow, coalescer| {
            let answers = [1, 2, 3].map(|id| coalescer.enqueue(large(id)));
            assert_eq!(slow.calls().await, [[1]]);
            slow.answer(0).await;
            assert_eq!(slow.calls().await, [[2]]);
            drop(answers);
        });
    }

    #[test]
    fn a_failure_is_told_to_all_of_its_call_and_to_nobody_else() {
        play(async |slow, coalescer| {
            let first = coalescer.enqueue(jobs([1]));
            slow.calls().await;
            let [second, third] = [coalescer.enqueue(jobs([2])), coalescer.enqueue(jobs([3]))];
            slow.answer(0).await;
            drop(slow.0.lock().unwrap().remove(0));
            assert!(first.await.is_ok());
            assert!(second.await.is_err_and(|error| error.is_transient()) && third.await.is_err());
        });
    }

    /// A caller's open transaction held up the enqueues of its own tenant, and with them all that shared their call;
    /// four such calls held up the whole process. Now a call that waits for a lock comes back, and its callers are told
    /// apart until only those wait who must, whom nobody waits for.
    #[test]
    fn whoever_waits_for_a_lock_holds_up_no_other() {
        play(async |slow, coalescer| {
            let first = coalescer.enqueue(of("a", 0));
            slow.calls().await;
            let held: Vec<_> = [2, 4].map(|id| coalescer.enqueue(of("a", id))).into();
            let free: Vec<_> = [6, 8].map(|id| coalescer.enqueue(of(if id == 6 { "b" } else { "c" }, id))).into();
            slow.answer(0).await;
            assert_eq!(slow.calls().await, [[2, 4, 6, 8]]);
            slow.hold(0).await;
            assert_eq!(slow.calls().await, [vec![2, 4], vec![6, 8]], "they are told apart");
            slow.answer(1).await;
            for (id, answer) in [6, 8].into_iter().zip(free) {
                assert_eq!(answer.await, Ok(vec![outcome(id)]));
            }
            slow.hold(0).await;
            assert_eq!(slow.calls().await, [[2, 4]], "once more");
            let late = coalescer.enqueue(of("a", 10));
            assert_eq!(slow.calls().await, [vec![2, 4], vec![10]], "who comes late does not make others wait");
            let many = [0; CALLS_MAX].map(|_| coalescer.enqueue(jobs(0..JOBS_MAX as u128)));
            assert_eq!(slow.calls().await.len(), 2 + CALLS_MAX, "they do not count among the others");
            for _ in 0..2 + CALLS_MAX {
                slow.answer(0).await;
            }
            assert!(first.await.is_ok() && late.await.is_ok());
            for (id, answer) in [2, 4].into_iter().zip(held) {
                assert_eq!(answer.await, Ok(vec![outcome(id)]));
            }
            drop(many);
        });
    }

    /// Whoever gave an id that is in somebody's open transaction held up all callers of its tenant: by their tenant and
    /// key they cannot be told apart.
    #[test]
    fn whoever_waits_for_an_id_waits_alone() {
        play(async |slow, coalescer| {
            let first = coalescer.enqueue(of("a", 0));
            slow.calls().await;
            let held = coalescer.enqueue(given("a", 2));
            let free = [of("a", 4), given("a", 6)].map(|jobs| coalescer.enqueue(jobs));
            slow.answer(0).await;
            assert_eq!(slow.calls().await, [[2, 4, 6]]);
            slow.hold(0).await;
            assert_eq!(slow.calls().await, [vec![4], vec![2, 6]], "they are told apart");
            slow.answer(0).await;
            slow.hold(0).await;
            assert_eq!(slow.calls().await, [[2], [6]]);
            slow.answer(1).await;
            let late = [of("a", 8), given("a", 10)].map(|jobs| coalescer.enqueue(jobs));
            assert_eq!(slow.calls().await, [vec![2], vec![8, 10]], "who comes late goes past");
            slow.answer(1).await;
            let same = coalescer.enqueue(given("a", 2));
            assert_eq!(slow.calls().await, [[2], [2]], "who gives the same id waits too");
            for _ in 0..2 {
                slow.answer(0).await;
            }
            assert!(first.await.is_ok() && held.await.is_ok() && same.await.is_ok());
            for answer in free.into_iter().chain(late) {
                assert!(answer.await.is_ok());
            }
        });
    }

    /// Those who wait for their tenant are aside with whoever comes meanwhile, though each of them gave an id.
    #[test]
    fn two_who_gave_ids_wait_for_what_they_have_in_common() {
        play(async |slow, coalescer| {
            let held = [2, 4].map(|id| coalescer.enqueue(given("a", id)));
            assert_eq!(slow.calls().await, [[2, 4]]);
            slow.hold(0).await;
            assert_eq!(slow.calls().await, [[2], [4]]);
            let late = coalescer.enqueue(given("a", 6));
            assert_eq!(slow.calls().await, [[2], [4]], "it is aside, where two are tried at a time");
            drop((held, late));
        });
    }

    #[test]
    fn nobody_waits_for_a_lock_longer_than_for_an_answer() {
        play(async |slow, coalescer| {
            let held = coalescer.enqueue(of("a", 2));
            slow.calls().await;
            slow.hold(0).await;
            assert_eq!(slow.calls().await, [[2]]);
            tokio::time::advance(TIMEOUT).await;
            slow.hold(0).await;
            assert!(slow.calls().await.is_empty());
            let error = held.await.unwrap_err();
            assert!(error.is_transient() && error.to_string().contains("a lock for 30s"), "{error}");
        });
    }
}
