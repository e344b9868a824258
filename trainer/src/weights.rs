//! Live weights, the slow weights behind them, and the moves that keep the two together.

use std::ops::Range;

use dnode_protocol::ParameterLayout;

use crate::mix::{MixError, displace, norm, subtract};
use crate::outer::OuterStep;
use crate::seam::{Evaluation, TrainError, Trainer};

/// Elements that cross the seam at once in a pass over all parameters: 256 KiB of f32.
pub(crate) const CHUNK: usize = 1 << 16;

/// Passes of [`settle`]; each one shrinks the error by the f32 precision, so that six reach zero
/// from anywhere in the f32 range.
const SETTLE_PASSES_MAX: usize = 8;

/// Slow weights and outer momentum.
struct Slow {
    step: OuterStep,
    /// φ, `[P]`.
    values: Vec<f32>,
    /// v, `[P]`.
    momentum: Vec<f32>,
    /// Whether x = φ: nothing was trained since the last commit.
    settled: bool,
}

/// A trainer's live weights x and, with an outer step, the slow weights φ and momentum v.
///
/// "The weights" below are φ, or x without an outer step. Ranges are of the flat vector, within
/// `0..P`; every caller has checked them.
pub(crate) struct Weights {
    trainer: Box<dyn Trainer>,
    slow: Option<Slow>,
    buffer: Vec<f32>,
}

impl Weights {
    /// Begins at the trainer's current weights: `φ = x`, `v = 0`.
    pub(crate) fn new(trainer: Box<dyn Trainer>, step: Option<OuterStep>) -> Self {
        let parameters = trainer.layout().parameters();
        let slow = step.map(|step| {
            let mut values = vec![0.0; parameters];
            trainer.read(0..parameters, &mut values);
            Slow { step, values, momentum: vec![0.0; parameters], settled: true }
        });
        Self { trainer, slow, buffer: vec![0.0; parameters.min(CHUNK)] }
    }

    pub(crate) fn layout(&self) -> &ParameterLayout {
        self.trainer.layout()
    }

    pub(crate) fn trainer(&self) -> &dyn Trainer {
        self.trainer.as_ref()
    }

    /// The trainer, whose live weights may leave φ.
    pub(crate) fn trainer_mut(&mut self) -> &mut dyn Trainer {
        if let Some(slow) = &mut self.slow {
            slow.settled = false;
        }
        self.trainer.as_mut()
    }

    pub(crate) fn step(&self) -> Option<OuterStep> {
        self.slow.as_ref().map(|slow| slow.step)
    }

    pub(crate) fn momentum(&self) -> Option<&[f32]> {
        self.slow.as_ref().map(|slow| slow.momentum.as_slice())
    }

    /// Copies the weights of `range`.
    pub(crate) fn read(&self, range: Range<usize>, out: &mut [f32]) {
        match &self.slow {
            Some(slow) => out.copy_from_slice(&slow.values[range]),
            None => self.trainer.read(range, out),
        }
    }

    /// The weights of `range`.
    pub(crate) fn copy(&self, range: Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; range.len()];
        self.read(range, &mut values);
        values
    }

    /// Calls `visit` with the first element and the weights of every piece of `range`.
    pub(crate) fn visit(&mut self, range: Range<usize>, mut visit: impl FnMut(usize, &[f32])) {
        for part in chunks(range) {
            let start = part.start;
            match &self.slow {
                Some(slow) => visit(start, &slow.values[part]),
                None => {
                    let values = &mut self.buffer[..part.len()];
                    self.trainer.read(part, values);
                    visit(start, values);
                }
            }
        }
    }

    /// Euclidean norm of the weights of `range`.
    ///
    /// # Errors
    /// [`MixError::Local`] when they are not all finite.
    pub(crate) fn norm(&mut self, range: Range<usize>) -> Result<f64, MixError> {
        let mut squares = 0.0;
        self.visit(range.clone(), |_, values| squares += norm(values).powi(2));
        finite_local(&range, squares.sqrt())
    }

    /// Moves φ and x alike: `φ ← φ + weight · delta ; x ← x + weight · delta`.
    pub(crate) fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        if let Some(slow) = &mut self.slow {
            displace(&mut slow.values[range.clone()], delta, weight);
        }
        self.trainer.displace(range, delta, weight);
    }

    /// Sets φ and moves x by what φ moved; `values` is overwritten with that displacement.
    pub(crate) fn replace(&mut self, range: Range<usize>, values: &mut [f32]) {
        if let Some(slow) = &mut self.slow {
            for (value, slow) in values.iter_mut().zip(&mut slow.values[range.clone()]) {
                let new = *value;
                *value = new - *slow;
                *slow = new;
            }
        } else {
            let old = self.copy(range.clone());
            subtract(values, &old);
        }
        self.trainer.displace(range, values, 1.0);
    }

    /// Takes over another's weights: `φ = x = values`, `v = 0`.
    pub(crate) fn adopt(&mut self, range: Range<usize>, values: &[f32]) {
        if let Some(slow) = &mut self.slow {
            slow.values[range.clone()].copy_from_slice(values);
            slow.momentum[range.clone()].fill(0.0);
        }
        self.settle_live(range.start, values);
    }

    /// Puts saved slow weights and momentum in place; x is then set by [`Self::settle_live`].
    pub(crate) fn restore(&mut self, values: &[f32], momentum: &[f32]) {
        if let Some(slow) = &mut self.slow {
            slow.values.copy_from_slice(values);
            slow.momentum.copy_from_slice(momentum);
            slow.settled = false;
        }
    }

    /// Writes `x − φ` of `range`; zeros without an outer step.
    pub(crate) fn progress(&self, range: Range<usize>, out: &mut [f32]) {
        match &self.slow {
            Some(slow) => {
                self.trainer.read(range.clone(), out);
                subtract(out, &slow.values[range]);
            }
            None => out.fill(0.0),
        }
    }

    /// Euclidean norm of `x − φ`; not finite when an element is not.
    pub(crate) fn progress_norm(&mut self) -> f64 {
        let mut squares = 0.0;
        for range in chunks(0..self.layout().parameters()) {
            let mut part = std::mem::take(&mut self.buffer);
            self.progress(range.clone(), &mut part[..range.len()]);
            squares += norm(&part[..range.len()]).powi(2);
            self.buffer = part;
        }
        squares.sqrt()
    }

    /// Ends a round on `range`: turns `progress` (Δ) into `α (Δ + β v)`, with v moved on, lets
    /// `place` add that to φ, and brings x to φ.
    ///
    /// Does nothing without an outer step. Source: [`OuterStep`].
    pub(crate) fn commit(
        &mut self,
        range: Range<usize>,
        progress: &mut [f32],
        place: impl FnOnce(&mut [f32], &mut [f32]),
    ) {
        let Some(slow) = &mut self.slow else { return };
        let values = &mut slow.values[range.clone()];
        slow.step.direct(progress, &mut slow.momentum[range.clone()]);
        place(progress, values);
        for (part, values) in chunks(range).zip(values.chunks(CHUNK)) {
            let scratch = &mut self.buffer[..part.len()];
            settle(self.trainer.as_mut(), part, values, scratch);
        }
    }

    /// Says that x = φ everywhere, after a commit of every range.
    pub(crate) fn settled(&mut self) {
        if let Some(slow) = &mut self.slow {
            slow.settled = true;
        }
    }

    /// Forgets the local steps since the last commit: `x ← φ`.
    pub(crate) fn forget_round(&mut self) {
        let Some(slow) = &self.slow else { return };
        for part in chunks(0..slow.values.len()) {
            let scratch = &mut self.buffer[..part.len()];
            settle(self.trainer.as_mut(), part.clone(), &slow.values[part], scratch);
        }
    }

    /// Measures the weights on held-out data; x is put back to the last bit (in a trainer that
    /// keeps f32).
    pub(crate) fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        if self.slow.as_ref().is_none_or(|slow| slow.settled) {
            return self.trainer.evaluate();
        }
        let mut live = vec![0.0; self.layout().parameters()];
        self.trainer.read(0..live.len(), &mut live);
        self.forget_round();
        let evaluation = self.trainer.evaluate();
        self.settle_live(0, &live);
        evaluation
    }

    /// Brings the live weights from element `start` on to `target`.
    pub(crate) fn settle_live(&mut self, start: usize, target: &[f32]) {
        for (part, target) in chunks(start..start + target.len()).zip(target.chunks(CHUNK)) {
            let scratch = &mut self.buffer[..part.len()];
            settle(self.trainer.as_mut(), part, target, scratch);
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

/// `range` in pieces of at most [`CHUNK`] elements.
pub(crate) fn chunks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = range;
    (start..end).step_by(CHUNK).map(move |start| start..end.min(start + CHUNK))
}

pub(crate) fn finite_local(range: &Range<usize>, norm: f64) -> Result<f64, MixError> {
    let (start, end) = (range.start, range.end);
    if norm.is_finite() { Ok(norm) } else { Err(MixError::Local { start, end }) }
}
