//! What is true of the store in a file and of no other: the file itself. What all stores have in common is in the
//! testkit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use punctual::{Limits, Missed, Rate, Stage, VirtualClock};
use punctual_durable::{
    Backoff, Beat, CancelCause, Claim, Finish, Finished, JobId, Moment, NewJob, NodeId, OnConflict, Outcome, Page,
    Query, Record, Refused, Reply, Retention, Rule, Schedule, SqliteStore, State, Store, StoreError, TenantPolicy,
    Timestamp, Unique, Verdict,
};

/// A folder that goes with the test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("jobs.db")
    }
}

fn ask<T>(reply: Reply<T>) -> Result<T, StoreError> {
    pollster::block_on(reply)
}

fn wait<T>(reply: Reply<T>) -> T {
    ask(reply).unwrap()
}

fn id(number: u128) -> JobId {
    JobId::from_u128(number)
}

fn job(number: u128) -> NewJob {
    NewJob { tenant: "acme".into(), max_attempts: 3, ..NewJob::new(id(number), "mail") }
}

fn node(number: u64) -> Beat {
    let kinds = vec!["mail".to_owned(), "print".to_owned()];
    Beat {
        node: NodeId::from_u64(number),
        name: format!("node-{number}"),
        kinds,
        paused: Vec::new(),
        workers: 4,
        era: 0,
    }
}

fn claim(store: &SqliteStore, by: u64, max: usize) -> Vec<Record> {
    let kinds = [("mail".to_owned(), max), ("print".to_owned(), max)];
    wait(store.claim(Claim { node: NodeId::from_u64(by), max, kinds: kinds.into(), ahead: 0, spare: 0, era: 0 })).jobs
}

fn enqueue(store: &SqliteStore, jobs: Vec<NewJob>) {
    assert!(wait(store.enqueue(jobs)).iter().all(Result::is_ok));
}

fn succeed(store: &SqliteStore, by: u64, jobs: &[Record]) -> Vec<Finished> {
    let finish = |record: &Record| Finish {
        id: record.job.id,
        fence: record.fence,
        verdict: Verdict::Succeeded("\"done\"".into()),
    };
    wait(store.finish(NodeId::from_u64(by), jobs.iter().map(finish).collect()))
}

/// All jobs, live and ended.
fn all(store: &SqliteStore) -> Vec<Record> {
    wait(store.query(Query { max: 1_000, ..Query::default() })).jobs
}

/// One with everything that is hard to write down.
fn strange(number: u128) -> NewJob {
    NewJob {
        kind: "кінд \u{0}".into(),
        tenant: "O'Brien \"the\" \n".into(),
        payload: format!("{{\"text\":\"{}\"}}", "ünï\u{1f600}".repeat(100)),
        tags: vec!["a".into(), "b\"c".into(), String::new()],
        priority: -128,
        cost: u32::MAX,
        due: Moment::At(Timestamp::from_micros(2_000_000_000_000_123)),
        start_within: Some(Duration::MAX),
        run_timeout: Some(Duration::from_nanos(1)),
        deadline: Some(Moment::After(Duration::MAX)),
        max_attempts: u32::MAX,
        max_crashes: u32::MAX,
        backoff: Backoff::new(Duration::from_nanos(7), Duration::MAX),
        unique: Some(Unique {
            key: "k".into(),
            on_conflict: OnConflict::Replace,
            period: Some(Duration::from_secs(u64::MAX)),
        }),
        schedule: Some("nightly".into()),
        missed: u64::MAX,
        trace: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        ..job(number)
    }
}

/// C37
#[test]
fn what_was_answered_is_there_after_a_reopening() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    wait(store.join(node(1)));
    enqueue(&store, (1..=4).map(job).chain([strange(9)]).collect());
    enqueue(&store, vec![NewJob { due: Moment::After(Duration::from_secs(60)), ..job(5) }]);
    let limits = Limits::new().running_max(7).backlog_max(70).scheduled_max(700).weight(3);
    let limits = limits.rate(Rate::per_second(3).burst(5));
    wait(store.set_tenant("acme".into(), TenantPolicy { limits, paused: false, closed: true }.into()));
    let schedule = Schedule {
        name: "nightly".into(),
        rule: Rule::Every { period: Duration::MAX, anchor: Timestamp::from_micros(-5) },
        missed: Missed::All { max: 9 },
        template: strange(0),
        next: Some(Timestamp::from_micros(77)),
        paused: true,
        last: Some(id(3)),
        fired: u64::MAX,
        missed_count: 4,
    };
    wait(store.put_schedule(schedule.clone()));
    let first = claim(&store, 1, 2);
    succeed(&store, 1, &first[..1]);
    wait(store.cancel(id(4), CancelCause::Caller));
    let (before, tenant) = (all(&store), wait(store.tenant("acme".into())));
    assert_eq!(before.iter().find(|record| record.job.id == id(9)).unwrap().job, strange(9));
    drop(store);

    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    let after = all(&store);
    for (one, other) in before.iter().zip(&after).filter(|(one, _)| one.state.stage != Stage::Running) {
        assert_eq!(one, other);
    }
    // The one that ran is ready again: a crash was counted, and no attempt.
    let (ran, lost) = (&first[1], after.iter().find(|record| record.job.id == first[1].job.id).unwrap());
    assert_eq!((lost.state, lost.attempt, lost.fence, lost.crashes), (State::READY, 0, ran.fence, 1));
    assert_eq!(wait(store.schedules(None, 10)), [schedule]);
    let again = wait(store.tenant("acme".into()));
    assert_eq!(again.policy, tenant.policy);
    assert_eq!((again.totals.ready, again.totals.running, again.totals.scheduled), (2, 0, 1));
    assert_eq!(again.totals.ended, BTreeMap::from([(Outcome::Succeeded, 1), (Outcome::Cancelled, 1)]));
    assert_eq!(wait(store.nodes()), []);
}

/// C39: at the last crash it is a dead letter.
#[test]
fn a_job_that_the_process_dies_of_fails_at_last() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    for crash in 1..=3 {
        let store = SqliteStore::open(folder.file(), &clock).unwrap();
        enqueue(&store, vec![job(1)]);
        wait(store.join(node(1)));
        let jobs = claim(&store, 1, 1);
        assert_eq!((jobs[0].attempt, jobs[0].crashes, jobs[0].fence), (1, crash - 1, u64::from(crash)));
    }
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    let record = wait(store.get(id(1))).unwrap();
    assert_eq!(record.state, State::new(Stage::Stopped, Some(Outcome::Failed)));
    assert_eq!(record.last_error.as_deref(), Some("the process that ran it died 3 times"));
}

/// C49: whoever wanted it is gone with the process.
#[test]
fn a_job_that_is_kept_while_wanted_is_cancelled_by_a_reopening() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    wait(store.join(node(1)));
    let wanted = |number| NewJob { wanted_by: Some(NodeId::from_u64(1)), ..job(number) };
    enqueue(&store, vec![wanted(1), wanted(2), job(3)]);
    claim(&store, 1, 1);
    drop(store);
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    let states: Vec<_> = all(&store).iter().map(|record| record.state.outcome).collect();
    assert_eq!(states, [Some(Outcome::Cancelled), Some(Outcome::Cancelled), None]);
}

#[test]
fn a_second_owner_is_refused_until_the_first_one_goes() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    let clone = store.clone();
    let error = SqliteStore::open(folder.file(), &clock).unwrap_err();
    assert!(!error.is_transient());
    assert!(error.to_string().contains(&*folder.file().to_string_lossy()), "{error}");
    drop(store);
    assert!(SqliteStore::open(folder.file(), &clock).is_err());
    drop(clone);
    assert!(SqliteStore::open(folder.file(), &clock).is_ok());
}

#[test]
fn what_was_asked_for_is_done_before_the_last_handle_is_gone() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    (1..=500).for_each(|number| drop(store.enqueue(vec![job(number)])));
    drop(store);
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    assert_eq!(wait(store.totals()).ready, 500);
}

#[cfg(unix)]
#[test]
fn the_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    enqueue(&store, vec![job(1)]);
    for entry in std::fs::read_dir(folder.0.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", entry.path().display());
    }
}

fn refusal(path: &Path) -> String {
    let error = SqliteStore::open(path, VirtualClock::new()).unwrap_err();
    assert!(!error.is_transient(), "{error}");
    assert!(error.to_string().contains("jobs.db"), "{error}");
    error.to_string()
}

#[test]
fn a_file_that_is_no_store_of_ours_is_refused_and_left_alone() {
    let folder = Folder::new();
    let text = "not a database, and long enough to be looked at as one".repeat(20);
    std::fs::write(folder.file(), &text).unwrap();
    assert!(refusal(&folder.file()).contains("is not a SQLite database"));
    assert_eq!(std::fs::read_to_string(folder.file()).unwrap(), text);

    let folder = Folder::new();
    let other = rusqlite::Connection::open(folder.file()).unwrap();
    other.execute_batch("CREATE TABLE recipe (name TEXT)").unwrap();
    drop(other);
    assert!(refusal(&folder.file()).contains("another application"));
}

#[test]
fn a_file_of_a_newer_version_is_refused() {
    let folder = Folder::new();
    drop(SqliteStore::open(folder.file(), VirtualClock::new()).unwrap());
    let newer = rusqlite::Connection::open(folder.file()).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    assert!(refusal(&folder.file()).contains("format 99"));
}

#[test]
fn a_file_of_the_first_version_is_brought_up_to_date() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    enqueue(&store, vec![job(1)]);
    drop(store);
    let older = rusqlite::Connection::open(folder.file()).unwrap();
    older.execute_batch("CREATE INDEX job_running ON job (seq) WHERE stage = 'running'").unwrap();
    older.pragma_update(None, "user_version", 1).unwrap();
    drop(older);
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    assert!(wait(store.get(id(1))).is_some());
    let tool = rusqlite::Connection::open(folder.file()).unwrap();
    let version: i64 = tool.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    let indexes = "SELECT count(*) FROM sqlite_schema WHERE name = 'job_running'";
    let left: i64 = tool.query_row(indexes, [], |row| row.get(0)).unwrap();
    assert_eq!((version, left), (2, 0));
}

/// Who has the last handle may let it go on the very thread that answers.
#[test]
fn the_last_handle_may_go_with_the_answer_to_a_query() {
    struct Task {
        reply: Mutex<Option<Reply<Page>>>,
        done: mpsc::Sender<Option<String>>,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            let waker = Waker::from(self.clone());
            let mut reply = self.reply.lock().unwrap();
            let poll = reply.as_mut().map(|reply| reply.as_mut().poll(&mut Context::from_waker(&waker)));
            if poll.is_some_and(|poll| poll.is_ready()) {
                *reply = None;
                self.done.send(std::thread::current().name().map(str::to_owned)).unwrap();
            }
        }
    }

    let (folder, (done, told)) = (Folder::new(), mpsc::channel());
    let store = SqliteStore::open(folder.file(), VirtualClock::new()).unwrap();
    let reply = store.query(Query::default());
    drop(store);
    Waker::from(Arc::new(Task { reply: Mutex::new(Some(reply)), done })).wake();
    assert_eq!(told.recv().unwrap().as_deref(), Some("punctual-query"));
    drop(SqliteStore::open(folder.file(), VirtualClock::new()).unwrap());
}

#[test]
fn any_tool_reads_the_file_while_it_is_open() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    enqueue(&store, vec![NewJob { tags: vec!["x".into()], ..job(1) }]);
    let tool =
        rusqlite::Connection::open_with_flags(folder.file(), rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let read = || -> (String, String, String) {
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        tool.query_row("SELECT id, stage, due FROM jobs", [], row).unwrap()
    };
    assert_eq!(read(), (format!("{:032x}", 1), "ready".into(), "2001-09-09T01:46:40.000Z".into()));
    wait(store.cancel(id(1), CancelCause::Caller));
    assert_eq!(read().1, "stopped");
}

/// C51: the disk is full in the middle of a burst. What was answered `Ok` is there, what was not is not half there, the
/// numbers are right, and it goes on when there is room again.
#[test]
fn a_full_disk_is_said_loses_nothing_and_passes() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let open = |bytes| SqliteStore::options().bytes_max(bytes).open(folder.file(), &clock).unwrap();
    let store = open(1 << 20);
    wait(store.join(node(1)));
    let big = |number| NewJob { payload: format!("\"{}\"", "x".repeat(10_000)), ..job(number) };
    enqueue(&store, (9_001..=9_010).map(big).collect());
    assert_eq!(succeed(&store, 1, &claim(&store, 1, 10)).len(), 10);
    let mut taken = Vec::new();
    let error = loop {
        let number = u128::try_from(taken.len()).unwrap() + 1;
        match ask(store.enqueue(vec![big(number)])) {
            Ok(_) => taken.push(id(number)),
            Err(error) => break error,
        }
        assert!(taken.len() < 1_000);
    };
    assert!(error.is_transient());
    assert_eq!(error.to_string(), "the disk is full");
    // A batch of which some would still fit is not half taken.
    assert!(ask(store.purge(vec![id(9_001), id(9_002), id(9_003)])).is_ok());
    assert!(ask(store.enqueue((7_000..7_200).map(big).collect())).unwrap_err().is_transient());
    let there: Vec<JobId> = all(&store).iter().map(|record| record.job.id).filter(|&job| job < id(9_000)).collect();
    assert_eq!(there, taken);
    assert_eq!(wait(store.totals()).ready, taken.len());

    // What is forgotten makes room.
    let retention = Retention { succeeded: Duration::ZERO, ..Retention::default() };
    assert_eq!(wait(store.prune(retention, 100)), 7);
    enqueue(&store, vec![big(5_000)]);
    drop(store);
    let store = open(1 << 30);
    enqueue(&store, (6_000..6_200).map(big).collect());
    assert_eq!(wait(store.totals()).ready, taken.len() + 1 + 200);
}

/// C44: Jobs by the hundred more than fit into the windows come out in the order that a full sort says.
#[test]
fn more_jobs_than_fit_into_memory_come_in_order() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::options().window(5).catch_up(7).open(folder.file(), &clock).unwrap();
    wait(store.join(node(1)));
    let mut random = fastrand::Rng::with_seed(7);
    let mut model = Vec::new();
    let start = store.now();
    for number in 1..=400_u32 {
        let delay = Duration::from_secs(random.u64(0..50));
        let priority = random.i8(-2..3);
        let kind = if random.bool() { "mail" } else { "print" };
        enqueue(&store, vec![NewJob { kind: kind.into(), priority, due: Moment::After(delay), ..job(number.into()) }]);
        let order = i64::try_from(delay.as_secs()).unwrap() + 30 * i64::from(priority);
        model.push((delay, order, number));
    }
    let mut at = Duration::ZERO;
    while !model.is_empty() {
        let due: Vec<_> = model.iter().filter(|(delay, ..)| *delay <= at).copied().collect();
        let max = random.usize(1..30).min(due.len());
        // With so small a step several transactions catch up.
        while wait(store.tend()).next.is_some_and(|next| next <= store.now()) {}
        let mut expected: Vec<_> = due.iter().map(|&(_, order, number)| (order, number)).collect();
        expected.sort_unstable();
        expected.truncate(max);
        let jobs = claim(&store, 1, max);
        let got: Vec<JobId> = jobs.iter().map(|record| record.job.id).collect();
        let wanted: Vec<JobId> = expected.iter().map(|&(_, number)| id(number.into())).collect();
        assert_eq!(got, wanted, "{at:?} after {start}");
        model.retain(|(.., number)| !expected.iter().any(|(_, taken)| taken == number));
        succeed(&store, 1, &jobs);
        let step = Duration::from_secs(random.u64(0..5));
        clock.advance(step).unwrap();
        at += step;
    }
    assert_eq!(wait(store.totals()).ended[&Outcome::Succeeded], 400);
}

/// C36: of those that share a commit one fails, because a tool has taken a row away behind the store's back; the others
/// are done all the same, and the store goes by the file from then on.
#[test]
fn an_operation_that_fails_leaves_its_neighbours_alone() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    wait(store.join(node(1)));
    enqueue(&store, vec![job(1)]);
    // While the tool is at it nothing is written, so what is asked for meanwhile gathers. One that is there already may
    // go ahead, with the claim or without; both ways the claim has a neighbour.
    let tool = rusqlite::Connection::open(folder.file()).unwrap();
    tool.execute_batch("BEGIN IMMEDIATE; DELETE FROM job").unwrap();
    let before = store.enqueue(vec![job(2)]);
    let claimed = store.claim(Claim {
        node: NodeId::from_u64(1),
        max: 1,
        kinds: [("mail".to_owned(), 1)].into(),
        ahead: 0,
        spare: 0,
        era: 0,
    });
    let after = store.enqueue(vec![job(3)]);
    tool.execute_batch("COMMIT").unwrap();
    assert!(wait(before)[0].is_ok() && wait(after)[0].is_ok());
    // Tried again by itself, it finds what is there.
    assert!(wait(claimed).jobs.iter().all(|record| record.job.id != id(1)));
    let there: Vec<JobId> = all(&store).iter().map(|record| record.job.id).collect();
    assert_eq!((there, wait(store.totals()).ready + wait(store.totals()).running), (vec![id(2), id(3)], 2));
}

#[test]
fn a_bad_job_fails_alone_of_its_batch() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::options().job_bytes_max(1_000).open(folder.file(), &clock).unwrap();
    let large = NewJob { payload: "x".repeat(1_001), ..job(2) };
    let answers = wait(store.enqueue(vec![job(1), large, job(3)]));
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert!(matches!(&answers[1], Err(Refused::Bad(why)) if why.contains("1000")), "{:?}", answers[1]);
    assert_eq!(all(&store).len(), 2);
}

/// C33: what a rate has spent is spent after a restart.
#[test]
fn a_restart_gives_no_rate_back() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    let limits = Limits::new().rate(Rate::per_minute(1));
    wait(store.set_tenant("acme".into(), TenantPolicy { limits, ..TenantPolicy::default() }.into()));
    enqueue(&store, vec![job(1), job(2)]);
    wait(store.join(node(1)));
    assert_eq!(claim(&store, 1, 10).len(), 1);
    drop(store);
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    wait(store.join(node(2)));
    assert_eq!(claim(&store, 2, 10).len(), 0);
    clock.advance(Duration::from_secs(60)).unwrap();
    assert_eq!(claim(&store, 2, 10).len(), 1);
}

/// C36, C48: a schedule that a newer version or somebody's tool had written, so that this version could not read it,
/// made every look for ticks fail. It is left out, and the others fire; it can be stated anew, and is then what it was
/// but for what was stated.
#[test]
fn a_schedule_that_cannot_be_read_holds_up_no_other() {
    let (folder, clock) = (Folder::new(), VirtualClock::new());
    let store = SqliteStore::open(folder.file(), &clock).unwrap();
    let schedule = |name: &str| Schedule {
        name: name.to_owned(),
        rule: Rule::Every { period: Duration::from_secs(60), anchor: Timestamp::from_micros(0) },
        missed: Missed::Once,
        template: job(0),
        next: Some(store.now()),
        paused: false,
        last: None,
        fired: 7,
        missed_count: 4,
    };
    for name in ["a", "b", "c"] {
        wait(store.put_schedule(schedule(name)));
    }
    let tool = rusqlite::Connection::open(folder.file()).unwrap();
    tool.execute_batch("UPDATE schedule SET tags = '{' WHERE name = 'b'").unwrap();
    assert_eq!(wait(store.tend()).schedules, ["a", "c"].map(schedule));
    assert_eq!(wait(store.schedules(None, 9)), ["a", "c"].map(schedule));
    assert_eq!(wait(store.schedules(Some("a".into()), 1)), [schedule("c")]);
    wait(store.put_schedule(Schedule { fired: 0, missed_count: 0, next: None, ..schedule("b") }));
    assert_eq!(wait(store.tend()).schedules, ["a", "b", "c"].map(schedule));
}
