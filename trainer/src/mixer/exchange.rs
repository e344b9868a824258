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
//! Each end shortens what it moves by to its own radius, so neither depends on the honesty of the
//! other; the core knows the radius from the other neighbours ([`crate::Tolerance::radius`]).
//!
//! Caveats: where the initiator's radius is the shorter one it moves by less than the responder has, and
//! the sum of the two changes by what it leaves out. What a code of chosen entries leaves out is not
//! mixed by that exchange.

mod device;
mod host;
mod progress;

use std::ops::Range;

use dnode_protocol::Fragments;
use dnode_protocol::frame::Codec;

pub(crate) use self::device::DeviceMemory;
pub(crate) use self::host::HostMemory;
#[cfg(test)]
pub(crate) use self::host::learnt;
use crate::codec::{CODED_FINITE_MAX, Encoded, rounding_squares};
use crate::device::DEVICE_BLOCK as BLOCK;
use crate::mix::{
    MixError, MixReport, MixTerms, OwnSlice, check_difference, check_length, check_norm,
    check_weight, difference_norm_max, parameters_norm_max,
};
use crate::weights::finite_local;

/// Modular codes are told that weights differ by at most this many times the largest known difference of
/// their block: Moniqua's θ (measured, docs/measurements.md; one element that is farther is put right).
const SPREAD_FACTOR: f32 = 1.5;
/// The same of a difference that was read from a code which does not show the largest element.
const SPREAD_FACTOR_COARSE: f32 = 4.0;
/// What that is multiplied by while differences still grow quickly: until [`CLIP_AFTER`] exchanges.
const SPREAD_EARLY: f32 = 4.0;
/// What the bound of a block is multiplied by after its difference was zero, as an unread block's is.
const SPREAD_WIDER: f32 = 4.0;
/// What an exchange leaves of a block's bound: forgets half in 14 exchanges, so that codes get finer as
/// replicas agree (measured, docs/measurements.md: 0.98 loses by coarse offers, 0.995 diverges).
const SPREAD_KEPT: f32 = 0.95;
/// The own moments count for this many times their length where a neighbour's must be in proportion:
/// momentum grows to `1 / (1 - momentum)` times a gradient in a few steps, and shrinks as fast.
const MOMENTS_FACTOR: f64 = 10.0;
/// Exchanges of a fragment before its differences are clipped (guess: enough for an average).
const CLIP_AFTER: u32 = 8;

/// Share of a difference that is no rounding above which it is mixed as it is: the pass over it costs more
/// than that is worth (guess).
const SHARE_WHOLE: f64 = 0.99;
/// The same below which an offer counts as one that could not be read (guess).
const SHARE_MIN: f64 = 0.1;

/// The rule of exchanges, and what is known of how far other replicas are, per fragment.
///
/// Checks, order and report of an exchange are here; what it computes is a [`FragmentMemory`]'s.
pub(crate) struct Exchange {
    /// Clipping radius, multiple of the running average of `‖d‖`.
    clip: Option<f32>,
    distances: Vec<Distance>,
    /// Index of the first fragment of moments; behind the last one without any.
    first_of_moments: usize,
}

#[derive(Clone, Default)]
struct Distance {
    exchanges: u32,
    /// Length of the own weights when they were last read for an offer.
    own: Option<f64>,
    /// Running average of `‖d‖`, clipped.
    average: f64,
}

/// Lengths of the numbers that meet in an exchange.
#[derive(Clone, Copy)]
pub(crate) struct Lengths {
    pub(crate) local: f64,
    pub(crate) remote: f64,
    pub(crate) difference: f64,
}

/// Whether a displacement says how far others are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learning {
    /// It does.
    From,
    /// That is known already.
    Nothing,
}

/// How weights are offered to one whose weights are near.
#[derive(Clone, Copy)]
pub(crate) struct Near {
    /// One of [`Codec::MODULAR`].
    pub(crate) codec: Codec,
    /// What the known distances are multiplied by.
    pub(crate) factor: f32,
}

/// Where the weights of one fragment lie, and what exchanges compute with them there.
///
/// Bytes have the length that the fragment asks for, and are of a code that is allowed.
pub(crate) trait FragmentMemory {
    /// Which fragment it is.
    fn index(&self) -> usize;

    /// Where the fragment lies in the flat vector.
    fn range(&self) -> Range<usize>;

    /// The weights for a responder, and their squared length: as `near` says if the distance of every
    /// block is known, else as `plain`.
    fn offer(&mut self, plain: Codec, near: Option<Near>) -> Result<(Encoded, f64), MixError>;

    /// How far the weights have moved by training alone since the last exchange, Euclidean; `None` where that
    /// is not known. From now on it is counted from here, without what this exchange moves.
    fn own_move(&mut self) -> Option<f64> {
        None
    }

    /// The weights, of the Euclidean norm `norm`, as a radius is measured by them. As [`Self::own_move`], it is
    /// asked once in an exchange.
    fn own_slice(&mut self, norm: f64) -> OwnSlice {
        OwnSlice { norm, moved: self.own_move(), len: self.range().len() }
    }

    /// Squared length of the weights.
    fn squares(&self) -> Result<f64, MixError>;

    /// Measures `φ − offer`; how many blocks of the offer could not be unwrapped.
    fn meet(&mut self, offer: &Encoded) -> Result<(Lengths, usize), MixError>;

    /// Shortens `φ − offer`, which was just measured, by `factor`, learns from it how far others are, and
    /// writes it as `reply`. Moves φ and x by `weight` times what is read from that, if there is a weight.
    fn code(
        &mut self,
        offer: &Encoded,
        reply: Codec,
        factor: Option<f32>,
        weight: Option<f32>,
    ) -> Result<Encoded, MixError>;

    /// Squared length of a coded difference.
    fn weigh(&mut self, coded: &Encoded) -> Result<f64, MixError>;

    /// Moves φ and x by `weight` times the coded difference that was weighed last.
    fn displace(
        &mut self,
        coded: &Encoded,
        weight: f32,
        learning: Learning,
    ) -> Result<(), MixError>;
}

impl Exchange {
    pub(crate) fn new(fragments: Fragments, clip: Option<f32>) -> Self {
        let distances = vec![Distance::default(); fragments.count()];
        let first = fragments.first_of_moments().and_then(|first| usize::try_from(first.0).ok());
        Self { clip, distances, first_of_moments: first.unwrap_or_else(|| fragments.count()) }
    }

    /// What own numbers of the length `local` count for where a neighbour's must be in proportion.
    const fn proportion(&self, index: usize, local: f64) -> f64 {
        if index < self.first_of_moments { local } else { MOMENTS_FACTOR * local }
    }

    /// The initiator's weights, in a code that fits the reply's.
    pub(crate) fn offer(
        &mut self,
        memory: &mut dyn FragmentMemory,
        reply: Codec,
    ) -> Result<Encoded, MixError> {
        let code = reply.of_offer();
        let distance = &mut self.distances[memory.index()];
        let early = distance.exchanges < CLIP_AFTER;
        let factor = if early { SPREAD_EARLY } else { 1.0 };
        let near = Codec::MODULAR.contains(&code).then_some(Near { codec: code, factor });
        let plain = if near.is_some() { Codec::Bf16 } else { code };
        let (offer, squares) = memory.offer(plain, near)?;
        distance.own = Some(squares.sqrt());
        Ok(offer)
    }

    /// The responder's half.
    pub(crate) fn answer(
        &mut self,
        memory: &mut dyn FragmentMemory,
        MixTerms { weight, tolerance }: MixTerms,
        offer: &Encoded,
        reply: Codec,
    ) -> Result<(Encoded, MixReport), MixError> {
        check_weight(weight)?;
        check_reply(reply)?;
        let range = &memory.range();
        check_length(offer, range.len())?;
        check_offer(offer.codec)?;
        offer.check(offer.codec, range.len())?;
        let (lengths, blocks_failed) = memory.meet(offer)?;
        let local_norm = finite_local(range, lengths.local)?;
        let proportion = self.proportion(memory.index(), local_norm);
        check_norm(range, lengths.remote, parameters_norm_max(proportion, range.len()))?;
        let difference_norm = finite_local(range, lengths.difference)?;
        let rounding = rounding_squares(offer);
        let blocks = if rounding.is_some() { range.len().div_ceil(BLOCK) } else { 0 };
        let Denoised { difference_norm, share } = Denoised::of(difference_norm, rounding);
        check_difference(range, difference_norm, local_norm, tolerance)?;
        if is_unread(blocks, blocks_failed) || share < SHARE_MIN {
            // The initiator learns from zeros that it is far away, and soon offers plainly.
            let coded = memory.code(offer, reply, Some(0.0), None)?;
            let report =
                MixReport { local_norm, blocks, blocks_failed: blocks, ..MixReport::default() };
            return Ok((coded, report));
        }
        let distance = &mut self.distances[memory.index()];
        let own = self.clip.and_then(|clip| distance.radius(clip)).unwrap_or(f64::INFINITY);
        let own_slice = memory.own_slice(local_norm);
        let radius = own.min(tolerance.clip_radius(difference_norm, own_slice));
        let measured = lengths.difference;
        let clipped = (share * measured > radius).then_some(radius);
        let factor = clipped.map_or(share, |radius| radius / measured);
        let factor = (factor < SHARE_WHOLE).then_some(factor as f32);
        // Such a difference is finite in every code, so the weights may move while it is written.
        let at_once = (measured <= CODED_FINITE_MAX).then_some(-weight);
        let coded = memory.code(offer, reply, factor, at_once)?;
        if at_once.is_none() {
            finite_local(range, memory.weigh(&coded)?.sqrt())?;
            memory.displace(&coded, -weight, Learning::Nothing)?;
        }
        let mixed = clipped.unwrap_or(share * measured);
        distance.learn(mixed);
        let report = MixReport {
            difference_norm,
            local_norm,
            moved_norm: f64::from(weight) * mixed,
            clipped: clipped.is_some(),
            blocks,
            blocks_failed,
        };
        Ok((coded, report))
    }

    /// The initiator's half.
    pub(crate) fn apply(
        &mut self,
        memory: &mut dyn FragmentMemory,
        MixTerms { weight, tolerance }: MixTerms,
        reply: &Encoded,
    ) -> Result<MixReport, MixError> {
        check_weight(weight)?;
        check_reply(reply.codec)?;
        let range = &memory.range();
        check_length(reply, range.len())?;
        reply.check(reply.codec, range.len())?;
        // That of the offer will do: it is only compared with.
        let local_norm = match self.distances[memory.index()].own {
            Some(norm) => norm,
            None => memory.squares()?.sqrt(),
        };
        let local_norm = finite_local(range, local_norm)?;
        let difference_norm = memory.weigh(reply)?.sqrt();
        let proportion = self.proportion(memory.index(), local_norm);
        check_norm(range, difference_norm, difference_norm_max(proportion, range.len()))?;
        check_difference(range, difference_norm, local_norm, tolerance)?;
        let shortened = tolerance.shortened(difference_norm, memory.own_slice(local_norm));
        let mixed = difference_norm * shortened;
        self.distances[memory.index()].learn(mixed);
        memory.displace(reply, weight * shortened as f32, Learning::From)?;
        let (moved_norm, clipped) = (f64::from(weight) * mixed, shortened < 1.0);
        Ok(MixReport { difference_norm, local_norm, moved_norm, clipped, ..MixReport::default() })
    }
}

/// A difference with an offer, without what the offer's rounding has added to it.
#[derive(Clone, Copy)]
struct Denoised {
    /// Euclidean norm.
    difference_norm: f64,
    /// What the measured difference is multiplied by.
    share: f64,
}

impl Denoised {
    /// Of a measured norm, and the expected squared length of the rounding in it.
    ///
    /// The share is that of the linear estimate with the least squared error (Wiener 1949), `1 − n²/d²`: with
    /// it an exchange brings the two as near as it can.
    fn of(measured: f64, rounding: Option<f64>) -> Self {
        let all = Self { difference_norm: measured, share: 1.0 };
        let Some(rounding) = rounding.filter(|it| it.is_finite()) else { return all };
        let squares = measured * measured;
        if squares == 0.0 {
            return all;
        }
        let share = (1.0 - rounding / squares).max(0.0);
        Self { difference_norm: measured * share.sqrt(), share }
    }
}

impl Distance {
    /// The clipping radius `τ = clip · average ‖d‖`.
    fn radius(&self, clip: f32) -> Option<f64> {
        (self.exchanges >= CLIP_AFTER).then(|| f64::from(clip) * self.average)
    }

    /// Takes note of an exchange.
    fn learn(&mut self, norm: f64) {
        self.exchanges = self.exchanges.saturating_add(1);
        let rate = 1.0 / f64::from(self.exchanges.min(CLIP_AFTER));
        self.average += rate * (norm - self.average);
    }
}

/// How far others may be, as a multiple of the largest element that such a reply shows.
const fn spread_factor(reply: Codec) -> f32 {
    let coarse = matches!(reply, Codec::Int2 | Codec::Sign | Codec::TopK);
    if coarse { SPREAD_FACTOR_COARSE } else { SPREAD_FACTOR }
}

/// Whether so much of an offer could not be read that nothing of it is mixed: its sender is far away, and
/// the few blocks that seem to be near say nothing of how far.
const fn is_unread(blocks: usize, failed: usize) -> bool {
    2 * failed > blocks
}

/// Offers are in one of the exact codes or a modular one.
const fn check_offer(codec: Codec) -> Result<(), MixError> {
    match codec {
        Codec::F32 | Codec::Bf16 | Codec::F16 | Codec::Modular | Codec::Modular4 => Ok(()),
        Codec::Int8 | Codec::Int4 | Codec::Int2 | Codec::Sign | Codec::TopK | Codec::Fixed64 => {
            Err(MixError::Codec(codec))
        }
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
        | Codec::Sign
        | Codec::TopK => Ok(()),
        Codec::Modular | Codec::Modular4 | Codec::Fixed64 => Err(MixError::Codec(codec)),
    }
}
