//! What is in the image.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// The files of Debian's package ca-certificates. Not the bundle in `/etc`, which has what this machine's owner trusts too.
const AUTHORITIES: &str = "/usr/share/ca-certificates/mozilla";

/// Where programs and libraries of TLS look for certificate authorities.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

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

/// Files by their path in the image, which is relative to its root. They belong to root.
#[derive(Debug, Default)]
pub struct Files {
    files: BTreeMap<PathBuf, (Mode, Vec<u8>)>,
}

impl Files {
    /// Adds a file.
    pub fn add(&mut self, path: impl AsRef<Path>, mode: Mode, content: Vec<u8>) {
        let path = path.as_ref();
        let relative = path.components().filter(|part| *part != Component::RootDir).collect();
        self.files.insert(relative, (mode, content));
    }

    /// Adds what is in a file of this machine.
    pub fn copy(&mut self, path: &Path, from: &Path, mode: Mode) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        self.add(path, mode, content);
        Ok(())
    }

    /// All of them, in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, Mode, &[u8])> {
        self.files
            .iter()
            .map(|(path, (mode, content))| (path.as_path(), *mode, content.as_slice()))
    }
}

/// What is there whichever agent is built.
pub fn base() -> Result<Files> {
    let mut files = Files::default();
    for (path, content) in WRITTEN {
        files.add(path, Mode::Data, content.into());
    }
    files.add(BUNDLE, Mode::Data, authorities(Path::new(AUTHORITIES))?);
    Ok(files)
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
