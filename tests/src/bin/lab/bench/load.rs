//! The load: a server and a client of `netperf`'s kinds, each a process of its own where the network is that is measured.
//!
//! netperf itself is not free software in every distribution, does not tell connecting from asking, and prints quantiles
//! of its own choice. Here every time is kept. A thread serves one connection at a time with calls that block, so that
//! what is measured is the kernel's path and as little of ours as can be.

mod client;
mod server;

use std::fmt;

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use super::sample::Times;

pub(crate) use client::Ask;
pub(crate) use server::Serve;

/// The first byte of a connection, and each datagram, says what is wanted.
mod wanted {
    /// A byte in answer to this one and each that follows.
    pub(super) const ECHO: u8 = b'e';
    /// To send as much as one likes, and hear how much has arrived: eight bytes, the highest first.
    pub(super) const SINK: u8 = b's';
    /// The address that was dialled, as the server sees it: a line.
    pub(crate) const WHERE: u8 = b'w';
}

pub(crate) use wanted::WHERE;

/// What a client does over and over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Connect, ask, hear, close
    TcpCrr,
    /// Ask and hear over a connection that stays
    TcpRr,
    /// The same by UDP
    UdpRr,
    /// Send as fast as it goes
    TcpStream,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TcpCrr => "tcp-crr",
            Self::TcpRr => "tcp-rr",
            Self::UdpRr => "udp-rr",
            Self::TcpStream => "tcp-stream",
        })
    }
}

/// What a client has done, on its standard output as JSON.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// How many were answered.
    pub(crate) operations: u64,
    /// How many were not, and what came of the first of them.
    pub(crate) failed: u64,
    pub(crate) failure: Option<String>,
    /// How long all of it took.
    pub(crate) seconds: f64,
    /// What the server has received, of a stream.
    pub(crate) bytes: u64,
    /// How long each took, from begin to answer.
    pub(crate) times: Times,
    /// How long each took to connect.
    pub(crate) connects: Times,
    /// Processor time of the client.
    pub(crate) cpu_seconds: f64,
}

/// The two ends.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Answers
    Serve(Serve),
    /// Asks
    Ask(Ask),
}

/// Is one of them.
pub(crate) fn run(verb: &Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Serve(serve) => server::run(serve),
        Verb::Ask(ask) => {
            let done = client::run(ask)?;
            println!("{}", serde_json::to_string(&done)?);
            Ok(())
        }
    }
}

/// Keeps the whole process, and threads that it starts, on one processor.
fn pin(cpu: Option<usize>) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu).with_context(|| format!("there is no processor {cpu}"))?;
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)
        .with_context(|| format!("staying on processor {cpu}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream, UdpSocket};
    use std::time::Duration;

    use super::*;

    fn ask(kind: Kind, to: SocketAddr, at_once: usize) -> Done {
        client::run(&Ask {
            kind,
            to,
            at_once,
            milliseconds: 50,
            warm_up: 10,
            cpu: None,
        })
        .unwrap()
    }

    fn serve() -> server::Listening {
        server::listen(0).unwrap()
    }

    #[test]
    fn every_kind_of_load_is_answered_in_both_families() {
        for server in [serve()] {
            server.serve(4).unwrap();
            for host in ["127.0.0.1", "::1"] {
                let to = SocketAddr::new(host.parse().unwrap(), server.port());
                for kind in [Kind::TcpCrr, Kind::TcpRr, Kind::UdpRr, Kind::TcpStream] {
                    let done = ask(kind, to, 2);
                    assert_eq!((done.failed, &done.failure), (0, &None), "{kind} to {to}");
                    assert!(done.operations > 0 && done.seconds > 0.0, "{kind} to {to}: {done:?}");
                    let has_times = (done.times.count(), done.connects.count(), done.bytes);
                    match kind {
                        Kind::TcpCrr => assert_eq!(has_times, (done.operations, done.operations, 0)),
                        Kind::TcpRr | Kind::UdpRr => assert_eq!(has_times, (done.operations, 0, 0)),
                        Kind::TcpStream => assert!(done.bytes > 0 && has_times.0 == 0, "{done:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_answered_is_a_failure_and_no_operation() {
        let to = {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap()
        };
        let done = ask(Kind::TcpCrr, to, 1);
        assert_eq!((done.operations, done.times.count()), (0, 0));
        assert!(done.failed > 0);
        let failure = done.failure.unwrap();
        assert!(failure.contains("refused"), "{failure}");
    }

    #[test]
    fn a_server_says_at_which_of_its_addresses_it_was_asked() {
        let server = serve();
        server.serve(2).unwrap();
        for address in ["127.0.0.1", "127.3.2.1"] {
            let to = SocketAddr::new(address.parse().unwrap(), server.port());
            let mut tcp = TcpStream::connect(to).unwrap();
            tcp.write_all(&[WHERE]).unwrap();
            let mut text = String::new();
            tcp.shutdown(std::net::Shutdown::Write).unwrap();
            tcp.read_to_string(&mut text).unwrap();
            assert_eq!(text, format!("{address}\n"));

            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            udp.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            udp.send_to(&[WHERE], to).unwrap();
            let mut buffer = [0; 100];
            let (length, from) = udp.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..length], from), (format!("{address}\n").as_bytes(), to));
        }
    }
}
