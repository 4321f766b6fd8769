//! A client that one can watch byte by byte, and that goes in every way a client can.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::Error;

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    head: Vec<String>,
}

impl Client {
    pub(crate) async fn get(server: SocketAddr, tenant: &str, pages: u32) -> Result<Self, Error> {
        let mut stream = TcpStream::connect(server).await?;
        let request = format!(
            "GET /render/{pages} HTTP/1.1\r\nhost: {server}\r\nx-tenant: {tenant}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        Ok(Self { stream: BufReader::new(stream), head: Vec::new() })
    }

    /// Waits for the head of the answer, and gives the status.
    pub(crate) async fn head(&mut self) -> Result<u16, Error> {
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).await?;
            match line.trim_end() {
                "" => break,
                text => self.head.push(text.to_owned()),
            }
        }
        Ok(self.status_line().split(' ').nth(1).unwrap_or_default().parse()?)
    }

    pub(crate) fn status_line(&self) -> &str {
        self.head.first().map_or("", String::as_str)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The next piece of a body that is sent in chunks; none at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<String>, Error> {
        let mut size = String::new();
        self.stream.read_line(&mut size).await?;
        let size = usize::from_str_radix(size.trim_end(), 16)?;
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).await?;
        chunk.truncate(size);
        Ok(if size == 0 { None } else { Some(String::from_utf8(chunk)?) })
    }

    pub(crate) async fn body(&mut self) -> Result<String, Error> {
        let mut body = String::new();
        while let Some(chunk) = self.chunk().await? {
            body += &chunk;
        }
        Ok(body)
    }

    /// Says that it will send nothing more, and waits on.
    #[cfg(test)]
    pub(crate) async fn half_close(&mut self) -> Result<(), Error> {
        Ok(self.stream.get_mut().shutdown().await?)
    }

    /// Goes, with an orderly end of its side. What has arrived must have been read, or this is a reset.
    #[cfg(test)]
    pub(crate) fn close(self) {
        drop(self);
    }

    /// Goes at once, without a word: what is in the air is thrown away.
    pub(crate) fn reset(self) -> Result<(), Error> {
        self.stream.get_ref().set_zero_linger()?;
        Ok(())
    }
}
