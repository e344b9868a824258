//! A count sketch of parameters: 256 numbers whose distances estimate distances of replicas.

use std::ops::Range;

use crate::kernel::vectorized;

/// Length of a sketch.
pub const SKETCH_LEN: usize = 256;

/// Seed of buckets and signs; every peer uses it, or sketches could not be compared.
const SEED: u64 = 0x646e_6f64_6531;

/// Pieces that a sketch is made of where the vector is longer than all of them: one in each of so many
/// equal parts.
const PIECES: usize = 128;
/// Elements of a piece.
const PIECE_ELEMENTS: usize = 2048;

/// What a sketch of `elements` elements is made of, and the factor of its sums.
///
/// Long vectors are sampled, so that no length costs a training step more than half a millisecond in host
/// memory; from a device each piece is a copy that is waited for. A piece
/// of each part stands for the whole part, and lies where a hash says: `‖a − b‖²` over the pieces, times how
/// many elements one stands for, has the mean that it has over all elements.
pub(crate) fn sample(elements: usize) -> (impl Iterator<Item = Range<usize>>, f64) {
    let all = PIECES * PIECE_ELEMENTS;
    let (parts, most) = if elements > all { (PIECES, PIECE_ELEMENTS) } else { (1, elements) };
    let pieces = (0..parts).map(move |index| {
        // `elements` are those of vectors in memory: no overflow by a factor of 128.
        let part = index * elements / parts..(index + 1) * elements / parts;
        let room = (part.len() - most) as u64 + 1;
        let start = part.start + (mix(SEED ^ index as u64) % room) as usize;
        start..start + most
    });
    (pieces, (elements as f64 / (parts * most).max(1) as f64).sqrt())
}

/// Adds `values`, which begin at element `start` of the flat vector, to the sketch.
///
/// Element `i` is added to bucket `h(i)` with sign `s(i)`. The sketch is linear, and
/// `‖S(a) − S(b)‖²` estimates `‖a − b‖²` without bias, with a relative standard deviation of at
/// most `√(2 / 256)` = 8.8 %.
///
/// Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data streams";
/// the variance is that of the AMS estimate (Alon, Matias, Szegedy 1999) over 256 buckets.
pub(crate) fn accumulate(start: usize, values: &[f32], sketch: &mut [f64; SKETCH_LEN]) {
    let first = (start as u64).wrapping_add(SEED);
    let mut hashes = [0; HASHED_AT_ONCE];
    for (piece, begin) in values.chunks(HASHED_AT_ONCE).zip((first..).step_by(HASHED_AT_ONCE)) {
        hash_from(begin, &mut hashes);
        for (&hash, &value) in hashes.iter().zip(piece) {
            // The sign's bit, flipped by the hash's.
            let signed = f32::from_bits(value.to_bits() ^ ((hash >> 32) as u32 & 1 << 31));
            sketch[(hash & 0xff) as usize] += f64::from(signed);
        }
    }
}

/// Elements whose hashes are computed before they are added: those of vector units do not wait for the
/// scattered sums.
const HASHED_AT_ONCE: usize = 128;

/// The hashes of the numbers from `first` on.
fn hash_from(first: u64, hashes: &mut [u64; HASHED_AT_ONCE]) {
    vectorized(
        #[inline(always)]
        || {
            for (hash, index) in hashes.iter_mut().zip(0_u64..) {
                *hash = mix(first.wrapping_add(index));
            }
        },
    );
}

/// The sketch of a whole gradient, `[P]`; its distances estimate distances of gradients.
#[must_use]
pub fn gradient_sketch(gradient: &[f32]) -> [f64; SKETCH_LEN] {
    let mut sketch = [0.0; SKETCH_LEN];
    accumulate(0, gradient, &mut sketch);
    sketch
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
/// generators", with Stafford's variant 13).
#[inline(always)]
const fn mix(index: u64) -> u64 {
    let mut bits = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

const _: () = assert!(SKETCH_LEN == 1 << 8);

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(values: &[f32]) -> [f64; SKETCH_LEN] {
        let mut sketch = [0.0; SKETCH_LEN];
        accumulate(0, values, &mut sketch);
        sketch
    }

    fn squared_distance(a: &[f64; SKETCH_LEN], b: &[f64; SKETCH_LEN]) -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
    }

    #[test]
    fn distances_of_sketches_estimate_distances_without_bias() {
        let mut ratios = 0.0;
        let cases = 60_u64;
        for case in 0..cases {
            let vector = |salt: u64| -> Vec<f32> {
                (0..4000_u64)
                    .map(|i| (mix(i ^ (salt << 32)) >> 40) as f32 / (1 << 24) as f32 - 0.5)
                    .collect()
            };
            let (a, b) = (vector(2 * case + 1), vector(2 * case + 2));
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let ratio = squared_distance(&sketch(&a), &sketch(&b)) / exact;
            // Five standard deviations of one estimate.
            assert!((ratio - 1.0).abs() < 5.0 * 0.0884, "case {case}: {ratio}");
            ratios += ratio / cases as f64;
        }
        // Four standard errors of the mean.
        assert!((ratios - 1.0).abs() < 4.0 * 0.0884 / (cases as f64).sqrt(), "{ratios}");
    }

    #[test]
    fn long_vectors_are_sampled_without_bias() {
        let exactly = PIECES * PIECE_ELEMENTS;
        for elements in [0, 1, 1000, exactly] {
            let (mut pieces, _) = sample(elements);
            assert_eq!(pieces.next(), Some(0..elements), "all of them");
            assert!(pieces.next().is_none());
        }
        for elements in [exactly + 1, 300_007, 5_000_000] {
            let (pieces, factor) = sample(elements);
            let mut end = 0;
            for piece in pieces {
                assert!(end <= piece.start && piece.end <= elements, "{piece:?} after {end}");
                assert_eq!(piece.len(), PIECE_ELEMENTS);
                end = piece.end;
            }
            assert!((factor.powi(2) * exactly as f64 / elements as f64 - 1.0).abs() < 1e-12);
        }
        // Layers that differ by a hundred times.
        let elements = 1_500_000;
        let of = |i: usize| {
            let scale = [1.0, 0.1, 0.01][i / 50_000 % 3];
            scale * ((mix(i as u64) >> 40) as f32 / (1 << 24) as f32 - 0.5)
        };
        let exact: f64 = (0..elements).map(|i| f64::from(of(i)).powi(2)).sum();
        let (pieces, factor) = sample(elements);
        let mut sums = [0.0; SKETCH_LEN];
        for piece in pieces {
            let start = piece.start;
            accumulate(start, &piece.map(of).collect::<Vec<_>>(), &mut sums);
        }
        let ratio = factor.powi(2) * sums.iter().map(|sum| sum * sum).sum::<f64>() / exact;
        // Three standard deviations of the sketch, and as much for the layers.
        assert!((ratio - 1.0).abs() < 6.0 * 0.0884, "{ratio}");
    }

    #[test]
    fn every_element_is_added_to_its_bucket_with_its_sign() {
        let (start, length) = (12_345, 3 * HASHED_AT_ONCE + 7);
        let values: Vec<f32> = (0..length).map(|i| (i as f32 - 99.5) / 8.0).collect();
        let mut want = [0.0; SKETCH_LEN];
        for (index, &value) in (start as u64..).zip(&values) {
            let hash = mix(index.wrapping_add(SEED));
            let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
            want[(hash & 0xff) as usize] += sign * f64::from(value);
        }
        let mut got = [0.0; SKETCH_LEN];
        accumulate(start, &values, &mut got);
        assert_eq!(got.map(f64::to_bits), want.map(f64::to_bits));
    }

    #[test]
    fn slices_add_up_to_the_whole() {
        let values: Vec<f32> = (0..1000_u16).map(f32::from).collect();
        let mut parts = [0.0; SKETCH_LEN];
        accumulate(600, &values[600..], &mut parts);
        accumulate(0, &values[..600], &mut parts);
        assert!(squared_distance(&parts, &sketch(&values)) < 1e-18);
    }
}
