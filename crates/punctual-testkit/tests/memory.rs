//! The memory store passes the suite, alone and with leases.

use std::time::Duration;

use punctual::VirtualClock;
use punctual_durable::MemoryStore;
use punctual_testkit::Bed;

mod alone {
    use super::*;

    fn open(clock: &VirtualClock) -> Bed {
        Bed::new(clock, MemoryStore::new(clock))
    }

    punctual_testkit::store_suite_tests!(open);
}

mod with_leases {
    use super::*;

    fn open(clock: &VirtualClock) -> Bed {
        Bed::new(clock, MemoryStore::with_lease(clock, Duration::from_secs(10)))
    }

    punctual_testkit::store_suite_tests!(open);
}
