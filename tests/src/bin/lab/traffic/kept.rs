//! Long connections: each is asked again and again, and answered by the same endpoint for as long as it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lb_tests::client::{Failure, Protocol};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::lane::{Dialler, Lane};
use super::record::{Fault, Kind, Record};
use super::talk::{self, Talk};

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(500);
/// So often a question is longer than a packet, over TCP.
const LONG_EVERY: usize = 8;
/// How long that one is.
const LONG: usize = 3000;

/// Some of them.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: &'static str,
    /// Whether another one comes in the place of one that broke.
    pub(super) is_refilled: bool,
    /// How many are open.
    pub(super) open: AtomicUsize,
}

/// One of a group.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) dialler: Arc<Dialler>,
    pub(super) lane: Lane,
    pub(super) group: Arc<Group>,
    pub(super) number: usize,
    pub(super) record: Arc<Record>,
    /// Says when it is over.
    pub(super) over: watch::Receiver<bool>,
}

impl Kept {
    /// Keeps it until it is over, or until it breaks where no other one is to take its place.
    pub(super) async fn run(mut self) {
        loop {
            let at = self.record.begin(&self.lane);
            let opened = match talk::open(&self.dialler, &self.lane).await {
                Ok(mut talk) => talk.ask("first").await.map(|server| (talk, server)),
                Err(failure) => Err(failure),
            };
            let is_open = opened.is_ok();
            self.record
                .end(&self.lane, at, opened.as_ref().map(drop).map_err(Clone::clone));
            if let Ok((talk, server)) = opened {
                self.group.open.fetch_add(1, Ordering::Relaxed);
                self.ask_on(talk, server).await;
                self.group.open.fetch_sub(1, Ordering::Relaxed);
            }
            if *self.over.borrow() || (is_open && !self.group.is_refilled) {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    /// Asks until it is over, and once more then; or until the connection breaks.
    async fn ask_on(&mut self, mut talk: Talk, mut server: String) {
        // Not all at once.
        let mut pause = PAUSE * u32::try_from(self.number % 16).unwrap_or_default() / 16;
        for turn in 1_usize.. {
            let is_last = timeout(pause, self.over.wait_for(|over| *over)).await.is_ok();
            pause = PAUSE;
            let at = self.record.now();
            self.record.asked();
            let answer = talk.ask(&question(self.lane.protocol, turn)).await;
            if let Err(why) = judge(&mut server, answer) {
                self.note(at, why);
                if self.lane.protocol == Protocol::Tcp {
                    return;
                }
            }
            if is_last {
                return;
            }
        }
    }

    fn note(&self, at: Duration, why: String) {
        self.record.add(Fault {
            kind: match self.lane.protocol {
                Protocol::Tcp => Kind::Reset,
                Protocol::Udp => Kind::LostDatagram,
            },
            at,
            lasted: self.record.now() - at,
            group: Some(self.group.name),
            number: self.number,
            way: self.lane.to_string(),
            why,
        });
    }
}

fn question(protocol: Protocol, turn: usize) -> String {
    match protocol {
        Protocol::Tcp if turn.is_multiple_of(LONG_EVERY) => format!("{turn:0LONG$}"),
        _ => turn.to_string(),
    }
}

/// What is wrong with an answer, which is to come from this server. If it was another one, that is it from then on.
fn judge(server: &mut String, answer: Result<String, Failure>) -> Result<(), String> {
    let who = answer.map_err(|failure| failure.to_string())?;
    if *server == who {
        return Ok(());
    }
    let before = std::mem::replace(server, who);
    Err(format!("answered by {server}, where {before} had answered before"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_moved_to_another_endpoint_is_a_fault_once() {
        let mut server = "a".to_owned();
        assert!(judge(&mut server, Ok("a".to_owned())).is_ok());
        let why = judge(&mut server, Ok("b".to_owned())).unwrap_err();
        assert_eq!(why, "answered by b, where a had answered before");
        assert!(judge(&mut server, Ok("b".to_owned())).is_ok());
        assert_eq!(judge(&mut server, Err(Failure::Reset)).unwrap_err(), "broken off");
    }

    #[test]
    fn now_and_then_a_question_is_longer_than_a_packet() {
        assert_eq!(question(Protocol::Tcp, 8).len(), LONG);
        assert_eq!(question(Protocol::Tcp, 9), "9");
        assert_eq!(question(Protocol::Udp, 8), "8");
    }
}
