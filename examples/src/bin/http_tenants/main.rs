//! A service that renders documents for tenants, over HTTP: 429 when a tenant's backlog is full, 503 when its turn did
//! not come in time, and no page is rendered for a client that is gone.
//!
//! Without arguments it plays a few requests against itself and ends; `--listen 127.0.0.1:8080` serves until ctrl-C:
//! `curl -N -H 'x-tenant: acme' http://127.0.0.1:8080/render/5`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod client;
mod press;
mod server;
#[cfg(test)]
mod tests;

use std::time::Duration;

use client::Client;
use press::Press;
use punctual::Scheduler;
use tokio::net::TcpListener;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demo().await,
        ["--listen", address] => listen(address).await,
        _ => Err("usage: http_tenants [--listen ADDRESS]".into()),
    }
}

async fn listen(address: &str) -> Result<(), Error> {
    let scheduler = Scheduler::builder().running_max(16).build()?;
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}; ctrl-C ends", listener.local_addr()?);
    let router = server::router(&scheduler, &Press::with_endless_paper());
    tokio::select! {
        served = server::serve(listener, router) => served?,
        pressed = tokio::signal::ctrl_c() => pressed?,
    }
    println!("{}", scheduler.shutdown_async(Duration::from_secs(10)).await);
    Ok(())
}

/// What a crowd of clients sees. The press has no paper at first, so that requests pile up.
async fn demo() -> Result<(), Error> {
    let scheduler = Scheduler::builder().running_max(16).build()?;
    let press = Press::without_paper();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(server::serve(listener, server::router(&scheduler, &press)));

    let mut leaves = Client::get(address, "acme", 100).await?;
    assert_eq!(leaves.head().await?, 200);
    let mut stays = Client::get(address, "acme", 2).await?;
    assert_eq!(stays.head().await?, 200);
    println!("acme has {} requests rendering", press.rendering());

    // Its limits are 2 running and 3 waiting, so three more are taken, and the next is refused.
    let acme = scheduler.tenant("acme", server::limits())?;
    let mut line = Vec::new();
    for waiting in 1..=3 {
        line.push(Client::get(address, "acme", 1).await?);
        while acme.snapshot().ready < waiting {
            tokio::task::yield_now().await;
        }
    }
    let mut refused = Client::get(address, "acme", 1).await?;
    assert_eq!(refused.head().await?, 429);
    println!("acme's sixth: {}, retry after {:?} s", refused.status_line(), refused.header("retry-after"));

    let mut other = Client::get(address, "zeta", 1).await?;
    assert_eq!(other.head().await?, 200);
    println!("zeta's first: {}, acme's crowd is not in its way", other.status_line());

    leaves.reset()?;
    assert_eq!(line[0].head().await?, 200);
    println!("a client of acme left: its work has stopped, and the next in line has begun");

    press.add_paper(1000);
    assert_eq!(stays.body().await?, "acme, page 1\nacme, page 2\n");
    assert_eq!(other.body().await?, "zeta, page 1\n");
    assert_eq!(line[0].body().await?, "acme, page 1\n");
    for client in &mut line[1..] {
        assert_eq!((client.head().await?, client.body().await?), (200, "acme, page 1\n".to_owned()));
    }
    press.until_rendering(0).await;
    println!("all others got their pages: {} rendered, none of the 100 that nobody waited for", press.rendered());
    assert_eq!(press.rendered(), 6);
    server.abort();
    Ok(())
}
