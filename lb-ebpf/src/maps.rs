//! Every map. The sizes here are the defaults; the agent sets its own when it loads the object.
//! The names are those of [`lb_common::maps`].

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf, SkStorage},
    macros::btf_map,
};
use lb_common::{
    Address, AddressValue, AffinityKey, AffinityValue, BackendValue, Correspondents, Counter, Event, FlowKey,
    FlowValue, FragmentKey, FragmentValue, HeldFragment, Scoped, ServiceKey, ServiceValue, SourceKey, Translation,
    event::EventBudget,
    fragment::Scratch,
    maps::{
        CIDRS_MAX, DEFAULT_ADDRESSES, DEFAULT_AFFINITY, DEFAULT_BACKENDS, DEFAULT_CONNECTED, DEFAULT_FLOWS,
        DEFAULT_SERVICES, DEFAULT_SLOTS, DEFAULT_SOURCE_RANGES, EVENTS_SIZE, FRAGMENTS_MAX, HELD_FRAGMENTS_MAX,
        OPTED_OUT_MAX, SOURCES_MAX,
    },
    stage,
};

// Memory of these follows what they hold, not what they may hold.
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

#[btf_map]
pub(crate) static SERVICES: HashMap<ServiceKey, ServiceValue, { DEFAULT_SERVICES as usize }, ON_DEMAND> =
    HashMap::new();

#[btf_map]
pub(crate) static SLOTS: Array<u32, { DEFAULT_SLOTS as usize }> = Array::new();

#[btf_map]
pub(crate) static BACKENDS: Array<BackendValue, { DEFAULT_BACKENDS as usize }> = Array::new();

#[btf_map]
pub(crate) static FLOWS: LruHashMap<FlowKey, FlowValue, { DEFAULT_FLOWS as usize }> = LruHashMap::new();

#[btf_map]
pub(crate) static CONNECTED: LruHashMap<u64, Translation, { DEFAULT_CONNECTED as usize }> = LruHashMap::new();

#[btf_map]
pub(crate) static SENT_TO: SkStorage<Correspondents> = SkStorage::new();

#[btf_map]
pub(crate) static OPTED_OUT: HashMap<u64, u32, { OPTED_OUT_MAX as usize }, ON_DEMAND> = HashMap::new();

#[btf_map]
pub(crate) static AFFINITY: LruHashMap<AffinityKey, AffinityValue, { DEFAULT_AFFINITY as usize }> = LruHashMap::new();

#[btf_map]
pub(crate) static SOURCE_RANGES: LpmTrie<Scoped, u32, { DEFAULT_SOURCE_RANGES as usize }> = LpmTrie::new();

#[btf_map]
pub(crate) static CIDRS: LpmTrie<Scoped, u32, { CIDRS_MAX as usize }> = LpmTrie::new();

#[btf_map]
pub(crate) static ADDRESSES: HashMap<Address, AddressValue, { DEFAULT_ADDRESSES as usize }, ON_DEMAND> = HashMap::new();

#[btf_map]
pub(crate) static SOURCES: HashMap<SourceKey, Address, { SOURCES_MAX as usize }, ON_DEMAND> = HashMap::new();

#[btf_map]
pub(crate) static FRAGMENTS: LruHashMap<FragmentKey, FragmentValue, { FRAGMENTS_MAX as usize }> = LruHashMap::new();

#[btf_map]
pub(crate) static HELD_FRAGMENTS: Array<HeldFragment, { HELD_FRAGMENTS_MAX as usize }> = Array::new();

#[btf_map]
pub(crate) static SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

#[btf_map]
pub(crate) static STAGE: Array<u32, { stage::ROWS as usize }> = Array::new();

#[btf_map]
pub(crate) static COUNTERS: PerCpuArray<u64, { Counter::COUNT as usize }> = PerCpuArray::new();

#[btf_map]
pub(crate) static EVENTS: RingBuf<Event, { EVENTS_SIZE as usize }> = RingBuf::new();

#[btf_map]
pub(crate) static EVENT_BUDGET: PerCpuArray<EventBudget, 1> = PerCpuArray::new();
