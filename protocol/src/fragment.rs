//! Fragments: the contiguous slices of the flat parameter vector that exchanges move.

use std::fmt;
use std::ops::Range;

use wincode::{SchemaRead, SchemaWrite};

use crate::limits::{FRAGMENT_ELEMENTS_MAX, FRAGMENTS_MAX};

/// Which fragment of the flat parameter vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SchemaRead, SchemaWrite)]
pub struct FragmentId(pub u32);

impl fmt::Display for FragmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "f{}", self.0)
    }
}

/// The partition of a flat vector of `parameters` elements into fragments of almost equal length.
///
/// With moments, the vector has a second half of the same length: the optimizer's first moment of each
/// parameter, cut in the same way. So no fragment holds both.
///
/// A function of `(parameters, count, moments)` alone, so peers that agree on these agree on every slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragments {
    parameters: usize,
    /// Fragments of the parameters.
    count: usize,
    moments: bool,
}

impl Fragments {
    /// Cuts `parameters` elements into `wanted` fragments, more where a fragment would exceed
    /// [`FRAGMENT_ELEMENTS_MAX`], fewer where one would be empty. `None` when no partition fits the
    /// limits (no parameter, or more than [`crate::limits::PARAMETERS_MAX`]).
    #[must_use]
    pub fn new(parameters: usize, wanted: usize) -> Option<Self> {
        let least = parameters.div_ceil(FRAGMENT_ELEMENTS_MAX);
        let count = wanted.min(FRAGMENTS_MAX).max(least).min(parameters);
        let moments = false;
        (count > 0 && count <= FRAGMENTS_MAX).then_some(Self { parameters, count, moments })
    }

    /// As [`Self::new`], with as many fragments of first moments behind those of the parameters. A model
    /// has half as many parameters at most.
    #[must_use]
    pub fn with_moments(parameters: usize, wanted: usize) -> Option<Self> {
        let half = FRAGMENTS_MAX / 2;
        let fragments = Self::new(parameters, wanted.min(half))?;
        (fragments.count <= half).then_some(Self { moments: true, ..fragments })
    }

    /// Number of fragments, those of moments too.
    #[must_use]
    pub const fn count(&self) -> usize {
        if self.moments { 2 * self.count } else { self.count }
    }

    /// Number of parameters of the model.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.parameters
    }

    /// Length of the whole vector: parameters, and moments where they are part of it.
    #[must_use]
    pub const fn elements(&self) -> usize {
        if self.moments { 2 * self.parameters } else { self.parameters }
    }

    /// The first fragment of moments; all behind it are of moments, too. `None` without any.
    #[must_use]
    pub fn first_of_moments(&self) -> Option<FragmentId> {
        let first = u32::try_from(self.count).ok()?;
        self.moments.then_some(FragmentId(first))
    }

    /// The slice of the flat vector that `fragment` names; `None` when there is no such fragment.
    #[must_use]
    pub fn range(&self, fragment: FragmentId) -> Option<Range<usize>> {
        let index = usize::try_from(fragment.0).ok()?;
        if index >= self.count() {
            return None;
        }
        let (half, index) = (index / self.count, index % self.count);
        let (short, longer) = (self.parameters / self.count, self.parameters % self.count);
        let start = half * self.parameters + index * short + index.min(longer);
        let len = short + usize::from(index < longer);
        Some(start..start + len)
    }

    /// Every fragment, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = FragmentId> + use<> {
        (0..u32::try_from(self.count()).unwrap_or(u32::MAX)).map(FragmentId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_tile_the_vector_without_gap_or_overlap() {
        for (parameters, wanted) in [(1, 1), (10, 3), (7, 16), (4810, 4), (3 << 20, 1), (5, 0)] {
            let fragments = Fragments::new(parameters, wanted).unwrap();
            let mut end = 0;
            for fragment in fragments.iter() {
                let range = fragments.range(fragment).unwrap();
                assert_eq!(range.start, end);
                assert!(!range.is_empty() && range.len() <= FRAGMENT_ELEMENTS_MAX);
                end = range.end;
            }
            assert_eq!(end, parameters, "{parameters} in {wanted}");
        }
    }

    #[test]
    fn no_fragment_holds_both_parameters_and_moments() {
        for (parameters, wanted) in [(1, 1), (10, 3), (7, 16), (4810, 4), (3 << 20, 1)] {
            let fragments = Fragments::with_moments(parameters, wanted).unwrap();
            let plain = Fragments::new(parameters, wanted).unwrap();
            let first = fragments.first_of_moments().unwrap();
            assert_eq!(fragments.count(), 2 * plain.count());
            assert_eq!(
                (fragments.parameters(), fragments.elements()),
                (parameters, 2 * parameters)
            );
            let mut end = 0;
            for fragment in fragments.iter() {
                let range = fragments.range(fragment).unwrap();
                assert_eq!(range.start, end);
                assert_eq!(range.start >= parameters, fragment >= first);
                if fragment < first {
                    assert_eq!(plain.range(fragment), Some(range.clone()));
                }
                end = range.end;
            }
            assert_eq!(end, 2 * parameters, "{parameters} in {wanted}");
            assert_eq!((plain.elements(), plain.first_of_moments()), (parameters, None));
        }
        let most = crate::limits::PARAMETERS_MAX / 2;
        let fragments = Fragments::with_moments(most, FRAGMENTS_MAX).unwrap();
        assert_eq!(fragments.count(), FRAGMENTS_MAX);
        assert_eq!(Fragments::with_moments(most + 1, 4), None);
    }

    #[test]
    fn models_of_more_than_four_billion_parameters_are_cut_without_gaps() {
        for parameters in [(1 << 32) + 1, 70_553_706_496, 405_853_388_800] {
            let fragments = Fragments::new(parameters, 4).unwrap();
            let ranges = fragments.iter().map(|fragment| fragments.range(fragment).unwrap());
            let end = ranges.fold(0, |end, range| {
                assert_eq!(range.start, end);
                assert!(!range.is_empty() && range.len() <= FRAGMENT_ELEMENTS_MAX);
                range.end
            });
            assert_eq!(end, parameters);
        }
    }

    #[test]
    fn what_does_not_fit_the_limits_is_refused() {
        assert_eq!(Fragments::new(0, 4), None);
        assert_eq!(Fragments::new(crate::limits::PARAMETERS_MAX + 1, 4), None);
        let fragments = Fragments::new(10, 2).unwrap();
        assert_eq!(fragments.range(FragmentId(2)), None);
    }
}
