//! What every store must pass: the conformance suite, random histories against the model, a simulated cluster, and
//! crashes.
//!
//! A store's own test file opens it in a [`Bed`] and asks for the tests:
//! ```
//! use punctual_durable::MemoryStore;
//! use punctual_testkit::Bed;
//!
//! fn open(clock: &punctual::VirtualClock) -> Bed {
//!     Bed::new(clock, MemoryStore::new(clock))
//! }
//! // punctual_testkit::store_suite_tests!(open);
//! # let _ = open;
//! ```

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "tests panic when they fail")]

mod bed;
pub mod cluster;
pub mod crash;
pub mod faults;
pub mod histories;
pub mod postgres;
pub mod proxy;
pub mod sim;
pub mod store_suite;
pub mod warnings;

pub use bed::{Bed, NODE, OTHER, SECOND, beat, block_on, job, unique};

/// The seeds that a test tries: the one that `PUNCTUAL_SEED` asks for, or as many as `PUNCTUAL_SEEDS` says, or so many.
#[must_use]
pub fn seeds(usual: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("PUNCTUAL_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("PUNCTUAL_SEEDS").unwrap_or(usual)).collect(),
    }
}
