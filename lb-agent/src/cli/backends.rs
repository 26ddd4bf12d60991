//! `lb-agent backends`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    str::FromStr,
};

use clap::Args;
use serde::Serialize;

use super::{
    output::{Answer, Output, columns},
    places::Places,
    programmed,
};
use crate::{
    desired::text::{Destination, Line},
    plane::shown::Shown,
};

/// Print the endpoints that new clients of this node may be sent to, each with the frontends that lead there. It is read
/// from the kernel, beside a running agent or without one, from whichever plane is there
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 there are some, 1 there are none, 2 nothing is programmed or it cannot be read.")]
pub(super) struct Backends {
    /// Only those at this address, and port if there is one: 10.244.1.7, 10.244.1.7:53, [fd00::7]:53
    #[arg(value_name = "IP[:PORT]")]
    at: Option<At>,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    places: Places,
}

/// An address, with a port or with any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    ip: IpAddr,
    port: Option<u16>,
}

/// Why a text is no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("neither an address such as 10.0.0.1 nor one with a port such as 10.0.0.1:53 or [fd00::1]:53")]
pub(super) struct NoAddress;

impl At {
    /// Whether an address is meant.
    pub(super) fn is(self, address: SocketAddr) -> bool {
        self.ip == address.ip() && self.port.is_none_or(|port| port == address.port())
    }
}

impl FromStr for At {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        if let Ok(ip) = text.parse() {
            return Ok(Self { ip, port: None });
        }
        let address: SocketAddr = text.parse().map_err(|_| NoAddress)?;
        Ok(Self {
            ip: address.ip(),
            port: Some(address.port()),
        })
    }
}

impl Backends {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let lines = programmed::lines(&self.places.paths()?.bpffs)?;
        let mut backends = backends(&lines);
        backends.retain(|backend| self.at.is_none_or(|at| at.is(backend.address)));
        self.output.print(&backends, &Table(&backends))?;
        Ok(if backends.is_empty() {
            Answer::Problem
        } else {
            Answer::Good
        }
        .into())
    }
}

/// One that new clients may be sent to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Backend {
    address: SocketAddr,
    protocol: String,
    on_node: bool,
    /// Those that lead there, for any client.
    frontends: BTreeSet<SocketAddr>,
}

fn backends(lines: &[Shown]) -> Vec<Backend> {
    let mut found: BTreeMap<(SocketAddr, _), Backend> = BTreeMap::new();
    for shown in lines {
        let Line::Frontend(line) = &shown.line else {
            continue;
        };
        for destination in [&line.near, &line.far] {
            let Destination::Backends(backends) = destination else {
                continue;
            };
            for backend in backends {
                let of = found
                    .entry((backend.address, line.protocol))
                    .or_insert_with(|| Backend {
                        address: backend.address,
                        protocol: line.protocol.to_string(),
                        on_node: backend.on_node,
                        frontends: BTreeSet::new(),
                    });
                of.frontends.insert(line.address);
            }
        }
    }
    found.into_values().collect()
}

/// For people.
struct Table<'a>(&'a [Backend]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.iter().map(|backend| {
            let frontends: Vec<String> = backend.frontends.iter().map(ToString::to_string).collect();
            [
                backend.address.to_string(),
                backend.protocol.clone(),
                if backend.on_node { "this" } else { "other" }.to_owned(),
                frontends.join(","),
            ]
        });
        f.write_str(&columns(["BACKEND", "PROTO", "NODE", "FRONTENDS"], rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::{Distribution, Protocol, text};

    fn frontend(address: &str, near: &[(&str, bool)], far: &[(&str, bool)]) -> Shown {
        let destination = |backends: &[(&str, bool)]| {
            let backends = backends.iter().map(|(address, on_node)| text::Backend {
                address: address.parse().unwrap(),
                on_node: *on_node,
            });
            Destination::Backends(backends.collect())
        };
        let line = text::FrontendLine {
            address: address.parse().unwrap(),
            protocol: Protocol::Tcp,
            near: destination(near),
            far: destination(far),
            masquerade: false,
            affinity: None,
            sources: None,
            distribution: Distribution::Random,
        };
        Shown {
            line: Line::Frontend(line),
            errors: BTreeSet::new(),
        }
    }

    #[test]
    fn a_backend_is_there_once_with_all_that_lead_to_it() {
        let (here, there) = (("10.0.1.2:8080", true), ("10.0.2.2:8080", false));
        let lines = [
            frontend("0.0.0.0:30080", &[here, there], &[here]),
            frontend("10.96.0.10:80", &[here, there], &[here, there]),
        ];
        let expected = "\
BACKEND         PROTO   NODE    FRONTENDS
10.0.1.2:8080   TCP     this    0.0.0.0:30080,10.96.0.10:80
10.0.2.2:8080   TCP     other   0.0.0.0:30080,10.96.0.10:80";
        assert_eq!(Table(&backends(&lines)).to_string(), expected);
    }

    #[test]
    fn an_address_is_given_with_or_without_a_port() {
        let is = |text: &str, address: &str| text.parse::<At>().unwrap().is(address.parse().unwrap());
        assert!(is("10.0.0.1", "10.0.0.1:53") && is("10.0.0.1:53", "10.0.0.1:53"));
        assert!(!is("10.0.0.1", "10.0.0.2:53") && !is("10.0.0.1:54", "10.0.0.1:53"));
        assert!(is("fd00::1", "[fd00::1]:53") && is("[fd00::1]:53", "[fd00::1]:53"));
        assert!("fd00::1:xyz".parse::<At>().is_err() && "web".parse::<At>().is_err());
    }
}
