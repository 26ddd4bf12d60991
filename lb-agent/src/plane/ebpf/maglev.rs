//! Maglev's table: which endpoint has which slot (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
//! Balancer", NSDI 2016, section 3.4).
//!
//! Each endpoint has an order of its own in which it would like the slots, out of two hashes of its address and port. They
//! take turns, each the first slot in its order that is free. So the same endpoints make the same table on every
//! node, and one that comes or goes leaves nearly all slots of the others alone. Neither the order nor the hashes may
//! ever change: an upgrade would shuffle the flows of those whose rows are gone.

use std::net::SocketAddr;

use lb_common::{Address, hash::Hash};

use crate::desired::Weight;

/// Slots of a table, unless it was said: for some twenty endpoints, by the paper's rule of a hundred for each.
pub const DEFAULT_SIZE: u32 = 2039;

/// The seeds of the two hashes.
const OFFSET: u32 = 1;
const SKIP: u32 = 2;

/// The slots, each with the index of one of `members`. `size` is a prime; `members` are in order of their addresses.
pub(super) fn table(size: u32, members: &[(SocketAddr, Weight)]) -> Vec<usize> {
    let Some(heaviest) = members.iter().map(|(_, weight)| weight.get()).max() else {
        return Vec::new();
    };
    let mut takers: Vec<Taker> = members.iter().map(|(socket, _)| Taker::new(*socket, size)).collect();
    let mut slots: Vec<Option<usize>> = vec![None; size as usize];
    let mut free = size;
    while free > 0 {
        for (index, taker) in takers.iter_mut().enumerate() {
            // The heaviest has a turn in each round, one of half its weight in every other one.
            taker.credit += u32::from(members[index].1.get());
            if taker.credit < u32::from(heaviest) || free == 0 {
                continue;
            }
            taker.credit -= u32::from(heaviest);
            let slot = taker.next_free(&slots, size);
            slots[slot] = Some(index);
            free -= 1;
        }
    }
    slots.into_iter().flatten().collect()
}

/// An endpoint that takes slots.
struct Taker {
    /// The slot that it would like next.
    next: u32,
    /// From that to the one after it.
    skip: u32,
    credit: u32,
}

impl Taker {
    fn new(socket: SocketAddr, size: u32) -> Self {
        Self {
            next: hash(socket, OFFSET) % size,
            skip: hash(socket, SKIP) % (size - 1) + 1,
            credit: 0,
        }
    }

    /// Goes on to the first free slot in its order. There is one: the size is a prime, so its order has all of them.
    fn next_free(&mut self, slots: &[Option<usize>], size: u32) -> usize {
        loop {
            let slot = self.next;
            self.next = (self.next + self.skip) % size;
            if slots[slot as usize].is_none() {
                return slot as usize;
            }
        }
    }
}

fn hash(socket: SocketAddr, seed: u32) -> u32 {
    let words = Address::from(socket.ip()).words.map(u32::from_be);
    let hash = words.into_iter().fold(Hash::new(seed), Hash::word);
    hash.word(socket.port().into()).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(members: &[(&str, u16)]) -> Vec<(SocketAddr, Weight)> {
        members
            .iter()
            .map(|(socket, weight)| (socket.parse().unwrap(), Weight::new(*weight).unwrap()))
            .collect()
    }

    /// `count` endpoints of one weight.
    fn alike(count: u8) -> Vec<(SocketAddr, Weight)> {
        (1..=count)
            .map(|host| (SocketAddr::from(([10, 0, 0, host], 80)), Weight::ONE))
            .collect()
    }

    fn shares(table: &[usize], members: usize) -> Vec<usize> {
        let mut shares = vec![0; members];
        for index in table {
            shares[*index] += 1;
        }
        shares
    }

    /// Computed by another program, in another language, from the paper and MurmurHash3. An upgrade must not change them.
    #[test]
    fn the_tables_are_the_same_in_every_version() {
        let three = members(&[("10.0.0.1:80", 1), ("10.0.0.2:80", 1), ("10.0.0.3:80", 1)]);
        assert_eq!(table(13, &three), [0, 0, 1, 0, 0, 2, 2, 1, 2, 0, 2, 1, 1]);
        let weighted = members(&[("10.0.0.1:80", 1), ("10.0.0.2:80", 3)]);
        assert_eq!(table(13, &weighted), [0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
        let v6 = members(&[("[fd00::1]:443", 1), ("[fd00::2]:443", 1)]);
        assert_eq!(table(11, &v6), [1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0]);
    }

    /// Section 5.3 of the paper: with a table of a hundred times as many slots as endpoints, none has more than one
    /// in a hundred too many.
    #[test]
    fn every_endpoint_has_its_share() {
        for (size, count) in [(2039, 20), (65_537, 200)] {
            let shares = shares(&table(size, &alike(count)), count.into());
            let fair = size as usize / usize::from(count);
            assert!(
                shares.iter().all(|share| share.abs_diff(fair) <= fair / 100 + 1),
                "{shares:?}"
            );
        }
    }

    #[test]
    fn weights_are_shares() {
        let weighted = members(&[("10.0.0.1:80", 1), ("10.0.0.2:80", 2), ("10.0.0.3:80", 5)]);
        let shares = shares(&table(2039, &weighted), 3);
        for (share, of_eight) in shares.into_iter().zip([1, 2, 5]) {
            assert!(share.abs_diff(2039 * of_eight / 8) <= 1, "{share} for {of_eight}/8");
        }
    }

    /// Section 5.3 of the paper: one that goes takes few slots of the others with it.
    #[test]
    fn an_endpoint_that_goes_leaves_the_others_nearly_alone() {
        let all = alike(20);
        let before = table(2039, &all);
        for gone in 0..all.len() {
            let mut rest = all.clone();
            rest.remove(gone);
            let after = table(2039, &rest);
            let kept_by = |index: &usize| rest[*index].0;
            let moved = before.iter().zip(&after);
            let moved = moved.filter(|(before, after)| **before != gone && all[**before].0 != kept_by(after));
            let of_others = 2039 - shares(&before, all.len())[gone];
            let moved = moved.count();
            assert!(moved * 100 <= of_others * 5, "{moved} of {of_others}");
        }
    }

    #[test]
    fn nobody_has_no_slots() {
        assert_eq!(table(13, &[]), [0; 0]);
    }
}
