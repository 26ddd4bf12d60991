//! A client of HTTP/1.1 servers, for health checks.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::netns::Netns;
use crate::patience::patient;

/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a server said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Status, such as 200.
    pub status: u16,
    /// Headers, their names in small letters.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: String,
}

impl Answer {
    /// A header, by its name in small letters.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(known, _)| known == name);
        header.map(|(_, value)| value.as_str())
    }

    fn parse(text: &str) -> Result<Self> {
        let (head, body) = text
            .split_once("\r\n\r\n")
            .context("the head of the answer has no end")?;
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let headers = lines.filter_map(|line| line.split_once(": "));
        Ok(Self {
            status: status.context("there is no status")?.parse().context("the status")?,
            headers: headers
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect(),
            body: body.to_owned(),
        })
    }
}

/// Asks for a path from inside a network namespace.
pub fn get(netns: &Netns, from: SocketAddr, path: &str) -> Result<Answer> {
    let ask = || -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&from, patient(PATIENCE))?;
        stream.set_read_timeout(Some(patient(PATIENCE)))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {from}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let asked = netns.run(ask)?.and_then(|text| Answer::parse(&text));
    asked.with_context(|| format!("asking {from} for {path} from {}", netns.name()))
}
