//! The physical limit: one narrow table, a batch claimed and a batch deleted. No fairness, no limits, no fences, no
//! retries, no history. What a store does beyond this is what it costs. And the same with what every store that can
//! answer for its jobs has to add: what is deleted is kept, and found by its id.

use std::time::Duration;

use anyhow::{Result, anyhow};
use postgres::{Client, Statement};
use punctual_bench::durable::Place;
use punctual_bench::durable::meter::Meter;
use punctual_bench::durable::table::Sample;
use punctual_bench::durable::wait::in_parallel;
use punctual_bench::durable::work::Work;

use crate::place::{Databases, connect};

/// A node claims and finishes at the same time, on a connection each.
const CONNECTIONS_A_NODE: u64 = 2;
const NODES: u64 = 4;
const IN_BULK: u64 = 1_000;

const TABLE: &str = "CREATE TABLE ideal (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, is_taken boolean NOT NULL DEFAULT false, payload text NOT NULL)
    WITH (fillfactor = 50, autovacuum_vacuum_cost_delay = 0)";
const ENQUEUE: &str = "INSERT INTO ideal (payload) VALUES ($1)";
const BULK: &str = "INSERT INTO ideal (payload) SELECT * FROM unnest($1::text[])";
const CLAIM: &str = "WITH come AS MATERIALIZED (SELECT id FROM ideal WHERE NOT is_taken ORDER BY id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE ideal i SET is_taken = true FROM come WHERE i.id = come.id RETURNING i.id, i.payload";
const FINISH: &str = "DELETE FROM ideal WHERE id = ANY ($1)";
const KEPT: &str = "CREATE TABLE kept (id bigint PRIMARY KEY, payload text NOT NULL, ended_at timestamptz NOT NULL)";
const FINISH_AND_KEEP: &str = "WITH gone AS (DELETE FROM ideal WHERE id = ANY ($1) RETURNING id, payload)
    INSERT INTO kept SELECT id, payload, now() FROM gone";

pub(crate) fn measure(work: &Work, place: &Databases, is_kept: bool) -> Result<Sample> {
    let mut client = connect(&place.url)?;
    client.batch_execute(TABLE)?;
    client.batch_execute(KEPT)?;
    let finish = if is_kept { FINISH_AND_KEEP } else { FINISH };
    match work.name {
        "enqueue-1" | "enqueue-16" | "enqueue-64" => enqueue(work, place),
        "bulk-1" | "bulk-4" => {
            let meter = Meter::start(place.server())?;
            in_parallel(work.callers, |_| fill(place, work.jobs / work.callers))?;
            Ok(meter.rate(work.jobs)?.into_iter().collect())
        }
        "drain-64" | "drain-256" | "tenants-64" | "tenants-256" => drain(work, place, CONNECTIONS_A_NODE, finish),
        name if name.starts_with("nodes-") => drain(work, place, CONNECTIONS_A_NODE * NODES, finish),
        other => Err(anyhow!("{other} is unknown")),
    }
}

/// One job a commit, a connection for each caller.
fn enqueue(work: &Work, place: &Databases) -> Result<Sample> {
    let (until, meter) = (Duration::from_millis(work.millis), Meter::start(place.server())?);
    let count = in_parallel(work.callers, |_| {
        let (mut client, enqueue) = prepared(place, ENQUEUE)?;
        let mut count = 0;
        while meter.elapsed() < until {
            client.execute(&enqueue, &[&payload(count)])?;
            count += 1;
        }
        Ok(count)
    })?;
    Ok(meter.rate(count)?.into_iter().collect())
}

fn fill(place: &Databases, count: u64) -> Result<u64> {
    let (mut client, bulk) = prepared(place, BULK)?;
    for batch in 0..count.div_ceil(IN_BULK) {
        let payloads: Vec<String> = (batch * IN_BULK..count.min((batch + 1) * IN_BULK)).map(payload).collect();
        client.execute(&bulk, &[&payloads])?;
    }
    Ok(count)
}

fn drain(work: &Work, place: &Databases, connections: u64, finish: &str) -> Result<Sample> {
    fill(place, work.jobs)?;
    let meter = Meter::start(place.server())?;
    let count = in_parallel(connections, |_| {
        let (mut client, claim) = prepared(place, CLAIM)?;
        // The plan for any number would be one that sorts the table.
        client.batch_execute(
            "SET enable_seqscan = off; SET enable_sort = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
        )?;
        let finish = client.prepare(finish)?;
        let mut count = 0;
        loop {
            let rows = client.query(&claim, &[&(work.callers as i64)])?;
            let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            if ids.is_empty() {
                return Ok(count);
            }
            count += client.execute(&finish, &[&ids])?;
        }
    })?;
    anyhow::ensure!(count == work.jobs, "{count} of {} jobs ran", work.jobs);
    Ok(meter.rate(count)?.into_iter().collect())
}

fn prepared(place: &Databases, sql: &str) -> Result<(Client, Statement)> {
    let mut client = connect(&place.url)?;
    let statement = client.prepare(sql)?;
    Ok((client, statement))
}

/// A hundred bytes.
fn payload(number: u64) -> String {
    format!("\"{number:098}\"")
}
