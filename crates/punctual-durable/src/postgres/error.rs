//! What PostgreSQL said, and what that means to the caller.

use std::error::Error as _;
use std::io::ErrorKind;

use tokio_postgres::Error;

use super::tls;
use crate::error::StoreError;

/// An operation that failed.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) told: StoreError,
    pub(super) kind: Kind,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It was surely rolled back, for the sake of somebody else: at once again.
    Again,
    /// What it was about is not there, or is something else: if that has just been changed by a newer program, it is
    /// found another time.
    Changed,
    /// What was to be written does not fit: whose it is may be found out by trying each for itself.
    Data,
    /// What was prepared is not there, or no longer fits: again without.
    Unprepared,
    /// The server takes no writes any more: another one does.
    ReadOnly,
    /// The connection is not to be used again.
    Lost,
    /// The role that this process has may not do it.
    Denied,
    /// Somebody held a lock for longer than it was waited for. It was rolled back.
    Held,
    /// Nothing but telling the caller.
    Other,
}

impl Fault {
    pub(super) fn new(what: &str, error: &Error) -> Self {
        let Some(said) = error.as_db_error() else { return Self::of_connection(what, error) };
        let state = said.code().code();
        let message = format!("cannot {what}: {} (SQLSTATE {state})", said.message());
        let told = if passes(state) { StoreError::transient(message) } else { StoreError::permanent(message) };
        Self { told, kind: kind(state) }
    }

    /// There was no connection to be had to these hosts.
    pub(super) fn unreached(what: &str, hosts: &str, error: &Error) -> Self {
        Self::new(&format!("{what}: no connection to {hosts}"), error)
    }

    fn of_connection(what: &str, error: &Error) -> Self {
        let mut message = format!("cannot {what}: {error}");
        let mut of_network = error.is_closed();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let io = inner.downcast_ref::<std::io::Error>();
            message.push_str(": ");
            message.push_str(&io.and_then(tls::told).unwrap_or_else(|| inner.to_string()));
            if let Some(io) = io {
                // A certificate that is not trusted, a name that is none: the same another time.
                of_network |= !matches!(io.kind(), ErrorKind::InvalidData | ErrorKind::InvalidInput);
            }
            cause = inner.source();
        }
        let told = if of_network { StoreError::transient(message) } else { StoreError::permanent(message) };
        Self { told, kind: Kind::Lost }
    }

    /// And what somebody must do about it, for it does not pass by itself.
    pub(super) fn advise(self, advice: &str) -> Self {
        Self { told: StoreError::permanent(format!("{}; {advice}", self.told)), ..self }
    }

    /// A role that may not do what is to be done hears who must.
    pub(super) fn if_denied(self, advice: impl FnOnce() -> String) -> Self {
        if self.kind == Kind::Denied { self.advise(&advice()) } else { self }
    }

    /// It took too long, or there was no connection to be had: whether it was done is unknown.
    pub(super) fn timed_out(what: &str, why: impl std::fmt::Display) -> Self {
        Self { told: StoreError::transient(format!("cannot {what}: {why}")), kind: Kind::Lost }
    }

    /// It cannot be, however often it is tried.
    pub(super) fn refused(what: &str, why: impl std::fmt::Display) -> Self {
        Self { told: StoreError::permanent(format!("cannot {what}: {why}")), kind: Kind::Other }
    }

    /// The answer is not what was agreed on.
    pub(super) fn unreadable(what: &str, why: impl std::fmt::Display) -> Self {
        Self::refused(what, format_args!("the database's answer is not understood: {why}"))
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        fault.told
    }
}

/// Whether it may work another time: connections (08), transactions given up (40), resources and disks (53), an
/// operator (57), the system (58), a server that takes no writes any more after a fail-over, a lock that was not to be
/// had.
fn passes(state: &str) -> bool {
    matches!(state.get(..2), Some("08" | "40" | "53" | "57" | "58")) || matches!(state, "25006" | "55P03")
}

fn kind(state: &str) -> Kind {
    match state {
        "40001" | "40P01" => Kind::Again,
        "25006" => Kind::ReadOnly,
        "42501" => Kind::Denied,
        "55P03" => Kind::Held,
        "0A000" | "26000" | "42P05" => Kind::Unprepared,
        // "attribute number 41 exceeds number of columns 40".
        "XX000" => Kind::Changed,
        _ => match state.get(..2) {
            Some("22" | "23" | "54") => Kind::Data,
            Some("08" | "57") => Kind::Lost,
            Some("42") => Kind::Changed,
            _ => Kind::Other,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_told_from_what_does_not() {
        let passing = [
            ("08006", "the connection was lost"),
            ("40001", "serialization"),
            ("40P01", "a deadlock"),
            ("53100", "the disk is full"),
            ("53300", "too many connections"),
            ("55P03", "a lock timeout"),
            ("57014", "a statement timeout"),
            ("57P01", "a shutdown"),
            ("57P03", "a start"),
            ("58030", "a disk that fails"),
            ("25006", "a server that became a standby"),
        ];
        for (state, what) in passing {
            assert!(passes(state), "{what} ({state}) passes");
        }
        for state in ["22021", "23505", "28P01", "3F000", "42501", "42883", "42P01", "54000", "XX000", ""] {
            assert!(!passes(state), "{state} does not pass");
        }
    }

    #[test]
    fn only_what_was_surely_rolled_back_is_done_again_unasked() {
        assert_eq!([kind("40001"), kind("40P01")], [Kind::Again; 2]);
        assert!(["08006", "40003", "57P01", "25006", "53100"].map(kind).iter().all(|&kind| kind != Kind::Again));
        assert_eq!(["22P05", "23502", "23514", "54000"].map(kind), [Kind::Data; 4]);
        assert_eq!((kind("25006"), kind("42501"), kind("55P03")), (Kind::ReadOnly, Kind::Denied, Kind::Held));
    }
}
