//! Causal transformer: learned positions, pre-norm blocks, GELU, output tied to the embedding.
//!
//! The block is that of GPT-2 (Radford et al. 2019, §2.3). The head is the transposed token
//! embedding (Press and Wolf, arXiv:1608.05859) without a bias: fewer parameters to exchange.

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
use crate::config::{ConfigError, ModelConfig};
use crate::kernel::ROWS_AT_ONCE;
use crate::kernel::activation::{add_bias_gelu, gelu_backward};
use crate::kernel::attention::AttentionShape;
use crate::kernel::dropout::{self, Dropped};
use crate::kernel::loss::Score;
use crate::kernel::norm::{self, Normalized};
use crate::kernel::reduce;

/// Width of the block's inner layer, in residual widths.
const EXPANSION: usize = 4;

/// As [`super::describe`].
pub(super) fn describe(config: &ModelConfig, context: usize, vocabulary: usize) -> Value {
    json!({
        "kind": "gpt",
        "layers": config.layers,
        "heads": config.heads,
        "width": config.width,
        "context": context,
        "vocabulary": vocabulary,
        "expansion": EXPANSION,
        "activation": "gelu-tanh",
        "norm": "layer norm before each part and before the head",
        "norm_epsilon": norm::epsilon(),
        "positions": "learned",
        "attention": "causal; queries, keys and values of all heads in one matrix, in this order",
        "head": "transposed token embedding, no bias",
        "loss": "cross-entropy",
    })
}

/// A layer norm's place in the flat parameters and what its forward pass kept.
#[derive(Debug)]
struct Norm {
    gain: Range<usize>,
    bias: Range<usize>,
    kept: Normalized,
    /// `[N, width]`.
    output: Vec<f32>,
}

impl Norm {
    fn push(layout: &mut ParameterLayout, name: &str, width: usize) -> Result<Self, LayoutError> {
        Ok(Self {
            gain: layout.push(&format!("{name}.gain"), &[width])?,
            bias: layout.push(&format!("{name}.bias"), &[width])?,
            kept: Normalized::default(),
            output: Vec::new(),
        })
    }

    fn forward(&mut self, pass: Forward<'_>, input: &[f32]) {
        let gain = &pass.parameters[self.gain.clone()];
        let bias = &pass.parameters[self.bias.clone()];
        self.kept.resize(input.len() / gain.len(), gain.len());
        self.output.resize(input.len(), 0.0);
        self.kept.forward(input, gain, bias, &mut self.output);
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
        // Gain and bias are neighbours in the layout.
        let mut spare = Vec::new();
        let both = pass.gradient_or(&(self.gain.start..self.bias.end), &mut spare);
        let gradient = both.split_at_mut(gain.len());
        self.kept.backward(output_gradient, gain, gradient, input_gradient);
    }
}

/// One transformer block and its activations.
#[derive(Debug)]
struct Block {
    attention_norm: Norm,
    attention: Attention,
    inner_norm: Norm,
    expand: Linear,
    contract: Linear,
    /// What is dropped of its output.
    place: Dropped,
    /// `[N, 4 · width]`: GELU's derivative.
    slope: Vec<f32>,
    /// `[N, 4 · width]`.
    inner: Vec<f32>,
}

/// Gradients that all blocks share.
#[derive(Debug, Default)]
struct Scratch {
    /// `[N, width]`: gradient of the residual stream.
    residual: Vec<f32>,
    /// `[N, width]`.
    narrow: Vec<f32>,
    /// `[N, 4 · width]`.
    inner: Vec<f32>,
    attention: AttentionScratch,
}

/// The model and its activations; `N = B · T`.
#[derive(Debug)]
pub(crate) struct Gpt {
    layouts: Layouts,
    heads: Heads,
    embedding: Embedding,
    position_embedding: Range<usize>,
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
        shape: AttentionShape,
    ) -> Result<Self, LayoutError> {
        let name = |part: &str| format!("block{index}.{part}");
        let width = shape.width();
        let inner = EXPANSION * width;
        Ok(Self {
            attention_norm: Norm::push(layout, &name("attention_norm"), width)?,
            attention: Attention::push(layout, index, shape, Linear::push)?,
            inner_norm: Norm::push(layout, &name("inner_norm"), width)?,
            expand: Linear::push(layout, &name("expand"), width, inner)?,
            contract: Linear::push(layout, &name("contract"), inner, width)?,
            place: Dropped::Inner(index),
            slope: Vec::new(),
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
        self.slope.resize(rows * self.expand.outputs, 0.0);
        self.inner.resize(rows * self.expand.outputs, 0.0);
        self.expand.product(pass, &self.inner_norm.output, &mut self.slope);
        let (bias, piece) = (self.expand.bias(pass), ROWS_AT_ONCE * self.expand.outputs);
        let pieces = self.slope.chunks_mut(piece).zip(self.inner.chunks_mut(piece));
        pass.compute.for_each(pieces.collect(), |(rows, out)| add_bias_gelu(rows, bias, out));
    }

    fn backward(&self, pass: &mut Backward<'_, '_>, heads: &Heads, scratch: &mut Scratch) {
        let Scratch { residual, narrow, inner, attention } = scratch;
        let added = dropout::before(pass.dropout, self.place, residual, narrow);
        self.contract.backward_parameters(pass, &self.inner, added);
        self.contract.backward_input(pass, added, inner);
        let piece = ROWS_AT_ONCE * self.expand.outputs;
        let pieces = inner.chunks_mut(piece).zip(self.slope.chunks(piece));
        pass.compute.for_each(pieces.collect(), |(gradient, slope)| gelu_backward(gradient, slope));
        self.expand.backward_parameters(pass, &self.inner_norm.output, inner);
        self.expand.backward_input(pass, inner, narrow);
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
        mem::swap(&mut self.slope, &mut other.slope);
        mem::swap(&mut self.inner, &mut other.inner);
    }

    fn first_parameter(&self) -> usize {
        self.attention_norm.gain.start
    }
}

impl Gpt {
    /// A model of `config.layers` blocks for sequences of `config.context` tokens.
    pub(crate) fn new(config: &ModelConfig, vocabulary: usize) -> Result<Self, ConfigError> {
        let width = config.width;
        let shape = AttentionShape {
            tokens: config.context,
            heads: config.heads,
            key_value_heads: config.heads,
            head_width: width / config.heads,
        };
        let mut layout = ParameterLayout::new();
        let embedding = Embedding::push(&mut layout, vocabulary, width)?;
        let position_embedding = layout.push("position_embedding", &[config.context, width])?;
        let mut blocks = (0..config.layers)
            .map(|index| Block::push(&mut layout, index, shape))
            .collect::<Result<Vec<_>, _>>()?;
        let final_norm = Norm::push(&mut layout, "final_norm", width)?;
        let layers = blocks.iter_mut().flat_map(Block::layers_mut);
        let layouts = Layouts::new(config, layout, layers)?;
        Ok(Self {
            layouts,
            heads: Heads { shape, rotation: None },
            head: embedding.head(),
            embedding,
            position_embedding,
            blocks: Blocks::new(blocks),
            final_norm,
            residual: Vec::new(),
            scratch: Scratch::default(),
        })
    }
}

impl LanguageModel for Gpt {
    fn read(&mut self, pass: Forward<'_>, tokens: &[u32]) -> bool {
        self.embedding.forward(pass.parameters, tokens, &mut self.residual);
        let positions = &pass.parameters[self.position_embedding.clone()];
        let first = pass.kept.unwrap_or(0) * self.heads.shape.width();
        let length = positions.len().min(self.residual.len());
        for sample in self.residual.chunks_exact_mut(length) {
            reduce::add_scaled(sample, &positions[first..first + length], 1.0);
        }
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

impl Model for Gpt {
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
        let inner = EXPANSION * width;
        let norm = rows * (2 * width + 1);
        let block = 2 * norm + Attention::numbers(shape, samples) + 2 * rows * inner;
        // The residual stream, its gradient, what is added to it with dropout, and one more gradient.
        let shared = rows * (4 * width + inner + self.head.vocabulary());
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
        let scratch = &mut self.scratch;
        scratch.residual.clear();
        scratch.residual.resize(rows * width, 0.0);
        scratch.narrow.resize(rows * width, 0.0);
        scratch.inner.resize(rows * EXPANSION * width, 0.0);
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
        if let Some(positions) = pass.gradient_of(&self.position_embedding) {
            for sample in scratch.residual.chunks_exact(positions.len()) {
                reduce::add_scaled(positions, sample, 1.0);
            }
        }
        pass.is_final_from(0);
    }
}
