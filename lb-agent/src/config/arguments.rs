//! The arguments of the verbs that are told how to run.

use std::path::PathBuf;

use super::{Config, Given, Settings, kube_proxy};
use crate::{kernel::ipvs::Scheduler, plane::choice::Wanted};

/// Settings, as the command line and the environment have them, and the file that has the others.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Settings that are not given as flags or in the environment, as YAML: in the fields of lb-agent, or a
    /// KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1)
    #[arg(long, value_name = "FILE", env = "LB_AGENT_CONFIG")]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,

    #[command(flatten)]
    kube_proxy: kube_proxy::Flags,
}

impl Arguments {
    /// All settings with their defaults, and what was given that does nothing here.
    ///
    /// # Errors
    /// The file cannot be read, or something makes no sense or must not be passed over.
    pub fn resolve(self) -> anyhow::Result<(Config, Vec<String>)> {
        let flags = self.kube_proxy.given()?;
        let file = match &self.config {
            Some(path) => Given::read(path)?,
            None => Given::default(),
        };
        let mut settings = self
            .settings
            .or(flags.settings)
            .or(file.settings)
            .or(flags.implied)
            .or(file.implied);
        let mut warnings = [flags.warnings, file.warnings].concat();
        // Only IPVS has schedulers. Without one it is nothing to clients which of the planes serves them.
        if flags.mode.or(file.mode) == Some(kube_proxy::Mode::Ipvs)
            && settings.plane.is_none()
            && let Some(scheduler) = settings.ipvs_scheduler.filter(|name| *name != Scheduler::RoundRobin)
        {
            settings.plane = Some(Wanted::Ipvs);
            warnings.push(format!(
                "mode ipvs with the scheduler {scheduler}: this node is served by IPVS, which alone has schedulers; \
                 give --plane to choose"
            ));
        }
        Ok((Config::new(settings)?, warnings))
    }
}
