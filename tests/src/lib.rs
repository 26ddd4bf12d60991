//! The harness of lb-agent's tests: networks out of namespaces, the real agent in them, the real control plane beside
//! them, and connections and packets to judge both by.
//!
//! In reading order:
//!
//! * [`netns`], [`netlink`], [`ethtool`]: a network namespace as a value, and the links in it.
//! * [`cgroup`], [`bpffs`], [`process`]: what else a node's processes live in, and how they are started there.
//! * [`owner`], [`interrupt`]: nothing is left behind, however a program ends.
//! * [`kernel`], [`plane`], [`patience`]: what the kernel has not, what is under test, and how slow the machine is.
//! * [`network`]: the topology. Two nodes, pods on bridges and on links of their own, a tunnel, a client outside.
//! * [`tun`]: a link without Ethernet header.
//! * [`server`], [`place`], [`client`]: who answers, where sockets are made, who asks.
//! * [`packet`], [`capture`], [`sniffer`]: single packets, made, caught and verified.
//! * [`flood`]: as many packets as the kernel can make.
//! * [`rerun`]: a program over and over, each time with a packet as it came.
//! * [`fuzz`]: a great many packets, made up, through the programs alone.
//! * [`manifests`], [`source`], [`controlplane`]: objects, and where agents have them from.
//! * [`relay`]: one API server for networks that do not meet.
//! * [`agent`], [`usage`], [`http`], [`exposition`]: the agent under test, what it uses and what it tells.
//! * [`ipvs`], [`nft`], [`without_bpf`]: what the kernel's IPVS and packet filter hold, and a process that may load no
//!   program.
//! * [`container`]: the agent in its image, with what a container runtime leaves it.
//! * [`hooks`], [`foreign`], [`churn`]: programs on links, those of others, and links that come and go fast.
//! * [`stage`], [`matrix`]: all of that together, and every kind of connection in it. The demo and tests share these.
//!
//! ```no_run
//! use lb_tests::agent::{Agent, Options};
//! use lb_tests::client::Protocol;
//! use lb_tests::manifests::Service;
//! use lb_tests::network::{Attachment, Network};
//! use lb_tests::source::Source;
//!
//! # fn main() -> anyhow::Result<()> {
//! let network = Network::new()?;
//! let client = network.node1().add_pod("client", Attachment::Bridge)?;
//! let backend = network.node2().add_pod("backend", Attachment::Veth)?;
//! let _server = backend.serve(8080)?;
//!
//! let web = Service::new("web", 1, 8080).with_endpoints([&backend]);
//! let source = Source::folder()?;
//! source.apply(&web.manifests()?)?;
//! let _agent = Agent::start(network.node1(), &source, &Options::default())?;
//!
//! let answer = client.client().ask(Protocol::Tcp, (web.cluster_ips[0], 80).into())?;
//! assert_eq!(answer.server, "backend");
//! # Ok(())
//! # }
//! ```

pub mod agent;
pub mod bpffs;
pub mod capture;
pub mod cgroup;
pub mod churn;
pub mod client;
pub mod container;
pub mod controlplane;
pub mod ethtool;
pub mod exposition;
pub mod flood;
pub mod foreign;
pub mod fuzz;
pub mod hooks;
pub mod http;
pub mod interrupt;
pub mod ipvs;
pub mod kernel;
pub mod manifests;
pub mod matrix;
pub mod netlink;
pub mod netns;
pub mod network;
pub mod nft;
pub mod owner;
pub mod packet;
pub mod patience;
pub mod place;
pub mod plane;
pub mod process;
mod raw_bpf;
pub mod relay;
pub mod rerun;
mod runtime;
pub mod sandbox;
pub mod server;
pub mod sniffer;
pub mod source;
pub mod stage;
pub mod tun;
pub mod usage;
pub mod without_bpf;
