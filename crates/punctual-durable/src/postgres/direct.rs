//! Whether a connection goes to the server itself. A pooler may give each transaction another server process, and a
//! statement that was prepared is then unknown, or worse, is one that somebody else prepared by the same name.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{CancelToken, Client, Error};

/// A server says at the beginning which process it is; a pooler says something of its own. Does it match who answers?
pub(super) async fn is_direct(client: &Client) -> Result<bool, Error> {
    let answers: i32 = client.query_typed_one("SELECT pg_backend_pid()", &[]).await?.try_get(0)?;
    Ok(told_process(&client.cancel_token()).await.is_ok_and(|told| told == answers))
}

/// The process that the connection was told of. The driver keeps it for requests to cancel, so one is written, to
/// nobody.
async fn told_process(token: &CancelToken) -> io::Result<i32> {
    let (mut near, far) = tokio::io::duplex(64);
    // If it asks for encryption: yes.
    near.write_all(b"S").await?;
    token.cancel_query_raw(far, Plain).await.map_err(io::Error::other)?;
    let mut sent = Vec::new();
    near.read_to_end(&mut sent).await?;
    // Length, code, process and key, four bytes each, after whatever came before.
    match sent.last_chunk::<16>() {
        Some(&[.., a, b, c, d, _, _, _, _]) => Ok(i32::from_be_bytes([a, b, c, d])),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Encryption that is none, for what never leaves the process.
struct Plain;

struct PlainStream(DuplexStream);

impl TlsConnect<DuplexStream> for Plain {
    type Stream = PlainStream;
    type Error = io::Error;
    type Future = Ready<io::Result<PlainStream>>;

    fn connect(self, stream: DuplexStream) -> Self::Future {
        ready(Ok(PlainStream(stream)))
    }
}

impl TlsStream for PlainStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for PlainStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for PlainStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
