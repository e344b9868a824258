//! A tiny deterministic source of batches and ready-made configurations for the model tests.

use dnode_trainer::{
    Batch, BatchSource, Input, LocalConfig, LocalTrainer, ModelConfig, ModelKind, OptimizerConfig,
    OptimizerKind, SampleShape, Schedule, Trainer,
};

/// `count` fixed samples; batch `micro` of any step begins at sample `micro · samples`.
pub(crate) struct Synthetic {
    pub(crate) shape: SampleShape,
    pub(crate) count: usize,
    /// Value added to every pixel, to break things on purpose.
    pub(crate) offset: f32,
}

/// A number that looks random, in `0..modulus`.
fn noise(index: usize, modulus: usize) -> usize {
    (index.wrapping_mul(2_654_435_761) >> 7) % modulus
}

impl Synthetic {
    fn write(&self, first: usize, samples: usize, batch: &mut Batch) {
        batch.samples = samples;
        batch.targets.clear();
        let indices = (first..first + samples).map(|index| index % self.count);
        match (self.shape, &mut batch.input) {
            (SampleShape::Image { height, width, classes }, Input::Images(images)) => {
                images.clear();
                for index in indices {
                    let pixel = |at| noise(index * 1000 + at, 17) as f32 / 8.0 - 1.0 + self.offset;
                    images.extend((0..height * width).map(pixel));
                    batch.targets.push((index % classes) as u32);
                }
            }
            (SampleShape::Text { context, vocabulary }, Input::Tokens(tokens)) => {
                tokens.clear();
                for index in indices {
                    let token = |at| noise(index * 1000 + at, vocabulary) as u32;
                    tokens.extend((0..context).map(token));
                    batch.targets.extend((1..=context).map(token));
                }
            }
            (SampleShape::Image { .. }, Input::Tokens(_))
            | (SampleShape::Text { .. }, Input::Images(_)) => panic!("batch of another shape"),
        }
    }
}

impl BatchSource for Synthetic {
    fn shape(&self) -> SampleShape {
        self.shape
    }

    fn fill(&self, _step: u64, micro: u64, samples: usize, batch: &mut Batch) {
        self.write(micro as usize * samples, samples, batch);
    }

    fn evaluation(&self, offset: usize, samples: usize, batch: &mut Batch) -> bool {
        let samples = samples.min(self.count.saturating_sub(offset));
        self.write(offset, samples, batch);
        samples > 0
    }

    fn evaluation_len(&self) -> usize {
        self.count
    }
}

/// The models at a size that differences can be taken of.
pub(crate) const KINDS: [ModelKind; 4] =
    [ModelKind::Mlp, ModelKind::Cnn, ModelKind::Gpt, ModelKind::Llama];

/// Samples of the synthetic source, and the batch of [`config`].
pub(crate) const SAMPLES: usize = 12;

/// A small configuration of `kind` at a constant learning rate.
pub(crate) fn config(kind: ModelKind) -> LocalConfig {
    LocalConfig {
        model: ModelConfig {
            kind,
            hidden: vec![24, 16],
            layers: 2,
            heads: 2,
            width: 16,
            context: 8,
            ..ModelConfig::default()
        },
        optimizer: OptimizerConfig {
            warmup_steps: 0,
            schedule: Schedule::Constant,
            ..optimizer(kind)
        },
        seed: 7,
        batch: SAMPLES,
        steps: 200,
        threads: 1,
        recompute: false,
    }
}

/// Plain descent for images, AdamW for text: both optimizers are covered.
fn optimizer(kind: ModelKind) -> OptimizerConfig {
    match kind {
        ModelKind::Mlp | ModelKind::Cnn => OptimizerConfig {
            learning_rate: 0.05,
            ..OptimizerConfig::default_of(OptimizerKind::Sgd)
        },
        ModelKind::Gpt | ModelKind::Llama => OptimizerConfig {
            learning_rate: 1e-3,
            ..OptimizerConfig::default_of(OptimizerKind::Adamw)
        },
    }
}

/// The source that goes with [`config`].
pub(crate) fn source(kind: ModelKind) -> Synthetic {
    let shape = match kind {
        ModelKind::Mlp => SampleShape::Image { height: 6, width: 5, classes: 4 },
        // Odd sides: pooling leaves the last row and column out.
        ModelKind::Cnn => SampleShape::Image { height: 9, width: 8, classes: 4 },
        ModelKind::Gpt | ModelKind::Llama => SampleShape::Text { context: 8, vocabulary: 13 },
    };
    Synthetic { shape, count: SAMPLES, offset: 0.0 }
}

/// The trainer of a configuration on the synthetic source.
pub(crate) fn trainer(config: LocalConfig) -> LocalTrainer {
    let source = source(config.model.kind);
    LocalTrainer::new(config, Box::new(source)).unwrap()
}

/// All parameters.
pub(crate) fn parameters(trainer: &dyn Trainer) -> Vec<f32> {
    let count = trainer.layout().parameters();
    let mut values = vec![0.0; count];
    trainer.read(0..count, &mut values);
    values
}

/// Bit patterns, so that equality means equality.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
