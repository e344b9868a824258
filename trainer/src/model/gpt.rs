//! Causal transformer: learned positions, pre-norm blocks, GELU, output tied to the embedding.
//!
//! The block is that of GPT-2 (Radford et al. 2019, §2.3). The head is the transposed token
//! embedding (Press and Wolf, arXiv:1608.05859) without a bias: fewer parameters to exchange.

use std::ops::Range;

use dnode_protocol::{LayoutError, ParameterLayout};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::linear::Linear;
use super::{Backward, Forward, Model, initial};
use crate::batch::{Batch, Input};
use crate::config::ModelConfig;
use crate::kernel::activation::{add_bias_gelu, gelu_backward};
use crate::kernel::attention::AttentionShape;
use crate::kernel::loss::{Score, cross_entropy};
use crate::kernel::norm::{self, Normalized};
use crate::kernel::{Blend, Matrix, MatrixMut, reduce};

/// Deviation of initial weights (GPT-2).
const INITIAL_DEVIATION: f32 = 0.02;
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

    /// Adds to `input_gradient`; destroys `output_gradient`.
    fn backward(
        &self,
        pass: &mut Backward<'_, '_>,
        output_gradient: &mut [f32],
        input_gradient: &mut [f32],
    ) {
        let gain = &pass.parameters[self.gain.clone()];
        // Gain and bias are neighbours in the layout.
        let both = &mut pass.gradient[self.gain.start..self.bias.end];
        let gradient = both.split_at_mut(gain.len());
        self.kept.backward(output_gradient, gain, gradient, input_gradient);
    }
}

/// One transformer block and its activations.
#[derive(Debug)]
struct Block {
    attention_norm: Norm,
    attention: Linear,
    projection: Linear,
    inner_norm: Norm,
    expand: Linear,
    contract: Linear,
    /// `[N, 3 · width]`.
    qkv: Vec<f32>,
    /// `[B, H, T, T]`.
    weights: Vec<f32>,
    /// `[N, width]`.
    attended: Vec<f32>,
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
    /// `[N, 3 · width]`.
    qkv: Vec<f32>,
    /// `[B, T, T]`.
    scores: Vec<f32>,
}

/// The model and its activations; `N = B · T`.
#[derive(Debug)]
pub(crate) struct Gpt {
    layout: ParameterLayout,
    shape: AttentionShape,
    vocabulary: usize,
    token_embedding: Range<usize>,
    position_embedding: Range<usize>,
    blocks: Vec<Block>,
    final_norm: Norm,
    /// `[N, width]`: the residual stream.
    residual: Vec<f32>,
    /// `[N, vocabulary]`: logits, then their gradient.
    logits: Vec<f32>,
    scratch: Scratch,
}

impl Block {
    fn push(layout: &mut ParameterLayout, index: usize, width: usize) -> Result<Self, LayoutError> {
        let name = |part: &str| format!("block{index}.{part}");
        let inner = EXPANSION * width;
        Ok(Self {
            attention_norm: Norm::push(layout, &name("attention_norm"), width)?,
            attention: Linear::push(layout, &name("attention"), width, 3 * width)?,
            projection: Linear::push(layout, &name("projection"), width, width)?,
            inner_norm: Norm::push(layout, &name("inner_norm"), width)?,
            expand: Linear::push(layout, &name("expand"), width, inner)?,
            contract: Linear::push(layout, &name("contract"), inner, width)?,
            qkv: Vec::new(),
            weights: Vec::new(),
            attended: Vec::new(),
            slope: Vec::new(),
            inner: Vec::new(),
        })
    }

    /// Adds the block's two contributions to the residual stream `[N, width]`.
    fn forward(&mut self, pass: Forward<'_>, shape: AttentionShape, residual: &mut [f32]) {
        let rows = residual.len() / shape.width();
        self.attention_norm.forward(pass, residual);
        self.qkv.resize(rows * 3 * shape.width(), 0.0);
        self.attention.product(pass, &self.attention_norm.output, &mut self.qkv);
        reduce::add_bias(&mut self.qkv, self.attention.bias(pass));

        let per_sample = shape.tokens * shape.width();
        let weights_per_sample = shape.heads * shape.tokens * shape.tokens;
        self.weights.resize(rows / shape.tokens * weights_per_sample, 0.0);
        self.attended.resize(residual.len(), 0.0);
        let samples = self
            .qkv
            .chunks_exact(3 * per_sample)
            .zip(self.weights.chunks_exact_mut(weights_per_sample))
            .zip(self.attended.chunks_exact_mut(per_sample));
        pass.compute.for_each(samples.collect(), |((qkv, weights), attended)| {
            shape.forward(qkv, weights, attended);
        });
        self.projection.add(pass, &self.attended, residual);

        self.inner_norm.forward(pass, residual);
        self.slope.resize(rows * self.expand.outputs, 0.0);
        self.inner.resize(rows * self.expand.outputs, 0.0);
        self.expand.product(pass, &self.inner_norm.output, &mut self.slope);
        add_bias_gelu(&mut self.slope, self.expand.bias(pass), &mut self.inner);
        self.contract.add(pass, &self.inner, residual);
    }

    /// Turns the residual stream's gradient behind the block into that before it.
    fn backward(&self, pass: &mut Backward<'_, '_>, shape: AttentionShape, scratch: &mut Scratch) {
        let Scratch { residual, narrow, inner, qkv, scores } = scratch;
        self.contract.backward_parameters(pass, &self.inner, residual);
        self.contract.backward_input(pass, residual, inner);
        gelu_backward(inner, &self.slope);
        self.expand.backward_parameters(pass, &self.inner_norm.output, inner);
        self.expand.backward_input(pass, inner, narrow);
        self.inner_norm.backward(pass, narrow, residual);

        self.projection.backward_parameters(pass, &self.attended, residual);
        self.projection.backward_input(pass, residual, narrow);
        let per_sample = shape.tokens * shape.width();
        let scores_per_sample = shape.tokens * shape.tokens;
        let samples = self
            .qkv
            .chunks_exact(3 * per_sample)
            .zip(self.weights.chunks_exact(shape.heads * scores_per_sample))
            .zip(narrow.chunks_exact(per_sample))
            .zip(scores.chunks_exact_mut(scores_per_sample))
            .zip(qkv.chunks_exact_mut(3 * per_sample));
        pass.compute.for_each(samples.collect(), |((((kept, weights), gradient), scores), out)| {
            shape.backward((kept, weights), gradient, scores, out);
        });
        self.attention.backward_parameters(pass, &self.attention_norm.output, qkv);
        self.attention.backward_input(pass, qkv, narrow);
        self.attention_norm.backward(pass, narrow, residual);
    }
}

impl Gpt {
    /// A model of `config.layers` blocks for sequences of `config.context` tokens.
    pub(crate) fn new(config: &ModelConfig, vocabulary: usize) -> Result<Self, LayoutError> {
        let width = config.width;
        let mut layout = ParameterLayout::new();
        let token_embedding = layout.push("token_embedding", &[vocabulary, width])?;
        let position_embedding = layout.push("position_embedding", &[config.context, width])?;
        let blocks = (0..config.layers)
            .map(|index| Block::push(&mut layout, index, width))
            .collect::<Result<_, _>>()?;
        let final_norm = Norm::push(&mut layout, "final_norm", width)?;
        Ok(Self {
            layout,
            shape: AttentionShape {
                tokens: config.context,
                heads: config.heads,
                head_width: width / config.heads,
            },
            vocabulary,
            token_embedding,
            position_embedding,
            blocks,
            final_norm,
            residual: Vec::new(),
            logits: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    /// The logits of the token that follows `tokens[at]`, which sees none of those behind it: `[K]`.
    ///
    /// `tokens`: as many as the context, each below the vocabulary. `None` when broken off.
    pub(crate) fn next_logits(
        &mut self,
        pass: Forward<'_>,
        tokens: &[u32],
        at: usize,
    ) -> Option<&[f32]> {
        let done = self.compute_logits(pass, tokens);
        done.then(|| &self.logits[at * self.vocabulary..(at + 1) * self.vocabulary])
    }

    /// Fills the logits; `false` when broken off.
    fn compute_logits(&mut self, pass: Forward<'_>, tokens: &[u32]) -> bool {
        self.embed(pass.parameters, tokens);
        for block in &mut self.blocks {
            if pass.compute.is_interrupted() {
                return false;
            }
            block.forward(pass, self.shape, &mut self.residual);
        }
        self.final_norm.forward(pass, &self.residual);
        self.logits.resize(tokens.len() * self.vocabulary, 0.0);
        let table = &pass.parameters[self.token_embedding.clone()];
        let width = self.shape.width();
        MatrixMut::new(&mut self.logits, tokens.len(), self.vocabulary).product_on(
            pass.compute,
            Matrix::new(&self.final_norm.output, tokens.len(), width),
            Matrix::new(table, self.vocabulary, width).transposed(),
            Blend::Replace,
        );
        true
    }

    fn embed(&mut self, parameters: &[f32], tokens: &[u32]) {
        let width = self.shape.width();
        self.residual.resize(tokens.len() * width, 0.0);
        let positions = parameters[self.position_embedding.clone()].chunks_exact(width).cycle();
        let table = &parameters[self.token_embedding.clone()];
        let rows = self.residual.chunks_exact_mut(width);
        for ((row, &token), position) in rows.zip(tokens).zip(positions) {
            let start = token as usize * width;
            let embedding = &table[start..start + width];
            for ((x, &e), &p) in row.iter_mut().zip(embedding).zip(position) {
                *x = e + p;
            }
        }
    }

    fn embed_backward(&self, gradient: &mut [f32], tokens: &[u32]) {
        let width = self.shape.width();
        let rows = self.scratch.residual.chunks_exact(width);
        for (index, (row, &token)) in rows.zip(tokens).enumerate() {
            let token = self.token_embedding.start + token as usize * width;
            let position = self.position_embedding.start + index % self.shape.tokens * width;
            reduce::add_scaled(&mut gradient[token..token + width], row, 1.0);
            reduce::add_scaled(&mut gradient[position..position + width], row, 1.0);
        }
    }
}

/// The tokens of a batch, `[B, T]`; the trainer has checked that the batch holds tokens.
fn tokens(batch: &Batch) -> &[u32] {
    match &batch.input {
        Input::Tokens(tokens) => tokens,
        Input::Images(_) => &[],
    }
}

impl Model for Gpt {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn initialize(&self, random: &mut ChaCha8Rng, parameters: &mut [f32]) {
        // Each block adds two contributions to the residual stream: keep its variance (GPT-2).
        let residual = INITIAL_DEVIATION / ((2 * self.blocks.len()) as f32).sqrt();
        for tensor in self.layout.tensors() {
            let values = &mut parameters[tensor.range()];
            let name = tensor.name.as_str();
            if name.ends_with(".bias") {
                values.fill(0.0);
            } else if name.ends_with(".gain") {
                values.fill(1.0);
            } else if name.ends_with("projection.weight") || name.ends_with("contract.weight") {
                initial::normal(random, values, residual);
            } else {
                initial::normal(random, values, INITIAL_DEVIATION);
            }
        }
    }

    fn forward(&mut self, pass: Forward<'_>, batch: &Batch) -> Score {
        if !self.compute_logits(pass, tokens(batch)) {
            return Score::default();
        }
        cross_entropy(&mut self.logits, &batch.targets, self.vocabulary)
    }

    fn backward(&mut self, mut pass: Backward<'_, '_>, batch: &Batch, scale: f32) {
        let tokens = tokens(batch);
        let (rows, width) = (tokens.len(), self.shape.width());
        reduce::scale(&mut self.logits, scale);
        let scratch = &mut self.scratch;
        scratch.residual.clear();
        scratch.residual.resize(rows * width, 0.0);
        scratch.narrow.resize(rows * width, 0.0);
        scratch.inner.resize(rows * EXPANSION * width, 0.0);
        scratch.qkv.resize(rows * 3 * width, 0.0);
        scratch.scores.resize(rows * self.shape.tokens, 0.0);

        let logits = Matrix::new(&self.logits, rows, self.vocabulary);
        let table_gradient = &mut pass.gradient[self.token_embedding.clone()];
        MatrixMut::new(table_gradient, self.vocabulary, width).product_on(
            pass.compute,
            logits.transposed(),
            Matrix::new(&self.final_norm.output, rows, width),
            Blend::Add,
        );
        let table = &pass.parameters[self.token_embedding.clone()];
        MatrixMut::new(&mut scratch.narrow, rows, width).product_on(
            pass.compute,
            logits,
            Matrix::new(table, self.vocabulary, width),
            Blend::Replace,
        );
        self.final_norm.backward(&mut pass, &mut scratch.narrow, &mut scratch.residual);
        for block in self.blocks.iter().rev() {
            if pass.compute.is_interrupted() {
                return;
            }
            block.backward(&mut pass, self.shape, scratch);
            pass.is_final_from(block.attention_norm.gain.start);
        }
        self.embed_backward(pass.gradient, tokens);
        pass.is_final_from(0);
    }
}
