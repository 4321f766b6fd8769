//! Jobs, schedules and tenants as rows, and back.
//!
//! Instants are cut to 4e18 microseconds, which means never; lengths of time to what 64 bits of nanoseconds hold, which means for ever.

use std::time::Duration;

use punctual::{Limits, Missed, Rate, Stage};
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};
use uuid::Uuid;

use super::error::Fault;
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
}

type Read<T> = Result<T, Fault>;

impl<'a> Reader<'a> {
    pub(super) fn new(what: &'a str, row: &'a Row) -> Self {
        Self { row, what, at: 0 }
    }

    pub(super) fn next<T: FromSql<'a>>(&mut self) -> Read<T> {
        let at = self.at;
        self.at += 1;
        self.row.try_get(at).map_err(|error| {
            let name = self.row.columns().get(at).map_or("one that is missing", |column| column.name());
            Fault::unreadable(self.what, format!("column {name}: {error}"))
        })
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
        T::try_from(number).map_err(|_| Fault::unreadable(self.what, format!("{number} is out of range")))
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
        self.maybe_outcome()?.ok_or_else(|| Fault::unreadable(self.what, "an outcome is missing"))
    }

    fn known<T>(&self, name: &str, found: Option<T>) -> Read<T> {
        found.ok_or_else(|| Fault::unreadable(self.what, format!("{name:?} is no word of this version")))
    }
}

/// A job, from the columns of [`job_columns`]; `None` for a row that is about none.
pub(super) fn record(read: &mut Reader<'_>) -> Read<Option<Record>> {
    let Some(id) = read.maybe_id()? else {
        read.at += JOB.len() - 1;
        return Ok(None);
    };
    let mut job = NewJob {
        id,
        kind: read.next()?,
        tenant: read.next()?,
        payload: read.next()?,
        tags: read.next::<Option<Vec<String>>>()?.unwrap_or_default(),
        priority: i8::try_from(read.next::<i16>()?).unwrap_or_default(),
        cost: read.number()?,
        start_within: read.maybe_length()?,
        run_timeout: read.maybe_length()?,
        max_attempts: read.number()?,
        max_crashes: read.number()?,
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
        attempt: read.number()?,
        fence: read.next::<i64>()?.cast_unsigned(),
        crashes: read.number()?,
        node: read.next::<Option<i64>>()?.map(node_id),
        enqueued_at: read.instant()?,
        started_at: read.maybe_instant()?,
        since: read.instant()?,
        result: read.next()?,
        last_error: read.next()?,
    }))
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

/// A schedule, from the columns of [`SCHEDULE`].
pub(super) fn schedule(read: &mut Reader<'_>) -> Read<Schedule> {
    let name = read.next()?;
    let (cron, zone): (Option<String>, Option<String>) = (read.next()?, read.next()?);
    let (period, anchor) = (read.maybe_length()?, read.maybe_instant()?);
    let rule = match (cron, zone, period, anchor) {
        (Some(expression), Some(zone), ..) => Rule::Cron { expression, zone },
        (_, _, Some(period), Some(anchor)) => Rule::Every { period, anchor },
        _ => return Err(Fault::unreadable(read.what, format!("schedule {name:?} has no rule"))),
    };
    let (on_missed, most): (&str, Option<u32>) = (read.next()?, read.maybe_number()?);
    let missed = match on_missed {
        "skip" => Missed::Skip,
        "all" => Missed::All { max: most.unwrap_or(u32::MAX) },
        _ => Missed::Once,
    };
    let template: Template = serde_json::from_str(read.next()?)
        .map_err(|error| Fault::unreadable(read.what, format!("the template of schedule {name:?}: {error}")))?;
    Ok(Schedule {
        name,
        rule,
        missed,
        template: template.into(),
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

/// A node: id, name, kinds, paused, workers, expires_at, running.
pub(super) fn node(read: &mut Reader<'_>) -> Read<NodeRecord> {
    let beat = Beat {
        node: node_id(read.next()?),
        name: read.next()?,
        kinds: read.next()?,
        paused: read.next()?,
        workers: read.number()?,
    };
    Ok(NodeRecord { beat, expires_at: read.maybe_instant()?, running: read.number()? })
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

/// Jobs to take in, by columns.
#[derive(Default)]
pub(super) struct Columns<'a> {
    ids: Vec<Uuid>,
    kinds: Vec<&'a str>,
    tenants: Vec<&'a str>,
    payloads: Vec<&'a str>,
    tags: Vec<Option<String>>,
    priorities: Vec<i16>,
    costs: Vec<i64>,
    due_at: Vec<Option<i64>>,
    due_in: Vec<Option<i64>>,
    start_withins: Vec<Option<i64>>,
    run_timeouts: Vec<Option<i64>>,
    deadline_at: Vec<Option<i64>>,
    deadline_in: Vec<Option<i64>>,
    max_attempts: Vec<i64>,
    max_crashes: Vec<i64>,
    backoff_bases: Vec<i64>,
    backoff_caps: Vec<i64>,
    unique_keys: Vec<Option<&'a str>>,
    on_conflicts: Vec<Option<&'static str>>,
    unique_periods: Vec<Option<i64>>,
    wanted_by: Vec<Option<i64>>,
    schedules: Vec<Option<&'a str>>,
    missed: Vec<i64>,
    traces: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    pub(super) fn new(jobs: impl IntoIterator<Item = &'a NewJob>) -> Self {
        let mut columns = Self::default();
        jobs.into_iter().for_each(|job| columns.push(job));
        columns
    }

    fn push(&mut self, job: &'a NewJob) {
        let unique = job.unique.as_ref();
        let (due_at, due_in) = moment(Some(job.due));
        let (deadline_at, deadline_in) = moment(job.deadline);
        self.ids.push(uuid(job.id));
        self.kinds.push(&job.kind);
        self.tenants.push(&job.tenant);
        self.payloads.push(&job.payload);
        self.tags.push(array(&job.tags));
        self.priorities.push(job.priority.into());
        self.costs.push(job.cost.into());
        self.due_at.push(due_at);
        self.due_in.push(due_in);
        self.start_withins.push(job.start_within.map(nanos));
        self.run_timeouts.push(job.run_timeout.map(nanos));
        self.deadline_at.push(deadline_at);
        self.deadline_in.push(deadline_in);
        self.max_attempts.push(job.max_attempts.into());
        self.max_crashes.push(job.max_crashes.into());
        self.backoff_bases.push(nanos(job.backoff.base()));
        self.backoff_caps.push(nanos(job.backoff.cap()));
        self.unique_keys.push(unique.map(|unique| unique.key.as_str()));
        self.on_conflicts.push(unique.map(|unique| conflict_name(unique.on_conflict)));
        self.unique_periods.push(unique.and_then(|unique| unique.period).map(nanos));
        self.wanted_by.push(job.wanted_by.map(node_sql));
        self.schedules.push(job.schedule.as_deref());
        self.missed.push(job.missed.cast_signed());
        self.traces.push(job.trace.as_deref());
    }

    /// The parameters of `enqueue_batch`.
    pub(super) fn parameters<'s>(&'s self, at: &'s Option<i64>) -> [Parameter<'s>; 25] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.tenants, Type::TEXT_ARRAY),
            (&self.payloads, Type::TEXT_ARRAY),
            (&self.tags, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT2_ARRAY),
            (&self.costs, Type::INT8_ARRAY),
            (&self.due_at, Type::INT8_ARRAY),
            (&self.due_in, Type::INT8_ARRAY),
            (&self.start_withins, Type::INT8_ARRAY),
            (&self.run_timeouts, Type::INT8_ARRAY),
            (&self.deadline_at, Type::INT8_ARRAY),
            (&self.deadline_in, Type::INT8_ARRAY),
            (&self.max_attempts, Type::INT8_ARRAY),
            (&self.max_crashes, Type::INT8_ARRAY),
            (&self.backoff_bases, Type::INT8_ARRAY),
            (&self.backoff_caps, Type::INT8_ARRAY),
            (&self.unique_keys, Type::TEXT_ARRAY),
            (&self.on_conflicts, Type::TEXT_ARRAY),
            (&self.unique_periods, Type::INT8_ARRAY),
            (&self.wanted_by, Type::INT8_ARRAY),
            (&self.schedules, Type::TEXT_ARRAY),
            (&self.missed, Type::INT8_ARRAY),
            (&self.traces, Type::TEXT_ARRAY),
            (at, Type::INT8),
        ]
    }
}

/// The field of a job that PostgreSQL cannot hold, if there is one: its text knows every character but NUL.
pub(super) fn field_with_nul(job: &NewJob) -> Option<&'static str> {
    let has_nul = |text: &str| text.contains('\0');
    let maybe = |text: &Option<String>| text.as_deref().is_some_and(has_nul);
    [
        ("kind", has_nul(&job.kind)),
        ("tenant", has_nul(&job.tenant)),
        ("payload", has_nul(&job.payload)),
        ("tags", job.tags.iter().any(|tag| has_nul(tag))),
        ("unique key", job.unique.as_ref().is_some_and(|unique| has_nul(&unique.key))),
        ("schedule", maybe(&job.schedule)),
        ("trace", maybe(&job.trace)),
    ]
    .into_iter()
    .find_map(|(field, bad)| bad.then_some(field))
}

/// The job of a schedule's ticks, as JSON. Fields that another version does not know are left out or ignored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(default)]
struct Template {
    kind: String,
    tenant: String,
    payload: String,
    tags: Vec<String>,
    priority: i8,
    cost: u32,
    due: Asked,
    start_within: Option<Duration>,
    run_timeout: Option<Duration>,
    deadline: Option<Asked>,
    max_attempts: u32,
    max_crashes: u32,
    backoff: (Duration, Duration),
    unique: Option<(String, String, Option<Duration>)>,
    wanted_by: Option<u64>,
    schedule: Option<String>,
    missed: u64,
    trace: Option<String>,
    id: u128,
}

/// A moment as it was asked for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Asked {
    After(Duration),
    At(i64),
}

impl Default for Template {
    fn default() -> Self {
        Self::from(&NewJob::new(JobId::from_u128(0), ""))
    }
}

impl From<Moment> for Asked {
    fn from(moment: Moment) -> Self {
        match moment {
            Moment::After(delay) => Self::After(delay),
            Moment::At(at) => Self::At(at.micros()),
        }
    }
}

impl From<Asked> for Moment {
    fn from(asked: Asked) -> Self {
        match asked {
            Asked::After(delay) => Self::After(delay),
            Asked::At(micros) => Self::At(Timestamp::from_micros(micros)),
        }
    }
}

impl From<&NewJob> for Template {
    fn from(job: &NewJob) -> Self {
        let unique = job.unique.as_ref();
        Self {
            kind: job.kind.clone(),
            tenant: job.tenant.clone(),
            payload: job.payload.clone(),
            tags: job.tags.clone(),
            priority: job.priority,
            cost: job.cost,
            due: job.due.into(),
            start_within: job.start_within,
            run_timeout: job.run_timeout,
            deadline: job.deadline.map(Asked::from),
            max_attempts: job.max_attempts,
            max_crashes: job.max_crashes,
            backoff: (job.backoff.base(), job.backoff.cap()),
            unique: unique.map(|u| (u.key.clone(), conflict_name(u.on_conflict).to_owned(), u.period)),
            wanted_by: job.wanted_by.map(NodeId::to_u64),
            schedule: job.schedule.clone(),
            missed: job.missed,
            trace: job.trace.clone(),
            id: job.id.to_u128(),
        }
    }
}

impl From<Template> for NewJob {
    fn from(template: Template) -> Self {
        let unique = template.unique.map(|(key, on_conflict, period)| {
            let known = [OnConflict::Join, OnConflict::Replace];
            let on_conflict = known.into_iter().find(|&known| conflict_name(known) == on_conflict);
            Unique { key, on_conflict: on_conflict.unwrap_or_default(), period }
        });
        Self {
            id: JobId::from_u128(template.id),
            kind: template.kind,
            tenant: template.tenant,
            payload: template.payload,
            tags: template.tags,
            priority: template.priority,
            cost: template.cost,
            due: template.due.into(),
            start_within: template.start_within,
            run_timeout: template.run_timeout,
            deadline: template.deadline.map(Into::into),
            max_attempts: template.max_attempts,
            max_crashes: template.max_crashes,
            backoff: Backoff::new(template.backoff.0, template.backoff.1),
            unique,
            wanted_by: template.wanted_by.map(NodeId::from_u64),
            schedule: template.schedule,
            missed: template.missed,
            trace: template.trace,
        }
    }
}

/// A template as it is written down.
pub(super) fn template(job: &NewJob) -> String {
    serde_json::to_string(&Template::from(job)).expect("texts, numbers and lists of these can be written as JSON")
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

/// A list of words as PostgreSQL writes an array: an array of lists must be of one length each, which words are not. Null if it is empty.
fn array(words: &[String]) -> Option<String> {
    if words.is_empty() {
        return None;
    }
    let quoted = words.iter().map(|word| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\"")));
    Some(format!("{{{}}}", quoted.collect::<Vec<_>>().join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_comes_out_as_it_went_in() {
        let job = NewJob {
            tenant: "acme".into(),
            payload: "{\"a\":\"\u{0}é\"}".into(),
            tags: vec!["a".into(), "b\"\\".into()],
            priority: -7,
            cost: u32::MAX,
            due: Moment::At(Timestamp::from_micros(-5)),
            start_within: Some(Duration::MAX),
            run_timeout: Some(Duration::from_nanos(1)),
            deadline: Some(Moment::After(Duration::new(u64::MAX, 1))),
            backoff: Backoff::new(Duration::from_millis(3), Duration::from_secs(9)),
            unique: Some(Unique { key: "k".into(), on_conflict: OnConflict::Replace, period: Some(Duration::ZERO) }),
            wanted_by: Some(NodeId::from_u64(u64::MAX)),
            schedule: Some("s".into()),
            missed: u64::MAX,
            trace: Some("t".into()),
            ..NewJob::new(JobId::from_u128(u128::MAX), "k")
        };
        for job in [job, NewJob::new(JobId::from_u128(0), "plain")] {
            let read: Template = serde_json::from_str(&template(&job)).unwrap();
            assert_eq!(NewJob::from(read), job);
        }
    }

    #[test]
    fn a_template_of_another_version_is_read_as_far_as_it_goes() {
        let read: Template = serde_json::from_str(r#"{"kind":"k","colour":"red"}"#).unwrap();
        assert_eq!(NewJob::from(read), NewJob::new(JobId::from_u128(0), "k"));
    }

    #[test]
    fn instants_and_lengths_are_cut_and_never_wrap() {
        assert_eq!(instant(instant_sql(Timestamp::NEVER)), Timestamp::NEVER);
        assert_eq!(instant_sql(Timestamp::from_micros(i64::MIN)), -NEVER);
        assert_eq!(moment(Some(Moment::After(Duration::MAX))), (None, Some(NEVER)));
        assert_eq!(moment(Some(Moment::After(Duration::from_nanos(1)))), (None, Some(1)), "never early");
        assert_eq!(length(nanos(Duration::MAX)), Duration::MAX);
        assert_eq!(length(nanos(Duration::from_nanos(7))), Duration::from_nanos(7));
    }

    #[test]
    fn words_are_quoted_as_the_server_reads_them() {
        let words = ["a", "", "b,c", "\"q\"", "\\", "NULL", "{}"].map(str::to_owned);
        assert_eq!(array(&words).as_deref(), Some(r#"{"a","","b,c","\"q\"","\\","NULL","{}"}"#));
        assert_eq!(array(&[]), None);
    }

    #[test]
    fn the_field_with_nul_is_named() {
        let plain = || NewJob::new(JobId::from_u128(1), "k");
        assert_eq!(field_with_nul(&plain()), None);
        assert_eq!(field_with_nul(&NewJob { payload: "\0".into(), ..plain() }), Some("payload"));
        assert_eq!(field_with_nul(&NewJob { tags: vec!["a".into(), "\0".into()], ..plain() }), Some("tags"));
        let unique = Some(Unique { key: "a\0".into(), on_conflict: OnConflict::Join, period: None });
        assert_eq!(field_with_nul(&NewJob { unique, ..plain() }), Some("unique key"));
    }
}
