//! What the agent fixes when it loads the object. Read-only from then on, so the verifier knows
//! the values. The names are those of [`lb_common::config`].

use core::ptr;

use aya_ebpf::{Global, helpers::bpf_get_netns_cookie};
use lb_common::config::{DEFAULT_MASQUERADE_MARK, DEFAULT_UDP_TIMEOUT, INITIAL_NETNS, PODS_LEFT};

#[unsafe(no_mangle)]
static NETNS_COOKIE: Global<u64> = Global::new(INITIAL_NETNS);
#[unsafe(no_mangle)]
static POD_SOCKETS: Global<u32> = Global::new(PODS_LEFT);
#[unsafe(no_mangle)]
static MASQUERADE_MARK: Global<u32> = Global::new(DEFAULT_MASQUERADE_MARK);
#[unsafe(no_mangle)]
static MASQUERADES: Global<u32> = Global::new(1);
#[unsafe(no_mangle)]
static UDP_TIMEOUT: Global<u64> = Global::new(DEFAULT_UDP_TIMEOUT);
#[unsafe(no_mangle)]
static HAS_COARSE_CLOCK: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static HAS_SET_RETVAL: Global<u32> = Global::new(1);

/// Cookie of the node's own network namespace.
#[inline(always)]
pub(crate) fn netns_cookie() -> u64 {
    match NETNS_COOKIE.load() {
        // SAFETY: the helper takes no context for the initial namespace.
        INITIAL_NETNS => unsafe { bpf_get_netns_cookie(ptr::null_mut()) },
        cookie => cookie,
    }
}

/// What becomes of sockets of pods: one of the values of [`lb_common::config::POD_SOCKETS`].
#[inline(always)]
pub(crate) fn pod_sockets() -> u32 {
    POD_SOCKETS.load()
}

/// The bit of the mark that asks for masquerading.
#[inline(always)]
pub(crate) fn masquerade_mark() -> u32 {
    MASQUERADE_MARK.load()
}

/// Whether programs begin to masquerade what has it. Else the kernel does, and they go on with what they have begun.
#[inline(always)]
pub(crate) fn masquerades() -> bool {
    MASQUERADES.load() != 0
}

/// Nanoseconds after which a silent UDP flow is over.
#[inline(always)]
pub(crate) fn udp_timeout() -> u64 {
    UDP_TIMEOUT.load()
}

/// Whether the kernel has `bpf_ktime_get_coarse_ns`. Where it has not, the verifier never looks at the call.
#[inline(always)]
pub(crate) fn has_coarse_clock() -> bool {
    HAS_COARSE_CLOCK.load() != 0
}

/// Whether the kernel has `bpf_set_retval`. Where it has not, the verifier never looks at the call.
#[inline(always)]
pub(crate) fn has_set_retval() -> bool {
    HAS_SET_RETVAL.load() != 0
}
