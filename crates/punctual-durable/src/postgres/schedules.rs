//! Stored series of jobs.

use deadpool_postgres::Object;
use punctual::Missed;
use tokio_postgres::types::Type;

use super::coalesce::LOCK_WAIT;
use super::columns::Columns;
use super::connect::{Function, Tries, lock_timeout};
use super::error::{Fault, Kind};
use super::jobs::{ENQUEUE, admissions, refuse};
use super::rows::{Parameter, Reader, SCHEDULE, count, instant_sql, nanos, schedule_name, schedules, uuid};
use super::{Shared, template};
use crate::store::{Admitted, Fire, Fired, NewJob, Refused, Rule, Schedule};

const PUT: Function = Function::new("put_schedule", "put a schedule").repeatable();
const REMOVE: Function = Function::new("remove_schedule", "remove a schedule");
const PAUSE: Function = Function::new("pause_schedule", "pause a schedule").repeatable();
const LOOK_UP: Function = Function::new("schedules", "look up schedules").repeatable();
const FIRE_BEGIN: Function = Function::new("fire_begin", "fire a schedule").of_node();
const FIRE_END: Function = Function::new("fire_end", "fire a schedule").of_node();

impl Shared {
    pub(super) async fn put_schedule(&self, put: Schedule) -> Result<(), Fault> {
        let (cron, zone, period, anchor) = match &put.rule {
            Rule::Cron { expression, zone } => (Some(expression), Some(zone), None, None),
            Rule::Every { period, anchor } => (None, None, Some(nanos(*period)), Some(instant_sql(*anchor))),
        };
        let (on_missed, most) = match put.missed {
            Missed::Skip => ("skip", None),
            Missed::All { max } => ("all", Some(i64::from(max))),
            _ => ("once", None),
        };
        let (template, at) = (template::write(&put.template), self.clock.given());
        let (next, last) = (put.next.map(instant_sql), put.last.map(uuid));
        let (fired, missed) = (put.fired.cast_signed(), put.missed_count.cast_signed());
        let parameters: [Parameter<'_>; 15] = [
            (&put.name, Type::TEXT),
            (&put.template.tenant, Type::TEXT),
            (&cron, Type::TEXT),
            (&zone, Type::TEXT),
            (&period, Type::INT8),
            (&anchor, Type::INT8),
            (&on_missed, Type::TEXT),
            (&most, Type::INT8),
            (&template, Type::TEXT),
            (&next, Type::INT8),
            (&put.paused, Type::BOOL),
            (&last, Type::UUID),
            (&fired, Type::INT8),
            (&missed, Type::INT8),
            (&at, Type::INT8),
        ];
        self.database.call(PUT, "*", &parameters).await?;
        self.tell_work();
        Ok(())
    }

    pub(super) async fn remove_schedule(&self, name: String) -> Result<bool, Fault> {
        self.whether(REMOVE, &[(&name, Type::TEXT)]).await
    }

    pub(super) async fn pause_schedule(&self, name: String, paused: bool) -> Result<bool, Fault> {
        let found = self.whether(PAUSE, &[(&name, Type::TEXT), (&paused, Type::BOOL)]).await?;
        self.tell_work();
        Ok(found)
    }

    pub(super) async fn schedules(&self, after: Option<String>, max: usize) -> Result<Vec<Schedule>, Fault> {
        let (mut after, mut found) = (after, Vec::new());
        // For those that cannot be read others are looked up: a page that is not full is the last one.
        loop {
            let left = count(max - found.len());
            let parameters: [Parameter<'_>; 2] = [(&after, Type::TEXT), (&left, Type::INT8)];
            let rows = self.database.call(LOOK_UP, SCHEDULE, &parameters).await?;
            let (readable, unreadable) = schedules(LOOK_UP.what, &rows)?;
            found.extend(readable);
            let Some(last) = rows.last().filter(|_| !unreadable.is_empty()) else { return Ok(found) };
            after = Some(schedule_name(LOOK_UP.what, last)?);
            for (schedule, error) in &unreadable {
                tracing::warn!(target: "punctual", schedule, error, "a schedule cannot be read, so it is not shown");
            }
        }
    }

    /// Fires a tick. If its job does not fit, again without: a tick that fails every time would be the last. It waits
    /// for a lock no longer than enqueues do that go together, for others wait for it.
    pub(super) async fn fire(&self, fire: Fire) -> Result<Fired, Fault> {
        let job = match &fire.job {
            None => Err(Fired::Missed),
            Some(job) => refuse(job).map_or(Ok(job), |bad| Err(Fired::Refused(bad))),
        };
        let fired = match self.try_to_fire(&fire, &job).await {
            Err(fault) if fault.kind == Kind::Data => {
                let bad = Fired::Refused(Refused::Bad(fault.told.to_string()));
                self.try_to_fire(&fire, &Err(bad)).await
            }
            fired => fired,
        };
        let fired = match fired {
            Err(fault) if fault.kind == Kind::Held => return Ok(Fired::Held),
            fired => fired?,
        };
        // The next tick is a new instant to tend.
        self.tell_work();
        Ok(fired)
    }

    async fn try_to_fire(&self, fire: &Fire, job: &Result<&NewJob, Fired>) -> Result<Fired, Fault> {
        let mut tries = Tries::new(&self.database, FIRE_BEGIN);
        loop {
            let mut client = tries.client().await?;
            let fired = tokio::time::timeout(tries.patience(), self.transact(&mut client, fire, job)).await;
            if let Some(fired) = tries.judge(client, fired) {
                return fired;
            }
        }
    }

    /// One transaction: if the schedule is at its tick, the job is taken in, and the schedule moves on.
    async fn transact(&self, client: &mut Object, fire: &Fire, job: &Result<&NewJob, Fired>) -> Result<Fired, Fault> {
        let (tick, at) = (instant_sql(fire.tick), self.clock.given());
        let fault = |error: tokio_postgres::Error| Fault::new(FIRE_BEGIN.what, &error);
        let transaction = client.transaction().await.map_err(fault)?;
        let call = |function: Function, parameters: usize| self.database.sql(function, "*", parameters);
        // It holds for the whole transaction.
        let lock_wait = lock_timeout(LOCK_WAIT);
        let begin: [Parameter<'_>; 4] =
            [(&fire.schedule, Type::TEXT), (&tick, Type::INT8), (&at, Type::INT8), (&lock_wait, Type::TEXT)];
        let rows = transaction.query_typed(&self.database.hurried_sql(FIRE_BEGIN, 3), &begin).await.map_err(fault)?;
        let Some(row) = rows.first() else { return Ok(Fired::Lost) };
        let mut read = Reader::new(FIRE_BEGIN.what, row);
        match (read.next::<&str>()?, read.maybe_id()?) {
            ("go", _) => {}
            ("overlapped", Some(last)) => return Ok(Fired::Overlapped(last)),
            _ => return Ok(Fired::Lost),
        }
        let fired = match *job {
            Err(ref missed) => missed.clone(),
            Ok(job) => {
                let columns = Columns::new([job]);
                let given = columns.parameters(&at);
                let rows = transaction.query_typed(&call(ENQUEUE, given.len()), &given).await;
                match admissions(&[job], &rows.map_err(fault)?)?.pop() {
                    // The job that has the tick's key stands for it.
                    Some(Ok(Admitted::Joined(other))) => Fired::Enqueued(other),
                    Some(Ok(Admitted::New | Admitted::Replaced(_))) => Fired::Enqueued(job.id),
                    Some(Err(refused)) => Fired::Refused(refused),
                    None => Fired::Missed,
                }
            }
        };
        let made = if let Fired::Enqueued(id) = fired { Some(uuid(id)) } else { None };
        let next = fire.next.map(instant_sql);
        let missed = fire.missed.saturating_add(u64::from(made.is_none())).cast_signed();
        let end: [Parameter<'_>; 4] =
            [(&fire.schedule, Type::TEXT), (&next, Type::INT8), (&missed, Type::INT8), (&made, Type::UUID)];
        transaction.query_typed(&call(FIRE_END, 4), &end).await.map_err(fault)?;
        transaction.commit().await.map_err(fault)?;
        Ok(fired)
    }
}
