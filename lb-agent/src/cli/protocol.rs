//! Protocols by their names.

use lb_common::net::{SCTP, TCP, UDP};

/// IANA protocol numbers of what has no ports.
pub(super) const ICMP: u8 = 1;
/// That of IPv6.
pub(super) const ICMPV6: u8 = 58;

/// The name of a protocol, or its IANA number where it has none here.
pub(super) fn name(number: u8) -> String {
    let name = match number {
        TCP => "tcp",
        UDP => "udp",
        SCTP => "sctp",
        ICMP => "icmp",
        ICMPV6 => "icmpv6",
        other => return other.to_string(),
    };
    name.to_owned()
}
