//! The job of a schedule's ticks, as JSON: nothing is lost on the way, also not what the columns of a job would cut.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::rows::conflict_name;
use crate::id::{JobId, NodeId};
use crate::retry::Backoff;
use crate::store::{Moment, NewJob, OnConflict, Unique};
use crate::time::Timestamp;

pub(super) fn write(job: &NewJob) -> String {
    serde_json::to_string(&Template::from(job)).expect("texts, numbers and lists of these can be written as JSON")
}

pub(super) fn read(text: &str) -> serde_json::Result<NewJob> {
    serde_json::from_str::<Template>(text).map(Into::into)
}

/// What is written. What another version has more is ignored, and what it has not is as in a plain job.
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
            is_id_fresh: false,
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
            assert_eq!(read(&write(&job)).unwrap(), job);
        }
    }

    #[test]
    fn a_template_of_another_version_is_read_as_far_as_it_goes() {
        let job = read(r#"{"kind":"k","colour":"red"}"#).unwrap();
        assert_eq!(job, NewJob::new(JobId::from_u128(0), "k"));
    }
}
