//! [`Codec::TopK`]: of every 4096 elements the 64 largest, with two bits each; the others are 0.
//!
//! Source: Stich et al., sparsified SGD with memory (arXiv 1809.07599), here by chunks, which a
//! position of 12 bits addresses, and with the levels of `int2`. Exact: of equal magnitudes the
//! first ones are taken. Most of a tensor is not sent, so what is left must be kept and sent later:
//! sound with error feedback only.

use dnode_protocol::frame::{
    Codec, TOP_K_CHUNK_ELEMENTS, TOP_K_ENTRY_BITS, TOP_K_ONE_IN, top_k_entries,
};

use super::int2::{Levels, number};
use super::{CodecError, magnitude_bits, vectorized};

const CHUNK_BYTES: usize = Codec::TopK.payload_bytes(TOP_K_CHUNK_ELEMENTS);
/// Elements whose largest one is looked at first.
const GROUP: usize = 32;
const GROUPS: usize = TOP_K_CHUNK_ELEMENTS / GROUP;
/// Most entries of a chunk.
const ENTRIES: usize = TOP_K_CHUNK_ELEMENTS / TOP_K_ONE_IN;
/// Bits of a position.
const POSITION_BITS: usize = TOP_K_ENTRY_BITS - 2;
/// Magnitudes compared at a time.
const LANES: usize = 16;

const _: () = assert!(GROUPS >= ENTRIES, "the largest of the groups bound the entries");
const _: () = assert!(TOP_K_CHUNK_ELEMENTS == 1 << POSITION_BITS);

pub(super) fn encode(values: &[f32], bytes: &mut [u8]) {
    vectorized(
        #[inline(always)]
        || {
            let mut search = Search::new();
            let chunks = values.chunks(TOP_K_CHUNK_ELEMENTS);
            for (values, bytes) in chunks.zip(bytes.chunks_mut(CHUNK_BYTES)) {
                search.encode(values, bytes);
            }
        },
    );
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    out.fill(0.0);
    let chunks = out.chunks_mut(TOP_K_CHUNK_ELEMENTS);
    for (out, bytes) in chunks.zip(bytes.chunks(CHUNK_BYTES)) {
        let (levels, entries) = Levels::read(bytes);
        let count = top_k_entries(out.len());
        // Four entries are seven bytes.
        for (group, bytes) in entries.chunks(7).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let word = u64::from_le_bytes(word);
            for entry in 0..4.min(count - 4 * group) {
                let entry = (word >> (entry * TOP_K_ENTRY_BITS)) as u32;
                let position = (entry & 0xfff) as usize;
                let elements = out.len();
                let place =
                    out.get_mut(position).ok_or(CodecError::Position { position, elements })?;
                *place = number(entry >> POSITION_BITS, levels);
            }
        }
    }
    Ok(())
}

/// Room for the search of one chunk.
struct Search {
    /// Magnitudes that may belong to the largest, as bits, and their positions.
    magnitudes: [u32; TOP_K_CHUNK_ELEMENTS + LANES],
    positions: [u16; TOP_K_CHUNK_ELEMENTS],
}

impl Search {
    const fn new() -> Self {
        Self { magnitudes: [0; TOP_K_CHUNK_ELEMENTS + LANES], positions: [0; TOP_K_CHUNK_ELEMENTS] }
    }

    #[inline(always)]
    fn encode(&mut self, values: &[f32], bytes: &mut [u8]) {
        let wanted = top_k_entries(values.len());
        let candidates = self.collect(values, wanted);
        let mut chosen = [(0, 0.0); ENTRIES];
        let chosen = &mut chosen[..wanted];
        self.choose(candidates, values, chosen);
        let mut numbers = [0.0; ENTRIES];
        for (number, (_, value)) in numbers.iter_mut().zip(&*chosen) {
            *number = *value;
        }
        let levels = Levels::fit(&numbers[..wanted]);
        let entries = levels.put(bytes);
        for (bytes, chosen) in entries.chunks_mut(7).zip(chosen.chunks(4)) {
            let mut word = 0;
            for (index, &(position, value)) in chosen.iter().enumerate() {
                let entry = u64::from(position) | u64::from(levels.code(value)) << POSITION_BITS;
                word |= entry << (index * TOP_K_ENTRY_BITS);
            }
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }

    /// Collects what may belong to the `wanted` largest, in order; its number.
    #[inline(always)]
    fn collect(&mut self, values: &[f32], wanted: usize) -> usize {
        let mut found = 0;
        if let Some(values) = values.as_array::<TOP_K_CHUNK_ELEMENTS>() {
            let (groups, _) = values.as_chunks::<GROUP>();
            let mut largest = [0; GROUPS];
            for (largest, group) in largest.iter_mut().zip(groups) {
                *largest = group.iter().fold(0, |most, &v| magnitude_bits(v).max(most));
            }
            // So many groups have an element of at least this size, so the wanted ones do too.
            let least = at_least(&largest, wanted, 15);
            for (index, (&largest, group)) in largest.iter().zip(groups).enumerate() {
                if largest >= least {
                    found = self.keep(group, index * GROUP, least, found);
                }
            }
        } else {
            found = self.keep(values, 0, 0, 0);
        }
        self.magnitudes[found..found + LANES].fill(0);
        found
    }

    /// Appends the elements of at least this magnitude; how many there are then.
    #[inline(always)]
    fn keep(&mut self, values: &[f32], first: usize, least: u32, mut found: usize) -> usize {
        for (offset, &value) in values.iter().enumerate() {
            let magnitude = magnitude_bits(value);
            // No more are found than were looked at, so the mask changes nothing.
            self.magnitudes[found % TOP_K_CHUNK_ELEMENTS] = magnitude;
            self.positions[found % TOP_K_CHUNK_ELEMENTS] = (first + offset) as u16;
            found += usize::from(magnitude >= least);
        }
        found
    }

    /// The largest candidates, as many as `chosen` holds, in order of their positions.
    #[inline(always)]
    fn choose(&self, candidates: usize, values: &[f32], chosen: &mut [(u16, f32)]) {
        let magnitudes = &self.magnitudes[..candidates.next_multiple_of(LANES)];
        let least = at_least(magnitudes, chosen.len(), 0);
        let above = count(magnitudes, least + 1);
        let mut ties = chosen.len() - above as usize;
        let mut places = chosen.iter_mut();
        for (&magnitude, &position) in self.magnitudes[..candidates].iter().zip(&self.positions) {
            let tie = magnitude == least && ties > 0;
            ties -= usize::from(tie);
            if (magnitude > least || tie)
                && let Some(place) = places.next()
            {
                *place = (position, values[usize::from(position)]);
            }
        }
    }
}

/// The largest bound, its last `coarse` bits zero, that `wanted` magnitudes reach.
#[inline(always)]
fn at_least(magnitudes: &[u32], wanted: usize, coarse: u32) -> u32 {
    let mut least = 0;
    for bit in (coarse..31).rev() {
        let higher = least | (1 << bit);
        if count(magnitudes, higher) as usize >= wanted {
            least = higher;
        }
    }
    least
}

/// How many magnitudes, their number a multiple of [`LANES`], are at least `least`, 1 to 2³¹.
#[inline(always)]
fn count(magnitudes: &[u32], least: u32) -> u32 {
    let mut lanes = [0; LANES];
    let (rows, _) = magnitudes.as_chunks::<LANES>();
    for row in rows {
        for (lane, &magnitude) in lanes.iter_mut().zip(row) {
            // The sign of the difference: comparisons would be taken apart bit by bit.
            *lane += (least - 1).wrapping_sub(magnitude) >> 31;
        }
    }
    lanes.iter().sum()
}
