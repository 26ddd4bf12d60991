//! Offloads of links, which the program ethtool sets elsewhere.

use std::io;
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, ensure};
use socket2::{Domain, Socket, Type};

use crate::netns::Netns;

// From linux/sockios.h and linux/ethtool.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGSO: u32 = 0x23;
const ETHTOOL_GGRO: u32 = 0x2b;

/// `struct ethtool_value`
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Says whether a link computes checksums of what is sent through it, so that the kernel leaves it to it.
///
/// A virtual link computes none: the packet arrives without a checksum, marked as good. Whoever rewrites it wrongly on
/// the way goes unnoticed. With the offload off, the sender's kernel computes the checksum, and receivers verify it.
pub fn set_tx_checksum(netns: &Netns, link: &str, on: bool) -> Result<()> {
    let set = || {
        ethtool(link, ETHTOOL_STXCSUM, u32::from(on))?;
        ethtool(link, ETHTOOL_GTXCSUM, 0)
    };
    let now = netns
        .run(set)?
        .with_context(|| format!("setting the transmit checksum offload of {link} in {}", netns.name()))?;
    ensure!(
        (now != 0) == on,
        "the transmit checksum offload of {link} in {} cannot be changed",
        netns.name()
    );
    Ok(())
}

/// Which offloads of a link are on, by the names that the program ethtool has for them.
pub fn offloads(netns: &Netns, link: &str) -> Result<Vec<&'static str>> {
    const ALL: [(&str, u32); 4] = [
        ("tx-checksumming", ETHTOOL_GTXCSUM),
        ("tcp-segmentation-offload", ETHTOOL_GTSO),
        ("generic-segmentation-offload", ETHTOOL_GGSO),
        ("generic-receive-offload", ETHTOOL_GGRO),
    ];
    let ask = || ALL.map(|(name, command)| Ok((name, ethtool(link, command, 0)? != 0)));
    let all: io::Result<Vec<_>> = netns.run(ask)?.into_iter().collect();
    let all = all.with_context(|| format!("reading the offloads of {link} in {}", netns.name()))?;
    Ok(all
        .into_iter()
        .filter(|(_, is_on)| *is_on)
        .map(|(name, _)| name)
        .collect())
}

fn ethtool(link: &str, command: u32, data: u32) -> io::Result<u32> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    let mut value = EthtoolValue { command, data };
    // SAFETY: all fields of the structure may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if link.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request holds a name that ends with zero and a pointer to a structure of this command's kind; both
    // live through the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value.data)
}
