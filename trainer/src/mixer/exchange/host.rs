//! Exchanges of weights in host memory: a piece stays in the second cache from the first pass to the last.

use std::ops::Range;

use dnode_protocol::frame::{Codec, SpareBuffers};

use super::progress::{Progress, looked_at};
use super::{BLOCK, FragmentMemory, Near, SPREAD_FACTOR, SPREAD_KEPT, SPREAD_WIDER, spread_factor};
use super::{Learning, Lengths};
use crate::codec::{
    Encoded, PART_ELEMENTS, decode_modular_slice, encode_modular_slice, encode_slice,
    largest_of_long, magnitude_bits, numbers as numbers_of, pieces,
};
use crate::device::Zeros;
use crate::kernel::reduce::{Squares, measure_difference, scale, set_difference};
use crate::kernel::vectorized;
use crate::mix::MixError;
use crate::slow::Own;

/// Bytes of offers and replies whose buffers are kept to be used again: eight of the longest fragment
/// in f32, as many as are under way at a time on a fast link (guess).
const BUFFERS_BYTES_MAX: usize = 32 << 20;

/// What exchanges keep in host memory.
pub(crate) struct HostMemory {
    /// How far others may be by block, per fragment: 0 where nothing is known, negative after an exchange
    /// that said nothing.
    bounds: Vec<Vec<f32>>,
    /// How far each fragment has moved by itself.
    progress: Vec<Progress>,
    /// How far others' weights may be, by block of the fragment at hand.
    spread: Vec<f32>,
    /// Of the coded difference that was weighed last.
    weighed: Weighed,
    /// A piece of an offer, and one of a difference or of a reply.
    piece: [Vec<f32>; 2],
    /// Where offers and replies are written.
    buffers: SpareBuffers,
}

impl HostMemory {
    pub(crate) fn new(fragments: usize) -> Self {
        Self {
            bounds: vec![Vec::new(); fragments],
            progress: vec![Progress::default(); fragments],
            spread: Vec::new(),
            weighed: Weighed::default(),
            piece: [(); 2].map(|()| vec![0.0; PART_ELEMENTS]),
            buffers: SpareBuffers::new(BUFFERS_BYTES_MAX),
        }
    }

    /// Another's weights have taken the place of fragment `index`: what lies between is no training of its own.
    pub(crate) fn replaced(&mut self, index: usize) {
        self.progress[index].forget();
    }

    /// One fragment of the weights `own`.
    pub(crate) const fn of<'m, 'o>(
        &'m mut self,
        own: &'m mut Own<'o>,
        index: usize,
    ) -> HostFragment<'m, 'o> {
        HostFragment { own, memory: self, index }
    }
}

/// What a pass over a coded difference finds beside its length.
#[derive(Default)]
struct Weighed {
    /// The largest element of each block.
    largest: Vec<f32>,
    /// The numbers that own training is measured by.
    looked_at: Vec<f32>,
}

/// The weights of one fragment in host memory.
pub(crate) struct HostFragment<'m, 'o> {
    own: &'m mut Own<'o>,
    memory: &'m mut HostMemory,
    index: usize,
}

impl HostFragment<'_, '_> {
    /// Notes `factor` times how far others' weights may be from here, by block; false while a block is
    /// unknown.
    fn spread(&mut self, factor: f32) -> bool {
        let HostMemory { bounds, spread, .. } = &mut *self.memory;
        let bounds = &bounds[self.index];
        spread.clear();
        spread.extend(bounds.iter().map(|&bound| factor * bound));
        !bounds.is_empty() && bounds.iter().all(|&bound| bound.abs() > 0.0)
    }

    /// Blocks of the fragment whose differences are known, or will be.
    fn prepare(&mut self) {
        let blocks = self.own.range().len().div_ceil(BLOCK);
        self.memory.bounds[self.index].resize(blocks, 0.0);
    }
}

impl FragmentMemory for HostFragment<'_, '_> {
    fn index(&self) -> usize {
        self.index
    }

    fn range(&self) -> Range<usize> {
        self.own.range().clone()
    }

    fn offer(&mut self, plain: Codec, near: Option<Near>) -> Result<(Encoded, f64), MixError> {
        let near = near.filter(|near| self.spread(near.factor)).map(|near| near.codec);
        let HostMemory { spread, buffers, .. } = &mut *self.memory;
        let values = self.own.values();
        let mut sum = Squares::default();
        let shape = (near.unwrap_or(plain), values.len());
        let offer = Encoded::in_pieces(buffers, shape, |piece, bytes| {
            let of = piece.start / BLOCK..piece.end.div_ceil(BLOCK);
            let values = &values[piece];
            sum.add(values);
            match near {
                Some(codec) => encode_modular_slice(codec, values, &spread[of], bytes),
                None => encode_slice(plain, values, bytes),
            }
        });
        Ok((offer, sum.sum()))
    }

    fn own_move(&mut self) -> Option<f64> {
        let progress = &mut self.memory.progress[self.index];
        let Some(values) = self.own.shown() else {
            progress.forget();
            return None;
        };
        progress.take(values)
    }

    fn squares(&self) -> Result<f64, MixError> {
        Ok(self.own.norm()?.powi(2))
    }

    fn meet(&mut self, offer: &Encoded) -> Result<(Lengths, usize), MixError> {
        let values = self.own.values();
        let [remote, _] = &mut self.memory.piece;
        let (mut sums, mut failed) = (<[Squares; 3]>::default(), 0);
        for piece in pieces(offer.codec, 0..values.len()) {
            let (values, remote) = (&values[piece.clone()], &mut remote[..piece.len()]);
            let (remote, unread) = read(offer, piece, values, remote)?;
            failed += unread;
            measure_difference((values, remote), &mut sums);
        }
        let [local, remote, difference] = sums.map(|sum| sum.sum().sqrt());
        Ok((Lengths { local, remote, difference }, failed))
    }

    fn code(
        &mut self,
        offer: &Encoded,
        reply: Codec,
        factor: Option<f32>,
        weight: Option<f32>,
    ) -> Result<Encoded, MixError> {
        self.prepare();
        let HostMemory { bounds, progress, piece: [remote, numbers], buffers, .. } =
            &mut *self.memory;
        let (bounds, progress) = (&mut bounds[self.index], &mut progress[self.index]);
        let own = &mut *self.own;
        // The difference is computed anew: cheaper than to write down and read back what is larger than
        // the cache.
        let coded = Encoded::in_pieces(buffers, (reply, offer.elements), |piece, bytes| {
            let (remote, numbers) = (&mut remote[..piece.len()], &mut numbers[..piece.len()]);
            let values = &own.values()[piece.clone()];
            let (remote, _) =
                read(offer, piece.clone(), values, remote).expect("what was measured can be read");
            let bounds = &mut bounds[piece.start / BLOCK..];
            let moving = weight.and_then(|weight| Some((own.moving(piece.clone())?, weight)));
            if let (Codec::F32, Some((values, weight))) = (reply, moving) {
                code_plain((values, remote), (factor.unwrap_or(1.0), weight), bounds, bytes);
            } else {
                set_difference(numbers, &own.values()[piece.clone()], remote);
                if let Some(factor) = factor {
                    scale(numbers, factor);
                }
                learn(bounds, numbers, SPREAD_FACTOR, Zeros::Nothing);
                encode_slice(reply, numbers, bytes);
            }
            if let Some(weight) = weight {
                let moved = numbers_of(reply, bytes, numbers);
                let moved = moved.expect("what was just written can be read");
                progress.mix((piece.start, offer.elements), moved, weight);
                if reply != Codec::F32 {
                    own.displace_slow(piece.start, moved, weight);
                }
            }
        });
        if let Some(weight) = weight {
            own.displace_live(&coded, weight);
        }
        Ok(coded)
    }

    fn weigh(&mut self, coded: &Encoded) -> Result<f64, MixError> {
        let HostMemory {
            piece: [moved, _], weighed: Weighed { largest, looked_at: picked }, ..
        } = &mut *self.memory;
        largest.clear();
        picked.clear();
        let mut sum = Squares::default();
        for piece in pieces(coded.codec, 0..coded.elements) {
            let moved = &mut moved[..piece.len()];
            let moved = numbers_of(coded.codec, coded.piece(piece.clone()), moved)?;
            sum.add(moved);
            largest_of_blocks(moved, largest);
            picked.extend(looked_at((piece.start, coded.elements), moved));
        }
        Ok(sum.sum())
    }

    fn displace(
        &mut self,
        coded: &Encoded,
        weight: f32,
        learning: Learning,
    ) -> Result<(), MixError> {
        self.prepare();
        let HostMemory { bounds, progress, piece: [moved, _], weighed, .. } = &mut *self.memory;
        debug_assert_eq!(weighed.largest.len(), coded.elements.div_ceil(BLOCK), "it was weighed");
        if learning == Learning::From {
            let factor = spread_factor(coded.codec);
            for (bound, largest) in bounds[self.index].iter_mut().zip(&weighed.largest) {
                *bound = learnt(*bound, factor * largest, Zeros::Unread);
            }
        }
        progress[self.index].mix_picked(&weighed.looked_at, weight);
        if self.own.moving(0..0).is_some() {
            // Decoded again: cheaper than to write down and read back what is larger than the cache.
            for piece in pieces(coded.codec, 0..coded.elements) {
                let moved = &mut moved[..piece.len()];
                let moved = numbers_of(coded.codec, coded.piece(piece.clone()), moved)?;
                self.own.displace_slow(piece.start, moved, weight);
            }
        }
        self.own.displace_live(coded, weight);
        Ok(())
    }
}

/// Reads a piece of an offer to one whose weights of that piece are `near`, in `out` or where it lies; how
/// many blocks could not be unwrapped.
fn read<'a>(
    offer: &'a Encoded,
    piece: Range<usize>,
    near: &[f32],
    out: &'a mut [f32],
) -> Result<(&'a [f32], usize), MixError> {
    let bytes = offer.piece(piece);
    if Codec::MODULAR.contains(&offer.codec) {
        let unread = decode_modular_slice(offer.codec, bytes, near, out);
        return Ok((out, unread));
    }
    Ok((numbers_of(offer.codec, bytes, out)?, 0))
}

/// What [`HostFragment::code`] does with a piece whose differences travel as they are, in one pass: writes
/// `factor · (φ − remote)`, learns from it, and moves φ by `weight` times that.
fn code_plain(
    (values, remote): (&mut [f32], &[f32]),
    (factor, weight): (f32, f32),
    bounds: &mut [f32],
    bytes: &mut [u8],
) {
    vectorized(
        #[inline(always)]
        || {
            let blocks = values.chunks_mut(BLOCK).zip(remote.chunks(BLOCK));
            let places = bytes.chunks_mut(Codec::F32.payload_bytes(BLOCK));
            for ((bound, (values, remote)), bytes) in bounds.iter_mut().zip(blocks).zip(places) {
                let (places, _) = bytes.as_chunks_mut();
                let mut most = 0;
                for ((value, &remote), place) in values.iter_mut().zip(remote).zip(places) {
                    let difference = factor * (*value - remote);
                    most = magnitude_bits(difference).max(most);
                    *place = difference.to_le_bytes();
                    *value += weight * difference;
                }
                *bound = learnt(*bound, SPREAD_FACTOR * f32::from_bits(most), Zeros::Nothing);
            }
        },
    );
}

/// Takes note of a difference: others may be `factor` times as far as its largest element.
///
/// A block that is zero throughout is probably one that could not be read. At the end that has offered its
/// bound is made wider; if it is zero once more, nothing is known of it, and the whole fragment is offered
/// plainly.
fn learn(bounds: &mut [f32], difference: &[f32], factor: f32, zeros: Zeros) {
    vectorized(
        #[inline(always)]
        || {
            for (bound, block) in bounds.iter_mut().zip(difference.chunks(BLOCK)) {
                *bound = learnt(*bound, factor * largest_of_long(block), zeros);
            }
        },
    );
}

/// Appends the largest element of each block, by magnitude.
fn largest_of_blocks(values: &[f32], largest: &mut Vec<f32>) {
    vectorized(
        #[inline(always)]
        || largest.extend(values.chunks(BLOCK).map(largest_of_long)),
    );
}

/// The bound of a block after a difference that says `found`.
#[inline(always)]
pub(crate) fn learnt(bound: f32, found: f32, zeros: Zeros) -> f32 {
    if found > 0.0 {
        found.max(SPREAD_KEPT * bound.abs())
    } else if zeros == Zeros::Nothing {
        bound
    } else if bound > 0.0 {
        -SPREAD_WIDER * bound
    } else {
        0.0
    }
}
