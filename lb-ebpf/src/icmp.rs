//! ICMP errors about translated packets: path MTU discovery, traceroute and "connection refused" through
//! a service (RFC 5508 says what a translator owes them).
//!
//! An error quotes the packet that it is about. What a backend or a router behind us quotes is a request as
//! it was sent on, to the backend; its client knows the frontend ([`to_client`]). What a client or a router
//! before us quotes is an answer as it was sent on, from the frontend; its sender is the backend
//! ([`to_backend`]).

use aya_ebpf::programs::sk_buff::SkBuff;
use lb_common::{
    Address, Counter, FlowKey, FlowValue, Port,
    flow::{FORWARD, GUARD, MASQUERADE, REVERSE},
    net::{SCTP, TCP, UDP},
};

use crate::{
    checksum, config,
    family::Family,
    maps::FLOWS,
    packet::Network,
    rewrite::word,
    verdict::{PASS, because},
};

/// Bytes of an ICMP header, and where its checksum stands; ICMPv6 has the same.
const HEADER: usize = 8;
const CHECKSUM: usize = 2;

/// An error, and the packet that it quotes.
struct Quotation {
    /// Where the IP header of the error starts.
    network: usize,
    /// Its ends.
    source: Address,
    destination: Address,
    /// Where its ICMP header starts.
    icmp: usize,
    /// Where the quoted IP header starts.
    quoted_network: usize,
    /// Where the quoted TCP, UDP or SCTP header starts.
    quoted_transport: usize,
    /// Addresses, ports and protocol of the quoted packet.
    quoted: FlowKey,
}

/// A packet from a link that has no ports.
#[inline(always)]
pub(crate) fn to_backend<F: Family>(skb: &SkBuff, network: usize, header: &Network) -> i32 {
    let Some(quotation) = read::<F>(skb, network, header) else {
        return PASS;
    };
    let quoted = &quotation.quoted;
    // The quoted answer came from the frontend: who dialled that has the row that names the backend.
    let Some(row) = row(FORWARD, quoted) else {
        return PASS;
    };
    if !quotation.destination.same(&quoted.source) {
        return PASS;
    }
    let ports = (row.port, row.client_port.or(quoted.destination_port));
    let done = requote::<F>(skb, &quotation, F::SOURCE, &quoted.source, &row.address, ports)
        .and_then(|()| readdress::<F>(skb, &quotation, F::DESTINATION, &quoted.source, &row.address));
    if done.is_err() {
        return because(Counter::DroppedRewrite);
    }
    if row.flags & MASQUERADE != 0 {
        // SAFETY: the context belongs to this run of the program.
        unsafe { (*skb.skb).mark |= config::masquerade_mark() };
    }
    PASS
}

/// A packet to a link that has none.
#[inline(always)]
pub(crate) fn to_client<F: Family>(skb: &SkBuff, network: usize, header: &Network) -> i32 {
    let Some(quotation) = read::<F>(skb, network, header) else {
        return PASS;
    };
    let quoted = &quotation.quoted;
    let Some(row) = row(REVERSE, quoted) else {
        return PASS;
    };
    let ports = (row.client_port.or(quoted.source_port), row.port);
    let mut done = requote::<F>(
        skb,
        &quotation,
        F::DESTINATION,
        &quoted.destination,
        &row.address,
        ports,
    );
    // A router speaks for itself, a backend for the frontend.
    if quotation.source.same(&quoted.destination) {
        done = done.and_then(|()| readdress::<F>(skb, &quotation, F::SOURCE, &quoted.destination, &row.address));
    }
    if done.is_err() {
        return because(Counter::DroppedRewrite);
    }
    PASS
}

/// Reads an error. `None` for anything else, and for one that quotes nothing that we translate.
#[inline(always)]
fn read<F: Family>(skb: &SkBuff, network: usize, error: &Network) -> Option<Quotation> {
    let icmp = error.transport;
    if error.protocol != F::ICMP || error.fragment != 0 || !F::is_error(skb.load(icmp).ok()?) {
        return None;
    }
    let quoted_network = icmp + HEADER;
    let quoted = F::parse(skb, quoted_network)?;
    if !matches!(quoted.protocol, TCP | UDP | SCTP) || quoted.offset != 0 {
        return None;
    }
    let ports: [Port; 2] = skb.load(quoted.transport).ok()?;
    Some(Quotation {
        network,
        source: error.source,
        destination: error.destination,
        icmp,
        quoted_network,
        quoted_transport: quoted.transport,
        quoted: FlowKey::new(
            FORWARD,
            quoted.protocol,
            (quoted.source, ports[0]),
            (quoted.destination, ports[1]),
        ),
    })
}

/// The row that translates the other direction of the quoted flow.
#[inline(always)]
fn row(direction: u8, quoted: &FlowKey) -> Option<FlowValue> {
    let key = FlowKey::new(
        direction,
        quoted.protocol,
        (quoted.destination, quoted.destination_port),
        (quoted.source, quoted.source_port),
    );
    // SAFETY: the row is copied at once; whatever becomes of it, it stays readable meanwhile.
    let row = unsafe { FLOWS.get(&key) }?;
    // A guard translates nothing.
    (row.flags & GUARD == 0).then_some(*row)
}

/// Gives the error itself another source or destination, which stands at `field` of its IP header.
#[inline(always)]
fn readdress<F: Family>(
    skb: &SkBuff,
    quotation: &Quotation,
    field: usize,
    old: &Address,
    new: &Address,
) -> Result<(), i64> {
    F::replace_address_of_icmp(skb, quotation.network, quotation.icmp + CHECKSUM, field, old, new)
}

/// Gives the quoted packet another address, which stands at `field` of its IP header, and these ports, source
/// first. Every checksum follows: those of the quoted headers, as far as they are quoted, and that of the
/// error, which covers them.
#[inline(always)]
fn requote<F: Family>(
    skb: &SkBuff,
    quotation: &Quotation,
    field: usize,
    old: &Address,
    new: &Address,
    new_ports: (Port, Port),
) -> Result<(), i64> {
    let checksum = quotation.icmp + CHECKSUM;
    let mut difference = F::difference(old, new);
    skb.l4_csum_replace(checksum, 0, difference.into(), 0)?;
    F::store_address(skb, quotation.quoted_network + field, new)?;
    if let Some(at) = F::HEADER_CHECKSUM {
        recompute(skb, checksum, quotation.quoted_network + at, difference)?;
    }

    let old_ports = [quotation.quoted.source_port, quotation.quoted.destination_port];
    let new_ports = [new_ports.0, new_ports.1];
    let of_ports = checksum::difference(&[word(old_ports)], &[word(new_ports)]);
    difference = checksum::add(difference, of_ports);
    for (index, (old, new)) in old_ports.into_iter().zip(new_ports).enumerate() {
        skb.l4_csum_replace(checksum, old.be.into(), new.be.into(), 2)?;
        skb.store(quotation.quoted_transport + 2 * index, &new, 0)?;
    }

    if quotation.quoted.protocol == SCTP {
        // Nobody can check a sum over a packet that is not there: the tag behind the ports is what
        // tells whether an error is to be believed (RFC 9260 10).
        return Ok(());
    }
    let is_udp = quotation.quoted.protocol == UDP;
    let at = quotation.quoted_transport + if is_udp { 6 } else { 16 };
    match skb.load::<u16>(at) {
        // A UDP checksum of zero says that there is none.
        Ok(0) if is_udp => Ok(()),
        Ok(_) => recompute(skb, checksum, at, difference),
        // Not quoted: eight bytes of a TCP header are enough (RFC 792).
        Err(_) => Ok(()),
    }
}

/// Corrects a quoted checksum for what it covers, and that of the error for the quoted checksum.
#[inline(always)]
fn recompute(skb: &SkBuff, error_checksum: usize, at: usize, difference: u32) -> Result<(), i64> {
    let old: u16 = skb.load(at)?;
    let new = match checksum::correct(old, difference) {
        // The two zeros of ones' complement. UDP has no other use for this one, and to IP they are the same.
        0 => 0xffff,
        new => new,
    };
    skb.l4_csum_replace(error_checksum, old.into(), new.into(), 2)?;
    skb.store(at, &new, 0)
}
