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

/// A value as the kernel is given it: of nothing at all it hears nothing.
const fn written(value: &str) -> &str {
    if value.is_empty() { "\n" } else { value }
}

impl Entry {
    fn restore(&self, proc: &Path) -> End {
        let path = path(proc, &self.name);
        match read(&path) {
            Ok(None) => End::NotThere,
            Ok(Some(now)) if now == self.before => End::AsBefore,
            Ok(Some(now)) if now == self.set => match fs::write(&path, written(&self.before)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARDING: &str = "net.ipv4.ip_forward";
    const REUSE: &str = "net.ipv4.vs.conn_reuse_mode";

    /// A /proc with two settings, and a folder to write down in.
    struct Node(tempfile::TempDir);

    impl Node {
        fn new() -> Self {
            let node = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(node.proc().join("sys/net/ipv4/vs")).unwrap();
            node.is_set(FORWARDING, "0");
            node.is_set(REUSE, "5");
            node
        }

        fn proc(&self) -> PathBuf {
            self.0.path().join("proc")
        }

        fn run_dir(&self) -> PathBuf {
            self.0.path().join("run/lb-agent")
        }

        /// By somebody else.
        fn is_set(&self, name: &str, value: &str) {
            fs::write(path(&self.proc(), name), format!("{value}\n")).unwrap();
        }

        fn value(&self, name: &str) -> String {
            read(&path(&self.proc(), name)).unwrap().unwrap()
        }

        /// By a new process, each time.
        fn set(&self, name: &str, value: &str) -> io::Result<()> {
            RecordFile::new(&self.run_dir()).set(&self.proc(), name, value)
        }

        fn restore(&self) -> Vec<String> {
            let restored = RecordFile::new(&self.run_dir()).restore(&self.proc()).unwrap();
            restored.iter().map(ToString::to_string).collect()
        }

        fn record(&self) -> Option<Record> {
            RecordFile::new(&self.run_dir()).read().unwrap()
        }
    }

    #[test]
    fn what_was_set_is_put_back_once_the_last_first() {
        let node = Node::new();
        node.set(FORWARDING, "1").unwrap();
        node.set(REUSE, "1").unwrap();
        assert_eq!((node.value(FORWARDING), node.value(REUSE)), ("1".into(), "1".into()));
        let ends = [format!("{REUSE} is 5 again"), format!("{FORWARDING} is 0 again")];
        assert_eq!(node.restore(), ends);
        assert_eq!((node.value(FORWARDING), node.value(REUSE)), ("0".into(), "5".into()));
        assert_eq!(node.restore(), [""; 0]);
        assert_eq!(fs::read_dir(node.run_dir()).unwrap().count(), 0);
    }

    #[test]
    fn the_first_value_is_the_one_that_is_kept() {
        let node = Node::new();
        node.set(REUSE, "1").unwrap();
        node.is_set(REUSE, "0");
        node.set(REUSE, "1").unwrap();
        assert_eq!(node.restore(), [format!("{REUSE} is 5 again")]);
    }

    #[test]
    fn what_somebody_else_changed_since_is_left_alone() {
        let node = Node::new();
        node.set(REUSE, "1").unwrap();
        node.set(FORWARDING, "1").unwrap();
        node.is_set(REUSE, "0");
        node.is_set(FORWARDING, "0");
        let ends = [
            format!("{FORWARDING} is left alone: it is what it was before the agent"),
            format!("{REUSE} is left alone: the agent set it to 1, and it is 0 now"),
        ];
        assert_eq!(node.restore(), ends);
        assert_eq!(node.value(REUSE), "0");
        assert_eq!(node.restore(), [""; 0]);
    }

    #[test]
    fn what_went_with_a_module_or_a_link_is_no_failure() {
        let node = Node::new();
        node.set(REUSE, "1").unwrap();
        node.set(FORWARDING, "1").unwrap();
        fs::remove_dir_all(node.proc().join("sys/net/ipv4/vs")).unwrap();
        let ends = [
            format!("{FORWARDING} is 0 again"),
            format!("{REUSE} is not there any more"),
        ];
        assert_eq!(node.restore(), ends);
    }

    #[test]
    fn after_a_crash_between_writing_down_and_setting_nothing_is_put_back_wrongly() {
        let node = Node::new();
        node.set(FORWARDING, "1").unwrap();
        // As if it had not come to it.
        node.is_set(FORWARDING, "0");
        assert_eq!(
            node.restore(),
            [format!(
                "{FORWARDING} is left alone: it is what it was before the agent"
            )]
        );
        assert_eq!(node.value(FORWARDING), "0");
    }

    #[test]
    fn it_is_written_down_before_it_is_set() {
        let node = Node::new();
        fs::create_dir_all(node.run_dir().parent().unwrap()).unwrap();
        // A file where the folder should be: nothing can be written down.
        fs::write(node.run_dir(), "").unwrap();
        let error = node.set(FORWARDING, "1").unwrap_err().to_string();
        assert!(error.contains("sysctls.json"), "{error}");
        assert_eq!(node.value(FORWARDING), "0");
    }

    #[test]
    fn what_could_not_be_set_is_not_written_down() {
        let node = Node::new();
        node.set(REUSE, "1").unwrap();
        assert!(node.set("net.ipv4.vs.none", "1").is_err());
        let names: Vec<_> = node
            .record()
            .unwrap()
            .settings
            .into_iter()
            .map(|entry| entry.name)
            .collect();
        assert_eq!(names, [REUSE]);
    }

    #[test]
    fn what_was_set_before_the_machine_started_is_over() {
        let node = Node::new();
        node.set(REUSE, "1").unwrap();
        let mut record = node.record().unwrap();
        record.owner.boot = "another".to_owned();
        RecordFile::new(&node.run_dir()).write(&record).unwrap();
        assert!(node.restore()[0].contains("before this start"));
        assert_eq!(node.value(REUSE), "1");
        assert_eq!(node.record(), None);
    }

    #[test]
    fn what_was_set_in_another_network_namespace_stays_written_down_for_a_cleanup_there() {
        let node = Node::new();
        node.set(REUSE, "1").unwrap();
        let mut record = node.record().unwrap();
        record.owner.netns += 1;
        RecordFile::new(&node.run_dir()).write(&record).unwrap();
        assert!(node.restore()[0].contains("another network namespace"));
        assert_eq!(node.value(REUSE), "1");
        assert_eq!(node.record(), Some(record));
    }

    #[test]
    fn a_file_that_makes_no_sense_is_named_and_nothing_is_set() {
        let node = Node::new();
        fs::create_dir_all(node.run_dir()).unwrap();
        fs::write(node.run_dir().join(FILE), "{}").unwrap();
        for error in [
            node.set(REUSE, "1").unwrap_err(),
            RecordFile::new(&node.run_dir()).restore(&node.proc()).unwrap_err(),
        ] {
            let said = error.to_string();
            assert!(
                said.contains("run/lb-agent/sysctls.json") && said.contains("remove it"),
                "{said}"
            );
        }
        assert_eq!(node.value(REUSE), "5");
    }
}
