//! Debian's kernels, fetched by apt's own client into the tools folder. Nothing is installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::apt::{self, Os, PrivateApt, Source};
use crate::run::Step;
use crate::scratch::{Scratch, remove_dir};
use crate::workspace::{self, Lock};

const LIMIT: Duration = Duration::from_secs(180);
/// What a kernel consists of, by beginnings of package names: one package, or from 6.19 on several.
const PACKAGES: &[&str] = &["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];

/// A line of kernels that the tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Line {
    /// Debian 11's, the oldest that is supported
    #[value(name = "5.10")]
    V5_10,
    /// Debian 12's: no TCX
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13's, as Debian 12 has it too
    #[value(name = "6.12")]
    V6_12,
    /// The newest of Debian 13's backports
    #[value(name = "7.x")]
    V7,
}

impl Line {
    /// All, oldest first.
    pub const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::V7];

    /// As it is named on the command line and in folders.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7 => "7.x",
        }
    }

    /// The suite that has it, and the package that stands for the newest of this line. The kernels for clouds have all that is
    /// tested, at a third of the size.
    const fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::V5_10 => ("bullseye-security", "linux-image-cloud-amd64"),
            Self::V6_1 => ("bookworm-security", "linux-image-cloud-amd64"),
            Self::V6_12 => ("bookworm-security", "linux-image-6.12-cloud-amd64"),
            Self::V7 => ("trixie-backports", "linux-image-cloud-amd64"),
        }
    }
}

/// An unpacked kernel.
#[derive(Debug)]
pub struct Kernel {
    /// "6.1.0-57-cloud-amd64"
    pub version: String,
    /// What qemu boots.
    pub image: PathBuf,
    /// The folder that `lib/modules` is in, for `modprobe --dirname`.
    pub root: PathBuf,
}

impl Kernel {
    /// The one in a folder, if it is there and whole: [`fetch`] moves it there at the end.
    fn in_folder(root: PathBuf) -> Result<Option<Self>> {
        let modules = root.join("lib/modules");
        let Ok(entries) = std::fs::read_dir(&modules) else {
            return Ok(None);
        };
        let versions: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        let [version] = versions.as_slice() else {
            bail!("{} holds {} kernels instead of one", modules.display(), versions.len());
        };
        let version = version.to_string_lossy().into_owned();
        let image = root.join("vmlinuz");
        Ok(Some(Self { version, image, root }))
    }
}

/// Fetches the newest kernel of a line, unless there is one already. A folder that is removed is fetched anew.
pub fn ensure(line: Line) -> Result<Kernel> {
    let tools = workspace::tools_dir()?;
    let _lock = Lock::take(&tools)?;
    let place = tools.join("kernels").join(line.name());
    if let Some(kernel) = Kernel::in_folder(place.clone())? {
        return Ok(kernel);
    }
    fetch(&tools, line, &place).with_context(|| format!("there is no kernel {} to test on", line.name()))?;
    Kernel::in_folder(place)?.context("the kernel's packages hold no modules")
}

fn fetch(tools: &Path, line: Line, place: &Path) -> Result<()> {
    let (suite, package) = line.place();
    let os = Os::detect();
    if !os.is_debian() {
        bail!(
            "it is Debian's package {package} of {suite}, and this is no Debian: \
             unpack it to {0}/lib/modules and {0}/vmlinuz by hand, its modules not compressed and `depmod` run on them",
            place.display()
        );
    }
    let sources = apt::machine_sources();
    let archive = archive(&sources, &os, suite)
        .with_context(|| format!("none of the machine's apt sources is of an archive that has {suite}"))?;
    let scratch = Scratch::new(tools, "kernel")?;
    let apt = PrivateApt::with_suite(scratch.dir(), archive, suite)?;
    apt.update(suite)?;
    let mut packages = apt.with_dependencies(&[package], PACKAGES)?;
    packages.retain(|name| has_files(name, package));
    let unpacked = scratch.dir().join("unpacked");
    for deb in apt.download(&packages)? {
        apt::unpack(&deb, &unpacked, &[])?;
    }
    let made = scratch.dir().join("kernel");
    arrange(&unpacked, &made)?;
    remove_dir(place)?;
    std::fs::create_dir_all(place.parent().unwrap_or(place)).context("cannot make the folder of kernels")?;
    std::fs::rename(&made, place).with_context(|| format!("cannot move the kernel to {}", place.display()))
}

/// Whether a package is more than a name for the newest version: those hold nothing, and are the first to go from a server.
fn has_files(name: &str, asked_for: &str) -> bool {
    name != asked_for && name.contains('.')
}

fn archive<'a>(sources: &'a [Source], os: &Os, suite: &str) -> Option<&'a Source> {
    if suite.ends_with("-security") {
        apt::security_archive(sources)
    } else {
        apt::main_archive(sources, &os.codename)
    }
}

/// Takes image and modules out of what the packages hold, and makes of them what `modprobe` and the guest can read.
fn arrange(unpacked: &Path, made: &Path) -> Result<()> {
    std::fs::create_dir_all(made.join("lib")).context("cannot make a folder")?;
    let modules = [unpacked.join("lib/modules"), unpacked.join("usr/lib/modules")];
    let modules = modules
        .iter()
        .find(|folder| folder.is_dir())
        .context("no modules in the packages")?;
    std::fs::rename(modules, made.join("lib/modules")).context("cannot move the modules")?;
    let version = Kernel::in_folder(made.to_owned())?
        .context("no modules in the packages")?
        .version;
    let images = [
        unpacked.join("boot").join(format!("vmlinuz-{version}")),
        made.join("lib/modules").join(&version).join("vmlinuz"),
    ];
    let image = images
        .iter()
        .find(|file| file.is_file())
        .context("no vmlinuz in the packages")?;
    std::fs::rename(image, made.join("vmlinuz")).context("cannot move the kernel's image")?;

    let mut find = Command::new("find");
    find.arg(made.join("lib/modules"))
        .args(["-name", "*.ko.xz", "-exec", "xz", "--decompress", "{}", "+"]);
    Step::new("decompressing modules", LIMIT).run(&mut find)?;
    let mut depmod = Command::new(crate::packages::find_program("depmod").unwrap_or_else(|| "depmod".into()));
    depmod.arg("--basedir").arg(made).arg(&version);
    Step::new("depmod", LIMIT).run(&mut depmod).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_of_a_version_are_fetched() {
        let asked_for = "linux-image-6.12-cloud-amd64";
        assert!(has_files("linux-image-6.12.117+deb12-cloud-amd64", asked_for));
        assert!(!has_files(asked_for, asked_for));
        assert!(!has_files("linux-modules-cloud-amd64", "linux-image-cloud-amd64"));
    }
}
