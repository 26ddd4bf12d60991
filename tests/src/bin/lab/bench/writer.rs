//! Changes the endpoints of Services in the API server, and puts them back.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client as KubeClient;
use kube::api::{Api, Patch, PatchParams};
use lb_tests::interrupt;
use lb_tests::manifests::{NAMESPACE, Service};
use serde_json::json;
use tokio::runtime::Runtime;

use super::objects;

/// How many writes are on their way at once where many are made.
const AT_ONCE: usize = 8;

/// Writes to the API server.
pub(crate) struct Writer<'a> {
    runtime: &'a Runtime,
    client: &'a KubeClient,
    /// The numbers of the Services that were written to.
    written: RefCell<BTreeSet<usize>>,
}

impl<'a> Writer<'a> {
    /// One that has written nothing yet.
    pub(crate) fn new(runtime: &'a Runtime, client: &'a KubeClient) -> Self {
        Self {
            runtime,
            client,
            written: RefCell::default(),
        }
    }

    /// Writes the IPv4 endpoints of a Service.
    pub(crate) fn write(&self, service: &Service) -> Result<()> {
        self.written.borrow_mut().insert(number_of(service)?);
        self.runtime.block_on(write(self.client, service))
    }

    /// Writes those of several, a few at a time.
    pub(crate) fn write_all(&self, services: &[Service]) -> Result<()> {
        for service in services {
            self.written.borrow_mut().insert(number_of(service)?);
        }
        let writes = services.iter().map(|service| write(self.client, service));
        let all = stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<()>();
        self.runtime.block_on(all)
    }

    /// Writes what those had before that were written to.
    pub(crate) fn restore(&self, endpoints: usize) -> Result<()> {
        let written = self.written.take();
        let before = written.into_iter().map(|number| objects::service(number, endpoints));
        self.write_all(&before.collect::<Result<Vec<_>>>()?)
    }
}

async fn write(client: &KubeClient, service: &Service) -> Result<()> {
    interrupt::check()?;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let slice = &service.slices()[0];
    let name = slice.metadata.name.as_deref().context("a slice has a name")?;
    let patch = Patch::Merge(json!({ "endpoints": slice.endpoints }));
    let patched = slices.patch(name, &PatchParams::default(), &patch).await;
    patched.context("changing an EndpointSlice").map(drop)
}

/// Which Service it is.
pub(crate) fn number_of(service: &Service) -> Result<usize> {
    let number = objects::number_of(service.cluster_ips[0]);
    number.with_context(|| format!("{} has no number", service.name))
}

/// A Service with other endpoints than it has, all of them on the same node: those of this generation, of which the first is
/// that of [`objects::service`].
pub(crate) fn changed(number: usize, endpoints: usize, generation: usize) -> Result<Service> {
    let mut service = objects::service(number, 0)?;
    let number = u16::try_from(number)?;
    let of_generation = (0..endpoints).map(|endpoint| objects::endpoint(number, generation * endpoints + endpoint));
    service.endpoints = of_generation.collect::<Result<_>>()?;
    Ok(service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_of_endpoints_has_addresses_of_its_own() {
        let mut seen = BTreeSet::new();
        assert_eq!(changed(7, 10, 0).unwrap(), objects::service(7, 10).unwrap());
        for generation in 0..5 {
            for endpoint in changed(7, 10, generation).unwrap().endpoints {
                assert!(seen.insert(endpoint.addresses), "{endpoint:?} again");
            }
        }
    }
}
