//! The live weights of a replica: a trainer, moved by displacements alone.

use std::ops::Range;
use std::path::Path;

use dnode_protocol::ParameterLayout;

use crate::device::{DeviceError, Resident};
use crate::displacement::Displacement;
use crate::interrupt::Interrupt;
use crate::kernel::loss::Score;
use crate::mix::MixError;
use crate::seam::{Evaluation, Requests, TrainError, Trainer};
use crate::trainer_state::TrainerState;

/// Elements that cross the seam at once in a pass over all parameters: 256 KiB of f32.
pub(crate) const CHUNK: usize = 1 << 16;

/// Passes of [`settle`]; each one shrinks the error by the f32 precision, so that six reach zero
/// from anywhere in the f32 range.
const SETTLE_PASSES_MAX: usize = 8;

/// A trainer's live weights x, with its first moments behind them where these are exchanged, too.
///
/// Ranges are of the flat vector, within `0..P`, or `0..2P` with moments; every caller has checked them.
pub(crate) struct Live {
    trainer: Box<dyn Trainer>,
    buffer: Vec<f32>,
    /// Whether nothing was trained since the live weights were last brought to the slow ones.
    settled: bool,
}

impl Live {
    /// `elements`: P, or 2P with moments.
    pub(crate) fn new(trainer: Box<dyn Trainer>, elements: usize) -> Self {
        let buffer = vec![0.0; elements.min(CHUNK)];
        Self { trainer, buffer, settled: true }
    }

    pub(crate) fn layout(&self) -> &ParameterLayout {
        self.trainer.layout()
    }

    /// The numbers of `range`.
    pub(crate) fn read(&self, range: Range<usize>, out: &mut [f32]) {
        read(self.trainer.as_ref(), range, out);
    }

    /// The trainer's private state.
    pub(crate) fn save(&self) -> TrainerState<'_> {
        self.trainer.save()
    }

    /// The trainer, whose live weights may leave the slow ones.
    pub(crate) fn trainer_mut(&mut self) -> &mut dyn Trainer {
        self.settled = false;
        self.trainer.as_mut()
    }

    /// As [`Trainer::set_interrupt`].
    pub(crate) fn set_interrupt(&mut self, interrupt: Interrupt) -> bool {
        self.trainer.set_interrupt(interrupt)
    }

    /// As [`Trainer::expect_commit`].
    pub(crate) fn expect_commit(&mut self, steps: u64) {
        self.trainer.expect_commit(steps);
    }

    /// As [`Trainer::take_requests`].
    pub(crate) fn take_requests(&mut self) -> Requests {
        self.trainer.take_requests()
    }

    /// As [`Trainer::on_checkpoint`].
    pub(crate) fn on_checkpoint(&mut self, written: Result<&Path, &str>) {
        self.trainer.on_checkpoint(written);
    }

    /// Where the weights lie, if that is a device. Who moves them by that says whether they are settled.
    pub(crate) fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        self.trainer.resident()
    }

    /// As [`Trainer::on_moved`].
    pub(crate) fn on_moved(&mut self) {
        self.trainer.on_moved();
    }

    pub(crate) const fn is_settled(&self) -> bool {
        self.settled
    }

    pub(crate) const fn set_settled(&mut self, settled: bool) {
        self.settled = settled;
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
            let (start, values) = (part.start, &mut self.buffer[..part.len()]);
            read(self.trainer.as_ref(), part, values);
            visit(start, values);
        }
    }

    /// Makes a move of the fragment `range`, and writes what comes of it to `shown`, piece by piece.
    pub(crate) fn make(
        &mut self,
        range: Range<usize>,
        moved: Option<&Displacement>,
        mut shown: Option<&mut [f32]>,
    ) {
        let start = range.start;
        for part in chunks(range) {
            let of = part.start - start..part.end - start;
            match moved {
                Some(moved) if moved.replaces() => {
                    self.settle(part.start, moved.part(of.clone(), &mut []).0);
                }
                Some(moved) => {
                    let (delta, weight) = moved.part(of.clone(), &mut self.buffer);
                    displace(self.trainer.as_mut(), part.clone(), delta, weight);
                }
                None => {}
            }
            if let Some(shown) = &mut shown {
                self.read(part, &mut shown[of]);
            }
        }
    }

    /// Brings the weights from element `start` on to `target`, to the last bit in a trainer that
    /// keeps f32: in one pass where it sets them itself.
    pub(crate) fn settle(&mut self, start: usize, target: &[f32]) {
        for (part, target) in chunks(start..start + target.len()).zip(target.chunks(CHUNK)) {
            let scratch = &mut self.buffer[..part.len()];
            settle(self.trainer.as_mut(), part, target, scratch);
        }
    }

    /// Measures the weights on held-out data, which does not change them.
    pub(crate) fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        self.trainer.evaluate()
    }

    /// Measures what `place` makes of the weights, and puts them back.
    pub(crate) fn evaluate_placed(
        &mut self,
        place: impl FnOnce(&mut Self),
    ) -> Result<Evaluation, TrainError> {
        let own = self.copy(0..self.layout().parameters());
        place(self);
        let evaluation = self.evaluate();
        self.settle(0, &own);
        evaluation
    }

    /// Measures the weights on a part of the held-out data.
    pub(crate) fn evaluate_part(
        &mut self,
        index: usize,
        parts: usize,
    ) -> Result<Option<Score>, TrainError> {
        self.trainer.evaluate_part(index, parts)
    }
}

/// Brings the live weights of `range` exactly to `target`: by displacements, where they are not set at once.
///
/// One displacement by `target − x` is exact where x is within a factor of two of the target
/// (Sterbenz's lemma); where it is not, the rest is of the order of the rounding error of x, and
/// another pass removes it. A trainer that keeps fewer bits than f32 gets as close as it can.
fn settle(trainer: &mut dyn Trainer, range: Range<usize>, target: &[f32], scratch: &mut [f32]) {
    let of_parameters = range.end <= trainer.layout().parameters();
    if of_parameters && trainer.set_parameters(range.clone(), target) {
        return;
    }
    for _ in 0..SETTLE_PASSES_MAX {
        read(trainer, range.clone(), scratch);
        let mut moved = false;
        for (x, &target) in scratch.iter_mut().zip(target) {
            *x = target - *x;
            moved |= *x != 0.0;
        }
        if !moved {
            return;
        }
        displace(trainer, range.clone(), scratch, 1.0);
    }
}

/// The parts of `range` that are parameters and that are moments, each as a range of the parameters.
fn halves(trainer: &dyn Trainer, range: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let parameters = trainer.layout().parameters();
    let moments = range.start.max(parameters) - parameters..range.end.max(parameters) - parameters;
    (range.start.min(parameters)..range.end.min(parameters), moments)
}

fn read(trainer: &dyn Trainer, range: Range<usize>, out: &mut [f32]) {
    let (weights, moments) = halves(trainer, &range);
    let (first, second) = out.split_at_mut(weights.len());
    if !weights.is_empty() {
        trainer.read(weights, first);
    }
    if !moments.is_empty() {
        trainer.read_moments(moments, second);
    }
}

fn displace(trainer: &mut dyn Trainer, range: Range<usize>, delta: &[f32], weight: f32) {
    let (weights, moments) = halves(trainer, &range);
    let (first, second) = delta.split_at(weights.len());
    if !weights.is_empty() {
        trainer.displace(weights, first, weight);
    }
    if !moments.is_empty() {
        trainer.displace_moments(moments, second, weight);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idle::IdleTrainer;
    use crate::testing::probe;

    #[test]
    fn weights_are_settled_to_the_bit_by_a_trainer_that_sets_them_and_by_one_that_is_displaced() {
        let len = CHUNK + 1000;
        let from: Vec<f32> = (0..len).map(|index| (index as f32 - 3e4) * 1e3).collect();
        let target: Vec<f32> = (0..len).map(|index| (index as f32).sin() * 1e-3).collect();
        let (displaced, _) = probe(from.clone());
        let set = Box::new(IdleTrainer::new(from.clone()).unwrap());
        for trainer in [set as Box<dyn Trainer>, displaced] {
            let mut live = Live::new(trainer, len);
            let settled = 7..len - 5;
            live.settle(settled.start, &target[settled.clone()]);
            let now = live.copy(0..len);
            assert!(now[settled.clone()] == target[settled.clone()]);
            assert!(now[..7] == from[..7] && now[len - 5..] == from[len - 5..]);
        }
    }

    #[test]
    fn weights_that_are_set_need_not_be_finite_before() {
        let broken = IdleTrainer::new(vec![f32::NAN, f32::INFINITY, 1.0]).unwrap();
        let mut live = Live::new(Box::new(broken), 3);
        live.settle(0, &[1.0, -0.0, 2.5]);
        let bits: Vec<u32> = live.copy(0..3).into_iter().map(f32::to_bits).collect();
        assert_eq!(bits, [1.0_f32, -0.0, 2.5].map(f32::to_bits));
    }
}
