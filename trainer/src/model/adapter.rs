//! Low-rank adapters: what is trained beside frozen weights.
//!
//! Source: Hu et al., arXiv:2106.09685, §4.1. Numbers are those of `peft` on the same weights
//! (`golden.rs`). Shape letters: `N` rows, `R` the rank.

use std::ops::Range;

use dnode_protocol::ParameterLayout;
use rand_chacha::ChaCha8Rng;

use super::linear::Linear;
use super::{Backward, Forward, initial};
use crate::config::{ConfigError, ModelConfig, ensure};
use crate::hugging_face::names::{Part, parts};
use crate::kernel::{Blend, Compute, Matrix, MatrixMut, reduce};

/// How the names of the two matrices of an adapter end.
const DOWN: &str = ".lora_A";
const UP: &str = ".lora_B";
/// With it, [`initial::uniform`] is uniform within `±1/√inputs`, as in `peft`.
const GAIN: f32 = 1.0 / 3.0;

/// A product of two thin matrices, added to some rows of a layer's weight:
/// `y[rows] ← y[rows] + scale · x · Aᵀ · Bᵀ`.
#[derive(Clone, Debug)]
pub(super) struct Adapter {
    /// Of the outputs of the layer.
    rows: Range<usize>,
    rank: usize,
    scale: f32,
    /// `[R, inputs]`.
    down: Range<usize>,
    /// `[rows, R]`.
    up: Range<usize>,
}

/// Names and places of a model's numbers: the trained ones lie behind the frozen ones.
#[derive(Debug)]
pub(super) struct Layouts {
    pub(super) frozen: ParameterLayout,
    pub(super) trained: ParameterLayout,
}

/// An adapter's place among those of a model: the names of its two matrices, and what it adapts.
#[derive(Clone, Debug)]
pub(crate) struct Adapted<'a> {
    /// The adapted tensor of `transformers`, and where it is in dnode's.
    pub(crate) part: Part<'a>,
    pub(crate) down: String,
    pub(crate) up: String,
}

/// Whether a tensor of this name is a matrix of an adapter.
pub(crate) fn is_of_adapter(name: &str) -> bool {
    name.ends_with(DOWN) || name.ends_with(UP)
}

/// The adapters that a configuration asks for beside the weights of `frozen`, in their order.
///
/// # Errors
/// [`ConfigError::Range`] names a target that is no module of this model.
pub(crate) fn adapted<'a>(
    config: &ModelConfig,
    frozen: &'a ParameterLayout,
) -> Result<Vec<Adapted<'a>>, ConfigError> {
    let module = |part: &Part<'_>| {
        let path = part.name.strip_suffix(".weight")?;
        let name = path.rsplit('.').next()?.to_owned();
        (part.own.name.starts_with("block") && part.own.shape.len() == 2).then_some(name)
    };
    let parts = parts(config, frozen).unwrap_or_default();
    let modules: Vec<(String, Part<'a>)> =
        parts.into_iter().filter_map(|part| Some((module(&part)?, part))).collect();
    let mut known: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    let targets = &config.lora_targets;
    let legal = !targets.is_empty() && targets.iter().all(|it| known.contains(&it.as_str()));
    let expected = format!("some of {}, the modules of a {}", known.join(", "), config.kind);
    ensure(legal, "model.lora_targets", targets, expected)?;
    let chosen = modules.into_iter().filter(|(name, _)| targets.contains(name));
    let named = chosen.map(|(name, part)| {
        let layer = part.own.name.trim_end_matches(".weight");
        let (down, up) = (format!("{layer}.{name}{DOWN}"), format!("{layer}.{name}{UP}"));
        Adapted { part, down, up }
    });
    Ok(named.collect())
}

impl Layouts {
    /// The numbers of a model whose weights are those of `weights`; where `config` asks for adapters, these
    /// alone are trained, and `layers` hold them.
    pub(super) fn new<'l>(
        config: &ModelConfig,
        weights: ParameterLayout,
        layers: impl Iterator<Item = &'l mut Linear>,
    ) -> Result<Self, ConfigError> {
        if config.lora_rank == 0 {
            return Ok(Self { frozen: ParameterLayout::new(), trained: weights });
        }
        let mut trained = ParameterLayout::new();
        let mut layers: Vec<&mut Linear> = layers.collect();
        let rank = config.lora_rank;
        let moved = |range: Range<usize>| {
            let first = weights.parameters();
            first + range.start..first + range.end
        };
        for Adapted { part, down, up } in adapted(config, &weights)? {
            let (rows, inputs) = (part.rows(), part.own.shape[1]);
            let most = rows.len().min(inputs);
            let legal = format!("at most {most}, the shorter side of {}", part.name);
            ensure(rank <= most, "model.lora_rank", rank, legal)?;
            let down = moved(trained.push(&down, &[rank, inputs])?);
            let up = moved(trained.push(&up, &[rows.len(), rank])?);
            let scale = config.lora_scale();
            let own = layers.iter_mut().filter(|it| it.weight.start == part.own.offset);
            own.for_each(|layer| {
                let (rows, down, up) = (rows.clone(), down.clone(), up.clone());
                layer.adapters.push(Adapter { rows, rank, scale, down, up });
            });
        }
        Ok(Self { frozen: weights, trained })
    }

    /// The weights that stay as they are; `None` where all are trained.
    pub(super) fn frozen(&self) -> Option<&ParameterLayout> {
        Some(&self.frozen).filter(|frozen| !frozen.tensors().is_empty())
    }

    /// Initial adapters, which change nothing yet.
    pub(super) fn initialize_adapters(&self, random: &mut ChaCha8Rng, adapters: &mut [f32]) {
        for tensor in self.trained.tensors() {
            let values = &mut adapters[tensor.range()];
            if tensor.name.ends_with(UP) {
                values.fill(0.0);
            } else {
                initial::uniform(random, values, tensor.shape[1], GAIN);
            }
        }
    }
}

impl Adapter {
    /// Adds to its columns of `output`, `[N, outputs]`; `input`: `[N, inputs]`.
    pub(super) fn add(
        &self,
        pass: Forward<'_>,
        (input, inputs): (&[f32], usize),
        (output, outputs): (&mut [f32], usize),
    ) {
        let count = output.len() / outputs;
        let low = self.lowered((pass.compute, pass.parameters), Matrix::new(input, count, inputs));
        let columns = &mut output[self.rows.start..];
        MatrixMut::strided(columns, count, self.rows.len(), outputs).product_on(
            pass.compute,
            Matrix::new(&low, count, self.rank),
            self.up(pass.parameters).transposed(),
            Blend::Add,
        );
    }

    /// Adds the gradients of its two matrices; `output_gradient`: `[N, outputs]`.
    pub(super) fn backward_parameters(
        &self,
        pass: &mut Backward<'_, '_>,
        (input, inputs): (&[f32], usize),
        (output_gradient, outputs): (&[f32], usize),
    ) {
        let count = output_gradient.len() / outputs;
        let (compute, parameters) = (pass.compute, pass.parameters);
        let input = Matrix::new(input, count, inputs);
        let columns = self.columns((output_gradient, outputs));
        // Computed again, so that nothing more is kept of the forward pass.
        let low = self.lowered((compute, parameters), input);
        if let Some(gradient) = pass.gradient_of(&self.up) {
            MatrixMut::new(gradient, self.rows.len(), self.rank).product_on(
                compute,
                columns.transposed(),
                Matrix::new(&low, count, self.rank),
                Blend::Add,
            );
        }
        let low_gradient = self.low_gradient((compute, parameters), columns, count);
        if let Some(gradient) = pass.gradient_of(&self.down) {
            MatrixMut::new(gradient, self.rank, inputs).product_on(
                compute,
                Matrix::new(&low_gradient, count, self.rank).transposed(),
                input,
                Blend::Add,
            );
        }
    }

    /// Adds to `input_gradient`, `[N, inputs]`.
    pub(super) fn backward_input(
        &self,
        pass: &Backward<'_, '_>,
        (output_gradient, outputs): (&[f32], usize),
        (input_gradient, inputs): (&mut [f32], usize),
    ) {
        let count = output_gradient.len() / outputs;
        let columns = self.columns((output_gradient, outputs));
        let low_gradient = self.low_gradient((pass.compute, pass.parameters), columns, count);
        let down = &pass.parameters[self.down.clone()];
        MatrixMut::new(input_gradient, count, inputs).product_on(
            pass.compute,
            Matrix::new(&low_gradient, count, self.rank),
            Matrix::new(down, self.rank, inputs),
            Blend::Add,
        );
    }

    fn up<'a>(&self, parameters: &'a [f32]) -> Matrix<'a> {
        Matrix::new(&parameters[self.up.clone()], self.rows.len(), self.rank)
    }

    /// Its columns of the gradient of a layer's output.
    fn columns<'a>(&self, (output_gradient, outputs): (&'a [f32], usize)) -> Matrix<'a> {
        let count = output_gradient.len() / outputs;
        Matrix::strided(&output_gradient[self.rows.start..], count, self.rows.len(), outputs)
    }

    /// `scale · x · Aᵀ`: `[N, R]`.
    fn lowered(&self, (compute, parameters): (&Compute, &[f32]), input: Matrix<'_>) -> Vec<f32> {
        let (count, inputs) = input.shape();
        let down = Matrix::new(&parameters[self.down.clone()], self.rank, inputs);
        self.scaled(compute, count, (input, down.transposed()))
    }

    /// `scale · ∂y · B`: `[N, R]`.
    fn low_gradient(
        &self,
        (compute, parameters): (&Compute, &[f32]),
        columns: Matrix<'_>,
        count: usize,
    ) -> Vec<f32> {
        self.scaled(compute, count, (columns, self.up(parameters)))
    }

    fn scaled(
        &self,
        compute: &Compute,
        count: usize,
        (left, right): (Matrix<'_>, Matrix<'_>),
    ) -> Vec<f32> {
        let mut low = vec![0.0; count * self.rank];
        let product = MatrixMut::new(&mut low, count, self.rank);
        product.product_on(compute, left, right, Blend::Replace);
        reduce::scale(&mut low, self.scale);
        low
    }
}

/// Adds the product of an adapter's matrices to the weight that it adapts, `[rows, inputs]`.
pub(crate) fn merge(weight: &mut [f32], (down, up): (&[f32], &[f32]), config: &ModelConfig) {
    let rank = config.lora_rank;
    let (rows, inputs) = (up.len() / rank, down.len() / rank);
    let mut scaled = up.to_vec();
    reduce::scale(&mut scaled, config.lora_scale());
    MatrixMut::new(weight, rows, inputs).product(
        Matrix::new(&scaled, rows, rank),
        Matrix::new(down, rank, inputs),
        Blend::Add,
    );
}
