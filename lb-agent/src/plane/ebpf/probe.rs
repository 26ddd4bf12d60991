//! What the node can do for this plane.

use super::{
    EbpfOptions, MapSizes, check_cgroup, lift_memory_limit, netns_cookie,
    object::{self, Globals},
    pins::Pins,
    rules, trial,
};
use crate::{
    kernel::capabilities,
    plane::probe::{Check, Found},
};

/// Rows of each map that is made to load programs on. They are never run.
const ROWS: u32 = 16;

/// Tries all that [`EbpfPlane::start`](super::EbpfPlane::start) does, with maps and hooks that are gone again when
/// this returns. What serves, or runs, is not touched.
#[must_use]
pub fn probe(options: &EbpfOptions) -> Vec<Check> {
    let mut checks = vec![
        Check::of(
            "capabilities",
            capabilities::check_to_load().map(|()| Found::good("CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF")),
        ),
        Check::of(
            "locked memory",
            lift_memory_limit().map(|()| Found::good("no limit for maps")),
        ),
        Check::of(
            "bpf filesystem",
            Pins::new(&options.bpffs).map(|_| Found::good(format!("mounted at {}", options.bpffs.display()))),
        ),
        Check::of(
            "nftables",
            rules(options.masquerading, options.masquerade_mark)
                .map(|_| Found::good("takes the rules"))
                .map_err(Into::into),
        ),
    ];
    let mut cookie = None;
    let mut sockets_at = None;
    if let Some(cgroup) = &options.cgroup {
        let is_cgroup = check_cgroup(cgroup).map(|()| {
            sockets_at = Some(cgroup);
            Found::good(format!("version 2 at {}", cgroup.display()))
        });
        checks.push(Check::of("cgroup", is_cgroup));
        let number = netns_cookie().map(|number| {
            cookie = Some(number);
            Found::good("has a number by which its sockets are told from those of pods")
        });
        checks.push(Check::of("network namespace", number));
    }
    let globals = Globals {
        netns_cookie: cookie,
        pod_sockets: options.pod_sockets,
        masquerading: options.masquerading,
        masquerade_mark: options.masquerade_mark,
    };
    let programs = match object::load_unpinned(&MapSizes::of(ROWS), globals) {
        Ok(programs) => programs,
        Err(error) => {
            checks.push(Check::of("maps and programs", Err(error)));
            return checks;
        }
    };
    checks.push(Check::of(
        "maps and programs",
        Ok(Found::good(format!("{} programs loaded", programs.len()))),
    ));
    checks.push(Check::of("links", trial::links(&programs)));
    if let (Some(cgroup), Some(_)) = (sockets_at, cookie) {
        checks.push(Check::of("sockets", trial::sockets(&programs, cgroup)));
    }
    checks
}
