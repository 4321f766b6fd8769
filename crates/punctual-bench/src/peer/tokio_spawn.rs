//! A tokio task per entry that sleeps, then runs.

use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{Peer, Producer};

pub(crate) struct Tasks(&'static Runtime);

pub(crate) struct Spawner {
    runtime: &'static Runtime,
    _inside: EnterGuard<'static>,
}

impl Peer for Tasks {
    type Producer = Spawner;

    fn start(threads: usize) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_time().build();
        Self(Box::leak(Box::new(runtime.expect("a runtime starts"))))
    }

    fn producer(&self) -> Spawner {
        Spawner { runtime: self.0, _inside: self.0.enter() }
    }

    fn len(&self) -> Option<usize> {
        Some(self.0.metrics().num_alive_tasks())
    }
}

impl Producer for Spawner {
    type Handle = JoinHandle<()>;

    fn after(&mut self, delay: Duration, job: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        // Made out here: inside the task the delay would count from its first poll.
        let sleep = sleep(delay);
        self.runtime.spawn(async move {
            sleep.await;
            job();
        })
    }

    fn cancel(&mut self, task: JoinHandle<()>) {
        task.abort();
    }
}
