//! The seam between a local step and the compute that does it, and the embedded engine behind it.

use std::fmt;
use std::ops::Range;

use dnode_protocol::ParameterLayout;

use crate::batch::{Batch, SampleShape};
use crate::config::ConfigError;
use crate::device::{DeviceError, Resident};
use crate::hugging_face::load;
use crate::interrupt::Interrupt;
use crate::kernel::dropout::{Draws, Dropout};
use crate::kernel::loss::{Objective, Score};
use crate::kernel::{Blend, Compute, reduce};
use crate::local::LocalConfig;
use crate::model::{Backward, Forward, Model, build, initial_random};
use crate::optimizer::Optimizer;
use crate::seam::{TrainError, digest};
use crate::trainer_state::StateTensor;

/// Parameters on some device, their gradient, and the rule that moves them: what a
/// [`LocalTrainer`](crate::LocalTrainer) computes with.
///
/// `P` is `layout().parameters()`. Ranges are within `0..P`, slices have the range's length, and
/// batches are of the shape that the engine was built for. Calls come from one thread.
/// A gradient is made by [`Engine::clear`], one [`Engine::accumulate`] per micro-batch, and
/// [`Engine::finish`].
pub trait Engine: Send {
    /// Names, shapes and offsets of the parameters; must not change.
    fn layout(&self) -> &ParameterLayout;

    /// As [`Trainer::base_digest`](crate::Trainer::base_digest).
    fn base_digest(&self) -> Option<&str> {
        None
    }

    /// Sets the gradient and its score to zero. What is drawn at random until the next call is a function of
    /// `seed`, which is that of the step, so that a gradient that is computed again is the same.
    ///
    /// # Errors
    /// [`TrainError::Other`] is the device's own failure, this time or since the last gradient.
    fn clear(&mut self, seed: u64) -> Result<(), TrainError>;

    /// Adds `scale · ∂(sum of the rows' losses)` to the gradient and the losses to its score.
    ///
    /// The gradient is undefined once a loss was not finite.
    ///
    /// # Errors
    /// [`TrainError::Other`] is the device's own failure.
    fn accumulate(&mut self, batch: &Batch, scale: f32) -> Result<(), TrainError>;

    /// Whether [`Engine::accumulate_last`] can be called.
    fn hands_over(&self) -> bool {
        false
    }

    /// As [`Engine::accumulate`] of the last micro-batch, which ends the gradient; returns its score.
    /// `hand` gets the gradient in parts, from its end on, each as soon as it is final: its first
    /// element, and its values. Nothing is handed over once a loss was not finite.
    ///
    /// # Errors
    /// [`TrainError::Other`] is the device's own failure, or that this engine hands over nothing.
    fn accumulate_last<'a>(
        &'a mut self,
        batch: &Batch,
        scale: f32,
        hand: &mut (dyn FnMut(usize, &'a mut [f32]) + Send),
    ) -> Result<Score, TrainError> {
        let _ = (batch, scale, hand);
        Err(TrainError::Other("this engine hands over no part of a gradient".to_owned()))
    }

    /// Ends the gradient and returns its score, in which `correct` may be left at 0; `None` when it
    /// has to be computed once more, from [`Engine::clear`] on.
    ///
    /// # Errors
    /// [`TrainError::Other`] is the device's own failure.
    fn finish(&mut self) -> Result<Option<Score>, TrainError>;

    /// Euclidean norm of the gradient.
    ///
    /// # Errors
    /// [`TrainError::Other`] is the device's own failure.
    fn gradient_norm(&mut self) -> Result<f64, TrainError>;

    /// The gradient, `[P]`, to be averaged in place before the update.
    fn gradient_mut(&mut self) -> &mut [f32];

    /// Moves the parameters against `gradient_scale · gradient`.
    ///
    /// # Errors
    /// [`TrainError::Other`] is the device's own failure.
    fn update(&mut self, learning_rate: f32, gradient_scale: f32) -> Result<(), TrainError>;

    /// The score of the current parameters on `batch`.
    ///
    /// # Errors
    /// [`TrainError::Other`] is the device's own failure.
    fn evaluate(&mut self, batch: &Batch) -> Result<Score, TrainError>;

    /// As [`Trainer::read`](crate::Trainer::read); NaN where the device fails.
    fn read(&self, range: Range<usize>, out: &mut [f32]);

    /// As [`Trainer::displace`](crate::Trainer::displace); a failure of the device is told by the
    /// next [`Engine::clear`].
    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32);

    /// As [`Trainer::set_parameters`](crate::Trainer::set_parameters).
    fn set_parameters(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        let _ = (range, values);
        false
    }

    /// As [`Trainer::share_moments`](crate::Trainer::share_moments).
    fn share_moments(&mut self) -> bool {
        false
    }

    /// As [`Trainer::read_moments`](crate::Trainer::read_moments); NaN where the device fails.
    fn read_moments(&self, range: Range<usize>, out: &mut [f32]) {
        let _ = (range, out);
    }

    /// As [`Trainer::displace_moments`](crate::Trainer::displace_moments); a failure of the device is
    /// told by the next [`Engine::clear`].
    fn displace_moments(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        let _ = (range, delta, weight);
    }

    /// As [`Trainer::resident`](crate::Trainer::resident).
    ///
    /// # Errors
    /// [`DeviceError`] as there.
    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        Ok(None)
    }

    /// Takes the flag by which another thread asks a gradient or a score to break off: what is computed
    /// then fails with [`TrainError::Interrupted`]. Returns whether this engine looks at it at least a few
    /// times a second. An update is never broken off.
    fn set_interrupt(&mut self, interrupt: Interrupt) -> bool {
        drop(interrupt);
        false
    }

    /// The optimizer's moments and count; engines of one configuration understand each other's.
    /// Empty where the device fails.
    fn save(&self) -> Vec<StateTensor<'_>>;

    /// Takes what [`Engine::save`] returned; unchanged on error.
    ///
    /// # Errors
    /// [`TrainError::State`] when it does not fit.
    fn restore(&mut self, tensors: Vec<StateTensor<'_>>) -> Result<(), TrainError>;
}

/// The embedded engine: the reference models' own kernels on flat vectors in host memory.
pub(crate) struct NativeEngine {
    model: Box<dyn Model>,
    optimizer: Optimizer,
    compute: Compute,
    /// The frozen ones, then `[P]`.
    parameters: Vec<f32>,
    /// How many are frozen.
    frozen: usize,
    /// Digest of the frozen ones, if there are any.
    base: Option<String>,
    /// `[P]`; of no value while it is `unwritten`.
    gradient: Vec<f32>,
    /// What a step minimises.
    objective: Objective,
    draws: Draws,
    /// Whether the next backward pass is the first since the gradient was cleared.
    unwritten: bool,
    score: Score,
}

impl fmt::Debug for NativeEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NativeEngine").field("model", &self.model).finish_non_exhaustive()
    }
}

/// The layout of the model of `config` for samples of `shape`, and its initial parameters `[P]`:
/// equal seeds, or equal files of `model.init`, give equal bits on every machine and every engine.
///
/// # Errors
/// [`ConfigError`] names the value that is out of range, or what does not fit.
pub fn initial_parameters(
    config: &LocalConfig,
    shape: SampleShape,
) -> Result<(ParameterLayout, Vec<f32>), ConfigError> {
    let model = build(&config.model, shape)?;
    let mut parameters = initial(model.as_ref(), config)?;
    parameters.drain(..model.frozen_count());
    Ok((model.layout().clone(), parameters))
}

/// The numbers that the model begins with, the frozen ones first: those of a folder, or drawn.
fn initial(model: &dyn Model, config: &LocalConfig) -> Result<Vec<f32>, ConfigError> {
    let mut parameters = vec![0.0; model.frozen_count() + model.layout().parameters()];
    let draw = |values: &mut [f32]| model.initialize(&mut initial_random(config.seed), values);
    match (&config.model.init, model.frozen()) {
        (None, None) => draw(&mut parameters),
        (None, Some(_)) => return Err(ConfigError::NoBase(config.model.lora_rank)),
        (Some(folder), None) => load(folder, (&config.model, model.layout()), &mut parameters)?,
        (Some(folder), Some(frozen)) => {
            let (weights, adapters) = parameters.split_at_mut(frozen.parameters());
            load(folder, (&config.model, frozen), weights)?;
            draw(adapters);
        }
    }
    Ok(parameters)
}

impl NativeEngine {
    /// The model of `config` for samples of `shape`, with its initial parameters.
    pub(crate) fn new(config: &LocalConfig, shape: SampleShape) -> Result<Self, ConfigError> {
        let mut model = build(&config.model, shape)?;
        if config.recompute {
            model.recompute();
        }
        let compute = Compute::new(config.threads)?;
        let parameters = initial(model.as_ref(), config)?;
        let frozen = model.frozen_count();
        Ok(Self {
            optimizer: Optimizer::new(config.optimizer.clone(), model.layout()),
            gradient: vec![0.0; parameters.len() - frozen],
            base: (frozen > 0).then(|| digest(&parameters[..frozen])),
            frozen,
            objective: config.optimizer.objective(),
            draws: Draws::new(config.model.dropout, 0),
            unwritten: false,
            score: Score::default(),
            model,
            compute,
            parameters,
        })
    }
}

impl NativeEngine {
    /// Where the trained parameters of `range` are.
    const fn at(&self, range: &Range<usize>) -> Range<usize> {
        self.frozen + range.start..self.frozen + range.end
    }

    /// The losses of a batch; a backward pass, if one follows, is of `objective`.
    fn forward(
        &mut self,
        batch: &Batch,
        (objective, dropout): (Option<Objective>, Option<Dropout>),
    ) -> Result<Score, TrainError> {
        let plain = Forward::new(&self.compute, &self.parameters);
        let pass = Forward { objective, dropout, ..plain };
        let model = &mut self.model;
        let score = self.compute.run(|| model.forward(pass, batch));
        self.compute.check().map(|()| score)
    }

    /// What the next backward pass does to the gradient, which is zero for it where it adds.
    fn next_blend(&mut self) -> Blend {
        if !std::mem::take(&mut self.unwritten) {
            return Blend::Add;
        }
        if self.model.replaces_gradient() {
            return Blend::Replace;
        }
        self.gradient.fill(0.0);
        Blend::Add
    }
}

impl Engine for NativeEngine {
    fn layout(&self) -> &ParameterLayout {
        self.model.layout()
    }

    fn base_digest(&self) -> Option<&str> {
        self.base.as_deref()
    }

    fn clear(&mut self, seed: u64) -> Result<(), TrainError> {
        self.draws.begin(seed);
        self.unwritten = true;
        self.score = Score::default();
        Ok(())
    }

    fn accumulate(&mut self, batch: &Batch, scale: f32) -> Result<(), TrainError> {
        let dropout = self.draws.next(batch.samples);
        let score = self.forward(batch, (Some(self.objective), dropout))?;
        self.score.add(score);
        if score.loss.is_finite() {
            let blend = self.next_blend();
            let pass = Backward {
                compute: &self.compute,
                parameters: &self.parameters,
                gradient: &mut self.gradient,
                frozen: self.frozen,
                blend,
                dropout,
                hand: None,
            };
            let model = &mut self.model;
            self.compute.run(|| model.backward(pass, batch, scale));
        }
        self.compute.check()
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn accumulate_last<'a>(
        &'a mut self,
        batch: &Batch,
        scale: f32,
        hand: &mut (dyn FnMut(usize, &'a mut [f32]) + Send),
    ) -> Result<Score, TrainError> {
        let dropout = self.draws.next(batch.samples);
        let score = self.forward(batch, (Some(self.objective), dropout))?;
        self.score.add(score);
        let blend = self.next_blend();
        let Self { model, compute, parameters, gradient, frozen, score: total, .. } = self;
        if total.loss.is_finite() {
            let (compute, frozen) = (&*compute, *frozen);
            let hand = Some(hand);
            let pass = Backward { compute, parameters, gradient, frozen, blend, dropout, hand };
            compute.run(|| model.backward(pass, batch, scale));
        }
        compute.check().map(|()| *total)
    }

    fn finish(&mut self) -> Result<Option<Score>, TrainError> {
        Ok(Some(self.score))
    }

    fn gradient_norm(&mut self) -> Result<f64, TrainError> {
        Ok(reduce::norm(&self.gradient))
    }

    fn gradient_mut(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn update(&mut self, learning_rate: f32, gradient_scale: f32) -> Result<(), TrainError> {
        let Self { optimizer, compute, parameters, gradient, frozen, .. } = self;
        let parameters = &mut parameters[*frozen..];
        optimizer.update(compute, parameters, gradient, (learning_rate, gradient_scale));
        Ok(())
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Score, TrainError> {
        self.forward(batch, (None, None))
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.parameters[self.at(&range)]);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        let range = self.at(&range);
        reduce::add_scaled(&mut self.parameters[range], delta, weight);
    }

    fn set_parameters(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        let range = self.at(&range);
        self.parameters[range].copy_from_slice(values);
        true
    }

    fn share_moments(&mut self) -> bool {
        self.optimizer.share_moments();
        true
    }

    fn read_moments(&self, range: Range<usize>, out: &mut [f32]) {
        self.optimizer.read_first(range, out);
    }

    fn displace_moments(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.optimizer.displace_first(&range, delta, weight);
    }

    fn set_interrupt(&mut self, interrupt: Interrupt) -> bool {
        self.compute.set_interrupt(interrupt);
        true
    }

    fn save(&self) -> Vec<StateTensor<'_>> {
        self.optimizer.save()
    }

    fn restore(&mut self, tensors: Vec<StateTensor<'_>>) -> Result<(), TrainError> {
        self.optimizer.restore(tensors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Input;
    use crate::config::{ModelConfig, OptimizerConfig, OptimizerKind};

    #[test]
    fn a_step_minimises_what_the_optimizer_says_and_scores_stay_those_of_the_cross_entropy() {
        let batch =
            Batch { samples: 1, input: Input::Images(vec![0.5, -1.0, 2.0, 0.1]), targets: vec![1] };
        let computed = |label_smoothing: f32| {
            let plain = OptimizerConfig::default_of(OptimizerKind::Sgd);
            let optimizer = OptimizerConfig { label_smoothing, ..plain };
            let model = ModelConfig { hidden: vec![3], ..ModelConfig::default() };
            let config = LocalConfig {
                model,
                optimizer,
                seed: 1,
                batch: 1,
                steps: 1,
                threads: 1,
                recompute: false,
            };
            let shape = SampleShape::Image { height: 2, width: 2, classes: 4 };
            let mut engine = NativeEngine::new(&config, shape).unwrap();
            engine.clear(0).unwrap();
            engine.accumulate(&batch, 1.0).unwrap();
            // The biases of the logits.
            let last = engine.gradient.len() - 4;
            let score = engine.finish().unwrap().unwrap();
            assert_eq!(engine.evaluate(&batch).unwrap(), score);
            (score, engine.gradient[last..].to_vec())
        };
        let ((score, plain), (same, smooth)) = (computed(0.0), computed(0.2));
        assert_eq!(score, same);
        for (class, (plain, smooth)) in plain.iter().zip(smooth).enumerate() {
            let want = 0.2 * (if class == 1 { 1.0 } else { 0.0 } - 0.25);
            assert!((smooth - plain - want).abs() < 1e-6, "{class}: {plain} {smooth}");
        }
    }
}
