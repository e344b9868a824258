//! Delta-set: every commit is coded once, told to everybody, and added by all alike.
//!
//! ```text
//! commit          v ← β v + Δ ;  u = α (Δ + β v) ;  p ← p + (1 − s) u ;  m ← m + n̂ − 1
//!                 e ← ε e + s u ;  q = encode(e) ;  e ← e − decode(q)        q is told to all
//!                 A ← A + round(2³² decode(q)) ;  φ = A / 2³² ;  x ← φ + p
//! another's q     A ← A + round(2³² decode(q)) ;  p ← (1 − 1/m) p ;  m ← m − 1
//!                 x moves by what φ + p moved
//! ```
//!
//! `A` is an integer, and adding integers commutes: replicas that have taken in the same set of
//! commits are equal to the last bit, in whatever order they came.
//! `s` is 1/n̂, so that n peers together move as far as one.
//!
//! `p` is the lead of a replica: what the others are taken to contribute beside the own contributions, until
//! theirs come, which are `m`. So the mean of all live weights moves as if nothing had to travel;
//! without it every peer steps on weights that lack what is under way (docs/math.md). `Δ = x − φ − p`.
//!
//! Sources: the outer step of DiLoCo (Douillard et al. 2023, arXiv 2311.08105) on the mean of
//! progresses; error feedback, EF-SGD (Karimireddy et al. 2019, arXiv 1901.09847) and, with
//! decay, SparseLoCo (Sarfi et al. 2025, arXiv 2508.15706). The own progress in place of progress
//! that is under way: eager updates (Kale, Douillard and Donchev 2025, arXiv 2502.12996).
//!
//! Caveats: whoever calls takes in each commit once, and every one of them. A commit that is
//! refused is refused by all, because the bound depends on its numbers alone. Bytes per peer grow
//! with the number of peers. Errors do not decay as they do by averaging.

use std::ops::Range;

use dnode_protocol::frame::Codec;

use super::Slice;
use super::exchange::check_reply;
use super::fixed::{to_fixed, to_float};
use crate::codec::{Encoded, decode, decode_i64, encode, encode_i64};
use crate::kernel::reduce::add_scaled;
use crate::mix::{MixError, MixReport, check_length, check_norm, check_snapshot, norm, subtract};
use crate::room::Room;
use crate::slow::Own;

/// Most that one commit may move a fragment, root mean square per element.
///
/// Guess: a commit moves weights by a few percent of 1. Not relative to the own weights, as every
/// replica must judge alike.
const COMMIT_RMS_MAX: f64 = 10.0;
/// Part of that bound that a peer uses itself, as decoding may give a little more than was coded.
const OWN_PART: f64 = 0.5;
/// The decay ε of what a code of chosen entries has left unsent, which grows stale (the study of
/// the algorithms, `docs/math.md`).
const TOP_K_RESIDUAL_KEPT: f32 = 0.95;

/// Accumulators, error memory and lead of one replica.
pub(crate) struct DeltaSet {
    codec: Codec,
    /// A, `[P]`, units of 2⁻³².
    accumulators: Room<i64>,
    /// e, `[P]`; empty without feedback.
    residual: Vec<f32>,
    lead: Lead,
}

/// What others are taken to contribute until they have.
#[derive(Default)]
struct Lead {
    /// p, `[P]`; empty before anything is contributed beside others.
    values: Vec<f32>,
    /// m of each fragment: contributions of others that are expected.
    expected: Vec<f32>,
    /// Most that is expected before a commit, of each fragment.
    most: f32,
}

impl DeltaSet {
    /// Begins at the slow weights `values`, rounded; they follow that rounding. `room` is as long as they are.
    pub(crate) fn new(
        values: &mut [f32],
        (codec, feedback): (Codec, bool),
        room: Room<i64>,
    ) -> Self {
        let mut accumulators = room;
        for (sum, &value) in accumulators.iter_mut().zip(&*values) {
            *sum = to_fixed(f64::from(value));
        }
        read(&accumulators, values);
        let codec = if check_reply(codec).is_ok() { codec } else { Codec::F32 };
        let residual = if feedback { vec![0.0; values.len()] } else { Vec::new() };
        Self { codec, accumulators, residual, lead: Lead::default() }
    }

    /// Others lack so many of this peer's contributions, all of them together.
    ///
    /// About as many of theirs are under way, so no more are expected before the next commit. Where
    /// more were, their authors are gone, or slower than this peer.
    pub(crate) const fn expect_at_most(&mut self, contributions: f32) {
        self.lead.most = contributions;
    }

    /// Codes `direction` times `share`, adds what others will decode to A and to `slow`.
    pub(crate) fn contribute(
        &mut self,
        slice: &Slice,
        share: f32,
        direction: &mut [f32],
        slow: &mut [f32],
    ) -> Encoded {
        let kept = residual_kept(self.codec);
        direction.iter_mut().for_each(|u| *u *= share);
        clip(direction);
        self.lead.extend(slice, share, direction, self.accumulators.len());
        if let Some(residual) = self.residual.get(slice.range.clone()) {
            direction.iter_mut().zip(residual).for_each(|(u, e)| *u += kept * e);
        }
        clip(direction);
        let mut coded = encode(self.codec, direction);
        let mut moved = vec![0.0; slice.range.len()];
        if self.check(&slice.range, &coded, &mut moved).is_err() {
            // Only numbers that are not finite lead here; the peer then contributes nothing.
            direction.fill(0.0);
            moved.fill(0.0);
            coded = encode(self.codec, &moved);
        }
        if let Some(residual) = self.residual.get_mut(slice.range.clone()) {
            for ((e, &u), &sent) in residual.iter_mut().zip(&*direction).zip(&moved) {
                *e = u - sent;
            }
        }
        add(&mut self.accumulators[slice.range.clone()], &moved);
        self.read(&slice.range, slow);
        coded
    }

    /// Adds another peer's commit to fragment number `index`.
    pub(crate) fn include(
        &mut self,
        own: &mut Own<'_>,
        index: usize,
        contribution: &Encoded,
    ) -> Result<MixReport, MixError> {
        let range = own.range().clone();
        let mut moved = vec![0.0; range.len()];
        self.check(&range, contribution, &mut moved)?;
        let local_norm = own.norm()?;
        let difference_norm = norm(&moved);
        add(&mut self.accumulators[range.clone()], &moved);
        self.lead.meet(index, range.clone());
        self.read(&range, &mut moved);
        own.replace(&mut moved);
        let moved_norm = difference_norm;
        Ok(MixReport { difference_norm, local_norm, moved_norm, ..MixReport::default() })
    }

    /// Gives up the lead of fragment number `index`, so that the live weights are those of the sum.
    pub(crate) fn give_up_lead(&mut self, own: &mut Own<'_>, index: usize) {
        let range = own.range().clone();
        if self.lead.clear(index, range.clone()) {
            let mut values = vec![0.0; range.len()];
            self.read(&range, &mut values);
            own.replace(&mut values);
        }
    }

    /// Whether the live weights are ahead of the sum in some fragment.
    pub(crate) fn leads(&self) -> bool {
        self.lead.expected.iter().any(|expected| *expected > 0.0)
    }

    /// φ, without the lead.
    pub(crate) fn weights(&self, range: Range<usize>, out: &mut [f32]) {
        read(&self.accumulators[range], out);
    }

    /// Takes the lead out of live weights.
    pub(crate) fn subtract_lead(&self, range: Range<usize>, live: &mut [f32]) {
        if let Some(lead) = self.lead.values.get(range) {
            subtract(live, lead);
        }
    }

    /// Writes `φ + p`.
    fn read(&self, range: &Range<usize>, out: &mut [f32]) {
        read(&self.accumulators[range.clone()], out);
        if let Some(lead) = self.lead.values.get(range.clone()) {
            add_scaled(out, lead, 1.0);
        }
    }

    /// The accumulators of a fragment, to the last bit.
    pub(crate) fn snapshot(&self, range: Range<usize>) -> Encoded {
        encode_i64(&self.accumulators[range])
    }

    /// Takes over a donor's accumulators of fragment number `index`; `v = 0`, `e = 0`, `p = 0`.
    pub(crate) fn adopt(
        &mut self,
        own: &mut Own<'_>,
        index: usize,
        snapshot: &Encoded,
    ) -> Result<(), MixError> {
        if snapshot.codec != Codec::Fixed64 {
            return Err(MixError::Codec(snapshot.codec));
        }
        let range = own.range().clone();
        check_length(snapshot, range.len())?;
        let mut accumulators = vec![0; range.len()];
        decode_i64(snapshot, &mut accumulators)?;
        let mut values = vec![0.0; range.len()];
        read(&accumulators, &mut values);
        check_snapshot(&range, norm(&values), own.norm_if_known())?;
        self.accumulators[range.clone()].copy_from_slice(&accumulators);
        if let Some(residual) = self.residual.get_mut(range) {
            residual.fill(0.0);
        }
        self.lead.clear(index, own.range().clone());
        own.adopt(&values, None);
        Ok(())
    }

    /// Accumulators, `[P]`, and error memory, `[P]` or empty.
    pub(crate) fn state(&self) -> (&[i64], &[f32]) {
        (&self.accumulators, &self.residual)
    }

    /// As [`Self::state`], to put saved ones in their place; there is no lead then.
    pub(crate) fn state_mut(&mut self) -> (&mut [i64], &mut [f32]) {
        self.lead = Lead::default();
        (&mut self.accumulators, &mut self.residual)
    }

    /// Decodes a commit if it is one that every replica takes in.
    fn check(
        &self,
        range: &Range<usize>,
        coded: &Encoded,
        moved: &mut [f32],
    ) -> Result<(), MixError> {
        if coded.codec != self.codec {
            return Err(MixError::Codec(coded.codec));
        }
        check_length(coded, range.len())?;
        decode(coded, moved)?;
        check_norm(range, norm(moved), commit_norm_max(moved.len()))
    }
}

impl Lead {
    /// A commit contributes `own` to a fragment, the `share` of one peer, and as much is expected of
    /// each of the others.
    fn extend(&mut self, slice: &Slice, share: f32, own: &[f32], parameters: usize) {
        let others = (1.0 / share).round() - 1.0;
        if self.values.is_empty() && others <= 0.0 {
            return;
        }
        self.values.resize(parameters, 0.0);
        self.expected.resize(self.expected.len().max(slice.index + 1), 0.0);
        let expected = &mut self.expected[slice.index];
        let kept = if *expected > self.most { self.most / *expected } else { 1.0 };
        *expected = *expected * kept + others;
        for (p, own) in self.values[slice.range.clone()].iter_mut().zip(own) {
            *p = kept * *p + others * own;
        }
    }

    /// One of the contributions that were expected is here.
    fn meet(&mut self, index: usize, range: Range<usize>) {
        let Some(expected) = self.expected.get_mut(index).filter(|expected| **expected > 0.0)
        else {
            return;
        };
        if *expected <= 1.0 {
            self.clear(index, range);
            return;
        }
        let kept = 1.0 - 1.0 / *expected;
        *expected -= 1.0;
        self.values[range].iter_mut().for_each(|p| *p *= kept);
    }

    /// Nothing is expected any more; whether anything was.
    fn clear(&mut self, index: usize, range: Range<usize>) -> bool {
        let expected = self.expected.get_mut(index).map_or(0.0, std::mem::take);
        if let Some(values) = self.values.get_mut(range) {
            values.fill(0.0);
        }
        expected > 0.0
    }
}

/// Writes `φ = A / 2³²`, rounded once.
pub(crate) fn read(accumulators: &[i64], out: &mut [f32]) {
    for (out, &accumulator) in out.iter_mut().zip(accumulators) {
        *out = to_float(accumulator);
    }
}

/// `A ← A + round(2³² moved)`, modulo 2⁶⁴, so that the order never matters.
fn add(accumulators: &mut [i64], moved: &[f32]) {
    for (accumulator, &moved) in accumulators.iter_mut().zip(moved) {
        *accumulator = accumulator.wrapping_add(to_fixed(f64::from(moved)));
    }
}

/// Shortens what a peer contributes to a fragment to the length that it may have.
fn clip(contribution: &mut [f32]) {
    let (length, limit) = (norm(contribution), OWN_PART * commit_norm_max(contribution.len()));
    if length > limit {
        let factor = (limit / length) as f32;
        contribution.iter_mut().for_each(|e| *e *= factor);
    }
}

/// ε: with 1 the sum of what is sent and what is left is that of all that was meant.
const fn residual_kept(codec: Codec) -> f32 {
    if matches!(codec, Codec::TopK) { TOP_K_RESIDUAL_KEPT } else { 1.0 }
}

/// Largest norm of one commit of a fragment.
fn commit_norm_max(len: usize) -> f64 {
    COMMIT_RMS_MAX * (len as f64).sqrt()
}
