//! A copy of a program that is on a link, for packets that nobody has sent.
//!
//! It has the instructions of the one on the link, which the kernel's sum over them proves, and its constants. It reads
//! the maps that the agent fills, and those that programs write are its own: a run leaves no flow, no affinity,
//! no count and no event where real packets have theirs.

use std::{
    collections::{BTreeSet, HashMap as StdHashMap},
    os::fd::AsFd as _,
    path::Path,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use aya::{
    Ebpf, EbpfLoader, Pod, TestRun as _, TestRunOptions,
    maps::{HashMap, MapData, MapInfo, PerCpuArray},
    programs::SchedClassifier,
};
use aya_obj::Object;
use lb_common::{AffinityKey, AffinityValue, Counter, FlowKey, FlowValue, ServiceKey, ServiceValue, config, maps};

use super::{
    chain::Attached,
    object::{LINK_PROGRAMS, OBJECT},
    sys::{self, ProgramInfo},
};

/// The maps that it shares with the one on the link. Programs for links only read them.
const SHARED: [&str; 7] = [
    maps::SLOTS,
    maps::BACKENDS,
    maps::ADDRESSES,
    maps::SOURCE_RANGES,
    maps::CIDRS,
    maps::SOURCES,
    maps::STAGE,
];
/// Sizes of its own maps. A table that forgets what was used longest ago begins to before it is full.
const OWN: [(&str, u32); 5] = [
    (maps::SERVICES, 16),
    (maps::FLOWS, 8_192),
    (maps::AFFINITY, 4_096),
    (maps::CONNECTED, 1_024),
    (maps::FRAGMENTS, 1_024),
];
/// The constants of the programs.
const GLOBALS: [&str; 7] = [
    config::NETNS_COOKIE,
    config::POD_SOCKETS,
    config::MASQUERADE_MARK,
    config::MASQUERADES,
    config::UDP_TIMEOUT,
    config::HAS_COARSE_CLOCK,
    config::HAS_SET_RETVAL,
];
/// The map that holds them.
const CONSTANTS: &str = ".rodata";
/// How the name of the program ends that runs where packets have no link header.
const WITHOUT_LINK_HEADER: &str = "_l3";
/// Bytes that a packet may grow by.
const ROOM: usize = 256;

/// What `BPF_PROG_TEST_RUN` takes a context for, and where the mark stands in it (`struct __sk_buff`).
const CONTEXT: usize = 192;
const MARK: std::ops::Range<usize> = 8..12;

/// What the programs return (`TC_ACT_*` of `linux/pkt_cls.h`).
const UNSPEC: i32 = -1;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;

/// The copy.
pub(super) struct Twin {
    ebpf: Ebpf,
    /// Its name.
    pub(super) program: &'static str,
    /// That of the program on the link, where that is for packets without a link header: the kernel lets none be run
    /// on such packets. It is the same code otherwise.
    pub(super) stands_for: &'static str,
    /// The kernel's sum over the instructions of that program.
    pub(super) tag: [u8; 8],
}

/// What became of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ran {
    /// What the kernel is to do with it.
    pub(super) action: Action,
    /// The packet, with its Ethernet header.
    pub(super) frame: Vec<u8>,
    /// What was counted for it.
    pub(super) counted: BTreeSet<Counter>,
    /// Its mark.
    pub(super) mark: u32,
}

/// What the kernel is to do with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// It goes on.
    Pass,
    /// It goes no further.
    Drop,
    /// It goes back where it came from, as an answer.
    Answer,
}

impl Twin {
    /// Of the program that is on a link; `folder` has the pins of the maps.
    pub(super) fn of(attached: &Attached, folder: &Path) -> anyhow::Result<Self> {
        let id = attached
            .id
            .context("the kernel does not tell the number of the program on the link")?;
        let original = sys::program_info(id)
            .with_context(|| format!("cannot look at program {id}, which takes CAP_SYS_ADMIN: run as root"))?;
        let stands_for = LINK_PROGRAMS
            .into_iter()
            .find(|name| *name == original.name)
            .with_context(|| {
                format!(
                    "program {id} is called {}, which is none of this lb-agent",
                    original.name
                )
            })?;
        let program = stands_for.strip_suffix(WITHOUT_LINK_HEADER).unwrap_or(stands_for);
        let constants = constants(&original)?;
        let mut ebpf = load(&constants, folder)?;
        let mut tag = load_program(&mut ebpf, program, &constants)?;
        if program != stands_for {
            tag = load_program(&mut ebpf, stands_for, &constants)?;
        }
        ensure!(
            tag == original.tag,
            "program {stands_for} (id {id}) was loaded by another build of lb-agent: ask the lb-agent that serves here"
        );
        Ok(Self {
            ebpf,
            program,
            stands_for,
            tag,
        })
    }

    /// Runs it on a frame that carries no mark.
    pub(super) fn run(&mut self, frame: &[u8]) -> anyhow::Result<Ran> {
        let before = self.counters()?;
        let context = [0; CONTEXT];
        let mut context_out = [0; CONTEXT];
        let mut out = vec![0; frame.len() + ROOM];
        let name = self.program;
        let result = classifier(&mut self.ebpf, name)?
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ctx_in: Some(&context),
                ctx_out: Some(&mut context_out),
                ..Default::default()
            })
            .with_context(|| format!("the kernel does not run program {name}"))?;
        out.truncate(result.data_size_out as usize);
        let after = self.counters()?;
        let counted = Counter::ALL.into_iter().zip(before.iter().zip(&after));
        let mut mark = [0; 4];
        mark.copy_from_slice(&context_out[MARK]);
        Ok(Ran {
            action: match result.return_value.cast_signed() {
                UNSPEC => Action::Pass,
                SHOT => Action::Drop,
                REDIRECT => Action::Answer,
                other => bail!("program {name} returned {other}, which none of ours does"),
            },
            frame: out,
            counted: counted
                .filter(|(_, (before, after))| before != after)
                .map(|(counter, _)| counter)
                .collect(),
            mark: u32::from_ne_bytes(mark),
        })
    }

    /// Writes frontends, in place of those there are.
    pub(super) fn set_services(&mut self, rows: &[(ServiceKey, ServiceValue)]) -> anyhow::Result<()> {
        self.set(maps::SERVICES, rows)
    }

    /// Writes flows, in place of those there are.
    pub(super) fn set_flows(&mut self, rows: &[(FlowKey, FlowValue)]) -> anyhow::Result<()> {
        self.set(maps::FLOWS, rows)
    }

    /// Writes who had which backend, in place of what there is.
    pub(super) fn set_affinity(&mut self, rows: &[(AffinityKey, AffinityValue)]) -> anyhow::Result<()> {
        self.set(maps::AFFINITY, rows)
    }

    /// The flow of this packet.
    pub(super) fn flow(&mut self, key: &FlowKey) -> anyhow::Result<Option<FlowValue>> {
        match self.hash::<FlowKey, FlowValue>(maps::FLOWS)?.get(key, 0) {
            Ok(row) => Ok(Some(row)),
            Err(aya::maps::MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error).context("the flows of the copy"),
        }
    }

    fn set<K: Pod, V: Pod>(&mut self, name: &str, rows: &[(K, V)]) -> anyhow::Result<()> {
        let mut map = self.hash::<K, V>(name)?;
        let old: Vec<K> = map.keys().collect::<Result<_, _>>()?;
        for key in old {
            map.remove(&key)?;
        }
        for (key, value) in rows {
            map.insert(key, value, 0)?;
        }
        Ok(())
    }

    fn hash<K: Pod, V: Pod>(&mut self, name: &str) -> anyhow::Result<HashMap<&mut MapData, K, V>> {
        let map = self.ebpf.map_mut(name).with_context(|| no_map(name))?;
        HashMap::try_from(map).with_context(|| format!("map {name}"))
    }

    fn counters(&self) -> anyhow::Result<Vec<u64>> {
        let name = maps::COUNTERS;
        let map = self.ebpf.map(name).with_context(|| no_map(name))?;
        let counters = PerCpuArray::<_, u64>::try_from(map)?;
        let total = |counter: Counter| Ok(counters.get(&(counter as u32), 0)?.iter().sum());
        Counter::ALL.into_iter().map(total).collect()
    }
}

fn no_map(name: &str) -> String {
    format!("the BPF object has no map {name}: build it again")
}

/// The bytes of the constants of a program.
fn constants(program: &ProgramInfo) -> anyhow::Result<Vec<u8>> {
    for &id in &program.maps {
        let info =
            MapInfo::from_id(id).with_context(|| format!("cannot look at map {id} of program {}", program.name))?;
        if info.name_as_str() != Some(CONSTANTS) {
            continue;
        }
        let mut bytes = vec![0; info.value_size() as usize];
        // SAFETY: `bytes` is as long as the kernel says a value is, and what holds constants is an array.
        unsafe { sys::look_up_bytes(info.fd()?.as_fd(), 0, &mut bytes) }
            .context("cannot read the program's constants")?;
        return Ok(bytes);
    }
    bail!("program {} has no constants", program.name)
}

/// Where each constant stands among the bytes of all: what changes when it does.
fn places() -> anyhow::Result<Vec<(&'static str, std::ops::Range<usize>)>> {
    let with = |name: &str, byte: u8| -> anyhow::Result<Vec<u8>> {
        let mut object = Object::parse(OBJECT)?;
        // Each has four bytes or eight, and the object says which.
        let patched = [4, 8].into_iter().any(|size| {
            let bytes = vec![byte; size];
            let globals = StdHashMap::from([(name, (bytes.as_slice(), true))]);
            object.patch_map_data(globals).is_ok()
        });
        ensure!(patched, "the BPF object has no constant {name}: build it again");
        let map = object.maps.get(CONSTANTS).ok_or_else(|| anyhow!(no_map(CONSTANTS)))?;
        Ok(map.data().to_vec())
    };
    let place = |name| {
        let (zeros, ones) = (with(name, 0)?, with(name, 0xff)?);
        let mut changed = (0..zeros.len()).filter(|&at| zeros[at] != ones[at]);
        let first = changed
            .next()
            .with_context(|| format!("constant {name} has no place"))?;
        Ok((name, first..changed.next_back().unwrap_or(first) + 1))
    };
    GLOBALS.into_iter().map(place).collect()
}

/// Loads the maps, with these constants.
fn load(constants: &[u8], folder: &Path) -> anyhow::Result<Ebpf> {
    let places = places().context("the embedded BPF object cannot be read")?;
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    for (name, place) in places {
        let value = constants
            .get(place)
            .with_context(|| format!("the program on the link has no constant {name}"))?;
        loader.override_global(name, value, true);
    }
    for (name, size) in OWN {
        loader.map_max_entries(name, size);
    }
    for name in SHARED {
        let path = folder.join(name);
        // One that is not there would be made.
        ensure!(path.try_exists()?, "there is no {} any more: ask again", path.display());
        loader.map_pin_path(name, path);
    }
    loader.load(OBJECT).context("the kernel does not take the maps")
}

fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut SchedClassifier> {
    let program = ebpf
        .program_mut(name)
        .with_context(|| format!("the BPF object has no program {name}: build it again"))?;
    Ok(program.try_into()?)
}

/// Loads a program, and gives the kernel's sum over its instructions.
fn load_program(ebpf: &mut Ebpf, name: &str, wanted: &[u8]) -> anyhow::Result<[u8; 8]> {
    let program = classifier(ebpf, name)?;
    program
        .load()
        .with_context(|| format!("the kernel does not take program {name}"))?;
    let info = sys::program_info_of(program.fd()?.as_fd())?;
    ensure!(
        constants(&info)? == wanted,
        "program {name} on the link has other constants than this lb-agent knows of: ask the one that serves here"
    );
    Ok(info.tag)
}
