//! The programs of the object, loaded for packets that only this process sends them (`BPF_PROG_TEST_RUN`).

use std::path::Path;

use anyhow::{Context as _, Result};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, MapData};
use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader, Pod, TestRun as _, TestRunOptions};
use lb_common::{
    Address, AddressValue, AffinityKey, AffinityValue, BackendValue, FlowKey, FlowValue, FragmentKey, FragmentValue,
    PrefixKey, Scoped, ServiceKey, ServiceValue, SourceKey, config,
    fragment::{FRAGMENT_TIMEOUT, HELD_MAX},
    maps,
};

/// Nanoseconds after which a silent UDP flow is over here: longer than any run of one script takes.
pub const UDP_TIMEOUT: u64 = 30_000_000_000;
/// Rows of each map: so many that no LRU map ever has to evict one by itself.
const ROWS: u32 = 1 << 16;

/// Where the object is, unless `LB_EBPF_OBJECT` names another.
const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bpf/lb-ebpf.o");

/// Offsets in the kernel's `__sk_buff`, and the size that the kernel takes a context for.
const MARK: std::ops::Range<usize> = 8..12;
const GSO_SEGMENTS: std::ops::Range<usize> = 164..168;
const GSO_SIZE: std::ops::Range<usize> = 176..180;
const CONTEXT: usize = 192;
/// Longer than anything that a program makes a packet longer by, but where it becomes one that was held.
const GROWTH: usize = 256;

/// An entry point for packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Program {
    /// From the link of a pod.
    FromPod,
    /// The same without link header.
    FromPodL3,
    /// From any other link.
    FromOutside,
    /// The same without link header.
    FromOutsideL3,
    /// To a link.
    ToLink,
    /// The same without link header.
    ToLinkL3,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::FromPod,
        Self::FromPodL3,
        Self::FromOutside,
        Self::FromOutsideL3,
        Self::ToLink,
        Self::ToLinkL3,
    ];

    /// Its name in the object.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FromPod => "from_pod",
            Self::FromPodL3 => "from_pod_l3",
            Self::FromOutside => "from_outside",
            Self::FromOutsideL3 => "from_outside_l3",
            Self::ToLink => "to_link",
            Self::ToLinkL3 => "to_link_l3",
        }
    }

    /// Whether packets have an Ethernet header there.
    #[must_use]
    pub const fn has_link_header(self) -> bool {
        matches!(self, Self::FromPod | Self::FromOutside | Self::ToLink)
    }

    /// Whether packets go out there; else they come in.
    #[must_use]
    pub const fn is_egress(self) -> bool {
        matches!(self, Self::ToLink | Self::ToLinkL3)
    }

    /// Whether packets come from a pod of this node there.
    #[must_use]
    pub const fn is_pod(self) -> bool {
        matches!(self, Self::FromPod | Self::FromPodL3)
    }
}

/// What became of a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// `TC_ACT_*`.
    pub verdict: i32,
    /// The mark it bears now.
    pub mark: u32,
    /// The packet.
    pub bytes: Vec<u8>,
}

/// The loaded object.
#[derive(Debug)]
pub struct Programs {
    ebpf: Ebpf,
}

impl Programs {
    /// Loads the object that `cargo xtask build-ebpf` makes, with empty maps. Clients that are to be masqueraded are left
    /// to the kernel.
    pub fn load() -> Result<Self> {
        Self::load_with(0)
    }

    /// The same, and the programs masquerade.
    pub fn load_masquerading() -> Result<Self> {
        Self::load_with(1)
    }

    fn load_with(masquerades: u32) -> Result<Self> {
        let path = std::env::var_os("LB_EBPF_OBJECT").unwrap_or_else(|| OBJECT.into());
        let path = Path::new(&path);
        let object = std::fs::read(path)
            .with_context(|| format!("reading {}: `cargo xtask build-ebpf` makes it", path.display()))?;
        let mut loader = EbpfLoader::new();
        for map in [
            maps::SERVICES,
            maps::SLOTS,
            maps::BACKENDS,
            maps::FLOWS,
            maps::AFFINITY,
            maps::CONNECTED,
        ] {
            loader.map_max_entries(map, ROWS);
        }
        loader.override_global(config::UDP_TIMEOUT, &UDP_TIMEOUT, true);
        loader.override_global(config::MASQUERADES, &masquerades, true);
        let mut ebpf = loader
            .load(&object)
            .context("loading the maps: this needs root (CAP_BPF)")?;
        for program in Program::ALL.map(Program::name) {
            let program: &mut SchedClassifier = ebpf
                .program_mut(program)
                .with_context(|| format!("the object has no program {program}"))?
                .try_into()?;
            program.load().context("loading a program")?;
        }
        Ok(Self { ebpf })
    }

    /// Sends a packet through a program. A `gso_size` other than 0 says that the packet is to be cut into segments
    /// of that many bytes. `None` where the kernel lends no program a packet as short as this one.
    pub fn run(&self, program: Program, bytes: &[u8], mark: u32, gso_size: u32) -> Result<Option<Outcome>> {
        let name = program.name();
        let loaded: &SchedClassifier = self.ebpf.program(name).context(name)?.try_into()?;
        let mut context = [0; CONTEXT];
        context[MARK].copy_from_slice(&mark.to_ne_bytes());
        context[GSO_SIZE].copy_from_slice(&gso_size.to_ne_bytes());
        context[GSO_SEGMENTS].copy_from_slice(&u32::from(gso_size != 0).to_ne_bytes());
        let mut context_out = [0; CONTEXT];
        let mut out = vec![0; bytes.len().max(HELD_MAX) + GROWTH];
        let result = loaded.test_run(TestRunOptions {
            data_in: Some(bytes),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ctx_out: Some(&mut context_out),
            ..Default::default()
        });
        let result = match result {
            Ok(result) => result,
            Err(_) if is_too_short(bytes) => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("the kernel does not run {name} on {} bytes", bytes.len()));
            }
        };
        out.truncate(result.data_size_out as usize);
        let mut mark = [0; 4];
        mark.copy_from_slice(&context_out[MARK]);
        Ok(Some(Outcome {
            verdict: result.return_value.cast_signed(),
            mark: u32::from_ne_bytes(mark),
            bytes: out,
        }))
    }

    /// Writes a row of `BACKENDS`.
    pub fn set_backend(&mut self, number: u32, value: BackendValue) -> Result<()> {
        Ok(self.array::<BackendValue>(maps::BACKENDS)?.set(number, value, 0)?)
    }

    /// Writes a row of `SLOTS`.
    pub fn set_slot(&mut self, slot: u32, backend: u32) -> Result<()> {
        Ok(self.array::<u32>(maps::SLOTS)?.set(slot, backend, 0)?)
    }

    /// Writes a row of `SERVICES`.
    pub fn set_service(&mut self, key: ServiceKey, value: ServiceValue) -> Result<()> {
        Ok(self.hash(maps::SERVICES)?.insert(key, value, 0)?)
    }

    /// Deletes a row of `SERVICES`, if it is there.
    pub fn remove_service(&mut self, key: ServiceKey) -> Result<()> {
        let _ = self.hash::<ServiceKey, ServiceValue>(maps::SERVICES)?.remove(&key);
        Ok(())
    }

    /// Writes a row of `ADDRESSES`.
    pub fn set_address(&mut self, address: Address, flags: u32) -> Result<()> {
        Ok(self.hash(maps::ADDRESSES)?.insert(address, AddressValue { flags }, 0)?)
    }

    /// Writes a row of `CIDRS` or `SOURCE_RANGES`.
    pub fn set_prefix(&mut self, map: &str, key: PrefixKey, value: u32) -> Result<()> {
        let map = self.ebpf.map_mut(map).with_context(|| format!("no map {map}"))?;
        let mut trie: LpmTrie<_, Scoped, u32> = map.try_into()?;
        Ok(trie.insert(&Key::new(key.length, key.network), value, 0)?)
    }

    /// Writes a row of `SOURCES`.
    pub fn set_source(&mut self, link: u32, address: Address) -> Result<()> {
        Ok(self
            .hash(maps::SOURCES)?
            .insert(SourceKey::new(link, &address), address, 0)?)
    }

    /// A row of `FLOWS`.
    pub fn flow(&mut self, key: &FlowKey) -> Result<Option<FlowValue>> {
        Ok(self.hash::<FlowKey, FlowValue>(maps::FLOWS)?.get(key, 0).ok())
    }

    /// Writes a row of `FLOWS`.
    pub fn set_flow(&mut self, key: FlowKey, value: FlowValue) -> Result<()> {
        Ok(self.hash(maps::FLOWS)?.insert(key, value, 0)?)
    }

    /// Deletes a row of `FLOWS`, if it is there.
    pub fn remove_flow(&mut self, key: &FlowKey) -> Result<()> {
        let _ = self.hash::<FlowKey, FlowValue>(maps::FLOWS)?.remove(key);
        Ok(())
    }

    /// All rows of `FLOWS`.
    pub fn flows(&mut self) -> Result<Vec<(FlowKey, FlowValue)>> {
        let rows = self.hash::<FlowKey, FlowValue>(maps::FLOWS)?;
        rows.iter().collect::<Result<_, _>>().context("reading the flow table")
    }

    /// Makes what is known of every datagram in pieces so old that it says nothing any more.
    pub fn expire_fragments(&mut self) -> Result<()> {
        let mut rows = self.hash::<FragmentKey, FragmentValue>(maps::FRAGMENTS)?;
        let all: Vec<_> = rows.iter().collect::<Result<_, _>>().context("reading the fragments")?;
        for (key, row) in all {
            let since = row.since.saturating_sub(2 * FRAGMENT_TIMEOUT);
            rows.insert(key, FragmentValue { since, ..row }, 0)?;
        }
        Ok(())
    }

    /// Forgets all flows, the affinity of all clients and all datagrams in pieces.
    pub fn forget(&mut self) -> Result<()> {
        clear(&mut self.hash::<FlowKey, FlowValue>(maps::FLOWS)?);
        clear(&mut self.hash::<AffinityKey, AffinityValue>(maps::AFFINITY)?);
        clear(&mut self.hash::<FragmentKey, FragmentValue>(maps::FRAGMENTS)?);
        Ok(())
    }

    fn array<V: Pod>(&mut self, name: &str) -> Result<Array<&mut MapData, V>> {
        let map = self.ebpf.map_mut(name).with_context(|| format!("no map {name}"))?;
        Ok(map.try_into()?)
    }

    fn hash<K: Pod, V: Pod>(&mut self, name: &str) -> Result<HashMap<&mut MapData, K, V>> {
        let map = self.ebpf.map_mut(name).with_context(|| format!("no map {name}"))?;
        Ok(map.try_into()?)
    }
}

fn clear<K: Pod, V: Pod>(map: &mut HashMap<&mut MapData, K, V>) {
    let keys: Vec<K> = map.keys().filter_map(Result::ok).collect();
    for key in keys {
        let _ = map.remove(&key);
    }
}

/// Whether the kernel refuses to run a program on so little: less than the Ethernet header that it always reads the
/// protocol from, or, from some kernel on, than the fixed IP header behind it.
fn is_too_short(bytes: &[u8]) -> bool {
    const ETHERNET: usize = 14;
    let needed = match bytes.get(12..ETHERNET) {
        Some([0x08, 0x00]) => ETHERNET + 20,
        Some([0x86, 0xdd]) => ETHERNET + 40,
        Some(_) => ETHERNET + 1,
        None => return true,
    };
    bytes.len() < needed
}
