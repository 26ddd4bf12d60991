//! Map `SOURCES`: the addresses by which the node speaks on its links.

use crate::{layout::map_type, net::Address};

/// A link, and the family of a packet that goes out to it. The value is an [`Address`] of that family.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SourceKey {
    /// Interface index; [`ANY_LINK`] for links that have no row of their own.
    pub link: u32,
    /// 4 or 6.
    pub family: u32,
}

map_type!(SourceKey: 8 { link @ 0, family @ 4 });

/// In place of an interface index: links without an address. No link has this index.
pub const ANY_LINK: u32 = 0;

impl SourceKey {
    /// For packets with addresses like `address`, on a link.
    #[inline(always)]
    pub const fn new(link: u32, address: &Address) -> Self {
        Self {
            link,
            family: if address.is_v4() { 4 } else { 6 },
        }
    }
}
