//! The trainer of this repository: an engine, a source of batches and the loop of a local step.

use std::fmt;
use std::ops::Range;

use dnode_protocol::ParameterLayout;

use crate::batch::{Batch, BatchSource, SampleShape};
use crate::config::{ConfigError, ModelConfig, OptimizerConfig, THREADS_MAX, ensure};
use crate::description::Description;
use crate::device::{DeviceError, Resident};
use crate::engine::{Engine, NativeEngine};
use crate::interrupt::Interrupt;
use crate::kernel::loss::Score;
use crate::learning_rate::learning_rate;
use crate::lora;
use crate::memory::Memory;
use crate::model;
use crate::optimizer::clip_scale;
use crate::seam::{
    DataIdentity, DataShare, Evaluation, GradientStep, StepId, StepReport, TrainError, Trainer,
};
use crate::trainer_state::TrainerState;

/// How a [`LocalTrainer`] and its [`Engine`] are built.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalConfig {
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
    /// Gradient checkpointing: the backward pass computes the activations of each block of a transformer
    /// (on libtorch, of each stage of any model) once more, so that only what goes from one to the next is
    /// kept (Chen et al. 2016, arXiv:1604.06174, §4).
    pub recompute: bool,
}

/// Targets of a batch of an evaluation, at least: with fewer, reading the weights takes longer than
/// computing with them (57 M parameters, batch 2: 19 s for 359 digits, of which 256 at once need one pass).
const EVALUATED_TARGETS_MIN: usize = 256;

/// The gradient that waits for its update.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pending {
    at: StepId,
    loss: f32,
}

/// Trains one replica on an [`Engine`], behind the [`Trainer`] seam.
pub struct LocalTrainer {
    engine: Box<dyn Engine>,
    config: LocalConfig,
    source: Box<dyn BatchSource>,
    batch: Batch,
    /// Samples of a step, at most `config.batch`.
    samples: usize,
    /// What it takes.
    memory: Memory,
    pending: Option<Pending>,
    /// As [`Trainer::set_stream`] told it.
    stream: u64,
    /// Looked at between micro-batches, for engines that do not.
    interrupt: Interrupt,
}

impl fmt::Debug for LocalTrainer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LocalTrainer")
            .field("config", &self.config)
            .field("parameters", &self.engine.layout().parameters())
            .finish_non_exhaustive()
    }
}

impl LocalConfig {
    /// Samples of one whole micro-batch.
    const fn micro_samples(&self) -> usize {
        self.batch / self.optimizer.accumulate
    }

    /// Most samples of one pass: those of a micro-batch, or of a batch of an evaluation.
    pub(crate) fn samples_at_once(&self, shape: SampleShape) -> usize {
        let targets = match shape {
            SampleShape::Image { .. } => 1,
            SampleShape::Text { context, .. } => context,
        };
        self.micro_samples().max(EVALUATED_TARGETS_MIN / targets)
    }

    /// Checks what every engine needs.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names the key, its value and the legal range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.optimizer.validate()?;
        let accumulate = self.optimizer.accumulate;
        ensure(
            self.batch > 0 && self.batch.is_multiple_of(accumulate),
            "run.batch",
            self.batch,
            format!("a multiple of optimizer.accumulate = {accumulate}, at least 1"),
        )?;
        ensure(
            (1..=THREADS_MAX).contains(&self.threads),
            "node.threads",
            self.threads,
            format!("1..={THREADS_MAX}"),
        )
    }
}

impl LocalTrainer {
    /// Builds the model for the samples of `source` on the embedded engine and draws its initial
    /// parameters.
    ///
    /// # Errors
    /// [`ConfigError`] names the value that is out of range, or what does not fit.
    pub fn new(config: LocalConfig, source: Box<dyn BatchSource>) -> Result<Self, ConfigError> {
        let memory = Memory::of_training(&config, source.shape())?;
        let engine = NativeEngine::new(&config, source.shape())?;
        Ok(Self::with(Box::new(engine), config, source, memory))
    }

    /// Trains on `engine`, which was built from the same `config` for the samples of `source`.
    ///
    /// # Errors
    /// [`ConfigError`] names the value that is out of range, or what does not fit.
    pub fn on(
        engine: Box<dyn Engine>,
        config: LocalConfig,
        source: Box<dyn BatchSource>,
    ) -> Result<Self, ConfigError> {
        let memory = Memory::of_libtorch(&config, source.shape())?;
        Ok(Self::with(engine, config, source, memory))
    }

    /// `memory` was told by the configuration, which is sound therefore.
    fn with(
        engine: Box<dyn Engine>,
        config: LocalConfig,
        source: Box<dyn BatchSource>,
        memory: Memory,
    ) -> Self {
        let (batch, samples) = (Batch::new(source.shape()), config.batch);
        let interrupt = Interrupt::default();
        let (pending, stream) = (None, 0);
        Self { engine, config, source, batch, samples, memory, pending, stream, interrupt }
    }

    /// Samples of one batch of an evaluation.
    fn evaluated_samples(&self) -> usize {
        self.config.samples_at_once(self.source.shape())
    }

    /// Computes the mean gradient of the step's first samples and keeps it; returns the mean loss.
    ///
    /// The last micro-batch that has a part in it may be cut short, and weighs less then.
    fn sum_gradient(&mut self, at: StepId) -> Result<f32, TrainError> {
        let step = at.index;
        self.pending = None;
        let score = loop {
            self.accumulate(step)?;
            // An engine that scales its losses may find that it scaled them too much.
            if let Some(score) = self.engine.finish()? {
                break score;
            }
        };
        self.interrupt.check()?;
        if !score.loss.is_finite() {
            return Err(TrainError::NotFinite { step, what: "loss" });
        }
        let loss = score.mean_loss() as f32;
        self.pending = Some(Pending { at, loss });
        Ok(loss)
    }

    fn accumulate(&mut self, step: u64) -> Result<(), TrainError> {
        let last = self.accumulate_but_the_last(step)?;
        self.engine.accumulate(&self.batch, last)
    }

    /// Leaves the last micro-batch in the batch, and returns what its losses count.
    fn accumulate_but_the_last(&mut self, step: u64) -> Result<f32, TrainError> {
        self.engine.clear(self.drawn_by(step))?;
        let whole = self.config.micro_samples();
        let mut last = 0.0;
        for (micro, first) in (0..).zip((0..self.samples).step_by(whole)) {
            self.interrupt.check()?;
            if micro > 0 {
                self.engine.accumulate(&self.batch, last)?;
            }
            self.source.fill(step, micro, whole, &mut self.batch);
            self.batch.truncate(self.samples - first);
            self.batch.check(self.source.shape())?;
            let parts = self.samples as f32 / self.batch.samples as f32;
            last = 1.0 / (self.batch.targets.len() as f32 * parts);
        }
        Ok(last)
    }

    /// The seed of what step `step` draws at random, which no other step of any peer of the run has.
    fn drawn_by(&self, step: u64) -> u64 {
        let parts = [self.config.seed, self.stream, step].map(u64::to_le_bytes);
        let mut seed = [0; 8];
        let mut hasher = blake3::Hasher::new_derive_key("dnode dropout v1");
        hasher.update(&parts.concat()).finalize_xof().fill(&mut seed);
        u64::from_le_bytes(seed)
    }

    /// The score of the current parameters on these of the held-out samples.
    fn score(&mut self, samples: Range<usize>) -> Result<Score, TrainError> {
        let mut total = Score::default();
        let mut offset = samples.start;
        while offset < samples.end {
            self.interrupt.check()?;
            let most = self.evaluated_samples().min(samples.end - offset);
            if !self.source.evaluation(offset, most, &mut self.batch) {
                break;
            }
            self.batch.check(self.source.shape())?;
            total.add(self.engine.evaluate(&self.batch)?);
            offset += self.batch.samples;
        }
        Ok(total)
    }

    fn learning_rate(&self, at: StepId) -> f32 {
        learning_rate(&self.config.optimizer, at.position, self.config.steps)
    }
}

impl Trainer for LocalTrainer {
    fn layout(&self) -> &ParameterLayout {
        self.engine.layout()
    }

    fn base_digest(&self) -> Option<&str> {
        self.engine.base_digest()
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.sum_gradient(at)?;
        self.update(at)
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        self.engine.read(range, out);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        assert_eq!(range.len(), delta.len(), "displacement length");
        self.engine.displace(range, delta, weight);
    }

    fn set_parameters(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        self.engine.set_parameters(range, values)
    }

    fn share_moments(&mut self) -> bool {
        self.engine.share_moments()
    }

    fn read_moments(&self, range: Range<usize>, out: &mut [f32]) {
        self.engine.read_moments(range, out);
    }

    fn displace_moments(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        assert_eq!(range.len(), delta.len(), "displacement length");
        self.engine.displace_moments(range, delta, weight);
    }

    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        self.engine.resident()
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        let total = self.score(0..self.source.evaluation_len())?;
        if total.count == 0 {
            return Err(TrainError::Other(
                "evaluate: the data set has no held-out samples".to_owned(),
            ));
        }
        Ok(total.into())
    }

    fn evaluate_part(&mut self, index: usize, parts: usize) -> Result<Option<Score>, TrainError> {
        let len = self.source.evaluation_len();
        let begin = |index: usize| (len as u128 * index as u128 / parts as u128) as usize;
        self.score(begin(index)..begin(index + 1)).map(Some)
    }

    fn save(&self) -> TrainerState<'_> {
        TrainerState { tensors: self.engine.save() }
    }

    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        self.engine.restore(state.tensors)
    }

    fn split(&mut self) -> Option<&mut dyn GradientStep> {
        Some(self)
    }

    fn set_stream(&mut self, stream: u64) {
        self.stream = stream;
        self.source.set_stream(stream);
    }

    fn set_batch(&mut self, samples: usize) -> bool {
        self.samples = samples.clamp(1, self.config.batch);
        true
    }

    fn kind(&self) -> Option<&'static str> {
        None
    }

    fn chance(&self) -> Option<f64> {
        let (SampleShape::Image { classes, .. } | SampleShape::Text { vocabulary: classes, .. }) =
            self.source.shape();
        (classes > 1).then(|| (classes as f64).ln())
    }

    fn set_interrupt(&mut self, interrupt: Interrupt) -> bool {
        self.interrupt = interrupt.clone();
        self.engine.set_interrupt(interrupt)
    }

    fn describe(&self) -> Result<Description, TrainError> {
        let mut description = Description::default();
        let mut model = model::describe(&self.config.model, self.source.shape());
        if let Some(base) = self.engine.base_digest() {
            model["lora"] = lora::describe(&self.config.model, base);
        }
        description.set("model", model.to_string())?;
        self.source.describe(&mut description)?;
        Ok(description)
    }

    fn set_shard(&mut self, shard: u32) -> bool {
        self.source.set_shard(shard)
    }

    fn set_steps(&mut self, steps: u64) {
        self.config.steps = steps;
    }

    fn data_identity(&self) -> DataIdentity {
        self.source.identity()
    }

    fn memory(&self) -> Option<Memory> {
        Some(self.memory)
    }

    fn data_share(&self) -> Option<DataShare> {
        self.source.share()
    }
}

impl GradientStep for LocalTrainer {
    fn gradient(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        let loss = self.sum_gradient(at)?;
        let norm = self.engine.gradient_norm()?;
        if !norm.is_finite() {
            // Others would get it by their mean.
            self.pending = None;
            return Err(TrainError::NotFinite { step: at.index, what: "gradient" });
        }
        Ok(StepReport {
            loss,
            samples: self.samples as u64,
            learning_rate: self.learning_rate(at),
            gradient_norm: norm as f32,
        })
    }

    fn hands_over(&self) -> bool {
        self.engine.hands_over()
    }

    fn gradient_in_parts<'a>(
        &'a mut self,
        at: StepId,
        hand: &mut (dyn FnMut(usize, &'a mut [f32]) + Send),
    ) -> Result<StepReport, TrainError> {
        let step = at.index;
        self.pending = None;
        let learning_rate = self.learning_rate(at);
        let last = self.accumulate_but_the_last(step)?;
        let Self { engine, batch, pending, samples, .. } = self;
        let score = engine.accumulate_last(batch, last, hand)?;
        if !score.loss.is_finite() {
            return Err(TrainError::NotFinite { step, what: "loss" });
        }
        let loss = score.mean_loss() as f32;
        *pending = Some(Pending { at, loss });
        Ok(StepReport { loss, samples: *samples as u64, learning_rate, gradient_norm: 0.0 })
    }

    fn gradient_mut(&mut self) -> &mut [f32] {
        self.engine.gradient_mut()
    }

    fn update(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        let step = at.index;
        let pending = self.pending.take().filter(|pending| pending.at == at);
        let Some(Pending { loss, .. }) = pending else {
            return Err(TrainError::Other(format!(
                "update of step {step} without its gradient: call gradient({step}) first"
            )));
        };
        let norm = self.engine.gradient_norm()?;
        if !norm.is_finite() {
            return Err(TrainError::NotFinite { step, what: "gradient" });
        }
        let rate = self.learning_rate(at);
        let scale = clip_scale(norm, self.config.optimizer.clip_norm);
        self.engine.update(rate, scale)?;
        Ok(StepReport {
            loss,
            samples: self.samples as u64,
            learning_rate: rate,
            gradient_norm: norm as f32,
        })
    }
}
