//! The threads of a store, on which its connections live: so its futures need no runtime, and begin at once.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::store::Reply;

/// How long what was begun may go on after the store was dropped.
const FAREWELL: Duration = Duration::from_secs(5);

/// A runtime that can be dropped anywhere, also where nothing may block.
pub(super) struct Threads(Option<Alive>);

struct Alive {
    runtime: Runtime,
    /// What is under way holds a clone, so `over` ends with the last.
    under_way: mpsc::Sender<Infallible>,
    over: mpsc::Receiver<Infallible>,
}

impl Threads {
    pub(super) fn start() -> Result<Self, StoreError> {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("punctual-postgres").enable_all().build();
        let runtime =
            runtime.map_err(|error| StoreError::transient(format!("cannot start the store's threads: {error}")))?;
        let (under_way, over) = mpsc::channel(1);
        Ok(Self(Some(Alive { runtime, under_way, over })))
    }

    /// Begins something and answers when it is done. Whoever drops the answer does not stop it. The guard is held until
    /// then.
    pub(super) fn run<T: Send + 'static>(
        &self,
        guard: impl Send + 'static,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Reply<T> {
        let Alive { runtime, under_way, .. } = self.0.as_ref().expect("they are alive until they are dropped");
        let guards = (under_way.clone(), guard);
        let (reply, answer) = oneshot::channel();
        runtime.spawn(async move {
            // Whoever does not wait any more does not need the answer.
            let _ = reply.send(work.await);
            drop(guards);
        });
        let closed = || StoreError::transient("the store was closed meanwhile");
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(closed())) })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let Some(Alive { runtime, under_way, mut over }) = self.0.take() else { return };
        drop(under_way);
        let handle = runtime.handle().clone();
        handle.spawn(async move {
            // What was asked for is finished, if the database lets it.
            let _ = tokio::time::timeout(FAREWELL, over.recv()).await;
            runtime.shutdown_background();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_is_finished_though_the_store_and_the_answer_are_dropped() {
        let threads = Threads::start().unwrap();
        let (go, gone) = oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        drop(threads.run((), async move {
            let _ = gone.await;
            tell.send(7).map_err(|error| StoreError::permanent(error.to_string()))
        }));
        drop(threads);
        go.send(()).unwrap();
        assert_eq!(told.recv(), Ok(7));
    }

    #[test]
    fn they_can_be_dropped_where_nothing_may_block() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let threads = Threads::start().unwrap();
            assert_eq!(threads.run((), async { Ok(1) }).await, Ok(1));
            drop(threads);
        });
    }
}
