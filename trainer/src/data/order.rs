//! Seeded orders that can be computed for any position without their history.

/// Rounds of the Feistel network; four make a pseudo-random permutation of a good round function
/// (Luby, Rackoff 1988), the other four are margin for the small domains here.
const ROUNDS: usize = 8;

/// What a seed is used for; different uses of one seed are independent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// The order of the whole training set, which shards cut into pieces.
    Shards,
    /// The order of one class's samples, which label-skewed shards cut into pieces.
    Class,
    /// The shares of the shards in one class.
    Shares,
    /// The order of one shard in one pass over it.
    Epoch,
    /// The order of one class of the digits, cut into training and held-out samples.
    Split,
}

/// `bytes` ← pseudo-random bytes that belong to `purpose` and `parts`.
pub(crate) fn derive(purpose: Purpose, parts: &[u64], bytes: &mut [u8]) {
    let mut hasher = blake3::Hasher::new_derive_key("dnode data order v1");
    hasher.update(&[purpose as u8]);
    for part in parts {
        hasher.update(&part.to_le_bytes());
    }
    hasher.finalize_xof().fill(bytes);
}

/// A pseudo-random permutation of `0..len`: a Feistel network on the next even number of bits,
/// walked until it lands inside (cycle walking; Black, Rogaway 2002).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len`, `len ≥ 1`, that belongs to `purpose` and `parts`.
    pub(crate) fn new(len: usize, purpose: Purpose, parts: &[u64]) -> Self {
        assert!(len > 0, "a permutation of nothing");
        let len = len as u64;
        let bits = u64::BITS - (len - 1).leading_zeros();
        let mut bytes = [0_u8; 8 * ROUNDS];
        derive(purpose, parts, &mut bytes);
        let mut keys = [0; ROUNDS];
        for (key, bytes) in keys.iter_mut().zip(bytes.chunks_exact(8)) {
            *key = bytes.iter().fold(0, |key, &byte| key << 8 | u64::from(byte));
        }
        Self { len, half_bits: bits.div_ceil(2), keys }
    }

    /// Where `index < len` goes.
    pub(crate) fn apply(&self, index: usize) -> usize {
        let mut at = index as u64;
        assert!(at < self.len, "index {index} of a permutation of {}", self.len);
        loop {
            at = self.network(at);
            if at < self.len {
                return at as usize;
            }
        }
    }

    fn network(&self, at: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (at >> self.half_bits, at & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (scramble(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014, Stafford's variant 13).
const fn scramble(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permuted(len: usize, parts: &[u64]) -> Vec<usize> {
        let permutation = Permutation::new(len, Purpose::Epoch, parts);
        (0..len).map(|index| permutation.apply(index)).collect()
    }

    #[test]
    fn every_index_is_hit_once() {
        for len in [1, 2, 3, 4, 5, 16, 17, 359, 360, 1437, 4097] {
            let mut hit = permuted(len, &[7, 3]);
            hit.sort_unstable();
            assert_eq!(hit, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn orders_repeat_for_equal_seeds_and_differ_for_others() {
        assert_eq!(permuted(300, &[1, 2]), permuted(300, &[1, 2]));
        for other in [&[1, 3][..], &[2, 2], &[1], &[1, 2, 0]] {
            let same = permuted(300, &[1, 2])
                .iter()
                .zip(permuted(300, other))
                .filter(|(a, b)| *a == b)
                .count();
            // One coincidence is expected; ten have probability 1e-7.
            assert!(same < 10, "{other:?}: {same}");
        }
    }

    #[test]
    fn over_many_keys_every_place_is_as_likely_as_any_other() {
        let (len, keys) = (10, 20_000_u64);
        let mut counts = vec![[0_u32; 10]; len];
        for key in 0..keys {
            for (index, place) in permuted(len, &[key]).into_iter().enumerate() {
                counts[index][place] += 1;
            }
        }
        // Five standard deviations of a binomial count.
        let (mean, deviation) = (keys as f64 / 10.0, (keys as f64 * 0.09).sqrt());
        for count in counts.as_flattened() {
            assert!((f64::from(*count) - mean).abs() < 5.0 * deviation, "{count}");
        }
    }
}
