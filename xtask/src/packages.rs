//! The Debian packages whose programs the verbs call.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use nix::unistd::Uid;

use crate::run::{Step, say};

/// A program that must be there, and the package that brings it.
#[derive(Debug)]
pub struct Package {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const PACKAGES: &[Package] = &[Package {
    program: "nft",
    package: "nftables",
    why: "the masquerade rule",
}];

/// What kube-proxy calls in iptables mode.
pub const IPTABLES: Package = Package {
    program: "iptables",
    package: "iptables",
    why: "kube-proxy's iptables mode",
};

/// What it calls in IPVS mode too.
pub const IPSET: Package = Package {
    program: "ipset",
    package: "ipset",
    why: "kube-proxy's IPVS mode",
};

/// What shows the tests of the IPVS plane what the kernel holds.
pub const IPVSADM: Package = Package {
    program: "ipvsadm",
    package: "ipvsadm",
    why: "a look at the kernel's IPVS",
};

/// What the image is made of and with, beyond `nft`.
pub const IMAGE: [Package; 4] = [
    Package {
        program: "xtables-nft-multi",
        package: "iptables",
        why: "cleaning up after a kube-proxy",
    },
    Package {
        program: "ipset",
        package: "ipset",
        why: "cleaning up after a kube-proxy",
    },
    Package {
        program: "update-ca-certificates",
        package: "ca-certificates",
        why: "the certificate authorities of the image",
    },
    Package {
        program: "strip",
        package: "binutils",
        why: "an image without debug information",
    },
];

/// What a virtual machine with another kernel needs.
pub const MACHINE: [Package; 4] = [
    IPVSADM,
    Package {
        program: "qemu-system-x86_64",
        package: "qemu-system-x86",
        why: "virtual machines",
    },
    Package {
        program: "modprobe",
        package: "kmod",
        why: "the modules of another kernel",
    },
    Package {
        program: "xz",
        package: "xz-utils",
        why: "compressed modules",
    },
];

/// Where a program of a package may be although it is not in an ordinary user's PATH.
const SYSTEM_FOLDERS: &[&str] = &["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Looks for a program in PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && nix::unistd::access(file, nix::unistd::AccessFlags::X_OK).is_ok()
}

/// Installs what is missing of what every verb needs and of these, and returns a line that says what there is.
pub fn ensure(also: &[Package]) -> Result<String> {
    let wanted = || PACKAGES.iter().chain(also);
    let missing: Vec<_> = wanted()
        .filter(|package| find_program(package.program).is_none())
        .collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    let there: Vec<_> = wanted().map(|package| package.program).collect();
    Ok(there.join(", "))
}

fn install(missing: &[&Package]) -> Result<()> {
    let names: Vec<_> = missing.iter().map(|package| package.package).collect();
    let wanted: Vec<_> = missing
        .iter()
        .map(|p| format!("{} (for {}; Debian's package {})", p.program, p.why, p.package))
        .collect();
    let wanted = wanted.join(", ");
    if find_program("apt-get").is_none() {
        bail!("missing programs: {wanted}. This machine has no apt-get: install them with its own package manager");
    }
    let by_hand = format!("apt-get update && apt-get install {}", names.join(" "));
    if !Uid::effective().is_root() {
        bail!("missing programs: {wanted}. Only root can install them. Run as root: {by_hand}");
    }
    say(format_args!("Installing {wanted}"));
    let apt = |args: &[&str]| {
        let mut apt = Command::new("apt-get");
        // A lock that another apt-get holds is waited for.
        apt.env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-o", "DPkg::Lock::Timeout=120"])
            .args(args);
        apt
    };
    Step::new("reading the package lists", Duration::from_secs(180))
        .hint("The machine's apt sources could not be read; `apt-get update` shows the same.")
        .run(&mut apt(&["update"]))?;
    let mut command = apt(&["install", "--yes", "--no-install-recommends"]);
    Step::new(format!("installing {}", names.join(", ")), Duration::from_secs(300))
        .hint(format!("By hand: {by_hand}"))
        .run(command.args(&names))?;
    match missing.iter().find(|package| find_program(package.program).is_none()) {
        Some(package) => bail!(
            "{} is installed, but there is still no program {}",
            package.package,
            package.program
        ),
        None => Ok(()),
    }
}
