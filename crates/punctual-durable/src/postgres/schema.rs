//! The store's tables and functions in the database: made if they are missing, brought up to date if they are older, left alone if they
//! are newer.
//!
//! # Invariants
//! 1. Tables only move forward, one numbered script at a time, each once, whoever opens the store first. Who else opens it waits.
//! 2. Functions are replaced by those of a newer version only. While a cluster is being updated its older nodes call the newer
//!    functions, so a newer version keeps the signatures that an older one calls.

use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::Type;

use super::connect::Database;
use super::error::{Fault, Kind};
use crate::error::StoreError;

/// What brings the tables from each version to the next.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_tables.sql")];

/// The version of the functions: one higher whenever a release changes any of them.
const FUNCTIONS_VERSION: i32 = 1;

/// The functions. Their bodies are looked at when they are called, so the order does not matter; but who may call them comes last.
const FUNCTIONS: [&str; 79] = [
    include_str!("queries/absorb.sql"),
    include_str!("queries/absorb_work.sql"),
    include_str!("queries/account.sql"),
    include_str!("queries/admit.sql"),
    include_str!("queries/cancel.sql"),
    include_str!("queries/cancel_tenant.sql"),
    include_str!("queries/catch_up.sql"),
    include_str!("queries/choose.sql"),
    include_str!("queries/choose_a_few.sql"),
    include_str!("queries/choose_with_care.sql"),
    include_str!("queries/claim.sql"),
    include_str!("queries/clock.sql"),
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
    include_str!("queries/heartbeat.sql"),
    include_str!("queries/index_days.sql"),
    include_str!("queries/instant.sql"),
    include_str!("queries/is_known.sql"),
    include_str!("queries/jobs.sql"),
    include_str!("queries/join_node.sql"),
    include_str!("queries/later.sql"),
    include_str!("queries/leave.sql"),
    include_str!("queries/let_go.sql"),
    include_str!("queries/live_of.sql"),
    include_str!("queries/lock_job.sql"),
    include_str!("queries/lose.sql"),
    include_str!("queries/make_partitions.sql"),
    include_str!("queries/move.sql"),
    include_str!("queries/nanos.sql"),
    include_str!("queries/new_id.sql"),
    include_str!("queries/next_tend.sql"),
    include_str!("queries/nodes.sql"),
    include_str!("queries/numbers.sql"),
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
    include_str!("queries/take_waiting.sql"),
    include_str!("queries/tally.sql"),
    include_str!("queries/tell_ended.sql"),
    include_str!("queries/tenant_records.sql"),
    include_str!("queries/tend.sql"),
    include_str!("queries/totals.sql"),
    include_str!("queries/unwant.sql"),
    include_str!("queries/wait_for.sql"),
    include_str!("queries/wait_for_turn.sql"),
    include_str!("queries/want.sql"),
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
    functions: i32,
    fingerprint: String,
}

impl Installed {
    const NOTHING: Self = Self { tables: 0, functions: 0, fingerprint: String::new() };

    fn ours() -> Self {
        let tables = i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX);
        Self { tables, functions: FUNCTIONS_VERSION, fingerprint: fingerprint(&FUNCTIONS) }
    }

    fn has_tables_of(&self, other: &Self) -> bool {
        self.tables >= other.tables
    }

    /// Those of a newer version count as well. Of the same version they must be the same: they differ while one is developed.
    fn has_functions_of(&self, other: &Self) -> bool {
        self.functions > other.functions || (self.functions == other.functions && self.fingerprint == other.fingerprint)
    }
}

/// Brings the schema up to date, if it is not.
pub(super) async fn install(database: &Database, name: &SchemaName) -> Result<(), Fault> {
    let ours = Installed::ours();
    let mut client = database.client(OPENING).await?;
    // Looked at first, so that a user who may only use the functions can open the store.
    let found = look(&client, name).await;
    let found =
        found.map_err(|error| denied(&error, || "its owner must call `grant_roles` for this role".to_owned()))?;
    if found.has_tables_of(&ours) && found.has_functions_of(&ours) {
        return Ok(());
    }
    let advice = || {
        let name = name.quoted();
        match found {
            Installed { tables: 0, .. } => format!("schema {name} is missing, and must be made by a role that may"),
            _ => format!("schema {name} is of another version, and its owner must open it with this one first"),
        }
    };
    update(&mut client, name, &ours).await.map_err(|error| denied(&error, advice))
}

/// Makes what is missing, in one transaction.
async fn update(client: &mut ClientWrapper, name: &SchemaName, ours: &Installed) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    let lock = literal(&format!("punctual schema {}", name.plain()));
    let lock = format!("SELECT pg_advisory_xact_lock(hashtextextended({lock}, 0))");
    transaction.batch_execute(&lock).await?;
    let found = look(transaction.client(), name).await?;
    transaction.batch_execute(&preparation(name)).await?;
    for (version, script) in (1..).zip(MIGRATIONS).skip(usize::try_from(found.tables).unwrap_or(0)) {
        transaction.batch_execute(script).await?;
        transaction.batch_execute(&format!("INSERT INTO migration (version) VALUES ({version})")).await?;
    }
    if !found.has_functions_of(ours) {
        for script in FUNCTIONS {
            transaction.batch_execute(script).await?;
        }
        let note = format!(
            "DELETE FROM functions; INSERT INTO functions (version, fingerprint) VALUES ({}, {})",
            ours.functions,
            literal(&ours.fingerprint)
        );
        transaction.batch_execute(&note).await?;
    }
    if found.tables == 0 {
        // Made later, they would hold up the first jobs that end.
        transaction.batch_execute("SELECT make_partitions(present(NULL))").await?;
    }
    transaction.commit().await
}

/// A role that may not do what is to be done hears who must.
fn denied(error: &tokio_postgres::Error, advice: impl FnOnce() -> String) -> Fault {
    let fault = Fault::new(OPENING, error);
    if fault.kind == Kind::Denied { fault.advise(&advice()) } else { fault }
}

/// What there is.
async fn look(client: &tokio_postgres::Client, name: &SchemaName) -> Result<Installed, tokio_postgres::Error> {
    let (migration, functions) = (format!("{}.migration", name.quoted()), format!("{}.functions", name.quoted()));
    let exists = "SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL";
    let tables = [(&migration as &(dyn tokio_postgres::types::ToSql + Sync), Type::TEXT), (&functions, Type::TEXT)];
    if !client.query_typed_one(exists, &tables).await?.try_get::<_, bool>(0)? {
        return Ok(Installed::NOTHING);
    }
    let tables = format!("SELECT coalesce(max(version), 0) FROM {migration}");
    let tables = client.query_typed_one(&tables, &[]).await?.try_get(0)?;
    let functions = format!("SELECT version, fingerprint FROM {functions}");
    match client.query_typed_opt(&functions, &[]).await? {
        Some(row) => Ok(Installed { tables, functions: row.try_get(0)?, fingerprint: row.try_get(1)? }),
        None => Ok(Installed { tables, ..Installed::NOTHING }),
    }
}

/// The schema and its record of what it has. Everything after it is made in the schema, and functions remember it.
fn preparation(name: &SchemaName) -> String {
    let schema = name.quoted();
    format!(
        "CREATE SCHEMA IF NOT EXISTS {schema};
         SET LOCAL search_path TO {schema}, pg_temp;
         SET LOCAL check_function_bodies = off;
         CREATE TABLE IF NOT EXISTS migration (version int PRIMARY KEY, installed_at timestamptz NOT NULL DEFAULT now());
         CREATE TABLE IF NOT EXISTS functions (version int NOT NULL, fingerprint text NOT NULL, installed_at timestamptz NOT NULL DEFAULT now());"
    )
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
        let ours = Installed { tables: 3, functions: 2, fingerprint: "b".into() };
        let with = |functions, fingerprint: &str| Installed { tables: 3, functions, fingerprint: fingerprint.into() };
        assert!(with(3, "c").has_functions_of(&ours) && with(2, "b").has_functions_of(&ours));
        assert!(!with(2, "c").has_functions_of(&ours) && !with(1, "b").has_functions_of(&ours));
        assert!(!Installed::NOTHING.has_functions_of(&ours) && !Installed::NOTHING.has_tables_of(&ours));
    }

    #[test]
    fn every_script_is_installed() {
        let folder = |name| std::fs::read_dir(format!("{}/src/postgres/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let texts = |name| folder(name).map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        for text in texts("queries") {
            assert!(FUNCTIONS.contains(&text.as_str()), "not in the list: {text}");
        }
        for text in texts("migrations") {
            assert!(MIGRATIONS.contains(&text.as_str()), "not in the list: {text}");
        }
    }

    #[test]
    fn a_changed_function_changes_the_fingerprint() {
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
        assert_eq!(fingerprint(&["a"]), fingerprint(&["a"]));
    }
}
