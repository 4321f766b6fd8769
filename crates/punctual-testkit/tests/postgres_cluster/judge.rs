//! The judge of what a cluster did: by what the store's triggers and the handlers wrote down, and by nothing else.
//!
//! # What must hold
//! 1. No claim takes a tenant above the limit in force (C40).
//! 2. The fence of a job is one higher at every claim (C38).
//! 3. A handler starts after its claim is there for everybody to see, and once per claim (C38).
//! 4. A run is taken from a node only after its lease has ended, or by the node itself (C39).
//! 5. Handlers of one job overlap only after the older one's lease has ended (C38, C40).
//! 6. A job is history once (C38).
//! 7. A handler starts no sooner than its job is due, by the database's clock (C1, C43).
//! 8. When all is quiet, every number of a tenant is the true one (C36, C58).
//! 9. No more handlers of a tenant run at an instant than it may (C40): of those that do, in the order of their claims,
//!    the n-th was claimed under a limit of n or more, for the others were running then. One whose run was taken from
//!    its node counts until then, for so long it holds its permit.
//!
//! Rule 1 is about the store's own books, rule 9 about what really ran. All instants are of one clock, the database's:
//! what triggers write down is read from it, and what handlers do lies within what is written of them (`scribe.rs`). So
//! rule 9 gives no false alarm.

use std::fmt::Write;
use std::time::Duration;

use postgres::Client;

use crate::site::{LEASE, Site, number, running_in, until};

/// What happened, to see that it was not a quiet time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Report {
    pub(crate) claims: i64,
    /// Runs that were taken from nodes whose lease had ended.
    pub(crate) lost: i64,
    /// Runs that nodes gave back, or that were taken when they left.
    pub(crate) again: i64,
    pub(crate) highest_fence: i64,
    /// Handlers that ran on after their run had been taken away.
    pub(crate) overlaps: i64,
    /// Claims that took a tenant exactly to its limit.
    pub(crate) at_limit: i64,
}

/// Each asks for what must not be.
const RULES: [(&str, &str); 10] = [
    ("a claim takes its tenant above the limit", "SELECT job FROM moves WHERE what = 'claimed' AND running > running_max"),
    (
        "a fence is not one higher than the one before",
        "SELECT job FROM (SELECT job, fence, lag(fence, 1, 0::bigint) OVER (PARTITION BY job ORDER BY seq) AS before
                          FROM moves WHERE what = 'claimed') c WHERE fence <> before + 1",
    ),
    ("a handler started before its claim was there", "SELECT job FROM witness WHERE NOT was_claimed"),
    ("a handler ran twice for one claim", "SELECT job FROM witness GROUP BY job, fence HAVING count(*) > 1"),
    (
        "a lease was taken before it had ended",
        "SELECT node FROM leases WHERE what = 'gone' AND expires_at > at AND who <> name",
    ),
    (
        "handlers overlap although the older run was not lost",
        "SELECT o.job FROM witness o JOIN witness y ON y.job = o.job AND y.fence > o.fence AND y.started_at < o.ended_at
         WHERE NOT EXISTS (SELECT FROM moves m JOIN leases l ON l.xact = m.xact AND l.node = m.node AND l.what = 'gone'
                           WHERE m.job = o.job AND m.fence = o.fence AND m.what = 'left')",
    ),
    (
        "a handler started before its job was due",
        "SELECT w.job FROM witness w JOIN history h ON h.id = w.job AND h.fence = w.fence WHERE w.started_at < h.due",
    ),
    ("a job ended more than once", "SELECT job FROM moves WHERE what = 'ended' GROUP BY job HAVING count(*) > 1"),
    (
        "a tenant's numbers are not the true ones",
        "SELECT r.name FROM tenant_records(NULL, NULL, 1000000) r
         WHERE (r.scheduled, r.ready, r.running, r.stopping) IS DISTINCT FROM (
             (SELECT count(*) FROM sched s WHERE s.tenant = r.name),
             (SELECT count(*) FROM job j WHERE j.tenant = r.name AND j.stage = 'ready'),
             (SELECT count(*) FROM job j WHERE j.tenant = r.name AND j.stage = 'running'),
             (SELECT count(*) FROM job j WHERE j.tenant = r.name AND j.stage = 'running' AND j.outcome IS NOT NULL))
            OR r.succeeded <> (SELECT count(*) FROM history h WHERE h.tenant = r.name AND h.outcome = 'succeeded')
            OR r.cancelled <> (SELECT count(*) FROM history h WHERE h.tenant = r.name AND h.outcome = 'cancelled')",
    ),
    ("more handlers of a tenant run than it may", HANDLERS),
];

/// Looks at each instant at which a handler starts. One that did not live to say that it ended did so before its run
/// left the store, which its own node told; or it was lost.
const HANDLERS: &str = "
    WITH handler AS MATERIALIZED (
        SELECT c.tenant, c.seq, c.running_max, w.started_at AS from_at,
               CASE WHEN w.ended_at IS NULL OR is_lost THEN least(w.ended_at, l.left_at) ELSE w.ended_at END AS to_at
        FROM witness w
        JOIN moves c ON c.job = w.job AND c.fence = w.fence AND c.what = 'claimed'
        LEFT JOIN LATERAL (
            SELECT m.at AS left_at,
                   EXISTS (SELECT FROM leases n WHERE n.xact = m.xact AND n.node = m.node AND n.what = 'gone') AS is_lost
            FROM moves m WHERE m.job = w.job AND m.fence = w.fence AND m.what = 'left') l ON true
        WHERE c.running_max IS NOT NULL)
    SELECT tenant FROM (
        SELECT s.tenant, h.running_max, row_number() OVER (PARTITION BY s.tenant, s.seq ORDER BY h.seq) AS place
        FROM handler s
        JOIN handler h ON h.tenant = s.tenant AND h.from_at <= s.from_at AND (h.to_at IS NULL OR h.to_at > s.from_at)) o
    WHERE place > running_max";

/// Judges when all is quiet.
///
/// # Errors
/// What was promised and not kept.
pub(crate) fn judge(client: &mut Client) -> Result<Report, String> {
    let mut broken = String::new();
    for (rule, sql) in RULES {
        let rows = client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error}"));
        if !rows.is_empty() {
            let _ = writeln!(broken, "{rule} ({} times)", rows.len());
        }
    }
    if !broken.is_empty() {
        return Err(broken);
    }
    let lost = "SELECT count(*) FROM moves m JOIN leases l ON l.xact = m.xact AND l.node = m.node AND l.what = 'gone'
                WHERE m.what = 'left' AND l.expires_at <= l.at";
    let overlaps = "SELECT count(*) FROM witness o WHERE EXISTS (
                        SELECT FROM witness y WHERE y.job = o.job AND y.fence > o.fence AND y.started_at < o.ended_at)";
    let at_limit = "SELECT count(*) FROM moves WHERE what = 'claimed' AND running = running_max";
    Ok(Report {
        claims: number(client, "SELECT count(*) FROM moves WHERE what = 'claimed'", &[]),
        lost: number(client, lost, &[]),
        again: number(client, "SELECT count(*) FROM moves WHERE what = 'claimed' AND fence > 1", &[]),
        highest_fence: number(client, "SELECT coalesce(max(fence), 0) FROM moves", &[]),
        overlaps: number(client, overlaps, &[]),
        at_limit: number(client, at_limit, &[]),
    })
}

/// Judges, and panics if anything is broken.
pub(crate) fn approve(client: &mut Client, story: &str) -> Report {
    judge(client).unwrap_or_else(|broken| panic!("{story}: {broken}"))
}

/// The judge is judged: each kind of damage, done by hand to what is in order, is found.
#[test]
fn the_judge_sees_each_kind_of_damage() {
    let site = Site::new();
    site.set_limit("acme", Some(2));
    let mut killed = site.node(LEASE);
    let jobs = site.hold("acme", 3);
    let mut client = site.client();
    until("two run", || running_in(&mut client, &killed) == 2);
    let mut heir = site.node(LEASE);
    killed.ask("close", "closed");
    killed.kill();
    until("the heir runs two", || running_in(&mut client, &heir) == 2);
    heir.ask("open", "opened");
    until("all have ended", || jobs.iter().all(|&job| site.record(job).state.outcome.is_some()));
    heir.stop(Duration::ZERO);
    let report = approve(&mut client, "nothing happened");
    assert_eq!((report.claims, report.lost, report.again), (5, 2, 2), "{report:?}");

    let lost = "(SELECT job FROM moves WHERE what = 'claimed' AND fence = 2 LIMIT 1)";
    let other = format!("(SELECT job FROM moves WHERE what = 'claimed' AND job NOT IN {lost} LIMIT 1)");
    let again = "INSERT INTO witness SELECT token || '.', process, job, fence, node, was_claimed, started_at, ended_at, how FROM witness";
    let overlap = "INSERT INTO witness SELECT token || '.', process, job, fence + 1, node, true, started_at, ended_at + 1, how FROM witness WHERE ended_at IS NOT NULL";
    let twice = "INSERT INTO moves (at, what, job, tenant, fence) SELECT at, what, job, tenant, fence FROM moves WHERE what = 'ended'";
    // The heir's third handler began when one of the others had ended. Now it began with them; or they go on beside it.
    let sooner =
        "UPDATE witness SET started_at = (SELECT min(w.started_at) FROM witness w WHERE w.ended_at IS NOT NULL)
                  WHERE ended_at IS NOT NULL";
    let longer = "UPDATE witness SET ended_at = ended_at + 60000000 WHERE ended_at IS NOT NULL";
    damage(&mut client, "above the limit", "UPDATE moves SET running_max = 1");
    damage(&mut client, "more handlers of a tenant", sooner);
    damage(&mut client, "more handlers of a tenant", longer);
    // A handler may go on after its run was lost; it is counted no longer. If it was not lost, it is.
    let goes_on = "UPDATE witness SET ended_at = started_at + 60000000 WHERE ended_at IS NULL";
    client.batch_execute(&format!("BEGIN; {goes_on}")).unwrap();
    assert_eq!(approve(&mut client, "handlers go on").overlaps, 2);
    client.batch_execute("ROLLBACK").unwrap();
    let not_lost = format!("WITH lost AS (DELETE FROM leases WHERE what = 'gone') {goes_on}");
    damage(&mut client, "more handlers of a tenant", &not_lost);
    damage(
        &mut client,
        "one higher",
        &format!("DELETE FROM moves WHERE what = 'claimed' AND fence = 1 AND job = {lost}"),
    );
    damage(&mut client, "before its claim was there", "UPDATE witness SET was_claimed = false");
    damage(&mut client, "twice for one claim", again);
    damage(&mut client, "before it had ended", "UPDATE leases SET expires_at = at + 1 WHERE what = 'gone'");
    damage(&mut client, "older run was not lost", overlap);
    damage(&mut client, "more than once", twice);
    damage(&mut client, "before its job was due", "UPDATE history SET due = due + 86400000000");
    damage(&mut client, "not the true ones", "UPDATE tenant SET running = running + 1");
    damage(&mut client, "not the true ones", "UPDATE tenant SET succeeded = succeeded + 1");
    damage(&mut client, "not the true ones", &format!("DELETE FROM history WHERE id = {other}"));
}

/// Does damage, expects these words from the judge, and undoes it.
fn damage(client: &mut Client, words: &str, harm: &str) {
    client.batch_execute("BEGIN").unwrap();
    assert!(client.execute(harm, &[]).unwrap_or_else(|error| panic!("{harm}: {error}")) > 0, "{harm}");
    let broken = judge(client).expect_err(words);
    assert!(broken.contains(words), "{words:?} is not in {broken}");
    client.batch_execute("ROLLBACK").unwrap();
}
