//! Stored series: one job per tick, whoever asks first.

use punctual::Stage;

use super::world::World;
use crate::id::JobId;
use crate::store::{Admitted, Fire, Fired, Schedule};
use crate::time::Timestamp;

impl World {
    pub(super) fn put_schedule(&mut self, mut schedule: Schedule) {
        if let Some(known) = self.schedules.get(&schedule.name) {
            (schedule.last, schedule.fired, schedule.missed_count) = (known.last, known.fired, known.missed_count);
            // A deployment that states its schedules again does not resume what an operator has paused.
            schedule.paused = known.paused;
            if schedule.rule == known.rule {
                schedule.next = known.next;
            }
        }
        self.schedules.insert(schedule.name.clone(), schedule);
        self.news.work = true;
    }

    pub(super) fn remove_schedule(&mut self, name: &str) -> bool {
        self.schedules.remove(name).is_some()
    }

    pub(super) fn pause_schedule(&mut self, name: &str, paused: bool) -> bool {
        self.news.work = true;
        self.schedules.get_mut(name).map(|schedule| schedule.paused = paused).is_some()
    }

    pub(super) fn schedules_after(&self, after: Option<&str>, max: usize) -> Vec<Schedule> {
        let schedules = self.schedules.values();
        schedules
            .filter(|schedule| after.is_none_or(|after| schedule.name.as_str() > after))
            .take(max)
            .cloned()
            .collect()
    }

    /// The job of its last tick, if that is live: the schedule rests.
    pub(super) fn live_job_of(&self, schedule: &Schedule) -> Option<JobId> {
        let last = schedule.last.and_then(|last| self.record(last));
        last.filter(|last| last.state.stage != Stage::Stopped).map(|last| last.job.id)
    }

    pub(super) fn fire(&mut self, fire: Fire, now: Timestamp) -> Fired {
        let is_at_tick = |schedule: &&Schedule| !schedule.paused && schedule.next == Some(fire.tick);
        let Some(schedule) = self.schedules.get(&fire.schedule).filter(is_at_tick) else { return Fired::Lost };
        if let Some(last) = self.live_job_of(schedule) {
            return Fired::Overlapped(last);
        }
        let fired = match fire.job {
            None => Fired::Missed,
            Some(job) => {
                let id = job.id;
                match self.enqueue(job, now) {
                    Ok(Admitted::New | Admitted::Replaced(_)) => Fired::Enqueued(id),
                    // The job that has the tick's key stands for it.
                    Ok(Admitted::Joined(other)) => Fired::Enqueued(other),
                    Err(refused) => Fired::Refused(refused),
                }
            }
        };
        if let Some(schedule) = self.schedules.get_mut(&fire.schedule) {
            schedule.next = fire.next;
            schedule.missed_count += fire.missed;
            if let Fired::Enqueued(id) = fired {
                schedule.last = Some(id);
                schedule.fired += 1;
            } else {
                schedule.missed_count += 1;
            }
        }
        // The next tick is a new instant to tend.
        self.news.work = true;
        fired
    }
}
