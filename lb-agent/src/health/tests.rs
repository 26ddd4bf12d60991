//! A client of health checks.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

/// Longer than anything takes that works.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// What a server said.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    /// A header, by its name to the letter.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(known, _)| known == name);
        header.map(|(_, value)| value.as_str())
    }
}

/// Asks for a path on a connection of its own.
pub(crate) async fn ask(at: SocketAddr, path: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(at).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_owned(), value.to_owned())
    };
    Ok(Answer {
        status: status.and_then(|status| status.parse().ok()).unwrap(),
        headers: lines.map(header).collect(),
        body: body.to_owned(),
    })
}

pub(crate) async fn becomes_answered(at: SocketAddr) {
    let answered = async {
        while ask(at, "/").await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, answered).await.unwrap();
}

pub(crate) async fn becomes_refused(at: SocketAddr) {
    let refused = async {
        while !matches!(TcpStream::connect(at).await, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, refused).await.unwrap();
}

/// A port at which nobody listens, in neither family.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("[::]:0").unwrap();
    listener.local_addr().unwrap().port()
}
