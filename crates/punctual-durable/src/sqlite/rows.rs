//! Jobs, schedules and tenants as rows, and back. Nothing is lost on the way: what comes out equals what went in.

use std::time::Duration;

use punctual::{Missed, Stage};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{Result, Row};

use crate::id::{JobId, NodeId};
use crate::retry::Backoff;
use crate::state::{Outcome, State};
use crate::store::{Moment, NewJob, OnConflict, Record, Rule, Schedule, Unique};
use crate::time::Timestamp;

/// The columns of a job as it was enqueued, in the order of [`new_job`] and [`bind_job`].
macro_rules! asked {
    () => {
        "id, kind, tenant, payload, tags, priority, cost, asked_due, start_within, run_timeout, asked_deadline, \
         max_attempts, max_crashes, backoff_base, backoff_cap, unique_key, on_conflict, unique_period, wanted_by, \
         schedule, missed, trace"
    };
}

/// The columns of where it stands, in the order of [`record`].
macro_rules! stands {
    () => {
        "stage, outcome, due, start_by, deadline, attempt, fence, crashes, node, enqueued_at, started_at, since, \
         result, last_error"
    };
}
pub(super) use {asked, stands};

/// How many columns `asked!` has.
pub(super) const ASKED: usize = 22;

/// A job, from a row of `asked!` that begins at column `at`.
pub(super) fn new_job(row: &Row<'_>, at: usize) -> Result<NewJob> {
    let unique = match row.get::<_, Option<String>>(at + 15)? {
        None => None,
        Some(key) => Some(Unique {
            key,
            on_conflict: row.get::<_, Conflict>(at + 16)?.0,
            period: row.get::<_, Option<Length>>(at + 17)?.map(|length| length.0),
        }),
    };
    Ok(NewJob {
        id: row.get::<_, Id>(at)?.0,
        is_id_fresh: false,
        kind: row.get(at + 1)?,
        tenant: row.get(at + 2)?,
        payload: row.get(at + 3)?,
        tags: tags(row, at + 4)?,
        priority: row.get(at + 5)?,
        cost: row.get(at + 6)?,
        due: row.get::<_, Option<Asked>>(at + 7)?.map_or(Moment::NOW, |asked| asked.0),
        start_within: row.get::<_, Option<Length>>(at + 8)?.map(|length| length.0),
        run_timeout: row.get::<_, Option<Length>>(at + 9)?.map(|length| length.0),
        deadline: row.get::<_, Option<Asked>>(at + 10)?.map(|asked| asked.0),
        max_attempts: row.get(at + 11)?,
        max_crashes: row.get(at + 12)?,
        backoff: Backoff::new(row.get::<_, Length>(at + 13)?.0, row.get::<_, Length>(at + 14)?.0),
        unique,
        wanted_by: row.get::<_, Option<i64>>(at + 18)?.map(node_id),
        schedule: row.get(at + 19)?,
        missed: row.get::<_, i64>(at + 20)?.cast_unsigned(),
        trace: row.get(at + 21)?,
    })
}

/// Binds a job to the parameters of `asked!`, from number `at` on.
pub(super) fn bind_job(statement: &mut rusqlite::Statement<'_>, at: usize, job: &NewJob) -> Result<()> {
    let unique = job.unique.as_ref();
    statement.raw_bind_parameter(at, Id(job.id))?;
    statement.raw_bind_parameter(at + 1, &job.kind)?;
    statement.raw_bind_parameter(at + 2, &job.tenant)?;
    statement.raw_bind_parameter(at + 3, &job.payload)?;
    statement.raw_bind_parameter(at + 4, list(&job.tags))?;
    statement.raw_bind_parameter(at + 5, job.priority)?;
    statement.raw_bind_parameter(at + 6, job.cost)?;
    statement.raw_bind_parameter(at + 7, (job.due != Moment::NOW).then_some(Asked(job.due)))?;
    statement.raw_bind_parameter(at + 8, job.start_within.map(Length))?;
    statement.raw_bind_parameter(at + 9, job.run_timeout.map(Length))?;
    statement.raw_bind_parameter(at + 10, job.deadline.map(Asked))?;
    statement.raw_bind_parameter(at + 11, job.max_attempts)?;
    statement.raw_bind_parameter(at + 12, job.max_crashes)?;
    statement.raw_bind_parameter(at + 13, Length(job.backoff.base()))?;
    statement.raw_bind_parameter(at + 14, Length(job.backoff.cap()))?;
    statement.raw_bind_parameter(at + 15, unique.map(|unique| &unique.key))?;
    statement.raw_bind_parameter(at + 16, unique.map(|unique| Conflict(unique.on_conflict)))?;
    statement.raw_bind_parameter(at + 17, unique.and_then(|unique| unique.period).map(Length))?;
    statement.raw_bind_parameter(at + 18, job.wanted_by.map(node_sql))?;
    statement.raw_bind_parameter(at + 19, &job.schedule)?;
    statement.raw_bind_parameter(at + 20, job.missed.cast_signed())?;
    statement.raw_bind_parameter(at + 21, &job.trace)
}

/// A record, from a row of `asked!` and `stands!` that begins at column `at`.
pub(super) fn record(row: &Row<'_>, at: usize) -> Result<Record> {
    let job = new_job(row, at)?;
    let at = at + ASKED;
    Ok(Record {
        job,
        state: State::new(
            row.get::<_, StageSql>(at)?.0,
            row.get::<_, Option<OutcomeSql>>(at + 1)?.map(|outcome| outcome.0),
        ),
        due: instant(row.get(at + 2)?),
        start_by: row.get::<_, Option<i64>>(at + 3)?.map(instant),
        deadline: row.get::<_, Option<i64>>(at + 4)?.map(instant),
        attempt: row.get(at + 5)?,
        fence: row.get::<_, i64>(at + 6)?.cast_unsigned(),
        crashes: row.get(at + 7)?,
        node: row.get::<_, Option<i64>>(at + 8)?.map(node_id),
        enqueued_at: instant(row.get(at + 9)?),
        started_at: row.get::<_, Option<i64>>(at + 10)?.map(instant),
        since: instant(row.get(at + 11)?),
        result: row.get(at + 12)?,
        last_error: row.get(at + 13)?,
    })
}

/// The columns of a schedule besides its template's, in the order of [`schedule`].
pub(super) const SCHEDULE: &str = concat!(
    asked!(),
    ", name, cron, zone, period, anchor, on_missed, on_missed_max, next, paused, last, fired, missed_count"
);

/// A schedule, from a row of [`SCHEDULE`]; if it cannot be read, its name and why not.
pub(super) fn readable_schedule(row: &Row<'_>) -> Result<std::result::Result<Schedule, (String, String)>> {
    match schedule(row) {
        Ok(schedule) => Ok(Ok(schedule)),
        Err(error) => Ok(Err((row.get(ASKED)?, error.to_string()))),
    }
}

/// A schedule, from a row of [`SCHEDULE`].
pub(super) fn schedule(row: &Row<'_>) -> Result<Schedule> {
    let template = new_job(row, 0)?;
    let at = ASKED;
    let rule = match row.get::<_, Option<String>>(at + 1)? {
        Some(expression) => Rule::Cron { expression, zone: row.get(at + 2)? },
        None => Rule::Every { period: row.get::<_, Length>(at + 3)?.0, anchor: instant(row.get(at + 4)?) },
    };
    let missed = match row.get_ref(at + 5)?.as_str()? {
        "skip" => Missed::Skip,
        "all" => Missed::All { max: row.get(at + 6)? },
        _ => Missed::Once,
    };
    Ok(Schedule {
        name: row.get(at)?,
        rule,
        missed,
        template,
        next: row.get::<_, Option<i64>>(at + 7)?.map(instant),
        paused: row.get(at + 8)?,
        last: row.get::<_, Option<Id>>(at + 9)?.map(|id| id.0),
        fired: row.get::<_, i64>(at + 10)?.cast_unsigned(),
        missed_count: row.get::<_, i64>(at + 11)?.cast_unsigned(),
    })
}

/// Binds all of a schedule but its template, from number `at` on.
pub(super) fn bind_schedule(statement: &mut rusqlite::Statement<'_>, at: usize, schedule: &Schedule) -> Result<()> {
    let (cron, zone, period, anchor) = match &schedule.rule {
        Rule::Cron { expression, zone } => (Some(expression), Some(zone), None, None),
        Rule::Every { period, anchor } => (None, None, Some(Length(*period)), Some(anchor.micros())),
    };
    let (on_missed, most) = match schedule.missed {
        Missed::Skip => ("skip", None),
        Missed::All { max } => ("all", Some(max)),
        _ => ("once", None),
    };
    statement.raw_bind_parameter(at, &schedule.name)?;
    statement.raw_bind_parameter(at + 1, cron)?;
    statement.raw_bind_parameter(at + 2, zone)?;
    statement.raw_bind_parameter(at + 3, period)?;
    statement.raw_bind_parameter(at + 4, anchor)?;
    statement.raw_bind_parameter(at + 5, on_missed)?;
    statement.raw_bind_parameter(at + 6, most)?;
    statement.raw_bind_parameter(at + 7, schedule.next.map(Timestamp::micros))?;
    statement.raw_bind_parameter(at + 8, schedule.paused)?;
    statement.raw_bind_parameter(at + 9, schedule.last.map(Id))?;
    statement.raw_bind_parameter(at + 10, schedule.fired.cast_signed())?;
    statement.raw_bind_parameter(at + 11, schedule.missed_count.cast_signed())
}

pub(super) fn instant(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

pub(super) fn node_id(bits: i64) -> NodeId {
    NodeId::from_u64(bits.cast_unsigned())
}

pub(super) fn node_sql(node: NodeId) -> i64 {
    node.to_u64().cast_signed()
}

/// A list of words as JSON; null if it is empty.
pub(super) fn list(words: &[String]) -> Option<String> {
    (!words.is_empty()).then(|| serde_json::Value::from(words).to_string())
}

/// The other way.
pub(super) fn tags(row: &Row<'_>, at: usize) -> Result<Vec<String>> {
    match row.get_ref(at)?.as_str_or_null()? {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| FromSqlError::other(error).into()),
    }
}

/// The 16 bytes of an id; they sort as the ids do.
pub(super) struct Id(pub(super) JobId);

impl ToSql for Id {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Owned(Value::Blob(self.0.to_u128().to_be_bytes().to_vec())))
    }
}

impl FromSql for Id {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes: [u8; 16] = value.as_blob()?.try_into().map_err(FromSqlError::other)?;
        Ok(Self(JobId::from_u128(u128::from_be_bytes(bytes))))
    }
}

/// A length of time in nanoseconds; as text where it is longer than 292 years.
pub(super) struct Length(pub(super) Duration);

impl ToSql for Length {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Owned(length(self.0)))
    }
}

fn length(length: Duration) -> Value {
    let nanos = length.as_nanos();
    i64::try_from(nanos).map_or_else(|_| Value::Text(nanos.to_string()), Value::Integer)
}

impl FromSql for Length {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let nanos: u128 = match value {
            ValueRef::Integer(nanos) => nanos.cast_unsigned().into(),
            other => other.as_str()?.parse().map_err(FromSqlError::other)?,
        };
        let seconds = u64::try_from(nanos / 1_000_000_000).map_err(FromSqlError::other)?;
        let part = u32::try_from(nanos % 1_000_000_000).map_err(FromSqlError::other)?;
        Ok(Self(Duration::new(seconds, part)))
    }
}

/// A moment as it was asked for.
struct Asked(Moment);

impl ToSql for Asked {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        match self.0 {
            Moment::After(delay) => Ok(ToSqlOutput::Owned(length(delay))),
            Moment::At(at) => Ok(ToSqlOutput::Owned(Value::Text(format!("at {}", at.micros())))),
        }
    }
}

impl FromSql for Asked {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        if let ValueRef::Text(text) = value
            && let Some(at) = text.strip_prefix(b"at ")
        {
            let at = std::str::from_utf8(at).map_err(FromSqlError::other)?;
            return Ok(Self(Moment::At(instant(at.parse().map_err(FromSqlError::other)?))));
        }
        Length::column_result(value).map(|length| Self(Moment::After(length.0)))
    }
}

/// A stage by its name.
pub(super) struct StageSql(pub(super) Stage);

impl ToSql for StageSql {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Stage::Scheduled => "scheduled",
            Stage::Ready => "ready",
            Stage::Running => "running",
            Stage::Stopped => "stopped",
        }
        .into())
    }
}

impl FromSql for StageSql {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(match value.as_str()? {
            "scheduled" => Stage::Scheduled,
            "ready" => Stage::Ready,
            "running" => Stage::Running,
            "stopped" => Stage::Stopped,
            _ => return Err(FromSqlError::InvalidType),
        }))
    }
}

/// An outcome by its name.
pub(super) struct OutcomeSql(pub(super) Outcome);

impl ToSql for OutcomeSql {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::Expired => "expired",
        }
        .into())
    }
}

impl FromSql for OutcomeSql {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(match value.as_str()? {
            "succeeded" => Outcome::Succeeded,
            "failed" => Outcome::Failed,
            "cancelled" => Outcome::Cancelled,
            "expired" => Outcome::Expired,
            _ => return Err(FromSqlError::InvalidType),
        }))
    }
}

struct Conflict(OnConflict);

impl ToSql for Conflict {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            OnConflict::Reject => "reject",
            OnConflict::Join => "join",
            OnConflict::Replace => "replace",
        }
        .into())
    }
}

impl FromSql for Conflict {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(match value.as_str()? {
            "reject" => OnConflict::Reject,
            "join" => OnConflict::Join,
            "replace" => OnConflict::Replace,
            _ => return Err(FromSqlError::InvalidType),
        }))
    }
}
