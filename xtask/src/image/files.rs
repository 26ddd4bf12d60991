//! What is in the image.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::libraries;
use crate::packages::find_program;

/// The files of Debian's package ca-certificates. Not the bundle in `/etc`, which has what this machine's owner trusts too.
const AUTHORITIES: &str = "/usr/share/ca-certificates/mozilla";

/// Where programs and libraries of TLS look for certificate authorities.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// Where the tools are in the image, which its `PATH` names.
const PROGRAMS: &str = "usr/sbin";

/// The programs that the agent calls, and the names by which it does: `nft` to serve, and the others to clean up after a
/// kube-proxy, which had them in its own image, so that a node need not have them.
const TOOLS: [(&str, &[&str]); 4] = [
    ("nft", &[]),
    (
        "xtables-nft-multi",
        &[
            "iptables-nft-save",
            "iptables-nft-restore",
            "ip6tables-nft-save",
            "ip6tables-nft-restore",
        ],
    ),
    (
        "xtables-legacy-multi",
        &[
            "iptables-legacy-save",
            "iptables-legacy-restore",
            "ip6tables-legacy-save",
            "ip6tables-legacy-restore",
        ],
    ),
    ("ipset", &[]),
];

/// Files that are the same whatever is built, and what is in them.
const WRITTEN: [(&str, &str); 4] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n",
    ),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    // The name of an API server may be one of a hosts file.
    ("etc/nsswitch.conf", "hosts: files dns\n"),
    // By these `nft` reads and writes names of protocols (IANA's Protocol Numbers).
    (
        "etc/protocols",
        "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n",
    ),
];

/// Whether a file can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// By everybody.
    Program,
    /// It is read.
    Data,
}

impl Mode {
    /// As chmod(1) takes it.
    pub fn bits(self) -> u32 {
        match self {
            Self::Program => 0o755,
            Self::Data => 0o644,
        }
    }
}

/// What is at a path.
#[derive(Debug)]
pub enum Entry {
    /// A file with this in it.
    File(Mode, Vec<u8>),
    /// A symbolic link to this.
    Link(PathBuf),
}

/// Files by their path in the image, which is relative to its root. They belong to root.
#[derive(Debug, Default)]
pub struct Files {
    files: BTreeMap<PathBuf, Entry>,
}

impl Files {
    /// Adds a file.
    pub fn add(&mut self, path: impl AsRef<Path>, mode: Mode, content: Vec<u8>) {
        self.insert(path.as_ref(), Entry::File(mode, content));
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: impl AsRef<Path>, target: impl Into<PathBuf>) {
        self.insert(path.as_ref(), Entry::Link(target.into()));
    }

    fn insert(&mut self, path: &Path, entry: Entry) {
        let relative = path.components().filter(|part| *part != Component::RootDir).collect();
        self.files.insert(relative, entry);
    }

    /// Adds what is in a file of this machine.
    pub fn copy(&mut self, path: &Path, from: &Path, mode: Mode) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.add(path, mode, content);
        Ok(())
    }

    /// Adds a program of this machine under this path, and the libraries that it loads.
    pub fn program(&mut self, path: &Path, program: &Path) -> Result<()> {
        self.copy(path, program, Mode::Program)?;
        self.libraries(program)
    }

    /// Adds the libraries that a program of this machine loads.
    pub fn libraries(&mut self, program: &Path) -> Result<()> {
        for library in libraries::of(program)? {
            self.copy(&library, &library, Mode::Program)?;
        }
        Ok(())
    }

    /// Adds a program of a package that is unpacked in a folder, and the libraries that it loads, from there too where they
    /// are.
    pub fn unpacked(&mut self, root: &Path, program: &Path) -> Result<()> {
        let file = root.join(program);
        self.copy(program, &file, Mode::Program)?;
        for library in libraries::of_unpacked(root, &file)? {
            let place = library.strip_prefix(root).unwrap_or(&library);
            self.copy(place, &library, Mode::Program)?;
        }
        Ok(())
    }

    /// All of them, in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        self.files.iter().map(|(path, entry)| (path.as_path(), entry))
    }
}

/// What is there whichever agent is built.
pub fn base() -> Result<Files> {
    let mut files = Files::default();
    for (name, links) in TOOLS {
        let Some(program) = find_program(name) else {
            bail!("there is no program {name}");
        };
        files.program(&Path::new(PROGRAMS).join(name), &program)?;
        for link in links {
            files.link(Path::new(PROGRAMS).join(link), name);
        }
    }
    extensions(&mut files)?;
    for (path, content) in WRITTEN {
        files.add(path, Mode::Data, content.into());
    }
    files.add(BUNDLE, Mode::Data, authorities(Path::new(AUTHORITIES))?);
    Ok(files)
}

/// What the tools of iptables know of matches and targets, each of which they load when a rule has it.
fn extensions(files: &mut Files) -> Result<()> {
    let library = files.files.keys().find(|path| is_named(path, "libxtables.so"));
    let Some(place) = library.and_then(|path| path.parent()?.file_name()) else {
        bail!("the tools of iptables load no libxtables");
    };
    let folder = Path::new("/usr/lib").join(place).join("xtables");
    let context = || format!("cannot read the extensions of iptables in {}", folder.display());
    for entry in fs::read_dir(&folder).with_context(context)? {
        let path = entry.with_context(context)?.path();
        // Those of arptables and ebtables are of no use here.
        if !["libxt_", "libipt_", "libip6t_"]
            .iter()
            .any(|name| is_named(&path, name))
        {
            continue;
        }
        match fs::read_link(&path) {
            Ok(target) => files.link(&path, target),
            Err(_) => files.program(&path, &path)?,
        }
    }
    Ok(())
}

fn is_named(path: &Path, start: &str) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(start))
}

/// All certificates of a folder in one file.
fn authorities(folder: &Path) -> Result<Vec<u8>> {
    let context = || format!("cannot read the certificate authorities in {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.extension().is_some_and(|ending| ending == "crt") {
            paths.push(path);
        }
    }
    paths.sort();
    ensure!(!paths.is_empty(), "there are no certificates in {}", folder.display());
    let mut bundle = Vec::new();
    for path in paths {
        bundle.extend(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
        if bundle.last() != Some(&b'\n') {
            bundle.push(b'\n');
        }
    }
    Ok(bundle)
}
