//! Another proxy on the node, which serves what names it: here as rules of netfilter, which translate after our programs
//! on links have seen a packet.

use std::net::SocketAddr;

use lb_tests::client::{Failure, Outcome, Protocol};
use lb_tests::kernel::{Feature, lacks};
use lb_tests::manifests::{Manifest, Service};
use lb_tests::network::{Attachment, Node, Pod, plan};
use lb_tests::stage::TARGET;

use crate::fixture::{
    BOTH, BRIEFLY, World, add_rules, answerers, becomes, becomes_answered_by, cluster_ips, is_denied_to_host,
    is_silence, names, service_cidr,
};

const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// The number of an address that no Service has.
const UNALLOCATED: u8 = 99;

/// Has a node translate what is sent to port 80 of the Service, from links and from its own processes.
fn translate(node: &Node, service: &Service, backend: &Pod) {
    let rules = |chain: &str| {
        let to = service.cluster_ips.into_iter().zip(backend.addresses());
        let rules = to.map(|(cluster_ip, backend)| {
            let family = if cluster_ip.is_ipv4() { "ip" } else { "ip6" };
            let backend = SocketAddr::new(backend, TARGET);
            format!(
                "add rule inet another {chain} {family} daddr {cluster_ip} meta l4proto {{ tcp, udp }} th dport 80 \
                 dnat {family} to {backend}\n"
            )
        });
        rules.collect::<String>()
    };
    let ruleset = format!(
        "add table inet another\n\
         add chain inet another prerouting {{ type nat hook prerouting priority -100; }}\n\
         add chain inet another output {{ type nat hook output priority -100; }}\n{}{}",
        rules("prerouting"),
        rules("output")
    );
    add_rules(node, &ruleset);
}

#[test]
fn an_address_of_another_proxy_is_left_to_it_and_one_that_is_nobodys_gets_no_answer() {
    if lacks(Feature::NetnsCookie) {
        return;
    }
    let mut world = World::new();
    let backend = world.backend(1, "theirs", Attachment::Bridge);
    let pod = world.node1().add_pod("client", Attachment::Veth).unwrap();
    let service = Service::new("web", 1, TARGET);
    let mut object = service.service();
    let ours = [Manifest::new(&object).unwrap()];
    object.metadata.labels = Some([(SERVICE_PROXY_NAME.to_owned(), "another".to_owned())].into());
    let theirs = [Manifest::new(&object).unwrap()];
    world.source.apply(&[service_cidr()]).unwrap();
    world.source.apply(&theirs).unwrap();
    translate(world.node1(), &service, &backend);
    world.start_agent(1);

    let (host, outside) = (world.node1().client().unwrap(), world.network.outside().client());
    for (who, client) in [("pod", pod.client()), ("host", host.clone()), ("outside", outside)] {
        for to in cluster_ips(&service) {
            for protocol in BOTH {
                eprintln!("{who} {protocol} {to}");
                assert_eq!(answerers(&client, protocol, to, 5), names([&backend]));
            }
        }
    }

    for to in plan::service_addresses(UNALLOCATED).map(|ip| SocketAddr::new(ip, 80)) {
        let hasty = host.with_timeout(BRIEFLY);
        for outcome in [hasty.ask(Protocol::Tcp, to), hasty.ask_unconnected(to)] {
            assert!(is_denied_to_host(&outcome), "{to}: {outcome:?}");
        }
        let outcome = pod.client().with_timeout(BRIEFLY).ask(Protocol::Tcp, to);
        assert!(is_silence(&outcome), "{to}: {outcome:?}");
    }

    // It becomes ours, and we know of no endpoint; then it is theirs again.
    for to in cluster_ips(&service) {
        world.source.apply(&ours).unwrap();
        let is_refused = |outcome: &Outcome| *outcome == Err(Failure::Refused);
        becomes(&format!("{to}"), || host.ask(Protocol::Tcp, to), is_refused);
        world.source.apply(&theirs).unwrap();
        becomes_answered_by(&host, Protocol::Tcp, to, backend.name());
    }
}
