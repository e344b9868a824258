//! Hyper-parameters of an optimizer.

use serde::{Deserialize, Serialize};

use super::{ConfigError, ensure};
use crate::kernel::loss::Objective;

/// Most micro-batches per step; a limit against typing errors.
const ACCUMULATE_MAX: usize = 65_536;

/// Which update rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum.
    Sgd,
    /// Adam with decoupled weight decay.
    Adamw,
    /// Muon for the matrices of hidden layers, Adam for the rest.
    Muon,
}

/// How the learning rate changes after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Half a cosine, from the full rate to `final_fraction` of it at the last step.
    Cosine,
    /// A line, from the full rate to `final_fraction` of it at the last step.
    Linear,
    /// Warm-up, stable, decay: the full rate, and over the last `decay_fraction` of the run down a
    /// line to `final_fraction` of it.
    Wsd,
    /// The full rate.
    Constant,
}

/// Which tensors weight decay moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decayed {
    /// Those of two or more dimensions: all but biases and gains.
    Matrices,
    /// The same without embeddings, of tokens and of positions; a tied head is one of them.
    Layers,
    /// Every tensor.
    All,
}

/// How an optimizer keeps its moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MomentFormat {
    /// Four bytes for each number.
    #[default]
    F32,
    /// A little more than one byte: floats of 8 bits, in blocks of 256 with a scale each, rounded up or down
    /// at random. A number is off by less than a part in 32 of itself, or in 256 (momentum, Adam's first
    /// moment) or 4096 (its second one) of the block's largest number; on average it is off by nothing.
    F8,
}

/// The optimizer with every value decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// Which update rule.
    pub kind: OptimizerKind,
    /// Peak learning rate, unitless, above 0.
    pub learning_rate: f32,
    /// Momentum (sgd, muon), in `[0, 1)`.
    pub momentum: f32,
    /// Nesterov's form of the momentum (sgd).
    pub nesterov: bool,
    /// Decay of the first moment (adamw, muon), in `[0, 1)`.
    pub beta1: f32,
    /// Decay of the second moment (adamw, muon), in `[0, 1)`.
    pub beta2: f32,
    /// Added to the root of the second moment (adamw, muon), above 0.
    pub epsilon: f32,
    /// Decoupled weight decay per unit of learning rate, 0 or more.
    pub weight_decay: f32,
    /// What it moves.
    pub decayed: Decayed,
    /// Steps of linear warm-up; 0 means none.
    pub warmup_steps: u64,
    /// Shape after the warm-up.
    pub schedule: Schedule,
    /// Learning rate at the last step as a fraction of the peak (cosine, linear, wsd), in `[0, 1]`.
    pub final_fraction: f32,
    /// Share of the run over which the learning rate goes down at its end (wsd), in `[0, 1]`.
    pub decay_fraction: f32,
    /// Longest gradient, Euclidean norm; 0 means no clipping.
    pub clip_norm: f32,
    /// Share of a target's probability that a step spreads over all classes, in `[0, 1)`.
    pub label_smoothing: f32,
    /// Weight of the square of the logarithm of the softmax's sum in what a step minimises, in `[0, 1]`.
    pub z_loss: f32,
    /// Micro-batches per step, `1..=65536`, a divisor of the batch.
    pub accumulate: usize,
    /// How moments are kept.
    #[serde(default)]
    pub moments: MomentFormat,
}

impl OptimizerConfig {
    /// The defaults of a kind; those of adamw are nanoGPT's for characters, those of muon the same with
    /// Jordan's momentum.
    #[must_use]
    pub const fn default_of(kind: OptimizerKind) -> Self {
        let sgd = Self {
            kind,
            learning_rate: 0.02,
            momentum: 0.9,
            nesterov: false,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 1e-4,
            decayed: Decayed::Matrices,
            warmup_steps: 20,
            schedule: Schedule::Cosine,
            final_fraction: 0.1,
            decay_fraction: 0.2,
            clip_norm: 5.0,
            label_smoothing: 0.0,
            z_loss: 0.0,
            accumulate: 1,
            moments: MomentFormat::F32,
        };
        let adamw = Self {
            learning_rate: 4e-3,
            weight_decay: 0.1,
            warmup_steps: 100,
            clip_norm: 1.0,
            ..sgd
        };
        match kind {
            OptimizerKind::Sgd => sgd,
            OptimizerKind::Adamw => adamw,
            OptimizerKind::Muon => Self { learning_rate: 0.02, ..adamw },
        }
    }

    /// What a step minimises for each target.
    #[must_use]
    pub const fn objective(&self) -> Objective {
        Objective { label_smoothing: self.label_smoothing, z_loss: self.z_loss }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`ConfigError::Range`] names the key, its value and the legal range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let finite = |key, value: f32, legal: bool, range: &str| {
            ensure(value.is_finite() && legal, key, value, range)
        };
        let positive = |key, value: f32| finite(key, value, value > 0.0, "a number above 0");
        let natural = |key, value: f32| finite(key, value, value >= 0.0, "0 or more");
        let decay =
            |key, value: f32| finite(key, value, (0.0..1.0).contains(&value), "0 <= value < 1");
        positive("optimizer.learning_rate", self.learning_rate)?;
        decay("optimizer.momentum", self.momentum)?;
        decay("optimizer.beta1", self.beta1)?;
        decay("optimizer.beta2", self.beta2)?;
        positive("optimizer.epsilon", self.epsilon)?;
        natural("optimizer.weight_decay", self.weight_decay)?;
        finite(
            "optimizer.final_fraction",
            self.final_fraction,
            (0.0..=1.0).contains(&self.final_fraction),
            "0 <= value <= 1",
        )?;
        finite(
            "optimizer.decay_fraction",
            self.decay_fraction,
            (0.0..=1.0).contains(&self.decay_fraction),
            "0 <= value <= 1",
        )?;
        natural("optimizer.clip_norm", self.clip_norm)?;
        finite(
            "optimizer.label_smoothing",
            self.label_smoothing,
            (0.0..1.0).contains(&self.label_smoothing),
            "0 <= value < 1",
        )?;
        finite(
            "optimizer.z_loss",
            self.z_loss,
            (0.0..=1.0).contains(&self.z_loss),
            "0 <= value <= 1",
        )?;
        ensure(
            (1..=ACCUMULATE_MAX).contains(&self.accumulate),
            "optimizer.accumulate",
            self.accumulate,
            format!("1..={ACCUMULATE_MAX}"),
        )
    }
}
