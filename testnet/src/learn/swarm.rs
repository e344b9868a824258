//! The peers of a variant: their data, models and replicas, and whoever measures them.

use std::ops::Range;

use dnode_protocol::Fragments;
use dnode_trainer::privacy::{CommitNoise, NoiseSeed};
use dnode_trainer::{
    Batch, BatchSource, Beside, DataConfig, DataShare, Dataset, Evaluation, Input, LocalConfig,
    LocalTrainer, Mixer, OuterStep, Replica, ReplicaConfig, SampleShape, Trainer,
};

use super::case::{LearnError, MixingName, SimulatedCase, SimulatedVariant};
use super::misbehaviour::{Astray, Labels, Misbehaviour, Mislabelled, Wrong};
use crate::file::ReadError;

/// Samples that are evaluated at a time.
const EVALUATION_BATCH: usize = 48;

/// The trainer of one peer: its shard, the initial weights that all share.
///
/// # Errors
/// [`LearnError`] names the file or the key.
pub(super) fn trainer(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    seed: u64,
    peer: u32,
) -> Result<LocalTrainer, LearnError> {
    let dataset = dataset(case, seed, peer)?;
    native(case, variant, seed, case.batch, Box::new(dataset))
}

fn native(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    seed: u64,
    batch: usize,
    source: Box<dyn BatchSource>,
) -> Result<LocalTrainer, LearnError> {
    let config = LocalConfig {
        model: case.model.clone(),
        optimizer: variant.optimizer.clone(),
        seed,
        batch,
        steps: case.steps,
        threads: 1,
        recompute: false,
    };
    Ok(LocalTrainer::new(config, source)?)
}

/// A peer's replica as the variant has it.
///
/// # Errors
/// [`LearnError`] names the file or the key.
pub(super) fn replica(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    seed: u64,
    peer: u32,
) -> Result<Replica, LearnError> {
    let trainer = trainer_of(case, variant, seed, peer)?;
    let codec = variant.codec();
    let outer =
        OuterStep { learning_rate: variant.outer_learning_rate, momentum: variant.outer_momentum };
    let (mixer, outer) = match variant.rule {
        MixingName::AllReduce => (Mixer::None, Some(outer)),
        MixingName::GossipOuter => (Mixer::Exchange, Some(outer)),
        MixingName::Pairwise => (Mixer::Exchange, None),
        MixingName::DeltaSet => {
            (Mixer::DeltaSet { codec, feedback: variant.error_feedback }, Some(outer))
        }
    };
    let fragments = fragments(variant, trainer.layout().parameters())?;
    let config = ReplicaConfig { mixer, outer, fragments, clip: None };
    let beside = Beside { noise: noise(variant, seed, peer), file: None };
    Ok(Replica::with_beside(trainer, config, beside))
}

/// What is done to a peer's commits. A run can be repeated, so its noise is of its seed.
fn noise(variant: &SimulatedVariant, seed: u64, peer: u32) -> Option<CommitNoise> {
    let mut own = [0; 32];
    own[..8].copy_from_slice(&seed.to_le_bytes());
    own[8..12].copy_from_slice(&peer.to_le_bytes());
    let (clip, multiplier) = (variant.privacy_clip, variant.privacy_noise);
    (clip > 0.0).then(|| CommitNoise::new(clip, multiplier, NoiseSeed(own)))
}

/// The fragments of a model, and of its moments where the variant averages them.
///
/// # Errors
/// [`ReadError`] names the key.
pub(super) fn fragments(
    variant: &SimulatedVariant,
    parameters: usize,
) -> Result<Fragments, ReadError> {
    let cut = if variant.moments { Fragments::with_moments } else { Fragments::new };
    let (key, legal) = ("gossip.fragments", "few enough for the model");
    cut(parameters, variant.fragments).ok_or(ReadError::Range { key, legal })
}

/// The trainer of one peer, with what is wrong with it.
///
/// # Errors
/// [`LearnError`] names the file or the key.
pub(super) fn trainer_of(
    case: &SimulatedCase,
    variant: &SimulatedVariant,
    seed: u64,
    peer: u32,
) -> Result<Box<dyn Trainer>, LearnError> {
    let Some(Misbehaviour { kind, factor, from_step, .. }) = case.wrong(peer) else {
        return Ok(Box::new(trainer(case, variant, seed, peer)?));
    };
    let plain = || trainer(case, variant, seed, peer);
    let astray = |times| -> Result<Box<dyn Trainer>, LearnError> {
        Ok(Box::new(Astray { trainer: plain()?, times, from_step }))
    };
    match kind {
        Wrong::LearningRate => astray(factor),
        Wrong::Uphill => astray(-1.0),
        Wrong::Idle => astray(0.0),
        Wrong::Shuffled | Wrong::Flipped => {
            let source = Box::new(dataset(case, seed, peer)?);
            let labels = if kind == Wrong::Flipped {
                Labels::Flipped(largest_target(&source))
            } else {
                Labels::Shuffled
            };
            let source = Box::new(Mislabelled { source, from_step, labels });
            Ok(Box::new(native(case, variant, seed, case.batch, source)?))
        }
        // These show something else than they have learnt.
        Wrong::Negative
        | Wrong::Scaled
        | Wrong::Frozen
        | Wrong::FrozenAndFast
        | Wrong::Noise
        | Wrong::NoiseAndHeavy
        | Wrong::Drift
        | Wrong::DriftAndReturns
        | Wrong::DriftAndSeldom
        | Wrong::Equivocation
        | Wrong::SlowPoison
        | Wrong::LittleIsEnough
        | Wrong::InnerProduct
        | Wrong::Mimic
        | Wrong::Replay
        | Wrong::Snapshot
        | Wrong::Clock
        | Wrong::Busy
        | Wrong::NeverAcknowledges
        | Wrong::SelectiveSilence
        | Wrong::Absent => Ok(Box::new(plain()?)),
    }
}

/// The largest label among the first held-out samples.
fn largest_target(source: &Dataset) -> u32 {
    let mut batch = Batch { input: Input::Images(Vec::new()), targets: Vec::new(), samples: 0 };
    let most = source.evaluation(0, EVALUATION_BATCH, &mut batch).then_some(&batch.targets);
    most.into_iter().flatten().copied().max().unwrap_or_default()
}

fn dataset(case: &SimulatedCase, seed: u64, peer: u32) -> Result<Dataset, LearnError> {
    let data = DataConfig { shards: case.peers, shard: Some(peer), ..case.data.clone() };
    Ok(Dataset::open(&data, seed, case.model.context)?)
}

/// Measures any weights on held-out data.
#[derive(Debug)]
pub(super) struct Evaluator {
    few: LocalTrainer,
    all: LocalTrainer,
}

/// A part of the held-out samples alone.
struct Part {
    source: Dataset,
    range: Range<usize>,
}

impl BatchSource for Part {
    fn shape(&self) -> SampleShape {
        self.source.shape()
    }

    fn fill(&self, step: u64, micro: u64, samples: usize, batch: &mut Batch) {
        self.source.fill(step, micro, samples, batch);
    }

    fn share(&self) -> Option<DataShare> {
        self.source.share()
    }

    fn evaluation(&self, offset: usize, samples: usize, batch: &mut Batch) -> bool {
        let samples = samples.min(self.evaluation_len().saturating_sub(offset));
        samples > 0 && self.source.evaluation(self.range.start + offset, samples, batch)
    }

    fn evaluation_len(&self) -> usize {
        self.range.len()
    }
}

impl Evaluator {
    /// An evaluator for the experiment's model and held-out data.
    ///
    /// # Errors
    /// [`LearnError`] names the file or the key.
    pub(super) fn new(case: &SimulatedCase, seed: u64) -> Result<Self, LearnError> {
        let variant = &case.variants[0];
        let open = || Dataset::open(&case.data, seed, case.model.context);
        let part = |most: usize| -> Result<Part, LearnError> {
            let source = open()?;
            let all = case.simulation.held_out.range(source.evaluation_len());
            let end = all.end.min(all.start.saturating_add(most));
            Ok(Part { source, range: all.start..end })
        };
        let few = part(case.simulation.samples)?;
        let accumulate = variant.optimizer.accumulate;
        let batch = EVALUATION_BATCH * accumulate;
        Ok(Self {
            few: native(case, variant, seed, batch, Box::new(few))?,
            all: native(case, variant, seed, batch, Box::new(part(usize::MAX)?))?,
        })
    }

    /// Parameters of the model.
    #[must_use]
    pub(super) fn parameters(&self) -> usize {
        self.all.layout().parameters()
    }

    /// Loss and accuracy of `parameters`, `[P]`, on the first held-out samples or on all.
    ///
    /// # Errors
    /// What the trainer says.
    pub(super) fn evaluate(&mut self, parameters: &[f32], all: bool) -> Result<Evaluation, String> {
        let trainer = if all { &mut self.all } else { &mut self.few };
        evaluate(trainer, parameters)
    }
}

/// Loss and accuracy of `parameters`, `[P]`, on what the trainer holds out.
///
/// # Errors
/// What the trainer says.
pub(crate) fn evaluate(
    trainer: &mut LocalTrainer,
    parameters: &[f32],
) -> Result<Evaluation, String> {
    if parameters.iter().any(|value| !value.is_finite()) {
        // The trainer would have them for good: it is given other parameters by displacements.
        return Ok(Evaluation { loss: f64::NAN, accuracy: 0.0, count: 0 });
    }
    put(trainer, parameters);
    trainer.evaluate().map_err(|error| error.to_string())
}

/// As many leave nothing of the largest finite number.
const DISPLACEMENTS_MAX: u32 = 12;

/// Makes `parameters`, `[P]`, the trainer's.
pub(crate) fn put(trainer: &mut dyn Trainer, parameters: &[f32]) {
    let mut now = vec![0.0; parameters.len()];
    let range = 0..parameters.len();
    // Each displacement leaves its rounding, 2⁻²⁴ of the largest number that there was or is.
    for _ in 0..DISPLACEMENTS_MAX {
        trainer.read(range.clone(), &mut now);
        if now == parameters {
            return;
        }
        for (now, wanted) in now.iter_mut().zip(parameters) {
            *now = wanted - *now;
        }
        trainer.displace(range.clone(), &now, 1.0);
    }
}
