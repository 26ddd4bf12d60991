//! What user space fixes when it loads the programs: names of read-only globals, and their defaults.

/// `u64`: cookie of the node's own network namespace (`SO_NETNS_COOKIE`), whose sockets are translated; or
/// `INITIAL_NETNS`.
pub const NETNS_COOKIE: &str = "NETNS_COOKIE";
/// `u32`: what becomes of sockets of other network namespaces, `PODS_LEFT`, `PODS_ANYWHERE` or `PODS_NEAR`.
pub const POD_SOCKETS: &str = "POD_SOCKETS";
/// `u32`: the bit of the packet's mark that asks for masquerading where it goes out.
pub const MASQUERADE_MARK: &str = "MASQUERADE_MARK";
/// `u32`, 0 or 1: the programs themselves masquerade what has the mark, where it goes out. Else the kernel does.
pub const MASQUERADES: &str = "MASQUERADES";
/// `u64`: nanoseconds after which a silent UDP flow is over. The agent leaves the default; tests do not.
pub const UDP_TIMEOUT: &str = "UDP_TIMEOUT";
/// `u32`, 0 or 1: the kernel has `bpf_set_retval` (5.18), so a refused call can fail with ECONNREFUSED.
/// Without it, it fails with EPERM.
pub const HAS_SET_RETVAL: &str = "HAS_SET_RETVAL";

/// Value of `NETNS_COOKIE`: that of the network namespace that the kernel began with, whatever its cookie is. No
/// namespace has this one.
pub const INITIAL_NETNS: u64 = 0;

/// Value of `POD_SOCKETS`: they are left to the programs on links.
pub const PODS_LEFT: u32 = 0;
/// Value of `POD_SOCKETS`: they are translated; whether a pod is near is known from its link alone, so that
/// services for which it matters are left.
pub const PODS_ANYWHERE: u32 = 1;
/// Value of `POD_SOCKETS`: they are translated, and pods are near, unless networks of pods are known.
pub const PODS_NEAR: u32 = 2;

/// kube-proxy's bit (`masqueradeBit: 14`).
pub const DEFAULT_MASQUERADE_MARK: u32 = 0x4000;
/// What the kernel's own connection tracking gives a UDP stream, in nanoseconds.
pub const DEFAULT_UDP_TIMEOUT: u64 = 120_000_000_000;

/// First source port that a client may be given when its own is taken, and what is
/// masqueraded to: below every NodePort (30000) and above what daemons listen on.
pub const FIRST_SNAT_PORT: u16 = 10_000;
/// Last such port.
pub const LAST_SNAT_PORT: u16 = 29_999;
