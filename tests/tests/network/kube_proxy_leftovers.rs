//! What kube-proxy's IPVS mode leaves, as it would be there: its link, and services of IPVS at the addresses of it.
//!
//! What the other modes leave is made by the real kube-proxy, in the tests of the control plane.

use std::collections::BTreeSet;
use std::net::IpAddr;

use lb_agent::desired::Protocol;
use lb_agent::kernel::dummy::{DummyLink, KUBE_PROXYS};
use lb_agent::kernel::ipvs::{Command, Ipvs, Scheduler, ServiceConfig, ServiceKey};
use lb_agent::kube_proxy;
use lb_tests::kernel::{Feature, lacks};
use lb_tests::netns::Netns;

fn service(address: &str) -> ServiceKey {
    ServiceKey::Address {
        protocol: Protocol::Tcp,
        address: address.parse().unwrap(),
    }
}

#[test]
fn services_at_its_addresses_go_with_its_link_and_those_of_others_stay() {
    if lacks(Feature::Ipvs) || lacks(Feature::Dummy) {
        return;
    }
    let netns = Netns::new("node").unwrap();
    let (theirs, others) = (["10.96.0.1:443", "[fd00:96::1]:443"], "192.0.2.9:80");
    let services = || -> BTreeSet<ServiceKey> {
        let mut ipvs = Ipvs::open().unwrap();
        ipvs.services().unwrap().into_iter().map(|(key, _)| key).collect()
    };
    let leftovers = netns
        .run(|| {
            let addresses: BTreeSet<IpAddr> = ["10.96.0.1", "fd00:96::1"].map(|ip| ip.parse().unwrap()).into();
            let mut link = DummyLink::ensure(KUBE_PROXYS).unwrap();
            assert!(link.change(&addresses, &BTreeSet::new()).is_empty());
            let mut ipvs = Ipvs::open().unwrap();
            let add = |address| Command::AddService(service(address), ServiceConfig::new(Scheduler::RoundRobin));
            for answer in ipvs.send(&[add(theirs[0]), add(theirs[1]), add(others)]).unwrap() {
                answer.unwrap();
            }
            assert_eq!(services().len(), 3);
            kube_proxy::remove()
        })
        .unwrap();
    assert_eq!(leftovers.failed, [""; 0]);
    let removed: BTreeSet<&str> = leftovers.removed.iter().map(String::as_str).collect();
    let expected = [
        "IPVS service 10.96.0.1:443/TCP",
        "IPVS service [fd00:96::1]:443/TCP",
        "link kube-ipvs0",
    ];
    assert_eq!(removed, expected.into());
    let is_named = |kept: &String| kept.starts_with("IPVS service 192.0.2.9:80/TCP: ");
    assert!(leftovers.kept.iter().any(is_named), "{:?}", leftovers.kept);
    netns
        .run(|| {
            assert_eq!(services(), [service(others)].into());
            assert!(!DummyLink::remove(KUBE_PROXYS).unwrap());
        })
        .unwrap();
}
