//! Those whose enqueues wait for a lock that somebody holds: a caller's transaction that has enqueued for the same
//! bounded tenant, with the same unique key or the same id, and is not over.
//!
//! Who went together is told apart by halves, so that those who need not wait do not. Who is left tries again and
//! again, each time for a moment: a call that waited on would keep a connection from others, who need no lock.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::{Ask, Common, JOBS_MAX, LOCK_WAIT, Place, Said, call};
use crate::error::StoreError;
use crate::id::JobId;
use crate::store::NewJob;

/// How many try at a time: few, for each has a connection.
const TRIES_MAX: usize = 2;

/// How long those wait for a lock who all want the same. Others who want it come and go meanwhile, in turn.
const LOCK_WAIT_ALONE: Duration = Duration::from_millis(250);

pub(super) struct Aside {
    timeout: Duration,
    /// Those who go together, the next first.
    groups: VecDeque<Vec<Ask>>,
    /// How many callers are here for each place, which two may have in common.
    places: HashMap<Common, HashMap<Option<JobId>, usize>>,
    tries: JoinSet<(Vec<Place>, Vec<Ask>)>,
}

impl Aside {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, groups: VecDeque::new(), places: HashMap::new(), tries: JoinSet::new() }
    }

    /// A new caller, unless he has to wait here too.
    pub(super) fn pass(&mut self, ask: Ask) -> Option<Ask> {
        if self.places.is_empty() {
            return Some(ask);
        }
        let Place { common, id } = ask.place();
        let Some(ids) = self.places.get_mut(&common) else { return Some(ask) };
        // One who gave an id may wait for that, and for nothing that concerns others; two wait for what they have in
        // common.
        if ids.len() == 1 && !ids.contains_key(&None) && !ids.contains_key(&id) {
            return Some(ask);
        }
        *ids.entry(id).or_default() += 1;
        let fits = |group: &&mut Vec<Ask>| {
            group[0].place().common == common && group.iter().map(|ask| ask.jobs.len()).sum::<usize>() < JOBS_MAX
        };
        match self.groups.iter_mut().find(fits) {
            Some(group) => group.push(ask),
            None => self.groups.push_back(vec![ask]),
        }
        None
    }

    /// Callers of one call that are held up.
    pub(super) fn take(&mut self, held: Vec<Ask>) {
        let is_late = |ask: &Ask| ask.is_late.as_ref().is_some_and(|is_late| is_late.load(Ordering::Relaxed));
        let (late, mut held): (Vec<Ask>, Vec<Ask>) = held.into_iter().partition(is_late);
        for ask in late {
            let why = format!("cannot enqueue jobs: somebody has held a lock for {:?} that they need", self.timeout);
            ask.reply(Err(StoreError::transient(why)));
        }
        if held.is_empty() {
            return;
        }
        let mut newcomers = held.iter_mut().filter(|ask| ask.is_late.is_none()).peekable();
        if newcomers.peek().is_some() {
            let is_late = after(self.timeout);
            newcomers.for_each(|ask| ask.is_late = Some(is_late.clone()));
        }
        for ask in &held {
            let Place { common, id } = ask.place();
            *self.places.entry(common).or_default().entry(id).or_default() += 1;
        }
        match halves(held) {
            // Those who may not have to wait at all go first.
            (first, Some(second)) => [second, first].into_iter().for_each(|half| self.groups.push_front(half)),
            (alone, None) => self.groups.push_back(alone),
        }
    }

    /// Lets the next ones try.
    pub(super) fn try_again<S, F>(&mut self, send: &Arc<S>)
    where
        S: Fn(Vec<NewJob>, Duration) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Vec<Said>, StoreError>> + Send + 'static,
    {
        while self.tries.len() < TRIES_MAX
            && let Some(group) = self.groups.pop_front()
        {
            let places: Vec<Place> = group.iter().map(Ask::place).collect();
            let is_alone = places.iter().all(|place| *place == places[0]);
            let lock_wait = if is_alone { LOCK_WAIT_ALONE } else { LOCK_WAIT };
            let again = call(group, send.clone(), lock_wait);
            self.tries.spawn(async move { (places, again.await) });
        }
    }

    /// Waits until one of them has been answered.
    pub(super) async fn heard(&mut self) {
        let Some(heard) = self.tries.join_next().await else { return std::future::pending().await };
        let Ok((places, held)) = heard else { return };
        for Place { common, id } in places {
            let Some(ids) = self.places.get_mut(&common) else { continue };
            let Some(count) = ids.get_mut(&id) else { continue };
            *count -= 1;
            if *count == 0 {
                ids.remove(&id);
            }
            if ids.is_empty() {
                self.places.remove(&common);
            }
        }
        self.take(held);
    }
}

/// Turns true after so long.
fn after(time: Duration) -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        // Relaxed: nothing else depends on it.
        over.store(true, Ordering::Relaxed);
    });
    is_over
}

/// Those of some places and those of others; all, if they are of one.
fn halves(mut asks: Vec<Ask>) -> (Vec<Ask>, Option<Vec<Ask>>) {
    asks.sort_by_cached_key(Ask::place);
    let places: Vec<Place> = asks.iter().map(Ask::place).collect();
    let middle = &places[places.len() / 2];
    let before = places.partition_point(|place| place < middle);
    let at = if before > 0 { before } else { places.partition_point(|place| place <= middle) };
    let second = asks.split_off(at);
    (asks, (!second.is_empty()).then_some(second))
}
