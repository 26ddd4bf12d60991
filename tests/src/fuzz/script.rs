//! What happens, step by step, as text: the corpus and reproducers are files of it.
//!
//! ```text
//! # A sentence that says what this is.
//! from_pod mark=0x10 gso=1400 020000000002...
//! backend web-v4-tcp 1 drains
//! service web-v4-tcp goes
//! expire
//! evict 3
//! ```

use std::fmt::{self, Write as _};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Error, Result, bail, ensure};

use super::oracle::Sent;
use super::programs::Program;
use super::world::{BackendChange, Change};

/// One thing that happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A packet passes.
    Packet(Sent),
    /// Something else.
    Change(Change),
}

/// A file of steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// Its name, without folder.
    pub name: String,
    /// What happens.
    pub steps: Vec<Step>,
}

impl Script {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let steps = parse(&text).with_context(|| path.display().to_string())?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, steps })
    }

    /// Reads a folder, in the order of names.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>> {
        let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
        let mut paths = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<Vec<_>>>()
            .with_context(|| format!("reading {}", folder.display()))?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }
}

/// Reads steps.
pub fn parse(text: &str) -> Result<Vec<Step>> {
    let lines = (1..).zip(text.lines());
    let steps = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    steps
        .map(|(number, line)| line.parse().with_context(|| format!("line {number}")))
        .collect()
}

/// Writes steps, with a sentence on top.
#[must_use]
pub fn write(sentence: &str, steps: &[Step]) -> String {
    let mut text: String = sentence.lines().map(|line| format!("# {line}\n")).collect();
    for step in steps {
        let _ = writeln!(text, "{step}");
    }
    text
}

impl FromStr for Step {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let change = match words[..] {
            ["expire"] => Change::Expire,
            ["evict", row] => Change::Evict(row.parse().context("the number of a row")?),
            ["service", name, "goes"] => Change::Service(name.to_owned(), false),
            ["service", name, "comes"] => Change::Service(name.to_owned(), true),
            ["backend", name, index, change] => {
                let known = BackendChange::ALL.iter().find(|known| known.1 == change);
                let (change, _) =
                    known.with_context(|| format!("nothing is called {change:?} that befalls a backend"))?;
                Change::Backend(
                    name.to_owned(),
                    index.parse().context("the number of a backend")?,
                    *change,
                )
            }
            [program, ref options @ .., bytes] => return packet(program, options, bytes).map(Step::Packet),
            _ => bail!("{line:?} is no step"),
        };
        Ok(Self::Change(change))
    }
}

fn packet(program: &str, options: &[&str], bytes: &str) -> Result<Sent> {
    let known = Program::ALL.into_iter().find(|known| known.name() == program);
    let mut sent = Sent {
        program: known.with_context(|| format!("there is no program {program}"))?,
        mark: 0,
        gso_size: 0,
        bytes: from_hex(bytes)?,
    };
    for option in options {
        match option.split_once('=') {
            Some(("mark", mark)) => {
                let digits = mark.strip_prefix("0x").context("a mark is 0x and hexadecimal")?;
                sent.mark = u32::from_str_radix(digits, 16).context("a mark")?;
            }
            Some(("gso", size)) => sent.gso_size = size.parse().context("the size of segments")?,
            _ => bail!("{option:?} is neither mark= nor gso="),
        }
    }
    Ok(sent)
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    ensure!(
        text.is_ascii() && text.len().is_multiple_of(2),
        "bytes have two digits each"
    );
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).with_context(|| format!("digits {at} and the next")))
        .collect()
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet(sent) => {
                write!(f, "{}", sent.program.name())?;
                if sent.mark != 0 {
                    write!(f, " mark={:#x}", sent.mark)?;
                }
                if sent.gso_size != 0 {
                    write!(f, " gso={}", sent.gso_size)?;
                }
                f.write_char(' ')?;
                sent.bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Change(Change::Expire) => f.write_str("expire"),
            Self::Change(Change::Evict(row)) => write!(f, "evict {row}"),
            Self::Change(Change::Service(name, false)) => write!(f, "service {name} goes"),
            Self::Change(Change::Service(name, true)) => write!(f, "service {name} comes"),
            Self::Change(Change::Backend(name, index, change)) => {
                let known = BackendChange::ALL.iter().find(|known| known.0 == *change);
                write!(f, "backend {name} {index} {}", known.map_or("", |known| known.1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_were_written() {
        let text = "# Two lines\n# of it.\nfrom_pod mark=0x4000 gso=100 00ff10\nto_link_l3 aa\n\
                    backend web-v4-tcp 1 is-replaced\nservice dns-v6-udp goes\nservice dns-v6-udp comes\nexpire\nevict 7\n";
        let steps = parse(text).unwrap();
        assert_eq!(steps.len(), 7);
        assert_eq!(write("Two lines\nof it.", &steps), text);
    }

    #[test]
    fn what_is_no_step_is_named_with_its_line() {
        for (line, says) in [
            ("from_pod 0", "two digits"),
            ("from_pod 0g", "digits 0"),
            ("from_pod mark=1 00", "0x"),
            ("from_pot 00", "from_pot"),
            ("backend web-v4-tcp 1 dies", "dies"),
            ("evict", "no step"),
        ] {
            let error = format!("{:#}", parse(&format!("expire\n{line}")).unwrap_err());
            assert!(error.contains("line 2") && error.contains(says), "{error}");
        }
    }
}
