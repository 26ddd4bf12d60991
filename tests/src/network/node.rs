//! A node: a namespace with an uplink, a bridge, a tunnel, and what its agent needs.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result, bail};

use super::plan;
use super::pod::{Attachment, Pod};
use super::{Options, Switch, add_addresses, namespace};
use crate::bpffs::Bpffs;
use crate::cgroup::Cgroup;
use crate::client::Client;
use crate::ethtool;
use crate::netlink::{Cidr, Link, Route};
use crate::netns::Netns;
use crate::owner::Folder;
use crate::place::HostProcess;

/// A node.
#[derive(Debug)]
pub struct Node {
    number: u8,
    name: String,
    // Processes are in here; they end before the namespace goes.
    cgroup: Cgroup,
    bpffs: Bpffs,
    run_dir: Folder,
    netns: Arc<Netns>,
    uplink: Link,
    bridge: Link,
    options: Options,
    next_pod: AtomicU8,
}

impl Node {
    pub(super) fn make(number: u8, switch: &Switch, options: Options) -> Result<Self> {
        let name = format!("node{number}");
        let netns = namespace(&name)?;
        // Before there are links: they take their settings from these.
        for scope in ["all", "default"] {
            netns.set_sysctl(&format!("ipv4.conf.{scope}.rp_filter"), &options.rp_filter.to_string())?;
            netns.set_sysctl(&format!("ipv6.conf.{scope}.forwarding"), "1")?;
        }
        netns.set_sysctl("ipv4.ip_forward", "1")?;
        for family in ["iptables", "ip6tables"] {
            let value = if options.bridge_netfilter { "1" } else { "0" };
            netns.set_sysctl(&format!("bridge.bridge-nf-call-{family}"), value)?;
        }

        let addresses = plan::node_addresses(number);
        let uplink = switch.plug(
            &netns,
            &name,
            [Cidr::new(addresses[0], 24), Cidr::new(addresses[1], 64)],
        )?;
        let netlink = netns.netlink()?;
        for (to, via) in default_routes([plan::SWITCH_V4.into(), plan::SWITCH_V6.into()]) {
            netlink.add_route(Route {
                to,
                via: Some(via),
                link: uplink.index,
                onlink: false,
            })?;
        }
        let bridge = netlink.add_bridge(plan::BRIDGE, plan::POD_MTU)?;
        add_addresses(&netns, &bridge, plan::bridge_cidrs(number))?;
        ethtool::set_tx_checksum(&netns, plan::BRIDGE, options.checksum_offload)?;
        Ok(Self {
            number,
            name,
            cgroup: Cgroup::new()?,
            bpffs: Bpffs::new()?,
            run_dir: Folder::new()?,
            netns: Arc::new(netns),
            uplink,
            bridge,
            options,
            next_pod: AtomicU8::new(1),
        })
    }

    /// Lets pods here reach those of the other node.
    pub(super) fn add_tunnel(&self, other: &Self) -> Result<()> {
        let netlink = self.netns.netlink()?;
        let ([IpAddr::V4(local), _], [IpAddr::V4(remote), _]) = (self.addresses(), other.addresses()) else {
            bail!("the first address of a node is an IPv4 address");
        };
        let link = netlink.add_vxlan(plan::TUNNEL, self.uplink.index, (local, remote), plan::POD_MTU)?;
        let own = plan::tunnel_addresses(self.number);
        add_addresses(&self.netns, &link, [Cidr::new(own[0], 24), Cidr::new(own[1], 64)])?;
        ethtool::set_tx_checksum(&self.netns, plan::TUNNEL, self.options.checksum_offload)?;
        let theirs = plan::pod_cidrs(other.number)
            .into_iter()
            .zip(plan::tunnel_addresses(other.number));
        for (to, via) in theirs {
            netlink.add_route(Route {
                to,
                via: Some(via),
                link: link.index,
                onlink: false,
            })?;
        }
        Ok(())
    }

    /// Makes a pod. It is gone when it is dropped.
    pub fn add_pod(&self, name: &str, attachment: Attachment) -> Result<Pod> {
        let number = self.next_pod.fetch_add(1, Ordering::Relaxed);
        if number > 100 {
            bail!("{} has no address left for the pod {name}", self.name);
        }
        Pod::make(self, name, number, attachment).with_context(|| format!("making the pod {name} on {}", self.name))
    }

    /// 1 or 2.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Its name, as in the object Node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    /// The control group of its processes.
    #[must_use]
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// The folder of its agent's own files.
    #[must_use]
    pub fn run_dir(&self) -> &Path {
        self.run_dir.path()
    }

    /// The BPF file system of its agent.
    #[must_use]
    pub fn bpffs(&self) -> &Bpffs {
        &self.bpffs
    }

    /// Its link to the switch.
    #[must_use]
    pub fn uplink(&self) -> &Link {
        &self.uplink
    }

    /// The bridge of its pods.
    #[must_use]
    pub fn bridge(&self) -> &Link {
        &self.bridge
    }

    /// Its addresses, IPv4 first.
    #[must_use]
    pub fn addresses(&self) -> [IpAddr; 2] {
        plan::node_addresses(self.number)
    }

    /// Whether it has this address, on any link.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        let bridge = plan::bridge_cidrs(self.number).map(|cidr| cidr.address);
        [self.addresses(), plan::tunnel_addresses(self.number), bridge]
            .iter()
            .flatten()
            .any(|own| *own == address)
    }

    /// A process of the node, as a client.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::new(Arc::new(self.process()?)))
    }

    /// A process of the node.
    pub fn process(&self) -> Result<HostProcess> {
        HostProcess::start(&self.netns, &self.cgroup)
    }

    pub(super) fn options(&self) -> Options {
        self.options
    }
}

/// "Everything, by way of this one", for each of the two.
pub(super) fn default_routes(via: [IpAddr; 2]) -> impl Iterator<Item = (Cidr, IpAddr)> {
    let all = [Cidr::new([0, 0, 0, 0], 0), Cidr::new([0_u16; 8], 0)];
    all.into_iter().zip(via)
}
