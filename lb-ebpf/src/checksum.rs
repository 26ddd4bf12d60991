//! The arithmetic of the internet checksum (RFC 1071, RFC 1624): sums of 16-bit words in ones' complement, which are the
//! same in either byte order.

/// What becomes of a sum over these words, in whichever byte order they stand in memory, when they are replaced.
#[inline(always)]
pub(crate) fn difference(old: &[u32], new: &[u32]) -> u32 {
    let mut sum = 0_u64;
    for (old, new) in old.iter().zip(new) {
        sum += u64::from(!old) + u64::from(*new);
    }
    fold_to_32(sum)
}

/// What becomes of a sum by both of two differences.
#[inline(always)]
pub(crate) fn add(a: u32, b: u32) -> u32 {
    fold_to_32(u64::from(a) + u64::from(b))
}

/// A checksum of which a part has changed by `difference` (RFC 1624, eqn. 3).
#[inline(always)]
pub(crate) fn correct(old: u16, difference: u32) -> u16 {
    !(fold(u32::from(!old) + fold(difference)) as u16)
}

/// Twice, since the first may carry; here and below.
#[inline(always)]
fn fold_to_32(sum: u64) -> u32 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

#[inline(always)]
fn fold(sum: u32) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}
