//! [`Codec::Int4`]: blocks of 256 with one scale, four bits each, for differences.
//!
//! `a = max|x|`, `q = round(7·x / a)`, `x̂ = q·(a / 7)`, so `|x̂ − x| ≤ a / 14` up to rounding of
//! f32. A byte holds an element of the first half of the block and one of the second half: both
//! directions then work on whole vectors. What is lost of a difference of two replicas is still in
//! their next difference; absolute numbers do not forgive it.

use dnode_protocol::frame::{BLOCK_ELEMENTS, Codec};

use super::{
    ROUND, by_blocks, codes_per_unit, fetch_ahead, largest_magnitude, put_word, split_word,
};

const TOP: f32 = 7.0;
/// The code of zero.
const ZERO: u8 = 8;
const BLOCK_BYTES: usize = Codec::Int4.payload_bytes(BLOCK_ELEMENTS);

by_blocks! { pub(super) fn encode; BLOCK_ELEMENTS, BLOCK_BYTES }

/// The code of a number, in the low four bits.
#[inline(always)]
fn code(value: f32, factor: f32) -> u8 {
    (value * factor + (ROUND + f32::from(ZERO))).to_bits() as u8 & 15
}

#[inline(always)]
fn encode_block(values: &[f32], bytes: &mut [u8]) {
    fetch_ahead(values);
    let most = largest_magnitude(values);
    let codes = put_word(bytes, most.to_le_bytes());
    let factor = codes_per_unit(TOP, most);
    let (low, high) = values.split_at(values.len().div_ceil(2));
    for ((byte, &low), &high) in codes.iter_mut().zip(low).zip(high) {
        *byte = code(low, factor) | (code(high, factor) << 4);
    }
    if let (true, Some(last), Some(&value)) = (low.len() > high.len(), codes.last_mut(), low.last())
    {
        *last = code(value, factor);
    }
}

#[inline(always)]
fn decode_block(bytes: &[u8], out: &mut [f32]) {
    let (word, codes) = split_word(bytes);
    let step = f32::from_le_bytes(word) / TOP;
    let number = |code: u8| (f32::from(code) - f32::from(ZERO)) * step;
    let (low, high) = out.split_at_mut(out.len().div_ceil(2));
    for (value, &byte) in low.iter_mut().zip(codes) {
        *value = number(byte & 15);
    }
    for (value, &byte) in high.iter_mut().zip(codes) {
        *value = number(byte >> 4);
    }
}
