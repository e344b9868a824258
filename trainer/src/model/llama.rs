//! Causal transformer of the Llama family: rotary positions, root-mean-square norms, gated inner layer,
//! heads that share keys and values, no biases.
//!
//! Source: Touvron et al., arXiv:2302.13971, §2.2; grouped heads as in arXiv:2307.09288, §2.2. Numbers are
//! those of `LlamaForCausalLM` of `transformers` on the same weights (`golden.rs`).

use std::mem;
use std::ops::Range;

use dnode_protocol::{LayoutError, ParameterLayout};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::adapter::Layouts;
use super::blocks::{self, Blocks};
use super::linear::Linear;
use super::transformer::{
    Attention, AttentionScratch, Embedding, Head, Heads, LanguageModel, initialize, tokens,
};
use super::{Backward, Forward, Model};
use crate::batch::Batch;
use crate::config::{ConfigError, ModelConfig, RotaryScaling};
use crate::kernel::ROWS_AT_ONCE;
use crate::kernel::attention::AttentionShape;
use crate::kernel::dropout::{self, Dropped};
use crate::kernel::loss::Score;
use crate::kernel::rms::RmsNormalized;
use crate::kernel::rotation::Rotation;
use crate::kernel::swiglu::{swiglu, swiglu_backward};

/// As [`super::describe`].
pub(super) fn describe(config: &ModelConfig, context: usize, vocabulary: usize) -> Value {
    let head = if config.tied { "transposed token embedding" } else { "a matrix of its own" };
    let mut told = json!({
        "kind": "llama",
        "layers": config.layers,
        "heads": config.heads,
        "key_value_heads": config.key_value_heads(),
        "width": config.width,
        "inner": config.inner(),
        "context": context,
        "vocabulary": vocabulary,
        "activation": "silu(gate) * up; gates and ups in one matrix, in this order",
        "norm": "root mean square, before each part and before the head",
        "norm_epsilon": config.norm_epsilon,
        "positions": "rotary; channels i and i + half of a head are a pair",
        "rotary_base": config.rotary_base,
        "attention": "causal; queries, keys and values of all heads in one matrix, in this order",
        "tied": config.tied,
        "head": format!("{head}, no bias"),
        "loss": "cross-entropy",
    });
    let (kind, factor) = (config.rotary_scaling, config.rotary_factor);
    match kind {
        RotaryScaling::None => {}
        RotaryScaling::Linear => {
            told["rotary_scaling"] = json!({ "kind": kind, "factor": factor });
        }
        RotaryScaling::Llama3 => {
            told["rotary_scaling"] = json!({
                "kind": kind,
                "factor": factor,
                "low": config.rotary_low,
                "high": config.rotary_high,
                "positions": config.rotary_positions,
            });
        }
    }
    told
}

/// A norm's place in the flat parameters and what its forward pass kept.
#[derive(Debug)]
struct Norm {
    gain: Range<usize>,
    epsilon: f32,
    kept: RmsNormalized,
    /// `[N, width]`.
    output: Vec<f32>,
}

impl Norm {
    fn push(
        layout: &mut ParameterLayout,
        name: &str,
        config: &ModelConfig,
    ) -> Result<Self, LayoutError> {
        Ok(Self {
            gain: layout.push(&format!("{name}.gain"), &[config.width])?,
            epsilon: config.norm_epsilon as f32,
            kept: RmsNormalized::default(),
            output: Vec::new(),
        })
    }

    fn forward(&mut self, pass: Forward<'_>, input: &[f32]) {
        let gain = &pass.parameters[self.gain.clone()];
        self.output.resize(input.len(), 0.0);
        self.kept.forward(input, gain, self.epsilon, &mut self.output);
    }

    /// Changes activations with another block's norm.
    fn swap_activations(&mut self, other: &mut Self) {
        mem::swap(&mut self.kept, &mut other.kept);
        mem::swap(&mut self.output, &mut other.output);
    }

    /// Adds to `input_gradient`; destroys `output_gradient`.
    fn backward(
        &self,
        pass: &mut Backward<'_, '_>,
        output_gradient: &mut [f32],
        input_gradient: &mut [f32],
    ) {
        let gain = &pass.parameters[self.gain.clone()];
        let mut spare = Vec::new();
        let gradient = pass.gradient_or(&self.gain, &mut spare);
        self.kept.backward(output_gradient, gain, gradient, input_gradient);
    }
}

/// One transformer block and its activations.
#[derive(Debug)]
struct Block {
    attention_norm: Norm,
    attention: Attention,
    inner_norm: Norm,
    /// Gates, then what they scale.
    expand: Linear,
    contract: Linear,
    /// What is dropped of its output.
    place: Dropped,
    /// `[N, 2 · inner]`: the activation's derivatives.
    slopes: Vec<f32>,
    /// `[N, inner]`.
    inner: Vec<f32>,
}

/// Gradients that all blocks share.
#[derive(Debug, Default)]
struct Scratch {
    /// `[N, width]`: gradient of the residual stream.
    residual: Vec<f32>,
    /// `[N, width]`.
    narrow: Vec<f32>,
    /// `[N, inner]`.
    inner: Vec<f32>,
    /// `[N, 2 · inner]`.
    expanded: Vec<f32>,
    attention: AttentionScratch,
}

/// The model and its activations; `N = B · T`.
#[derive(Debug)]
pub(crate) struct Llama {
    layouts: Layouts,
    heads: Heads,
    embedding: Embedding,
    blocks: Blocks<Block>,
    final_norm: Norm,
    head: Head,
    /// `[N, width]`: the residual stream.
    residual: Vec<f32>,
    scratch: Scratch,
}

impl Block {
    fn push(
        layout: &mut ParameterLayout,
        index: usize,
        config: &ModelConfig,
        shape: AttentionShape,
    ) -> Result<Self, LayoutError> {
        let name = |part: &str| format!("block{index}.{part}");
        let (width, inner) = (config.width, config.inner());
        Ok(Self {
            attention_norm: Norm::push(layout, &name("attention_norm"), config)?,
            attention: Attention::push(layout, index, shape, Linear::push_plain)?,
            inner_norm: Norm::push(layout, &name("inner_norm"), config)?,
            expand: Linear::push_plain(layout, &name("expand"), width, 2 * inner)?,
            contract: Linear::push_plain(layout, &name("contract"), inner, width)?,
            place: Dropped::Inner(index),
            slopes: Vec::new(),
            inner: Vec::new(),
        })
    }

    fn layers_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let inner = [&mut self.expand, &mut self.contract];
        self.attention.layers_mut().into_iter().chain(inner)
    }
}

impl blocks::Block for Block {
    type Scratch = Scratch;

    fn forward(
        &mut self,
        pass: Forward<'_>,
        (heads, scratch): (&Heads, &mut AttentionScratch),
        residual: &mut [f32],
    ) {
        self.activate(pass, (heads, scratch), residual);
        self.contract.add(pass, self.place, &self.inner, residual);
    }

    /// Adds the first of the two contributions.
    fn activate(
        &mut self,
        pass: Forward<'_>,
        (heads, scratch): (&Heads, &mut AttentionScratch),
        residual: &mut [f32],
    ) {
        self.attention_norm.forward(pass, residual);
        let input = self.attention_norm.output.as_slice();
        self.attention.forward(pass, (heads, scratch), input, residual);

        self.inner_norm.forward(pass, residual);
        let rows = residual.len() / heads.shape.width();
        let inner = self.contract.inputs;
        self.slopes.resize(rows * 2 * inner, 0.0);
        self.inner.resize(rows * inner, 0.0);
        self.expand.product(pass, &self.inner_norm.output, &mut self.slopes);
        let pieces = self
            .slopes
            .chunks_mut(ROWS_AT_ONCE * 2 * inner)
            .zip(self.inner.chunks_mut(ROWS_AT_ONCE * inner));
        pass.compute.for_each(pieces.collect(), |(rows, out)| swiglu(rows, inner, out));
    }

    fn backward(&self, pass: &mut Backward<'_, '_>, heads: &Heads, scratch: &mut Scratch) {
        let Scratch { residual, narrow, inner, expanded, attention } = scratch;
        let added = dropout::before(pass.dropout, self.place, residual, narrow);
        self.contract.backward_parameters(pass, &self.inner, added);
        self.contract.backward_input(pass, added, inner);
        let channels = self.contract.inputs;
        let pieces = inner
            .chunks(ROWS_AT_ONCE * channels)
            .zip(self.slopes.chunks(ROWS_AT_ONCE * 2 * channels))
            .zip(expanded.chunks_mut(ROWS_AT_ONCE * 2 * channels));
        pass.compute.for_each(pieces.collect(), |((gradient, slopes), out)| {
            swiglu_backward(gradient, slopes, channels, out);
        });
        self.expand.backward_parameters(pass, &self.inner_norm.output, expanded);
        self.expand.backward_input(pass, expanded, narrow);
        self.inner_norm.backward(pass, narrow, residual);

        let input = (self.attention_norm.output.as_slice(), residual.as_slice());
        self.attention.backward(pass, (heads, attention), input, narrow);
        self.attention_norm.backward(pass, narrow, residual);
    }

    fn attention_scratch(scratch: &mut Scratch) -> &mut AttentionScratch {
        &mut scratch.attention
    }

    fn swap_activations(&mut self, other: &mut Self) {
        self.attention_norm.swap_activations(&mut other.attention_norm);
        self.attention.swap_activations(&mut other.attention);
        self.inner_norm.swap_activations(&mut other.inner_norm);
        mem::swap(&mut self.slopes, &mut other.slopes);
        mem::swap(&mut self.inner, &mut other.inner);
    }

    fn first_parameter(&self) -> usize {
        self.attention_norm.gain.start
    }
}

impl Llama {
    /// A model of `config.layers` blocks for sequences of `config.context` tokens.
    pub(crate) fn new(config: &ModelConfig, vocabulary: usize) -> Result<Self, ConfigError> {
        let shape = AttentionShape {
            tokens: config.context,
            heads: config.heads,
            key_value_heads: config.key_value_heads(),
            head_width: config.width / config.heads,
        };
        let mut layout = ParameterLayout::new();
        let embedding = Embedding::push(&mut layout, vocabulary, config.width)?;
        let mut blocks = (0..config.layers)
            .map(|index| Block::push(&mut layout, index, config, shape))
            .collect::<Result<Vec<_>, _>>()?;
        let final_norm = Norm::push(&mut layout, "final_norm", config)?;
        let head = if config.tied {
            embedding.head()
        } else {
            Head::push(&mut layout, vocabulary, config.width)?
        };
        let rotation = Rotation::new(config);
        let layers = blocks.iter_mut().flat_map(Block::layers_mut);
        let layouts = Layouts::new(config, layout, layers)?;
        Ok(Self {
            layouts,
            heads: Heads { shape, rotation: Some(rotation) },
            embedding,
            blocks: Blocks::new(blocks),
            final_norm,
            head,
            residual: Vec::new(),
            scratch: Scratch::default(),
        })
    }
}

impl LanguageModel for Llama {
    fn read(&mut self, pass: Forward<'_>, tokens: &[u32]) -> bool {
        self.embedding.forward(pass.parameters, tokens, &mut self.residual);
        if let Some(dropout) = pass.dropout {
            dropout.apply(Dropped::Embedding, &mut self.residual);
        }
        let heads = (&self.heads, &mut self.scratch.attention);
        if !self.blocks.forward(pass, heads, &mut self.residual) {
            return false;
        }
        self.final_norm.forward(pass, &self.residual);
        true
    }

    fn kinds(&self) -> usize {
        self.head.vocabulary()
    }

    fn logits(&mut self, pass: Forward<'_>, rows: Range<usize>) -> &[f32] {
        self.head.forward_rows(pass, &self.final_norm.output, rows)
    }
}

impl Model for Llama {
    fn layout(&self) -> &ParameterLayout {
        &self.layouts.trained
    }

    fn frozen(&self) -> Option<&ParameterLayout> {
        self.layouts.frozen()
    }

    fn initialize(&self, random: &mut ChaCha8Rng, parameters: &mut [f32]) {
        initialize(&self.layouts, self.blocks.len(), random, parameters);
    }

    fn recompute(&mut self) {
        self.blocks.recompute();
    }

    fn activations(&self, samples: usize, threads: usize) -> usize {
        let shape = self.heads.shape;
        let (rows, width) = (samples * shape.tokens, shape.width());
        let inner = self.blocks.first().map_or(0, |block| block.contract.inputs);
        let norm = rows * (2 * width + 1);
        let block = 2 * norm + Attention::numbers(shape, samples) + 3 * rows * inner;
        // The residual stream, its gradient, what is added to it with dropout, and one more gradient.
        let shared = rows * (4 * width + 3 * inner + self.head.vocabulary());
        let scratch = AttentionScratch::numbers(shape, samples, threads);
        let blocks = self.blocks.activations(block, rows * width);
        blocks + norm + shared + scratch
    }

    fn forward(&mut self, pass: Forward<'_>, batch: &Batch) -> Score {
        if !self.read(pass, tokens(batch)) {
            return Score::default();
        }
        self.head.forward(pass, &self.final_norm.output);
        self.head.score(pass, &batch.targets)
    }

    fn backward(&mut self, mut pass: Backward<'_, '_>, batch: &Batch, scale: f32) {
        let tokens = tokens(batch);
        let (rows, width) = (tokens.len(), self.heads.shape.width());
        let inner = self.blocks.first().map_or(0, |block| block.contract.inputs);
        let scratch = &mut self.scratch;
        scratch.residual.clear();
        scratch.residual.resize(rows * width, 0.0);
        scratch.narrow.resize(rows * width, 0.0);
        scratch.inner.resize(rows * inner, 0.0);
        scratch.expanded.resize(rows * 2 * inner, 0.0);
        scratch.attention.resize(rows, self.heads.shape);

        self.head.backward(&mut pass, scale, &self.final_norm.output, &mut scratch.narrow);
        self.final_norm.backward(&mut pass, &mut scratch.narrow, &mut scratch.residual);
        let heads = (&self.heads, &mut *scratch);
        if !self.blocks.backward(&mut pass, heads, &mut self.residual) {
            return;
        }
        if let Some(dropout) = pass.dropout {
            dropout.apply(Dropped::Embedding, &mut scratch.residual);
        }
        self.embedding.backward(&mut pass, tokens, &scratch.residual);
        pass.is_final_from(0);
    }
}
