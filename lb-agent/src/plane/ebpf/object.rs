//! Loads the BPF object: its maps, new or those of an earlier agent, and its programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use aya::{
    EbpfLoader,
    maps::{MapData, MapInfo},
    programs::{Program as AyaProgram, ProgramType},
    sys::{BpfHelper, is_helper_supported},
};
use aya_obj::{
    Object,
    generated::bpf_attach_type::{self, *},
};
use lb_common::{Address, SourceKey, config, maps};
use tracing::{debug, info, warn};

use super::{
    MapSizes, Masquerading, PodSockets, carry, host_sockets, messages,
    pins::Pins,
    sys::Direction,
    table::{BpfTable, Tables},
};
use crate::kernel::links::{Link, Role};

/// What `cargo xtask build-ebpf` made.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("LB_EBPF_EMBEDDED"));

/// The maps that outlive the agent.
const PINNED: [&str; 15] = [
    maps::SERVICES,
    maps::SLOTS,
    maps::BACKENDS,
    maps::FLOWS,
    maps::CONNECTED,
    maps::SENT_TO,
    maps::OPTED_OUT,
    maps::AFFINITY,
    maps::ADDRESSES,
    maps::SOURCE_RANGES,
    maps::CIDRS,
    maps::SOURCES,
    maps::COUNTERS,
    maps::EVENTS,
    maps::STAGE,
];

/// The programs for links. Each has a twin for links whose packets have no header below IP.
pub(super) const LINK_PROGRAMS: [&str; 6] = [
    "from_pod",
    "from_pod_l3",
    "from_outside",
    "from_outside_l3",
    "to_link",
    "to_link_l3",
];

/// The program for a link, by name: what comes in is a client's, what goes out may be an answer.
pub(super) const fn link_program(link: &Link, direction: Direction) -> &'static str {
    match (direction, link.role, link.is_ip_only) {
        (Direction::Ingress, Role::Pod, false) => "from_pod",
        (Direction::Ingress, Role::Pod, true) => "from_pod_l3",
        (Direction::Ingress, Role::Uplink | Role::Tunnel, false) => "from_outside",
        (Direction::Ingress, Role::Uplink | Role::Tunnel, true) => "from_outside_l3",
        (Direction::Egress, _, false) => "to_link",
        (Direction::Egress, _, true) => "to_link_l3",
    }
}

/// The programs for sockets, and where each is attached.
pub(super) const SOCKET_PROGRAMS: [(&str, bpf_attach_type); 9] = [
    // First, so that no row is made that it would miss.
    ("sock_release", BPF_CGROUP_INET_SOCK_RELEASE),
    ("connect4", BPF_CGROUP_INET4_CONNECT),
    ("connect6", BPF_CGROUP_INET6_CONNECT),
    ("sendmsg4", BPF_CGROUP_UDP4_SENDMSG),
    ("sendmsg6", BPF_CGROUP_UDP6_SENDMSG),
    ("recvmsg4", BPF_CGROUP_UDP4_RECVMSG),
    ("recvmsg6", BPF_CGROUP_UDP6_RECVMSG),
    ("getpeername4", BPF_CGROUP_INET4_GETPEERNAME),
    ("getpeername6", BPF_CGROUP_INET6_GETPEERNAME),
];

/// What the programs are told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Globals {
    /// Whose sockets are translated; `None` loads no socket programs.
    pub(super) netns_cookie: Option<u64>,
    /// What becomes of the sockets of pods, if any are translated.
    pub(super) pod_sockets: PodSockets,
    /// Who masquerades.
    pub(super) masquerading: Masquerading,
    /// The bit of the mark that asks for it.
    pub(super) masquerade_mark: u32,
}

/// A loaded program.
#[derive(Debug)]
pub(super) struct Program {
    fd: OwnedFd,
    /// Its number in the kernel.
    pub(super) id: u32,
}

impl Program {
    /// Its descriptor.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Loaded programs by name.
#[derive(Debug)]
pub(super) struct Programs(BTreeMap<&'static str, Program>);

impl Programs {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// One that was asked for when loading.
    pub(super) fn get(&self, name: &str) -> io::Result<&Program> {
        self.0
            .get(name)
            .ok_or_else(|| io::Error::other(format!("program {name} is not loaded")))
    }
}

/// The object in the kernel.
pub(super) struct Loaded {
    /// The programs, attached nowhere yet.
    pub(super) programs: Programs,
    /// The maps that the agent fills.
    pub(super) tables: Tables,
    /// The maps that tell which sockets of the host to end, where sockets are translated.
    pub(super) socket_maps: Option<host_sockets::Maps>,
    /// The addresses by which the node speaks on its links.
    pub(super) sources: BpfTable<SourceKey, Address>,
    /// The cgroups of pods whose sockets are left alone.
    pub(super) opted_out: BpfTable<u64, u32>,
    /// Where they are from.
    pub(super) origin: Origin,
}

/// Where maps are from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// They are those of the agent before, and pinned as such.
    Adopted,
    /// These are new, and pinned as unfilled: to take the rows of the agent before, which had other sizes. The others
    /// are the same map as that agent's, pinned again.
    Resized(BTreeSet<&'static str>),
    /// They are those of an agent before that one, whose programs drain, and pinned as unfilled again.
    Drained,
    /// They are new, and pinned as unfilled.
    New,
}

/// Loads the object.
pub(super) fn load(pins: &Pins, sizes: &MapSizes, globals: Globals) -> anyhow::Result<Loaded> {
    let origin = match fit(&pins.maps(), sizes)? {
        Fit::Same => Origin::Adopted,
        Fit::Resized(names) => Origin::Resized(names),
        // What serves is of this layout too: no two of one layout drain.
        Fit::Not if pins.maps().try_exists()? => Origin::New,
        Fit::Not if fit(&pins.drained_of_ours().maps(), sizes)? == Fit::Same => Origin::Drained,
        Fit::Not => Origin::New,
    };
    let folder = match &origin {
        Origin::Adopted => pins.maps(),
        Origin::Resized(_) | Origin::Drained | Origin::New => pins.unfilled_maps(),
    };
    // What programs do is theirs alone, whatever maps they share with those before.
    let shared = PINNED.into_iter().filter(|name| *name != maps::STAGE);
    match &origin {
        Origin::Resized(names) => {
            let same = shared.filter(|name| !names.contains(name));
            carry::pin_again(same, &pins.maps(), &folder)?;
        }
        Origin::Drained => carry::pin_again(shared, &pins.drained_of_ours().maps(), &folder)?,
        Origin::Adopted | Origin::New => {}
    }
    let paths: Vec<_> = PINNED.into_iter().map(|name| (name, folder.join(name))).collect();
    let programs = load_object(&paths, sizes, globals)?;
    Ok(Loaded {
        programs,
        tables: tables(&folder)?,
        sources: table(&folder, maps::SOURCES)?,
        opted_out: table(&folder, maps::OPTED_OUT)?,
        socket_maps: globals.netns_cookie.map(|_| socket_maps(&folder)).transpose()?,
        origin,
    })
}

/// Loads the programs on maps that go with them.
pub(super) fn load_unpinned(sizes: &MapSizes, globals: Globals) -> anyhow::Result<Programs> {
    load_object(&[], sizes, globals)
}

/// Loads the programs, on maps that are pinned at these paths or are to be.
fn load_object(paths: &[(&str, PathBuf)], sizes: &MapSizes, globals: Globals) -> anyhow::Result<Programs> {
    let cookie = globals.netns_cookie.unwrap_or(config::INITIAL_NETNS);
    let mut loader = EbpfLoader::new();
    // Our programs read no structs of the kernel, so they need nothing of its type information.
    loader.btf(None);
    loader.override_global(config::NETNS_COOKIE, &cookie, true);
    let pod_sockets = globals.pod_sockets.value();
    loader.override_global(config::POD_SOCKETS, &pod_sockets, true);
    loader.override_global(config::MASQUERADE_MARK, &globals.masquerade_mark, true);
    let masquerades = u32::from(globals.masquerading == Masquerading::ByPrograms);
    loader.override_global(config::MASQUERADES, &masquerades, true);
    let has_coarse_clock = u32::from(has_coarse_clock());
    loader.override_global(config::HAS_COARSE_CLOCK, &has_coarse_clock, true);
    // Only programs for sockets call it.
    let has_set_retval = u32::from(globals.netns_cookie.is_some() && has_set_retval());
    loader.override_global(config::HAS_SET_RETVAL, &has_set_retval, true);
    for (name, size) in sizes.by_name() {
        loader.map_max_entries(name, size);
    }
    for (name, path) in paths {
        loader.map_pin_path(name, path.as_path());
    }
    let mut ebpf = loader.load(OBJECT).context("the kernel does not take the maps")?;

    messages::follow(&mut ebpf)?;

    let sockets = SOCKET_PROGRAMS.into_iter().map(|(name, _)| name);
    let sockets = sockets.filter(|_| globals.netns_cookie.is_some());
    let mut programs = BTreeMap::new();
    for name in LINK_PROGRAMS.into_iter().chain(sockets) {
        let program = ebpf
            .program_mut(name)
            .ok_or_else(|| anyhow!("the BPF object has no program {name}: build it again"))?;
        let program = load_program(name, program)?;
        debug!(name, id = program.id, "program loaded");
        programs.insert(name, program);
    }
    Ok(Programs(programs))
}

/// Whether programs can tell the time without asking for it exactly (kernel 5.11).
fn has_coarse_clock() -> bool {
    is_helper_supported(ProgramType::SchedClassifier, BpfHelper::BPF_FUNC_ktime_get_coarse_ns).unwrap_or_else(|error| {
        debug!(%error, "cannot ask for bpf_ktime_get_coarse_ns");
        false
    })
}

/// Whether a refused call can fail with ECONNREFUSED (kernel 5.18). Without it, it fails with EPERM.
fn has_set_retval() -> bool {
    match is_helper_supported(ProgramType::CgroupSockAddr, BpfHelper::BPF_FUNC_set_retval) {
        Ok(true) => true,
        Ok(false) => {
            info!("this kernel has no bpf_set_retval (before 5.18): processes of the host are refused with EPERM");
            false
        }
        Err(error) => {
            debug!(%error, "cannot ask for bpf_set_retval");
            true
        }
    }
}

fn load_program(name: &str, program: &mut AyaProgram) -> anyhow::Result<Program> {
    let refused = || format!("the kernel does not take program {name}");
    let (fd, info) = match program {
        AyaProgram::SchedClassifier(program) => {
            program.load().with_context(refused)?;
            (program.fd()?.as_fd().try_clone_to_owned()?, program.info()?)
        }
        AyaProgram::CgroupSock(program) => {
            program.load().with_context(refused)?;
            (program.fd()?.as_fd().try_clone_to_owned()?, program.info()?)
        }
        AyaProgram::CgroupSockAddr(program) => {
            program.load().with_context(refused)?;
            (program.fd()?.as_fd().try_clone_to_owned()?, program.info()?)
        }
        _ => bail!("program {name} of the BPF object is of another type: build it again"),
    };
    Ok(Program { fd, id: info.id() })
}

/// The maps that the agent fills, by their pins in a folder.
pub(super) fn tables(folder: &Path) -> anyhow::Result<Tables> {
    Ok(Tables {
        services: Box::new(table(folder, maps::SERVICES)?),
        slots: Box::new(table(folder, maps::SLOTS)?),
        backends: Box::new(table(folder, maps::BACKENDS)?),
        addresses: Box::new(table(folder, maps::ADDRESSES)?),
        source_ranges: Box::new(table(folder, maps::SOURCE_RANGES)?),
        cidrs: Box::new(table(folder, maps::CIDRS)?),
    })
}

fn socket_maps(folder: &Path) -> anyhow::Result<host_sockets::Maps> {
    Ok(host_sockets::Maps {
        services: table(folder, maps::SERVICES)?,
        slots: table(folder, maps::SLOTS)?,
        backends: table(folder, maps::BACKENDS)?,
        connected: table(folder, maps::CONNECTED)?,
    })
}

/// A map by its pin in a folder.
pub(super) fn table<K: aya::Pod, V: aya::Pod>(folder: &Path, name: &str) -> anyhow::Result<BpfTable<K, V>> {
    let map = MapData::from_pin(folder.join(name)).with_context(|| format!("map {name}"))?;
    BpfTable::new(&map).with_context(|| format!("map {name}"))
}

/// What makes two maps the same to programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

impl Shape {
    const fn of_size(self, max_entries: u32) -> Self {
        Self { max_entries, ..self }
    }
}

/// How the maps of an earlier agent go with what is wanted now.
#[derive(PartialEq, Eq, Debug)]
enum Fit {
    /// They are to be taken over.
    Same,
    /// All are there, and have room for other numbers of rows: these are to be made anew, and given the rows.
    Resized(BTreeSet<&'static str>),
    /// There are none, or of another shape.
    Not,
}

/// Looks at the maps that an earlier agent filled. If they are all there and all as the object and the sizes have them, the
/// object is loaded on top of them; else on top of new ones, of which those that are the same but for their size take the
/// rows of the old ones. All of them or none: the rows of one speak of the rows of the others. They stay where they are
/// until the new ones are filled: an agent that comes before that, with the sizes that they have, can still take them over.
fn fit(folder: &Path, sizes: &MapSizes) -> anyhow::Result<Fit> {
    let object = Object::parse(OBJECT).context("the embedded BPF object cannot be read")?;
    let by_name: BTreeMap<_, _> = sizes.by_name().into_iter().collect();
    let mut missing = BTreeSet::new();
    let mut resized = BTreeSet::new();
    let mut different = Vec::new();
    for name in PINNED {
        let map = object
            .maps
            .get(name)
            .ok_or_else(|| anyhow!("the BPF object has no map {name}: build it again"))?;
        let wanted = Shape {
            map_type: map.map_type(),
            key_size: map.key_size(),
            value_size: map.value_size(),
            max_entries: by_name.get(name).copied().unwrap_or(map.max_entries()),
            flags: map.map_flags(),
        };
        let path = folder.join(name);
        if !path.exists() {
            missing.insert(name);
            continue;
        }
        match shape(&path) {
            Ok(found) if found == wanted => {}
            Ok(found) if found.of_size(wanted.max_entries) == wanted && by_name.contains_key(name) => {
                resized.insert(name);
            }
            Ok(found) => different.push(format!("{name} is {found:?}, wanted {wanted:?}")),
            Err(error) => different.push(format!("{name}: {error:#}")),
        }
    }
    if missing.is_empty() && different.is_empty() {
        if resized.is_empty() {
            info!("taking over the maps of an earlier agent");
            return Ok(Fit::Same);
        }
        match carry::check_room(folder, sizes) {
            Ok(()) => {
                info!(
                    ?resized,
                    "taking over the maps of an earlier agent, some in other sizes"
                );
                return Ok(Fit::Resized(resized));
            }
            Err(error) => different.push(format!("{error:#}")),
        }
    }
    if missing.len() < PINNED.len() {
        warn!(
            ?missing,
            ?different,
            "the maps of an earlier agent do not fit: its programs go on with the flows that they have"
        );
    }
    Ok(Fit::Not)
}

fn shape(path: &std::path::Path) -> anyhow::Result<Shape> {
    let info = MapInfo::from_pin(path)?;
    Ok(Shape {
        map_type: info.map_type()? as u32,
        key_size: info.key_size(),
        value_size: info.value_size(),
        max_entries: info.max_entries(),
        flags: info.map_flags(),
    })
}
