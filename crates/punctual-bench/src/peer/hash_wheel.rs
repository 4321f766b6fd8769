//! The `hierarchical_hash_wheel_timer` crate with its own thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hierarchical_hash_wheel_timer::thread_timer::{TimerRef, TimerWithThread};
use hierarchical_hash_wheel_timer::{ClosureTimer, OneShotClosureState, PeriodicClosureState, Timer};

use super::{Peer, Producer};

type Once = OneShotClosureState<u64>;
type Periodic = PeriodicClosureState<u64>;

pub(crate) struct Wheel {
    timer: TimerWithThread<u64, Once, Periodic>,
    producers: AtomicU64,
}

pub(crate) struct Sender {
    timer: TimerRef<u64, Once, Periodic>,
    /// Ids are the caller's to choose: the producer's number above, a counter below.
    next_id: u64,
}

impl Peer for Wheel {
    type Producer = Sender;

    fn start(_threads: usize) -> Self {
        Self { timer: TimerWithThread::new().expect("a thread starts"), producers: AtomicU64::new(0) }
    }

    fn producer(&self) -> Sender {
        let number = self.producers.fetch_add(1, Ordering::Relaxed);
        Sender { timer: self.timer.timer_ref(), next_id: number << 40 }
    }
}

impl Producer for Sender {
    type Handle = u64;

    fn after(&mut self, delay: Duration, job: impl FnOnce() + Send + 'static) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.timer.schedule_action_once(id, delay, move |_| job());
        id
    }

    fn cancel(&mut self, id: u64) {
        self.timer.cancel(&id);
    }
}
