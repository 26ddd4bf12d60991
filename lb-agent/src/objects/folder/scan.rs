//! What a folder says now, and what has changed since the last look.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::{self, Metadata},
    hash::{BuildHasher, RandomState},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    changes::Changed,
    manifest::{self, Key, Manifest, Object, Syntax, deleted},
};
use crate::{
    model::{Event, Update},
    objects::Skipped,
};

/// Reads the files that are different from the last time, and tells what that changes.
pub(super) struct Scanner {
    folder: PathBuf,
    this_node: String,
    files: BTreeMap<PathBuf, File>,
    /// The files that say an object. Of two with one name the first in order of the files counts.
    sayings: BTreeMap<Key, BTreeMap<PathBuf, Arc<Object>>>,
    /// What has been told, once there has been a first look.
    told: Option<Objects>,
    skipped: Skipped,
    hasher: RandomState,
}

type Objects = BTreeMap<Key, Arc<Object>>;

/// The last good content of a file.
#[derive(Default)]
struct File {
    /// Of the last content, good or bad, so that nothing is complained of twice.
    digest: Option<u64>,
    /// Of the file that had it, unless it might have changed since without a trace.
    stamp: Option<Stamp>,
    /// Whether the content is elsewhere, where nothing says that it changes.
    linked: bool,
    objects: Vec<(Key, Arc<Object>)>,
}

impl Scanner {
    pub(super) fn new(folder: PathBuf, this_node: &str, skipped: Skipped) -> Self {
        Self {
            folder,
            this_node: this_node.to_owned(),
            files: BTreeMap::new(),
            sayings: BTreeMap::new(),
            told: None,
            skipped,
            hasher: RandomState::new(),
        }
    }

    /// Looks at what has changed. The first time, the batch is a complete list of each kind.
    pub(super) fn scan(&mut self, changed: &Changed) -> io::Result<Vec<Event>> {
        let mut paths: BTreeSet<PathBuf> = match changed {
            Changed::Anything => {
                let there = names_in(&self.folder)?;
                self.files.keys().cloned().chain(there).collect()
            }
            Changed::Files(files) => files.clone(),
        };
        if paths.iter().any(|path| Syntax::of(path).is_none()) {
            // What is no manifest may be where the links among them lead.
            let linked = self.files.iter().filter(|(_, file)| file.linked);
            paths.extend(linked.map(|(path, _)| path.clone()));
        }
        let mut touched = BTreeSet::new();
        for path in paths {
            if let Some(syntax) = Syntax::of(&path) {
                self.look_at(path, syntax, &mut touched);
            }
        }
        Ok(self.tell(touched))
    }

    /// Reads a file, and adds to `touched` the objects of which it says something else now.
    fn look_at(&mut self, path: PathBuf, syntax: Syntax, touched: &mut BTreeSet<Key>) {
        let before = self.files.remove(&path).unwrap_or_default();
        let digest = before.digest;
        let known: BTreeSet<Key> = before.objects.iter().map(|(key, _)| key.clone()).collect();
        let now = self.read(&path, syntax, before);
        if now.as_ref().is_some_and(|file| file.digest == digest) {
            self.files.extend(now.map(|file| (path, file)));
            return;
        }
        for key in &known {
            if let Entry::Occupied(mut sayings) = self.sayings.entry(key.clone()) {
                sayings.get_mut().remove(&path);
                if sayings.get().is_empty() {
                    sayings.remove();
                }
            }
        }
        for (key, object) in now.iter().flat_map(|file| &file.objects) {
            let sayings = self.sayings.entry(key.clone()).or_default();
            let repeated = match sayings.entry(path.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(Arc::clone(object));
                    !known.contains(key) && sayings.len() > 1
                }
                Entry::Occupied(_) => true,
            };
            if repeated {
                let (kind, name) = key;
                let path = path.display();
                tracing::warn!("{path}: {kind} {name} is there twice, the first in order of the files is used");
            }
            touched.insert(key.clone());
        }
        touched.extend(known);
        self.files.extend(now.map(|file| (path, file)));
    }

    /// What is to be said of objects that some file says something else of.
    fn tell(&mut self, touched: BTreeSet<Key>) -> Vec<Event> {
        let now = |key: &Key| {
            let sayings = self.sayings.get(key)?;
            sayings.values().next().cloned()
        };
        let Some(told) = &mut self.told else {
            let objects = touched
                .into_iter()
                .filter_map(|key| now(&key).map(|object| (key, object)));
            let objects = objects.collect();
            let lists = complete_lists(&objects);
            self.told = Some(objects);
            return lists;
        };
        let mut gone = Vec::new();
        let mut new = Vec::new();
        for key in touched {
            match now(&key) {
                Some(object) if told.get(&key) == Some(&object) => {}
                Some(object) => {
                    told.insert(key, Arc::clone(&object));
                    new.push(Object::clone(&object).applied());
                }
                None => {
                    if told.remove(&key).is_some() {
                        gone.push(deleted(key));
                    }
                }
            }
        }
        gone.extend(new);
        gone
    }

    /// The file as it is now, or as it was where it makes no sense now; `None` where it is gone.
    fn read(&self, path: &Path, syntax: Syntax, before: File) -> Option<File> {
        // Through links: a mounted ConfigMap is made of them. A pipe would be waited for.
        if !path.is_file() {
            return None;
        }
        let linked = path.is_symlink();
        let (stamp, content) = match read_if_other(path, before.stamp) {
            Ok(Some(read)) => read,
            Ok(None) => return Some(File { linked, ..before }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.complain(path, &error);
                return Some(before);
            }
        };
        let digest = Some(self.hasher.hash_one(&content));
        if digest == before.digest {
            return Some(File {
                linked,
                stamp,
                ..before
            });
        }
        let parsed = match std::str::from_utf8(&content) {
            Ok(text) => manifest::parse(text, syntax, &self.this_node).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let objects = match parsed {
            Ok(manifests) => self.last_good(path, manifests, &before),
            Err(error) => {
                self.complain(path, &error);
                before.objects
            }
        };
        Some(File {
            digest,
            stamp,
            linked,
            objects,
        })
    }

    fn complain(&self, path: &Path, error: &dyn std::fmt::Display) {
        tracing::warn!("{}: {error}: the file stays as it was", path.display());
    }

    /// The objects of a file. One that says nonsense now is as it was.
    fn last_good(&self, path: &Path, manifests: Vec<Manifest>, before: &File) -> Vec<(Key, Arc<Object>)> {
        let mut objects = Vec::new();
        for Manifest { key, line, content } in manifests {
            let (kind, name) = &key;
            match content {
                Ok((object, skipped)) => {
                    self.skipped.parts(*kind, name, &skipped);
                    objects.push((key, Arc::new(object)));
                }
                Err(reason) => {
                    let place = format_args!("{}:{line}: {reason}", path.display()).to_string();
                    self.skipped.object(*kind, name, &place);
                    let object = before.objects.iter().find(|(other, _)| *other == key);
                    objects.extend(object.cloned());
                }
            }
        }
        objects
    }
}

/// What tells a file from another one of the same name, or from what it was before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    inode: (u64, u64),
    length: u64,
    /// When content or owner changed last, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl Stamp {
    /// `None` where the file has just changed: it might do so once more within one tick of its clock.
    fn settled(metadata: &Metadata) -> Option<Self> {
        let changed = Duration::from_secs(metadata.ctime().try_into().ok()?);
        let age = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH + changed)
            .ok()?;
        (age > TICK).then(|| Self {
            inode: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// More than any file system's clock takes from one time to the next.
const TICK: Duration = Duration::from_secs(3);

/// The content of a file, unless it is what it was when it had this stamp. It is opened for that: a network file system
/// asks its server then.
fn read_if_other(path: &Path, before: Option<Stamp>) -> io::Result<Option<(Option<Stamp>, Vec<u8>)>> {
    let mut file = fs::File::open(path)?;
    let stamp = Stamp::settled(&file.metadata()?);
    if stamp.is_some() && stamp == before {
        return Ok(None);
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(Some((stamp, content)))
}

fn names_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn complete_lists(objects: &Objects) -> Vec<Event> {
    let mut services = Vec::new();
    let mut slices = Vec::new();
    let mut service_cidrs = Vec::new();
    let mut pods = Vec::new();
    let mut this_node = None;
    for object in objects.values() {
        match object.as_ref() {
            Object::Service(service) => services.push(service.clone()),
            Object::EndpointSlice(slice) => slices.push(slice.clone()),
            Object::ServiceCidr(cidr) => service_cidrs.push(cidr.clone()),
            Object::Node(node) => this_node = Some(node.clone()),
            Object::Pod(pod) => pods.push(pod.clone()),
        }
    }
    vec![
        Event::Services(Update::Replace {
            objects: services,
            unreadable: Vec::new(),
        }),
        Event::EndpointSlices(Update::Replace {
            objects: slices,
            unreadable: Vec::new(),
        }),
        Event::ServiceCidrs(Update::Replace {
            objects: service_cidrs,
            unreadable: Vec::new(),
        }),
        Event::Pods(Update::Replace {
            objects: pods,
            unreadable: Vec::new(),
        }),
        Event::Node(this_node),
    ]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder {
        folder: tempfile::TempDir,
        scanner: Scanner,
    }

    impl Folder {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let scanner = Scanner::new(folder.path().into(), "this-node", Skipped::default());
            Self { folder, scanner }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.folder.path().join(name), text).unwrap();
        }

        fn scan(&mut self) -> Vec<String> {
            self.told_of(&Changed::Anything)
        }

        fn look_at(&mut self, name: &str) -> Vec<String> {
            let path = self.folder.path().join(name);
            self.told_of(&Changed::Files([path].into()))
        }

        fn told_of(&mut self, changed: &Changed) -> Vec<String> {
            let events = self.scanner.scan(changed).unwrap().into_iter();
            events.filter_map(describe).collect()
        }
    }

    fn describe(event: Event) -> Option<String> {
        let port = |service: &crate::model::AnyService| service.ours().unwrap().ports.iter().next().unwrap().port;
        match event {
            Event::Services(Update::Replace { objects, .. }) => {
                let services = objects
                    .iter()
                    .map(|service| format!("{} {}", service.name(), port(service)));
                Some(services.collect::<Vec<_>>().join(", "))
            }
            Event::Services(Update::Apply(service)) => Some(format!("+ {} {}", service.name(), port(&service))),
            Event::Services(Update::Delete(name)) => Some(format!("- {name}")),
            Event::EndpointSlices(_)
            | Event::ServiceCidrs(_)
            | Event::Pods(_)
            | Event::Node(_)
            | Event::UnreadableNode
            | Event::NodeAddresses(_) => None,
        }
    }

    fn service(name: &str, port: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
             spec: {{clusterIP: 10.96.0.1, ports: [{{port: {port}}}]}}\n"
        )
    }

    #[test]
    fn a_look_tells_what_is_different_and_the_first_one_everything() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &(service("a", "80") + &service("b", "80")));
        folder.write("notes.txt", "not: [a manifest");
        folder.write(".hidden.yaml", &service("hidden", "80"));
        assert_eq!(folder.scan(), ["default/a 80, default/b 80"]);
        assert_eq!(folder.scan(), [""; 0]);

        folder.write("a.yaml", &(service("a", "80") + &service("c", "80")));
        assert_eq!(folder.scan(), ["- default/b", "+ default/c 80"]);
    }

    #[test]
    fn an_object_may_move_to_another_file() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &service("a", "80"));
        folder.scan();
        folder.write("a.yaml", "");
        folder.write("b.yaml", &service("a", "80"));
        assert_eq!(folder.scan(), [""; 0]);
    }

    #[test]
    fn a_file_that_does_not_parse_stays_as_it_was() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &service("a", "80"));
        folder.scan();
        folder.write("a.yaml", "kind: [");
        assert_eq!(folder.scan(), [""; 0]);
        folder.write("a.yaml", &service("a", "81"));
        assert_eq!(folder.scan(), ["+ default/a 81"]);
    }

    #[test]
    fn an_object_that_says_nonsense_stays_as_it_was_and_the_rest_of_its_file_does_not() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &(service("a", "80") + &service("b", "80")));
        folder.scan();
        folder.write(
            "a.yaml",
            &(service("a", "0") + &service("b", "81") + &service("c", "x")),
        );
        assert_eq!(folder.scan(), ["+ default/b 81"]);
        folder.write("a.yaml", &service("b", "81"));
        assert_eq!(folder.scan(), ["- default/a"]);
    }

    #[test]
    fn of_two_objects_with_one_name_the_first_counts_until_it_is_gone() {
        let mut folder = Folder::new();
        folder.write("1.yaml", &service("a", "80"));
        folder.write("2.yaml", &service("a", "81"));
        assert_eq!(folder.scan(), ["default/a 80"]);
        fs::remove_file(folder.folder.path().join("1.yaml")).unwrap();
        assert_eq!(folder.scan(), ["+ default/a 81"]);
    }

    #[test]
    fn only_what_has_changed_is_looked_at() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &service("a", "80"));
        folder.write("b.yaml", &service("b", "80"));
        folder.scan();
        folder.write("a.yaml", &service("a", "81"));
        folder.write("b.yaml", &service("b", "81"));
        assert_eq!(folder.look_at("b.yaml"), ["+ default/b 81"]);
        fs::remove_file(folder.folder.path().join("b.yaml")).unwrap();
        assert_eq!(folder.look_at("b.yaml"), ["- default/b"]);
        assert_eq!(folder.look_at("c.yaml"), [""; 0]);
        assert_eq!(folder.scan(), ["+ default/a 81"]);
    }

    #[test]
    fn a_file_that_has_long_been_as_it_is_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        fs::write(&path, "a").unwrap();
        let (stamp, _) = read_if_other(&path, None).unwrap().unwrap();
        assert_eq!(stamp, None, "it could change again within a tick");

        // One that was there before the test was built.
        let settled = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let (stamp, _) = read_if_other(settled, None).unwrap().unwrap();
        let stamp = stamp.unwrap();
        assert!(read_if_other(settled, Some(stamp)).unwrap().is_none());
        let other = Stamp { length: 0, ..stamp };
        assert!(read_if_other(settled, Some(other)).unwrap().is_some());
    }

    #[test]
    fn links_are_looked_at_whenever_something_else_has_changed() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &service("a", "80"));
        folder.write("..data", &service("b", "80"));
        symlink("..data", folder.folder.path().join("b.yaml")).unwrap();
        folder.scan();
        folder.write("a.yaml", &service("a", "81"));
        folder.write("..data", &service("b", "81"));
        assert_eq!(folder.look_at("..data"), ["+ default/b 81"]);
    }

    #[test]
    fn a_folder_that_vanishes_is_an_error_and_no_change() {
        let mut folder = Folder::new();
        folder.write("a.yaml", &service("a", "80"));
        folder.scan();
        let elsewhere = folder.folder.path().with_extension("elsewhere");
        fs::rename(folder.folder.path(), &elsewhere).unwrap();
        assert!(folder.scanner.scan(&Changed::Anything).is_err());
        fs::rename(elsewhere, folder.folder.path()).unwrap();
        assert_eq!(folder.scan(), [""; 0]);
    }
}
