//! The exchanged weights of a replica, and how mixing moves them.

use std::ops::Range;

use crate::codec::Encoded;
use crate::displacement::Displacement;
use crate::kernel::reduce::add_scaled;
use crate::mix::{MixError, norm};
use crate::outer::OuterStep;
use crate::room::Room;
use crate::weights::finite_local;

/// Slow weights and outer momentum.
pub(crate) struct Slow {
    pub(crate) step: OuterStep,
    /// φ, `[P]`.
    pub(crate) values: Room<f32>,
    /// v, `[P]`.
    pub(crate) momentum: Room<f32>,
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

    /// The weights, `[len]`, where they are shown.
    pub(crate) fn shown(&self) -> Option<&[f32]> {
        self.values.as_deref()
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

    /// Moves φ alone, from element `start` on. The same move of x follows once all of φ is moved, by
    /// [`Self::displace_live`].
    pub(crate) fn displace_slow(&mut self, start: usize, delta: &[f32], weight: f32) {
        if let (true, Some(values)) = (self.stays, &mut self.values) {
            add_scaled(&mut values[start..start + delta.len()], delta, weight);
        }
    }

    /// A part of φ, to be moved as [`Self::displace_slow`] does; `None` where nobody reads it again.
    pub(crate) fn moving(&mut self, part: Range<usize>) -> Option<&mut [f32]> {
        self.values.as_deref_mut().filter(|_| self.stays).map(|values| &mut values[part])
    }

    /// Moves x later by `weight` times a coded difference, by which φ is moved already.
    pub(crate) fn displace_live(&mut self, coded: &Encoded, weight: f32) {
        self.moved.add_coded(coded, weight);
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
        self.moved.add(values, 1.0);
    }

    /// Takes over another's weights: `φ = values`, `v = 0`, and x later. `sent`: the tensor in which the values
    /// lie, if they do; it is then kept in place of a copy until x is there.
    pub(crate) fn adopt(&mut self, values: &[f32], sent: Option<&Encoded>) {
        if let Some(own) = &mut self.values {
            own.copy_from_slice(values);
        }
        // A newcomer's is zero and was never written: writing it would have the system find memory.
        if let Some(momentum) = &mut self.momentum
            && momentum.iter().any(|&v| v != 0.0)
        {
            momentum.fill(0.0);
        }
        match sent {
            Some(sent) => self.moved.replace_by(sent),
            None => self.moved.replace(values),
        }
    }
}
