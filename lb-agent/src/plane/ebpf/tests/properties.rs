//! Whatever was in the maps, whatever comes in whichever order: the maps say what is desired.

use std::net::IpAddr;

use lb_common::{Address, AddressValue, BackendValue, Port, Range, ServiceKey, ServiceValue};
use proptest::prelude::*;

use super::{assert_all_well, maps::Maps};
use crate::{
    desired::{
        Change, State,
        any::{NETWORKS, SOURCES, any_state, difference},
    },
    plane::ebpf::prefix,
};

const SERVICE_ROWS: u32 = 14;
const SLOT_ROWS: u32 = 2000;
const BACKEND_ROWS: u32 = 200;

/// Rows that no agent wrote, or a confused one.
#[derive(Debug, Clone)]
struct Junk {
    services: Vec<(u16, u32, [u32; 4], u32)>,
    slots: Vec<(u32, u32)>,
    backends: Vec<(u32, u8, u8, u8, u32, u32)>,
    addresses: Vec<(u8, u32)>,
    source_ranges: Vec<(u32, usize, u32, u32)>,
    cidrs: Vec<(u32, usize, u32)>,
}

fn any_junk() -> impl Strategy<Value = Junk> {
    let small = prop_oneof![4 => 0_u32..12, 1 => any::<u32>()];
    let slot = prop_oneof![4 => 0_u32..20, 1 => SLOT_ROWS - 10..SLOT_ROWS + 10, 1 => any::<u32>()];
    let range = (slot.clone(), small.clone(), slot, small.clone());
    (
        prop::collection::vec((1_u16..18, small.clone(), range, 0_u32..40), 0..14),
        prop::collection::vec((0_u32..25, 0_u32..20), 0..25),
        prop::collection::vec(
            (0_u32..20, 0_u8..4, 0_u8..9, any::<u8>(), small.clone(), small.clone()),
            0..20,
        ),
        prop::collection::vec((1_u8..7, 0_u32..9), 0..4),
        // Of a few rows that agents write too, and of some whose length is none of a network.
        prop::collection::vec(
            (
                small,
                0..SOURCES.len(),
                prop_oneof![4 => Just(0_u32), 1 => 1_u32..40],
                0_u32..3,
            ),
            0..8,
        ),
        prop::collection::vec((0_u32..4, 0..NETWORKS.len(), 0_u32..4), 0..8),
    )
        .prop_map(|(services, slots, backends, addresses, source_ranges, cidrs)| Junk {
            services: services
                .into_iter()
                .map(|(port, service, (a, b, c, d), flags)| (port, service, [a, b, c, d], flags))
                .collect(),
            slots,
            backends,
            addresses,
            source_ranges,
            cidrs,
        })
}

impl Junk {
    fn spill(&self, maps: &Maps) {
        maps.services.with(|memory| {
            for (port, service, [a, b, c, d], flags) in &self.services {
                let key = ServiceKey::new(Address::ANY_V4, Port::new(*port), 6);
                let value = ServiceValue {
                    service: *service,
                    near: Range { base: *a, count: *b },
                    far: Range { base: *c, count: *d },
                    flags: *flags,
                    affinity: 0,
                };
                memory.rows.insert(key, value);
            }
        });
        maps.slots.with(|memory| memory.rows.extend(self.slots.iter().copied()));
        maps.backends.with(|memory| {
            for (number, state, flags, host, generation, service) in &self.backends {
                let third = number.to_be_bytes()[3] % 6;
                let value = BackendValue {
                    address: Address::from(IpAddr::from([10, 0, third, *host % 9])),
                    port: Port::new(80),
                    state: *state,
                    flags: *flags,
                    generation: *generation,
                    service: *service,
                };
                memory.rows.insert(*number, value);
            }
        });
        maps.addresses.with(|memory| {
            for (host, flags) in &self.addresses {
                let address = Address::from(IpAddr::from([192, 0, 2, *host]));
                memory.rows.insert(address, AddressValue { flags: *flags });
            }
        });
        maps.source_ranges.with(|memory| {
            for (scope, network, shorter, value) in &self.source_ranges {
                let mut key = prefix::key(*scope, &SOURCES[*network].parse().unwrap());
                key.length -= shorter;
                memory.rows.insert(key, *value);
            }
        });
        maps.cidrs.with(|memory| {
            for (scope, network, value) in &self.cidrs {
                memory
                    .rows
                    .insert(prefix::key(*scope, &NETWORKS[*network].parse().unwrap()), *value);
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn after_replace_the_maps_say_the_state_whatever_was_there(
        junk in any_junk(),
        states in prop::collection::vec(any_state(), 1..4),
    ) {
        let maps = Maps::new(SERVICE_ROWS, SLOT_ROWS, BACKEND_ROWS);
        junk.spill(&maps);
        let mut is_junk = true;
        for state in states {
            let mut agent = if is_junk { maps.agent() } else { maps.watched_agent() };
            is_junk = false;
            assert_all_well(&agent.replace(&state));
            maps.assert_hold(&state);
            // Once there is nothing to correct, a restart writes nothing.
            prop_assert_eq!(maps.agent().replace(&state).writes, 0);
        }
    }

    #[test]
    fn after_each_change_the_maps_say_the_state(
        states in prop::collection::vec((any_state(), 0..3), 1..12),
    ) {
        let maps = Maps::new(SERVICE_ROWS, SLOT_ROWS, BACKEND_ROWS);
        let mut agent = maps.watched_agent();
        let mut now = State::default();
        assert_all_well(&agent.replace(&now));
        for (next, ticks) in states {
            for _ in 0..ticks {
                agent.tick();
            }
            assert_all_well(&agent.apply(&difference(&now, &next)));
            maps.assert_hold(&next);
            now = next;
        }
        // Nothing leaks: all of it comes back.
        assert_all_well(&agent.apply(&difference(&now, &State::default())));
        agent.tick();
        agent.tick();
        let all = agent.slots.allocate(SLOT_ROWS);
        prop_assert_eq!(all, Some(Range { base: 0, count: SLOT_ROWS }));
        let numbers = std::iter::from_fn(|| agent.backend_numbers.allocate()).count();
        prop_assert_eq!(numbers, BACKEND_ROWS as usize - 1);
        let numbers = std::iter::from_fn(|| agent.service_numbers.allocate()).count();
        prop_assert_eq!(numbers, SERVICE_ROWS as usize * 2);
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_state_and_hurts_nobody_else(
        before in any_state(),
        after in any_state(),
        map in 0..6,
        at in 0_usize..20,
    ) {
        let maps = Maps::new(SERVICE_ROWS, SLOT_ROWS, BACKEND_ROWS);
        let mut agent = maps.watched_agent();
        assert_all_well(&agent.replace(&before));
        match map {
            0 => maps.backends.with(|memory| memory.fails_at.set(Some(at))),
            1 => maps.slots.with(|memory| memory.fails_at.set(Some(at))),
            2 => maps.source_ranges.with(|memory| memory.fails_at.set(Some(at))),
            3 => maps.addresses.with(|memory| memory.fails_at.set(Some(at))),
            4 => maps.cidrs.with(|memory| memory.fails_at.set(Some(at))),
            _ => maps.services.with(|memory| memory.fails_at.set(Some(at))),
        }
        let outcome = agent.apply(&difference(&before, &after));
        maps.backends.with(|memory| memory.fails_at.set(None));
        maps.slots.with(|memory| memory.fails_at.set(None));
        maps.services.with(|memory| memory.fails_at.set(None));
        maps.source_ranges.with(|memory| memory.fails_at.set(None));
        maps.addresses.with(|memory| memory.fails_at.set(None));
        maps.cidrs.with(|memory| memory.fails_at.set(None));
        prop_assert!(outcome.failed.len() <= 1, "{:?}", outcome.failed);
        agent.tick();
        // A frontend may have passed to another service, so what the maps say is only sure to be
        // one of the two states for those that share nothing; but what failed can be done now.
        let again = Change {
            services: outcome
                .failed
                .iter()
                .map(|(name, _)| (name.clone(), after.services.get(name).cloned()))
                .collect(),
            ..Change::default()
        };
        assert_all_well(&agent.apply(&again));
        maps.assert_hold(&after);
    }
}
