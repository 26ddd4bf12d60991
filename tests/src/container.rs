//! A process in the agent's image: its files are those of the image, and it may do what a container runtime leaves it.
//!
//! No runtime takes part. What it would do to the process, this does: the image is the root and cannot be written to,
//! nor can `/proc/sys` and cgroups, and only some capabilities can be had. The namespaces of network and processes are
//! those of whoever starts it, as a DaemonSet asks for with `hostNetwork`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use flate2::read::GzDecoder;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_no_new_privs;
use nix::unistd::{chdir, chroot};

use crate::cgroup;
use crate::owner::Folder;
use crate::place::program;

/// The agent in the image.
const AGENT: &str = "/usr/bin/lb-agent";
/// What the image says of the environment.
const PATH: &str = "/usr/sbin:/usr/bin";

/// The folders of this machine that are there too: the kernel's, and where tests have their files.
const SHARED: [&str; 4] = ["proc", "sys", "dev", "tmp"];
/// What of them runtimes let nobody write to.
const SYSCTLS: &str = "/proc/sys";
/// What the DaemonSet mounts of the node and can be written to. Here it is the image's own.
const LOCK: &str = "run/xtables.lock";

/// A right of a process, and its number in linux/capability.h.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "capabilities(7) says it")]
pub enum Capability {
    NetAdmin = 12,
    NetRaw = 13,
    SysPtrace = 19,
    SysAdmin = 21,
    SysResource = 24,
    Perfmon = 38,
    Bpf = 39,
}

impl Capability {
    /// That of this name in a manifest.
    pub fn named(name: &str) -> Result<Self> {
        match clap::ValueEnum::from_str(name, false) {
            Ok(capability) => Ok(capability),
            Err(_) => bail!("no number is known of the capability {name}"),
        }
    }

    /// Its name in a manifest.
    #[must_use]
    pub fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// An image on disk.
#[derive(Debug)]
pub struct RootFs {
    folder: Folder,
}

impl RootFs {
    /// Unpacks layers, the lowest first.
    pub fn unpack<'a>(layers: impl IntoIterator<Item = &'a [u8]>) -> Result<Self> {
        let folder = Folder::new()?;
        for layer in layers {
            let mut archive = tar::Archive::new(GzDecoder::new(layer));
            archive.set_preserve_permissions(true);
            archive.unpack(folder.path()).context("unpacking a layer")?;
        }
        // A runtime makes the folders that it mounts something on.
        for shared in SHARED {
            let place = folder.path().join(shared);
            fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
        }
        let lock = folder.path().join(LOCK);
        fs::create_dir_all(folder.path().join("run"))
            .and_then(|()| fs::write(&lock, ""))
            .with_context(|| format!("making {}", lock.display()))?;
        Ok(Self { folder })
    }

    /// Its root.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What makes of any command one of the agent in here: `lab in-image`.
    pub fn launcher(&self, capabilities: &[Capability]) -> Result<Vec<OsString>> {
        let mut launcher = vec![program("lab", "LB_LAB")?.into(), "in-image".into(), self.path().into()];
        for capability in capabilities {
            launcher.push(format!("--capability={}", *capability as u8).into());
        }
        launcher.push("--".into());
        Ok(launcher)
    }
}

/// Becomes the agent of an image with the arguments of a command and these capabilities, by their numbers. Returns only if
/// that fails.
pub fn exec(image: &Path, capabilities: &[u8], command: &[OsString]) -> Result<()> {
    let [_, args @ ..] = command else {
        bail!("no program is named");
    };
    enter(image).with_context(|| format!("entering {}", image.display()))?;
    keep_only(capabilities).context("giving up capabilities")?;
    set_no_new_privs()?;
    let error = Command::new(AGENT).args(args).env("PATH", PATH).exec();
    Err(error).with_context(|| format!("starting {AGENT} of {}", image.display()))
}

fn enter(image: &Path) -> Result<()> {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Nothing of it is to be seen outside.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(image), image, none, MsFlags::MS_BIND, none)?;
    for shared in SHARED {
        let from = PathBuf::from("/").join(shared);
        let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(&from), &image.join(shared), none, flags, none).with_context(|| format!("sharing {shared}"))?;
    }
    // The DaemonSet mounts cgroups so, too.
    for place in [Path::new(SYSCTLS), &cgroup::root()?] {
        let place = image.join(place.strip_prefix("/")?);
        mount(Some(&place), &place, none, MsFlags::MS_BIND, none)?;
        make_read_only(&place).with_context(|| format!("making {} read-only", place.display()))?;
    }
    let lock = image.join(LOCK);
    mount(Some(&lock), &lock, none, MsFlags::MS_BIND, none).context("keeping the lock of iptables")?;
    make_read_only(image).context("making it read-only")?;
    chroot(image)?;
    chdir("/")?;
    Ok(())
}

fn make_read_only(place: &Path) -> nix::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, place, None::<&str>, flags, None::<&str>)
}

/// Bounds what this process can have after the next program is started, even as root.
fn keep_only(capabilities: &[u8]) -> io::Result<()> {
    for number in (0..=u8::MAX).filter(|number| !capabilities.contains(number)) {
        // SAFETY: integers only.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) } != 0 {
            let error = io::Error::last_os_error();
            // There are no more of them.
            return match error.raw_os_error() {
                Some(libc::EINVAL) => Ok(()),
                _ => Err(error),
            };
        }
    }
    Ok(())
}
