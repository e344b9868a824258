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
/// A function of `(parameters, count)` alone, so peers that agree on both agree on every slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragments {
    parameters: usize,
    count: usize,
}

impl Fragments {
    /// Cuts `parameters` elements into `wanted` fragments, more where a fragment would exceed
    /// [`FRAGMENT_ELEMENTS_MAX`], fewer where one would be empty. `None` when no partition fits the
    /// limits (no parameter, or more than [`crate::limits::PARAMETERS_MAX`]).
    #[must_use]
    pub fn new(parameters: usize, wanted: usize) -> Option<Self> {
        let least = parameters.div_ceil(FRAGMENT_ELEMENTS_MAX);
        let count = wanted.min(FRAGMENTS_MAX).max(least).min(parameters);
        (count > 0 && count <= FRAGMENTS_MAX).then_some(Self { parameters, count })
    }

    /// Number of fragments.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Number of parameters of the whole vector.
    #[must_use]
    pub const fn parameters(&self) -> usize {
        self.parameters
    }

    /// The slice of the flat vector that `fragment` names; `None` when there is no such fragment.
    #[must_use]
    pub fn range(&self, fragment: FragmentId) -> Option<Range<usize>> {
        let index = usize::try_from(fragment.0).ok()?;
        if index >= self.count {
            return None;
        }
        let (short, longer) = (self.parameters / self.count, self.parameters % self.count);
        let start = index * short + index.min(longer);
        let len = short + usize::from(index < longer);
        Some(start..start + len)
    }

    /// Every fragment, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = FragmentId> + use<> {
        (0..u32::try_from(self.count).unwrap_or(u32::MAX)).map(FragmentId)
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
    fn what_does_not_fit_the_limits_is_refused() {
        assert_eq!(Fragments::new(0, 4), None);
        assert_eq!(Fragments::new(crate::limits::PARAMETERS_MAX + 1, 4), None);
        let fragments = Fragments::new(10, 2).unwrap();
        assert_eq!(fragments.range(FragmentId(2)), None);
    }
}
