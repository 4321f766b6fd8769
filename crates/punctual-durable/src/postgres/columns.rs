//! Jobs to take in, as columns: one array for each, or only for what differs.

use tokio_postgres::types::Type;
use uuid::Uuid;

use super::rows::{Parameter, conflict_name, moment, nanos, node_sql, uuid};
use crate::store::NewJob;

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
    are_given: Vec<bool>,
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
        self.are_given.push(!job.is_id_fresh);
    }

    /// The parameters of `enqueue_batch`.
    pub(super) fn parameters<'s>(&'s self, at: &'s Option<i64>) -> [Parameter<'s>; 26] {
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
            (&self.are_given, Type::BOOL_ARRAY),
            (at, Type::INT8),
        ]
    }
}

/// Jobs to take in that differ in nothing but their ids and payloads.
pub(super) struct Alike<'a> {
    of: &'a NewJob,
    ids: Vec<Uuid>,
    payloads: Vec<&'a str>,
    tags: Option<String>,
    priority: i16,
    cost: i64,
    due: (Option<i64>, Option<i64>),
    run_timeout: Option<i64>,
    max_attempts: i64,
    max_crashes: i64,
    backoff: (i64, i64),
}

impl<'a> Alike<'a> {
    /// These, if they are alike, their ids are new, and nothing about them has to be decided.
    pub(super) fn new(jobs: &[&'a NewJob]) -> Option<Self> {
        let (of, others) = jobs.split_first()?;
        let is_plain = of.is_id_fresh
            && of.unique.is_none()
            && of.wanted_by.is_none()
            && of.start_within.is_none()
            && of.deadline.is_none()
            && of.schedule.is_none()
            && of.missed == 0;
        if !is_plain || !others.iter().all(|other| is_like(of, other)) {
            return None;
        }
        Some(Self {
            of,
            ids: jobs.iter().map(|job| uuid(job.id)).collect(),
            payloads: jobs.iter().map(|job| job.payload.as_str()).collect(),
            tags: array(&of.tags),
            priority: of.priority.into(),
            cost: of.cost.into(),
            due: moment(Some(of.due)),
            run_timeout: of.run_timeout.map(nanos),
            max_attempts: of.max_attempts.into(),
            max_crashes: of.max_crashes.into(),
            backoff: (nanos(of.backoff.base()), nanos(of.backoff.cap())),
        })
    }

    /// The parameters of `enqueue_alike`.
    pub(super) fn parameters<'s>(
        &'s self,
        at: &'s Option<i64>,
        (to_node, era): &'s (Option<i64>, Option<i64>),
    ) -> [Parameter<'s>; 18] {
        [
            (&self.ids, Type::UUID_ARRAY),
            (&self.payloads, Type::TEXT_ARRAY),
            (&self.of.kind, Type::TEXT),
            (&self.of.tenant, Type::TEXT),
            (&self.tags, Type::TEXT),
            (&self.priority, Type::INT2),
            (&self.cost, Type::INT8),
            (&self.due.0, Type::INT8),
            (&self.due.1, Type::INT8),
            (&self.run_timeout, Type::INT8),
            (&self.max_attempts, Type::INT8),
            (&self.max_crashes, Type::INT8),
            (&self.backoff.0, Type::INT8),
            (&self.backoff.1, Type::INT8),
            (&self.of.trace, Type::TEXT),
            (at, Type::INT8),
            (to_node, Type::INT8),
            (era, Type::INT8),
        ]
    }
}

/// Whether two jobs differ in nothing but their ids and payloads.
fn is_like(one: &NewJob, other: &NewJob) -> bool {
    // All of them by name: a field that is added must be thought of here.
    let NewJob {
        id: _,
        payload: _,
        is_id_fresh,
        kind,
        tenant,
        tags,
        priority,
        cost,
        due,
        start_within,
        run_timeout,
        deadline,
        max_attempts,
        max_crashes,
        backoff,
        unique,
        wanted_by,
        schedule,
        missed,
        trace,
    } = one;
    *is_id_fresh == other.is_id_fresh
        && *kind == other.kind
        && *tenant == other.tenant
        && *tags == other.tags
        && (*priority, *cost) == (other.priority, other.cost)
        && (*due, *start_within) == (other.due, other.start_within)
        && (*run_timeout, *deadline) == (other.run_timeout, other.deadline)
        && (*max_attempts, *max_crashes) == (other.max_attempts, other.max_crashes)
        && *backoff == other.backoff
        && *unique == other.unique
        && *wanted_by == other.wanted_by
        && (schedule, missed) == (&other.schedule, &other.missed)
        && *trace == other.trace
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

/// A list of words as PostgreSQL writes an array: an array of lists must be of one length each, which words are not.
/// Null if it is empty.
fn array(words: &[String]) -> Option<String> {
    if words.is_empty() {
        return None;
    }
    let quoted = words.iter().map(|word| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\"")));
    Some(format!("{{{}}}", quoted.collect::<Vec<_>>().join(",")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::id::{JobId, NodeId};
    use crate::retry::Backoff;
    use crate::store::{Moment, OnConflict, Unique};

    #[test]
    fn words_are_quoted_as_the_server_reads_them() {
        let words = ["a", "", "b,c", "\"q\"", "\\", "NULL", "{}"].map(str::to_owned);
        assert_eq!(array(&words).as_deref(), Some(r#"{"a","","b,c","\"q\"","\\","NULL","{}"}"#));
        assert_eq!(array(&[]), None);
    }

    #[test]
    fn only_plain_jobs_with_new_ids_are_alike() {
        let fresh = |id| NewJob { is_id_fresh: true, ..NewJob::new(JobId::from_u128(id), "k") };
        let are_alike = |jobs: &[NewJob]| Alike::new(&jobs.iter().collect::<Vec<_>>()).is_some();
        assert!(are_alike(&[fresh(1)]) && are_alike(&[fresh(1), NewJob { payload: "[]".into(), ..fresh(2) }]));
        assert!(!are_alike(&[]) && !are_alike(&[NewJob::new(JobId::from_u128(1), "k")]));
        let different = [
            NewJob { is_id_fresh: false, ..fresh(2) },
            NewJob { kind: "other".into(), ..fresh(2) },
            NewJob { tenant: "acme".into(), ..fresh(2) },
            NewJob { tags: vec!["a".into()], ..fresh(2) },
            NewJob { priority: 1, ..fresh(2) },
            NewJob { cost: 2, ..fresh(2) },
            NewJob { due: Moment::After(Duration::from_secs(1)), ..fresh(2) },
            NewJob { run_timeout: Some(Duration::from_secs(1)), ..fresh(2) },
            NewJob { max_attempts: 1, ..fresh(2) },
            NewJob { max_crashes: 1, ..fresh(2) },
            NewJob { backoff: Backoff::new(Duration::ZERO, Duration::ZERO), ..fresh(2) },
            NewJob { trace: Some("00-".into()), ..fresh(2) },
        ];
        for other in different {
            assert!(!are_alike(&[fresh(1), other.clone()]), "{other:?}");
        }
        let unique = Some(Unique { key: "a".into(), on_conflict: OnConflict::Join, period: None });
        let to_decide = [
            NewJob { unique, ..fresh(1) },
            NewJob { wanted_by: Some(NodeId::from_u64(1)), ..fresh(1) },
            NewJob { start_within: Some(Duration::ZERO), ..fresh(1) },
            NewJob { deadline: Some(Moment::NOW), ..fresh(1) },
            NewJob { schedule: Some("s".into()), ..fresh(1) },
            NewJob { missed: 1, ..fresh(1) },
        ];
        for job in to_decide {
            assert!(!are_alike(&[job.clone(), job.clone()]), "{job:?}");
        }
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
