//! Names and sizes of the maps, and the version of their layout.

/// Names the folder of the pins; goes up with every change to a key, a value or the meaning of one.
pub const LAYOUT_VERSION: u32 = 4 + cfg!(feature = "next-layout") as u32;

/// Hash: [`ServiceKey`](crate::ServiceKey) → [`ServiceValue`](crate::ServiceValue).
pub const SERVICES: &str = "SERVICES";
/// Array: slot → number of a backend (`u32`).
pub const SLOTS: &str = "SLOTS";
/// Array: number → [`BackendValue`](crate::BackendValue).
pub const BACKENDS: &str = "BACKENDS";
/// LRU hash: [`FlowKey`](crate::FlowKey) → [`FlowValue`](crate::FlowValue).
pub const FLOWS: &str = "FLOWS";
/// LRU hash: cookie of a connected socket (`u64`) → [`Translation`](crate::Translation).
pub const CONNECTED: &str = "CONNECTED";
/// Storage of sockets that send without being connected: [`Correspondents`](crate::Correspondents).
pub const SENT_TO: &str = "SENT_TO";
/// Hash: number of a pod's cgroup (`u64`) → `u32`, of pods whose sockets are left alone.
pub const OPTED_OUT: &str = "OPTED_OUT";
/// LRU hash: [`AffinityKey`](crate::AffinityKey) → [`AffinityValue`](crate::AffinityValue).
pub const AFFINITY: &str = "AFFINITY";
/// Hash: [`SourceKey`](crate::SourceKey) → [`Address`](crate::Address).
pub const SOURCES: &str = "SOURCES";
/// Hash: [`Address`](crate::Address) → [`AddressValue`](crate::AddressValue).
pub const ADDRESSES: &str = "ADDRESSES";
/// LPM trie: [`PrefixKey`](crate::PrefixKey) → `u32`, the clients of restricted frontends.
pub const SOURCE_RANGES: &str = "SOURCE_RANGES";
/// LPM trie: [`PrefixKey`](crate::PrefixKey) → `u32`, the networks of pods and of services.
pub const CIDRS: &str = "CIDRS";
/// LRU hash: [`FragmentKey`](crate::FragmentKey) → [`FragmentValue`](crate::FragmentValue).
pub const FRAGMENTS: &str = "FRAGMENTS";
/// Array: a ring of [`HeldFragment`](crate::HeldFragment).
pub const HELD_FRAGMENTS: &str = "HELD_FRAGMENTS";
/// Per-CPU array of one row: what a program writes before it goes into `FRAGMENTS` or `FLOWS`, and where this CPU is in
/// the ring ([`Scratch`](crate::fragment::Scratch)).
pub const SCRATCH: &str = "SCRATCH";
/// Ring buffer of [`Event`](crate::Event).
pub const EVENTS: &str = "EVENTS";
/// Per-CPU array of one row: [`EventBudget`](crate::event::EventBudget).
pub const EVENT_BUDGET: &str = "EVENT_BUDGET";
/// Array: `u32`, the rows of [`stage`](crate::stage). The same in every layout.
pub const STAGE: &str = "STAGE";
/// Per-CPU array: [`Counter`](crate::Counter) → `u64`.
pub const COUNTERS: &str = "COUNTERS";

/// Default number of rows of `SERVICES`: frontends of 65,536 service ports with a few each.
pub const DEFAULT_SERVICES: u32 = 262_144;
/// Default number of slots: every service holds up to two ranges of its endpoints, and for a
/// second after a change the range before.
pub const DEFAULT_SLOTS: u32 = 1_048_576;
/// Default number of backends.
pub const DEFAULT_BACKENDS: u32 = 524_288;
/// Default number of rows of `FLOWS`, two a flow.
pub const DEFAULT_FLOWS: u32 = 524_288;
/// Default number of rows of `CONNECTED`.
pub const DEFAULT_CONNECTED: u32 = 131_072;
/// Default number of rows of `AFFINITY`: a client each of a service port that asks for it.
pub const DEFAULT_AFFINITY: u32 = 131_072;
/// Default number of rows of `ADDRESSES`, the same as that of `SERVICES`: no more ClusterIPs than frontends.
pub const DEFAULT_ADDRESSES: u32 = DEFAULT_SERVICES;
/// Default number of rows of `SOURCE_RANGES`.
pub const DEFAULT_SOURCE_RANGES: u32 = 65_536;
/// Number of rows of `SOURCES`: links that are no port of something without an address, twice.
pub const SOURCES_MAX: u32 = 16_384;
/// Number of rows of `FRAGMENTS`: datagrams in pieces that are under way at one time.
pub const FRAGMENTS_MAX: u32 = 8_192;
/// Number of places in `HELD_FRAGMENTS`, a power of two; 2 KiB each.
pub const HELD_FRAGMENTS_MAX: u32 = 1_024;
/// Bytes of `EVENTS`, a power of two: 4,000 events.
pub const EVENTS_SIZE: u32 = 256 * 1024;
/// Number of rows of `OPTED_OUT`: more pods than a node has.
pub const OPTED_OUT_MAX: u32 = 4_096;
/// How many levels below the root a pod's cgroup may be at. In a node that is itself a container it is the seventh.
pub const CGROUP_LEVELS: u32 = 12;
/// Number of rows of `CIDRS`.
pub const CIDRS_MAX: u32 = 1_024;
