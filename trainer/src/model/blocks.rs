//! The blocks of a transformer, one after the other, and who of them keeps its activations.

use super::transformer::{AttentionScratch, Heads};
use super::{Backward, Forward};

/// One block of a transformer, with room for its activations; `N = B · T`.
pub(super) trait Block {
    /// Gradients that all blocks share.
    type Scratch;

    /// Adds the block's contributions to the residual stream, `[N, width]`.
    fn forward(
        &mut self,
        pass: Forward<'_>,
        heads: (&Heads, &mut AttentionScratch),
        residual: &mut [f32],
    );

    /// Computes what the backward pass needs, and changes `residual`.
    fn activate(
        &mut self,
        pass: Forward<'_>,
        heads: (&Heads, &mut AttentionScratch),
        residual: &mut [f32],
    );

    /// Turns the residual stream's gradient behind the block into that before it.
    fn backward(&self, pass: &mut Backward<'_, '_>, heads: &Heads, scratch: &mut Self::Scratch);

    /// What the attention of all blocks shares.
    fn attention_scratch(scratch: &mut Self::Scratch) -> &mut AttentionScratch;

    /// Changes the room for activations with another block, which has the same shape.
    fn swap_activations(&mut self, other: &mut Self);

    /// Where its parameters begin.
    fn first_parameter(&self) -> usize;
}

/// All blocks of a model.
#[derive(Debug)]
pub(super) struct Blocks<B> {
    blocks: Vec<B>,
    /// Whether the backward pass computes activations a second time.
    recompute: bool,
    /// The block with the activations, where one room does for all.
    holder: usize,
    /// `[N, width]` of each block: the residual stream in front of it, to compute its activations from.
    inputs: Vec<Vec<f32>>,
}

impl<B: Block> Blocks<B> {
    pub(super) const fn new(blocks: Vec<B>) -> Self {
        Self { blocks, recompute: false, holder: 0, inputs: Vec::new() }
    }

    pub(super) const fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn first(&self) -> Option<&B> {
        self.blocks.first()
    }

    /// As [`super::Model::recompute`].
    pub(super) const fn recompute(&mut self) {
        self.recompute = true;
    }

    /// Numbers that blocks keep of a pass, with `each` activations of a block and `input` in front of it.
    pub(super) const fn activations(&self, each: usize, input: usize) -> usize {
        if self.recompute { each + self.blocks.len() * input } else { self.blocks.len() * each }
    }

    /// Adds the contributions of all blocks to the residual stream, `[N, width]`; `false` when broken off.
    pub(super) fn forward(
        &mut self,
        pass: Forward<'_>,
        (heads, scratch): (&Heads, &mut AttentionScratch),
        residual: &mut [f32],
    ) -> bool {
        for index in 0..self.blocks.len() {
            if pass.compute.is_interrupted() {
                return false;
            }
            // A text in parts needs the keys and values of all blocks.
            let whole = pass.kept.is_none();
            if whole && (self.recompute || !pass.is_graded()) {
                self.give(index);
            }
            if whole && self.recompute && pass.is_graded() {
                self.keep(index, residual);
            }
            self.blocks[index].forward(pass, (heads, &mut *scratch), residual);
        }
        true
    }

    /// The backward pass through all blocks; `residual` is of no use afterwards. `false` when broken off.
    pub(super) fn backward(
        &mut self,
        pass: &mut Backward<'_, '_>,
        (heads, scratch): (&Heads, &mut B::Scratch),
        residual: &mut [f32],
    ) -> bool {
        for index in (0..self.blocks.len()).rev() {
            if pass.compute.is_interrupted() {
                return false;
            }
            if self.recompute && self.holder != index {
                self.give(index);
                residual.copy_from_slice(&self.inputs[index]);
                let attention = B::attention_scratch(scratch);
                self.blocks[index].activate(pass.again(), (heads, attention), residual);
            }
            let block = &self.blocks[index];
            block.backward(pass, heads, scratch);
            pass.is_final_from(block.first_parameter());
        }
        true
    }

    /// Gives block `index` the room of the one that has it.
    fn give(&mut self, index: usize) {
        if let Ok([from, to]) = self.blocks.get_disjoint_mut([self.holder, index]) {
            to.swap_activations(from);
        }
        self.holder = index;
    }

    /// Keeps the residual stream in front of block `index`.
    fn keep(&mut self, index: usize, residual: &[f32]) {
        if self.inputs.len() <= index {
            self.inputs.resize_with(index + 1, Vec::new);
        }
        let input = &mut self.inputs[index];
        input.clear();
        input.extend_from_slice(residual);
    }
}
