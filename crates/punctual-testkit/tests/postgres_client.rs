//! The store in PostgreSQL, and what it meets there: a job that does not fit, a server that takes no writes, functions
//! of another version, callers who ask for too much.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual::{Limits, VirtualClock};
use punctual_durable::{
    Admitted, CancelCause, Claim, Ctx, Failure, Finish, Finished, Job, JobId, Jobs, Moment, NewJob, OnConflict,
    Outcome, PostgresOptions, PostgresStore, Query, Record, Redriven, Refused, State, Store, StoreError, TenantChange,
    TenantPolicy, Unique, Verdict,
};
use punctual_testkit::postgres::{Schema, Server, connect, proxied};
use punctual_testkit::warnings::{Words, hear};
use punctual_testkit::{NODE, beat, block_on};
use serde::{Deserialize, Serialize};

const SECOND: Duration = Duration::from_secs(1);

/// Nothing that is told takes as long as this, on any machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn open(url: &str, schema: &Schema) -> PostgresStore {
    block_on(PostgresOptions::new().schema(schema.name()).timeout(2 * SECOND).open(url)).unwrap()
}

fn job(id: u128) -> NewJob {
    NewJob { due: Moment::After(60 * SECOND), ..NewJob::new(JobId::from_u128(id), "k") }
}

fn enqueue(store: &PostgresStore, job: NewJob) -> Result<Result<Admitted, Refused>, StoreError> {
    block_on(store.enqueue(vec![job])).map(|mut answers| answers.remove(0))
}

#[test]
fn many_who_open_a_new_schema_at_a_time_make_it_once() {
    let schema = Schema::new();
    let opened: Vec<_> = (0..6)
        .map(|_| {
            let (name, url) = (schema.name().to_owned(), schema.url().to_owned());
            std::thread::spawn(move || block_on(PostgresOptions::new().schema(name).pool_size(1).open(&url)))
        })
        .collect();
    let stores: Vec<_> = opened.into_iter().map(|opened| opened.join().unwrap().unwrap()).collect();
    let made: i64 = schema.connect().query_one("SELECT count(*) FROM migration", &[]).unwrap().get(0);
    assert_eq!(made, 1);
    for (id, store) in (1..).zip(&stores) {
        enqueue(store, job(id)).unwrap().unwrap();
    }
    assert_eq!(block_on(stores[0].totals()).unwrap().scheduled, 6);
}

/// A name with capitals was taken, and then nothing could be opened: where functions are given to roles it was read as
/// one without.
#[test]
fn a_schema_may_have_capitals_and_hyphens() {
    let server = Server::start_fast();
    connect(server.url()).unwrap().batch_execute("CREATE ROLE worker LOGIN").unwrap();
    let name = "My-Jobs_2";
    let jobs = |url: &str| block_on(Jobs::open(&format!("{url}?schema={name}"))).unwrap();
    let owner = jobs(server.url());
    let mut client = connect(server.url()).unwrap();
    client.batch_execute(&format!("SELECT \"{name}\".grant_roles(NULL, 'worker', NULL)")).unwrap();
    let worker = jobs(&server.url().replace("postgres@", "worker@"));
    worker.on(|note: Note, _: Ctx| async move { Ok::<_, Failure>(note.0) });
    let node = block_on(worker.start()).unwrap();
    let asked = format!("SELECT job_id::text FROM \"{name}\".enqueue('note', '7')");
    let id: String = client.query_one(&asked, &[]).unwrap().get(0);
    assert_eq!(block_on(owner.handle::<u32>(id.parse().unwrap()).result()), Ok(7));
    block_on(node.shutdown(PATIENCE));
}

#[test]
fn the_functions_of_a_newer_version_are_left_alone() {
    let schema = Schema::new();
    drop(open(schema.url(), &schema));
    let mut client = schema.connect();
    client.batch_execute("UPDATE functions SET version = 1000, fingerprint = 'newer'; DROP FUNCTION redrive").unwrap();
    let store = open(schema.url(), &schema);
    let error = block_on(store.redrive(JobId::from_u128(1))).unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("42883"), "{error}");
    client.batch_execute("UPDATE functions SET version = 0").unwrap();
    let store = open(schema.url(), &schema);
    assert_eq!(block_on(store.redrive(JobId::from_u128(1))), Ok(Redriven::Unknown));
}

/// A right to make schemas is not needed for that; and who may only work is told that somebody else must come first.
#[test]
fn the_owner_of_the_schema_makes_and_upgrades_it() {
    let server = Server::start_fast();
    let schema = Schema::at(server.url());
    let mut admin = connect(server.url()).unwrap();
    let roles = "CREATE ROLE owner LOGIN; CREATE ROLE worker LOGIN";
    admin.batch_execute(&format!("{roles}; CREATE SCHEMA {} AUTHORIZATION owner", schema.name())).unwrap();
    let url = |role: &str| server.url().replace("postgres@", &format!("{role}@"));
    drop(open(&url("owner"), &schema));
    let mut owner = connect(&url("owner")).unwrap();
    owner.batch_execute(&format!("SELECT {}.grant_roles(NULL, 'worker', NULL)", schema.name())).unwrap();
    drop(open(&url("worker"), &schema));

    owner.batch_execute(&format!("UPDATE {}.functions SET version = 0", schema.name())).unwrap();
    let too_early = block_on(PostgresOptions::new().schema(schema.name()).open(&url("worker"))).unwrap_err();
    assert!(too_early.to_string().contains("as its owner could") && !too_early.is_transient(), "{too_early}");
    drop(open(&url("owner"), &schema));
    let store = open(&url("worker"), &schema);
    enqueue(&store, job(1)).unwrap().unwrap();
}

/// What was prepared no longer fits after that, and the server says so.
#[test]
fn a_function_whose_answer_changes_under_a_running_process_is_asked_again() {
    let schema = Schema::new();
    let store = open(schema.url(), &schema);
    assert_eq!(block_on(store.purge(vec![JobId::from_u128(1)])), Ok(0));
    assert!(format!("{store:?}").contains("prepares: true"), "{store:?}");
    let other = "DROP FUNCTION purge;
        CREATE FUNCTION purge(ids uuid[], at bigint DEFAULT NULL, OUT purged bigint, OUT more text) AS 'SELECT 7, NULL' LANGUAGE sql";
    schema.connect().batch_execute(other).unwrap();
    assert_eq!(block_on(store.purge(vec![JobId::from_u128(1)])), Ok(7));
    assert!(format!("{store:?}").contains("prepares: false"), "{store:?}");
    enqueue(&store, job(1)).unwrap().unwrap();
}

/// When several connections learn at the same moment that what they have prepared no longer fits, only the first was
/// asked again, and the others gave their callers an error that is said to be permanent. Now each is asked once more.
/// The line is slow, so that all are under way before the first hears of it.
#[test]
fn a_function_whose_answer_changes_is_asked_again_on_every_connection() {
    let schema = Schema::new();
    let (proxy, url) = proxied(schema.url());
    let store = open(&url, &schema);
    proxy.delay(SECOND / 20);
    let purge_often = || {
        let asked: Vec<_> = (0..4).map(|id| store.purge(vec![JobId::from_u128(id)])).collect();
        asked.into_iter().map(block_on).collect::<Vec<_>>()
    };
    assert_eq!(purge_often(), [const { Ok(0) }; 4]);
    assert!(format!("{store:?}").contains("prepares: true"), "{store:?}");
    let other = "DROP FUNCTION purge;
        CREATE FUNCTION purge(ids uuid[], at bigint DEFAULT NULL, OUT purged bigint, OUT more text) AS 'SELECT 7, NULL' LANGUAGE sql";
    schema.connect().batch_execute(other).unwrap();
    assert_eq!(purge_often(), [const { Ok(7) }; 4]);
    assert!(format!("{store:?}").contains("prepares: false"), "{store:?}");
}

/// After a fail-over the connections that are left lead to a standby.
#[test]
fn a_server_that_takes_no_writes_any_more_is_left() {
    let server = Server::start_fast();
    let schema = Schema::at(server.url());
    let store = open(server.url(), &schema);
    enqueue(&store, job(1)).unwrap().unwrap();
    let mut client = schema.connect();
    let mut set = |value: &str| {
        client.batch_execute("SET default_transaction_read_only = off").unwrap();
        client.batch_execute(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}")).unwrap();
        client.batch_execute("SELECT pg_reload_conf()").unwrap();
    };
    set("on");
    // Another each time: of one that is there already nothing need be written.
    let error = (2..100_000).find_map(|id| enqueue(&store, job(id)).err()).expect("the setting reaches the sessions");
    assert!(error.is_transient() && error.to_string().contains("25006"), "{error}");
    let mut witness = schema.connect();
    let mut is_left = || {
        let asked =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%enqueue_batch(%' AND pid <> pg_backend_pid()";
        witness.query_one(asked, &[]).unwrap().get::<_, i64>(0) == 0
    };
    assert!((0..100_000).any(|_| is_left()), "the connection is kept");
    set("off");
    let tries = (0..1_000).position(|_| enqueue(&store, job(100_000)).is_ok());
    assert!(tries.is_some(), "none of a thousand tries came through");
}

/// Some set another isolation for all of a database. What a store does needs a new snapshot for each statement: so its
/// own connections have that.
#[test]
fn a_database_may_have_another_isolation_by_default() {
    for isolation in ["repeatable%5C%20read", "serializable"] {
        let schema = Schema::new();
        let store =
            open(&format!("{}?options=-c%20default_transaction_isolation%3D{isolation}", schema.url()), &schema);
        block_on(store.join(beat(NODE, &["k"]))).unwrap();
        let limits = TenantChange { limits: Some(Limits::new().backlog_max(1)), ..TenantChange::default() };
        block_on(store.set_tenant(String::new(), limits)).unwrap();
        let due = |id| NewJob { due: Moment::NOW, ..job(id) };
        enqueue(&store, due(1)).unwrap().unwrap();
        assert!(matches!(enqueue(&store, due(2)).unwrap(), Err(Refused::Rejected { .. })), "{isolation}");
        let kinds = Arc::from([("k".to_owned(), 1)]);
        let claimed = block_on(store.claim(Claim { node: NODE, max: 1, kinds, ahead: 0, spare: 0, era: 0 })).unwrap();
        assert_eq!(claimed.jobs.len(), 1, "{isolation}");
    }
}

/// What an operator does on a restored database, so that no fence is given twice (docs/guide/operate-it.md).
#[test]
fn fences_can_be_raised_above_all_that_were_given() {
    let schema = Schema::new();
    let store = open(schema.url(), &schema);
    block_on(store.join(beat(NODE, &["k"]))).unwrap();
    enqueue(&store, NewJob { due: Moment::After(Duration::ZERO), ..job(1) }).unwrap().unwrap();
    let claim = || {
        let kinds = Arc::from([("k".to_owned(), 1)]);
        block_on(store.claim(Claim { node: NODE, max: 1, kinds, ahead: 0, spare: 0, era: 0 }))
            .unwrap()
            .jobs
            .remove(0)
            .fence
    };
    let finish = |fence, verdict| {
        block_on(store.finish(NODE, vec![Finish { id: JobId::from_u128(1), fence, verdict }])).unwrap().remove(0)
    };
    assert_eq!(claim(), 1);
    let raise = ["job", "sched", "history"].map(|table| format!("UPDATE {table} SET fence = fence + 1000000"));
    schema.connect().batch_execute(&raise.join(";")).unwrap();
    assert_eq!(finish(1, Verdict::Succeeded("1".into())), Finished::Stale);
    assert_eq!(finish(1_000_001, Verdict::Release), Finished::Done(State::READY));
    assert_eq!(claim(), 1_000_002);
}

#[test]
fn a_job_that_does_not_fit_fails_alone() {
    let schema = Schema::new();
    let store = open(schema.url(), &schema);
    // Whatever it is that the server does not take, and the client knows nothing of.
    schema.connect().batch_execute("ALTER TABLE sched ADD CHECK (trace <> 'odd')").unwrap();
    let odd = NewJob { trace: Some("odd".into()), ..job(3) };
    let nul = NewJob { payload: "\0".into(), ..job(4) };
    let batch = vec![job(1), job(2), odd, nul, job(5)];
    let answers = block_on(store.enqueue(batch)).unwrap();
    let bad = |at: usize, why: &str| matches!(&answers[at], Err(Refused::Bad(said)) if said.contains(why));
    assert!(bad(2, "23514") && bad(3, "payload"), "{answers:?}");
    assert_eq!([0, 1, 4].map(|at: usize| answers[at].clone()), [const { Ok(Admitted::New) }; 3]);
    assert_eq!(block_on(store.totals()).unwrap().scheduled, 3);
}

/// Takes these in, due now, and has [`NODE`] claim them.
fn run(store: &PostgresStore, ids: impl IntoIterator<Item = u128>) -> Vec<Record> {
    block_on(store.join(beat(NODE, &["k"]))).unwrap();
    let jobs = ids.into_iter().map(|id| NewJob { due: Moment::NOW, ..job(id) }).collect();
    block_on(store.enqueue(jobs)).unwrap().into_iter().for_each(|answer| _ = answer.unwrap());
    claim(store)
}

fn claim(store: &PostgresStore) -> Vec<Record> {
    let claim = Claim { node: NODE, max: 99, kinds: Arc::from([("k".to_owned(), 99)]), ahead: 0, spare: 0, era: 0 };
    block_on(store.claim(claim)).unwrap().jobs
}

/// C36, C19: an error with a letter that the database's encoding lacks was refused together with all ends that were
/// told with it, and they were told again for ever: nothing that the node ran ended any more, nor did its shutdown. Now
/// it is found and written in other words: spelled out, in which a result means the same, and if that is refused too,
/// without what was said. All others end as they did.
#[test]
fn an_end_that_does_not_fit_is_told_in_other_words_and_holds_up_no_other() {
    let server = Server::start_fast();
    let mut owner = connect(server.url()).unwrap();
    owner
        .batch_execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
        .unwrap();
    let (head, _) = server.url().rsplit_once('/').unwrap();
    let schema = Schema::at(&format!("{head}/latin"));
    let store = open(schema.url(), &schema);
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF 'too much' IN (NEW.result, NEW.last_error) THEN RAISE data_exception USING MESSAGE = 'that is too much'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON history FOR EACH ROW EXECUTE FUNCTION refuse()";
    schema.connect().batch_execute(refuse).unwrap();
    let verdicts = [
        Verdict::Succeeded("\"a \u{2192} b\"".into()),
        Verdict::Failed("a \u{2192} b".into()),
        Verdict::Retry { at: Moment::After(SECOND), error: "\u{1f600}".into() },
        Verdict::Failed("a\0b".into()),
        Verdict::Succeeded("too much".into()),
        Verdict::Cancelled("too much".into()),
        Verdict::Succeeded("\"\u{e9}\"".into()),
        Verdict::Release,
    ];
    let runs = run(&store, 1..=8);
    let ids: Vec<JobId> = runs.iter().map(|run| run.job.id).collect();
    let ends = runs.into_iter().zip(verdicts);
    let ends = ends.map(|(run, verdict)| Finish { id: run.job.id, fence: run.fence, verdict }).collect();
    let told = block_on(store.finish(NODE, ends)).unwrap();
    let records: Vec<Record> = ids.iter().map(|&id| block_on(store.get(id)).unwrap().unwrap()).collect();
    let states: Vec<_> = records.iter().map(|record| Finished::Done(record.state)).collect();
    assert_eq!(told, states);
    let seen: Vec<_> = records
        .iter()
        .map(|record| (record.state.outcome, record.result.as_deref(), record.last_error.as_deref()))
        .collect();
    let note = "its result could not be stored: cannot finish jobs: that is too much (SQLSTATE 22000)";
    let expected = [
        (Some(Outcome::Succeeded), Some(r#""a \u2192 b""#), None),
        (Some(Outcome::Failed), None, Some(r"a \u2192 b")),
        (None, None, Some(r"\ud83d\ude00")),
        (Some(Outcome::Failed), None, Some(r"a\u0000b")),
        (Some(Outcome::Failed), None, Some(note)),
        (Some(Outcome::Cancelled), None, Some(note)),
        (Some(Outcome::Succeeded), Some("\"\u{e9}\""), None),
        (None, None, None),
    ];
    assert_eq!(seen, expected);
}

/// C36: a row that somebody had written with SQL, with a word that is null among its tags, made the whole answer to a
/// claim unreadable. The node gave everything back and claimed it again, twenty times a second, and its neighbours
/// never ran; nor could any page be seen that it was on. Now what SQL can write is read as far as it makes sense, and
/// what does not is one failed job.
#[test]
fn a_job_that_cannot_be_read_fails_alone() {
    let schema = Schema::new();
    let store = open(schema.url(), &schema);
    enqueue(&store, NewJob { due: Moment::NOW, ..job(1) }).unwrap().unwrap();
    enqueue(&store, NewJob { due: Moment::NOW, ..job(2) }).unwrap().unwrap();
    let mut client = schema.connect();
    let id = |n: u128| JobId::from_u128(n);
    let odd =
        "tags = '{a, NULL, b}', priority = 300, cost = 1000000000000, max_attempts = 1000000000000, max_crashes = -7";
    client.batch_execute(&format!("UPDATE job SET {odd} WHERE id = '{}'", id(1))).unwrap();
    client.batch_execute(&format!("UPDATE job SET tags = '{{{{a}},{{b}}}}' WHERE id = '{}'", id(2))).unwrap();
    let runs = run(&store, [3, 4]);
    let ids = |records: &[Record]| records.iter().map(|record| record.job.id.to_u128()).collect::<Vec<_>>();
    assert_eq!(ids(&runs), [1, 3, 4]);
    let NewJob { tags, priority, cost, max_attempts, max_crashes, .. } = &runs[0].job;
    assert_eq!((&tags[..], *priority), (&["a".to_owned(), "b".to_owned()][..], i8::MAX));
    assert_eq!((*cost, *max_attempts, *max_crashes), (u32::MAX, u32::MAX, 0));

    let ended = client.query_one("SELECT id::text, outcome, last_error FROM history", &[]).unwrap();
    let [ended, outcome, why] = [0, 1, 2].map(|column| ended.get::<_, String>(column));
    assert_eq!((ended, outcome.as_str()), (id(2).to_string(), "failed"));
    assert!(why.contains(&format!("job {}: column tags", id(2))), "{why}");
    let error = block_on(store.get(id(2))).unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains(&id(2).to_string()), "{error}");
    let page = |after| block_on(store.query(Query { after, max: 2, ..Query::default() })).unwrap();
    let (first, second) = (page(None), page(Some(id(2))));
    assert_eq!((ids(&first.jobs), first.next), (vec![1], Some(id(2))));
    assert_eq!((ids(&second.jobs), second.next), (vec![3, 4], None));
}

#[test]
fn a_process_that_is_asked_for_much_keeps_its_lease() {
    let schema = Schema::new();
    let store = open(schema.url(), &schema);
    block_on(store.join(beat(NODE, &["k"]))).unwrap();
    enqueue(&store, job(1)).unwrap().unwrap();
    let mut client = schema.connect();
    let mut lock = client.transaction().unwrap();
    lock.execute("SELECT FROM sched FOR UPDATE", &[]).unwrap();
    let cancels: Vec<_> = (0..30).map(|_| store.cancel(JobId::from_u128(1), CancelCause::Caller)).collect();
    assert!(block_on(store.heartbeat(beat(NODE, &["k"]))).unwrap().known);
    lock.rollback().unwrap();
    cancels.into_iter().for_each(|cancel| drop(block_on(cancel)));
}

/// What a node asks for is asked again soon, because the connection may be lost. If it is the database that is slow, it
/// is waited for longer each time, up to what was set: or nothing would ever be done.
#[test]
fn a_database_that_is_slow_is_given_more_time() {
    let schema = Schema::new();
    let options = PostgresOptions::new().schema(schema.name()).timeout(4 * SECOND);
    let store = block_on(options.open(schema.url())).unwrap();
    block_on(store.join(beat(NODE, &["k"]))).unwrap();
    let mut client = schema.connect();
    let mut lock = client.transaction().unwrap();
    lock.batch_execute("LOCK TABLE node IN ACCESS EXCLUSIVE MODE").unwrap();
    for patience in ["3s", "4s"] {
        let error = block_on(store.heartbeat(beat(NODE, &["k"]))).unwrap_err();
        assert!(
            error.is_transient() && error.to_string().ends_with(&format!("did not answer within {patience}")),
            "{error}"
        );
    }
    lock.rollback().unwrap();
    assert!(block_on(store.heartbeat(beat(NODE, &["k"]))).unwrap().known);
}

/// C32, C41: a caller's open transaction that had enqueued for a bounded tenant held up enqueues of that tenant, as it
/// must; but also all that shared a call with one of them, and with four such calls everybody in the process. So did
/// one that had taken a unique key. Now those who must wait are told apart from the others. The transaction is open for
/// as long as the others take.
#[test]
fn whoever_waits_for_a_transaction_holds_up_no_other_enqueue() {
    let schema = Schema::new();
    let store = block_on(PostgresOptions::new().schema(schema.name()).open(schema.url())).unwrap();
    block_on(store.set_tenant(
        "bounded".into(),
        TenantPolicy { limits: Limits::new().backlog_max(100), ..TenantPolicy::default() }.into(),
    ))
    .unwrap();
    let mut client = schema.connect();
    let mut open = client.transaction().unwrap();
    open.batch_execute("SELECT enqueue('k', '1', 'bounded'); SELECT enqueue('k', '1', 'free', unique_key => 'key', on_conflict => 'join')").unwrap();
    let of = |tenant: &str, id| NewJob { tenant: tenant.into(), due: Moment::NOW, ..job(id) };
    let keyed = |id, key: &str| {
        let unique = Some(Unique { key: key.into(), on_conflict: OnConflict::Join, period: None });
        NewJob { unique, ..of("free", id) }
    };
    let mut held = Vec::new();
    for round in (0..200).step_by(10) {
        held.extend([of("bounded", round + 1), keyed(round + 2, "key")].map(|job| store.enqueue(vec![job])));
        let free = [of("free", round + 3), of("other", round + 4), keyed(round + 5, &round.to_string())];
        let free = free.map(|job| store.enqueue(vec![job]));
        for answer in free {
            assert_eq!(block_on(answer), Ok(vec![Ok(Admitted::New)]));
        }
    }
    open.commit().unwrap();
    let (mut new, mut joined) = (0, 0);
    for answer in held {
        match block_on(answer).unwrap().remove(0) {
            Ok(Admitted::New) => new += 1,
            Ok(Admitted::Joined(_)) => joined += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((new, joined), (20, 20));
    assert_eq!(block_on(store.totals()).unwrap().ready, 2 + 20 + 60);
}

/// C32: nor is it waited for longer than for an answer.
#[test]
fn a_lock_that_is_held_for_longer_than_the_timeout_is_an_error() {
    let schema = Schema::new();
    let store = open(schema.url(), &schema);
    let mut client = schema.connect();
    let mut holder = client.transaction().unwrap();
    holder.batch_execute("SELECT enqueue('k', '1', unique_key => 'key')").unwrap();
    let unique = Some(Unique { key: "key".into(), on_conflict: OnConflict::Join, period: None });
    let error = enqueue(&store, NewJob { unique: unique.clone(), ..job(1) }).unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("held a lock for 2s"), "{error}");
    holder.rollback().unwrap();
    assert_eq!(enqueue(&store, NewJob { unique, ..job(1) }).unwrap(), Ok(Admitted::New));
}

#[derive(Debug, Serialize, Deserialize)]
struct Note(u32);

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = u32;
}

/// C42, C49: what one process does another hears of over its line. The clock stands still, so nobody looks by himself,
/// and no heart beats.
#[test]
fn a_node_hears_what_another_process_does_while_the_clock_stands_still() {
    let (schema, clock) = (Schema::new(), VirtualClock::new());
    let process = |seed| {
        let store = block_on(PostgresOptions::new().clock(&clock).schema(schema.name()).open(schema.url())).unwrap();
        block_on(Jobs::builder().clock(&clock).seed(seed).over(Arc::new(store))).unwrap()
    };
    let (near, far) = (process(1), process(2));
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    near.on(move |note: Note, _: Ctx| {
        let stops = Stops(tell.lock().unwrap().clone(), note.0);
        async move {
            stops.0.send(format!("{} begins", stops.1)).unwrap();
            std::future::pending::<()>().await;
            Ok::<_, Failure>(stops.1)
        }
    });
    let hear = || told.recv_timeout(PATIENCE).expect("it is told");
    let node = block_on(near.start()).unwrap();
    clock.settle().unwrap();
    let ready = block_on(far.now().enqueue(Note(1))).unwrap();
    assert_eq!(hear(), "1 begins");
    block_on(far.cancel(ready.id())).unwrap();
    assert_eq!(hear(), "1 stops");

    // An instant that is to come is told too: without that the clock would not stop there for anybody.
    let due = block_on(far.after(SECOND / 2).enqueue(Note(2))).unwrap();
    clock.advance(SECOND / 2).unwrap();
    assert_eq!(hear(), "2 begins");
    block_on(far.cancel(due.id())).unwrap();
    assert_eq!(hear(), "2 stops");
    block_on(node.shutdown(SECOND));
}

/// Says so when it is dropped.
struct Stops(Sender<String>, u32);

impl Drop for Stops {
    fn drop(&mut self) {
        let _ = self.0.send(format!("{} stops", self.1));
    }
}

/// A process whose role may not see other users' transactions says what it sees.
#[test]
fn the_oldest_snapshot_is_seen_as_long_as_it_is_held() {
    let server = Server::start_fast();
    let (schema, other) = (Schema::at(server.url()), Schema::at(server.url()));
    let mut owner = connect(server.url()).unwrap();
    owner.batch_execute("CREATE ROLE plain LOGIN; GRANT CREATE ON DATABASE postgres TO plain").unwrap();
    let store = open(server.url(), &schema);
    let plain = open(&server.url().replace("postgres@", "plain@"), &other);
    let age = |store: &PostgresStore| block_on(store.oldest_snapshot()).unwrap();
    assert_eq!(age(&store), None);

    let mut holder = connect(server.url()).unwrap();
    holder.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").unwrap();
    let (first, second) = (age(&store), age(&store));
    assert!(first.is_some() && first < second && second < Some(60 * SECOND), "{first:?}, then {second:?}");
    assert_eq!(age(&plain), None, "it may not see it");
    owner.batch_execute("GRANT pg_monitor TO plain").unwrap();
    assert!(age(&plain) > second);
    holder.batch_execute("COMMIT").unwrap();
    assert_eq!((age(&store), age(&plain)), (None, None));

    // Who has written holds it up too, also without a snapshot.
    holder.batch_execute("CREATE TABLE t (n int)").unwrap();
    holder.batch_execute("BEGIN; INSERT INTO t VALUES (1)").unwrap();
    assert!(age(&store).is_some());
    holder.batch_execute("ROLLBACK").unwrap();
    assert_eq!(age(&store), None);

    // And a transaction that was prepared, though nobody is connected any more who began it.
    holder.batch_execute("BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'left'").unwrap();
    drop(holder);
    assert!(age(&store).is_some());
    assert!(age(&plain).is_some(), "everybody may see it");
    owner.batch_execute("COMMIT PREPARED 'left'").unwrap();
    assert_eq!(age(&store), None);
}

/// C44: what is held for more than five minutes is warned of, with the name of whoever holds it. So as not to wait for
/// that, the clock that the age is read from is ten minutes ahead of the one that says when a transaction began.
#[test]
fn a_snapshot_that_is_held_for_long_is_warned_of() {
    let server = Server::start_fast();
    let schema = Schema::at(server.url());
    let mut owner = connect(server.url()).unwrap();
    owner
        .batch_execute(
            "CREATE SCHEMA ahead; CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql
             AS $$ SELECT pg_catalog.clock_timestamp() + interval '10 minutes' $$",
        )
        .unwrap();
    let mut holder = connect(server.url()).unwrap();
    let held_by: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    holder.batch_execute("BEGIN; CREATE TABLE t (n int)").unwrap();
    // Stores have threads of their own, so it hears those of all tests.
    let (tell, warnings) = channel();
    let tell = Mutex::new(tell);
    // Whoever has heard enough is gone.
    hear(move |words| _ = tell.lock().unwrap().send(words));
    let ahead = "?options=-c%20search_path%3Dahead%2Cpg_catalog";
    let store = open(&format!("{}{ahead}", server.url()), &schema);
    assert!(block_on(store.oldest_snapshot()).unwrap() > Some(600 * SECOND), "the fault happened");
    let warned = |words: &Words| {
        words["message"] == "a transaction holds up vacuum"
            && words["holder"].contains(&format!("process {held_by} of postgres"))
    };
    let found = std::iter::from_fn(|| warnings.recv_timeout(PATIENCE).ok()).find(warned);
    let age = &found.expect("it is warned of")["age"];
    assert!(age.starts_with("60"), "{age}");
}

#[test]
fn whoever_cannot_connect_is_told_why_and_the_password_is_not() {
    let url = punctual_testkit::postgres::url();
    let (head, _) = url.rsplit_once('/').unwrap();
    let missing = block_on(PostgresStore::open(&format!("{head}/no_such_database"))).unwrap_err();
    assert!(!missing.is_transient() && missing.to_string().contains("3D000"), "{missing}");
    let nobody = block_on(PostgresStore::open("postgres://ann:secret@127.0.0.1:1/app")).unwrap_err();
    assert!(nobody.is_transient() && !nobody.to_string().contains("secret"), "{nobody}");
    let unencrypted = block_on(PostgresStore::open(&format!("{url}?sslmode=require"))).unwrap_err();
    assert!(!unencrypted.is_transient(), "{unencrypted}");
}
