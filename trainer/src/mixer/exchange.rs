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

use super::Slice;
use crate::codec::{Encoded, decode, decode_modular, encode, encode_modular};
use crate::mix::{
    MixError, MixReport, check_length, check_norm, check_weight, difference_norm_max, norm,
    parameters_norm_max, subtract,
};
use crate::weights::{Weights, finite_local};

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
}

#[derive(Clone, Default)]
struct Distance {
    exchanges: u32,
    /// Running average of `‖d‖`, clipped.
    average: f64,
    /// Running maximum of `|d̂|` by block; 0 where nothing is known.
    largest: Vec<f32>,
}

impl Exchange {
    pub(crate) fn new(fragments: usize, clip: Option<f32>) -> Self {
        Self { clip, distances: vec![Distance::default(); fragments] }
    }

    /// The initiator's weights, in a code that fits the reply's.
    pub(crate) fn offer(&self, weights: &Weights, slice: &Slice, reply: Codec) -> Encoded {
        let values = weights.copy(slice.range.clone());
        match reply {
            Codec::F32 | Codec::Bf16 | Codec::F16 => encode(reply, &values),
            Codec::Int8 | Codec::Int4 | Codec::Int2 | Codec::TopK => {
                match self.distances[slice.index].spread() {
                    Some(spread) => encode_modular(&values, &spread),
                    None => encode(Codec::Bf16, &values),
                }
            }
            Codec::Modular | Codec::Running32 | Codec::Fixed64 => encode(Codec::F32, &values),
        }
    }

    /// The responder's half.
    pub(crate) fn answer(
        &mut self,
        weights: &mut Weights,
        slice: &Slice,
        (weight, reply): (f32, Codec),
        offer: &Encoded,
    ) -> Result<(Encoded, MixReport), MixError> {
        check_weight(weight)?;
        check_reply(reply)?;
        let range = slice.range.clone();
        check_length(offer, range.len())?;
        let mut difference = weights.copy(range.clone());
        let local_norm = finite_local(&range, norm(&difference))?;
        let mut remote = vec![0.0; range.len()];
        let blocks_failed = read_offer(offer, &difference, &mut remote)?;
        check_norm(&range, norm(&remote), parameters_norm_max(local_norm, range.len()))?;
        subtract(&mut difference, &remote);
        let difference_norm = finite_local(&range, norm(&difference))?;
        let distance = &mut self.distances[slice.index];
        let radius = self.clip.and_then(|clip| distance.radius(clip));
        let clipped = radius.filter(|&radius| difference_norm > radius);
        if let Some(radius) = clipped {
            let factor = (radius / difference_norm) as f32;
            difference.iter_mut().for_each(|d| *d *= factor);
        }
        let coded = encode(reply, &difference);
        decode(&coded, &mut difference)?;
        finite_local(&range, norm(&difference))?;
        distance.learn(&difference, clipped.unwrap_or(difference_norm));
        weights.displace(range, &difference, -weight);
        let report = MixReport {
            difference_norm,
            local_norm,
            clipped: clipped.is_some(),
            blocks_failed,
            received: 0,
        };
        Ok((coded, report))
    }

    /// The initiator's half.
    pub(crate) fn apply(
        &mut self,
        weights: &mut Weights,
        slice: &Slice,
        weight: f32,
        reply: &Encoded,
    ) -> Result<MixReport, MixError> {
        check_weight(weight)?;
        check_reply(reply.codec)?;
        let range = slice.range.clone();
        check_length(reply, range.len())?;
        let local_norm = weights.norm(range.clone())?;
        let mut difference = vec![0.0; range.len()];
        decode(reply, &mut difference)?;
        let difference_norm = norm(&difference);
        check_norm(&range, difference_norm, difference_norm_max(local_norm, range.len()))?;
        self.distances[slice.index].learn(&difference, difference_norm);
        weights.displace(range, &difference, weight);
        Ok(MixReport { difference_norm, local_norm, ..MixReport::default() })
    }
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

    /// Takes note of an exchange. A block that is zero throughout may be one that could not be
    /// unwrapped, so nothing is known of it from then on.
    fn learn(&mut self, difference: &[f32], norm: f64) {
        self.exchanges = self.exchanges.saturating_add(1);
        let rate = 1.0 / f64::from(self.exchanges.min(CLIP_AFTER));
        self.average += rate * (norm - self.average);
        self.largest.resize(difference.len().div_ceil(BLOCK), 0.0);
        for (largest, block) in self.largest.iter_mut().zip(difference.chunks(BLOCK)) {
            let found = block.iter().fold(0.0_f32, |most, d| most.max(d.abs()));
            *largest = if found > 0.0 { found.max(SPREAD_KEPT * *largest) } else { 0.0 };
        }
    }
}

/// Reads an offer near the own weights; returns how many blocks could not be unwrapped.
fn read_offer(offer: &Encoded, near: &[f32], remote: &mut [f32]) -> Result<usize, MixError> {
    match offer.codec {
        Codec::F32 | Codec::Bf16 | Codec::F16 => {
            decode(offer, remote)?;
            Ok(0)
        }
        Codec::Modular => Ok(decode_modular(offer, near, remote)?),
        Codec::Int8
        | Codec::Int4
        | Codec::Int2
        | Codec::TopK
        | Codec::Running32
        | Codec::Fixed64 => Err(MixError::Codec(offer.codec)),
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
