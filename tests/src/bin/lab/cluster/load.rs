//! Requests that go on while something else is done, each on a connection of its own, and connections that stay.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use comfy_table::Table;
use lb_tests::interrupt;

use super::requests::Way;

/// Between two requests.
const PAUSE: Duration = Duration::from_millis(5);
/// Between two on a connection that stays, of which a server takes a thousand at most.
const LONG_PAUSE: Duration = Duration::from_millis(200);
/// When the kernel sends the first packet of a connection again.
const RETRANSMISSION: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

/// What came of one way's requests.
#[derive(Debug, Default)]
struct Tally {
    answered: u32,
    failed: u32,
    slowest: Duration,
    /// How many took so long that a packet must have been lost.
    late: u32,
    errors: Vec<String>,
}

impl Tally {
    fn note(&mut self, begun: Instant, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.answered += 1,
            Err(error) => {
                self.failed += 1;
                self.errors.push(format!("{error:#}"));
            }
        }
        self.late += u32::from(begun.elapsed() >= RETRANSMISSION);
        self.slowest = self.slowest.max(begun.elapsed());
    }
}

/// Requests along several ways at once.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<(Way, JoinHandle<[Tally; 2]>)>,
}

impl Load {
    pub(super) fn start(ways: Vec<Way>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for way in ways {
            let (stop, own) = (Arc::clone(&stop), way.clone());
            let thread = thread::Builder::new().spawn(move || go_on(&own, &stop));
            threads.push((way, thread.context("starting a thread")?));
        }
        Ok(Self { stop, threads })
    }

    /// Lets it go on for a while.
    pub(super) fn wait(&self, duration: Duration) -> Result<()> {
        for (way, thread) in &self.threads {
            ensure!(
                !thread.is_finished(),
                "requests from {} to {} have ended",
                way.client,
                way.to
            );
        }
        Ok(interrupt::sleep(duration)?)
    }

    /// Ends it, and says what came of it.
    pub(super) fn end(self) -> Result<Outcome> {
        self.stop.store(true, Ordering::Relaxed);
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_header([
            "from",
            "service",
            "asked",
            "new connections",
            "failed",
            "slowest ms",
            "on an old one",
            "failed",
        ]);
        let (mut requests, mut failed, mut late) = (0, 0, 0);
        for (way, thread) in self.threads {
            let tallies = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for tally in &tallies {
                requests += tally.answered + tally.failed;
                failed += tally.failed;
                late += tally.late;
                for error in tally.errors.iter().take(3) {
                    eprintln!("{} to {}: {error}", way.client, way.to);
                }
            }
            let [new, old] = tallies;
            table.add_row([
                way.client.to_owned(),
                way.service.to_owned(),
                way.to.to_string(),
                new.answered.to_string(),
                new.failed.to_string(),
                new.slowest.as_millis().to_string(),
                old.answered.to_string(),
                old.failed.to_string(),
            ]);
        }
        Ok(Outcome {
            requests,
            failed,
            late,
            table,
        })
    }
}

/// What came of all requests.
pub(super) struct Outcome {
    requests: u32,
    failed: u32,
    late: u32,
    /// A line for each way.
    pub(super) table: Table,
}

impl Outcome {
    /// Whether nothing failed.
    pub(super) fn is_good(&self) -> bool {
        self.failed == 0 && self.requests > 0
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requests, failed, late, ..
        } = self;
        write!(
            f,
            "{failed} failed of {requests} requests, {late} took a second or more"
        )
    }
}

fn go_on(way: &Way, stop: &AtomicBool) -> [Tally; 2] {
    let [mut new, mut old] = <[Tally; 2]>::default();
    let mut connection = None;
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        // The client closes it: a pod that does remembers the client's port, and all ways lead to the same pods.
        new.note(begun, on(&mut None, way));
        if Instant::now() >= due {
            due = Instant::now() + LONG_PAUSE;
            let begun = Instant::now();
            old.note(begun, on(&mut connection, way));
        }
        thread::sleep(PAUSE);
    }
    [new, old]
}

/// One request on a connection that stays, which is made if there is none or the last one failed.
fn on(connection: &mut Option<TcpStream>, way: &Way) -> Result<()> {
    let mut stream = match connection.take() {
        Some(stream) => stream,
        None => {
            let stream = way.from.run(|| TcpStream::connect_timeout(&way.to, PATIENCE))?;
            let stream = stream.context("connecting for long")?;
            stream.set_read_timeout(Some(PATIENCE)).context("a timeout")?;
            stream
        }
    };
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", way.to);
    stream
        .write_all(request.as_bytes())
        .context("writing to an old connection")?;
    let mut said = Vec::new();
    let mut part = [0; 4096];
    // The body is a line.
    while !said
        .windows(4)
        .position(|end| end == b"\r\n\r\n")
        .is_some_and(|end| said[end + 4..].contains(&b'\n'))
    {
        let length = stream.read(&mut part).context("reading from an old connection")?;
        ensure!(length > 0, "an old connection was closed");
        said.extend(&part[..length]);
    }
    ensure!(said.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&said));
    *connection = Some(stream);
    Ok(())
}
