//! What the settings mean for each plane.

use anyhow::Context as _;

use super::{Config, Snat, SocketLb};
use crate::{
    kernel::{cgroup, links::PodLinks},
    plane::{
        choice::PlaneOptions,
        ebpf::{EbpfOptions, Masquerading, PodSockets},
        ipvs::IpvsOptions,
    },
};

impl Config {
    /// How each plane is to run.
    ///
    /// # Errors
    /// It cannot be found out where cgroups are mounted.
    pub fn plane_options(&self) -> anyhow::Result<PlaneOptions> {
        let cgroup = match (self.socket_lb, &self.cgroup) {
            (SocketLb::Off, _) => None,
            (SocketLb::Host | SocketLb::All, Some(cgroup)) => Some(cgroup.clone()),
            (SocketLb::Host | SocketLb::All, None) => Some(cgroup::root().context("where cgroups are mounted")?),
        };
        let pod_sockets = match (self.socket_lb, &self.pod_links) {
            (SocketLb::Off | SocketLb::Host, _) => PodSockets::Left,
            (SocketLb::All, PodLinks::ByKind) if self.link_rules.is_empty() => PodSockets::TranslatedAsNear,
            (SocketLb::All, _) => PodSockets::Translated,
        };
        Ok(PlaneOptions {
            ebpf: EbpfOptions {
                bpffs: self.bpffs.clone(),
                cgroup,
                pod_sockets,
                masquerading: match self.snat {
                    Snat::Bpf => Masquerading::ByPrograms,
                    Snat::Kernel => Masquerading::ByKernel,
                },
                masquerade_mark: self.masquerade_mark,
                sizes: self.sizes,
                maglev_table: self.maglev_table,
                drain: self.drain,
                force_clsact: false,
            },
            ipvs: IpvsOptions {
                scheduler: self.ipvs.scheduler,
                strict_arp: self.ipvs.strict_arp,
                take_over: self.ipvs.take_over,
                run_dir: self.run_dir.clone(),
                masquerade_mark: self.masquerade_mark,
            },
        })
    }
}
