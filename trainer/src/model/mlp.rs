//! Multi-layer perceptron on flat images with ReLU between the layers.

use dnode_protocol::{LayoutError, ParameterLayout};
use rand_chacha::ChaCha8Rng;

use super::linear::Linear;
use super::{Backward, Forward, Model, initial};
use crate::batch::{Batch, Input};
use crate::kernel::activation::{add_bias_relu, relu_backward};
use crate::kernel::loss::{Score, cross_entropy};
use crate::kernel::reduce;

/// The model and its activations.
#[derive(Debug)]
pub(crate) struct Mlp {
    layout: ParameterLayout,
    layers: Vec<Linear>,
    /// Output of each layer, `[B, outputs]`; the last one holds logits, then their gradient.
    activations: Vec<Vec<f32>>,
    /// Gradient of each layer's output but the last one's, `[B, outputs]`.
    gradients: Vec<Vec<f32>>,
}

impl Mlp {
    /// `pixels` → `hidden` … → `classes`.
    pub(crate) fn new(
        pixels: usize,
        hidden: &[usize],
        classes: usize,
    ) -> Result<Self, LayoutError> {
        let mut layout = ParameterLayout::new();
        let mut inputs = pixels;
        let mut layers = Vec::new();
        for (index, &outputs) in hidden.iter().chain([&classes]).enumerate() {
            let name = format!("layer{index}");
            layers.push(Linear::push(&mut layout, &name, inputs, outputs)?);
            inputs = outputs;
        }
        Ok(Self {
            layout,
            activations: vec![Vec::new(); layers.len()],
            gradients: vec![Vec::new(); hidden.len()],
            layers,
        })
    }
}

/// The images of a batch, `[B, I]`; the trainer has checked that the batch holds images.
pub(super) fn images(batch: &Batch) -> &[f32] {
    match &batch.input {
        Input::Images(images) => images,
        Input::Tokens(_) => &[],
    }
}

impl Model for Mlp {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn initialize(&self, random: &mut ChaCha8Rng, parameters: &mut [f32]) {
        let last = self.layers.len() - 1;
        for (index, layer) in self.layers.iter().enumerate() {
            let gain = if index == last { 1.0 } else { 2.0 };
            let weight = &mut parameters[layer.weight.clone()];
            initial::uniform(random, weight, layer.inputs, gain);
            parameters[layer.bias.clone()].fill(0.0);
        }
    }

    fn forward(&mut self, pass: Forward<'_>, batch: &Batch) -> Score {
        let last = self.layers.len() - 1;
        let mut score = Score::default();
        for (index, layer) in self.layers.iter().enumerate() {
            if pass.compute.is_interrupted() {
                break;
            }
            let (before, rest) = self.activations.split_at_mut(index);
            let input = before.last().map_or_else(|| images(batch), Vec::as_slice);
            let output = &mut rest[0];
            output.resize(batch.samples * layer.outputs, 0.0);
            layer.product(pass, input, output);
            if index == last {
                reduce::add_bias(output, layer.bias(pass));
                score = cross_entropy(output, &batch.targets, layer.outputs, pass.objective);
            } else {
                add_bias_relu(output, layer.bias(pass));
            }
        }
        score
    }

    fn activations(&self, samples: usize, _threads: usize) -> usize {
        let outputs: usize = self.layers.iter().map(|layer| layer.outputs).sum();
        let logits = self.layers.last().map_or(0, |layer| layer.outputs);
        samples * (2 * outputs - logits)
    }

    fn replaces_gradient(&self) -> bool {
        true
    }

    fn backward(&mut self, mut pass: Backward<'_, '_>, batch: &Batch, scale: f32) {
        let last = self.layers.len() - 1;
        reduce::scale(&mut self.activations[last], scale);
        for (index, layer) in self.layers.iter().enumerate().rev() {
            if pass.compute.is_interrupted() {
                return;
            }
            let (before, after) = self.gradients.split_at_mut(index);
            let gradient = after.first().unwrap_or(&self.activations[last]);
            let Some(input_gradient) = before.last_mut() else {
                layer.backward_parameters(&mut pass, images(batch), gradient);
                pass.is_final_from(0);
                return;
            };
            let input = &self.activations[index - 1];
            layer.backward_parameters(&mut pass, input, gradient);
            pass.is_final_from(layer.weight.start);
            input_gradient.resize(batch.samples * layer.inputs, 0.0);
            layer.backward_input(&pass, gradient, input_gradient);
            relu_backward(input_gradient, input);
        }
    }
}
