//! What the node can do for this plane.

use std::{io, iter, net::SocketAddr};

use anyhow::Context as _;

use super::{
    IpvsOptions,
    rules::{self, Rules, Table},
};
use crate::{
    desired::Protocol,
    kernel::{
        capabilities,
        dummy::{self, DummyLink},
        ipvs::{Command, Ipvs, Scheduler, ServiceConfig, ServiceKey},
        netns, sysctls,
    },
    plane::probe::{Check, Found},
};

/// Of documentation (RFC 5737, RFC 3849): they are nobody's, and nobody sends to where they are tried.
const SERVICES: [&str; 2] = ["192.0.2.1:80", "[2001:db8::1]:80"];

/// Tries all that [`IpvsPlane::start`](super::IpvsPlane::start) does, in a network namespace that is gone again when
/// this returns. What serves, or runs, is not touched.
#[must_use]
pub fn probe(options: &IpvsOptions) -> Vec<Check> {
    let capabilities = Check::of(
        "capabilities",
        capabilities::check_to_configure().map(|()| Found::good("CAP_NET_ADMIN")),
    );
    let tried = netns::in_new(|| {
        vec![
            Check::of("IPVS", virtual_services(options.scheduler)),
            Check::of("sysctls of IPVS", settings(options)),
            Check::of("nftables", table(options.masquerade_mark)),
            Check::of("dummy link", link()),
        ]
    });
    let tried = tried.unwrap_or_else(|error| in_place(options, &error));
    iter::once(capabilities).chain(tried).collect()
}

/// What can be found out without a namespace to try it in, which takes `CAP_SYS_ADMIN`.
fn in_place(options: &IpvsOptions, error: &io::Error) -> Vec<Check> {
    let version = Ipvs::open().and_then(|mut ipvs| ipvs.version());
    let is_taken = Rules::check(options.masquerade_mark);
    let why = format!("cannot make a network namespace to try it in (CAP_SYS_ADMIN): {error}");
    vec![
        Check::of(
            "IPVS",
            version
                .map(|version| Found::good(format!("version {version}")))
                .map_err(Into::into),
        ),
        Check::of("sysctls of IPVS", settings(options)),
        Check::of(
            "nftables",
            is_taken
                .map(|()| Found::good(format!("would take the table {}", rules::TABLE)))
                .map_err(Into::into),
        ),
        Check::of("dummy link", Ok(Found::Untried { why })),
    ]
}

/// A virtual service of each family.
fn virtual_services(scheduler: Scheduler) -> anyhow::Result<Found> {
    let mut ipvs = Ipvs::open()?;
    for address in SERVICES {
        let address: SocketAddr = address.parse().context("an address of documentation")?;
        let protocol = Protocol::Tcp;
        let key = ServiceKey::Address { protocol, address };
        // Without a destination: that takes a route to it, of which a new namespace has none.
        for answer in ipvs.send(&[Command::AddService(key, ServiceConfig::new(scheduler))])? {
            answer?;
        }
    }
    let version = ipvs.version()?;
    Ok(Found::good(format!(
        "version {version}, scheduler {scheduler}, both families"
    )))
}

fn settings(options: &IpvsOptions) -> anyhow::Result<Found> {
    sysctls::check_ipvs(options.strict_arp)?;
    Ok(Found::good("net.ipv4.vs"))
}

fn table(masquerade_mark: u32) -> anyhow::Result<Found> {
    Rules::adopt(masquerade_mark)?.replace(Table::default())?;
    Ok(Found::good(format!("takes the table {}", rules::TABLE)))
}

fn link() -> anyhow::Result<Found> {
    DummyLink::ensure(dummy::NAME)?;
    Ok(Found::good("the kernel makes one"))
}
