//! Asks a Service over and over which endpoint answers, until one does that is waited for.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lb_tests::interrupt;
use lb_tests::netns::Netns;
use lb_tests::patience::patient;

use super::load::WHERE;

/// Between two questions: short against what is measured, and still leaves the processors to those who are measured.
const PAUSE: Duration = Duration::from_micros(500);
/// How long a question may take. One that gets no answer is asked anew sooner than TCP would.
const ANSWER: Duration = Duration::from_millis(50);

/// Asks from within a namespace, and says when the first answer was there that came from one of these addresses; from any
/// if there are none. Every question is a connection of its own.
pub(crate) fn until_answered(
    netns: &Netns,
    to: SocketAddr,
    by: impl Fn(IpAddr) -> bool + Sync,
    within: Duration,
) -> Result<Instant> {
    netns.run(|| {
        let begun = Instant::now();
        loop {
            let answered = ask(to, answer_limit(begun.elapsed()));
            let now = Instant::now();
            if answered.is_some_and(&by) {
                return Ok(now);
            }
            interrupt::check()?;
            let waited = begun.elapsed();
            if waited > patient(within) {
                bail!("{to} is answered by {answered:?} after {} s", within.as_secs());
            }
            std::thread::sleep(pause(waited));
        }
    })?
}

/// A five-hundredth of what has been waited is still exact.
fn pause(waited: Duration) -> Duration {
    (waited / 500).clamp(PAUSE, Duration::from_millis(20))
}

fn answer_limit(waited: Duration) -> Duration {
    (waited / 50).clamp(ANSWER, Duration::from_secs(1))
}

/// The address at which the server was asked that has answered.
fn ask(to: SocketAddr, within: Duration) -> Option<IpAddr> {
    let mut stream = TcpStream::connect_timeout(&to, within).ok()?;
    stream.set_read_timeout(Some(within)).ok()?;
    stream.write_all(&[WHERE]).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
