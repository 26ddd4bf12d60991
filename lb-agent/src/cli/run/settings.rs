//! The settings of the kernel, named where they are not as they must be, or set.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
};

use tokio::sync::watch;

use crate::{
    desired::Family,
    kernel::{
        links::Link,
        sysctls::{self, Finding, Severity},
    },
};

/// What becomes of settings that are not as they must be.
#[derive(Clone, Debug)]
pub(super) struct Sysctls {
    /// They are set, not only named.
    pub(super) may_set: bool,
    /// Where those that are set are written down.
    pub(super) run_dir: PathBuf,
}

impl Sysctls {
    /// Looks at those of a family as soon as it has a service.
    pub(super) async fn check(self, mut served: watch::Receiver<BTreeSet<Family>>) {
        let mut checked = BTreeSet::new();
        while served.changed().await.is_ok() {
            let families: BTreeSet<Family> = served.borrow_and_update().clone();
            let new: Vec<Family> = families.difference(&checked).copied().collect();
            checked = families;
            self.tell_or_set(sysctls::check(&new));
        }
    }

    /// The same for what depends on the links by which packets of services come in, as soon as IPv4 has a service.
    pub(super) async fn check_return_paths(
        self,
        mut served: watch::Receiver<BTreeSet<Family>>,
        mut links: watch::Receiver<BTreeMap<u32, Link>>,
    ) {
        if served
            .wait_for(|families| families.contains(&Family::V4))
            .await
            .is_err()
        {
            return;
        }
        let mut told = BTreeSet::new();
        loop {
            let known: Vec<Link> = links.borrow_and_update().values().cloned().collect();
            let findings = sysctls::check_links(&known).await.map(|mut findings| {
                findings.retain(|finding| told.insert(finding.name.clone()));
                findings
            });
            self.tell_or_set(findings);
            if links.changed().await.is_err() {
                return;
            }
        }
    }

    /// The same for what bridges carry past IPVS, as soon as there is a pod on a bridge and a service.
    pub(super) async fn check_bridges(
        self,
        mut served: watch::Receiver<BTreeSet<Family>>,
        mut port: watch::Receiver<Option<Link>>,
    ) {
        let port = match port.wait_for(Option::is_some).await {
            Ok(port) => port.clone(),
            Err(_) => return,
        };
        let port: Vec<Link> = port.into_iter().collect();
        let mut checked = BTreeSet::new();
        loop {
            let families: BTreeSet<Family> = served.borrow_and_update().clone();
            let new: Vec<Family> = families.difference(&checked).copied().collect();
            checked = families;
            self.tell_or_set(sysctls::check_bridges(&port, &new));
            if served.changed().await.is_err() {
                return;
            }
        }
    }

    /// Names what was found, or sets it.
    fn tell_or_set(&self, findings: io::Result<Vec<Finding>>) {
        let findings = match findings {
            Ok(findings) => findings,
            Err(error) => {
                tracing::warn!("the sysctls cannot be read: {error}");
                return;
            }
        };
        let (done, failed) = sysctls::set(&findings, self.may_set, &self.run_dir);
        for finding in &done {
            tracing::info!(sysctl = finding.name, before = finding.value, "set");
        }
        for (finding, error) in failed {
            tracing::warn!("{} cannot be set: {error}", finding.name);
        }
        for finding in findings.iter().filter(|finding| !done.contains(finding)) {
            match finding.severity {
                Severity::Problem => tracing::warn!("{finding}"),
                Severity::Note => tracing::info!("{finding}"),
            }
        }
    }
}
