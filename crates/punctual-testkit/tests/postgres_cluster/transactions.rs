//! Jobs that are enqueued in the caller's own transaction: from Rust, and by plain SQL from anywhere.

use std::time::Duration;

use postgres::{Client, SimpleQueryMessage};
use punctual::Limits;
use punctual_durable::{EnqueueError, JobId, OnConflict, Problem, Refused};
use punctual_testkit::block_on;
use punctual_testkit::cluster::{Hold, Work};
use tokio::runtime::Runtime;

use crate::judge::approve;
use crate::site::{LONG, Site, number, until};

/// A site, and a connection of the caller's with a table of its own.
struct Shop {
    site: Site,
    client: tokio_postgres::Client,
    runtime: Runtime,
}

impl Shop {
    fn new() -> Self {
        let site = Site::new();
        site.client().batch_execute("CREATE TABLE orders (name text)").unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let connected = tokio_postgres::connect(site.schema.url(), tokio_postgres::NoTls).await;
            let (client, connection) = connected.unwrap();
            tokio::spawn(connection);
            client.batch_execute(&format!("SET search_path TO {}", site.schema.name())).await.unwrap();
            client
        });
        Self { site, client, runtime }
    }

    /// What others see: orders, jobs that live, and what the tenant's numbers say.
    fn seen(&self) -> (i64, i64, usize) {
        let mut client = self.site.client();
        let live = "SELECT (SELECT count(*) FROM job) + (SELECT count(*) FROM sched)";
        let orders = number(&mut client, "SELECT count(*) FROM orders", &[]);
        let totals = block_on(self.site.jobs.totals()).unwrap();
        (orders, number(&mut client, live, &[]), totals.ready + totals.scheduled)
    }
}

const ORDER: &str = "INSERT INTO orders VALUES ('tea')";

/// C45: a job that was enqueued in the caller's transaction is there if and only if that commits, with everything else
/// that it wrote; and then it runs.
#[test]
fn a_job_is_there_if_and_only_if_the_transaction_commits() {
    let mut shop = Shop::new();
    let mut node = shop.site.node(LONG);
    let site = &shop.site;
    let client = &mut shop.client;
    let id = shop.runtime.block_on(async {
        // Given up.
        let transaction = client.transaction().await.unwrap();
        transaction.execute(ORDER, &[]).await.unwrap();
        let plan = site.jobs.tenant("acme").now().unique("tea", OnConflict::Reject);
        plan.clone().enqueue_in(&transaction, Work { millis: 0 }).await.unwrap();
        transaction.rollback().await.unwrap();
        // Given up in part.
        let mut transaction = client.transaction().await.unwrap();
        let part = transaction.transaction().await.unwrap();
        plan.clone().enqueue_in(&part, Work { millis: 0 }).await.unwrap();
        site.jobs.after(Duration::from_secs(9)).enqueue_in(&part, Work { millis: 0 }).await.unwrap();
        part.rollback().await.unwrap();
        // The key is free: what had it was never there.
        let id = plan.enqueue_in(&transaction, Work { millis: 0 }).await.unwrap();
        transaction.execute(ORDER, &[]).await.unwrap();
        assert_eq!(block_on(site.jobs.get(id)).unwrap(), None, "nobody sees it yet");
        transaction.commit().await.unwrap();
        id
    });
    assert!(block_on(site.jobs.handle::<String>(id).result()).unwrap().starts_with(&node.name()));
    assert_eq!(shop.seen(), (1, 0, 0));
    let mut client = shop.site.client();
    assert_eq!(number(&mut client, "SELECT count(*) FROM history", &[]), 1);
    node.ask("open", "opened");
    approve(&mut client, "transactions");
}

/// C45: so it is if the caller's connection is lost between two statements.
#[test]
fn a_transaction_whose_connection_is_lost_enqueues_nothing() {
    let shop = Shop::new();
    let session: i32 = shop.runtime.block_on(async {
        shop.client.batch_execute("BEGIN").await.unwrap();
        shop.client.execute(ORDER, &[]).await.unwrap();
        shop.site.jobs.now().enqueue_in(&shop.client, Work { millis: 0 }).await.unwrap();
        shop.client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
    });
    let killed = shop.site.client().query_one("SELECT pg_terminate_backend($1)", &[&session]).unwrap();
    assert!(killed.get::<_, bool>(0), "the fault happened");
    shop.runtime.block_on(async {
        let again = shop.site.jobs.now().enqueue_in(&shop.client, Work { millis: 0 }).await;
        let error = again.expect_err("the connection is gone");
        assert!(matches!(error.problem(), Problem::Store { error, .. } if error.is_transient()), "{error}");
        assert!(shop.client.batch_execute("COMMIT").await.is_err());
    });
    until("its end is noticed", || shop.seen() == (0, 0, 0));
    approve(&mut shop.site.client(), "a lost connection");
}

/// C25, C45: a refusal is an answer, and leaves the caller's transaction as it was.
#[test]
fn a_refusal_leaves_the_transaction_as_it_was() {
    let mut shop = Shop::new();
    let jobs = shop.site.jobs.clone();
    block_on(jobs.tenant("full").set_limits(Limits::new().backlog_max(1))).unwrap();
    block_on(jobs.tenant("closed").close()).unwrap();
    shop.runtime.block_on(async {
        let transaction = shop.client.transaction().await.unwrap();
        transaction.execute(ORDER, &[]).await.unwrap();
        let keyed = jobs.tenant("keyed").now().unique("key", OnConflict::Reject);
        let holder = keyed.clone().enqueue_in(&transaction, Hold {}).await.unwrap();
        let why = refused(keyed.enqueue_in(&transaction, Hold {}).await);
        assert!(matches!(why, Refused::Conflict(other) if other == holder), "{why:?}");
        let joining = jobs.tenant("keyed").now().unique("key", OnConflict::Join);
        assert_eq!(joining.enqueue_in(&transaction, Hold {}).await.unwrap(), holder);
        jobs.tenant("full").now().enqueue_in(&transaction, Hold {}).await.unwrap();
        let why = refused(jobs.tenant("full").now().enqueue_in(&transaction, Hold {}).await);
        assert!(why.to_string().contains("full") && why.to_string().contains('1'), "{why}");
        refused(jobs.tenant("closed").now().enqueue_in(&transaction, Hold {}).await);
        refused(jobs.now().deadline(Duration::ZERO).enqueue_in(&transaction, Hold {}).await);
        let why = refused(jobs.now().tag("t".repeat(513)).enqueue_in(&transaction, Hold {}).await);
        assert_eq!(why, Refused::TooLong { what: "tag", bytes: 513, max: 512 });
        let wanted = jobs.now().while_wanted().enqueue_in(&transaction, Hold {}).await;
        assert!(matches!(wanted.unwrap_err().problem(), Problem::Store { error, .. } if !error.is_transient()));
        transaction.execute(ORDER, &[]).await.unwrap();
        transaction.commit().await.unwrap();
    });
    assert_eq!(shop.seen(), (2, 2, 2));
    approve(&mut shop.site.client(), "refusals");
}

fn refused(answer: Result<JobId, EnqueueError<Hold>>) -> Refused {
    match answer.unwrap_err().problem() {
        Problem::Refused(why) => why.clone(),
        other => panic!("{other}"),
    }
}

/// What the function says, to somebody who speaks nothing but SQL.
fn plain(client: &mut Client, arguments: &str) -> (String, Option<String>) {
    let sql = format!("SELECT status, detail FROM enqueue({arguments})");
    let said = client.simple_query(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let row = said.iter().find_map(|said| if let SimpleQueryMessage::Row(row) = said { Some(row) } else { None });
    let row = row.unwrap();
    (row.get(0).unwrap().to_owned(), row.get(1).map(str::to_owned))
}

/// C45: the same by plain SQL, in whatever language: what is refused, or makes no sense, is a status with its reason.
#[test]
fn plain_sql_enqueues_and_is_told_what_became_of_it() {
    let shop = Shop::new();
    let site = &shop.site;
    block_on(site.jobs.tenant("full").set_limits(Limits::new().backlog_max(1))).unwrap();
    block_on(site.jobs.tenant("closed").close()).unwrap();
    let mut client = site.client();
    client.batch_execute("BEGIN; INSERT INTO orders VALUES ('tea')").unwrap();
    let mut status = |arguments: &str| plain(&mut client, arguments).0;
    assert_eq!(status(r#"'work', '{"millis": 0}'"#), "new");
    assert_eq!(status(r#"'work', '{"millis": 0}', tenant => 'full'"#), "new");
    assert_eq!(status(r#"'work', '{"millis": 0}', tenant => 'full'"#), "backlog_full");
    assert_eq!(status(r#"'work', '{"millis": 0}', tenant => 'closed'"#), "closed");
    assert_eq!(status(r#"'work', '{"millis": 0}', deadline_after => '0 seconds'"#), "expired");
    assert_eq!(status(r#"'work', '{"millis": 0}', after => '200 milliseconds', unique_key => 'k'"#), "new");
    assert_eq!(status(r#"'work', '{"millis": 0}', unique_key => 'k'"#), "conflict");
    assert_eq!(status(r#"'work', '{"millis": 0}', unique_key => 'k', on_conflict => 'join'"#), "joined");
    assert_eq!(status(r#"'work', '{"millis": 0}', unique_key => 'k', on_conflict => 'replace'"#), "replaced");
    let bad = [
        "NULL",
        "''",
        "'work', NULL",
        "'work', tenant => NULL",
        "'work', priority => 128",
        "'work', cost => 0",
        "'work', max_attempts => -1",
        "'work', due => now(), after => '1 second'",
        "'work', run_timeout => '-1 second'",
        "'work', unique_key => 'k', on_conflict => 'ignore'",
        // Too long for an index: what cannot be packed is not.
        "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) n)",
        "'work', tenant => (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) n)",
    ];
    for arguments in bad {
        let (status, detail) = plain(&mut client, arguments);
        assert!(status == "bad" && detail.is_some_and(|detail| !detail.is_empty()), "{arguments}: {status}");
    }
    // What is null is as if it had not been given, and a date beyond all dates never comes.
    let nothing = "priority => NULL, cost => NULL, max_attempts => NULL, max_crashes => NULL, backoff_base => NULL, backoff_cap => NULL, on_conflict => NULL, notify => NULL";
    for arguments in
        [&format!("'work', '{{\"millis\": 0}}', unique_key => 'n', {nothing}"), "'work', due => '294276-12-31'"]
    {
        assert_eq!(plain(&mut client, arguments), ("new".to_owned(), None), "{arguments}");
    }
    client.batch_execute("COMMIT").unwrap();
    assert_eq!(shop.seen(), (1, 5, 5));
    // And it runs, as what was enqueued from Rust does.
    let _node = site.node(LONG);
    let done = "SELECT count(*) FROM history WHERE outcome = 'succeeded' AND result LIKE '%process%'";
    until("all have run", || number(&mut client, done, &[]) == 4);
    assert_eq!(number(&mut client, "SELECT count(*) FROM history WHERE outcome = 'cancelled'", &[]), 1, "replaced");
    approve(&mut client, "plain SQL");
}

/// C45, C23: a transaction that sees one state for all its life cannot count what others have enqueued since. It is
/// told so, and is not made to fail; without a bound it enqueues as any other.
#[test]
fn a_bound_is_not_broken_by_a_transaction_that_sees_an_old_state() {
    let shop = Shop::new();
    let site = &shop.site;
    block_on(site.jobs.tenant("bounded").set_limits(Limits::new().backlog_max(1))).unwrap();
    let mut client = site.client();
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        client.batch_execute(&format!("BEGIN ISOLATION LEVEL {isolation}")).unwrap();
        let (status, detail) = plain(&mut client, "'work', tenant => 'bounded'");
        assert_eq!(status, "bad");
        assert!(detail.is_some_and(|detail| detail.contains("'bounded'") && detail.contains("read committed")));
        assert_eq!(plain(&mut client, "'work', '{\"millis\": 0}', tenant => 'free'").0, "new");
        client.batch_execute("COMMIT").unwrap();
    }
    assert_eq!(shop.seen().1, 2);
}

/// C45: the statement that any driver can send, with nothing but texts, is the same enqueue.
#[test]
fn a_statement_for_any_driver_enqueues() {
    let shop = Shop::new();
    let plan = shop.site.jobs.tenant("a 'b' \"c\"").after(Duration::from_secs(60)).tag("x,y").tag("\"z\"").priority(-7);
    let statement = plan.to_sql(Hold {}).unwrap();
    let parameters: Vec<(&(dyn postgres::types::ToSql + Sync), postgres::types::Type)> = statement
        .parameters
        .iter()
        .map(|text| (text as &(dyn postgres::types::ToSql + Sync), postgres::types::Type::TEXT))
        .collect();
    let rows = shop.site.client().query_typed(&statement.sql, &parameters).unwrap();
    assert_eq!(rows[0].get::<_, &str>(0), statement.id.to_string());
    assert_eq!(rows[0].get::<_, &str>(1), "new");
    let record = shop.site.record(statement.id);
    assert_eq!((record.job.tenant.as_str(), record.job.priority), ("a 'b' \"c\"", -7));
    assert_eq!(record.job.tags, ["x,y", "\"z\""]);
    assert_eq!(record.due.since(record.enqueued_at), Duration::from_secs(60));
}

/// C23, C45: places are counted when they are certain: whoever comes while somebody's transaction is about to take the
/// last one is told to try again, and gets it if that is given up. Claims wait for nobody's transaction.
#[test]
fn an_open_transaction_holds_up_its_rivals_and_nobody_else() {
    let shop = Shop::new();
    let site = &shop.site;
    site.client().batch_execute("ALTER FUNCTION enqueue SET lock_timeout = '50ms'").unwrap();
    block_on(site.jobs.tenant("full").set_limits(Limits::new().backlog_max(0).running_max(1))).unwrap();
    let (mut holder, mut rival) = (site.client(), site.client());
    holder.batch_execute("BEGIN").unwrap();
    assert_eq!(plain(&mut holder, "'hold', tenant => 'full'").0, "new");
    assert_eq!(plain(&mut holder, "'hold', unique_key => 'k'").0, "new");
    rival.batch_execute("BEGIN").unwrap();
    assert_eq!(plain(&mut rival, "'hold', tenant => 'full'").0, "busy");
    assert_eq!(plain(&mut rival, "'hold', unique_key => 'k'").0, "busy");
    // Others of the same tenants run meanwhile, also one whose key was asked for.
    let other = block_on(site.jobs.now().unique("other", OnConflict::Reject).enqueue(Work { millis: 0 })).unwrap();
    assert_eq!(plain(&mut rival, "'hold', unique_key => 'other'").0, "conflict");
    let _node = site.node(LONG);
    assert!(block_on(other.result()).is_ok());
    holder.batch_execute("ROLLBACK").unwrap();
    assert_eq!(plain(&mut rival, "'hold', tenant => 'full'").0, "new");
    assert_eq!(plain(&mut rival, "'hold', unique_key => 'k'").0, "new");
    rival.batch_execute("COMMIT").unwrap();
    let mut client = site.client();
    until("they run", || number(&mut client, "SELECT count(*) FROM job WHERE stage = 'running'", &[]) == 2);
    assert_eq!(plain(&mut client, "'hold', tenant => 'full'").0, "backlog_full");
    let ended = block_on(site.jobs.tenant("full").cancel_all()).unwrap();
    assert_eq!(ended, 1);
    until("its place is free", || plain(&mut client, "'work', '{\"millis\": 0}', tenant => 'full'").0 == "new");
    let outcomes = "SELECT count(*) FROM history WHERE outcome = 'succeeded'";
    until("it has run", || number(&mut client, outcomes, &[]) == 2);
}
