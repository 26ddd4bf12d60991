//! The plane that serves in BPF: programs on links and sockets, and the maps that tell them where
//! to send a client.
//!
//! ```text
//! Services  desired state → rows: services, plan, port, batch; numbers, ranges; adopt (restart);
//!    │      addresses, networks, prefix
//! Tables    trait over the maps ── BpfTable (sys: bpf(2) batches) / maps in memory (tests)
//!    │
//! inspect   rows → text, for people
//! events    what was dropped and refused, from the ring and the counters
//! flows     what is being translated; served: what is on which link; occupancy: how full the programs' maps are
//! explain   what becomes of a packet: runs a twin of the program on a link
//!
//! HostSockets  ends UDP sockets whose backend is gone
//! Sources   the addresses by which the node speaks for masqueraded clients, link by link
//! OptOut    finds the cgroups of pods whose sockets are left alone
//! Hooks     programs → links and cgroup: TCX, or clsact below kernel 6.6; pins
//! drain     programs of an agent before that cannot share our flow table: what becomes of their flows; carry, stage
//! object    the embedded BPF object: maps made or taken over, programs loaded
//! trial     whether the kernel lets them be attached, on hooks of our own; probe: what else a node needs
//! lock      one agent at a time, one monitor at a time
//! ```

use std::{
    os::{fd::AsRawFd as _, unix::net::UnixDatagram},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use aya::{
    programs::ProgramType,
    sys::{BpfHelper, is_helper_supported},
};
use lb_common::{
    config, maps,
    stage::{BESIDE, SERVES},
};
use tracing::debug;

use crate::{
    desired::{Change, State},
    kernel::{capabilities, nft},
    plane::{Fill, Outcome, Plane, probe::Found},
};

mod addresses;
mod adopt;
mod batch;
mod carry;
mod chain;
mod cleanup;
mod clsact;
mod drain;
mod events;
mod explain;
mod flows;
mod hooks;
mod host_sockets;
mod inspect;
mod link_hooks;
mod lock;
mod maglev;
mod messages;
mod networks;
mod numbers;
mod object;
mod occupancy;
mod opt_out;
mod pins;
mod plan;
mod port;
mod prefix;
mod probe;
mod ranges;
mod raw_map;
mod retire;
mod served;
mod services;
mod sources;
mod stage;
mod sys;
mod table;
#[cfg(test)]
mod tests;
mod trial;
mod twin;

pub use chain::{Attached, Way};
pub use cleanup::{cleanup, remove_leftovers};
pub use drain::draining_since;
pub use events::{Events, counters};
pub use explain::{Client, Explanation, Fate, Packet, Possible, ProgramOnLink, Sent, explain};
pub use flows::{Flow, flows};
pub use inspect::inspect;
pub use link_hooks::LinkHooks;
pub use maglev::DEFAULT_SIZE as DEFAULT_TABLE_SIZE;
pub use occupancy::{FlowState, LruFill, Occupancy, occupancy};
pub use pins::has_maps;
pub use probe::probe;
pub use retire::retire;
pub use served::{Hook, ServedLink, links};

use drain::Drain;
use hooks::Hooks;
use host_sockets::{HostSockets, Scope};
use lock::Lock;
use object::{Globals, Loaded, Origin};
use opt_out::OptOut;
use pins::Pins;
use services::Services;
use sources::Sources;
use stage::Stage;

/// What ranges and numbers rest for at least, whoever calls [`Plane::tick`] how often.
const REST: Duration = Duration::from_secs(1);

/// How the plane is to run.
#[derive(Clone, Debug)]
pub struct EbpfOptions {
    /// A bpf filesystem, where maps and links outlive the agent.
    pub bpffs: PathBuf,
    /// The cgroup v2 whose processes have their sockets translated; `None` leaves sockets alone.
    pub cgroup: Option<PathBuf>,
    /// What becomes of the sockets of pods in there.
    pub pod_sockets: PodSockets,
    /// Who masquerades.
    pub masquerading: Masquerading,
    /// The bit of the packet mark that asks for it.
    pub masquerade_mark: u32,
    /// Sizes of the maps.
    pub sizes: MapSizes,
    /// Slots of a table of Maglev's, a prime.
    pub maglev_table: u32,
    /// How long flows may take to their end that an earlier agent began and whose rows this one cannot take over.
    pub drain: Duration,
    /// For tests of what kernels before 6.6 do: attach to the clsact qdisc in any case.
    #[doc(hidden)]
    pub force_clsact: bool,
}

/// Who masquerades clients whose answers have to come back by this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Masquerading {
    /// The programs, where packets go out to a link.
    #[default]
    ByPrograms,
    /// The kernel, by a rule of nftables.
    ByKernel,
}

/// What becomes of the sockets of pods: of processes in other network namespaces than the agent's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PodSockets {
    /// They are left to the programs on links.
    #[default]
    Left,
    /// They are translated where a service treats all clients of this node alike. That a pod is on this node does
    /// not tell yet whether it is near: rules for the names of links decide.
    Translated,
    /// They are translated, and pods of this node are near.
    TranslatedAsNear,
}

impl PodSockets {
    const fn value(self) -> u32 {
        match self {
            Self::Left => config::PODS_LEFT,
            Self::Translated => config::PODS_ANYWHERE,
            Self::TranslatedAsNear => config::PODS_NEAR,
        }
    }

    const fn scope(self) -> Scope {
        match self {
            Self::Left => Scope::Own,
            Self::Translated | Self::TranslatedAsNear => Scope::All,
        }
    }
}

/// How many rows each map can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapSizes {
    /// Frontends.
    pub services: u32,
    /// Members of endpoint sets.
    pub slots: u32,
    /// Endpoints of service ports; one less is usable, since 0 is nobody.
    pub backends: u32,
    /// Two for each flow.
    pub flows: u32,
    /// Connected sockets that are translated.
    pub sockets: u32,
    /// Clients that are to get the same endpoint again.
    pub affinity: u32,
    /// Source ranges of load balancers.
    pub source_ranges: u32,
}

impl Default for MapSizes {
    fn default() -> Self {
        Self {
            services: maps::DEFAULT_SERVICES,
            slots: maps::DEFAULT_SLOTS,
            backends: maps::DEFAULT_BACKENDS,
            flows: maps::DEFAULT_FLOWS,
            sockets: maps::DEFAULT_CONNECTED,
            affinity: maps::DEFAULT_AFFINITY,
            source_ranges: maps::DEFAULT_SOURCE_RANGES,
        }
    }
}

impl MapSizes {
    /// All of one size.
    const fn of(rows: u32) -> Self {
        Self {
            services: rows,
            slots: rows,
            backends: rows,
            flows: rows,
            sockets: rows,
            affinity: rows,
            source_ranges: rows,
        }
    }

    const fn by_name(&self) -> [(&'static str, u32); 8] {
        [
            (maps::SERVICES, self.services),
            (maps::SLOTS, self.slots),
            (maps::BACKENDS, self.backends),
            (maps::FLOWS, self.flows),
            (maps::CONNECTED, self.sockets),
            (maps::AFFINITY, self.affinity),
            (maps::SOURCE_RANGES, self.source_ranges),
            (maps::ADDRESSES, self.services),
        ]
    }
}

/// The plane.
pub struct EbpfPlane {
    services: Services,
    hooks: Hooks,
    /// Where sockets are translated.
    host_sockets: Option<HostSockets>,
    /// Where those of pods are.
    opt_out: Option<OptOut>,
    _sources: Sources,
    pins: Pins,
    cgroup: Option<PathBuf>,
    /// The maps are new and still empty, so nobody may take them over.
    has_unfilled_maps: bool,
    /// They are, and programs of an earlier agent serve from its own: ours come behind them once the
    /// maps are filled.
    is_waiting: bool,
    /// Who sees to the end of programs that drain.
    drain: Option<Drain>,
    last_tick: Instant,
    _lock: Arc<Lock>,
}

impl EbpfPlane {
    /// Loads the programs, makes the maps or takes over those of an earlier agent, and takes the
    /// place of its programs. Nothing that is served stops being served. What comes back beside the plane
    /// is its side on the links.
    pub fn start(options: EbpfOptions) -> anyhow::Result<(Self, LinkHooks)> {
        capabilities::check_to_load()?;
        lift_memory_limit()?;
        let pins = Pins::new(&options.bpffs)?;
        let netns_cookie = match &options.cgroup {
            Some(cgroup) => {
                check_cgroup(cgroup)?;
                Some(netns_cookie()?)
            }
            None => None,
        };
        let lock = Arc::new(pins.lock()?);
        drain::tidy(&pins).context("cannot make whole what an earlier agent left")?;
        let rules = rules(options.masquerading, options.masquerade_mark)?;
        let globals = Globals {
            netns_cookie,
            pod_sockets: options.pod_sockets,
            masquerading: options.masquerading,
            masquerade_mark: options.masquerade_mark,
        };
        let (before, loaded) =
            match load(&pins, &options, globals).and_then(|loaded| Ok((beside(&pins, &loaded)?, loaded))) {
                Ok(loaded) => loaded,
                Err(error) => {
                    pins.discard_unfilled();
                    return Err(error);
                }
            };
        // From here on something is there that works without the agent.
        nft::keep(rules)?;
        let sources = Sources::start(loaded.sources)?;
        let mut services = Services::open(loaded.tables).context("cannot read the maps")?;
        services.table_size = options.maglev_table;
        let programs = Arc::new(loaded.programs);
        let hooks = Hooks::new(pins.clone(), Arc::clone(&programs));
        let has_drained = pins.has_draining()?;
        if let Origin::Resized(_) = loaded.origin {
            drain::step_aside(&pins)?;
        }
        let has_unfilled_maps = matches!(loaded.origin, Origin::New | Origin::Drained);
        let is_waiting = has_unfilled_maps && before.is_there;
        let drain = (before.is_there || has_drained)
            .then(|| {
                let is_carried = matches!(loaded.origin, Origin::Resized(_));
                Drain::start(pins.clone(), options.drain, is_carried, Arc::clone(&lock))
            })
            .transpose()
            .context("no thread for what drains")?;
        let links = LinkHooks::new(
            pins.clone(),
            programs,
            is_waiting,
            before.side,
            drain.clone(),
            options.force_clsact,
            Arc::clone(&lock),
        );
        let opt_out = match &options.cgroup {
            Some(cgroup) if options.pod_sockets != PodSockets::Left => {
                Some(OptOut::start(loaded.opted_out, cgroup.clone())?)
            }
            _ => None,
        };
        let mut plane = Self {
            services,
            opt_out,
            _sources: sources,
            host_sockets: loaded
                .socket_maps
                .map(|maps| HostSockets::start(maps, options.pod_sockets.scope()))
                .transpose()?,
            has_unfilled_maps,
            is_waiting,
            drain,
            hooks,
            pins,
            cgroup: options.cgroup,
            last_tick: Instant::now(),
            _lock: lock,
        };
        if !plane.is_waiting {
            plane.take_over()?;
        }
        Ok((plane, links))
    }

    /// Has UDP sockets ended that are connected to backends which serve no more, if there are any such.
    fn end_sockets(&mut self) {
        if !std::mem::take(&mut self.services.has_lost_udp) {
            return;
        }
        if let Some(sockets) = &self.host_sockets {
            sockets.look();
        }
        if let Some(drain) = &self.drain {
            drain.backends_are(|| self.services.serving_udp());
        }
    }

    /// Puts our programs on the hooks for sockets, in the place of an earlier agent's. Those on links
    /// follow with the events of the links.
    fn take_over(&mut self) -> anyhow::Result<()> {
        self.hooks
            .unpin_useless()
            .context("cannot look at the programs on links")?;
        self.hooks.attach_sockets(self.cgroup.as_deref())
    }
}

impl Plane for EbpfPlane {
    fn replace(&mut self, state: &State) -> anyhow::Result<Outcome> {
        let outcome = self.services.replace(state);
        if self.has_unfilled_maps && !self.is_waiting {
            self.pins
                .maps_are_filled()
                .context("cannot pin the maps for agents to come")?;
            self.pins
                .remove_other_layouts()
                .context("cannot remove the pins of another version")?;
        }
        self.has_unfilled_maps = false;
        if self.is_waiting {
            drain::step_aside(&self.pins).context("cannot let the programs of an earlier agent drain")?;
            self.take_over()?;
            self.is_waiting = false;
        }
        if let (Some(opt_out), Some(pods)) = (&self.opt_out, &state.untranslated_pods) {
            opt_out.set(pods.clone());
        }
        // Whatever the agent before left undone.
        self.services.has_lost_udp = true;
        self.end_sockets();
        Ok(outcome)
    }

    fn apply(&mut self, change: &Change) -> Outcome {
        if let (Some(opt_out), Some(pods)) = (&self.opt_out, &change.untranslated_pods) {
            opt_out.set(pods.clone());
        }
        let outcome = self.services.apply(change);
        self.end_sockets();
        outcome
    }

    fn tick(&mut self) {
        if self.last_tick.elapsed() >= REST {
            self.last_tick = Instant::now();
            self.services.tick();
            self.end_sockets();
        }
    }

    fn frontends(&self) -> usize {
        self.services.frontends()
    }

    fn fill(&self) -> Vec<Fill> {
        self.services.fill()
    }
}

/// The rules of nftables that go with it, which the kernel would take.
fn rules(masquerading: Masquerading, mark: u32) -> Result<nft::Rules, nft::NftError> {
    match masquerading {
        Masquerading::ByKernel => nft::Rules::masquerade(mark),
        Masquerading::ByPrograms => nft::Rules::reassemble(mark),
    }
}

/// Loads programs and tries whether they can be attached.
fn load(pins: &Pins, options: &EbpfOptions, globals: Globals) -> anyhow::Result<Loaded> {
    pins.create()?;
    let loaded = object::load(pins, &options.sizes, globals)?;
    tell_trial(&trial::links(&loaded.programs)?);
    if let Some(cgroup) = &options.cgroup {
        tell_trial(&trial::sockets(&loaded.programs, cgroup)?);
    }
    Ok(loaded)
}

/// What an agent before has left on hooks.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// It has programs there whose maps ours cannot take over.
    is_there: bool,
    /// Which side ours are on.
    side: u32,
}

/// Has ours know that they come behind programs of another agent, and on which side they are.
fn beside(pins: &Pins, loaded: &Loaded) -> anyhow::Result<Before> {
    let (folder, is_there) = match &loaded.origin {
        Origin::Adopted => (pins.maps(), false),
        Origin::Resized(different) => {
            carry::copy_state(different, &pins.maps(), &pins.unfilled_maps())
                .context("cannot carry the rows of an earlier agent into maps of other sizes")?;
            (pins.unfilled_maps(), true)
        }
        Origin::Drained | Origin::New => {
            let is_there = hooks::are_in_use(pins).context("cannot look for programs on links")?;
            (pins.unfilled_maps(), is_there)
        }
    };
    let mut stage = Stage::open(&folder)?.context("there is no map of what programs do")?;
    if is_there {
        stage.set_side(drain::other_side(pins)?)?;
        let carried = matches!(loaded.origin, Origin::Resized(_));
        stage.set_ports(drain::ports_beside(pins, carried)?)?;
    }
    let is_beside = is_there || pins.has_draining()?;
    stage.set(if is_beside { BESIDE } else { SERVES })?;
    Ok(Before {
        is_there,
        side: stage.side()?,
    })
}

fn tell_trial(found: &Found) {
    if let Found::Untried { why } = found {
        debug!("not tried before the programs are attached: {why}");
    }
}

fn check_cgroup(cgroup: &Path) -> anyhow::Result<()> {
    use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
    let at = cgroup.display();
    let advice = format!(
        "sockets of the host are translated at a cgroup v2: `mount -t cgroup2 cgroup2 {at}`, or go without by \
         `--socket-lb off`"
    );
    let found = statfs(cgroup).with_context(|| format!("no cgroup at {at}: {advice}"))?;
    if found.filesystem_type() != CGROUP2_SUPER_MAGIC {
        bail!("{at} is no cgroup v2: {advice}");
    }
    Ok(())
}

/// What kernels have of their own sysctls and not of each network namespace: the initial one alone shows it.
const ONLY_IN_INITIAL_NETNS: &str = "/proc/sys/net/core/netdev_max_backlog";

/// The kernel's number for the network namespace of this thread.
fn netns_cookie() -> anyhow::Result<u64> {
    ask_netns_cookie().context(
        "cannot tell this network namespace from others: kernel 5.14 can, and any where it is the host's; \
         `--socket-lb off` goes without",
    )
}

fn ask_netns_cookie() -> anyhow::Result<u64> {
    // Any socket knows the namespace it was made in, and this kind needs no link to be up.
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
            &mut length,
        )
    };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        // Kernel 5.14 tells its number; before, programs can ask for that of the initial one.
        if error.raw_os_error() == Some(libc::ENOPROTOOPT) && Path::new(ONLY_IN_INITIAL_NETNS).exists() {
            return Ok(config::INITIAL_NETNS);
        }
        return Err(error.into());
    }
    Ok(cookie)
}

/// Kernels before 5.11 count maps against the memory that a process may lock.
fn lift_memory_limit() -> anyhow::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` lives across the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    // It came with the kernel that counts them against a control group.
    match is_helper_supported(ProgramType::SchedClassifier, BpfHelper::BPF_FUNC_ktime_get_coarse_ns) {
        Ok(true) => Ok(()),
        // Who may load no program at all cannot find out, and is told of that.
        Err(_) if capabilities::check_to_load().is_err() => Ok(()),
        // Where the limit is very low, not even the program fits by which that is found out.
        Ok(false) | Err(_) => Err(anyhow::Error::new(error).context(
            "cannot lift the limit of locked memory, which this kernel (before 5.11) counts maps against: \
             it takes CAP_SYS_RESOURCE, or a RLIMIT_MEMLOCK that is unlimited",
        )),
    }
}
