//! Opening the file: one owner, its settings, its version.
//!
//! The owner holds an operating system lock on a sibling file. Not on the database itself: closing any descriptor of
//! that would drop the locks that SQLite holds on it. Readers do not look at the sibling, so any tool can open the
//! database meanwhile.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::Settings;
use crate::error::StoreError;

/// Marks a database as ours: "pnct".
const APPLICATION_ID: i64 = 0x706e_6374;

/// What brings a file from each version to the next; the version is `user_version`.
const MIGRATIONS: [&str; 2] = [include_str!("migrations/0001_jobs.sql"), include_str!("migrations/0002_running.sql")];

/// The open database, and the lock that makes this process its only owner.
#[derive(Debug)]
pub(super) struct Owned {
    /// Declared first, so that the database is closed before the lock is let go.
    pub(super) db: Connection,
    _lock: File,
}

/// Opens the file, and makes it if there is none.
pub(super) fn open(path: &Path, settings: &Settings) -> Result<Owned, StoreError> {
    let lock = own(path)?;
    // Made here and not by SQLite, so that it is the user's own from its first moment.
    private(path).map_err(|error| cannot_open(path, &error))?;
    let path = path.canonicalize().map_err(|error| cannot_open(path, &error))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(&path, flags).map_err(|error| explain(&path, &error))?;
    prepare(&mut db, settings).map_err(|error| explain(&path, &error))?;
    migrate(&mut db, &path)?;
    if let Some(bytes) = settings.bytes_max {
        bound(&db, bytes).map_err(|error| explain(&path, &error))?;
    }
    Ok(Owned { db, _lock: lock })
}

fn own(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let sibling = PathBuf::from(name);
    let lock = private(&sibling).map_err(|error| cannot_open(path, &error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StoreError::permanent(format!(
            "{} is open already: one process owns it, and one store in it",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(cannot_open(&sibling, &error)),
    }
}

/// A file for its owner alone.
fn private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn prepare(db: &mut Connection, settings: &Settings) -> rusqlite::Result<()> {
    db.busy_timeout(Duration::from_secs(10))?;
    db.set_prepared_statement_cache_capacity(128);
    // Takes effect on a new file only, and before there is a table.
    db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    db.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    db.pragma_update(None, "synchronous", if settings.relaxed { "NORMAL" } else { "FULL" })?;
    db.pragma_update_and_check(None, "wal_autocheckpoint", 4_000, |_| Ok(()))?;
    // Not larger: where pages were put in order, a commit looks through all that are in memory (SQLite numbers one
    // beyond the end for a moment).
    db.pragma_update(None, "cache_size", -16_384)?;
    db.pragma_update(None, "temp_store", "MEMORY")?;
    db.pragma_update(None, "foreign_keys", false)
}

fn bound(db: &Connection, bytes: u64) -> rusqlite::Result<()> {
    let page: u64 = db.pragma_query_value(None, "page_size", |row| row.get(0))?;
    // 0 would be a question and not a bound.
    let pages = (bytes / page).clamp(1, u64::from(u32::MAX) - 1);
    db.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
}

fn migrate(db: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let known = MIGRATIONS.len();
    let look = |db: &Connection| -> rusqlite::Result<(usize, i64, bool)> {
        let version = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let application = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let empty = db.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))?;
        Ok((version, application, empty))
    };
    let (version, application, empty) = look(db).map_err(|error| explain(path, &error))?;
    if !empty && application != APPLICATION_ID {
        return Err(StoreError::permanent(format!("{} is a database of another application", path.display())));
    }
    if version > known {
        return Err(StoreError::permanent(format!(
            "{} was made by a newer version of punctual (format {version}; this version knows up to {known})",
            path.display()
        )));
    }
    let change = |db: &mut Connection| -> rusqlite::Result<()> {
        for (from, script) in MIGRATIONS.iter().enumerate().skip(version) {
            let transaction = db.transaction()?;
            transaction.execute_batch(script)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", from + 1)?;
            transaction.commit()?;
        }
        Ok(())
    };
    change(db).map_err(|error| explain(path, &error))
}

fn cannot_open(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::permanent(format!("cannot open {}: {error}", path.display()))
}

/// What SQLite said about this file.
pub(super) fn explain(path: &Path, error: &rusqlite::Error) -> StoreError {
    let file = path.display();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => StoreError::permanent(format!("{file} is not a SQLite database")),
        _ => {
            let told = fault(error);
            let message = format!("cannot open {file}: {told}");
            if told.is_transient() { StoreError::transient(message) } else { StoreError::permanent(message) }
        }
    }
}

/// What a failed statement means to the caller.
pub(super) fn fault(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::transient("the disk is full"),
        Some(ErrorCode::TooBig) => StoreError::permanent("larger than SQLite can hold"),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            StoreError::permanent(format!("the file is damaged: {error}"))
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            StoreError::permanent(format!("the file cannot be written: {error}"))
        }
        _ => StoreError::transient(format!("SQLite: {error}")),
    }
}
