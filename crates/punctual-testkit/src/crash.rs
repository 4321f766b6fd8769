//! Crashes of a process that has a store open, and power cuts under it, with a checker that knows nothing but what is
//! left.
//!
//! A child process ([`child`]) works on a file and writes down what it is about to do, what it was answered (the
//! client's log) and what its handlers did (the ledger). It is killed, or dies at a point that a [`Fault`] names.
//! Others take its place, the last one finishes everything, and the checker ([`check`]) judges by three things only:
//! the log, the ledger and the file.
//!
//! What is real: the processes, the signals, SQLite, the store as it is shipped. What is simulated: the power cut, the
//! full disk, and what a disk does with writes that nobody has waited for ([`Disk`]). Not simulated: directories that
//! forget a file made or removed, disks that lie about a sync (but see [`Fault::deaf`]), and sectors of garbage.

pub mod check;
pub mod child;
mod disk;
mod vfs;

use std::fmt;
use std::str::FromStr;

pub use disk::{Disk, Loss};
pub use vfs::{Seen, install, seen};

/// What a change of the file is about: the moves of a job that must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transition {
    /// A job is taken in.
    Enqueue,
    /// A node gets a job.
    Claim,
    /// A job ends.
    Finish,
    /// A job waits for its next attempt.
    Retry,
    /// A job is cancelled, waiting or running.
    Cancel,
    /// A tick of a schedule becomes a job.
    Fire,
}

impl Transition {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Enqueue, Self::Claim, Self::Finish, Self::Retry, Self::Cancel, Self::Fire];
}

/// Where in the writing of a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Nothing is written yet.
    BeforeWrite,
    /// All is written, and not yet committed: the disk was not waited for.
    BeforeCommit,
    /// Committed, and nobody was answered.
    BeforeAnswer,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::BeforeWrite, Self::BeforeCommit, Self::BeforeAnswer];
}

/// When a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Just before the so-manieth write, sync or truncation of the file and its log.
    Call(u64),
    /// At a point of the so-manieth commit that has such a transition in it.
    At(Point, Transition, u32),
}

/// What happens then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The process aborts; what it wrote stays, as the operating system has it.
    Abort,
    /// The power goes: what was not synced is lost, as much of it as this says; by a seed.
    Cut(Loss, u64),
    /// So many writes fail for want of room.
    Full(u64),
}

/// A fault that a child is to meet.
///
/// # Example
/// ```
/// use punctual_testkit::crash::{Fault, Loss, What, When};
/// let fault = Fault { what: What::Cut(Loss::Torn, 7), when: When::Call(20), deaf: false };
/// assert_eq!(fault.to_string().parse(), Ok(fault));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What happens.
    pub what: What,
    /// When.
    pub when: When,
    /// The disk acknowledges syncs and does nothing: no store can survive that, and the checker must see it.
    pub deaf: bool,
}

impl Fault {
    /// A fault of an honest disk.
    #[must_use]
    pub fn new(what: What, when: When) -> Self {
        Self { what, when, deaf: false }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Abort => write!(f, "abort 0")?,
            What::Cut(loss, seed) => write!(f, "{loss:?} {seed}")?,
            What::Full(calls) => write!(f, "full {calls}")?,
        }
        match self.when {
            When::Call(call) => write!(f, " call - {call}")?,
            When::At(point, transition, nth) => write!(f, " {point:?} {transition:?} {nth}")?,
        }
        f.write_str(if self.deaf { " deaf" } else { " honest" })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let &[what, number, point, transition, nth, honesty] = words.as_slice() else {
            return Err(format!("{text:?} is no fault"));
        };
        let parse = |number: &str| number.parse::<u64>().map_err(|_| format!("{number:?} is no number"));
        let (number, nth) = (parse(number)?, parse(nth)?);
        let what = match (what, named(&Loss::ALL, what)) {
            ("abort", _) => What::Abort,
            ("full", _) => What::Full(number),
            (_, Some(loss)) => What::Cut(loss, number),
            (_, None) => return Err(format!("{what:?} is no fault")),
        };
        let when = match (named(&Point::ALL, point), named(&Transition::ALL, transition)) {
            (Some(point), Some(transition)) => {
                When::At(point, transition, u32::try_from(nth).map_err(|_| format!("{nth} is too many"))?)
            }
            _ if point == "call" => When::Call(nth),
            _ => return Err(format!("{point:?} {transition:?} is no point")),
        };
        Ok(Self { what, when, deaf: honesty == "deaf" })
    }
}

fn named<T: Copy + fmt::Debug>(all: &[T], name: &str) -> Option<T> {
    all.iter().copied().find(|one| format!("{one:?}") == name)
}
