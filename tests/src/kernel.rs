//! What the kernel that the tests run on has, as far as not every supported one has it.
//!
//! A test of something that is missing says so and ends; `cargo xtask test` counts it as skipped.

use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use anyhow::{Context as _, Result};
use aya::programs::tc::TcAttachType;
use aya::programs::{ProgramError, ProgramType, SchedClassifier};
use aya::sys::is_helper_supported;
use aya_obj::generated::bpf_func_id;
use lb_agent::kernel::dummy::{self, DummyError, DummyLink};
use netlink_packet_route::link::NetkitMode;

use crate::netlink::End;
use crate::netns::Netns;
use crate::network::plan;
use crate::plane::{self, Plane};

/// Something that not every supported kernel has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Chains of programs on links, without a qdisc.
    Tcx,
    /// The number of a network namespace, for user space.
    NetnsCookie,
    /// Memory of maps that is counted against a control group, not against what a process may lock.
    MapMemory,
    /// What a system call that a socket program refuses fails with.
    SetRetval,
    /// Services of the kernel's own, which are a module that somebody has to load.
    Ipvs,
    /// Dummy links, which the IPVS plane needs.
    Dummy,
    /// Links made for pods.
    Netkit,
}

impl Feature {
    /// All, newest last.
    pub const ALL: [Self; 7] = [
        Self::Ipvs,
        Self::Dummy,
        Self::MapMemory,
        Self::NetnsCookie,
        Self::SetRetval,
        Self::Tcx,
        Self::Netkit,
    ];

    /// What it is called, and the first kernel that has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcx => "TCX (6.6)",
            Self::MapMemory => "memory of maps counted by control group (5.11)",
            Self::NetnsCookie => "SO_NETNS_COOKIE (5.14)",
            Self::SetRetval => "bpf_set_retval (5.18)",
            Self::Ipvs => "IPVS (2.6, with its module)",
            Self::Dummy => "dummy links (module dummy)",
            Self::Netkit => "netkit links (6.7, where configured)",
        }
    }

    /// What the agent does without it, in words that it says itself.
    #[must_use]
    pub const fn without(self) -> &'static str {
        match self {
            Self::Tcx => "this kernel has no TCX (before 6.6): using the clsact qdisc",
            Self::NetnsCookie => {
                "cannot tell this network namespace from others: kernel 5.14 can, and any where it is the host's; `--socket-lb off` goes without"
            }
            Self::MapMemory => {
                "cannot lift the limit of locked memory, which this kernel (before 5.11) counts maps against: it takes CAP_SYS_RESOURCE, or a RLIMIT_MEMLOCK that is unlimited"
            }
            Self::SetRetval => {
                "this kernel has no bpf_set_retval (before 5.18): processes of the host are refused with EPERM"
            }
            Self::Ipvs => {
                "the kernel has no IPVS: `modprobe ip_vs` loads it where the kernel is built with it (CONFIG_IP_VS)"
            }
            Self::Dummy => "this kernel makes no dummy links, which hold the addresses of services: `modprobe dummy`",
            Self::Netkit => "pods have links of other kinds",
        }
    }

    /// Whether the kernel has it. It is tried, since a version says little about a distribution's kernel.
    pub fn is_there(self) -> Result<bool> {
        match self {
            Self::Tcx => has_tcx(),
            Self::NetnsCookie => has_netns_cookie(),
            // That helper came with it.
            Self::MapMemory => {
                is_helper_supported(ProgramType::SchedClassifier, bpf_func_id::BPF_FUNC_ktime_get_coarse_ns)
                    .context("asking for a helper")
            }
            Self::SetRetval => is_helper_supported(ProgramType::CgroupSockAddr, bpf_func_id::BPF_FUNC_set_retval)
                .context("asking for a helper"),
            Self::Ipvs => Ok(Path::new("/proc/net/ip_vs").exists()),
            Self::Dummy => has_dummy(),
            Self::Netkit => has_netkit(),
        }
        .with_context(|| format!("finding out whether there is {}", self.name()))
    }
}

/// Whether the kernel lacks what a test is about. If so the test is noted as skipped, and has only to return. All these
/// features are the BPF plane's: another does without, and so do its tests.
#[must_use]
#[track_caller]
pub fn lacks(feature: Feature) -> bool {
    if !plane::is(Plane::Ebpf) {
        return false;
    }
    let is_there = feature.is_there().expect("the kernel can be asked");
    if !is_there {
        skip(&format!("this kernel has no {}", feature.name()));
    }
    !is_there
}

/// The opposite, for tests of what is done instead.
#[must_use]
#[track_caller]
pub fn has(feature: Feature) -> bool {
    let is_there = feature.is_there().expect("the kernel can be asked");
    if is_there {
        skip(&format!("this kernel has {}", feature.name()));
    }
    is_there
}

/// Says that the test of this thread is skipped. The runner catches what tests print, so this goes past it.
pub(crate) fn skip(reason: &str) {
    let thread = thread::current();
    let line = format!("skipped {}: {reason}\n", thread.name().unwrap_or("a test"));
    let mut stdout = io::stdout().lock();
    // Nobody is told if there is nobody to read.
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
}

fn has_tcx() -> Result<bool> {
    /// It is asked for at each look at a link, and takes a namespace to find out.
    static FOUND: OnceLock<bool> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let found = ask_for_tcx()?;
    Ok(*FOUND.get_or_init(|| found))
}

fn ask_for_tcx() -> Result<bool> {
    let netns = Netns::new("probe")?;
    match netns.run(|| SchedClassifier::query_tcx("lo", TcAttachType::Ingress))? {
        Ok(_) => Ok(true),
        Err(ProgramError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn has_dummy() -> Result<bool> {
    let netns = Netns::new("probe")?;
    match netns.run(|| DummyLink::ensure(dummy::NAME))? {
        Ok(_) => Ok(true),
        Err(DummyError::Missing) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn has_netkit() -> Result<bool> {
    let netns = Netns::new("probe")?;
    let end = End {
        netns: &netns,
        name: "there",
    };
    let added = netns.netlink()?.add_netkit("here", end, plan::MTU, NetkitMode::L3);
    match added {
        Ok(()) => Ok(true),
        Err(error) if format!("{error:#}").contains("Operation not supported") => Ok(false),
        Err(error) => Err(error),
    }
}

fn has_netns_cookie() -> Result<bool> {
    let socket = UnixDatagram::unbound()?;
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of_val(&cookie))?;
    // SAFETY: `cookie` and `length` live across the call, and `length` is that of `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => Ok(false),
        _ => Err(error.into()),
    }
}
