//! [`Codec::Int2`]: blocks of 1024 with two magnitudes, a sign and a choice for each element.
//!
//! With `t = mean|x|`, `hi` is the mean of the magnitudes above `t` and `lo` that of the others:
//! one round of Lloyd's algorithm on the magnitudes. `x̂ = sign(x)·(hi if |x| > t else lo)`.
//! The relative error of Gaussian data is about 0.36: only error feedback, or a difference that is
//! taken again, makes this sound.

#[cfg(target_arch = "x86_64")]
mod wide;

use dnode_protocol::frame::{Codec, INT2_BLOCK_ELEMENTS};

use super::{by_blocks, fetch_ahead, magnitude_bits, put_word, split_word};

const BLOCK_BYTES: usize = Codec::Int2.payload_bytes(INT2_BLOCK_ELEMENTS);
/// Sums kept side by side; their number decides the order of the sums, and with it the bits.
const LANES: usize = 32;
/// Elements of one byte.
const PARTS: usize = 4;

pub(super) fn encode(values: &[f32], bytes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V4::try_new() {
        return wide::encode(simd, values, bytes);
    }
    encode_plain(values, bytes);
}

by_blocks! {
    /// [`encode`] for any processor.
    fn encode_plain; INT2_BLOCK_ELEMENTS, BLOCK_BYTES
}

/// Two magnitudes and what separates them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Levels {
    threshold: f32,
    low: f32,
    high: f32,
}

impl Levels {
    /// Fits them to the magnitudes of `values`; not finite if one of those is not.
    #[inline(always)]
    pub(super) fn fit(values: &[f32]) -> Self {
        let sums = lanes::<true, 1>(values, |magnitude| [magnitude]);
        let [sum] = total(&sums);
        let threshold = sum / values.len() as f32;
        // Not `sum − high`: a single large element would leave nothing of the others. NaN is low.
        let [low, high, counts] = lanes::<false, 3>(values, |magnitude| {
            let above = magnitude > threshold;
            if above { [0.0, magnitude, 1.0] } else { [magnitude, 0.0, 0.0] }
        });
        // These are whole numbers, whose sum is the same in any order.
        let count = counts.iter().map(|count| *count as u32).sum();
        let [low, high] = total(&[low, high]);
        Self::of(threshold, (low, high), (count, values.len()))
    }

    /// Levels of so many of all elements above the threshold, with the sums on both sides of it.
    #[inline(always)]
    fn of(threshold: f32, (low, high): (f32, f32), (above, elements): (u32, usize)) -> Self {
        let mean = |sum: f32, count: f32| if count > 0.0 { sum / count } else { 0.0 };
        let count = above as f32;
        Self { threshold, low: mean(low, elements as f32 - count), high: mean(high, count) }
    }

    /// Writes `lo` and `hi`; returns what follows them.
    #[inline(always)]
    pub(super) fn put(self, bytes: &mut [u8]) -> &mut [u8] {
        put_word(put_word(bytes, self.low.to_le_bytes()), self.high.to_le_bytes())
    }

    /// Reads `lo` and `hi` as bits; what follows them.
    #[inline(always)]
    pub(super) fn read(bytes: &[u8]) -> ([u32; 2], &[u8]) {
        let (low, rest) = split_word(bytes);
        let (high, rest) = split_word(rest);
        ([u32::from_le_bytes(low), u32::from_le_bytes(high)], rest)
    }

    /// Two bits: the sign, and above it the choice.
    #[inline(always)]
    pub(super) fn code(self, value: f32) -> u32 {
        let high = f32::from_bits(magnitude_bits(value)) > self.threshold;
        (value.to_bits() >> 31) | (u32::from(high) << 1)
    }
}

/// The number of two bits, the others of `code` being ignored.
#[inline(always)]
pub(super) fn number(code: u32, [low, high]: [u32; 2]) -> f32 {
    let magnitude = if code & 2 == 0 { low } else { high };
    f32::from_bits(magnitude ^ (code << 31))
}

/// `f(|x|)` of so many terms, added up lane by lane. `FIRST`: nobody has read these values yet.
#[inline(always)]
pub(super) fn lanes<const FIRST: bool, const T: usize>(
    values: &[f32],
    terms: impl Fn(f32) -> [f32; T],
) -> [[f32; LANES]; T] {
    let mut lanes = [[0.0_f32; LANES]; T];
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        if FIRST {
            fetch_ahead(row);
        }
        for (lane, &value) in row.iter().enumerate() {
            let terms = terms(f32::from_bits(magnitude_bits(value)));
            for term in 0..T {
                lanes[term][lane] += terms[term];
            }
        }
    }
    for (lane, &value) in rest.iter().enumerate() {
        let terms = terms(f32::from_bits(magnitude_bits(value)));
        for term in 0..T {
            lanes[term][lane] += terms[term];
        }
    }
    lanes
}

/// The lanes of each, added in their order.
#[inline(always)]
pub(super) fn total<const B: usize>(lanes: &[[f32; LANES]; B]) -> [f32; B] {
    let mut sums = [0.0; B];
    for lane in 0..LANES {
        for (sum, lanes) in sums.iter_mut().zip(lanes) {
            *sum += lanes[lane];
        }
    }
    sums
}

#[inline(always)]
fn encode_block(values: &[f32], bytes: &mut [u8]) {
    let levels = Levels::fit(values);
    let codes = levels.put(bytes);
    let part = values.len().div_ceil(PARTS);
    if let (Some(values), Ok(codes)) = (
        values.as_array::<INT2_BLOCK_ELEMENTS>(),
        <&mut [u8; INT2_BLOCK_ELEMENTS / PARTS]>::try_from(&mut *codes),
    ) {
        let (parts, _) = values.as_chunks::<{ INT2_BLOCK_ELEMENTS / PARTS }>();
        for (position, byte) in codes.iter_mut().enumerate() {
            let code = |part: usize| levels.code(parts[part][position]) << (2 * part);
            *byte = (code(0) | code(1) | code(2) | code(3)) as u8;
        }
        return;
    }
    codes.fill(0);
    for (shift, values) in values.chunks(part).enumerate() {
        for (byte, &value) in codes.iter_mut().zip(values) {
            *byte |= (levels.code(value) << (2 * shift)) as u8;
        }
    }
}

#[inline(always)]
fn decode_block(bytes: &[u8], out: &mut [f32]) {
    let (levels, codes) = Levels::read(bytes);
    let part = out.len().div_ceil(PARTS);
    for (shift, values) in out.chunks_mut(part).enumerate() {
        for (value, &byte) in values.iter_mut().zip(codes) {
            *value = number(u32::from(byte) >> (2 * shift), levels);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_encode_agree_to_the_last_bit() {
        let mut values: Vec<f32> = (0..20_000_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) as f32 / 4e9 - 0.5).powi(3))
            .collect();
        values[5000..6024].fill(0.0);
        values[6024..7048].fill(-0.25);
        (values[8200], values[12_300]) = (f32::INFINITY, f32::NEG_INFINITY);
        (values[40], values[41], values[42]) = (-0.0, 1e-42, -1e-42);
        let Some(simd) = pulp::x86::V4::try_new() else { return };
        for elements in [0, 1, 31, 1024, 1500, 4096, 4097, 16_384, 20_000] {
            let zeros = vec![0; Codec::Int2.payload_bytes(elements)];
            let (mut plain, mut fast) = (zeros.clone(), zeros);
            encode_plain(&values[..elements], &mut plain);
            wide::encode(simd, &values[..elements], &mut fast);
            assert_eq!(plain, fast, "{elements}");
        }
    }
}
