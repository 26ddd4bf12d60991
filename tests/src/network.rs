//! A cluster's network out of namespaces: two nodes, a switch between them, and a client outside.
//!
//! ```text
//!                      switch (172.18.0.1, bridge br0)
//!            ┌───────────────┬───────────────┐
//!          eth0            eth0            eth0
//!   ┌──── node1 ────┐ ┌──── node2 ────┐  outside
//!   │ cni0     vx0 ════════ vx0  cni0 │  172.18.0.100
//!   │ │ │    │      │ │      │   │ │  │
//!   └─┼─┼────┼──────┘ └──────┼───┼─┼──┘
//!   bridge  veth            veth bridge
//!    pods   pods            pods  pods
//! ```
//!
//! Each pod is attached in one of the two ways that plugins know: as a port of a bridge that holds the node's pod
//! subnet, or by a point-to-point link with a route to the pod. Pods reach the other node's through a VXLAN tunnel.
//! Everything has IPv4 and IPv6. Nothing is masqueraded: what a backend sees of its client is the service proxy's
//! doing alone. All of it is in namespaces of its own, so any number of these can stand beside each other.

mod node;
pub mod plan;
mod pod;

pub use node::Node;
pub use pod::{Attachment, Pod};

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};

use crate::client::Client;
use crate::ethtool;
use crate::interrupt::{self, Policy};
use crate::netlink::{Cidr, End, Link, Route};
use crate::netns::{self, Netns};
use crate::sniffer::Sniffer;

/// What can differ between two such networks.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `rp_filter` of the nodes: 0 accepts any source, 1 only one that would be answered by the same link, 2 one that
    /// could be answered at all.
    pub rp_filter: u8,
    /// Whether links leave checksums to each other, as they do unless told otherwise. Then nobody verifies them.
    pub checksum_offload: bool,
    /// Whether the nodes' packet filters see what their bridges pass on (`bridge-nf-call-iptables`), as most
    /// distributions of Kubernetes want it.
    pub bridge_netfilter: bool,
    /// Whether ports of bridges send back out what came in there. Where the packet filters see it, a pod needs that to
    /// reach itself through a Service, which is why plugins set it.
    pub hairpin_mode: bool,
    /// Whether each pod, and the machine outside, verifies what it receives: see [`Sniffer`].
    pub verify_checksums: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // The strictest, as on Red Hat's systems: what passes it passes the others.
            rp_filter: 1,
            checksum_offload: false,
            bridge_netfilter: true,
            hairpin_mode: true,
            verify_checksums: true,
        }
    }
}

impl Options {
    fn sniffer(self, netns: &Netns, link: &Link) -> Result<Option<Sniffer>> {
        let start = || Sniffer::start(netns, link, self.checksum_offload);
        self.verify_checksums.then(start).transpose()
    }
}

/// The network.
#[derive(Debug)]
pub struct Network {
    nodes: [Node; 2],
    outside: Outside,
    switch: Arc<Netns>,
}

/// A machine beside the nodes, that is none of them.
#[derive(Debug)]
pub struct Outside {
    sniffer: Option<Sniffer>,
    netns: Arc<Netns>,
    uplink: Link,
}

impl Network {
    /// Makes one as most tests want it.
    pub fn new() -> Result<Self> {
        Self::with(Options::default())
    }

    /// Makes one.
    pub fn with(options: Options) -> Result<Self> {
        netns::require_root()?;
        interrupt::install(Policy::End)?;
        let switch = Arc::new(Switch::make(options)?);
        let nodes = [Node::make(1, &switch, options)?, Node::make(2, &switch, options)?];
        let outside = Outside::make(&switch, options)?;
        for (node, other) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
            node.add_tunnel(other)?;
        }
        Ok(Self {
            nodes,
            outside,
            switch: Arc::clone(&switch.netns),
        })
    }

    /// Both nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node; 2] {
        &self.nodes
    }

    /// The first node.
    #[must_use]
    pub fn node1(&self) -> &Node {
        &self.nodes[0]
    }

    /// The second node.
    #[must_use]
    pub fn node2(&self) -> &Node {
        &self.nodes[1]
    }

    /// The client outside.
    #[must_use]
    pub fn outside(&self) -> &Outside {
        &self.outside
    }

    /// The switch's namespace, at [`plan::SWITCH_V4`]: a place for what both nodes must reach and is on neither.
    #[must_use]
    pub fn switch(&self) -> &Arc<Netns> {
        &self.switch
    }
}

/// The switch while the network is being built.
#[derive(Debug)]
struct Switch {
    netns: Arc<Netns>,
    bridge: Link,
    options: Options,
}

impl Switch {
    fn make(options: Options) -> Result<Self> {
        let netns = namespace("switch")?;
        let bridge = netns.netlink()?.add_bridge("br0", plan::MTU)?;
        add_addresses(
            &netns,
            &bridge,
            [Cidr::new(plan::SWITCH_V4, 24), Cidr::new(plan::SWITCH_V6, 64)],
        )?;
        let switch = Self {
            netns: Arc::new(netns),
            bridge,
            options,
        };
        switch.offload("br0")?;
        Ok(switch)
    }

    fn offload(&self, link: &str) -> Result<()> {
        ethtool::set_tx_checksum(&self.netns, link, self.options.checksum_offload)
    }

    /// Gives a namespace the link `eth0` with these addresses, plugged into the switch.
    fn plug(&self, netns: &Netns, port: &str, addresses: [Cidr; 2]) -> Result<Link> {
        let own = self.netns.netlink()?;
        own.add_veth(
            port,
            End {
                netns,
                name: plan::UPLINK,
            },
            plan::MTU,
        )?;
        let link = own.link(port)?;
        own.set_controller(link.index, self.bridge.index)?;
        own.up(link.index)?;
        self.offload(port)?;

        ethtool::set_tx_checksum(netns, plan::UPLINK, self.options.checksum_offload)?;
        let theirs = netns.netlink()?;
        let uplink = theirs.link(plan::UPLINK)?;
        theirs.up(uplink.index)?;
        add_addresses(netns, &uplink, addresses)?;
        Ok(uplink)
    }
}

impl Outside {
    fn make(switch: &Switch, options: Options) -> Result<Self> {
        let netns = namespace("outside")?;
        let addresses = [Cidr::new(plan::OUTSIDE_V4, 24), Cidr::new(plan::OUTSIDE_V6, 64)];
        let uplink = switch.plug(&netns, "outside", addresses)?;
        ethtool::set_tx_checksum(&netns, plan::UPLINK, options.checksum_offload)?;
        // Cluster addresses by way of the first node, as a router beside a cluster may be told.
        for (to, via) in plan::SERVICE_CIDRS.into_iter().zip(plan::node_addresses(1)) {
            netns.netlink()?.add_route(Route {
                to,
                via: Some(via),
                link: uplink.index,
                onlink: false,
            })?;
        }
        Ok(Self {
            sniffer: options.sniffer(&netns, &uplink)?,
            netns: Arc::new(netns),
            uplink,
        })
    }

    /// Who verifies what it receives.
    #[must_use]
    pub fn sniffer(&self) -> Option<&Sniffer> {
        self.sniffer.as_ref()
    }

    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    /// Its link to the switch.
    #[must_use]
    pub fn uplink(&self) -> &Link {
        &self.uplink
    }

    /// Its addresses, IPv4 first.
    #[must_use]
    pub fn addresses(&self) -> [IpAddr; 2] {
        [plan::OUTSIDE_V4.into(), plan::OUTSIDE_V6.into()]
    }

    /// A client there.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.netns) as _)
    }
}

/// A namespace whose IPv6 addresses are good at once.
fn namespace(name: impl Into<String>) -> Result<Netns> {
    let netns = Netns::new(name)?;
    // Nobody else can have these addresses, and looking for them (DAD) takes more than a second.
    for scope in ["all", "default"] {
        netns.set_sysctl(&format!("ipv6.conf.{scope}.accept_dad"), "0")?;
        netns.set_sysctl(&format!("ipv6.conf.{scope}.accept_ra"), "0")?;
    }
    Ok(netns)
}

fn add_addresses(netns: &Netns, link: &Link, addresses: impl IntoIterator<Item = Cidr>) -> Result<()> {
    for address in addresses {
        netns
            .netlink()?
            .add_address(link.index, address)
            .with_context(|| format!("in {}", netns.name()))?;
    }
    Ok(())
}
