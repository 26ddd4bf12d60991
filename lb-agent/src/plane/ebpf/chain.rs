//! The programs on a hook of a link, ours and others', in the order in which they see packets: those on TCX,
//! then the filters of the clsact qdisc.

use std::{io, os::fd::AsFd as _, path::Path};

use serde::Serialize;

use super::{
    clsact,
    pins::{self, LinkName, Pins},
    sys::{self, Direction},
};

/// Other service proxies, and how the names of their programs and filters begin. The kernel keeps 15 bytes of
/// a program's name.
///
/// Cilium's programs are `cil_from_container`, `cil_to_netdev`, ...; those before its version 1.12 are filters
/// named after their object file. Calico's eBPF mode, which serves in kube-proxy's place, has
/// `cali_tc_preamble` and `calico_tc_...`; its other modes have no programs on links.
const PROXIES: [(&str, &[&str]); 2] = [
    (
        "Cilium",
        &["cil_from_", "cil_to_", "bpf_lxc.o:", "bpf_host.o:", "bpf_overlay.o:"],
    ),
    ("Calico", &["cali_", "calico_"]),
];

/// How a program is on a hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// By a link on TCX.
    Tcx,
    /// By a filter of the clsact qdisc.
    Filter,
}

/// A program of ours on a hook.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Attached {
    /// Its number in the kernel. Without one, the kernel does not tell.
    pub id: Option<u32>,
    /// Its name; of one on TCX it is told to `CAP_SYS_ADMIN` only.
    pub name: Option<String>,
    /// How it is there.
    pub way: Way,
}

/// One program on a hook.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    /// Its name; for one on TCX that is known to `CAP_SYS_ADMIN` only.
    name: Option<String>,
    /// What else tells it from others.
    place: Place,
    /// Ours, by what it takes to ask for it.
    ours: Option<Attached>,
    /// Of ours, one that goes on with the flows it has and begins none.
    drains: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// On TCX, the program of this number.
    Tcx(u32),
    /// A filter of this priority.
    Filter(u16),
}

impl Entry {
    /// For people.
    fn describe(&self) -> String {
        match (&self.name, self.place) {
            (Some(name), Place::Tcx(id)) => format!("{name} (id {id})"),
            (None, Place::Tcx(id)) => format!("id {id}"),
            (name, Place::Filter(priority)) => {
                let name = name.as_deref().unwrap_or("a filter");
                format!("{name} (filter, priority {priority})")
            }
        }
    }

    /// The service proxy that it belongs to.
    fn proxy(&self) -> Option<&'static str> {
        let name = self.name.as_deref().filter(|_| self.ours.is_none())?;
        let is_of = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        PROXIES
            .iter()
            .find(|(_, prefixes)| is_of(prefixes))
            .map(|(proxy, _)| *proxy)
    }
}

/// The chain of a hook.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Chain(Vec<Entry>);

impl Chain {
    /// Reads it, with the names of others' programs. Ours that serve are of this side.
    pub(super) fn read(pins: &Pins, side: u32, ifindex: u32, direction: Direction) -> io::Result<Self> {
        let mut entries = Vec::new();
        let on_tcx = sys::tcx_chain(ifindex, direction)?.entries;
        if !on_tcx.is_empty() {
            let name = LinkName::Tcx(direction, ifindex);
            let ours = link_id(&pins.link(name))?;
            let draining = pins.links_before(name)?;
            let draining: Vec<Option<u32>> = draining.iter().map(|path| link_id(path)).collect::<io::Result<_>>()?;
            entries.extend(on_tcx.into_iter().map(|entry| {
                let drains = draining.contains(&Some(entry.link));
                let is_ours = drains || Some(entry.link) == ours;
                Entry {
                    drains,
                    name: (!is_ours).then(|| sys::program_name(entry.program).ok()).flatten(),
                    place: Place::Tcx(entry.program),
                    ours: is_ours.then_some(Attached {
                        id: Some(entry.program),
                        name: None,
                        way: Way::Tcx,
                    }),
                }
            }));
        }
        let filters = clsact::chain(ifindex, direction)?;
        let serving = clsact::serving(&filters, side);
        entries.extend(filters.into_iter().enumerate().map(|(place, filter)| Entry {
            drains: filter.is_ours() && serving != Some(place),
            ours: filter.our_program().map(|name| Attached {
                id: filter.program,
                name: Some(name.to_owned()),
                way: Way::Filter,
            }),
            place: Place::Filter(filter.priority()),
            name: Some(filter.name),
        }));
        Ok(Self(entries))
    }

    /// Whether ours is there.
    pub(super) fn has_ours(&self) -> bool {
        self.0.iter().any(|entry| entry.ours.is_some() && !entry.drains)
    }

    /// Ours that sees packets first, with its name as far as the kernel tells it.
    pub(super) fn ours(&self) -> Option<Attached> {
        self.of_ours(false).next()
    }

    /// Ours that go on with the flows they have, before the one that serves.
    pub(super) fn draining(&self) -> Vec<Attached> {
        self.of_ours(true).collect()
    }

    fn of_ours(&self, drains: bool) -> impl Iterator<Item = Attached> {
        let entries = self.0.iter().filter(move |entry| entry.drains == drains);
        entries.filter_map(|entry| entry.ours.clone()).map(|mut ours| {
            if ours.name.is_none() {
                ours.name = ours.id.and_then(|id| sys::program_name(id).ok());
            }
            ours
        })
    }

    /// The programs of others that see packets before the first of ours. None is known where there is none of ours.
    pub(super) fn before_ours(&self) -> Vec<String> {
        let Some(ours) = self.0.iter().position(|entry| entry.ours.is_some()) else {
            return Vec::new();
        };
        let mut before: Vec<String> = self.0[..ours].iter().map(Entry::describe).collect();
        // Some kinds of filters have an entry for a table of theirs too.
        before.dedup();
        before
    }

    /// Another service proxy that has programs here, and those.
    pub(super) fn proxy(&self) -> Option<(&'static str, Vec<String>)> {
        let proxy = self.0.iter().find_map(Entry::proxy)?;
        let programs = self.0.iter().filter(|entry| entry.proxy() == Some(proxy));
        Some((proxy, programs.map(Entry::describe).collect()))
    }
}

fn link_id(pin: &Path) -> io::Result<Option<u32>> {
    match pins::open(pin)? {
        Some(fd) => Ok(Some(sys::link_info(fd.as_fd())?.id)),
        None => Ok(None),
    }
}

/// What tells cheaply whether a chain has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    /// The kernel's count of changes on TCX.
    revision: u64,
    filters: Vec<clsact::Filter>,
}

impl Mark {
    /// Reads it.
    pub(super) fn read(ifindex: u32, direction: Direction) -> io::Result<Self> {
        Ok(Self {
            revision: sys::tcx_chain(ifindex, direction)?.revision,
            filters: clsact::chain(ifindex, direction)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcx(name: &str, id: u32) -> Entry {
        Entry {
            name: Some(name.to_owned()),
            place: Place::Tcx(id),
            ours: None,
            drains: false,
        }
    }

    fn filter(name: &str, priority: u16) -> Entry {
        Entry {
            place: Place::Filter(priority),
            ..tcx(name, 0)
        }
    }

    fn ours(entry: Entry) -> Entry {
        let attached = Attached {
            id: None,
            name: entry.name.clone(),
            way: Way::Tcx,
        };
        Entry {
            ours: Some(attached),
            ..entry
        }
    }

    #[test]
    fn those_before_ours_are_named_with_what_it_takes_to_find_them() {
        let unnamed = Entry {
            name: None,
            ..tcx("", 8)
        };
        let own = ours(tcx("from_pod", 9));
        let chain = Chain(vec![tcx("firewall", 7), unnamed, own.clone(), filter("shaper", 1)]);
        assert_eq!(chain.before_ours(), ["firewall (id 7)", "id 8"]);
        assert_eq!(Chain(vec![own, tcx("firewall", 7)]).before_ours(), [""; 0]);

        let own = ours(filter("lb-agent/from_pod", 2));
        let chain = Chain(vec![tcx("firewall", 7), filter("u32", 1), filter("u32", 1), own]);
        assert_eq!(chain.before_ours(), ["firewall (id 7)", "u32 (filter, priority 1)"]);
    }

    #[test]
    fn other_service_proxies_are_known_by_the_names_of_their_programs() {
        let found = |entry: Entry| Chain(vec![tcx("firewall", 7), entry]).proxy().map(|(proxy, _)| proxy);
        // As the kernel cuts them off.
        assert_eq!(found(tcx("cil_from_contai", 1)), Some("Cilium"));
        assert_eq!(found(tcx("cil_to_netdev", 1)), Some("Cilium"));
        assert_eq!(found(filter("cil_from_container-lxc1", 1)), Some("Cilium"));
        assert_eq!(found(filter("bpf_lxc.o:[from-container]", 1)), Some("Cilium"));
        assert_eq!(found(tcx("cali_tc_preambl", 1)), Some("Calico"));
        assert_eq!(found(filter("calico_from_workload_ep", 49152)), Some("Calico"));
        assert_eq!(found(tcx("council", 1)), None);
        assert_eq!(found(ours(filter("lb-agent/from_pod", 1))), None);

        let chain = Chain(vec![
            tcx("cil_from_contai", 5),
            tcx("firewall", 7),
            filter("cil_to_x", 1),
        ]);
        let programs = ["cil_from_contai (id 5)", "cil_to_x (filter, priority 1)"].map(str::to_owned);
        assert_eq!(chain.proxy(), Some(("Cilium", programs.into())));
    }
}
