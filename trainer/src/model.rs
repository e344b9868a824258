//! The reference models: forward and hand-derived backward passes over flat parameters.

pub(crate) mod adapter;
mod blocks;
mod cnn;
#[cfg(test)]
mod golden;
mod gpt;
pub(crate) mod initial;
mod linear;
mod llama;
mod mlp;
pub(crate) mod transformer;

use std::fmt::Debug;
use std::ops::Range;

use dnode_protocol::ParameterLayout;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::{Value, json};

use crate::batch::{Batch, SampleShape};
use crate::config::{ConfigError, ModelConfig, ModelKind};
use crate::kernel::dropout::Dropout;
use crate::kernel::loss::{Objective, Score};
use crate::kernel::{Blend, Compute};
use transformer::LanguageModel;

/// What a pass reads: the flat parameters and where to compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forward<'a> {
    pub(crate) compute: &'a Compute,
    /// `[P]`.
    pub(crate) parameters: &'a [f32],
    /// Of a pass over a part of one text: how many tokens stand before it, whose keys and values the
    /// passes over them have left. `None` for whole samples.
    pub(crate) kept: Option<usize>,
    /// What the backward pass is to be the gradient of; `None` where none follows.
    pub(crate) objective: Option<Objective>,
    /// What is dropped of a batch; `None` outside training.
    pub(crate) dropout: Option<Dropout>,
}

impl<'a> Forward<'a> {
    /// A pass over whole samples that drops nothing and leaves nothing for a backward pass.
    pub(crate) const fn new(compute: &'a Compute, parameters: &'a [f32]) -> Self {
        Self { compute, parameters, kept: None, objective: None, dropout: None }
    }

    /// Whether a backward pass follows, which needs what this one computed on its way.
    pub(crate) const fn is_graded(&self) -> bool {
        self.objective.is_some()
    }
}

/// Elements that are handed over at least, but for the last: an all-reduce of fewer takes about as long
/// (guess).
const HAND_ELEMENTS_MIN: usize = 64 << 10;

/// Takes a part of the gradient that nothing is added to any more: its first element, and its values.
pub(crate) type Hand<'a, 'h> = dyn FnMut(usize, &'a mut [f32]) + Send + 'h;

/// What a backward pass reads, and the flat gradient that it adds to.
pub(crate) struct Backward<'a, 'h> {
    pub(crate) compute: &'a Compute,
    /// `[P]`.
    pub(crate) parameters: &'a [f32],
    /// Of the trained parameters, which lie behind the frozen ones; without what was handed over from its
    /// end.
    pub(crate) gradient: &'a mut [f32],
    /// How many parameters are frozen.
    pub(crate) frozen: usize,
    /// What becomes of what it holds: [`Blend::Replace`] only for models that
    /// [replace it](Model::replaces_gradient).
    pub(crate) blend: Blend,
    /// As in the forward pass.
    pub(crate) dropout: Option<Dropout>,
    /// Where parts of it go as soon as they are final, if anywhere.
    pub(crate) hand: Option<&'h mut Hand<'a, 'h>>,
}

impl<'a> Backward<'a, '_> {
    /// The forward pass, once more.
    pub(crate) fn again(&self) -> Forward<'a> {
        let (dropout, objective) = (self.dropout, Some(Objective::default()));
        Forward { dropout, objective, ..Forward::new(self.compute, self.parameters) }
    }

    /// The gradient of the parameters of `range`; `None` where they are frozen.
    pub(crate) fn gradient_of(&mut self, range: &Range<usize>) -> Option<&mut [f32]> {
        let start = range.start.checked_sub(self.frozen)?;
        Some(&mut self.gradient[start..start + range.len()])
    }

    /// As [`Self::gradient_of`]; where they are frozen, `spare` takes it.
    pub(crate) fn gradient_or<'s>(
        &'s mut self,
        range: &Range<usize>,
        spare: &'s mut Vec<f32>,
    ) -> &'s mut [f32] {
        if range.start < self.frozen {
            spare.resize(range.len(), 0.0);
            return spare;
        }
        &mut self.gradient[range.start - self.frozen..range.end - self.frozen]
    }

    /// Nothing is added any more to the gradient of the parameters from `from` on. Adapters are handed over
    /// together, at the end.
    pub(crate) fn is_final_from(&mut self, from: usize) {
        if self.frozen > 0 && from > 0 {
            return;
        }
        let Some(hand) = &mut self.hand else { return };
        let enough = self.gradient.len() - from >= HAND_ELEMENTS_MIN;
        if enough || (from == 0 && !self.gradient.is_empty()) {
            let (rest, part) = std::mem::take(&mut self.gradient).split_at_mut(from);
            self.gradient = rest;
            hand(from, part);
        }
    }
}

/// A model: owns its activations, not its parameters.
pub(crate) trait Model: Send + Debug {
    /// Names, shapes and offsets of the trained parameters; passes have them behind the
    /// [frozen](Self::frozen) ones.
    fn layout(&self) -> &ParameterLayout;

    /// The weights that adapters adapt, and that stay as they are; `None` where all are trained.
    fn frozen(&self) -> Option<&ParameterLayout> {
        None
    }

    /// How many of its numbers stay as they are.
    fn frozen_count(&self) -> usize {
        self.frozen().map_or(0, ParameterLayout::parameters)
    }

    /// Writes the initial trained parameters.
    fn initialize(&self, random: &mut ChaCha8Rng, parameters: &mut [f32]);

    /// Computes the losses of a batch and, where one follows, keeps what the backward pass needs.
    fn forward(&mut self, pass: Forward<'_>, batch: &Batch) -> Score;

    /// Adds `scale · ∂(sum of the objectives of the last forward pass)` to the gradient.
    ///
    /// At most one backward pass per forward pass, with the same parameters and batch.
    /// Says what is final as early as it can, and at the end all of it.
    fn backward(&mut self, pass: Backward<'_, '_>, batch: &Batch, scale: f32);

    /// Computes the activations of all but the last part a second time in the backward pass from now on,
    /// instead of keeping them: gradient checkpointing (Chen et al. 2016, arXiv:1604.06174). Models of few
    /// layers do not.
    fn recompute(&mut self) {}

    /// Numbers, of 4 bytes, that passes over so many samples at a time keep, and the gradients of them.
    fn activations(&self, samples: usize, threads: usize) -> usize;

    /// Whether a backward pass can write every element of the gradient instead of adding to it: then
    /// nobody has to fill it with zeros and read those again.
    fn replaces_gradient(&self) -> bool {
        false
    }
}

/// Builds the model of `config` for samples of `shape`.
pub(crate) fn build(
    config: &ModelConfig,
    shape: SampleShape,
) -> Result<Box<dyn Model>, ConfigError> {
    config.validate()?;
    let mismatch = |needs| ConfigError::Data { model: config.kind, needs, found: shape };
    match (config.kind, shape) {
        (ModelKind::Mlp, SampleShape::Image { height, width, classes }) => {
            Ok(Box::new(mlp::Mlp::new(height * width, &config.hidden, classes)?))
        }
        (ModelKind::Cnn, SampleShape::Image { height, width, classes })
            if height >= cnn::SIDE_MIN && width >= cnn::SIDE_MIN =>
        {
            Ok(Box::new(cnn::Cnn::new(height, width, classes)?))
        }
        (ModelKind::Gpt, SampleShape::Text { context, vocabulary })
            if context == config.context =>
        {
            Ok(Box::new(gpt::Gpt::new(config, config.vocabulary(vocabulary)?)?))
        }
        (ModelKind::Llama, SampleShape::Text { context, vocabulary })
            if context == config.context =>
        {
            Ok(Box::new(llama::Llama::new(config, config.vocabulary(vocabulary)?)?))
        }
        (ModelKind::Mlp, SampleShape::Text { .. }) => Err(mismatch("images")),
        (ModelKind::Cnn, _) => Err(mismatch("images of 4 x 4 pixels or more")),
        (ModelKind::Gpt | ModelKind::Llama, _) => {
            Err(mismatch("text with data context = model.context"))
        }
    }
}

/// The model of `config` as one that writes text from a vocabulary of so many tokens; `None` for kinds
/// that write none.
pub(crate) fn build_language(
    config: &ModelConfig,
    vocabulary: usize,
) -> Result<Option<Box<dyn LanguageModel>>, ConfigError> {
    config.validate()?;
    let vocabulary = config.vocabulary(vocabulary)?;
    Ok(match config.kind {
        ModelKind::Mlp | ModelKind::Cnn => None,
        ModelKind::Gpt => Some(Box::new(gpt::Gpt::new(config, vocabulary)?)),
        ModelKind::Llama => Some(Box::new(llama::Llama::new(config, vocabulary)?)),
    })
}

/// What the model of `config` is, whose meaning docs/models.md gives in equations.
pub(crate) fn describe(config: &ModelConfig, shape: SampleShape) -> Value {
    let own = |vocabulary| config.vocabulary(vocabulary).unwrap_or(vocabulary);
    match (config.kind, shape) {
        (ModelKind::Mlp, SampleShape::Image { height, width, classes }) => json!({
            "kind": config.kind,
            "inputs": height * width,
            "hidden": config.hidden,
            "classes": classes,
            "activation": "relu",
            "loss": "cross-entropy",
        }),
        (ModelKind::Cnn, SampleShape::Image { height, width, classes }) => {
            cnn::describe(height, width, classes)
        }
        (ModelKind::Gpt, SampleShape::Text { context, vocabulary }) => {
            gpt::describe(config, context, own(vocabulary))
        }
        (ModelKind::Llama, SampleShape::Text { context, vocabulary }) => {
            llama::describe(config, context, own(vocabulary))
        }
        // No such model can be built.
        (kind, shape) => json!({ "kind": kind, "samples": shape.to_string() }),
    }
}

/// The generator of initial parameters: equal seeds give equal parameters on every machine.
pub(crate) fn initial_random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::from_seed(blake3::derive_key("dnode initial parameters v1", &seed.to_le_bytes()))
}
