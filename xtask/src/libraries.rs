//! Which libraries programs load.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::run::Step;

const LIMIT: Duration = Duration::from_secs(30);

/// The shared libraries of a program and its loader, where this machine has them. A static program has none.
pub fn of(program: &Path) -> Result<BTreeSet<PathBuf>> {
    ask(Command::new("ldd").arg(program), program)
}

/// The same of a program in a folder that packages are unpacked in, where its libraries may be too.
pub fn of_unpacked(root: &Path, program: &Path) -> Result<BTreeSet<PathBuf>> {
    let search = std::env::join_paths(folders(root))?;
    ask(Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", search), program)
}

/// Where packages that are unpacked in a folder have their libraries.
fn folders(root: &Path) -> Vec<PathBuf> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    ["lib", "usr/lib"]
        .map(|folder| root.join(folder).join(&triplet))
        .to_vec()
}

fn ask(ldd: &mut Command, program: &Path) -> Result<BTreeSet<PathBuf>> {
    let step = Step::new(format!("asking for the libraries of {}", program.display()), LIMIT);
    let text = match step.ask(ldd) {
        Err(error) if error.to_string().contains("not a dynamic executable") => String::new(),
        text => text?,
    };
    let mut libraries = BTreeSet::new();
    for line in text.lines() {
        match parse(line) {
            Line::Library(path) => {
                libraries.insert(path);
            }
            Line::NoFile => {}
            Line::Absent(name) => bail!("{} needs the library {name}, which is not here", program.display()),
            Line::Unknown => bail!("ldd says of {} what is not understood: {line}", program.display()),
        }
    }
    Ok(libraries)
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Library(PathBuf),
    /// What the kernel maps into every process, or that there is nothing.
    NoFile,
    Absent(String),
    Unknown,
}

/// A line such as `libmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x00007fd68feec000)`.
fn parse(line: &str) -> Line {
    let line = line.trim();
    if line.starts_with("linux-vdso.so") || line.starts_with("linux-gate.so") || line == "statically linked" {
        return Line::NoFile;
    }
    if let Some(name) = line.strip_suffix(" => not found") {
        return Line::Absent(name.to_owned());
    }
    let place = line.split_once(" => ").map_or(line, |(_, place)| place);
    match place.split_once(" (0x") {
        Some((path, _)) if path.starts_with('/') => Line::Library(path.into()),
        _ => Line::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found_in_what_ldd_says() {
        let library = |path: &str| Line::Library(path.into());
        for (line, expected) in [
            ("\tlinux-vdso.so.1 (0x00007fd690206000)", Line::NoFile),
            (
                "\tlibmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x00007fd68feec000)",
                library("/lib/x86_64-linux-gnu/libmnl.so.0"),
            ),
            (
                "\t/lib64/ld-linux-x86-64.so.2 (0x00007fd690208000)",
                library("/lib64/ld-linux-x86-64.so.2"),
            ),
            ("\tlibedit.so.2 => not found", Line::Absent("libedit.so.2".to_owned())),
            ("\tstatically linked", Line::NoFile),
            ("\tsomething else", Line::Unknown),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
    }
}
