//! Jobs, schedules and tenants as rows, and back.
//!
//! Instants are cut to 4e18 microseconds, which means never; lengths of time to what 64 bits of nanoseconds hold, which
//! means for ever.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use punctual::{Limits, Missed, Rate, Stage};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};
use uuid::Uuid;

use super::error::Fault;
use super::template;
use crate::id::{JobId, NodeId};
use crate::retry::Backoff;
use crate::state::{Outcome, State};
use crate::store::{
    Beat, Explanation, Gate, Moment, NewJob, NodeRecord, OnConflict, Record, Rule, Schedule, TenantPolicy,
    TenantRecord, Totals, Unique,
};
use crate::time::Timestamp;

/// A value and its type, so that the server need not be asked for it.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The columns of a job, in the order of [`record`].
const JOB: [&str; 34] = [
    "id",
    "kind",
    "tenant",
    "payload",
    "tags",
    "priority",
    "cost",
    "start_within",
    "run_timeout",
    "max_attempts",
    "max_crashes",
    "backoff_base",
    "backoff_cap",
    "unique_key",
    "on_conflict",
    "unique_period",
    "wanted_by",
    "schedule",
    "missed",
    "trace",
    "stage",
    "outcome",
    "due",
    "start_by",
    "deadline",
    "attempt",
    "fence",
    "crashes",
    "node",
    "enqueued_at",
    "started_at",
    "since",
    "result",
    "last_error",
];

/// The columns of a job that is called `of`.
pub(super) fn job_columns(of: &str) -> String {
    JOB.map(|column| format!("{of}.{column}")).join(", ")
}

/// The columns of a schedule, in the order of [`schedule`].
pub(super) const SCHEDULE: &str = "r.name, r.cron, r.zone, r.period, r.anchor, r.on_missed, r.on_missed_max, r.template, r.next, \
     r.paused, r.last, r.fired, r.missed_count";

/// The columns of a tenant, in the order of [`tenant`].
pub(super) const TENANT: &str = "r.name, r.running_max, r.backlog_max, r.scheduled_max, r.weight, r.rate_gap, r.rate_burst, r.paused, \
     r.closed, r.scheduled, r.ready, r.running, r.stopping, r.succeeded, r.failed, r.cancelled, r.expired";

/// The columns of the numbers, in the order of [`totals`].
pub(super) const TOTALS: &str =
    "r.scheduled, r.ready, r.running, r.stopping, r.succeeded, r.failed, r.cancelled, r.expired";

/// Reads the columns of a row one after the other.
pub(super) struct Reader<'a> {
    row: &'a Row,
    what: &'a str,
    at: usize,
    /// Which job it is about, for errors.
    job: Option<JobId>,
}

type Read<T> = Result<T, Fault>;

impl<'a> Reader<'a> {
    pub(super) fn new(what: &'a str, row: &'a Row) -> Self {
        Self { row, what, at: 0, job: None }
    }

    pub(super) fn next<T: FromSql<'a>>(&mut self) -> Read<T> {
        let at = self.at;
        self.at += 1;
        self.row.try_get(at).map_err(|error| {
            let name = self.row.columns().get(at).map_or("one that is missing", |column| column.name());
            self.unreadable(format_args!("column {name}: {error}"))
        })
    }

    fn unreadable(&self, why: impl Display) -> Fault {
        match self.job {
            Some(job) => Fault::unreadable(self.what, format_args!("job {job}: {why}")),
            None => Fault::unreadable(self.what, why),
        }
    }

    /// A number that is not negative and fits.
    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Read<T> {
        let number: i64 = self.next()?;
        self.fit(number)
    }

    pub(super) fn maybe_number<T: TryFrom<i64>>(&mut self) -> Read<Option<T>> {
        self.next::<Option<i64>>()?.map(|number| self.fit(number)).transpose()
    }

    fn fit<T: TryFrom<i64>>(&self, number: i64) -> Read<T> {
        T::try_from(number).map_err(|_| self.unreadable(format_args!("{number} is out of range")))
    }

    /// A number cut to what there can be: with SQL anything may have been written.
    fn cut(&mut self) -> Read<u32> {
        Ok(u32::try_from(self.next::<i64>()?.max(0)).unwrap_or(u32::MAX))
    }

    pub(super) fn maybe_id(&mut self) -> Read<Option<JobId>> {
        Ok(self.next::<Option<Uuid>>()?.map(job_id))
    }

    pub(super) fn instant(&mut self) -> Read<Timestamp> {
        self.next().map(instant)
    }

    pub(super) fn maybe_instant(&mut self) -> Read<Option<Timestamp>> {
        Ok(self.next::<Option<i64>>()?.map(instant))
    }

    fn length(&mut self) -> Read<Duration> {
        self.next().map(length)
    }

    pub(super) fn maybe_length(&mut self) -> Read<Option<Duration>> {
        Ok(self.next::<Option<i64>>()?.map(length))
    }

    pub(super) fn stage(&mut self) -> Read<Stage> {
        let name: &str = self.next()?;
        self.known(name, stage(name))
    }

    pub(super) fn maybe_stage(&mut self) -> Read<Option<Stage>> {
        let Some(name) = self.next::<Option<&str>>()? else { return Ok(None) };
        self.known(name, stage(name)).map(Some)
    }

    pub(super) fn maybe_outcome(&mut self) -> Read<Option<Outcome>> {
        let Some(name) = self.next::<Option<&str>>()? else { return Ok(None) };
        let outcome = Outcome::ALL.into_iter().find(|outcome| outcome.to_string() == name);
        self.known(name, outcome).map(Some)
    }

    fn outcome(&mut self) -> Read<Outcome> {
        self.maybe_outcome()?.ok_or_else(|| self.unreadable("an outcome is missing"))
    }

    fn known<T>(&self, name: &str, found: Option<T>) -> Read<T> {
        found.ok_or_else(|| self.unreadable(format_args!("{name:?} is no word of this version")))
    }
}

/// A job, from the columns of [`job_columns`]; `None` for a row that is about none.
pub(super) fn record(read: &mut Reader<'_>) -> Read<Option<Record>> {
    let Some(id) = read.maybe_id()? else {
        read.at += JOB.len() - 1;
        return Ok(None);
    };
    read.job = Some(id);
    let mut job = NewJob {
        id,
        is_id_fresh: false,
        kind: read.next()?,
        tenant: read.next()?,
        payload: read.next()?,
        // SQL knows words that are null, and nobody else does.
        tags: read.next::<Option<Vec<Option<String>>>>()?.into_iter().flatten().flatten().collect(),
        priority: i8::try_from(read.next::<i16>()?.clamp(i8::MIN.into(), i8::MAX.into())).unwrap_or_default(),
        cost: read.cut()?,
        start_within: read.maybe_length()?,
        run_timeout: read.maybe_length()?,
        max_attempts: read.cut()?,
        max_crashes: read.cut()?,
        backoff: Backoff::new(read.length()?, read.length()?),
        unique: unique(read)?,
        wanted_by: read.next::<Option<i64>>()?.map(node_id),
        schedule: read.next()?,
        missed: read.next::<i64>()?.cast_unsigned(),
        trace: read.next()?,
        due: Moment::NOW,
        deadline: None,
    };
    let state = State::new(read.stage()?, read.maybe_outcome()?);
    let (due, start_by, deadline) = (read.instant()?, read.maybe_instant()?, read.maybe_instant()?);
    (job.due, job.deadline) = (Moment::At(due), deadline.map(Moment::At));
    Ok(Some(Record {
        job,
        state,
        due,
        start_by,
        deadline,
        attempt: read.cut()?,
        fence: read.next::<i64>()?.cast_unsigned(),
        crashes: read.cut()?,
        node: read.next::<Option<i64>>()?.map(node_id),
        enqueued_at: read.instant()?,
        started_at: read.maybe_instant()?,
        since: read.instant()?,
        result: read.next()?,
        last_error: read.next()?,
    }))
}

/// The id of a job in a row with the columns of [`job_columns`], and its fence, though the rest cannot be read.
pub(super) fn id_and_fence(what: &str, row: &Row) -> Read<(JobId, u64)> {
    let fault = |error: tokio_postgres::Error| Fault::unreadable(what, error);
    let (id, fence): (Uuid, i64) = (row.try_get("id").map_err(fault)?, row.try_get("fence").map_err(fault)?);
    Ok((job_id(id), fence.cast_unsigned()))
}

fn unique(read: &mut Reader<'_>) -> Read<Option<Unique>> {
    let (key, on_conflict, period) = (read.next()?, read.next::<Option<&str>>()?, read.maybe_length()?);
    let Some(key) = key else { return Ok(None) };
    let on_conflict = match on_conflict {
        Some("join") => OnConflict::Join,
        Some("replace") => OnConflict::Replace,
        _ => OnConflict::Reject,
    };
    Ok(Some(Unique { key, on_conflict, period }))
}

/// The schedules that can be read, from the columns of [`SCHEDULE`]; of the others, by name, why they cannot.
pub(super) fn schedules(what: &str, rows: &[Row]) -> Read<(Vec<Schedule>, BTreeMap<String, String>)> {
    let (mut readable, mut unreadable) = (Vec::with_capacity(rows.len()), BTreeMap::new());
    for row in rows {
        match schedule(&mut Reader::new(what, row)) {
            Ok(schedule) => readable.push(schedule),
            Err(fault) => _ = unreadable.insert(schedule_name(what, row)?, fault.told.to_string()),
        }
    }
    Ok((readable, unreadable))
}

/// The name of a schedule, though the rest cannot be read.
pub(super) fn schedule_name(what: &str, row: &Row) -> Read<String> {
    Reader::new(what, row).next()
}

/// A schedule, from the columns of [`SCHEDULE`].
fn schedule(read: &mut Reader<'_>) -> Read<Schedule> {
    let name = read.next()?;
    let (cron, zone): (Option<String>, Option<String>) = (read.next()?, read.next()?);
    let (period, anchor) = (read.maybe_length()?, read.maybe_instant()?);
    let rule = match (cron, zone, period, anchor) {
        (Some(expression), Some(zone), ..) => Rule::Cron { expression, zone },
        (_, _, Some(period), Some(anchor)) => Rule::Every { period, anchor },
        _ => return Err(read.unreadable("it has no rule")),
    };
    let (on_missed, most): (&str, Option<u32>) = (read.next()?, read.maybe_number()?);
    let missed = match on_missed {
        "skip" => Missed::Skip,
        "all" => Missed::All { max: most.unwrap_or(u32::MAX) },
        _ => Missed::Once,
    };
    let template =
        template::read(read.next()?).map_err(|error| read.unreadable(format_args!("its template: {error}")))?;
    Ok(Schedule {
        name,
        rule,
        missed,
        template,
        next: read.maybe_instant()?,
        paused: read.next()?,
        last: read.maybe_id()?,
        fired: read.next::<i64>()?.cast_unsigned(),
        missed_count: read.next::<i64>()?.cast_unsigned(),
    })
}

/// A tenant, from the columns of [`TENANT`].
pub(super) fn tenant(read: &mut Reader<'_>) -> Read<TenantRecord> {
    let name = read.next()?;
    let mut limits = Limits::new();
    limits.running_max = read.maybe_number()?;
    limits.backlog_max = read.maybe_number()?.unwrap_or(usize::MAX);
    limits.scheduled_max = read.maybe_number()?.unwrap_or(usize::MAX);
    limits.weight = read.number()?;
    let (gap, burst): (Option<Duration>, Option<u32>) = (read.maybe_length()?, read.maybe_number()?);
    limits.rate = gap.map(|gap| Rate::per(1, gap).burst(burst.unwrap_or(1)));
    let policy = TenantPolicy { limits, paused: read.next()?, closed: read.next()? };
    Ok(TenantRecord { name, policy, totals: totals(read)? })
}

/// Numbers, from the columns of [`TOTALS`].
pub(super) fn totals(read: &mut Reader<'_>) -> Read<Totals> {
    let mut totals = Totals {
        scheduled: read.number()?,
        ready: read.number()?,
        running: read.number()?,
        stopping: read.number()?,
        ..Totals::default()
    };
    for outcome in Outcome::ALL {
        let count: u64 = read.number()?;
        if count > 0 {
            totals.ended.insert(outcome, count);
        }
    }
    Ok(totals)
}

/// A node: id, name, kinds, paused, workers, era, expires_at, running, clock_offset.
pub(super) fn node(read: &mut Reader<'_>) -> Read<NodeRecord> {
    let beat = Beat {
        node: node_id(read.next()?),
        name: read.next()?,
        kinds: read.next()?,
        paused: read.next()?,
        workers: read.number()?,
        era: read.number()?,
    };
    let (expires_at, running) = (read.maybe_instant()?, read.number()?);
    Ok(NodeRecord { beat, expires_at, running, clock_offset_us: read.next()? })
}

/// Why a job does not run: gate, since, instant, error, running, max, node, outcome.
pub(super) fn explanation(read: &mut Reader<'_>) -> Read<Explanation> {
    let (gate, since): (&str, _) = (read.next()?, read.instant()?);
    let (at, error) = (read.maybe_instant()?.unwrap_or(since), read.next::<Option<String>>()?.unwrap_or_default());
    let (running, max) = (read.maybe_number()?.unwrap_or_default(), read.maybe_number()?.unwrap_or_default());
    let node = read.next::<Option<i64>>()?.map(node_id);
    let gate = match (gate, node) {
        ("not_due", _) => Gate::NotDue(at),
        ("retry", _) => Gate::Retry { at, error },
        ("tenant_paused", _) => Gate::TenantPaused,
        ("tenant_limit", _) => Gate::TenantLimit { running, max },
        ("rate", _) => Gate::Rate(at),
        ("no_worker", _) => Gate::NoWorker,
        ("kind_paused", _) => Gate::KindPaused,
        ("alone", _) => Gate::Alone,
        ("turn", _) => Gate::Turn,
        ("running", Some(node)) => Gate::Running(node),
        ("stopping", _) => Gate::Stopping(read.outcome()?),
        ("ended", _) => Gate::Ended(read.outcome()?),
        (other, _) => return Err(Fault::unreadable(read.what, format!("{other:?} is no gate of this version"))),
    };
    Ok(Explanation { gate, since })
}

/// Later than every instant, in the database.
const NEVER: i64 = 4_000_000_000_000_000_000;

pub(super) fn instant(micros: i64) -> Timestamp {
    if micros >= NEVER { Timestamp::NEVER } else { Timestamp::from_micros(micros) }
}

pub(super) fn instant_sql(at: Timestamp) -> i64 {
    at.micros().clamp(-NEVER, NEVER)
}

/// A moment: the instant, or how long until then, rounded up as [`Timestamp::after`] does.
pub(super) fn moment(moment: Option<Moment>) -> (Option<i64>, Option<i64>) {
    match moment {
        None => (None, None),
        Some(Moment::At(at)) => (Some(instant_sql(at)), None),
        Some(Moment::After(delay)) => (None, Some(instant_sql(Timestamp::from_micros(0).after(delay)))),
    }
}

/// A length of time in microseconds.
pub(super) fn micros(length: Duration) -> i64 {
    instant_sql(Timestamp::from_micros(0).after(length))
}

pub(super) fn nanos(length: Duration) -> i64 {
    i64::try_from(length.as_nanos()).unwrap_or(i64::MAX)
}

fn length(nanos: i64) -> Duration {
    match u64::try_from(nanos) {
        Ok(nanos) if nanos < i64::MAX.cast_unsigned() => Duration::from_nanos(nanos),
        Ok(_) => Duration::MAX,
        Err(_) => Duration::ZERO,
    }
}

pub(super) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A limit; none if it limits nothing.
pub(super) fn limit(max: usize) -> Option<i64> {
    (max != usize::MAX).then(|| count(max))
}

pub(super) fn uuid(id: JobId) -> Uuid {
    Uuid::from_u128(id.to_u128())
}

pub(super) fn job_id(uuid: Uuid) -> JobId {
    JobId::from_u128(uuid.as_u128())
}

pub(super) fn node_sql(node: NodeId) -> i64 {
    node.to_u64().cast_signed()
}

pub(super) fn node_id(bits: i64) -> NodeId {
    NodeId::from_u64(bits.cast_unsigned())
}

pub(super) fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Scheduled => "scheduled",
        Stage::Ready => "ready",
        Stage::Running => "running",
        Stage::Stopped => "stopped",
    }
}

fn stage(name: &str) -> Option<Stage> {
    [Stage::Scheduled, Stage::Ready, Stage::Running, Stage::Stopped]
        .into_iter()
        .find(|&stage| stage_name(stage) == name)
}

pub(super) fn conflict_name(on_conflict: OnConflict) -> &'static str {
    match on_conflict {
        OnConflict::Reject => "reject",
        OnConflict::Join => "join",
        OnConflict::Replace => "replace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_lengths_are_cut_and_never_wrap() {
        assert_eq!(instant(instant_sql(Timestamp::NEVER)), Timestamp::NEVER);
        assert_eq!(instant_sql(Timestamp::from_micros(i64::MIN)), -NEVER);
        assert_eq!(moment(Some(Moment::After(Duration::MAX))), (None, Some(NEVER)));
        assert_eq!(moment(Some(Moment::After(Duration::from_nanos(1)))), (None, Some(1)), "never early");
        assert_eq!(length(nanos(Duration::MAX)), Duration::MAX);
        assert_eq!(length(nanos(Duration::from_nanos(7))), Duration::from_nanos(7));
    }
}
