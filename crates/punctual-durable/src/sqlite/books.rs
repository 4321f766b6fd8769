//! The file and its index, kept in step: the only place where a job moves from one state to another.
//!
//! # Invariants
//! 1. Within a transaction the index says what the file says. If the transaction is lost, so is the index, and it is
//!    read again.
//! 2. Every state comes from [`State::after`](crate::State::after).
//! 3. A transaction begins by writing down what time has brought, so every operation sees the world as of now. If that
//!    is more than [`Settings::catch_up`](super::Settings), the rest waits for the next one, so that no caller waits
//!    for all of it.

use punctual::{Clock, Stage};
use rusqlite::{Connection, Result, params};

use super::Settings;
use super::file::Owned;
use super::index::{Index, Running};
use super::queries::{self, End, Live};
use super::rows::{Id, node_sql};
use crate::id::{JobId, NodeId};
use crate::signals::Signals;
use crate::state::{Outcome, State, Step};
use crate::store::{CancelCause, Cancelled, Record, Unreadable, crash_error};
use crate::time::Timestamp;

const NEXT_DUE: &str = "SELECT due FROM job WHERE stage = 'scheduled' ORDER BY due, seq LIMIT 1";
const NEXT_EXPIRY: &str = "SELECT expires_at FROM job WHERE expires_at IS NOT NULL ORDER BY expires_at, seq LIMIT 1";

/// All that the writer works with.
#[derive(Debug)]
pub(super) struct Books {
    file: Owned,
    pub(super) index: Index,
    clock: Clock,
    settings: Settings,
    signals: Signals,
    /// The present of this transaction.
    pub(super) now: Timestamp,
    /// No job that waits falls due before this; and no job expires before that.
    next_due: Option<Timestamp>,
    next_expiry: Option<Timestamp>,
    pub(super) next_seq: i64,
    news: News,
    pub(super) brought: Brought,
    pub(super) unreadable: Unreadable,
    /// The index has to be read again.
    stale: bool,
}

/// What is to be told once it is on disk.
#[derive(Debug, Default)]
struct News {
    work: bool,
    ready: bool,
    due: Option<Timestamp>,
    ended: Vec<JobId>,
    stop: Vec<(NodeId, JobId, u64)>,
}

/// What time brought since that was last asked.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Brought {
    pub(super) promoted: usize,
    pub(super) expired: usize,
    pub(super) lost: usize,
}

impl Books {
    /// Takes a file over from a process that is gone: what it ran is lost, and nobody wants anything any more.
    pub(super) fn open(file: Owned, clock: Clock, settings: Settings, signals: Signals) -> Result<Self> {
        let mut books = Self {
            index: Index::new(settings.window),
            now: Timestamp::now_at(clock.wall()),
            file,
            clock,
            settings,
            signals,
            next_due: None,
            next_expiry: None,
            next_seq: 0,
            news: News::default(),
            brought: Brought::default(),
            unreadable: Unreadable::default(),
            stale: false,
        };
        books.index.is_now(nanos(books.now));
        books.file.db.execute_batch("BEGIN IMMEDIATE")?;
        books.file.db.execute_batch("DELETE FROM node; DELETE FROM interest;")?;
        books.read_index()?;
        books.lose_all()?;
        books.commit()?;
        Ok(books)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn db(&self) -> &Connection {
        &self.file.db
    }

    pub(super) fn begin(&mut self) -> Result<()> {
        if self.stale {
            self.read_index()?;
            self.stale = false;
        }
        self.now = Timestamp::now_at(self.clock.wall());
        self.index.is_now(nanos(self.now));
        self.file.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        self.catch_up()
    }

    pub(super) fn commit(&mut self) -> Result<()> {
        self.write_tenants()?;
        self.file.db.prepare_cached("COMMIT")?.execute([]).map(drop)
    }

    /// Forgets a transaction, and what the index learned in it.
    pub(super) fn roll_back(&mut self) {
        self.news = News::default();
        // A full disk may have ended the transaction already.
        if !self.file.db.is_autocommit() {
            let _ = self.file.db.execute_batch("ROLLBACK");
        }
        // If this fails too, the next transaction tries again before it does anything.
        self.stale = self.read_index().is_err();
    }

    /// Tells what was committed.
    pub(super) fn tell(&mut self) {
        let news = std::mem::take(&mut self.news);
        for (node, job, fence) in news.stop {
            self.signals.stop(node, job, fence);
        }
        if !news.ended.is_empty() {
            self.signals.ended(news.ended);
        }
        if news.work {
            self.signals.work();
            return;
        }
        if news.ready {
            self.signals.ready();
        }
        if let Some(due) = news.due {
            self.signals.due(due);
        }
    }

    /// Something may have become claimable, or the instant to tend has moved.
    pub(super) fn work(&mut self) {
        self.news.work = true;
    }

    /// Something has become claimable.
    pub(super) fn ready(&mut self) {
        self.news.ready = true;
    }

    /// There is something to tend at an instant.
    pub(super) fn due(&mut self, at: Timestamp) {
        self.news.due = Some(self.news.due.map_or(at, |due| due.min(at)));
    }

    /// The file to read from, and the index to write to.
    pub(super) fn parts(&mut self) -> (&Connection, &mut Index) {
        (&self.file.db, &mut self.index)
    }

    /// The first instants at which time brings something.
    pub(super) fn look_ahead(&mut self) -> Result<Option<Timestamp>> {
        self.next_due = queries::next(self.db(), NEXT_DUE)?;
        self.next_expiry = queries::next(self.db(), NEXT_EXPIRY)?;
        Ok(self.next_due.into_iter().chain(self.next_expiry).min())
    }

    /// Writes down what time has brought, or as much of it as one transaction should.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        // First what expires, so that nothing falls due at an instant at which nobody wants it.
        if self.next_expiry.is_some_and(|at| at <= self.now) {
            self.expire()?;
            self.next_expiry = queries::next(self.db(), NEXT_EXPIRY)?;
        }
        if self.next_due.is_some_and(|due| due <= self.now) {
            self.promote()?;
            self.next_due = queries::next(self.db(), NEXT_DUE)?;
        }
        Ok(())
    }

    fn promote(&mut self) -> Result<()> {
        const DUE: &str = "SELECT seq, tenant, kind, alone, order_at, max(due, since) FROM job WHERE stage = 'scheduled' AND due <= ?1 \
                           ORDER BY due, seq LIMIT ?2";
        let due: Vec<(i64, String, String, bool, i64, i64)> = self
            .db()
            .prepare_cached(DUE)?
            .query_map(params![self.now.micros(), queries::limit(self.settings.catch_up)], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
            })?
            .collect::<Result<_>>()?;
        debug_assert_eq!(State::SCHEDULED.after(Step::FallDue), Some(State::READY));
        for (seq, tenant, kind, alone, order_at, at) in &due {
            // Dated by the instant it happened, not by when it was noticed.
            queries::fall_due(self.db(), *seq, Timestamp::from_micros(*at))?;
            self.index.fall_due(tenant, kind, *alone, (*order_at, *seq));
        }
        self.brought.promoted += due.len();
        if !due.is_empty() {
            self.ready();
        }
        Ok(())
    }

    fn expire(&mut self) -> Result<()> {
        const PAST: &str = "SELECT seq FROM job WHERE expires_at <= ?1 ORDER BY expires_at, seq LIMIT ?2";
        let past: Vec<i64> = self
            .db()
            .prepare_cached(PAST)?
            .query_map(params![self.now.micros(), queries::limit(self.settings.catch_up)], |row| row.get(0))?
            .collect::<Result<_>>()?;
        for seq in past {
            if let Some(live) = queries::load_seq(self.db(), seq)? {
                self.expire_one(live)?;
            }
        }
        Ok(())
    }

    /// The time of a job has run out.
    pub(super) fn expire_one(&mut self, live: Live) -> Result<()> {
        let record = &live.record;
        let (error, at) = (record.expiry_error(), record.expires_at().unwrap_or(self.now).max(record.since));
        self.brought.expired += 1;
        if record.state.is_waiting() {
            self.end(live, Outcome::Expired, at, Some(&error))
        } else {
            self.settle(live, Outcome::Expired, at, &error)
        }
    }

    /// Takes a new job in, or an ended one back.
    pub(super) fn admit(&mut self, live: &Live) -> Result<()> {
        queries::insert(self.db(), live)?;
        self.enter(live);
        Ok(())
    }

    /// A live job is where its record says from now on.
    pub(super) fn enter(&mut self, live: &Live) {
        self.index.enter(live);
        let earlier = |next: Option<Timestamp>, at: Timestamp| Some(next.map_or(at, |next| next.min(at)));
        self.brought.promoted += usize::from(live.record.state.stage == Stage::Ready);
        if live.record.state.stage == Stage::Scheduled {
            self.next_due = earlier(self.next_due, live.record.due);
        }
        if let Some(at) = live.record.expires_at() {
            self.next_expiry = earlier(self.next_expiry, at);
        }
    }

    /// Changes a live job that stays one.
    pub(super) fn change(&mut self, live: &mut Live, change: impl FnOnce(&mut Live)) -> Result<()> {
        self.index.leave(live);
        change(live);
        queries::update(self.db(), live)?;
        self.enter(live);
        Ok(())
    }

    /// A job waits to run (again); ready at once if its due instant has come.
    pub(super) fn wait_again(&mut self, live: &mut Live, step: Step, terms: impl FnOnce(&mut Record)) -> Result<()> {
        let now = self.now;
        let Some(state) = live.record.state.after(step) else { return Ok(()) };
        self.work();
        self.change(live, |live| {
            let record = &mut live.record;
            terms(record);
            record.state = if record.due <= now { state.after(Step::FallDue).unwrap_or(state) } else { state };
            record.node = None;
            record.since = now;
        })
    }

    /// A job that waits, or whose handler has stopped, ends.
    pub(super) fn end(&mut self, live: Live, outcome: Outcome, at: Timestamp, error: Option<&str>) -> Result<()> {
        let Some(state) = live.record.state.after(Step::End(outcome)) else { return Ok(()) };
        debug_assert_eq!(state.stage, Stage::Stopped);
        self.index.leave(&live);
        let tenant = self.index.tenant_key(&live.record.job.tenant);
        let Live { seq, forget, record, while_wanted } = live;
        if forget {
            self.work();
            return self.forget(seq, record.job.id);
        }
        self.work();
        queries::end(self.db(), &End { seq, outcome, at, result: None, error })?;
        if let Some(unique) = &record.job.unique {
            queries::free_key(self.db(), &record.job.tenant, &unique.key, record.job.id, self.now)?;
        }
        self.after_end(record.job.id, while_wanted)?;
        self.index.count_end(tenant, outcome);
        Ok(())
    }

    /// A running job ends, without its row being read.
    pub(super) fn end_running(
        &mut self,
        id: JobId,
        running: &Running,
        outcome: Outcome,
        result: Option<&str>,
        error: Option<&str>,
    ) -> Result<()> {
        self.index.leave_running(id);
        // Somebody may start now who was held back. If it was for want of threads, the node that has one knows.
        if running.alone || self.index.tenant(running.tenant).policy.limits.running_max.is_some() {
            self.ready();
        }
        if running.forget {
            return self.forget(running.seq, id);
        }
        queries::end(self.db(), &End { seq: running.seq, outcome, at: self.now, result, error })?;
        if let Some(key) = &running.unique {
            let tenant = std::sync::Arc::clone(&self.index.tenant(running.tenant).name);
            queries::free_key(self.db(), &tenant, key, id, self.now)?;
        }
        self.after_end(id, running.while_wanted)?;
        self.index.count_end(running.tenant, outcome);
        Ok(())
    }

    fn after_end(&mut self, id: JobId, wanted: bool) -> Result<()> {
        if wanted {
            self.db().prepare_cached("DELETE FROM interest WHERE job = ?1")?.execute([Id(id)])?;
        }
        self.news.ended.push(id);
        Ok(())
    }

    /// The outcome of a running job is settled; its handler has yet to stop.
    pub(super) fn settle(&mut self, mut live: Live, outcome: Outcome, at: Timestamp, error: &str) -> Result<()> {
        let Some(state) = live.record.state.after(Step::Settle(outcome)) else { return Ok(()) };
        self.change(&mut live, |live| {
            live.record.state = state;
            live.record.last_error = Some(error.to_owned());
            live.record.since = at;
        })?;
        let record = &live.record;
        self.news.ended.push(record.job.id);
        self.news.stop.extend(record.node.map(|node| (node, record.job.id, record.fence)));
        Ok(())
    }

    /// An erased job has stopped: nothing of it is kept.
    pub(super) fn forget(&mut self, seq: i64, id: JobId) -> Result<()> {
        queries::forget_live(self.db(), seq)?;
        self.news.ended.push(id);
        Ok(())
    }

    /// Nobody wants a live job any more.
    pub(super) fn cancel_one(&mut self, live: Live, cause: CancelCause) -> Result<Cancelled> {
        let State { stage, outcome } = live.record.state;
        if let Some(outcome) = outcome {
            return Ok(Cancelled::Ended(outcome));
        }
        let error = cause.to_string();
        if stage == Stage::Running {
            self.settle(live, Outcome::Cancelled, self.now, &error)?;
        } else {
            self.end(live, Outcome::Cancelled, self.now, Some(&error))?;
        }
        Ok(Cancelled::Now(stage))
    }

    /// The process that ran a job died.
    pub(super) fn lose(&mut self, mut live: Live) -> Result<()> {
        self.brought.lost += 1;
        if live.record.state.outcome.is_some() {
            return self.stop(&live);
        }
        live.record.crashes = live.record.crashes.saturating_add(1);
        let crashes = live.record.crashes;
        if crashes >= live.record.job.max_crashes {
            live.record.attempt = live.record.attempt.saturating_sub(1);
            queries::update(self.db(), &live)?;
            return self.end(live, Outcome::Failed, self.now, Some(&crash_error(crashes)));
        }
        let now = self.now;
        self.wait_again(&mut live, Step::Lose, |record| give_back(record, now))
    }

    /// The node that ran a job has left.
    pub(super) fn hand_back(&mut self, mut live: Live) -> Result<()> {
        if live.record.state.outcome.is_some() {
            return self.stop(&live);
        }
        let now = self.now;
        self.wait_again(&mut live, Step::Lose, |record| give_back(record, now))
    }

    /// The handler of a settled job has stopped.
    fn stop(&mut self, live: &Live) -> Result<()> {
        let id = live.record.job.id;
        let after = live.record.state.after(Step::Stop);
        match (self.index.running(id).cloned(), after.and_then(|state| state.outcome)) {
            (Some(running), Some(outcome)) => self.end_running(id, &running, outcome, None, None),
            _ => Ok(()),
        }
    }

    /// A node does not want a job's result any more.
    pub(super) fn lose_interest(&mut self, id: JobId, node: NodeId) -> Result<()> {
        self.db()
            .prepare_cached("DELETE FROM interest WHERE job = ?1 AND node = ?2")?
            .execute(params![Id(id), node_sql(node)])?;
        self.cancel_unwanted(id)
    }

    /// Cancels a job that lives only while it is wanted, and is not.
    pub(super) fn cancel_unwanted(&mut self, id: JobId) -> Result<()> {
        if self.db().prepare_cached("SELECT 1 FROM interest WHERE job = ?1")?.exists([Id(id)])? {
            return Ok(());
        }
        match queries::load(self.db(), id)? {
            Some(live) if live.while_wanted => self.cancel_one(live, CancelCause::Unwanted).map(drop),
            _ => Ok(()),
        }
    }
}

/// A job is due then.
pub(super) fn set_due(record: &mut Record, due: Timestamp) {
    record.due = due;
    record.start_by = record.job.start_within.map(|within| due.after(within));
}

/// A run that does not count: due as it was, with the whole time to start again.
pub(super) fn give_back(record: &mut Record, now: Timestamp) {
    record.attempt = record.attempt.saturating_sub(1);
    record.start_by = record.job.start_within.map(|within| now.after(within));
}

/// Nanoseconds since 1970, as rates count.
pub(super) fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.micros()).unwrap_or(0).saturating_mul(1_000)
}

/// Back again, never early.
pub(super) fn from_nanos(nanos: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(nanos.div_ceil(1_000)).unwrap_or(i64::MAX))
}
