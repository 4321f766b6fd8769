//! Real sockets: what the work does when its client goes. Nothing sleeps; a wait that should end is given a minute.

use std::net::SocketAddr;
use std::time::Duration;

use punctual::{Scheduler, Snapshot, Tenant};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::press::Press;
use crate::server;

struct Rig {
    scheduler: Scheduler,
    press: Press,
    address: SocketAddr,
    server: JoinHandle<std::io::Result<()>>,
}

impl Rig {
    async fn new() -> Self {
        let scheduler = Scheduler::builder().running_max(16).build().expect("good settings");
        let press = Press::without_paper();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback is there");
        let address = listener.local_addr().expect("it is bound");
        let server = tokio::spawn(server::serve(listener, server::router(&scheduler, &press)));
        Self { scheduler, press, address, server }
    }

    fn acme(&self) -> Tenant {
        self.scheduler.tenant("acme", server::limits()).expect("the limits are those of the server")
    }

    /// A client that has the head and the first page of a long document.
    async fn reader(&self) -> Client {
        let mut client = Client::get(self.address, "acme", 100).await.expect("the server listens");
        assert_eq!(soon(client.head()).await.expect("an answer"), 200);
        self.press.add_paper(1);
        assert_eq!(soon(client.chunk()).await.expect("a page").as_deref(), Some("acme, page 1\n"));
        client
    }

    /// The work has stopped, and its permit is free.
    async fn assert_stopped(&self) -> Snapshot {
        soon(self.press.until_rendering(0)).await;
        let acme = self.acme();
        // The document goes just before its permit does.
        soon(async {
            while acme.snapshot().running > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        acme.snapshot()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("this ends, and soon")
}

#[tokio::test]
async fn a_client_that_resets_stops_its_work_at_once() {
    let rig = Rig::new().await;
    rig.reader().await.reset().unwrap();
    let snapshot = rig.assert_stopped().await;
    assert_eq!((rig.press.rendered(), snapshot.finished.cancelled), (1, 1));
}

#[tokio::test]
async fn a_client_that_closes_stops_its_work_when_the_next_page_is_sent() {
    let rig = Rig::new().await;
    rig.reader().await.close();
    rig.press.add_paper(1);
    let snapshot = rig.assert_stopped().await;
    assert_eq!((rig.press.rendered(), snapshot.finished.cancelled), (2, 1));
}

/// A client that shuts its write side down still waits for the answer: its work must not stop.
#[tokio::test]
async fn a_client_that_half_closes_gets_all_its_pages() {
    let rig = Rig::new().await;
    let mut client = rig.reader().await;
    client.half_close().await.unwrap();
    rig.press.add_paper(99);
    let rest = soon(client.body()).await.unwrap();
    assert_eq!(rest.lines().count(), 99);
    let snapshot = rig.assert_stopped().await;
    assert_eq!((rig.press.rendered(), snapshot.finished.succeeded), (100, 1));
}

/// The same before the answer has begun: the request is queued, its client half-closes, and gets its turn.
#[tokio::test]
async fn a_queued_request_goes_with_its_client_and_stays_with_a_half_closed_one() {
    let rig = Rig::new().await;
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut client = Client::get(rig.address, "acme", 100).await.unwrap();
        assert_eq!(soon(client.head()).await.unwrap(), 200);
        running.push(client);
    }
    let (leaves, mut stays) =
        (Client::get(rig.address, "acme", 1).await.unwrap(), Client::get(rig.address, "acme", 1).await.unwrap());
    stays.half_close().await.unwrap();
    let acme = rig.acme();
    let waiting = async |count| {
        while acme.snapshot().ready != count {
            tokio::task::yield_now().await;
        }
    };
    soon(waiting(2)).await;
    leaves.reset().unwrap();
    soon(waiting(1)).await;
    running.into_iter().for_each(|client| client.reset().unwrap());
    assert_eq!(soon(stays.head()).await.unwrap(), 200);
    soon(rig.press.until_rendering(1)).await;
    rig.press.add_paper(1);
    assert_eq!(soon(stays.body()).await.unwrap(), "acme, page 1\n");
    let snapshot = rig.assert_stopped().await;
    assert_eq!((snapshot.finished.cancelled, snapshot.finished.succeeded, rig.press.rendered()), (3, 1, 1));
}

#[tokio::test]
async fn a_full_backlog_is_429_with_a_time_to_try_again_and_others_are_served() {
    let rig = Rig::new().await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(Client::get(rig.address, "acme", 1).await.unwrap());
    }
    let acme = rig.acme();
    soon(async {
        while acme.snapshot().ready < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut refused = Client::get(rig.address, "acme", 1).await.unwrap();
    assert_eq!(soon(refused.head()).await.unwrap(), 429);
    assert_eq!(refused.header("retry-after"), Some("1"));
    rig.press.add_paper(6);
    let mut other = Client::get(rig.address, "zeta", 1).await.unwrap();
    assert_eq!(soon(other.head()).await.unwrap(), 200);
    for client in &mut clients {
        assert_eq!(soon(client.head()).await.unwrap(), 200);
        assert_eq!(soon(client.body()).await.unwrap(), "acme, page 1\n");
    }
}

#[tokio::test]
async fn a_closed_tenant_is_503() {
    let rig = Rig::new().await;
    rig.acme().close();
    let mut refused = Client::get(rig.address, "acme", 1).await.unwrap();
    assert_eq!(soon(refused.head()).await.unwrap(), 503);
}
