//! [`Codec::TopK`]: of every 4096 elements the 64 largest, with two bits each; the others are 0.
//!
//! Source: Stich et al., sparsified SGD with memory (arXiv 1809.07599), here by chunks, which a
//! position of 12 bits addresses, and with the levels of `int2`. Exact: of equal magnitudes the
//! first ones are taken. Most of a tensor is not sent. Of a difference the rest is still in the two
//! replicas, and so in their next differences; of a contribution it is lost without error feedback.

use dnode_protocol::frame::{
    Codec, TOP_K_CHUNK_ELEMENTS, TOP_K_ENTRY_BITS, TOP_K_ONE_IN, top_k_entries,
};

use super::int2::{Levels, number};
use super::{CodecError, fetch, fetch_ahead, magnitude_bits, reduce, vectorized};

const CHUNK_BYTES: usize = Codec::TopK.payload_bytes(TOP_K_CHUNK_ELEMENTS);
/// Columns of a chunk whose largest elements are looked at first.
const COLUMNS: usize = 128;
/// Elements whose comparisons make one word.
const WORD: usize = u64::BITS as usize;
/// Most entries of a chunk.
const ENTRIES: usize = TOP_K_CHUNK_ELEMENTS / TOP_K_ONE_IN;
/// Bits of a position.
const POSITION_BITS: usize = TOP_K_ENTRY_BITS - 2;
/// Four entries are seven bytes.
const GROUP: usize = 4;
const GROUP_BYTES: usize = GROUP * TOP_K_ENTRY_BITS / 8;
/// Magnitudes compared at a time.
const LANES: usize = 16;
/// Elements moved between two requests for memory.
const ROW: usize = 64;
/// Columns more than wanted at which the first search ends.
const SLACK: usize = 4;
/// A chunk's least chosen magnitude, times this, is the first guess for the next one: of smooth
/// numbers half as many more than wanted reach it.
const GUESS: f32 = 0.92;
/// Candidates beyond which a guess was too low to be of use.
const CANDIDATES_MAX: usize = 4 * ENTRIES;
/// Positions written at a time, whether there are so many or not.
const BURST: usize = 4;

const _: () = assert!(COLUMNS >= ENTRIES, "the largest of the columns bound the entries");
const _: () = assert!(TOP_K_CHUNK_ELEMENTS == 1 << POSITION_BITS);

pub(super) fn encode(values: &[f32], bytes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V4::try_new() {
        return simd.vectorize(
            #[inline(always)]
            || {
                encode_chunks(
                    values,
                    bytes,
                    #[inline(always)]
                    |values, least| wide::reached(simd, values, least),
                );
            },
        );
    }
    vectorized(
        #[inline(always)]
        || {
            encode_chunks(
                values,
                bytes,
                #[inline(always)]
                |values, least| reached(values, least),
            );
        },
    );
}

/// [`encode`] with a way to compare the elements of a word.
#[inline(always)]
fn encode_chunks(
    values: &[f32],
    bytes: &mut [u8],
    reached: impl Fn(&[f32; WORD], u32) -> u64 + Copy,
) {
    let mut search = Search::new();
    // Zeros behind all others: they are the last to be taken.
    let mut last = [0.0; TOP_K_CHUNK_ELEMENTS];
    let chunks = values.chunks(TOP_K_CHUNK_ELEMENTS);
    for (values, code) in chunks.zip(bytes.chunks_mut(CHUNK_BYTES)) {
        let chunk = values.as_array().unwrap_or_else(|| {
            last[..values.len()].copy_from_slice(values);
            &last
        });
        search.encode(chunk, top_k_entries(values.len()), code, reached);
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    out.fill(0.0);
    let chunks = out.chunks_mut(TOP_K_CHUNK_ELEMENTS);
    for (out, bytes) in chunks.zip(bytes.chunks(CHUNK_BYTES)) {
        let mut entries = [(0, 0.0); ENTRIES];
        for &mut (position, value) in read_entries(bytes, out.len(), &mut entries)? {
            out[position] = value;
        }
    }
    Ok(())
}

/// `target ← target + weight · decoded`, one chunk.
pub(super) fn displace(bytes: &[u8], weight: f32, target: &mut [f32]) -> Result<(), CodecError> {
    let mut entries = [(0, 0.0); ENTRIES];
    let entries = read_entries(bytes, target.len(), &mut entries)?;
    let mut moves = true;
    for (_, value) in &mut *entries {
        *value *= weight;
        moves &= *value != 0.0;
    }
    let nothing = weight * 0.0;
    let ascending = entries.is_sorted_by(|(a, _), (b, _)| a < b);
    if !(moves && ascending && nothing == 0.0) {
        // An element that is named twice is that of the last entry, and zeros have signs.
        let mut sums = [nothing; TOP_K_CHUNK_ELEMENTS];
        for &mut (position, value) in entries {
            sums[position] = value;
        }
        reduce::add_scaled(target, &sums[..target.len()], 1.0);
        return Ok(());
    }
    vectorized(
        #[inline(always)]
        || {
            for row in target.chunks_mut(ROW) {
                fetch_ahead(row);
                for value in row {
                    *value += nothing;
                }
            }
        },
    );
    for &mut (position, value) in entries {
        target[position] += value;
    }
    Ok(())
}

/// Positions and numbers of a chunk of so many elements; all positions are in it.
#[inline(always)]
fn read_entries<'a>(
    bytes: &[u8],
    elements: usize,
    entries: &'a mut [(usize, f32); ENTRIES],
) -> Result<&'a mut [(usize, f32)], CodecError> {
    let (levels, codes) = Levels::read(bytes);
    let entries = &mut entries[..top_k_entries(elements)];
    let mut last = 0;
    for (entries, bytes) in entries.chunks_mut(GROUP).zip(codes.chunks(GROUP_BYTES)) {
        let mut word = [0; 8];
        if let Some(bytes) = bytes.as_array::<GROUP_BYTES>() {
            word[..GROUP_BYTES].copy_from_slice(bytes);
        } else {
            word[..bytes.len()].copy_from_slice(bytes);
        }
        let word = u64::from_le_bytes(word);
        for (index, entry) in entries.iter_mut().enumerate() {
            let code = (word >> (index * TOP_K_ENTRY_BITS)) as u32;
            let position = (code & 0xfff) as usize;
            last = last.max(position);
            *entry = (position, number(code >> POSITION_BITS, levels));
        }
    }
    if last < elements {
        Ok(entries)
    } else {
        Err(CodecError::Position { position: last, elements })
    }
}

/// Room for the search of one chunk.
struct Search {
    /// Positions of elements that may belong to the largest, in order.
    positions: [u16; TOP_K_CHUNK_ELEMENTS + WORD + BURST],
    /// Their magnitudes as bits; behind them as many zeros as fill a row.
    magnitudes: [u32; TOP_K_CHUNK_ELEMENTS + LANES],
    /// A magnitude that some more than wanted will reach if this chunk is like the last one;
    /// [`u32::MAX`] where nothing is known.
    guess: u32,
}

impl Search {
    const fn new() -> Self {
        Self {
            positions: [0; TOP_K_CHUNK_ELEMENTS + WORD + BURST],
            magnitudes: [0; TOP_K_CHUNK_ELEMENTS + LANES],
            guess: u32::MAX,
        }
    }

    #[inline(always)]
    fn encode(
        &mut self,
        values: &[f32; TOP_K_CHUNK_ELEMENTS],
        wanted: usize,
        bytes: &mut [u8],
        reached: impl Fn(&[f32; WORD], u32) -> u64 + Copy,
    ) {
        // Most chunks are like the one before: then they are read once. One place calls `collect`,
        // because what is inlined twice may be too long for the instructions it is for.
        let (mut least, mut known) = (self.guess, false);
        let candidates = loop {
            let candidates = self.collect(values, least, reached);
            if known || (wanted..=CANDIDATES_MAX).contains(&candidates) {
                break candidates;
            }
            (least, known) = (bound(values, wanted), true);
        };
        let mut chosen = [0_u16; 2 * ENTRIES];
        let least = self.choose(candidates, least, wanted, &mut chosen);
        self.guess = (f32::from_bits(least) * GUESS).to_bits();
        let mut numbers = [0.0; ENTRIES];
        for (number, &position) in numbers.iter_mut().zip(&chosen) {
            *number = values[usize::from(position) % TOP_K_CHUNK_ELEMENTS];
        }
        let levels = Levels::fit(&numbers[..wanted]);
        let codes = levels.put(bytes);
        let mut entries = [0_u64; ENTRIES];
        for ((entry, &position), &value) in entries[..wanted].iter_mut().zip(&chosen).zip(&numbers)
        {
            *entry = u64::from(position) | (u64::from(levels.code(value)) << POSITION_BITS);
        }
        let (groups, _) = entries.as_chunks::<GROUP>();
        for (bytes, [a, b, c, d]) in codes.chunks_mut(GROUP_BYTES).zip(groups) {
            let word = a | (b << TOP_K_ENTRY_BITS) | (c << (2 * TOP_K_ENTRY_BITS));
            let word = (word | (d << (3 * TOP_K_ENTRY_BITS))).to_le_bytes();
            if let Some(bytes) = bytes.as_mut_array::<GROUP_BYTES>() {
                bytes.copy_from_slice(&word[..GROUP_BYTES]);
            } else {
                bytes.copy_from_slice(&word[..bytes.len()]);
            }
        }
    }

    /// Collects the elements of at least this magnitude, in order; how many there are.
    #[inline(always)]
    fn collect(
        &mut self,
        values: &[f32; TOP_K_CHUNK_ELEMENTS],
        least: u32,
        reached: impl Fn(&[f32; WORD], u32) -> u64,
    ) -> usize {
        let mut found = 0;
        let (rows, _) = values.as_chunks::<WORD>();
        for (row, values) in rows.iter().enumerate() {
            fetch(values, TOP_K_CHUNK_ELEMENTS);
            let mut word = reached(values, least);
            let count = word.count_ones() as usize;
            // Nobody can foresee how many there are: a few are always written, and some are void.
            let mut next = found;
            loop {
                let place: &mut [u16; BURST] =
                    self.positions[next..].first_chunk_mut().expect("there is room behind all");
                for place in place {
                    *place = (row * WORD) as u16 + word.trailing_zeros() as u16;
                    word &= word.wrapping_sub(1);
                }
                next += BURST;
                if word == 0 {
                    break;
                }
            }
            found += count;
        }
        for (magnitude, &position) in self.magnitudes[..found].iter_mut().zip(&self.positions) {
            *magnitude = magnitude_bits(values[usize::from(position) % TOP_K_CHUNK_ELEMENTS]);
        }
        self.magnitudes[found..found + LANES].fill(0);
        found
    }

    /// The positions of the `wanted` largest candidates, in order, at the front of `chosen`, and a
    /// magnitude that they reach. All candidates are at least `least`, and at least `wanted` of them.
    #[inline(always)]
    fn choose(
        &self,
        candidates: usize,
        least: u32,
        wanted: usize,
        chosen: &mut [u16; 2 * ENTRIES],
    ) -> u32 {
        let magnitudes = &self.magnitudes[..candidates.next_multiple_of(LANES)];
        let most = magnitudes.iter().fold(0, |most, &magnitude| magnitude.max(most));
        let (least, count) = search(magnitudes, (candidates, wanted), 0, (least, most));
        let mut at = 0;
        let places = self.magnitudes[..candidates].iter().zip(&self.positions);
        // No more are taken than there is room for, so the remainder of `at` changes nothing.
        if count == wanted {
            for (&magnitude, &position) in places {
                chosen[at % (2 * ENTRIES)] = position;
                at += usize::from(magnitude >= least);
            }
            return least;
        }
        let above = reach(magnitudes, &[least + 1; LANES])[0] as usize;
        let mut ties = wanted - above;
        for (&magnitude, &position) in places {
            let tie = usize::from(magnitude == least) & usize::from(ties > 0);
            ties -= tie;
            chosen[at % (2 * ENTRIES)] = position;
            at += usize::from(magnitude > least) | tie;
        }
        least
    }
}

/// A magnitude that at least `wanted` elements reach, and seldom many more.
#[inline(always)]
fn bound(values: &[f32; TOP_K_CHUNK_ELEMENTS], wanted: usize) -> u32 {
    let mut largest = [0; COLUMNS];
    let (rows, _) = values.as_chunks::<COLUMNS>();
    for row in rows {
        fetch_ahead(row);
        for (most, &value) in largest.iter_mut().zip(row) {
            *most = magnitude_bits(value).max(*most);
        }
    }
    let least = largest.iter().fold(u32::MAX, |least, &most| most.min(least));
    let most = largest.iter().fold(0, |least, &most| most.max(least));
    // So many columns have an element of at least this size.
    search(&largest, (COLUMNS, wanted), SLACK, (least, most)).0
}

/// The largest magnitude that `wanted` of them reach, or one that up to `slack` more do, and how
/// many do. The `elements` of them that count are at least `least` and at most `most`.
#[inline(always)]
fn search(
    magnitudes: &[u32],
    (elements, wanted): (usize, usize),
    slack: usize,
    (least, most): (u32, u32),
) -> (u32, usize) {
    let (mut reached, mut missed, mut count) = (least, most + 1, elements);
    while missed - reached > 1 && count - wanted > slack {
        let step = ((missed - reached) / (LANES as u32 + 1)).max(1);
        let mut marks = [missed; LANES];
        for (mark, index) in marks.iter_mut().zip(1..) {
            *mark = missed.min(reached + index * step);
        }
        let counts = reach(magnitudes, &marks);
        // The marks rise, so these are the first ones.
        let enough = counts.iter().filter(|&&count| count as usize >= wanted).count();
        if let Some(mark) = marks.get(enough) {
            missed = *mark;
        }
        if let Some(last) = enough.checked_sub(1) {
            (reached, count) = (marks[last], counts[last] as usize);
        }
    }
    (reached, count)
}

/// How many magnitudes reach each mark.
#[inline(always)]
fn reach(magnitudes: &[u32], marks: &[u32; LANES]) -> [u32; LANES] {
    let mut counts = [0; LANES];
    for &magnitude in magnitudes {
        for (count, &mark) in counts.iter_mut().zip(marks) {
            *count += u32::from(magnitude >= mark);
        }
    }
    counts
}

/// One bit for each element: whether it has at least this magnitude.
#[inline(always)]
fn reached(values: &[f32; WORD], least: u32) -> u64 {
    /// Moves the lowest bits of eight bytes side by side into the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut flags = [0_u8; WORD];
    for (flag, &value) in flags.iter_mut().zip(values) {
        *flag = u8::from(magnitude_bits(value) >= least);
    }
    let (octets, _) = flags.as_chunks::<8>();
    let mut word = 0;
    for (index, &octet) in octets.iter().enumerate() {
        word |= (u64::from_le_bytes(octet).wrapping_mul(GATHER) >> 56) << (8 * index);
    }
    word
}

/// [`reached`] where the processor makes bits of comparisons by itself.
#[cfg(target_arch = "x86_64")]
mod wide {
    use pulp::x86::V4;

    use super::{LANES, WORD};

    #[inline(always)]
    pub(super) fn reached(simd: V4, values: &[f32; WORD], least: u32) -> u64 {
        let unit = simd.avx512f;
        let magnitude = unit._mm512_set1_epi32(i32::MAX);
        let least = unit._mm512_set1_epi32(least.cast_signed());
        let (rows, _) = values.as_chunks::<LANES>();
        let mut word = 0;
        for (index, row) in rows.iter().enumerate() {
            let bits = unit._mm512_and_si512(pulp::cast(*row), magnitude);
            word |= u64::from(unit._mm512_cmpge_epu32_mask(bits, least)) << (index * LANES);
        }
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_compare_a_word_agree() {
        let mut values = [0.0_f32; WORD];
        for (index, value) in values.iter_mut().enumerate() {
            *value = ((index * 37 % WORD) as f32 - 31.5) * 0.1;
        }
        (values[3], values[7], values[60]) = (f32::NAN, f32::NEG_INFINITY, -0.0);
        for least in [1, 0.5_f32.to_bits(), 2.05_f32.to_bits(), f32::INFINITY.to_bits(), 1 << 31] {
            let plain = reached(&values, least);
            let ones = values.iter().filter(|value| magnitude_bits(**value) >= least);
            assert_eq!(plain.count_ones() as usize, ones.count());
            #[cfg(target_arch = "x86_64")]
            if let Some(simd) = pulp::x86::V4::try_new() {
                assert_eq!(wide::reached(simd, &values, least), plain, "{least:x}");
            }
        }
    }

    #[test]
    fn the_search_finds_the_last_magnitude_that_enough_reach_in_any_shape_of_numbers() {
        let shapes: [fn(u32) -> u32; 4] =
            [|i| i + 1, |i| 1 << (i % 31), |i| 0x3f80_0000 + (i * i) % 4099, |_| 77];
        for shape in shapes {
            let magnitudes: Vec<u32> = (0..128).map(shape).collect();
            let mut sorted = magnitudes.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            for wanted in [1, 2, 63, 64, 127, 128] {
                let (found, count) =
                    search(&magnitudes, (128, wanted), 0, (sorted[127], sorted[0]));
                let at_least = |least| magnitudes.iter().filter(|m| **m >= least).count();
                assert_eq!(at_least(found), count);
                assert!(count == wanted || found == sorted[wanted - 1], "{wanted}: {found}");
            }
        }
    }

    #[test]
    fn what_a_chunk_becomes_does_not_depend_on_the_chunk_before() {
        let scales = [1.0, 1.1, 0.8, 1000.0, 1.0, 0.0, 1.0, f32::NAN, 1.0, 1e-40, 1.0];
        let mut values = Vec::new();
        for scale in scales {
            let element = |i: usize| ((i * 7919 % 4099) as f32 - 2000.5).powi(3) * scale;
            values.extend((0..TOP_K_CHUNK_ELEMENTS).map(element));
        }
        values.truncate(values.len() - 1000);
        let mut bytes = vec![0; Codec::TopK.payload_bytes(values.len())];
        encode(&values, &mut bytes);
        let chunks = values.chunks(TOP_K_CHUNK_ELEMENTS).zip(bytes.chunks(CHUNK_BYTES));
        for (index, (values, bytes)) in chunks.enumerate() {
            let mut alone = vec![0; bytes.len()];
            encode(values, &mut alone);
            assert_eq!(alone, bytes, "chunk {index}");
        }
    }
}
