//! Writing [`Codec::Int2`](dnode_protocol::frame::Codec::Int2) with AVX-512: the same bits sooner.
//!
//! Several blocks at once, because the sum of a block's lanes, whose order is fixed, waits for
//! itself; and what follows is fetched evenly, while there is arithmetic to do.

use std::arch::x86_64::{__m512, __m512i, _CMP_GT_OQ};

use dnode_protocol::frame::INT2_BLOCK_ELEMENTS;
use pulp::x86::V4;

use super::{BLOCK_BYTES, LANES, Levels, PARTS, encode_plain, total};
use crate::codec::fetch;

/// Blocks at once.
const GROUP: usize = 4;
const GROUP_ELEMENTS: usize = GROUP * INT2_BLOCK_ELEMENTS;
/// Elements of one vector, and of one line of the cache.
const WIDTH: usize = 16;
/// Rows of a block.
const ROWS: usize = INT2_BLOCK_ELEMENTS / LANES;

type Block = [f32; INT2_BLOCK_ELEMENTS];

pub(super) fn encode(simd: V4, values: &[f32], bytes: &mut [u8]) {
    let (groups, rest) = values.as_chunks::<GROUP_ELEMENTS>();
    let (codes, codes_rest) = bytes.split_at_mut(groups.len() * GROUP * BLOCK_BYTES);
    let (codes, _) = codes.as_chunks_mut::<{ GROUP * BLOCK_BYTES }>();
    simd.vectorize(
        #[inline(always)]
        || {
            for (values, bytes) in groups.iter().zip(codes) {
                encode_group(simd, values, bytes);
            }
        },
    );
    encode_plain(rest, codes_rest);
}

#[inline(always)]
fn encode_group(simd: V4, values: &[f32; GROUP_ELEMENTS], bytes: &mut [u8; GROUP * BLOCK_BYTES]) {
    let (blocks, _) = values.as_chunks::<INT2_BLOCK_ELEMENTS>();
    let mut sums = [[0.0; LANES]; GROUP];
    for (sums, block) in sums.iter_mut().zip(blocks) {
        *sums = sum_lanes(simd, block);
    }
    let thresholds = total(&sums).map(|sum| sum / INT2_BLOCK_ELEMENTS as f32);
    let (mut low, mut high, mut counts) = (sums, sums, [0; GROUP]);
    for (index, block) in blocks.iter().enumerate() {
        (low[index], high[index], counts[index]) = sum_sides(simd, block, thresholds[index]);
    }
    let (low, high) = (total(&low), total(&high));
    let (codes, _) = bytes.as_chunks_mut::<BLOCK_BYTES>();
    for (index, (block, bytes)) in blocks.iter().zip(codes).enumerate() {
        let sides = (low[index], high[index]);
        let levels = Levels::of(thresholds[index], sides, (counts[index], INT2_BLOCK_ELEMENTS));
        let codes = levels.put(bytes);
        if let Some(codes) = codes.as_mut_array() {
            put_codes(simd, block, thresholds[index], codes);
        }
    }
}

#[inline(always)]
fn load(simd: V4, values: &[f32; WIDTH]) -> (__m512i, __m512) {
    let unit = simd.avx512f;
    let bits: __m512i = pulp::cast(*values);
    let magnitude = unit._mm512_and_si512(bits, unit._mm512_set1_epi32(i32::MAX));
    (bits, pulp::cast(magnitude))
}

/// The lanes' sums of magnitudes. Asks for the first half of the same block of the next group.
#[inline(always)]
fn sum_lanes(simd: V4, block: &Block) -> [f32; LANES] {
    let unit = simd.avx512f;
    let mut sums = [unit._mm512_setzero_ps(); 2];
    let (rows, _) = block.as_chunks::<LANES>();
    for (index, row) in rows.iter().enumerate() {
        fetch(&block[index * WIDTH..(index + 1) * WIDTH], GROUP_ELEMENTS);
        let (halves, _) = row.as_chunks::<WIDTH>();
        for (sum, values) in sums.iter_mut().zip(halves) {
            *sum = unit._mm512_add_ps(*sum, load(simd, values).1);
        }
    }
    pulp::cast(sums)
}

/// The lanes' sums on both sides of the threshold, and how many are above it. Asks for the second
/// half of the same block of the next group.
#[inline(always)]
fn sum_sides(simd: V4, block: &Block, threshold: f32) -> ([f32; LANES], [f32; LANES], u32) {
    let unit = simd.avx512f;
    let (mut low, mut high) = ([unit._mm512_setzero_ps(); 2], [unit._mm512_setzero_ps(); 2]);
    let threshold = unit._mm512_set1_ps(threshold);
    let mut count = 0;
    let (rows, _) = block.as_chunks::<LANES>();
    for (index, row) in rows.iter().enumerate() {
        let index = index + ROWS;
        fetch(&block[index * WIDTH..(index + 1) * WIDTH], GROUP_ELEMENTS);
        let (halves, _) = row.as_chunks::<WIDTH>();
        for (half, values) in halves.iter().enumerate() {
            let magnitude = load(simd, values).1;
            let above = unit._mm512_cmp_ps_mask::<_CMP_GT_OQ>(magnitude, threshold);
            low[half] = unit._mm512_mask_add_ps(low[half], !above, low[half], magnitude);
            high[half] = unit._mm512_mask_add_ps(high[half], above, high[half], magnitude);
            count += above.count_ones();
        }
    }
    (pulp::cast(low), pulp::cast(high), count)
}

/// Writes the codes of a block: a byte holds an element of each quarter.
#[inline(always)]
fn put_codes(
    simd: V4,
    block: &Block,
    threshold: f32,
    codes: &mut [u8; INT2_BLOCK_ELEMENTS / PARTS],
) {
    let unit = simd.avx512f;
    let threshold = unit._mm512_set1_ps(threshold);
    let (parts, _) = block.as_chunks::<{ INT2_BLOCK_ELEMENTS / PARTS }>();
    let (codes, _) = codes.as_chunks_mut::<WIDTH>();
    for (index, place) in codes.iter_mut().enumerate() {
        let mut code = unit._mm512_setzero_si512();
        for (part, values) in parts.iter().enumerate() {
            let (rows, _) = values.as_chunks::<WIDTH>();
            let (bits, magnitude) = load(simd, &rows[index]);
            let (sign, choice) = (1 << (2 * part), 2 << (2 * part));
            let above = unit._mm512_cmp_ps_mask::<_CMP_GT_OQ>(magnitude, threshold);
            let negative = unit._mm512_test_epi32_mask(bits, unit._mm512_set1_epi32(i32::MIN));
            code = unit._mm512_mask_or_epi32(code, above, code, unit._mm512_set1_epi32(choice));
            code = unit._mm512_mask_or_epi32(code, negative, code, unit._mm512_set1_epi32(sign));
        }
        *place = pulp::cast(unit._mm512_cvtepi32_epi8(code));
    }
}
