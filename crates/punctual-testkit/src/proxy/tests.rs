use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, channel};

use super::*;

/// Longer than anything takes here, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that says back what it hears, to any number of clients, as long as the test runs.
fn echo() -> SocketAddr {
    serve(|mut stream| {
        let mut buffer = [0; 1024];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    })
}

fn serve(talk: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let talk = talk.clone();
            thread::spawn(move || talk(stream));
        }
    });
    addr
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn say(mut stream: &TcpStream, words: &[u8]) {
    stream.write_all(words).unwrap();
}

/// What comes next, in full.
fn hear(mut stream: &TcpStream, words: &[u8]) {
    let mut heard = vec![0; words.len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, words);
}

/// What still comes before the end.
fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut heard = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return heard,
            Ok(length) => heard.extend_from_slice(&buffer[..length]),
            // The end of a connection with something unread is a reset.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return heard,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn everything_passes_and_is_counted() {
    let proxy = Proxy::start(echo());
    let (one, two) = (connect(&proxy), connect(&proxy));
    let long = vec![7; 300_000];
    thread::scope(|scope| {
        scope.spawn(|| say(&one, &long));
        hear(&one, &long);
    });
    say(&two, b"two");
    hear(&two, b"two");
    // An end is passed on too, in both directions.
    one.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&one), b"");
    let counts = Counts { connections: 2, to_server: 300_003, to_client: 300_003, ..Counts::default() };
    assert_eq!(proxy.counts(), counts);
}

#[test]
fn a_cut_closes_all_connections_and_none_to_come() {
    let proxy = Proxy::start(echo());
    let streams = [connect(&proxy), connect(&proxy)];
    for stream in &streams {
        say(stream, b"x");
        hear(stream, b"x");
    }
    assert_eq!(proxy.cut(), 2);
    for stream in &streams {
        assert_eq!(rest(stream), b"");
    }
    assert_eq!(proxy.cut(), 0);
    let stream = connect(&proxy);
    say(&stream, b"y");
    hear(&stream, b"y");
    assert_eq!((proxy.counts().cut, proxy.counts().connections), (2, 3));
}

#[test]
fn a_connection_that_ended_by_itself_is_not_cut() {
    let proxy = Proxy::start(echo());
    let stream = connect(&proxy);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&stream), b"");
    // The end that the client heard is told under the lock that the list is tidied under.
    assert_eq!(proxy.cut(), 0);
}

#[test]
fn a_reset_is_not_an_end() {
    let (tell, told) = channel();
    let server = serve(move |mut stream| {
        let mut buffer = [0; 16];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return tell.send(None).unwrap(),
                Ok(length) => stream.write_all(&buffer[..length]).unwrap(),
                Err(error) => return tell.send(Some(error.kind())).unwrap(),
            }
        }
    });
    let proxy = Proxy::start(server);
    let mut stream = connect(&proxy);
    say(&stream, b"x");
    hear(&stream, b"x");
    assert_eq!(proxy.reset(), 1);
    let error = stream.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Some(ErrorKind::ConnectionReset));
    assert_eq!(proxy.counts().reset, 1);
}

#[test]
fn a_blackhole_takes_everything_and_gives_nothing() {
    let proxy = Proxy::start(echo());
    let old = connect(&proxy);
    say(&old, b"x");
    hear(&old, b"x");
    proxy.blackhole();
    let new = connect(&proxy);
    for stream in [&old, &new] {
        say(stream, b"hello");
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut stream = stream;
        let error = stream.read(&mut [0; 8]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    while proxy.counts().swallowed < 10 {
        thread::yield_now();
    }
    assert_eq!(proxy.counts().to_server, 1);
    // Nobody can go on with a connection that lost bytes.
    proxy.pass();
    assert_eq!((rest(&old), rest(&new)), (Vec::new(), Vec::new()));
    let stream = connect(&proxy);
    say(&stream, b"y");
    hear(&stream, b"y");
}

#[test]
fn a_connection_that_is_forgotten_is_silent_and_a_new_one_is_not() {
    let proxy = Proxy::start(echo());
    let old = connect(&proxy);
    say(&old, b"x");
    hear(&old, b"x");
    assert_eq!(proxy.forget(), 1);
    let new = connect(&proxy);
    say(&old, b"hello");
    say(&new, b"y");
    hear(&new, b"y");
    while proxy.counts().swallowed < 5 {
        thread::yield_now();
    }
    old.set_nonblocking(true).unwrap();
    assert_eq!((&old).read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(proxy.counts().to_server, 2);
}

#[test]
fn what_a_blackhole_did_not_touch_goes_on() {
    let proxy = Proxy::start(echo());
    let stream = connect(&proxy);
    say(&stream, b"x");
    hear(&stream, b"x");
    proxy.blackhole();
    proxy.pass();
    say(&stream, b"y");
    hear(&stream, b"y");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a delay on the wire is one of real time")]
fn a_delay_delays_either_way() {
    let proxy = Proxy::start(echo());
    let stream = connect(&proxy);
    proxy.delay(Duration::from_millis(30));
    let start = std::time::Instant::now();
    say(&stream, b"x");
    hear(&stream, b"x");
    assert!(start.elapsed() >= Duration::from_millis(60));
    assert_eq!(proxy.counts().delayed, 2);
    proxy.pass();
    say(&stream, b"y");
    hear(&stream, b"y");
    assert_eq!(proxy.counts().delayed, 2);
}

/// A delay is no bound on how much is on its way: ten pieces, each sent when the one before has set out, arrive one
/// delay later and not ten.
#[test]
#[allow(clippy::disallowed_methods, reason = "a delay on the wire is one of real time")]
fn what_is_delayed_holds_up_nothing_behind_it() {
    const DELAY: Duration = Duration::from_millis(300);
    let (tell, told) = channel();
    let server = serve(move |mut stream| {
        let mut heard = [0; 10];
        stream.read_exact(&mut heard).unwrap();
        tell.send(heard).unwrap();
    });
    let proxy = Proxy::start(server);
    let stream = connect(&proxy);
    proxy.delay(DELAY);
    let start = std::time::Instant::now();
    for number in 0..10 {
        say(&stream, &[number]);
        while proxy.counts().delayed <= u64::from(number) {
            thread::yield_now();
        }
    }
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert!((DELAY..DELAY * 10).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[test]
fn a_cut_after_so_many_bytes_is_exact_and_happens_once() {
    let proxy = Proxy::start(echo());
    let stream = connect(&proxy);
    proxy.cut_after(7);
    say(&stream, b"hello");
    hear(&stream, b"hello");
    assert_eq!(proxy.counts().cut, 0);
    say(&stream, b"world");
    assert_eq!(rest(&stream), b"wo");
    assert_eq!((proxy.counts().cut, proxy.counts().to_client), (1, 7));
    let stream = connect(&proxy);
    say(&stream, b"hello world");
    hear(&stream, b"hello world");
    assert_eq!(proxy.counts().cut, 1);
}

#[test]
fn a_server_that_is_not_there_is_an_end() {
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let proxy = Proxy::start(gone);
    assert_eq!(rest(&connect(&proxy)), b"");
}

/// A message as PostgreSQL writes it.
fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    let mut bytes = vec![tag];
    bytes.extend(length.to_be_bytes());
    bytes.extend(body);
    bytes
}

fn query(text: &str) -> Vec<u8> {
    message(b'Q', text.as_bytes())
}

/// A statement that is parsed.
fn parse(name: &str, text: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{text}\0").as_bytes())
}

/// A statement that was parsed is executed.
fn execute(name: &str) -> Vec<u8> {
    [message(b'B', format!("\0{name}\0").as_bytes()), message(b'E', b""), message(b'S', b"")].concat()
}

/// A statement that is parsed and executed.
fn statement(text: &str) -> Vec<u8> {
    [parse("", text), execute("")].concat()
}

fn reply(ready: &[u8]) -> Vec<u8> {
    [message(b'C', b"done"), message(b'Z', ready)].concat()
}

/// A server that has transactions and says what it did.
fn little_postgres() -> (SocketAddr, Receiver<String>) {
    let (tell, told) = channel();
    let addr = serve(move |mut stream| {
        let mut requests = talk::Messages::of_client();
        let (mut buffer, mut open, mut bound) = ([0; 1024], false, String::new());
        let mut parsed = HashMap::new();
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            for talk::Message { tag, body, .. } in requests.take(&buffer[..length]) {
                let body = String::from_utf8_lossy(&body).into_owned();
                let text = match tag {
                    b'Q' => body,
                    b'P' => {
                        let (name, text) = body.trim_end_matches('\0').split_once('\0').unwrap();
                        parsed.insert(name.to_owned(), text.to_owned());
                        continue;
                    }
                    b'B' => {
                        bound.clone_from(&parsed[body.trim_matches('\0')]);
                        continue;
                    }
                    b'S' => std::mem::take(&mut bound),
                    0 => "hello".to_owned(),
                    1 => {
                        stream.write_all(b"N").unwrap();
                        continue;
                    }
                    _ => continue,
                };
                match text.as_str() {
                    "BEGIN" => open = true,
                    "COMMIT" => open = false,
                    _ => (),
                }
                tell.send(text).unwrap();
                if stream.write_all(&reply(if open { b"T" } else { b"I" })).is_err() {
                    return;
                }
            }
        }
    });
    (addr, told)
}

/// A connection that has said hello.
fn session(proxy: &Proxy) -> TcpStream {
    let stream = connect(proxy);
    say(&stream, &message(0, b"user")[1..]);
    hear(&stream, &reply(b"I"));
    stream
}

#[test]
fn the_reply_to_some_words_is_lost_when_they_are_done() {
    let (server, told) = little_postgres();
    let proxy = Proxy::start(server);
    for request in [query("SELECT finish(1)"), statement("SELECT finish(1)")] {
        let (stream, other) = (session(&proxy), session(&proxy));
        let lost = proxy.counts().replies_lost;
        proxy.lose_reply_to("finish(");
        say(&stream, &statement("SELECT claim(1)"));
        hear(&stream, &reply(b"I"));
        say(&stream, &request);
        assert_eq!(rest(&stream), b"", "not a byte of the reply");
        assert_eq!(proxy.counts().replies_lost, lost + 1);
        // It was done all the same, and others are not concerned; nor is the next one.
        let done: Vec<String> = told.try_iter().collect();
        assert_eq!(done, ["hello", "hello", "SELECT claim(1)", "SELECT finish(1)"]);
        say(&other, &request);
        hear(&other, &reply(b"I"));
        assert_eq!(told.try_iter().count(), 1);
    }
}

#[test]
fn what_was_prepared_long_before_is_known_by_its_name() {
    let (server, told) = little_postgres();
    let proxy = Proxy::start(server);
    let stream = session(&proxy);
    proxy.lose_reply_to("finish(");
    for (name, text) in [("s1", "SELECT finish(1)"), ("s2", "SELECT claim(1)")] {
        say(&stream, &[parse(name, text), message(b'S', b"")].concat());
        hear(&stream, &reply(b"I"));
    }
    say(&stream, &execute("s2"));
    hear(&stream, &reply(b"I"));
    say(&stream, &execute("s1"));
    assert_eq!((rest(&stream), proxy.counts().replies_lost), (Vec::new(), 1));
    assert_eq!(told.try_iter().last().as_deref(), Some("SELECT finish(1)"));
}

#[test]
fn requests_sent_ahead_keep_their_own_replies() {
    let (server, _told) = little_postgres();
    let proxy = Proxy::start(server);
    let stream = session(&proxy);
    proxy.lose_reply_to("finish(");
    let ahead = [statement("SELECT 1"), query("SELECT 2"), statement("SELECT finish(1)"), query("SELECT 3")].concat();
    // In pieces that cut messages anywhere.
    for piece in ahead.chunks(5) {
        say(&stream, piece);
    }
    assert_eq!(rest(&stream), [reply(b"I"), reply(b"I")].concat());
    assert_eq!(proxy.counts().replies_lost, 1);
    // Hello, and three or four: the last may have come too late.
    assert!((4..=5).contains(&proxy.counts().requests), "{:?}", proxy.counts());
}

#[test]
fn inside_a_transaction_it_is_the_reply_to_its_commit() {
    let (server, told) = little_postgres();
    let proxy = Proxy::start(server);
    let stream = session(&proxy);
    proxy.lose_reply_to("enqueue_batch");
    for text in ["BEGIN", "SELECT enqueue_batch()", "SELECT fire_end()"] {
        say(&stream, &statement(text));
        hear(&stream, &reply(b"T"));
    }
    say(&stream, &query("COMMIT"));
    assert_eq!(rest(&stream), b"");
    assert_eq!(told.try_iter().last().as_deref(), Some("COMMIT"));
    assert_eq!(proxy.counts().replies_lost, 1);
}

#[test]
fn a_wish_for_encryption_is_no_request() {
    let (server, _told) = little_postgres();
    let proxy = Proxy::start(server);
    let stream = connect(&proxy);
    say(&stream, &message(0, &80_877_103_u32.to_be_bytes())[1..]);
    hear(&stream, b"N");
    say(&stream, &message(0, b"user")[1..]);
    hear(&stream, &reply(b"I"));
    proxy.lose_reply_to("finish(");
    say(&stream, &[statement("SELECT 1"), statement("SELECT finish(1)")].concat());
    assert_eq!(rest(&stream), reply(b"I"));
    assert_eq!(proxy.counts().replies_lost, 1);
}

#[test]
fn what_is_encrypted_passes_unread_and_is_counted() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap());
    let stream = connect(&proxy);
    let (peer, _) = server.accept().unwrap();
    let wish = &message(0, &80_877_103_u32.to_be_bytes())[1..];
    say(&stream, wish);
    hear(&peer, wish);
    assert_eq!(proxy.counts().encrypted, 0);
    say(&peer, b"S");
    hear(&stream, b"S");
    proxy.lose_reply_to("finish(");
    say(&stream, &statement("SELECT finish(1)"));
    hear(&peer, &statement("SELECT finish(1)"));
    say(&peer, &reply(b"I"));
    hear(&stream, &reply(b"I"));
    let counts = proxy.counts();
    assert_eq!((counts.encrypted, counts.requests, counts.replies_lost), (1, 0, 0));
}

/// Only of a connection that waits for an answer something is broken off.
#[test]
fn what_is_under_way_is_broken_off() {
    let (tell, told) = channel();
    let server = serve(move |mut stream| {
        let mut buffer = [0; 1024];
        let _ = stream.read(&mut buffer);
        stream.write_all(&reply(b"I")).unwrap();
        while let Ok(1..) = stream.read(&mut buffer) {
            tell.send(()).unwrap();
        }
    });
    let proxy = Proxy::start(server);
    for (breaks, count) in [(Proxy::cut as fn(&Proxy) -> usize, 1), (Proxy::reset, 2)] {
        let (_idle, asking) = (session(&proxy), session(&proxy));
        say(&asking, &query("SELECT 1"));
        told.recv_timeout(PATIENCE).unwrap();
        assert_eq!((breaks(&proxy), proxy.counts().broken_off), (2, count));
    }
}
