//! Where our maps and links are pinned, so that they outlive the agent.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use lb_common::maps::LAYOUT_VERSION;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::{
    lock::{Holder, Lock},
    sys::{self, Direction},
};
use crate::kernel::capabilities;

/// Our folder in the bpffs.
const FOLDER: &str = "lb-agent";
/// In there, what holds the folders of agents whose programs drain. Every version knows it by this name.
const DRAINING: &str = "draining";
/// In there, the maps of an agent that has not had a complete state yet.
const UNFILLED: &str = "unfilled";
/// What the names of the others begin with, one for each layout.
const VERSION: char = 'v';

/// What one agent has pinned: its maps, and the links of its programs. What the maps hold, only agents of its layout know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Generation(PathBuf);

impl Generation {
    /// The folder of its maps.
    pub(super) fn maps(&self) -> PathBuf {
        self.0.join("maps")
    }

    /// The folder of its links.
    pub(super) fn links(&self) -> PathBuf {
        self.0.join("links")
    }

    /// Takes its programs off hooks, but for filters, and unpins its maps.
    pub(super) fn remove(&self) -> io::Result<()> {
        absent_is_none(fs::remove_dir_all(self.links()))?;
        absent_is_none(fs::remove_dir_all(&self.0)).map(drop)
    }
}

/// The pins of one layout of the maps.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    /// `<bpffs>/lb-agent`.
    root: PathBuf,
    /// `v<LAYOUT_VERSION>`.
    version: String,
}

/// A pinned link, by the name of its pin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkName<'a> {
    /// A TCX hook: `ingress-7`. Of the hook and not of the program, so that there is never more than
    /// one, also where a link changes its role.
    Tcx(Direction, u32),
    /// A cgroup hook: `connect4`.
    Cgroup(&'a str),
}

impl<'a> LinkName<'a> {
    /// From the name of a pin.
    pub(super) fn parse(name: &'a str) -> Self {
        let tcx = name.split_once('-').and_then(|(hook, index)| {
            let direction = Direction::ALL.into_iter().find(|d| d.name() == hook)?;
            Some(Self::Tcx(direction, index.parse().ok()?))
        });
        tcx.unwrap_or(Self::Cgroup(name))
    }
}

impl Pins {
    /// The pins under `bpffs`, which must be a bpf filesystem.
    pub(super) fn new(bpffs: &Path) -> anyhow::Result<Self> {
        let mount = format!("mount -t bpf bpf {}", bpffs.display());
        let found = statfs(bpffs).with_context(|| {
            format!(
                "no bpf filesystem at {}: make the folder, then `{mount}`",
                bpffs.display()
            )
        })?;
        if found.filesystem_type() != BPF_FS_MAGIC {
            bail!(
                "{} is not on a bpf filesystem, which holds maps and programs while the agent is \
                 away: `{mount}`",
                bpffs.display()
            );
        }
        Ok(Self {
            root: bpffs.join(FOLDER),
            version: format!("v{LAYOUT_VERSION}"),
        })
    }

    /// `<bpffs>/lb-agent`.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Makes our folder, and keeps every other agent away from it.
    pub(super) fn lock(&self) -> anyhow::Result<Lock> {
        loop {
            create(&self.root)?;
            if let Some(lock) = Lock::take(&self.root, Holder::Agent)? {
                return Ok(lock);
            }
        }
    }

    /// Makes the folders for links and for maps that are not filled yet, the latter empty: what is
    /// in it is of an agent that never came to fill it. To be called when nothing drains that has not begun to.
    pub(super) fn create(&self) -> anyhow::Result<()> {
        create(&self.links())?;
        let folder = self.unfilled_maps();
        absent_is_none(fs::remove_dir_all(&folder))
            .with_context(|| format!("cannot remove the folder {}", folder.display()))?;
        create(&folder)
    }

    /// The maps that hold a complete state: those that an agent may take over.
    pub(super) fn maps(&self) -> PathBuf {
        self.root.join(&self.version).join("maps")
    }

    /// The maps of an agent that has not had a complete state yet. (A bpffs has no names with dots.)
    pub(super) fn unfilled_maps(&self) -> PathBuf {
        self.root.join(UNFILLED)
    }

    /// The unfilled maps are filled: they take the place of those that were. Were it to end half
    /// way, none would be there to take over, and the next agent would make new ones again.
    pub(super) fn maps_are_filled(&self) -> io::Result<()> {
        absent_is_none(fs::remove_dir_all(self.maps()))?;
        fs::rename(self.unfilled_maps(), self.maps())
    }

    /// Takes back what [`Self::create`] and the loading of the object have made, if no agent before left anything
    /// beside it.
    pub(super) fn discard_unfilled(&self) {
        let version = self.root.join(&self.version);
        // A folder with something in it stays.
        let _ = fs::remove_dir_all(self.unfilled_maps());
        for folder in [&self.links(), &version, &self.draining(), &self.root] {
            let _ = fs::remove_dir(folder);
        }
    }

    fn links(&self) -> PathBuf {
        self.root.join(&self.version).join("links")
    }

    /// Of a link.
    pub(super) fn link(&self, name: LinkName<'_>) -> PathBuf {
        self.links().join(match name {
            LinkName::Tcx(direction, ifindex) => format!("{}-{ifindex}", direction.name()),
            LinkName::Cgroup(program) => program.to_owned(),
        })
    }

    /// Names of the links that are pinned.
    pub(super) fn link_names(&self) -> io::Result<Vec<String>> {
        names(&self.links())
    }

    /// Removes what agents with another layout of the maps left, other than what drains.
    pub(super) fn remove_other_layouts(&self) -> io::Result<()> {
        for version in self.other_layouts()? {
            Generation(self.root.join(version)).remove()?;
        }
        Ok(())
    }

    /// Names of the folders of other layouts of the maps.
    pub(super) fn other_layouts(&self) -> io::Result<Vec<String>> {
        let mut versions = self.versions()?;
        versions.retain(|version| *version != self.version);
        Ok(versions)
    }

    fn versions(&self) -> io::Result<Vec<String>> {
        let mut versions = names(&self.root)?;
        versions.retain(|name| name.starts_with(VERSION));
        Ok(versions)
    }

    fn draining(&self) -> PathBuf {
        self.root.join(DRAINING)
    }

    /// Those that serve, or are to: of the agent before, whatever its layout, or of this one.
    pub(super) fn serving(&self) -> io::Result<Vec<Generation>> {
        let versions = self.versions()?.into_iter();
        Ok(versions.map(|version| Generation(self.root.join(version))).collect())
    }

    /// Those that drain, or are to.
    pub(super) fn drained(&self) -> io::Result<Vec<Generation>> {
        let folder = self.draining();
        let names = names(&folder)?.into_iter();
        Ok(names.map(|name| Generation(folder.join(name))).collect())
    }

    /// The one of this layout that drains, if there is any.
    pub(super) fn drained_of_ours(&self) -> Generation {
        Generation(self.draining().join(&self.version))
    }

    /// Whether anything drains, or is to: filters, which have no pins, may be all that there is.
    pub(super) fn has_draining(&self) -> io::Result<bool> {
        self.draining().try_exists()
    }

    /// What serves is to drain. The unfilled maps take its place.
    pub(super) fn step_aside(&self) -> anyhow::Result<()> {
        create(&self.draining())?;
        // What this agent has made for its links, if none was there of its layout.
        if !self.maps().try_exists()? && self.link_names()?.is_empty() {
            Generation(self.root.join(&self.version)).remove()?;
        }
        for version in self.versions()? {
            let (from, to) = (self.root.join(&version), self.draining().join(&version));
            fs::rename(&from, &to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
        }
        create(&self.links())?;
        self.maps_are_filled().context("cannot pin the maps for agents to come")
    }

    /// What was to drain serves again, in the place of whatever was to follow it.
    pub(super) fn step_back(&self, drained: &[Generation]) -> io::Result<()> {
        for follower in self.serving()? {
            follower.remove()?;
        }
        for generation in drained {
            if let Some(name) = generation.0.file_name() {
                fs::rename(&generation.0, self.root.join(name))?;
            }
        }
        // It stays if anything else drains.
        let _ = fs::remove_dir(self.draining());
        Ok(())
    }

    /// Nothing drains any more.
    pub(super) fn remove_draining(&self) -> io::Result<()> {
        for generation in self.drained()? {
            generation.remove()?;
        }
        absent_is_none(fs::remove_dir_all(self.draining())).map(drop)
    }

    /// Where links of this name are pinned by agents before, those that drain first.
    pub(super) fn links_before(&self, name: LinkName<'_>) -> io::Result<Vec<PathBuf>> {
        let own = self.link(name);
        let file = own.file_name().unwrap_or_default();
        let mut generations = self.drained()?;
        generations.extend(self.serving()?);
        let paths = generations.iter().map(|generation| generation.links().join(file));
        Ok(paths.filter(|path| *path != own && path.exists()).collect())
    }
}

/// The maps that hold a complete state, for who only reads them.
///
/// # Errors
/// No agent with this layout of the maps has filled any under `bpffs`, or this process may not read them.
pub(super) fn maps_to_read(bpffs: &Path) -> anyhow::Result<PathBuf> {
    capabilities::check_to_read()?;
    let pins = Pins::new(bpffs)?;
    let folder = pins.maps();
    if folder
        .try_exists()
        .with_context(|| format!("cannot look into {}", pins.root.display()))?
    {
        return Ok(folder);
    }
    let others = pins.other_layouts()?;
    if others.is_empty() {
        bail!("no agent has filled maps here: there is no {}", folder.display());
    }
    bail!(
        "there is no {}: the maps here are those of another version of the agent ({})",
        folder.display(),
        others.join(", ")
    );
}

/// Whether an agent with this layout of the maps has filled any under `bpffs`.
pub fn has_maps(bpffs: &Path) -> bool {
    Pins::new(bpffs).is_ok_and(|pins| pins.maps().exists())
}

/// Makes a folder and those above it, for root only.
fn create(folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))
}

/// Opens a pin, if there is one.
pub(super) fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    absent_is_none(sys::open_pin(path))
}

/// Removes a pin; says whether there was one. A link without a pin and without anybody who holds
/// it is detached by the kernel.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    absent_is_none(fs::remove_file(path)).map(|removed| removed.is_some())
}

/// Names of what is in a folder; none where there is no folder.
pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in absent_is_none(fs::read_dir(folder))?.into_iter().flatten() {
        // Ours are all ASCII, and one that is not does not match anything.
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_pin_comes_back() {
        let pins = Pins {
            root: PathBuf::from("/bpf/lb-agent"),
            version: "v1".to_owned(),
        };
        for name in [
            LinkName::Tcx(Direction::Ingress, 7),
            LinkName::Tcx(Direction::Egress, 4_294_967_295),
            LinkName::Cgroup("connect4"),
        ] {
            let path = pins.link(name);
            let file = path.file_name().unwrap().to_str().unwrap().to_owned();
            assert_eq!(LinkName::parse(&file), name);
        }
        assert_eq!(
            pins.link(LinkName::Tcx(Direction::Ingress, 7)),
            Path::new("/bpf/lb-agent/v1/links/ingress-7")
        );
    }

    #[test]
    fn maps_can_be_taken_over_once_they_are_filled() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins {
            root: folder.path().join("lb-agent"),
            version: "v1".to_owned(),
        };
        for content in ["first", "second"] {
            pins.create().unwrap();
            fs::write(pins.unfilled_maps().join("MAP"), "never filled").unwrap();
            pins.create().unwrap();
            assert_eq!(names(&pins.unfilled_maps()).unwrap(), [""; 0]);
            fs::write(pins.unfilled_maps().join("MAP"), content).unwrap();
            pins.maps_are_filled().unwrap();
            assert_eq!(fs::read_to_string(pins.maps().join("MAP")).unwrap(), content);
            assert!(!pins.unfilled_maps().exists());
        }
    }

    #[test]
    fn what_steps_aside_drains_beside_ours_or_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("lb-agent");
        let of = |version: &str| Pins {
            root: root.clone(),
            version: version.to_owned(),
        };
        let (old, new) = (of("v1"), of("v2"));
        let fill = |pins: &Pins| {
            pins.create().unwrap();
            fs::write(pins.unfilled_maps().join("MAP"), &pins.version).unwrap();
        };
        fill(&old);
        old.maps_are_filled().unwrap();
        fs::write(old.link(LinkName::Cgroup("connect4")), "link").unwrap();

        for round in ["taken back", "gone on with"] {
            fill(&new);
            new.step_aside().unwrap();
            assert_eq!(fs::read_to_string(new.maps().join("MAP")).unwrap(), "v2", "{round}");
            let draining = root.join("draining/v1");
            assert_eq!(new.drained().unwrap(), [Generation(draining.clone())]);
            assert_eq!(
                new.links_before(LinkName::Cgroup("connect4")).unwrap(),
                [draining.join("links/connect4")]
            );
            assert_eq!(old.drained_of_ours(), Generation(draining));
            if round == "taken back" {
                new.step_back(&new.drained().unwrap()).unwrap();
                assert!(old.maps().exists() && !new.maps().exists() && !new.has_draining().unwrap());
            }
        }
        new.remove_draining().unwrap();
        assert_eq!(names(&root).unwrap(), ["v2"]);
    }

    #[test]
    fn other_sizes_of_one_layout_step_aside_too() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins {
            root: folder.path().join("lb-agent"),
            version: "v1".to_owned(),
        };
        for content in ["old", "new"] {
            pins.create().unwrap();
            fs::write(pins.unfilled_maps().join("MAP"), content).unwrap();
            match content {
                "old" => pins.maps_are_filled().unwrap(),
                _ => pins.step_aside().unwrap(),
            }
        }
        let map = |folder: PathBuf| fs::read_to_string(folder.join("MAP")).unwrap();
        assert_eq!(map(pins.maps()), "new");
        assert_eq!(map(pins.drained_of_ours().maps()), "old");
    }

    #[test]
    fn what_was_never_filled_is_taken_back_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let pins = Pins {
            root: folder.path().join("lb-agent"),
            version: "v1".to_owned(),
        };
        pins.create().unwrap();
        fs::write(pins.unfilled_maps().join("MAP"), "never filled").unwrap();
        pins.discard_unfilled();
        assert_eq!(names(folder.path()).unwrap(), [""; 0]);

        pins.create().unwrap();
        pins.maps_are_filled().unwrap();
        pins.create().unwrap();
        pins.discard_unfilled();
        assert!(pins.maps().exists() && !pins.unfilled_maps().exists());
    }

    #[test]
    fn another_filesystem_is_named_with_the_command_that_helps() {
        let folder = tempfile::tempdir().unwrap();
        let error = Pins::new(folder.path()).unwrap_err().to_string();
        let mount = format!("`mount -t bpf bpf {}`", folder.path().display());
        assert!(
            error.contains("not on a bpf filesystem") && error.contains(&mount),
            "{error}"
        );
        let error = Pins::new(&folder.path().join("absent")).unwrap_err().to_string();
        assert!(error.contains("make the folder"), "{error}");
    }
}
