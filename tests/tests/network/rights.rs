//! The rights that the shipped DaemonSet gives the agent are enough, on each kernel.

use k8s_openapi::api::apps::v1::DaemonSet;
use lb_tests::kernel::Feature;
use lb_tests::plane::{Plane, other_than};

use crate::fallback::{is_served_by, with_capabilities};

/// What comes to a cluster.
const MANIFEST: &str = include_str!("../../../deploy/lb-agent.yaml");

/// The capabilities of its container, which is not privileged.
fn shipped() -> Vec<String> {
    let is_daemon_set = |document: &&str| document.contains("\nkind: DaemonSet\n");
    let document = MANIFEST.split("\n---\n").find(is_daemon_set).unwrap();
    let daemon_set: DaemonSet = serde_saphyr::from_str(document).unwrap();
    let pod = daemon_set.spec.unwrap().template.spec.unwrap();
    let context = pod.containers[0].security_context.clone().unwrap();
    assert_eq!(context.privileged, None);
    let capabilities = context.capabilities.unwrap();
    assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
    capabilities.add.unwrap()
}

#[test]
fn with_the_shipped_rights_every_client_is_served_by_programs() {
    if other_than(Plane::Ebpf, "IPVS takes a privileged container, for its sysctls") {
        return;
    }
    let mut rights = shipped();
    if !Feature::MapMemory.is_there().unwrap() {
        // As docs/operations.md has it of such kernels.
        rights.push("SYS_RESOURCE".to_owned());
    }
    let rights: Vec<_> = rights.iter().map(|name| format!("+{}", name.to_lowercase())).collect();
    is_served_by("ebpf", with_capabilities(&rights.join(",")));
}
