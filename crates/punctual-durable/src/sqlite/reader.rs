//! The thread that answers queries: they may read every job there is, and nobody who writes waits for them.
//!
//! It has a connection of its own, which reads what was committed when the query began. Who asks goes by the writer
//! first, so that what time has brought is written down: a query sees the world as of its call, or later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use punctual::{Clock, DelayQueue};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::oneshot;

use super::file::fault;
use super::queries;
use crate::error::StoreError;
use crate::store::{Page, Query};

type Question = Box<dyn FnOnce(&Connection) + Send>;

/// Ends with what was asked for when it is dropped.
#[derive(Debug)]
pub(super) struct Reader {
    questions: DelayQueue<Question>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Opens the file once more.
    pub(super) fn start(path: &Path, clock: &Clock) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags).map_err(|error| fault(&error))?;
        db.busy_timeout(Duration::from_secs(10)).map_err(|error| fault(&error))?;
        let questions = DelayQueue::with_clock(clock.clone());
        let taken: DelayQueue<Question> = questions.clone();
        let thread = std::thread::Builder::new().name("punctual-query".to_owned());
        let thread = thread.spawn(move || {
            while let Some(question) = taken.take() {
                // The waker of whoever asked is the user's code. If it panics, the next question is answered all the
                // same.
                let _ = catch_unwind(AssertUnwindSafe(|| question(&db)));
            }
        });
        let thread = thread.map_err(|error| {
            StoreError::transient(format!("cannot start a thread for queries of {}: {error}", path.display()))
        })?;
        Ok(Self { questions, thread: Some(thread) })
    }

    /// The answer comes, whatever becomes of whoever asks. A virtual clock waits for it.
    pub(super) fn ask(&self, clock: &Clock, query: Query) -> oneshot::Receiver<Result<Page, StoreError>> {
        let (reply, answer) = oneshot::channel();
        let busy = clock.busy();
        let question = move |db: &Connection| {
            let page = queries::page(db, &query).map_err(|error| fault(&error));
            // Whoever does not wait any more does not need the answer.
            let _ = reply.send(page);
            drop(busy);
        };
        // The queue is closed only when this is dropped.
        let _ = self.questions.push(Box::new(question), Duration::ZERO);
        answer
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.questions.close();
        // The last handle of the store may go with an answer, on this very thread.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // It catches the panics of its questions.
            let _ = thread.join();
        }
    }
}
