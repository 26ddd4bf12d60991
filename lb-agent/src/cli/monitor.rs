//! `lb-agent monitor`.

use std::{
    io::{self, Write},
    ops::ControlFlow,
    os::fd::AsFd as _,
    process::{self, ExitCode},
    thread,
};

use anyhow::{Context as _, bail};
use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use lb_common::Counter;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, poll},
    sys::signal::{SigSet, Signal},
};

use super::{
    output::{Answer, Output, columns},
    places::Places,
};
use crate::plane::ebpf::{self, Events};

mod clock;
mod line;

use line::Line;

/// How many events are printed before it is looked how many were lost: both go on in a flood.
const BATCH: usize = 256;
/// Milliseconds after which it is looked whether the maps are still there, where nothing happens.
const PAUSE: u16 = 1_000;

/// Print what is dropped and refused on this node as it happens, one line a packet, with the reason. Works
/// beside a running agent as well as without one, and changes nothing; one at a time
#[derive(Debug, Args)]
#[command(after_help = "\
A line: when, the reason, the protocol, source -> destination as the client sent it, and where: `ingress=LINK`
came in from a link, `egress=LINK` was to go out to one, `process` is a call of a process of this node, whose
source is not known yet. A link that is gone is shown by its index; a packet without ports is a fragment.
Each CPU tells of 1,000 packets a second at most; how many more there were is said on standard error, and
--counters has all of them. In JSON and YAML it has the fields time, reason, protocol, source, source_port,
destination, destination_port, hook (ingress, egress, socket), link, link_index.

Exit codes: 0 it was ended, or nobody reads it any more, 2 there is nothing to read.")]
pub(super) struct Monitor {
    #[command(flatten)]
    output: Output,

    /// Only what has this reason; may be given more than once
    #[arg(long = "reason", value_name = "NAME", value_parser = reason())]
    reasons: Vec<Counter>,

    /// Print how often each has happened since the maps were made, and end. Beside the reasons: new flows, calls
    /// that were translated, packets without a flow that passed, events that were not told
    #[arg(long)]
    counters: bool,

    #[command(flatten)]
    places: Places,
}

fn reason() -> impl TypedValueParser<Value = Counter> {
    let reasons = || Counter::ALL.into_iter().filter(|counter| counter.is_reason());
    PossibleValuesParser::new(reasons().map(Counter::name)).try_map(move |name| {
        reasons()
            .find(|reason| reason.name() == name)
            .with_context(|| format!("no reason {name}"))
    })
}

impl Monitor {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let bpffs = self.places.clone().paths()?.bpffs;
        if self.counters {
            self.print_counters(&ebpf::counters(&bpffs)?)?;
        } else {
            // Before the first thread is started.
            end_with_signals()?;
            self.follow(Events::open(&bpffs)?, &mut io::stdout().lock())?;
        }
        Ok(Answer::Good.into())
    }

    fn shows(&self, reason: Counter) -> bool {
        self.reasons.is_empty() || self.reasons.contains(&reason)
    }

    fn print_counters(&self, counters: &[(Counter, u64)]) -> anyhow::Result<()> {
        let shown = counters.iter().filter(|(counter, _)| self.shows(*counter));
        let object: serde_json::Map<_, _> = shown
            .clone()
            .map(|(counter, total)| (counter.name().to_owned(), (*total).into()))
            .collect();
        let rows = shown.map(|(counter, total)| [counter.name().to_owned(), total.to_string()]);
        self.output.print(&object, &columns(["COUNTER", "TOTAL"], rows))
    }

    fn follow(&self, mut events: Events, out: &mut impl Write) -> anyhow::Result<()> {
        let started = clock::monotonic()?;
        let mut lost = events.lost()?;
        eprintln!("watching what is dropped and refused from now on; Ctrl-C ends it");
        loop {
            let clock = clock::Wall::now()?;
            for _ in 0..BATCH {
                let Some(event) = events.read()? else {
                    break;
                };
                // The others were left by nobody reading.
                if event.time >= started {
                    let line = Line::new(&event, clock.at(event.time)?);
                    if line.reason.is_none_or(|reason| self.shows(reason)) {
                        self.output.print_next(&line.json(), &line, out)?;
                    }
                }
            }
            let lost_now = events.lost()?;
            if lost_now > lost {
                eprintln!("{} more were not shown: too many at once", lost_now - lost);
                lost = lost_now;
            }
            if wait(&events)?.is_break() {
                return Ok(());
            }
            if events.is_abandoned()? {
                bail!("the maps have been removed, or an agent has made new ones: start the monitor again");
            }
        }
    }
}

/// Waits for events, for a while. Breaks if nobody reads our lines any more.
fn wait(events: &Events) -> anyhow::Result<ControlFlow<()>> {
    let stdout = io::stdout();
    let mut fds = [
        PollFd::new(events.as_fd(), PollFlags::POLLIN),
        // What matters is reported without being asked for.
        PollFd::new(stdout.as_fd(), PollFlags::empty()),
    ];
    match poll(&mut fds, PAUSE) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error).context("cannot wait for events"),
    }
    let is_closed = fds[1]
        .revents()
        .is_some_and(|events| events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP));
    Ok(if is_closed {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    })
}

/// From here on SIGINT and SIGTERM end the process well, from a thread of their own: also while nobody takes what
/// it prints. There is nothing to tidy up, the lock ends with the process.
fn end_with_signals() -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().context("cannot block signals")?;
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            // Fails for an invalid set only.
            let _ = signals.wait();
            process::exit(0);
        })
        .context("no thread for signals")?;
    Ok(())
}
