//! The two sides: each a copy of the network and a proxy in it. The API server of both is in ours.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use lb_tests::agent::{self, Agent};
use lb_tests::controlplane::{ControlPlane, KubeProxy, Mode};
use lb_tests::network::plan;
use lb_tests::relay::Relay;
use lb_tests::source::Source;

use super::objects;
use super::probe::Entry;
use super::settings::Settings;
use super::twin::Twin;
use crate::progress::Step;

/// The API server's port in the namespace of its network's switch.
const API_PORT: u16 = 6443;

/// The side of lb-agent. Fields are dropped in their order.
#[derive(Debug)]
pub(crate) struct Ours {
    pub(crate) agent: Agent,
    source: Source,
    pub(crate) twin: Twin,
}

impl Ours {
    /// Builds it, writes the objects, and starts lb-agent with these arguments.
    pub(crate) fn start(entries: &[Entry], agent_args: &[String]) -> Result<Self> {
        let step = Step::start("the network for lb-agent: two nodes, pods, a client outside");
        let twin = Twin::build()?;
        step.done();
        let step = Step::start("etcd and kube-apiserver");
        let source = Source::api_server(twin.network())?;
        step.done();
        objects::create(entries, &twin, &source)?;
        let step = Step::start("lb-agent: loading programs, reading objects, programming them");
        let options = agent::Options {
            args: agent_args.iter().map(Into::into).collect(),
            ..agent::Options::default()
        };
        let agent = Agent::start(twin.network().node1(), &source, &options)?;
        step.done();
        Ok(Self { agent, source, twin })
    }

    /// The API server.
    pub(crate) fn cluster(&self) -> Result<&ControlPlane> {
        match &self.source {
            Source::ApiServer(cluster) => Ok(cluster),
            Source::Folder(_) => bail!("kube-proxy reads no folder"),
        }
    }
}

/// The side of kube-proxy. Fields are dropped in their order.
#[derive(Debug)]
pub(crate) struct Theirs {
    pub(crate) proxy: KubeProxy,
    _relay: Relay,
    pub(crate) twin: Twin,
}

impl Theirs {
    /// Builds it, and starts kube-proxy, which reads the objects of ours.
    pub(crate) fn start(mode: Mode, settings: &Settings, ours: &Ours) -> Result<Self> {
        let step = Step::start(format!("the same network for kube-proxy in {} mode", mode.word()));
        let twin = Twin::build()?;
        let api = (plan::SWITCH_V4, API_PORT).into();
        let relay = Relay::start(twin.network().switch(), Arc::clone(ours.twin.network().switch()), api)?;
        step.done();
        let step = Step::start("kube-proxy: reading objects, programming them");
        let node = twin.network().node1();
        let proxy = KubeProxy::start(node, ours.cluster()?, &settings.of_kube_proxy(mode))
            .with_context(|| format!("kube-proxy in {} mode", mode.word()))?;
        step.done();
        Ok(Self {
            proxy,
            _relay: relay,
            twin,
        })
    }
}
