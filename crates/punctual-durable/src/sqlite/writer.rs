//! The one thread that writes: it takes what has gathered, does it in one transaction, and answers when that is on
//! disk.
//!
//! # Invariants
//! 1. Nobody is answered before the commit, and nobody hears a signal of something that was not committed.
//! 2. If anything fails, nothing of the batch was done: the transaction is rolled back and the index read again from
//!    the file.
//!
//! Why one transaction for many: an fsync costs as much as dozens of writes, and callers who wait for one share it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use punctual::{Busy, Clock, DelayQueue};
use rusqlite::ErrorCode;
use tokio::sync::oneshot;

use super::books::Books;
use super::file::fault;
use crate::error::StoreError;

/// How many operations share a commit at most.
const BATCH_MAX: usize = 4_096;

/// Something to be done, and somebody who waits for it.
pub(super) trait Operation: Send {
    /// Does it; may be called again after a rollback.
    fn run(&mut self, books: &mut Books) -> rusqlite::Result<()>;

    /// Tells whoever waits.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// An operation made of a closure.
pub(super) struct Ask<T, W> {
    work: W,
    done: Option<T>,
    /// A virtual clock waits for the answer.
    _busy: Busy,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, W> Ask<T, W> {
    pub(super) fn new(clock: &Clock, work: W) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        (Self { work, done: None, _busy: clock.busy(), reply }, answer)
    }
}

impl<T, W> Operation for Ask<T, W>
where
    T: Send,
    W: FnMut(&mut Books) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, books: &mut Books) -> rusqlite::Result<()> {
        self.done = Some((self.work)(books)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let Self { done, reply, _busy, .. } = *self;
        let answer = committed.and_then(|()| done.ok_or_else(|| StoreError::transient("it was not done")));
        // Whoever does not wait any more does not need the answer.
        let _ = reply.send(answer);
    }
}

/// Works until the queue is closed and empty.
pub(super) fn write(mut books: Books, queue: &DelayQueue<Box<dyn Operation>>) {
    while let Some(first) = queue.take() {
        let mut batch = vec![first];
        batch.extend(queue.drain_due(BATCH_MAX - 1));
        let committed = commit(&mut books, &mut batch);
        match committed {
            Ok(()) => finish(&mut books, batch, &Ok(())),
            // One of them may be to blame: each for itself then.
            Err(Trouble::OfOne(_)) if batch.len() > 1 => {
                for operation in batch {
                    let mut alone = vec![operation];
                    let committed = commit(&mut books, &mut alone).map_err(Trouble::into_error);
                    finish(&mut books, alone, &committed);
                }
            }
            Err(trouble) => finish(&mut books, batch, &Err(trouble.into_error())),
        }
    }
}

fn finish(books: &mut Books, batch: Vec<Box<dyn Operation>>, committed: &Result<(), StoreError>) {
    books.tell();
    for operation in batch {
        operation.answer(committed.clone());
    }
}

/// Why a batch failed.
enum Trouble {
    /// The disk, the file, the memory: it would fail for each of them.
    OfAll(StoreError),
    /// Perhaps only one of them is to blame.
    OfOne(StoreError),
}

impl Trouble {
    fn into_error(self) -> StoreError {
        match self {
            Self::OfAll(error) | Self::OfOne(error) => error,
        }
    }
}

fn commit(books: &mut Books, batch: &mut [Box<dyn Operation>]) -> Result<(), Trouble> {
    let done = catch_unwind(AssertUnwindSafe(|| {
        books.begin()?;
        for operation in batch.iter_mut() {
            operation.run(books)?;
            books.catch_up()?;
        }
        books.commit()
    }));
    let trouble = match done {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => of(&error),
        Err(_) => Trouble::OfOne(StoreError::transient("the store's thread panicked; nothing was done")),
    };
    books.roll_back();
    Err(trouble)
}

fn of(error: &rusqlite::Error) -> Trouble {
    let told = fault(error);
    match error.sqlite_error_code() {
        Some(ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch) | None => {
            Trouble::OfOne(told)
        }
        Some(_) => Trouble::OfAll(told),
    }
}
