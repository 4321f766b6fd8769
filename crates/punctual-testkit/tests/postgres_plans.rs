//! No operation on the hot path reads or sorts a big table, whatever the planner believes.
//!
//! Every function is called on a store with tens of thousands of jobs while the server tells, by `auto_explain`, the
//! plan of each statement inside and what it really did. The judge demands that on the hot path nothing scans a big
//! table from end to end, reads thousands of its rows for an answer of some hundred, compares each of many with each of
//! many others, or sorts thousands; and that it has seen a plan of every function there is. A plan may also be an old
//! one: it was made when the store was new, and is kept by its connection until somebody looks at the tables.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use postgres::{Client, NoTls};
use punctual_durable::PostgresOptions;
use punctual_testkit::block_on;
use punctual_testkit::postgres::Schema;
use serde_json::Value;

/// Tables that grow with the number of jobs, of tenants, or of those who wait. `history` is its partitions too.
const BIG: [&str; 9] = ["job", "sched", "history", "ledger", "live_key", "tenant", "run", "waiter", "interest"];
/// No call asks for more than 500 jobs.
const ROWS_MAX: f64 = 2_500.0;
/// Jobs that are parked, those that are ready, and those that have ended.
const PARKED: u64 = 20_000;
const READY: u64 = 5_000;
const ENDED: u64 = 5_000;

/// What a statement inside a call did that it should not have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Complaint {
    /// The function that the statement is in, or the call itself.
    function: String,
    what: String,
    statement: String,
}

/// A connection whose statements, and those inside of functions, tell their plans.
struct Watched {
    client: Client,
    told: Arc<Mutex<Vec<(String, Value)>>>,
    /// The functions of which a statement has told its plan.
    seen: BTreeSet<String>,
    /// Plans are those of the first time that something was called.
    keeps_plans: bool,
}

impl Watched {
    fn new(schema: &Schema) -> Self {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        let mut config: postgres::Config = schema.url().parse().unwrap();
        config.notice_callback(move |notice| {
            if let Some((_, plan)) = notice.message().split_once("plan:\n") {
                let told = serde_json::from_str(plan).unwrap();
                tell.lock().unwrap().push((innermost(notice.where_()), told));
            }
        });
        let mut client = config.connect(NoTls).unwrap();
        // The words are those of a store; where there is none, they are not needed.
        client
            .batch_execute(&format!("SET check_function_bodies = off; SET search_path TO {}; {WORDS}", schema.name()))
            .unwrap();
        Self { client, told, seen: BTreeSet::new(), keeps_plans: false }
    }

    /// Calls everything on a store with a few jobs, where some of it fails, and keeps the plans.
    fn keep_plans(&mut self) {
        let few = format!(
            "SELECT join_node(1, 'n', '{{k0,k1,k2}}', '{{}}', 100, 10000000, {NOW}); SELECT pg_temp.put(1, 9, 0, {NOW}), pg_temp.put(10, 19, {DAY}, {NOW})"
        );
        // Rights that are given make all plans invalid.
        for Call(_, before, sql) in calls().filter(|call| call.0 != "grant_roles") {
            for sql in ["BEGIN", &few] {
                self.client.batch_execute(sql).unwrap();
            }
            let _ = self.client.batch_execute(&before).and_then(|()| self.client.batch_execute(&sql));
            self.client.batch_execute("ROLLBACK").unwrap();
        }
        self.keeps_plans = true;
    }

    /// What is wrong with the plans of a call, after something that is not watched. It leaves nothing behind.
    fn call(&mut self, before: &str, sql: &str) -> BTreeSet<Complaint> {
        const WATCH: &str = "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;
            SET auto_explain.log_timing = off; SET auto_explain.log_nested_statements = on; SET auto_explain.log_format = json;
            SET client_min_messages = log";
        self.told.lock().unwrap().clear();
        // A plan is kept for whoever calls next, with whatever settings: so each call makes its own.
        let plans = if self.keeps_plans { "" } else { "DISCARD PLANS" };
        for sql in ["BEGIN", before, plans, WATCH] {
            self.client.batch_execute(sql).unwrap();
        }
        let done = self.client.batch_execute(sql);
        self.client.batch_execute("ROLLBACK").unwrap();
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let told = std::mem::take(&mut *self.told.lock().unwrap());
        assert!(!told.is_empty(), "no plan was told of {sql}");
        let mut complaints = BTreeSet::new();
        for (function, told) in told {
            self.seen.insert(function.clone());
            let statement =
                told["Query Text"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
            let mut wrong = Vec::new();
            judge(&told["Plan"], &mut wrong);
            if told.get("JIT").is_some() {
                wrong.push("is compiled".to_owned());
            }
            complaints.extend(wrong.into_iter().map(|what| Complaint {
                function: function.clone(),
                what,
                statement: statement.chars().take(160).collect(),
            }));
        }
        complaints
    }
}

/// "PL/pgSQL function claim(bigint,...) line 7 at SQL statement" is about `claim`.
fn innermost(context: Option<&str>) -> String {
    let line = context.and_then(|text| text.lines().find(|line| line.contains(" function ")));
    let name = line.and_then(|line| line.split(" function ").nth(1)).and_then(|rest| rest.split(['(', ' ']).next());
    name.unwrap_or("the call").trim_matches('"').rsplit('.').next().unwrap_or_default().to_owned()
}

/// Looks at a node of a plan and at all below.
fn judge(node: &Value, wrong: &mut Vec<String>) {
    let number = |node: &Value, name: &str| node[name].as_f64().unwrap_or_default();
    let loops = |node: &Value| number(node, "Actual Loops").max(1.0);
    let kind = node["Node Type"].as_str().unwrap_or_default();
    let children = node["Plans"].as_array().map(Vec::as_slice).unwrap_or_default();
    let relation = node["Relation Name"].as_str().unwrap_or_default();
    if kind.contains("Scan") && BIG.iter().any(|&big| relation == big || relation.starts_with("history_")) {
        let read =
            ["Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck"].map(|name| number(node, name));
        let read = read.iter().sum::<f64>() * loops(node);
        // Of an empty partition everything may be read.
        if kind == "Seq Scan" && read > 0.0 {
            wrong.push(format!("scans all of {relation}"));
        }
        if read > ROWS_MAX {
            wrong.push(format!("reads {read} rows of {relation} ({kind})"));
        }
    }
    let compared = number(node, "Rows Removed by Join Filter") * loops(node);
    if compared > ROWS_MAX {
        wrong.push(format!("compares {compared} pairs of rows ({kind})"));
    }
    if kind.ends_with("Sort") {
        let rows: f64 = children.iter().map(|child| number(child, "Actual Rows") * loops(child)).sum();
        if rows > ROWS_MAX {
            wrong.push(format!("sorts {rows} rows"));
        }
    }
    children.iter().for_each(|child| judge(child, wrong));
}

/// Short words for the calls below: jobs by number, jobs to take in.
const WORDS: &str = "
CREATE FUNCTION pg_temp.id(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS
$$ SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid $$;
CREATE FUNCTION pg_temp.ids(first bigint, last bigint) RETURNS uuid[] LANGUAGE sql IMMUTABLE AS
$$ SELECT array_agg(pg_temp.id(n) ORDER BY n) FROM generate_series(first, last) n $$;
CREATE FUNCTION pg_temp.each(what text, count bigint) RETURNS text[] LANGUAGE sql IMMUTABLE AS
$$ SELECT array_fill(what, ARRAY[count::int]) $$;
CREATE FUNCTION pg_temp.each(what bigint, count bigint) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS
$$ SELECT array_fill(what, ARRAY[count::int]) $$;
-- Jobs of a hundred tenants and three kinds; of the new ones, every second has a unique key and a deadline.
CREATE FUNCTION pg_temp.put(first bigint, last bigint, due_in bigint, t bigint) RETURNS bigint LANGUAGE sql AS
$$ SELECT count(*) FROM (
    SELECT array_agg(pg_temp.id(n) ORDER BY n) AS ids, array_agg('k' || n % 3 ORDER BY n) AS kinds, array_agg('t' || n % 100 ORDER BY n) AS tenants,
           array_agg(CASE WHEN n % 2 = 0 AND n > 30000 THEN 'key' || n END ORDER BY n) AS keys, array_agg(CASE WHEN n % 2 = 0 THEN 'reject' END ORDER BY n) AS on_conflicts,
           array_agg(CASE WHEN n % 2 = 0 AND n > 30000 THEN due_in + 86400000000 END ORDER BY n) AS deadlines, array_agg(due_in + n ORDER BY n) AS dues, count(*) AS c
    FROM generate_series(first, last) n) a,
  LATERAL enqueue_batch(a.ids, a.kinds, a.tenants, pg_temp.each('{}', c), pg_temp.each('{\"tag\"}', c), pg_temp.each(0, c)::smallint[], pg_temp.each(1, c),
    NULL, CASE WHEN due_in > 0 THEN a.dues END, NULL, NULL, NULL, a.deadlines, pg_temp.each(3, c), pg_temp.each(3, c), pg_temp.each(1000000000, c), pg_temp.each(1000000000, c),
    a.keys, a.on_conflicts, NULL, NULL, NULL, pg_temp.each(0, c), NULL, NULL, t) e WHERE e.status = 'new' $$;
-- Ends whatever a node runs.
CREATE FUNCTION pg_temp.finish_all(of_node bigint, t bigint) RETURNS bigint LANGUAGE sql AS
$$ SELECT count(*) FROM (SELECT array_agg(id ORDER BY id) AS ids, array_agg(fence ORDER BY id) AS fences, count(*) AS c FROM job WHERE id = ANY (ran_by(of_node)) AND node = of_node AND stage = 'running') r,
   LATERAL finish(of_node, r.ids, r.fences, pg_temp.each('succeeded', c), pg_temp.each('1', c), NULL, NULL, t) $$;
-- Lets jobs of a table hold keys, and be wanted and waited for.
CREATE FUNCTION pg_temp.bind(place text, which text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('UPDATE %I SET while_wanted = true, unique_key = ''of'' || seq, on_conflict = ''replace'' WHERE %s', place, which);
    EXECUTE format('INSERT INTO live_key SELECT tenant, unique_key, id FROM %I WHERE %s', place, which);
    EXECUTE format('INSERT INTO interest SELECT id, 2 FROM %I WHERE %s', place, which);
    EXECUTE format('INSERT INTO waiter SELECT id, 2 FROM %I WHERE %s', place, which);
END $$;
-- Lets it try again later.
CREATE FUNCTION pg_temp.retry_all(of_node bigint, t bigint) RETURNS bigint LANGUAGE sql AS
$$ SELECT count(*) FROM (SELECT array_agg(id ORDER BY id) AS ids, array_agg(fence ORDER BY id) AS fences, count(*) AS c FROM job WHERE id = ANY (ran_by(of_node)) AND node = of_node AND stage = 'running') r,
   LATERAL finish(of_node, r.ids, r.fences, pg_temp.each('retry', c), pg_temp.each('no', c), NULL, pg_temp.each(60000000, c), t) $$;
";

/// The present of all calls, and a day in it.
const NOW: u64 = 1_800_000_000_000_000;
const DAY: u64 = 86_400_000_000;

/// Jobs by number: those that have ended, the ready ones, the parked ones, and from there on new ones.
const FIRST_READY: u64 = ENDED + 1;
const FIRST_PARKED: u64 = ENDED + READY + 1;
const FIRST_NEW: u64 = ENDED + READY + PARKED + 1;
/// Some of the ready ones run, at node 1.
const RUNNING: u64 = 100;

/// Makes the tables and functions of a store. Nobody learns anything about the tables behind the test's back.
fn open(schema: &Schema) {
    drop(block_on(PostgresOptions::new().schema(schema.name()).pool_size(1).open(schema.url())).unwrap());
    let mut client = schema.connect();
    for table in BIG.into_iter().filter(|&table| table != "history").chain(["history_undated", "history_other"]) {
        client.batch_execute(&format!("ALTER TABLE {table} SET (autovacuum_enabled = off)")).unwrap();
    }
}

/// What the planner knows of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Story {
    Analyzed,
    AnalyzedWhenEmpty,
    /// The plans were made when there was one tenant, and nobody has looked at the tables since.
    PlannedWhenSmall,
}

/// Fills a store.
fn fill(client: &mut Client, story: Story) {
    let run = |client: &mut Client, sql: String| {
        client.batch_execute(&sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    };
    for node in 1..=3 {
        run(client, format!("SELECT join_node({node}, 'n{node}', '{{k0,k1,k2}}', '{{}}', 100, 10000000, {NOW})"));
    }
    let put = |client: &mut Client, first: u64, count: u64, due_in: u64| {
        for first in (first..first + count).step_by(500) {
            run(client, format!("SELECT pg_temp.put({first}, {}, {due_in}, {NOW})", first + 499));
        }
    };
    put(client, 1, ENDED, 0);
    for _ in 0..ENDED / 500 {
        run(
            client,
            format!(
                "SELECT claim(2, 500, '{{k0,k1,k2}}', '{{500,500,500}}', {NOW}); SELECT pg_temp.finish_all(2, {NOW})"
            ),
        );
    }
    put(client, FIRST_READY, READY, 0);
    put(client, FIRST_PARKED, PARKED, DAY);
    run(client, format!("SELECT claim(1, {RUNNING}, '{{k0,k1,k2}}', '{{500,500,500}}', {NOW})"));
    run(client, "UPDATE history SET since = since + seq".to_owned());
    // Deadlines and limits come last: what has none is quicker to take in.
    for table in ["job", "sched"] {
        run(client, format!("UPDATE {table} SET deadline = due + {DAY}, expires_at = due + {DAY} WHERE seq % 2 = 0"));
        // That makes all plans invalid.
        if story != Story::PlannedWhenSmall {
            run(client, format!("VACUUM {table}"));
        }
    }
    for tenant in 0..100 {
        run(
            client,
            format!("SELECT set_tenant('t{tenant}', true, 50, 100000, 100000, 1, NULL, NULL, NULL, NULL, {NOW})"),
        );
    }
    for number in 0..50 {
        run(
            client,
            format!(
                "SELECT put_schedule('s{number}', 't1', NULL, NULL, 1000000000, {NOW}, 'once', NULL, '{{}}', {NOW} + {number}, false, NULL, 0, 0, {NOW})"
            ),
        );
    }
    // Keys of jobs that have ended, held by their periods.
    run(
        client,
        format!(
            "INSERT INTO live_key SELECT 't' || n % 100, 'key' || n, pg_temp.id(n), {NOW} + {DAY} FROM generate_series(1, 12000) n"
        ),
    );
    fill_the_rest(client);
    // What is ready and what ended since the last claim is told by many rows of the ledger.
    let news = "INSERT INTO ledger (tenant, kind, order_at, seq) SELECT 't' || n % 100, CASE WHEN n % 2 = 0 THEN 'k0' END, 0, 0 FROM generate_series(1, 6000) n";
    run(client, news.to_owned());
    let counted = |client: &mut Client, table: &str| {
        let count: i64 = client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).unwrap().get(0);
        u64::try_from(count).unwrap()
    };
    assert_eq!((counted(client, "job"), counted(client, "sched"), counted(client, "history")), (READY, PARKED, ENDED));
    for table in ["ledger", "live_key", "tenant", "run", "waiter", "interest"] {
        assert!(counted(client, table) >= 5_000, "{table}");
    }
}

/// Tenants of which nothing is to be done, and what other nodes run, want and wait for.
fn fill_the_rest(client: &mut Client) {
    let rows = [
        "INSERT INTO tenant (name, number, has_policy) SELECT 'idle' || n, -n, true FROM generate_series(1, 10000) n",
        "INSERT INTO run SELECT 1000 + n % 500, pg_temp.ids(n, n + 1) FROM generate_series(1, 5000) n",
        "INSERT INTO waiter SELECT pg_temp.id(n), 1000 + n % 500 FROM generate_series(1, 12000) n",
        "INSERT INTO interest SELECT * FROM waiter",
    ];
    for sql in rows {
        client.batch_execute(sql).unwrap();
    }
}

/// A call: what it is, what comes before it, and its statement. The name begins with that of its function.
struct Call(&'static str, String, String);

impl Call {
    fn new(name: &'static str, sql: impl Into<String>) -> Self {
        Self(name, String::new(), sql.into())
    }

    fn after(self, before: impl Into<String>) -> Self {
        Self(self.0, before.into(), self.2)
    }
}

fn id(number: u64) -> String {
    format!("pg_temp.id({number})")
}

/// One job of each sort.
const A_READY: u64 = FIRST_READY + READY - 1;
const A_PARKED: u64 = FIRST_PARKED + 9;
const AN_ENDED: u64 = 7;

fn calls() -> impl Iterator<Item = Call> {
    calls_of_workers().into_iter().chain(calls_of_time()).chain(calls_about_one_job()).chain(calls_of_people())
}

/// Everything that is ready is of three tenants, whose queues are long.
const DEEP: &str = "SELECT take_news(false); UPDATE job SET tenant = 't' || seq % 3 WHERE stage = 'ready';
    UPDATE tenant SET has_work = name IN ('t0', 't1', 't2'), kinds = '{k0,k1,k2}', first_at = '{0,0,0}', first_seq = '{0,0,0}'";

/// What is called for every job.
fn calls_of_workers() -> Vec<Call> {
    let put = |count: u64, due_in: u64| {
        format!("SELECT pg_temp.put({FIRST_NEW}, {}, {due_in}, {NOW})", FIRST_NEW + count - 1)
    };
    let known =
        format!("SELECT pg_temp.put({AN_ENDED}, {AN_ENDED}, 0, {NOW}), pg_temp.put({A_PARKED}, {A_PARKED}, 0, {NOW})");
    let claim = |max: u64, kinds: &str| {
        let rooms = format!("array_fill({max}::bigint, ARRAY[{}])", kinds.split(',').count());
        format!("SELECT claim(1, {max}, '{{{kinds}}}', {rooms}, {NOW})")
    };
    let alike = |tenant: &str, count: u64, due_in: u64| {
        let (ids, payloads) =
            (format!("pg_temp.ids({FIRST_NEW}, {})", FIRST_NEW + count - 1), format!("pg_temp.each('{{}}', {count})"));
        format!(
            "SELECT enqueue_alike({ids}, {payloads}, 'k1', '{tenant}', NULL, 0::smallint, 1, NULL, {due_in}, NULL, 3, 3, 1000000000, 1000000000, NULL, {NOW})"
        )
    };
    let read_ledger = "SELECT take_news(false)";
    vec![
        Call::new("enqueue_batch, due", put(100, 0)),
        Call::new("enqueue_batch, one", put(1, 0)),
        Call::new("enqueue_batch, parked", put(100, DAY)),
        Call::new("enqueue_batch, known", known),
        Call::new("enqueue_alike, due", alike("t7", 100, 0)),
        Call::new("enqueue_alike, parked", alike("t7", 100, DAY)),
        Call::new("enqueue_alike, given to a node", alike("t7", 100, 0).replace(&format!("{NOW})"), &format!("{NOW}, 1)")))
            .after("SELECT take_news(false); UPDATE tenant SET has_work = false, running_max = NULL, backlog_max = NULL, scheduled_max = NULL"),
        Call::new("enqueue_alike, of a bounded tenant", alike("bounded", 100, 0))
            .after(format!("SELECT set_tenant('bounded', true, 5, 500, 5, 2, NULL, NULL, true, NULL, {NOW})")),
        Call::new("enqueue", format!("SELECT enqueue('k1', '{{}}', 't7', at => {NOW})")),
        Call::new("enqueue, in the place of another", format!("SELECT enqueue('k1', '{{}}', 't7', unique_key => 'mine', on_conflict => 'replace', at => {NOW})"))
            .after(format!("SELECT enqueue('k1', '{{}}', 't7', unique_key => 'mine', after => '1 day', at => {NOW})")),
        Call::new("claim, of a long ledger", claim(100, "k0,k1,k2")),
        Call::new("claim, of tenants never heard of", claim(100, "k0,k1,k2")).after(
            "SELECT take_news(false); INSERT INTO ledger (tenant, kind, order_at, seq) SELECT 'new' || n, 'k0', 0, 0 FROM generate_series(1, 500) n",
        ),
        Call::new("claim, of all kinds", claim(100, "k0,k1,k2")).after(read_ledger),
        Call::new("claim, of one kind", claim(100, "k1")).after(read_ledger),
        Call::new("claim, of one job", claim(1, "k0,k1,k2")).after(read_ledger),
        Call::new("wait_for_turn", format!("SELECT wait_for_turn('{{k1}}', 0, {NOW}000)")).after(read_ledger),
        Call::new("claim, of nothing", claim(100, "no")).after(read_ledger),
        Call::new("claim, of few tenants", claim(100, "k0,k1,k2")).after(DEEP),
        Call::new("claim, of one tenant", claim(100, "k0,k1,k2"))
            .after(format!("{DEEP}; UPDATE tenant SET paused = name <> 't1'")),
        Call::new("claim, of one queue", claim(100, "k1"))
            .after(format!("{DEEP}; UPDATE tenant SET paused = name <> 't1', kinds = '{{k1}}', first_at = '{{0}}', first_seq = '{{0}}'")),
        Call::new("claim, of less of a kind than of all", format!("SELECT claim(1, 100, '{{k0,k1,k2}}', '{{20,90,10}}', {NOW})"))
            .after(DEEP),
        Call::new("claim, past what has expired", claim(100, "k0,k1,k2"))
            .after(format!("{DEEP}; UPDATE job SET expires_at = {NOW} WHERE seq % 20 = 0")),
        Call::new("claim, of last chances", claim(100, "k0,k1,k2"))
            .after(format!("{DEEP}; UPDATE job SET alone = true WHERE seq % 20 = 0")),
        Call::new("get_ready", format!("SELECT get_ready(1, {NOW})")),
        Call::new("finish", format!("SELECT pg_temp.finish_all(1, {NOW})")),
        Call::new("finish, with keys and interest", format!("SELECT pg_temp.finish_all(1, {NOW})"))
            .after("SELECT pg_temp.bind('job', 'node = 1')"),
        Call::new("finish, to try again", format!("SELECT pg_temp.retry_all(1, {NOW})")),
    ]
}

/// What is called every now and then by every node.
fn calls_of_time() -> Vec<Call> {
    let beat = |node: u64| format!("{node}, 'n', '{{k0,k1,k2}}', '{{}}', 100, 10000000, {NOW}");
    let (due, late) = (NOW + DAY + FIRST_PARKED + 3_000, NOW + 2 * DAY + 1);
    vec![
        Call::new("join_node", format!("SELECT join_node({})", beat(9))),
        Call::new("heartbeat", format!("SELECT heartbeat({})", beat(1))),
        Call::new("leave", format!("SELECT leave(1, {NOW})")),
        Call::new("leave, and want nothing any more", format!("SELECT leave(1, {NOW})"))
            .after("INSERT INTO interest SELECT job, 1 FROM waiter LIMIT 20; INSERT INTO waiter SELECT job, 1 FROM interest LIMIT 20"),
        Call::new("tend, nothing to do", format!("SELECT tend({NOW})")),
        Call::new("tend, jobs due and nodes dead", format!("SELECT tend({due})")),
        Call::new("tend, jobs past their time", format!("SELECT tend({late})")),
        Call::new("promote", format!("SELECT promote({due}, 500)")),
        Call::new("foresee", format!("SELECT foresee(1, 100, '{{k0,k1,k2}}', {NOW}, {due}, 0)"))
            .after("UPDATE tenant SET running_max = NULL"),
        Call::new("expire", format!("SELECT expire({late}, 500)")),
        Call::new("expire, with keys and interest", format!("SELECT expire({late}, 500)"))
            .after("SELECT pg_temp.bind('job', 'seq % 20 = 0'), pg_temp.bind('sched', 'seq % 20 = 0')"),
        Call::new("catch_up", format!("SELECT catch_up({due})")),
        Call::new("keep_up", format!("SELECT keep_up({due})")),
        Call::new("catch_up_of", format!("SELECT catch_up_of('{{t1,t2,t3}}', {late})")),
        Call::new("meet", format!("SELECT meet(pg_temp.ids({A_READY}, {0}), pg_temp.ids({A_READY}, {0}))", A_READY + 99)),
        Call::new("hear_of", "SELECT hear_of('{t1,t2,t3}')").after("DELETE FROM tenant WHERE name IN ('t1', 't2')"),
        Call::new("due_schedules", format!("SELECT due_schedules({NOW})")),
        Call::new("fire_begin", format!("SELECT fire_begin('s0', {NOW}, {NOW})")),
        Call::new("fire_end", format!("SELECT fire_end('s0', {NOW} + 1, 0, NULL)")),
        Call::new("wait_for", format!("SELECT wait_for(1, pg_temp.ids({AN_ENDED}, {}))", AN_ENDED + 99)),
        Call::new("ended", format!("SELECT ended(pg_temp.ids({AN_ENDED}, {}), {NOW})", AN_ENDED + 99)),
        Call::new("stop_waiting", format!("SELECT stop_waiting(1, pg_temp.ids({AN_ENDED}, {}))", AN_ENDED + 99)),
        Call::new("prune", format!("SELECT prune({DAY}, {DAY}, {DAY}, {DAY}, 500, {NOW} + 2 * {DAY})")),
        Call::new(
            "prune, kept for hours",
            format!("SELECT prune({DAY} - 1, {DAY}, {DAY}, {DAY}, 500, {NOW} + 2 * {DAY})"),
        ),
        Call::new("clock", "SELECT clock()"),
    ]
}

/// What is asked of a job whose id is known.
fn calls_about_one_job() -> Vec<Call> {
    let (ready, parked, ended) = (id(A_READY), id(A_PARKED), id(AN_ENDED));
    let running = "(SELECT id FROM job WHERE id = ANY (ran_by(1)) AND node = 1 AND stage = 'running' LIMIT 1)";
    let wanted =
        format!("UPDATE job SET while_wanted = true WHERE id = {ready}; DELETE FROM interest WHERE job = {ready}");
    let fail = format!("UPDATE history SET outcome = 'failed' WHERE id = {ended}");
    vec![
        Call::new("get, ready", format!("SELECT get({ready}, {NOW})")),
        Call::new("get, parked", format!("SELECT get({parked}, {NOW})")),
        Call::new("get, ended", format!("SELECT get({ended}, {NOW})")),
        Call::new("explain, ready", format!("SELECT explain({ready}, {NOW})")),
        Call::new("explain, ended", format!("SELECT explain({ended}, {NOW})")),
        Call::new("cancel, ready", format!("SELECT cancel({ready}, 'why', {NOW})")),
        Call::new("cancel, parked", format!("SELECT cancel({parked}, 'why', {NOW})")),
        Call::new("cancel, running", format!("SELECT cancel({running}, 'why', {NOW})")),
        Call::new("cancel, ended", format!("SELECT cancel({ended}, 'why', {NOW})")),
        Call::new(
            "edit, ready",
            format!("SELECT edit({ready}, NULL, NULL, 3::smallint, NULL, NULL, NULL, NULL, {NOW})"),
        ),
        Call::new("edit, parked", format!("SELECT edit({parked}, {NOW}, NULL, NULL, NULL, NULL, NULL, NULL, {NOW})")),
        Call::new("redrive", format!("SELECT redrive({ended}, {NOW})")).after(fail),
        Call::new("want", format!("SELECT want({ready}, 1, {NOW})")),
        Call::new("want, while it lives by that", format!("SELECT want({ready}, 1, {NOW})")).after(&wanted),
        Call::new("unwant", format!("SELECT unwant({ready}, 1, {NOW})")),
        Call::new("unwant, the last", format!("SELECT unwant({ready}, 1, {NOW})"))
            .after(format!("{wanted}; SELECT want({ready}, 1, {NOW})")),
        Call::new("purge", format!("SELECT purge(pg_temp.ids({AN_ENDED}, {}), {NOW})", AN_ENDED + 99)),
    ]
}

/// What people ask for, and set.
fn calls_of_people() -> Vec<Call> {
    let schedule =
        format!("'t2', NULL, NULL, 1000000000, {NOW}, 'once', NULL, '{{}}', {NOW}, false, NULL, 0, 0, {NOW}");
    let after = id(6_000);
    let bound = "SELECT pg_temp.bind('job', 'tenant = ''t7'''), pg_temp.bind('sched', 'tenant = ''t7''')";
    vec![
        Call::new("query, a page", format!("SELECT query(NULL, NULL, NULL, NULL, NULL, NULL, {after}, 100, {NOW})")),
        Call::new("query, of a tenant", format!("SELECT query('t7', NULL, NULL, NULL, NULL, NULL, NULL, 100, {NOW})")),
        Call::new("query, by a tag", format!("SELECT query(NULL, NULL, NULL, NULL, 'no', NULL, NULL, 100, {NOW})")),
        Call::new("set_tenant", format!("SELECT set_tenant('t7', true, 5, 5, 5, 2, NULL, NULL, true, NULL, {NOW})")),
        Call::new("tenant_records, one", format!("SELECT tenant_records('t7', NULL, 1, {NOW})")),
        Call::new("tenant_records, a page", format!("SELECT tenant_records(NULL, NULL, 100, {NOW})")),
        Call::new("totals", format!("SELECT totals({NOW})")),
        Call::new("cancel_tenant", format!("SELECT cancel_tenant('t7', {NOW})")),
        Call::new("cancel_tenant, with keys and interest", format!("SELECT cancel_tenant('t7', {NOW})")).after(bound),
        Call::new("erase", format!("SELECT erase('t7', {NOW})")),
        Call::new("erase, with keys and interest", format!("SELECT erase('t7', {NOW})")).after(bound),
        Call::new("put_schedule", format!("SELECT put_schedule('new', {schedule})")),
        Call::new("pause_schedule", "SELECT pause_schedule('s1', true)"),
        Call::new("remove_schedule", "SELECT remove_schedule('s1')"),
        Call::new("schedules", "SELECT schedules('s2', 10)"),
        Call::new("nodes", format!("SELECT nodes({NOW})")),
        Call::new("grant_roles", "SELECT grant_roles(NULL, NULL, current_user::text)"),
    ]
}

/// What may be slow: the call, what is complained of, and why it may.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("claim, of a long ledger", "of ledger", "what the ledger tells is read once, by the next claim, and is gone then"),
    ("claim, of a long ledger", "absorb_work sorts", "the same, by kind"),
    ("tend", "of ledger", "what runs have ended is read once, about once a second, and is gone then"),
    ("tend", "absorb_work sorts", "the same, by kind"),
    ("tend, jobs past their time", "promote reads", "what has expired is stepped over until `expire` has settled it"),
    ("query, of a tenant", "query", "a page by id of what is one in a hundred; for people, who wait for it"),
    ("query, by a tag", "query", "for people; an index of tags would burden every enqueue"),
    ("tenant_records, a page", "of ledger", "for people; what the ledger tells of any of them"),
    ("totals", "of ledger", "for people; one sum over what the ledger tells, which the next claim reads and forgets"),
    (
        "tenant_records, a page",
        "of tenant",
        "for people; all names are put in order, and the numbers of a page are counted",
    ),
    ("tenant_records, a page", "tenant_records sorts", "the same"),
    ("totals", "of tenant", "for people; one sum over the counters of tenants, whatever jobs they have"),
    ("erase", "erase", "once in the life of a tenant"),
    ("grant_roles", "open_doors compares", "once in the life of a role; the functions with their names"),
    ("purge", "of history", "the planner's choice between so many looks into an index and one into a small table"),
];

/// Calls everything and complains.
fn complaints(watched: &mut Watched, story: &str) -> Vec<String> {
    let mut found = Vec::new();
    for Call(name, before, sql) in calls() {
        for Complaint { function, what, statement } in watched.call(&before, &sql) {
            let what = format!("{function} {what}");
            let is_allowed = ALLOWED.iter().any(|(call, part, _)| name.starts_with(call) && what.contains(part));
            if !is_allowed {
                found.push(format!("{name} ({story}): {what}\n    {statement}"));
            }
        }
    }
    found
}

/// Functions that have no statement to be judged: what they say is part of other statements, or a plain expression.
const WITHOUT_STATEMENTS: [&str; 6] = ["count_on", "later", "nanos", "new_id", "present", "starts"];

/// A function that nobody calls here could do anything.
fn left_out(watched: &mut Watched) -> impl Iterator<Item = String> {
    let all = "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = current_schema()::regnamespace";
    let all = watched.client.query(all, &[]).unwrap();
    assert!(all.len() > 70, "{}", all.len());
    let seen = std::mem::take(&mut watched.seen);
    let is_left_out = move |name: &String| !seen.contains(name) && !WITHOUT_STATEMENTS.contains(&name.as_str());
    all.into_iter().map(|row| row.get(0)).filter(is_left_out)
}

/// C44: whatever is parked and whatever has ended, nobody who works has to read it; and that does not hang on what the
/// planner knows of the tables, nor on whether it sees the values that a statement is called with.
#[test]
fn nothing_on_the_hot_path_reads_a_big_table() {
    let mut found = Vec::new();
    for story in [Story::Analyzed, Story::AnalyzedWhenEmpty, Story::PlannedWhenSmall] {
        let schema = Schema::new();
        open(&schema);
        let mut client = Watched::new(&schema).client;
        if story == Story::PlannedWhenSmall {
            client.batch_execute("INSERT INTO tenant (name, number) VALUES ('only', -1)").unwrap();
        }
        let analyze = format!("ANALYZE {}", BIG.join(", "));
        client.batch_execute(&analyze).unwrap();
        let mut watched = ["force_generic_plan", "force_custom_plan"].map(|mode| {
            let mut watched = Watched::new(&schema);
            watched.client.batch_execute(&format!("SET plan_cache_mode = {mode}")).unwrap();
            if story == Story::PlannedWhenSmall {
                watched.keep_plans();
            }
            (mode, watched)
        });
        fill(&mut client, story);
        if story == Story::Analyzed {
            client.batch_execute(&analyze).unwrap();
        }
        for (mode, watched) in &mut watched {
            let story = format!("{story:?}, {mode}");
            found.append(&mut complaints(watched, &story));
            found.extend(left_out(watched).map(|function| format!("{function} ({story}): never called")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The judge is judged: each kind of slowness, done on purpose, is seen.
#[test]
fn the_judge_sees_each_kind_of_slowness() {
    let schema = Schema::new();
    schema.connect().batch_execute(&format!(
        "CREATE SCHEMA {}; CREATE TABLE job (id int PRIMARY KEY, due int, tenant int); CREATE TABLE node (id int);
         INSERT INTO job SELECT n, n % 100, n % 100 FROM generate_series(1, 10000) n; CREATE INDEX job_due ON job (due);
         INSERT INTO node SELECT generate_series(1, 10000);
         CREATE FUNCTION scan() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM job WHERE tenant = 7); END $$;
         CREATE FUNCTION filter() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM job WHERE due < 40 AND tenant = 7); END $$ SET enable_seqscan = off;
         CREATE FUNCTION sort() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT sum(id) FROM (SELECT id FROM node ORDER BY id LIMIT 3) n); END $$;
         CREATE FUNCTION compare() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM unnest(ARRAY[1, 2, 3]) AS o (n) JOIN node ON node.id = o.n); END $$
             SET enable_hashjoin = off SET enable_mergejoin = off;
         CREATE FUNCTION outer_one() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN scan(); END $$;
         CREATE FUNCTION quick() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT due FROM job WHERE id = 7) + (SELECT count(*) FROM node); END $$", schema.name())).unwrap();
    schema.connect().batch_execute("ANALYZE job, node").unwrap();
    let mut watched = Watched::new(&schema);
    let mut said = |sql: &str| -> Vec<String> {
        let complaints = watched.call("", sql);
        complaints.into_iter().map(|Complaint { function, what, .. }| format!("{function} {what}")).collect()
    };
    let scan = ["scan reads 10000 rows of job (Seq Scan)", "scan scans all of job"];
    assert_eq!(said("SELECT scan()"), scan);
    assert_eq!(said("SELECT outer_one()"), scan);
    assert!(said("SELECT filter()").iter().any(|said| said.starts_with("filter reads 4000 rows of job")));
    assert_eq!(said("SELECT sort()"), ["sort sorts 10000 rows"]);
    assert_eq!(said("SELECT compare()"), ["compare compares 29997 pairs of rows (Nested Loop)"]);
    assert!(said("SELECT quick()").is_empty());
}
