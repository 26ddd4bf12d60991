//! What is shipped to be installed, before a real API server.

use lb_tests::controlplane::{ControlPlane, Options};

const MANIFESTS: [(&str, &str); 2] = [
    ("deploy/rbac.yaml", include_str!("../../../deploy/rbac.yaml")),
    ("deploy/daemonset.yaml", include_str!("../../../deploy/daemonset.yaml")),
];

#[test]
fn an_api_server_takes_the_manifests_and_knows_each_field() {
    let cluster = ControlPlane::start(&Options::default()).unwrap();
    for (name, manifest) in MANIFESTS {
        cluster
            .try_apply(manifest)
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
    let with_a_slip = MANIFESTS[1].1.replace("hostNetwork:", "hostNet:");
    let error = cluster.try_apply(&with_a_slip).unwrap_err().to_string();
    assert!(error.contains("hostNet"), "{error}");
    let found = cluster.kubectl(&["get", "daemonsets", "--all-namespaces", "-o", "name"]);
    assert_eq!(found.unwrap(), "", "it was only to look at them");
}
