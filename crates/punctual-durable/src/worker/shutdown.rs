//! How a node stops: what has not begun goes back at once, what runs has its time, and whatever is left then is told to
//! stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use punctual::JobHandle;

use super::Worker;
use crate::node::NodeReport;
use crate::run::Stop;

/// A shutdown under way.
pub(super) struct Shutdown {
    tell: Option<tokio::sync::oneshot::Sender<NodeReport>>,
    is_over: Arc<AtomicBool>,
    released: usize,
    _alarm: Option<JobHandle<()>>,
}

impl Worker {
    pub(super) fn begin_shutdown(&mut self, stop: crate::node::Stopping) {
        // Whoever asked for it waits no longer: the grace is over.
        if let Some(stopping) = &self.stopping {
            stopping.is_over.store(true, Ordering::Release);
            return;
        }
        // What is given from now on would find nobody, and the lease of this process would keep it from others.
        self.listener.ask(false);
        let is_over = Arc::new(AtomicBool::new(stop.grace.is_zero()));
        let alarm = self.ring_after(stop.grace, is_over.clone());
        let reserve = self.reserve.take();
        self.stopping = Some(Shutdown { tell: stop.tell, is_over, released: reserve.len(), _alarm: alarm });
        self.give_back(reserve);
        // Nobody here needs to know what was forgotten.
        self.pruning = None;
    }

    /// Once the grace is over, whatever runs is told to stop.
    pub(super) fn press_on_with_shutdown(&mut self) {
        let is_unsettled = self.has_asked() || self.is_unsure;
        let Some(stopping) = &mut self.stopping else { return };
        let is_over = stopping.is_over.load(Ordering::Acquire);
        if is_over {
            for run in self.running.values_mut().filter(|run| run.stop.is_none()) {
                stopping.released += usize::from(!run.is_blocking);
                run.stop(Stop::Shutdown);
            }
        }
        // Ends that are held up are not waited for beyond the grace: they are told later, if the process lives so long.
        let is_quiet = self.finishes.is_empty()
            && (self.held.is_empty() || is_over)
            && !is_unsettled
            && self.running.values().all(|run| run.is_blocking && run.stop.is_some());
        if is_quiet && let Some(tell) = stopping.tell.take() {
            let report = NodeReport { released: stopping.released, still_running: self.running.len() };
            _ = tell.send(report);
        }
    }

    /// Whether nothing is left to be told, or to be asked. Blocking handlers that do not stop keep the loop, and their
    /// jobs, until they do.
    pub(super) fn is_over(&self) -> bool {
        self.stopping.is_some()
            && self.running.is_empty()
            && self.finishes.is_empty()
            && self.held.is_empty()
            && !self.has_asked()
            && !self.is_unsure
    }
}
