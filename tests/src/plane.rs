//! Which plane the agents under test have, and what a test makes of it.
//!
//! A rule of a Service holds on every plane, and its test runs on every one. A test of how one plane does it begins by
//! asking whether it is that plane; a test of a rule that a plane is declared to keep differently
//! ([`differences`]) begins by asking for that, or expects something else.

pub mod differences;

use std::path::Path;
use std::sync::LazyLock;

pub use differences::Difference;

use crate::kernel::{Feature, skip};

/// Names the plane under test. `cargo xtask test --plane` sets it.
const VARIABLE: &str = "LB_TEST_PLANE";

/// A plane of the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plane {
    /// BPF programs on links and at sockets.
    Ebpf,
    /// The kernel's IPVS.
    Ipvs,
}

static UNDER_TEST: LazyLock<Plane> = LazyLock::new(|| match std::env::var(VARIABLE) {
    Ok(text) => Plane::of_word(&text)
        .unwrap_or_else(|| panic!("{VARIABLE} is {text:?}, which is no plane: there are ebpf and ipvs")),
    Err(_) => Plane::Ebpf,
});

impl Plane {
    /// The word for it, on the agent's command line too.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Ipvs => "ipvs",
        }
    }

    fn of_word(word: &str) -> Option<Self> {
        [Self::Ebpf, Self::Ipvs].into_iter().find(|plane| plane.word() == word)
    }

    /// The one under test.
    #[must_use]
    pub fn under_test() -> Self {
        *UNDER_TEST
    }
}

/// Whether this plane is the one under test.
#[must_use]
pub fn is(plane: Plane) -> bool {
    Plane::under_test() == plane
}

/// Whether another plane is under test than the one whose doing a test looks at, for this reason. If so the test is
/// noted as skipped, and has only to return.
#[must_use]
pub fn other_than(plane: Plane, reason: &str) -> bool {
    let is_other = !is(plane);
    if is_other {
        skip(&format!("of the plane {}: {reason}", plane.word()));
    }
    is_other
}

/// Whether the plane under test serves processes of the node on this kernel.
#[must_use]
pub fn serves_host() -> bool {
    match Plane::under_test() {
        // It goes by the network namespace of a socket, and must know the number of its own.
        Plane::Ebpf => Feature::NetnsCookie.is_there().expect("the kernel can be asked"),
        Plane::Ipvs => true,
    }
}

/// Whether this kernel has IPVS.
#[must_use]
pub fn has_ipvs() -> bool {
    // The kernel makes it with the module, in each namespace.
    Path::new("/proc/thread-self/net/ip_vs").exists()
}

/// Whether this kernel has no IPVS, whatever is under test. If so the test is noted as skipped, and has only to return.
#[must_use]
pub fn lacks_ipvs() -> bool {
    let is_there = has_ipvs();
    if !is_there {
        skip("this kernel has no IPVS");
    }
    !is_there
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plane_is_known_by_its_word() {
        assert_eq!(Plane::of_word("ipvs"), Some(Plane::Ipvs));
        assert_eq!(Plane::of_word("ebpf"), Some(Plane::Ebpf));
        assert_eq!(Plane::of_word("iptables"), None);
    }
}
