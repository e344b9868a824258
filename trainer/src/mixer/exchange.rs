//! Pairwise exchange: the responder computes one difference, and both ends move by its decoded code.
//!
//! ```text
//! initiator i                      responder j
//!   offer  = code of φ_i   ─────▶  d = φ_j − offer ;  d ← d · min(1, τ/‖d‖) ;  q = encode(d)
//!                          ◀─────  q ;  d̂ = decode(q) ;  φ_j, x_j ← … − w d̂
//!   φ_i, x_i ← … + w d̂
//! ```
//!
//! Both ends move by the same `w d̂`, so the sum of the two is kept to f32 rounding whatever the
//! codes lose, whatever is clipped, and even when an offer cannot be unwrapped.
//!
//! Sources: averaging in pairs, AD-PSGD (Lian et al. 2018, arXiv 1710.06952); offers modulo the
//! plausible distance, Moniqua (Lu, De Sa 2020, arXiv 2002.11787); clipping, ClippedGossip (He,
//! Karimireddy, Jaggi 2022, arXiv 2202.01545). Unlike those, the difference is computed once, at
//! the responder, and used by both.
//!
//! Caveats: the clipping radius protects the responder; an initiator cannot shorten a reply alone
//! without breaking the sum, and refuses only what [`MixError::Outlier`] names. What a code of
//! chosen entries leaves out is not mixed by that exchange.

use dnode_protocol::frame::Codec;

use crate::codec::{
    Encoded, PART_ELEMENTS, decode_modular_slice, decode_slice, encode_modular_slice, encode_slice,
    largest_magnitude, parts,
};
use crate::kernel::reduce::scale;
use crate::kernel::vectorized;
use crate::mix::{
    MixError, MixReport, check_length, check_norm, check_weight, difference_norm_max,
    parameters_norm_max, squares, subtract,
};
use crate::slow::Own;
use crate::weights::finite_local;

/// Elements of a block of the modular code.
const BLOCK: usize = 256;
/// The modular code is told that weights differ by at most this many times the largest known
/// difference of their block: Moniqua's θ (design study: 4 lost nothing).
const SPREAD_FACTOR: f32 = 4.0;
/// What an exchange leaves of a block's largest known difference: forgets half in 34 exchanges, so
/// that codes get finer as replicas agree (measured, docs/measurements.md: int2 needs slow decay).
const SPREAD_KEPT: f32 = 0.98;
/// Exchanges of a fragment before its differences are clipped (guess: enough for an average).
const CLIP_AFTER: u32 = 8;

/// What is known of how far other replicas are, per fragment.
pub(crate) struct Exchange {
    /// Clipping radius, multiple of the running average of `‖d‖`.
    clip: Option<f32>,
    distances: Vec<Distance>,
    /// The difference of the fragment at hand.
    difference: Vec<f32>,
    /// A part of it.
    part: Vec<f32>,
}

#[derive(Clone, Default)]
struct Distance {
    exchanges: u32,
    /// Length of the own weights when they were last read for an offer.
    own: Option<f64>,
    /// Running average of `‖d‖`, clipped.
    average: f64,
    /// Running maximum of `|d̂|` by block; 0 where nothing is known.
    largest: Vec<f32>,
}

/// Lengths of the numbers that meet in an exchange, squared.
#[derive(Clone, Copy, Default)]
struct Squares {
    local: f64,
    remote: f64,
    difference: f64,
}

impl Exchange {
    pub(crate) fn new(fragments: usize, clip: Option<f32>) -> Self {
        let distances = vec![Distance::default(); fragments];
        Self { clip, distances, difference: Vec::new(), part: vec![0.0; PART_ELEMENTS] }
    }

    /// The initiator's weights, in a code that fits the reply's.
    pub(crate) fn offer(&mut self, own: &Own<'_>, index: usize, reply: Codec) -> Encoded {
        let values = own.values();
        let mut sum = 0.0;
        let (code, spread) = match reply {
            Codec::F32 | Codec::Bf16 | Codec::F16 => (reply, None),
            Codec::Int8 | Codec::Int4 | Codec::Int2 | Codec::TopK => {
                (Codec::Bf16, self.distances[index].spread())
            }
            Codec::Modular | Codec::Running32 | Codec::Fixed64 => (Codec::F32, None),
        };
        let offer = match spread {
            Some(spread) => Encoded::in_parts(Codec::Modular, values.len(), |part, bytes| {
                let spread = &spread[part.start / BLOCK..part.end.div_ceil(BLOCK)];
                sum += squares(&values[part.clone()]);
                encode_modular_slice(&values[part], spread, bytes);
            }),
            None => Encoded::in_parts(code, values.len(), |part, bytes| {
                sum += squares(&values[part.clone()]);
                encode_slice(code, &values[part], bytes);
            }),
        };
        self.distances[index].own = Some(sum.sqrt());
        offer
    }

    /// The responder's half.
    pub(crate) fn answer(
        &mut self,
        own: &mut Own<'_>,
        index: usize,
        (weight, reply): (f32, Codec),
        offer: &Encoded,
    ) -> Result<(Encoded, MixReport), MixError> {
        check_weight(weight)?;
        check_reply(reply)?;
        let range = &own.range().clone();
        check_length(offer, range.len())?;
        let (squares, blocks_failed) = self.meet(own, offer)?;
        let local_norm = finite_local(range, squares.local.sqrt())?;
        check_norm(range, squares.remote.sqrt(), parameters_norm_max(local_norm, range.len()))?;
        let difference_norm = finite_local(range, squares.difference.sqrt())?;
        let distance = &mut self.distances[index];
        let radius = self.clip.and_then(|clip| distance.radius(clip));
        let clipped = radius.filter(|&radius| difference_norm > radius);
        let factor = clipped.map(|radius| (radius / difference_norm) as f32);
        let (coded, length) = code(reply, &mut self.difference, factor);
        finite_local(range, length)?;
        distance.learn(range.len(), clipped.unwrap_or(difference_norm));
        for part in parts(0..range.len()) {
            let moved = &self.difference[part.clone()];
            distance.learn_part(part.start, moved);
            own.displace(part.start, moved, -weight);
        }
        let report = MixReport {
            difference_norm,
            local_norm,
            clipped: clipped.is_some(),
            blocks_failed,
            received: 0,
        };
        Ok((coded, report))
    }

    /// Writes `φ − offer` to [`Self::difference`]; the squared lengths, and how many blocks of the
    /// offer could not be unwrapped.
    fn meet(&mut self, own: &Own<'_>, offer: &Encoded) -> Result<(Squares, usize), MixError> {
        let values = own.values();
        offer.check(offer.codec, values.len())?;
        self.difference.resize(values.len(), 0.0);
        let (mut sums, mut failed) = (Squares::default(), 0);
        for part in parts(0..values.len()) {
            let difference = &mut self.difference[part.clone()];
            difference.copy_from_slice(&values[part.clone()]);
            sums.local += squares(difference);
            let remote = &mut self.part[..part.len()];
            failed += read_offer(offer.codec, offer.part(part), difference, remote)?;
            sums.remote += squares(remote);
            subtract(difference, remote);
            sums.difference += squares(difference);
        }
        Ok((sums, failed))
    }

    /// The initiator's half.
    pub(crate) fn apply(
        &mut self,
        own: &mut Own<'_>,
        index: usize,
        weight: f32,
        reply: &Encoded,
    ) -> Result<MixReport, MixError> {
        check_weight(weight)?;
        check_reply(reply.codec)?;
        let range = &own.range().clone();
        check_length(reply, range.len())?;
        reply.check(reply.codec, range.len())?;
        // That of the offer will do: it is only compared with.
        let local_norm = match self.distances[index].own {
            Some(norm) => finite_local(range, norm)?,
            None => own.norm()?,
        };
        let mut sum = 0.0;
        for part in parts(0..range.len()) {
            let moved = &mut self.part[..part.len()];
            decode_slice(reply.codec, reply.part(part), moved)?;
            sum += squares(moved);
        }
        let difference_norm = sum.sqrt();
        check_norm(range, difference_norm, difference_norm_max(local_norm, range.len()))?;
        let distance = &mut self.distances[index];
        distance.learn(range.len(), difference_norm);
        // Decoded again: cheaper than to write down and read back what is larger than the cache.
        for part in parts(0..range.len()) {
            let moved = &mut self.part[..part.len()];
            decode_slice(reply.codec, reply.part(part.clone()), moved)?;
            distance.learn_part(part.start, moved);
            own.displace(part.start, moved, weight);
        }
        Ok(MixReport { difference_norm, local_norm, ..MixReport::default() })
    }
}

/// Writes a difference, shortened by `factor`, as `reply`, and puts what is read from that in its
/// place; also returns the length of the latter.
fn code(reply: Codec, difference: &mut [f32], factor: Option<f32>) -> (Encoded, f64) {
    let mut sum = 0.0;
    let coded = Encoded::in_parts(reply, difference.len(), |part, bytes| {
        let values = &mut difference[part];
        if let Some(factor) = factor {
            scale(values, factor);
        }
        encode_slice(reply, values, bytes);
        decode_slice(reply, bytes, values).expect("what was just written can be read");
        sum += squares(values);
    });
    (coded, sum.sqrt())
}

impl Distance {
    /// How far others' weights may be from here, by block; `None` while a block is unknown.
    fn spread(&self) -> Option<Vec<f32>> {
        let known = !self.largest.is_empty() && self.largest.iter().all(|&largest| largest > 0.0);
        known.then(|| self.largest.iter().map(|&largest| SPREAD_FACTOR * largest).collect())
    }

    /// The clipping radius `τ = clip · average ‖d‖`.
    fn radius(&self, clip: f32) -> Option<f64> {
        (self.exchanges >= CLIP_AFTER).then(|| f64::from(clip) * self.average)
    }

    /// Takes note of an exchange of so many elements.
    fn learn(&mut self, elements: usize, norm: f64) {
        self.exchanges = self.exchanges.saturating_add(1);
        let rate = 1.0 / f64::from(self.exchanges.min(CLIP_AFTER));
        self.average += rate * (norm - self.average);
        self.largest.resize(elements.div_ceil(BLOCK), 0.0);
    }

    /// Takes note of the difference from element `start` on. A block that is zero throughout may be
    /// one that could not be unwrapped, so nothing is known of it from then on.
    fn learn_part(&mut self, start: usize, difference: &[f32]) {
        let largest = &mut self.largest[start / BLOCK..];
        vectorized(
            #[inline(always)]
            || {
                for (largest, block) in largest.iter_mut().zip(difference.chunks(BLOCK)) {
                    let found = largest_magnitude(block);
                    *largest = if found > 0.0 { found.max(SPREAD_KEPT * *largest) } else { 0.0 };
                }
            },
        );
    }
}

/// Reads a part of an offer near the own weights; returns how many blocks could not be unwrapped.
fn read_offer(
    codec: Codec,
    bytes: &[u8],
    near: &[f32],
    remote: &mut [f32],
) -> Result<usize, MixError> {
    match codec {
        Codec::F32 | Codec::Bf16 | Codec::F16 => {
            decode_slice(codec, bytes, remote)?;
            Ok(0)
        }
        Codec::Modular => Ok(decode_modular_slice(bytes, near, remote)),
        Codec::Int8
        | Codec::Int4
        | Codec::Int2
        | Codec::TopK
        | Codec::Running32
        | Codec::Fixed64 => Err(MixError::Codec(codec)),
    }
}

/// Differences are coded by one of the codes of plain numbers.
pub(super) fn check_reply(codec: Codec) -> Result<(), MixError> {
    match codec {
        Codec::F32
        | Codec::Bf16
        | Codec::F16
        | Codec::Int8
        | Codec::Int4
        | Codec::Int2
        | Codec::TopK => Ok(()),
        Codec::Modular | Codec::Running32 | Codec::Fixed64 => Err(MixError::Codec(codec)),
    }
}
