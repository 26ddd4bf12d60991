//! Programs of somebody else on the links of a node: small ones, which count packets and return a verdict.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use aya::programs::tc::{NlOptions, SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};

use crate::bpffs::Bpffs;
use crate::netns::Netns;

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
    counter: OwnedFd,
}

/// A place that it was put to.
#[derive(Debug)]
pub struct Attached(SchedClassifierLinkId);

impl Foreign {
    /// Loads one for links of `netns`. The kernel keeps 15 bytes of the name.
    pub fn load(netns: &Arc<Netns>, name: &str, verdict: Verdict) -> Result<Self> {
        let load = || -> Result<_> {
            let counter = counter().context("making a map")?;
            let program = load(name, &counter, verdict).context("loading it")?;
            // Pinned only for the moment in which aya takes it over.
            let bpffs = Bpffs::new()?;
            let path = bpffs.path().join("foreign");
            pin(&program, &path).context("pinning it")?;
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
        let (key, mut value) = (0_u32, 0_u64);
        let mut attr = ElementAttr {
            map: number(&self.counter),
            key: std::ptr::from_ref(&key) as u64,
            value: std::ptr::from_mut(&mut value) as u64,
            ..ElementAttr::default()
        };
        // SAFETY: key and value live across the call and are as long as the map's.
        unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attr) }.context("reading the counter")?;
        Ok(value)
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

// From linux/bpf.h.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PSEUDO_MAP_FD: u8 = 1;

#[repr(C)]
#[derive(Default)]
struct MapAttr {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
#[derive(Default)]
struct ProgramAttr {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct ObjectAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// An instruction: opcode, destination and source register, offset, immediate value.
type Instruction = (u8, u8, u8, i16, i32);

fn counter() -> io::Result<OwnedFd> {
    let mut attr = MapAttr {
        kind: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
    };
    // SAFETY: no pointers.
    unsafe { bpf_fd(BPF_MAP_CREATE, &mut attr) }
}

fn load(name: &str, counter: &OwnedFd, verdict: Verdict) -> io::Result<OwnedFd> {
    let verdict = match verdict {
        Verdict::Next => -1,
        Verdict::Accept => 0,
    };
    let program: [Instruction; 11] = [
        (0x62, 10, 0, -4, 0),                                 // *(u32 *)(r10 - 4) = 0
        (0x18, 1, BPF_PSEUDO_MAP_FD, 0, counter.as_raw_fd()), // r1 = counter
        (0x00, 0, 0, 0, 0),                                   // (upper half)
        (0xbf, 2, 10, 0, 0),                                  // r2 = r10
        (0x07, 2, 0, 0, -4),                                  // r2 += -4
        (0x85, 0, 0, 0, 1),                                   // r0 = map_lookup_elem(r1, r2)
        (0x15, 0, 0, 2, 0),                                   // if r0 == 0 skip two
        (0xb7, 1, 0, 0, 1),                                   // r1 = 1
        (0xdb, 0, 1, 0, 0),                                   // lock *(u64 *)r0 += r1
        (0xb7, 0, 0, 0, verdict),                             // r0 = verdict
        (0x95, 0, 0, 0, 0),                                   // exit
    ];
    let mut code = Vec::new();
    for (opcode, destination, source, offset, value) in program {
        code.extend([opcode, source << 4 | destination]);
        code.extend(offset.to_ne_bytes());
        code.extend(value.to_ne_bytes());
    }
    let licence: &CStr = c"GPL";
    let mut attr = ProgramAttr {
        kind: BPF_PROG_TYPE_SCHED_CLS,
        instructions: u32::try_from(program.len()).map_err(io::Error::other)?,
        code: code.as_ptr() as u64,
        licence: licence.as_ptr() as u64,
        ..ProgramAttr::default()
    };
    for (to, from) in attr.name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: code and licence live across the call, the code is as long as said, the licence ends with a zero.
    unsafe { bpf_fd(BPF_PROG_LOAD, &mut attr) }
}

fn pin(program: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let mut attr = ObjectAttr {
        path: path.as_ptr() as u64,
        fd: number(program),
        flags: 0,
    };
    // SAFETY: the path lives across the call and ends with a zero.
    unsafe { bpf(BPF_OBJ_PIN, &mut attr) }.map(drop)
}

fn number(fd: &OwnedFd) -> u32 {
    // An open descriptor is never negative.
    fd.as_raw_fd().unsigned_abs()
}

/// Makes the call.
///
/// # Safety
/// `attr` is what the command expects, and the pointers in it are good for what the kernel does with them.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is ours for the length given; the rest is the caller's contract.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// The same for a command that makes a file descriptor.
///
/// # Safety
/// As for [`bpf`], and the command makes a file descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's contract.
    let fd = unsafe { bpf(command, attr) }?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
