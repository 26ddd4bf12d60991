//! Many Services, and a client of the API server that writes them fast.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service as ServiceObject;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::api::{Api, DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use lb_tests::client::Protocol;
use lb_tests::interrupt;
use lb_tests::manifests::{Endpoint, NAMESPACE, Port, Service};
use lb_tests::netlink::Cidr;

use crate::progress::Step;

/// How many writes are on their way at once.
const AT_ONCE: usize = 8;
/// How many Services have an address in the part of the range that is ours here.
pub(crate) const MOST: usize = 50_000;
/// Their first address, less the range's: those before are the API server's, and of the network's own plan.
const FIRST: u16 = 0x1000;
/// How many endpoints have an address.
pub(crate) const MOST_ENDPOINTS: usize = 250;
/// How many of the first Services are at a NodePort too: as many as have room in the usual range, or nearly.
pub(crate) const NODE_PORTS: usize = 2000;
/// The NodePort of the first.
const FIRST_NODE_PORT: u16 = 30_100;
/// Where the endpoints listen.
pub(crate) const TARGET: u16 = 8080;

/// On which node the endpoints of a Service are: all on one, so that whoever dials it knows the way.
pub(crate) fn node_of(service: usize) -> u8 {
    if service.is_multiple_of(2) { 1 } else { 2 }
}

/// All addresses that an endpoint on a node may have. They are no pod's but for a route.
pub(crate) fn endpoint_networks(node: u8) -> [Cidr; 2] {
    [
        Cidr::new([10 + node, 0, 0, 0], 8),
        Cidr::new([0xfd00, 0x10 + u16::from(node), 0, 0, 0, 0, 0, 0], 32),
    ]
}

/// The number of the Service at a cluster address.
pub(crate) fn number_of(address: IpAddr) -> Option<usize> {
    let IpAddr::V4(address) = address else { return None };
    let [10, 96, high, low] = address.octets() else {
        return None;
    };
    u16::from_be_bytes([high, low]).checked_sub(FIRST).map(usize::from)
}

/// The number of the Service at a NodePort.
pub(crate) fn number_at(node_port: u16) -> Option<usize> {
    let number = usize::from(node_port.checked_sub(FIRST_NODE_PORT)?);
    (number < NODE_PORTS).then_some(number)
}

/// The Service of this number, dual-stack, with one port and so many endpoints.
pub(crate) fn service(number: usize, endpoints: usize) -> Result<Service> {
    ensure!(number < MOST, "there are addresses for {MOST} services");
    ensure!(
        endpoints < MOST_ENDPOINTS,
        "there are addresses for {MOST_ENDPOINTS} endpoints a service"
    );
    let number = u16::try_from(number)?;
    let [high, low] = (FIRST + number).to_be_bytes();
    let mut service = Service::new(&format!("bench-{number}"), 0, TARGET);
    service.cluster_ips = [
        IpAddr::V4(Ipv4Addr::new(10, 96, high, low)),
        IpAddr::from([0xfd00, 0x96, 0, 0, 0, 0, 0, FIRST + number]),
    ];
    service.ports = vec![Port {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: None,
        target: TARGET,
    }];
    service.endpoints = (0..endpoints).map(|n| endpoint(number, n)).collect::<Result<_>>()?;
    Ok(service)
}

/// The same, at a NodePort if it is one of the first. The first on each node has UDP too.
pub(crate) fn exposed(number: usize, endpoints: usize) -> Result<Service> {
    let mut service = service(number, endpoints)?;
    if number < 2 {
        service.ports.push(Port {
            name: "udp".into(),
            protocol: Protocol::Udp,
            ..service.ports[0].clone()
        });
    }
    if number >= NODE_PORTS {
        return Ok(service);
    }
    Ok(service.at_node_port(FIRST_NODE_PORT + u16::try_from(number)?))
}

/// The endpoint of this number of the Service of that number. Each has addresses of its own.
pub(crate) fn endpoint(service: u16, number: usize) -> Result<Endpoint> {
    let last = u8::try_from(number + 1)?;
    let [high, low] = service.to_be_bytes();
    let node = node_of(service.into());
    Ok(Endpoint {
        name: format!("bench-{service}-{number}"),
        addresses: [
            IpAddr::V4(Ipv4Addr::new(10 + node, high, low, last)),
            IpAddr::from([0xfd00, 0x10 + u16::from(node), 0, 0, 0, 0, service, u16::from(last)]),
        ],
        node: format!("node{node}"),
        ready: true,
        serving: true,
        terminating: false,
    })
}

/// A client of the API server, for the namespace of the thread that makes and uses it.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).context("reading the kubeconfig")?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Client::try_from(config).context("making a client of the API server")
}

/// Nothing but what has made the object: the client asks again where a busy server has not answered.
fn made<T>(result: kube::Result<T>) -> kube::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the API server says that a Service's address is taken.
fn is_taken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422 && status.message.contains("already allocated"))
}

/// Gives addresses of Services back that no Service has.
async fn release(client: &Client, addresses: [IpAddr; 2]) -> Result<()> {
    let objects: Api<IPAddress> = Api::all(client.clone());
    for address in addresses {
        match objects.delete(&address.to_string(), &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error).with_context(|| format!("giving {address} back")),
        }
    }
    Ok(())
}

/// Writes the objects of all of them: first all Services, then all EndpointSlices.
pub(crate) async fn create(client: &Client, services: &[Service]) -> Result<()> {
    let step = Step::of(
        format!("writing {} Services and their EndpointSlices", services.len()),
        services.len() * 3,
    );
    let objects: Api<ServiceObject> = Api::namespaced(client.clone(), NAMESPACE);
    let write = |service: &Service| {
        let (object, step, objects) = (service.service(), &step, &objects);
        let addresses = service.cluster_ips;
        async move {
            interrupt::check()?;
            let created = objects.create(&PostParams::default(), &object).await;
            if created.as_ref().is_err_and(is_taken) {
                // A busy server has taken the addresses, and given up before it had made the Service.
                release(client, addresses).await?;
                made(objects.create(&PostParams::default(), &object).await)?;
            } else {
                made(created)?;
            }
            step.advance();
            anyhow::Ok(())
        }
    };
    stream::iter(services.iter().map(write))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;

    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let write = |slice: EndpointSlice| {
        let (slices, step) = (slices.clone(), &step);
        async move {
            interrupt::check()?;
            made(slices.create(&PostParams::default(), &slice).await)?;
            step.advance();
            anyhow::Ok(())
        }
    };
    let all = services.iter().flat_map(Service::slices);
    stream::iter(all.map(write))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    step.done();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_known_by_its_address_and_its_node_port() {
        for number in [0, 1, 1999, 2000, MOST - 1] {
            let service = exposed(number, 1).unwrap();
            assert_eq!(number_of(service.cluster_ips[0]), Some(number));
            let node_port = service.ports[0].node_port;
            assert_eq!(node_port.and_then(number_at), (number < NODE_PORTS).then_some(number));
        }
        assert!(service(MOST, 1).is_err() && service(0, MOST_ENDPOINTS).is_err());
        assert_eq!((number_of([10, 97, 16, 0].into()), number_at(30_099)), (None, None));
    }

    #[test]
    fn endpoints_are_on_one_node_by_its_networks() {
        for (number, node) in [(0, 1), (1, 2), (4097, 2)] {
            let endpoints = service(number, 3).unwrap().endpoints;
            assert_eq!(node_of(number), node);
            for endpoint in endpoints {
                assert_eq!(endpoint.node, format!("node{node}"));
                for (network, address) in endpoint_networks(node).iter().zip(endpoint.addresses) {
                    assert!(network.contains(address), "{network} has no {address}");
                }
            }
        }
    }
}
