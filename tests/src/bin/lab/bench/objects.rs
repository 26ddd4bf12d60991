//! Many Services, and a client of the API server that writes them fast.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service as ServiceObject;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use lb_tests::client::Protocol;
use lb_tests::interrupt;
use lb_tests::manifests::{Endpoint, NAMESPACE, Port, Service};

use crate::progress::Step;

/// How many writes are on their way at once.
const AT_ONCE: usize = 8;
/// How many Services have an address in the part of the range that is ours here.
const MOST: usize = 30_000;
/// How many endpoints have an address.
const MOST_ENDPOINTS: usize = 250;

/// The Service of this number, dual-stack, with one port and so many endpoints, half of them on the first node.
pub(crate) fn service(number: usize, endpoints: usize) -> Result<Service> {
    ensure!(number < MOST, "there are addresses for {MOST} services");
    ensure!(
        endpoints < MOST_ENDPOINTS,
        "there are addresses for {MOST_ENDPOINTS} endpoints a service"
    );
    let number = u16::try_from(number)?;
    let [high, low] = (0x8000 + number).to_be_bytes();
    let mut service = Service::new(&format!("bench-{number}"), 0, 8080);
    service.cluster_ips = [
        IpAddr::V4(Ipv4Addr::new(10, 96, high, low)),
        IpAddr::from([0xfd00, 0x96, 0, 0, 0, 0, 0, 0x8000 + number]),
    ];
    service.ports = vec![Port {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: None,
        target: 8080,
    }];
    service.endpoints = (0..endpoints).map(|n| endpoint(number, n)).collect::<Result<_>>()?;
    Ok(service)
}

/// The endpoint of this number of the Service of that number. Each has addresses of its own.
pub(crate) fn endpoint(service: u16, number: usize) -> Result<Endpoint> {
    let last = u8::try_from(number + 1)?;
    let [high, low] = service.to_be_bytes();
    Ok(Endpoint {
        name: format!("bench-{service}-{number}"),
        addresses: [
            IpAddr::V4(Ipv4Addr::new(11, high, low, last)),
            IpAddr::from([0xfd00, 0x11, 0, 0, 0, 0, service, u16::from(last)]),
        ],
        node: if number.is_multiple_of(2) { "node1" } else { "node2" }.into(),
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

/// Writes the objects of all of them: first all Services, then all EndpointSlices.
pub(crate) async fn create(client: &Client, services: &[Service]) -> Result<()> {
    let step = Step::of(
        format!("writing {} Services and their EndpointSlices", services.len()),
        services.len() * 3,
    );
    let objects: Api<ServiceObject> = Api::namespaced(client.clone(), NAMESPACE);
    let write = |service: &Service| {
        let (objects, object, step) = (objects.clone(), service.service(), &step);
        async move {
            interrupt::check()?;
            objects.create(&PostParams::default(), &object).await?;
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
            slices.create(&PostParams::default(), &slice).await?;
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
