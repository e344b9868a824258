//! [`Codec::Modular`]: a replica's own numbers, sent to one whose numbers are near.
//!
//! Moniqua (Lu and De Sa, arXiv 2002.11787, Algorithm 1): `k = round(x / step)` travels modulo 256,
//! and the receiver takes the integer of that remainder that is nearest to its own `y / step`. It
//! is the right one while `|x − y|` is below 127 steps, so the error, `step / 2`, is proportional to
//! the distance of the replicas and not to the size of their numbers. A hash of what the remainder
//! leaves out tells blocks that are farther apart.
//!
//! `|k|` stays at most 2²¹, where f32 counts exactly: the step is at least `max|x|·2⁻²¹`, four to
//! eight units in the last place of the largest number.

use dnode_protocol::frame::{BLOCK_ELEMENTS, Codec};

use super::{
    CodecError, Encoded, ROUND, TINY, fetch_ahead, largest_magnitude, put_word, split_word,
    vectorized,
};

const BLOCK_BYTES: usize = Codec::Modular.payload_bytes(BLOCK_ELEMENTS);
/// Steps that replicas may be apart: 127, less two roundings and the last bits of two products.
const STEPS_APART: f32 = 124.0;
/// Share of the largest magnitude that a step has at least: 2⁻²¹.
const STEP_SHARE: f32 = 1.0 / (1 << 21) as f32;

/// Base of the hash, odd, so that no element is lost. Source: 2³² divided by the golden ratio.
const HASH_BASE: u32 = 0x9e37_79b1;
/// What each element counts in the hash: the powers of its base, from the first.
const HASH_FACTORS: [u32; BLOCK_ELEMENTS] = {
    let mut factors = [HASH_BASE; BLOCK_ELEMENTS];
    let mut index = 1;
    while index < BLOCK_ELEMENTS {
        factors[index] = factors[index - 1].wrapping_mul(HASH_BASE);
        index += 1;
    }
    factors
};

/// Writes `values` for a receiver whose numbers are near.
///
/// `spread[b]`: bound on `|remote − own|` in the b-th block of 256 elements; the error is at most
/// `spread / 248`, and four units in the last place of the block's largest number.
/// A block that is not finite, or whose spread is infinite, is sent as one that cannot be read.
///
/// # Panics
/// Unless `spread` has one bound per block.
#[must_use]
pub fn encode_modular(values: &[f32], spread: &[f32]) -> Encoded {
    assert_eq!(spread.len(), values.len().div_ceil(BLOCK_ELEMENTS), "one spread per block");
    Encoded::filled(Codec::Modular, values.len(), |bytes| {
        encode_modular_slice(values, spread, bytes);
    })
}

/// [`encode_modular`] for a part of a tensor; `bytes` are as many as `values` take.
pub(crate) fn encode_modular_slice(values: &[f32], spread: &[f32], bytes: &mut [u8]) {
    vectorized(
        #[inline(always)]
        || {
            let (blocks, rest) = values.as_chunks::<BLOCK_ELEMENTS>();
            let (codes, codes_rest) = bytes.as_chunks_mut::<BLOCK_BYTES>();
            for ((block, code), &spread) in blocks.iter().zip(codes).zip(spread) {
                fetch_ahead(block);
                encode_block(block, spread, code);
            }
            if let (false, Some(&spread)) = (rest.is_empty(), spread.last()) {
                let mut code = [0; BLOCK_BYTES];
                encode_block(&filled_up(rest), spread, &mut code);
                codes_rest.copy_from_slice(&code[..codes_rest.len()]);
            }
        },
    );
}

/// Reads what [`encode_modular`] wrote, with the receiver's own numbers `near`, `[elements]`.
///
/// Blocks that cannot be read, because the two are too far apart or something is not finite, are
/// filled with `near`, so that their difference is zero; their number is returned.
///
/// # Errors
/// [`CodecError`], also unless `near` and `out` are equally long; `out` then holds anything.
pub fn decode_modular(
    encoded: &Encoded,
    near: &[f32],
    out: &mut [f32],
) -> Result<usize, CodecError> {
    encoded.check(Codec::Modular, out.len())?;
    encoded.check(Codec::Modular, near.len())?;
    Ok(decode_modular_slice(&encoded.bytes, near, out))
}

/// [`decode_modular`] for a part of a tensor, all of whose lengths fit.
pub(crate) fn decode_modular_slice(bytes: &[u8], near: &[f32], out: &mut [f32]) -> usize {
    vectorized(
        #[inline(always)]
        || {
            let mut unread = 0;
            let (blocks, rest) = out.as_chunks_mut::<BLOCK_ELEMENTS>();
            let (nears, near_rest) = near.as_chunks::<BLOCK_ELEMENTS>();
            let (codes, codes_rest) = bytes.as_chunks::<BLOCK_BYTES>();
            for ((block, near), code) in blocks.iter_mut().zip(nears).zip(codes) {
                fetch_ahead(near);
                unread += usize::from(!decode_block(code, near, block));
            }
            if !rest.is_empty() {
                let mut code = [0; BLOCK_BYTES];
                code[..codes_rest.len()].copy_from_slice(codes_rest);
                let mut block = [0.0; BLOCK_ELEMENTS];
                unread += usize::from(!decode_block(&code, &filled_up(near_rest), &mut block));
                rest.copy_from_slice(&block[..rest.len()]);
            }
            unread
        },
    )
}

/// The integer nearest to a quotient below 2²²; anything for another.
#[inline(always)]
const fn integer(quotient: f32) -> i32 {
    (quotient + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed()
}

/// A block that ends with zeros: what they add to a hash is the same on both sides.
fn filled_up(values: &[f32]) -> [f32; BLOCK_ELEMENTS] {
    let mut block = [0.0; BLOCK_ELEMENTS];
    block[..values.len()].copy_from_slice(values);
    block
}

#[inline(always)]
fn step_of(values: &[f32], spread: f32) -> f32 {
    let most = largest_magnitude(values);
    let step = (spread / STEPS_APART).max(most * STEP_SHARE).max(TINY);
    if most.is_finite() { step } else { f32::NAN }
}

#[inline(always)]
fn encode_block(values: &[f32; BLOCK_ELEMENTS], spread: f32, bytes: &mut [u8; BLOCK_BYTES]) {
    let step = step_of(values, spread);
    let per_step = 1.0 / step;
    let rest = put_word(bytes, step.to_le_bytes());
    let (place, codes) = rest.split_at_mut(size_of::<u32>());
    let mut hash = 0_u32;
    for ((code, &value), factor) in codes.iter_mut().zip(values).zip(HASH_FACTORS) {
        let integer = integer(value * per_step);
        *code = integer as u8;
        hash = hash.wrapping_add(left_out(integer).wrapping_mul(factor));
    }
    place.copy_from_slice(&hash.to_le_bytes());
}

/// Whether the block could be read.
#[inline(always)]
fn decode_block(
    bytes: &[u8; BLOCK_BYTES],
    near: &[f32; BLOCK_ELEMENTS],
    out: &mut [f32; BLOCK_ELEMENTS],
) -> bool {
    let (step, rest) = split_word(bytes);
    let (announced, codes) = split_word(rest);
    let step = f32::from_le_bytes(step);
    let per_step = 1.0 / step;
    let mut hash = 0_u32;
    let pairs = out.iter_mut().zip(codes).zip(near.iter().zip(HASH_FACTORS));
    for ((value, &code), (&near, factor)) in pairs {
        let own = integer(near * per_step);
        // The low byte of the difference, with its sign.
        let apart = (i32::from(code).wrapping_sub(own) << 24) >> 24;
        let integer = own.wrapping_add(apart);
        *value = integer as f32 * step;
        hash = hash.wrapping_add(left_out(integer).wrapping_mul(factor));
    }
    let sound = step > 0.0 && step.is_finite();
    let read = sound && hash == u32::from_le_bytes(announced);
    if !read {
        out.copy_from_slice(near);
    }
    read
}

/// What the remainder of an integer leaves out.
#[inline(always)]
const fn left_out(integer: i32) -> u32 {
    (integer >> 8).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_one_or_two_elements_that_are_one_turn_off_keep_the_hash() {
        let signed = HASH_FACTORS.iter().flat_map(|&factor| [factor, factor.wrapping_neg()]);
        let different: BTreeSet<u32> = signed.chain([0]).collect();
        assert_eq!(different.len(), 2 * BLOCK_ELEMENTS + 1);
    }
}
