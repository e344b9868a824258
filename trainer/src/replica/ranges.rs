//! Exchanges of plain f32 by range, for callers that do not speak of fragments and codes yet.

use std::ops::Range;

use super::Replica;
use crate::mix::{
    MixError, MixReport, check_norm, check_weight, difference_norm_max, norm, parameters_norm_max,
    subtract,
};
use crate::weights::finite_local;

impl Replica {
    /// [`Self::answer`] in f32: `d = φ − remote ; φ ← φ − w d ; x ← x − w d`.
    ///
    /// `difference`: receives d, for the initiator and for [`Self::undo_responder`]; undefined on
    /// error. For replicas that meet others by exchanges.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn mix_responder(
        &mut self,
        range: Range<usize>,
        weight: f32,
        remote: &[f32],
        difference: &mut [f32],
    ) -> Result<MixReport, MixError> {
        check_weight(weight)?;
        self.check_range(&range, remote.len())?;
        self.check_range(&range, difference.len())?;
        self.snapshot(range.clone(), difference);
        let local_norm = finite_local(&range, norm(difference))?;
        let limit = parameters_norm_max(local_norm, range.len());
        check_norm(&range, norm(remote), limit)?;
        subtract(difference, remote);
        let difference_norm = finite_local(&range, norm(difference))?;
        self.weights.displace(range, difference, -weight);
        Ok(MixReport { difference_norm, local_norm, ..MixReport::default() })
    }

    /// [`Self::apply`] in f32: `φ ← φ + w d ; x ← x + w d`.
    ///
    /// # Errors
    /// [`MixError`]; the replica is unchanged then.
    pub fn mix_initiator(
        &mut self,
        range: Range<usize>,
        weight: f32,
        difference: &[f32],
    ) -> Result<MixReport, MixError> {
        check_weight(weight)?;
        self.check_range(&range, difference.len())?;
        let local_norm = self.weights.norm(range.clone())?;
        let difference_norm = norm(difference);
        let limit = difference_norm_max(local_norm, range.len());
        check_norm(&range, difference_norm, limit)?;
        self.weights.displace(range, difference, weight);
        Ok(MixReport { difference_norm, local_norm, ..MixReport::default() })
    }

    /// [`Self::undo`] in f32: takes back [`Self::mix_responder`] with the same arguments.
    ///
    /// # Panics
    /// When the range is not within the parameters, or `difference` has another length.
    pub fn undo_responder(&mut self, range: Range<usize>, weight: f32, difference: &[f32]) {
        assert_eq!(range.len(), difference.len(), "undo needs the journalled difference");
        self.weights.displace(range, difference, weight);
    }

    /// [`Self::adopt`] in f32: `φ = x = values`, `v = 0` on `range`.
    ///
    /// # Errors
    /// [`MixError`] when the values are not finite or do not fit; the replica is unchanged then.
    pub fn adopt_range(&mut self, range: Range<usize>, values: &[f32]) -> Result<(), MixError> {
        self.check_range(&range, values.len())?;
        check_norm(&range, norm(values), f64::INFINITY)?;
        self.weights.adopt(range, values);
        Ok(())
    }

    fn check_range(&self, range: &Range<usize>, found: usize) -> Result<(), MixError> {
        let (start, end, parameters) = (range.start, range.end, self.layout().parameters());
        if start > end || end > parameters {
            return Err(MixError::Range { start, end, parameters });
        }
        let expected = range.len();
        if found == expected { Ok(()) } else { Err(MixError::Length { expected, found }) }
    }
}
