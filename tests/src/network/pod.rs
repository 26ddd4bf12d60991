//! A pod: a namespace with one link to its node.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Result;
use netlink_packet_route::link::NetkitMode;

use super::node::{Node, default_routes};
use super::{add_addresses, namespace, plan};
use crate::cgroup::Cgroup;
use crate::client::Client;
use crate::ethtool;
use crate::netlink::{Cidr, End, Link, Mac, Route};
use crate::netns::Netns;
use crate::place::HostProcess;
use crate::server::Server;
use crate::sniffer::Sniffer;

/// How a pod hangs on its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attachment {
    /// Its link is a port of a bridge which has the subnet of the pods (kindnet, flannel, most CNI plugins).
    Bridge,
    /// Its link is its own, and the node has a route to its address (Calico, cloud providers).
    Veth,
    /// The same with links made for pods, in this mode (Cilium).
    Netkit(NetkitMode),
}

/// A pod. Dropping it removes it and its link.
#[derive(Debug)]
pub struct Pod {
    name: String,
    node: String,
    attachment: Attachment,
    addresses: [IpAddr; 2],
    sniffer: Option<Sniffer>,
    netns: Arc<Netns>,
    link: Link,
    host_link: Link,
    host: Arc<Netns>,
}

impl Pod {
    pub(super) fn make(node: &Node, name: &str, number: u8, attachment: Attachment) -> Result<Self> {
        let netns = namespace(name)?;
        let host_name = match attachment {
            Attachment::Bridge => format!("br{number}"),
            Attachment::Veth | Attachment::Netkit(_) => format!("pod{number}"),
        };
        let host = node.netns().netlink()?;
        let end = End {
            netns: &netns,
            name: plan::UPLINK,
        };
        match attachment {
            Attachment::Bridge | Attachment::Veth => host.add_veth(&host_name, end, plan::POD_MTU)?,
            Attachment::Netkit(mode) => host.add_netkit(&host_name, end, plan::POD_MTU, mode)?,
        }
        let offload = node.options().checksum_offload;
        ethtool::set_tx_checksum(&netns, plan::UPLINK, offload)?;
        ethtool::set_tx_checksum(node.netns(), &host_name, offload)?;

        let inside = netns.netlink()?;
        let link = inside.link(plan::UPLINK)?;
        let host_link = host.link(&host_name)?;
        inside.up(link.index)?;
        let addresses = match attachment {
            Attachment::Bridge => plan::bridge_pod(node.number(), number),
            Attachment::Veth | Attachment::Netkit(_) => plan::veth_pod(node.number(), number),
        };
        let pod = Self {
            name: name.to_owned(),
            node: node.name().to_owned(),
            attachment,
            addresses,
            sniffer: node.options().sniffer(&netns, &link)?,
            netns: Arc::new(netns),
            link,
            host_link,
            host: Arc::clone(node.netns()),
        };
        match attachment {
            Attachment::Bridge => pod.attach_to_bridge(node)?,
            Attachment::Veth | Attachment::Netkit(_) => pod.attach_by_route(node)?,
        }
        Ok(pod)
    }

    fn attach_to_bridge(&self, node: &Node) -> Result<()> {
        let host = node.netns().netlink()?;
        host.set_controller(self.host_link.index, node.bridge().index)?;
        if node.options().hairpin_mode {
            host.set_hairpin(self.host_link.index)?;
        }
        host.up(self.host_link.index)?;
        let subnets = plan::bridge_cidrs(node.number());
        let own = self.addresses.into_iter().zip(subnets);
        add_addresses(
            &self.netns,
            &self.link,
            own.map(|(address, subnet)| Cidr::new(address, subnet.length)),
        )?;
        self.add_default_routes(subnets.map(|subnet| subnet.address), false)
    }

    fn attach_by_route(&self, node: &Node) -> Result<()> {
        let host = node.netns().netlink()?;
        host.up(self.host_link.index)?;
        add_addresses(&self.netns, &self.link, self.addresses.map(Cidr::host))?;
        for address in self.addresses {
            let to = Cidr::host(address);
            host.add_route(Route {
                to,
                via: None,
                link: self.host_link.index,
                onlink: false,
            })?;
        }
        // The next hop is no address of anybody; only its Ethernet address matters.
        for gateway in plan::VETH_GATEWAYS {
            self.netns
                .netlink()?
                .add_neighbour(self.link.index, gateway, self.host_link.mac)?;
        }
        self.add_default_routes(plan::VETH_GATEWAYS, true)
    }

    fn add_default_routes(&self, via: [IpAddr; 2], onlink: bool) -> Result<()> {
        for (to, via) in default_routes(via) {
            let route = Route {
                to,
                via: Some(via),
                link: self.link.index,
                onlink,
            };
            self.netns.netlink()?.add_route(route)?;
        }
        Ok(())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// How it hangs on its node.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        self.attachment
    }

    /// Its addresses, IPv4 first.
    #[must_use]
    pub fn addresses(&self) -> [IpAddr; 2] {
        self.addresses
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

    /// Its end of its link.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The node's end of its link.
    #[must_use]
    pub fn host_link(&self) -> &Link {
        &self.host_link
    }

    /// The Ethernet address that it sends to what is not on its link: the bridge's, or its node's end of the link.
    pub fn gateway_mac(&self, node: &Node) -> Result<Mac> {
        match self.attachment {
            Attachment::Veth | Attachment::Netkit(_) => Ok(self.host_link.mac),
            // A bridge takes over an address of its ports as they come.
            Attachment::Bridge => Ok(node.netns().netlink()?.link(plan::BRIDGE)?.mac),
        }
    }

    /// A client there.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(&self.netns) as _)
    }

    /// A process of the pod in a control group, whose sockets programs for sockets see: a client, that is.
    pub fn process(&self, cgroup: &Cgroup) -> Result<Client> {
        let process = HostProcess::start(&self.netns, cgroup)?;
        Ok(Client::new(Arc::new(process)))
    }

    /// Starts a server there that goes by the pod's name.
    pub fn serve(&self, port: u16) -> Result<Server> {
        Server::start(&self.netns, self.name.clone(), port)
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Sockets may hold the namespace for a while yet; the link is to go now, as when a pod is deleted.
        let removed = self.host.netlink().and_then(|host| host.remove(self.host_link.index));
        if let Err(error) = removed {
            eprintln!("lb-tests: removing the link of the pod {}: {error:#}", self.name);
        }
    }
}
