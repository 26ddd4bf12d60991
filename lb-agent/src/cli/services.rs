//! `lb-agent services`.

use std::{collections::BTreeSet, fmt, net::SocketAddr, process::ExitCode};

use clap::Args;
use serde::Serialize;

use super::{
    output::{Answer, Output},
    places::Places,
    programmed,
};
use crate::{
    desired::{
        Distribution,
        text::{Destination, FrontendLine, Line},
    },
    plane::shown::Shown,
};

/// Print what is served on this node, one line a frontend: where it leads, and for whom. It is read from the kernel,
/// beside a running agent or without one, from whichever plane is there. Changes nothing
#[derive(Debug, Args)]
#[command(after_help = "\
A line names a frontend and where its clients go: `to=`, or `near=` (clients on this node) and `far=`
where they differ. `*` marks an endpoint on this node; the unspecified address stands for each that
serves NodePorts. Lines of addresses and networks follow. Where the kernel's entries contradict each
other, the line says so: `error=\"…\"`.

Exit codes: 0 all of it makes sense, 1 entries contradict each other, 2 nothing is programmed or it cannot be read.")]
pub(super) struct Services {
    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    places: Places,
}

impl Services {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let lines = programmed::lines(&self.places.paths()?.bpffs)?;
        self.output.print(&Programmed::new(&lines), &Lines(&lines))?;
        let is_good = lines.iter().all(|shown| shown.errors.is_empty());
        Ok(if is_good { Answer::Good } else { Answer::Problem }.into())
    }
}

/// For people, and for tests of what is programmed.
struct Lines<'a>(&'a [Shown]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|shown| writeln!(f, "{shown}"))
    }
}

/// For programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Programmed<'a> {
    frontends: Vec<Frontend<'a>>,
    addresses: Vec<Role>,
    networks: Vec<Role>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Frontend<'a> {
    address: SocketAddr,
    protocol: String,
    near: Target,
    far: Target,
    masquerade_all: bool,
    affinity_seconds: Option<u32>,
    /// `None`: everybody.
    sources: Option<Sources>,
    algorithm: &'static str,
    errors: &'a BTreeSet<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", tag = "verdict")]
enum Target {
    Serve { backends: Vec<Backend> },
    Reject,
    Drop,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Backend {
    address: SocketAddr,
    on_node: bool,
}

#[derive(Debug, Serialize)]
struct Sources {
    ranges: Vec<String>,
    node: bool,
}

/// What an address or a network means.
#[derive(Debug, Serialize)]
struct Role {
    what: String,
    role: String,
}

impl<'a> Programmed<'a> {
    fn new(lines: &'a [Shown]) -> Self {
        let mut programmed = Self {
            frontends: Vec::new(),
            addresses: Vec::new(),
            networks: Vec::new(),
        };
        for Shown { line, errors } in lines {
            match line {
                Line::Frontend(line) => programmed.frontends.push(Frontend::new(line, errors)),
                Line::Address(ip, role) => programmed.addresses.push(Role {
                    what: ip.to_string(),
                    role: role.to_string(),
                }),
                Line::Cidr(cidr, role) => programmed.networks.push(Role {
                    what: cidr.to_string(),
                    role: role.to_string(),
                }),
            }
        }
        programmed
    }
}

impl<'a> Frontend<'a> {
    fn new(line: &FrontendLine, errors: &'a BTreeSet<String>) -> Self {
        let sources = line.sources.as_ref().map(|sources| Sources {
            ranges: sources.ranges.iter().map(ToString::to_string).collect(),
            node: sources.node,
        });
        Self {
            address: line.address,
            protocol: line.protocol.to_string(),
            near: Target::new(&line.near),
            far: Target::new(&line.far),
            masquerade_all: line.masquerade,
            affinity_seconds: line.affinity.map(Into::into),
            sources,
            algorithm: match line.distribution {
                Distribution::Random => "random",
                Distribution::Maglev => "maglev",
            },
            errors,
        }
    }
}

impl Target {
    fn new(destination: &Destination) -> Self {
        match destination {
            Destination::Reject => Self::Reject,
            Destination::Drop => Self::Drop,
            Destination::Backends(backends) => Self::Serve {
                backends: backends
                    .iter()
                    .map(|backend| Backend {
                        address: backend.address,
                        on_node: backend.on_node,
                    })
                    .collect(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use serde_json::json;

    use super::*;
    use crate::desired::{
        AllowedSources, Protocol,
        text::{self, AddressRole, CidrRole},
    };

    #[test]
    fn json_has_in_fields_what_the_lines_say() {
        let backend = |address: &str, on_node| text::Backend {
            address: address.parse().unwrap(),
            on_node,
        };
        let backends = [backend("10.0.1.2:53", true), backend("10.0.2.2:53", false)];
        let frontend = FrontendLine {
            address: "10.96.0.10:53".parse().unwrap(),
            protocol: Protocol::Udp,
            near: Destination::Backends(backends.into()),
            far: Destination::Drop,
            masquerade: true,
            affinity: NonZeroU32::new(60),
            sources: Some(AllowedSources {
                ranges: ["10.0.0.0/8".parse().unwrap()].into(),
                node: true,
            }),
            distribution: Distribution::Maglev,
        };
        let lines = [
            Line::Frontend(frontend),
            Line::Address("10.96.0.10".parse().unwrap(), AddressRole::ClusterIp),
            Line::Cidr("10.96.0.0/16".parse().unwrap(), CidrRole::Services),
        ];
        let lines = lines.map(|line| Shown {
            line,
            errors: BTreeSet::new(),
        });
        let expected = json!({
            "frontends": [{
                "address": "10.96.0.10:53",
                "protocol": "UDP",
                "near": {"verdict": "serve", "backends": [
                    {"address": "10.0.1.2:53", "onNode": true},
                    {"address": "10.0.2.2:53", "onNode": false},
                ]},
                "far": {"verdict": "drop"},
                "masqueradeAll": true,
                "affinitySeconds": 60,
                "sources": {"ranges": ["10.0.0.0/8"], "node": true},
                "algorithm": "maglev",
                "errors": [],
            }],
            "addresses": [{"what": "10.96.0.10", "role": "cluster-ip"}],
            "networks": [{"what": "10.96.0.0/16", "role": "services"}],
        });
        assert_eq!(serde_json::to_value(Programmed::new(&lines)).unwrap(), expected);
    }
}
