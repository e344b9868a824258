//! A linear layer's place in the flat parameters and its products.

use std::ops::Range;

use dnode_protocol::{LayoutError, ParameterLayout};

use super::adapter::Adapter;
use super::{Backward, Forward};
use crate::kernel::dropout::Dropped;
use crate::kernel::{Blend, Matrix, MatrixMut, reduce};

/// `y ← x · Wᵀ + b`, weight `[outputs, inputs]`, bias `[outputs]` or none.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) weight: Range<usize>,
    /// Empty where there is none.
    pub(crate) bias: Range<usize>,
    pub(super) adapters: Vec<Adapter>,
}

impl Linear {
    /// Appends `<name>.weight` and `<name>.bias` to the layout.
    pub(crate) fn push(
        layout: &mut ParameterLayout,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self, LayoutError> {
        let plain = Self::push_plain(layout, name, inputs, outputs)?;
        let bias = layout.push(&format!("{name}.bias"), &[outputs])?;
        Ok(Self { bias, ..plain })
    }

    /// As [`Self::push`], without a bias.
    pub(crate) fn push_plain(
        layout: &mut ParameterLayout,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self, LayoutError> {
        let weight = layout.push(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = weight.end..weight.end;
        Ok(Self { inputs, outputs, weight, bias, adapters: Vec::new() })
    }

    /// The bias, `[outputs]`, or nothing.
    pub(crate) fn bias<'a>(&self, pass: Forward<'a>) -> &'a [f32] {
        &pass.parameters[self.bias.clone()]
    }

    /// `output ← input · Wᵀ` without the bias; `input`: `[N, inputs]`, `output`: `[N, outputs]`.
    pub(crate) fn product(&self, pass: Forward<'_>, input: &[f32], output: &mut [f32]) {
        self.multiply(pass, input, output, Blend::Replace);
    }

    /// `output ← output + input · Wᵀ + b`, of which the pass drops what it drops of `place`.
    pub(crate) fn add(&self, pass: Forward<'_>, place: Dropped, input: &[f32], output: &mut [f32]) {
        let Some(dropout) = pass.dropout else {
            self.multiply(pass, input, output, Blend::Add);
            return self.add_bias(pass, output);
        };
        let mut added = vec![0.0; output.len()];
        self.product(pass, input, &mut added);
        self.add_bias(pass, &mut added);
        dropout.apply(place, &mut added);
        reduce::add_scaled(output, &added, 1.0);
    }

    /// `output ← output + b`.
    pub(crate) fn add_bias(&self, pass: Forward<'_>, output: &mut [f32]) {
        if !self.bias.is_empty() {
            reduce::add_bias(output, self.bias(pass));
        }
    }

    fn multiply(&self, pass: Forward<'_>, input: &[f32], output: &mut [f32], blend: Blend) {
        let rows = output.len() / self.outputs;
        let weight = Matrix::new(&pass.parameters[self.weight.clone()], self.outputs, self.inputs);
        MatrixMut::new(&mut *output, rows, self.outputs).product_on(
            pass.compute,
            Matrix::new(input, rows, self.inputs),
            weight.transposed(),
            blend,
        );
        for adapter in &self.adapters {
            adapter.add(pass, (input, self.inputs), (&mut *output, self.outputs));
        }
    }

    /// Adds the gradients of weight, bias and adapters, or puts them in the place of what was there;
    /// `output_gradient`: `[N, outputs]`.
    pub(crate) fn backward_parameters(
        &self,
        pass: &mut Backward<'_, '_>,
        input: &[f32],
        output_gradient: &[f32],
    ) {
        let rows = output_gradient.len() / self.outputs;
        let (compute, blend) = (pass.compute, pass.blend);
        for adapter in &self.adapters {
            adapter.backward_parameters(
                pass,
                (input, self.inputs),
                (output_gradient, self.outputs),
            );
        }
        if let Some(weight_gradient) = pass.gradient_of(&self.weight) {
            MatrixMut::new(weight_gradient, self.outputs, self.inputs).product_on(
                compute,
                Matrix::new(output_gradient, rows, self.outputs).transposed(),
                Matrix::new(input, rows, self.inputs),
                blend,
            );
        }
        if self.bias.is_empty() {
            return;
        }
        if let Some(bias_gradient) = pass.gradient_of(&self.bias) {
            if blend == Blend::Replace {
                bias_gradient.fill(0.0);
            }
            reduce::add_column_sums(output_gradient, bias_gradient);
        }
    }

    /// `input_gradient ← output_gradient · W`; `input_gradient`: `[N, inputs]`.
    pub(crate) fn backward_input(
        &self,
        pass: &Backward<'_, '_>,
        output_gradient: &[f32],
        input_gradient: &mut [f32],
    ) {
        let rows = output_gradient.len() / self.outputs;
        let weight = &pass.parameters[self.weight.clone()];
        MatrixMut::new(&mut *input_gradient, rows, self.inputs).product_on(
            pass.compute,
            Matrix::new(output_gradient, rows, self.outputs),
            Matrix::new(weight, self.outputs, self.inputs),
            Blend::Replace,
        );
        for adapter in &self.adapters {
            let output_gradient = (output_gradient, self.outputs);
            adapter.backward_input(pass, output_gradient, (&mut *input_gradient, self.inputs));
        }
    }
}
