//! A frame cut into fragments.

use anyhow::{Context as _, Result, ensure};
use etherparse::{EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header};

/// The fragments of the IP packet in a frame, in order. All but the last carry `size` bytes of it, a multiple of
/// eight.
pub fn fragments(frame: &[u8], size: usize, identification: u16) -> Result<Vec<Vec<u8>>> {
    ensure!(
        size > 0 && size.is_multiple_of(8),
        "fragments of {size} bytes: must be a multiple of eight"
    );
    let (link, packet) = Ethernet2Header::from_slice(frame).context("the Ethernet header")?;
    let is_v4 = link.ether_type == EtherType::IPV4;
    let header = if is_v4 {
        Ipv4Header::from_slice(packet)?.0.header_len()
    } else {
        Ipv6Header::LEN
    };
    let (ip, payload) = packet.split_at_checked(header).context("an IP header cut short")?;
    let parts: Vec<_> = payload.chunks(size).collect();
    ensure!(!parts.is_empty(), "a packet without payload has no fragments");
    let last = parts.len() - 1;
    let mut fragments = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let offset = IpFragOffset::try_new(u16::try_from(index * size / 8)?)?;
        let more = index < last;
        let mut bytes = Vec::new();
        link.write(&mut bytes)?;
        if is_v4 {
            let mut ip = Ipv4Header::from_slice(ip)?.0;
            ip.identification = identification;
            ip.dont_fragment = false;
            ip.more_fragments = more;
            ip.fragment_offset = offset;
            ip.set_payload_len(part.len())?;
            ip.header_checksum = ip.calc_header_checksum();
            ip.write_raw(&mut bytes)?;
        } else {
            let mut ip = Ipv6Header::from_slice(ip)?.0;
            let fragment = Ipv6FragmentHeader::new(ip.next_header, offset, more, identification.into());
            ip.next_header = IpNumber::IPV6_FRAGMENTATION_HEADER;
            ip.set_payload_length(Ipv6FragmentHeader::LEN + part.len())?;
            ip.write(&mut bytes)?;
            fragment.write(&mut bytes)?;
        }
        bytes.extend_from_slice(part);
        fragments.push(bytes);
    }
    Ok(fragments)
}
