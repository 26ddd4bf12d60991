//! What a plane leaves in the kernel when another takes its place.

use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tokio::{task::spawn_blocking, time::sleep};

use super::{PlaneName, ebpf, ipvs};

/// When to try again to remove it. An agent of the other plane may be about to end.
const RETRY: Duration = Duration::from_secs(30);

/// How long what another plane has open may go on with it. No plane can take over what another translates, but most
/// connections are short.
const DRAIN: Duration = Duration::from_secs(5);

/// Removes every trace of a plane, as a person asks for; what BPF has pinned is under `bpffs`. Says what it removed.
///
/// # Errors
/// Something stays, or an agent runs that holds it.
pub fn clean_up(plane: PlaneName, bpffs: &Path) -> anyhow::Result<Vec<String>> {
    match plane {
        PlaneName::Ebpf => ebpf::cleanup(bpffs),
        PlaneName::Ipvs => ipvs::cleanup(),
    }
}

/// Lets somebody else who serves this node already, such as kube-proxy, have whoever connects from now on. What is open
/// goes on for a moment, in which most of it ends; whoever is asked something by UDP just then is answered.
///
/// # Errors
/// An agent runs, or what it has left in `bpffs` cannot be changed.
pub fn hand_over(bpffs: &Path) -> anyhow::Result<()> {
    // Rules of a kube-proxy come before IPVS.
    if ebpf::retire(bpffs)? {
        thread::sleep(DRAIN);
    }
    Ok(())
}

/// Removes what other planes than the chosen one left. To be called once that serves everybody: until then whoever
/// it does not reach is served by the other. Returns when nothing is left, and tries until then.
pub async fn remove_leftovers(chosen: PlaneName, bpffs: PathBuf) {
    for plane in PlaneName::ALL.into_iter().filter(|plane| *plane != chosen) {
        let mut told = None;
        loop {
            match drained_and_removed(plane, &bpffs).await {
                Ok(removed) => {
                    if !removed.is_empty() {
                        tracing::info!(
                            count = removed.len(),
                            "removed what {plane} had left: {chosen} serves now"
                        );
                        tracing::debug!(?removed, "removed what {plane} had left");
                    }
                    break;
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    if told.as_ref() != Some(&error) {
                        tracing::warn!("what {plane} has left in the kernel stays for now: {error}");
                        told = Some(error);
                    }
                }
            }
            sleep(RETRY).await;
        }
    }
}

/// New connections are the chosen plane's before the other's go.
async fn drained_and_removed(plane: PlaneName, bpffs: &Path) -> anyhow::Result<Vec<String>> {
    let folder = bpffs.to_owned();
    match plane {
        PlaneName::Ebpf => drop(spawn_blocking(move || ebpf::retire(&folder)).await??),
        // BPF is there before IPVS, on links as at sockets.
        PlaneName::Ipvs => {}
    }
    sleep(DRAIN).await;
    let folder = bpffs.to_owned();
    spawn_blocking(move || match plane {
        PlaneName::Ebpf => ebpf::remove_leftovers(&folder),
        PlaneName::Ipvs => ipvs::cleanup(),
    })
    .await?
}
