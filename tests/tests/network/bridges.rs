//! Pods' links in bridges, as the agent is told of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use lb_agent::kernel::links::{self, Bridge, LinkEvent, LinkRules, Notice};
use lb_tests::netlink::End;
use lb_tests::netns::Netns;
use lb_tests::patience::patient;
use tokio::sync::{oneshot, watch};

const SOON: Duration = Duration::from_secs(20);

/// The agent's watcher of links, in a namespace.
struct Watcher {
    told: Receiver<LinkEvent>,
    stop: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Watcher {
    fn start(netns: &Arc<Netns>, rules: LinkRules) -> Self {
        let (sender, told) = channel();
        let (stop, stopped) = oneshot::channel();
        let inside = netns.clone();
        let thread = spawn(move || inside.run(move || follow(rules, &sender, stopped)).unwrap());
        Self {
            told,
            stop: Some((stop, thread)),
        }
    }

    /// Waits until a link is told with this bridge.
    #[track_caller]
    fn is_in(&self, name: &str, bridge: Option<Bridge>) {
        let until = Instant::now() + patient(SOON);
        let mut last = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(LinkEvent::Is(link)) if link.name == name => {
                    if link.bridge == bridge {
                        return;
                    }
                    last = Some(link);
                }
                Ok(_) => {}
                Err(error) => panic!("{error}: {name} in {bridge:?}; the last was {last:?}"),
            }
        }
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

fn follow(rules: LinkRules, told: &Sender<LinkEvent>, stop: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_node, node_addresses) = watch::channel(Some(BTreeSet::new()));
        let (mut notices, _watcher) = links::watch(rules, node_addresses);
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                notice = notices.recv() => if let Notice::Link(event) = notice.unwrap() {
                    // Nobody asks any more, when a test ends.
                    let _ = told.send(event);
                },
                _ = &mut stop => return,
            }
        }
    });
}

/// Makes a pair of links, up. Returns the index of the one here.
fn pair(here: &Netns, there: &Netns, name: &str) -> u32 {
    let netlink = here.netlink().unwrap();
    netlink.add_veth(name, End { netns: there, name }, 1500).unwrap();
    let index = netlink.link(name).unwrap().index;
    netlink.up(index).unwrap();
    index
}

#[test]
fn a_pods_link_is_told_with_its_bridge_and_whether_others_come_in_there() {
    let (node, elsewhere) = (Arc::new(Netns::new("node").unwrap()), Netns::new("elsewhere").unwrap());
    let rules = LinkRules::parse(&["eth1=uplink"]).unwrap();
    let watcher = Watcher::start(&node, rules);
    let netlink = node.netlink().unwrap();
    let pod = pair(&node, &elsewhere, "pod1");
    watcher.is_in("pod1", None);
    let bridge = netlink.add_bridge("br0", 1500).unwrap();
    netlink.set_controller(pod, bridge.index).unwrap();
    let in_bridge = |has_only_pods| {
        Some(Bridge {
            index: bridge.index,
            has_only_pods,
        })
    };
    watcher.is_in("pod1", in_bridge(true));
    let uplink = pair(&node, &elsewhere, "eth1");
    netlink.set_controller(uplink, bridge.index).unwrap();
    watcher.is_in("pod1", in_bridge(false));
    // One who comes later is told the same.
    let later = Watcher::start(&node, LinkRules::parse(&["eth1=uplink"]).unwrap());
    later.is_in("pod1", in_bridge(false));
    netlink.remove(uplink).unwrap();
    watcher.is_in("pod1", in_bridge(true));
    later.is_in("pod1", in_bridge(true));
    netlink.remove(bridge.index).unwrap();
    watcher.is_in("pod1", None);
}
