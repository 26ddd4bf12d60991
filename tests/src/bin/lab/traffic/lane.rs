//! The ways that connections take: who dials what.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use lb_tests::client::{Client, Protocol};
use lb_tests::manifests::Service;
use lb_tests::matrix::{Asker, Frontend};
use lb_tests::netns::Netns;
use lb_tests::stage::{Family, Stage};

/// Who dials, with all that it dials.
#[derive(Clone, Debug)]
pub(crate) struct Dialler {
    pub(crate) client: Client,
    /// The namespace that it is in. None for a process, which is more than its namespace.
    pub(crate) inside: Option<Arc<Netns>>,
    pub(crate) lanes: Vec<Lane>,
}

/// A way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lane {
    from: Asker,
    frontend: Frontend,
    service: String,
    pub(crate) protocol: Protocol,
    pub(crate) to: SocketAddr,
    /// Whether its endpoints stay, so that long connections may use them.
    pub(crate) is_steady: bool,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            from,
            frontend,
            service,
            protocol,
            to,
            ..
        } = self;
        write!(f, "{protocol} from {from} to {frontend} {to} ({service})")
    }
}

/// Everybody who dials on the first node or from outside: cluster addresses from the node, NodePorts from outside.
pub(crate) fn diallers(stage: &Stage) -> Result<[Dialler; 4]> {
    let services = stage.services();
    let lanes = |from: Asker| -> Result<Vec<Lane>> {
        let mut lanes = Vec::new();
        // Of an endpoint that leaves, an open UDP flow ends: what is changing is dialled by TCP alone.
        for (service, protocol) in [
            (&services.here, Protocol::Tcp),
            (&services.there, Protocol::Tcp),
            (&services.changing, Protocol::Tcp),
            (&services.here, Protocol::Udp),
            (&services.there, Protocol::Udp),
        ] {
            for family in Family::ALL {
                let (frontend, to) = match from {
                    Asker::Outside => (Frontend::NodePort, stage.node_port(service, family)?),
                    _ => (Frontend::ClusterIp, Stage::cluster_ip(service, family)),
                };
                lanes.push(Lane {
                    from,
                    frontend,
                    service: described(service, services),
                    protocol,
                    to,
                    is_steady: service.name != services.changing.name,
                });
            }
        }
        Ok(lanes)
    };
    let dialler = |from, client, inside| -> Result<Dialler> {
        Ok(Dialler {
            client,
            inside,
            lanes: lanes(from)?,
        })
    };
    let inside = |netns: &Arc<Netns>| Some(Arc::clone(netns));
    let (bridge, veth, outside) = (stage.bridge_pod(), stage.veth_pod(), stage.network().outside());
    Ok([
        dialler(Asker::BridgePod, bridge.client(), inside(bridge.netns()))?,
        dialler(Asker::VethPod, veth.client(), inside(veth.netns()))?,
        dialler(Asker::Host, stage.host().clone(), None)?,
        dialler(Asker::Outside, outside.client(), inside(outside.netns()))?,
    ])
}

fn described(service: &Service, services: &lb_tests::stage::Services) -> String {
    match &service.name {
        name if *name == services.here.name => "endpoints on this node".to_owned(),
        name if *name == services.there.name => "endpoints on the other node".to_owned(),
        _ => "endpoints that change".to_owned(),
    }
}
