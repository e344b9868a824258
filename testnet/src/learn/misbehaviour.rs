//! Peers that misbehave: what the anomaly guard of the others is measured against.

mod forger;
mod mask;

use std::ops::Range;
use std::time::Duration;

use dnode_protocol::ParameterLayout;
use dnode_trainer::{
    Batch, BatchSource, DataShare, Evaluation, LocalTrainer, SampleShape, StepId, StepReport,
    TrainError, Trainer, TrainerState,
};
use serde::Deserialize;

pub(super) use self::forger::forge;
pub(super) use self::mask::Mask;
use crate::file::duration;

/// `misbehaviour` of a condition: what is wrong with the last peers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Misbehaviour {
    /// What they do.
    pub kind: Wrong,
    /// How strongly: what a learning rate or weights are multiplied by, or as the kind says.
    #[serde(default = "factor")]
    pub factor: f32,
    /// From this local step on; the peer is honest before.
    #[serde(default)]
    pub from_step: u64,
    /// How many peers misbehave, all alike and by one plan: the last ones, or with `joins_at` those
    /// before the last one.
    #[serde(default = "one")]
    pub peers: u32,
    /// The last peer is honest and joins at this time.
    #[serde(default, with = "duration")]
    pub joins_at: Duration,
}

const fn factor() -> f32 {
    1000.0
}

const fn one() -> u32 {
    1
}

impl Misbehaviour {
    /// One peer, from its first step on.
    #[must_use]
    pub const fn new(kind: Wrong, factor: f32) -> Self {
        Self { kind, factor, from_step: 0, peers: 1, joins_at: Duration::ZERO }
    }

    /// Whether the peer is one of those that misbehave among so many.
    #[must_use]
    pub const fn is_of(&self, peer: u32, peers: u32) -> bool {
        let end = if self.joins_at.is_zero() { peers } else { peers.saturating_sub(1) };
        peer < end && peer + self.peers >= end
    }
}

/// Kinds of misbehaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wrong {
    /// Another learning rate, and no clipping of gradients.
    LearningRate,
    /// Trains uphill: every local step goes the other way.
    Uphill,
    /// Shows the negative of its weights.
    Negative,
    /// Shows its weights multiplied.
    Scaled,
    /// Shows the weights with which it began, for ever.
    Frozen,
    /// As `Frozen`, and says that it takes a step in a microsecond: what differs much in speed may differ much.
    FrozenAndFast,
    /// Learns nothing, and is otherwise honest.
    Idle,
    /// Learns labels that were dealt out at random.
    Shuffled,
    /// Learns the label `most − label` in place of each.
    Flipped,
    /// Shows its weights with noise, `factor` times their root mean square.
    Noise,
    /// As `Noise`, and says that it has done the work of all others and merges: an exchange weighs both ends.
    NoiseAndHeavy,
    /// Shows its weights moved, by as much, always in one direction.
    Drift,
    /// As `Drift`, and disconnects in one of four commits.
    DriftAndReturns,
    /// As `Drift`, and mixes in one of eighteen commits: who was away for so long may be unlike the others.
    DriftAndSeldom,
    /// As `Drift`, one time in that direction and the next time in the other.
    Equivocation,
    /// As `Drift`, by `factor` more each time.
    SlowPoison,
    /// Moves each weight against the progress by `factor` standard deviations of the differences that it
    /// has seen: "a little is enough" (Baruch et al. 2019, arXiv 1902.06156).
    LittleIsEnough,
    /// Shows its progress turned round, `factor` times as long: inner-product manipulation (Xie et al.
    /// 2019, arXiv 1903.03936).
    InnerProduct,
    /// Shows what another peer has shown it (Karimireddy et al. 2022, arXiv 2006.09365).
    Mimic,
    /// Shows what it showed sixteen exchanges ago.
    Replay,
    /// Multiplies the snapshots that it gives, and is otherwise honest.
    Snapshot,
    /// Says that its clock is `factor` commits ahead.
    Clock,
    /// Answers every proposal that it is busy.
    Busy,
    /// Never acknowledges an exchange.
    NeverAcknowledges,
    /// Sends no numbers to every second peer.
    SelectiveSilence,
    /// Dies at once: what the others are compared with, as their shards are the same.
    Absent,
}

/// A data source whose labels are wrong from a step on.
pub(super) struct Mislabelled {
    pub(super) source: Box<dyn BatchSource>,
    pub(super) from_step: u64,
    pub(super) labels: Labels,
}

/// Which labels the samples get.
#[derive(Clone, Copy)]
pub(super) enum Labels {
    /// The largest label, which is named here, minus the right one.
    Flipped(u32),
    /// Another sample's of the batch.
    Shuffled,
}

/// By how many places the labels of so many samples move, so that every sample has another's: never by
/// none, and by another number in the next step where there is one.
fn rotation(step: u64, samples: usize) -> usize {
    let others = samples.saturating_sub(1);
    (step as usize).checked_rem(others).map_or(0, |places| 1 + places)
}

impl BatchSource for Mislabelled {
    fn shape(&self) -> SampleShape {
        self.source.shape()
    }

    fn fill(&self, step: u64, micro: u64, samples: usize, batch: &mut Batch) {
        self.source.fill(step, micro, samples, batch);
        if step < self.from_step {
            return;
        }
        match self.labels {
            Labels::Flipped(most) => {
                batch.targets.iter_mut().for_each(|it| *it = most.saturating_sub(*it));
            }
            Labels::Shuffled => {
                let places = rotation(step, batch.targets.len());
                batch.targets.rotate_left(places);
            }
        }
    }

    fn set_stream(&mut self, stream: u64) {
        self.source.set_stream(stream);
    }

    fn share(&self) -> Option<DataShare> {
        self.source.share()
    }

    fn evaluation(&self, offset: usize, samples: usize, batch: &mut Batch) -> bool {
        self.source.evaluation(offset, samples, batch)
    }

    fn evaluation_len(&self) -> usize {
        self.source.evaluation_len()
    }
}

/// A trainer whose steps go another way: `x ← before + times · (after − before)`.
pub(super) struct Astray {
    pub(super) trainer: LocalTrainer,
    pub(super) times: f32,
    pub(super) from_step: u64,
}

impl Trainer for Astray {
    fn layout(&self) -> &ParameterLayout {
        self.trainer.layout()
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        let range = 0..self.layout().parameters();
        let mut before = vec![0.0; range.len()];
        self.trainer.read(range.clone(), &mut before);
        let report = self.trainer.step(at)?;
        if at.index >= self.from_step {
            let mut moved = vec![0.0; range.len()];
            self.trainer.read(range.clone(), &mut moved);
            moved.iter_mut().zip(&before).for_each(|(after, before)| *after -= before);
            self.trainer.displace(range, &moved, self.times - 1.0);
        }
        Ok(report)
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        self.trainer.read(range, out);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.trainer.displace(range, delta, weight);
    }

    fn share_moments(&mut self) -> bool {
        self.trainer.share_moments()
    }

    fn read_moments(&self, range: Range<usize>, out: &mut [f32]) {
        self.trainer.read_moments(range, out);
    }

    fn displace_moments(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.trainer.displace_moments(range, delta, weight);
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        self.trainer.evaluate()
    }

    fn save(&self) -> TrainerState<'_> {
        self.trainer.save()
    }

    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        self.trainer.restore(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffled_labels_are_another_samples_in_every_step() {
        for samples in 2..40 {
            for step in 0..200 {
                assert!((1..samples).contains(&rotation(step, samples)), "{step} of {samples}");
                let again = rotation(step, samples) == rotation(step + 1, samples);
                assert_eq!(again, samples == 2, "{step} of {samples}");
            }
        }
        assert_eq!([rotation(5, 0), rotation(5, 1)], [0, 0]);
    }
}
