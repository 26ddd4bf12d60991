//! How this node's services are, for those who ask over HTTP, in kube-proxy's words.
//!
//! | where | who asks | says yes when |
//! |---|---|---|
//! | `/healthz` at port 10256 | load balancers, for Services of external traffic policy Cluster | changes reach the kernel, and the node is not about to go (KEP-3836) |
//! | `/livez` there | kubelet | changes reach the kernel |
//! | the healthCheckNodePort of a Service | load balancers, for external traffic policy Local | changes reach the kernel, and an endpoint is on this node |
//!
//! Yes is status 200, no is 503; the body says why. Servers end, with their connections, when the
//! future that serves them is dropped.

mod checks;
mod healthz;
mod proxy;

pub use checks::{Wanted, serve as serve_checks};
pub use healthz::serve as serve_healthz;
pub use proxy::ProxyHealth;

#[cfg(test)]
pub(crate) mod tests;
