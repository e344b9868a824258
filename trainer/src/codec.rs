//! Tensors as they travel: numbers to bytes and back.
//!
//! The bytes are normative in `docs/protocol.md`, section 6.1; equations and errors are in
//! `docs/math.md`, section "Codecs". Blocks divide frames, so the payloads of a tensor's frames
//! together are its encoding as a whole, and lengths follow from the number of elements alone.
//!
//! All arithmetic is plain f32 with a fixed order of sums: the same numbers give the same bytes,
//! and the same bytes the same numbers, on every machine.

#![expect(
    clippy::redundant_closure,
    reason = "only a closure can be told to be inlined where it is called"
)]

mod full;
pub(crate) mod half;
mod int2;
mod int4;
mod int8;
mod integer;
mod modular;
mod sign;
#[cfg(test)]
mod tests;
mod top_k;

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use dnode_protocol::frame::{Codec, INT2_BLOCK_ELEMENTS, SpareBuffers, TOP_K_CHUNK_ELEMENTS};
use dnode_protocol::limits::FRAME_ELEMENTS;

pub use integer::{decode_i64, encode_i64};
pub use modular::{decode_modular, encode_modular};
pub(crate) use modular::{decode_modular_slice, encode_modular_slice, rounding_squares};

use crate::kernel::{fetch, fetch_ahead, reduce, vectorized};

/// Added to a number of magnitude under 2²², rounds it to the nearest integer, ties to even; the
/// low bits of the sum are then the integer in two's complement.
const ROUND: f32 = 12_582_912.0;

/// Blocks whose largest magnitude is below 2⁻¹⁰⁰ travel as zeros: its inverse would overflow.
const TINY: f32 = f32::from_bits((127 - 100) << 23);

/// Most elements that [`decode_displace`] decodes at a time: they stay in the first cache.
const ROW_ELEMENTS: usize = INT2_BLOCK_ELEMENTS;

/// Most elements of a piece: blocks of every code divide it, and 64 KiB of f32 stay in the second cache
/// from one pass to the next (measured with 4,096 to 65,536: little difference, docs/measurements.md).
const PIECE_ELEMENTS: usize = 4 * TOP_K_CHUNK_ELEMENTS;

/// Most elements of a piece of any code: 256 KiB of f32 stay in the second cache.
pub(crate) const PART_ELEMENTS: usize = FRAME_ELEMENTS;

/// Numbers of this magnitude at most are finite in every code: half of the largest power of two that
/// binary16 has.
pub(crate) const CODED_FINITE_MAX: f64 = 32_768.0;

/// A tensor as it travels.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    /// How the elements are written.
    pub codec: Codec,
    /// Elements of the tensor: those of the fragment.
    pub elements: usize,
    /// The payloads of its frames, in order: `codec.payload_bytes(elements)` bytes.
    pub bytes: Bytes,
}

/// Why bytes are no tensor of that kind; whoever wrote them is at fault.
///
/// What was to be filled then holds anything, and must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The tensor has another length than what it is decoded into.
    #[error("decode {expected} elements as {codec}: the tensor has {found}")]
    Elements {
        /// How the elements are written.
        codec: Codec,
        /// Elements wanted.
        expected: usize,
        /// Elements of the tensor.
        found: usize,
    },
    /// The bytes are not those of so many elements.
    #[error("decode {expected} bytes as {codec}: got {found}")]
    Bytes {
        /// How the elements are written.
        codec: Codec,
        /// Bytes that the elements take.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The codec is not one that this decoder reads.
    #[error("decode a tensor written as {0} with the decoder of another codec")]
    Codec(Codec),
    /// [`Codec::TopK`] names an element behind its chunk.
    #[error("decode position {position} of a chunk of {elements} elements")]
    Position {
        /// Position in the chunk.
        position: usize,
        /// Elements of the chunk.
        elements: usize,
    },
}

/// Writes numbers with one of [`Codec::CHOICES`].
///
/// NaN and infinity make the numbers of their block, at least one of them, not finite again.
///
/// # Panics
/// With a codec that is no choice: its encoder takes other arguments.
#[must_use]
pub fn encode(codec: Codec, values: &[f32]) -> Encoded {
    Encoded::filled(codec, values.len(), |bytes| encode_slice(codec, values, bytes))
}

/// [`encode`] for a part of a tensor; `bytes` are as many as `values` take.
pub(crate) fn encode_slice(codec: Codec, values: &[f32], bytes: &mut [u8]) {
    match codec {
        Codec::F32 => full::encode(values, bytes),
        Codec::Bf16 => half::encode_bf16(values, bytes),
        Codec::F16 => half::encode_f16(values, bytes),
        Codec::Int8 => int8::encode(values, bytes),
        Codec::Int4 => int4::encode(values, bytes),
        Codec::Int2 => int2::encode(values, bytes),
        Codec::Sign => sign::encode(values, bytes),
        Codec::TopK => top_k::encode(values, bytes),
        Codec::Modular | Codec::Modular4 | Codec::Fixed64 => {
            panic!("{codec} has an encoder of its own")
        }
    }
}

/// Reads numbers written with one of [`Codec::CHOICES`] into `out`, `[elements]`.
///
/// NaN and infinity pass; whoever uses the numbers must judge them.
///
/// # Errors
/// [`CodecError`]; `out` then holds anything.
pub fn decode(encoded: &Encoded, out: &mut [f32]) -> Result<(), CodecError> {
    encoded.check(encoded.codec, out.len())?;
    decode_slice(encoded.codec, &encoded.bytes, out)
}

/// Moves `target` by what is written: `target ← target + weight · decoded`, in one pass.
///
/// The result is that of [`decode`] and a displacement after it, bit by bit.
///
/// # Errors
/// [`CodecError`]; `target` is then unchanged, except after [`CodecError::Position`].
pub fn decode_displace(
    encoded: &Encoded,
    weight: f32,
    target: &mut [f32],
) -> Result<(), CodecError> {
    encoded.check(encoded.codec, target.len())?;
    let codec = encoded.codec;
    let mut buffer = [0.0; ROW_ELEMENTS];
    let mut rest = &encoded.bytes[..];
    let elements = if codec == Codec::TopK { TOP_K_CHUNK_ELEMENTS } else { ROW_ELEMENTS };
    for target in target.chunks_mut(elements) {
        let (bytes, behind) = rest.split_at(codec.payload_bytes(target.len()));
        rest = behind;
        if codec == Codec::TopK {
            top_k::displace(bytes, weight, target)?;
            continue;
        }
        if codec == Codec::F32 {
            full::displace(bytes, weight, target);
            continue;
        }
        let piece = &mut buffer[..target.len()];
        decode_slice(codec, bytes, piece)?;
        reduce::add_scaled(target, piece, weight);
    }
    Ok(())
}

/// Moves `target`, the elements from `start` on, by the same elements of what is written: bit by bit as
/// [`decode`] and a displacement after it.
///
/// # Errors
/// [`CodecError::Position`]; `target` is then moved in part.
pub(crate) fn displace_part(
    encoded: &Encoded,
    weight: f32,
    start: usize,
    target: &mut [f32],
) -> Result<(), CodecError> {
    let mut buffer = [0.0; TOP_K_CHUNK_ELEMENTS];
    let end = start + target.len();
    for from in (start - start % TOP_K_CHUNK_ELEMENTS..end).step_by(TOP_K_CHUNK_ELEMENTS) {
        let piece = from..encoded.elements.min(from + TOP_K_CHUNK_ELEMENTS);
        let buffer = &mut buffer[..piece.len()];
        let values = numbers(encoded.codec, encoded.piece(piece), buffer)?;
        let common = from.max(start)..end.min(from + values.len());
        let moved = &mut target[common.start - start..common.end - start];
        reduce::add_scaled(moved, &values[common.start - from..common.end - from], weight);
    }
    Ok(())
}

/// [`decode`] for a part of a tensor; `bytes` are as long as `out` asks for.
pub(crate) fn decode_slice(codec: Codec, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    match codec {
        Codec::F32 => full::decode(bytes, out),
        Codec::Bf16 => half::decode_bf16(bytes, out),
        Codec::F16 => half::decode_f16(bytes, out),
        Codec::Int8 => int8::decode(bytes, out),
        Codec::Int4 => int4::decode(bytes, out),
        Codec::Int2 => int2::decode(bytes, out),
        Codec::Sign => sign::decode(bytes, out),
        Codec::TopK => return top_k::decode(bytes, out),
        Codec::Modular | Codec::Modular4 | Codec::Fixed64 => {
            return Err(CodecError::Codec(codec));
        }
    }
    Ok(())
}

/// As [`decode_slice`], in `out` or where they lie already.
pub(crate) fn numbers<'a>(
    codec: Codec,
    bytes: &'a [u8],
    out: &'a mut [f32],
) -> Result<&'a [f32], CodecError> {
    match view(codec, bytes) {
        Some(values) => Ok(values),
        None => decode_slice(codec, bytes, out).map(|()| &*out),
    }
}

/// The numbers where they lie, if they are kept as they travel.
fn view(codec: Codec, bytes: &[u8]) -> Option<&[f32]> {
    if codec == Codec::F32 { full::view(bytes) } else { None }
}

impl Encoded {
    /// A tensor whose bytes `write` fills; they are zero before.
    pub(crate) fn filled(codec: Codec, elements: usize, write: impl FnOnce(&mut [u8])) -> Self {
        let mut bytes = BytesMut::zeroed(codec.payload_bytes(elements));
        write(&mut bytes);
        Self { codec, elements, bytes: bytes.freeze() }
    }

    /// A tensor in one of `buffers`, whose pieces `write` fills one after the other: given the elements,
    /// and their bytes, in which anything is.
    pub(crate) fn in_pieces(
        buffers: &mut SpareBuffers,
        (codec, elements): (Codec, usize),
        mut write: impl FnMut(Range<usize>, &mut [u8]),
    ) -> Self {
        let bytes = buffers.filled(codec.payload_bytes(elements), |mut bytes| {
            for piece in pieces(codec, 0..elements) {
                let (head, rest) = bytes.split_at_mut(codec.payload_bytes(piece.len()));
                bytes = rest;
                write(piece, head);
            }
        });
        Self { codec, elements, bytes }
    }

    /// The bytes of one of the [`pieces`] of the tensor.
    pub(crate) fn piece(&self, piece: Range<usize>) -> &[u8] {
        let Range { start, end } = piece;
        &self.bytes[self.codec.payload_bytes(start)..self.codec.payload_bytes(end)]
    }

    /// The numbers of one of the [`pieces`] where they lie, if they are kept as they travel.
    pub(crate) fn view(&self, piece: Range<usize>) -> Option<&[f32]> {
        view(self.codec, self.piece(piece))
    }

    pub(crate) fn check(&self, codec: Codec, elements: usize) -> Result<(), CodecError> {
        if self.codec != codec {
            return Err(CodecError::Codec(self.codec));
        }
        if self.elements != elements {
            return Err(CodecError::Elements { codec, expected: elements, found: self.elements });
        }
        let (expected, found) = (codec.payload_bytes(elements), self.bytes.len());
        if expected != found {
            return Err(CodecError::Bytes { codec, expected, found });
        }
        Ok(())
    }
}

/// `range` in pieces that are worked on by themselves, from reading them to the last pass.
pub(crate) fn pieces(codec: Codec, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    // The search for the largest elements of a chunk goes on from that of the chunk before.
    let most = if codec == Codec::TopK { PART_ELEMENTS } else { PIECE_ELEMENTS };
    let Range { start, end } = range;
    (start..end).step_by(most).map(move |start| start..end.min(start + most))
}

/// Calls `body` with each block of `N` elements and its `B` bytes, then with what is left; call
/// inside [`vectorized`]. `body` must be a closure that is always inlined: a function is called
/// through a shim that is compiled for the oldest processor.
#[inline(always)]
fn encode_blocks<const N: usize, const B: usize>(
    values: &[f32],
    bytes: &mut [u8],
    body: impl Fn(&[f32], &mut [u8]),
) {
    let (blocks, rest) = values.as_chunks::<N>();
    // Not by whole chunks alone: the block at the end can take as many bytes as a full one.
    let (codes, codes_rest) = bytes.split_at_mut(blocks.len() * B);
    let (codes, _) = codes.as_chunks_mut::<B>();
    for (block, code) in blocks.iter().zip(codes) {
        body(block, code);
    }
    if !rest.is_empty() {
        body(rest, codes_rest);
    }
}

/// As [`encode_blocks`], the other way.
#[inline(always)]
fn decode_blocks<const N: usize, const B: usize>(
    bytes: &[u8],
    out: &mut [f32],
    body: impl Fn(&[u8], &mut [f32]),
) {
    let (blocks, rest) = out.as_chunks_mut::<N>();
    let (codes, codes_rest) = bytes.split_at(blocks.len() * B);
    let (codes, _) = codes.as_chunks::<B>();
    for (block, code) in blocks.iter_mut().zip(codes) {
        body(code, block);
    }
    if !rest.is_empty() {
        body(codes_rest, rest);
    }
}

/// Makes the `encode` and `decode` of a codec of its `encode_block` and `decode_block`. Not a function
/// that takes them: what is called by way of a pointer is compiled for the oldest processor.
macro_rules! by_blocks {
    ($(#[$attribute:meta])* $visibility:vis fn $encode:ident; $elements:expr, $bytes:expr) => {
        $(#[$attribute])*
        $visibility fn $encode(values: &[f32], bytes: &mut [u8]) {
            crate::kernel::vectorized(
                #[inline(always)]
                || {
                    super::encode_blocks::<{ $elements }, { $bytes }>(
                        values,
                        bytes,
                        #[inline(always)]
                        |values, bytes| encode_block(values, bytes),
                    );
                },
            );
        }

        pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
            crate::kernel::vectorized(
                #[inline(always)]
                || {
                    super::decode_blocks::<{ $elements }, { $bytes }>(
                        bytes,
                        out,
                        #[inline(always)]
                        |bytes, out| decode_block(bytes, out),
                    );
                },
            );
        }
    };
}

use by_blocks;

/// The bits of `|value|`; they order magnitudes, with infinity and NaN above all numbers.
#[inline(always)]
pub(crate) const fn magnitude_bits(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// Largest magnitude, infinite or NaN if an element is; call inside [`vectorized`].
#[inline(always)]
pub(crate) fn largest_magnitude(values: &[f32]) -> f32 {
    let mut lanes = [0; 32];
    let (rows, rest) = values.as_chunks::<32>();
    for row in rows {
        for (lane, &value) in lanes.iter_mut().zip(row) {
            *lane = magnitude_bits(value).max(*lane);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane = magnitude_bits(value).max(*lane);
    }
    f32::from_bits(lanes.into_iter().fold(0, u32::max))
}

/// [`largest_magnitude`] of a long block: lanes of their own would be gathered by columns.
#[inline(always)]
pub(crate) fn largest_of_long(values: &[f32]) -> f32 {
    let mut most = 0;
    for &value in values {
        most = magnitude_bits(value).max(most);
    }
    f32::from_bits(most)
}

/// Codes per unit when `most` becomes the code `top`; 0 for blocks that travel as zeros.
#[inline(always)]
fn codes_per_unit(top: f32, most: f32) -> f32 {
    if most < TINY { 0.0 } else { top / most }
}

/// The four bytes of a word at the beginning of a block, and what follows them.
#[inline(always)]
fn split_word(bytes: &[u8]) -> ([u8; 4], &[u8]) {
    let (word, rest) = bytes.split_first_chunk().expect("a block begins with its words");
    (*word, rest)
}

/// Writes a word to the beginning of a block; returns what follows it.
#[inline(always)]
fn put_word(bytes: &mut [u8], word: [u8; 4]) -> &mut [u8] {
    let (place, rest) = bytes.split_first_chunk_mut().expect("a block begins with its words");
    *place = word;
    rest
}
