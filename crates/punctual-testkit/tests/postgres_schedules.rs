//! Ticks and housekeeping in PostgreSQL, and what only there can come between: rows that another program wrote, locks
//! that others hold.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual::{Limits, Missed, VirtualClock};
use punctual_durable::{
    Claim, Ctx, Failure, Finish, Finished, Fire, Fired, Job, JobId, Jobs, NewJob, OnConflict, Outcome, PostgresOptions,
    PostgresStore, Record, Rule, Schedule, State, Store, TenantChange, Timestamp, Unique, Verdict,
};
use punctual_testkit::postgres::Schema;
use punctual_testkit::warnings::{Words, hear};
use punctual_testkit::{NODE, beat, block_on};
use serde::{Deserialize, Serialize};

const SECOND: Duration = Duration::from_secs(1);

fn open(schema: &Schema) -> PostgresStore {
    block_on(PostgresOptions::new().schema(schema.name()).open(schema.url())).unwrap()
}

/// A schedule whose tick has come.
fn due(name: &str) -> Schedule {
    let (kind, next) = (NewJob::new(JobId::from_u128(0), "k"), Timestamp::from_micros(0));
    Schedule {
        name: name.to_owned(),
        rule: Rule::Every { period: 3600 * SECOND, anchor: next },
        missed: Missed::Once,
        template: NewJob { schedule: Some(name.to_owned()), ..kind },
        next: Some(next),
        paused: false,
        last: None,
        fired: 0,
        missed_count: 0,
    }
}

fn names(schedules: &[Schedule]) -> Vec<&str> {
    schedules.iter().map(|schedule| schedule.name.as_str()).collect()
}

/// C36, C48: one schedule that a newer version or somebody's SQL had written, so that this version could not read it,
/// made every look for ticks fail: no schedule fired any more, on no node of this version, and none could be listed.
/// Now it is left out and warned of, once, and the others fire. It can be stated anew, paused and removed.
#[test]
fn a_schedule_that_cannot_be_read_holds_up_no_other() {
    let (tell, warnings) = channel::<Words>();
    let tell = Mutex::new(tell);
    hear(move |words| _ = tell.lock().unwrap().send(words));
    let schema = Schema::new();
    let store = open(&schema);
    for name in ["a", "b", "c", "d", "e"] {
        block_on(store.put_schedule(due(name))).unwrap();
    }
    let odd = "UPDATE schedule SET template = '{\"kind\":\"k\",\"due\":{\"at_dawn\":1}}' WHERE name = 'b';
        UPDATE schedule SET period = NULL, anchor = NULL WHERE name = 'c';
        UPDATE schedule SET on_missed = 'all', on_missed_max = -1 WHERE name = 'd'";
    let mut client = schema.connect();
    client.batch_execute(odd).unwrap();

    for _ in 0..3 {
        assert_eq!(names(&block_on(store.tend()).unwrap().schedules), ["a", "e"]);
    }
    let told: Vec<Words> = warnings.try_iter().filter(|words| words.contains_key("schedule")).collect();
    let why: Vec<_> = told.iter().map(|words| (words["schedule"].trim_matches('"'), words["error"].as_str())).collect();
    let expected =
        [("b", "its template: unknown variant `at_dawn`"), ("c", "it has no rule"), ("d", "-1 is out of range")];
    assert_eq!(why.len(), expected.len(), "each is told of once: {why:?}");
    for ((name, error), (bad, reason)) in why.iter().zip(expected) {
        assert!(*name == bad && error.contains(reason), "{name}: {error}");
    }

    assert_eq!(names(&block_on(store.schedules(None, 9)).unwrap()), ["a", "e"]);
    assert_eq!(names(&block_on(store.schedules(None, 1)).unwrap()), ["a"]);
    assert_eq!(
        names(&block_on(store.schedules(Some("a".into()), 1)).unwrap()),
        ["e"],
        "a page is full if there is more"
    );
    assert_eq!(warnings.try_iter().filter(|words| words["message"].ends_with("not shown")).count(), 6);

    assert!(block_on(store.pause_schedule("b".into(), true)).unwrap());
    assert!(block_on(store.remove_schedule("c".into())).unwrap());
    block_on(store.put_schedule(due("b"))).unwrap();
    block_on(store.put_schedule(due("d"))).unwrap();
    assert_eq!(names(&block_on(store.tend()).unwrap().schedules), ["a", "d", "e"]);
    let all = block_on(store.schedules(None, 9)).unwrap();
    assert_eq!((names(&all), all[1].paused), (vec!["a", "b", "d", "e"], true), "a pause stays");
}

/// C36, C41: the tick of a bounded tenant waited for as long as somebody's transaction held its turn, and all other
/// ticks of the node with it. It is told that it is held up.
#[test]
fn a_tick_that_waits_for_a_lock_is_said_to_be_held() {
    let schema = Schema::new();
    let store = open(&schema);
    let bounded = TenantChange { limits: Some(Limits::new().backlog_max(9)), ..TenantChange::default() };
    block_on(store.set_tenant("bounded".into(), bounded)).unwrap();
    let due = due("s");
    block_on(store.put_schedule(due.clone())).unwrap();
    let tick = due.next.unwrap();
    let fire = |id| {
        let job = NewJob { tenant: "bounded".into(), id: JobId::from_u128(id), ..due.template.clone() };
        let fire = Fire { schedule: "s".into(), tick, next: Some(tick.after(SECOND)), missed: 0, job: Some(job) };
        block_on(store.fire(fire)).unwrap()
    };
    let mut client = schema.connect();
    for hold in ["SELECT enqueue('k', '1', 'bounded')", "SELECT FROM schedule FOR UPDATE"] {
        let mut holder = client.transaction().unwrap();
        holder.batch_execute(hold).unwrap();
        assert_eq!(fire(1), Fired::Held, "{hold}");
        holder.rollback().unwrap();
        assert_eq!(block_on(store.schedules(None, 9)).unwrap(), std::slice::from_ref(&due));
    }
    assert_eq!(fire(2), Fired::Enqueued(JobId::from_u128(2)));
}

#[derive(Debug, Serialize, Deserialize)]
struct Note(String);

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = ();
}

/// C36, C48: more ticks than a node fires at a time, all held up by one caller's transaction, and all named before
/// another one: that did not fire as long as the transaction was open, and the node did not look after time. Now it
/// fires at each of its ticks, and they do when they can.
#[test]
fn ticks_that_are_held_up_hold_up_no_others() {
    let (schema, clock) = (Schema::new(), VirtualClock::new());
    let (jobs, _, ran) = process(&schema, &clock);
    let of = |word: &str| ran.lock().unwrap().iter().filter(|ran| *ran == word).count();
    let tenant = jobs.tenant("bounded");
    block_on(tenant.set_limits(Limits::new().backlog_max(99))).unwrap();
    for name in ["a", "b", "c", "d", "e", "f"] {
        block_on(tenant.every(name, 60 * SECOND).first(SECOND).enqueue(Note("held".into()))).unwrap();
    }
    block_on(jobs.every("z", SECOND).first(SECOND).enqueue(Note("free".into()))).unwrap();
    let mut client = schema.connect();
    let mut holder = client.transaction().unwrap();
    holder.batch_execute("SELECT enqueue('k', '1', 'bounded')").unwrap();
    let node = block_on(jobs.start()).unwrap();
    clock.advance(3 * SECOND).unwrap();
    assert_eq!((of("free"), of("held")), (3, 0));
    holder.rollback().unwrap();
    clock.advance(SECOND).unwrap();
    assert_eq!((of("free"), of("held")), (4, 6));
    block_on(node.shutdown(SECOND));
}

/// A process on a virtual clock, and what it ran.
fn process(schema: &Schema, clock: &VirtualClock) -> (Jobs, Arc<PostgresStore>, Arc<Mutex<Vec<String>>>) {
    let options = PostgresOptions::new().clock(clock).schema(schema.name()).timeout(SECOND);
    let store = Arc::new(block_on(options.open(schema.url())).unwrap());
    let jobs = block_on(Jobs::builder().clock(clock).seed(1).over(store.clone())).unwrap();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let seen = ran.clone();
    jobs.on(move |note: Note, _: Ctx| {
        seen.lock().unwrap().push(note.0);
        std::future::ready(Ok::<_, Failure>(()))
    });
    (jobs, store, ran)
}

/// C36, C39: somebody's transaction had a job of a node that died, and was not over: whoever was to take away what that
/// node ran waited for it, and tended nothing and fired no tick meanwhile, three seconds and more each time. It is left
/// for another time.
#[test]
fn a_dead_node_whose_job_somebody_has_in_hand_holds_up_nothing_else() {
    let (schema, clock) = (Schema::new(), VirtualClock::new());
    let (jobs, store, ran) = process(&schema, &clock);
    block_on(store.join(beat(NODE, &["k"]))).unwrap();
    block_on(store.enqueue(vec![NewJob::new(JobId::from_u128(9), "k")])).unwrap().remove(0).unwrap();
    let claim = Claim { node: NODE, max: 1, kinds: Arc::from([("k".to_owned(), 1)]), ahead: 0, spare: 0, era: 0 };
    assert_eq!(block_on(store.claim(claim)).unwrap().jobs.len(), 1);
    clock.advance(11 * SECOND).unwrap();
    let mut client = schema.connect();
    let mut holder = client.transaction().unwrap();
    holder.batch_execute(&format!("SELECT cancel('{}', 'caller')", JobId::from_u128(9))).unwrap();
    block_on(jobs.every("z", SECOND / 4).first(SECOND / 4).enqueue(Note("free".into()))).unwrap();
    let node = block_on(jobs.start()).unwrap();
    clock.advance(SECOND).unwrap();
    assert_eq!(ran.lock().unwrap().len(), 4);
    assert_eq!(block_on(store.nodes()).unwrap().len(), 2, "the fault happened");
    holder.rollback().unwrap();
    clock.advance(SECOND).unwrap();
    let back = block_on(store.get(JobId::from_u128(9))).unwrap().unwrap();
    assert_eq!((back.state, back.crashes), (State::READY, 1));
    block_on(node.shutdown(SECOND));
}

/// The run of a job, ended well.
fn end(run: &Record) -> Finish {
    Finish { id: run.job.id, fence: run.fence, verdict: Verdict::Succeeded("1".into()) }
}

/// C36, C38: of ends that are told together those are written down that can be; who waits for somebody's transaction,
/// which has the job or its key, is named.
#[test]
fn an_end_that_waits_for_a_lock_is_said_to_be_held() {
    let schema = Schema::new();
    let store = open(&schema);
    block_on(store.join(beat(NODE, &["k"]))).unwrap();
    let unique = Unique { key: "once".into(), on_conflict: OnConflict::Replace, period: None };
    let job =
        |number| NewJob { unique: (number == 2).then(|| unique.clone()), ..NewJob::new(JobId::from_u128(number), "k") };
    block_on(store.enqueue((0..9).map(job).collect())).unwrap().into_iter().for_each(|admitted| _ = admitted.unwrap());
    let claim = Claim { node: NODE, max: 9, kinds: Arc::from([("k".to_owned(), 9)]), ahead: 0, spare: 0, era: 0 };
    let runs = block_on(store.claim(claim)).unwrap().jobs;
    let tell = |places: &[usize]| {
        let done = |finished: &Finished| matches!(finished, Finished::Done(_));
        let finished = block_on(store.finish(NODE, places.iter().map(|&place| end(&runs[place])).collect())).unwrap();
        (finished.iter().map(done).collect::<Vec<_>>(), finished.contains(&Finished::Held))
    };
    let mut client = schema.connect();
    let cancels = format!("SELECT cancel('{}', 'caller')", runs[2].job.id);
    let has_the_key = "SELECT FROM live_key FOR UPDATE".to_owned();
    for (hold, others) in [(cancels, [0, 1, 3]), (has_the_key, [4, 5, 6])] {
        let mut holder = client.transaction().unwrap();
        holder.batch_execute(&hold).unwrap();
        let [first, second, third] = others;
        assert_eq!(tell(&[first, second, 2, third]), (vec![true, true, false, true], true), "{hold}");
        holder.rollback().unwrap();
    }
    assert_eq!(tell(&[7, 2, 8]), (vec![true; 3], false));
}

#[derive(Debug, Serialize, Deserialize)]
struct Wait;

impl Job for Wait {
    const KIND: &'static str = "wait";
    type Output = ();
}

/// C36, C38: the same for a node: as long as one of its jobs was in somebody's transaction it could tell of no end at
/// all, for each was told with that of the one that was held. And a shutdown does not wait for it beyond its grace.
#[test]
fn an_end_that_waits_for_a_lock_holds_up_no_other() {
    let (schema, clock) = (Schema::new(), VirtualClock::new());
    let (jobs, store, _) = process(&schema, &clock);
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let at_gate = gate.clone();
    jobs.on(move |_: Wait, _: Ctx| {
        let gate = at_gate.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok::<_, Failure>(())
        }
    });
    let node = block_on(jobs.start()).unwrap();
    let state = |id| block_on(store.get(id)).unwrap().unwrap().state;
    let succeeded = || block_on(store.totals()).unwrap().ended(Outcome::Succeeded);
    let mut client = schema.connect();
    let held = || {
        let id = block_on(jobs.now().enqueue(Wait)).unwrap().id();
        clock.advance(SECOND).unwrap();
        assert_eq!(state(id), State::RUNNING);
        id
    };
    let first = held();
    let mut holder = client.transaction().unwrap();
    holder.batch_execute(&format!("SELECT cancel('{first}', 'caller')")).unwrap();
    gate.add_permits(1);
    for round in 1..=3 {
        block_on(jobs.now().enqueue(Note(String::new()))).unwrap();
        clock.advance(SECOND).unwrap();
        assert_eq!((succeeded(), state(first)), (round, State::RUNNING));
    }
    holder.rollback().unwrap();
    clock.advance(SECOND).unwrap();
    assert_eq!(succeeded(), 4);

    let second = held();
    let mut holder = client.transaction().unwrap();
    holder.batch_execute(&format!("SELECT cancel('{second}', 'caller')")).unwrap();
    gate.add_permits(1);
    clock.advance(SECOND).unwrap();
    let stopping = std::thread::spawn(move || block_on(node.shutdown(SECOND)));
    for _ in 0..100 {
        if stopping.is_finished() {
            break;
        }
        clock.advance(SECOND / 10).unwrap();
    }
    assert!(stopping.is_finished(), "it waits for a lock");
    holder.rollback().unwrap();
    clock.advance(SECOND).unwrap();
    assert_eq!(state(second).outcome, Some(Outcome::Succeeded), "and tells of it later");
}

/// C51: a prune that failed was begun again at once, some twenty times a second for as long as the reason lasted, and
/// the node took it for a store that says no to everything.
#[test]
fn a_prune_that_fails_is_not_tried_again_at_once() {
    let (schema, clock) = (Schema::new(), VirtualClock::new());
    let (jobs, _, ran) = process(&schema, &clock);
    let fails = "CREATE SEQUENCE asked START 1;
        CREATE OR REPLACE FUNCTION prune(succeeded bigint, failed bigint, cancelled bigint, expired bigint, max_jobs bigint, at bigint DEFAULT NULL) RETURNS bigint
        LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('asked'); RAISE query_canceled; END $$ SET search_path FROM CURRENT";
    let mut client = schema.connect();
    client.batch_execute(fails).unwrap();
    let node = block_on(jobs.start()).unwrap();
    clock.advance(10 * SECOND).unwrap();
    let mut asked = || client.query_one("SELECT last_value FROM asked", &[]).unwrap().get::<_, i64>(0);
    assert_eq!(asked(), 1);
    block_on(jobs.now().enqueue(Note("free".into()))).unwrap().detach();
    clock.advance(60 * SECOND).unwrap();
    assert_eq!((asked(), ran.lock().unwrap().len()), (2, 1));
    assert!(node.snapshot().store_error.is_none());
    block_on(node.shutdown(SECOND));
}
