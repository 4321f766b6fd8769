//! The statements about jobs. Each does one thing to the file and knows nothing of the index.

use std::collections::BTreeSet;

use punctual::Stage;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Result, params, params_from_iter};

use super::index::Turn;
use super::rows::{Id, OutcomeSql, StageSql, asked, bind_job, node_sql, record, stands};
use crate::id::JobId;
use crate::state::Outcome;
use crate::store::{NewJob, Page, Query, Record};
use crate::time::Timestamp;

/// A job that waits or runs, as it is on disk.
#[derive(Debug, Clone)]
pub(super) struct Live {
    /// The order of its arrival.
    pub(super) seq: i64,
    pub(super) record: Record,
    /// It goes without a trace when it stops.
    pub(super) forget: bool,
    /// It lives only while a node has interest in it.
    pub(super) while_wanted: bool,
}

impl Live {
    /// Where it stands among the ready jobs of its tenant.
    pub(super) fn turn(&self) -> Turn {
        (self.record.order_at().micros(), self.seq)
    }
}

const LOAD: &str = concat!("SELECT seq, forget, while_wanted, ", asked!(), ", ", stands!(), " FROM job WHERE id = ?1");
const LOAD_SEQ: &str =
    concat!("SELECT seq, forget, while_wanted, ", asked!(), ", ", stands!(), " FROM job WHERE seq = ?1");

fn live(row: &rusqlite::Row<'_>) -> Result<Live> {
    Ok(Live { seq: row.get(0)?, forget: row.get(1)?, while_wanted: row.get(2)?, record: record(row, 3)? })
}

/// A live job by its id.
pub(super) fn load(db: &Connection, id: JobId) -> Result<Option<Live>> {
    db.prepare_cached(LOAD)?.query_row([Id(id)], live).optional()
}

/// A live job by the order of its arrival.
pub(super) fn load_seq(db: &Connection, seq: i64) -> Result<Option<Live>> {
    db.prepare_cached(LOAD_SEQ)?.query_row([seq], live).optional()
}

/// An ended job, with the order of its arrival.
pub(super) fn load_ended(db: &Connection, id: JobId) -> Result<Option<(i64, Record)>> {
    const ENDED: &str = concat!("SELECT seq, ", asked!(), ", ", stands!(), " FROM history WHERE id = ?1");
    db.prepare_cached(ENDED)?.query_row([Id(id)], |row| Ok((row.get(0)?, record(row, 1)?))).optional()
}

/// Whether a job was ever taken in and is not forgotten.
pub(super) fn is_known(db: &Connection, id: JobId) -> Result<bool> {
    const KNOWN: &str = "SELECT 1 WHERE EXISTS (SELECT 1 FROM job WHERE id = ?1) \
                         OR EXISTS (SELECT 1 FROM history WHERE id = ?1)";
    db.prepare_cached(KNOWN)?.exists([Id(id)])
}

/// Whether a job is live.
pub(super) fn is_live(db: &Connection, id: JobId) -> Result<bool> {
    db.prepare_cached("SELECT 1 FROM job WHERE id = ?1")?.exists([Id(id)])
}

/// A new row. Its place in the order of arrival is given.
pub(super) fn insert(db: &Connection, live: &Live) -> Result<()> {
    const INSERT: &str = concat!(
        "INSERT INTO job (seq, ",
        asked!(),
        ", stage, outcome, due, start_by, deadline, order_at, expires_at, attempt, fence, crashes, alone, node, \
         enqueued_at, started_at, since, result, last_error, forget, while_wanted) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, \
         ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, \
         ?34, ?35, ?36, ?37, ?38, ?39, ?40, ?41, ?42)"
    );
    let record = &live.record;
    let mut statement = db.prepare_cached(INSERT)?;
    statement.raw_bind_parameter(1, live.seq)?;
    bind_job(&mut statement, 2, &record.job)?;
    statement.raw_bind_parameter(24, StageSql(record.state.stage))?;
    statement.raw_bind_parameter(25, record.state.outcome.map(OutcomeSql))?;
    statement.raw_bind_parameter(26, record.due.micros())?;
    statement.raw_bind_parameter(27, record.start_by.map(Timestamp::micros))?;
    statement.raw_bind_parameter(28, record.deadline.map(Timestamp::micros))?;
    statement.raw_bind_parameter(29, record.order_at().micros())?;
    statement.raw_bind_parameter(30, record.expires_at().map(Timestamp::micros))?;
    statement.raw_bind_parameter(31, record.attempt)?;
    statement.raw_bind_parameter(32, record.fence.cast_signed())?;
    statement.raw_bind_parameter(33, record.crashes)?;
    statement.raw_bind_parameter(34, live.record.has_last_chance())?;
    statement.raw_bind_parameter(35, record.node.map(node_sql))?;
    statement.raw_bind_parameter(36, record.enqueued_at.micros())?;
    statement.raw_bind_parameter(37, record.started_at.map(Timestamp::micros))?;
    statement.raw_bind_parameter(38, record.since.micros())?;
    statement.raw_bind_parameter(39, &record.result)?;
    statement.raw_bind_parameter(40, &record.last_error)?;
    statement.raw_bind_parameter(41, live.forget)?;
    statement.raw_bind_parameter(42, live.while_wanted)?;
    statement.raw_execute().map(drop)
}

/// Writes where a live job stands; what it was asked for is not touched.
pub(super) fn update(db: &Connection, live: &Live) -> Result<()> {
    const UPDATE: &str = "UPDATE job SET stage = ?2, outcome = ?3, due = ?4, start_by = ?5, deadline = ?6, order_at = ?7, \
         expires_at = ?8, attempt = ?9, fence = ?10, crashes = ?11, alone = ?12, node = ?13, started_at = ?14, since = ?15, \
         last_error = ?16, forget = ?17 WHERE seq = ?1";
    let record = &live.record;
    let changed = db.prepare_cached(UPDATE)?.execute(params![
        live.seq,
        StageSql(record.state.stage),
        record.state.outcome.map(OutcomeSql),
        record.due.micros(),
        record.start_by.map(Timestamp::micros),
        record.deadline.map(Timestamp::micros),
        record.order_at().micros(),
        record.expires_at().map(Timestamp::micros),
        record.attempt,
        record.fence.cast_signed(),
        record.crashes,
        live.record.has_last_chance(),
        record.node.map(node_sql),
        record.started_at.map(Timestamp::micros),
        record.since.micros(),
        record.last_error,
        live.forget,
    ])?;
    debug_assert_eq!(changed, 1, "a live job has a row");
    Ok(())
}

/// Writes a claim, which changes less than [`update`].
pub(super) fn update_claim(db: &Connection, live: &Live) -> Result<()> {
    const CLAIM: &str = "UPDATE job SET stage = ?2, attempt = ?3, fence = ?4, node = ?5, started_at = ?6, since = ?6, \
         expires_at = ?7 WHERE seq = ?1";
    // A job that never expires has no place in that index; leaving the column alone leaves the index alone.
    const CLAIM_TIMELESS: &str = "UPDATE job SET stage = ?2, attempt = ?3, fence = ?4, node = ?5, started_at = ?6, since = ?6 \
         WHERE seq = ?1";
    let record = &live.record;
    let timeless = record.start_by.is_none() && record.deadline.is_none();
    let mut statement = db.prepare_cached(if timeless { CLAIM_TIMELESS } else { CLAIM })?;
    statement.raw_bind_parameter(1, live.seq)?;
    statement.raw_bind_parameter(2, StageSql(record.state.stage))?;
    statement.raw_bind_parameter(3, record.attempt)?;
    statement.raw_bind_parameter(4, record.fence.cast_signed())?;
    statement.raw_bind_parameter(5, record.node.map(node_sql))?;
    statement.raw_bind_parameter(6, record.since.micros())?;
    if !timeless {
        statement.raw_bind_parameter(7, record.expires_at().map(Timestamp::micros))?;
    }
    statement.raw_execute().map(drop)
}

/// Writes what can be edited of what a job was asked for.
pub(super) fn update_asked(db: &Connection, live: &Live) -> Result<()> {
    let job = &live.record.job;
    db.prepare_cached("UPDATE job SET payload = ?2, priority = ?3, max_attempts = ?4 WHERE seq = ?1")?
        .execute(params![live.seq, job.payload, job.priority, job.max_attempts])
        .map(drop)
}

/// A job falls due.
pub(super) fn fall_due(db: &Connection, seq: i64, since: Timestamp) -> Result<()> {
    db.prepare_cached("UPDATE job SET stage = 'ready', since = ?2 WHERE seq = ?1")?
        .execute(params![seq, since.micros()])
        .map(drop)
}

/// How a job ended.
#[derive(Debug)]
pub(super) struct End<'a> {
    pub(super) seq: i64,
    pub(super) outcome: Outcome,
    pub(super) at: Timestamp,
    pub(super) result: Option<&'a str>,
    /// Replaces the error that is there, if there is one to tell.
    pub(super) error: Option<&'a str>,
}

/// Moves a job to the ended ones.
pub(super) fn end(db: &Connection, end: &End<'_>) -> Result<()> {
    // Not `INSERT`: SQLite would keep a journal of its own for this statement, to undo it alone. If it fails, all is
    // undone.
    const MOVE: &str = concat!(
        "INSERT OR FAIL INTO history (seq, ",
        asked!(),
        ", ",
        stands!(),
        ") SELECT seq, ",
        asked!(),
        ", 'stopped', ?2, due, start_by, deadline, attempt, fence, crashes, NULL, enqueued_at, started_at, ?3, ?4, \
         coalesce(?5, last_error) FROM job WHERE seq = ?1"
    );
    db.prepare_cached(MOVE)?.execute(params![
        end.seq,
        OutcomeSql(end.outcome),
        end.at.micros(),
        end.result,
        end.error
    ])?;
    remove(db, end.seq)
}

/// Takes a live job's row away.
pub(super) fn remove(db: &Connection, seq: i64) -> Result<()> {
    db.prepare_cached("DELETE FROM job WHERE seq = ?1")?.execute([seq]).map(drop)
}

/// Takes all that there is of a live job away.
pub(super) fn forget_live(db: &Connection, seq: i64) -> Result<()> {
    forget(db, "DELETE FROM job WHERE seq = ?1 RETURNING id, tags, tenant, unique_key, while_wanted", seq).map(drop)
}

/// Takes all that there is of an ended job away; answers whose it was.
pub(super) fn forget_ended(db: &Connection, seq: i64) -> Result<Option<String>> {
    forget(db, "DELETE FROM history WHERE seq = ?1 RETURNING id, tags, tenant, unique_key, 0", seq)
}

fn forget(db: &Connection, delete: &str, seq: i64) -> Result<Option<String>> {
    type Gone = (JobId, Vec<String>, String, Option<String>, bool);
    let gone: Option<Gone> = db
        .prepare_cached(delete)?
        .query_row([seq], |row| {
            Ok((row.get::<_, Id>(0)?.0, super::rows::tags(row, 1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .optional()?;
    let Some((id, tags, tenant, key, while_wanted)) = gone else { return Ok(None) };
    for tag in tags {
        db.prepare_cached("DELETE FROM tag WHERE tag = ?1 AND id = ?2")?.execute(params![tag, Id(id)])?;
    }
    if let Some(key) = key {
        db.prepare_cached("DELETE FROM live_key WHERE tenant = ?1 AND key = ?2 AND job = ?3")?.execute(params![
            tenant,
            key,
            Id(id)
        ])?;
    }
    if while_wanted {
        db.prepare_cached("DELETE FROM interest WHERE job = ?1")?.execute([Id(id)])?;
    }
    Ok(Some(tenant))
}

/// Makes a job findable by its tags.
pub(super) fn insert_tags(db: &Connection, job: &NewJob) -> Result<()> {
    for tag in &job.tags {
        db.prepare_cached("INSERT OR IGNORE INTO tag (tag, id) VALUES (?1, ?2)")?.execute(params![tag, Id(job.id)])?;
    }
    Ok(())
}

/// Who has a unique key, and until when at least.
pub(super) fn key_holder(db: &Connection, tenant: &str, key: &str) -> Result<Option<(JobId, Option<Timestamp>)>> {
    db.prepare_cached("SELECT job, taken_until FROM live_key WHERE tenant = ?1 AND key = ?2")?
        .query_row([tenant, key], |row| {
            Ok((row.get::<_, Id>(0)?.0, row.get::<_, Option<i64>>(1)?.map(Timestamp::from_micros)))
        })
        .optional()
}

/// Gives a unique key to a job.
pub(super) fn take_key(db: &Connection, job: &NewJob, enqueued_at: Timestamp) -> Result<()> {
    let Some(unique) = &job.unique else { return Ok(()) };
    let until = unique.period.map(|period| enqueued_at.after(period).micros());
    db.prepare_cached("INSERT OR REPLACE INTO live_key (tenant, key, job, taken_until) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![job.tenant, unique.key, Id(job.id), until])
        .map(drop)
}

/// Frees a job's unique key, unless its period goes on.
pub(super) fn free_key(db: &Connection, tenant: &str, key: &str, id: JobId, now: Timestamp) -> Result<()> {
    const FREE: &str = "DELETE FROM live_key WHERE tenant = ?1 AND key = ?2 AND job = ?3 \
                        AND (taken_until IS NULL OR taken_until <= ?4)";
    db.prepare_cached(FREE)?.execute(params![tenant, key, Id(id), now.micros()]).map(drop)
}

/// The first ready jobs of a lane.
pub(super) fn first_ready(
    db: &Connection,
    tenant: &str,
    kind: &str,
    alone: bool,
    max: usize,
) -> Result<BTreeSet<Turn>> {
    const FIRST: &str = "SELECT order_at, seq FROM job WHERE stage = 'ready' AND tenant = ?1 AND kind = ?2 AND alone = ?3 \
                         ORDER BY order_at, seq LIMIT ?4";
    db.prepare_cached(FIRST)?
        .query_map(params![tenant, kind, alone, limit(max)], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// A number of rows.
pub(super) fn limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

/// An instant, if the only row of a statement has one.
pub(super) fn next(db: &Connection, sql: &str) -> Result<Option<Timestamp>> {
    let micros: Option<i64> = db.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    Ok(micros.map(Timestamp::from_micros))
}

/// A page of the jobs that match, live and ended, in the order of their ids.
pub(super) fn page(db: &Connection, query: &Query) -> Result<Page> {
    // Both tables as of one moment: a job that ends meanwhile is in one of them, and in one only.
    let moment = db.unchecked_transaction()?;
    let max = query.page_size();
    let mut jobs = Vec::new();
    for (table, ended) in [("job", false), ("history", true)] {
        if concerns(query, ended) {
            // One more than asked for, to know whether there is another page.
            jobs.extend(find(&moment, table, query, max + 1)?);
        }
    }
    jobs.sort_by_key(|record| record.job.id);
    let more = jobs.len() > max;
    jobs.truncate(max);
    let next = jobs.last().filter(|_| more).map(|last| last.job.id);
    Ok(Page { jobs, next })
}

/// The jobs of one table that match, in the order of their ids.
fn find(db: &Connection, table: &str, query: &Query, max: usize) -> Result<Vec<Record>> {
    let mut sql = format!(concat!("SELECT ", asked!(), ", ", stands!(), " FROM {}"), table);
    let mut wishes: Vec<(&str, Value)> = Vec::new();
    let id = |id: JobId| Value::Blob(id.to_u128().to_be_bytes().to_vec());
    let text = |text: &String| Value::Text(text.clone());
    wishes.extend(query.after.map(|after| ("id > ?", id(after))));
    wishes.extend(query.tag.as_ref().map(|tag| ("id IN (SELECT id FROM tag WHERE tag = ?)", text(tag))));
    wishes.extend(query.tenant.as_ref().map(|tenant| ("tenant = ?", text(tenant))));
    wishes.extend(query.kind.as_ref().map(|kind| ("kind = ?", text(kind))));
    wishes.extend(query.schedule.as_ref().map(|name| ("schedule = ?", text(name))));
    wishes.extend(query.stage.map(|stage| ("stage = ?", Value::Text(stage.to_string()))));
    wishes.extend(query.outcome.map(|outcome| ("outcome = ?", Value::Text(outcome.to_string()))));
    for (place, (wish, _)) in wishes.iter().enumerate() {
        sql.push_str(if place == 0 { " WHERE " } else { " AND " });
        sql.push_str(wish);
    }
    sql.push_str(" ORDER BY id LIMIT ?");
    let values = wishes.into_iter().map(|(_, value)| value).chain([Value::Integer(limit(max))]);
    db.prepare_cached(&sql)?.query_map(params_from_iter(values), |row| record(row, 0))?.collect()
}

/// Whether a query can find jobs in this table at all.
fn concerns(query: &Query, ended: bool) -> bool {
    query.stage.is_none_or(|stage| (stage == Stage::Stopped) == ended)
}
