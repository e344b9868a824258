//! [`Codec::Sign`]: blocks of 1024 with one magnitude, and a sign for each element.
//!
//! `x̂ = sign(x)·mean|x|`: of all codes of one magnitude and signs the one with the least error,
//! `‖x − x̂‖² = ‖x‖² − (Σ|x|)²/n`. The relative error of Gaussian data is `√(1 − 2/π)`, about 0.60, so
//! only error feedback, or a difference that is taken again, makes this sound.
//!
//! Sources: 1-bit SGD (Seide et al. 2014); the scaled sign with error feedback, EF-signSGD
//! (Karimireddy et al. 2019, arXiv 1901.09847).

use dnode_protocol::frame::{Codec, SIGN_BLOCK_ELEMENTS};

use super::int2::{lanes, total};
use super::{by_blocks, put_word, split_word};

const BLOCK_BYTES: usize = Codec::Sign.payload_bytes(SIGN_BLOCK_ELEMENTS);
/// Elements of one byte, one of each eighth of a block.
const PARTS: usize = 8;

by_blocks! {
    pub(super) fn encode; SIGN_BLOCK_ELEMENTS, BLOCK_BYTES
}

/// Mean magnitude of `values`; not finite if one of them is not.
#[inline(always)]
fn mean_magnitude(values: &[f32]) -> f32 {
    let sums = lanes::<true, 1>(values, |magnitude| [magnitude]);
    let [sum] = total(&sums);
    sum / values.len() as f32
}

#[inline(always)]
const fn sign_bit(value: f32) -> u32 {
    value.to_bits() >> 31
}

#[inline(always)]
fn encode_block(values: &[f32], bytes: &mut [u8]) {
    let codes = put_word(bytes, mean_magnitude(values).to_le_bytes());
    let part = values.len().div_ceil(PARTS);
    if let (Some(values), Ok(codes)) = (
        values.as_array::<SIGN_BLOCK_ELEMENTS>(),
        <&mut [u8; SIGN_BLOCK_ELEMENTS / PARTS]>::try_from(&mut *codes),
    ) {
        let (parts, _) = values.as_chunks::<{ SIGN_BLOCK_ELEMENTS / PARTS }>();
        for (position, byte) in codes.iter_mut().enumerate() {
            let code = |part: usize| sign_bit(parts[part][position]) << part;
            let (low, high) = (code(0) | code(1) | code(2), code(3) | code(4) | code(5));
            *byte = (low | high | code(6) | code(7)) as u8;
        }
        return;
    }
    codes.fill(0);
    for (shift, values) in values.chunks(part).enumerate() {
        for (byte, &value) in codes.iter_mut().zip(values) {
            *byte |= (sign_bit(value) << shift) as u8;
        }
    }
}

#[inline(always)]
fn decode_block(bytes: &[u8], out: &mut [f32]) {
    let (magnitude, codes) = split_word(bytes);
    let magnitude = u32::from_le_bytes(magnitude);
    let part = out.len().div_ceil(PARTS);
    for (shift, values) in out.chunks_mut(part).enumerate() {
        for (value, &byte) in values.iter_mut().zip(codes) {
            *value = f32::from_bits(magnitude ^ (u32::from(byte) >> shift << 31));
        }
    }
}
