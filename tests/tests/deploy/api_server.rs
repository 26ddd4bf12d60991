//! What comes to a cluster, before a real API server.

use std::fs;

use lb_tests::controlplane::{ControlPlane, Options};

use crate::chart::EVERYTHING;
use crate::helm::{file, render};

#[test]
fn an_api_server_takes_what_is_rendered_and_knows_each_field() {
    let cluster = ControlPlane::start(&Options::default()).unwrap();
    let privileged = ["--set=privileged=true", "--set=plane=ipvs", "--set=setSysctls=true"];
    for values in [&[][..], &EVERYTHING, &privileged] {
        let text = render(values).unwrap().text;
        cluster
            .try_apply(&text)
            .unwrap_or_else(|error| panic!("{values:?}: {error:#}"));
    }
    for manifest in ["deploy/rbac.yaml", "deploy/lb-agent.yaml"] {
        let text = fs::read_to_string(file(manifest)).unwrap();
        cluster
            .try_apply(&text)
            .unwrap_or_else(|error| panic!("{manifest}: {error:#}"));
    }

    let with_a_slip = render(&[]).unwrap().text.replace("hostNetwork:", "hostNet:");
    let error = cluster.try_apply(&with_a_slip).unwrap_err().to_string();
    assert!(error.contains("hostNet"), "{error}");
    // What the chart leaves out beside all rights, since this is what a server says of it.
    let contradictory = [
        &privileged[..],
        &["--set=securityContext.allowPrivilegeEscalation=false"],
    ]
    .concat();
    let error = cluster.try_apply(&render(&contradictory).unwrap().text).unwrap_err();
    assert!(error.to_string().contains("allowPrivilegeEscalation"), "{error}");
    let found = cluster.kubectl(&["get", "daemonsets", "--all-namespaces", "-o", "name"]);
    assert_eq!(found.unwrap(), "", "it was only to look at them");
}
