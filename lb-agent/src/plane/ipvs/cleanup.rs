//! Takes away every trace of the plane.

use anyhow::Context as _;

use super::rules::{self, Key, Mark, Row, Rules};
use crate::kernel::{
    dummy::{self, DummyLink},
    ipvs::{Command, Ipvs, IpvsError, ServiceKey},
};

/// Removes virtual services, addresses, the link and the table. Says what it removed. Where there is nothing, there
/// is nothing to say. Virtual services of others stay, and sysctls: other planes may need them.
///
/// # Errors
/// The kernel refuses; what was removed until then is not told.
pub fn cleanup() -> anyhow::Result<Vec<String>> {
    let mut removed = Vec::new();
    // First who sends packets to IPVS; last what says which of its services are ours.
    if DummyLink::remove(dummy::NAME)? {
        removed.push(format!("link {}", dummy::NAME));
    }
    let is_ours = owned_services()?;
    match Ipvs::open() {
        Ok(mut ipvs) => {
            let services = ipvs.services().context("cannot list the services of IPVS")?;
            let ours: Vec<ServiceKey> = services.into_iter().map(|(key, _)| key).filter(is_ours).collect();
            let commands: Vec<Command> = ours.iter().map(|key| Command::DeleteService(*key)).collect();
            for (key, answer) in ours.iter().zip(ipvs.send(&commands)?) {
                match answer {
                    Ok(()) => removed.push(format!("IPVS service {key}")),
                    Err(error) if error.is_gone() => {}
                    Err(error) => return Err(error).with_context(|| format!("cannot remove IPVS service {key}")),
                }
            }
        }
        // Without IPVS there are none.
        Err(IpvsError::Missing) => {}
        Err(error) => return Err(error.into()),
    }
    if Rules::remove()? {
        removed.push(format!("nft table {}", rules::TABLE));
    }
    Ok(removed)
}

/// Which virtual services are this plane's, by what its table says.
///
/// # Errors
/// The table cannot be read.
pub fn owned_services() -> anyhow::Result<impl Fn(&ServiceKey) -> bool> {
    let rows = Rules::read()?.map(|(table, _)| table.frontends).unwrap_or_default();
    Ok(move |key: &ServiceKey| match *key {
        ServiceKey::Address { protocol, address } => rows.get(&Key { protocol, address }).is_some_and(Row::is_ours),
        ServiceKey::Mark { mark, .. } => Mark::of(mark.get()).is_some(),
    })
}
