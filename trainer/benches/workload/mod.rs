//! The reference workloads of the benches of steps, and how long a trainer takes for them.

use std::time::Instant;

use dnode_trainer::{
    Batch, BatchSource, Input, LocalConfig, LocalTrainer, ModelConfig, ModelKind, OptimizerConfig,
    OptimizerKind, SampleShape, StepId, Trainer as _,
};

/// Steps before the clock counts.
const WARM_UP_STEPS: u64 = 10;
/// Seconds for which each workload runs.
const SECONDS: f64 = 3.0;
/// Steps that are measured at least.
const STEPS_MIN: usize = 20;

/// The same batch for ever.
pub(crate) struct Fixed(pub(crate) SampleShape);

impl BatchSource for Fixed {
    fn shape(&self) -> SampleShape {
        self.0
    }

    fn fill(&self, _step: u64, _micro: u64, samples: usize, batch: &mut Batch) {
        if batch.samples == samples {
            return;
        }
        batch.samples = samples;
        let noise = |index: usize| index.wrapping_mul(2_654_435_761) >> 9;
        match (self.0, &mut batch.input) {
            (SampleShape::Image { height, width, classes }, Input::Images(images)) => {
                let pixels = 0..samples * height * width;
                *images = pixels.map(|i| (noise(i) % 256) as f32 / 128.0 - 1.0).collect();
                batch.targets = (0..samples).map(|i| (i % classes) as u32).collect();
            }
            (SampleShape::Text { context, vocabulary }, Input::Tokens(tokens)) => {
                let token = |i: usize| (noise(i) % vocabulary) as u32;
                *tokens = (0..samples * context).map(token).collect();
                batch.targets = (1..=samples * context).map(token).collect();
            }
            (SampleShape::Image { .. }, Input::Tokens(_))
            | (SampleShape::Text { .. }, Input::Images(_)) => {}
        }
    }

    fn evaluation(&self, _offset: usize, _samples: usize, _batch: &mut Batch) -> bool {
        false
    }

    fn evaluation_len(&self) -> usize {
        0
    }
}

/// A workload: name, model, samples and batch.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) model: ModelConfig,
    pub(crate) shape: SampleShape,
    pub(crate) batch: usize,
}

pub(crate) fn workloads() -> Vec<Workload> {
    let model = |kind| ModelConfig { kind, hidden: vec![256], ..ModelConfig::default() };
    let image = |side| SampleShape::Image { height: side, width: side, classes: 10 };
    let text = |context, vocabulary| SampleShape::Text { context, vocabulary };
    vec![
        Workload {
            name: "mlp 784-256-10 b64",
            model: model(ModelKind::Mlp),
            shape: image(28),
            batch: 64,
        },
        Workload {
            name: "cnn 28x28 b64",
            model: model(ModelKind::Cnn),
            shape: image(28),
            batch: 64,
        },
        Workload {
            name: "gpt 4L d128 4H T128 V96 b16",
            model: ModelConfig { context: 128, ..model(ModelKind::Gpt) },
            shape: text(128, 96),
            batch: 16,
        },
        Workload {
            name: "gpt 4L d128 4H T64 V65 b12",
            model: model(ModelKind::Gpt),
            shape: text(64, 65),
            batch: 12,
        },
        Workload {
            name: "llama 4L d128 4/2H T64 V65 b12",
            model: model(ModelKind::Llama),
            shape: text(64, 65),
            batch: 12,
        },
    ]
}

impl Workload {
    /// One step of the workload on `threads` threads.
    pub(crate) fn config(&self, threads: usize) -> LocalConfig {
        LocalConfig {
            optimizer: self.optimizer(),
            model: self.model.clone(),
            seed: 1,
            batch: self.batch,
            steps: 100_000,
            threads,
            recompute: false,
        }
    }

    /// AdamW for text, plain descent for images, as measured before this engine was written.
    fn optimizer(&self) -> OptimizerConfig {
        OptimizerConfig::default_of(match self.model.kind {
            ModelKind::Mlp | ModelKind::Cnn => OptimizerKind::Sgd,
            ModelKind::Gpt | ModelKind::Llama => OptimizerKind::Adamw,
        })
    }
}

/// Milliseconds of steps: a tenth takes less than the first, half less than the second, a tenth more than
/// the third.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times(pub(crate) [f64; 3]);

/// How long a trainer's steps take: of [`STEPS_MIN`] steps or more, after some that are not measured.
pub(crate) fn measure(trainer: &mut LocalTrainer) -> Times {
    let mut times = Vec::new();
    for step in 0..WARM_UP_STEPS {
        trainer.step(StepId::alone(step)).unwrap();
    }
    let start = Instant::now();
    while times.len() < STEPS_MIN || start.elapsed().as_secs_f64() < SECONDS {
        let before = Instant::now();
        trainer.step(StepId::alone(WARM_UP_STEPS + times.len() as u64)).unwrap();
        times.push(before.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Times([1, 5, 9].map(|tenths| times[times.len() * tenths / 10]))
}
