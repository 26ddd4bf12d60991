//! Objects from a kube-apiserver: a watch for each kind, for as long as the agent runs.

mod backoff;
mod client;
mod connection;
mod events;
mod own_service;
mod pace;
mod server_url;
mod watch;
mod watches;

pub use client::{ApiServer, ApiServerOptions};
pub use events::{NodeEvent, tell};
pub use own_service::Loop;
pub use server_url::ServerUrl;
pub use watches::{Outage, WatchState, Watches};

use kube::runtime::watcher;
use tokio::{sync::mpsc, task::JoinSet};

use self::{connection::Outages, watch::Watch};
use super::{Batch, Skipped, decode::HEADLESS};
use crate::model::{AnyService, EndpointSlice, Node, Pod, ServiceCidr};

/// Whether the pods of the node are watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pods {
    /// They are asked what they say of their sockets.
    Asked,
    /// They are none of our business.
    Ignored,
}

/// Watches what a service proxy on the node `this_node` reads, and nothing else: Services, those of
/// another proxy among them, slices that are not of a headless Service, the node's own object, and the
/// networks of ClusterIPs; and the node's pods, where they are asked whether their sockets may be translated. How it
/// goes is told to `watches`, and what makes no sense to `skipped`.
pub fn watch(
    server: &ApiServer,
    this_node: &str,
    pods: Pods,
    batches: &mpsc::Sender<Batch>,
    watches: &Watches,
    skipped: &Skipped,
) -> JoinSet<()> {
    let slices = format!("!{HEADLESS}");
    let node = format!("metadata.name={this_node}");

    let outages = Outages::new(server.url().to_owned(), watches.clone());
    let mut tasks = JoinSet::new();
    macro_rules! spawn {
        ($kind:ty, $config:expr) => {
            let watch = Watch::<$kind>::new(
                server,
                $config,
                this_node,
                batches.clone(),
                outages.clone(),
                watches.clone(),
                skipped.clone(),
            );
            tasks.spawn(watch.run());
        };
    }
    spawn!(AnyService, watcher::Config::default());
    spawn!(EndpointSlice, watcher::Config::default().labels(&slices));
    spawn!(Node, watcher::Config::default().fields(&node));
    spawn!(ServiceCidr, watcher::Config::default());
    if pods == Pods::Asked {
        let here = format!("spec.nodeName={this_node}");
        spawn!(Pod, watcher::Config::default().fields(&here));
    }
    tasks
}
