//! What can be done with jobs: each is one call of the function of its name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use punctual::Reason;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::Shared;
use super::coalesce::{Answer, JOBS_MAX, Said};
use super::columns::{Alike, Columns, field_with_nul};
use super::connect::Function;
use super::error::{Fault, Kind};
use super::rows::{
    Parameter, Reader, count, explanation, id_and_fence, instant, job_columns, micros, moment, node_sql, record,
    stage_name, uuid,
};
use crate::error::StoreError;
use crate::id::JobId;
use crate::state::State;
use crate::store::{
    Admitted, CancelCause, Cancelled, Claim, Claimed, Edit, Edited, Explanation, Finish, Finished, Moment, NewJob,
    Page, Query, Record, Redriven, Refused, Retention, Verdict,
};
use crate::time::Timestamp;

pub(super) const ENQUEUE: Function = Function::new("enqueue_batch", "enqueue jobs");
const ENQUEUE_ALIKE: Function = Function::new("enqueue_alike", ENQUEUE.what);
const CLAIM: Function = Function::new("claim", "claim jobs").of_node();
const CANCEL: Function = Function::new("cancel", "cancel a job");
const EDIT: Function = Function::new("edit", "edit a job");
const GET: Function = Function::new("get", "look up a job").repeatable();
const QUERY: Function = Function::new("query", "look up jobs").repeatable();
const EXPLAIN: Function = Function::new("explain", "explain a job").repeatable();
const REDRIVE: Function = Function::new("redrive", "redrive a job");
const PRUNE: Function = Function::new("prune", "prune jobs").of_node();
const KEEP_UP: Function = Function::new("keep_up", "look at the time").repeatable();
const PURGE: Function = Function::new("purge", "purge jobs");

/// The database's present, in an answer that has to do with time: when it began and, as late as can be told, when it
/// was ready.
pub(super) const PRESENT: [&str; 2] = [
    "(extract(epoch FROM statement_timestamp()) * 1000000)::int8",
    "(extract(epoch FROM clock_timestamp()) * 1000000)::int8",
];

impl Shared {
    /// Takes jobs in, those of several callers together. Who has to wait longer than this for a lock is given back.
    pub(super) async fn enqueue(
        self: Arc<Self>,
        jobs: Vec<NewJob>,
        lock_wait: Duration,
    ) -> Result<Vec<Said>, StoreError> {
        let mut answers: Vec<Option<Answer>> = jobs.iter().map(|job| refuse(job).map(Err)).collect();
        let good: Vec<(usize, &NewJob)> = jobs.iter().enumerate().filter(|(at, _)| answers[*at].is_none()).collect();
        for chunk in good.chunks(JOBS_MAX) {
            let chunk_answers = self.take_in(chunk.iter().map(|&(_, job)| job).collect(), lock_wait).await?;
            for (&(at, _), answer) in chunk.iter().zip(chunk_answers) {
                answers[at] = answer;
            }
        }
        let said = jobs.into_iter().zip(answers);
        Ok(said.map(|(job, answer)| answer.map_or_else(|| Said::Held(Box::new(job)), Said::Answer)).collect())
    }

    /// One commit, unless one of them does not fit: then halves, until it is found. No answer is for those that wait
    /// for a lock.
    async fn take_in(&self, jobs: Vec<&NewJob>, lock_wait: Duration) -> Result<Vec<Option<Answer>>, Fault> {
        let mut answers = Vec::with_capacity(jobs.len());
        let mut parts = vec![&jobs[..]];
        while let Some(part) = parts.pop() {
            match self.call_for(part, lock_wait).await {
                Ok(admitted) => answers.extend(admitted.into_iter().map(Some)),
                Err(fault) if fault.kind == Kind::Data && part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Err(fault) if fault.kind == Kind::Data => answers.push(Some(Err(Refused::Bad(fault.told.to_string())))),
                Err(fault) if fault.kind == Kind::Held => answers.extend(part.iter().map(|_| None)),
                Err(fault) => return Err(fault),
            }
        }
        Ok(answers)
    }

    async fn call_for(&self, jobs: &[&NewJob], lock_wait: Duration) -> Result<Vec<Answer>, Fault> {
        let at = self.clock.given();
        let Some(alike) = Alike::new(jobs) else {
            let columns = Columns::new(jobs.iter().copied());
            let rows = self.database.call_hurried(ENQUEUE, &columns.parameters(&at), lock_wait).await?;
            let answers = admissions(jobs, &rows)?;
            self.tell_of_new(jobs, &answers);
            return Ok(answers);
        };
        let first = jobs.first().filter(|job| job.due == Moment::NOW);
        let place = match first {
            Some(job) => self.signals.places(&job.kind, jobs.len()).await,
            None => None,
        };
        let to_node = place.as_ref().map(|place| (node_sql(place.node()), place.era().cast_signed())).unzip();
        let sent = self.clock.local().now();
        let rows = self.database.call_hurried(ENQUEUE_ALIKE, &alike.parameters(&at, &to_node), lock_wait).await;
        let rows = match rows {
            Err(fault) if fault.kind == Kind::Held => {
                if let Some(place) = place {
                    place.give_back();
                }
                return Err(fault);
            }
            // If this fails otherwise, the place is in doubt.
            rows => rows?,
        };
        let answers = match given_at(&rows)? {
            None if rows.is_empty() => vec![Ok(Admitted::New); jobs.len()],
            None => admissions(jobs, &rows)?,
            Some(now) => {
                self.clock.overheard(sent, (now.micros(), now.micros()));
                if let Some(place) = place {
                    let node = place.node();
                    place.give(jobs.iter().map(|&job| Record::given(job.clone(), node, now)).collect());
                }
                return Ok(vec![Ok(Admitted::New); jobs.len()]);
            }
        };
        if let Some(place) = place {
            place.give_back();
        }
        self.tell_of_new(jobs, &answers);
        Ok(answers)
    }

    fn tell_of_new(&self, jobs: &[&NewJob], answers: &[Answer]) {
        let now = self.clock.now();
        let new =
            jobs.iter().zip(answers).filter(|(_, answer)| matches!(answer, Ok(Admitted::New | Admitted::Replaced(_))));
        // When they fall due, and when they expire: what lies behind, first of all, and then the first of what lies
        // ahead.
        let (mut is_ready, mut next) = (false, Timestamp::NEVER);
        for (job, _) in new {
            let due = job.due.from(now);
            let start_by = job.start_within.map(|within| due.after(within));
            let deadline = job.deadline.map(|deadline| deadline.from(now));
            is_ready |= due <= now;
            let ahead = [Some(due), start_by, deadline].into_iter().flatten().filter(|&at| at > now);
            next = ahead.fold(next, Timestamp::min);
        }
        if is_ready {
            self.tell_ready();
        }
        if next != Timestamp::NEVER {
            self.tell_due(next);
        }
        self.signals.ended(answers.iter().filter_map(|answer| match answer {
            Ok(Admitted::Replaced(other)) => Some(*other),
            _ => None,
        }));
    }

    pub(super) async fn claim(&self, claim: Claim) -> Result<Claimed, Fault> {
        let (node, max, at) = (node_sql(claim.node), count(claim.max), self.clock.given());
        let mut rooms = BTreeMap::<&str, usize>::new();
        claim.kinds.iter().for_each(|(kind, room)| *rooms.entry(kind).or_default() += room);
        let (kinds, rooms): (Vec<&str>, Vec<i64>) =
            rooms.into_iter().filter(|&(_, room)| room > 0).map(|(kind, room)| (kind, count(room))).unzip();
        let foresight = i64::try_from(self.foresight.as_micros()).unwrap_or(0);
        let (ahead, spare, era) = (count(claim.ahead), count(claim.spare), claim.era.cast_signed());
        // Once, and not for each of hundreds of jobs.
        let present = PRESENT.map(|now| format!("CASE WHEN r.id IS NULL THEN {now} END")).join(", ");
        let select = format!("{}, r.more, r.again_at, r.due_at, r.tend_at, {present}", job_columns("r"));
        let parameters: [Parameter<'_>; 9] = [
            (&node, Type::INT8),
            (&max, Type::INT8),
            (&kinds, Type::TEXT_ARRAY),
            (&rooms, Type::INT8_ARRAY),
            (&at, Type::INT8),
            (&foresight, Type::INT8),
            (&ahead, Type::INT8),
            (&spare, Type::INT8),
            (&era, Type::INT8),
        ];
        let sent = self.clock.local().now();
        let rows = self.database.call(CLAIM, &select, &parameters).await?;
        let (mut claimed, mut unreadable) = (Claimed::default(), Vec::new());
        for row in &rows {
            let mut read = Reader::new(CLAIM.what, row);
            match record(&mut read) {
                Ok(Some(record)) => claimed.jobs.push(record),
                Err(fault) => {
                    tracing::warn!(target: "punctual", error = %fault.told, "a job cannot be read, so it has failed");
                    let (id, fence) = id_and_fence(CLAIM.what, row)?;
                    unreadable.push(Finish { id, fence, verdict: Verdict::Failed(fault.told.to_string()) });
                }
                Ok(None) => {
                    claimed.more = read.next::<Option<bool>>()?.unwrap_or_default();
                    claimed.again_at = read.maybe_instant()?;
                    claimed.due_at = read.maybe_instant()?;
                    claimed.tend_at = Some(read.maybe_instant()?.unwrap_or(Timestamp::NEVER));
                    self.clock.overheard(sent, (read.next()?, read.next()?));
                }
            }
        }
        // Or it would be claimed again and again, and its neighbours would be given back with it.
        if !unreadable.is_empty() && self.finish(claim.node, unreadable).await?.contains(&Finished::Held) {
            // Then all of them go back.
            return Err(Fault::timed_out(CLAIM.what, "somebody has a job in hand that cannot be read"));
        }
        Ok(claimed)
    }

    pub(super) async fn cancel(&self, id: JobId, cause: CancelCause) -> Result<Cancelled, Fault> {
        let (job, cause, at) = (uuid(id), cause.to_string(), self.clock.given());
        let parameters: [Parameter<'_>; 3] = [(&job, Type::UUID), (&cause, Type::TEXT), (&at, Type::INT8)];
        let rows = self.database.call(CANCEL, "*", &parameters).await?;
        let Some(row) = rows.first() else { return Ok(Cancelled::Unknown) };
        let mut read = Reader::new(CANCEL.what, row);
        let (was, outcome) = (read.maybe_stage()?, read.maybe_outcome()?);
        match (was, outcome) {
            (_, Some(outcome)) => Ok(Cancelled::Ended(outcome)),
            (Some(was), None) => {
                self.signals.ended([id]);
                self.tell_work();
                Ok(Cancelled::Now(was))
            }
            (None, None) => Err(Fault::unreadable(CANCEL.what, "it has neither stage nor outcome")),
        }
    }

    pub(super) async fn edit(&self, id: JobId, edit: Edit) -> Result<Edited, Fault> {
        let (job, at) = (uuid(id), self.clock.given());
        let (due_at, due_in) = moment(edit.due);
        let (deadline_at, deadline_in) = moment(edit.deadline);
        let (priority, attempts) = (edit.priority.map(i16::from), edit.max_attempts.map(i64::from));
        let parameters: [Parameter<'_>; 9] = [
            (&job, Type::UUID),
            (&due_at, Type::INT8),
            (&due_in, Type::INT8),
            (&priority, Type::INT2),
            (&edit.payload, Type::TEXT),
            (&deadline_at, Type::INT8),
            (&deadline_in, Type::INT8),
            (&attempts, Type::INT8),
            (&at, Type::INT8),
        ];
        let rows = self.database.call(EDIT, "*", &parameters).await?;
        let Some(row) = rows.first() else { return Ok(Edited::Unknown) };
        let mut read = Reader::new(EDIT.what, row);
        if read.next::<&str>()? == "done" {
            self.tell_work();
            return Ok(Edited::Done);
        }
        state(&mut read).map(Edited::NotWaiting)
    }

    pub(super) async fn get(&self, id: JobId) -> Result<Option<Record>, Fault> {
        let (job, at) = (uuid(id), self.clock.given());
        let parameters: [Parameter<'_>; 2] = [(&job, Type::UUID), (&at, Type::INT8)];
        let rows = self.database.call(GET, &job_columns("r"), &parameters).await?;
        rows.first().map_or(Ok(None), |row| record(&mut Reader::new(GET.what, row)))
    }

    pub(super) async fn query(&self, query: Query) -> Result<Page, Fault> {
        let size = query.page_size();
        // One more than a page, to know whether there is another.
        let (max, after, at) = (count(size + 1), query.after.map(uuid), self.clock.given());
        let (stage, outcome) = (query.stage.map(stage_name), query.outcome.map(|outcome| outcome.to_string()));
        let parameters: [Parameter<'_>; 9] = [
            (&query.tenant, Type::TEXT),
            (&query.kind, Type::TEXT),
            (&stage, Type::TEXT),
            (&outcome, Type::TEXT),
            (&query.tag, Type::TEXT),
            (&query.schedule, Type::TEXT),
            (&after, Type::UUID),
            (&max, Type::INT8),
            (&at, Type::INT8),
        ];
        self.keep_up(KEEP_UP).await?;
        let rows = self.database.call(QUERY, &job_columns("r"), &parameters).await?;
        let page = &rows[..rows.len().min(size)];
        let next = page.last().filter(|_| rows.len() > size).map(|row| id_and_fence(QUERY.what, row));
        // One that cannot be read does not hide the others; who looks it up by its id is told why.
        let readable = |row| match record(&mut Reader::new(QUERY.what, row)) {
            Ok(record) => record,
            Err(fault) => {
                tracing::warn!(target: "punctual", error = %fault.told, "a job cannot be read, so it is not shown");
                None
            }
        };
        Ok(Page { jobs: page.iter().filter_map(readable).collect(), next: next.transpose()?.map(|(id, _)| id) })
    }

    pub(super) async fn explain(&self, id: JobId) -> Result<Option<Explanation>, Fault> {
        let (job, at) = (uuid(id), self.clock.given());
        let parameters: [Parameter<'_>; 2] = [(&job, Type::UUID), (&at, Type::INT8)];
        let rows = self.database.call(EXPLAIN, "*", &parameters).await?;
        rows.first().map(|row| explanation(&mut Reader::new(EXPLAIN.what, row))).transpose()
    }

    pub(super) async fn redrive(&self, id: JobId) -> Result<Redriven, Fault> {
        let (job, at) = (uuid(id), self.clock.given());
        let parameters: [Parameter<'_>; 2] = [(&job, Type::UUID), (&at, Type::INT8)];
        let rows = self.database.call(REDRIVE, "*", &parameters).await?;
        let Some(row) = rows.first() else { return Ok(Redriven::Unknown) };
        let mut read = Reader::new(REDRIVE.what, row);
        let (status, other) = (read.next::<&str>()?, read.maybe_id()?);
        match (status, other) {
            ("done", _) => {
                self.tell_work();
                Ok(Redriven::Done)
            }
            ("conflict", Some(other)) => Ok(Redriven::Conflict(other)),
            _ => state(&mut read).map(Redriven::NotEnded),
        }
    }

    pub(super) async fn prune(&self, retention: Retention, max: usize) -> Result<usize, Fault> {
        let Retention { succeeded, failed, cancelled, expired } = retention;
        let keep = [succeeded, failed, cancelled, expired].map(micros);
        let (max, at) = (count(max), self.clock.given());
        let parameters: [Parameter<'_>; 6] = [
            (&keep[0], Type::INT8),
            (&keep[1], Type::INT8),
            (&keep[2], Type::INT8),
            (&keep[3], Type::INT8),
            (&max, Type::INT8),
            (&at, Type::INT8),
        ];
        self.keep_up(KEEP_UP.of_node()).await?;
        self.number(PRUNE, &parameters).await
    }

    pub(super) async fn purge(&self, ids: Vec<JobId>) -> Result<usize, Fault> {
        let (ids, at) = (ids.into_iter().map(uuid).collect::<Vec<_>>(), self.clock.given());
        self.number(PURGE, &[(&ids, Type::UUID_ARRAY), (&at, Type::INT8)]).await
    }

    /// What time has brought is written down and committed, before a call that is about many jobs and may take long.
    async fn keep_up(&self, function: Function) -> Result<(), Fault> {
        let at = self.clock.given();
        self.database.call(function, "*", &[(&at, Type::INT8)]).await.map(drop)
    }

    /// Calls a function that answers how many.
    pub(super) async fn number(&self, function: Function, parameters: &[Parameter<'_>]) -> Result<usize, Fault> {
        let rows = self.database.call(function, "*", parameters).await?;
        rows.first().map_or(Ok(0), |row| Reader::new(function.what, row).number())
    }

    /// Calls a function that answers whether.
    pub(super) async fn whether(&self, function: Function, parameters: &[Parameter<'_>]) -> Result<bool, Fault> {
        let rows = self.database.call(function, "*", parameters).await?;
        rows.first().map_or(Ok(false), |row| Reader::new(function.what, row).next())
    }
}

/// The server would refuse the whole batch.
pub(super) fn refuse(job: &NewJob) -> Option<Refused> {
    if let Err(refused) = job.check() {
        return Some(refused);
    }
    let field = field_with_nul(job)?;
    Some(Refused::Bad(format!("the job's {field} has a NUL character, which PostgreSQL cannot hold")))
}

/// When all of them were given to the node that was named, if they were: that is told by a number that no job has.
fn given_at(rows: &[Row]) -> Result<Option<Timestamp>, Fault> {
    let Some(row) = rows.first() else { return Ok(None) };
    let mut read = Reader::new(ENQUEUE.what, row);
    if read.next::<i64>()? != 0 {
        return Ok(None);
    }
    let (_, _) = (read.next::<&str>()?, read.maybe_id()?);
    read.instant().map(Some)
}

/// What became of each job.
pub(super) fn admissions(jobs: &[&NewJob], rows: &[Row]) -> Result<Vec<Answer>, Fault> {
    if rows.len() != jobs.len() {
        return Err(Fault::unreadable(ENQUEUE.what, format!("{} answers to {} jobs", rows.len(), jobs.len())));
    }
    let numbered = |row| {
        let mut read = Reader::new(ENQUEUE.what, row);
        Ok((read.next::<i64>()?, read))
    };
    let mut answers = rows.iter().map(numbered).collect::<Result<Vec<_>, Fault>>()?;
    // They were decided in an order of their own.
    answers.sort_by_key(|&(number, _)| number);
    jobs.iter().zip(answers).map(|(job, (_, mut read))| admission(job, &mut read)).collect()
}

fn admission(job: &NewJob, read: &mut Reader<'_>) -> Result<Answer, Fault> {
    let status: &str = read.next()?;
    let other = read.maybe_id()?;
    let (count, max) = (read.maybe_number()?.unwrap_or_default(), read.maybe_number()?.unwrap_or_default());
    let retry_after = read.maybe_length()?;
    let tenant = || job.tenant.as_str().into();
    let rejected = |reason| Err(Refused::Rejected { reason, retry_after });
    Ok(match (status, other) {
        ("new", _) => Ok(Admitted::New),
        ("joined", Some(other)) => Ok(Admitted::Joined(other)),
        ("replaced", Some(other)) => Ok(Admitted::Replaced(other)),
        ("conflict", Some(other)) => Err(Refused::Conflict(other)),
        ("closed", _) => rejected(Reason::Closed),
        ("expired", _) => rejected(Reason::Expired),
        ("backlog_full", _) => rejected(Reason::BacklogFull { tenant: tenant(), count, max }),
        ("scheduled_full", _) => rejected(Reason::ScheduledFull { tenant: tenant(), count, max }),
        (status, _) => return Err(Fault::unreadable(ENQUEUE.what, format!("{status:?} is no word of this version"))),
    })
}

fn state(read: &mut Reader<'_>) -> Result<State, Fault> {
    Ok(State::new(read.stage()?, read.maybe_outcome()?))
}

/// When there is something to do again.
pub(super) fn next_instant(next: Option<i64>) -> Option<Timestamp> {
    next.map(instant).filter(|&next| next != Timestamp::NEVER)
}
