//! The store in a file passes the suite: with all that is ready in memory, and with windows so small that nearly
//! nothing is.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use punctual::VirtualClock;
use punctual_durable::{SqliteOptions, SqliteStore, Store};
use punctual_testkit::Bed;

/// A folder that goes with the store.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("punctual-suite-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open_with(clock: &VirtualClock, options: SqliteOptions) -> Bed {
    let folder = Folder::new();
    let file = folder.0.join("jobs.db");
    let store = options.open(&file, clock).expect("a new store");
    let clock_again = clock.clone();
    Bed::new(clock, store).keeping(folder).reopening(move |old: Arc<dyn Store>| {
        drop(old);
        Arc::new(options.open(&file, &clock_again).expect("the store again"))
    })
}

mod large_window {
    use super::*;

    fn open(clock: &VirtualClock) -> Bed {
        // Power failures are not what the suite is about: it need not wait for the disk.
        open_with(clock, SqliteStore::options().relaxed())
    }

    punctual_testkit::store_suite_tests!(open);
}

mod tiny_window {
    use super::*;

    fn open(clock: &VirtualClock) -> Bed {
        open_with(clock, SqliteStore::options().relaxed().window(1))
    }

    punctual_testkit::store_suite_tests!(open);
}
