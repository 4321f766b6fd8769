//! A shim between SQLite and the operating system, for a process that is to crash.
//!
//! It is registered as the process's default VFS, so that the store under it is the one that is shipped and knows
//! nothing. It passes everything on, counts, remembers what was synced (by a [`Disk`] for each file) and strikes when
//! its [`Fault`] says. It does not wait for the real disk: what is safe is what its own disks say is safe.
//!
//! It also listens to the statements, to know what a commit is about, and lets SQLite move its log into the file after
//! a few pages instead of thousands, so that a short run sees that too.

#![allow(unsafe_code, reason = "SQLite's VFS is a C interface")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rusqlite::ffi;

use super::{Disk, Fault, Point, Transition, What, When};

/// After how many pages SQLite moves its log into the file.
const CHECKPOINT_PAGES: c_int = 30;

static SHIM: OnceLock<Mutex<Shim>> = OnceLock::new();

/// Calls the real file's method.
macro_rules! pass {
    ($file:ident, $method:ident $(, $argument:ident)*) => {{
        let real = real($file);
        (*(*real).pMethods).$method.expect("a file of SQLite has it")(real $(, $argument)*)
    }};
}

/// All that the shim knows.
#[derive(Debug)]
struct Shim {
    fault: Fault,
    calls: u64,
    /// How many writes more find no room.
    full: u64,
    is_over: bool,
    disks: BTreeMap<String, Disk>,
    transaction: Transaction,
    seen: BTreeMap<Transition, u32>,
    /// How often the log was moved into the file.
    checkpoints: u64,
}

/// The transaction that is under way.
#[derive(Debug, Default)]
struct Transaction {
    about: BTreeSet<Transition>,
    is_committing: bool,
    /// Its first frame is in the log.
    is_written: bool,
}

/// What SQLite asks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Write,
    Sync,
    Synced,
    Truncate,
}

/// Puts the shim under every database that this process opens from now on.
///
/// # Panics
/// If there is one already, or SQLite does not want it.
pub fn install(fault: Fault) {
    let shim = Shim {
        fault,
        calls: 0,
        full: 0,
        is_over: false,
        disks: BTreeMap::new(),
        transaction: Transaction::default(),
        seen: BTreeMap::new(),
        checkpoints: 0,
    };
    assert!(SHIM.set(Mutex::new(shim)).is_ok(), "one shim for a process");
    // SAFETY: SQLite keeps the pointer for ever, and the table it points to is never freed. It is a copy of the default
    // VFS's own, so all its functions fit; they take what they need from the fields that were copied with them.
    let registered = unsafe {
        let real = ffi::sqlite3_vfs_find(ptr::null());
        assert!(!real.is_null(), "SQLite has a default VFS");
        let mut vfs = *real;
        let ours = c_int::try_from(size_of::<File>()).expect("a small struct");
        (vfs.szOsFile, vfs.zName, vfs.pNext) = (vfs.szOsFile + ours, c"crash".as_ptr(), ptr::null_mut());
        vfs.xOpen = Some(open);
        vfs.xDelete = Some(delete);
        let _ = REAL.set(Real(real));
        ffi::sqlite3_vfs_register(Box::into_raw(Box::new(vfs)), 1) + ffi::sqlite3_auto_extension(Some(listen))
    };
    assert_eq!(registered, ffi::SQLITE_OK);
}

/// What there was.
#[derive(Debug)]
pub struct Seen {
    /// Writes, syncs and truncations.
    pub calls: u64,
    /// How often the log was moved into the file.
    pub checkpoints: u64,
    /// Commits with each transition in them.
    pub commits: BTreeMap<Transition, u32>,
}

/// What there was until now.
///
/// # Panics
/// Without a shim.
#[must_use]
pub fn seen() -> Seen {
    let shim = lock();
    Seen { calls: shim.calls, checkpoints: shim.checkpoints, commits: shim.seen.clone() }
}

fn lock() -> MutexGuard<'static, Shim> {
    SHIM.get().expect("installed").lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shim {
    /// Something is about to happen, or has happened; strikes if this is the moment.
    fn meet(&mut self, call: Call) {
        self.calls += u64::from(call != Call::Synced);
        let is_moment = match self.fault.when {
            When::Call(nth) => self.calls == nth && call != Call::Synced,
            When::At(point, about, nth) => {
                let is_commit = self.transaction.is_committing && self.transaction.about.contains(&about);
                let is_point = match point {
                    Point::BeforeWrite => call == Call::Write && !self.transaction.is_written,
                    Point::BeforeCommit => call == Call::Sync && self.transaction.is_written,
                    Point::BeforeAnswer => call == Call::Synced && self.transaction.is_written,
                };
                is_commit && is_point && self.seen.get(&about) == Some(&nth)
            }
        };
        if is_moment && !std::mem::replace(&mut self.is_over, true) {
            self.strike();
        }
    }

    fn strike(&mut self) {
        match self.fault.what {
            What::Abort => std::process::abort(),
            What::Cut(loss, seed) => {
                let mut dice = fastrand::Rng::with_seed(seed);
                for (path, disk) in &self.disks {
                    std::fs::write(path, disk.after_cut(loss, &mut dice)).expect("the file after the power cut");
                }
                std::process::abort()
            }
            What::Full(writes) => self.full = writes,
        }
    }

    /// A statement begins.
    fn hear(&mut self, statement: &str, with_values: impl FnOnce() -> String) {
        let about = if statement.starts_with("BEGIN") {
            self.transaction = Transaction::default();
            None
        } else if statement.starts_with("COMMIT") {
            self.transaction.is_committing = true;
            for &about in &self.transaction.about {
                *self.seen.entry(about).or_default() += 1;
            }
            None
        } else if statement.starts_with("INSERT INTO job ") {
            Some(Transition::Enqueue)
        } else if statement.starts_with("UPDATE job SET stage = ?2, attempt") {
            Some(Transition::Claim)
        } else if statement.starts_with("INSERT OR FAIL INTO history") {
            Some(if with_values().contains("'cancelled'") { Transition::Cancel } else { Transition::Finish })
        } else if statement.starts_with("UPDATE job SET stage = ?2, outcome") {
            Some(if with_values().contains("'cancelled'") { Transition::Cancel } else { Transition::Retry })
        } else if statement.starts_with("INSERT OR REPLACE INTO schedule") {
            // Without a job it is the schedule itself that is new.
            self.transaction.about.contains(&Transition::Enqueue).then_some(Transition::Fire)
        } else {
            None
        };
        self.transaction.about.extend(about);
    }
}

/// The VFS below.
struct Real(*mut ffi::sqlite3_vfs);

// SAFETY: SQLite's own table of functions, which it shares between threads itself.
unsafe impl Send for Real {}
// SAFETY: As above; nobody writes to it.
unsafe impl Sync for Real {}

static REAL: OnceLock<Real> = OnceLock::new();

fn real_vfs() -> *mut ffi::sqlite3_vfs {
    REAL.get().expect("installed").0
}

/// An open file: ours first, as SQLite sees it, and the real one in the memory after it.
#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    /// Its path, if it is one that must survive; owned.
    path: *mut String,
}

/// The real file behind ours.
///
/// # Safety
/// `file` was opened by [`open`].
unsafe fn real(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: SQLite allocates `szOsFile` bytes, which is ours and the real one's; both are aligned to 8.
    unsafe { file.cast::<File>().add(1).cast() }
}

/// The path of a file that must survive.
///
/// # Safety
/// `file` was opened by [`open`] and not closed since.
unsafe fn path<'a>(file: *mut ffi::sqlite3_file) -> Option<&'a str> {
    // SAFETY: `open` wrote it: null, or a box that lives until `close`.
    unsafe { (*file.cast::<File>()).path.as_ref().map(String::as_str) }
}

unsafe extern "C" fn open(
    _vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    const LASTING: c_int = ffi::SQLITE_OPEN_MAIN_DB | ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_WAL;
    // SAFETY: SQLite gives memory of our size, and the arguments that the real VFS expects.
    unsafe {
        let ours = file.cast::<File>();
        ours.write(File { base: ffi::sqlite3_file { pMethods: ptr::null() }, path: ptr::null_mut() });
        let opened = (*real_vfs()).xOpen.expect("a VFS opens")(real_vfs(), name, real(file), flags, out);
        if opened != ffi::SQLITE_OK {
            return opened;
        }
        (*ours).base.pMethods = &raw const METHODS;
        if flags & LASTING != 0 && !name.is_null() {
            let path = CStr::from_ptr(name).to_string_lossy().into_owned();
            lock().disks.entry(path.clone()).or_insert_with(|| Disk::new(std::fs::read(&path).unwrap_or_default()));
            (*ours).path = Box::into_raw(Box::new(path));
        }
        opened
    }
}

unsafe extern "C" fn delete(_vfs: *mut ffi::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite gives a path that ends in zero.
    unsafe {
        lock().disks.remove(&*CStr::from_ptr(name).to_string_lossy());
        (*real_vfs()).xDelete.expect("a VFS deletes")(real_vfs(), name, sync)
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite closes a file once; the box is ours.
    unsafe {
        let path = std::mem::replace(&mut (*file.cast::<File>()).path, ptr::null_mut());
        if !path.is_null() {
            drop(Box::from_raw(path));
        }
        pass!(file, xClose)
    }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, bytes: *const c_void, length: c_int, at: i64) -> c_int {
    // SAFETY: SQLite gives `length` readable bytes.
    unsafe {
        let Some(path) = path(file) else { return pass!(file, xWrite, bytes, length, at) };
        let mut shim = lock();
        shim.meet(Call::Write);
        if shim.full > 0 {
            shim.full -= 1;
            return ffi::SQLITE_FULL;
        }
        let written = pass!(file, xWrite, bytes, length, at);
        if written == ffi::SQLITE_OK {
            let (length, at) = (usize::try_from(length).unwrap_or(0), usize::try_from(at).unwrap_or(0));
            let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), length);
            shim.disks.entry(path.to_owned()).or_default().write(at, bytes);
            // The log begins with a header, which is no frame.
            shim.transaction.is_written |= shim.transaction.is_committing && at > 0;
        }
        written
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: i64) -> c_int {
    // SAFETY: A file that SQLite has open.
    unsafe {
        if let Some(path) = path(file) {
            let mut shim = lock();
            shim.meet(Call::Truncate);
            shim.disks.entry(path.to_owned()).or_default().truncate(usize::try_from(length).unwrap_or(0));
        }
        pass!(file, xTruncate, length)
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: A file that SQLite has open.
    unsafe {
        let Some(path) = path(file) else { return pass!(file, xSync, flags) };
        let mut shim = lock();
        shim.meet(Call::Sync);
        if !shim.fault.deaf {
            shim.disks.entry(path.to_owned()).or_default().sync();
        }
        shim.checkpoints += u64::from(!path.ends_with("-wal") && !path.ends_with("-journal"));
        shim.meet(Call::Synced);
        ffi::SQLITE_OK
    }
}

/// Methods that only pass on.
macro_rules! pass_on {
    ($($name:ident: $method:ident ($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        unsafe extern "C" fn $name(file: *mut ffi::sqlite3_file $(, $argument: $type)*) -> $answer {
            // SAFETY: A file that SQLite has open, and the arguments that the real one expects.
            unsafe { pass!(file, $method $(, $argument)*) }
        }
    )*};
}

pass_on! {
    read: xRead(bytes: *mut c_void, length: c_int, at: i64) -> c_int;
    file_size: xFileSize(size: *mut i64) -> c_int;
    take_lock: xLock(level: c_int) -> c_int;
    release_lock: xUnlock(level: c_int) -> c_int;
    check_lock: xCheckReservedLock(out: *mut c_int) -> c_int;
    control: xFileControl(operation: c_int, argument: *mut c_void) -> c_int;
    sector_size: xSectorSize() -> c_int;
    characteristics: xDeviceCharacteristics() -> c_int;
    shared_map: xShmMap(page: c_int, size: c_int, extend: c_int, out: *mut *mut c_void) -> c_int;
    shared_lock: xShmLock(offset: c_int, count: c_int, flags: c_int) -> c_int;
    shared_barrier: xShmBarrier() -> ();
    shared_unmap: xShmUnmap(delete: c_int) -> c_int;
    fetch: xFetch(at: i64, length: c_int, out: *mut *mut c_void) -> c_int;
    unfetch: xUnfetch(at: i64, bytes: *mut c_void) -> c_int;
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 3,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(take_lock),
    xUnlock: Some(release_lock),
    xCheckReservedLock: Some(check_lock),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shared_map),
    xShmLock: Some(shared_lock),
    xShmBarrier: Some(shared_barrier),
    xShmUnmap: Some(shared_unmap),
    xFetch: Some(fetch),
    xUnfetch: Some(unfetch),
};

/// SQLite calls this for every connection it opens.
unsafe extern "C" fn listen(
    db: *mut ffi::sqlite3,
    _error: *mut *mut c_char,
    _routines: *const ffi::sqlite3_api_routines,
) -> c_int {
    // SAFETY: A connection that is being opened; the callback is a function of this program.
    unsafe { ffi::sqlite3_trace_v2(db, ffi::SQLITE_TRACE_STMT, Some(statement), ptr::null_mut()) }
}

unsafe extern "C" fn statement(_kind: c_uint, _ctx: *mut c_void, statement: *mut c_void, text: *mut c_void) -> c_int {
    // SAFETY: SQLite gives the statement that begins, and its text, which ends in zero.
    unsafe {
        let statement = statement.cast::<ffi::sqlite3_stmt>();
        let text = CStr::from_ptr(text.cast::<c_char>()).to_string_lossy();
        if text.starts_with("BEGIN") {
            // The store has set its own before its first transaction.
            ffi::sqlite3_wal_autocheckpoint(ffi::sqlite3_db_handle(statement), CHECKPOINT_PAGES);
        }
        lock().hear(&text, || {
            let expanded = ffi::sqlite3_expanded_sql(statement);
            if expanded.is_null() {
                return String::new();
            }
            let values = CStr::from_ptr(expanded).to_string_lossy().into_owned();
            ffi::sqlite3_free(expanded.cast());
            values
        });
    }
    0
}
