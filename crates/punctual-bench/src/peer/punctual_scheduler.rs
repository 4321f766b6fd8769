//! `punctual::Scheduler` with its own workers.

use std::sync::Arc;
use std::time::Duration;

use punctual::{JobHandle, Scheduler};

use super::{Peer, Producer};

pub(crate) struct Pool(Arc<Scheduler>);

impl Peer for Pool {
    type Producer = Arc<Scheduler>;

    fn start(threads: usize) -> Self {
        Self(Arc::new(Scheduler::builder().workers(threads).build().expect("a scheduler starts")))
    }

    fn producer(&self) -> Arc<Scheduler> {
        Arc::clone(&self.0)
    }
}

impl Producer for Arc<Scheduler> {
    type Handle = JobHandle<()>;

    fn after(&mut self, delay: Duration, job: impl FnOnce() + Send + 'static) -> JobHandle<()> {
        let scheduled = Scheduler::after(self, delay).run(move |_ctx| job());
        scheduled.unwrap_or_else(|rejected| panic!("the scheduler is open and unbounded: {rejected}"))
    }

    fn cancel(&mut self, handle: JobHandle<()>) {
        handle.cancel();
    }

    fn detach(&mut self, handle: JobHandle<()>) {
        handle.detach();
    }
}
