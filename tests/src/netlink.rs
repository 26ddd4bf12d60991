//! Links, addresses, routes and neighbours of one network namespace.
//!
//! Thin and blocking, over the crate rtnetlink. The netlink socket belongs to the namespace it was opened in, so a
//! [`Netlink`] can be used from any thread.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd as _};

use anyhow::{Context as _, Result, anyhow};
use futures::TryStreamExt as _;
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::link::{InfoData, InfoKind, InfoNetkit, InfoVeth, LinkAttribute, LinkMessage, NetkitMode};
use netlink_packet_route::neighbour::NeighbourState;
use netlink_packet_route::route::{RouteScope, RouteType};
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkNetkit, LinkUnspec, LinkVeth, LinkVxlan,
    RouteMessageBuilder,
};

use crate::netns::Netns;
use crate::runtime::runtime;

/// An address and the length of its network's prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// How many leading bits name the network.
    pub length: u8,
}

impl Cidr {
    /// `address/length`.
    pub fn new(address: impl Into<IpAddr>, length: u8) -> Self {
        Self {
            address: address.into(),
            length,
        }
    }

    /// The address alone: `/32` or `/128`.
    pub fn host(address: impl Into<IpAddr>) -> Self {
        let address = address.into();
        Self::new(address, if address.is_ipv4() { 32 } else { 128 })
    }

    /// Whether an address is in the network. One of the other family never is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let same_bits = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (own.to_bits() ^ other.to_bits()).leading_zeros(),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits() ^ other.to_bits()).leading_zeros(),
            _ => return false,
        };
        same_bits >= u32::from(self.length)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A link that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its Ethernet address; zeros if it has none.
    pub mac: Mac,
    /// The number of the link it belongs to, as a port to its bridge.
    pub controller: Option<u32>,
}

/// One end of a pair of virtual Ethernet links.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Where it is.
    pub netns: &'a Netns,
    /// What it is called there, in at most 15 bytes.
    pub name: &'a str,
}

/// A route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// What it leads to.
    pub to: Cidr,
    /// The next hop; without one, `to` is on the link itself.
    pub via: Option<IpAddr>,
    /// Number of the link.
    pub link: u32,
    /// Whether the next hop is to be believed to be on the link.
    pub onlink: bool,
}

/// The namespace's side of netlink.
#[derive(Debug)]
pub struct Netlink {
    handle: Handle,
}

impl Netlink {
    /// Opens it for the namespace of the calling thread.
    pub(crate) fn open() -> Result<Self> {
        let guard = runtime().enter();
        let (connection, handle, _) = rtnetlink::new_connection().context("opening a netlink socket")?;
        drop(guard);
        runtime().spawn(connection);
        Ok(Self { handle })
    }

    /// Makes a pair of virtual Ethernet links, both ends at their place, both down.
    pub fn add_veth(&self, here: &str, peer: End<'_>, mtu: u32) -> Result<()> {
        let peer_message = LinkUnspec::new_with_name(peer.name)
            .setns_by_fd(peer.netns.as_fd().as_raw_fd())
            .mtu(mtu)
            .build();
        let message = LinkVeth::new(here, peer.name)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer_message)))
            .mtu(mtu)
            .build();
        let added = runtime().block_on(self.handle.link().add(message).execute());
        added.with_context(|| {
            format!(
                "adding the veth links {here} and {} in {}",
                peer.name,
                peer.netns.name()
            )
        })
    }

    /// Makes a pair of netkit links, both ends at their place, both down. In the mode L3 they have no Ethernet addresses.
    pub fn add_netkit(&self, here: &str, peer: End<'_>, mtu: u32, mode: NetkitMode) -> Result<()> {
        let peer_message = LinkUnspec::new_with_name(peer.name)
            .setns_by_fd(peer.netns.as_fd().as_raw_fd())
            .mtu(mtu)
            .build();
        let message = LinkMessageBuilder::<LinkNetkit>::new_with_info_kind(InfoKind::Netkit)
            .name(here.to_owned())
            .set_info_data(InfoData::Netkit(vec![
                InfoNetkit::Mode(mode),
                InfoNetkit::Peer(peer_message),
            ]))
            .mtu(mtu)
            .build();
        let added = runtime().block_on(self.handle.link().add(message).execute());
        added.with_context(|| format!("adding the netkit links {here} and {}", peer.name))
    }

    /// As [`Self::add_veth`], with the end here up, in a group of links that can be removed together, and if so wanted a port of a
    /// bridge.
    pub fn add_veth_in_group(
        &self,
        here: &str,
        peer: End<'_>,
        mtu: u32,
        group: u32,
        bridge: Option<u32>,
    ) -> Result<()> {
        let peer_message = LinkUnspec::new_with_name(peer.name)
            .setns_by_fd(peer.netns.as_fd().as_raw_fd())
            .mtu(mtu)
            .build();
        let mut message = LinkVeth::new(here, peer.name)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer_message)))
            .mtu(mtu)
            .link_group(group)
            .up();
        if let Some(bridge) = bridge {
            message = message.controller(bridge);
        }
        let message = message.build();
        let added = runtime().block_on(self.handle.link().add(message).execute());
        added.with_context(|| format!("adding the veth link {here} to group {group}"))
    }

    /// Removes all links of a group at once.
    pub fn remove_group(&self, group: u32) -> Result<()> {
        let mut request = self.handle.link().del(0);
        request.message_mut().attributes.push(LinkAttribute::Group(group));
        let removed = runtime().block_on(request.execute());
        removed.with_context(|| format!("removing the links of group {group}"))
    }

    /// Makes a bridge, up.
    pub fn add_bridge(&self, name: &str, mtu: u32) -> Result<Link> {
        let message = LinkBridge::new(name).mtu(mtu).up().build();
        runtime()
            .block_on(self.handle.link().add(message).execute())
            .with_context(|| format!("adding the bridge {name}"))?;
        self.link(name)
    }

    /// Makes a VXLAN tunnel over IPv4 with one other end, up.
    pub fn add_vxlan(&self, name: &str, over: u32, ends: (Ipv4Addr, Ipv4Addr), mtu: u32) -> Result<Link> {
        let (local, remote) = ends;
        let message = LinkVxlan::new(name, 42)
            .dev(over)
            .local(local)
            .remote(remote)
            .port(8472)
            .udp_csum(false)
            .mtu(mtu)
            .up()
            .build();
        runtime()
            .block_on(self.handle.link().add(message).execute())
            .with_context(|| format!("adding the tunnel {name} from {local} to {remote}"))?;
        self.link(name)
    }

    /// Sets a link up.
    pub fn up(&self, link: u32) -> Result<()> {
        self.set(LinkUnspec::new_with_index(link).up().build(), "setting up", link)
    }

    /// Sets the largest packet that a link sends, in bytes.
    pub fn set_mtu(&self, link: u32, mtu: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(link).mtu(mtu).build();
        self.set(message, "setting the MTU of", link)
    }

    /// Makes a link a port of a bridge.
    pub fn set_controller(&self, link: u32, bridge: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(link).controller(bridge).build();
        self.set(message, "making a port of a bridge of", link)
    }

    /// Lets a bridge send a frame out by the port that it came in by.
    pub fn set_hairpin(&self, port: u32) -> Result<()> {
        let message = LinkBridgePort::new(port).hairpin(true).build();
        let set = runtime().block_on(self.handle.link().set_port(message).execute());
        set.with_context(|| format!("setting hairpin mode of link {port}"))
    }

    fn set(&self, message: LinkMessage, doing: &str, link: u32) -> Result<()> {
        let set = runtime().block_on(self.handle.link().set(message).execute());
        set.with_context(|| format!("{doing} link {link}"))
    }

    /// Removes a link, and with it its peer.
    pub fn remove(&self, link: u32) -> Result<()> {
        let removed = runtime().block_on(self.handle.link().del(link).execute());
        removed.with_context(|| format!("removing link {link}"))
    }

    /// Adds an address.
    pub fn add_address(&self, link: u32, address: Cidr) -> Result<()> {
        let request = self.handle.address().add(link, address.address, address.length);
        let added = runtime().block_on(request.execute());
        added.with_context(|| format!("adding the address {address} to link {link}"))
    }

    /// Removes an address.
    pub fn remove_address(&self, link: u32, address: Cidr) -> Result<()> {
        let remove = async {
            let mut known = self.handle.address().get().set_link_index_filter(link).execute();
            while let Some(message) = known.try_next().await? {
                let is_it = |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Address(known) if *known == address.address);
                if message.attributes.iter().any(is_it) {
                    self.handle.address().del(message).execute().await?;
                    return Ok(());
                }
            }
            Err(anyhow!("it is not there"))
        };
        let removed = runtime().block_on(remove);
        removed.with_context(|| format!("removing the address {address} from link {link}"))
    }

    /// Adds a route.
    pub fn add_route(&self, route: Route) -> Result<()> {
        let add = || -> Result<()> {
            let mut builder = RouteMessageBuilder::<IpAddr>::new()
                .destination_prefix(route.to.address, route.to.length)?
                .output_interface(route.link);
            builder = match route.via {
                Some(via) => builder.gateway(via)?,
                None => builder.scope(RouteScope::Link),
            };
            if route.onlink {
                builder = builder.onlink();
            }
            Ok(runtime().block_on(self.handle.route().add(builder.build()).execute())?)
        };
        add().with_context(|| format!("adding a route to {} by link {}", route.to, route.link))
    }

    /// Makes every address of a network the namespace's own, on its loopback link.
    pub fn add_local(&self, network: Cidr) -> Result<()> {
        let add = || -> Result<()> {
            let route = RouteMessageBuilder::<IpAddr>::new()
                .destination_prefix(network.address, network.length)?
                .output_interface(self.link("lo")?.index)
                .kind(RouteType::Local)
                .scope(RouteScope::Host)
                .table_id(libc::RT_TABLE_LOCAL.into());
            Ok(runtime().block_on(self.handle.route().add(route.build()).execute())?)
        };
        add().with_context(|| format!("making {network} the namespace's own"))
    }

    /// Adds a neighbour that need not be asked for its Ethernet address.
    pub fn add_neighbour(&self, link: u32, address: IpAddr, mac: Mac) -> Result<()> {
        let request = self
            .handle
            .neighbours()
            .add(link, address)
            .link_layer_address(&mac)
            .state(NeighbourState::Permanent);
        let added = runtime().block_on(request.execute());
        added.with_context(|| format!("adding the neighbour {address} to link {link}"))
    }

    /// The link of this name.
    pub fn link(&self, name: &str) -> Result<Link> {
        let mut answer = self.handle.link().get().match_name(name).execute();
        let found = runtime().block_on(async { answer.try_next().await });
        match found {
            Ok(Some(message)) => Ok(Link::from(message)),
            Ok(None) => Err(anyhow!("there is no link {name}")),
            Err(error) => Err(error).with_context(|| format!("looking for the link {name}")),
        }
    }

    /// How many BPF programs are filters of a link, in both directions together.
    pub fn bpf_filters(&self, link: u32) -> Result<usize> {
        let count = || -> Result<usize> {
            let index = link.cast_signed();
            let of_link = || self.handle.traffic_filter(index).get();
            let mut found = 0;
            for request in [of_link().ingress(), of_link().egress()] {
                let filters: Vec<TcMessage> = runtime().block_on(request.execute().try_collect())?;
                let is_bpf = |filter: &&TcMessage| {
                    // The first of each is the chain that the filters are in.
                    let has_options = |attribute: &TcAttribute| matches!(attribute, TcAttribute::Options(_));
                    filter.attributes.contains(&TcAttribute::Kind("bpf".into()))
                        && filter.attributes.iter().any(has_options)
                };
                found += filters.iter().filter(is_bpf).count();
            }
            Ok(found)
        };
        count().with_context(|| format!("listing the filters of link {link}"))
    }

    /// All links.
    pub fn links(&self) -> Result<Vec<Link>> {
        let answer = self.handle.link().get().execute();
        let messages: Vec<LinkMessage> = runtime().block_on(answer.try_collect()).context("listing the links")?;
        Ok(messages.into_iter().map(Link::from).collect())
    }
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mac: Mac::default(),
            controller: None,
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(bytes) => link.mac = bytes.try_into().unwrap_or_default(),
                LinkAttribute::Controller(index) => link.controller = Some(index),
                _ => {}
            }
        }
        link
    }
}
