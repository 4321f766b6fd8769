//! What the doors of the PostgreSQL store promise to those who enqueue at the same moment, and to those who have
//! nothing to do with it.

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
    for (name, given) in columns {
        match *name {
            "at" => arguments.push(format!("at => {given}")),
            "are_given" => arguments.push(format!("are_given => array_fill({given}, ARRAY[{}])", ids.len())),
            _ => {}
        }
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

/// C47: who says how long a key stays taken, or what to do if it is, and forgets the key, was told that the job is new,
/// each time, and had as many of them.
#[test]
fn what_is_said_of_a_key_that_is_not_given_is_refused() {
    let (_schema, mut client) = open();
    let told = "bad unique_period and on_conflict go with a unique_key, which is not given";
    for arguments in ["unique_period => '1 day'", "on_conflict => 'join'"] {
        let enqueue = |more: &str| format!("SELECT status, detail FROM enqueue('k', {arguments}{more})");
        assert_eq!(one(&mut client, &enqueue("")), told);
        let with_key = enqueue(&format!(", unique_key => $${arguments}$$"));
        assert!(one(&mut client, &with_key).starts_with("new"), "{arguments}");
    }
    assert!(one(&mut client, "SELECT status, detail FROM enqueue('k', on_conflict => 'reject')").starts_with("new"));
}

/// C36: a job was taken in with words that an index could not hold, and then it could not fall due, or not end; one
/// with numbers that no node can read could not be given out. From then on every claim, or every finish of its node,
/// failed. Now no door takes it, nothing is written, and what is wrong is said.
#[test]
fn no_door_takes_a_job_that_would_be_in_everybodys_way() {
    let (_schema, mut client) = open();
    let word =
        |bytes: usize| format!("left((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 20) i), {bytes})");
    let long = &word(513);
    let (tag, many) = (&format!("ARRAY[{long}]"), "ARRAY(SELECT i::text FROM generate_series(1, 65) i)");
    let bytes = |what: &str| format!("the job's {what} has 513 bytes (at most 512)");
    let numbers = "and must be from 1 to 4294967295";
    // The argument of `enqueue`, its value, the column of a batch, its value if that is written otherwise, and what is
    // said.
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

/// C37, C38: a caller that got no answer repeats its enqueue, while the first is still under way and holds the key, the
/// last place or the id. Whether the job is known was asked before that was waited for: so the second replaced itself,
/// was refused because of itself, or ran once more what had ended. Now it is the same job, and nothing of the second
/// stays.
#[test]
fn a_job_that_is_enqueued_again_while_the_first_is_under_way_is_the_same() {
    let keyed = |word: &str| format!("unique_key => 'u', on_conflict => '{word}'");
    let (reject, join, replace) = (keyed("reject"), keyed("join"), keyed("replace"));
    let [in_batch_reject, in_batch_join, in_batch_replace] =
        ["'reject'", "'join'", "'replace'"].map(|word| vec![("unique_keys", "'u'"), ("on_conflicts", word)]);
    let cases = [
        (reject.as_str(), in_batch_reject),
        (&join, in_batch_join),
        (&replace, in_batch_replace),
        ("tenant => 't'", vec![("tenants", "'t'")]),
        ("deadline_after => '1 hour'", vec![("deadline_in", "3600000000")]),
    ];
    let end = format!(
        "SELECT count(id) FROM claim(1, 9, '{{k}}', '{{9}}'); SELECT stage FROM finish(1, '{{{}}}', '{{1}}', '{{succeeded}}', '{{1}}', '{{NULL}}', '{{NULL}}')",
        id(1)
    );
    for (given, columns) in cases {
        for has_ended in [false, true] {
            let (schema, mut client) = open();
            bound(&mut client, "t", 1);
            let mut first = schema.connect();
            let enqueue = format!("SELECT status FROM enqueue('k', id => '{}', {given})", id(1));
            assert_eq!(one(&mut first, &format!("BEGIN; {enqueue}")), "new");
            if has_ended {
                assert_eq!(one(&mut first, &end), "1\nstopped");
            }
            let second = Beside::new(&schema, batch(&[1], &columns));
            one(&mut first, "COMMIT");
            assert_eq!(second.answer(), "new ", "{given}, ended: {has_ended}");
            assert_eq!(one(&mut client, &enqueue), "new", "{given}, ended: {has_ended}");
            let stage = if has_ended { "stopped" } else { "ready" };
            assert_eq!(one(&mut client, "SELECT stage FROM jobs"), stage, "{given}: once");
            let key = u8::from(!has_ended && given.starts_with("unique")).to_string();
            assert_eq!(one(&mut client, "SELECT count(*) FROM live_key"), key, "{given}, ended: {has_ended}");
            for tenant in ["", "t"] {
                let [kept, truth] = numbers(&mut client, tenant);
                assert_eq!(kept, truth, "{given}, ended: {has_ended}");
            }
        }
    }
}

/// C38: a job for a date, enqueued just before that and, as the answer was lost, again just after it: the one was about
/// to be among those that wait, the other among those that are due. It ran twice, under the same fence, if it ended in
/// between.
#[test]
fn a_job_that_is_enqueued_again_after_its_date_is_the_same() {
    let date = 2_000_000_000_000_000_i64;
    let columns = |at: i64| [("due_at", date.to_string()), ("at", at.to_string())];
    for plain in [true, false] {
        let (schema, mut client) = open();
        let call = |at: i64| {
            let given = columns(at);
            let mut given: Vec<(&str, &str)> = given.iter().map(|(name, value)| (*name, value.as_str())).collect();
            if !plain {
                given.push(("deadline_in", "3600000000"));
            }
            batch(&[1], &given)
        };
        let mut first = schema.connect();
        assert_eq!(one(&mut first, &format!("BEGIN; {}", call(date - 1))), "new ");
        let second = Beside::new(&schema, call(date + 1));
        one(&mut first, "COMMIT");
        assert_eq!(second.answer(), "new ");
        assert_eq!(one(&mut client, "SELECT stage FROM jobs"), "scheduled");
        let [kept, truth] = numbers(&mut client, "");
        assert_eq!(kept, truth);
    }
}

/// C38: an id that was given twice at the same moment, once for now and once for later, was among those that are due
/// and among those that wait, and ran twice: neither saw the other. Now the second waits for the first, whatever door
/// each comes by; a job whose id was made for it waits for nobody.
#[test]
fn an_id_that_is_given_twice_at_the_same_moment_is_one_job() {
    let hour = "3600000000";
    let enqueue = |is_later: bool| {
        let after = if is_later { ", after => '1 hour'" } else { "" };
        format!("SELECT status, other FROM enqueue('k', id => '{}'{after})", id(1))
    };
    let in_batch = |is_later: bool, columns: &[(&'static str, &'static str)]| {
        let mut columns = columns.to_vec();
        columns.extend(is_later.then_some(("due_in", hour)));
        batch(&[1, 2], &columns)
    };
    let plain = |is_later| in_batch(is_later, &[]);
    let dated = |is_later| in_batch(is_later, &[("deadline_in", "7200000000")]);
    let made = |is_later: bool| alike(1, if is_later { &[("due_in", "3600000000")] } else { &[] });
    let firsts: [&dyn Fn(bool) -> String; 4] = [&enqueue, &plain, &dated, &made];
    let seconds: [&dyn Fn(bool) -> String; 3] = [&enqueue, &plain, &dated];
    let (schema, mut client) = open();
    let mut first = schema.connect();
    for (is_first_later, end) in [(false, "COMMIT"), (true, "COMMIT"), (false, "ROLLBACK"), (true, "ROLLBACK")] {
        for (number, first_door) in firsts.iter().enumerate() {
            for second_door in seconds {
                one(&mut client, "DELETE FROM sched; DELETE FROM job; DELETE FROM ledger");
                one(&mut first, &format!("BEGIN; {}", first_door(is_first_later)));
                let sql = second_door(!is_first_later);
                let second = Beside::new(&schema, sql.clone());
                assert!(!second.asking.is_finished(), "{number}, then {sql}");
                one(&mut first, end);
                assert!(second.answer().starts_with("new "), "{number}, then {sql}");
                let is_later = is_first_later == (end == "COMMIT");
                let stage = if is_later { "scheduled" } else { "ready" };
                let stages = format!("SELECT stage FROM jobs WHERE id = '{}'", id(1));
                assert_eq!(one(&mut client, &stages), stage, "{number}, then {sql}, {end}");
                let [kept, truth] = numbers(&mut client, "");
                assert_eq!(kept, truth, "{number}, then {sql}, {end}");
            }
        }
    }
    one(&mut first, &format!("BEGIN; {}", enqueue(true)));
    one(&mut client, "SET lock_timeout = '5s'");
    let made_for_it = batch(&[3], &[("are_given", "false")]);
    assert_eq!(one(&mut client, &made_for_it), "new ");
    assert_eq!(one(&mut client, "SELECT count(*) FROM enqueue('k')"), "1");
}

/// C42: a job that is known, and enqueued once more, was put into the other table for a moment, or taken for new until
/// it was looked up: then nobody could promote it, and claims waited.
#[test]
fn a_job_that_is_enqueued_again_is_in_nobodys_way() {
    let (schema, mut client) = open();
    let now: i64 = one(&mut client, "SELECT present(NULL)").parse().unwrap();
    let later = |number| batch(&[number], &[("due_in", "1000000")]);
    assert_eq!(one(&mut client, &later(1)), "new ");
    let mut holder = schema.connect();
    one(&mut holder, &format!("BEGIN; {}", later(2)));
    let in_time = Beside::new(&schema, batch(&[1, 2], &[("due_in", "1000000")]));
    assert!(!in_time.asking.is_finished(), "it waits for the other");
    let mut early = schema.connect();
    assert_eq!(one(&mut early, &format!("BEGIN; {}", batch(&[1], &[]))), "new ");
    assert_eq!(one(&mut early, &batch(&[1, 3], &[])), "new \nnew ");
    one(&mut client, "SET statement_timeout = '5s'");
    let claim = format!("SELECT id FROM claim(1, 9, '{{k}}', '{{9}}', {})", now + 2_000_000);
    assert_eq!(one(&mut client, &claim).trim(), id(1));
    one(&mut early, "ROLLBACK");
    one(&mut holder, "ROLLBACK");
    assert_eq!(in_time.answer(), "new \nnew ");
    let [kept, truth] = numbers(&mut client, "");
    assert_eq!(kept, truth);
}

/// C47, C49: whoever joins a job at the moment when the last caller who wanted it lets go got a handle to a job that
/// was cancelled. Its key is free: so there is a new one.
#[test]
fn nobody_joins_a_job_that_is_being_given_up() {
    let (schema, mut client) = open();
    let wanted = |number| batch(&[number], &[("unique_keys", "'u'"), ("on_conflicts", "'join'"), ("wanted_by", "1")]);
    assert_eq!(one(&mut client, &wanted(1)), "new ");
    assert_eq!(one(&mut client, &wanted(2)), format!("joined {}", id(1)));
    let mut leaver = schema.connect();
    one(&mut leaver, &format!("BEGIN; SELECT unwant('{}', 1)", id(1)));
    let joiner = Beside::new(&schema, wanted(2));
    one(&mut leaver, "COMMIT");
    assert_eq!(joiner.answer(), "new ");
    assert_eq!(one(&mut client, "SELECT id, stage FROM jobs WHERE stage <> 'stopped'"), format!("{} ready", id(2)));
}

/// C28, C42: whoever enqueues brought what was due along, that of everybody, and then waited for a turn or a key: for
/// so long nobody could claim it, nor let it expire. The same went for what takes long, or may wait, in the hands of
/// people and of nodes. Now each of them brings along what its own answer depends on.
#[test]
fn who_waits_keeps_no_strangers_job() {
    let (schema, mut client) = open();
    let now: i64 = one(&mut client, "SELECT present(NULL)").parse().unwrap();
    let later = now + 2_000_000;
    bound(&mut client, "t", 9);
    one(&mut client, "SELECT set_tenant('x', true, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL)");
    let stranger = format!("SELECT status FROM enqueue('k', tenant => 'stranger', after => '1 second', at => {now})");
    assert_eq!(one(&mut client, &stranger), "new");
    let own = format!("SELECT job_id FROM enqueue('other', tenant => 'x', unique_key => 'own', at => {now})");
    let own = one(&mut client, &own);
    one(
        &mut client,
        &format!("SELECT put_schedule('s', 'x', NULL, NULL, 1, 0, 'once', NULL, '', {now}, false, NULL, 0, 0)"),
    );
    let claim = format!("BEGIN; SELECT count(id) FROM claim(1, 9, '{{k}}', '{{9}}', {later})");
    let is_free = |client: &mut Client, why: &str| {
        assert_eq!(one(client, &claim), "1", "{why}");
        one(client, "ROLLBACK");
    };

    let mut holder = schema.connect();
    let hold = |tenant: &str| format!("SELECT status FROM enqueue('k', tenant => '{tenant}', unique_key => 'u')");
    one(&mut holder, &format!("BEGIN; {}; {}", hold("t"), hold("x")));
    let at = later.to_string();
    let waiting = [(1, "'t'", "a turn"), (2, "'x'", "a key")].map(|(number, tenant, why)| {
        let columns = [("tenants", tenant), ("unique_keys", "'u'"), ("at", &at)];
        let waiting = Beside::new(&schema, format!("BEGIN; {}", batch(&[number], &columns)));
        assert!(!waiting.asking.is_finished(), "it waits for {why}");
        is_free(&mut client, why);
        waiting
    });
    one(&mut holder, "ROLLBACK");
    waiting.into_iter().for_each(|waiting| drop(waiting.end()));
    for sql in [
        &batch(&[3], &[("tenants", "'t'"), ("at", "$")]),
        "SELECT cancel_tenant('x', $)",
        "SELECT erase('x', $)",
        "SELECT prune(0, 0, 0, 0, 9, $)",
        "SELECT query('x', NULL, NULL, NULL, NULL, NULL, NULL, 9, $)",
        "SELECT fire_begin('s', #, $)",
        "SELECT purge('{@}', $)",
        "SELECT redrive('@', $)",
        "SELECT want('@', 1, $)",
        "SELECT unwant('@', 1, $)",
        "SELECT edit('@', NULL, NULL, NULL, NULL, NULL, NULL, NULL, $)",
        "SELECT join_node(2, 'n', '{}', '{}', 1, 99); SELECT leave(2, $)",
    ] {
        let sql = sql.replace('$', &at).replace('@', &own).replace('#', &now.to_string());
        one(&mut holder, &format!("BEGIN; {sql}"));
        is_free(&mut client, &sql);
        one(&mut holder, "ROLLBACK");
    }
}

/// What is past its time counts as such for those who ask, though nobody has noticed: a key is free, and what is
/// cancelled with its tenant has expired.
#[test]
fn what_is_past_its_time_holds_no_key_and_is_not_cancelled() {
    let (_schema, mut client) = open();
    let now: i64 = one(&mut client, "SELECT present(NULL)").parse().unwrap();
    let at = |seconds: i64| now + seconds * 1_000_000;
    let enqueue = |number: u32, more: &str, seconds: i64| {
        format!(
            "SELECT status FROM enqueue('k', id => '{}', unique_key => 'u', start_within => '1 second', at => {}{more})",
            id(number),
            at(seconds)
        )
    };
    assert_eq!(one(&mut client, &enqueue(1, "", 0)), "new");
    assert_eq!(one(&mut client, &enqueue(2, ", after => '10 seconds'", 0)), "conflict");
    assert_eq!(one(&mut client, &enqueue(2, ", after => '10 seconds'", 2)), "new");
    assert_eq!(one(&mut client, &format!("SELECT status FROM redrive('{}', {})", id(1), at(3))), "conflict");
    assert_eq!(one(&mut client, &format!("SELECT status FROM redrive('{}', {})", id(1), at(20))), "done");
    assert_eq!(one(&mut client, &format!("SELECT cancel_tenant('', {})", at(30))), "0");
    assert_eq!(one(&mut client, "SELECT DISTINCT outcome FROM jobs"), "expired");
    let [kept, truth] = numbers(&mut client, "");
    assert_eq!(kept, truth);
}

/// C45: a caller that was refused, and goes on with its transaction, kept locks: on the key, so that the job which has
/// it could not end; on the job that it did not replace; and its tenant's turn.
#[test]
fn a_refused_caller_holds_nothing() {
    let (schema, mut client) = open();
    one(&mut client, "SET lock_timeout = '5s'");
    let (mut first, mut refused) = (schema.connect(), schema.connect());
    let keyed = |number| format!("SELECT status FROM enqueue('k', id => '{}', unique_key => 'u')", id(number));
    for again in [keyed(2), format!("SELECT status FROM ({}) e", batch(&[2], &[("unique_keys", "'u'")]))] {
        one(&mut client, "SELECT cancel_tenant(''); SELECT prune(0, 0, 0, 0, 9)");
        assert_eq!(one(&mut first, &format!("BEGIN; {}", keyed(1))), "new");
        let second = Beside::new(&schema, format!("BEGIN; {again}"));
        one(&mut first, "COMMIT");
        let answer;
        (answer, refused) = second.end();
        assert_eq!(answer.unwrap(), "conflict");
        assert_eq!(one(&mut client, &format!("SELECT was FROM cancel('{}', 'enough')", id(1))), "ready");
        one(&mut refused, "COMMIT");
    }

    bound(&mut client, "t", 1);
    one(&mut client, "SELECT status FROM enqueue('k', tenant => 't')");
    let later = format!(
        "SELECT status FROM enqueue('k', id => '{}', tenant => 't', unique_key => 'u', after => '1 hour')",
        id(3)
    );
    assert_eq!(one(&mut client, &later), "new");
    for (given, status) in
        [("unique_key => 'u', on_conflict => 'replace'", "backlog_full".to_owned()), ("id => '@'", "new".to_owned())]
    {
        let given = given.replace('@', &id(3));
        let enqueue = format!("BEGIN; SELECT status FROM enqueue('k', tenant => 't', {given})");
        assert_eq!(one(&mut refused, &enqueue), status);
        let replace = format!(
            "BEGIN; {}",
            batch(
                &[4],
                &[("tenants", "'t'"), ("due_in", "9999999"), ("unique_keys", "'u'"), ("on_conflicts", "'replace'")]
            )
        );
        assert_eq!(one(&mut client, &replace), format!("replaced {}", id(3)));
        one(&mut client, "ROLLBACK");
        one(&mut refused, "COMMIT");
    }
}

/// Turns come before jobs, for one and for many: otherwise the one has the row of the job that both want to replace,
/// and waits for the turn of the other, who waits for that row.
#[test]
fn one_and_many_who_replace_a_job_of_a_bounded_tenant_take_turns() {
    let (schema, mut client) = open();
    bound(&mut client, "t", 9);
    let enqueue = |number| {
        format!(
            "SELECT status FROM enqueue('k', id => '{}', tenant => 't', unique_key => 'u', on_conflict => 'replace')",
            id(number)
        )
    };
    assert_eq!(one(&mut client, &enqueue(1)), "new");
    one(&mut client, "BEGIN; SELECT FROM job FOR UPDATE");
    let alone = Beside::new(&schema, enqueue(2));
    let columns = [("tenants", "'t'"), ("unique_keys", "'u'"), ("on_conflicts", "'replace'")];
    let in_batch = Beside::new(&schema, batch(&[3], &columns));
    one(&mut client, "ROLLBACK");
    assert_eq!((alone.answer(), in_batch.answer()), ("replaced".to_owned(), format!("replaced {}", id(2))));
}

/// C47: a job that is put off while somebody replaces it was not found in either table, and taken for one that runs.
#[test]
fn a_job_that_is_put_off_at_this_moment_can_be_replaced() {
    let (schema, mut client) = open();
    let enqueue = |number| {
        format!("SELECT status FROM enqueue('k', id => '{}', unique_key => 'u', on_conflict => 'replace')", id(number))
    };
    assert_eq!(one(&mut client, &enqueue(1)), "new");
    let edit = format!("BEGIN; SELECT status FROM edit('{}', NULL, 3600000000, NULL, NULL, NULL, NULL, NULL)", id(1));
    assert_eq!(one(&mut client, &edit), "done");
    let second = Beside::new(&schema, enqueue(2));
    one(&mut client, "COMMIT");
    assert_eq!(second.answer(), "replaced");
}

/// C36: of two who erase a tenant the second found its row gone, and went on without a lock: a claim that began
/// meanwhile, and was not yet committed, was counted as work that waits, for good.
#[test]
fn who_erases_a_tenant_after_another_has_its_lock_too() {
    let (schema, mut client) = open();
    let enqueue = |number| format!("SELECT status FROM enqueue('k', id => '{}', tenant => 't')", id(number));
    let lock = |number| format!("BEGIN; SELECT FROM job WHERE id = '{}' FOR UPDATE", id(number));
    bound(&mut client, "t", 9);
    assert_eq!(one(&mut client, &enqueue(1)), "new");
    let mut other = schema.connect();
    one(&mut other, "SET statement_timeout = '5s'");
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
    let claim = "SELECT count(id), bool_or(more) FROM claim(1, 9, '{k}', '{9}')";
    assert_eq!(one(&mut other, &format!("BEGIN; {claim}")), "0 t", "the tenant is locked");
    one(&mut client, "ROLLBACK");
    assert_eq!(second.answer(), "(1,0)");
    one(&mut other, "COMMIT");
    let [kept, truth] = numbers(&mut client, "t");
    assert_eq!(kept, truth);
    assert_eq!(one(&mut client, claim), "1 f");
}

/// C42: a claim makes the rows of tenants that it hears of for the first time, and waited for whoever was about to make
/// the same: somebody who erases such a tenant, or sets its limits in a transaction that lasts. Everybody else's jobs
/// waited with it.
#[test]
fn a_claim_waits_for_nobody_who_makes_a_tenant() {
    let (schema, mut client) = open();
    one(&mut client, "SET statement_timeout = '5s'");
    for first in ["erase('t7')", "set_tenant('t7', true, 1, 1, 1, 1, NULL, NULL, NULL, NULL)"] {
        let mut holder = schema.connect();
        one(&mut holder, &format!("BEGIN; SELECT {first}"));
        one(&mut client, "SELECT enqueue('k', tenant => 't' || n) FROM generate_series(1, 40) n");
        let claim = "SELECT count(id), bool_or(more) FROM claim(1, 99, '{k}', '{99}')";
        assert_eq!(one(&mut client, claim), "39 t", "{first}");
        one(&mut client, "SELECT enqueue('k', tenant => 't7'); SELECT count(*) FROM tend()");
        one(&mut holder, "COMMIT");
        let left = if first.starts_with("erase") { "2" } else { "1" };
        assert_eq!(one(&mut client, "SELECT count(id) FROM claim(1, 99, '{k}', '{99}')"), left, "{first}");
        for tenant in ["t6", "t7"] {
            let [kept, truth] = numbers(&mut client, tenant);
            assert_eq!(kept, truth, "{first}");
        }
        one(&mut client, "SELECT erase('t' || n) FROM generate_series(1, 40) n; SELECT leave(1)");
        one(&mut client, "SELECT prune(0, 0, 0, 0, 999); SELECT erase('t' || n) FROM generate_series(1, 40) n");
        one(&mut client, "SELECT join_node(1, 'n', '{k}', '{}', 99, 15000000)");
    }
}

/// C44: days were dropped one after the other, and the jobs of the next were counted while all of the history was
/// locked. Now readers go on until all is counted.
#[test]
fn the_history_can_be_read_while_old_days_are_counted() {
    let (schema, mut client) = open();
    one(
        &mut client,
        "SELECT make_partitions(1000036800000000); ALTER FUNCTION drop_partitions SET lock_timeout = '60s'",
    );
    let mut worker = schema.connect();
    one(&mut worker, "BEGIN; LOCK TABLE history_20010910 IN ROW EXCLUSIVE MODE");
    let prune = Beside::new(&schema, "SELECT prune(86400000000, 0, 0, 0, 9)");
    assert!(!prune.asking.is_finished(), "it waits for who is at work in the second day");
    one(&mut client, "SET lock_timeout = '5s'");
    assert_eq!(one(&mut client, "SELECT count(*) FROM history"), "0");
    one(&mut worker, "COMMIT");
    assert_eq!(prune.answer(), "0");
    let days = "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relname ~ '^history_2001\\d+$'";
    assert_eq!(one(&mut client, days), "0");
}

/// C23, C44: a batch for a bounded tenant counts what the tenant has once, and goes on from there; it tells of itself
/// in one row for each kind. It summed up all that was told for each job, and told of each, so that while nobody
/// claimed a thousand jobs took ever longer.
#[test]
fn a_batch_for_a_bounded_tenant_counts_on() {
    let (_schema, mut client) = open();
    let set = "SELECT set_tenant('t', true, NULL, 3, 2, 1, NULL, NULL, NULL, NULL)";
    one(&mut client, set);
    let statuses = |client: &mut Client, ids: &[u32], columns: &[(&str, &str)]| {
        let mut all = vec![("tenants", "'t'")];
        all.extend(columns);
        one(client, &format!("SELECT status, count(*) FROM ({}) e GROUP BY 1 ORDER BY 1", batch(ids, &all)))
    };
    let replace = [("unique_keys", "'u'"), ("on_conflicts", "'replace'")];
    assert_eq!(
        statuses(&mut client, &[1, 2, 3, 4, 5, 6], &replace),
        "new 1\nreplaced 5",
        "each makes place for the next"
    );
    assert_eq!(statuses(&mut client, &[7, 8, 9, 10], &[]), "backlog_full 2\nnew 2");
    assert_eq!(statuses(&mut client, &[11, 12, 13], &[("due_in", "9999999")]), "new 2\nscheduled_full 1");
    let told = "SELECT sum(ready), sum(scheduled), count(kind) FROM ledger";
    assert_eq!(one(&mut client, told), "3 2 2");
    let [kept, truth] = numbers(&mut client, "t");
    assert_eq!(kept, truth);
    // Of those that are over at once none takes a place.
    one(&mut client, "SELECT cancel_tenant('t')");
    let passed = [("due_at", "1"), ("start_withins", "1")];
    assert_eq!(statuses(&mut client, &[21, 22, 23, 24], &passed), "new 4");
    assert_eq!(statuses(&mut client, &[31, 32, 33, 34], &[("wanted_by", "77")]), "new 4");
    let [kept, truth] = numbers(&mut client, "t");
    assert_eq!((kept.as_str(), truth.as_str()), ("0 0 0", "0 0 0"));
}

/// C23, C44: an enqueue for a bounded tenant counts what the ledger tells, which nodes take in. Where none lived it
/// grew with every job, and each took longer than the one before. Now those who enqueue take it in, unless their
/// transaction may last.
#[test]
fn what_is_told_of_a_bounded_tenant_is_taken_in_though_no_node_lives() {
    let (schema, mut client) = open();
    let (mut caller, told) = (schema.connect(), "SELECT count(*) FROM ledger");
    bound(&mut client, "t", 350);
    let enqueue = "SELECT status FROM enqueue('k', tenant => 't')";
    let fill = |client: &mut Client, jobs: u32| (0..jobs).for_each(|_| assert_eq!(one(client, enqueue), "new"));
    fill(&mut client, 150);
    assert_eq!(one(&mut client, told), "150", "the node will");
    one(&mut client, "SELECT leave(1)");
    one(&mut caller, "BEGIN; SELECT pg_current_xact_id()");
    assert_eq!(one(&mut caller, enqueue), "new");
    assert_eq!(one(&mut caller, told), "151", "it would hold the tenant");
    one(&mut caller, "ROLLBACK");
    fill(&mut client, 1);
    one(&mut caller, &format!("BEGIN; {enqueue}; ROLLBACK"));
    fill(&mut client, 199);
    let told: u32 = one(&mut client, told).parse().unwrap();
    assert!(told <= 110, "{told}");
    let [kept, truth] = numbers(&mut client, "t");
    assert_eq!(kept, truth);
    assert_eq!(one(&mut client, enqueue), "backlog_full");
    one(&mut client, "SELECT join_node(1, 'n', '{k}', '{}', 999, 15000000)");
    assert_eq!(one(&mut client, "SELECT count(id) FROM claim(1, 999, '{k}', '{999}')"), "350");
}

/// Whoever makes a function of the same name does not keep jobs from being given.
#[test]
fn a_namesake_of_the_claim_is_not_asked() {
    let (_schema, mut client) = open();
    one(
        &mut client,
        "CREATE FUNCTION claim(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; SELECT status FROM enqueue('k', tenant => 't')",
    );
    one(&mut client, "SELECT count(id) FROM claim(1, 9, '{k}', '{9}')");
    assert_eq!(one(&mut client, &alike(1, &[("of_tenant", "'t'"), ("to_node", "1")])), "given");
}

/// An instant that the calendar does not show is no reason to fail.
#[test]
fn every_instant_can_be_told() {
    let (_schema, mut client) = open();
    for (micros, told) in [
        ("0", "1970-01-01T00:00:00Z"),
        ("-62135596800000000", "0001-01-01T00:00:00Z"),
        ("-62135596800000001", "long ago"),
        ("-300000000000000000", "long ago"),
        ("-4000000000000000000", "long ago"),
        ("4000000000000000000", "never"),
    ] {
        assert_eq!(one(&mut client, &format!("SELECT instant({micros})")), told);
    }
}
