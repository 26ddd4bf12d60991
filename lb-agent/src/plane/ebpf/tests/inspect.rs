//! Rows that contradict each other are shown as what they are. That the others are shown as the state is, each
//! test says that looks at maps ([`Maps::assert_hold`]).

use std::sync::Arc;

use lb_common::{backend::FREE, prefix::INSIDE};

use super::{CLUSTER, HERE, REMOTE, maps::Maps, service, state};
use crate::plane::ebpf::{inspect, prefix};

/// One frontend with two backends, of which `spoil` makes something else.
fn shown(spoil: impl FnOnce(&Maps)) -> String {
    let maps = Maps::roomy();
    let web = service(
        &[("10.96.0.10:80", CLUSTER)],
        &[("10.0.0.1:80", REMOTE), ("10.0.0.2:80", HERE)],
    );
    maps.agent().replace(&state(&[("web", &web)]));
    spoil(&maps);
    let shown = inspect::read(&maps.tables(Arc::new(|| {}))).unwrap();
    let lines: Vec<String> = shown.iter().map(ToString::to_string).collect();
    let [frontend, address] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    assert_eq!(address, "address 192.0.2.1 node-ports");
    frontend.clone()
}

#[test]
fn a_backend_that_is_free_or_of_another_service_port_is_told() {
    let free = |maps: &Maps| {
        let (number, _) = maps.backend("10.0.0.1:80").unwrap();
        maps.backends
            .with(|memory| memory.rows.get_mut(&number).unwrap().state = FREE);
    };
    assert_eq!(
        shown(free),
        "10.96.0.10:80/TCP to=10.0.0.1:80,10.0.0.2:80* error=\"10.0.0.1:80 in slot 0 is free\""
    );
    let stolen = |maps: &Maps| {
        let (number, _) = maps.backend("10.0.0.2:80").unwrap();
        maps.backends
            .with(|memory| memory.rows.get_mut(&number).unwrap().service = 9);
    };
    assert_eq!(
        shown(stolen),
        "10.96.0.10:80/TCP to=10.0.0.1:80,10.0.0.2:80* \
         error=\"10.0.0.2:80 in slot 1 is of service port 9, not 1\""
    );
}

#[test]
fn a_slot_that_leads_nowhere_is_told() {
    let empty = |maps: &Maps| maps.slots.with(|memory| memory.rows.insert(1, 77).map(drop).unwrap());
    assert_eq!(
        shown(empty),
        "10.96.0.10:80/TCP to=10.0.0.1:80 error=\"slot 1 holds the number 77, which is no backend\""
    );
    let beyond = |maps: &Maps| {
        maps.services.with(|memory| {
            for row in memory.rows.values_mut() {
                row.near.base = 9_999;
                row.far = row.near;
            }
        });
    };
    assert_eq!(
        shown(beyond),
        "10.96.0.10:80/TCP to= error=\"slot 9999 holds the number 0, which is no backend\" \
         error=\"there is no slot 10000\""
    );
}

#[test]
fn ranges_of_a_frontend_that_is_not_restricted_are_not_its() {
    let nobodys = |maps: &Maps| {
        let key = prefix::key(1, &"198.51.100.0/24".parse().unwrap());
        maps.source_ranges.with(|memory| memory.rows.insert(key, INSIDE));
    };
    assert_eq!(shown(nobodys), "10.96.0.10:80/TCP to=10.0.0.1:80,10.0.0.2:80*");
}
