//! What a scheduler tells whoever listens.

use std::sync::Arc;
use std::time::Duration;

use super::JobId;
use super::job::Outcome;
use super::work::Work;
use crate::error::Reason;

/// Something happened to a job. Given to the hook of [`Builder::on_event`](crate::Builder::on_event), outside all
/// locks.
///
/// # Example
/// ```
/// use punctual::{Event, Scheduler};
/// let scheduler = Scheduler::builder()
///     .on_event(|event| if let Event::Panicked { message, .. } = event { eprintln!("{message}") })
///     .build()
///     .unwrap();
/// # drop(scheduler);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A run began.
    #[non_exhaustive]
    Started {
        /// Which job.
        id: JobId,
        /// Its name, if it has one.
        name: Option<Box<str>>,
        /// How long after its due instant.
        lateness: Duration,
    },
    /// A run has stopped, or will never start.
    #[non_exhaustive]
    Finished {
        /// Which job.
        id: JobId,
        /// Its name, if it has one.
        name: Option<Box<str>>,
        /// How.
        outcome: Outcome,
        /// How long it was in its last stage: for one that ran, its running time.
        took: Duration,
    },
    /// A run panicked; `Finished` follows.
    #[non_exhaustive]
    Panicked {
        /// Which job.
        id: JobId,
        /// Its name, if it has one.
        name: Option<Box<str>>,
        /// What the panic said.
        message: String,
    },
    /// A submit was refused.
    #[non_exhaustive]
    Rejected {
        /// Why.
        reason: Reason,
    },
}

impl Event {
    pub(crate) fn started(work: &Arc<dyn Work>, lateness: Duration) -> Self {
        let head = work.head();
        Self::Started { id: head.id(), name: head.name.clone(), lateness }
    }

    pub(crate) fn finished(work: &Arc<dyn Work>, outcome: Outcome, took: Duration) -> Self {
        let head = work.head();
        Self::Finished { id: head.id(), name: head.name.clone(), outcome, took }
    }

    pub(crate) fn panicked(work: &Arc<dyn Work>, message: &str) -> Self {
        let head = work.head();
        Self::Panicked { id: head.id(), name: head.name.clone(), message: message.to_owned() }
    }
}

/// The same for `tracing`, where that feature is on.
#[cfg(feature = "tracing")]
pub(crate) fn trace(event: &Event) {
    let name = |name: &Option<Box<str>>| name.as_deref().unwrap_or_default().to_owned();
    match event {
        Event::Started { id, name: n, lateness } => {
            tracing::debug!(target: "punctual", job = %id, name = name(n), ?lateness, "started");
        }
        Event::Finished { id, name: n, outcome, took } => {
            tracing::debug!(target: "punctual", job = %id, name = name(n), ?outcome, ?took, "finished");
        }
        Event::Panicked { id, name: n, message } => {
            tracing::error!(target: "punctual", job = %id, name = name(n), message, "panicked");
        }
        Event::Rejected { reason } => tracing::warn!(target: "punctual", %reason, "rejected"),
    }
}

#[cfg(not(feature = "tracing"))]
pub(crate) fn trace(_: &Event) {}
