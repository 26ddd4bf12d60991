//! Runs a program of a link over and over, each time with a packet as it would come, and tells how long one run takes.
//!
//! `BPF_PROG_TEST_RUN` repeats a run with the packet that the last one has left, which for a program that translates is
//! another one. So a small program is repeated which writes the next of many packets over it and goes on with the program
//! in question (`bpf_tail_call`); and once more with one that does nothing, whose time is taken off.

use std::borrow::Cow;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::programs::{ProgramInfo, SchedClassifier, TcAttachType};
use aya::{TestRun as _, TestRunOptions};

use crate::bpffs::Bpffs;
use crate::network::Node;
use crate::raw_bpf::{self, BPF_PSEUDO_MAP_FD, Instruction, Kind, Map, Use};

/// What the kernel takes a context (`struct __sk_buff`) for, and where the mark stands in it.
const CONTEXT: usize = 192;
const MARK: i16 = 8;
// Helpers, from linux/bpf.h.
const MAP_LOOKUP_ELEM: i32 = 1;
const SKB_STORE_BYTES: i32 = 9;
const TAIL_CALL: i32 = 12;
/// Longer than a packet gets in these programs, unless it is one in pieces.
const ROOM: usize = 256;

/// A program on a link of a node.
#[derive(Debug)]
pub struct OnLink {
    program: SchedClassifier,
}

impl OnLink {
    /// The one of this name on a link, in one direction, by TCX.
    pub fn find(node: &Node, link: &str, direction: TcAttachType, name: &'static str) -> Result<Self> {
        let what = || format!("looking for the program {name} on {link} of {}", node.name());
        let query = || SchedClassifier::query_tcx(link, direction);
        let (_, programs) = node.netns().run(query)?.with_context(what)?;
        let is_it = |info: &ProgramInfo| info.name_as_str() == Some(name);
        let info = programs.into_iter().find(is_it).with_context(what)?;
        let program = SchedClassifier::from_program_info(info, Cow::Borrowed(name)).with_context(what)?;
        Ok(Self { program })
    }

    /// Sends one packet through it, and returns what it is then.
    pub fn run(&self, frame: &[u8]) -> Result<Vec<u8>> {
        let mut out = vec![0; frame.len() + ROOM];
        let result = self.program.test_run(TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&[0; CONTEXT]),
            ..Default::default()
        })?;
        out.truncate(result.data_size_out as usize);
        Ok(out)
    }

    fn fd(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.program.fd().context("the program is loaded")?.as_fd())
    }
}

/// Packets to run programs on, one after the other and from the first again.
#[derive(Debug)]
pub struct Rerun {
    first: Vec<u8>,
    program: SchedClassifier,
    nothing: OwnedFd,
    next: Map,
    _frames: Map,
    cursor: Map,
}

impl Rerun {
    /// Takes packets, which all have to have one length; their number has to be a power of two.
    pub fn of(frames: &[Vec<u8>]) -> Result<Self> {
        let first = frames.first().context("there is no packet")?.clone();
        ensure!(frames.len().is_power_of_two(), "{} is no power of two", frames.len());
        let (length, count) = (u32::try_from(first.len())?, u32::try_from(frames.len())?);
        let map = Map::new(Kind::Array, length, count).context("making a map of packets")?;
        for (number, frame) in (0..).zip(frames) {
            ensure!(frame.len() == first.len(), "packets are of two lengths");
            map.set(number, frame).context("writing a packet")?;
        }
        let cursor = Map::new(Kind::Array, 8, 1).context("making a map")?;
        let next = Map::new(Kind::Programs, 4, 1).context("making a map of programs")?;
        // r0 = TC_ACT_UNSPEC; exit
        let nothing = raw_bpf::load("nothing", Use::Link, &[(0xb7, 0, 0, 0, -1), (0x95, 0, 0, 0, 0)])?;
        let loaded = raw_bpf::load("rerun", Use::Link, &instructions(&cursor, &map, &next, length, count))
            .context("loading the program that repeats")?;
        // Pinned only for the moment in which aya takes it over.
        let bpffs = Bpffs::new()?;
        let path = bpffs.path().join("rerun");
        raw_bpf::pin(&loaded, &path).context("pinning it")?;
        Ok(Self {
            first,
            program: SchedClassifier::from_pin(&path).context("taking it over")?,
            nothing,
            next,
            _frames: map,
            cursor,
        })
    }

    /// How long a program takes for each of so many packets.
    pub fn time(&self, program: &OnLink, times: u32) -> Result<f64> {
        let with = self.run(program.fd()?, times)?;
        let without = self.run(self.nothing.as_fd(), times)?;
        Ok(with.as_nanos() as f64 - without.as_nanos() as f64)
    }

    fn run(&self, program: BorrowedFd<'_>, times: u32) -> Result<Duration> {
        let number = program.as_raw_fd().to_ne_bytes();
        self.next
            .set(0, &number)
            .context("choosing the program to go on with")?;
        self.cursor.set(0, &[0; 8]).context("going back to the first packet")?;
        let result = self.program.test_run(TestRunOptions {
            data_in: Some(&self.first),
            ctx_in: Some(&[0; CONTEXT]),
            repeat: times,
            ..Default::default()
        });
        let duration = result.context("the kernel does not run the program")?.duration;
        let taken = self.cursor.get(0).context("asking how many packets there were")?;
        ensure!(
            taken == u64::from(times).to_ne_bytes(),
            "the program was not run {times} times"
        );
        Ok(duration)
    }
}

/// Writes the packet whose turn it is over the one that is there, and goes on with the program of the map `next`.
fn instructions(cursor: &Map, frames: &Map, next: &Map, length: u32, count: u32) -> Vec<Instruction> {
    // Both were made from sizes of vectors that the kernel has taken as sizes of a map.
    let (length, mask) = (length.cast_signed(), (count - 1).cast_signed());
    vec![
        (0xbf, 6, 1, 0, 0),                               // r6 = context
        (0x62, 10, 0, -4, 0),                             // *(u32 *)(r10 - 4) = 0
        (0x18, 1, BPF_PSEUDO_MAP_FD, 0, cursor.number()), // r1 = cursor
        (0x00, 0, 0, 0, 0),                               // (upper half)
        (0xbf, 2, 10, 0, 0),                              // r2 = r10
        (0x07, 2, 0, 0, -4),                              // r2 += -4
        (0x85, 0, 0, 0, MAP_LOOKUP_ELEM),                 // r0 = map_lookup_elem(r1, r2)
        (0x15, 0, 0, 26, 0),                              // if r0 == 0 go to the end
        (0x79, 7, 0, 0, 0),                               // r7 = *(u64 *)r0
        (0xbf, 1, 7, 0, 0),                               // r1 = r7
        (0x07, 1, 0, 0, 1),                               // r1 += 1
        (0x7b, 0, 1, 0, 0),                               // *(u64 *)r0 = r1
        (0x57, 7, 0, 0, mask),                            // r7 &= mask
        (0x63, 10, 7, -4, 0),                             // *(u32 *)(r10 - 4) = r7
        (0x18, 1, BPF_PSEUDO_MAP_FD, 0, frames.number()), // r1 = frames
        (0x00, 0, 0, 0, 0),                               // (upper half)
        (0xbf, 2, 10, 0, 0),                              // r2 = r10
        (0x07, 2, 0, 0, -4),                              // r2 += -4
        (0x85, 0, 0, 0, MAP_LOOKUP_ELEM),                 // r0 = map_lookup_elem(r1, r2)
        (0x15, 0, 0, 14, 0),                              // if r0 == 0 go to the end
        (0xbf, 1, 6, 0, 0),                               // r1 = context
        (0xb7, 2, 0, 0, 0),                               // r2 = 0, the offset
        (0xbf, 3, 0, 0, 0),                               // r3 = r0, the packet
        (0xb7, 4, 0, 0, length),                          // r4 = its length
        (0xb7, 5, 0, 0, 0),                               // r5 = 0, no flags
        (0x85, 0, 0, 0, SKB_STORE_BYTES),                 // skb_store_bytes(r1, r2, r3, r4, r5)
        (0x55, 0, 0, 7, 0),                               // if r0 != 0 go to the end
        (0xb7, 1, 0, 0, 0),                               // r1 = 0
        (0x63, 6, 1, MARK, 0),                            // context->mark = r1
        (0xbf, 1, 6, 0, 0),                               // r1 = context
        (0x18, 2, BPF_PSEUDO_MAP_FD, 0, next.number()),   // r2 = next
        (0x00, 0, 0, 0, 0),                               // (upper half)
        (0xb7, 3, 0, 0, 0),                               // r3 = 0
        (0x85, 0, 0, 0, TAIL_CALL),                       // tail_call(r1, r2, r3)
        (0xb7, 0, 0, 0, 2),                               // r0 = TC_ACT_SHOT
        (0x95, 0, 0, 0, 0),                               // exit
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packet_has_its_turn() {
        let frames: Vec<Vec<u8>> = (0..4_u8).map(|number| [vec![0; 59], vec![number]].concat()).collect();
        let rerun = Rerun::of(&frames).unwrap();
        rerun.run(rerun.nothing.as_fd(), 7).unwrap();
        let mut out = vec![0; 100];
        // Seven were taken, so the next is the fourth.
        let result = rerun.program.test_run(TestRunOptions {
            data_in: Some(&frames[0]),
            data_out: Some(&mut out),
            ctx_in: Some(&[0; CONTEXT]),
            ..Default::default()
        });
        assert_eq!(
            result.unwrap().return_value.cast_signed(),
            -1,
            "the other program did not run"
        );
        assert_eq!(out[..60], frames[3]);
    }

    #[test]
    fn packets_that_cannot_take_turns_are_refused() {
        let error = |frames: &[Vec<u8>]| Rerun::of(frames).unwrap_err().to_string();
        assert!(error(&[]).contains("no packet"));
        assert!(error(&vec![vec![0; 60]; 3]).contains("power of two"));
        assert!(error(&[vec![0; 60], vec![0; 61]]).contains("two lengths"));
    }
}
