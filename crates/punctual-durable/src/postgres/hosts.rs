//! Which of several hosts a connection goes to: the one that takes writes, wherever it stands in the URL.
//!
//! The driver tries one host after the other, and waits without end for one that takes a connection and says nothing,
//! such as a machine whose disk hangs. So each host has a connection of its own here, and whoever is not answered in a
//! moment does not keep the next from being asked.
//!
//! # Invariants
//! 1. Where the last connection went is asked first, and a host that is asked in vain again and again costs a moment at
//!    most.
//! 2. There is an error only if all hosts have answered with one. While one is silent the others are asked again: one
//!    of them may be about to take its place.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::Connect;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::options::Address;
use crate::error::StoreError;

/// How long a host is given before the next is asked too.
const MOMENT: Duration = Duration::from_millis(500);

/// How long one that answered with an error rests, while others are silent.
const REST: Duration = Duration::from_millis(250);

/// A connection before somebody takes over what comes by it.
pub(super) type Wire = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// The hosts of a URL. Clones share what they know.
#[derive(Clone)]
pub(super) struct Hosts {
    each: Arc<[Config]>,
    /// For errors.
    names: Arc<str>,
    tls: MakeRustlsConnect,
    /// Where the last connection went.
    last: Arc<AtomicUsize>,
}

/// What one host answers, and whether it was asked for the first time.
struct Answer {
    host: usize,
    is_first: bool,
    connected: Result<(Client, Wire), Error>,
}

type Asked<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

impl Hosts {
    pub(super) fn new(address: &Address) -> Result<Self, StoreError> {
        let (each, names) = (split(&address.config).into(), address.hosts().into());
        Ok(Self { each, names, tls: address.trust.connector()?, last: Arc::default() })
    }

    /// Where they are.
    pub(super) fn names(&self) -> &str {
        &self.names
    }

    pub(super) fn tls(&self) -> &MakeRustlsConnect {
        &self.tls
    }

    /// Whether a connection is to be left when it takes no writes any more.
    pub(super) fn must_take_writes(&self) -> bool {
        self.each.iter().any(|host| host.get_target_session_attrs() == TargetSessionAttrs::ReadWrite)
    }

    /// A connection. It may take for ever, if nobody says anything.
    pub(super) async fn connect(&self) -> Result<(Client, Wire), Error> {
        let mut order = self.order().into_iter();
        let mut silent = order.len();
        let mut asked: Vec<Asked<'_>> = Vec::new();
        let mut said = None::<Error>;
        loop {
            asked.extend(order.next().map(|host| self.ask(host, None)));
            let answer = if order.len() == 0 {
                first(&mut asked).await
            } else if let Ok(answer) = tokio::time::timeout(MOMENT, first(&mut asked)).await {
                answer
            } else {
                continue;
            };
            let error = match answer.connected {
                Ok(connected) => {
                    // Relaxed: a hint.
                    self.last.store(answer.host, Ordering::Relaxed);
                    return Ok(connected);
                }
                Err(error) => error,
            };
            silent -= usize::from(answer.is_first);
            // What a server says is more than that there is none.
            let error = said.take().filter(|said| said.as_db_error().is_some()).unwrap_or(error);
            if silent == 0 {
                return Err(error);
            }
            said = Some(error);
            asked.push(self.ask(answer.host, Some(REST)));
        }
    }

    /// In which order to ask.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.each.len()).collect();
        if self.each.iter().any(|host| host.get_load_balance_hosts() == LoadBalanceHosts::Random) {
            fastrand::shuffle(&mut order);
        } else {
            order.rotate_left(self.last.load(Ordering::Relaxed));
        }
        order
    }

    fn ask(&self, host: usize, rest: Option<Duration>) -> Asked<'_> {
        Box::pin(async move {
            if let Some(rest) = rest {
                tokio::time::sleep(rest).await;
            }
            let connected = self.each[host].connect(self.tls.clone()).await;
            Answer { host, is_first: rest.is_none(), connected }
        })
    }
}

/// The next answer.
async fn first(asked: &mut Vec<Asked<'_>>) -> Answer {
    poll_fn(|cx| {
        for place in 0..asked.len() {
            if let Poll::Ready(answer) = asked[place].as_mut().poll(cx) {
                drop(asked.swap_remove(place));
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    })
    .await
}

impl Connect for Hosts {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        Box::pin(async move {
            let (client, wire) = Hosts::connect(self).await?;
            let wire = tokio::spawn(async move {
                if let Err(error) = wire.await {
                    tracing::debug!(target: "punctual", %error, "a connection was lost");
                }
            });
            Ok((client, wire))
        })
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosts").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The same, for each host by itself. If their numbers do not match the driver says so.
fn split(all: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (all.get_hosts(), all.get_hostaddrs(), all.get_ports());
    let count = hosts.len().max(addresses.len());
    let fits = |length: usize, least: usize| length == count || length <= least;
    if count < 2 || !fits(hosts.len(), 0) || !fits(addresses.len(), 0) || !fits(ports.len(), 1) {
        return vec![all.clone()];
    }
    let one = |place: usize| {
        let mut one = without_hosts(all);
        match hosts.get(place) {
            Some(Host::Tcp(host)) => drop(one.host(host)),
            // Nothing is encrypted there, whatever is to be elsewhere.
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(one.host_path(path).ssl_mode(SslMode::Disable)),
            None => {}
        }
        addresses.get(place).map(|&address| one.hostaddr(address));
        ports.get(place).or(ports.first()).map(|&port| one.port(port));
        one
    };
    (0..count).map(one).collect()
}

/// All that can be said in a URL (`options.rs`) but for the hosts: there is no way to take these out.
fn without_hosts(all: &Config) -> Config {
    let mut one = Config::new();
    one.ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .target_session_attrs(all.get_target_session_attrs())
        .channel_binding(all.get_channel_binding())
        .load_balance_hosts(all.get_load_balance_hosts());
    all.get_user().map(|user| one.user(user));
    all.get_password().map(|password| one.password(password));
    all.get_dbname().map(|name| one.dbname(name));
    all.get_options().map(|options| one.options(options));
    all.get_application_name().map(|name| one.application_name(name));
    all.get_connect_timeout().map(|&timeout| one.connect_timeout(timeout));
    all.get_tcp_user_timeout().map(|&timeout| one.tcp_user_timeout(timeout));
    all.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
    all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PostgresOptions;
    use crate::postgres::options::Settings;

    fn config(url: &str) -> Config {
        Settings::new(PostgresOptions::new(), url).unwrap().server.config
    }

    /// Everything that is said of all of them is said of each.
    #[test]
    fn hosts_are_asked_each_with_all_that_the_url_says() {
        let said = "application_name=a&options=-c%20jit%3Doff&sslmode=require&sslnegotiation=direct&connect_timeout=1&tcp_user_timeout=2&keepalives=0\
                    &keepalives_idle=3&keepalives_interval=4&keepalives_retries=5&target_session_attrs=any&channel_binding=disable&load_balance_hosts=random";
        let split = |hosts: &str| split(&config(&format!("postgres://u:p@{hosts}/d?{said}")));
        let each = |hosts: &[&str]| {
            hosts.iter().map(|host| config(&format!("postgres://u:p@{host}/d?{said}"))).collect::<Vec<_>>()
        };
        assert_eq!(split("h1:1,h2:2,%2Frun:3"), each(&["h1:1", "h2:2", "%2Frun:3"]));
        assert_eq!(split("h1,h2"), each(&["h1", "h2"]));
        assert_eq!(split("h1:7"), each(&["h1:7"]));
    }

    #[test]
    fn what_does_not_match_is_left_to_the_driver() {
        let wrong = config("postgres://u@a:1,b:2/d?port=3");
        assert_eq!(split(&wrong), std::slice::from_ref(&wrong));
        let addresses = split(&config("postgres://u@a,b:7/d?hostaddr=10.0.0.1,10.0.0.2"));
        let told =
            addresses.iter().map(|one| (one.get_hosts().len(), one.get_hostaddrs()[0].to_string(), one.get_ports()[0]));
        assert_eq!(told.collect::<Vec<_>>(), [(1, "10.0.0.1".to_owned(), 5432), (1, "10.0.0.2".to_owned(), 7)]);
    }
}
