//! A job and a row of the application's own, in one transaction of sqlx: both or neither. Plays if
//! `PUNCTUAL_POSTGRES_URL` names a server.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual_durable::{Job, Jobs, SqlStatement};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Welcome {
    user: String,
}

impl Job for Welcome {
    const KIND: &'static str = "welcome";
    type Output = ();
}

/// Runs a statement in whatever transaction.
async fn run(transaction: &mut PgConnection, statement: &SqlStatement) -> Result<PgRow, sqlx::Error> {
    let query = sqlx::query(sqlx::AssertSqlSafe(statement.sql.clone()));
    let query = statement.parameters.iter().fold(query, |query, parameter| query.bind(parameter));
    query.fetch_one(transaction).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Ok(server) = std::env::var("PUNCTUAL_POSTGRES_URL") else {
        println!("nothing to play on: set PUNCTUAL_POSTGRES_URL, or use `scripts/postgres run`");
        return Ok(());
    };
    let jobs = Jobs::open(&format!("{server}?schema=example_{}", std::process::id())).await?;
    jobs.on(|welcome: Welcome, _ctx| async move {
        println!("welcome, {}", welcome.user);
        Ok(())
    });
    let node = jobs.start().await?;
    let mut connection = PgConnection::connect(&server).await?;
    sqlx::query("CREATE TEMP TABLE account (name text)").execute(&mut connection).await?;

    // Ada signs up: her account and her mail are there at the same instant.
    let mut transaction = connection.begin().await?;
    sqlx::query("INSERT INTO account VALUES ('ada')").execute(&mut *transaction).await?;
    let ada = jobs.now().to_sql(Welcome { user: "ada".into() })?;
    assert_eq!(run(&mut transaction, &ada).await?.get::<String, _>("status"), "new");
    assert!(jobs.get(ada.id).await?.is_none(), "nobody sees it before the commit");
    transaction.commit().await?;
    jobs.handle::<()>(ada.id).await?;

    // Bob does not: there is neither an account nor a mail.
    let mut transaction = connection.begin().await?;
    sqlx::query("INSERT INTO account VALUES ('bob')").execute(&mut *transaction).await?;
    let bob = jobs.now().to_sql(Welcome { user: "bob".into() })?;
    run(&mut transaction, &bob).await?;
    transaction.rollback().await?;
    assert!(jobs.get(bob.id).await?.is_none());

    node.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
