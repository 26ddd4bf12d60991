//! Which endpoints a service port has, and which of them are used.

use super::*;

/// The endpoints of a Service with these slices, as the lines write them.
fn endpoints(slices: Vec<EndpointSlice>) -> String {
    let state = state(vec![service("web", &["10.96.0.1"])], slices);
    let lines = lines(&state);
    let [line] = lines.as_slice() else {
        panic!("one frontend expected: {lines:?}");
    };
    line.split_once("WhereNeeded: ")
        .map_or("", |(_, endpoints)| endpoints)
        .to_owned()
}

#[test]
fn ready_endpoints_are_used_and_others_are_kept_for_their_flows() {
    assert_eq!(
        endpoints(vec![slice(
            "web-1",
            "web",
            &[
                here("10.0.0.1"),
                elsewhere("10.0.1.1"),
                endpoint("10.0.1.2", Placement::Elsewhere, not_ready()),
                endpoint("10.0.1.3", Placement::Elsewhere, serving_terminating()),
            ],
        )]),
        "10.0.0.1:8080[CLN] 10.0.1.1:8080[C] 10.0.1.2:8080[] 10.0.1.3:8080[]"
    );
}

#[test]
fn without_a_ready_one_those_that_serve_while_terminating_are_used() {
    assert_eq!(
        endpoints(vec![slice(
            "web-1",
            "web",
            &[
                endpoint("10.0.0.1", Placement::Here, serving_terminating()),
                endpoint("10.0.1.1", Placement::Elsewhere, serving_terminating()),
                endpoint("10.0.1.2", Placement::Elsewhere, not_ready()),
            ],
        )]),
        "10.0.0.1:8080[CLN] 10.0.1.1:8080[C] 10.0.1.2:8080[]"
    );
}

#[test]
fn this_node_falls_back_by_itself() {
    // The cluster has a ready one, so that the one here is only used where the policy is Local.
    assert_eq!(
        endpoints(vec![slice(
            "web-1",
            "web",
            &[
                endpoint("10.0.0.1", Placement::Here, serving_terminating()),
                elsewhere("10.0.1.1"),
            ],
        )]),
        "10.0.0.1:8080[LN] 10.0.1.1:8080[C]"
    );
}

#[test]
fn every_combination_of_conditions() {
    let table = [
        // ready, serving, terminating → used
        (None, None, None, true),
        (Some(true), None, None, true),
        (Some(true), Some(true), Some(true), true),
        (Some(true), Some(false), None, true),
        (None, Some(false), Some(true), true),
        (Some(false), Some(true), Some(true), true),
        (Some(false), None, Some(true), true),
        (Some(false), Some(true), None, false),
        (Some(false), Some(true), Some(false), false),
        (Some(false), Some(false), Some(true), false),
        (Some(false), None, None, false),
        (Some(false), Some(false), None, false),
    ];
    for (ready, serving, terminating, used) in table {
        let conditions = Conditions::new(ready, serving, terminating);
        let slices = vec![slice(
            "web-1",
            "web",
            &[endpoint("10.0.1.1", Placement::Elsewhere, conditions)],
        )];
        let expected = if used { "10.0.1.1:8080[C]" } else { "10.0.1.1:8080[]" };
        assert_eq!(endpoints(slices), expected, "{conditions:?}");
    }
}

#[test]
fn an_address_in_two_slices_counts_once_and_the_serving_one_wins() {
    let old = endpoint("10.0.1.1", Placement::Elsewhere, serving_terminating());
    let new = elsewhere("10.0.1.1");
    for both in [[old.clone(), new.clone()], [new, old]] {
        assert_eq!(
            endpoints(vec![
                slice("web-1", "web", &both[..1]),
                slice("web-2", "web", &both[1..])
            ]),
            "10.0.1.1:8080[C]"
        );
        assert_eq!(endpoints(vec![slice("web-1", "web", &both)]), "10.0.1.1:8080[C]");
    }
}

#[test]
fn a_new_pod_speaks_for_an_address_that_a_terminating_one_still_has() {
    let leaving = endpoint("10.0.1.1", Placement::Elsewhere, serving_terminating());
    let starting = endpoint("10.0.1.1", Placement::Here, not_ready());
    for slices in [[leaving.clone(), starting.clone()], [starting, leaving]] {
        assert_eq!(endpoints(vec![slice("web-1", "web", &slices)]), "10.0.1.1:8080[N]");
    }
}

#[test]
fn slices_may_have_different_numbers_for_one_port() {
    let web =
        |name, number, address| slice_with_ports(name, "web", &[("", Protocol::Tcp, number)], &[elsewhere(address)]);
    assert_eq!(
        endpoints(vec![web("web-1", 8080, "10.0.1.1"), web("web-2", 9090, "10.0.1.2")]),
        "10.0.1.1:8080[C] 10.0.1.2:9090[C]"
    );
}

#[test]
fn ports_are_matched_by_name_and_protocol() {
    let dns = Service {
        ports: ports(&[
            ("dns", Protocol::Udp, 53, None),
            ("dns-tcp", Protocol::Tcp, 53, None),
            ("metrics", Protocol::Tcp, 9153, None),
        ]),
        ..service("dns", &["10.96.0.10"])
    };
    let slices = vec![slice_with_ports(
        "dns-1",
        "dns",
        &[
            ("dns", Protocol::Udp, 5353),
            ("dns-tcp", Protocol::Tcp, 5354),
            // Right name, wrong protocol.
            ("metrics", Protocol::Udp, 9153),
        ],
        &[elsewhere("10.0.1.1")],
    )];
    assert_eq!(
        lines(&state(vec![dns], slices)),
        [
            "10.96.0.10:53/UDP near=Cluster far=Cluster WhereNeeded: 10.0.1.1:5353[C]",
            "10.96.0.10:53/TCP near=Cluster far=Cluster WhereNeeded: 10.0.1.1:5354[C]",
            "10.96.0.10:9153/TCP near=Reject far=Reject WhereNeeded:",
        ]
    );
}

#[test]
fn each_family_has_the_endpoints_of_its_slices() {
    let state = state(
        vec![service("web", &["10.96.0.1", "fd00:96::1"])],
        vec![
            slice("web-4", "web", &[elsewhere("10.0.1.1")]),
            slice("web-6", "web", &[here("fd00::1")]),
        ],
    );
    assert_eq!(
        lines(&state),
        [
            "10.96.0.1:80/TCP near=Cluster far=Cluster WhereNeeded: 10.0.1.1:8080[C]",
            "[fd00:96::1]:80/TCP near=Cluster far=Cluster WhereNeeded: [fd00::1]:8080[CLN]",
        ]
    );
}

#[test]
fn endpoints_of_a_family_without_cluster_ip_are_not_served() {
    let state = state(
        vec![service("web", &["10.96.0.1"])],
        vec![slice("web-6", "web", &[here("fd00::1")])],
    );
    assert_eq!(lines(&state), ["10.96.0.1:80/TCP near=Reject far=Reject WhereNeeded:"]);
}

#[test]
fn slices_of_another_service_or_namespace_do_not_count() {
    let foreign = EndpointSlice::new(
        ObjectName::new("elsewhere", "web-1"),
        "web".into(),
        Family::V4,
        vec![EndpointPort {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: number(8080),
        }],
    );
    assert_eq!(
        endpoints(vec![slice("other-1", "other", &[here("10.0.0.1")]), foreign]),
        ""
    );
}
