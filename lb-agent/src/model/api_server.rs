//! The API server's own Service, by which an agent may reach it.
//!
//! An API server that stops takes itself out of the endpoints of `default/kubernetes`, and the last
//! one leaves none. To follow that would cut off whoever reaches the API server by this Service, the
//! agent among them, so that it would never hear of the endpoint's return. The slices that last had
//! an endpoint are therefore kept until there are others that have one, or the Service is gone.
//! kube-proxy does follow.

use super::{EndpointSlice, ObjectName, serve};

/// The slices of the API server's Service, as they were when they last had a usable endpoint.
#[derive(Debug, Default)]
pub(super) struct ApiServerSlices(Vec<EndpointSlice>);

impl ApiServerSlices {
    /// Whether this is the API server's Service.
    pub(super) fn is_of(service: &ObjectName) -> bool {
        service.namespace == "default" && service.name == "kubernetes"
    }

    /// What to take these slices for.
    pub(super) fn or_last<'a>(
        &mut self,
        slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    ) -> impl Iterator<Item = &EndpointSlice> + Clone {
        if serve::has_usable(slices.clone()) || !serve::has_usable(&self.0) {
            self.0 = slices.cloned().collect();
        }
        self.0.iter()
    }

    /// The Service is gone.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    #[cfg(test)]
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
