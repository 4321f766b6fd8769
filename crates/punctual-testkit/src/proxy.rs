//! A proxy on loopback that does to connections what networks do: it cuts, resets, delays, swallows, and loses the one
//! reply that matters. It counts what it did, so that a test can tell a fault that was survived from one that never
//! happened.
//!
//! # Invariants
//! 1. Bytes are passed on in order and unchanged, or not at all: a link that lost any is never passed on again, only
//!    ended.
//! 2. A fault is counted before anybody can notice it.
//! 3. A link is known to `State::links` as long as it can be cut; a dead link passes nothing on.
//!
//! Lock order: the state, then a link's talk. Nothing is read, written or slept under either. Two threads a link, one
//! for each direction, so that a full pipe one way does not stop the other; and two more once something is delayed, for
//! a piece that is on its way does not keep the next one from being sent.

mod talk;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use punctual::Clock;
use socket2::SockRef;

use talk::{Answer, Talk};

/// A proxy in front of one server.
///
/// # Example
/// ```
/// use punctual_testkit::proxy::Proxy;
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
///
/// let server = TcpListener::bind("127.0.0.1:0").unwrap();
/// let proxy = Proxy::start(server.local_addr().unwrap());
/// let mut client = TcpStream::connect(proxy.addr()).unwrap();
/// let (mut peer, _) = server.accept().unwrap();
/// client.write_all(b"hello").unwrap();
/// let mut heard = [0; 5];
/// peer.read_exact(&mut heard).unwrap();
/// assert_eq!(&heard, b"hello");
/// assert_eq!(proxy.cut(), 1);
/// assert_eq!(client.read(&mut heard).unwrap(), 0);
/// assert_eq!(proxy.counts().cut, 1);
/// ```
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// What went through a proxy, and what went wrong there.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Connections of clients.
    pub connections: u64,
    /// Those of them that the server agreed to encrypt.
    pub encrypted: u64,
    /// What was asked of the server, in PostgreSQL's protocol: queries, and connections that said hello; those that can
    /// be read.
    pub requests: u64,
    /// Bytes passed on to the server.
    pub to_server: u64,
    /// Bytes passed on to clients.
    pub to_client: u64,
    /// Connections closed by [`Proxy::cut`] and [`Proxy::cut_after`].
    pub cut: u64,
    /// Connections reset.
    pub reset: u64,
    /// Those that were closed or reset by [`Proxy::cut`] and [`Proxy::reset`] while a request of PostgreSQL's protocol
    /// was under way.
    pub broken_off: u64,
    /// Bytes that were swallowed.
    pub swallowed: u64,
    /// Pieces that came late.
    pub delayed: u64,
    /// Replies that were dropped although the server had done what it was asked.
    pub replies_lost: u64,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    way: Way,
    cut_after: Option<u64>,
    /// Words of the request whose reply is to be lost.
    lose_reply_to: Option<String>,
    links: Vec<Arc<Link>>,
    counts: Counts,
    closed: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Way {
    #[default]
    Pass,
    Blackhole,
    Delay(Duration),
}

/// A client's connection, and the one to the server for it, if there is one.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: Option<TcpStream>,
    /// How many directions are open.
    ways: AtomicUsize,
    dead: AtomicBool,
    /// Some of its bytes were swallowed.
    lossy: AtomicBool,
    talk: Mutex<Talk>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Toward {
    Server,
    Client,
}

/// What becomes of a piece.
enum Fate {
    Pass(Vec<u8>, Option<Duration>),
    /// What may still be passed on, and then it is cut.
    Cut(Vec<u8>),
}

impl Proxy {
    /// Stands before a server, on a port of its own.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { server, state: Mutex::default() });
        let ours = Arc::clone(&shared);
        let acceptor = thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if ours.lock().closed {
                    return;
                }
                ours.admit(client);
            }
        });
        Self { addr, shared, acceptor: Some(acceptor) }
    }

    /// Where clients reach it.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Passes everything on, from now on. Connections that lost something meanwhile are cut: nobody could go on with
    /// them.
    pub fn pass(&self) {
        self.shared.go(Way::Pass);
    }

    /// Takes connections and bytes and answers nothing, as a network that drops packets.
    pub fn blackhole(&self) {
        self.shared.go(Way::Blackhole);
    }

    /// Passes nothing on any more for the connections there are, and does not end them either, as after a fail-over, or
    /// a firewall that has forgotten them; says how many. New ones are welcome.
    pub fn forget(&self) -> usize {
        let mut state = self.shared.lock();
        state.way = Way::Pass;
        state.links.iter().for_each(|link| link.lossy.store(true, Ordering::Relaxed));
        state.links.len()
    }

    /// Every piece arrives so much later, either way, however many are on their way.
    pub fn delay(&self, delay: Duration) {
        self.shared.go(Way::Delay(delay));
    }

    /// Closes all connections, on both sides, and says how many. New ones are welcome.
    pub fn cut(&self) -> usize {
        let mut state = self.shared.lock();
        let links = state.take_links();
        state.counts.cut += links.len() as u64;
        links.iter().for_each(|link| link.cut());
        links.len()
    }

    /// Resets all connections, on both sides, as a peer does that knows nothing of them; says how many. New ones are
    /// welcome.
    pub fn reset(&self) -> usize {
        let mut state = self.shared.lock();
        let links = state.take_links();
        state.counts.reset += links.len() as u64;
        links.iter().for_each(|link| link.reset());
        links.len()
    }

    /// Cuts the connection that has the byte after so many more that went from the server to its clients. Once.
    pub fn cut_after(&self, bytes: u64) {
        self.shared.lock().cut_after = Some(bytes);
    }

    /// Loses the reply to the next request whose SQL has these words: the server gets it, does it, commits it (its
    /// reply says that no transaction is open), and then the connection is cut instead of the reply passed on. A
    /// request inside a transaction is answered, and the reply to its commit lost. Once.
    ///
    /// The words must stand in the query itself, or in the statement that is bound, on a connection without encryption.
    pub fn lose_reply_to(&self, words: &str) {
        self.shared.lock().lose_reply_to = Some(words.to_owned());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.cut();
        // Wakes the acceptor, which then sees that it is over.
        let _ = TcpStream::connect(self.addr);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl State {
    /// All links, to be broken.
    fn take_links(&mut self) -> Vec<Arc<Link>> {
        let links = std::mem::take(&mut self.links);
        let is_asked = |link: &&Arc<Link>| link.talk.lock().unwrap().is_under_way();
        self.counts.broken_off += links.iter().filter(is_asked).count() as u64;
        links
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn go(&self, way: Way) {
        let mut state = self.lock();
        state.way = way;
        if way != Way::Blackhole {
            let (lossy, sound): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.links).into_iter().partition(|link| link.lossy.load(Ordering::Relaxed));
            state.links = sound;
            lossy.iter().for_each(|link| link.cut());
        }
    }

    /// A client has come.
    fn admit(self: &Arc<Self>, client: TcpStream) {
        let blackhole = {
            let mut state = self.lock();
            state.counts.connections += 1;
            state.way == Way::Blackhole
        };
        // A server that is not there is a connection that is closed at once.
        let server = if blackhole { None } else { Some(TcpStream::connect(self.server)) };
        let Ok(server) = server.transpose() else { return };
        for stream in [Some(&client), server.as_ref()].into_iter().flatten() {
            let _ = stream.set_nodelay(true);
        }
        let link = Arc::new(Link {
            client,
            ways: AtomicUsize::new(if blackhole { 1 } else { 2 }),
            dead: AtomicBool::new(false),
            lossy: AtomicBool::new(blackhole),
            talk: Mutex::default(),
            server,
        });
        {
            let mut state = self.lock();
            if state.closed || blackhole && state.way != Way::Blackhole {
                return;
            }
            state.links.push(Arc::clone(&link));
        }
        let ways = if blackhole { &[Toward::Server][..] } else { &[Toward::Server, Toward::Client] };
        for &toward in ways {
            let (ours, link) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || {
                let _ = ours.pump(&link, toward);
                ours.end(&link, toward);
            });
        }
    }

    /// Passes bytes on in one direction until there are no more.
    fn pump(&self, link: &Arc<Link>, toward: Toward) -> io::Result<()> {
        let Some(mut from) = (if toward == Toward::Server { Some(&link.client) } else { link.server.as_ref() }) else {
            return Ok(());
        };
        let mut road = Road { link, toward, later: None };
        let mut buffer = vec![0; 16 * 1024];
        let ended = loop {
            let length = match from.read(&mut buffer) {
                Ok(length) => length,
                Err(error) => break Err(error),
            };
            if length == 0 || link.dead.load(Ordering::Acquire) {
                break Ok(());
            }
            match self.fate(link, toward, &buffer[..length]) {
                Fate::Pass(piece, delay) => {
                    if let Err(error) = road.send(piece, delay) {
                        break Err(error);
                    }
                }
                Fate::Cut(piece) => {
                    let sent = road.send(piece, None);
                    road.arrive();
                    link.cut();
                    break sent;
                }
            }
        };
        road.arrive();
        ended
    }

    /// Decides about a piece, and counts what it decides.
    fn fate(&self, link: &Arc<Link>, toward: Toward, piece: &[u8]) -> Fate {
        let mut guard = self.lock();
        let state = &mut *guard;
        let lossy = link.lossy.load(Ordering::Relaxed);
        if state.way == Way::Blackhole || lossy {
            link.lossy.store(true, Ordering::Relaxed);
            state.counts.swallowed += piece.len() as u64;
            return Fate::Pass(Vec::new(), None);
        }
        let mut talk = link.talk.lock().unwrap();
        let mut piece = piece.to_vec();
        if toward == Toward::Server {
            let asked = talk.asked();
            if talk.asks(&piece, state.lose_reply_to.as_deref()) {
                state.lose_reply_to = None;
            }
            state.counts.requests += talk.asked() - asked;
            state.counts.to_server += piece.len() as u64;
        } else {
            let was_secret = talk.is_secret();
            let answer = talk.answers(&piece);
            state.counts.encrypted += u64::from(talk.is_secret() && !was_secret);
            match answer {
                Answer::Pass(now) => piece = now,
                Answer::Lose(before) => {
                    state.counts.replies_lost += 1;
                    state.counts.to_client += before.len() as u64;
                    return Fate::Cut(before);
                }
            }
            if let Some(left) = state.cut_after.as_mut() {
                let allowed = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
                *left -= allowed as u64;
                if allowed < piece.len() {
                    piece.truncate(allowed);
                    state.cut_after = None;
                    state.counts.cut += 1;
                    state.counts.to_client += allowed as u64;
                    return Fate::Cut(piece);
                }
            }
            state.counts.to_client += piece.len() as u64;
        }
        let Way::Delay(delay) = state.way else { return Fate::Pass(piece, None) };
        state.counts.delayed += 1;
        Fate::Pass(piece, Some(delay))
    }

    /// One direction has ended, which the other side is told, unless it is not to hear anything.
    fn end(&self, link: &Arc<Link>, toward: Toward) {
        let mut state = self.lock();
        if state.way == Way::Blackhole {
            link.lossy.store(true, Ordering::Relaxed);
        }
        let is_dead = link.dead.load(Ordering::Acquire);
        let to = if toward == Toward::Server { link.server.as_ref() } else { Some(&link.client) };
        if let Some(to) = to.filter(|_| !is_dead && !link.lossy.load(Ordering::Relaxed)) {
            let _ = to.shutdown(Shutdown::Write);
        }
        if link.ways.fetch_sub(1, Ordering::Relaxed) == 1 || is_dead {
            state.links.retain(|other| !Arc::ptr_eq(other, link));
        }
    }
}

/// Where pieces are handed in, each with the instant it is to arrive at, and who brings them.
type Courier = (Sender<(Instant, Vec<u8>)>, JoinHandle<()>);

/// One direction of a link.
struct Road<'a> {
    link: &'a Arc<Link>,
    toward: Toward,
    /// From the first piece that was delayed on all go so, in their order.
    later: Option<Courier>,
}

impl Road<'_> {
    fn send(&mut self, piece: Vec<u8>, delay: Option<Duration>) -> io::Result<()> {
        if delay.is_none() && self.later.is_none() {
            return self.link.write(self.toward, &piece);
        }
        let (later, _) = self.later.get_or_insert_with(|| {
            let (later, pieces) = channel();
            let (link, toward) = (self.link.clone(), self.toward);
            (later, thread::spawn(move || bring(&pieces, &link, toward)))
        });
        let due = Clock::system().now() + delay.unwrap_or_default();
        later.send((due, piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Waits until everything has arrived.
    fn arrive(&mut self) {
        if let Some((later, bringer)) = self.later.take() {
            drop(later);
            let _ = bringer.join();
        }
    }
}

/// Brings each piece when its time has come.
fn bring(pieces: &Receiver<(Instant, Vec<u8>)>, link: &Link, toward: Toward) {
    for (due, piece) in pieces {
        wait(due.saturating_duration_since(Clock::system().now()));
        if link.dead.load(Ordering::Acquire) || link.write(toward, &piece).is_err() {
            return;
        }
    }
}

impl Link {
    fn write(&self, toward: Toward, piece: &[u8]) -> io::Result<()> {
        let to = if toward == Toward::Server { self.server.as_ref() } else { Some(&self.client) };
        to.map_or(Ok(()), |mut to| to.write_all(piece))
    }

    fn cut(&self) {
        self.dead.store(true, Ordering::Release);
        for stream in [Some(&self.client), self.server.as_ref()].into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn reset(&self) {
        self.dead.store(true, Ordering::Release);
        for stream in [Some(&self.client), self.server.as_ref()].into_iter().flatten() {
            // What closes without lingering is reset. Only readers are woken: the end of writing would be told
            // politely.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a delay on the wire is one of real time")]
fn wait(delay: Duration) {
    thread::sleep(delay);
}
