//! One replica in several processes: what mixing did at each of them becomes the change of all.
//!
//! The ranks of a rack take equal steps, so their live weights stay equal to the bit while each mixes
//! its own part of the slow weights with others. What that moved is a displacement from the weights
//! that all had last, the base: displacements are added up, and every rank makes the sum.

use std::borrow::Cow;

use super::state::Held;
use super::{Replica, ReplicaLock, ReplicaState};
use crate::kernel::loss::Score;
use crate::mix::subtract;
use crate::seam::TrainError;

impl ReplicaLock<'_> {
    /// The slow weights φ, `[P]`; nothing where live weights are exchanged.
    #[must_use]
    pub fn weights(&self) -> Cow<'_, [f32]> {
        self.store.all_weights(self.shared.parameters())
    }

    /// What mixing has moved since all ranks had the weights `base`: `D = φ − base`, `[P]`.
    ///
    /// # Panics
    /// When `base` has another length than φ.
    #[must_use]
    pub fn moved_since(&self, base: &[f32]) -> Vec<f32> {
        let mut moved = self.weights().into_owned();
        subtract(&mut moved, base);
        moved
    }
}

impl Replica {
    /// Whether what mixing moves waits for [`Replica::displace_together`] from now on, so that the
    /// live weights of all ranks stay equal; else [`Replica::serve`] makes it between steps.
    pub fn defer(&mut self, deferred: bool) {
        self.deferred = deferred;
        self.shared.pending().defer(deferred);
        self.shared.notify();
    }

    /// Makes what mixing has moved at all ranks, in place of what it has moved here:
    /// `φ ← base + Σ D ; x ← x + Σ D`. What was to be served is dropped: it is part of the sum.
    ///
    /// Equal bits at all ranks, if their live weights, `base` and `sum` are.
    ///
    /// # Panics
    /// When `base` or `sum` has another length than φ.
    pub fn displace_together(&mut self, lock: &mut ReplicaLock<'_>, base: &[f32], sum: &[f32]) {
        if lock.store.set_sum(base, sum) {
            self.shared.pending().clear();
            self.shared.notify();
            self.trainer_mut().displace(0..sum.len(), sum, 1.0);
        }
    }

    /// Measures the live weights, which all ranks have to the bit, on a part of the held-out data, as
    /// [`Trainer::evaluate_part`](crate::Trainer::evaluate_part).
    ///
    /// # Errors
    /// [`TrainError`] of the trainer; the weights are unchanged.
    pub fn evaluate_part(
        &mut self,
        index: usize,
        parts: usize,
    ) -> Result<Option<Score>, TrainError> {
        self.live.evaluate_part(index, parts)
    }

    /// As [`Replica::save`], under a lock that the caller goes on to hold.
    #[must_use]
    pub fn save_in<'t>(&self, lock: ReplicaLock<'t>) -> (ReplicaState, ReplicaLock<'t>) {
        let held = Held::new(self, lock);
        (held.copy(), held.into_turn())
    }
}
