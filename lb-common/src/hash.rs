//! A hash that is the same on every node, of every version: what is drawn by it has to stay where it is.

/// MurmurHash3, the variant of 32 bits, of a run of whole words. A word counts by its value, in whatever byte order the
/// machine has it.
#[derive(Clone, Copy, Debug)]
pub struct Hash {
    state: u32,
    words: u32,
}

impl Hash {
    /// Of no word yet. Hashes of different seeds have nothing to do with each other.
    #[inline(always)]
    #[must_use]
    pub const fn new(seed: u32) -> Self {
        Self { state: seed, words: 0 }
    }

    /// With one more word.
    #[inline(always)]
    #[must_use]
    pub const fn word(self, word: u32) -> Self {
        let word = word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
        let state = (self.state ^ word).rotate_left(13);
        Self {
            state: state.wrapping_mul(5).wrapping_add(0xe654_6b64),
            words: self.words + 1,
        }
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn finish(self) -> u32 {
        let mut hash = self.state ^ (self.words * 4);
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
        hash ^ (hash >> 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published test vectors of MurmurHash3_x86_32, those whose length is a multiple of four bytes.
    #[test]
    fn it_is_the_hash_that_everybody_knows() {
        assert_eq!(Hash::new(0).finish(), 0);
        assert_eq!(Hash::new(1).finish(), 0x514e_28b7);
        assert_eq!(Hash::new(0xffff_ffff).finish(), 0x81f1_6f39);
        assert_eq!(Hash::new(0).word(0xffff_ffff).finish(), 0x7629_3b50);
        assert_eq!(Hash::new(0).word(0x8765_4321).finish(), 0xf55b_516b);
        assert_eq!(Hash::new(0x5082_edee).word(0x8765_4321).finish(), 0x2362_f9de);
        assert_eq!(Hash::new(0).word(0).finish(), 0x2362_f9de);
    }
}
