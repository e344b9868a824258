//! Push-sum: every peer holds a numerator X and a weight W, gives halves of both away, and reads
//! its replica as `z = X/W`.
//!
//! ```text
//! commit          u = α (Δ + β v) ;  X ← X + W u            so that z moves by u
//! push to j       X ← X − ⌊X/2⌋ ;  W ← W − ⌊W/2⌋ ;  σ_j ← σ_j + (⌊X/2⌋, ⌊W/2⌋) ;  send σ_j
//! arrival of σ    (X, W) ← (X, W) + (σ − ρ) ;  ρ ← σ        older σ change nothing
//! ```
//!
//! All of it is integer arithmetic, so `Σ X + Σ (σ − ρ)` and `Σ W + Σ (σ_w − ρ_w)` are kept exactly,
//! whatever is lost, repeated or reordered on the way.
//!
//! Sources: push-sum, Kempe, Dobra, Gehrke 2003; with gradients, Stochastic Gradient Push (Assran
//! et al. 2019, arXiv 1811.10792, Algorithm 1); running sums against loss, Vaidya,
//! Hadjicostis, Domínguez-García 2011, arXiv 1109.6392.
//!
//! Caveats: a peer that dies takes its numerator, its weight and what it was owed along. The
//! weight of a commit is that of the peer just then. A peer whose weight is below
//! [`PUSH_WEIGHT_MIN`] keeps it until it has received some; when [`EMPTY_PUSHES_MAX`] pushes in turn
//! have brought it nothing, both its numerator and its weight double.

use dnode_protocol::Fragments;
use dnode_protocol::Origin;
use dnode_protocol::frame::Codec;

use super::Slice;
use super::edges::{Edges, Received, generation_of};
use super::fixed::{NUMERATOR_BITS, scale, to_fixed};
use crate::codec::{Encoded, decode_running, encode_running};
use crate::mix::{
    MixError, MixReport, Tolerance, check_difference, check_norm, norm, parameters_norm_max,
};
use crate::slow::Own;

/// Weight 1, which every peer begins with: `W = integer · 2⁻³²`.
pub(crate) const WEIGHT_ONE: u64 = 1 << 32;
/// Least weight that is halved, 1/16: below, the step of `z = X/W` would be coarser than 2.4e-7.
const PUSH_WEIGHT_MIN: u64 = WEIGHT_ONE >> 4;
/// Pushes in turn that bring nothing to a fragment of too little weight before it doubles.
///
/// Guess: in a swarm that has its weight, some of it is among so many.
const EMPTY_PUSHES_MAX: u32 = 16;
/// Most weight that one arrival may bring, and that may be unacknowledged on an edge: 64 peers'.
///
/// Guess: weights of a connected swarm stay within a small factor of 1.
const ARRIVAL_WEIGHT_MAX: u64 = WEIGHT_ONE << 6;
/// Most weight of one peer, 2²⁰ peers': far below the 53 bits that f64 holds exactly.
const WEIGHT_MAX: u64 = WEIGHT_ONE << 20;

/// Numerators, weights and edges of one replica.
pub(crate) struct PushSum {
    /// X, `[P]`, units of 2⁻²⁶.
    numerators: Vec<i64>,
    /// W per fragment, units of 2⁻³².
    masses: Vec<u64>,
    /// Pushes per fragment that have brought nothing since one brought something.
    empty: Vec<u32>,
    edges: Edges,
}

impl PushSum {
    /// Begins with `W = 1` and `X = z`, rounded; the slow weights `values` follow that rounding.
    pub(crate) fn new(values: &mut [f32], fragments: &Fragments) -> Self {
        let numerators: Vec<i64> =
            values.iter().map(|&z| to_fixed(f64::from(z), NUMERATOR_BITS)).collect();
        for (value, &numerator) in values.iter_mut().zip(&numerators) {
            *value = quotient(numerator, WEIGHT_ONE);
        }
        let masses = vec![WEIGHT_ONE; fragments.count()];
        let empty = vec![0; fragments.count()];
        Self { numerators, masses, empty, edges: Edges::default() }
    }

    /// Adds the outer step `direction` to the slice `slow` of φ.
    pub(crate) fn step(&mut self, slice: &Slice, direction: &[f32], slow: &mut [f32]) {
        let mass = self.masses[slice.index];
        let weight = mass as f64 / WEIGHT_ONE as f64;
        let numerators = &mut self.numerators[slice.range.clone()];
        for ((numerator, &u), z) in numerators.iter_mut().zip(direction).zip(slow) {
            let step = to_fixed(weight * f64::from(u), NUMERATOR_BITS);
            *numerator = numerator.saturating_add(step);
            *z = quotient(*numerator, mass);
        }
    }

    /// Gives half of the fragment away to `to` and returns the running sum.
    ///
    /// When the edge has no room, everything stays here and the sum is the one that was sent last.
    pub(crate) fn push(&mut self, slice: &Slice, to: Origin) -> Encoded {
        let numerators = &mut self.numerators[slice.range.clone()];
        let mass = &mut self.masses[slice.index];
        let half = *mass >> 1;
        let largest = numerators.iter().map(|x| (x >> 1).unsigned_abs()).max().unwrap_or(0);
        let Some(given) = self.edges.given(to, slice.index, numerators.len()) else {
            return encode_running(&vec![0; numerators.len()], 0);
        };
        if *mass >= PUSH_WEIGHT_MIN && given.has_room(half, largest, ARRIVAL_WEIGHT_MAX) {
            for (numerator, sum) in numerators.iter_mut().zip(&mut given.sums) {
                let away = *numerator >> 1;
                *numerator -= away;
                *sum = sum.wrapping_add(low_bits(away));
            }
            *mass -= half;
            given.pushed(half, largest);
        }
        let sums: Vec<i64> = given.sums.iter().map(|&sum| i64::from(sum)).collect();
        encode_running(&sums, given.mark)
    }

    /// Notes that the peer at `edge` has taken in what was given up to `mark`.
    pub(crate) fn acknowledged(&mut self, index: usize, edge: Origin, mark: u64) {
        self.edges.acknowledge(edge, index, mark);
    }

    /// Drops an edge, see [`crate::Replica::forget`].
    pub(crate) fn forget(&mut self, edge: Origin) -> bool {
        self.edges.forget(edge)
    }

    /// Takes in what arrived since the last sum of `from`. What is refused is not lost: the next
    /// push has it, too.
    pub(crate) fn absorb(
        &mut self,
        own: &mut Own<'_>,
        (index, from): (usize, Origin),
        tolerance: Tolerance,
        push: &Encoded,
    ) -> Result<MixReport, MixError> {
        if push.codec != Codec::Running32 {
            return Err(MixError::Codec(push.codec));
        }
        let range = own.range().clone();
        let mut sums = vec![0; range.len()];
        let mark = decode_running(push, &mut sums)?;
        let before = self.edges.received(from, index).map_err(MixError::Edge)?;
        let (known, known_mark) = before.map_or((None, 0), |b| (Some(&b.sums), b.mark));
        let local_norm = own.norm()?;
        // A later generation begins at zero; so does an edge that nothing is known of.
        let generation = generation_of(mark);
        let known = known.filter(|_| known_mark >= generation);
        let brought = mark.saturating_sub(known_mark.max(generation));
        if brought == 0 {
            if mark == known_mark.max(generation) {
                self.brought_nothing(&Slice { index, range });
            }
            return Ok(MixReport { local_norm, received: known_mark, ..MixReport::default() });
        }
        let mass = self.masses[index];
        if brought > ARRIVAL_WEIGHT_MAX || mass > WEIGHT_MAX - brought {
            return Err(MixError::Mass("weight"));
        }
        let arrived = |k: usize| {
            let before = known.map_or(0, |known| known[k]);
            i64::from(sums[k].wrapping_sub(before))
        };
        let remote: Vec<f32> = (0..sums.len()).map(|k| quotient(arrived(k), brought)).collect();
        check_norm(&range, norm(&remote), parameters_norm_max(local_norm, range.len()))?;
        let numerators = &self.numerators[range.clone()];
        let total = |(k, x): (usize, &i64)| x.checked_add(arrived(k));
        let numerators: Option<Vec<i64>> = numerators.iter().enumerate().map(total).collect();
        let numerators = numerators.ok_or(MixError::Mass("numerator"))?;
        let difference_norm = norm(&own.minus(&remote));
        check_difference(&range, difference_norm, local_norm, tolerance)?;
        // Nothing has changed until here.
        let mass = mass + brought;
        self.masses[index] = mass;
        self.empty[index] = 0;
        let mut values: Vec<f32> = numerators.iter().map(|&x| quotient(x, mass)).collect();
        self.numerators[range].copy_from_slice(&numerators);
        self.edges.take(from, index, Received { sums, mark });
        own.replace(&mut values);
        let moved_norm = difference_norm * brought as f64 / mass as f64;
        let received = mark;
        Ok(MixReport { difference_norm, local_norm, moved_norm, received, ..MixReport::default() })
    }

    /// A push brings nothing where its sender has too little to give. When only such pushes have come
    /// for a while and there is as little here, doubles numerators and weight: `z` stays as it is.
    ///
    /// Else peers whose weight went with one that died would keep what they have for ever. It needs
    /// two ends below [`PUSH_WEIGHT_MIN`], so weight is created only where next to none is left.
    fn brought_nothing(&mut self, slice: &Slice) {
        let (mass, empty) = (&mut self.masses[slice.index], &mut self.empty[slice.index]);
        *empty = empty.saturating_add(1);
        if *mass < PUSH_WEIGHT_MIN && *empty > EMPTY_PUSHES_MAX {
            *mass *= 2;
            let numerators = &mut self.numerators[slice.range.clone()];
            numerators.iter_mut().for_each(|numerator| *numerator = numerator.saturating_mul(2));
        }
    }

    /// Takes over a donor's `z` at the own weight.
    pub(crate) fn adopt(&mut self, own: &mut Own<'_>, index: usize, values: &mut [f32]) {
        let mass = self.masses[index];
        let weight = mass as f64 / WEIGHT_ONE as f64;
        let numerators = &mut self.numerators[own.range().clone()];
        for (numerator, value) in numerators.iter_mut().zip(values.iter_mut()) {
            *numerator = to_fixed(weight * f64::from(*value), NUMERATOR_BITS);
            *value = quotient(*numerator, mass);
        }
        own.adopt(values);
    }

    /// Numerators, `[P]`, and weights, one per fragment.
    pub(crate) fn state(&self) -> (&[i64], &[u64]) {
        (&self.numerators, &self.masses)
    }

    /// Puts saved weights in place; edges begin anew. Returns the numerators, to be replaced by the saved
    /// ones.
    pub(crate) fn restore(&mut self, masses: &[u64]) -> &mut [i64] {
        self.masses.copy_from_slice(masses);
        self.empty.fill(0);
        self.edges = Edges::default();
        &mut self.numerators
    }
}

/// Whether this can be a fragment's weight.
pub(crate) fn plausible_mass(mass: u64) -> bool {
    (1..=WEIGHT_MAX).contains(&mass)
}

/// `z = X/W`.
pub(crate) fn quotient(numerator: i64, mass: u64) -> f32 {
    let weight = mass as f64 / WEIGHT_ONE as f64;
    (numerator as f64 / scale(NUMERATOR_BITS) / weight) as f32
}

/// The low 32 bits of two's complement.
const fn low_bits(value: i64) -> i32 {
    value as i32
}
