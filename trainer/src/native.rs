//! The embedded trainer: a reference model, an optimizer and a source of batches.

use std::fmt;
use std::ops::Range;

use dnode_protocol::ParameterLayout;

use crate::batch::{Batch, Input, SampleShape};
use crate::config::{ConfigError, ModelConfig, OptimizerConfig, THREADS_MAX, ensure};
use crate::kernel::loss::Score;
use crate::kernel::{Compute, reduce};
use crate::learning_rate::learning_rate;
use crate::model::{Backward, Forward, Model, build, initial_random};
use crate::optimizer::{Optimizer, clip_scale};
use crate::seam::{
    DataShare, Evaluation, GradientStep, StepId, StepReport, TrainError, Trainer, TrainerState,
};

/// Where batches come from; a data set with its seed and shard.
pub trait BatchSource: Send {
    /// What samples look like; must not change.
    fn shape(&self) -> SampleShape;

    /// Fills `batch` with `samples` training samples, a function of the stream, `step` and `micro`
    /// alone.
    ///
    /// `micro` is the index of the micro-batch within local step `step`.
    fn fill(&self, step: u64, micro: u64, samples: usize, batch: &mut Batch);

    /// As [`Trainer::set_stream`].
    fn set_stream(&mut self, stream: u64) {
        let _ = stream;
    }

    /// As [`Trainer::data_share`].
    fn share(&self) -> Option<DataShare> {
        None
    }

    /// Fills `batch` with up to `samples` held-out samples from index `offset`; false when there
    /// is none.
    fn evaluation(&self, offset: usize, samples: usize, batch: &mut Batch) -> bool;

    /// Number of held-out samples.
    fn evaluation_len(&self) -> usize;
}

/// How a [`NativeTrainer`] is built.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeConfig {
    /// The model.
    pub model: ModelConfig,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Seed of the initial parameters; equal seeds give equal parameters on every machine.
    pub seed: u64,
    /// Samples per step, at least 1, a multiple of `optimizer.accumulate`.
    pub batch: usize,
    /// Steps of the whole run, the unit of [`StepId::position`], for the learning-rate schedule.
    pub steps: u64,
    /// Threads that compute, `1..=1024`; they change the speed, never a bit of the result.
    pub threads: usize,
}

/// The gradient that waits for its update.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pending {
    at: StepId,
    loss: f32,
}

/// The embedded compute backend behind the [`Trainer`] seam.
pub struct NativeTrainer {
    model: Box<dyn Model>,
    optimizer: Optimizer,
    config: NativeConfig,
    source: Box<dyn BatchSource>,
    compute: Compute,
    batch: Batch,
    /// Samples of a step, at most `config.batch`.
    samples: usize,
    /// `[P]`.
    parameters: Vec<f32>,
    /// `[P]`.
    gradient: Vec<f32>,
    pending: Option<Pending>,
}

impl fmt::Debug for NativeTrainer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NativeTrainer")
            .field("config", &self.config)
            .field("parameters", &self.parameters.len())
            .finish_non_exhaustive()
    }
}

impl NativeTrainer {
    /// Builds the model for the samples of `source` and draws its initial parameters.
    ///
    /// # Errors
    /// [`ConfigError`] names the value that is out of range, or what does not fit.
    pub fn new(config: NativeConfig, source: Box<dyn BatchSource>) -> Result<Self, ConfigError> {
        config.optimizer.validate()?;
        let accumulate = config.optimizer.accumulate;
        ensure(
            config.batch > 0 && config.batch.is_multiple_of(accumulate),
            "run.batch",
            config.batch,
            format!("a multiple of optimizer.accumulate = {accumulate}, at least 1"),
        )?;
        let threads = config.threads;
        ensure(
            (1..=THREADS_MAX).contains(&threads),
            "node.threads",
            threads,
            format!("1..={THREADS_MAX}"),
        )?;
        let model = build(&config.model, source.shape())?;
        let compute =
            Compute::new(threads).map_err(|source| ConfigError::Threads { threads, source })?;
        let mut parameters = vec![0.0; model.layout().parameters()];
        model.initialize(&mut initial_random(config.seed), &mut parameters);
        Ok(Self {
            optimizer: Optimizer::new(config.optimizer.clone(), model.layout()),
            batch: Batch::new(source.shape()),
            samples: config.batch,
            gradient: vec![0.0; parameters.len()],
            pending: None,
            model,
            config,
            source,
            compute,
            parameters,
        })
    }

    /// Samples of one whole micro-batch.
    const fn micro_samples(&self) -> usize {
        self.config.batch / self.config.optimizer.accumulate
    }

    fn forward(&mut self) -> Result<Score, TrainError> {
        check(&self.batch, self.source.shape())?;
        let pass = Forward { compute: &self.compute, parameters: &self.parameters };
        let (model, batch) = (&mut self.model, &self.batch);
        Ok(self.compute.run(|| model.forward(pass, batch)))
    }

    /// Computes the mean gradient of the step's first samples and keeps it; returns the mean loss.
    ///
    /// The last micro-batch that has a part in it may be cut short, and weighs less then.
    fn sum_gradient(&mut self, at: StepId) -> Result<f32, TrainError> {
        let step = at.index;
        self.pending = None;
        self.gradient.fill(0.0);
        let whole = self.micro_samples();
        let mut total = Score::default();
        for (micro, first) in (0..).zip((0..self.samples).step_by(whole)) {
            self.source.fill(step, micro, whole, &mut self.batch);
            self.batch.truncate(self.samples - first);
            let score = self.forward()?;
            if !score.loss.is_finite() {
                return Err(TrainError::NotFinite { step, what: "loss" });
            }
            let pass = Backward {
                compute: &self.compute,
                parameters: &self.parameters,
                gradient: &mut self.gradient,
            };
            let parts = self.samples as f32 / self.batch.samples as f32;
            let scale = 1.0 / (score.count as f32 * parts);
            let (model, batch) = (&mut self.model, &self.batch);
            self.compute.run(|| model.backward(pass, batch, scale));
            total.add(score);
        }
        let loss = total.mean_loss() as f32;
        self.pending = Some(Pending { at, loss });
        Ok(loss)
    }

    fn learning_rate(&self, at: StepId) -> f32 {
        learning_rate(&self.config.optimizer, at.position, self.config.steps)
    }
}

/// Refuses a batch that would read outside the model's tables.
fn check(batch: &Batch, shape: SampleShape) -> Result<(), TrainError> {
    let (per_sample, targets, classes) = match shape {
        SampleShape::Image { height, width, classes } => (height * width, 1, classes),
        SampleShape::Text { context, vocabulary } => (context, context, vocabulary),
    };
    let below = |values: &[u32], limit: usize| values.iter().all(|&value| (value as usize) < limit);
    let input = match (&batch.input, shape) {
        (Input::Images(images), SampleShape::Image { .. }) => {
            images.len() == batch.samples * per_sample
        }
        (Input::Tokens(tokens), SampleShape::Text { .. }) => {
            tokens.len() == batch.samples * per_sample && below(tokens, classes)
        }
        (Input::Images(_), SampleShape::Text { .. })
        | (Input::Tokens(_), SampleShape::Image { .. }) => false,
    };
    let targets = batch.targets.len() == batch.samples * targets && below(&batch.targets, classes);
    if input && targets && batch.samples > 0 {
        return Ok(());
    }
    Err(TrainError::Other(format!(
        "the data set gave a batch that is not {} samples of {shape}",
        batch.samples
    )))
}

impl Trainer for NativeTrainer {
    fn layout(&self) -> &ParameterLayout {
        self.model.layout()
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.sum_gradient(at)?;
        self.update(at)
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.parameters[range]);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        assert_eq!(range.len(), delta.len(), "displacement length");
        reduce::add_scaled(&mut self.parameters[range], delta, weight);
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let mut total = Score::default();
        let mut offset = 0;
        let samples = self.micro_samples();
        while self.source.evaluation(offset, samples, &mut self.batch) {
            total.add(self.forward()?);
            offset += self.batch.samples;
        }
        if total.count == 0 {
            return Err(TrainError::Other(
                "evaluate: the data set has no held-out samples".to_owned(),
            ));
        }
        Ok(Evaluation { loss: total.mean_loss(), accuracy: total.accuracy(), count: total.count })
    }

    fn save(&self) -> TrainerState {
        TrainerState { tensors: self.optimizer.save() }
    }

    fn restore(&mut self, state: &TrainerState) -> Result<(), TrainError> {
        self.optimizer.restore(&state.tensors)
    }

    fn split(&mut self) -> Option<&mut dyn GradientStep> {
        Some(self)
    }

    fn set_stream(&mut self, stream: u64) {
        self.source.set_stream(stream);
    }

    fn set_batch(&mut self, samples: usize) -> bool {
        self.samples = samples.clamp(1, self.config.batch);
        true
    }

    fn data_share(&self) -> Option<DataShare> {
        self.source.share()
    }
}

impl GradientStep for NativeTrainer {
    fn gradient(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        let loss = self.sum_gradient(at)?;
        Ok(StepReport {
            loss,
            samples: self.samples as u64,
            learning_rate: self.learning_rate(at),
            gradient_norm: reduce::norm(&self.gradient) as f32,
        })
    }

    fn gradient_mut(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn update(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        let step = at.index;
        let pending = self.pending.take().filter(|pending| pending.at == at);
        let Some(Pending { loss, .. }) = pending else {
            return Err(TrainError::Other(format!(
                "update of step {step} without its gradient: call gradient({step}) first"
            )));
        };
        let norm = reduce::norm(&self.gradient);
        if !norm.is_finite() {
            return Err(TrainError::NotFinite { step, what: "gradient" });
        }
        let rate = self.learning_rate(at);
        let scale = clip_scale(norm, self.config.optimizer.clip_norm);
        self.optimizer.update(&mut self.parameters, &self.gradient, rate, scale);
        Ok(StepReport {
            loss,
            samples: self.samples as u64,
            learning_rate: rate,
            gradient_norm: norm as f32,
        })
    }
}
