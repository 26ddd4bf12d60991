//! When a folder is worth another look, and at what.

use std::{
    collections::{BTreeSet, HashSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, ModifyKind, RenameMode},
};

/// A look at everything, without any cause.
const AT_LEAST: Duration = Duration::from_secs(10);
/// Several changes are one if no more than this lies between them.
const QUIET: Duration = Duration::from_millis(10);
/// For this long at most, a look waits for a writer to finish or for changes to end.
const AT_MOST: Duration = Duration::from_secs(1);

/// What to look at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Changed {
    /// These names in the folder, files of manifests or not.
    Files(BTreeSet<PathBuf>),
    /// Nobody knows what has changed.
    Anything,
}

/// Follows the changes of a folder, whatever becomes of the folder itself.
pub(super) struct Changes {
    folder: PathBuf,
    watch: Option<Watch>,
    /// When everything is looked at again.
    due: Instant,
}

struct Watch {
    /// Which folder this is: a link may point to another one by now.
    inode: Option<(u64, u64)>,
    events: Receiver<notify::Result<Event>>,
    _watcher: RecommendedWatcher,
}

impl Changes {
    pub(super) fn of(folder: PathBuf) -> Self {
        let watch = Watch::of(&folder);
        Self {
            folder,
            watch,
            due: Instant::now() + AT_LEAST,
        }
    }

    /// Returns when something may have changed and nothing is being written any more.
    pub(super) fn wait(&mut self) -> Changed {
        let mut changed = match &self.watch {
            Some(watch) => watch.wait(self.due),
            None => {
                std::thread::sleep(AT_MOST);
                Changed::Anything
            }
        };
        let inode = inode(&self.folder);
        if self.watch.as_ref().is_none_or(|watch| watch.inode != inode) {
            self.watch = Watch::of(&self.folder);
            changed = Changed::Anything;
        }
        if Instant::now() >= self.due {
            changed = Changed::Anything;
        }
        if changed == Changed::Anything {
            self.due = Instant::now() + AT_LEAST;
        }
        changed
    }
}

fn inode(folder: &PathBuf) -> Option<(u64, u64)> {
    fs::metadata(folder)
        .ok()
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Watch {
    fn of(folder: &PathBuf) -> Option<Self> {
        let inode = inode(folder);
        let (sender, events) = channel();
        let watcher = notify::recommended_watcher(move |event| {
            // Nobody listens only when the watcher is about to be dropped.
            let _ = sender.send(event);
        });
        let watched = watcher.and_then(|mut watcher| {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        match watched {
            Ok(watcher) => Some(Self {
                inode,
                events,
                _watcher: watcher,
            }),
            Err(error) => {
                tracing::debug!("{} is read every second: {error}", folder.display());
                None
            }
        }
    }

    /// Waits for a change, until `due` at most.
    fn wait(&self, due: Instant) -> Changed {
        let mut seen = Seen::default();
        let first = loop {
            match self.events.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(event) => {
                    if seen.take(event) {
                        break Instant::now();
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Changed::Anything,
            }
        };
        // A file that is being written may be empty at this moment: its services would be gone.
        loop {
            let left = AT_MOST.saturating_sub(first.elapsed());
            let patience = if seen.writing.is_empty() { QUIET.min(left) } else { left };
            match self.events.recv_timeout(patience) {
                Ok(event) => {
                    seen.take(event);
                }
                Err(_) => return seen.changed(),
            }
            if left.is_zero() {
                return seen.changed();
            }
        }
    }
}

/// What events have said since the last look.
#[derive(Default)]
struct Seen {
    changed: BTreeSet<PathBuf>,
    /// Events were lost, or one named no file.
    anything: bool,
    /// Files that are not closed yet.
    writing: HashSet<PathBuf>,
}

impl Seen {
    /// Takes an event, and says whether it may mean another content.
    fn take(&mut self, event: notify::Result<Event>) -> bool {
        let Ok(event) = event else {
            self.anything = true;
            return true;
        };
        match event.kind {
            EventKind::Modify(ModifyKind::Data(_)) => self.writing.extend(event.paths.iter().cloned()),
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Remove(_)
            | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => {
                for path in &event.paths {
                    self.writing.remove(path);
                }
            }
            // Our own reading.
            EventKind::Access(_) => return false,
            _ => {}
        }
        self.anything |= event.need_rescan() || event.paths.is_empty();
        self.changed.extend(event.paths);
        true
    }

    fn changed(self) -> Changed {
        if self.anything {
            Changed::Anything
        } else {
            Changed::Files(self.changed)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::Write as _, thread};

    use super::*;

    #[test]
    fn a_look_waits_for_the_writer_to_finish() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.yaml");
        fs::write(&path, "before").unwrap();
        let mut changes = Changes::of(folder.path().into());

        let file = path.clone();
        let writer = thread::spawn(move || {
            let mut file = OpenOptions::new().write(true).truncate(true).open(file).unwrap();
            thread::sleep(Duration::from_millis(200));
            file.write_all(b"after").unwrap();
        });
        changes.wait();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        writer.join().unwrap();
    }

    #[test]
    fn reading_is_no_change() {
        let open = Event::new(EventKind::Access(AccessKind::Open(AccessMode::Any)));
        assert!(!Seen::default().take(Ok(open)));
    }

    #[test]
    fn a_folder_that_is_replaced_is_followed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("manifests");
        fs::create_dir(&folder).unwrap();
        let mut changes = Changes::of(folder.clone());
        fs::rename(&folder, parent.path().join("old")).unwrap();
        fs::create_dir(&folder).unwrap();
        changes.wait();
        fs::write(folder.join("web.yaml"), "").unwrap();
        let start = Instant::now();
        changes.wait();
        assert!(start.elapsed() < AT_LEAST / 2);
    }
}
