//! The node's link to the outside, and a client there.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context as _, Result};
use lb_tests::netlink::{Cidr, End, Route};
use lb_tests::netns::Netns;
use nix::mount::{MsFlags, mount};

/// The node's address, and that of the API server.
pub(super) const NODE_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The node's other address.
pub(super) const NODE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2);
/// The client's.
const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
/// What a load balancer, or somebody's router, would bring to the node: the addresses in the manifests are of these.
const BROUGHT: [(IpAddr, u8); 2] = [
    (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0)), 24),
    (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0)), 32),
];
const LINK: &str = "eth0";
const MTU: u32 = 1500;

/// The client's namespace, which the sandbox keeps.
const OUTSIDE: &str = "/run/netns/outside";

/// Makes both. This process is in the namespace of the node.
pub(super) fn make() -> Result<()> {
    let (node, outside) = (Netns::current()?, Netns::new("outside")?);
    for (key, value) in [("ipv4.ip_forward", "1"), ("ipv6.conf.all.forwarding", "1")] {
        node.set_sysctl(key, value)?;
    }
    let loopback = node.netlink()?.link("lo")?;
    node.netlink()?.up(loopback.index)?;
    let end = End {
        netns: &outside,
        name: LINK,
    };
    node.netlink()?.add_veth(LINK, end, MTU)?;
    let all = [
        (IpAddr::from(Ipv4Addr::UNSPECIFIED), 0),
        (Ipv6Addr::UNSPECIFIED.into(), 0),
    ];
    let directions: [(_, [IpAddr; 2], [IpAddr; 2], _); 2] = [
        (
            &node,
            [NODE_V4.into(), NODE_V6.into()],
            [CLIENT_V4.into(), CLIENT_V6.into()],
            all,
        ),
        (
            &outside,
            [CLIENT_V4.into(), CLIENT_V6.into()],
            [NODE_V4.into(), NODE_V6.into()],
            BROUGHT,
        ),
    ];
    for (netns, own, other, to) in directions {
        netns.set_sysctl(&format!("ipv6.conf.{LINK}.accept_dad"), "0")?;
        let netlink = netns.netlink()?;
        let link = netlink.link(LINK)?.index;
        netlink.up(link)?;
        for (own, length) in own.into_iter().zip([24, 64]) {
            netlink.add_address(link, Cidr::new(own, length))?;
        }
        for (other, (to, length)) in other.into_iter().zip(to) {
            netlink.add_route(Route {
                to: Cidr::new(to, length),
                via: Some(other),
                link,
                onlink: false,
            })?;
        }
    }
    keep(&outside)
}

fn keep(outside: &Netns) -> Result<()> {
    let file = Path::new(OUTSIDE);
    let none = None::<&str>;
    fs::create_dir_all("/run/netns")
        .and_then(|()| fs::write(file, ""))
        .with_context(|| format!("making {OUTSIDE}"))?;
    mount(Some(&outside.path()), file, none, MsFlags::MS_BIND, none).with_context(|| format!("mounting {OUTSIDE}"))
}

/// The client.
pub(super) fn outside() -> Result<Netns> {
    Netns::open(Path::new(OUTSIDE), "outside")
}

/// The namespace of the pod with this address.
pub(super) fn pod(address: IpAddr) -> Result<Netns> {
    for entry in fs::read_dir("/run/netns").context("reading /run/netns")? {
        let netns = Netns::open(&entry.context("reading /run/netns")?.path(), "pod")?;
        // Only who has the address can bind to it.
        if netns.run(|| std::net::UdpSocket::bind((address, 0)))?.is_ok() {
            return Ok(netns);
        }
    }
    anyhow::bail!("no pod has the address {address}")
}
