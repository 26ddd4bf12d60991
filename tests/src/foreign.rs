//! Programs of somebody else on the links of a node: small ones, which count packets and return a verdict.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use aya::programs::tc::{NlOptions, SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};

use crate::bpffs::Bpffs;
use crate::netns::Netns;
use crate::raw_bpf::{self, BPF_PSEUDO_MAP_FD, Instruction, Kind, Map, Use};

/// What the program says of each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The next program is to see it (`TCX_NEXT`, `TC_ACT_UNSPEC`).
    Next,
    /// It is to go on, and no other program sees it (`TCX_PASS`, `TC_ACT_OK`).
    Accept,
}

/// A place in a chain of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Before all that are on TCX.
    TcxFirst,
    /// After them.
    TcxLast,
    /// On the clsact qdisc, at this priority and with this handle.
    Filter {
        /// From 1; a smaller one comes first.
        priority: u16,
        /// Its number among filters of that priority.
        handle: u32,
    },
}

/// A program. Dropping it takes it off all links.
#[derive(Debug)]
pub struct Foreign {
    netns: Arc<Netns>,
    program: Option<SchedClassifier>,
    counter: Map,
}

/// A place that it was put to.
#[derive(Debug)]
pub struct Attached(SchedClassifierLinkId);

impl Foreign {
    /// Loads one for links of `netns`. The kernel keeps 15 bytes of the name.
    pub fn load(netns: &Arc<Netns>, name: &str, verdict: Verdict) -> Result<Self> {
        let load = || -> Result<_> {
            let counter = Map::new(Kind::Array, 8, 1).context("making a map")?;
            let program = load(name, &counter, verdict).context("loading it")?;
            // Pinned only for the moment in which aya takes it over.
            let bpffs = Bpffs::new()?;
            let path = bpffs.path().join("foreign");
            raw_bpf::pin(&program, &path).context("pinning it")?;
            let program = SchedClassifier::from_pin(&path).context("taking it over")?;
            Ok((program, counter))
        };
        let (program, counter) = load().with_context(|| format!("the foreign program {name}"))?;
        Ok(Self {
            netns: Arc::clone(netns),
            program: Some(program),
            counter,
        })
    }

    /// Puts it on a link.
    pub fn attach(&mut self, link: &str, direction: TcAttachType, place: Place) -> Result<Attached> {
        let options = match place {
            Place::TcxFirst => TcAttachOptions::TcxOrder(LinkOrder::first()),
            Place::TcxLast => TcAttachOptions::TcxOrder(LinkOrder::last()),
            Place::Filter { priority, handle } => TcAttachOptions::Netlink(NlOptions {
                priority,
                handle: handle.into(),
                classid: None,
            }),
        };
        let program = self.program.as_mut().context("it is there until it is dropped")?;
        let attach = || {
            if matches!(place, Place::Filter { .. }) {
                // There already, or not: the next call tells.
                let _ = aya::programs::tc::qdisc_add_clsact(link);
            }
            program.attach_with_options(link, direction, options)
        };
        let id = self
            .netns
            .run(attach)?
            .with_context(|| format!("attaching to {link}"))?;
        Ok(Attached(id))
    }

    /// Takes it from a place.
    pub fn detach(&mut self, place: Attached) -> Result<()> {
        let program = self.program.as_mut().context("it is there until it is dropped")?;
        self.netns.run(|| program.detach(place.0))?.context("detaching")
    }

    /// How many packets it has seen.
    pub fn packets(&self) -> Result<u64> {
        let value = self.counter.get(0).context("reading the counter")?;
        let value = value
            .try_into()
            .ok()
            .context("the counter is no number of eight bytes")?;
        Ok(u64::from_ne_bytes(value))
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let program = self.program.take();
        // A filter is taken off over netlink, which is the namespace's.
        if let Err(error) = self.netns.run(move || drop(program)) {
            eprintln!("lb-tests: taking off a foreign program: {error:#}");
        }
    }
}

fn load(name: &str, counter: &Map, verdict: Verdict) -> io::Result<OwnedFd> {
    let verdict = match verdict {
        Verdict::Next => -1,
        Verdict::Accept => 0,
    };
    let program: [Instruction; 11] = [
        (0x62, 10, 0, -4, 0),                              // *(u32 *)(r10 - 4) = 0
        (0x18, 1, BPF_PSEUDO_MAP_FD, 0, counter.number()), // r1 = counter
        (0x00, 0, 0, 0, 0),                                // (upper half)
        (0xbf, 2, 10, 0, 0),                               // r2 = r10
        (0x07, 2, 0, 0, -4),                               // r2 += -4
        (0x85, 0, 0, 0, 1),                                // r0 = map_lookup_elem(r1, r2)
        (0x15, 0, 0, 2, 0),                                // if r0 == 0 skip two
        (0xb7, 1, 0, 0, 1),                                // r1 = 1
        (0xdb, 0, 1, 0, 0),                                // lock *(u64 *)r0 += r1
        (0xb7, 0, 0, 0, verdict),                          // r0 = verdict
        (0x95, 0, 0, 0, 0),                                // exit
    ];
    raw_bpf::load(name, Use::Link, &program)
}
