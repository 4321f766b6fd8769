//! One scheduler for work that must happen at the right time.
mod clock;
mod cron;
mod error;
mod queue;
mod slab;
mod sync;

pub use clock::{Clock, Stalled, VirtualClock};
pub use error::{PushError, TakeTimeoutError, TryTakeError};
pub use queue::{DelayQueue, Due, Entry, Key, TakeAsync};
