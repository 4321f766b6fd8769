//! Dates: jobs that go by the wall clock, and what happens when that is set.
//!
//! Each has a due instant on the monotonic clock like any other job. It is derived anew whenever the two clocks are
//! found to disagree: a step or a resume from suspend moves these jobs, and only these.

use std::time::{Duration, SystemTime};

use super::{Alarm, Core};
use crate::clock::{Clock, Nanos, duration_to_nanos};
use crate::error::Stage;
use crate::scheduler::job::Record;
use crate::slab::SlabKey;

/// While jobs wait for a date, the wall clock is compared this often.
const WALL_CHECK: Nanos = 30_000_000_000;
/// A smaller disagreement of the clocks is drift, which each job meets at its own due instant.
const WALL_TOLERANCE: Duration = Duration::from_millis(1);

impl Core {
    /// While jobs wait for dates, the two clocks are compared now and then.
    pub(super) fn watch_wall(&mut self, clock: &Clock) {
        if self.gauges.by_wall > 0 && self.wall_origin.is_none() {
            self.wall_origin = Some(origin_of(clock.wall(), self.latest));
            if clock.tells_of_steps() {
                return;
            }
            self.alarms.push(self.latest.saturating_add(WALL_CHECK), self.latest, Alarm::Wall);
        }
    }

    /// After a sleep, with the time just read: was the wall clock set meanwhile?
    pub(crate) fn check_wall(&mut self, clock: &Clock) {
        let Some(known) = self.wall_origin else { return };
        let now = self.latest;
        let origin = origin_of(clock.wall(), now);
        let apart = origin.duration_since(known).unwrap_or_else(|error| error.duration());
        if apart > WALL_TOLERANCE {
            self.wall_origin = Some(origin);
            self.rederive_dates(clock);
        }
    }

    /// Computes anew when each date comes. Drift between the clocks makes this worth doing at every comparison.
    pub(super) fn rederive_dates(&mut self, clock: &Clock) {
        let (wall, now) = (clock.wall(), self.latest);
        let dated = |(key, record): (SlabKey, &Record)| {
            let date = record.wall_due.filter(|_| record.stage() == Stage::Scheduled)?;
            Some((key, mono_of(date, wall, now)))
        };
        let moved: Vec<_> =
            if self.gauges.by_wall == 0 { Vec::new() } else { self.jobs.iter().filter_map(dated).collect() };
        for (key, due) in moved {
            self.move_due(key, due);
        }
    }
}

/// The wall clock's reading when the monotonic one stood at 0.
fn origin_of(wall: SystemTime, now: Nanos) -> SystemTime {
    wall.checked_sub(Duration::from_nanos(now)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// When a date comes, by the monotonic clock.
pub(crate) fn mono_of(date: SystemTime, wall: SystemTime, now: Nanos) -> Nanos {
    let ahead = date.duration_since(wall).unwrap_or(Duration::ZERO);
    now.saturating_add(duration_to_nanos(ahead))
}
