//! Programs of a few instructions and maps for them, by the kernel's own call: what needs no compiler and no object file.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

// From linux/bpf.h.
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_OBJ_PIN: libc::c_int = 6;

/// What a map's number is marked with in the instruction that loads it.
pub(crate) const BPF_PSEUDO_MAP_FD: u8 = 1;

/// The kinds of maps that are indexed by a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Of values.
    Array = 2,
    /// Of programs to go on with.
    Programs = 3,
}

/// What a program is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Packets on links.
    Link = 3,
    /// Packets before the kernel has made anything of them (XDP).
    Driver = 6,
}

/// An instruction: opcode, destination and source register, offset, immediate value.
pub(crate) type Instruction = (u8, u8, u8, i16, i32);

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

/// A map with so many values of a fixed size.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    value_size: usize,
}

impl Map {
    /// Makes one, with zeros in it.
    pub(crate) fn new(kind: Kind, value_size: u32, entries: u32) -> io::Result<Self> {
        let mut attr = MapAttr {
            kind: kind as u32,
            key_size: 4,
            value_size,
            max_entries: entries,
        };
        // SAFETY: no pointers.
        let fd = unsafe { bpf_fd(BPF_MAP_CREATE, &mut attr) }?;
        Ok(Self {
            fd,
            value_size: value_size as usize,
        })
    }

    /// The number that the instruction which loads it holds.
    pub(crate) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// A value, in the processor's byte order.
    pub(crate) fn get(&self, key: u32) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.value_size];
        let mut attr = ElementAttr {
            map: number(&self.fd),
            key: std::ptr::from_ref(&key) as u64,
            value: value.as_mut_ptr() as u64,
            ..ElementAttr::default()
        };
        // SAFETY: key and value live across the call and are as long as the map's.
        unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attr) }?;
        Ok(value)
    }

    /// Writes a value, which has to be as long as the map's are.
    pub(crate) fn set(&self, key: u32, value: &[u8]) -> io::Result<()> {
        if value.len() != self.value_size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut attr = ElementAttr {
            map: number(&self.fd),
            key: std::ptr::from_ref(&key) as u64,
            value: value.as_ptr() as u64,
            ..ElementAttr::default()
        };
        // SAFETY: key and value live across the call and are as long as the map's.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
    }
}

/// Loads a program. The kernel keeps 15 bytes of its name.
pub(crate) fn load(name: &str, what_for: Use, program: &[Instruction]) -> io::Result<OwnedFd> {
    let mut code = Vec::new();
    for (opcode, destination, source, offset, value) in program {
        code.extend([*opcode, source << 4 | destination]);
        code.extend(offset.to_ne_bytes());
        code.extend(value.to_ne_bytes());
    }
    let licence: &CStr = c"GPL";
    let mut attr = ProgramAttr {
        kind: what_for as u32,
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

/// Pins a program.
pub(crate) fn pin(program: &OwnedFd, path: &Path) -> io::Result<()> {
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
