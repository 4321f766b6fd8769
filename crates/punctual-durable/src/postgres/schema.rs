//! The store's tables and functions in the database: made if they are missing, brought up to date if they are older,
//! left alone if they are newer.
//!
//! # Invariants
//! 1. Tables only move forward, one numbered script at a time, each once, whoever opens the store first. Who else opens
//!    it waits.
//! 2. All that a newer program brings comes in one transaction, or nothing of it.
//! 3. Functions are replaced by those of a newer version only. While a cluster is being updated its older nodes call
//!    the newer functions, so a newer version keeps the signatures that an older one calls.
//! 4. Nobody is held up for long: a migration that cannot have its tables within a moment lets everybody else go first,
//!    and tries again.
//!
//! # What a migration may do
//! It runs beside nodes of the version before, and whoever waited for its locks goes on with the functions of before,
//! on the tables of after. So what it adds has a default or may be null (in `job`, `sched` and `history` it may be
//! null: rows go there whole), what the version before calls it does not drop, and it takes a moment: it rewrites no
//! table and builds no index on one that may be large. A call that fails because something changed under it was rolled
//! back, and a store asks once more. Where this cannot be, [`Migration::oldest`] keeps older programs out.

#[cfg(test)]
mod upgrades;

use std::time::Duration;

use deadpool_postgres::{Object, Transaction};
use tokio_postgres::IsolationLevel;
use tokio_postgres::types::Type;

use super::connect::Database;
use super::error::{Fault, Kind};
use crate::error::StoreError;

/// What a program brings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edition {
    migrations: &'static [Migration],
    /// One higher whenever a release changes any of the functions.
    functions_version: i32,
    functions: &'static [&'static str],
}

impl Edition {
    pub(super) const OURS: Self =
        Self { migrations: &MIGRATIONS, functions_version: FUNCTIONS_VERSION, functions: &FUNCTIONS };
}

/// What brings the tables from one version to the next.
#[derive(Debug, Clone, Copy)]
struct Migration {
    script: &'static str,
    /// The tables that are there and that it changes, in the order in which most functions come to them: `sched`,
    /// `job`, `history`. They are locked before it begins, all or none.
    locks: &'static [&'static str],
    /// The oldest version that can work with the tables from then on: who knows fewer migrations than this is kept out.
    oldest: i32,
}

const MIGRATIONS: [Migration; 1] =
    [Migration { script: include_str!("migrations/0001_tables.sql"), locks: &[], oldest: 1 }];

/// The version of the functions: one higher than in the last release as soon as any of them differs from it
/// (`schema/editions.txt`).
const FUNCTIONS_VERSION: i32 = 1;

/// The functions. Their bodies are looked at when they are called, so the order does not matter; but who may call them
/// comes last.
const FUNCTIONS: [&str; 91] = [
    include_str!("queries/absorb.sql"),
    include_str!("queries/absorb_work.sql"),
    include_str!("queries/account.sql"),
    include_str!("queries/admit.sql"),
    include_str!("queries/cancel.sql"),
    include_str!("queries/cancel_tenant.sql"),
    include_str!("queries/catch_up.sql"),
    include_str!("queries/catch_up_of.sql"),
    include_str!("queries/charge.sql"),
    include_str!("queries/choose.sql"),
    include_str!("queries/choose_a_few.sql"),
    include_str!("queries/choose_with_care.sql"),
    include_str!("queries/claim.sql"),
    include_str!("queries/clock.sql"),
    include_str!("queries/count_on.sql"),
    include_str!("queries/drop_partitions.sql"),
    include_str!("queries/due_schedules.sql"),
    include_str!("queries/edit.sql"),
    include_str!("queries/ended.sql"),
    include_str!("queries/enqueue.sql"),
    include_str!("queries/enqueue_alike.sql"),
    include_str!("queries/enqueue_batch.sql"),
    include_str!("queries/enqueue_one.sql"),
    include_str!("queries/erase.sql"),
    include_str!("queries/expire.sql"),
    include_str!("queries/expire_one.sql"),
    include_str!("queries/expiry_error.sql"),
    include_str!("queries/explain.sql"),
    include_str!("queries/find_job.sql"),
    include_str!("queries/finish.sql"),
    include_str!("queries/fire_begin.sql"),
    include_str!("queries/fire_end.sql"),
    include_str!("queries/foresee.sql"),
    include_str!("queries/forget_ended.sql"),
    include_str!("queries/get.sql"),
    include_str!("queries/get_ready.sql"),
    include_str!("queries/give_up.sql"),
    include_str!("queries/hear_of.sql"),
    include_str!("queries/heartbeat.sql"),
    include_str!("queries/index_days.sql"),
    include_str!("queries/instant.sql"),
    include_str!("queries/is_known.sql"),
    include_str!("queries/jobs.sql"),
    include_str!("queries/join_node.sql"),
    include_str!("queries/keep_up.sql"),
    include_str!("queries/later.sql"),
    include_str!("queries/leave.sql"),
    include_str!("queries/let_go.sql"),
    include_str!("queries/live_of.sql"),
    include_str!("queries/lock_job.sql"),
    include_str!("queries/lose.sql"),
    include_str!("queries/make_partitions.sql"),
    include_str!("queries/meet.sql"),
    include_str!("queries/misfit.sql"),
    include_str!("queries/move.sql"),
    include_str!("queries/nanos.sql"),
    include_str!("queries/new_id.sql"),
    include_str!("queries/next_tend.sql"),
    include_str!("queries/nodes.sql"),
    include_str!("queries/numbers.sql"),
    include_str!("queries/outlook.sql"),
    include_str!("queries/pause_schedule.sql"),
    include_str!("queries/present.sql"),
    include_str!("queries/promote.sql"),
    include_str!("queries/prune.sql"),
    include_str!("queries/purge.sql"),
    include_str!("queries/put_schedule.sql"),
    include_str!("queries/query.sql"),
    include_str!("queries/ran_by.sql"),
    include_str!("queries/redrive.sql"),
    include_str!("queries/remove_schedule.sql"),
    include_str!("queries/schedules.sql"),
    include_str!("queries/set_tenant.sql"),
    include_str!("queries/settle.sql"),
    include_str!("queries/starts.sql"),
    include_str!("queries/stop_waiting.sql"),
    include_str!("queries/take_news.sql"),
    include_str!("queries/take_turns.sql"),
    include_str!("queries/take_waiting.sql"),
    include_str!("queries/tally.sql"),
    include_str!("queries/tell_ended.sql"),
    include_str!("queries/tell_new.sql"),
    include_str!("queries/tenant_records.sql"),
    include_str!("queries/tend.sql"),
    include_str!("queries/totals.sql"),
    include_str!("queries/unwant.sql"),
    include_str!("queries/wait_for.sql"),
    include_str!("queries/wait_for_turn.sql"),
    include_str!("queries/want.sql"),
    include_str!("queries/whose_turn.sql"),
    include_str!("queries/roles.sql"),
];

const OPENING: &str = "open the PostgreSQL store";

/// A schema's name, fit to be written into SQL.
#[derive(Debug, Clone)]
pub(super) struct SchemaName {
    plain: String,
    quoted: String,
}

impl SchemaName {
    pub(super) fn new(name: &str) -> Result<Self, StoreError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        // Names that begin with pg_ are the system's, and longer ones are cut.
        if name.is_empty() || name.len() > 63 || !name.chars().all(is_plain) || name.starts_with("pg_") {
            return Err(StoreError::permanent(format!(
                "{name:?} cannot be the schema of a store (at most 63 letters, digits, _ and -, not beginning with pg_)"
            )));
        }
        Ok(Self { plain: name.to_owned(), quoted: format!("\"{name}\"") })
    }

    /// As an identifier.
    pub(super) fn quoted(&self) -> &str {
        &self.quoted
    }

    /// As a text; also the name of the channel of its notifications.
    pub(super) fn plain(&self) -> &str {
        &self.plain
    }
}

/// What a schema has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Installed {
    tables: i32,
    /// The oldest version that can work with it.
    oldest: i32,
    functions: i32,
    fingerprint: String,
}

impl Installed {
    const NOTHING: Self = Self { tables: 0, oldest: 0, functions: 0, fingerprint: String::new() };

    fn by(edition: &Edition) -> Self {
        Self {
            tables: i32::try_from(edition.migrations.len()).unwrap_or(i32::MAX),
            oldest: edition.migrations.iter().map(|migration| migration.oldest).max().unwrap_or(0),
            functions: edition.functions_version,
            fingerprint: fingerprint(edition.functions),
        }
    }

    fn has_tables_of(&self, other: &Self) -> bool {
        self.tables >= other.tables
    }

    /// Those of a newer version count as well. Of the same version they must be the same: they differ while one is
    /// developed.
    fn has_functions_of(&self, other: &Self) -> bool {
        (self.tables, self.functions) > (other.tables, other.functions)
            || (self.functions == other.functions && self.fingerprint == other.fingerprint)
    }

    /// Whether somebody who brings `other` can work with this as it is.
    fn is_enough_for(&self, other: &Self, name: &SchemaName) -> Result<bool, Fault> {
        if self.oldest > other.tables {
            return Err(Fault::refused(
                OPENING,
                format_args!(
                    "the schema {} is of version {}, which programs older than version {} cannot use, and this one is of version {}: it needs a newer program",
                    name.quoted(),
                    self.tables,
                    self.oldest,
                    other.tables
                ),
            ));
        }
        Ok(self.has_tables_of(other) && self.has_functions_of(other))
    }
}

/// How long a migration waits for its tables, while everybody else waits behind it. Longer than the second after which
/// the server takes a table from a vacuum of its own, and frees those who wait for each other; shorter than a lease.
const LOCK_TIMEOUT: Duration = Duration::from_millis(1_500);

/// How long the others have in between.
const REST: Duration = Duration::from_secs(3);

/// Brings the schema up to date, if it is not.
pub(super) async fn install(database: &Database, name: &SchemaName, edition: &Edition) -> Result<(), Fault> {
    let ours = Installed::by(edition);
    let mut client = database.client(OPENING).await?;
    // Looked at first, so that a user who may only use the functions can open the store.
    let found = tokio::time::timeout(database.timeout(), look(&client, name)).await;
    let found = found.map_err(|_| Fault::timed_out(OPENING, "the database did not answer"))?;
    let found =
        found.map_err(|fault| fault.if_denied(|| "its owner must call `grant_roles` for this role".to_owned()))?;
    if found.is_enough_for(&ours, name)? {
        return Ok(());
    }
    let advice = || {
        let name = name.quoted();
        match found {
            Installed { tables: 0, .. } => format!("schema {name} is missing, and must be made by a role that may"),
            _ => format!("schema {name} is of another version, and its owner must open it with this one first"),
        }
    };
    update(&mut client, database, edition).await.map_err(|fault| fault.if_denied(advice))
}

/// Makes what is missing, in one transaction, however often that must be tried.
async fn update(client: &mut Object, database: &Database, edition: &Edition) -> Result<(), Fault> {
    let (name, ours) = (database.schema(), Installed::by(edition));
    let mut transaction = begin(client, name, database.timeout()).await?;
    let found = look(transaction.client(), name).await?;
    if found.is_enough_for(&ours, name)? {
        return Ok(());
    }
    // Between tries nothing is locked but the right to try: the others who want to are many, and would take turns in
    // holding up everybody.
    let mut waited = Duration::ZERO;
    loop {
        let step = transaction.transaction().await.map_err(|error| Fault::new(OPENING, &error))?;
        match upgrade(&step, name, edition, &found).await {
            Ok(()) => {
                step.commit().await.map_err(|error| Fault::new(OPENING, &error))?;
                return transaction.commit().await.map_err(|error| Fault::new(OPENING, &error));
            }
            Err(fault)
                if matches!(fault.kind, Kind::Held | Kind::Again)
                    && waited + LOCK_TIMEOUT + REST <= database.timeout() =>
            {
                step.rollback().await.map_err(|error| Fault::new(OPENING, &error))?;
                tracing::warn!(target: "punctual", error = %fault.told, "others use the tables, so it is tried again");
                waited += LOCK_TIMEOUT + REST;
                tokio::time::sleep(REST).await;
            }
            Err(fault) => return Err(fault),
        }
    }
}

/// Begins a transaction that nobody else can have at the same time.
async fn begin<'a>(client: &'a mut Object, name: &SchemaName, timeout: Duration) -> Result<Transaction<'a>, Fault> {
    let fault =
        |error: tokio_postgres::Error| Fault::new("wait for another process that brings the tables up to date", &error);
    // Whoever waited sees what the other did.
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).read_only(false);
    let transaction = transaction.start().await.map_err(fault)?;
    let lock = literal(&format!("punctual schema {}", name.plain()));
    let begin = format!(
        "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL lock_timeout = {};
         SELECT pg_advisory_xact_lock(hashtextextended({lock}, 0))",
        timeout.as_millis().max(1)
    );
    transaction.batch_execute(&begin).await.map_err(fault)?;
    Ok(transaction)
}

/// Does what is missing, step by step; an error says at which.
async fn upgrade(
    transaction: &Transaction<'_>,
    name: &SchemaName,
    edition: &Edition,
    found: &Installed,
) -> Result<(), Fault> {
    let run =
        async |what: &str, sql: &str| transaction.batch_execute(sql).await.map_err(|error| Fault::new(what, &error));
    let ours = Installed::by(edition);
    prepare(transaction, name).await?;
    for (version, migration) in (1..).zip(edition.migrations).skip(usize::try_from(found.tables).unwrap_or(0)) {
        let what = format!("bring the tables of schema {} to version {version}", name.quoted());
        if !migration.locks.is_empty() {
            // Cancelled, as it took too long.
            run(&what, &lock(migration.locks)).await.map_err(|fault| Fault { kind: Kind::Held, ..fault })?;
        }
        run(&what, migration.script).await?;
        let note = format!("INSERT INTO migration (version, oldest) VALUES ({version}, {})", migration.oldest);
        run(&what, &note).await?;
    }
    if !found.has_functions_of(&ours) {
        let what = format!("bring the functions of schema {} to version {}", name.quoted(), ours.functions);
        for script in edition.functions {
            run(&what, script).await?;
        }
        let note = format!(
            "DELETE FROM functions; INSERT INTO functions (version, fingerprint) VALUES ({}, {})",
            ours.functions,
            literal(&ours.fingerprint)
        );
        run(&what, &note).await?;
    }
    if found.tables == 0 {
        // Made later, they would hold up the first jobs that end.
        run(OPENING, "SELECT make_partitions(present(NULL))").await?;
    }
    Ok(())
}

/// Takes the tables for a migration, all of them within the time for one: who has the first would keep everybody from
/// it while waiting for the next.
fn lock(tables: &[&str]) -> String {
    let (tables, millis) = (tables.join(", "), LOCK_TIMEOUT.as_millis());
    format!(
        "SET LOCAL statement_timeout = {millis}; LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE; SET LOCAL statement_timeout = 0"
    )
}

/// What there is.
async fn look(client: &tokio_postgres::Client, name: &SchemaName) -> Result<Installed, Fault> {
    let fault = |error: tokio_postgres::Error| Fault::new(OPENING, &error);
    let (migration, functions) = (format!("{}.migration", name.quoted()), format!("{}.functions", name.quoted()));
    // Not `to_regclass`, which says what the session remembers: nothing of what another one did since this transaction
    // began.
    let exists = "SELECT count(*) = 2 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                  WHERE n.nspname = $1 AND c.relname IN ('migration', 'functions')";
    let exists = client.query_typed_one(exists, &[(&name.plain(), Type::TEXT)]).await.map_err(fault)?;
    if !exists.try_get::<_, bool>(0).map_err(fault)? {
        return Ok(Installed::NOTHING);
    }
    // One statement, so that it is of one moment.
    let asked = format!(
        "SELECT m.version, m.oldest, coalesce(f.version, 0), coalesce(f.fingerprint, '')
         FROM (SELECT coalesce(max(version), 0) AS version, coalesce(max(oldest), 0) AS oldest FROM {migration}) m
              LEFT JOIN {functions} f ON true"
    );
    let row = client.query_typed_one(&asked, &[]).await.map_err(fault)?;
    let read = || {
        Ok(Installed {
            tables: row.try_get(0)?,
            oldest: row.try_get(1)?,
            functions: row.try_get(2)?,
            fingerprint: row.try_get(3)?,
        })
    };
    read().map_err(fault)
}

/// The schema and its record of what it has. Everything after it is made in the schema, and functions remember it.
async fn prepare(transaction: &Transaction<'_>, name: &SchemaName) -> Result<(), Fault> {
    let schema = name.quoted();
    let what = format!("make or upgrade schema {schema}, as its owner could");
    let fault = |error: tokio_postgres::Error| Fault::new(&what, &error);
    // Whoever was given a schema of his own may have no right to make one, and is refused also if there is nothing to
    // make.
    let exists = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
    let exists = transaction.query_typed_one(exists, &[(&name.plain(), Type::TEXT)]).await.map_err(fault)?;
    let create = if exists.try_get(0).map_err(fault)? { String::new() } else { format!("CREATE SCHEMA {schema};") };
    let rest = format!(
        "{create}
         SET LOCAL search_path TO {schema}, pg_temp;
         SET LOCAL check_function_bodies = off;
         SET LOCAL lock_timeout = {};
         CREATE TABLE IF NOT EXISTS migration (version int PRIMARY KEY, oldest int NOT NULL, installed_at timestamptz NOT NULL DEFAULT now());
         CREATE TABLE IF NOT EXISTS functions (version int NOT NULL, fingerprint text NOT NULL, installed_at timestamptz NOT NULL DEFAULT now());",
        LOCK_TIMEOUT.as_millis()
    );
    transaction.batch_execute(&rest).await.map_err(fault)
}

/// A text without quotes and backslashes, in SQL.
fn literal(text: &str) -> String {
    debug_assert!(!text.contains(['\'', '\\']), "{text} is not plain");
    format!("'{text}'")
}

/// Tells one set of functions from another (FNV-1a).
fn fingerprint(scripts: &[&str]) -> String {
    let bytes = scripts.iter().flat_map(|script| script.bytes().chain([0]));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_quoted_and_cannot_break_out() {
        assert_eq!(SchemaName::new("Jobs-2_x").unwrap().quoted(), "\"Jobs-2_x\"");
        for bad in ["", "a b", "a\"b", "a;drop", "pg_jobs", "é", &"x".repeat(64)] {
            assert!(SchemaName::new(bad).unwrap_err().to_string().contains(&format!("{bad:?}")), "{bad}");
        }
    }

    #[test]
    fn functions_of_a_newer_version_are_left_alone() {
        let with = |functions, fingerprint: &str| Installed {
            tables: 3,
            oldest: 1,
            functions,
            fingerprint: fingerprint.into(),
        };
        let ours = with(2, "b");
        assert!(with(3, "c").has_functions_of(&ours) && with(2, "b").has_functions_of(&ours));
        assert!(!with(2, "c").has_functions_of(&ours) && !with(1, "b").has_functions_of(&ours));
        assert!(!Installed::NOTHING.has_functions_of(&ours) && !Installed::NOTHING.has_tables_of(&ours));
        let newer_tables = Installed { tables: 4, ..with(2, "c") };
        assert!(newer_tables.has_functions_of(&ours) && !ours.has_functions_of(&newer_tables));
    }

    #[test]
    fn every_script_is_installed() {
        let folder = |name| std::fs::read_dir(format!("{}/src/postgres/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let texts = |name| folder(name).map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        for text in texts("queries") {
            assert!(FUNCTIONS.contains(&text.as_str()), "not in the list: {text}");
        }
        for text in texts("migrations") {
            assert!(MIGRATIONS.iter().any(|migration| migration.script == text), "not in the list: {text}");
        }
    }

    #[test]
    fn a_changed_function_changes_the_fingerprint() {
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
        assert_eq!(fingerprint(&["a"]), fingerprint(&["a"]));
    }
}
