//! `lb-agent flows`.

use std::{fmt, net::SocketAddr, num::NonZeroUsize, process::ExitCode};

use clap::Args;
use serde::Serialize;

use super::{
    backends::At,
    output::{Answer, Output, columns},
    places::Places,
    programmed, protocol,
};
use crate::plane::ebpf;

/// Print the flows that are translated on the links of this node, the one that was used last first. They are read from
/// the kernel, beside a running agent or without one. What processes of the node itself have connected is translated in
/// their sockets and not among them
#[derive(Debug, Args)]
#[command(after_help = "\
SILENT is how long the client has sent nothing. A flow stays in the table until another needs its place.

Exit codes: 0 they were read, however many there are, 2 they cannot be.")]
pub(super) struct Flows {
    /// Only those to this frontend: an address that clients dial, with a port or with any
    #[arg(long, value_name = "IP[:PORT]")]
    service: Option<At>,

    /// Only those to this backend
    #[arg(long, value_name = "IP[:PORT]")]
    backend: Option<At>,

    /// Only those of this client
    #[arg(long, value_name = "IP[:PORT]")]
    client: Option<At>,

    /// Not more than these
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    places: Places,
}

impl Flows {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let bpffs = self.places.paths()?.bpffs;
        let is = |at: Option<At>, address| at.is_none_or(|at| at.is(address));
        let wanted = |flow: &ebpf::Flow| {
            is(self.service, flow.frontend) && is(self.backend, flow.backend) && is(self.client, flow.client)
        };
        let instead = "`ipvsadm -Lnc` has its connections";
        let flows = programmed::by_programs(&bpffs, instead, || ebpf::flows(&bpffs, wanted))?;
        let limit = self.limit.map_or(usize::MAX, NonZeroUsize::get);
        let flows: Vec<Flow> = flows.iter().take(limit).map(Flow::from).collect();
        self.output.print(&flows, &Table(&flows))?;
        Ok(Answer::Good.into())
    }
}

/// What is shown of a flow.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Flow {
    protocol: String,
    client: SocketAddr,
    frontend: SocketAddr,
    backend: SocketAddr,
    /// The client's port on the way to the backend, where that had to be another.
    client_port: Option<u16>,
    masquerade: bool,
    closing: bool,
    silent_seconds: f64,
}

impl From<&ebpf::Flow> for Flow {
    fn from(flow: &ebpf::Flow) -> Self {
        Self {
            protocol: protocol::name(flow.protocol),
            client: flow.client,
            frontend: flow.frontend,
            backend: flow.backend,
            client_port: flow.client_port,
            masquerade: flow.is_masqueraded,
            closing: flow.is_closing,
            silent_seconds: flow.silent.as_secs_f64(),
        }
    }
}

/// For people.
struct Table<'a>(&'a [Flow]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.iter().map(|flow| {
            let port = flow.client_port.map(|port| format!("client-port={port}"));
            let notes = [
                flow.masquerade.then(|| "masquerade".to_owned()),
                flow.closing.then(|| "closing".to_owned()),
                port,
            ];
            let notes: Vec<String> = notes.into_iter().flatten().collect();
            [
                flow.protocol.clone(),
                flow.client.to_string(),
                flow.frontend.to_string(),
                flow.backend.to_string(),
                format!("{:.1}s", flow.silent_seconds),
                notes.join(","),
            ]
        });
        let titles = ["PROTO", "CLIENT", "FRONTEND", "BACKEND", "SILENT", "NOTES"];
        f.write_str(&columns(titles, rows))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flow_is_a_line() {
        let flow = ebpf::Flow {
            protocol: 6,
            client: "10.0.0.9:40000".parse().unwrap(),
            frontend: "10.96.0.1:443".parse().unwrap(),
            backend: "10.244.1.2:6443".parse().unwrap(),
            client_port: None,
            is_masqueraded: false,
            is_closing: false,
            silent: Duration::from_millis(1_500),
        };
        let other = ebpf::Flow {
            client_port: Some(12_345),
            is_masqueraded: true,
            is_closing: true,
            ..flow
        };
        let expected = "\
PROTO   CLIENT           FRONTEND        BACKEND           SILENT   NOTES
tcp     10.0.0.9:40000   10.96.0.1:443   10.244.1.2:6443   1.5s     <none>
tcp     10.0.0.9:40000   10.96.0.1:443   10.244.1.2:6443   1.5s     masquerade,closing,client-port=12345";
        assert_eq!(Table(&[Flow::from(&flow), Flow::from(&other)]).to_string(), expected);
    }
}
