//! Compares a packet before and after: the fields that had to change, the checksums that cover them, nothing else.

use std::net::{IpAddr, SocketAddr};

use super::anatomy::Anatomy;
use super::oracle::Fault;

/// What had to change, by where it stands.
#[derive(Clone, Default, Debug)]
pub struct Edits {
    fields: Vec<(usize, Vec<u8>)>,
}

impl Edits {
    /// Source and destination of a packet are these.
    pub fn addresses(&mut self, packet: &Anatomy, source: IpAddr, destination: IpAddr) {
        let at = packet.addresses();
        self.fields.push((at, octets(source)));
        self.fields.push((at + packet.address_length(), octets(destination)));
    }

    /// The same with ports.
    pub fn ends(&mut self, packet: &Anatomy, (from, to): (SocketAddr, SocketAddr)) {
        self.addresses(packet, from.ip(), to.ip());
        self.fields.push((packet.transport, from.port().to_be_bytes().to_vec()));
        self.fields
            .push((packet.transport + 2, to.port().to_be_bytes().to_vec()));
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Fails unless `out` is `sent` with these edits, and with every checksum of these headers, each before and after, as
/// wrong as it was. That of SCTP is of the first of them only: nobody can check it in a quotation, where it stays.
pub fn same_but_for(edits: &Edits, headers: &[(&Anatomy, &Anatomy)], sent: &[u8], out: &[u8]) -> Result<(), Fault> {
    if sent.len() != out.len() {
        return Err(format!("{} bytes became {}", sent.len(), out.len()));
    }
    let mut expected = sent.to_vec();
    for (at, field) in &edits.fields {
        expected[*at..at + field.len()].copy_from_slice(field);
    }
    for (packet, _) in headers {
        for at in [packet.header_checksum(), packet.transport_checksum(sent)]
            .into_iter()
            .flatten()
        {
            expected[at..at + 2].copy_from_slice(&out[at..at + 2]);
        }
    }
    if let Some((was, is)) = headers.first()
        && let Some(at) = was.sctp_checksum(sent)
        && sent[at..at + 4] != [0; 4]
    {
        expected[at..at + 4].copy_from_slice(&out[at..at + 4]);
        let (before, after) = (was.sctp_error(sent), is.sctp_error(out));
        if before != after {
            return Err(format!("the CRC at {at} was wrong by {before:x?} and is by {after:x?}"));
        }
    }
    if let Some(at) = expected.iter().zip(out).position(|(expected, out)| expected != out) {
        return Err(format!("byte {at} is {:#04x}, not {:#04x}", out[at], expected[at]));
    }
    headers
        .iter()
        .try_for_each(|(was, is)| same_checksums(was, is, sent, out))
}

fn same_checksums(was: &Anatomy, is: &Anatomy, sent: &[u8], out: &[u8]) -> Result<(), Fault> {
    let (before, after) = (was.header_error(sent), is.header_error(out));
    if before != after {
        return Err(format!(
            "the checksum of the IP header at {} was wrong by {before:#x} and is by {after:#x}",
            was.network
        ));
    }
    let Some(at) = was.transport_checksum(sent) else {
        return Ok(());
    };
    match (was.is_without_checksum(sent), is.is_without_checksum(out)) {
        (true, true) => return Ok(()),
        (true, false) => return Err(format!("a datagram without checksum got one, at {at}")),
        (false, true) => return Err(format!("a datagram lost its checksum, at {at}")),
        (false, false) => {}
    }
    let (before, after) = (was.transport_error(sent), is.transport_error(out));
    if before != after {
        return Err(format!(
            "the checksum at {at} was wrong by {before:#x} and is by {after:#x}"
        ));
    }
    Ok(())
}
