//! The addresses of a node, as the agent sees them come and go.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use lb_agent::kernel::addresses;
use lb_tests::netlink::{Cidr, End};
use lb_tests::netns::Netns;
use lb_tests::patience::patient;
use lb_tests::plane::{Plane, other_than};
use tokio::sync::oneshot;

/// Why these are tests of one plane only.
const OF_THE_WATCHER: &str = "it is of the agent's watcher, which no plane has a part in";

/// Longer than an address takes to be known for this node's alone.
const SOON: Duration = Duration::from_secs(20);

/// Twice the agent's buffer: the kernel counts more than 800 bytes for each of the two notifications.
const MORE_THAN_THE_BUFFER_HOLDS: usize = 20_000;
/// After so many it is looked at whether it is full.
const ROUNDS_AT_ONCE: usize = 500;

/// The agent's watcher, in a namespace.
struct Watcher {
    netns: Arc<Netns>,
    told: Receiver<BTreeSet<IpAddr>>,
    last: BTreeSet<IpAddr>,
    /// Blocks the watcher for as long as it takes to receive from this.
    blocks: Sender<Receiver<()>>,
    stop: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Watcher {
    fn start(name: &str) -> Self {
        Self::inside(Arc::new(Netns::new(name).unwrap()))
    }

    fn inside(netns: Arc<Netns>) -> Self {
        let (sender, told) = channel();
        let (blocks, blocked) = channel();
        let (stop, stopped) = oneshot::channel();
        let inside = netns.clone();
        let thread = spawn(move || inside.run(move || follow(&sender, &blocked, stopped)).unwrap());
        Self {
            netns,
            told,
            last: BTreeSet::new(),
            blocks,
            stop: Some((stop, thread)),
        }
    }

    /// Makes a pair of links, up: one here and one there. Returns the index of the one here.
    fn link_to(&self, name: &str, there: &Netns) -> u32 {
        let peer = End { netns: there, name };
        self.netns.netlink().unwrap().add_veth(name, peer, 1500).unwrap();
        for netns in [there, &self.netns] {
            let netlink = netns.netlink().unwrap();
            netlink.up(netlink.link(name).unwrap().index).unwrap();
        }
        self.netns.netlink().unwrap().link(name).unwrap().index
    }

    fn add(&self, link: u32, address: &str) {
        let netlink = self.netns.netlink().unwrap();
        netlink.add_address(link, Cidr::host(ip(address))).unwrap();
    }

    fn remove(&self, link: u32, address: &str) {
        let netlink = self.netns.netlink().unwrap();
        netlink.remove_address(link, Cidr::host(ip(address))).unwrap();
    }

    #[track_caller]
    fn becomes(&mut self, good: impl Fn(&BTreeSet<IpAddr>) -> bool) {
        let until = Instant::now() + patient(SOON);
        while !good(&self.last) {
            let left = until.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(addresses) => self.last = addresses,
                Err(error) => panic!("{error}; the last were {:?}", self.last),
            }
        }
    }

    /// These, loopback's, and link-local ones, which every link has.
    #[track_caller]
    fn become_exactly(&mut self, addresses: &[&str]) {
        let expected: BTreeSet<IpAddr> = ["127.0.0.1", "::1"].iter().chain(addresses).map(|a| ip(a)).collect();
        self.becomes(|known| {
            let others = known.iter().copied().filter(|address| !is_link_local(*address));
            others.collect::<BTreeSet<_>>() == expected
        });
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.stop.take() {
            let _ = stop.send(());
            // If it has panicked, that has been said.
            let _ = thread.join();
        }
    }
}

fn follow(told: &Sender<BTreeSet<IpAddr>>, blocked: &Receiver<Receiver<()>>, stop: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut addresses, _watcher) = addresses::watch();
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                changed = addresses.changed() => {
                    changed.unwrap();
                    let known = addresses.borrow_and_update().clone();
                    // Nobody asks any more, when a test ends.
                    let _ = told.send(known.unwrap());
                }
                () = tokio::time::sleep(Duration::from_millis(10)) => {
                    if let Ok(block) = blocked.try_recv() {
                        // The watcher is on this thread too. It ends as well if the test fails.
                        let _ = block.recv();
                    }
                }
                _ = &mut stop => return,
            }
        }
    });
}

fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[test]
fn they_come_and_go_with_their_links() {
    if other_than(Plane::Ebpf, OF_THE_WATCHER) {
        return;
    }
    let mut watcher = Watcher::start("node");
    let elsewhere = Netns::new("elsewhere").unwrap();
    watcher.become_exactly(&[]);
    assert!(!watcher.last.iter().any(|address| is_link_local(*address)));

    let link = watcher.link_to("veth0", &elsewhere);
    watcher.becomes(|known| known.iter().any(|address| is_link_local(*address)));
    watcher.add(link, "10.0.0.1");
    watcher.add(link, "10.0.0.2");
    watcher.add(link, "fd00::1");
    watcher.become_exactly(&["10.0.0.1", "10.0.0.2", "fd00::1"]);
    watcher.remove(link, "10.0.0.1");
    watcher.become_exactly(&["10.0.0.2", "fd00::1"]);

    watcher.netns.netlink().unwrap().remove(link).unwrap();
    watcher.become_exactly(&[]);
    watcher.becomes(|known| known.len() == 2);
}

#[test]
fn one_that_two_links_have_goes_with_the_second() {
    if other_than(Plane::Ebpf, OF_THE_WATCHER) {
        return;
    }
    let mut watcher = Watcher::start("node");
    let elsewhere = Netns::new("elsewhere").unwrap();
    let links = ["veth0", "veth1"].map(|name| watcher.link_to(name, &elsewhere));
    for link in links {
        watcher.add(link, "10.0.0.1");
    }
    watcher.become_exactly(&["10.0.0.1"]);
    watcher.remove(links[0], "10.0.0.1");
    // What comes later is known, and it is still there.
    watcher.add(links[0], "10.0.0.2");
    watcher.become_exactly(&["10.0.0.1", "10.0.0.2"]);
    watcher.remove(links[1], "10.0.0.1");
    watcher.become_exactly(&["10.0.0.2"]);
}

/// By its name: these are no dummy links, which not every kernel has.
#[test]
fn those_of_services_are_not_the_nodes() {
    for name in ["lb-ipvs0", "kube-ipvs0"] {
        let mut watcher = Watcher::start("node");
        let elsewhere = Netns::new("elsewhere").unwrap();
        let link = watcher.link_to("veth0", &elsewhere);
        watcher.add(link, "10.0.0.1");
        watcher.become_exactly(&["10.0.0.1"]);
        let services = watcher.link_to(name, &elsewhere);
        watcher.add(services, "10.96.0.1");
        watcher.add(services, "fd00:96::1");
        // What comes later is known, and these are not.
        watcher.add(link, "10.0.0.2");
        watcher.become_exactly(&["10.0.0.1", "10.0.0.2"]);
        let mut told = watcher.told.try_iter();
        assert!(!told.any(|known| known.contains(&ip("10.96.0.1"))), "{name}");

        // Neither are they to one who finds them there.
        let mut found = Watcher::inside(watcher.netns.clone());
        found.become_exactly(&["10.0.0.1", "10.0.0.2"]);
    }
}

#[test]
fn one_that_another_host_has_is_not_this_nodes() {
    if other_than(Plane::Ebpf, OF_THE_WATCHER) {
        return;
    }
    let (mut here, mut there) = (Watcher::start("here"), Watcher::start("there"));
    let link = here.link_to("veth0", &there.netns);
    let peer = there.netns.netlink().unwrap().link("veth0").unwrap().index;
    there.add(peer, "fd00::1");
    there.become_exactly(&["fd00::1"]);
    here.add(link, "fd00::1");
    here.add(link, "fd00::2");
    here.become_exactly(&["fd00::2"]);
    // Longer than the kernel waits for an objection.
    sleep(Duration::from_secs(3));
    here.become_exactly(&["fd00::2"]);
    let told_since: Vec<_> = here.told.try_iter().collect();
    assert!(
        !told_since.iter().any(|known| known.contains(&ip("fd00::1"))),
        "{told_since:?}"
    );
}

/// How many notifications the kernel has thrown away in the watcher's namespace.
fn lost(netns: &Netns) -> u64 {
    let table = netns
        .run(|| fs::read_to_string("/proc/thread-self/net/netlink"))
        .unwrap()
        .unwrap();
    let drops = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(8));
    drops.map(|drops| drops.parse::<u64>().unwrap()).sum()
}

#[test]
fn what_is_told_while_nobody_listens_is_asked_for() {
    if other_than(Plane::Ebpf, OF_THE_WATCHER) {
        return;
    }
    let mut watcher = Watcher::start("node");
    let lo = watcher.netns.netlink().unwrap().link("lo").unwrap().index;
    watcher.add(lo, "10.0.0.1");
    watcher.become_exactly(&["10.0.0.1"]);

    let (resume, block) = channel();
    watcher.blocks.send(block).unwrap();
    let mut rounds = 0;
    while lost(&watcher.netns) == 0 {
        assert!(rounds < MORE_THAN_THE_BUFFER_HOLDS, "nothing was lost");
        for _ in 0..ROUNDS_AT_ONCE {
            watcher.add(lo, "10.0.0.2");
            watcher.remove(lo, "10.0.0.2");
        }
        rounds += ROUNDS_AT_ONCE;
    }
    watcher.remove(lo, "10.0.0.1");
    watcher.add(lo, "10.0.0.3");
    resume.send(()).unwrap();
    watcher.become_exactly(&["10.0.0.3"]);
}
