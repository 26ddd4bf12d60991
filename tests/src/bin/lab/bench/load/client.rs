//! The client: so many threads that each do the same thing over and over, for so long.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use socket2::{Domain, Socket, Type};

use super::super::sample::{Times, histogram};
use super::{Done, Kind, pin, wanted};

/// How long it waits for each step: a connection that takes longer has failed, and a lost packet is sent anew before.
const PATIENCE: Duration = Duration::from_secs(2);
/// After so many failures a thread gives up: what does not work need not be seen not to work for seconds.
const MOST_FAILURES: u64 = 20;
/// What a stream is written in.
const PIECE: usize = 64 * 1024;

/// Arguments of `lab load ask`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Ask {
    /// What it does
    #[arg(long, value_enum)]
    pub(crate) kind: Kind,
    /// Whom it asks
    #[arg(long)]
    pub(crate) to: SocketAddr,
    /// How many threads do it
    #[arg(long)]
    pub(crate) at_once: usize,
    /// For how long it is measured
    #[arg(long)]
    pub(crate) milliseconds: u64,
    /// For how long before
    #[arg(long)]
    pub(crate) warm_up: u64,
    /// The only processor to run on
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
}

impl Ask {
    /// The arguments that make one of it again.
    pub(crate) fn args(&self) -> Vec<String> {
        let mut args = vec![
            format!("--kind={}", self.kind),
            format!("--to={}", self.to),
            format!("--at-once={}", self.at_once),
            format!("--milliseconds={}", self.milliseconds),
            format!("--warm-up={}", self.warm_up),
        ];
        args.extend(self.cpu.map(|cpu| format!("--cpu={cpu}")));
        args
    }
}

/// What a thread has done.
struct Part {
    operations: u64,
    failed: u64,
    failure: Option<String>,
    bytes: u64,
    seconds: f64,
    times: Histogram<u64>,
    connects: Histogram<u64>,
}

impl Part {
    fn new() -> Self {
        Self {
            operations: 0,
            failed: 0,
            failure: None,
            bytes: 0,
            seconds: 0.0,
            times: histogram(),
            connects: histogram(),
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.failed += 1;
        self.failure.get_or_insert_with(|| error.to_string());
    }

    fn has_given_up(&self) -> bool {
        self.failed >= MOST_FAILURES
    }
}

/// When measuring begins and ends.
#[derive(Clone, Copy)]
struct Span {
    begin: Instant,
    end: Instant,
}

/// Does it.
pub(super) fn run(ask: &Ask) -> Result<Done> {
    pin(ask.cpu)?;
    let together = Barrier::new(ask.at_once);
    let parts: Vec<Part> = thread::scope(|scope| {
        let start = |_| scope.spawn(|| part(ask, &together));
        let threads: Vec<_> = (0..ask.at_once).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Part>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
    let cpu = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    let mut done = Done {
        cpu_seconds: cpu as f64 / 1e6,
        ..Done::default()
    };
    let (mut times, mut connects) = (histogram(), histogram());
    for part in parts {
        done.operations += part.operations;
        done.failed += part.failed;
        done.failure = done.failure.or(part.failure);
        done.bytes += part.bytes;
        done.seconds = done.seconds.max(part.seconds);
        times.add(part.times).context("adding up times")?;
        connects.add(part.connects).context("adding up times")?;
    }
    (done.times, done.connects) = (Times::of(&times), Times::of(&connects));
    Ok(done)
}

fn part(ask: &Ask, together: &Barrier) -> Part {
    let mut part = Part::new();
    // Whoever cannot connect must not keep the others waiting.
    let asker = match ask.kind {
        Kind::TcpCrr => Ok(None),
        Kind::TcpRr => tcp(ask.to).map(|stream| Some(Asker::Tcp(stream))),
        Kind::UdpRr => udp(ask.to).map(|socket| Some(Asker::Udp(socket))),
        Kind::TcpStream => tcp(ask.to).map(|stream| Some(Asker::Stream(stream))),
    };
    together.wait();
    let begin = Instant::now() + Duration::from_millis(ask.warm_up);
    let span = Span {
        begin,
        end: begin + Duration::from_millis(ask.milliseconds),
    };
    match asker {
        Ok(None) => connect_and_ask(ask.to, span, &mut part),
        Ok(Some(Asker::Tcp(stream))) => ask_again(
            span,
            &mut part,
            |byte| (&stream).write_all(byte),
            |byte| (&stream).read(byte),
        ),
        Ok(Some(Asker::Udp(socket))) => ask_again(
            span,
            &mut part,
            |byte| socket.send(byte).map(drop),
            |byte| socket.recv(byte),
        ),
        Ok(Some(Asker::Stream(mut stream))) => {
            if let Err(error) = send(&mut stream, span, &mut part) {
                part.fail(&error);
            }
        }
        Err(error) => part.fail(&error),
    }
    part
}

enum Asker {
    Tcp(TcpStream),
    Udp(UdpSocket),
    Stream(TcpStream),
}

fn open(to: SocketAddr, kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), kind, None)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // For how long connecting waits too.
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn tcp(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = open(to, Type::STREAM)?;
    socket.connect(&to.into())?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

fn udp(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = open(to, Type::DGRAM)?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

fn connect_and_ask(to: SocketAddr, span: Span, part: &mut Part) {
    let mut last = Instant::now();
    while last < span.end && !part.has_given_up() {
        let begun = Instant::now();
        let asked = || -> io::Result<(Duration, Duration)> {
            let socket = open(to, Type::STREAM)?;
            socket.connect(&to.into())?;
            let connected = begun.elapsed();
            (&socket).write_all(&[wanted::ECHO])?;
            (&socket).read_exact(&mut [0])?;
            // This end closes first and has the wait for stragglers (TIME_WAIT); the servers' ports stay free of it.
            Ok((connected, begun.elapsed()))
        };
        let result = asked();
        last = Instant::now();
        if begun < span.begin && result.is_ok() {
            continue;
        }
        match result {
            Ok((connected, answered)) => {
                part.operations += 1;
                part.connects.saturating_record(nanoseconds(connected));
                part.times.saturating_record(nanoseconds(answered));
            }
            Err(error) => part.fail(&error),
        }
    }
    part.seconds = last.saturating_duration_since(span.begin).as_secs_f64();
}

fn ask_again(
    span: Span,
    part: &mut Part,
    send: impl Fn(&[u8]) -> io::Result<()>,
    receive: impl Fn(&mut [u8]) -> io::Result<usize>,
) {
    let mut last = Instant::now();
    while last < span.end && !part.has_given_up() {
        let begun = last;
        let asked = send(&[wanted::ECHO]).and_then(|()| match receive(&mut [0; 8])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        });
        last = Instant::now();
        if begun < span.begin && asked.is_ok() {
            continue;
        }
        match asked {
            Ok(()) => {
                part.operations += 1;
                part.times.saturating_record(nanoseconds(last - begun));
            }
            Err(error) => part.fail(&error),
        }
    }
    part.seconds = last.saturating_duration_since(span.begin).as_secs_f64();
}

/// Measures from the first byte on: what lies in buffers when the warm-up is over would else count as sent.
fn send(stream: &mut TcpStream, span: Span, part: &mut Part) -> io::Result<()> {
    let piece = vec![0; PIECE];
    let begun = Instant::now();
    stream.write_all(&[wanted::SINK])?;
    while Instant::now() < span.end {
        stream.write_all(&piece)?;
        part.operations += 1;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut received = [0; 8];
    stream.read_exact(&mut received)?;
    part.seconds = begun.elapsed().as_secs_f64();
    part.bytes = u64::from_be_bytes(received);
    Ok(())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
