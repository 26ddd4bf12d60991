//! Tells everybody which plane serves, and why: the log, the status, the Node object.

use tokio::{sync::watch, time::sleep};

use crate::{
    kube_proxy::active::{self, Evidence},
    objects::kube::{self, ApiServer, NodeEvent, Outage},
    plane::choice::{Choice, Reason},
    status::{Progress, StatusFile},
};

/// Tells of a choice that has just been made. `source` is where objects come from, with the server to tell if it is one.
pub(super) fn announce(choice: &Choice, node: &str, source: &str, server: Option<&ApiServer>, status: &StatusFile) {
    let Choice { plane, reason } = choice;
    if matches!(reason, Reason::Fallback { .. }) {
        tracing::warn!("falling back to {plane}: {reason}; `lb-agent probe` says what to do about it");
    }
    tracing::info!(node, source, plane = plane.word(), %reason, "started");
    status.update(|status| status.plane = Some(choice.clone()));
    if let Some(server) = server {
        tokio::spawn(kube::tell(server.clone(), node.to_owned(), event(choice)));
    }
}

/// Keeps the status up to date for as long as the agent tells of its progress.
pub(super) async fn keep_status(status: StatusFile, mut progress: watch::Receiver<Progress>) {
    while progress.changed().await.is_ok() {
        let progress = progress.borrow_and_update().clone();
        status.update(|status| status.progress = progress);
    }
}

/// Keeps in the status whether the API server can be watched.
pub(super) async fn tell_outages(status: StatusFile, mut outage: watch::Receiver<Option<Outage>>) {
    loop {
        let now = outage.borrow_and_update().clone();
        status.update(|status| status.outage = now);
        if outage.changed().await.is_err() {
            return;
        }
    }
}

/// Says, in the log and on the Node, whenever kube-proxy is found to run beside the agent.
pub(super) async fn warn_of_kube_proxy(node: String, server: Option<ApiServer>) {
    let mut was_active = false;
    loop {
        // It reads files and waits for an answer.
        let evidence = match tokio::task::spawn_blocking(active::look).await {
            Ok(evidence) => evidence,
            Err(error) => {
                tracing::warn!("whether kube-proxy runs is not known: {error}");
                return;
            }
        };
        match &evidence {
            Some(evidence) if !was_active => {
                let event = kube_proxy_event(evidence);
                tracing::warn!("{}", event.note);
                if let Some(server) = &server {
                    tokio::spawn(kube::tell(server.clone(), node.clone(), event));
                }
            }
            None if was_active => tracing::info!("kube-proxy does not run any more"),
            Some(_) | None => {}
        }
        was_active = evidence.is_some();
        sleep(active::INTERVAL).await;
    }
}

fn kube_proxy_event(evidence: &Evidence) -> NodeEvent {
    NodeEvent {
        is_warning: true,
        reason: "KubeProxyActive",
        action: "WatchKubeProxy",
        note: format!(
            "kube-proxy runs on this node beside lb-agent ({evidence}), and both translate the same packets: stop it, \
             then remove what it leaves with `lb-agent cleanup --kube-proxy`"
        ),
    }
}

fn event(choice: &Choice) -> NodeEvent {
    let Choice { plane, reason } = choice;
    let is_fallback = matches!(reason, Reason::Fallback { .. });
    NodeEvent {
        is_warning: is_fallback,
        reason: if is_fallback { "PlaneFellBack" } else { "PlaneChosen" },
        action: "ChoosePlane",
        note: format!("lb-agent serves with {plane}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::PlaneName;

    #[test]
    fn who_looks_at_the_node_is_warned_of_a_fallback_alone() {
        let chosen = event(&Choice {
            plane: PlaneName::Ebpf,
            reason: Reason::Preferred,
        });
        assert_eq!((chosen.is_warning, chosen.reason), (false, "PlaneChosen"));
        assert_eq!(
            chosen.note,
            "lb-agent serves with ebpf: this node can do all that it needs"
        );
        let fell_back = event(&Choice {
            plane: PlaneName::Ipvs,
            reason: Reason::Fallback {
                missing: vec!["cgroup: none".to_owned()],
            },
        });
        assert_eq!((fell_back.is_warning, fell_back.reason), (true, "PlaneFellBack"));
        assert_eq!(
            fell_back.note,
            "lb-agent serves with ipvs: this node cannot run ebpf: cgroup: none"
        );
    }
}
