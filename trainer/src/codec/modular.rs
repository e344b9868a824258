//! [`Codec::Modular`] and its shorter kin: a replica's own numbers, sent to one whose are near.
//!
//! Moniqua (Lu and De Sa, arXiv 2002.11787, Algorithm 1): `k = round(x / step)` travels modulo `2^b`,
//! and the receiver takes the integer of that remainder that is nearest to its own `y / step`. It
//! is the right one while `|x − y|` is below `2^(b−1) − ½` steps, so the error, `step / 2`, is
//! proportional to the distance of the replicas and not to the size of their numbers. A hash of what the
//! remainder leaves out tells blocks with elements that are farther apart, and which element it is where
//! there is one that is one turn off: that one is put right.
//!
//! `|k|` stays at most `2^(b+13)`, which leaves f32 enough digits of `x / step`: the step is at least
//! `max|x|·2^-(b+13)`.

use dnode_protocol::frame::{Codec, MODULAR_BLOCK_ELEMENTS as BLOCK};

use super::{
    CodecError, Encoded, ROUND, TINY, fetch_ahead, largest_of_long, put_word, split_word,
    vectorized,
};

/// Bits of a step's floor below those of a code: 2⁻²¹ of the largest magnitude with 8 bits.
const SHARE_BITS: u32 = 13;
/// Widths of the planes of codes, from their lowest bits.
const WIDTHS: [u32; 4] = [8, 4, 2, 1];

/// Base of the hash, odd, so that no element is lost. Source: 2³² divided by the golden ratio.
const HASH_BASE: u32 = 0x9e37_79b1;
/// What each element counts in the hash: the powers of its base, from the first.
static HASH_FACTORS: [u32; BLOCK] = {
    let mut factors = [HASH_BASE; BLOCK];
    let mut index = 1;
    while index < BLOCK {
        factors[index] = factors[index - 1].wrapping_mul(HASH_BASE);
        index += 1;
    }
    factors
};

/// Calls `$function` with the bits of a codec and the bytes of a block as constants.
macro_rules! by_bits {
    ($codec:expr, $function:ident($($argument:expr),*)) => {
        match $codec {
            Codec::Modular => {
                $function::<8, { Codec::Modular.payload_bytes(BLOCK) }>($($argument),*)
            }
            Codec::Modular4 => {
                $function::<4, { Codec::Modular4.payload_bytes(BLOCK) }>($($argument),*)
            }
            Codec::F32
            | Codec::Bf16
            | Codec::F16
            | Codec::Int8
            | Codec::Int4
            | Codec::Int2
            | Codec::Sign
            | Codec::TopK
            | Codec::Fixed64 => panic!("{} is not a modular code", $codec),
        }
    };
}

/// Writes `values` with one of [`Codec::MODULAR`] for a receiver whose numbers are near.
///
/// `spread[b]`: bound on `|remote − own|` in the b-th block of 1024 elements, whose sign does not count;
/// the error is at most half of `spread / (2^(bits−1) − 1)` or of the least step there is.
/// A block that is not finite, or whose spread is infinite, is sent as one that cannot be read.
///
/// # Panics
/// Unless `spread` has one bound per block, and with another codec.
#[must_use]
pub fn encode_modular(codec: Codec, values: &[f32], spread: &[f32]) -> Encoded {
    assert_eq!(spread.len(), values.len().div_ceil(BLOCK), "one spread per block");
    Encoded::filled(codec, values.len(), |bytes| {
        encode_modular_slice(codec, values, spread, bytes);
    })
}

/// [`encode_modular`] for a part of a tensor; `bytes` are as many as `values` take.
pub(crate) fn encode_modular_slice(codec: Codec, values: &[f32], spread: &[f32], bytes: &mut [u8]) {
    by_bits!(codec, encode_bits(values, spread, bytes));
}

fn encode_bits<const BITS: u32, const BYTES: usize>(
    values: &[f32],
    spread: &[f32],
    bytes: &mut [u8],
) {
    vectorized(
        #[inline(always)]
        || {
            let (blocks, rest) = values.as_chunks::<BLOCK>();
            let (codes, codes_rest) = bytes.split_at_mut(blocks.len() * BYTES);
            let (codes, _) = codes.as_chunks_mut::<BYTES>();
            for ((block, code), &spread) in blocks.iter().zip(codes).zip(spread) {
                fetch_ahead(block);
                encode_block::<BITS>(block, spread, BLOCK, code);
            }
            if let (false, Some(&spread)) = (rest.is_empty(), spread.last()) {
                encode_block::<BITS>(&filled_up(rest), spread, rest.len(), codes_rest);
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
    let codec = encoded.codec;
    if !Codec::MODULAR.contains(&codec) {
        return Err(CodecError::Codec(codec));
    }
    encoded.check(codec, out.len())?;
    encoded.check(codec, near.len())?;
    Ok(decode_modular_slice(codec, &encoded.bytes, near, out))
}

/// [`decode_modular`] for a part of a tensor, all of whose lengths fit.
pub(crate) fn decode_modular_slice(
    codec: Codec,
    bytes: &[u8],
    near: &[f32],
    out: &mut [f32],
) -> usize {
    by_bits!(codec, decode_bits(bytes, near, out))
}

fn decode_bits<const BITS: u32, const BYTES: usize>(
    bytes: &[u8],
    near: &[f32],
    out: &mut [f32],
) -> usize {
    vectorized(
        #[inline(always)]
        || {
            let mut unread = 0;
            let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
            let (nears, near_rest) = near.as_chunks::<BLOCK>();
            let (codes, codes_rest) = bytes.split_at(nears.len() * BYTES);
            let (codes, _) = codes.as_chunks::<BYTES>();
            for ((block, near), code) in blocks.iter_mut().zip(nears).zip(codes) {
                fetch_ahead(near);
                unread += usize::from(!decode_block::<BITS>(code, near, BLOCK, block));
            }
            if !rest.is_empty() {
                let (near, mut block) = (filled_up(near_rest), [0.0; BLOCK]);
                let read = decode_block::<BITS>(codes_rest, &near, rest.len(), &mut block);
                unread += usize::from(!read);
                rest.copy_from_slice(&block[..rest.len()]);
            }
            unread
        },
    )
}

/// Expected squared length of what an offer's rounding adds to the difference with it: an error that is
/// uniform over a step has a variance of a twelfth of its square. `None` of another code.
///
/// What its sender says of its steps, so it may be infinite or NaN.
pub(crate) fn rounding_squares(offer: &Encoded) -> Option<f64> {
    if !Codec::MODULAR.contains(&offer.codec) {
        return None;
    }
    let mut left = offer.elements;
    let squares = offer.bytes.chunks(offer.codec.payload_bytes(BLOCK)).map(|block| {
        let len = left.min(BLOCK);
        left -= len;
        let step = block.first_chunk().map_or(0.0, |step| f32::from_le_bytes(*step));
        len as f64 * f64::from(step).powi(2) / 12.0
    });
    Some(squares.sum())
}

/// The integer nearest to a quotient below 2²²; anything for another.
#[inline(always)]
const fn integer(quotient: f32) -> i32 {
    (quotient + ROUND).to_bits().wrapping_sub(ROUND.to_bits()).cast_signed()
}

/// A block that ends with zeros: what they add to a hash is the same on both sides.
fn filled_up(values: &[f32]) -> [f32; BLOCK] {
    let mut block = [0.0; BLOCK];
    block[..values.len()].copy_from_slice(values);
    block
}

/// Steps that replicas may be apart: half a turn, less the sender's rounding, and the last bits of the
/// products at both ends.
const fn steps_apart(bits: u32) -> f32 {
    let turn = (1 << bits) as f32;
    turn / 2.0 - 0.5 - turn / 256.0
}

#[inline(always)]
fn step_of<const BITS: u32>(values: &[f32], spread: f32) -> f32 {
    let most = largest_of_long(values);
    let share = const { 1.0 / (1_u32 << (BITS + SHARE_BITS)) as f32 };
    let step = (spread.abs() / const { steps_apart(BITS) }).max(most * share).max(TINY);
    if most.is_finite() { step } else { f32::NAN }
}

/// Writes a block that is filled up to a whole one, of which `len` have codes.
#[inline(always)]
fn encode_block<const BITS: u32>(values: &[f32; BLOCK], spread: f32, len: usize, bytes: &mut [u8]) {
    let step = step_of::<BITS>(values, spread);
    let per_step = 1.0 / step;
    let rest = put_word(bytes, step.to_le_bytes());
    let mut codes = [0_u8; BLOCK];
    let mut hash = 0_u32;
    for ((code, &value), factor) in codes.iter_mut().zip(values).zip(&HASH_FACTORS) {
        let integer = integer(value * per_step);
        *code = integer as u8;
        hash = hash.wrapping_add(left_out::<BITS>(integer).wrapping_mul(*factor));
    }
    let planes = put_word(rest, hash.to_le_bytes());
    pack::<BITS>(&codes[..len], planes);
}

/// Whether the block could be read.
#[inline(always)]
fn decode_block<const BITS: u32>(
    bytes: &[u8],
    near: &[f32; BLOCK],
    len: usize,
    out: &mut [f32; BLOCK],
) -> bool {
    let (step, rest) = split_word(bytes);
    let (announced, planes) = split_word(rest);
    let step = f32::from_le_bytes(step);
    let per_step = 1.0 / step;
    let mut codes = [0_u8; BLOCK];
    unpack::<BITS>(planes, &mut codes[..len]);
    let mut hash = 0_u32;
    let pairs = out.iter_mut().zip(&codes).zip(near.iter().zip(&HASH_FACTORS));
    for ((value, &code), (&near, factor)) in pairs {
        let integer = unwrapped::<BITS>(code, near * per_step);
        *value = integer as f32 * step;
        hash = hash.wrapping_add(left_out::<BITS>(integer).wrapping_mul(*factor));
    }
    let missing = u32::from_le_bytes(announced).wrapping_sub(hash);
    let sound = step > 0.0 && step.is_finite();
    if sound && missing == 0 {
        return true;
    }
    if let (true, Some((index, turns))) = (sound, one_turn_off(missing)) {
        let integer = unwrapped::<BITS>(codes[index], near[index] * per_step);
        out[index] = integer.wrapping_add(turns << BITS) as f32 * step;
        return true;
    }
    out.copy_from_slice(near);
    false
}

/// The sender's integer: that of its remainder which is nearest to the own quotient.
#[inline(always)]
const fn unwrapped<const BITS: u32>(code: u8, own: f32) -> i32 {
    // Half a turn up to but not with the integer above `own`: the window has `own` in its middle.
    let above = integer(own + 0.5);
    // The low bits of the difference, with their sign.
    let apart = ((code as i32).wrapping_sub(above) << (32 - BITS)) >> (32 - BITS);
    above.wrapping_add(apart)
}

/// The element whose integer is one turn too small (1) or too large (−1), if the hashes differ by that
/// of one element alone.
#[cold]
fn one_turn_off(missing: u32) -> Option<(usize, i32)> {
    let find = |missing: u32| HASH_FACTORS.iter().position(|&factor| factor == missing);
    let too_large = || find(missing.wrapping_neg()).map(|index| (index, -1));
    find(missing).map(|index| (index, 1)).or_else(too_large)
}

/// What the remainder of an integer leaves out.
#[inline(always)]
const fn left_out<const BITS: u32>(integer: i32) -> u32 {
    (integer >> BITS).cast_unsigned()
}

/// Writes codes in planes of 8, 4, 2 and 1 bits, as many as add up to theirs, the lowest bits first. A
/// byte of a plane holds an element of each part of the block, so that both directions work on vectors.
#[inline(always)]
fn pack<const BITS: u32>(codes: &[u8], bytes: &mut [u8]) {
    let (mut rest, mut below) = (bytes, 0);
    for width in WIDTHS.into_iter().filter(|width| BITS & width != 0) {
        let part = plane_bytes(codes.len(), width);
        let (plane, behind) = rest.split_at_mut(part);
        plane.fill(0);
        for (group, codes) in codes.chunks(part).enumerate() {
            for (byte, &code) in plane.iter_mut().zip(codes) {
                *byte |= ((code >> below) & mask(width)) << (group as u32 * width);
            }
        }
        (rest, below) = (behind, below + width);
    }
}

/// As [`pack`], the other way; `codes` are zero before.
#[inline(always)]
fn unpack<const BITS: u32>(bytes: &[u8], codes: &mut [u8]) {
    let (mut rest, mut below) = (bytes, 0);
    for width in WIDTHS.into_iter().filter(|width| BITS & width != 0) {
        let part = plane_bytes(codes.len(), width);
        let (plane, behind) = rest.split_at(part);
        for (group, codes) in codes.chunks_mut(part).enumerate() {
            for (code, &byte) in codes.iter_mut().zip(plane) {
                *code |= ((byte >> (group as u32 * width)) & mask(width)) << below;
            }
        }
        (rest, below) = (behind, below + width);
    }
}

/// Bytes of a plane.
#[inline(always)]
const fn plane_bytes(elements: usize, width: u32) -> usize {
    (elements * width as usize).div_ceil(8)
}

#[inline(always)]
const fn mask(width: u32) -> u8 {
    (0xff_u32 >> (8 - width)) as u8
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_one_or_two_elements_that_are_one_turn_off_keep_the_hash() {
        let signed = HASH_FACTORS.iter().flat_map(|&factor| [factor, factor.wrapping_neg()]);
        let different: BTreeSet<u32> = signed.chain([0]).collect();
        assert_eq!(different.len(), 2 * BLOCK + 1);
    }

    #[test]
    fn two_elements_that_are_one_turn_off_are_not_taken_for_one() {
        let signed = |factor: u32| [factor, factor.wrapping_neg()];
        let one: BTreeSet<u32> = HASH_FACTORS.iter().copied().flat_map(signed).collect();
        for (index, &first) in HASH_FACTORS.iter().enumerate() {
            for second in HASH_FACTORS[..index].iter().flat_map(|&factor| signed(factor)) {
                assert!(!one.contains(&first.wrapping_add(second)), "{index}");
            }
        }
    }

    #[test]
    fn codes_come_back_from_their_planes_at_every_length() {
        fn check<const BITS: u32>(codes: &[u8; BLOCK]) {
            for len in 1..=BLOCK {
                let widths = WIDTHS.into_iter().filter(|width| BITS & width != 0);
                let mut bytes = vec![0xff; widths.map(|width| plane_bytes(len, width)).sum()];
                pack::<BITS>(&codes[..len], &mut bytes);
                let mut found = [0; BLOCK];
                unpack::<BITS>(&bytes, &mut found[..len]);
                let want = codes[..len].iter().map(|code| code & mask(BITS));
                assert!(found[..len].iter().copied().eq(want), "{BITS} {len}");
            }
        }
        let codes = HASH_FACTORS.map(|factor| (factor >> 13) as u8);
        check::<8>(&codes);
        check::<5>(&codes);
        check::<4>(&codes);
        check::<3>(&codes);
        check::<2>(&codes);
    }
}
