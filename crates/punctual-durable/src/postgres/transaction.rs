//! Enqueueing in the caller's own transaction: the statement that does it, for any driver, and the call itself for
//! ours.

use std::time::Duration;

use punctual::Reason;
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use super::error::Fault;
use super::jobs::refuse;
use super::rows::{Reader, conflict_name, micros};
use crate::error::{EnqueueError, Problem, StoreError};
use crate::id::JobId;
use crate::job::Job;
use crate::plan::Plan;
use crate::store::{Moment, NewJob, Refused};
use crate::time::Timestamp;

const ENQUEUE_IN: &str = "enqueue in a transaction";

/// How deep a payload may be nested: handlers can read no more. The server, which reads it too, can take some
/// thousands.
const DEPTH_MAX: usize = 127;

/// A statement that enqueues one job, for any driver and in whatever transaction. It answers one row: `job_id`,
/// `status`, `other` and `detail` as texts, then `count`, `max` and `retry_after` (microseconds) as numbers; see
/// `enqueue.sql` for what they mean. It never makes the transaction fail.
///
/// # Example
/// ```no_run
/// # use punctual_durable::{EnqueueError, Job, Jobs};
/// fn statement<J: Job>(jobs: &Jobs, job: J) -> Result<String, EnqueueError<J>> {
///     let statement = jobs.tenant("acme").now().to_sql(job)?;
///     Ok(statement.sql) // Run it with `statement.parameters`, all of them texts.
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlStatement {
    /// The id that the job will have.
    pub id: JobId,
    /// The SQL, with parameters `$1` and so on.
    pub sql: String,
    /// The parameters, in order.
    pub parameters: Vec<Option<String>>,
}

impl SqlStatement {
    fn new(schema: &str, job: &NewJob) -> Self {
        let unique = job.unique.as_ref();
        let (due, after) = split(Some(job.due));
        let (deadline, deadline_after) = split(job.deadline);
        // The name of each argument, the type of its parameter, and the parameter.
        let arguments: [(&str, &str, Option<String>); 21] = [
            ("kind", "text", Some(job.kind.clone())),
            ("payload", "text::json", Some(job.payload.clone())),
            ("tenant", "text", Some(job.tenant.clone())),
            ("id", "text::uuid", Some(job.id.to_string())),
            ("due", "text::timestamptz", due),
            ("after", "text::interval", after),
            ("deadline", "text::timestamptz", deadline),
            ("deadline_after", "text::interval", deadline_after),
            ("start_within", "text::interval", job.start_within.map(interval)),
            ("run_timeout", "text::interval", job.run_timeout.map(interval)),
            ("priority", "text::int", Some(job.priority.to_string())),
            ("cost", "text::bigint", Some(job.cost.max(1).to_string())),
            ("max_attempts", "text::bigint", Some(job.max_attempts.max(1).to_string())),
            ("max_crashes", "text::bigint", Some(job.max_crashes.max(1).to_string())),
            ("backoff_base", "text::interval", Some(interval(job.backoff.base()))),
            ("backoff_cap", "text::interval", Some(interval(job.backoff.cap()))),
            ("unique_key", "text", unique.map(|unique| unique.key.clone())),
            (
                "on_conflict",
                "text",
                Some(conflict_name(unique.map(|unique| unique.on_conflict).unwrap_or_default()).into()),
            ),
            ("unique_period", "text::interval", unique.and_then(|unique| unique.period).map(interval)),
            ("tags", "text::json", Some(serde_json::Value::from(job.tags.clone()).to_string())),
            ("trace", "text", job.trace.clone()),
        ];
        let named = arguments.iter().enumerate().map(|(at, (name, kind, _))| {
            let parameter = format!("${}::{kind}", at + 1);
            match *name {
                "tags" => format!("tags => ARRAY(SELECT json_array_elements_text({parameter}))"),
                name => format!("{name} => {parameter}"),
            }
        });
        let sql = format!(
            "SELECT e.job_id::text, e.status, e.other::text, e.detail, e.count, e.max, \
             (extract(epoch FROM e.retry_after) * 1000000)::bigint AS retry_after FROM {schema}.enqueue({}) e",
            named.collect::<Vec<_>>().join(", ")
        );
        Self { id: job.id, sql, parameters: arguments.into_iter().map(|(.., parameter)| parameter).collect() }
    }
}

impl Plan {
    /// Enqueues it in the caller's own transaction: it is there if and only if that commits, and other processes hear
    /// of it then. The answer is its id, or that of the job it joined; wait for its result with
    /// [`Jobs::handle`](crate::Jobs::handle), once the transaction is committed. A refusal leaves the transaction as it
    /// was.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); and if the store is no PostgreSQL store, or the plan says `while_wanted`, which a
    /// transaction cannot. After a [store's error](crate::Problem::Store) do not commit: the statement may have failed,
    /// which broke the transaction, and the driver takes the rollback that PostgreSQL makes of such a commit for a
    /// success.
    ///
    /// # Example
    /// ```no_run
    /// # use punctual_durable::{Job, Jobs};
    /// async fn sign_up<J: Job>(jobs: &Jobs, client: &mut tokio_postgres::Client, welcome: J) -> Result<(), Box<dyn std::error::Error>> {
    ///     let transaction = client.transaction().await?;
    ///     transaction.execute("INSERT INTO users (name) VALUES ('ada')", &[]).await?;
    ///     if jobs.now().enqueue_in(&transaction, welcome).await.is_ok() {
    ///         transaction.commit().await?; // The user and the mail, or neither.
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn enqueue_in<J: Job>(self, transaction: &impl GenericClient, job: J) -> Result<JobId, EnqueueError<J>> {
        match self.statement(&job) {
            Ok((statement, new)) => {
                let answer = send(transaction, &statement, &new).await;
                answer.map_err(|problem| EnqueueError::new(job, problem))
            }
            Err(problem) => Err(EnqueueError::new(job, problem)),
        }
    }

    /// The statement that enqueues it, for any other driver. See [`SqlStatement`].
    ///
    /// # Errors
    /// If the payload cannot be written down, the store is no PostgreSQL store, or the plan says `while_wanted`.
    ///
    /// # Example
    /// ```no_run
    /// # use punctual_durable::{EnqueueError, Job, Jobs};
    /// fn parameters<J: Job>(jobs: &Jobs, job: J) -> Result<Vec<Option<String>>, EnqueueError<J>> {
    ///     Ok(jobs.now().to_sql(job)?.parameters)
    /// }
    /// ```
    pub fn to_sql<J: Job>(self, job: J) -> Result<SqlStatement, EnqueueError<J>> {
        match self.statement(&job) {
            Ok((statement, _)) => Ok(statement),
            Err(problem) => Err(EnqueueError::new(job, problem)),
        }
    }

    fn statement<J: Job>(&self, job: &J) -> Result<(SqlStatement, NewJob), Problem> {
        let new = self.prepare(job)?;
        let no = |why: &str| Problem::Store { error: StoreError::permanent(why), id: new.id };
        if new.wanted_by.is_some() {
            return Err(no("a job that lives only while it is wanted cannot be enqueued in a transaction"));
        }
        // The server would refuse it, and the transaction with it.
        if let Some(refused) = refuse(&new) {
            return Err(Problem::Refused(refused));
        }
        let depth = depth(&new.payload);
        if depth > DEPTH_MAX {
            let error = format!("it is nested {depth} deep (at most {DEPTH_MAX})");
            return Err(Problem::Payload { kind: J::KIND, error });
        }
        let schema =
            self.jobs().store().sql_schema().ok_or_else(|| no("only a PostgreSQL store can join a transaction"))?;
        Ok((SqlStatement::new(&schema, &new), new))
    }
}

async fn send(client: &impl GenericClient, statement: &SqlStatement, job: &NewJob) -> Result<JobId, Problem> {
    let failed = |fault: Fault| Problem::Store { error: fault.into(), id: job.id };
    let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
        statement.parameters.iter().map(|parameter| (parameter as &(dyn ToSql + Sync), Type::TEXT)).collect();
    let rows = client.query_typed(&statement.sql, &parameters).await;
    let rows = rows.map_err(|error| failed(Fault::new(ENQUEUE_IN, &error)))?;
    let [row] = rows.as_slice() else { return Err(failed(Fault::unreadable(ENQUEUE_IN, "no answer"))) };
    answer(&mut Reader::new(ENQUEUE_IN, row), job).map_err(failed)?
}

/// What the function says of the job.
fn answer(read: &mut Reader<'_>, job: &NewJob) -> Result<Result<JobId, Problem>, Fault> {
    let _id: &str = read.next()?;
    let status: &str = read.next()?;
    let other = read.next::<Option<&str>>()?.and_then(|id| id.parse().ok());
    let detail = read.next::<Option<String>>()?.unwrap_or_default();
    let (count, max) = (read.maybe_number()?.unwrap_or_default(), read.maybe_number()?.unwrap_or_default());
    let retry_after = read.maybe_number::<u64>()?.map(Duration::from_micros);
    let refused = |refused| Err(Problem::Refused(refused));
    let rejected = |reason| refused(Refused::Rejected { reason, retry_after });
    let tenant = || job.tenant.as_str().into();
    Ok(match (status, other) {
        ("new" | "replaced", _) => Ok(job.id),
        ("joined", Some(other)) => Ok(other),
        ("conflict", Some(other)) => refused(Refused::Conflict(other)),
        ("closed", _) => rejected(Reason::Closed),
        ("expired", _) => rejected(Reason::Expired),
        ("backlog_full", _) => rejected(Reason::BacklogFull { tenant: tenant(), count, max }),
        ("scheduled_full", _) => rejected(Reason::ScheduledFull { tenant: tenant(), count, max }),
        ("busy", _) => Err(Problem::Store { error: StoreError::transient(detail), id: job.id }),
        ("bad", _) => refused(Refused::Bad(detail)),
        (status, _) => return Err(Fault::unreadable(ENQUEUE_IN, format!("{status:?} is no word of this version"))),
    })
}

/// How deep a JSON text is nested.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut is_text, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'[' | b'{' if !is_text => depth += 1,
            b']' | b'}' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// A moment as a date or as a while.
fn split(moment: Option<Moment>) -> (Option<String>, Option<String>) {
    match moment {
        Some(Moment::At(at)) => (Some(date(at)), None),
        Some(Moment::After(delay)) => (None, Some(interval(delay))),
        None => (None, None),
    }
}

/// As the server reads it; beyond what a calendar shows is the end of the calendar.
fn date(at: Timestamp) -> String {
    let calendar = Timestamp::from_micros(0)..=Timestamp::from_micros(253_402_128_000_000_000);
    at.clamp(*calendar.start(), *calendar.end()).to_string()
}

/// In hours, minutes and seconds: before version 15 the server reads no number beyond 2^31 in an interval, and of
/// microseconds that was 36 minutes.
fn interval(length: Duration) -> String {
    // Further than any calendar, and within what the server's type holds.
    let micros = micros(length).min(9_000_000_000_000_000);
    let seconds = micros / 1_000_000;
    format!("{}:{:02}:{:02}.{:06}", seconds / 3_600, seconds / 60 % 60, seconds % 60, micros % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_a_parameter_for_each_place() {
        let statement = SqlStatement::new("\"jobs\"", &NewJob::new(JobId::from_u128(7), "mail"));
        for at in 1..=statement.parameters.len() {
            assert!(statement.sql.contains(&format!("${at}::")), "{}", statement.sql);
        }
        assert!(!statement.sql.contains(&format!("${}", statement.parameters.len() + 1)), "{}", statement.sql);
        assert!(statement.sql.contains("FROM \"jobs\".enqueue(kind => $1::text, payload => $2::text::json"));
    }

    #[test]
    fn the_depth_of_a_payload_is_that_of_its_lists_and_objects() {
        for (json, expected) in [("1", 0), ("[]", 1), (r#"{"a":[{}],"b":[]}"#, 3), (r#"["[[", "\"[[", "\\", []]"#, 2)] {
            assert_eq!(depth(json), expected, "{json}");
        }
        assert_eq!(depth(&"[".repeat(60_000)), 60_000);
        let nested = |deep: usize| format!("{}{}", "[".repeat(deep), "]".repeat(deep));
        assert!(serde_json::from_str::<serde_json::Value>(&nested(DEPTH_MAX)).is_ok());
        assert!(serde_json::from_str::<serde_json::Value>(&nested(DEPTH_MAX + 1)).is_err(), "no handler could read it");
    }

    #[test]
    fn moments_are_dates_or_whiles_within_what_the_server_knows() {
        let at = |micros| split(Some(Moment::At(Timestamp::from_micros(micros)))).0.unwrap();
        assert_eq!(at(1_500_000), "1970-01-01T00:00:01.5Z");
        assert_eq!(at(i64::MAX), "9999-12-30T00:00:00Z");
        assert_eq!(split(Some(Moment::After(Duration::from_nanos(1)))).1.unwrap(), "0:00:00.000001");
        assert_eq!(interval(Duration::from_millis(3_723_500)), "1:02:03.500000");
        assert_eq!(interval(Duration::MAX), "2500000:00:00.000000");
    }
}
