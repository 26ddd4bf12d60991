//! A BPF file system that no path leads to.
//!
//! It is mounted nowhere: the file descriptor holds it, and goes with the process. Other processes reach it through
//! [`Bpffs::path`], which is a link in `/proc`.

use std::ffi::CStr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::{io, process};

use anyhow::{Context as _, Result};
use aya::maps::{Map, MapData};
use lb_common::maps::LAYOUT_VERSION;

// From linux/mount.h; the crate libc has only the numbers of the calls.
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;

/// A BPF file system of our own. Dropping it drops its pins.
#[derive(Debug)]
pub struct Bpffs {
    mount: OwnedFd,
}

impl Bpffs {
    /// Makes an empty one.
    pub fn new() -> Result<Self> {
        let mount = mount().context("making a BPF file system: this needs root and CONFIG_BPF_SYSCALL")?;
        Ok(Self { mount })
    }

    /// Its root folder. Good as long as this process lives and `self` is not dropped.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", process::id(), self.mount.as_raw_fd()))
    }

    /// A map of the agent that has its pins here, by a name of [`lb_common::maps`].
    pub fn map(&self, name: &str) -> Result<Map> {
        let path = self.path().join(format!("lb-agent/v{LAYOUT_VERSION}/maps/{name}"));
        let opening = || format!("opening the map at {}", path.display());
        Map::from_map_data(MapData::from_pin(&path).with_context(opening)?).with_context(opening)
    }
}

fn mount() -> io::Result<OwnedFd> {
    let context = fsopen(c"bpf")?;
    create(&context)?;
    fsmount(&context)
}

fn fsopen(kind: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: `kind` is a C string that lives through the call.
    new_fd(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })
}

fn create(context: &OwnedFd) -> io::Result<()> {
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes neither key nor value.
    let result = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            null,
            null,
            0,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn fsmount(context: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    new_fd(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })
}

fn new_fd(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: the system call has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn another_process_finds_folders_in_it() {
        let bpffs = Bpffs::new().unwrap();
        let folder = bpffs.path().join("a");
        fs::create_dir(&folder).unwrap();
        let listed = process::Command::new("ls").arg(bpffs.path()).output().unwrap();
        assert!(listed.stdout.starts_with(b"a\n"), "{listed:?}");
        drop(bpffs);
        assert!(!folder.exists());
    }
}
