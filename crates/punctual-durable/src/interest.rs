//! Which results this process still wants: counted here, so that the store hears of the first and of the last.
//!
//! A job that joins another one learns only from the store's answer which one that is. Until then no interest is given up, or
//! the one it joins could be cancelled under its hands.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::heart::Heart;
use crate::id::JobId;
use crate::store::Store;

/// The interests of one process.
#[derive(Debug)]
pub(crate) struct Interests {
    store: Arc<dyn Store>,
    heart: Arc<Heart>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    count: HashMap<JobId, usize>,
    /// Enqueues under way that may join a job.
    joining: usize,
    /// Jobs to give up once nobody joins.
    put_off: Vec<JobId>,
}

impl Interests {
    pub(crate) fn new(store: Arc<dyn Store>, heart: Arc<Heart>) -> Arc<Self> {
        Arc::new(Self { store, heart, held: Mutex::default() })
    }

    fn change(&self, change: impl FnOnce(&mut Held)) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut held);
        if held.joining > 0 {
            return;
        }
        for job in std::mem::take(&mut held.put_off) {
            if !held.count.contains_key(&job) {
                // Under the lock, so that a new interest of this process comes after it. The call begins at once; nobody waits.
                drop(self.store.unwant(job, self.heart.node()));
            }
        }
    }
}

/// One handle's interest in one job; dropping the last one tells the store.
#[derive(Debug)]
pub(crate) struct Interest {
    all: Arc<Interests>,
    job: JobId,
}

impl Interest {
    pub(crate) fn new(all: &Arc<Interests>, job: JobId) -> Self {
        all.change(|held| *held.count.entry(job).or_default() += 1);
        Self { all: all.clone(), job }
    }

    /// Counts for good.
    pub(crate) fn keep(self) {
        self.all.change(|held| *held.count.entry(self.job).or_default() += 1);
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.all.change(|held| {
            let Some(count) = held.count.get_mut(&self.job) else { return };
            *count -= 1;
            if *count == 0 {
                held.count.remove(&self.job);
                held.put_off.push(self.job);
            }
        });
    }
}

/// An enqueue under way that may join a job.
#[derive(Debug)]
pub(crate) struct Joining(Arc<Interests>);

impl Joining {
    pub(crate) fn new(all: &Arc<Interests>) -> Self {
        all.change(|held| held.joining += 1);
        Self(all.clone())
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.0.change(|held| held.joining -= 1);
    }
}
