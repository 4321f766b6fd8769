//! What the functions in the database promise to those who call them there, beyond what a store can be asked: days,
//! turns, and who is told.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use postgres::Client;
use punctual_durable::PostgresOptions;
use punctual_testkit::block_on;
use punctual_testkit::postgres::{Schema, ask, one};

/// A day, in microseconds.
const DAY: i64 = 86_400_000_000;
/// Noon of 2001-09-09.
const NOON: i64 = 1_000_036_800_000_000;

/// A store, and a connection of its owner.
fn open() -> (Schema, Client) {
    let schema = Schema::new();
    drop(block_on(PostgresOptions::new().schema(schema.name()).pool_size(1).open(schema.url())).unwrap());
    let client = schema.connect();
    (schema, client)
}

/// A store with a node and as many jobs, numbered by their payloads, of tenants in turn; and a connection of its owner.
fn open_with(jobs: u8, tenants: u8) -> (Schema, Client) {
    let (schema, mut client) = open();
    one(&mut client, "SELECT join_node(1, 'n', '{k}', '{}', 99, 15000000)");
    let numbers = format!("generate_series(0, {jobs} - 1) n");
    let enqueue = format!("SELECT e.status FROM {numbers}, LATERAL enqueue('k', to_json(n), 't' || n % {tenants}) e");
    assert_eq!(ask(&mut client, &enqueue).unwrap(), vec!["new"; jobs.into()]);
    (schema, client)
}

/// An ended job, told to the ledger; `held` holds its unique key for ten days.
fn put_ended(client: &mut Client, number: i64, at: i64, outcome: &str, held: bool) {
    let (key, period) = if held { ("'u'", "864000000000000") } else { ("NULL", "NULL") };
    let sql = format!(
        "WITH ended AS (
             SELECT (jsonb_populate_record(NULL::job, jsonb_build_object(
                 'id', lpad(to_hex({number}), 32, '0'), 'seq', {number}, 'tenant', 'acme', 'kind', 'k', 'payload', '{{}}', 'priority', 0,
                 'cost', 1, 'max_attempts', 3, 'max_crashes', 2, 'backoff_base', 1, 'backoff_cap', 1, 'missed', 0, 'stage', 'stopped',
                 'outcome', '{outcome}', 'due', {at}, 'order_at', {at}, 'attempt', 1, 'fence', 1, 'crashes', 0, 'alone', false,
                 'enqueued_at', {at}, 'since', {at}, 'forget', false, 'while_wanted', false,
                 'unique_key', {key}, 'unique_period', {period}))).*
         ), told AS (INSERT INTO ledger (tenant, kept) VALUES ('acme', 1))
         INSERT INTO history SELECT * FROM ended"
    );
    one(client, &sql);
}

fn kept(client: &mut Client) -> String {
    one(client, "SELECT kept FROM tally('acme')")
}

/// The jobs that ended, each with the table it is in.
fn places(client: &mut Client) -> Vec<String> {
    ask(client, "SELECT tableoid::regclass, right(id::text, 1) FROM history ORDER BY id").unwrap()
}

/// C44: a day goes whole once nothing of it is to be kept, and the numbers follow; but not while it holds a unique key.
#[test]
fn old_days_are_dropped_whole() {
    let (_schema, mut client) = open();
    one(&mut client, &format!("SELECT make_partitions({NOON})"));
    for (number, day, held) in [(1, 0, false), (2, 0, false), (3, 1, true), (4, 2, false)] {
        put_ended(&mut client, number, NOON + day * DAY, "succeeded", held);
    }
    put_ended(&mut client, 5, NOON, "failed", false);
    let all =
        ["history_20010909 1", "history_20010909 2", "history_20010910 3", "history_20010911 4", "history_other 5"];
    assert_eq!(places(&mut client), all);
    let drop_before =
        |client: &mut Client, days: i64| one(client, &format!("SELECT drop_partitions({0}, {0})", NOON + days * DAY));
    assert_eq!(drop_before(&mut client, 0), "0", "today is not over");
    assert_eq!(drop_before(&mut client, 1), "2");
    assert_eq!(drop_before(&mut client, 5), "1", "the day before waits for a key");
    assert_eq!((places(&mut client), kept(&mut client)), (vec![all[2].to_owned(), all[4].to_owned()], "2".to_owned()));
    assert_eq!(drop_before(&mut client, 12), "1");
    assert_eq!((places(&mut client), kept(&mut client)), (vec![all[4].to_owned()], "1".to_owned()));
}

/// C44: jobs that are kept for a day or longer are not deleted one by one: they go with their day. Those without a day
/// do go so.
#[test]
fn what_is_kept_for_days_goes_with_its_day() {
    let (_schema, mut client) = open();
    one(&mut client, &format!("SELECT make_partitions({NOON})"));
    for (number, at) in [(1, NOON), (2, NOON + DAY), (3, NOON - DAY)] {
        put_ended(&mut client, number, at, "succeeded", false);
    }
    assert_eq!(places(&mut client), ["history_20010909 1", "history_20010910 2", "history_undated 3"]);
    let prune = |client: &mut Client, keep: i64, at: i64| {
        one(client, &format!("SELECT prune({keep}, {keep}, {keep}, {keep}, 9, {at})"))
    };
    assert_eq!(
        prune(&mut client, DAY, NOON + DAY + 1),
        "1",
        "the one without a day, and not the first, though that is as old"
    );
    assert_eq!(places(&mut client), ["history_20010909 1", "history_20010910 2"]);
    assert_eq!(prune(&mut client, DAY, NOON + 3 * DAY / 2), "1", "its day is over for a day");
    assert_eq!(prune(&mut client, DAY - 1, NOON + 2 * DAY), "1", "a shorter time is exact");
    assert_eq!((places(&mut client), kept(&mut client)), (vec![], "0".to_owned()));
}

/// An index by age costs every job that ends, so only who has jobs deleted one by one gets it: in every day there is,
/// and in those that are made later.
#[test]
fn days_are_indexed_for_those_who_keep_jobs_for_less() {
    let (schema, mut client) = open();
    one(&mut client, &format!("SELECT make_partitions({NOON})"));
    put_ended(&mut client, 1, NOON, "succeeded", false);
    let indexed = "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relname ~ '^history_2001\\d+_since$'";
    let prune =
        |client: &mut Client, keep: i64, at: i64| one(client, &format!("SELECT prune({keep}, 0, 0, 0, 9, {at})"));
    prune(&mut client, DAY, NOON + 1);
    assert_eq!(one(&mut client, indexed), "0");
    let mut ender = schema.connect();
    one(&mut ender, "BEGIN");
    put_ended(&mut ender, 2, NOON + DAY, "succeeded", false);
    assert_eq!(prune(&mut client, DAY - 1, NOON + DAY), "1", "nobody waits for one who ends a job");
    assert_eq!(one(&mut client, indexed), "3", "but his day is left for the next time");
    one(&mut ender, "COMMIT");
    for (days, why) in [("4", "it is there now, and makes another day"), ("5", "which is indexed in its turn")] {
        prune(&mut client, DAY - 1, NOON + DAY);
        assert_eq!(one(&mut client, indexed), days, "{why}");
    }
}

/// Jobs that ended before their day had a table are no reason to fail, nor is somebody who reads.
#[test]
fn days_are_made_when_they_can_be() {
    let (schema, mut client) = open();
    let today = "SELECT to_regclass('history_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NOT NULL";
    assert_eq!(one(&mut client, today), "t", "a new store has the first of them");
    put_ended(&mut client, 1, NOON, "succeeded", false);
    let make = format!("SELECT make_partitions({NOON})");
    let mut reader = schema.connect();
    one(&mut reader, "BEGIN; SELECT count(*) FROM history");
    one(&mut client, &make);
    let days = "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname ~ '^history_2001\\d+$'";
    assert_eq!(one(&mut client, days), "0", "it does not wait for a reader");
    one(&mut reader, "COMMIT");
    one(&mut client, &make);
    assert_eq!(one(&mut client, days), "3", "today has none");
    put_ended(&mut client, 2, NOON + DAY, "succeeded", false);
    assert_eq!(places(&mut client), ["history_undated 1", "history_20010910 2"]);
    one(&mut client, &make);
    assert_eq!(one(&mut client, days), "3");
}

/// C50: whoever begins to wait while somebody ends the job sees the end, or is told of it.
#[test]
fn nobody_waits_for_an_end_that_nobody_tells() {
    let (schema, mut ender) = open();
    let id = one(&mut ender, "SELECT job_id FROM enqueue('k')");
    let wait = format!("SELECT wait_for(1, '{{{id}}}')");
    one(&mut ender, &format!("BEGIN; SELECT was FROM cancel('{id}', 'enough')"));
    let (mut waiter, mut witness) = (schema.connect(), schema.connect());
    let process = one(&mut waiter, "SELECT pg_backend_pid()");
    let waiting = std::thread::spawn(move || one(&mut waiter, &wait));
    let is_held = format!("SELECT cardinality(pg_blocking_pids({process})) > 0");
    while !waiting.is_finished() && one(&mut witness, &is_held) == "f" {}
    one(&mut ender, "COMMIT");
    assert_eq!(waiting.join().unwrap(), format!("{{{id}}}"), "it has ended");
    assert_eq!(one(&mut ender, "SELECT count(*) FROM waiter"), "0");
}

/// C49: of two nodes that give up their interest at the same moment, the second cancels the job.
#[test]
fn the_last_interest_is_noticed() {
    let (schema, mut one_node) = open();
    one(&mut one_node, "SELECT join_node(n, 'n', '{}', '{}', 4, 15000000) FROM generate_series(1, 2) n");
    let id = one(&mut one_node, "SELECT job_id FROM enqueue('k')");
    one(
        &mut one_node,
        "UPDATE job SET while_wanted = true; INSERT INTO interest SELECT id, n FROM job, generate_series(1, 2) n",
    );
    let unwant = |node: u8| format!("SELECT unwant('{id}', {node})");
    one(&mut one_node, &format!("BEGIN; {}", unwant(1)));
    let (mut other, mut witness) = (schema.connect(), schema.connect());
    let process = one(&mut other, "SELECT pg_backend_pid()");
    let ask = unwant(2);
    let giving_up = std::thread::spawn(move || one(&mut other, &ask));
    let is_held = format!("SELECT cardinality(pg_blocking_pids({process})) > 0");
    while !giving_up.is_finished() && one(&mut witness, &is_held) == "f" {}
    one(&mut one_node, "COMMIT");
    giving_up.join().unwrap();
    assert_eq!(one(&mut one_node, "SELECT outcome FROM jobs"), "cancelled");
}

/// C38: jobs that somebody's open transaction has locked hold no claim up, and are not forgotten: the queues of their
/// tenants begin with them when they are free again. With one tenant, and with several.
#[test]
fn what_somebody_has_locked_is_left_and_found_again() {
    for tenants in [1, 3] {
        let (schema, mut client) = open_with(12, tenants);
        one(&mut client, "SET lock_timeout = '5s'");
        let mut other = schema.connect();
        let mut claim = |max: usize| {
            let sql = format!("SELECT payload FROM claim(1, {max}, '{{k}}', '{{99}}') WHERE id IS NOT NULL");
            let mut given: Vec<u8> = ask(&mut client, &sql).unwrap().iter().map(|job| job.parse().unwrap()).collect();
            given.sort_unstable();
            given
        };
        one(&mut other, "BEGIN; SELECT FROM job WHERE payload IN ('0', '4', '5') FOR UPDATE");
        assert_eq!(claim(3), [1, 2, 3], "{tenants}");
        assert_eq!(claim(99), [6, 7, 8, 9, 10, 11], "{tenants}");
        assert_eq!(claim(99), [0; 0], "{tenants}");
        one(&mut other, "ROLLBACK");
        assert_eq!(claim(2), [0, 4], "{tenants}");
        assert_eq!(claim(99), [5], "{tenants}");
    }
}

/// With one tenant, claims of several nodes take turns: the second waits for the first, and finds where it left off.
/// But not for whoever has the tenant for long.
#[test]
fn a_claim_waits_for_another_and_not_for_long() {
    let (schema, mut first) = open_with(6, 1);
    one(&mut first, "SELECT join_node(2, 'n', '{k}', '{}', 99, 15000000); SELECT take_news(false)");
    let (mut second, mut witness) = (schema.connect(), schema.connect());
    let claim =
        |node: u8, max: u8| format!("SELECT count(id), bool_or(more) FROM claim({node}, {max}, '{{k}}', '{{9}}')");
    assert_eq!(one(&mut first, &format!("BEGIN; {}", claim(1, 2))), "2 t");
    let process = one(&mut second, "SELECT pg_backend_pid()");
    let ask_second = claim(2, 2);
    let waiting = std::thread::spawn(move || {
        // Longer than a slow machine takes to see that it waits.
        one(&mut second, "ALTER FUNCTION wait_for_turn SET lock_timeout = '60s'");
        (one(&mut second, &ask_second), second)
    });
    let is_held = format!("SELECT cardinality(pg_blocking_pids({process})) > 0");
    while !waiting.is_finished() && one(&mut witness, &is_held) == "f" {}
    one(&mut first, "COMMIT");
    let (given, mut second) = waiting.join().unwrap();
    assert_eq!(given, "2 t");

    one(&mut second, "ALTER FUNCTION wait_for_turn SET lock_timeout = '20ms'");
    one(&mut first, "BEGIN; SELECT FROM tenant FOR NO KEY UPDATE");
    assert_eq!(one(&mut second, &claim(2, 9)), "0 t", "there is more, and somebody has it");
    one(&mut first, "COMMIT");
    assert_eq!(one(&mut second, &claim(2, 9)), "2 f");
}

/// C40: what another claim has taken counts before it is committed, and an end makes room when it is committed, not
/// before. A limit that is being lowered holds from its commit on.
#[test]
fn a_limit_counts_claims_before_their_commit_and_ends_after_it() {
    let (schema, mut first) = open_with(9, 1);
    one(&mut first, "SELECT join_node(2, 'n', '{k}', '{}', 99, 15000000); SELECT take_news(false)");
    let limit = |max: u8| format!("SELECT set_tenant('t0', true, {max}, NULL, NULL, 1, NULL, NULL, NULL, NULL)");
    one(&mut first, &limit(3));
    let mut second = schema.connect();
    one(&mut second, "SET lock_timeout = '5s'");
    let claim = |node: u8, max: u8| format!("SELECT count(id) FROM claim({node}, {max}, '{{k}}', '{{99}}')");
    let finish = "SELECT count(*) FROM (SELECT id FROM job WHERE node = 1 AND stage = 'running' ORDER BY id LIMIT 1) j,
                  LATERAL finish(1, ARRAY[j.id], '{1}', '{succeeded}', '{1}', '{NULL}', '{NULL}') f WHERE f.ord = 0";

    for (end, room) in [("ROLLBACK", "3"), ("COMMIT", "1")] {
        assert_eq!(one(&mut first, &format!("BEGIN; {}", claim(1, 2))), "2");
        assert_eq!(one(&mut second, &claim(2, 9)), "0", "the tenant is in other hands");
        one(&mut first, end);
        assert_eq!(one(&mut second, &format!("BEGIN; {}", claim(2, 9))), room, "{end}");
        one(&mut second, if end == "COMMIT" { "COMMIT" } else { "ROLLBACK" });
    }
    for (end, room) in [("ROLLBACK", "0"), ("COMMIT", "1")] {
        assert_eq!(one(&mut first, &format!("BEGIN; {finish}")), "1");
        assert_eq!(one(&mut second, &claim(2, 9)), "0", "the run may yet go on");
        one(&mut first, end);
        assert_eq!(one(&mut second, &claim(2, 9)), room, "{end}");
    }
    one(&mut first, &format!("{finish}; BEGIN; {}", limit(2)));
    assert_eq!(one(&mut second, &claim(2, 9)), "0", "what it will be is not known");
    one(&mut first, "COMMIT");
    assert_eq!(one(&mut second, &claim(2, 9)), "0", "two run, and two may");
    assert_eq!(one(&mut first, "SELECT ready, running FROM totals()"), "5 2");
}

/// Nothing comes of getting ready: no job, no tenant, no number, no lease of another length; and where there is work,
/// it is left to others.
#[test]
fn a_node_gets_ready_without_a_trace() {
    for jobs in [0, 3] {
        let (_schema, mut client) = open_with(jobs, 1);
        let all = "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM tenant), (SELECT count(*) FROM ledger), (SELECT count(*) FROM run),
                          (SELECT sum(ready) FROM totals()), (SELECT (workers, kinds, expires_at, turn) FROM node)";
        let before = one(&mut client, all);
        one(&mut client, "SELECT get_ready(1)");
        assert_eq!(one(&mut client, all), before);
        assert_eq!(one(&mut client, "SELECT count(id) FROM claim(1, 9, '{k}', '{9}')"), jobs.to_string());
    }
}

/// C39: a node cannot be taken for dead between a claim and its commit, and what was claimed is found when it is; and a
/// claim by a node that has just been taken for dead gives nothing.
#[test]
fn either_the_reaper_sees_a_claim_or_the_claim_sees_the_reaper() {
    let (schema, mut node) = open();
    one(&mut node, "SELECT join_node(1, 'n', '{k}', '{}', 4, 0), status FROM enqueue('k'); SELECT take_news(false)");
    let claim = "SELECT count(id) FROM claim(1, 9, '{k}', '{9}')";
    let (mut reaper, mut witness) = (schema.connect(), schema.connect());
    assert_eq!(one(&mut node, &format!("BEGIN; {claim}")), "1");
    assert_eq!(one(&mut reaper, "SELECT lost FROM tend()"), "0", "it claims at this moment");
    one(&mut node, "COMMIT");
    assert_eq!(one(&mut reaper, "SELECT lost FROM tend()"), "1");

    one(&mut node, "SELECT join_node(1, 'n', '{k}', '{}', 4, 0)");
    // All that it does about this node, and not what would keep a claim away from the tenant as well.
    one(&mut reaper, "SELECT take_news(false); BEGIN; SELECT lose(1, true, present(NULL))");
    let process = one(&mut node, "SELECT pg_backend_pid()");
    let claiming = std::thread::spawn(move || ask(&mut node, claim));
    let is_held = format!("SELECT cardinality(pg_blocking_pids({process})) > 0");
    while !claiming.is_finished() && one(&mut witness, &is_held) == "f" {}
    one(&mut reaper, "COMMIT");
    assert_eq!(claiming.join().unwrap().unwrap_err(), ENDED);
    assert_eq!(one(&mut witness, "SELECT ready, running FROM totals()"), "1 0");
}

/// What a claim hears that gives nothing after all.
const ENDED: &str = "the lease of the node, or the era of the claim, has just ended";

/// C38, C40: a node that begins another era hears of all that it was given in the last: a claim that is about to be
/// committed is waited for, and one that comes to its end later gives nothing.
#[test]
fn either_another_era_sees_a_claim_or_the_claim_sees_the_era() {
    let (schema, mut late) = open_with(2, 1);
    let (mut node, mut witness) = (schema.connect(), schema.connect());
    one(&mut witness, "SELECT take_news(false)");
    let claim = "SELECT count(id) FROM claim(1, 1, '{k}', '{1}', of_era => 0)";
    let beat = |era: u8| {
        format!("SELECT count(id) FROM heartbeat(1, 'n', '{{k}}', '{{}}', 99, 15000000, era => {era}::bigint)")
    };
    let process = |client: &mut Client| one(client, "SELECT pg_backend_pid()");
    let is_held = |process: &str| format!("SELECT cardinality(pg_blocking_pids({process})) > 0");

    one(&mut late, &format!("BEGIN; {claim}"));
    let (held, asked) = (is_held(&process(&mut node)), beat(1));
    let beating = std::thread::spawn(move || (one(&mut node, &asked), node));
    while !beating.is_finished() && one(&mut witness, &held) == "f" {}
    one(&mut late, "COMMIT");
    let (running, mut node) = beating.join().unwrap();
    assert_eq!(running, "1", "it was waited for");

    one(&mut node, &format!("BEGIN; {}", beat(2)));
    let held = is_held(&process(&mut late));
    let claiming = std::thread::spawn(move || ask(&mut late, &claim.replace("=> 0", "=> 1")));
    while !claiming.is_finished() && one(&mut witness, &held) == "f" {}
    one(&mut node, "COMMIT");
    assert_eq!(claiming.join().unwrap().unwrap_err(), ENDED);
    assert_eq!(one(&mut witness, "SELECT ready, running FROM totals()"), "1 1");
}

/// C40, C41: jobs go to an idle node with the enqueue, unless somebody's place or turn would be taken by that, or
/// somebody would have to be waited for.
#[test]
fn an_enqueue_gives_only_what_is_nobody_elses() {
    let enqueue = |node: u8, due_in: u32| {
        format!(
            "SELECT count(*) FROM enqueue_alike(ARRAY[gen_random_uuid(), gen_random_uuid()], '{{1,2}}', 'k', 't0', NULL, 0::smallint, 1, NULL, {due_in}, NULL,
                3, 3, 1, 1, NULL, NULL, {node}, 0) WHERE status = 'given'"
        )
    };
    let numbers = "SELECT scheduled, ready, running FROM totals()";
    let (schema, mut client) = open_with(0, 1);
    assert_eq!(one(&mut client, &enqueue(1, 0)), "0", "nobody knows what its tenant may");
    one(&mut client, "SELECT count(*) FROM claim(1, 9, '{k}', '{9}')");
    assert_eq!(one(&mut client, &enqueue(1, 0)), "1");
    assert_eq!(one(&mut client, numbers), "0 0 4");
    let given = "SELECT count(*) FROM job WHERE id = ANY (ran_by(1)) AND node = 1 AND fence = 1 AND attempt = 1";
    assert_eq!(one(&mut client, given), "4");
    let turn = one(&mut client, "SELECT finish > 0 AND running = 4 FROM tenant");
    assert_eq!(turn, "t", "it counts");

    let mut other = schema.connect();
    let mut is_not_given = |node: u8, due_in: u32, before: &str, why: &str| {
        one(&mut client, "BEGIN");
        one(&mut client, before);
        assert_eq!(one(&mut client, &enqueue(node, due_in)), "0", "{why}");
        let waiting = one(&mut client, "SELECT scheduled + ready > 0 FROM totals()");
        assert_eq!(waiting, "t", "{why}: it is there all the same");
        one(&mut client, "ROLLBACK");
    };
    is_not_given(1, 1_000_000, "SELECT 1", "it is not due");
    is_not_given(2, 0, "SELECT 1", "nobody knows the node");
    is_not_given(1, 0, "UPDATE node SET era = 1", "the node said so in an era that is over");
    is_not_given(1, 0, "UPDATE tenant SET running_max = 99", "starts are counted");
    is_not_given(1, 0, "UPDATE tenant SET rate_gap = 1, rate_burst = 9", "starts are counted");
    is_not_given(1, 0, "UPDATE tenant SET paused = true", "it starts nothing");
    is_not_given(1, 0, "SELECT status FROM enqueue('k', tenant => 't0')", "another is ready, and the ledger says so");
    is_not_given(
        1,
        0,
        "SELECT status FROM enqueue('k', tenant => 't0'); SELECT take_news(true)",
        "another is ready, and its tenant says so",
    );
    for row in ["tenant", "node"] {
        one(&mut other, &format!("BEGIN; SELECT FROM {row} FOR NO KEY UPDATE"));
        is_not_given(1, 0, "SET lock_timeout = '5s'", "somebody has a row that it needs");
        one(&mut other, "ROLLBACK");
    }
    assert_eq!(one(&mut client, &enqueue(1, 0)), "1");
}

/// C43: what has expired, and nobody has said so yet, is not given; what follows it is, and what is not given yet has
/// its place.
#[test]
fn what_has_expired_is_stepped_over() {
    for tenants in [1, 3] {
        let (_schema, mut client) = open_with(9, tenants);
        one(&mut client, "UPDATE job SET expires_at = 1 WHERE payload IN ('0', '3', '4')");
        let claim =
            "SELECT array_agg(payload::int ORDER BY payload::int) FROM claim(1, 9, '{k}', '{99}') WHERE id IS NOT NULL";
        assert_eq!(one(&mut client, claim), "{1,2,5,6,7,8}", "{tenants}");
        one(&mut client, "UPDATE job SET expires_at = NULL");
        assert_eq!(one(&mut client, claim), "{0,3,4}", "{tenants}");
    }
}

/// For people: dates are dates, and of what never comes infinity.
#[test]
fn the_view_for_people_has_dates() {
    let (_schema, mut client) = open();
    one(
        &mut client,
        "SELECT status FROM enqueue('k', due => '2101-01-01'); UPDATE sched SET due = 4000000000000000000",
    );
    one(&mut client, "SELECT status FROM enqueue('other', due => '2101-02-03 04:05:06.789012Z')");
    one(&mut client, "SET timezone = 'UTC'");
    let jobs = ask(&mut client, "SELECT kind, stage, due FROM jobs ORDER BY due").unwrap();
    assert_eq!(jobs, ["other scheduled 2101-02-03 04:05:06.789012+00", "k scheduled infinity"]);
}

/// C36: whatever an operator asks for by SQL, no claim stumbles over it, and others are served.
#[test]
fn odd_limits_stop_nobody() {
    let (_schema, mut client) = open_with(6, 2);
    let most = i64::MAX;
    let odd = [
        format!("NULL, NULL, NULL, {most}, NULL, NULL"),
        format!("{most}, {most}, {most}, -7, {most}, {most}"),
        "NULL, NULL, NULL, 1, 0, 1".to_owned(),
        "NULL, NULL, NULL, 1, -5, -5".to_owned(),
        "-1, -1, -1, 0, 1, 0".to_owned(),
    ];
    for limits in odd {
        one(&mut client, &format!("SELECT set_tenant('t0', true, {limits}, NULL, NULL)"));
        let claim = "SELECT count(*) FROM claim(1, 2, '{k}', '{9}') WHERE tenant = 't1'";
        assert_ne!(ask(&mut client, &format!("BEGIN; {claim}; ROLLBACK")), Ok(vec!["0".to_owned()]), "{limits}");
    }
}

/// C42: a run of a tenant at its limit ends while another node's claim is taking in new work of that tenant. The claim
/// has not seen the end, and the end sees no work yet: but it sees that there is news, and says that somebody may
/// start.
#[test]
fn an_end_beside_a_claim_that_takes_in_news_is_told() {
    let (schema, mut client) = open();
    one(&mut client, "SELECT join_node(n, 'n', '{k,other}', '{}', 9, 15000000) FROM generate_series(1, 2) n");
    one(&mut client, "SELECT set_tenant('t', true, 1, NULL, NULL, 1, NULL, NULL, NULL, NULL)");
    one(&mut client, "SELECT status FROM enqueue('k', tenant => 't')");
    let id = one(&mut client, "SELECT id FROM claim(1, 1, '{k}', '{9}') WHERE id IS NOT NULL");
    one(&mut client, "SELECT take_news(false); SELECT status FROM enqueue('other', tenant => 't')");
    let mut second = schema.connect();
    let claim = "SELECT count(id), bool_or(more) FROM claim(2, 1, '{other}', '{9}')";
    assert_eq!(one(&mut second, &format!("BEGIN; {claim}")), "0 f", "it is at its limit");
    let finish =
        format!("SELECT work FROM finish(1, '{{{id}}}', '{{1}}', '{{succeeded}}', '{{1}}', '{{NULL}}', '{{NULL}}')");
    assert_eq!(one(&mut client, &finish), "t");
    one(&mut second, "COMMIT");
    assert_eq!(one(&mut second, claim), "1 f");
}

/// Who cancels a job, or changes it, and has to wait for its row has nothing of anybody else's meanwhile: what expired
/// at that moment can be had.
#[test]
fn who_waits_for_a_job_holds_no_other() {
    for change in ["cancel($1, 'enough')", "edit($1, NULL, 1, NULL, NULL, NULL, NULL, NULL)"] {
        let (schema, mut client) = open_with(2, 1);
        let id = one(&mut client, "SELECT id FROM job WHERE payload = '0'");
        one(&mut client, "UPDATE job SET expires_at = 1 WHERE payload = '1'");
        one(&mut client, &format!("BEGIN; SELECT FROM job WHERE id = '{id}' FOR UPDATE"));
        let (mut other, mut witness) = (schema.connect(), schema.connect());
        let process = one(&mut other, "SELECT pg_backend_pid()");
        let change = format!("SELECT FROM {}", change.replace("$1", &format!("'{id}'")));
        let waiting = std::thread::spawn(move || one(&mut other, &change));
        let is_held = format!("SELECT cardinality(pg_blocking_pids({process})) > 0");
        while !waiting.is_finished() && one(&mut witness, &is_held) == "f" {}
        assert_eq!(one(&mut witness, "SELECT payload FROM job WHERE expires_at = 1 FOR UPDATE SKIP LOCKED"), "1");
        one(&mut client, "COMMIT");
        waiting.join().unwrap();
    }
}

/// C30, C46: a run past its deadline has expired, whatever came of it, however many others have at that moment.
#[test]
fn a_late_end_is_an_expiry_beside_many_others() {
    let (_schema, mut client) = open_with(250, 1);
    one(
        &mut client,
        "SELECT count(*) FROM claim(1, 999, '{k}', '{999}'); UPDATE job SET expires_at = payload::bigint + 1, deadline = 1",
    );
    let finish = "SELECT f.outcome FROM job j, LATERAL finish(1, ARRAY[j.id], '{1}', '{succeeded}', '{1}', '{NULL}', '{NULL}') f WHERE j.payload = '249'";
    assert_eq!(one(&mut client, finish), "expired");
}
