//! IPv4 and IPv6: where they differ in headers, checksums and socket addresses. Only the ICMP answers
//! (`reject`) have a second such pair.

use aya_ebpf::{
    bindings::{BPF_F_PSEUDO_HDR, bpf_sock_addr},
    programs::sk_buff::SkBuff,
};
use lb_common::{Address, Port};

use crate::{
    checksum,
    opaque::opaque,
    packet::{Network, Packet},
    peek::peek,
};

/// What differs between the families.
pub(crate) trait Family {
    /// Where the source address stands in the IP header.
    const SOURCE: usize;
    /// Where the destination address stands, which follows it.
    const DESTINATION: usize = Self::SOURCE + Self::ADDRESS_LENGTH;
    /// Bytes of an address.
    const ADDRESS_LENGTH: usize;
    /// Where the checksum of the IP header stands, if there is one.
    const HEADER_CHECKSUM: Option<usize>;
    /// IANA protocol number of the family's ICMP.
    const ICMP: u8;

    /// Whether an ICMP message of this type is an error, which quotes the packet that it is about.
    fn is_error(kind: u8) -> bool;

    /// Reads the IP header at `offset`. `None` for what we leave alone: IPv6 packets with
    /// IPv4-mapped addresses, which have no business on a wire and would be taken for IPv4 here.
    fn parse(skb: &SkBuff, offset: usize) -> Option<Network>;

    /// Bytes from the start of the IP header at `offset` to the end of the packet, as that header has it:
    /// behind a short packet a link may have put padding.
    fn length(skb: &SkBuff, offset: usize) -> Option<usize>;

    /// Writes both addresses and both ports, which are new or as they were, and corrects the checksum of the IP header,
    /// if there is one. `difference` is that of the addresses, as [`checksum::difference`] has it; the checksum of the
    /// transport header is left to the caller.
    fn store_ends(
        skb: &SkBuff,
        packet: &Packet,
        source: &Address,
        destination: &Address,
        ports: [Port; 2],
        difference: u32,
    ) -> Result<(), i64>;

    /// Corrects a checksum of a transport header for an address, which it covers by the pseudo header; `flags` are those
    /// of `bpf_l4_csum_replace`.
    fn correct_for_address(skb: &SkBuff, checksum: usize, difference: u32, flags: u64) -> Result<(), i64>;

    /// Writes an address at `field` of the IP header and corrects its checksum, if there is one. For packets that have no
    /// other checksum over it: all fragments but the first, SCTP.
    fn replace_bare_address(
        skb: &SkBuff,
        network: usize,
        field: usize,
        old: &Address,
        new: &Address,
    ) -> Result<(), i64>;

    /// The same for an address of a packet with ICMP, whose checksum stands at `checksum`.
    fn replace_address_of_icmp(
        skb: &SkBuff,
        network: usize,
        checksum: usize,
        field: usize,
        old: &Address,
        new: &Address,
    ) -> Result<(), i64>;

    /// What becomes of a sum over an address that is replaced.
    #[inline(always)]
    fn difference(old: &Address, new: &Address) -> u32 {
        let first = (16 - Self::ADDRESS_LENGTH) / 4;
        checksum::difference(&old.words[first..], &new.words[first..])
    }

    /// Writes an address and nothing else.
    fn store_address(skb: &SkBuff, offset: usize, address: &Address) -> Result<(), i64>;

    /// The destination that a process gave for its socket.
    fn socket_address(ctx: &bpf_sock_addr) -> Address;

    /// Sets that destination.
    fn set_socket_address(ctx: &mut bpf_sock_addr, address: &Address);
}

/// IPv4.
pub(crate) struct V4;
/// IPv6.
pub(crate) struct V6;

/// An IPv4 header without options (RFC 791).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ipv4Header {
    pub(crate) version_length: u8,
    pub(crate) service: u8,
    pub(crate) total_length: u16,
    pub(crate) identification: u16,
    pub(crate) fragment: u16,
    pub(crate) ttl: u8,
    pub(crate) protocol: u8,
    pub(crate) checksum: u16,
    pub(crate) source: u32,
    pub(crate) destination: u32,
}

/// An IPv6 header (RFC 8200).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ipv6Header {
    pub(crate) version_class_label: u32,
    pub(crate) payload_length: u16,
    pub(crate) next_header: u8,
    pub(crate) hop_limit: u8,
    pub(crate) source: [u32; 4],
    pub(crate) destination: [u32; 4],
}

/// How many extension headers of an IPv6 packet are read. RFC 8200 4.1 has three that carry options.
const EXTENSIONS: usize = 3;

/// Whether an extension header holds options: hop by hop, or for the destination. They say nothing of where
/// the packet goes, as routing headers do, which are left alone like fragments and what is encrypted.
#[inline(always)]
fn is_options(next_header: u8) -> bool {
    matches!(next_header, 0 | 60)
}

/// IPv4: more fragments, or an offset: any fragment has one of them.
const FRAGMENT_V4: u16 = 0x3fff_u16.to_be();
/// IPv4: an offset.
const OFFSET_V4: u16 = 0x1fff_u16.to_be();
/// IPv6: the same two. A fragment header without any of them is on a whole packet (RFC 6946).
const FRAGMENT_V6: u16 = 0xfff9_u16.to_be();
const OFFSET_V6: u16 = 0xfff8_u16.to_be();
/// The extension header of fragments.
const FRAGMENT_HEADER: u8 = 44;

/// RFC 8200 4.5.
#[repr(C)]
#[derive(Clone, Copy)]
struct FragmentHeader {
    next_header: u8,
    reserved: u8,
    offset: u16,
    identification: u32,
}

impl FragmentHeader {
    /// That of a packet which is none.
    const NONE: Self = Self {
        next_header: 0,
        reserved: 0,
        offset: 0,
        identification: 0,
    };
}
/// Where the checksum stands in an IPv4 header.
const IPV4_CHECKSUM: usize = 10;
/// `BPF_F_IPV6`, newer than the bindings: an IPv6 address has no header checksum that would cancel
/// it out of a checksum that the network card summed over the whole packet.
const BPF_F_IPV6: u64 = 1 << 7;

impl Family for V4 {
    const SOURCE: usize = 12;
    const ADDRESS_LENGTH: usize = 4;
    const HEADER_CHECKSUM: Option<usize> = Some(IPV4_CHECKSUM);
    const ICMP: u8 = 1;

    /// RFC 792: destination unreachable, time exceeded, parameter problem.
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        matches!(kind, 3 | 11 | 12)
    }

    #[inline(always)]
    fn parse(skb: &SkBuff, offset: usize) -> Option<Network> {
        let header: Ipv4Header = peek(skb, offset)?;
        let length = (header.version_length & 0x0f) as usize * 4;
        if length < size_of::<Ipv4Header>() {
            return None;
        }
        Some(Network {
            source: Address::from_v4(header.source),
            destination: Address::from_v4(header.destination),
            protocol: header.protocol,
            transport: offset + length,
            identification: header.identification.into(),
            fragment: header.fragment & FRAGMENT_V4,
            offset: header.fragment & OFFSET_V4,
        })
    }

    #[inline(always)]
    fn length(skb: &SkBuff, offset: usize) -> Option<usize> {
        let length: u16 = skb.load(offset + 2).ok()?;
        Some(u16::from_be(length).into())
    }

    #[inline(always)]
    fn store_ends(
        skb: &SkBuff,
        packet: &Packet,
        source: &Address,
        destination: &Address,
        ports: [Port; 2],
        difference: u32,
    ) -> Result<(), i64> {
        // Opaque, or the compiler keeps the sum from before it was known to be near, which verifiers before 6.0 then do not know.
        let at = opaque(skb, packet.network + IPV4_CHECKSUM);
        let old: u16 = peek(skb, at).ok_or(-1)?;
        let [s0, s1, s2, s3] = source.v4().to_ne_bytes();
        let [d0, d1, d2, d3] = destination.v4().to_ne_bytes();
        let [c0, c1] = checksum::correct(old, difference).to_ne_bytes();
        let ends = Ends {
            addresses: [c0, c1, s0, s1, s2, s3, d0, d1, d2, d3],
            ports,
        };
        ends.store(skb, at, packet.transport)
    }

    #[inline(always)]
    fn correct_for_address(skb: &SkBuff, checksum: usize, difference: u32, flags: u64) -> Result<(), i64> {
        skb.l4_csum_replace(checksum, 0, difference.into(), u64::from(BPF_F_PSEUDO_HDR) | flags)
    }

    #[inline(always)]
    fn replace_bare_address(
        skb: &SkBuff,
        network: usize,
        field: usize,
        old: &Address,
        new: &Address,
    ) -> Result<(), i64> {
        skb.l3_csum_replace(network + IPV4_CHECKSUM, old.v4().into(), new.v4().into(), 4)?;
        Self::store_address(skb, network + field, new)
    }

    /// ICMP sums no address.
    #[inline(always)]
    fn replace_address_of_icmp(
        skb: &SkBuff,
        network: usize,
        _: usize,
        field: usize,
        old: &Address,
        new: &Address,
    ) -> Result<(), i64> {
        Self::replace_bare_address(skb, network, field, old, new)
    }

    #[inline(always)]
    fn store_address(skb: &SkBuff, offset: usize, address: &Address) -> Result<(), i64> {
        skb.store(offset, &address.v4(), 0)
    }

    #[inline(always)]
    fn socket_address(ctx: &bpf_sock_addr) -> Address {
        Address::from_v4(ctx.user_ip4)
    }

    #[inline(always)]
    fn set_socket_address(ctx: &mut bpf_sock_addr, address: &Address) {
        ctx.user_ip4 = address.v4();
    }
}

impl Family for V6 {
    const SOURCE: usize = 8;
    const ADDRESS_LENGTH: usize = 16;
    const HEADER_CHECKSUM: Option<usize> = None;
    const ICMP: u8 = 58;

    /// RFC 4443 2.1: those below 128.
    #[inline(always)]
    fn is_error(kind: u8) -> bool {
        kind < 128
    }

    #[inline(always)]
    fn parse(skb: &SkBuff, offset: usize) -> Option<Network> {
        let header: Ipv6Header = peek(skb, offset)?;
        let source = Address::from_v6(header.source);
        let destination = Address::from_v6(header.destination);
        if source.is_v4() | destination.is_v4() {
            return None;
        }
        let mut protocol = header.next_header;
        let mut transport = offset + size_of::<Ipv6Header>();
        for _ in 0..EXTENSIONS {
            if !is_options(protocol) {
                break;
            }
            let [next, length]: [u8; 2] = skb.load(transport).ok()?;
            protocol = next;
            // RFC 8200 4.2: in units of eight bytes, not counting the first.
            transport += (usize::from(length) + 1) * 8;
        }
        let mut fragment = FragmentHeader::NONE;
        if protocol == FRAGMENT_HEADER {
            fragment = skb.load(transport).ok()?;
            protocol = fragment.next_header;
            transport += size_of::<FragmentHeader>();
        }
        Some(Network {
            source,
            destination,
            protocol,
            transport,
            identification: fragment.identification,
            fragment: fragment.offset & FRAGMENT_V6,
            offset: fragment.offset & OFFSET_V6,
        })
    }

    #[inline(always)]
    fn length(skb: &SkBuff, offset: usize) -> Option<usize> {
        let length: u16 = skb.load(offset + 4).ok()?;
        Some(size_of::<Ipv6Header>() + usize::from(u16::from_be(length)))
    }

    #[inline(always)]
    fn store_ends(
        skb: &SkBuff,
        packet: &Packet,
        source: &Address,
        destination: &Address,
        ports: [Port; 2],
        _: u32,
    ) -> Result<(), i64> {
        let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (source.words, destination.words);
        let ends = Ends {
            addresses: [s0, s1, s2, s3, d0, d1, d2, d3],
            ports,
        };
        ends.store(skb, packet.network + Self::SOURCE, packet.transport)
    }

    #[inline(always)]
    fn correct_for_address(skb: &SkBuff, checksum: usize, difference: u32, flags: u64) -> Result<(), i64> {
        let flags = u64::from(BPF_F_PSEUDO_HDR) | flags;
        // A kernel that does not know the flag says so before it changes anything.
        if skb
            .l4_csum_replace(checksum, 0, difference.into(), flags | BPF_F_IPV6)
            .is_err()
        {
            skb.l4_csum_replace(checksum, 0, difference.into(), flags)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn replace_bare_address(skb: &SkBuff, network: usize, field: usize, _: &Address, new: &Address) -> Result<(), i64> {
        Self::store_address(skb, network + field, new)
    }

    #[inline(always)]
    fn replace_address_of_icmp(
        skb: &SkBuff,
        network: usize,
        checksum: usize,
        field: usize,
        old: &Address,
        new: &Address,
    ) -> Result<(), i64> {
        Self::correct_for_address(skb, checksum, Self::difference(old, new), 0)?;
        Self::store_address(skb, network + field, new)
    }

    #[inline(always)]
    fn store_address(skb: &SkBuff, offset: usize, address: &Address) -> Result<(), i64> {
        skb.store(offset, &address.words, 0)
    }

    #[inline(always)]
    fn socket_address(ctx: &bpf_sock_addr) -> Address {
        // Word by word: the verifier knows no wider access to the context.
        let ip = &ctx.user_ip6;
        Address::from_v6([ip[0], ip[1], ip[2], ip[3]])
    }

    #[inline(always)]
    fn set_socket_address(ctx: &mut bpf_sock_addr, address: &Address) {
        ctx.user_ip6[0] = address.words[0];
        ctx.user_ip6[1] = address.words[1];
        ctx.user_ip6[2] = address.words[2];
        ctx.user_ip6[3] = address.words[3];
    }
}

/// All that a translation may change of a packet without options, in the order in which it stands there: addresses, with
/// what else lies between, and ports.
#[repr(C)]
struct Ends<T> {
    addresses: T,
    ports: [Port; 2],
}

impl<T> Ends<T> {
    /// By one call where nothing lies between, as in almost every packet: calls are what translating costs.
    #[inline(always)]
    fn store(&self, skb: &SkBuff, addresses: usize, ports: usize) -> Result<(), i64> {
        const { assert!(size_of::<Self>() == size_of::<T>() + size_of::<[Port; 2]>()) }
        if ports == addresses + size_of::<T>() {
            return skb.store(addresses, self, 0);
        }
        skb.store(addresses, &self.addresses, 0)?;
        skb.store(ports, &self.ports, 0)
    }
}
