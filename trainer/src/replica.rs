//! One replica: a trainer's live weights, the slow weights behind them, and how exchanges move both.

use std::fmt;
use std::ops::Range;

use dnode_protocol::ParameterLayout;

use crate::mix::{
    MixError, MixReport, check_norm, check_weight, difference_norm_max, displace, norm,
    parameters_norm_max, subtract,
};
use crate::outer::OuterStep;
use crate::seam::{Evaluation, StepId, StepReport, TrainError, Trainer, TrainerState};
use crate::sketch::{self, SKETCH_LEN};

/// Elements that cross the seam at once in a pass over all parameters: 256 KiB of f32.
const CHUNK: usize = 1 << 16;

/// Passes of [`settle`]; each one shrinks the error by the f32 precision, so that six reach zero
/// from anywhere in the f32 range.
const SETTLE_PASSES_MAX: usize = 8;

/// What a commit did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CommitReport {
    /// Euclidean norm of the progress `Δ = x − φ`; zero for a replica without an outer step.
    pub progress_norm: f64,
}

/// Everything a replica needs to continue as if it had never stopped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaState {
    /// The replica's weights, `[P]`: φ, or x without an outer step.
    pub parameters: Vec<f32>,
    /// What the outer step adds; `None` without one.
    pub outer: Option<OuterState>,
    /// The trainer's private state.
    pub trainer: TrainerState,
}

/// The state that an outer step adds to a replica.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OuterState {
    /// Live weights x, `[P]`.
    pub live: Vec<f32>,
    /// Outer momentum v, `[P]`.
    pub momentum: Vec<f32>,
}

/// Slow weights and outer momentum.
struct Outer {
    step: OuterStep,
    /// φ, `[P]`.
    slow: Vec<f32>,
    /// v, `[P]`.
    momentum: Vec<f32>,
    /// Whether x = φ: nothing was trained since the last commit.
    settled: bool,
}

/// One replica: any [`Trainer`], with what the swarm needs beside it.
///
/// With an [`OuterStep`] (rule `gossip-outer`) the replica's weights are the slow weights φ, and
/// exchanges move φ and the live weights x by the same displacement, never the outer momentum v.
/// Without one (rules `pairwise`, `all-reduce`, `none`) the replica's weights are x itself.
/// `P` is the number of parameters; ranges are of the flat vector.
pub struct Replica {
    trainer: Box<dyn Trainer>,
    outer: Option<Outer>,
    buffer: Vec<f32>,
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("parameters", &self.layout().parameters())
            .field("outer", &self.outer.as_ref().map(|outer| outer.step))
            .finish_non_exhaustive()
    }
}

impl Replica {
    /// A replica that begins at the trainer's current weights: `φ = x`, `v = 0`.
    #[must_use]
    pub fn new(trainer: Box<dyn Trainer>, outer: Option<OuterStep>) -> Self {
        let parameters = trainer.layout().parameters();
        let outer = outer.map(|step| {
            let mut slow = vec![0.0; parameters];
            trainer.read(0..parameters, &mut slow);
            Outer { step, slow, momentum: vec![0.0; parameters], settled: true }
        });
        Self { trainer, outer, buffer: vec![0.0; parameters.min(CHUNK)] }
    }

    /// Names, shapes and offsets of the parameters.
    #[must_use]
    pub fn layout(&self) -> &ParameterLayout {
        self.trainer.layout()
    }

    /// The wrapped trainer, for steps in two halves.
    pub fn trainer_mut(&mut self) -> &mut dyn Trainer {
        if let Some(outer) = &mut self.outer {
            outer.settled = false;
        }
        self.trainer.as_mut()
    }

    /// Does one local step on the live weights.
    ///
    /// # Errors
    /// [`TrainError`]; parameters are unchanged then.
    pub fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.trainer_mut().step(at)
    }

    /// Ends a round of local steps: `Δ = x − φ ; v ← β v + Δ ; φ ← φ + α (Δ + β v) ; x ← φ`.
    ///
    /// Does nothing without an outer step. Source: [`OuterStep`].
    pub fn commit(&mut self) -> CommitReport {
        let Some(outer) = &mut self.outer else { return CommitReport::default() };
        let mut squares = 0.0;
        for range in chunks(outer.slow.len()) {
            let progress = &mut self.buffer[..range.len()];
            let slow = &mut outer.slow[range.clone()];
            self.trainer.read(range.clone(), progress);
            subtract(progress, slow);
            squares += norm(progress).powi(2);
            outer.step.apply(progress, slow, &mut outer.momentum[range.clone()]);
            settle(self.trainer.as_mut(), range, slow, progress);
        }
        outer.settled = true;
        CommitReport { progress_norm: squares.sqrt() }
    }

    /// Copies the replica's weights (φ, or x without an outer step) of `range` to `out`.
    ///
    /// # Panics
    /// When the range is not within the parameters, or `out` has another length.
    pub fn snapshot(&self, range: Range<usize>, out: &mut [f32]) {
        match &self.outer {
            Some(outer) => out.copy_from_slice(&outer.slow[range]),
            None => self.trainer.read(range, out),
        }
    }

    /// The replica's weights (φ, or x without an outer step), `[P]`.
    #[must_use]
    pub fn parameters(&self) -> Vec<f32> {
        let mut parameters = vec![0.0; self.layout().parameters()];
        self.snapshot(0..parameters.len(), &mut parameters);
        parameters
    }

    /// The responder's half of an exchange: `d = φ − remote ; φ ← φ − w d ; x ← x − w d`.
    ///
    /// `weight`: w, unitless, in `[0, 1]`, the share of `remote` in the result. `remote`: the
    /// initiator's weights of `range`. `difference`: receives d, for the initiator and for
    /// [`Self::undo_responder`]; undefined on error.
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
        self.move_both(range, -weight, difference);
        Ok(MixReport { difference_norm, local_norm })
    }

    /// The initiator's half of an exchange: `φ ← φ + w d ; x ← x + w d`.
    ///
    /// `weight`: w, unitless, in `[0, 1]`. `difference`: d as the responder computed it.
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
        let local_norm = self.local_norm(range.clone())?;
        let difference_norm = norm(difference);
        let limit = difference_norm_max(local_norm, range.len());
        check_norm(&range, difference_norm, limit)?;
        self.move_both(range, weight, difference);
        Ok(MixReport { difference_norm, local_norm })
    }

    /// Takes back [`Self::mix_responder`] with the same arguments, to f32 rounding.
    ///
    /// Whatever happened to the replica in between stays: the displacement is additive.
    ///
    /// # Panics
    /// When the range is not within the parameters, or `difference` has another length.
    pub fn undo_responder(&mut self, range: Range<usize>, weight: f32, difference: &[f32]) {
        assert_eq!(range.len(), difference.len(), "undo needs the journalled difference");
        self.move_both(range, weight, difference);
    }

    /// Takes over a donor's weights: `φ = x = values`, `v = 0` on `range`.
    ///
    /// # Errors
    /// [`MixError`] when the values are not finite or do not fit; the replica is unchanged then.
    pub fn adopt(&mut self, range: Range<usize>, values: &[f32]) -> Result<(), MixError> {
        self.check_range(&range, values.len())?;
        check_norm(&range, norm(values), f64::INFINITY)?;
        if let Some(outer) = &mut self.outer {
            outer.slow[range.clone()].copy_from_slice(values);
            outer.momentum[range.clone()].fill(0.0);
        }
        self.settle_live(range.start, values);
        Ok(())
    }

    /// Measures the replica's weights (φ, or x without an outer step) on held-out data.
    ///
    /// In the middle of a round the live weights are set aside and put back to the last bit (in a
    /// trainer that keeps f32), at the price of a copy; right after a commit they are φ already.
    ///
    /// # Errors
    /// [`TrainError`] of the trainer; the weights are unchanged then, too.
    pub fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let Some(outer) = self.outer.as_ref().filter(|outer| !outer.settled) else {
            return self.trainer.evaluate();
        };
        let mut live = vec![0.0; outer.slow.len()];
        self.trainer.read(0..live.len(), &mut live);
        for range in chunks(live.len()) {
            let scratch = &mut self.buffer[..range.len()];
            settle(self.trainer.as_mut(), range.clone(), &outer.slow[range], scratch);
        }
        let evaluation = self.trainer.evaluate();
        self.settle_live(0, &live);
        evaluation
    }

    /// Writes the count sketch of the replica's weights.
    ///
    /// `Σ (S(a) − S(b))²` estimates the squared Euclidean distance of two replicas without bias,
    /// with a relative standard deviation of at most 8.8 %. Equal on every peer for equal weights.
    ///
    /// Source: Charikar, Chen, Farach-Colton 2002, "Finding frequent items in data streams".
    pub fn sketch(&mut self, sketch: &mut [f32; SKETCH_LEN]) {
        let mut sums = [0.0; SKETCH_LEN];
        for range in chunks(self.layout().parameters()) {
            let values = match &self.outer {
                Some(outer) => &outer.slow[range.clone()],
                None => {
                    let values = &mut self.buffer[..range.len()];
                    self.trainer.read(range.clone(), values);
                    values
                }
            };
            sketch::accumulate(range.start, values, &mut sums);
        }
        for (out, sum) in sketch.iter_mut().zip(sums) {
            *out = sum as f32;
        }
    }

    /// Everything needed to continue, copied.
    #[must_use]
    pub fn save(&self) -> ReplicaState {
        let outer = self.outer.as_ref().map(|outer| {
            let mut live = vec![0.0; outer.slow.len()];
            self.trainer.read(0..live.len(), &mut live);
            OuterState { live, momentum: outer.momentum.clone() }
        });
        ReplicaState { parameters: self.parameters(), outer, trainer: self.trainer.save() }
    }

    /// Puts back what [`Self::save`] returned.
    ///
    /// # Errors
    /// [`TrainError::State`] when it does not fit or is not finite; nothing is changed then.
    pub fn restore(&mut self, state: &ReplicaState) -> Result<(), TrainError> {
        self.check_state(state)?;
        self.trainer.restore(&state.trainer)?;
        if let (Some(outer), Some(saved)) = (&mut self.outer, &state.outer) {
            outer.slow.copy_from_slice(&state.parameters);
            outer.momentum.copy_from_slice(&saved.momentum);
            outer.settled = false;
        }
        let live = state.outer.as_ref().map_or(&state.parameters, |outer| &outer.live);
        self.settle_live(0, live);
        Ok(())
    }

    /// Reads the live weights x of `range`.
    pub(crate) fn live(&self, range: Range<usize>, out: &mut [f32]) {
        self.trainer.read(range, out);
    }

    /// The outer momentum v, `[P]`; `None` without an outer step.
    pub(crate) fn momentum(&self) -> Option<&[f32]> {
        self.outer.as_ref().map(|outer| outer.momentum.as_slice())
    }

    /// The trainer's private state.
    pub(crate) fn trainer_state(&self) -> TrainerState {
        self.trainer.save()
    }

    fn check_state(&self, state: &ReplicaState) -> Result<(), TrainError> {
        let parameters = self.layout().parameters();
        let refuse = |detail: String| Err(TrainError::State(detail));
        if state.outer.is_some() != self.outer.is_some() {
            return refuse("saved with another rule: outer step missing or unexpected".to_owned());
        }
        let outer = state.outer.iter();
        let outer = outer.flat_map(|o| [("live", &o.live), ("outer momentum", &o.momentum)]);
        for (name, values) in outer.chain([("parameters", &state.parameters)]) {
            if values.len() != parameters {
                let found = values.len();
                return refuse(format!("{name}: expected {parameters} values, found {found}"));
            }
            if !norm(values).is_finite() {
                return refuse(format!("{name}: expected finite values, found NaN or infinity"));
            }
        }
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

    /// Norm of the replica's weights of `range`.
    fn local_norm(&mut self, range: Range<usize>) -> Result<f64, MixError> {
        if let Some(outer) = &self.outer {
            return finite_local(&range, norm(&outer.slow[range.clone()]));
        }
        let mut squares = 0.0;
        for part in chunks(range.len()) {
            let values = &mut self.buffer[..part.len()];
            self.trainer.read(range.start + part.start..range.start + part.end, values);
            squares += norm(values).powi(2);
        }
        finite_local(&range, squares.sqrt())
    }

    fn move_both(&mut self, range: Range<usize>, weight: f32, delta: &[f32]) {
        if let Some(outer) = &mut self.outer {
            displace(&mut outer.slow[range.clone()], delta, weight);
        }
        self.trainer.displace(range, delta, weight);
    }

    /// Brings the live weights from element `start` on to `target`.
    fn settle_live(&mut self, start: usize, target: &[f32]) {
        for part in chunks(target.len()) {
            let scratch = &mut self.buffer[..part.len()];
            let range = start + part.start..start + part.end;
            settle(self.trainer.as_mut(), range, &target[part], scratch);
        }
    }
}

/// Brings the live weights of `range` exactly to `target` by displacements alone.
///
/// One displacement by `target − x` is exact where x is within a factor of two of the target
/// (Sterbenz's lemma); where it is not, the rest is of the order of the rounding error of x, and
/// another pass removes it. A trainer that keeps fewer bits than f32 gets as close as it can.
fn settle(trainer: &mut dyn Trainer, range: Range<usize>, target: &[f32], scratch: &mut [f32]) {
    for _ in 0..SETTLE_PASSES_MAX {
        trainer.read(range.clone(), scratch);
        let mut moved = false;
        for (x, &target) in scratch.iter_mut().zip(target) {
            *x = target - *x;
            moved |= *x != 0.0;
        }
        if !moved {
            return;
        }
        trainer.displace(range.clone(), scratch, 1.0);
    }
}

/// `0..len` in pieces of at most [`CHUNK`] elements.
fn chunks(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(CHUNK).map(move |start| start..len.min(start + CHUNK))
}

fn finite_local(range: &Range<usize>, norm: f64) -> Result<f64, MixError> {
    let (start, end) = (range.start, range.end);
    if norm.is_finite() { Ok(norm) } else { Err(MixError::Local { start, end }) }
}

#[cfg(test)]
mod tests;
