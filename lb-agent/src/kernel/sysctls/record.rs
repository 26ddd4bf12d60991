//! What was set, written down before it is set, so that it can be put back: by another process, after a crash,
//! after any number of restarts.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::{path, read};
use crate::kernel::netns::Netns;

/// Where it is written down, in the folder of what an agent keeps while the machine is on.
const FILE: &str = "sysctls.json";
/// The kernel's name for the time since it started.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// One writes at a time.
static WRITES: Mutex<()> = Mutex::new(());

/// Whose settings they are: what is written down of others says nothing about these.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Owner {
    boot: String,
    /// The kernel's number of the network namespace.
    netns: u64,
}

impl Owner {
    /// This network namespace, since the kernel started.
    fn current() -> io::Result<Self> {
        Ok(Self {
            boot: read(Path::new(BOOT))?.unwrap_or_default(),
            netns: Netns::current()?.inode(),
        })
    }
}

/// One setting.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    /// What it was when it was set for the first time.
    before: String,
    /// What it was set to last.
    set: String,
}

/// What is written down, in the order in which it was set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    owner: Owner,
    settings: Vec<Entry>,
}

/// The file of it.
#[derive(Debug)]
pub(super) struct RecordFile {
    path: PathBuf,
}

impl RecordFile {
    pub(super) fn new(run_dir: &Path) -> Self {
        Self {
            path: run_dir.join(FILE),
        }
    }

    /// Sets something once it is written down what it was.
    pub(super) fn set(&self, proc: &Path, name: &str, value: &str) -> io::Result<()> {
        let _one_at_a_time = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
        let path = path(proc, name);
        // A finding may be about what several settings come to: here this one counts.
        let before = read(&path)?.ok_or(io::ErrorKind::NotFound)?;
        let owner = Owner::current()?;
        let known = self.read()?.filter(|known| known.owner == owner);
        let known = known.unwrap_or(Record {
            owner,
            settings: Vec::new(),
        });
        let mut noted = known.clone();
        match noted.settings.iter_mut().find(|entry| entry.name == name) {
            // It was somebody else who set it back: what it was in the beginning stays what it was.
            Some(entry) => value.clone_into(&mut entry.set),
            None => noted.settings.push(Entry {
                name: name.to_owned(),
                before,
                set: value.to_owned(),
            }),
        }
        self.write(&noted)?;
        let set = fs::write(path, value);
        if set.is_err() {
            // What was not set is not to be put back, whoever sets it later.
            self.write(&known)?;
        }
        set
    }

    /// Puts everything back that is still as it was set, the last first.
    pub(super) fn restore(&self, proc: &Path) -> io::Result<Vec<Restored>> {
        let _one_at_a_time = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut record) = self.read()? else {
            return Ok(Vec::new());
        };
        let current = Owner::current()?;
        let is_ours = record.owner == current;
        let mut restored = Vec::new();
        let mut failed = Vec::new();
        for entry in record.settings.iter().rev() {
            let end = if is_ours { entry.restore(proc) } else { End::OfAnother };
            if matches!(end, End::Failed(_)) {
                failed.push(entry.clone());
            }
            restored.push(Restored {
                name: entry.name.clone(),
                end,
            });
        }
        if record.owner.boot == current.boot && !is_ours {
            // It is for a cleanup over there.
            return Ok(restored);
        }
        if failed.is_empty() {
            fs::remove_file(&self.path).map_err(|error| self.error("remove", &error))?;
        } else {
            failed.reverse();
            record.settings = failed;
            self.write(&record)?;
        }
        Ok(restored)
    }

    fn read(&self) -> io::Result<Option<Record>> {
        let Some(text) = read(&self.path)? else {
            return Ok(None);
        };
        let record = serde_json::from_str(&text);
        record.map(Some).map_err(|error| {
            let path = self.path.display();
            io::Error::other(format!(
                "{path} is not what lb-agent wrote there ({error}): remove it, and put sysctls back by hand"
            ))
        })
    }

    /// All of it or nothing.
    fn write(&self, record: &Record) -> io::Result<()> {
        let write = || {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            let draft = self.path.with_extension("json.new");
            let mut file = File::create(&draft)?;
            file.write_all(&serde_json::to_vec_pretty(record)?)?;
            file.sync_all()?;
            fs::rename(draft, &self.path)
        };
        write().map_err(|error| self.error("write down what is set in", &error))
    }

    fn error(&self, doing: &str, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("cannot {doing} {}: {error}", self.path.display()))
    }
}

impl Entry {
    fn restore(&self, proc: &Path) -> End {
        let path = path(proc, &self.name);
        match read(&path) {
            Ok(None) => End::NotThere,
            Ok(Some(now)) if now == self.before => End::AsBefore,
            Ok(Some(now)) if now == self.set => match fs::write(&path, &self.before) {
                Ok(()) => End::PutBack {
                    value: self.before.clone(),
                },
                Err(error) => End::Failed(error),
            },
            Ok(Some(now)) => End::Changed {
                set: self.set.clone(),
                now,
            },
            Err(error) => End::Failed(error),
        }
    }
}

/// What became of a setting of the agent's at the end.
#[derive(Debug)]
pub struct Restored {
    /// Name, as sysctl(8) takes it.
    pub name: String,
    /// What became of it.
    pub end: End,
}

/// What became of it.
#[derive(Debug)]
pub enum End {
    /// It has the value again that it had before the agent.
    PutBack {
        /// That value.
        value: String,
    },
    /// Somebody else has put it back.
    AsBefore,
    /// Somebody else has given it another value, which stays.
    Changed {
        /// What the agent set it to.
        set: String,
        /// What it is.
        now: String,
    },
    /// There is no such setting any more: it went with a module or a link.
    NotThere,
    /// It was set in another network namespace, or before the machine started.
    OfAnother,
    /// It stays, and stays written down.
    Failed(io::Error),
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.end {
            End::PutBack { value } => write!(f, "{name} is {value} again"),
            End::AsBefore => write!(f, "{name} is left alone: it is what it was before the agent"),
            End::Changed { set, now } => {
                write!(
                    f,
                    "{name} is left alone: the agent set it to {set}, and it is {now} now"
                )
            }
            End::NotThere => write!(f, "{name} is not there any more"),
            End::OfAnother => {
                write!(
                    f,
                    "{name} is left alone: it was set in another network namespace, or before this start"
                )
            }
            End::Failed(error) => write!(f, "{name} cannot be put back: {error}"),
        }
    }
}
