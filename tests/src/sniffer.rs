//! Verifies the checksums of all that a link receives, beside whatever a test does there.
//!
//! A program that corrects a checksum wrongly is found by no test that only asks whether an answer comes: a segment that
//! is dropped for its checksum is sent again, and may be right by then. So every pod and every client outside has one of
//! these, and a packet that was wrong fails its test in the end, by name.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::capture::{Capture, Frame};
use crate::netlink::Link;
use crate::netns::Netns;

/// How many wrong packets are kept: the first ones say it all.
const KEPT: usize = 20;

/// Listens until it is dropped. That panics if a packet was wrong that nobody has [taken](Sniffer::take), unless the
/// thread is panicking already.
#[derive(Debug)]
pub struct Sniffer {
    place: String,
    wrong: Arc<Mutex<Vec<String>>>,
    /// Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Sniffer {
    /// Begins. Where links leave checksums to each other, packets without one are as good as any; elsewhere they are
    /// wrong.
    pub fn start(netns: &Netns, link: &Link, checksum_offload: bool) -> Result<Self> {
        let capture = Capture::start(netns, link)?;
        capture.ignore_outgoing()?;
        let place = netns.name().to_owned();
        let wrong = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = UnixStream::pair().context("making a pair of sockets")?;
        let thread = thread::Builder::new().name(format!("sniffer-{place}"));
        let thread = thread
            .spawn({
                let wrong = Arc::clone(&wrong);
                move || listen(&capture, &stopped, checksum_offload, &wrong)
            })
            .context("starting a thread")?;
        Ok(Self {
            place,
            wrong,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// What was wrong so far, for a test that has sent it so: it is no fault any more.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.wrong.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Sniffer {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        let mut wrong = self.take();
        if matches!(ended, Some(Err(_))) {
            wrong.push("the thread that verifies checksums has panicked".to_owned());
        }
        if wrong.is_empty() {
            return;
        }
        let text = format!("{} received packets that were wrong:\n{}", self.place, wrong.join("\n"));
        if thread::panicking() {
            eprintln!("{text}");
        } else {
            panic!("{text}");
        }
    }
}

/// Verifies until the other end of `stopped` is closed and nothing is left to be read.
fn listen(capture: &Capture, stopped: &UnixStream, checksum_offload: bool, wrong: &Mutex<Vec<String>>) {
    let say = |error: anyhow::Error| {
        let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.len() < KEPT {
            wrong.push(format!("{error:#}"));
        }
    };
    loop {
        let mut fds = [
            PollFd::new(capture.as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        if let Err(error) = poll(&mut fds, PollTimeout::NONE)
            && error != nix::errno::Errno::EINTR
        {
            return say(error.into());
        }
        let is_over = fds[1].any().unwrap_or(true);
        loop {
            match capture.next(Duration::ZERO) {
                Ok(Some(frame)) if checksum_offload && frame.checksum_pending => {}
                Ok(Some(frame)) => {
                    if let Err(error) = verify(&frame) {
                        say(error);
                    }
                }
                Ok(None) => break,
                // The link is gone, or down: nothing comes any more.
                Err(_) => break,
            }
        }
        if is_over {
            return;
        }
    }
}

fn verify(frame: &Frame) -> Result<()> {
    frame.verified().map(|_| ())
}
