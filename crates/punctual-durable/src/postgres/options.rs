//! How to open a store: its URL, and what can be said besides.

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use punctual::Clock;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::PostgresStore;
use super::schema::{Edition, SchemaName};
use super::tls::{Roots, Trust};
use crate::error::StoreError;

/// How to open a [`PostgresStore`].
///
/// # The URL
/// `postgres://user:password@host1:5432,host2/database?name=value&..`, as libpq knows it. Of several hosts the one that
/// takes writes is used, wherever it stands and whatever the others do, and when it stops doing so, the one that does.
/// Besides the names of the PostgreSQL driver (`application_name`, `connect_timeout`, `keepalives_idle`, `options`,
/// `target_session_attrs` ..) it may have those of this store, each of which is also a method here: `schema`,
/// `listen_url`, `lease`, `timeout` and `foresight` (`10s`, `1500ms`), `pool_size`.
///
/// `sslmode` means what it means to libpq: `disable`, `prefer` (the default: encrypted if the server can), `require`
/// (encrypted, whoever the server is), `verify-ca` (and vouched for) and `verify-full` (and of that name, which must be
/// among the certificate's alternative names). `sslrootcert` is a file of authorities, one of which must then have
/// vouched for the server in any of these modes; or `system` for those that the operating system trusts, which goes
/// with `verify-full` alone, and is what that has without it.
///
/// # Poolers
/// A pooler such as PgBouncer may stand in between, also one that gives out connections by the transaction: nothing is
/// prepared and nothing set in a session. Notifications need a session, though, so give the server's own address as
/// `listen_url`; without it what others do is noticed by looking, once a second, and not at once.
///
/// # Example
/// ```no_run
/// # pollster::block_on(async {
/// use punctual_durable::PostgresOptions;
/// use std::time::Duration;
/// let store = PostgresOptions::new().schema("jobs").lease(Duration::from_secs(5)).open("postgres://db1,db2/app").await?;
/// # Ok::<(), punctual_durable::StoreError>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing is opened until `open`"]
pub struct PostgresOptions {
    pub(super) clock: Clock,
    pub(super) schema: Option<String>,
    pub(super) listen_url: Option<String>,
    pub(super) lease: Duration,
    pub(super) timeout: Duration,
    pub(super) pool_size: usize,
    pub(super) foresight: Option<Duration>,
}

/// More than this and a node would hold for long what another could have run.
const FORESIGHT_MAX: Duration = Duration::from_secs(1);

/// Ten times what a claim usually takes.
const FORESIGHT: Duration = Duration::from_millis(20);

/// A lease that is shorter could be lost to a slow moment of the network.
const LEASE_MIN: Duration = Duration::from_secs(2);

/// With a longer one, what a node ran that died would as good as never run again.
const LEASE_MAX: Duration = Duration::from_secs(86_400);

/// In less not even a connection is made.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// A node uses five, and of callers only those who ask at the same moment; few servers give as many as this in all.
/// Room for each is set aside when the store is opened, so a number with some zeros too many would end the process
/// there.
const POOL_SIZE_MAX: usize = 1_000;

impl PostgresOptions {
    /// The settings that a URL without parameters has.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::PostgresOptions::new();
    /// # drop(options);
    /// ```
    pub fn new() -> Self {
        Self {
            clock: Clock::system(),
            schema: None,
            listen_url: None,
            lease: Duration::from_secs(10),
            timeout: Duration::from_secs(30),
            pool_size: 10,
            foresight: None,
        }
    }

    /// A virtual clock gives the store its time, for tests. Otherwise the database does.
    ///
    /// # Example
    /// ```
    /// let clock = punctual::VirtualClock::new();
    /// let options = punctual_durable::PostgresOptions::new().clock(&clock);
    /// # drop(options);
    /// ```
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// The schema that the store's tables are in, which is made if there is none: `punctual` by default. Several stores
    /// can be in one database.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::PostgresOptions::new().schema("jobs");
    /// # drop(options);
    /// ```
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = Some(name.into());
        self
    }

    /// Where to listen for notifications, if there is a pooler at the store's own address.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::PostgresOptions::new().listen_url("postgres://db1,db2/app");
    /// # drop(options);
    /// ```
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// How long a node that is not heard of is taken to be alive; 10 s by default, at least 2 s and at most a day. The
    /// jobs of one that died run again after that.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let options = punctual_durable::PostgresOptions::new().lease(Duration::from_secs(2));
    /// # drop(options);
    /// ```
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(LEASE_MIN, LEASE_MAX);
        self
    }

    /// How long to wait for the database's answer; 30 s by default, and with less than 100 ms nothing is opened. What
    /// takes longer is cancelled, and an error that [is transient](StoreError::is_transient). It is this process that
    /// watches, so it holds behind a pooler too.
    ///
    /// What a node asks for, to claim and to finish jobs and to keep its lease, is asked again after 3 s, or eight
    /// round trips of the network if those take longer, then twice that, and so on up to this: so a connection that was
    /// lost without a word does not hold its work up, and a slow database has its time.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let options = punctual_durable::PostgresOptions::new().timeout(Duration::from_secs(5));
    /// # drop(options);
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many connections at most, besides the one that listens; 10 by default, and with more than 1000 nothing is
    /// opened.
    ///
    /// # Example
    /// ```
    /// let options = punctual_durable::PostgresOptions::new().pool_size(4);
    /// # drop(options);
    /// ```
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections.max(1);
        self
    }

    /// How long before its due instant a job may be given to a node, which starts it at that instant: 20 ms by default,
    /// at most a second. So delayed jobs start within a fraction of a millisecond, and several go with one claim. Zero
    /// turns it off, which is the default with a [virtual clock](Self::clock).
    ///
    /// Only tenants without a limit or a rate are looked ahead for, and half of a node's workers stay free for what is
    /// ready. From then on such a job counts as running: cancelling it stops it before it starts, if word of that comes
    /// in time.
    ///
    /// # Example
    /// ```
    /// use std::time::Duration;
    /// let options = punctual_durable::PostgresOptions::new().foresight(Duration::ZERO);
    /// # drop(options);
    /// ```
    pub fn foresight(mut self, foresight: Duration) -> Self {
        self.foresight = Some(foresight.min(FORESIGHT_MAX));
        self
    }

    /// Opens the store, and makes its tables if there are none. What the URL says counts before what was said here.
    ///
    /// # Errors
    /// If the URL has a mistake, which is permanent; if the database cannot be reached, or refuses.
    ///
    /// # Example
    /// ```
    /// # pollster::block_on(async {
    /// use punctual_durable::PostgresOptions;
    /// let error = PostgresOptions::new().open("postgres://localhost/app?shema=jobs").await.unwrap_err();
    /// assert!(error.to_string().contains("\"shema\""));
    /// # });
    /// ```
    pub async fn open(self, url: &str) -> Result<PostgresStore, StoreError> {
        PostgresStore::start(Settings::new(self, url)?).await
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clock: _, schema, listen_url, lease, timeout, pool_size, foresight } = self;
        f.debug_struct("PostgresOptions")
            .field("schema", schema)
            // It may have a password.
            .field("has_listen_url", &listen_url.is_some())
            .field("lease", lease)
            .field("timeout", timeout)
            .field("pool_size", pool_size)
            .field("foresight", foresight)
            .finish_non_exhaustive()
    }
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// What was asked for, understood.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) clock: Clock,
    pub(super) schema: SchemaName,
    pub(super) server: Address,
    /// Where to listen.
    pub(super) direct: Address,
    pub(super) lease: Duration,
    pub(super) timeout: Duration,
    pub(super) pool_size: usize,
    pub(super) foresight: Duration,
    /// What to bring the schema up to.
    pub(super) edition: Edition,
}

/// A server, and whom to believe that it is the one.
#[derive(Debug, Clone)]
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) trust: Trust,
}

impl Address {
    /// Where it is, for people.
    pub(super) fn hosts(&self) -> String {
        let (config, ports) = (&self.config, self.config.get_ports());
        let names = config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(folder) => folder.display().to_string(),
        });
        let mut names: Vec<String> = names.collect();
        if names.is_empty() {
            names.extend(config.get_hostaddrs().iter().map(ToString::to_string));
        }
        let port = |number: usize| ports.get(number).or(ports.first()).copied().unwrap_or(5432);
        let names = names.iter().enumerate().map(|(number, name)| format!("{name}:{}", port(number)));
        names.collect::<Vec<_>>().join(", ")
    }
}

impl Settings {
    pub(super) fn new(mut options: PostgresOptions, url: &str) -> Result<Self, StoreError> {
        let parsed = Url::parse(url)?;
        for (name, value) in &parsed.ours {
            match name.as_str() {
                "schema" => options = options.schema(value),
                "listen_url" => options = options.listen_url(value),
                "lease" => options = options.lease(time(name, value)?),
                "timeout" => options = options.timeout(time(name, value)?),
                "foresight" => options = options.foresight(time(name, value)?),
                _ => {
                    let size = value.parse().ok().filter(|&size: &usize| size > 0);
                    let bad =
                        || bad(format!("pool_size is {value:?} (a number from 1 to {POOL_SIZE_MAX} is expected)"));
                    options = options.pool_size(size.ok_or_else(bad)?);
                }
            }
        }
        if options.timeout < TIMEOUT_MIN {
            let timeout = options.timeout;
            let why =
                format!("the time-out of the PostgreSQL store is {timeout:?} (at least {TIMEOUT_MIN:?} is expected)");
            return Err(StoreError::permanent(why));
        }
        if options.pool_size > POOL_SIZE_MAX {
            let size = options.pool_size;
            let why = format!("the pool_size of the PostgreSQL store is {size} (at most {POOL_SIZE_MAX} is expected)");
            return Err(StoreError::permanent(why));
        }
        let server = parsed.address()?;
        let direct = match &options.listen_url {
            Some(url) => {
                let direct = Url::parse(url).and_then(Url::plain).and_then(|url| url.address());
                direct.map_err(|error| StoreError::permanent(format!("the listen_url: {error}")))?
            }
            None => server.clone(),
        };
        let foresight = if options.clock.is_virtual() { Duration::ZERO } else { FORESIGHT };
        Ok(Self {
            clock: options.clock,
            schema: SchemaName::new(options.schema.as_deref().unwrap_or("punctual"))?,
            server,
            direct,
            lease: options.lease,
            timeout: options.timeout,
            pool_size: options.pool_size,
            foresight: options.foresight.unwrap_or(foresight),
            edition: Edition::OURS,
        })
    }
}

/// A URL taken apart.
struct Url<'a> {
    /// Everything before the parameters.
    head: &'a str,
    /// Parameters of the driver, as they stand.
    theirs: Vec<&'a str>,
    /// Parameters of this store, decoded.
    ours: Vec<(String, String)>,
    ssl_mode: Option<String>,
    ssl_root_cert: Option<String>,
}

/// The parameters of this store.
const OURS: [&str; 6] = ["schema", "listen_url", "lease", "timeout", "pool_size", "foresight"];

/// Those of the driver that it knows in a URL.
const THEIRS: [&str; 18] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
];

impl<'a> Url<'a> {
    fn parse(url: &'a str) -> Result<Self, StoreError> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(bad("it does not begin with postgres://"));
        }
        let (head, parameters) = split(url);
        let mut parsed = Self { head, theirs: Vec::new(), ours: Vec::new(), ssl_mode: None, ssl_root_cert: None };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let decoded = || {
                let text = percent_decode_str(value).decode_utf8();
                text.map(String::from).map_err(|_| bad(format!("{name} is not text in UTF-8")))
            };
            match name {
                "sslmode" => parsed.ssl_mode = Some(decoded()?),
                "sslrootcert" => parsed.ssl_root_cert = Some(decoded()?),
                _ if OURS.contains(&name) => parsed.ours.push((name.to_owned(), decoded()?)),
                _ if THEIRS.contains(&name) => parsed.theirs.push(parameter),
                _ if is_word(name) && !parameters.contains('@') => {
                    let ours = OURS.join(", ");
                    return Err(bad(format!(
                        "there is no parameter {name:?} ({ours}, sslmode, sslrootcert or one of the driver's is expected)"
                    )));
                }
                // Perhaps no parameter at all, but the rest of a password.
                _ => return Err(bad("there is no such parameter, or an @ that is not written as %40, or a / as %2F")),
            }
        }
        Ok(parsed)
    }

    /// One that says nothing of this store.
    fn plain(self) -> Result<Self, StoreError> {
        match self.ours.first() {
            None => Ok(self),
            Some((name, _)) => Err(bad(format!("the listen_url has the parameter {name:?}, which is for the other"))),
        }
    }

    fn address(&self) -> Result<Address, StoreError> {
        let (ssl_mode, trust) = self.trust()?;
        // The driver takes everything before the first @ for a user.
        let text = format!("{}?{}", self.head, self.theirs.join("&").replace('@', "%40"));
        let mut config: Config = text.parse().map_err(|error: tokio_postgres::Error| {
            let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            bad(cause)
        })?;
        if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if name.contains('@'))) {
            return Err(bad("it has an @ too many (in a user or a password it is written as %40)"));
        }
        // To libpq it means nothing there, and no server encrypts what does not leave the machine.
        let is_far = config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(_)));
        let is_near = !is_far && config.get_hostaddrs().is_empty();
        config.ssl_mode(if is_near { SslMode::Disable } else { ssl_mode });
        if !self.says("target_session_attrs") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if !self.says("connect_timeout") {
            config.connect_timeout(Duration::from_secs(5));
        }
        // A server that vanishes without a word is noticed within some five seconds, whether something was on its way
        // to it or from it; one that is slow is not taken for one that is gone.
        if !self.says("keepalives_idle") {
            config.keepalives_idle(Duration::from_secs(2));
        }
        if !self.says("keepalives_interval") {
            config.keepalives_interval(Duration::from_secs(1));
        }
        if !self.says("keepalives_retries") {
            config.keepalives_retries(3);
        }
        if !self.says("tcp_user_timeout") {
            config.tcp_user_timeout(Duration::from_secs(5));
        }
        if !self.says("application_name") {
            config.application_name("punctual");
        }
        Ok(Address { config, trust })
    }

    fn trust(&self) -> Result<(SslMode, Trust), StoreError> {
        let file = || self.ssl_root_cert.as_ref().map(|file| Roots::File(file.into()));
        let is_system = self.ssl_root_cert.as_deref() == Some("system");
        Ok(match self.ssl_mode.as_deref() {
            Some("verify-full") | None if is_system => (SslMode::Require, Trust::Named(Roots::System)),
            // Those authorities vouch for anybody, under his own name.
            Some(mode) if is_system => {
                return Err(bad(format!("sslmode is {mode:?} (with sslrootcert=system verify-full is expected)")));
            }
            Some("disable") => (SslMode::Disable, Trust::Anybody),
            None | Some("prefer") => (SslMode::Prefer, file().map_or(Trust::Anybody, Trust::Vouched)),
            Some("require") => (SslMode::Require, file().map_or(Trust::Anybody, Trust::Vouched)),
            Some("verify-ca") => {
                let none = || bad("sslmode is \"verify-ca\" and there is no sslrootcert (a file is expected)");
                (SslMode::Require, Trust::Vouched(file().ok_or_else(none)?))
            }
            Some("verify-full") => (SslMode::Require, Trust::Named(file().unwrap_or(Roots::System))),
            Some(other) => {
                let modes = "disable, prefer, require, verify-ca or verify-full";
                return Err(bad(format!("sslmode is {other:?} ({modes} is expected)")));
            }
        })
    }

    fn says(&self, name: &str) -> bool {
        self.theirs.iter().any(|parameter| parameter.split('=').next() == Some(name))
    }
}

/// Whether it could be the name of a parameter.
fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.')
}

/// What comes before the parameters, and they. A password may have a question mark, as to libpq.
fn split(url: &str) -> (&str, &str) {
    let start = url.find("://").map_or(0, |scheme| scheme + 3);
    let from = url[start..].find(['@', '/']).map_or(start, |end| start + end);
    let from = if url[from..].starts_with('@') { from } else { start };
    url[from..].find('?').map_or((url, ""), |mark| (&url[..from + mark], &url[from + mark + 1..]))
}

/// `10s`, `1500ms`, or seconds.
fn time(name: &str, text: &str) -> Result<Duration, StoreError> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let number: Option<u64> = number.parse().ok();
    match (number, unit) {
        (Some(number), "ms") => Ok(Duration::from_millis(number)),
        (Some(number), "s" | "") => Ok(Duration::from_secs(number)),
        _ => Err(bad(format!("{name} is {text:?} (a time such as 10s or 1500ms is expected)"))),
    }
}

fn bad(why: impl fmt::Display) -> StoreError {
    StoreError::permanent(format!("the URL of the PostgreSQL store is wrong: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Settings {
        Settings::new(PostgresOptions::new(), url).unwrap()
    }

    fn mistake(url: &str) -> String {
        let error = Settings::new(PostgresOptions::new(), url).unwrap_err();
        assert!(!error.is_transient(), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
        error.to_string()
    }

    #[test]
    fn a_plain_url_has_the_defaults() {
        let Settings { schema, server, lease, pool_size, .. } = settings("postgres://ann:secret@db/app");
        assert_eq!((schema.quoted(), lease, pool_size), ("\"punctual\"", Duration::from_secs(10), 10));
        assert_eq!(server.config.get_hosts(), [Host::Tcp("db".into())]);
        assert_eq!((server.config.get_user(), server.config.get_dbname()), (Some("ann"), Some("app")));
        assert_eq!(server.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!((server.config.get_ssl_mode(), server.trust), (SslMode::Prefer, Trust::Anybody));
        assert_eq!(server.config.get_application_name(), Some("punctual"));
        assert_eq!(server.config.get_tcp_user_timeout(), Some(&Duration::from_secs(5)));
    }

    #[test]
    fn the_url_has_our_parameters_and_those_of_the_driver() {
        let url = "postgresql://a@h1:1,h2:2/app?schema=jobs&lease=2500ms&pool_size=3&timeout=7&application_name=mine\
                   &connect_timeout=9&tcp_user_timeout=8&listen_url=postgres%3A%2F%2Fdirect%2Fapp%3Fsslmode%3Ddisable";
        let Settings { schema, server, direct, lease, timeout, pool_size, .. } = settings(url);
        assert_eq!((schema.quoted(), pool_size), ("\"jobs\"", 3));
        assert_eq!((lease, timeout), (Duration::from_millis(2_500), Duration::from_secs(7)));
        assert_eq!(server.config.get_hosts().len(), 2);
        assert_eq!(server.config.get_application_name(), Some("mine"));
        assert_eq!(server.config.get_connect_timeout(), Some(&Duration::from_secs(9)));
        assert_eq!(server.config.get_tcp_user_timeout(), Some(&Duration::from_secs(8)));
        assert_eq!(direct.config.get_hosts(), [Host::Tcp("direct".into())]);
        assert_eq!(direct.config.get_ssl_mode(), SslMode::Disable);
    }

    #[test]
    fn encryption_means_what_it_means_to_libpq() {
        let trust = |parameters: &str| {
            let Address { config, trust } = settings(&format!("postgres://h/d?{parameters}")).server;
            (config.get_ssl_mode(), trust)
        };
        let file = || Roots::File("/ca.pem".into());
        assert_eq!(trust("sslmode=disable&sslrootcert=/ca.pem"), (SslMode::Disable, Trust::Anybody));
        assert_eq!(trust("sslrootcert=/ca.pem"), (SslMode::Prefer, Trust::Vouched(file())));
        assert_eq!(trust("sslmode=require"), (SslMode::Require, Trust::Anybody));
        assert_eq!(trust("sslmode=require&sslrootcert=/ca.pem"), (SslMode::Require, Trust::Vouched(file())));
        assert_eq!(trust("sslmode=verify-ca&sslrootcert=%2Fca.pem"), (SslMode::Require, Trust::Vouched(file())));
        assert_eq!(trust("sslmode=verify-full&sslrootcert=/ca.pem"), (SslMode::Require, Trust::Named(file())));
        for system in ["sslmode=verify-full", "sslrootcert=system", "sslmode=verify-full&sslrootcert=system"] {
            assert_eq!(trust(system), (SslMode::Require, Trust::Named(Roots::System)), "{system}");
        }
        for weak in ["disable", "prefer", "require", "verify-ca"] {
            let told = mistake(&format!("postgres://h/d?sslrootcert=system&sslmode={weak}"));
            assert!(told.contains(&format!("sslmode is \"{weak}\"")), "{told}");
        }
        assert!(mistake("postgres://h/d?sslmode=verify-ca").contains("there is no sslrootcert"));
    }

    #[test]
    #[cfg(unix)]
    fn what_does_not_leave_the_machine_is_not_encrypted() {
        let mode = |url: &str| settings(url).server.config.get_ssl_mode();
        assert_eq!(mode("postgres://%2Frun%2Fa,%2Frun%2Fb/d?sslmode=require"), SslMode::Disable);
        assert_eq!(mode("postgres://%2Frun%2Fa,h/d?sslmode=require"), SslMode::Require);
        assert_eq!(mode("postgres:///d?hostaddr=127.0.0.1&sslmode=require"), SslMode::Require);
        assert_eq!(mode("postgres://%2Frun/d?hostaddr=127.0.0.1&sslmode=require"), SslMode::Require);
    }

    #[test]
    fn errors_can_say_where() {
        let hosts = |url: &str| settings(url).server.hosts();
        assert_eq!(hosts("postgres://ann:secret@db1,db2:5433/d"), "db1:5432, db2:5433");
        assert_eq!(hosts("postgres:///d?hostaddr=127.0.0.1,127.0.0.2&port=7"), "127.0.0.1:7, 127.0.0.2:7");
        #[cfg(unix)]
        assert_eq!(hosts("postgres://%2Frun:7/d"), "/run:7");
    }

    #[test]
    fn a_password_may_have_a_question_mark() {
        let config = settings("postgres://ann:se?cr=e&t@h/d?application_name=mine").server.config;
        assert_eq!(config.get_password(), Some(&b"se?cr=e&t"[..]));
        assert_eq!((config.get_hosts(), config.get_application_name()), (&[Host::Tcp("h".into())][..], Some("mine")));
        assert_eq!(settings("postgres://h?options=/a@b").server.config.get_options(), Some("/a@b"));
    }

    #[test]
    fn a_mistake_is_named_and_the_password_is_not() {
        assert!(mistake("postgres://a:secret@h/d?colour=red").contains("\"colour\""));
        assert!(mistake("postgres://a:secret@h/d?sslmode=allow").contains("\"allow\""));
        assert!(mistake("postgres://a:secret@h/d?lease=soon").contains("lease is \"soon\""));
        assert!(mistake("postgres://a:secret@h/d?pool_size=0").contains("pool_size is \"0\""));
        assert!(mistake("postgres://a:secret@h/d?connect_timeout=x").contains("connect_timeout"));
        assert!(mistake("postgres://a:secret@h:port/d").contains("port"));
        assert!(mistake("postgres://h/d?schema=").contains("schema"));
        assert!(mistake("postgres://a:/?secret@h/d").contains("%40"));
        assert!(mistake("host=h password=secret").contains("postgres://"));
        assert!(mistake("postgres://h/d?listen_url=postgres%3A%2F%2Fh%3Fschema%3Dx").contains("\"schema\""));
        assert!(mistake("postgres://h/d?listen_url=db2").starts_with("the listen_url: "));
    }

    /// What came after a `?` in a password was told as the name of a parameter that there is not, and what came after
    /// an `@` as a host to which there is no connection. And who printed the options printed the password of the
    /// address to listen at. Now none of it is told.
    #[test]
    fn no_part_of_a_password_is_told() {
        let said = mistake("postgres://ann:x?y&secret/z@h/d");
        assert!(said.contains("%40") && !said.contains("secret"), "{said}");
        assert!(mistake("postgres://ann:top@secret@h/d").contains("%40"));
        let options = PostgresOptions::new().schema("jobs").listen_url("postgres://ann:secret@h/d");
        let told = format!("{options:?}");
        assert!(!told.contains("secret") && told.contains("jobs"), "{told}");
        let settings = Settings::new(options, "postgres://a:secret@h/d?password=secret").unwrap();
        assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
    }

    #[test]
    fn a_lease_is_neither_too_short_nor_too_long() {
        assert_eq!(settings("postgres://h/d?lease=1ms").lease, LEASE_MIN);
        // Three quarters of it are to be worked out.
        assert_eq!(settings("postgres://h/d?lease=18446744073709551615").lease, LEASE_MAX);
    }

    /// A time-out of zero was taken, and then nothing could be asked: "no connection was to be had in time", as if the
    /// database were to blame.
    #[test]
    fn a_timeout_in_which_nothing_can_be_answered_is_refused() {
        for (url, said) in [("postgres://h/d?timeout=0", "0ns"), ("postgres://h/d?timeout=99ms", "99ms")] {
            assert!(mistake(url).contains(&format!("is {said} (at least 100ms is expected)")), "{}", mistake(url));
        }
        let options = PostgresOptions::new().timeout(Duration::ZERO);
        assert!(!Settings::new(options, "postgres://h/d").unwrap_err().is_transient());
        assert_eq!(settings("postgres://h/d?timeout=100ms").timeout, TIMEOUT_MIN);
    }

    /// Room for as many connections as were asked for was to be set aside, however many: a slip ended the process, by a
    /// panic or for want of memory.
    #[test]
    fn more_connections_than_a_process_can_use_are_refused() {
        let said = mistake("postgres://h/d?pool_size=1001");
        assert!(said.contains("pool_size of the PostgreSQL store is 1001 (at most 1000 is expected)"), "{said}");
        assert!(mistake("postgres://h/d?pool_size=99999999999999999999").contains("from 1 to 1000"));
        let options = PostgresOptions::new().pool_size(usize::MAX);
        assert!(!Settings::new(options, "postgres://h/d").unwrap_err().is_transient());
        assert_eq!(settings("postgres://h/d?pool_size=1000").pool_size, POOL_SIZE_MAX);
    }
}
