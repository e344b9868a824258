//! The peers of a variant: their data, models and replicas, and whoever measures them.

use dnode_protocol::Fragments;
use dnode_trainer::{
    Batch, BatchSource, DataConfig, DataShare, Dataset, Evaluation, LocalConfig, LocalTrainer,
    Mixer, OuterStep, Replica, ReplicaConfig, SampleShape, Trainer,
};

use super::experiment::{Experiment, ExperimentError, LearnVariant, Rule};
use super::misbehaviour::{Astray, Misbehaviour, Shuffled, Wrong};

/// Samples that are evaluated at a time.
const EVALUATION_BATCH: usize = 48;

/// The trainer of one peer: its shard, the initial weights that all share.
///
/// # Errors
/// [`ExperimentError`] names the file or the key.
pub(super) fn trainer(
    experiment: &Experiment,
    variant: &LearnVariant,
    seed: u64,
    peer: u32,
) -> Result<LocalTrainer, ExperimentError> {
    let dataset = dataset(experiment, seed, peer)?;
    native(experiment, variant, seed, experiment.run.batch, Box::new(dataset))
}

fn native(
    experiment: &Experiment,
    variant: &LearnVariant,
    seed: u64,
    batch: usize,
    source: Box<dyn BatchSource>,
) -> Result<LocalTrainer, ExperimentError> {
    let config = LocalConfig {
        model: experiment.model.clone(),
        optimizer: experiment.optimizer(variant)?,
        seed,
        batch,
        steps: experiment.run.steps,
        threads: 1,
    };
    Ok(LocalTrainer::new(config, source)?)
}

/// A peer's replica as the variant has it.
///
/// # Errors
/// [`ExperimentError`] names the file or the key.
pub(super) fn replica(
    experiment: &Experiment,
    variant: &LearnVariant,
    seed: u64,
    peer: u32,
) -> Result<Replica, ExperimentError> {
    let trainer = wrong(experiment, variant, seed, peer)?;
    let codec = variant.codec().unwrap_or(dnode_protocol::frame::Codec::F32);
    let outer =
        OuterStep { learning_rate: variant.outer_learning_rate, momentum: variant.outer_momentum };
    let (mixer, outer) = match variant.rule {
        Rule::AllReduce => (Mixer::None, Some(outer)),
        Rule::GossipOuter => (Mixer::Exchange, Some(outer)),
        Rule::Pairwise => (Mixer::Exchange, None),
        Rule::PushSum => (Mixer::PushSum, Some(outer)),
        Rule::Epidemic => (Mixer::Epidemic, Some(outer)),
        Rule::DeltaSet => {
            (Mixer::DeltaSet { codec, feedback: variant.error_feedback }, Some(outer))
        }
    };
    let parameters = trainer.layout().parameters();
    let fragments = Fragments::new(parameters, variant.fragments);
    let (key, range) = ("variant.fragments", "few enough for the model");
    let fragments = fragments.ok_or(ExperimentError::Range { key, range })?;
    let config = ReplicaConfig { mixer, outer, fragments, clip: None };
    Ok(Replica::with(trainer, config))
}

/// The trainer of one peer, with what is wrong with it.
fn wrong(
    experiment: &Experiment,
    variant: &LearnVariant,
    seed: u64,
    peer: u32,
) -> Result<Box<dyn Trainer>, ExperimentError> {
    let Some(Misbehaviour { kind, factor, from_step }) = experiment.wrong(peer) else {
        return Ok(Box::new(trainer(experiment, variant, seed, peer)?));
    };
    let plain = || trainer(experiment, variant, seed, peer);
    let astray = |times| -> Result<Box<dyn Trainer>, ExperimentError> {
        Ok(Box::new(Astray { trainer: plain()?, times, from_step }))
    };
    match kind {
        Wrong::LearningRate => astray(factor),
        Wrong::Uphill => astray(-1.0),
        Wrong::Idle => astray(0.0),
        Wrong::Negative | Wrong::Scaled | Wrong::Frozen | Wrong::Absent => Ok(Box::new(plain()?)),
        Wrong::Shuffled => {
            let source = Box::new(dataset(experiment, seed, peer)?);
            let source = Box::new(Shuffled { source, from_step });
            Ok(Box::new(native(experiment, variant, seed, experiment.run.batch, source)?))
        }
    }
}

fn dataset(experiment: &Experiment, seed: u64, peer: u32) -> Result<Dataset, ExperimentError> {
    let data =
        DataConfig { shards: experiment.run.peers, shard: Some(peer), ..experiment.data.clone() };
    Ok(Dataset::open(&data, seed, experiment.model.context)?)
}

/// Measures any weights on held-out data.
#[derive(Debug)]
pub(super) struct Evaluator {
    few: LocalTrainer,
    all: LocalTrainer,
}

/// The first held-out samples alone.
struct Limited {
    source: Dataset,
    samples: usize,
}

impl BatchSource for Limited {
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
        samples > 0 && self.source.evaluation(offset, samples, batch)
    }

    fn evaluation_len(&self) -> usize {
        self.source.evaluation_len().min(self.samples)
    }
}

impl Evaluator {
    /// An evaluator for the experiment's model and held-out data.
    ///
    /// # Errors
    /// [`ExperimentError`] names the file or the key.
    pub(super) fn new(experiment: &Experiment, seed: u64) -> Result<Self, ExperimentError> {
        let variant = &experiment.variant[0];
        let open = || Dataset::open(&experiment.data, seed, experiment.model.context);
        let few = Limited { source: open()?, samples: experiment.evaluate.samples };
        let accumulate = experiment.optimizer(variant)?.accumulate;
        let batch = EVALUATION_BATCH * accumulate;
        Ok(Self {
            few: native(experiment, variant, seed, batch, Box::new(few))?,
            all: native(experiment, variant, seed, batch, Box::new(open()?))?,
        })
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
    put(trainer, parameters);
    trainer.evaluate().map_err(|error| error.to_string())
}

/// Makes `parameters`, `[P]`, the trainer's.
pub(crate) fn put(trainer: &mut LocalTrainer, parameters: &[f32]) {
    let mut now = vec![0.0; parameters.len()];
    let range = 0..parameters.len();
    // Twice: the first displacement may be off by rounding.
    for _ in 0..2 {
        trainer.read(range.clone(), &mut now);
        for (now, wanted) in now.iter_mut().zip(parameters) {
            *now = wanted - *now;
        }
        trainer.displace(range.clone(), &now, 1.0);
    }
}
