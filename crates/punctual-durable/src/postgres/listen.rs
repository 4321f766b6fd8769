//! The one connection that listens, and on which others are told.
//!
//! It goes to the server itself and not through a pooler, because notifications come to a session. It is checked every
//! now and then, and made anew when it is lost; since something may have been said meanwhile, everybody looks then.
//!
//! What is said on it are hints, so it waits for no disk; and while it waits for a lock it hears nothing, so it does
//! not wait long.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Row};

use super::Shared;
use super::error::Fault;
use super::hosts::{Hosts, Wire};
use super::options::Address;
use super::rows::{Parameter, node_id};
use crate::error::StoreError;
use crate::id::{JobId, NodeId};
use crate::time::Timestamp;

/// How often to ask whether the server is still there, and what time it is.
const CHECK: Duration = Duration::from_millis(2_500);

/// So many checks are a minute. With the first of each goes the question who holds up vacuum.
const CHECKS_A_MINUTE: usize = 24;

/// How long to wait before another try; doubles up to the second.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How long an answer may take before the connection is given up.
const TIMEOUT: Duration = Duration::from_secs(5);

const LISTENING: &str = "listen for notifications";

/// The connection, while there is one.
pub(super) struct Line {
    hosts: Hosts,
    client: Mutex<Option<Arc<Client>>>,
}

impl Line {
    pub(super) fn new(address: &Address) -> Result<Self, StoreError> {
        Ok(Self { hosts: Hosts::new(address)?, client: Mutex::default() })
    }

    /// Says something short, if somebody is there to hear it.
    pub(super) async fn say(&self, what: &str, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Fault> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(client) = client else { return Err(Fault::timed_out(what, "nobody listens at this moment")) };
        match tokio::time::timeout(TIMEOUT, client.query_typed(sql, parameters)).await {
            Ok(answer) => answer.map_err(|error| Fault::new(what, &error)),
            Err(_) => Err(Fault::timed_out(what, format!("the database did not answer within {TIMEOUT:?}"))),
        }
    }

    /// Calls a function that leaves a hint. What it waits for is set for its transaction alone, and not in the session:
    /// that is somebody else's next, if there is a pooler after all, who would then not wait for the disk either.
    pub(super) async fn hint(&self, what: &str, call: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Fault> {
        let disk = "set_config('synchronous_commit', 'off', true) AS disk";
        let locks = "set_config('lock_timeout', '100ms', true) AS locks";
        self.say(what, &format!("SELECT {call} FROM {disk}, {locks}"), parameters).await
    }

    /// Waits until everything that was said before has been heard: the server sends it before it answers.
    pub(super) async fn settle(&self) {
        let _ = self.say(LISTENING, "SELECT", &[]).await;
    }

    /// Whether the server takes no writes any more, so that whoever writes is at another one, and nobody says anything
    /// here.
    async fn is_left(&self) -> Result<bool, Fault> {
        let rows = self.say(LISTENING, "SELECT current_setting('transaction_read_only') = 'on'", &[]).await?;
        Ok(self.hosts.must_take_writes() && rows.first().is_some_and(|row| row.get(0)))
    }

    fn set(&self, client: Option<Arc<Client>>) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
    }
}

/// Connects for the first time; then, for as long as the store is open, again and again. Answers when it has begun.
pub(super) async fn listen(shared: &Arc<Shared>) -> Result<(), Fault> {
    let wire = begin(shared).await?;
    tokio::spawn(stay(shared.clone(), wire));
    Ok(())
}

/// Begins to listen.
async fn begin(shared: &Arc<Shared>) -> Result<JoinHandle<()>, Fault> {
    let hosts = &shared.line.hosts;
    let fault = |error: tokio_postgres::Error| Fault::unreached(LISTENING, hosts.names(), &error);
    let connecting = async {
        let (client, wire) = hosts.connect().await?;
        let wire = tokio::spawn(hear(shared.clone(), wire));
        let channel = shared.database.schema().quoted();
        client.batch_execute(&format!("LISTEN {channel}")).await?;
        Ok((client, wire))
    };
    let connected = tokio::time::timeout(TIMEOUT.max(shared.database.patience()), connecting).await;
    let (client, wire) = connected.map_err(|_| Fault::timed_out(LISTENING, "it took too long"))?.map_err(fault)?;
    shared.line.set(Some(Arc::new(client)));
    shared.measure().await?;
    Ok(wire)
}

/// Listens until the connection is lost, and begins anew.
async fn stay(shared: Arc<Shared>, mut wire: JoinHandle<()>) {
    loop {
        tokio::select! {
            _ = &mut wire => {}
            fault = check(&shared) => tracing::warn!(target: "punctual", error = %fault.told, "the line is given up"),
        }
        wire.abort();
        shared.line.set(None);
        let (mut rest, mut said) = (REST.0, None);
        wire = loop {
            match begin(&shared).await {
                Ok(wire) => break wire,
                // Said once, and not every second for as long as there is no server.
                Err(fault) if said.as_ref() == Some(&fault.told) => {
                    tracing::debug!(target: "punctual", error = %fault.told, "still cannot listen");
                }
                Err(fault) => {
                    tracing::warn!(target: "punctual", error = %fault.told, "cannot listen");
                    said = Some(fault.told);
                }
            }
            // Not all processes at one instant.
            tokio::time::sleep(rest.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            rest = (rest * 2).min(REST.1);
        };
        tracing::info!(target: "punctual", "listens again");
        shared.missed_something();
    }
}

/// Ends when nobody answers, or nobody who matters.
async fn check(shared: &Shared) -> Fault {
    let mut checks: usize = 0;
    loop {
        tokio::time::sleep(CHECK).await;
        let look = async {
            shared.measure().await?;
            shared.line.is_left().await
        };
        match look.await {
            Ok(false) => {}
            Ok(true) => return Fault::timed_out(LISTENING, "the server takes no writes any more"),
            Err(fault) => return fault,
        }
        if checks.is_multiple_of(CHECKS_A_MINUTE) {
            shared.clock.warn_if_off();
            if let Err(fault) = shared.warn_of_snapshot().await {
                tracing::debug!(target: "punctual", error = %fault.told, "who holds up vacuum is not known");
            }
        }
        checks = checks.wrapping_add(1);
    }
}

/// Hears what the server says, until the connection ends.
async fn hear(shared: Arc<Shared>, mut wire: Wire) {
    while let Some(message) = poll_fn(|cx| wire.poll_message(cx)).await {
        match message {
            Ok(AsyncMessage::Notification(said)) => {
                if let Some((told, who)) = Told::parse(said.payload())
                    && who != Some(shared.who)
                {
                    shared.hear(told);
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(target: "punctual", %error, "the connection that listens was lost");
                return;
            }
        }
    }
}

/// What processes tell each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// There may be work, at an instant or at once.
    Work(Option<Timestamp>),
    /// These jobs have ended, for which somebody waits.
    Ended(Vec<JobId>),
    /// More have than fit.
    Look,
    /// A node should stop a job.
    Stop(NodeId, JobId, u64),
}

impl Told {
    /// Reads a payload, and who sent it if that was said; `None` if it is of a version that knows more words.
    fn parse(payload: &str) -> Option<(Self, Option<u64>)> {
        let (payload, who) = match payload.split_once(';') {
            Some((payload, who)) => (payload, Some(u64::from_str_radix(who, 16).ok()?)),
            None => (payload, None),
        };
        let told = match payload.split_at_checked(1)? {
            ("w", "") => Self::Work(None),
            ("w", due) => Self::Work(Some(Timestamp::from_micros(due.parse().ok()?))),
            ("e", ids) => Self::Ended(ids.split(',').map(|id| id.parse().ok()).collect::<Option<_>>()?),
            ("E", "") => Self::Look,
            ("s", run) => {
                let (node, run) = run.split_once(':')?;
                let (job, fence) = run.split_once(':')?;
                Self::Stop(node_id(node.parse().ok()?), job.parse().ok()?, fence.parse().ok()?)
            }
            _ => return None,
        };
        Some((told, who))
    }
}

/// What to say if there may be work: when, and who says so, because that one knows already.
pub(super) fn work_payload(due: Option<Timestamp>, who: u64) -> String {
    due.map_or_else(|| format!("w;{who:x}"), |due| format!("w{};{who:x}", due.micros()))
}

/// How to say it.
pub(super) async fn say_work(shared: &Shared, due: Option<Timestamp>) -> Result<(), Fault> {
    let (channel, payload) = (shared.database.schema().plain(), work_payload(due, shared.who));
    let parameters: [Parameter<'_>; 2] = [(&channel, Type::TEXT), (&payload, Type::TEXT)];
    shared.line.hint("tell others of work", "pg_notify($1, $2)", &parameters).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    #[test]
    fn what_others_say_is_understood() {
        let id: JobId = ID.parse().unwrap();
        let due = Timestamp::from_micros(1_700_000_000_000_000);
        let plain = |told| Some((told, None));
        assert_eq!(Told::parse("w"), plain(Told::Work(None)));
        assert_eq!(Told::parse("w1700000000000000"), plain(Told::Work(Some(due))));
        assert_eq!(Told::parse("w-5"), plain(Told::Work(Some(Timestamp::from_micros(-5)))));
        assert_eq!(Told::parse(&format!("e{ID},{ID}")), plain(Told::Ended(vec![id, id])));
        assert_eq!(Told::parse("E"), plain(Told::Look));
        let node = NodeId::from_u64(u64::MAX - 4);
        assert_eq!(Told::parse(&format!("s-5:{ID}:3")), plain(Told::Stop(node, id, 3)));
    }

    #[test]
    fn what_is_said_of_work_is_understood_with_who_said_it() {
        let due = Some(Timestamp::from_micros(7));
        assert_eq!(Told::parse(&work_payload(due, 255)), Some((Told::Work(due), Some(255))));
        assert_eq!(Told::parse(&work_payload(None, u64::MAX)), Some((Told::Work(None), Some(u64::MAX))));
    }

    #[test]
    fn what_a_newer_version_says_is_let_pass() {
        for payload in ["", "x", "wx", "e", "e1,2", "Enough", "s1", "s1:2", "s1:x:3", "é", "w;", "w;zz"] {
            assert_eq!(Told::parse(payload), None, "{payload:?}");
        }
    }
}
