//! The guest's file system: programs with the libraries that they load, at the paths that they have on this machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cpio::NewcBuilder;
use cpio::newc::{ModeFileType, trailer};

use crate::libraries;

/// Files by their path in the guest.
#[derive(Debug, Default)]
pub struct Initramfs {
    files: BTreeMap<PathBuf, Content>,
}

#[derive(Debug)]
enum Content {
    Folder,
    /// A copy of this file.
    Copy(PathBuf),
    Text(String),
}

impl Initramfs {
    /// Adds an empty folder.
    pub fn folder(&mut self, path: &str) {
        self.add(path.into(), Content::Folder);
    }

    /// Adds a file with this text.
    pub fn text(&mut self, path: &str, text: String) {
        self.add(path.into(), Content::Text(text));
    }

    /// Adds a file of this machine under the same path.
    pub fn file(&mut self, path: &Path) {
        self.add(path.to_owned(), Content::Copy(path.to_owned()));
    }

    /// Adds a program of this machine under the same path, with its libraries.
    pub fn program(&mut self, path: &Path) -> Result<()> {
        self.program_as(path, path)
    }

    /// Adds a program of this machine under another path, with its libraries.
    pub fn program_as(&mut self, path: &Path, place: &Path) -> Result<()> {
        for library in libraries::of(path)? {
            self.file(&library);
        }
        self.add(place.to_owned(), Content::Copy(path.to_owned()));
        Ok(())
    }

    fn add(&mut self, path: PathBuf, content: Content) {
        for folder in path.ancestors().skip(1).filter(|folder| folder.parent().is_some()) {
            self.files.entry(folder.to_owned()).or_insert(Content::Folder);
        }
        self.files.insert(path, content);
    }

    /// Writes the archive: folders before what is in them, as the kernel wants it.
    pub fn write(&self, to: &Path) -> Result<()> {
        let file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
        let mut out = BufWriter::new(file);
        for (number, (path, content)) in (1..).zip(&self.files) {
            let entry = NewcBuilder::new(path.to_string_lossy().trim_start_matches('/')).ino(number);
            out = match content {
                Content::Folder => {
                    let entry = entry.mode(0o755).set_mode_file_type(ModeFileType::Directory);
                    entry.write(out, 0).finish()
                }
                Content::Text(text) => {
                    let entry = entry.mode(0o644).set_mode_file_type(ModeFileType::Regular);
                    let mut writer = entry.write(out, u32::try_from(text.len())?);
                    writer.write_all(text.as_bytes())?;
                    writer.finish()
                }
                Content::Copy(from) => {
                    let reading = || format!("cannot read {}", from.display());
                    let mut file = File::open(from).with_context(reading)?;
                    let metadata = file.metadata().with_context(reading)?;
                    let entry = entry
                        .mode(metadata.permissions().mode() & 0o777)
                        .set_mode_file_type(ModeFileType::Regular);
                    let size =
                        u32::try_from(metadata.len()).with_context(|| format!("{} is too big", from.display()))?;
                    let mut writer = entry.write(out, size);
                    std::io::copy(&mut file, &mut writer).with_context(reading)?;
                    writer.finish()
                }
            }
            .with_context(|| format!("cannot write {}", to.display()))?;
        }
        trailer(out)?
            .flush()
            .with_context(|| format!("cannot write {}", to.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_folders_before_files() {
        let place = std::env::temp_dir().join(format!("xtask-initramfs-{}", std::process::id()));
        let mut initramfs = Initramfs::default();
        initramfs.text("/a/b/c", "hello".into());
        initramfs.folder("/a-b");
        initramfs.write(&place).unwrap();

        let mut found = Vec::new();
        let mut rest = File::open(&place).unwrap();
        loop {
            let mut entry = cpio::NewcReader::new(rest).unwrap();
            if entry.entry().is_trailer() {
                break;
            }
            let mut text = String::new();
            std::io::Read::read_to_string(&mut entry, &mut text).unwrap();
            found.push((entry.entry().name().to_owned(), entry.entry().mode(), text));
            rest = entry.finish().unwrap();
        }
        let folder = |name: &str| (name.to_owned(), 0o040_755, String::new());
        let file = ("a/b/c".to_owned(), 0o100_644, "hello".to_owned());
        assert_eq!(found, [folder("a"), folder("a/b"), file, folder("a-b")]);
        std::fs::remove_file(place).unwrap();
    }
}
