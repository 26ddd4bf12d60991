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

/// What each place says, before the ones take precedence over the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layers {
    /// Our own flags and variables.
    pub own: Settings,
    /// kube-proxy's flags.
    pub kube_proxy: Given,
    /// The file.
    pub file: Given,
}

impl Arguments {
    /// All settings with their defaults, and what was given that does nothing here.
    ///
    /// # Errors
    /// The file cannot be read, or something makes no sense or must not be passed over.
    pub fn resolve(self) -> anyhow::Result<(Config, Vec<String>)> {
        self.layers()?.resolve()
    }

    /// What each place says.
    ///
    /// # Errors
    /// The file cannot be read, or something in one place makes no sense or must not be passed over.
    pub fn layers(self) -> anyhow::Result<Layers> {
        let file = match &self.config {
            Some(path) => Given::read(path)?,
            None => Given::default(),
        };
        let mut layers = Layers {
            own: self.settings,
            kube_proxy: self.kube_proxy.given()?,
            file,
        };
        layers.choose_plane();
        Ok(layers)
    }
}

impl Layers {
    /// All settings with their defaults, and what was given that does nothing here.
    ///
    /// # Errors
    /// Settings of several places make no sense together.
    pub fn resolve(self) -> anyhow::Result<(Config, Vec<String>)> {
        let config = Config::new(self.settings())?;
        Ok((config, [self.kube_proxy.warnings, self.file.warnings].concat()))
    }

    /// What all of them come to.
    fn settings(&self) -> Settings {
        let Self { own, kube_proxy, file } = self.clone();
        own.or(kube_proxy.settings)
            .or(file.settings)
            .or(kube_proxy.implied)
            .or(file.implied)
    }

    /// Only IPVS has schedulers. Without one it is nothing to clients which of the planes serves them.
    fn choose_plane(&mut self) {
        let settings = self.settings();
        if self.kube_proxy.mode.or(self.file.mode) == Some(kube_proxy::Mode::Ipvs)
            && settings.plane.is_none()
            && let Some(scheduler) = settings.ipvs_scheduler.filter(|name| *name != Scheduler::RoundRobin)
        {
            self.file.implied.plane = Some(Wanted::Ipvs);
            self.file.warnings.push(format!(
                "mode ipvs with the scheduler {scheduler}: this node is served by IPVS, which alone has schedulers; \
                 give --plane to choose"
            ));
        }
    }
}
