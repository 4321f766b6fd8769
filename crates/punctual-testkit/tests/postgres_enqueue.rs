//! What the doors of the PostgreSQL store promise to those who enqueue at the same moment, and to those who have nothing to do with it.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::thread::JoinHandle;

use postgres::Client;
use punctual_durable::PostgresOptions;
use punctual_testkit::block_on;
use punctual_testkit::postgres::Schema;

/// A store, and a connection of its owner.
fn open() -> (Schema, Client) {
    let schema = Schema::new();
    drop(block_on(PostgresOptions::new().schema(schema.name()).pool_size(1).open(schema.url())).unwrap());
    let mut client = schema.connect();
    one(&mut client, "SELECT join_node(1, 'n', '{k}', '{}', 99, 15000000)");
    // Longer than a slow machine takes to see that somebody waits.
    one(&mut client, "ALTER FUNCTION enqueue SET lock_timeout = '60s'");
    (schema, client)
}

/// All that a question is answered with, as text: one line per row; or the state and the message of the error.
fn ask(client: &mut Client, sql: &str) -> Result<Vec<String>, String> {
    let rows = client.simple_query(sql).map_err(|error| match error.as_db_error() {
        Some(error) => format!("{} {}", error.code().code(), error.message()),
        None => error.to_string(),
    })?;
    let line = |row: &postgres::SimpleQueryRow| {
        (0..row.len()).map(|column| row.get(column).unwrap_or("")).collect::<Vec<_>>().join(" ")
    };
    let rows = rows.iter().filter_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => Some(line(row)),
        _ => None,
    });
    Ok(rows.collect())
}

/// The only answer.
fn one(client: &mut Client, sql: &str) -> String {
    ask(client, sql).unwrap_or_else(|error| panic!("{sql}: {error}")).join("\n")
}

/// Somebody who asks in a session of its own.
struct Beside {
    asking: JoinHandle<(Result<String, String>, Client)>,
    process: String,
    witness: Client,
}

impl Beside {
    /// Comes back when it waits for somebody else's session, or is through.
    fn new(schema: &Schema, sql: impl Into<String>) -> Self {
        let (mut client, witness, sql) = (schema.connect(), schema.connect(), sql.into());
        let process = one(&mut client, "SELECT pg_backend_pid()");
        let asking = std::thread::spawn(move || {
            let answer = ask(&mut client, &sql).map(|lines| lines.join("\n"));
            (answer, client)
        });
        let mut beside = Self { asking, process, witness };
        beside.wait_until("<> '{}'");
        beside
    }

    /// Comes back when it waits for this session, or is through.
    fn wait_for(&mut self, process: &str) {
        self.wait_until(&format!("@> '{{{process}}}'"));
    }

    fn wait_until(&mut self, holders: &str) {
        let is_held = format!("SELECT pg_blocking_pids({}) {holders}", self.process);
        while !self.asking.is_finished() && one(&mut self.witness, &is_held) == "f" {}
    }

    /// Its answer, and its session, in which a transaction may be open.
    fn end(self) -> (Result<String, String>, Client) {
        self.asking.join().unwrap()
    }

    fn answer(self) -> String {
        self.end().0.unwrap()
    }
}

/// The id of a number.
fn id(number: u32) -> String {
    format!("00000000-0000-7000-8000-{number:012}")
}

/// A call of `enqueue_batch` with these columns, each given for all jobs of it, and the others as for plain jobs.
fn batch(ids: &[u32], columns: &[(&str, &str)]) -> String {
    const OTHERS: &str = "kinds text k|tenants text |payloads text 1|tags text|priorities smallint 0|costs bigint 1|due_at bigint|due_in bigint|
        start_withins bigint|run_timeouts bigint|deadline_at bigint|deadline_in bigint|max_attempts bigint 3|max_crashes bigint 3|backoff_bases bigint 1|
        backoff_caps bigint 1|unique_keys text|on_conflicts text|unique_periods bigint|wanted_by bigint|schedules text|missed bigint 0|traces text";
    let named: Vec<String> = ids.iter().map(|&number| format!("'{}'", id(number))).collect();
    let mut arguments = vec![format!("ids => ARRAY[{}]::uuid[]", named.join(", "))];
    for column in OTHERS.split('|') {
        let words: Vec<&str> = column.trim_start().split(' ').collect();
        let usual = words.get(2).map_or("NULL".to_owned(), |usual| format!("'{usual}'"));
        let given = columns.iter().find(|(name, _)| *name == words[0]).map_or(usual, |(_, given)| (*given).to_owned());
        arguments.push(format!("{} => array_fill({given}::{}, ARRAY[{}])", words[0], words[1], ids.len()));
    }
    if let Some((_, at)) = columns.iter().find(|(name, _)| *name == "at") {
        arguments.push(format!("at => {at}"));
    }
    format!("SELECT status, other FROM enqueue_batch({})", arguments.join(", "))
}

/// A call of `enqueue_alike` for a job, with these arguments, and the others as for a plain one.
fn alike(number: u32, arguments: &[(&str, &str)]) -> String {
    let usual = [
        ("of_kind", "'k'"),
        ("of_tenant", "''"),
        ("tags", "NULL"),
        ("priority", "0::smallint"),
        ("cost", "1"),
        ("due_at", "NULL"),
        ("due_in", "NULL"),
        ("run_timeout", "NULL"),
        ("max_attempts", "3"),
        ("max_crashes", "3"),
        ("backoff_base", "1"),
        ("backoff_cap", "1"),
        ("trace", "NULL"),
        ("to_node", "NULL"),
    ];
    let named = usual.map(|(name, usual)| {
        let given = arguments.iter().find(|(given, _)| *given == name).map_or(usual, |(_, given)| given);
        format!("{name} => {given}")
    });
    let ids = format!("ARRAY['{}']::uuid[]", id(number));
    format!("SELECT status FROM enqueue_alike(ids => {ids}, payloads => '{{1}}', {})", named.join(", "))
}

/// C36: a job was taken in with words that an index could not hold, and then it could not fall due, or not end; one with numbers that no node can read could not be
/// given out. From then on every claim, or every finish of its node, failed. Now no door takes it, nothing is written, and what is wrong is said.
#[test]
fn no_door_takes_a_job_that_would_be_in_everybodys_way() {
    let (_schema, mut client) = open();
    let word =
        |bytes: usize| format!("left((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 20) i), {bytes})");
    let long = &word(513);
    let (tag, many) = (&format!("ARRAY[{long}]"), "ARRAY(SELECT i::text FROM generate_series(1, 65) i)");
    let bytes = |what: &str| format!("the job's {what} has 513 bytes (at most 512)");
    let numbers = "and must be from 1 to 4294967295";
    // The argument of `enqueue`, its value, the column of a batch, its value if that is written otherwise, and what is said.
    let bad: &[(&str, &str, &str, &str, &str)] = &[
        ("kind", long, "kinds", long, &bytes("kind")),
        ("tenant", long, "tenants", long, &bytes("tenant")),
        ("unique_key", long, "unique_keys", long, &bytes("unique key")),
        ("tags", tag, "tags", &format!("{tag}::text"), &bytes("tag")),
        ("tags", many, "tags", &format!("{many}::text"), "the job has 65 tags (at most 64)"),
        ("tags", "'{a,NULL}'", "tags", "'{a,NULL}'", "tags must be a list of words"),
        ("tags", "'{{a,b},{c,d}}'", "tags", "'{{a,b},{c,d}}'", "tags must be a list of words"),
        ("priority", "128", "priorities", "128", "priority is 128, and must be from -128 to 127"),
        ("cost", "-1", "costs", "-1", &format!("cost is -1, {numbers}")),
        ("cost", "4294967296", "costs", "4294967296", &format!("cost is 4294967296, {numbers}")),
        ("max_attempts", "-1", "max_attempts", "-1", &format!("max_attempts is -1, {numbers}")),
        ("max_crashes", "4294967296", "max_crashes", "4294967296", &format!("max_crashes is 4294967296, {numbers}")),
        ("run_timeout", "'-1 second'", "run_timeouts", "-1", "no time may be negative"),
        ("backoff_cap", "'-1 second'", "backoff_caps", "-1", "no time may be negative"),
    ];
    for (name, value, column, in_batch, told) in bad {
        let kind = if *name == "kind" { "" } else { "kind => 'k', " };
        let enqueue = format!("SELECT status, detail FROM enqueue({kind}{name} => {value})");
        assert_eq!(one(&mut client, &enqueue), format!("bad {told}"), "{name}");
        for ids in [&[1][..], &[1, 2]] {
            let call = batch(ids, &[(column, in_batch)]);
            assert_eq!(ask(&mut client, &call), Err(format!("23514 {told}")), "{column} of {}", ids.len());
        }
    }
    let schedule = batch(&[1], &[("schedules", long)]);
    assert_eq!(ask(&mut client, &schedule), Err(format!("23514 {}", bytes("schedule"))));
    for (name, value, told) in [
        ("of_kind", long.as_str(), bytes("kind")),
        ("of_tenant", long, bytes("tenant")),
        ("tags", &format!("{tag}::text"), bytes("tag")),
        ("max_attempts", "-1", format!("max_attempts is -1, {numbers}")),
        ("due_in", "-1", "no time may be negative".to_owned()),
        ("due_at", "4000000000000000001", "an instant is out of range".to_owned()),
    ] {
        assert_eq!(ask(&mut client, &alike(1, &[(name, value)])), Err(format!("23514 {told}")), "{name}");
    }
    let all = "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM ledger), (SELECT count(*) FROM live_key)";
    assert_eq!(one(&mut client, all), "0 0 0");

    // At the bounds a job goes all the way.
    let fit = word(512);
    let tags = format!("ARRAY(SELECT i || {} FROM generate_series(1, 64) i)", word(510));
    let enqueue = format!(
        "SELECT status FROM enqueue({fit}, tenant => {fit}, unique_key => {fit}, tags => {tags}, after => '1 second', cost => 4294967295)"
    );
    assert_eq!(one(&mut client, &enqueue), "new");
    let later = one(&mut client, "SELECT present(NULL) + 2000000");
    let claim = format!("SELECT id, fence FROM claim(1, 9, ARRAY[{fit}], '{{9}}', {later}) WHERE id IS NOT NULL");
    let given = one(&mut client, &claim);
    let (id, fence) = given.split_once(' ').unwrap();
    let finish = format!(
        "SELECT stage FROM finish(1, '{{{id}}}', '{{{fence}}}', '{{succeeded}}', '{{1}}', '{{NULL}}', '{{NULL}}', {later})"
    );
    assert_eq!(one(&mut client, &finish), "stopped");
}

/// The numbers of a tenant as they are kept, and as they are.
fn numbers(client: &mut Client, tenant: &str) -> [String; 2] {
    let truth = format!(
        "SELECT (SELECT count(*) FROM sched WHERE tenant = '{tenant}'), count(*) FILTER (WHERE stage = 'ready'), count(*) FILTER (WHERE stage = 'running')
         FROM job WHERE tenant = '{tenant}'"
    );
    [one(client, &format!("SELECT scheduled, ready, running FROM tally('{tenant}')")), one(client, &truth)]
}

fn bound(client: &mut Client, tenant: &str, backlog_max: u32) {
    let sql = format!("SELECT set_tenant('{tenant}', true, NULL, {backlog_max}, NULL, 1, NULL, NULL, NULL, NULL)");
    one(client, &sql);
}

/// C36: of two who erase a tenant the second found its row gone, and went on without a lock: a claim that began meanwhile, and was not yet committed, was counted as work that
/// waits, for good.
#[test]
fn who_erases_a_tenant_after_another_has_its_lock_too() {
    let (schema, mut client) = open();
    let enqueue = |number| format!("SELECT status FROM enqueue('k', id => '{}', tenant => 't')", id(number));
    let lock = |number| format!("BEGIN; SELECT FROM job WHERE id = '{}' FOR UPDATE", id(number));
    bound(&mut client, "t", 9);
    assert_eq!(one(&mut client, &enqueue(1)), "new");
    let mut other = schema.connect();
    one(&mut other, &lock(1));
    let first = Beside::new(&schema, "SELECT erase('t')");
    let mut second = Beside::new(&schema, "SELECT erase('t')");
    let process = one(&mut client, "SELECT pg_backend_pid()");
    assert_eq!(one(&mut client, &enqueue(2)), "new");
    one(&mut client, &lock(2));
    one(&mut other, "ROLLBACK");
    assert_eq!(first.answer(), "(1,0)");
    second.wait_for(&process);

    assert_eq!(one(&mut other, &enqueue(3)), "new");
    let claim = Beside::new(&schema, "BEGIN; SELECT count(id) FROM claim(1, 9, '{k}', '{9}')");
    one(&mut client, "ROLLBACK");
    second.wait_for(&claim.process);
    let (given, mut node) = claim.end();
    assert_eq!(given.unwrap(), "1");
    one(&mut node, "COMMIT");
    assert_eq!(second.answer(), "(1,0)");
    let [kept, truth] = numbers(&mut client, "t");
    assert_eq!(kept, truth);
}
