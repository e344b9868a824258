//! What the transformers have in common: attention with its projections, embedding, head, initial weights.

use std::mem;
use std::ops::Range;

use dnode_protocol::{LayoutError, ParameterLayout};
use rand_chacha::ChaCha8Rng;

use super::adapter::Layouts;
use super::linear::Linear;
use super::{Backward, Forward, Model, initial};
use crate::batch::{Batch, Input};
use crate::kernel::attention::AttentionShape;
use crate::kernel::dropout::{self, Dropped};
use crate::kernel::loss::{Score, cross_entropy};
use crate::kernel::rotation::Rotation;
use crate::kernel::{Blend, Compute, Matrix, MatrixMut, ROWS_AT_ONCE, reduce};

/// Deviation of initial weights (GPT-2).
const INITIAL_DEVIATION: f32 = 0.02;

/// A model that says which token comes next.
pub(crate) trait LanguageModel: Model {
    /// Takes `tokens` in, as many as whole contexts, or a part of a text; `false` when broken off.
    fn read(&mut self, pass: Forward<'_>, tokens: &[u32]) -> bool;

    /// Kinds of tokens that it knows, `K`.
    fn kinds(&self) -> usize;

    /// The logits behind these of the tokens that were taken in last: `[n, K]`.
    fn logits(&mut self, pass: Forward<'_>, rows: Range<usize>) -> &[f32];

    /// The logits of the token that follows the last of `tokens`: `[K]`. `None` when broken off.
    ///
    /// `tokens` stand behind the first `kept` ones of a text, which earlier calls were given. All
    /// together are at most as many as the context, each below the vocabulary.
    fn continued_logits(
        &mut self,
        pass: Forward<'_>,
        tokens: &[u32],
        kept: usize,
    ) -> Option<&[f32]> {
        let pass = Forward { kept: Some(kept), ..pass };
        self.read(pass, tokens).then(|| self.logits(pass, tokens.len() - 1..tokens.len()))
    }
}

/// The tokens of a batch, `[B, T]`; the trainer has checked that the batch holds tokens.
pub(super) fn tokens(batch: &Batch) -> &[u32] {
    match &batch.input {
        Input::Tokens(tokens) => tokens,
        Input::Images(_) => &[],
    }
}

/// Initial weights of a model of `blocks` blocks, tensor by tensor as its name says.
pub(super) fn initialize(
    layouts: &Layouts,
    blocks: usize,
    random: &mut ChaCha8Rng,
    parameters: &mut [f32],
) {
    if layouts.frozen().is_some() {
        layouts.initialize_adapters(random, parameters);
        return;
    }
    // Each block adds two contributions to the residual stream: keep its variance (GPT-2).
    let residual = INITIAL_DEVIATION / ((2 * blocks) as f32).sqrt();
    for tensor in layouts.trained.tensors() {
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

/// One vector per kind of token.
#[derive(Clone, Debug)]
pub(super) struct Embedding {
    table: Range<usize>,
    width: usize,
}

impl Embedding {
    pub(super) fn push(
        layout: &mut ParameterLayout,
        vocabulary: usize,
        width: usize,
    ) -> Result<Self, LayoutError> {
        Ok(Self { table: layout.push("token_embedding", &[vocabulary, width])?, width })
    }

    /// The head that shares this table.
    pub(super) fn head(&self) -> Head {
        Head::over(self.table.clone(), self.width)
    }

    /// `out`: `[N, width]`, resized.
    pub(super) fn forward(&self, parameters: &[f32], tokens: &[u32], out: &mut Vec<f32>) {
        out.resize(tokens.len() * self.width, 0.0);
        let table = &parameters[self.table.clone()];
        for (row, &token) in out.chunks_exact_mut(self.width).zip(tokens) {
            row.copy_from_slice(&table[token as usize * self.width..][..self.width]);
        }
    }

    /// Adds the rows of `out_gradient`, `[N, width]`, to the gradients of their tokens.
    pub(super) fn backward(
        &self,
        pass: &mut Backward<'_, '_>,
        tokens: &[u32],
        out_gradient: &[f32],
    ) {
        let Some(gradient) = pass.gradient_of(&self.table) else { return };
        for (row, &token) in out_gradient.chunks_exact(self.width).zip(tokens) {
            let start = token as usize * self.width;
            reduce::add_scaled(&mut gradient[start..start + self.width], row, 1.0);
        }
    }
}

/// The last layer, without a bias: from the residual stream to logits.
#[derive(Debug)]
pub(super) struct Head {
    /// `[vocabulary, width]`.
    table: Range<usize>,
    width: usize,
    /// `[N, vocabulary]`: logits, then their gradient.
    logits: Vec<f32>,
}

impl Head {
    /// A head with weights of its own.
    pub(super) fn push(
        layout: &mut ParameterLayout,
        vocabulary: usize,
        width: usize,
    ) -> Result<Self, LayoutError> {
        Ok(Self::over(layout.push("head.weight", &[vocabulary, width])?, width))
    }

    const fn over(table: Range<usize>, width: usize) -> Self {
        Self { table, width, logits: Vec::new() }
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.table.len() / self.width
    }

    /// Fills the logits and returns them, `[N, vocabulary]`; `input`: `[N, width]`.
    pub(super) fn forward(&mut self, pass: Forward<'_>, input: &[f32]) -> &[f32] {
        let (rows, vocabulary) = (input.len() / self.width, self.vocabulary());
        self.logits.resize(rows * vocabulary, 0.0);
        let table = &pass.parameters[self.table.clone()];
        MatrixMut::new(&mut self.logits, rows, vocabulary).product_on(
            pass.compute,
            Matrix::new(input, rows, self.width),
            Matrix::new(table, vocabulary, self.width).transposed(),
            Blend::Replace,
        );
        &self.logits
    }

    /// As [`Self::forward`], of these rows of `input` alone.
    pub(super) fn forward_rows(
        &mut self,
        pass: Forward<'_>,
        input: &[f32],
        rows: Range<usize>,
    ) -> &[f32] {
        self.forward(pass, &input[rows.start * self.width..rows.end * self.width])
    }

    /// The losses of the targets `[N]`; the gradient replaces the logits.
    pub(super) fn score(&mut self, pass: Forward<'_>, targets: &[u32]) -> Score {
        let vocabulary = self.vocabulary();
        let mut scores = vec![Score::default(); targets.len().div_ceil(ROWS_AT_ONCE)];
        let rows = self.logits.chunks_mut(ROWS_AT_ONCE * vocabulary);
        let pieces = rows.zip(targets.chunks(ROWS_AT_ONCE)).zip(&mut scores);
        pass.compute.for_each(pieces.collect(), |((rows, targets), score)| {
            *score = cross_entropy(rows, targets, vocabulary, pass.objective);
        });
        let mut all = Score::default();
        scores.into_iter().for_each(|score| all.add(score));
        all
    }

    /// Adds the gradient of the table; `input_gradient ← scale · logits' gradient · table`.
    ///
    /// `input`, `input_gradient`: `[N, width]`.
    pub(super) fn backward(
        &mut self,
        pass: &mut Backward<'_, '_>,
        scale: f32,
        input: &[f32],
        input_gradient: &mut [f32],
    ) {
        let (width, vocabulary) = (self.width, self.vocabulary());
        let rows = self.logits.chunks_mut(ROWS_AT_ONCE * vocabulary);
        pass.compute.for_each(rows.collect(), |rows| reduce::scale(rows, scale));
        let rows = input.len() / width;
        let logits = Matrix::new(&self.logits, rows, vocabulary);
        let compute = pass.compute;
        if let Some(gradient) = pass.gradient_of(&self.table) {
            MatrixMut::new(gradient, vocabulary, width).product_on(
                compute,
                logits.transposed(),
                Matrix::new(input, rows, width),
                Blend::Add,
            );
        }
        let table = &pass.parameters[self.table.clone()];
        MatrixMut::new(input_gradient, rows, width).product_on(
            pass.compute,
            logits,
            Matrix::new(table, vocabulary, width),
            Blend::Replace,
        );
    }
}

/// How the attention of all blocks works.
#[derive(Debug)]
pub(super) struct Heads {
    pub(super) shape: AttentionShape,
    /// What tells queries and keys their positions, where nothing else does.
    pub(super) rotation: Option<Rotation>,
}

/// Gradients, and memory for a while, that the attention of all blocks shares.
#[derive(Debug, Default)]
pub(super) struct AttentionScratch {
    /// `[N, (H + 2·G)·D]`.
    qkv: Vec<f32>,
    /// Of each thread what [`AttentionShape::scratch`] says.
    scores: Vec<f32>,
    /// `[N, H·D]`, where there is dropout.
    dropped: Vec<f32>,
}

impl AttentionScratch {
    /// Room for `rows` tokens.
    pub(super) fn resize(&mut self, rows: usize, shape: AttentionShape) {
        self.qkv.resize(rows * shape.row(), 0.0);
    }

    /// Numbers that it holds, those of dropout included.
    pub(super) const fn numbers(shape: AttentionShape, samples: usize, threads: usize) -> usize {
        samples * shape.tokens * (shape.row() + shape.width()) + threads * shape.scratch()
    }

    /// Scores of each thread.
    fn scores(&mut self, compute: &Compute, shape: AttentionShape) -> &mut [f32] {
        let length = compute.threads() * shape.scratch();
        if self.scores.len() < length {
            self.scores.resize(length, 0.0);
        }
        &mut self.scores
    }
}

/// The part of a block that moves information between tokens, and its activations; `N = B · T`.
#[derive(Debug)]
pub(super) struct Attention {
    /// Queries, keys and values of all heads in one matrix.
    input: Linear,
    projection: Linear,
    /// What is dropped of its output.
    place: Dropped,
    /// `[N, (H + 2·G)·D]`; of a text in parts, those of the parts before, too.
    qkv: Vec<f32>,
    /// What attention keeps of each sample.
    state: Vec<f32>,
    /// `[N, H·D]`.
    attended: Vec<f32>,
}

impl Attention {
    /// Appends the layers `block<index>.attention` and `block<index>.projection`, which `linear` makes.
    pub(super) fn push(
        layout: &mut ParameterLayout,
        index: usize,
        shape: AttentionShape,
        linear: fn(&mut ParameterLayout, &str, usize, usize) -> Result<Linear, LayoutError>,
    ) -> Result<Self, LayoutError> {
        let width = shape.width();
        Ok(Self {
            input: linear(layout, &format!("block{index}.attention"), width, shape.row())?,
            projection: linear(layout, &format!("block{index}.projection"), width, width)?,
            place: Dropped::Attention(index),
            qkv: Vec::new(),
            state: Vec::new(),
            attended: Vec::new(),
        })
    }

    /// Numbers that the forward pass over so many samples keeps.
    pub(super) const fn numbers(shape: AttentionShape, samples: usize) -> usize {
        let each = shape.tokens * (shape.row() + shape.width()) + shape.kept(shape.tokens);
        samples * each
    }

    /// Changes activations with another block.
    pub(super) fn swap_activations(&mut self, other: &mut Self) {
        mem::swap(&mut self.qkv, &mut other.qkv);
        mem::swap(&mut self.state, &mut other.state);
        mem::swap(&mut self.attended, &mut other.attended);
    }

    /// Its two layers.
    pub(super) fn layers_mut(&mut self) -> [&mut Linear; 2] {
        [&mut self.input, &mut self.projection]
    }

    /// Adds what is attended to of `input` to the residual stream, `[N, H·D]` both.
    pub(super) fn forward(
        &mut self,
        pass: Forward<'_>,
        (heads, scratch): (&Heads, &mut AttentionScratch),
        input: &[f32],
        residual: &mut [f32],
    ) {
        let rows = residual.len() / heads.shape.width();
        let kept = pass.kept.unwrap_or(0);
        let tokens = pass.kept.map_or(heads.shape.tokens, |kept| kept + rows);
        let shape = AttentionShape { tokens, ..heads.shape };
        self.qkv.resize((kept + rows) * shape.row(), 0.0);
        let new = &mut self.qkv[kept * shape.row()..];
        self.input.product(pass, input, new);
        self.input.add_bias(pass, new);

        let per_sample = (tokens - kept) * shape.width();
        let qkv_per_sample = shape.tokens * shape.row();
        let state_per_sample = shape.kept(tokens - kept);
        let samples = residual.len() / per_sample;
        self.state.resize(samples * state_per_sample, 0.0);
        self.attended.resize(residual.len(), 0.0);
        let share = samples.div_ceil(pass.compute.threads());
        let shares = self
            .qkv
            .chunks_mut(share * qkv_per_sample)
            .zip(self.state.chunks_mut(share * state_per_sample))
            .zip(self.attended.chunks_mut(share * per_sample))
            .zip(scratch.scores(pass.compute, shape).chunks_exact_mut(shape.scratch()));
        pass.compute.for_each(shares.collect(), |(((qkv, state), attended), scores)| {
            let samples = qkv
                .chunks_exact_mut(qkv_per_sample)
                .zip(state.chunks_exact_mut(state_per_sample))
                .zip(attended.chunks_exact_mut(per_sample));
            for ((qkv, state), attended) in samples {
                if let Some(rotation) = &heads.rotation {
                    let new = &mut qkv[kept * shape.row()..];
                    rotation.apply(kept, new, shape.row(), shape.heads + shape.key_value_heads);
                }
                shape.forward((kept, qkv), scores, state, attended);
            }
        });
        self.projection.add(pass, self.place, &self.attended, residual);
    }

    /// Adds the gradients of both layers; `out`, `[N, H·D]`, becomes that of `input`.
    pub(super) fn backward(
        &self,
        pass: &mut Backward<'_, '_>,
        (heads, scratch): (&Heads, &mut AttentionScratch),
        (input, residual): (&[f32], &[f32]),
        out: &mut [f32],
    ) {
        let shape = heads.shape;
        let added = dropout::before(pass.dropout, self.place, residual, &mut scratch.dropped);
        self.projection.backward_parameters(pass, &self.attended, added);
        self.projection.backward_input(pass, added, out);
        let per_sample = shape.tokens * shape.width();
        let qkv_per_sample = shape.tokens * shape.row();
        let state_per_sample = shape.kept(shape.tokens);
        let share = (out.len() / per_sample).div_ceil(pass.compute.threads());
        scratch.scores(pass.compute, shape);
        let AttentionScratch { qkv, scores, .. } = scratch;
        let shares = self
            .qkv
            .chunks(share * qkv_per_sample)
            .zip(self.state.chunks(share * state_per_sample))
            .zip(out.chunks(share * per_sample))
            .zip(qkv.chunks_mut(share * qkv_per_sample))
            .zip(scores.chunks_exact_mut(shape.scratch()));
        pass.compute.for_each(shares.collect(), |((((kept, state), gradient), out), scores)| {
            let samples = kept
                .chunks_exact(qkv_per_sample)
                .zip(state.chunks_exact(state_per_sample))
                .zip(gradient.chunks_exact(per_sample))
                .zip(out.chunks_exact_mut(qkv_per_sample));
            for (((kept, state), gradient), out) in samples {
                shape.backward((kept, state), gradient, scores, out);
                if let Some(rotation) = &heads.rotation {
                    rotation.undo(out, shape.row(), shape.heads + shape.key_value_heads);
                }
            }
        });
        self.input.backward_parameters(pass, input, qkv);
        self.input.backward_input(pass, qkv, out);
    }
}
