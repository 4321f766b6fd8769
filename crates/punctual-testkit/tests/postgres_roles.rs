//! Who may do what in the database, and that it is enough: every function and table by role, a process of each role,
//! and what the guides tell people to type, word for word.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::collections::BTreeMap;
use std::time::Duration;

use postgres::Client;
use punctual::Limits;
use punctual_durable::{
    DurableError, Failure, Job, JobId, Jobs, OnConflict, PostgresOptions, PostgresStore, Query, Redriven, StoreError,
};
use punctual_testkit::block_on;
use punctual_testkit::postgres::{Schema, Server, ask, connect, one};
use serde::{Deserialize, Serialize};

/// Nothing that is told takes as long as this, on any machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A store, and a connection of its owner.
fn open() -> (Schema, Client) {
    let schema = Schema::new();
    drop(open_at(schema.url(), &schema).unwrap());
    let client = schema.connect();
    (schema, client)
}

fn open_at(url: &str, schema: &Schema) -> Result<PostgresStore, StoreError> {
    block_on(PostgresOptions::new().schema(schema.name()).pool_size(1).open(url))
}

/// Where a role logs in.
fn url_of(role: &str, server: &Server) -> String {
    server.url().replace("postgres@", &format!("{role}@"))
}

/// Roles that go with the test, whatever becomes of it: those of an application, of nodes and of people, and one that
/// nobody has given anything.
struct Roles(Client, [String; 4]);

impl Roles {
    fn new(schema: &Schema) -> Self {
        let names = ["app", "node", "people", "stranger"].map(|role| format!("{}_{role}", schema.name()));
        let mut roles = Self(schema.connect(), names);
        for name in roles.1.clone() {
            one(&mut roles.0, &format!("CREATE ROLE {name} LOGIN"));
        }
        roles
    }

    /// Gives all but the stranger their rights.
    fn grant(&mut self) {
        let [app, node, people, _] = &self.1;
        let sql = format!("SELECT grant_roles('{app}', '{node}', '{people}')");
        one(&mut self.0, &sql);
    }

    /// A connection that speaks for one of them.
    fn speak(&self, schema: &Schema, role: usize) -> Client {
        let mut client = schema.connect();
        // Not `SET ROLE`: who is behind a role would still be the owner.
        one(&mut client, &format!("SET SESSION AUTHORIZATION {}", self.1[role]));
        client
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        for name in &self.1 {
            let _ = self.0.batch_execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}"));
        }
    }
}

/// Each role can do its own work and nothing beyond, and none touches a table.
#[test]
fn roles_have_the_rights_they_need_and_no_others() {
    let (schema, _owner) = open();
    let mut roles = Roles::new(&schema);
    roles.grant();

    let mut app = roles.speak(&schema, 0);
    assert_eq!(one(&mut app, "SELECT status FROM enqueue('k', unique_key => 'u')"), "new");
    assert_eq!(one(&mut app, "SELECT status FROM enqueue('k', unique_key => 'u', on_conflict => 'join')"), "joined");
    let mut node = roles.speak(&schema, 1);
    one(&mut node, "SELECT join_node(1, 'n', '{k}', '{}', 4, 15000000)");
    assert_eq!(one(&mut node, "SELECT kind FROM claim(1, 9, '{k}', '{9}') WHERE id IS NOT NULL"), "k");
    assert_eq!(one(&mut node, "SELECT prune(0, 0, 0, 0, 9)"), "0", "it may make and drop days");
    let mut people = roles.speak(&schema, 2);
    assert_eq!(one(&mut people, "SELECT running FROM totals()"), "1");

    let denied = |client: &mut Client, sql: &str| {
        let error = ask(client, sql).expect_err(sql);
        assert!(error.starts_with("permission denied"), "{sql}: {error}");
    };
    let id = "'00000000-0000-7000-8000-000000000001'";
    let give = format!(
        "SELECT count(*) FROM enqueue_alike(ARRAY[{id}::uuid], '{{1}}', 'k', '', NULL, 0::smallint, 1, NULL, 0, NULL, 3, 3, 1, 1, NULL, NULL, 1)"
    );
    denied(&mut app, "SELECT * FROM claim(1, 9, '{k}', '{9}')");
    denied(&mut app, &give);
    assert_eq!(one(&mut node, &give), "1");
    denied(&mut node, "SELECT * FROM erase('')");
    for client in [&mut app, &mut node, &mut people] {
        denied(client, "SELECT * FROM job");
        assert_eq!(ask(client, "SELECT clock(1)").unwrap_err(), "only the owner of the store may say what time it is");
    }
}

/// Who may call what: the roles in turn, each what those before it may and what is named here. The last are for the
/// owner and for other functions. A new function must be put somewhere.
const MAY_CALL: [(&str, &str); 4] = [
    ("app", "clock enqueue enqueue_alike enqueue_batch"),
    (
        "node",
        "cancel claim due_schedules ended finish fire_begin fire_end get get_ready heartbeat join_node keep_up leave prune put_schedule stop_waiting tend
         unwant wait_for want",
    ),
    (
        "people",
        "cancel_tenant edit erase explain nodes pause_schedule purge query redrive remove_schedule schedules set_tenant tenant_records totals",
    ),
    (
        "nobody",
        "absorb absorb_work account admit catch_up catch_up_of charge choose choose_a_few choose_with_care count_on doors drop_partitions enqueue_one expire
         expire_one expiry_error meet misfit take_turns tell_new
         find_job foresee forget_ended give_up grant_roles hear_of index_days instant is_known later let_go live_of lock_job lose make_partitions move
         nanos new_id next_tend numbers open_doors outlook present promote ran_by settle starts take_interest take_news take_waiting tally tell_ended
         wait_for_turn whose_turn",
    ),
];

/// Who may read what. Nobody may write anything.
const MAY_READ: [(&str, &str); 3] = [("app", "functions migration"), ("node", ""), ("people", "jobs")];

/// By what is named, the first role that may.
fn written(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    let names = |(role, names): &(&str, &str)| {
        let role = (*role).to_owned();
        names.split_whitespace().map(move |name| (name.to_owned(), role.clone())).collect::<Vec<_>>()
    };
    list.iter().flat_map(names).collect()
}

/// What a question about rights says for each role: by what it is about, the first role that may. Roles that come after
/// it must be allowed too, and a stranger not.
fn found(roles: &mut Roles, about: &str, right: &str) -> BTreeMap<String, String> {
    let asked = roles.1.iter().map(|role| right.replace("ROLE", &format!("'{role}'"))).collect::<Vec<_>>().join(", ");
    let rows = ask(&mut roles.0, &format!("SELECT name, {asked} FROM ({about}) a")).unwrap();
    let mut found = BTreeMap::new();
    for row in rows {
        let mut words = row.split(' ');
        let name = words.next().unwrap();
        let who = match words.collect::<Vec<_>>()[..] {
            ["t", "t", "t", "f"] => "app",
            ["f", "t", "t", "f"] => "node",
            ["f", "f", "t", "f"] => "people",
            ["f", "f", "f", "f"] => "nobody",
            ref other => panic!("{name}: {other:?}"),
        };
        let before = found.insert(name.to_owned(), who.to_owned());
        assert!(
            before.is_none_or(|before| before == who),
            "two functions are called {name}, and only one is for {who}"
        );
    }
    found
}

/// Every function and every table there is, so that nothing is open that nobody thought of.
#[test]
fn what_each_role_may_is_written_down() {
    let (schema, _owner) = open();
    let mut roles = Roles::new(&schema);
    roles.grant();
    let functions = "SELECT proname AS name, oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace";
    assert_eq!(found(&mut roles, functions, "has_function_privilege(ROLE, a.oid, 'EXECUTE')"), written(&MAY_CALL));

    let tables = "SELECT relname AS name, oid FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND relnamespace = current_schema()::regnamespace";
    let mut readable = found(&mut roles, tables, "has_any_column_privilege(ROLE, a.oid, 'SELECT')");
    assert!(readable.contains_key("job") && readable.contains_key("granted"), "{readable:?}");
    readable.retain(|_, who| who != "nobody");
    assert_eq!(readable, written(&MAY_READ));
    let mut is_nobodys = |about: &str, right: &str| {
        let found = found(&mut roles, about, right);
        assert!(found.values().all(|who| who == "nobody"), "{right}: {found:?}");
    };
    is_nobodys(tables, "has_any_column_privilege(ROLE, a.oid, 'INSERT, UPDATE, REFERENCES')");
    is_nobodys(tables, "has_table_privilege(ROLE, a.oid, 'DELETE, TRUNCATE, TRIGGER')");
    let sequences = "SELECT relname AS name, oid FROM pg_class WHERE relkind = 'S' AND relnamespace = current_schema()::regnamespace";
    is_nobodys(sequences, "has_sequence_privilege(ROLE, a.oid, 'USAGE, SELECT, UPDATE')");
    let schema = "SELECT nspname AS name, oid FROM pg_namespace WHERE oid = current_schema()::regnamespace";
    is_nobodys(schema, "has_schema_privilege(ROLE, a.oid, 'CREATE')");
    let users = found(&mut roles, schema, "has_schema_privilege(ROLE, a.oid, 'USAGE')");
    assert!(users.values().all(|who| who == "app"), "{users:?}");
}

/// Of functions that a newer version adds, or takes away to put others in their place, nothing was ever granted.
/// Whoever had rights before has them after the upgrade, except who was shut out, and a role of the same name that is
/// another.
#[test]
fn what_a_newer_version_adds_is_open_to_the_same_roles() {
    let (schema, mut owner) = open();
    let mut roles = Roles::new(&schema);
    roles.grant();
    let [app, node, people, _] = roles.1.clone();
    let upgrade = |owner: &mut Client| {
        one(owner, "DROP FUNCTION clock, cancel, redrive; UPDATE functions SET version = 0");
        drop(open_at(schema.url(), &schema).unwrap());
    };
    let may = |owner: &mut Client, role: &str| {
        let each = ["clock(bigint)", "cancel(uuid, text, bigint)", "redrive(uuid, bigint)"];
        let each = each.map(|function| format!("has_function_privilege('{role}', '{function}', 'EXECUTE')")).join(", ");
        one(owner, &format!("SELECT {each}"))
    };
    upgrade(&mut owner);
    assert_eq!([&app, &node, &people].map(|role| may(&mut owner, role)), ["t f f", "t t f", "t t t"]);

    one(&mut owner, &format!("REVOKE USAGE ON SCHEMA {} FROM {people}", schema.name()));
    one(
        &mut owner,
        &format!("DROP OWNED BY {app}; DROP ROLE {app}; DROP OWNED BY {node}; DROP ROLE {node}; CREATE ROLE {node}"),
    );
    upgrade(&mut owner);
    assert_eq!([&node, &people].map(|role| may(&mut owner, role)), ["f f f", "f f f"]);
}

/// A process that may not make or change the schema can open it if there is nothing to make or to change. Otherwise it
/// hears who must.
#[test]
fn whoever_may_not_make_a_schema_hears_who_must() {
    let server = Server::start_fast();
    let schema = Schema::at(server.url());
    let open_as = |role: &str| open_at(&url_of(role, &server), &schema);
    let mut roles = Roles::new(&schema);
    let [app, node, people, stranger] = roles.1.clone();
    let refused = |role: &str, why: &str| {
        let error = open_as(role).unwrap_err();
        let told = error.to_string();
        assert!(!error.is_transient() && told.contains("SQLSTATE 42501") && told.ends_with(why), "{told}");
    };
    let name = schema.name();
    refused(&node, &format!("; schema \"{name}\" is missing, and must be made by a role that may"));
    drop(open_as("postgres").unwrap());
    roles.grant();
    for role in [&app, &node, &people] {
        drop(open_as(role).unwrap());
    }
    refused(&stranger, "; its owner must call `grant_roles` for this role");

    let older = format!("; schema \"{name}\" is of another version, and its owner must open it with this one first");
    one(&mut roles.0, "UPDATE functions SET version = 0");
    refused(&node, &older);
    let database = one(&mut roles.0, "SELECT current_database()");
    one(&mut roles.0, &format!("GRANT CREATE ON DATABASE {database} TO {people}"));
    refused(&people, &older);
    drop(open_as("postgres").unwrap());
    drop(open_as(&node).unwrap());
}

/// A table of the caller's, with the name of one of ours, is not taken for it by functions that act for their owner.
#[test]
fn a_callers_own_table_deceives_nobody() {
    let (schema, mut owner) = open();
    let schema = schema.name();
    one(&mut owner, "SET search_path = pg_temp, public");
    one(&mut owner, &format!("CREATE TEMP TABLE job (LIKE {schema}.job)"));
    assert_eq!(one(&mut owner, &format!("SELECT status FROM {schema}.enqueue('k')")), "new");
    assert_eq!(one(&mut owner, &format!("SELECT ready FROM {schema}.totals()")), "1");
    assert_eq!(one(&mut owner, "SELECT count(*) FROM pg_temp.job"), "0");
    assert_eq!(one(&mut owner, &format!("SELECT count(*) FROM {schema}.job")), "1");
}

/// Functions that say nothing of where names are looked for, so that they can become part of the statements that call
/// them, or because they are called too often. Each name in them says whose it is.
const PURE: [&str; 5] = ["count_on", "later", "nanos", "present", "starts"];

/// Whatever its caller looks through: a name in a function is one of the store's, or the system's.
#[test]
fn every_function_says_where_names_are_looked_for() {
    let (schema, mut owner) = open();
    let unsaid = format!(
        "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND (proconfig @> ARRAY['search_path={}, pg_temp']) IS NOT TRUE ORDER BY 1",
        schema.name()
    );
    assert_eq!(ask(&mut owner, &unsaid).unwrap(), PURE);
}

/// What a schema needs to deceive whoever looks through it first: operators, functions, tables and types with the names
/// of others.
const DECEIT: &str = "
CREATE FUNCTION evil.deceive() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'deceived'; END $$;
DO $$
DECLARE
    l text; r text; op text; name text;
BEGIN
    FOREACH l IN ARRAY '{bigint,int,numeric,float8}'::text[] LOOP
        FOREACH r IN ARRAY '{bigint,int,numeric,float8}'::text[] LOOP
            EXECUTE format('CREATE FUNCTION evil.wrong(%s, %s) RETURNS bigint LANGUAGE sql AS ''SELECT evil.deceive()''', l, r);
            FOREACH op IN ARRAY '{+,-,*,/,%,<,>,<=,>=,=}'::text[] LOOP
                EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.wrong)', op, l, r);
            END LOOP;
        END LOOP;
    END LOOP;
    FOREACH name IN ARRAY ARRAY['statement_timestamp()', 'clock_timestamp()', 'gen_random_uuid()', 'current_schema()', 'pg_has_role(name, name, text)',
        'extract(text, timestamptz)', 'date_part(text, timestamptz)', 'extract(text, interval)', 'date_part(text, interval)', 'to_timestamp(float8)',
        'later(bigint, bigint)', 'nanos(interval)', 'present(bigint)', 'catch_up(bigint)', 'doors()'] LOOP
        EXECUTE format('CREATE FUNCTION evil.%s RETURNS bigint LANGUAGE sql AS ''SELECT evil.deceive()''', name);
    END LOOP;
    FOREACH name IN ARRAY '{job,sched,history,tenant,ledger,node,run,uuid,numeric}'::text[] LOOP
        EXECUTE format('CREATE TABLE evil.%I (n int)', name);
        EXECUTE format('CREATE TEMP TABLE %I (n int)', name);
    END LOOP;
END $$;
";

/// Whoever calls the functions may look through anything before the system's own names. It changes nothing.
#[test]
fn a_hostile_path_deceives_nobody() {
    let (schema, mut owner) = open();
    let (name, evil) = (schema.name(), format!("{}_evil", schema.name()));
    one(&mut owner, &format!("CREATE SCHEMA {evil}"));
    one(&mut owner, &DECEIT.replace("evil", &evil));
    one(&mut owner, &format!("SET search_path = pg_temp, {evil}, pg_catalog"));
    for sql in ["SELECT 1::bigint + 1::bigint", "SELECT statement_timestamp()", "SELECT 2 > 1.0"] {
        assert_eq!(ask(&mut owner, sql).unwrap_err(), "deceived", "the fault happens: {sql}");
    }
    let tenant = |row: &str| format!("jsonb_populate_record(NULL::our.tenant, '{row}')");
    let limited = tenant(r#"{"running_max": 7, "running": 2}"#);
    let rated = tenant(r#"{"rate_gap": 10, "rate_tolerance": 20, "rate_next": 115}"#);
    let starts = format!("SELECT our.starts(9, {limited}, 0), our.starts(9, {rated}, 100)");
    let calls = [
        ("SELECT our.later(1, 1001), our.later(4000000000000000000, 1), our.later(1, NULL)", "3 4000000000000000000 "),
        ("SELECT our.nanos('1 hour'), our.nanos('9999 years')", "3600000000000 9000000000000000000"),
        ("SELECT our.present(7), our.present(NULL) OPERATOR(pg_catalog.=) our.clock()", "7 t"),
        (&starts, "5 1"),
        (
            "SELECT status FROM our.enqueue('k', due => '2001-02-03 04:05:06Z', start_within => '9999 years', deadline_after => '1 day')",
            "new",
        ),
        ("SELECT our.join_node(1, 'n', '{k}', '{}', 4, 15000000)", ""),
        ("SELECT count(id) FROM our.claim(1, 9, '{k}', '{9}')", "1"),
        ("SELECT running FROM our.totals()", "1"),
        ("SELECT due AT TIME ZONE 'UTC' FROM our.jobs", "2001-02-03 04:05:06"),
        (
            "SELECT f.stage FROM our.jobs j, our.finish(1, ARRAY[j.id], '{1}', '{retry}', '{no}', NULL, '{60000000}') f",
            "scheduled",
        ),
        ("SELECT w.was FROM our.jobs j, our.cancel(j.id, 'enough') w", "scheduled"),
        ("SELECT our.prune(0, 0, 0, 0, 9), our.expiry_error(NULL)", "1 its time ran out"),
    ];
    for (sql, answer) in calls {
        assert_eq!(one(&mut owner, &sql.replace("our.", &format!("{name}."))), answer, "{sql}");
    }
    one(&mut owner, &format!("SET search_path = pg_catalog; DROP SCHEMA {evil} CASCADE"));
}

/// The blocks of a language in a guide, as they stand there.
fn blocks<'a>(guide: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    guide.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// A server with a store where everybody's is, and the roles that the guide makes.
fn guided() -> (Server, Client) {
    let server = Server::start_fast();
    drop(block_on(PostgresStore::open(server.url())).unwrap());
    let mut owner = connect(server.url()).unwrap();
    let [_, _, _, roles, _] = blocks(OPERATE, "sql")[..] else {
        panic!("another block has come to the guide: run it here")
    };
    assert_eq!(ask(&mut owner, roles).unwrap(), [""]);
    (server, owner)
}

const OPERATE: &str = include_str!("../../../docs/guide/operate-it.md");
const ENQUEUE: &str = include_str!("../../../docs/guide/enqueue-in-your-transaction.md");

/// What an operator types, by the role that has to do with it.
#[test]
fn the_guide_to_operating_can_be_typed_as_it_stands() {
    let (server, mut owner) = guided();
    let [slots, who, fences, _, look] = blocks(OPERATE, "sql")[..] else {
        panic!("another block has come to the guide: run it here")
    };
    let mut admin = connect(&url_of("app_admin", &server)).unwrap();
    assert_eq!(ask(&mut admin, slots).unwrap(), [""; 0]);
    one(&mut owner, "SELECT pg_create_physical_replication_slot('left')");
    assert_eq!(ask(&mut admin, slots).unwrap(), ["left f  "]);

    let mut reader = connect(server.url()).unwrap();
    one(&mut reader, "BEGIN; SELECT count(*) FROM punctual.job");
    assert_eq!(ask(&mut owner, who).unwrap().len(), 1, "who is in the way of a migration");
    one(&mut reader, "COMMIT");

    // The one that it asks about, and one of another tenant.
    let id = look.split_once("explain('").unwrap().1.split('\'').next().unwrap();
    let mut app = connect(&url_of("app_enqueue", &server)).unwrap();
    let enqueue =
        "SELECT status FROM punctual.enqueue('mail', id => $ID, tenant => $TENANT, due => '2101-02-03 04:05Z')";
    for (id, tenant) in [(id, "acme"), ("00000000-0000-7000-8000-000000000001", "other")] {
        let enqueue = enqueue.replace("$ID", &format!("'{id}'")).replace("$TENANT", &format!("'{tenant}'"));
        assert_eq!(one(&mut app, &enqueue), "new");
    }
    one(&mut admin, "SET timezone = 'UTC'");
    let [job, why, totals] = &ask(&mut admin, look).unwrap()[..] else { panic!("three answers") };
    assert!(job.starts_with(&format!("{id} acme mail scheduled  0 10 0 0 2101-02-03 04:05:00+00 ")), "{job}");
    assert!(why.starts_with("not_due "), "{why}");
    assert_eq!(totals, "2 0 0 0 0 0 0 0");
    assert_eq!(ask(&mut owner, fences).unwrap(), [""; 0]);
    assert_eq!(one(&mut owner, "SELECT min(fence) FROM punctual.sched"), "1000000");
}

/// What an application types, by a role that may do no more than that.
#[test]
fn the_guide_to_transactions_can_be_typed_as_it_stands() {
    let (server, mut owner) = guided();
    one(&mut owner, "CREATE TABLE users (name text); GRANT INSERT ON users TO app_enqueue");
    let [block] = blocks(ENQUEUE, "sql")[..] else { panic!("another block has come to the guide: run it here") };
    let (before, after) = block.split_once("COMMIT;").unwrap();
    let mut app = connect(&url_of("app_enqueue", &server)).unwrap();
    assert_eq!(ask(&mut app, before).unwrap(), ["new "]);
    let there = "SELECT (SELECT string_agg(name, ' ') FROM users), tenant, kind, stage, due - enqueued_at, unique_key, payload FROM punctual.jobs";
    assert_eq!(ask(&mut owner, there).unwrap(), [""; 0]);
    assert_eq!(ask(&mut app, &format!("COMMIT;{after}")).unwrap(), [""; 0]);
    assert_eq!(
        ask(&mut owner, there).unwrap(),
        ["ada acme welcome scheduled 00:10:00 welcome-ada {\"user\": \"ada\"}"]
    );
}

/// The guide names every parameter that there is, in order; and its Rust for another driver is that of the example,
/// which is run.
#[test]
fn the_guide_to_transactions_leaves_nothing_out() {
    let (_schema, mut owner) = open();
    let table = ENQUEUE.split_once("| parameter |").unwrap().1;
    let first = |row: &'static str| row.strip_prefix("| `").and_then(|row| row.split(" |").next());
    let named: Vec<&str> =
        table.lines().filter_map(first).flat_map(|names| names.trim_end_matches('`').split("`, `")).collect();
    let there = "SELECT unnest(proargnames[:pronargs]) FROM pg_proc WHERE proname = 'enqueue' AND pronamespace = current_schema()::regnamespace";
    assert_eq!(ask(&mut owner, there).unwrap(), named);

    let example = include_str!("../../../examples/src/bin/enqueue_with_sqlx.rs");
    let [block] = blocks(ENQUEUE, "rust,ignore")[..] else { panic!("another block has come to the guide") };
    let lines: Vec<&str> = example.lines().map(str::trim).collect();
    for line in block.lines().map(str::trim) {
        assert!(lines.contains(&line), "the example does not say {line}");
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Mail(u32);

impl Job for Mail {
    const KIND: &'static str = "mail";
    type Output = u32;
}

/// A process of each role does its own work, all of it, and hears which right it lacks for another's.
#[test]
fn a_process_of_each_role_can_do_its_work() {
    let (server, _owner) = guided();
    let jobs_of = |role: &str| block_on(Jobs::open(&url_of(role, &server))).unwrap();
    let (app, worker, admin) = (jobs_of("app_enqueue"), jobs_of("app_worker"), jobs_of("app_admin"));
    worker.on(|mail: Mail, _| async move { if mail.0 == 13 { Err(Failure::give_up("unlucky")) } else { Ok(mail.0) } });
    let node = block_on(worker.start()).unwrap();

    // An application enqueues, by itself and in its transactions, and can do nothing else.
    let mut ids = vec![
        block_on(app.now().enqueue(Mail(1))).unwrap().id(),
        block_on(app.tenant("acme").now().unique("once", OnConflict::Join).enqueue(Mail(2))).unwrap().id(),
    ];
    let many = block_on(app.now().enqueue_many(vec![Mail(3), Mail(4)]));
    ids.extend(many.into_iter().map(|handle| handle.unwrap().id()));
    ids.push(enqueue_in(&app, &url_of("app_enqueue", &server), Mail(5)));
    let is_denied =
        |error: StoreError| assert!(error.to_string().contains("permission denied for function"), "{error}");
    is_denied(block_on(app.get(ids[0])).unwrap_err());
    is_denied(block_on(app.cancel(ids[0])).unwrap_err());
    let wanted = block_on(app.now().while_wanted().enqueue(Mail(0))).unwrap_err();
    assert!(wanted.to_string().contains("the role of this process may only enqueue"), "{wanted}");
    let started = block_on(app.start()).unwrap_err();
    assert!(started.to_string().contains("permission denied for function heartbeat"), "{started}");

    // A worker runs them, waits for them, looks at one, cancels, and states schedules.
    let results: Vec<u32> = ids.iter().map(|&id| block_on(worker.handle(id).result()).unwrap()).collect();
    assert_eq!(results, [1, 2, 3, 4, 5]);
    assert!(block_on(worker.get(ids[0])).unwrap().is_some());
    let parked = block_on(worker.after(PATIENCE).enqueue(Mail(6))).unwrap();
    block_on(worker.cancel(parked.id())).unwrap();
    block_on(worker.every("hourly", 120 * PATIENCE).enqueue(Mail(7))).unwrap();
    is_denied(block_on(worker.tenant("acme").set_limits(Limits::new())).unwrap_err());
    is_denied(block_on(worker.find(Query::default())).unwrap_err());

    // People see and change everything.
    let unlucky = block_on(app.now().enqueue(Mail(13))).unwrap().id();
    let ended: Result<u32, _> = block_on(worker.handle(unlucky).result());
    assert!(matches!(ended, Err(DurableError::Failed { .. })), "{ended:?}");
    block_on(admin.tenant("acme").set_limits(Limits::new().running_max(4))).unwrap();
    let tenants = block_on(admin.tenants(None, 9)).unwrap();
    assert_eq!(tenants.iter().map(|tenant| tenant.name.as_str()).collect::<Vec<_>>(), ["", "acme"]);
    assert_eq!(block_on(admin.schedules(None, 9)).unwrap().len(), 1);
    assert!(block_on(admin.pause_schedule("hourly", true)).unwrap());
    assert!(block_on(admin.remove_schedule("hourly")).unwrap());
    assert_eq!(block_on(admin.dead_letters(Query::default())).unwrap().jobs.len(), 1);
    assert_eq!(block_on(admin.redrive(unlucky)).unwrap(), Redriven::Done);
    let ended: Result<u32, _> = block_on(worker.handle(unlucky).result());
    assert!(matches!(ended, Err(DurableError::Failed { .. })), "{ended:?}");
    assert_eq!(block_on(admin.purge(vec![unlucky])).unwrap(), 1);
    let nodes = block_on(admin.nodes()).unwrap();
    assert_eq!(nodes.len(), 2, "the worker, and whoever asks: {nodes:?}");
    block_on(node.shutdown(PATIENCE));
}

/// Enqueues in a transaction of its own.
fn enqueue_in(jobs: &Jobs, url: &str, mail: Mail) -> JobId {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let transaction = client.transaction().await.unwrap();
        let id = jobs.now().enqueue_in(&transaction, mail).await.unwrap();
        transaction.commit().await.unwrap();
        id
    })
}
