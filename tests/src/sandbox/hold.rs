//! What the first process of a sandbox does.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::HELD;
use super::groups::{Hierarchy, hierarchies};

/// Where a kubelet's machine is to be as it wants it, and what it would write there: the kernel's settings for all are not
/// a sandbox's to change, so files stand in their place.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The folder that container runtimes and kubelets write to whatever they are told. What they write goes elsewhere.
const COPIED: &str = "/var";

/// Mounts what a node has for itself, keeps it, and waits for processes whose parents have ended. Never returns unless it
/// fails; see [`super::Sandbox::start`].
pub fn hold(folder: &Path) -> Result<()> {
    // Before any child can end.
    let ended = SigSet::from(Signal::SIGCHLD);
    ended.thread_block().context("blocking a signal")?;
    make_mounts(folder)?;
    let held = folder.join(HELD);
    fs::write(&held, "").with_context(|| format!("writing {}", held.display()))?;
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => {
                ended.wait().context("waiting for a signal")?;
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("waiting for a child"),
        }
    }
}

fn make_mounts(folder: &Path) -> Result<()> {
    let none = None::<&str>;
    let groups = hierarchies()?;
    // Nothing of it is to be seen outside.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("making mounts private")?;
    for (kind, place) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("bpf", "/sys/fs/bpf"),
        ("tmpfs", "/run"),
    ] {
        mount(Some(kind), place, Some(kind), MsFlags::empty(), none).with_context(|| format!("mounting {place}"))?;
    }
    make_groups(&groups)?;
    overlay(folder, COPIED)?;
    for (name, value) in SYSCTLS {
        let file = folder.join(name.replace('/', "-"));
        fs::write(&file, format!("{value}\n")).with_context(|| format!("writing {}", file.display()))?;
        let place = Path::new("/proc/sys").join(name);
        mount(Some(&file), &place, none, MsFlags::MS_BIND, none)
            .with_context(|| format!("mounting {}", place.display()))?;
    }
    // A kubelet passes mounts on to pods.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SHARED, none).context("making mounts shared")
}

fn make_groups(groups: &[Hierarchy]) -> Result<()> {
    let none = None::<&str>;
    let root = Path::new("/sys/fs/cgroup");
    let (version_2, version_1): (Vec<_>, Vec<_>) = groups.iter().partition(|group| group.controllers.is_empty());
    if !version_1.is_empty() {
        mount(Some("tmpfs"), root, Some("tmpfs"), MsFlags::empty(), none).context("mounting /sys/fs/cgroup")?;
    }
    let make = |place: &PathBuf, kind: &str, data: Option<&str>| -> Result<()> {
        fs::create_dir_all(place)
            .map_err(anyhow::Error::from)
            .and_then(|()| Ok(mount(Some(kind), place, Some(kind), MsFlags::empty(), data)?))
            .with_context(|| format!("mounting {}", place.display()))
    };
    for group in version_1 {
        let data = match &group.controllers {
            name if name.starts_with("name=") => format!("none,{name}"),
            controllers => controllers.clone(),
        };
        make(&group.mount, "cgroup", Some(&data))?;
    }
    for group in version_2 {
        make(&group.mount, "cgroup2", None)?;
    }
    Ok(())
}

/// Has what is written below a folder go elsewhere.
fn overlay(folder: &Path, place: &str) -> Result<()> {
    let name = place.trim_start_matches('/').replace('/', "-");
    let (upper, work) = (folder.join(&name).join("upper"), folder.join(&name).join("work"));
    for folder in [&upper, &work] {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let options = format!(
        "lowerdir={place},upperdir={},workdir={}",
        upper.display(),
        work.display()
    );
    mount(
        Some("overlay"),
        place,
        Some("overlay"),
        MsFlags::empty(),
        Some(options.as_str()),
    )
    .with_context(|| format!("mounting an overlay on {place}"))
}
