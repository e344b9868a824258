//! [`Codec::Int8`]: blocks of 256 with one scale, a signed byte each.
//!
//! `a = max|x|`, `q = round(127·x / a)`, `x̂ = q·(a / 127)`, so `|x̂ − x| ≤ a / 254` up to rounding
//! of f32. Source: Dettmers et al., block-wise quantization (arXiv 2110.02861), here with a linear
//! code. One outlier costs the precision of its block.

use dnode_protocol::frame::{BLOCK_ELEMENTS, Codec};

use super::{
    ROUND, by_blocks, codes_per_unit, fetch_ahead, largest_magnitude, put_word, split_word,
};

const TOP: f32 = 127.0;
const BLOCK_BYTES: usize = Codec::Int8.payload_bytes(BLOCK_ELEMENTS);

by_blocks! { pub(super) fn encode; BLOCK_ELEMENTS, BLOCK_BYTES }

#[inline(always)]
fn encode_block(values: &[f32], bytes: &mut [u8]) {
    fetch_ahead(values);
    let most = largest_magnitude(values);
    let codes = put_word(bytes, most.to_le_bytes());
    let factor = codes_per_unit(TOP, most);
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = (value * factor + ROUND).to_bits() as u8;
    }
}

#[inline(always)]
fn decode_block(bytes: &[u8], out: &mut [f32]) {
    let (word, codes) = split_word(bytes);
    let step = f32::from_le_bytes(word) / TOP;
    for (value, &code) in out.iter_mut().zip(codes) {
        *value = f32::from(code.cast_signed()) * step;
    }
}
