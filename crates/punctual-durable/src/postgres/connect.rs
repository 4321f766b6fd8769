//! Connections: those that operations share, and how one is made.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod,
    Runtime,
};
use tokio::time::error::Elapsed;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::direct::is_direct;
use super::error::{Fault, Kind};
use super::hosts::Hosts;
use super::options::Address;
use super::rows::Parameter;
use super::schema::SchemaName;
use crate::error::StoreError;

/// How often to do again what was rolled back for the sake of somebody else.
const AGAIN_MAX: usize = 5;

/// So many connections, or half of all if that is less, are the node's. However much callers ask for at a time, it must
/// beat, and finish what it runs; and a connection is slow in everything that it does for the first time, so it should
/// not be asked for everything.
const OF_NODE: usize = 5;

/// How often to do again, on another connection, what can be done twice.
const ELSEWHERE_MAX: usize = 2;

/// How long a node waits for an answer before it asks again, unless it has found that to be too short: a connection
/// that was lost without a word must not hold its work up for as long as a caller may be ready to wait.
const PATIENCE: Duration = Duration::from_secs(3);

/// So many round trips it waits at the least: a connection is made by five, and its first answer takes two more.
const ROUND_TRIPS: u32 = 8;

/// How many connections of a node, and of callers, are made and made ready before it begins. Of callers others are,
/// when more is asked for at a time. Those of a node are all it can have: a heartbeat that comes when it claims,
/// finishes and tends must not wait until another is made, which takes six times as long.
const READY: [usize; 2] = [OF_NODE, 2];

const NO_CONNECTION: &str = "no connection was to be had in time";

/// A function of the schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function {
    pub(super) name: &'static str,
    /// What it does, for errors: "cannot .."
    pub(super) what: &'static str,
    /// It is the node's, which does not wait for callers.
    is_of_node: bool,
    /// Doing it twice is doing it once, so a lost connection need not be an error.
    is_repeatable: bool,
}

impl Function {
    pub(super) const fn new(name: &'static str, what: &'static str) -> Self {
        Self { name, what, is_of_node: false, is_repeatable: false }
    }

    pub(super) const fn of_node(self) -> Self {
        Self { is_of_node: true, ..self }
    }

    pub(super) const fn repeatable(self) -> Self {
        Self { is_repeatable: true, ..self }
    }
}

/// The database, by connections that are shared.
pub(super) struct Database {
    callers: Pool,
    node: Pool,
    hosts: Hosts,
    schema: SchemaName,
    timeout: Duration,
    /// How long the network takes for an answer, in microseconds, as it was last measured.
    round_trip: AtomicU64,
    /// What a node asked for that took longer than it waited, and how long it waits now.
    slow: Mutex<HashMap<&'static str, Duration>>,
    /// Every connection so far goes to the server itself, so statements can be prepared.
    can_prepare: Arc<AtomicBool>,
}

impl Database {
    pub(super) fn new(
        address: &Address,
        schema: SchemaName,
        pool_size: usize,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let hosts = Hosts::new(address)?;
        let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let can_prepare = Arc::new(AtomicBool::new(true));
        let pool = |size| {
            Pool::builder(Manager::from_connect(address.config.clone(), hosts.clone(), config.clone()))
                .max_size(size)
                .post_create(look_where_it_goes(can_prepare.clone(), timeout))
                // The one that was used last: its process is at hand, and it knows the functions already.
                .queue_mode(QueueMode::Lifo)
                .wait_timeout(Some(timeout))
                .create_timeout(Some(timeout))
                .runtime(Runtime::Tokio1)
                .build()
                .map_err(|error| StoreError::permanent(format!("cannot make connections: {error}")))
        };
        let of_node = OF_NODE.min(pool_size / 2);
        let callers = pool(pool_size - of_node)?;
        let node = if of_node == 0 { callers.clone() } else { pool(of_node)? };
        Ok(Self {
            callers,
            node,
            hosts,
            schema,
            timeout,
            round_trip: AtomicU64::new(0),
            slow: Mutex::default(),
            can_prepare,
        })
    }

    pub(super) fn schema(&self) -> &SchemaName {
        &self.schema
    }

    /// How long to wait for an answer.
    pub(super) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Something short was answered after this time. A connection that is lost must be noticed within the lease,
    /// however slow they all are.
    pub(super) fn measured(&self, round_trip: Duration, lease: Duration) {
        let micros = round_trip.min(lease / ROUND_TRIPS).as_micros();
        // Relaxed: whoever waits a moment too short or too long because of this asks again.
        self.round_trip.store(u64::try_from(micros).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long to wait for what is done at once, over the network as it is.
    pub(super) fn patience(&self) -> Duration {
        PATIENCE.max(Duration::from_micros(self.round_trip.load(Ordering::Relaxed)) * ROUND_TRIPS)
    }

    /// Whether statements are prepared.
    pub(super) fn can_prepare(&self) -> bool {
        // Relaxed: nothing else depends on it. A connection that changed it did so before anybody had it.
        self.can_prepare.load(Ordering::Relaxed)
    }

    /// A connection, for a caller who says what it is for.
    pub(super) async fn client(&self, what: &str) -> Result<Object, Fault> {
        self.connection(&self.callers, what).await
    }

    async fn connection(&self, pool: &Pool, what: &str) -> Result<Object, Fault> {
        pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
                Fault::unreached(what, self.hosts.names(), &error)
            }
            PoolError::Timeout(_) => Fault::timed_out(what, NO_CONNECTION),
            other => Fault::timed_out(what, other),
        })
    }

    /// Calls a function. Its row is `r` in what is selected of it.
    pub(super) async fn call(
        &self,
        function: Function,
        select: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Fault> {
        let sql = self.sql(function, select, parameters.len());
        self.call_by(function, &sql, parameters).await
    }

    /// Calls a function that waits for nobody's lock longer than this.
    pub(super) async fn call_hurried(
        &self,
        function: Function,
        parameters: &[Parameter<'_>],
        lock_wait: Duration,
    ) -> Result<Vec<Row>, Fault> {
        let sql = self.hurried_sql(function, parameters.len());
        let lock_wait = lock_timeout(lock_wait);
        let limit: Parameter<'_> = (&lock_wait, Type::TEXT);
        self.call_by(function, &sql, &[parameters, &[limit]].concat()).await
    }

    async fn call_by(&self, function: Function, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Fault> {
        let what = function.what;
        let mut tries = Tries::new(self, function);
        loop {
            let client = tries.client().await?;
            let answer = async { self.ask(&client, sql, parameters).await.map_err(|error| Fault::new(what, &error)) };
            let answer = tokio::time::timeout(tries.patience(), answer).await;
            if let Some(done) = tries.judge(client, answer) {
                return done;
            }
        }
    }

    /// Calls a function once on each of several connections, of the node and of callers.
    pub(super) async fn call_on_several(&self, function: Function, parameters: &[Parameter<'_>]) -> Result<(), Fault> {
        let sql = self.sql(function, "*", parameters.len());
        for (pool, count) in [&self.node, &self.callers].into_iter().zip(READY) {
            // All are held until the last is there, so that none is taken twice.
            let mut clients = Vec::new();
            for _ in 0..count.min(pool.status().max_size) {
                let client = self.connection(pool, function.what).await?;
                let answer = tokio::time::timeout(self.timeout, self.ask(&client, &sql, parameters)).await;
                let answer = answer.map_err(|_| Fault::timed_out(function.what, "the database did not answer"))?;
                answer.map_err(|error| Fault::new(function.what, &error))?;
                clients.push(client);
            }
        }
        Ok(())
    }

    /// Nobody has answered for so long: connections that nobody has used since may be lost as well, and are not used
    /// again.
    pub(super) fn doubt(&self, silence: Duration) {
        self.keep(|unused_for| unused_for < silence);
    }

    /// Keeps those idle connections for which this is true, by how long they were not used.
    fn keep(&self, is_good: impl Fn(Duration) -> bool) {
        for pool in [&self.callers, &self.node] {
            pool.retain(|_, metrics| is_good(metrics.last_used()));
        }
    }

    fn slow(&self) -> MutexGuard<'_, HashMap<&'static str, Duration>> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks by a statement that the connection has prepared, if it can: the server need not read and plan it each time.
    async fn ask(&self, client: &ClientWrapper, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        if !self.can_prepare() {
            return client.query_typed(sql, parameters).await;
        }
        let (values, types): (Vec<&(dyn ToSql + Sync)>, Vec<Type>) = parameters.iter().cloned().unzip();
        let statement = client.prepare_typed_cached(sql, &types).await?;
        client.query(&statement, &values).await
    }

    /// The text of a question to a function.
    pub(super) fn sql(&self, function: Function, select: &str, parameters: usize) -> String {
        format!("SELECT {select} FROM {} AS r", self.call_text(function, parameters))
    }

    /// The text of a question to a function for whose transaction the parameter after its own limits how long to wait
    /// for a lock. Arguments are worked out before a function begins; anything else in the statement may come later.
    pub(super) fn hurried_sql(&self, function: Function, parameters: usize) -> String {
        let (own, limit) = (self.call_text(function, parameters), parameters + 1);
        let last = format!("${parameters})");
        let hurried =
            format!("CASE WHEN set_config('lock_timeout', ${limit}, true) IS NOT NULL THEN ${parameters} END)");
        format!("SELECT * FROM {} AS r", own.replace(&last, &hurried))
    }

    /// The text of a call.
    pub(super) fn call_text(&self, function: Function, parameters: usize) -> String {
        let numbers: Vec<String> = (1..=parameters).map(|number| format!("${number}")).collect();
        format!("{}.{}({})", self.schema.quoted(), function.name, numbers.join(", "))
    }
}

/// A limit to how long is waited for a lock, as PostgreSQL writes it.
pub(super) fn lock_timeout(lock_wait: Duration) -> String {
    format!("{}ms", lock_wait.as_millis())
}

/// Looks at each new connection before it is used.
fn look_where_it_goes(can_prepare: Arc<AtomicBool>, timeout: Duration) -> Hook {
    Hook::async_fn(move |client, _| {
        let can_prepare = can_prepare.clone();
        Box::pin(async move {
            let looked = tokio::time::timeout(timeout, look(client)).await;
            let is_direct = looked.map_err(|_| HookError::message("a new connection did not answer in time"))?;
            if !is_direct.map_err(HookError::Backend)? {
                can_prepare.store(false, Ordering::Relaxed);
            }
            Ok(())
        })
    })
}

/// Whether it goes to the server itself. If so, each statement sees from then on what was committed before it, whatever
/// transactions are here by default. (A pooler would give that setting to others.)
async fn look(client: &ClientWrapper) -> Result<bool, Error> {
    const ASK: &str = "SELECT current_setting('default_transaction_isolation')";
    const SET: &str = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED";
    let (is_direct, isolation) = tokio::try_join!(is_direct(client), client.query_typed_one(ASK, &[]))?;
    if is_direct && isolation.try_get::<_, &str>(0)? != "read committed" {
        client.batch_execute(SET).await?;
    }
    Ok(is_direct)
}

/// Something that is one transaction: done again if it was rolled back for the sake of somebody else, or if the
/// connection was lost and it does not matter whether it was done.
pub(super) struct Tries<'a> {
    database: &'a Database,
    function: Function,
    patience: Duration,
    again: usize,
    elsewhere: usize,
    /// The last try may have been by a statement that was prepared.
    was_prepared: bool,
    /// Whether it has been asked again because something had changed.
    has_changed: bool,
}

impl<'a> Tries<'a> {
    pub(super) fn new(database: &'a Database, function: Function) -> Self {
        let elsewhere = if function.is_repeatable { ELSEWHERE_MAX } else { 0 };
        let patience = if function.is_of_node {
            let slow = database.slow().get(function.name).copied().unwrap_or_default();
            slow.max(database.patience()).min(database.timeout)
        } else {
            database.timeout
        };
        Self { database, function, patience, again: AGAIN_MAX, elsewhere, was_prepared: false, has_changed: false }
    }

    /// How long to wait for the answer.
    pub(super) const fn patience(&self) -> Duration {
        self.patience
    }

    /// A connection for the next try.
    pub(super) async fn client(&mut self) -> Result<Object, Fault> {
        self.was_prepared = self.database.can_prepare();
        let what = self.function.what;
        let pool = if self.function.is_of_node { &self.database.node } else { &self.database.callers };
        let client = tokio::time::timeout(self.patience, self.database.connection(pool, what)).await;
        client.unwrap_or_else(|_| {
            self.be_patient();
            Err(Fault::timed_out(what, NO_CONNECTION))
        })
    }

    /// What came of one try, and whether its connection can be used again; `None` if there is to be another.
    pub(super) fn judge<T>(
        &mut self,
        client: Object,
        answer: Result<Result<T, Fault>, Elapsed>,
    ) -> Option<Result<T, Fault>> {
        let fault = match answer {
            Ok(Ok(done)) => {
                self.database.slow().remove(self.function.name);
                return Some(Ok(done));
            }
            Ok(Err(fault)) => fault,
            Err(_) => return Some(Err(self.give_up(client))),
        };
        match fault.kind {
            Kind::Again if self.again > 0 => {
                self.again -= 1;
                return None;
            }
            // Others may have found the same at this moment. Each asks once more: the next try is not prepared.
            Kind::Unprepared if self.was_prepared => {
                if self.database.can_prepare.swap(false, Ordering::Relaxed) {
                    tracing::debug!(target: "punctual", error = %fault.told, "statements are no longer prepared");
                }
                return None;
            }
            Kind::Changed if !self.has_changed => {
                self.has_changed = true;
                return None;
            }
            Kind::Again | Kind::Changed | Kind::Unprepared | Kind::Data | Kind::Held | Kind::Denied | Kind::Other => {}
            Kind::Lost => {
                drop(Object::take(client));
                if self.elsewhere > 0 && fault.told.is_transient() {
                    self.elsewhere -= 1;
                    return None;
                }
            }
            Kind::ReadOnly => {
                drop(Object::take(client));
                // The others are to the same server, which takes no writes any more.
                self.database.keep(|_| false);
            }
        }
        Some(Err(fault))
    }

    fn give_up(&self, client: Object) -> Fault {
        let (cancel, tls) = (client.cancel_token(), self.database.hosts.tls().clone());
        drop(Object::take(client));
        self.database.doubt(self.patience);
        self.be_patient();
        // If that is not heard either, the server ends it when it finds the connection closed.
        tokio::spawn(tokio::time::timeout(PATIENCE, async move { cancel.cancel_query(tls).await }));
        let (what, patience) = (self.function.what, self.patience);
        Fault::timed_out(what, format!("the database did not answer within {patience:?}"))
    }

    /// If the database is slow, and nothing was lost, the next ones have more time: or they would be begun again and
    /// again, and never be done.
    fn be_patient(&self) {
        if self.function.is_of_node {
            self.database.slow().insert(self.function.name, self.patience * 2);
        }
    }
}
