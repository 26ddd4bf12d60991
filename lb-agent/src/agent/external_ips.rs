//! Services that use `spec.externalIPs`, which Kubernetes deprecates.

use std::collections::BTreeSet;

use crate::model::{AnyService, Event, ObjectName, Update};

/// The Services that have been named for it.
#[derive(Debug, Default)]
pub(super) struct ExternalIps {
    named: BTreeSet<ObjectName>,
}

impl ExternalIps {
    /// The Services that use it as of this event and have not been named yet.
    pub(super) fn note(&mut self, event: &Event) -> Vec<ObjectName> {
        let Event::Services(update) = event else {
            return Vec::new();
        };
        match update {
            Update::Apply(service) => self.note_service(service).into_iter().collect(),
            Update::Delete(name) => {
                self.named.remove(name);
                Vec::new()
            }
            Update::Replace { objects, .. } => objects
                .iter()
                .filter_map(|service| self.note_service(service))
                .collect(),
        }
    }

    fn note_service(&mut self, service: &AnyService) -> Option<ObjectName> {
        let service = service.ours()?;
        let uses_it = !service.external_ips.is_empty();
        (uses_it && self.named.insert(service.name.clone())).then(|| service.name.clone())
    }
}
