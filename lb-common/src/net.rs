//! Addresses and ports as they stand in keys, values and packets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::layout::map_type;

/// IANA protocol number of TCP.
pub const TCP: u8 = 6;
/// IANA protocol number of UDP.
pub const UDP: u8 = 17;
/// IANA protocol number of SCTP.
pub const SCTP: u8 = 132;

/// An IPv4 or IPv6 address, in network byte order. IPv4 is held IPv4-mapped (`::ffff:a.b.c.d`,
/// RFC 4291 2.5.5.2), so that both families share every map and an IPv6 socket that connects to
/// a mapped address finds the IPv4 service.
///
/// Four words and not sixteen bytes: BPF loads and compares an array of bytes one byte at a time.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Address {
    /// The sixteen bytes as four words, each in network byte order.
    pub words: [u32; 4],
}

map_type!(Address: 16 { words @ 0 });

const MAPPED: u32 = 0xffff_u32.to_be();

impl Address {
    /// `0.0.0.0`: in a service key, "any IPv4 address of this node that serves NodePorts".
    pub const ANY_V4: Self = Self::from_v4(0);
    /// `::`: the same for IPv6.
    pub const ANY_V6: Self = Self { words: [0; 4] };

    /// `127.0.0.1`.
    pub const LOOPBACK_V4: Self = Self::from_v4(0x7f00_0001_u32.to_be());
    /// `::1`.
    pub const LOOPBACK_V6: Self = Self {
        words: [0, 0, 0, 1_u32.to_be()],
    };

    /// From an IPv4 address whose four bytes stand in `address` in network byte order.
    #[inline(always)]
    pub const fn from_v4(address: u32) -> Self {
        Self {
            words: [0, 0, MAPPED, address],
        }
    }

    /// From the sixteen bytes of an IPv6 address.
    #[inline(always)]
    pub const fn from_v6(words: [u32; 4]) -> Self {
        Self { words }
    }

    /// The IPv4 address in network byte order, without a look at whether this is one.
    #[inline(always)]
    pub const fn v4(&self) -> u32 {
        self.words[3]
    }

    /// Whether this is an IPv4 address.
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        self.words[0] | self.words[1] | (self.words[2] ^ MAPPED) == 0
    }

    /// Equality in one branch: `==` has one a word, and the verifier follows each.
    #[inline(always)]
    pub const fn same(&self, other: &Self) -> bool {
        let (a, b) = (&self.words, &other.words);
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) == 0
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        let bytes = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let word = |i: usize| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        Self {
            words: [word(0), word(4), word(8), word(12)],
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        if address.is_v4() {
            return Self::V4(Ipv4Addr::from(address.v4().to_ne_bytes()));
        }
        let mut bytes = [0; 16];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(address.words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        Self::V6(Ipv6Addr::from(bytes))
    }
}

/// A TCP or UDP port in network byte order.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Port {
    /// The two bytes as they stand in a packet.
    pub be: u16,
}

map_type!(Port: 2 { be @ 0 });

impl Port {
    /// No port: where a value says "leave it as it is".
    pub const NONE: Self = Self { be: 0 };

    /// From a number in the byte order of the machine.
    #[inline(always)]
    pub const fn new(port: u16) -> Self {
        Self { be: port.to_be() }
    }

    /// This port, or `other` where this is none.
    #[inline(always)]
    pub const fn or(self, other: Self) -> Self {
        if self.be == 0 { other } else { self }
    }

    /// The number in the byte order of the machine.
    #[inline(always)]
    pub const fn get(self) -> u16 {
        u16::from_be(self.be)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_is_held_mapped_and_comes_back() {
        let address: IpAddr = "10.96.0.1".parse().unwrap();
        let held = Address::from(address);
        assert_eq!(held, Address::from_v4(u32::from_ne_bytes([10, 96, 0, 1])));
        assert!(held.is_v4());
        assert_eq!(IpAddr::from(held), address);
    }

    #[test]
    fn an_ipv6_address_keeps_the_order_of_its_bytes() {
        let address: IpAddr = "fd00:96::a".parse().unwrap();
        let held = Address::from(address);
        assert_eq!(held.words[0].to_ne_bytes(), [0xfd, 0, 0, 0x96]);
        assert_eq!(held.words[3].to_ne_bytes(), [0, 0, 0, 0xa]);
        assert!(!held.is_v4());
        assert_eq!(IpAddr::from(held), address);
    }

    #[test]
    fn a_port_stands_as_in_a_packet() {
        assert_eq!(Port::new(0x1f90).be.to_ne_bytes(), [0x1f, 0x90]);
        assert_eq!(Port::new(8080).get(), 8080);
    }
}
