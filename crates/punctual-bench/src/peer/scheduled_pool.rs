//! The `scheduled-thread-pool` crate.

use std::sync::Arc;
use std::time::Duration;

use scheduled_thread_pool::{JobHandle, ScheduledThreadPool};

use super::{Peer, Producer};

pub(crate) struct Pool(Arc<ScheduledThreadPool>);

impl Peer for Pool {
    type Producer = Arc<ScheduledThreadPool>;

    fn start(threads: usize) -> Self {
        Self(Arc::new(ScheduledThreadPool::builder().num_threads(threads).build()))
    }

    fn producer(&self) -> Arc<ScheduledThreadPool> {
        Arc::clone(&self.0)
    }
}

impl Producer for Arc<ScheduledThreadPool> {
    type Handle = JobHandle;

    fn after(&mut self, delay: Duration, job: impl FnOnce() + Send + 'static) -> JobHandle {
        self.execute_after(delay, job)
    }

    fn cancel(&mut self, handle: JobHandle) {
        handle.cancel();
    }
}
