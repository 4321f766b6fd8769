//! Concurrent enqueues of one process become one call, and one commit.
//!
//! A commit costs as much for a hundred jobs as for one. Whoever finds nothing under way leaves at once, alone; those who come meanwhile
//! gather, and leave together when it is back.
//!
//! # Invariants
//! 1. Whoever is alone waits for nobody.
//! 2. Nobody waits longer than `PATIENCE` for a call to come back, unless `CALLS_MAX` are under way: one that is held up by somebody's
//!    lock holds up no others.
//! 3. Each caller hears of its own jobs.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use crate::error::StoreError;
use crate::store::{Admitted, NewJob, Refused};

/// What came of one job.
pub(super) type Answer = Result<Admitted, Refused>;

/// What came of some.
pub(super) type Answers = Result<Vec<Answer>, StoreError>;

/// How many calls are under way at most.
const CALLS_MAX: usize = 4;

/// So many jobs are worth a call of their own, though another is under way.
const WORTH_A_CALL: usize = 64;

/// How many jobs, and about how many bytes, go in one call at most.
pub(super) const JOBS_MAX: usize = 1_000;
const BYTES_MAX: usize = 4 << 20;

/// How long to wait for those under way.
const PATIENCE: Duration = Duration::from_millis(3);

/// Where callers hand their jobs in.
#[derive(Debug, Clone)]
pub(super) struct Coalescer(mpsc::UnboundedSender<Ask>);

/// The jobs of one caller.
#[derive(Debug)]
struct Ask {
    jobs: Vec<NewJob>,
    reply: oneshot::Sender<Answers>,
}

impl Coalescer {
    /// Calls go through `send`, which answers for each job.
    pub(super) fn start<S, F>(send: S) -> Self
    where
        S: Fn(Vec<NewJob>) -> F + Send + Sync + 'static,
        F: Future<Output = Answers> + Send + 'static,
    {
        let (asks, inbox) = mpsc::unbounded_channel();
        tokio::spawn(dispatch(inbox, Arc::new(send)));
        Self(asks)
    }

    pub(super) fn enqueue(&self, jobs: Vec<NewJob>) -> impl Future<Output = Answers> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        // Nobody is there only if the runtime is gone, and then the answer says so.
        let _ = self.0.send(Ask { jobs, reply });
        async move { answer.await.unwrap_or_else(|_| Err(StoreError::transient("the store was closed"))) }
    }
}

async fn dispatch<S, F>(mut inbox: mpsc::UnboundedReceiver<Ask>, send: Arc<S>)
where
    S: Fn(Vec<NewJob>) -> F + Send + Sync + 'static,
    F: Future<Output = Answers> + Send + 'static,
{
    let mut waiting = VecDeque::new();
    let mut calls = JoinSet::new();
    let mut patience: Option<Pin<Box<Sleep>>> = None;
    loop {
        let mut is_over = false;
        tokio::select! {
            ask = inbox.recv() => match ask {
                Some(ask) => waiting.push_back(ask),
                None => return,
            },
            Some(_) = calls.join_next() => {}
            () = lasts(&mut patience) => is_over = true,
        }
        while let Ok(ask) = inbox.try_recv() {
            waiting.push_back(ask);
        }
        while calls.len() < CALLS_MAX && !waiting.is_empty() {
            let count: usize = waiting.iter().map(|ask: &Ask| ask.jobs.len()).sum();
            if !calls.is_empty() && count < WORTH_A_CALL && !is_over {
                break;
            }
            calls.spawn(call(batch(&mut waiting), send.clone()));
        }
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

async fn call<S, F>(batch: Vec<Ask>, send: Arc<S>)
where
    S: Fn(Vec<NewJob>) -> F,
    F: Future<Output = Answers>,
{
    let mut jobs = Vec::new();
    let mut callers = Vec::new();
    for ask in batch {
        callers.push((ask.jobs.len(), ask.reply));
        jobs.extend(ask.jobs);
    }
    let mut answers = send(jobs).await.map(Vec::into_iter);
    for (count, reply) in callers {
        let own = match &mut answers {
            Ok(answers) => Ok(answers.take(count).collect()),
            Err(error) => Err(error.clone()),
        };
        // Whoever does not wait any more does not need the answer.
        let _ = reply.send(own);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::id::JobId;

    /// A database that answers when it is told to.
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<Vec<Call>>>);

    /// The jobs of a call, and what makes it answer.
    type Call = (Vec<u128>, oneshot::Sender<()>);

    impl Slow {
        fn start(&self) -> Coalescer {
            let slow = self.clone();
            Coalescer::start(move |jobs: Vec<NewJob>| {
                let (go, gone) = oneshot::channel();
                slow.0.lock().unwrap().push((jobs.iter().map(|job| job.id.to_u128()).collect(), go));
                async move {
                    gone.await.map_err(|_| StoreError::transient("the connection was lost"))?;
                    Ok(jobs.iter().map(|job| outcome(job.id.to_u128())).collect())
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
            let (_, go) = self.0.lock().unwrap().remove(call);
            let _ = go.send(());
            Self::quiet().await;
        }
    }

    /// Each job has an answer of its own.
    fn outcome(id: u128) -> Answer {
        if id.is_multiple_of(2) { Ok(Admitted::New) } else { Err(Refused::Conflict(JobId::from_u128(id))) }
    }

    fn jobs(ids: impl IntoIterator<Item = u128>) -> Vec<NewJob> {
        ids.into_iter().map(|id| NewJob::new(JobId::from_u128(id), "k")).collect()
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
}
