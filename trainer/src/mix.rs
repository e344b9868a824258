//! The arithmetic of mixing two replicas: differences, displacements, and what is let in.

use std::ops::Range;

use dnode_protocol::FragmentId;
use dnode_protocol::frame::Codec;

use crate::codec::{CodecError, Encoded};
use crate::device::DeviceError;
pub(crate) use crate::kernel::reduce::norm;

/// A remote slice may be this many times as long (Euclidean norm) as the local one.
///
/// Guess: replicas of one run are within a few percent of each other; a factor of ten is a fault.
pub const NORM_FACTOR_MAX: f64 = 10.0;
/// What every slice may have on top of [`NORM_FACTOR_MAX`], root mean square per element.
///
/// Guess: lets parameters that start at zero (biases) meet ones that have moved already.
pub const NORM_SLACK_RMS: f64 = 10.0;

/// What a mix did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MixReport {
    /// Euclidean norm of the difference of the two replicas on the slice, before mixing.
    pub difference_norm: f64,
    /// Euclidean norm of the local slice, before mixing.
    pub local_norm: f64,
    /// Euclidean norm of what the local slice moved by, as if codes lost nothing.
    pub moved_norm: f64,
    /// Whether the difference was shortened to the clipping radius.
    pub clipped: bool,
    /// Blocks of the offer that were written for a replica that is near.
    pub blocks: usize,
    /// Those of them that could not be unwrapped, and so were not mixed.
    pub blocks_failed: usize,
}

/// How far another replica may be from the own one on a slice: who decides that knows more of both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Multiple of the norm of the own slice.
    pub weights: f64,
    /// Root mean square that the own slice counts for at least: parameters that start at zero may move.
    pub rms_min: f64,
    /// Multiple of the norm of the own slice that a longer difference is shortened to: `τ` of CenteredClip.
    pub radius: f64,
    /// Multiple of the norm of the own slice beyond which the radius shrinks as differences grow:
    /// `τ · far/‖d‖`. Infinite where it does not.
    pub far: f64,
    /// The radius is at least this multiple of what the own slice has moved by its own training since it was
    /// mixed last, within the slice's norm. 0 where it is not widened.
    pub moves_min: f64,
}

/// What a slice of the own weights is measured by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnSlice {
    /// Its Euclidean norm.
    pub(crate) norm: f64,
    /// How far it has moved by training since it was mixed last; `None` where that is not known.
    pub(crate) moved: Option<f64>,
    /// Its elements.
    pub(crate) len: usize,
}

impl Tolerance {
    /// Lets in what is finite and in proportion, whole.
    pub const ANY: Self = Self {
        weights: f64::INFINITY,
        rms_min: 0.01,
        radius: f64::INFINITY,
        far: f64::INFINITY,
        moves_min: 0.0,
    };

    /// Longest difference of a slice of `len` elements of norm `local`.
    pub(crate) fn limit(&self, local: f64, len: usize) -> f64 {
        self.weights * self.counted(local, len)
    }

    /// Longest move towards a slice at a distance of `difference`.
    pub(crate) fn clip_radius(&self, difference: f64, own: OwnSlice) -> f64 {
        let counted = self.counted(own.norm, own.len);
        let far = self.far * counted;
        let mut radius = self.radius * counted;
        if let Some(moved) = own.moved {
            radius = radius.max((self.moves_min * moved).min(counted));
        }
        radius * if difference > far { far / difference } else { 1.0 }
    }

    /// What a difference of norm `difference` is multiplied by: `min(1, τ/‖d‖)`.
    pub(crate) fn shortened(&self, difference: f64, own: OwnSlice) -> f64 {
        let radius = self.clip_radius(difference, own);
        if difference > radius { radius / difference } else { 1.0 }
    }

    /// The length that a slice counts for.
    fn counted(&self, local: f64, len: usize) -> f64 {
        local.max(self.rms_min * (len as f64).sqrt())
    }
}

/// On what terms a peer's numbers are mixed in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixTerms {
    /// Share of the peer's numbers in the result, unitless, in `[0, 1]`.
    pub weight: f32,
    /// How far they may be from the own ones; what is further away is [`MixError::Unlike`].
    pub tolerance: Tolerance,
}

impl MixTerms {
    /// At any distance that is in proportion.
    #[must_use]
    pub const fn any(weight: f32) -> Self {
        Self { weight, tolerance: Tolerance::ANY }
    }
}

/// Why a mix was refused; the replica is unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MixError {
    /// The model has no such fragment.
    #[error("mix fragment {0}: the model has no such fragment")]
    Fragment(FragmentId),
    /// This replica's mixer does not do that.
    #[error("mix: {0}")]
    Mixer(&'static str),
    /// The device of the weights has failed; the peer is not at fault.
    #[error("mix: {0}")]
    Device(#[from] DeviceError),
    /// Numbers in a code that has no place here.
    #[error("mix numbers coded as {0:?}: not the code of this tensor")]
    Codec(Codec),
    /// The peer's bytes are not what their code allows.
    #[error("mix: {0}")]
    Decode(#[from] CodecError),
    /// The caller's or the peer's slice has the wrong length.
    #[error("mix {expected} parameters: got {found}")]
    Length {
        /// Elements of the range.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// The mixing weight is outside `[0, 1]` or NaN.
    #[error("mix with weight {0}: expected 0 to 1")]
    Weight(f32),
    /// The peer's numbers contain NaN or infinity.
    #[error("mix parameters {start}..{end}: the peer's numbers are not all finite")]
    NotFinite {
        /// First element.
        start: usize,
        /// Behind the last element.
        end: usize,
    },
    /// This replica's own numbers are not finite; the peer is not at fault.
    #[error("mix parameters {start}..{end}: this replica's own numbers are not all finite")]
    Local {
        /// First element.
        start: usize,
        /// Behind the last element.
        end: usize,
    },
    /// The peer's numbers are implausibly large.
    #[error(
        "mix parameters {start}..{end}: the peer's numbers have norm {norm:.3e}, expected at most {limit:.3e}"
    )]
    Outlier {
        /// First element.
        start: usize,
        /// Behind the last element.
        end: usize,
        /// Euclidean norm of the numbers.
        norm: f64,
        /// Largest norm that is let in.
        limit: f64,
    },
    /// The peer's numbers are sound, and further from the own ones than is tolerated.
    #[error(
        "mix parameters {start}..{end}: the peer's are {norm:.3e} away, where at most {limit:.3e} is tolerated"
    )]
    Unlike {
        /// First element.
        start: usize,
        /// Behind the last element.
        end: usize,
        /// Euclidean norm of the difference.
        norm: f64,
        /// Largest norm that is tolerated.
        limit: f64,
        /// Euclidean norm of the own slice.
        local: f64,
    },
}

impl MixError {
    /// Whether the peer's bytes are at fault, not this process.
    #[must_use]
    pub const fn blames_peer(&self) -> bool {
        match self {
            Self::NotFinite { .. } | Self::Outlier { .. } | Self::Codec(_) | Self::Decode(_) => {
                true
            }
            Self::Fragment(_)
            | Self::Mixer(_)
            | Self::Device(_)
            | Self::Length { .. }
            | Self::Weight(_)
            | Self::Unlike { .. }
            | Self::Local { .. } => false,
        }
    }
}

/// Writes `local − remote` to `local`.
pub(crate) fn subtract(local: &mut [f32], remote: &[f32]) {
    for (local, &remote) in local.iter_mut().zip(remote) {
        *local -= remote;
    }
}

/// Checks a peer's numbers against the largest norm that is let in.
///
/// # Errors
/// [`MixError::NotFinite`] or [`MixError::Outlier`].
pub(crate) fn check_norm(range: &Range<usize>, norm: f64, limit: f64) -> Result<(), MixError> {
    let (start, end) = (range.start, range.end);
    if !norm.is_finite() {
        return Err(MixError::NotFinite { start, end });
    }
    if norm > limit {
        return Err(MixError::Outlier { start, end, norm, limit });
    }
    Ok(())
}

/// Checks how far a peer's numbers are away against what is tolerated.
///
/// # Errors
/// [`MixError::Unlike`].
pub(crate) fn check_difference(
    range: &Range<usize>,
    norm: f64,
    local: f64,
    tolerance: Tolerance,
) -> Result<(), MixError> {
    let limit = tolerance.limit(local, range.len());
    let (start, end) = (range.start, range.end);
    if norm > limit { Err(MixError::Unlike { start, end, norm, limit, local }) } else { Ok(()) }
}

/// Largest norm of a peer's parameters that is let in beside a local slice of norm `local`.
#[must_use]
pub(crate) fn parameters_norm_max(local: f64, len: usize) -> f64 {
    NORM_FACTOR_MAX * local + NORM_SLACK_RMS * (len as f64).sqrt()
}

/// Checks the norm of a snapshot against that of the own slice, 0 where that is not known: a newcomer has
/// nothing else to compare it with.
///
/// # Errors
/// As [`check_norm`].
pub(crate) fn check_snapshot(range: &Range<usize>, norm: f64, local: f64) -> Result<(), MixError> {
    check_norm(range, norm, parameters_norm_max(local, range.len()))
}

/// Largest norm of a difference that is let in: the two slices pointing in opposite directions.
#[must_use]
pub(crate) fn difference_norm_max(local: f64, len: usize) -> f64 {
    local + parameters_norm_max(local, len)
}

/// Checks that a peer's tensor has as many elements as the slice.
///
/// # Errors
/// [`MixError::Length`].
pub(crate) fn check_length(encoded: &Encoded, expected: usize) -> Result<(), MixError> {
    let found = encoded.elements;
    if found == expected { Ok(()) } else { Err(MixError::Length { expected, found }) }
}

/// Checks a mixing weight.
///
/// # Errors
/// [`MixError::Weight`] unless it is in `[0, 1]`.
pub(crate) fn check_weight(weight: f32) -> Result<(), MixError> {
    if (0.0..=1.0).contains(&weight) { Ok(()) } else { Err(MixError::Weight(weight)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norm_is_euclidean_for_every_length_and_shows_what_is_not_finite() {
        for len in [0_usize, 1, 15, 16, 17, 100] {
            let mut values = vec![-2.0_f32; len];
            assert!((norm(&values) - 2.0 * (len as f64).sqrt()).abs() < 1e-12);
            if let Some(last) = values.last_mut() {
                *last = f32::NAN;
                assert!(!norm(&values).is_finite());
                values[len - 1] = f32::NEG_INFINITY;
                assert!(!norm(&values).is_finite());
                values[len - 1] = f32::MAX;
                assert!(norm(&values).is_finite());
            }
        }
    }

    #[test]
    fn beyond_what_is_far_the_move_shrinks_as_the_difference_grows() {
        let tolerance = Tolerance { radius: 0.5, far: 2.0, ..Tolerance::ANY };
        for (difference, moved) in [(1.0, 1.0), (6.0, 5.0), (20.0, 5.0), (40.0, 2.5), (400.0, 0.25)]
        {
            let own = OwnSlice { norm: 10.0, moved: None, len: 4 };
            let shortened = difference * tolerance.shortened(difference, own);
            assert!((shortened - moved).abs() < 1e-9, "{difference}: {shortened}");
        }
    }

    #[test]
    fn what_the_own_slice_has_moved_widens_the_radius() {
        let radius = |moved| {
            let tolerance = Tolerance { radius: 0.5, moves_min: 2.0, ..Tolerance::ANY };
            tolerance.clip_radius(100.0, OwnSlice { norm: 10.0, moved, len: 4 })
        };
        // Within the norm; at least the radius; and that one where nothing is known.
        for (moved, wanted) in [(Some(4.0), 8.0), (Some(40.0), 10.0), (Some(0.0), 5.0), (None, 5.0)]
        {
            assert!((radius(moved) - wanted).abs() < 1e-9, "{moved:?}: {}", radius(moved));
        }
    }

    #[test]
    fn weights_outside_zero_to_one_are_refused() {
        for weight in [0.0, 0.5, 1.0] {
            assert_eq!(check_weight(weight), Ok(()));
        }
        for weight in [-0.001, 1.001, f32::NAN, f32::INFINITY] {
            assert!(matches!(check_weight(weight), Err(MixError::Weight(_))), "{weight}");
        }
    }
}
