//! The commands of bpf(2) that aya has no call for: rows of maps (`rows`), links by interface index,
//! and what a link says about itself.

mod rows;

use std::{
    ffi::CString,
    io,
    mem::{size_of, zeroed},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use aya_obj::generated::{
    BPF_F_AFTER, BPF_F_BEFORE, BPF_F_LINK,
    bpf_attach_type::{self, BPF_TCX_EGRESS, BPF_TCX_INGRESS},
    bpf_cmd::{self, *},
    bpf_link_type::{BPF_LINK_TYPE_CGROUP, BPF_LINK_TYPE_TCX},
    bpf_prog_info,
};

pub(super) use rows::{
    Cursor, Partial, add, delete, delete_batch, first_key, look_up, look_up_bytes, next_key, read_batch, update,
    update_batch, update_bytes,
};

/// How many programs the kernel lets share one TCX hook (`BPF_MPROG_MAX`).
const TCX_CHAIN_MAX: usize = 64;
/// How many maps of a program are asked for: more than any of ours has.
const PROGRAM_MAPS_MAX: usize = 64;

/// Which way packets go at a hook on a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Direction {
    /// They come in from the link.
    Ingress,
    /// They go out to it.
    Egress,
}

impl Direction {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The name of the hook in pins and messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    const fn tcx(self) -> bpf_attach_type {
        match self {
            Self::Ingress => BPF_TCX_INGRESS,
            Self::Egress => BPF_TCX_EGRESS,
        }
    }
}

/// What a BPF link is attached to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// TCX on a link of this index; 0 when the link is gone.
    Tcx(u32),
    /// The cgroup of this number; 0 when it is gone.
    Cgroup(u64),
    /// Something that we never make.
    Other,
}

/// What the kernel says of a BPF link.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkInfo {
    /// Number of the link.
    pub(super) id: u32,
    /// Number of its program.
    pub(super) program: u32,
    /// What it is attached to.
    pub(super) target: Target,
}

/// One program of a TCX chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChainEntry {
    /// Number of the program.
    pub(super) program: u32,
    /// Number of the link that holds it, 0 for a program attached without one.
    pub(super) link: u32,
}

/// Makes the call.
///
/// # Safety
/// `attr` is what `command` expects, and the pointers in it are good for what the kernel reads and
/// writes through them.
unsafe fn bpf<T>(command: bpf_cmd, attr: &mut T) -> io::Result<i32> {
    // SAFETY: `attr` is exclusively ours for the length given; the rest is the caller's contract.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // Every command returns zero or a file descriptor.
    i32::try_from(result).map_err(io::Error::other)
}

/// The same for a command that returns a new file descriptor.
///
/// # Safety
/// As for [`bpf`], and `command` returns a file descriptor.
unsafe fn bpf_fd<T>(command: bpf_cmd, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's contract.
    let fd = unsafe { bpf(command, attr) }?;
    // SAFETY: the kernel has just made it for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    // An open descriptor is never negative.
    fd.as_raw_fd().unsigned_abs()
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

#[repr(C)]
#[derive(Default)]
struct ObjectAttr {
    path: u64,
    fd: u32,
    file_flags: u32,
}

/// Gives a map or link a name in a bpffs.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attr = ObjectAttr {
        path: path.as_ptr() as u64,
        fd: number(object),
        ..ObjectAttr::default()
    };
    // SAFETY: `path` ends with a zero byte and lives across the call.
    unsafe { bpf(BPF_OBJ_PIN, &mut attr) }.map(drop)
}

/// Opens what has a name in a bpffs.
pub(super) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attr = ObjectAttr {
        path: path.as_ptr() as u64,
        ..ObjectAttr::default()
    };
    // SAFETY: `path` ends with a zero byte and lives across the call.
    unsafe { bpf_fd(BPF_OBJ_GET, &mut attr) }
}

#[repr(C)]
#[derive(Default)]
struct LinkCreateAttr {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    pad: u32,
    expected_revision: u64,
}

/// Attaches a program to a TCX chain (kernel 6.6): right behind a link that is there, else to the head. `EINVAL` from
/// a kernel without TCX.
pub(super) fn attach_tcx(
    program: BorrowedFd<'_>,
    ifindex: u32,
    direction: Direction,
    behind: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let mut attr = LinkCreateAttr {
        program: number(program),
        target: ifindex,
        attach_type: direction.tcx() as u32,
        flags: behind.map_or(BPF_F_BEFORE, |_| BPF_F_AFTER | BPF_F_LINK),
        relative: behind.map_or(0, number),
        ..LinkCreateAttr::default()
    };
    // SAFETY: no pointers.
    unsafe { bpf_fd(BPF_LINK_CREATE, &mut attr) }
}

/// Attaches a program to a cgroup (kernel 5.7), beside those of others.
pub(super) fn attach_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: bpf_attach_type,
) -> io::Result<OwnedFd> {
    let mut attr = LinkCreateAttr {
        program: number(program),
        target: number(cgroup),
        attach_type: attach_type as u32,
        ..LinkCreateAttr::default()
    };
    // SAFETY: no pointers.
    unsafe { bpf_fd(BPF_LINK_CREATE, &mut attr) }
}

#[repr(C)]
#[derive(Default)]
struct LinkUpdateAttr {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

/// Puts another program in the place of a link's. No packet sees none, and none sees both.
pub(super) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = LinkUpdateAttr {
        link: number(link),
        program: number(program),
        ..LinkUpdateAttr::default()
    };
    // SAFETY: no pointers.
    unsafe { bpf(BPF_LINK_UPDATE, &mut attr) }.map(drop)
}

#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    fd: u32,
    length: u32,
    info: u64,
}

/// The head of `struct bpf_link_info`, and room for what newer kernels put behind it.
#[repr(C)]
#[derive(Default)]
struct LinkInfoBuffer {
    link_type: u32,
    id: u32,
    program: u32,
    pad: u32,
    /// TCX: interface index, attach type. cgroup: its number in two halves, attach type.
    details: [u32; 28],
}

/// Asks what a link is.
pub(super) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = LinkInfoBuffer::default();
    let mut attr = InfoAttr {
        fd: number(link),
        length: u32::try_from(size_of::<LinkInfoBuffer>()).map_err(io::Error::other)?,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: `info` lives across the call and is as long as said. It is zero, so the kernel finds no
    // request in it.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    let target = if info.link_type == BPF_LINK_TYPE_TCX as u32 {
        Target::Tcx(info.details[0])
    } else if info.link_type == BPF_LINK_TYPE_CGROUP as u32 {
        let [a, b, c, d] = info.details[0].to_ne_bytes();
        let [e, f, g, h] = info.details[1].to_ne_bytes();
        Target::Cgroup(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
    } else {
        Target::Other
    };
    Ok(LinkInfo {
        id: info.id,
        program: info.program,
        target,
    })
}

#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    pad: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// A TCX chain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct TcxChain {
    /// Grows with each change.
    pub(super) revision: u64,
    /// Its programs, in the order in which they run.
    pub(super) entries: Vec<ChainEntry>,
}

/// The TCX chain of a link of this network namespace; an empty one where there is none, or no TCX.
pub(super) fn tcx_chain(ifindex: u32, direction: Direction) -> io::Result<TcxChain> {
    let mut programs = [0_u32; TCX_CHAIN_MAX];
    let mut links = [0_u32; TCX_CHAIN_MAX];
    let mut attr = QueryAttr {
        target: ifindex,
        attach_type: direction.tcx() as u32,
        programs: programs.as_mut_ptr() as u64,
        links: links.as_mut_ptr() as u64,
        count: TCX_CHAIN_MAX as u32,
        ..QueryAttr::default()
    };
    // SAFETY: both arrays live across the call and hold `count` numbers.
    match unsafe { bpf(BPF_PROG_QUERY, &mut attr) } {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => {
            return Ok(TcxChain::default());
        }
        result => result?,
    };
    let entries = programs.into_iter().zip(links).take(attr.count as usize);
    Ok(TcxChain {
        revision: attr.revision,
        entries: entries.map(|(program, link)| ChainEntry { program, link }).collect(),
    })
}

#[repr(C)]
#[derive(Default)]
struct IdAttr {
    id: u32,
    next: u32,
    open_flags: u32,
}

/// What the kernel says of a loaded program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ProgramInfo {
    /// Its name, of which the kernel keeps 15 bytes.
    pub(super) name: String,
    /// A sum over its instructions as they were loaded, whichever maps they are on.
    pub(super) tag: [u8; 8],
    /// Numbers of its maps.
    pub(super) maps: Vec<u32>,
}

/// Asks for a program by its number, which takes `CAP_SYS_ADMIN`.
pub(super) fn program_info(id: u32) -> io::Result<ProgramInfo> {
    let mut attr = IdAttr {
        id,
        ..IdAttr::default()
    };
    // SAFETY: no pointers.
    let program = unsafe { bpf_fd(BPF_PROG_GET_FD_BY_ID, &mut attr) }?;
    program_info_of(program.as_fd())
}

/// Asks for a program by its descriptor.
pub(super) fn program_info_of(program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    let mut maps = vec![0_u32; PROGRAM_MAPS_MAX];
    // SAFETY: integers only, for which zero is a value; of the optional parts it asks for none yet.
    let mut info: bpf_prog_info = unsafe { zeroed() };
    info.map_ids = maps.as_mut_ptr() as u64;
    info.nr_map_ids = PROGRAM_MAPS_MAX as u32;
    let mut attr = InfoAttr {
        fd: number(program),
        length: u32::try_from(size_of::<bpf_prog_info>()).map_err(io::Error::other)?,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: `info` lives across the call and is as long as said, and so is `maps`, the only thing it asks for.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    maps.truncate(info.nr_map_ids as usize);
    let name = info.name.iter().map(|&byte| char::from(byte.to_ne_bytes()[0]));
    Ok(ProgramInfo {
        name: name.take_while(|&c| c != '\0').collect(),
        tag: info.tag,
        maps,
    })
}

/// The name that a loaded program was given.
pub(super) fn program_name(id: u32) -> io::Result<String> {
    program_info(id).map(|info| info.name)
}
