//! The table as the kernel holds it, read back from `nft --json`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use serde_json::Value;

use super::{
    NftError, TABLE,
    sets::{Kind, Set},
    table::{Key, Mark, Row, Table, Verdict},
};
use crate::{
    desired::{AllowedSources, Masquerade, Protocol, ServedBy},
    kernel::nft::program::{self, Detail},
};

/// What the table holds, and the links of pods.
pub(super) fn read() -> Result<Option<(Table, BTreeSet<u32>)>, NftError> {
    let Some(json) = program::list(TABLE, Detail::Json)? else {
        return Ok(None);
    };
    parse(&json)
        .map(Some)
        .map_err(|what| NftError::Foreign { table: TABLE, what })
}

/// What the elements say, before they are put together.
#[derive(Default)]
struct Parts {
    table: Table,
    pod_links: BTreeSet<u32>,
    near: BTreeMap<Key, Target>,
    far: BTreeMap<Key, Target>,
    near_marks: BTreeMap<Key, u32>,
    far_marks: BTreeMap<Key, u32>,
    allowed: BTreeMap<Key, AllowedSources>,
    node_refused: BTreeSet<Key>,
}

/// A verdict in a map.
#[derive(Clone, Copy)]
enum Target {
    Serve(Masquerade),
    Select,
    Refuse,
    Drop,
    Leave,
}

fn parse(json: &str) -> Result<(Table, BTreeSet<u32>), String> {
    let json: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let objects = json["nftables"].as_array().ok_or("a listing without objects")?;
    let mut parts = Parts::default();
    for object in objects {
        let Some(set) = object.get("set").or_else(|| object.get("map")) else {
            continue;
        };
        let name = set["name"].as_str().unwrap_or_default();
        let kind = Set::named(name).ok_or_else(|| format!("a set {name}"))?;
        for element in set["elem"].as_array().into_iter().flatten() {
            parts
                .add(kind, element)
                .ok_or_else(|| format!("the element {element} of {name}"))?;
        }
    }
    parts.assemble()
}

impl Parts {
    /// Takes an element; `None` if it is not one of such a set.
    fn add(&mut self, set: Set, element: &Value) -> Option<()> {
        let Set::Of(kind, _) = set else {
            self.pod_links.insert(link(element)?);
            return Some(());
        };
        match kind {
            Kind::Frontends | Kind::FarFrontends => {
                let map = if kind == Kind::Frontends {
                    &mut self.near
                } else {
                    &mut self.far
                };
                map.insert(key(&element[0]["concat"])?, target(&element[1])?);
            }
            Kind::NearMarks | Kind::FarMarks => {
                let map = if kind == Kind::NearMarks {
                    &mut self.near_marks
                } else {
                    &mut self.far_marks
                };
                map.insert(key(&element[0]["concat"])?, u32::try_from(number(&element[1])?).ok()?);
            }
            Kind::Restricted => {
                self.allowed.entry(key(&element["concat"])?).or_default();
            }
            Kind::AllowedSources(protocol) => {
                let [address, port, source] = element["concat"].as_array()?.as_slice() else {
                    return None;
                };
                let key = Key {
                    protocol,
                    address: SocketAddr::new(ip(address)?, u16::try_from(number(port)?).ok()?),
                };
                self.allowed.entry(key).or_default().ranges.insert(network(source)?);
            }
            Kind::NodeRefused => {
                self.node_refused.insert(key(&element["concat"])?);
            }
            Kind::ClusterIps => {
                self.table.cluster_ips.insert(ip(element)?, ServedBy::Us);
            }
            Kind::OfAnotherProxy => {
                self.table.cluster_ips.insert(ip(element)?, ServedBy::AnotherProxy);
            }
            Kind::OwnAddresses => {
                self.table.own_addresses.insert(ip(element)?);
            }
            Kind::ServiceNetworks => {
                self.table.service_cidrs.insert(network(element)?);
            }
            Kind::PodNetworks => {
                self.table.pod_cidrs.insert(network(element)?);
            }
            Kind::LocalEndpoints => {
                self.table.local_endpoints.insert(ip(element)?);
            }
            // As many as local endpoints.
            Kind::Hairpins => {}
        }
        Some(())
    }

    fn assemble(mut self) -> Result<(Table, BTreeSet<u32>), String> {
        for (key, near) in std::mem::take(&mut self.near) {
            let far = self.far.get(&key).copied().unwrap_or(near);
            let (near, near_masquerade) = verdict(near, self.near_marks.get(&key))
                .ok_or_else(|| format!("the frontend {key} has no mark of ours for near clients"))?;
            let (far, far_masquerade) = verdict(far, self.far_marks.get(&key))
                .ok_or_else(|| format!("the frontend {key} has no mark of ours for far clients"))?;
            let masquerade = match (near_masquerade, far_masquerade) {
                (Masquerade::WhereNeeded, Masquerade::WhereNeeded) => Masquerade::WhereNeeded,
                _ => Masquerade::Always,
            };
            let allowed = self.allowed.remove(&key).map(|mut allowed| {
                allowed.node = !self.node_refused.contains(&key);
                Arc::new(allowed)
            });
            let row = Row {
                near,
                far,
                masquerade,
                allowed,
            };
            self.table.frontends.insert(key, row);
        }
        Ok((self.table, self.pod_links))
    }
}

fn verdict(target: Target, mark: Option<&u32>) -> Option<(Verdict, Masquerade)> {
    Some(match target {
        Target::Serve(masquerade) => (Verdict::Serve, masquerade),
        Target::Refuse => (Verdict::Reject, Masquerade::WhereNeeded),
        Target::Drop => (Verdict::Drop, Masquerade::WhereNeeded),
        Target::Leave => (Verdict::Leave, Masquerade::WhereNeeded),
        Target::Select => {
            let mark = *mark?;
            let masquerade = if mark & Mark::MASQUERADE_ALWAYS == 0 {
                Masquerade::WhereNeeded
            } else {
                Masquerade::Always
            };
            (Verdict::Select(Mark::of(mark)?), masquerade)
        }
    })
}

fn target(value: &Value) -> Option<Target> {
    if value.get("drop").is_some() {
        return Some(Target::Drop);
    }
    if value.get("accept").is_some() {
        return Some(Target::Leave);
    }
    Some(match value["goto"]["target"].as_str()? {
        "refuse" => Target::Refuse,
        "serve_v4" | "serve_v6" => Target::Serve(Masquerade::WhereNeeded),
        "serve_masqueraded" => Target::Serve(Masquerade::Always),
        "select_near_v4" | "select_near_v6" | "select_far_v4" | "select_far_v6" => Target::Select,
        _ => return None,
    })
}

fn key(concatenation: &Value) -> Option<Key> {
    let protocol = match &concatenation[1] {
        Value::String(name) => match name.as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return None,
        },
        number => match number.as_i64().and_then(|number| i32::try_from(number).ok())? {
            libc::IPPROTO_TCP => Protocol::Tcp,
            libc::IPPROTO_UDP => Protocol::Udp,
            libc::IPPROTO_SCTP => Protocol::Sctp,
            _ => return None,
        },
    };
    let port = u16::try_from(number(&concatenation[2])?).ok()?;
    Some(Key {
        protocol,
        address: SocketAddr::new(ip(&concatenation[0])?, port),
    })
}

fn ip(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

fn network(value: &Value) -> Option<IpNet> {
    match value.get("prefix") {
        Some(prefix) => {
            let length = u8::try_from(number(&prefix["len"])?).ok()?;
            IpNet::new(ip(&prefix["addr"])?, length).ok()
        }
        None => ip(value).map(IpNet::from),
    }
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// The index of a link, which is listed by its name while the link is there.
fn link(value: &Value) -> Option<u32> {
    let listed = value.as_str()?;
    nix::net::if_::if_nametoindex(listed)
        .ok()
        .or_else(|| listed.parse().ok())
}
