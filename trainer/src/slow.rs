//! The exchanged weights of a replica, and the displacements that its live weights have yet to make.

use std::ops::Range;

use crate::kernel::reduce::{add_scaled, set_scaled};
use crate::mix::{MixError, norm, subtract};
use crate::outer::OuterStep;
use crate::weights::finite_local;

/// Slow weights and outer momentum.
pub(crate) struct Slow {
    pub(crate) step: OuterStep,
    /// φ, `[P]`.
    pub(crate) values: Vec<f32>,
    /// v, `[P]`.
    pub(crate) momentum: Vec<f32>,
}

/// What the live weights of one fragment have yet to do: displacements add up to one.
#[derive(Debug, Default)]
pub(crate) struct Displacement {
    /// What is added to x, or what x becomes; the length of the fragment once anything is noted.
    values: Vec<f32>,
    /// Elements that are noted; either none or all of them when nobody works on it.
    noted: usize,
    /// Whether x becomes the values.
    replaces: bool,
}

impl Displacement {
    /// Nothing, in a buffer whose content means nothing.
    pub(crate) const fn in_buffer(values: Vec<f32>) -> Self {
        Self { values, noted: 0, replaces: false }
    }

    /// A move of so many elements whose numbers lie on a device.
    pub(crate) const fn elsewhere(len: usize, replaces: bool) -> Self {
        Self { values: Vec::new(), noted: len, replaces }
    }

    /// Elements that are moved.
    pub(crate) const fn len(&self) -> usize {
        self.noted
    }

    pub(crate) fn into_buffer(self) -> Vec<f32> {
        self.values
    }

    pub(crate) const fn is_nothing(&self) -> bool {
        self.noted == 0
    }

    pub(crate) const fn replaces(&self) -> bool {
        self.replaces
    }

    /// What is added to x, or what it becomes, `[len]`.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values[..self.noted]
    }

    /// Makes the move in `x`, the part of the fragment from element `start` on.
    pub(crate) fn make(&self, start: usize, x: &mut [f32]) {
        let values = &self.values[start..start + x.len()];
        if self.replaces { x.copy_from_slice(values) } else { add_scaled(x, values, 1.0) }
    }

    /// Notes `weight · delta` from element `start` on of a fragment of `len` elements. The first
    /// pass over the fragment goes from its beginning to its end.
    fn add(&mut self, start: usize, delta: &[f32], weight: f32, len: usize) {
        if self.noted == 0 {
            self.values.resize(len, 0.0);
        }
        let end = start + delta.len();
        if start == self.noted {
            set_scaled(&mut self.values[start..end], delta, weight);
            self.noted = end;
        } else {
            add_scaled(&mut self.values[start..end], delta, weight);
        }
    }

    fn replace(&mut self, values: &[f32]) {
        self.values.clear();
        self.values.extend_from_slice(values);
        (self.noted, self.replaces) = (values.len(), true);
    }
}

/// The weights of one fragment, as mixing reads and moves them. Ranges are within the fragment.
pub(crate) struct Own<'a> {
    /// Where the fragment lies in the flat vector.
    range: Range<usize>,
    /// φ, or x as training has shown it; `None` only where nothing is read.
    values: Option<&'a mut [f32]>,
    /// Whether anybody reads the values again.
    stays: bool,
    momentum: Option<&'a mut [f32]>,
    moved: &'a mut Displacement,
}

impl<'a> Own<'a> {
    /// `values`: the weights, and whether anybody reads them again.
    pub(crate) const fn new(
        range: Range<usize>,
        (values, stays): (Option<&'a mut [f32]>, bool),
        momentum: Option<&'a mut [f32]>,
        moved: &'a mut Displacement,
    ) -> Self {
        Self { range, values, stays, momentum, moved }
    }

    /// Where the fragment lies in the flat vector.
    pub(crate) const fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// The weights, `[len]`.
    pub(crate) fn values(&self) -> &[f32] {
        self.values.as_deref().expect("training shows a fragment before its weights are read")
    }

    /// Euclidean norm of the weights.
    ///
    /// # Errors
    /// [`MixError::Local`] when they are not all finite, or not known.
    pub(crate) fn norm(&self) -> Result<f64, MixError> {
        finite_local(&self.range, self.values.as_deref().map_or(f64::NAN, norm))
    }

    /// The same, and 0 where it is not known.
    pub(crate) fn norm_if_known(&self) -> f64 {
        self.norm().unwrap_or(0.0)
    }

    /// Moves φ now and x later, from element `start` on, by `weight · delta`. A fragment is moved
    /// whole, from its beginning to its end.
    pub(crate) fn displace(&mut self, start: usize, delta: &[f32], weight: f32) {
        if let (true, Some(values)) = (self.stays, &mut self.values) {
            add_scaled(&mut values[start..start + delta.len()], delta, weight);
        }
        self.moved.add(start, delta, weight, self.range.len());
    }

    /// Sets φ and moves x by what φ moves; `values` is overwritten with that displacement.
    pub(crate) fn replace(&mut self, values: &mut [f32]) {
        let own = self.values.as_deref_mut();
        let own = own.expect("training shows a fragment before its weights are read");
        for (value, own) in values.iter_mut().zip(own) {
            let new = *value;
            *value = new - *own;
            *own = new;
        }
        self.moved.add(0, values, 1.0, self.range.len());
    }

    /// Takes over another's weights: `φ = values`, `v = 0`, and x later.
    pub(crate) fn adopt(&mut self, values: &[f32]) {
        if let Some(own) = &mut self.values {
            own.copy_from_slice(values);
        }
        // A newcomer's is zero and was never written: writing it would have the system find memory.
        if let Some(momentum) = &mut self.momentum
            && momentum.iter().any(|&v| v != 0.0)
        {
            momentum.fill(0.0);
        }
        self.moved.replace(values);
    }

    /// Writes `φ − remote` to `remote`'s place: `difference`.
    pub(crate) fn minus(&self, remote: &[f32]) -> Vec<f32> {
        let mut difference = self.values().to_vec();
        subtract(&mut difference, remote);
        difference
    }
}
