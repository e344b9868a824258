//! Peers that misbehave: what the anomaly guard of the others is measured against.

use std::ops::Range;

use dnode_protocol::ParameterLayout;
use dnode_protocol::frame::Codec;
use dnode_trainer::codec::{Encoded, decode, encode};
use dnode_trainer::{
    Batch, BatchSource, DataShare, Evaluation, LocalTrainer, SampleShape, StepId, StepReport,
    TrainError, Trainer, TrainerState,
};
use serde::Deserialize;

/// `misbehaviour` of a condition: what is wrong with the last peer.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Misbehaviour {
    /// What it does.
    pub kind: Wrong,
    /// What its learning rate or its weights are multiplied by.
    #[serde(default = "factor")]
    pub factor: f32,
    /// From this local step on; the peer is honest before.
    #[serde(default)]
    pub from_step: u64,
}

const fn factor() -> f32 {
    1000.0
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
    /// Learns nothing, and is otherwise honest.
    Idle,
    /// Learns labels that were dealt out at random.
    Shuffled,
    /// Dies at once: what the others are compared with, as their shards are the same.
    Absent,
}

/// The weights that a peer shows in place of its own.
#[derive(Debug)]
pub(super) enum Mask {
    Times(f32),
    Frozen(Vec<f32>),
}

impl Mask {
    /// The mask of a peer whose weights are `first` when it begins.
    pub(super) fn of(
        wrong: Option<Misbehaviour>,
        first: impl FnOnce() -> Vec<f32>,
    ) -> Option<Self> {
        let wrong = wrong?;
        match wrong.kind {
            Wrong::Negative => Some(Self::Times(-1.0)),
            Wrong::Scaled => Some(Self::Times(wrong.factor)),
            Wrong::Frozen => Some(Self::Frozen(first())),
            Wrong::LearningRate | Wrong::Uphill | Wrong::Idle | Wrong::Shuffled | Wrong::Absent => {
                None
            }
        }
    }

    fn put_on(&self, range: Range<usize>, own: &[f32]) -> Vec<f32> {
        match self {
            Self::Times(factor) => own.iter().map(|value| value * factor).collect(),
            Self::Frozen(first) => first[range].to_vec(),
        }
    }

    /// What is shown in place of the weights `own`, in a code that any partner reads.
    pub(super) fn offer(&self, range: Range<usize>, own: &[f32], codec: Codec) -> Encoded {
        let codec = if Codec::MODULAR.contains(&codec) { Codec::Bf16 } else { codec };
        encode(codec, &self.put_on(range, own))
    }

    /// The reply that a peer of the shown weights gives: `reply` belongs to the weights `own`.
    pub(super) fn reply(&self, range: Range<usize>, own: &[f32], reply: &Encoded) -> Encoded {
        let mut difference = vec![0.0; own.len()];
        if decode(reply, &mut difference).is_err() {
            return reply.clone();
        }
        let shown = self.put_on(range, own);
        for ((difference, shown), own) in difference.iter_mut().zip(shown).zip(own) {
            *difference += shown - own;
        }
        encode(reply.codec, &difference)
    }
}

/// A data source whose labels are dealt out at random within each batch.
pub(super) struct Shuffled {
    pub(super) source: Box<dyn BatchSource>,
    pub(super) from_step: u64,
}

impl BatchSource for Shuffled {
    fn shape(&self) -> SampleShape {
        self.source.shape()
    }

    fn fill(&self, step: u64, micro: u64, samples: usize, batch: &mut Batch) {
        self.source.fill(step, micro, samples, batch);
        if step >= self.from_step {
            let count = batch.targets.len().max(1);
            // A rotation by a number that no other step has gives every sample another's label.
            batch.targets.rotate_left((1 + step as usize * 7 % count) % count);
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

    fn save(&self) -> TrainerState {
        self.trainer.save()
    }

    fn restore(&mut self, state: &TrainerState) -> Result<(), TrainError> {
        self.trainer.restore(state)
    }
}
