//! Which links of this network namespace have programs of ours, as the kernel tells, whether an agent runs or not.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use super::{
    chain::{Attached, Chain},
    drain,
    link_hooks::is_gone,
    pins::Pins,
    sys::Direction,
};
use crate::kernel::{capabilities, links};

/// A link, and what is on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedLink {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Index of the bridge or other link that it is a port of.
    pub master: Option<u32>,
    /// What meets packets that come in from it.
    pub ingress: Hook,
    /// What meets packets that go out to it.
    pub egress: Hook,
    /// The other service proxy that has programs on it.
    pub proxy: Option<&'static str>,
}

/// One direction of a link.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Our program.
    pub program: Option<Attached>,
    /// Those of an earlier agent before it, which go on with the flows that they have and begin none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub draining: Vec<Attached>,
    /// Programs of others that see packets before ours.
    pub before: Vec<String>,
}

impl ServedLink {
    /// Whether it has any program of ours.
    #[must_use]
    pub const fn is_served(&self) -> bool {
        self.ingress.program.is_some() || self.egress.program.is_some()
    }

    /// What is not as it should be.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match (&self.ingress.program, &self.egress.program) {
            (Some(_), None) => {
                problems.push("no program where packets go out: answers keep the backend's address".into())
            }
            (None, Some(_)) => problems.push("no program where packets come in: services are not served there".into()),
            (Some(_), Some(_)) | (None, None) => {}
        }
        for (hook, name) in [(&self.ingress, "ingress"), (&self.egress, "egress")] {
            if !hook.before.is_empty() {
                problems.push(format!("before ours at {name}: {}", hook.before.join(", ")));
            }
        }
        problems
    }
}

/// Every link but the loopback, in the order of their names.
///
/// # Errors
/// The kernel does not tell, or not to this process.
pub fn links(bpffs: &Path) -> anyhow::Result<Vec<ServedLink>> {
    capabilities::check_to_read()?;
    let pins = Pins::new(bpffs)?;
    let side = drain::side(&pins)?.unwrap_or(0);
    let mut served = Vec::new();
    for facts in links::list().context("cannot list links")? {
        if facts.is_loopback {
            continue;
        }
        let chains = Direction::ALL.map(|direction| Chain::read(&pins, side, facts.index, direction));
        let [ingress, egress] = match chains {
            [Ok(ingress), Ok(egress)] => [ingress, egress],
            // It went in the meantime.
            [Err(error), _] | [_, Err(error)] if is_gone(&error) => continue,
            [Err(error), _] | [_, Err(error)] => {
                return Err(error).with_context(|| format!("cannot read the programs on link {}", facts.name));
            }
        };
        let proxy = [&ingress, &egress].into_iter().find_map(|chain| chain.proxy());
        served.push(ServedLink {
            index: facts.index,
            name: facts.name,
            master: facts.master,
            ingress: Hook::new(&ingress),
            egress: Hook::new(&egress),
            proxy: proxy.map(|(name, _)| name),
        });
    }
    served.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(served)
}

impl Hook {
    fn new(chain: &Chain) -> Self {
        Self {
            program: chain.ours(),
            draining: chain.draining(),
            before: chain.before_ours(),
        }
    }
}
