//! What the agent is told to do: by flags, by the environment, by a file.
//!
//! There is one list of settings ([`Settings`]). Each is a flag (`--max-services`), a variable of the environment
//! (`LB_AGENT_MAX_SERVICES`) and a field of the file given by `--config` (`maxServices`). The flag
//! comes first, then the environment, then the file, then the default ([`Config`]). kube-proxy's flags and its
//! file say the same settings in other words ([`kube_proxy`]).

mod arguments;
mod bind_address;
mod detect_local;
mod given;
pub mod kube_proxy;
mod planes;
#[cfg(test)]
mod reference;
mod resolved;
mod settings;
#[cfg(test)]
mod tests;
mod values;

pub use self::{
    arguments::{Arguments, Layers},
    bind_address::{BindAddress, InvalidBindAddress},
    detect_local::DetectLocalMode,
    given::Given,
    resolved::{Config, DEFAULT_BPFFS, DEFAULT_RUN_DIR, IpvsSettings, Source},
    settings::Settings,
    values::{
        Algorithm, InvalidMark, InvalidTableSize, InvalidTime, LogFormat, LogLevel, Mark, Snat, SocketLb, TableSize,
        Time,
    },
};

/// The port of `/healthz` that load balancers expect.
const HEALTHZ_PORT: u16 = 10256;
/// The port of kube-proxy's `/metrics`.
const METRICS_PORT: u16 = 10249;
