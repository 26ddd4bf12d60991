//! A layer: files in a tar archive, compressed, and the digests of both.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};

use super::files::{Entry, Files};

/// A SHA-256, as OCI writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    hex: String,
}

impl Digest {
    /// That of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let hex = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { hex }
    }

    /// The digits alone.
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex)
    }
}

/// A layer that is packed.
#[derive(Debug)]
pub struct Layer {
    /// What it is, for the image's history.
    pub what: &'static str,
    /// The archive, compressed.
    pub blob: Vec<u8>,
    /// The digest of the archive before that.
    pub diff_id: Digest,
}

/// Packs files into a layer, which is the same for the same files.
pub fn pack(what: &'static str, files: &Files) -> Result<Layer> {
    let archive = tar(files)?;
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::default());
    encoder.write_all(&archive).context("cannot compress a layer")?;
    Ok(Layer {
        what,
        diff_id: Digest::of(&archive),
        blob: encoder.finish().context("cannot compress a layer")?,
    })
}

/// A tar archive of files, with the folders that they are in, all of them root's and from 1970.
pub fn tar(files: &Files) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut folders = BTreeSet::new();
    for (path, entry) in files.iter() {
        let mut above: Vec<_> = path.ancestors().skip(1).filter(|path| *path != Path::new("")).collect();
        above.reverse();
        for folder in above {
            if folders.insert(folder) {
                let mut header = header(tar::EntryType::Directory, 0o755, 0);
                archive.append_data(&mut header, folder, std::io::empty())?;
            }
        }
        match entry {
            Entry::File(mode, content) => {
                let mut header = header(tar::EntryType::Regular, mode.bits(), content.len() as u64);
                archive.append_data(&mut header, path, content.as_slice())?;
            }
            Entry::Link(target) => {
                let mut header = header(tar::EntryType::Symlink, 0o777, 0);
                archive.append_link(&mut header, path, target)?;
            }
        }
    }
    archive.into_inner().context("cannot make a tar archive")
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::files::Mode;

    #[test]
    fn a_digest_is_that_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            Digest::of(b"abc").to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn folders_come_once_before_what_is_in_them() {
        let mut files = Files::default();
        for path in ["/usr/sbin/nft", "usr/bin/lb-agent", "etc/passwd"] {
            files.add(path, Mode::Data, b"x".into());
        }
        let archive = tar(&files).unwrap();
        let mut archive = tar::Archive::new(archive.as_slice());
        let names: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(
            names,
            [
                "etc",
                "etc/passwd",
                "usr",
                "usr/bin",
                "usr/bin/lb-agent",
                "usr/sbin",
                "usr/sbin/nft"
            ]
        );
    }

    #[test]
    fn a_link_stays_one() {
        let mut files = Files::default();
        files.link("usr/sbin/iptables-nft-save", "xtables-nft-multi");
        let archive = tar(&files).unwrap();
        let mut archive = tar::Archive::new(archive.as_slice());
        let entry = archive.entries().unwrap().last().unwrap().unwrap();
        assert_eq!(entry.path().unwrap(), Path::new("usr/sbin/iptables-nft-save"));
        assert_eq!(entry.header().entry_type(), tar::EntryType::Symlink);
        assert_eq!(entry.link_name().unwrap().unwrap(), Path::new("xtables-nft-multi"));
    }
}
