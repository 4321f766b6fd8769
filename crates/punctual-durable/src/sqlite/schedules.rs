//! Stored series, and what time brings.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Result, params};

use super::books::Books;
use super::queries;
use super::rows::{ASKED, SCHEDULE, bind_job, bind_schedule, readable_schedule, schedule};
use crate::store::{Admitted, Fire, Fired, Schedule, Tended};
use crate::time::Timestamp;

impl Books {
    pub(super) fn tend(&mut self) -> Result<Tended> {
        // A schedule rests while its last job is live.
        const DUE: &str = "WHERE next <= ?1 AND paused = 0 AND next IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = schedule.last) ORDER BY name";
        const NEXT: &str =
            "SELECT next FROM schedule WHERE next > ?1 AND paused = 0 AND next IS NOT NULL ORDER BY next LIMIT 1";
        let now = self.now.micros();
        let (mut schedules, mut unreadable) = (Vec::new(), BTreeMap::new());
        for due in self
            .db()
            .prepare_cached(&format!("SELECT {SCHEDULE} FROM schedule {DUE}"))?
            .query_map([now], readable_schedule)?
        {
            match due? {
                Ok(schedule) => schedules.push(schedule),
                Err((name, error)) => _ = unreadable.insert(name, error),
            }
        }
        self.unreadable.found(unreadable);
        // Ticks that have come are given out, not waited for.
        let tick: Option<i64> = self.db().prepare_cached(NEXT)?.query_row([now], |row| row.get(0)).optional()?;
        let next = self.look_ahead()?.into_iter().chain(tick.map(Timestamp::from_micros)).min();
        let brought = std::mem::take(&mut self.brought);
        Ok(Tended { promoted: brought.promoted, expired: brought.expired, lost: brought.lost, schedules, next })
    }

    pub(super) fn put_schedule(&mut self, new: &Schedule) -> Result<()> {
        // What it has done stays, and so does a pause: a deployment that states its schedules again does not resume
        // what an operator has paused.
        const KEPT: [&str; 6] = ["name", "next", "paused", "last", "fired", "missed_count"];
        const SAME: &str = "cron IS excluded.cron AND zone IS excluded.zone AND period IS excluded.period AND anchor IS excluded.anchor";
        let stated = SCHEDULE.split(", ").filter(|column| !KEPT.contains(column));
        let stated: Vec<String> = stated.map(|column| format!("{column} = excluded.{column}")).collect();
        let next = format!("next = CASE WHEN {SAME} THEN next ELSE excluded.next END");
        self.write_schedule("INSERT", new, &format!("ON CONFLICT (name) DO UPDATE SET {}, {next}", stated.join(", ")))?;
        self.work();
        Ok(())
    }

    pub(super) fn remove_schedule(&mut self, name: &str) -> Result<bool> {
        Ok(self.db().prepare_cached("DELETE FROM schedule WHERE name = ?1")?.execute([name])? > 0)
    }

    pub(super) fn pause_schedule(&mut self, name: &str, paused: bool) -> Result<bool> {
        self.work();
        let changed = self
            .db()
            .prepare_cached("UPDATE schedule SET paused = ?2 WHERE name = ?1")?
            .execute(params![name, paused])?;
        Ok(changed > 0)
    }

    pub(super) fn schedules(&self, after: Option<&str>, max: usize) -> Result<Vec<Schedule>> {
        let (wish, from) = if after.is_some() { ("name > ?1", after) } else { ("?1 IS NULL", None) };
        let mut found = Vec::new();
        let mut statement =
            self.db().prepare_cached(&format!("SELECT {SCHEDULE} FROM schedule WHERE {wish} ORDER BY name"))?;
        let mut rows = statement.query_map([from], readable_schedule)?;
        while found.len() < max
            && let Some(next) = rows.next()
        {
            match next? {
                Ok(schedule) => found.push(schedule),
                Err((schedule, error)) => {
                    tracing::warn!(target: "punctual", schedule, error, "a schedule cannot be read, so it is not shown");
                }
            }
        }
        Ok(found)
    }

    pub(super) fn fire(&mut self, fire: &Fire) -> Result<Fired> {
        let is_at_tick = |schedule: &Schedule| !schedule.paused && schedule.next == Some(fire.tick);
        let Some(mut schedule) = self.schedule(&fire.schedule)?.filter(is_at_tick) else { return Ok(Fired::Lost) };
        if let Some(last) = schedule.last
            && queries::is_live(self.db(), last)?
        {
            return Ok(Fired::Overlapped(last));
        }
        let fired = match &fire.job {
            None => Fired::Missed,
            Some(job) => match self.enqueue_one(job)? {
                Ok(Admitted::New | Admitted::Replaced(_)) => Fired::Enqueued(job.id),
                // The job that has the tick's key stands for it.
                Ok(Admitted::Joined(other)) => Fired::Enqueued(other),
                Err(refused) => Fired::Refused(refused),
            },
        };
        schedule.next = fire.next;
        schedule.missed_count += fire.missed;
        if let Fired::Enqueued(id) = fired {
            schedule.last = Some(id);
            schedule.fired += 1;
        } else {
            schedule.missed_count += 1;
        }
        self.write_schedule("INSERT OR REPLACE", &schedule, "")?;
        // The next tick is a new instant to tend.
        self.work();
        Ok(fired)
    }

    fn schedule(&self, name: &str) -> Result<Option<Schedule>> {
        self.db()
            .prepare_cached(&format!("SELECT {SCHEDULE} FROM schedule WHERE name = ?1"))?
            .query_row([name], schedule)
            .optional()
    }

    fn write_schedule(&self, insert: &str, schedule: &Schedule, on_conflict: &str) -> Result<()> {
        let marks = vec!["?"; ASKED + 12].join(", ");
        let mut statement =
            self.db().prepare_cached(&format!("{insert} INTO schedule ({SCHEDULE}) VALUES ({marks}) {on_conflict}"))?;
        bind_job(&mut statement, 1, &schedule.template)?;
        bind_schedule(&mut statement, ASKED + 1, schedule)?;
        statement.raw_execute().map(drop)
    }
}
