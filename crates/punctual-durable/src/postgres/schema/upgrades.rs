//! A newer program comes to a database that older ones work on. Its edition is made up here: it adds a column to every
//! table of jobs, which is the hardest there is, because jobs go from one to the other whole.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use punctual::Clock;
use punctual_testkit::block_on;
use punctual_testkit::cluster::pause;
use punctual_testkit::postgres::Schema;
use punctual_testkit::warnings::hear;
use serde::{Deserialize, Serialize};

use super::*;
use crate::postgres::options::Settings;
use crate::{Ctx, Failure, Job, JobId, Jobs, NewJob, Node, PostgresOptions, PostgresStore, Store};

const SECOND: Duration = Duration::from_secs(1);

/// Nothing takes as long as this, on any machine.
const PATIENCE: Duration = Duration::from_secs(90);

const TABLES: &str = "
    ALTER TABLE job ADD COLUMN note text DEFAULT 'none';
    ALTER TABLE sched ADD COLUMN note text DEFAULT 'none';
    ALTER TABLE history ADD COLUMN note text DEFAULT 'none';
    ALTER TABLE claimed ADD COLUMN note text;
    ALTER TABLE schedule ADD COLUMN colour text NOT NULL DEFAULT 'red';
    CREATE TABLE step (what text NOT NULL);
    INSERT INTO step VALUES ('tables')";

const LOCKS: &[&str] = &["sched", "job", "history", "claimed", "schedule"];

/// The next one after ours.
fn newer() -> Edition {
    newer_with(Migration { script: TABLES, locks: LOCKS, oldest: 1 })
}

fn newer_with(migration: Migration) -> Edition {
    let migrations = MIGRATIONS.into_iter().chain([migration]).collect::<Vec<_>>().leak();
    let functions = FUNCTIONS.map(|script| &*adapted(script).leak()).into_iter();
    let functions = functions.chain(["INSERT INTO step VALUES ('functions')"]).collect::<Vec<_>>().leak();
    Edition { migrations, functions_version: FUNCTIONS_VERSION + 1, functions }
}

/// A function that knows the column more.
fn adapted(script: &str) -> String {
    let (_, tables) = MIGRATIONS[0].script.split_once("CREATE TABLE job (").unwrap();
    let (columns, _) = tables.split_once("\n);").unwrap();
    let lines = columns.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
    let columns: Vec<&str> = lines.map(|line| line.split(' ').next().unwrap()).collect();
    let nothing_more = "NULL::boolean, NULL::bigint, NULL::bigint, NULL::bigint";
    let mut script = script.replace(")::job", ", 'new')::job");
    for of in ["j", "f"] {
        let all = columns.iter().map(|column| format!("{of}.{column}")).collect::<Vec<_>>().join(", ");
        script = script.replace(&format!("{of}.*, {nothing_more}"), &format!("{all}, {nothing_more}, {of}.note"));
    }
    script
}

fn open_with(schema: &Schema, edition: Edition, timeout: Duration) -> Result<PostgresStore, StoreError> {
    let options = PostgresOptions::new().schema(schema.name()).lease(120 * SECOND).pool_size(4).timeout(timeout);
    let settings = Settings::new(options, schema.url())?;
    block_on(PostgresStore::start(Settings { edition, ..settings }))
}

fn open(schema: &Schema, edition: Edition) -> PostgresStore {
    open_with(schema, edition, 30 * SECOND).unwrap()
}

fn number(schema: &Schema, sql: &str) -> i64 {
    schema.connect().query_one(sql, &[]).unwrap().get(0)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let clock = Clock::system();
    let began = clock.now();
    while !is_so() {
        assert!(clock.now() - began < PATIENCE, "it was not so in time: {what}");
        pause(Duration::from_millis(5));
    }
}

/// How many wait for a lock on a table of jobs: one who wants it for himself, and the others.
fn waiting(schema: &Schema) -> (i64, i64) {
    let asked = "SELECT count(*) FILTER (WHERE mode = 'AccessExclusiveLock'), count(*) FILTER (WHERE mode <> 'AccessExclusiveLock')
                 FROM pg_locks WHERE NOT granted AND relation = ANY (ARRAY['job', 'sched', 'history']::regclass[])";
    let row = schema.connect().query_one(asked, &[]).unwrap();
    (row.get(0), row.get(1))
}

#[derive(Debug, Serialize, Deserialize)]
struct Count(u64);

impl Job for Count {
    const KIND: &'static str = "count";
    type Output = ();
}

/// How often each job has run.
type Runs = Arc<Mutex<BTreeMap<u64, usize>>>;

/// A process that works.
fn work(store: PostgresStore, runs: &Runs) -> (Jobs, Node) {
    let jobs = block_on(Jobs::builder().over(Arc::new(store))).unwrap();
    let runs = runs.clone();
    jobs.on(move |count: Count, _: Ctx| {
        let runs = runs.clone();
        async move {
            *runs.lock().unwrap().entry(count.0).or_default() += 1;
            Ok::<_, Failure>(())
        }
    });
    let node = block_on(jobs.start()).unwrap();
    (jobs, node)
}

/// Callers who enqueue one job after the other, each numbered in a range of its own: three by a store, now and in a
/// moment, and one by SQL.
struct Callers {
    enough: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<Vec<u64>>>,
}

impl Callers {
    fn start(schema: &Schema, jobs: &[&Jobs]) -> Self {
        let enough = Arc::<AtomicBool>::default();
        let call = |caller: u64, mut enqueue: Box<dyn FnMut(u64) + Send>| {
            let enough = enough.clone();
            thread::spawn(move || {
                let numbers = (caller * 1_000_000..).take_while(|_| !enough.load(Ordering::Relaxed));
                numbers.inspect(|&number| enqueue(number)).collect()
            })
        };
        let mut threads = Vec::new();
        for (caller, jobs) in (1..).zip(jobs.iter().map(|&jobs| jobs.clone())) {
            let delay = if caller == 1 { Duration::from_millis(2) } else { Duration::ZERO };
            let enqueue = move |number| drop(block_on(jobs.after(delay).enqueue(Count(number))).unwrap());
            threads.push(call(caller, Box::new(enqueue)));
        }
        let mut client = schema.connect();
        let by_sql = move |number: u64| {
            let sql = format!("SELECT status || coalesce(': ' || detail, '') FROM enqueue('count', '{number}')");
            let mut enqueue = || client.query_one(&sql, &[]).unwrap().get::<_, String>(0);
            // Whoever is told that others are busy tries again.
            let told = std::iter::repeat_with(&mut enqueue).find(|told| !told.starts_with("busy"));
            assert_eq!(told.as_deref(), Some("new"));
        };
        threads.push(call(0, Box::new(by_sql)));
        Self { enough, threads }
    }

    /// All that was acknowledged.
    fn stop(self) -> Vec<u64> {
        self.enough.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

/// C37: whoever waits for the lock of a migration goes on with the functions of before, on the tables of after: what
/// does not fit then fails, was rolled back, and is asked once more.
#[test]
fn a_newer_program_upgrades_under_nodes_that_work() {
    let complaints = Arc::<Mutex<Vec<String>>>::default();
    let told = complaints.clone();
    hear(move |words| told.lock().unwrap().push(format!("{words:?}")));
    let (schema, runs) = (Schema::new(), Runs::default());
    let (near, far) = (work(open(&schema, Edition::OURS), &runs), work(open(&schema, Edition::OURS), &runs));
    let callers = Callers::start(&schema, &[&near.0, &far.0, &near.0]);
    let ran = || runs.lock().unwrap().len();
    until("work is done", || ran() > 200);

    let mut reader = schema.connect();
    let mut lock = reader.transaction().unwrap();
    lock.batch_execute("LOCK TABLE job IN ACCESS SHARE MODE").unwrap();
    let newest = thread::scope(|scope| {
        let newest = scope.spawn(|| open(&schema, newer()));
        until("others wait behind it", || matches!(waiting(&schema), (1, 3..)));
        lock.rollback().unwrap();
        newest.join().unwrap()
    });
    let steps = "SELECT count(*) FROM step";
    assert_eq!((number(&schema, steps), number(&schema, "SELECT max(version)::bigint FROM functions")), (2, 2));
    let before = ran();
    until("work goes on", || ran() > before + 200);

    // One of the old ones is started anew, and a new one comes.
    block_on(near.1.shutdown(SECOND));
    let (again, newest) = (work(open(&schema, Edition::OURS), &runs), work(newest, &runs));
    let before = ran();
    until("work goes on", || ran() > before + 200);
    assert_eq!((number(&schema, steps), number(&schema, "SELECT max(version)::bigint FROM functions")), (2, 2));

    let acknowledged = callers.stop();
    until("everything has ended", || number(&schema, "SELECT (SELECT count(*) FROM job) + count(*) FROM sched") == 0);
    let ran = std::mem::take(&mut *runs.lock().unwrap());
    let mut expected = acknowledged;
    expected.sort_unstable();
    assert_eq!(ran.into_iter().collect::<Vec<_>>(), expected.into_iter().map(|number| (number, 1)).collect::<Vec<_>>());
    let is_of_store = |words: &&String| words.contains("SQLSTATE") && !words.contains("others use the tables");
    let failed: Vec<_> = complaints.lock().unwrap().iter().filter(is_of_store).cloned().collect();
    assert!(failed.is_empty(), "{failed:#?}");
    for node in [far.1, again.1, newest.1] {
        block_on(node.shutdown(SECOND));
    }
}

#[test]
fn of_many_who_come_at_a_time_one_does_each_step() {
    let schema = Schema::new();
    let come = |newcomer: usize| {
        let edition = if newcomer.is_multiple_of(2) { newer() } else { Edition::OURS };
        let options = PostgresOptions::new().schema(schema.name()).pool_size(1);
        // Whoever waited for another one must see what that one did, also if snapshots are kept by default.
        let url = format!("{}?options=-c%20default_transaction_isolation%3Dserializable", schema.url());
        let settings = Settings::new(options, &url).unwrap();
        block_on(PostgresStore::start(Settings { edition, ..settings })).map(drop)
    };
    thread::scope(|scope| {
        let come: Vec<_> = (0..8).map(|newcomer| scope.spawn(move || come(newcomer))).collect();
        come.into_iter().for_each(|newcomer| newcomer.join().unwrap().unwrap());
    });
    assert_eq!(number(&schema, "SELECT sum(version) FROM migration"), 1 + 2);
    let steps = "SELECT string_agg(what, ', ' ORDER BY what) FROM step";
    let steps: String = schema.connect().query_one(steps, &[]).unwrap().get(0);
    assert_eq!(steps, "functions, tables");
}

#[test]
fn a_migration_that_fails_leaves_everything_as_it_was() {
    let schema = Schema::new();
    let old = open(&schema, Edition::OURS);
    let state = || {
        let asked = "SELECT string_agg(format('%s %s', c.oid::regclass, a.attname), ', ' ORDER BY c.oid, a.attnum) || (SELECT version || fingerprint FROM functions)
                     FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = current_schema()::regnamespace";
        schema.connect().query_one(asked, &[]).unwrap().get::<_, String>(0)
    };
    let before = state();
    let broken = "ALTER TABLE job ADD COLUMN note text; CREATE TABLE step (what text); SELECT 1 / 0";
    let broken = newer_with(Migration { script: broken, locks: &["job"], oldest: 2 });
    for _ in 0..2 {
        let error = open_with(&schema, broken, SECOND).unwrap_err();
        let step = format!("cannot bring the tables of schema \"{}\" to version 2: division by zero", schema.name());
        assert!(error.to_string().starts_with(&step) && !error.is_transient(), "{error}");
        assert_eq!(state(), before);
    }
    // Also if it is the last step that fails.
    let (script, functions) = ("CREATE TABLE step (what text)", [FUNCTIONS[0], "no SQL"].to_vec().leak());
    let broken = Edition { functions, ..newer_with(Migration { script, locks: &[], oldest: 1 }) };
    let error = open_with(&schema, broken, SECOND).unwrap_err();
    let step = format!("cannot bring the functions of schema \"{}\" to version 2: syntax error", schema.name());
    assert!(error.to_string().starts_with(&step), "{error}");
    assert_eq!(state(), before);
    assert_eq!(block_on(old.totals()).unwrap().scheduled, 0, "who was there goes on");
    open(&schema, newer());
    assert_eq!(number(&schema, "SELECT count(*) FROM step"), 2);
}

#[test]
fn a_program_that_is_too_old_is_told_so() {
    let schema = Schema::new();
    drop(open(&schema, newer_with(Migration { script: TABLES, locks: &[], oldest: 2 })));
    let error = open_with(&schema, Edition::OURS, SECOND).unwrap_err();
    assert!(!error.is_transient(), "{error}");
    let expected = format!(
        "cannot open the PostgreSQL store: the schema \"{}\" is of version 2, which programs older than version 2 cannot use, \
         and this one is of version 1: it needs a newer program",
        schema.name()
    );
    assert_eq!(error.to_string(), expected);
    open(&schema, newer());
}

/// A lock that is wanted for oneself makes everybody wait who comes after, also for what could be had at once. So
/// whoever does not get it soon lets the others go first.
#[test]
fn a_migration_lets_others_go_first_while_it_cannot_have_its_tables() {
    let schema = Schema::new();
    let old = open(&schema, Edition::OURS);
    let enqueue = || block_on(old.enqueue(vec![NewJob::new(JobId::from_u128(fastrand::u128(..)), "k")])).unwrap();
    let mut reader = schema.connect();
    let mut lock = reader.transaction().unwrap();
    lock.batch_execute("LOCK TABLE job IN ACCESS SHARE MODE").unwrap();
    let error = open_with(&schema, newer(), SECOND).unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("to version 2"), "{error}");
    thread::scope(|scope| {
        let come: Vec<_> = (0..3).map(|_| scope.spawn(|| open(&schema, newer()))).collect();
        until("one wants the tables", || waiting(&schema).0 == 1);
        enqueue();
        assert_eq!(waiting(&schema).0, 0, "nobody does, neither the one who did nor the next");
        enqueue();
        lock.rollback().unwrap();
        come.into_iter().for_each(|newcomer| drop(newcomer.join().unwrap()));
    });
    assert_eq!(number(&schema, "SELECT count(*) FROM step"), 2);
    enqueue();
}

/// Whoever waited for another one must see what that one did; a session remembers for a while what was not there.
#[test]
fn who_waited_for_another_sees_what_that_one_did() {
    let schema = Schema::new();
    let mut other = schema.connect();
    let mut doing = other.transaction().unwrap();
    let lock = format!("SELECT pg_advisory_xact_lock(hashtextextended('punctual schema {}', 0))", schema.name());
    doing.batch_execute(&lock).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| open_with(&schema, Edition::OURS, PATIENCE).map(drop));
        let key = format!("hashtextextended('punctual schema {}', 0)", schema.name());
        let is_waiting = format!(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
             AND (classid::bigint << 32 | objid::bigint) = {key}"
        );
        until("it waits", || number(&schema, &is_waiting) == 1);
        let all = format!("CREATE SCHEMA {0}; CREATE SEQUENCE {0}.arrival;
            CREATE TABLE {0}.migration AS SELECT 1 AS version, 1 AS oldest; CREATE TABLE {0}.functions AS SELECT 9 AS version, '' AS fingerprint", schema.name());
        doing.batch_execute(&all).unwrap();
        doing.commit().unwrap();
        let error = waits.join().unwrap().unwrap_err();
        assert!(error.to_string().starts_with("cannot ask for the time"), "it made nothing, and {error}");
    });
}

/// What programs of the last release know: a line each.
const RELEASED: &str = include_str!("released.txt");

/// What they would write: `door` and `inner`, a function that programs call and one that functions call, with what it
/// takes and answers; and `rows` with what is in them.
const PRESENT: &str = "
    SELECT CASE WHEN EXISTS (SELECT FROM doors() d WHERE d.name = p.proname) THEN 'door ' ELSE 'inner ' END || p.proname
           || '(' || pg_get_function_arguments(p.oid) || ') RETURNS ' || pg_get_function_result(p.oid) AS line
    FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace
    UNION ALL
    SELECT format('rows %s: %s', c.relname, string_agg(a.attname || ' ' || format_type(a.atttypid, NULL), ', ' ORDER BY a.attnum))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relname IN ('job', 'jobs', 'claimed', 'schedule')
    GROUP BY c.relname
    ORDER BY line";

const STUB: &str = "of before";

/// Programs of the last release call the functions of this one, which take the place of theirs. PostgreSQL replaces a
/// function only if what it answers, and the names of what it takes, are the same; if it takes something else it is
/// another function.
#[test]
fn what_the_last_release_calls_is_there_after_an_upgrade() {
    let schema = Schema::new();
    let released: Vec<&str> = RELEASED.lines().filter(|line| !line.starts_with('#')).collect();
    open(&schema, Edition::OURS);
    let mut client = schema.connect();
    let clear = "UPDATE functions SET version = 0;
        DO $$ DECLARE f regprocedure; BEGIN
            FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace LOOP EXECUTE format('DROP FUNCTION %s CASCADE', f); END LOOP;
        END $$; SET check_function_bodies = off";
    client.batch_execute(clear).unwrap();
    for (kind, function) in released.iter().filter_map(|line| line.split_once(' ')) {
        if kind != "rows" {
            client.batch_execute(&format!("CREATE FUNCTION {function} LANGUAGE plpgsql AS $${STUB}$$")).unwrap();
        }
    }
    open(&schema, Edition::OURS);

    let present: Vec<String> = client.query(PRESENT, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    for line in released.iter().filter(|line| !line.starts_with("inner ")) {
        assert!(present.iter().any(|now| now.starts_with(line)), "programs of the last release rely on this: {line}");
    }
    for now in &present {
        assert!(released.iter().any(|line| now.starts_with(line)), "released.txt does not have this yet: {now}");
    }
    let left = format!("SELECT coalesce(string_agg(p.oid::regprocedure::text, ', '), '') FROM pg_proc p JOIN doors() d ON d.name = p.proname
                        WHERE p.pronamespace = current_schema()::regnamespace AND p.prosrc = '{STUB}'");
    assert_eq!(
        client.query_one(&left, &[]).unwrap().get::<_, String>(0),
        "",
        "these take something else now, and those of before are gone"
    );
}

/// What releases brought: a line each, the newest last.
const EDITIONS: &str = include_str!("editions.txt");

/// The line of a release that brings this.
fn record(release: &str, edition: &Edition) -> String {
    let ours = Installed::by(edition);
    let scripts: Vec<&str> = edition.migrations.iter().map(|migration| migration.script).collect();
    format!(
        "{release} tables {} {} functions {} {}",
        ours.tables,
        fingerprint(&scripts),
        ours.functions,
        ours.fingerprint
    )
}

/// What must be done before a program that brings this can follow the release of that line.
fn misstep(released: &str, edition: &Edition) -> Option<String> {
    let words: Vec<&str> = released.split(' ').collect();
    let &[release, "tables", tables, scripts, "functions", version, text] = &words[..] else {
        return Some(format!("editions.txt: no such line can be read: {released}"));
    };
    let (tables, version): (usize, i32) = (tables.parse().unwrap(), version.parse().unwrap());
    let ours: Vec<&str> = edition.migrations.iter().take(tables).map(|migration| migration.script).collect();
    if fingerprint(&ours) != scripts {
        return Some(format!(
            "the first {tables} scripts in postgres/migrations are not those of release {release}, which databases have run and \
             will not run again: put them back, and add a script that changes what they made"
        ));
    }
    let is_newer = edition.functions_version > version;
    if !is_newer && (edition.functions_version < version || fingerprint(edition.functions) != text) {
        return Some(format!(
            "the functions in postgres/queries are not those of release {release}, but have no newer version, so that its programs \
             would put theirs back: set FUNCTIONS_VERSION in postgres/schema.rs to {}",
            version + 1
        ));
    }
    None
}

fn releases() -> impl Iterator<Item = &'static str> {
    EDITIONS.lines().filter(|line| !line.starts_with('#'))
}

/// Programs of the last release put their functions in place of others of the same version, and a database runs each
/// script once.
#[test]
fn what_was_released_is_changed_under_another_number_only() {
    for released in releases() {
        assert_eq!(misstep(released, &Edition::OURS), None);
    }
}

/// Without its record nothing would be compared with a release.
#[test]
fn every_release_says_what_it_brought() {
    let changes = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../CHANGELOG.md")).unwrap();
    let headings = changes.lines().filter_map(|line| line.strip_prefix("## "));
    let releases_told = headings.map(|heading| heading.split(' ').next().unwrap().trim_matches(['[', ']']));
    for release in releases_told.filter(|&release| release != "Unreleased") {
        let is_recorded = releases().any(|line| line.split(' ').next() == Some(release));
        let line = record(release, &Edition::OURS);
        assert!(is_recorded, "CHANGELOG.md tells of {release}: add this line to postgres/schema/editions.txt\n{line}");
    }
}

#[test]
fn a_change_of_what_was_released_is_found_out() {
    let first = Edition::OURS;
    let released = record("0.1.0", &first);
    let says = |edition: Edition| misstep(&released, &edition).unwrap_or_default();
    assert_eq!(says(first), "");
    assert_eq!(says(newer()), "", "more scripts, and other functions of a newer version");

    let functions: &[&str] = &FUNCTIONS[1..];
    assert_eq!(says(Edition { functions, functions_version: FUNCTIONS_VERSION + 1, ..first }), "");
    let advice = format!("set FUNCTIONS_VERSION in postgres/schema.rs to {}", FUNCTIONS_VERSION + 1);
    assert!(says(Edition { functions, ..first }).ends_with(&advice), "{}", says(Edition { functions, ..first }));
    assert!(says(Edition { functions_version: FUNCTIONS_VERSION - 1, ..first }).ends_with(&advice));

    let changed: &[Migration] = vec![Migration { script: "SELECT 1", locks: &[], oldest: 1 }].leak();
    for migrations in [changed, &[]] {
        let said = says(Edition { migrations, functions_version: FUNCTIONS_VERSION + 1, ..first });
        assert!(
            said.contains("the first 1 scripts") && said.ends_with("add a script that changes what they made"),
            "{said}"
        );
    }
}
