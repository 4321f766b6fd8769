//! Jobs to take in, as columns: one array for each.

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
    use crate::id::JobId;
    use crate::store::{OnConflict, Unique};

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
