//! Futures that use tokio's I/O and timers: on our threads with tokio entered, or handed to tokio altogether.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use punctual::Scheduler;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Runtime::new()?;
    let handle = runtime.handle().clone();
    let entered = Scheduler::builder().enter(move |work| {
        let _guard = handle.enter();
        work();
    });
    let handle = runtime.handle().clone();
    let handed_over = Scheduler::builder().futures_on(move |future| drop(handle.spawn(future)));
    for scheduler in [entered.build()?, handed_over.build()?] {
        let mut echo = scheduler.now().spawn(|_| async { echo_once(b"on time").await })?.flatten();
        assert_eq!(echo.wait()?, b"on time");
    }
    println!("both ways the bytes came back");
    Ok(())
}

async fn echo_once(sent: &[u8]) -> std::io::Result<Vec<u8>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut client = TcpStream::connect(listener.local_addr()?).await?;
    let (mut server, _) = listener.accept().await?;
    client.write_all(sent).await?;
    let mut buffer = vec![0; sent.len()];
    server.read_exact(&mut buffer).await?;
    server.write_all(&buffer).await?;
    client.read_exact(&mut buffer).await?;
    Ok(buffer)
}
