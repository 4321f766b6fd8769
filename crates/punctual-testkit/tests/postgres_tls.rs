//! Encryption, against servers that have it: who is believed in which mode, which connections are encrypted, what
//! whoever is refused is told. libpq is the yardstick, so `psql` is asked the same; where this store differs on
//! purpose, both answers are written down.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual::VirtualClock;
use punctual_durable::{
    Ctx, Failure, Job, JobId, Jobs, Moment, NewJob, PostgresOptions, PostgresStore, Store, StoreError,
};
use punctual_testkit::block_on;
use punctual_testkit::postgres::{Server, connect, proxied};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ServerConfig, ServerConnection};
use serde::{Deserialize, Serialize};

const SECOND: Duration = Duration::from_secs(1);

/// Nothing that is told takes as long as this, on any machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What comes of opening a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    Plain,
    Encrypted,
    /// With these words.
    Refused(&'static str),
}

use Met::{Encrypted, Plain, Refused};

const NO_TLS: Met = Refused("server does not support TLS");
const UNTRUSTED: Met = Refused("the certificate is not trusted: no authority that is asked vouches for it");
const MISNAMED: Met = Refused("certificate not valid for name \"127.0.0.1\"");
const EXPIRED: Met = Refused("certificate expired");
const NOT_ADMITTED: Met = Refused("28000");

/// A mode, with a file of authorities or without: `ca` is the right one, `foreign` vouches for nobody here, `itself` is
/// the certificate of a server that is its own.
type Mode = (&'static str, &'static str);

const MODES: [Mode; 12] = [
    ("disable", ""),
    ("prefer", ""),
    ("prefer", "ca"),
    ("prefer", "foreign"),
    ("require", ""),
    ("require", "ca"),
    ("require", "foreign"),
    ("verify-ca", "ca"),
    ("verify-ca", "itself"),
    ("verify-full", ""),
    ("verify-full", "ca"),
    ("verify-full", "itself"),
];

/// A server, asked in every mode.
struct Trial<'a> {
    server: &'a Server,
    certificates: &'a Server,
    what: &'a str,
}

impl Trial<'_> {
    /// What this store meets in each mode; and what libpq does, where that is something else.
    fn expect(&self, ours: impl Fn(Mode) -> Met, theirs: impl Fn(Mode) -> Option<Met>) {
        for (number, mode) in (0..).zip(MODES) {
            self.open(number, mode, ours(mode));
            let same = || if let Refused(_) = ours(mode) { Refused("") } else { ours(mode) };
            assert_eq!(self.libpq(mode), theirs(mode).unwrap_or_else(same), "libpq: {}, {mode:?}", self.what);
        }
    }

    fn url(&self, (mode, authority): Mode, no_authority: &str) -> String {
        let file = match authority {
            "" => no_authority.to_owned(),
            name => format!("&sslrootcert={}", self.certificates.certificate(name).display()),
        };
        format!("{}?sslmode={mode}{file}", self.server.url())
    }

    fn open(&self, number: u32, mode: Mode, expected: Met) {
        let name = format!("{}_{number}", self.what);
        let url = format!("{}&application_name={name}", self.url(mode, ""));
        match (block_on(PostgresOptions::new().schema("modes").pool_size(1).open(&url)), expected) {
            (Ok(_store), _) => assert_eq!(encryption(self.server, &name), expected, "{}, {mode:?}", self.what),
            (Err(error), Refused(words)) => {
                assert_told(self.server, &error);
                assert!(error.to_string().contains(words), "{error} ({}, {mode:?})", self.what);
            }
            (Err(error), _) => panic!("{error} ({}, {mode:?})", self.what),
        }
    }

    fn libpq(&self, mode: Mode) -> Met {
        // Or it would look for one in the home of whoever tests.
        let url = self.url(mode, "&sslrootcert=/no/such/file");
        let ask = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let mut psql = Command::new(programs().join("psql"));
        psql.args(["--no-psqlrc", "--no-align", "--tuples-only", "--command", ask]);
        let answer = psql.arg(url).output().unwrap();
        match answer.stdout.as_slice() {
            b"t\n" => Encrypted,
            b"f\n" => Plain,
            _ => Refused(""),
        }
    }
}

/// Where the server's programs are.
fn programs() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres");
    let said = Command::new(script).arg("bin").output().unwrap().stdout;
    String::from_utf8(said).unwrap().trim_end().into()
}

/// Whether the connections of this name are encrypted: all are, or none. One of them listens.
fn encryption(server: &Server, name: &str) -> Met {
    let ask = "SELECT s.ssl FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name = $1";
    let mut client = connect(&server.socket_url()).unwrap();
    let mut look = || client.query(ask, &[&name]).unwrap().iter().map(|row| row.get(0)).collect::<Vec<bool>>();
    let seen = (0..100_000).map(|_| look()).find(|seen| seen.len() >= 2).expect("the one that listens is there");
    assert!(seen.iter().all(|&ssl| ssl == seen[0]), "{name}: {seen:?}");
    if seen[0] { Encrypted } else { Plain }
}

/// An error says where, and that it will not pass.
fn assert_told(server: &Server, error: &StoreError) {
    let (_, place) = server.url().split_once('@').unwrap();
    let place = place.split('/').next().unwrap();
    assert!(!error.is_transient() && error.to_string().contains(&format!("no connection to {place}: ")), "{error}");
}

#[test]
fn each_mode_believes_whom_libpq_believes() {
    let (server, plain) = (Server::start_encrypted(), Server::start_fast());
    let trial = |what| Trial { server: &server, certificates: &server, what };
    let without = |mode: Mode| if matches!(mode.0, "disable" | "prefer") { Plain } else { NO_TLS };
    Trial { server: &plain, ..trial("plain") }.expect(without, |_| None);

    let right = |mode: Mode| match mode {
        ("disable", _) => Plain,
        (_, "foreign" | "itself") | ("verify-full", "") => UNTRUSTED,
        _ => Encrypted,
    };
    // If it is not satisfied, libpq goes on without encryption where it may. Whoever names authorities here means it.
    let unsatisfied = |mode| (mode == ("prefer", "foreign")).then_some(Plain);
    trial("right").expect(right, unsatisfied);

    server.present("misnamed");
    trial("misnamed").expect(|mode| if mode == ("verify-full", "ca") { MISNAMED } else { right(mode) }, unsatisfied);

    server.present("expired");
    let expired = |mode: Mode| match mode {
        ("disable", _) => Plain,
        ("prefer" | "require", "") => Encrypted,
        _ => EXPIRED,
    };
    trial("expired").expect(expired, |mode| matches!(mode, ("prefer", "ca" | "foreign")).then_some(Plain));

    server.present("right");
    server.admit("hostssl all all 127.0.0.1/32 trust");
    trial("demanded").expect(|mode| if mode.0 == "disable" { NOT_ADMITTED } else { right(mode) }, |_| None);

    server.admit("hostnossl all all 127.0.0.1/32 trust");
    let refused = |mode| if right(mode) == Encrypted { NOT_ADMITTED } else { right(mode) };
    trial("refused").expect(refused, |mode| (mode.0 == "prefer").then_some(Plain));
}

/// Once no mode took the certificates that PostgreSQL's manual makes: rustls reads none of the first version, which an
/// older OpenSSL gives out, and takes none that is its own authority. Even the default mode, which asks nobody, did not
/// connect to the first.
#[test]
fn certificates_as_the_manual_of_postgresql_makes_them_are_taken() {
    let server = Server::start_encrypted();
    let trial = |what| Trial { server: &server, certificates: &server, what };
    server.present("itself");
    let itself = |mode: Mode| match mode {
        ("disable", _) => Plain,
        ("prefer" | "require", "") | (_, "itself") => Encrypted,
        _ => Refused("the certificate is not trusted: CaUsedAsEndEntity"),
    };
    trial("itself").expect(itself, |mode| matches!(mode, ("prefer", "ca" | "foreign")).then_some(Plain));

    // It is encrypted; but nobody can be asked to vouch for it.
    server.present("v1");
    let v1 = |mode: Mode| match mode {
        ("disable", _) => Plain,
        ("prefer" | "require", "") => Encrypted,
        _ => Refused("the certificate is not trusted: UnsupportedCertVersion"),
    };
    let libpq = |mode: Mode| match mode {
        ("prefer" | "require" | "verify-ca", "ca") => Some(Encrypted),
        ("prefer", "foreign") => Some(Plain),
        _ => None,
    };
    trial("v1").expect(v1, libpq);
}

/// Also if the name is not looked up, because the address is given. Whoever is his own authority has a name and an end
/// too.
#[test]
fn the_name_in_the_url_is_the_one_that_counts() {
    let server = Server::start_encrypted();
    let open = |host: &str, mode: &str, authority: &str| {
        let url = server.url().replace("127.0.0.1", host);
        let file = server.certificate(authority);
        let url = format!("{url}?hostaddr=127.0.0.1&sslmode={mode}&sslrootcert={}", file.display());
        block_on(PostgresOptions::new().pool_size(1).open(&url)).map_err(|error| error.to_string())
    };
    server.present("misnamed");
    open("db.example", "verify-full", "ca").unwrap();
    let error = open("localhost", "verify-full", "ca").unwrap_err();
    assert!(error.contains("no connection to localhost:") && error.contains("not valid for name"), "{error}");
    server.present("itself");
    open("localhost", "verify-full", "itself").unwrap();
    open("db.example", "verify-ca", "itself").unwrap();
    let error = open("db.example", "verify-full", "itself").unwrap_err();
    assert!(error.contains("no connection to db.example:") && error.contains("not valid for name"), "{error}");
    server.present("itself-expired");
    let error = open("localhost", "verify-ca", "itself-expired").unwrap_err();
    assert!(error.contains("certificate expired"), "{error}");
    open("localhost", "require", "itself").unwrap_err();
}

#[derive(Debug, Serialize, Deserialize)]
struct Note(u32);

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = u32;
}

/// A job from one process to another and back, and every connection that this takes. The clock stands still, so nobody
/// looks by himself: word of it comes over the line. A proxy in between sees that not one connection says anything that
/// it can read.
#[test]
fn a_job_runs_over_connections_that_are_all_encrypted() {
    let server = Server::start_encrypted();
    server.admit("hostssl all all 127.0.0.1/32 trust");
    let (proxy, url) = proxied(server.url());
    let ca = server.certificate("ca");
    let url = |name: &str| format!("{url}?sslmode=verify-full&sslrootcert={}&application_name={name}", ca.display());
    let clock = VirtualClock::new();
    let process = |seed| {
        let options = PostgresOptions::new().clock(&clock).listen_url(url("line"));
        let store = block_on(options.open(&url("pool"))).unwrap();
        assert!(format!("{store:?}").contains("prepares: true"), "{store:?}");
        block_on(Jobs::builder().clock(&clock).seed(seed).over(Arc::new(store))).unwrap()
    };
    let (near, far) = (process(1), process(2));
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    near.on(move |note: Note, _: Ctx| {
        tell.lock().unwrap().send(note.0).unwrap();
        async move { Ok::<_, Failure>(note.0 + 1) }
    });
    let node = block_on(near.start()).unwrap();
    clock.settle().unwrap();
    let job = block_on(far.now().enqueue(Note(7))).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(7));
    assert_eq!(block_on(job.result()).unwrap(), 8);

    assert_eq!(encryption(&server, "line"), Encrypted);
    assert_eq!(encryption(&server, "pool"), Encrypted);
    block_on(node.shutdown(SECOND));
    let counts = proxy.counts();
    assert_eq!((counts.encrypted, counts.requests), (counts.connections, 0), "{counts:?}");
    assert!(counts.connections >= 4, "{counts:?}");
}

/// What takes too long is cancelled over a connection of its own, which the server hears of though the one that asked
/// is gone.
#[test]
fn a_request_to_cancel_is_encrypted_and_heard() {
    let server = Server::start_encrypted();
    let (proxy, url) = proxied(server.url());
    let ca = server.certificate("ca");
    // A mode in which it would be heard without encryption too.
    let url = format!("{url}?sslmode=prefer&sslrootcert={}", ca.display());
    let store = block_on(PostgresOptions::new().timeout(SECOND).open(&url)).unwrap();
    let mut owner = connect(&server.socket_url()).unwrap();
    let mut lock = owner.transaction().unwrap();
    lock.batch_execute("LOCK TABLE punctual.job IN ACCESS EXCLUSIVE MODE").unwrap();
    let before = proxy.counts().connections;
    let error = block_on(store.get(JobId::from_u128(1))).unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("did not answer within 1s"), "{error}");
    let mut witness = connect(&server.socket_url()).unwrap();
    let mut waits = || {
        let ask = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        witness.query_one(ask, &[]).unwrap().get::<_, i64>(0) > 0
    };
    assert!((0..100_000).any(|_| !waits()), "it is still asked, though nobody waits for the answer");
    lock.rollback().unwrap();
    let counts = proxy.counts();
    assert!(counts.connections > before, "{counts:?}");
    assert_eq!((counts.encrypted, counts.requests), (counts.connections, 0), "{counts:?}");
}

#[test]
fn a_server_that_was_gone_is_found_again() {
    let server = Server::start_encrypted();
    server.admit("hostssl all all 127.0.0.1/32 trust");
    let url = format!("{}?sslmode=verify-full&sslrootcert={}", server.url(), server.certificate("ca").display());
    let store = block_on(PostgresStore::open(&url)).unwrap();
    server.stop();
    let error = enqueue(&store, 1).unwrap_err();
    assert!(error.is_transient(), "{error}");
    server.start_again();
    let found = (0..1_000).any(|_| enqueue(&store, 2).is_ok());
    assert!(found, "none of a thousand tries came through");
    assert_eq!(encryption(&server, "punctual"), Encrypted);
}

fn enqueue(store: &PostgresStore, id: u128) -> Result<(), StoreError> {
    let job = NewJob { due: Moment::After(60 * SECOND), ..NewJob::new(JobId::from_u128(id), "k") };
    block_on(store.enqueue(vec![job])).map(|mut answers| _ = answers.remove(0).unwrap())
}

/// The password is proved to the server that has this certificate, and to no other. What is said of any trouble does
/// not have it.
#[test]
fn a_password_is_bound_to_the_connection_and_never_told() {
    let server = Server::start_encrypted();
    let create = "SET password_encryption = 'scram-sha-256'; CREATE ROLE ann LOGIN PASSWORD 'hush?hush'; GRANT CREATE ON DATABASE postgres TO ann";
    connect(&server.socket_url()).unwrap().batch_execute(create).unwrap();
    server.admit("host all all 127.0.0.1/32 scram-sha-256");
    let url = |password: &str, parameters: &str| {
        let parameters = parameters.replace("CA", &server.certificate("ca").display().to_string());
        let parameters = parameters.replace("FOREIGN", &server.certificate("foreign").display().to_string());
        server.url().replace("postgres@", &format!("ann:{password}@")) + "?" + &parameters
    };
    let open = |parameters: &str| {
        let url = url("hush?hush", parameters);
        let options = PostgresOptions::new().pool_size(1).listen_url(&url);
        assert!(!format!("{options:?}").contains("hush"), "{options:?}");
        let opened = block_on(options.open(&url));
        assert!(!format!("{opened:?}").contains("hush"), "{opened:?}");
        opened
    };
    for parameters in [
        "sslmode=disable",
        "sslmode=require",
        "sslmode=require&channel_binding=require",
        "sslmode=require&channel_binding=disable",
        "sslmode=verify-full&sslrootcert=CA&channel_binding=require",
    ] {
        open(parameters).unwrap_or_else(|error| panic!("{parameters}: {error}"));
    }
    block_on(PostgresStore::open(&url("hush%3Fhush", "sslmode=require"))).unwrap();
    for (parameters, told) in [
        ("sslmode=disable&channel_binding=require", "server did not use channel binding"),
        ("sslmode=require&channel_binding=perhaps", "channel_binding"),
        ("sslmode=verify-full&sslrootcert=FOREIGN", "not trusted"),
        ("sslmode=verify-full&sslrootcert=/no/such/file", "/no/such/file"),
        ("sslmode=verify-full&sslcert=/mine", "\"sslcert\""),
    ] {
        let error = open(parameters).unwrap_err();
        assert!(!error.is_transient() && error.to_string().contains(told), "{error}");
    }
    let wrong = block_on(PostgresStore::open(&url("whisper", "sslmode=require"))).unwrap_err();
    assert!(wrong.to_string().contains("28P01") && !format!("{wrong:?}").contains("whisper"), "{wrong:?}");
}

/// Also where nobody is asked who the server is: a password is bound to the certificate, which anybody can show.
#[test]
fn a_server_that_has_not_the_key_of_its_certificate_is_refused() {
    let server = Server::start_encrypted();
    let (its_own, other) = (server.certificate("key"), server.certificate("foreign").with_extension("key"));
    for certificate in ["right", "v1"].map(|name| server.certificate(name)) {
        let error = shake_hands(&certificate, &its_own);
        assert!(
            error.is_transient() && !error.to_string().contains("certificate"),
            "it is believed, and leaves: {error}"
        );
        let error = shake_hands(&certificate, &other);
        assert!(!error.is_transient() && error.to_string().contains("certificate: BadSignature"), "{error}");
    }
}

/// What somebody is told who opens a store at a server that has this certificate and this key, and leaves after the
/// handshake.
fn shake_hands(certificate: &Path, key: &Path) -> StoreError {
    let provider = Arc::new(ring::default_provider());
    let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
    let key = provider.key_provider.load_private_key(PrivateKeyDer::from_pem_file(key).unwrap()).unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let shown = SingleCertAndKey::from(CertifiedKey::new(chain, key));
    let config = config.with_no_client_auth().with_cert_resolver(Arc::new(shown));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://ann@{}/app?sslmode=require", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut wish = [0; 8];
        client.read_exact(&mut wish).unwrap();
        client.write_all(b"S").unwrap();
        // Whether the client likes it is for the client to say.
        let _ = ServerConnection::new(Arc::new(config)).unwrap().complete_io(&mut client);
    });
    let error = block_on(PostgresStore::open(&url)).unwrap_err();
    serving.join().unwrap();
    error
}

/// This test again, in a process that trusts other authorities than its system does.
const TRUSTING: &str = "PUNCTUAL_TEST_TRUSTING";

#[test]
fn the_authorities_of_the_system_are_asked_for_the_name_too() {
    if let Ok(url) = std::env::var(TRUSTING) {
        block_on(PostgresStore::open(&url)).unwrap();
        return;
    }
    let server = Server::start_encrypted();
    let opens = |authority: &str, parameters: &str| {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "the_authorities_of_the_system_are_asked_for_the_name_too"]);
        process.env(TRUSTING, format!("{}?{parameters}", server.url()));
        process.env("SSL_CERT_FILE", server.certificate(authority)).env_remove("SSL_CERT_DIR");
        let ended = process.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        if ended.status.success() { Ok(()) } else { Err(said) }
    };
    for parameters in ["sslrootcert=system", "sslmode=verify-full"] {
        opens("ca", parameters).unwrap();
        let error = opens("foreign", parameters).unwrap_err();
        assert!(error.contains("the certificate is not trusted"), "{error}");
    }
    server.present("misnamed");
    let error = opens("ca", "sslrootcert=system").unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
}

/// No server encrypts there, and libpq does not ask for it.
#[test]
fn on_the_machine_itself_nothing_is_encrypted_whatever_the_mode() {
    let server = Server::start_encrypted();
    for mode in ["disable", "prefer", "require", "verify-full"] {
        let url = format!("{}?sslmode={mode}&application_name={mode}", server.socket_url());
        let _store = block_on(PostgresOptions::new().pool_size(1).open(&url)).unwrap();
        assert_eq!(encryption(&server, mode), Plain);
    }
}

/// A server of version 17 or newer takes it, if it is told which protocol is to be spoken.
#[test]
fn encryption_that_comes_first_names_the_protocol() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://ann@{}/app?sslmode=require&sslnegotiation=direct", listener.local_addr().unwrap());
    let opening = std::thread::spawn(move || block_on(PostgresStore::open(&url)));
    let (mut client, _) = listener.accept().unwrap();
    // A record of TLS: its kind, a version, its length.
    let mut head = [0; 5];
    client.read_exact(&mut head).unwrap();
    assert_eq!(head[0], 22, "a handshake");
    let mut hello = vec![0; u16::from_be_bytes([head[3], head[4]]).into()];
    client.read_exact(&mut hello).unwrap();
    drop((client, listener));
    assert!(hello.windows(11).any(|part| part == b"\x0apostgresql"), "{hello:?}");
    assert!(opening.join().unwrap().unwrap_err().is_transient());
}
