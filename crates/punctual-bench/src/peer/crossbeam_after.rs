//! `crossbeam_channel::after`: nothing multiplexes a million receivers, so it only creates and drops them. Read it as
//! the floor of "read the clock, allocate, free".

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after};

use super::{Peer, Producer};

pub(crate) struct Channels;

/// Holds what is pending, for nobody else does.
#[derive(Default)]
pub(crate) struct Holder {
    pending: Vec<Receiver<Instant>>,
}

impl Peer for Channels {
    type Producer = Holder;

    fn start(_threads: usize) -> Self {
        Self
    }

    fn producer(&self) -> Holder {
        Holder::default()
    }
}

impl Producer for Holder {
    type Handle = Receiver<Instant>;

    fn after(&mut self, delay: Duration, _job: impl FnOnce() + Send + 'static) -> Receiver<Instant> {
        after(delay)
    }

    fn cancel(&mut self, receiver: Receiver<Instant>) {
        drop(receiver);
    }

    fn detach(&mut self, receiver: Receiver<Instant>) {
        self.pending.push(receiver);
    }
}
