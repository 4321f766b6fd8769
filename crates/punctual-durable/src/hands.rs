//! The threads that run handlers: a few for futures, which hold none while they wait, and for code that blocks as many
//! as jobs may run at once. A thread starts when it is first needed.

use punctual::{Clock, Scheduler};

use crate::error::StoreError;
use crate::handlers::Handler;
use crate::jobs::enter_runtime;

pub(crate) struct Hands {
    futures: Scheduler,
    blocking: Scheduler,
}

impl Hands {
    /// For a node that runs so many jobs at once.
    pub(crate) fn new(workers: usize, clock: &Clock) -> Result<Self, StoreError> {
        // Two for each processor, so that a future which does compute for a while does not hold up the others. More
        // only wake each other: with 256 threads an empty job takes half as much time again as with 4.
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let with = |threads| {
            let scheduler = enter_runtime(Scheduler::builder().workers(threads).clock(clock)).build();
            scheduler.map_err(|error| StoreError::permanent(error.to_string()))
        };
        Ok(Self { futures: with(workers.min(2 * processors.max(2)))?, blocking: with(workers)? })
    }

    /// Those that run such code.
    pub(crate) fn of(&self, code: &Handler) -> &Scheduler {
        match code {
            Handler::Async(_) => &self.futures,
            Handler::Blocking(_) => &self.blocking,
        }
    }
}
