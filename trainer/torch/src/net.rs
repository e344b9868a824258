//! The reference models as libtorch computes them: stages from a batch to its logits.
//!
//! The same tensors in the same layout as the embedded engine's models, whose sources they share.

use dnode_trainer::{
    Batch, Dropout, Dropped, Input, ModelConfig, ModelKind, Objective, Rotation, SampleShape,
};
use tch::{Kind, TchError, Tensor};

use crate::config::Precision;
use crate::dropout::dropped;

/// Added to the variance of a layer norm, as in the embedded engine.
const NORM_EPSILON: f64 = 1e-5;
/// Tensors of the layout before the first transformer block: the two embeddings.
const EMBEDDINGS: usize = 2;
/// Tensors of a transformer block.
const BLOCK_TENSORS: usize = 12;

/// A model's extents.
#[derive(Clone, Copy, Debug)]
enum Form {
    Mlp { layers: usize, pixels: i64 },
    Cnn { height: i64, width: i64 },
    Gpt { layers: usize, heads: i64, width: i64, context: i64 },
    Llama { layers: usize, heads: i64, key_value_heads: i64, tied: bool, epsilon: f64 },
}

/// Tensors of a block of a llama, behind its one embedding.
const LLAMA_BLOCK_TENSORS: usize = 6;

/// A model over leaf tensors that are views of the flat parameters.
#[derive(Debug)]
pub(crate) struct Net {
    form: Form,
    /// In the order of the layout.
    leaves: Vec<Tensor>,
    /// What products are computed in.
    kind: Kind,
    recompute: bool,
    /// Cosines and sines of a llama's positions, `[T, D/2]` each.
    rotation: Option<[Tensor; 2]>,
}

fn extent(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Net {
    /// The model of `config` over `leaves`, which have the shapes of its layout.
    ///
    /// # Errors
    /// libtorch's own failure.
    pub(crate) fn new(
        config: &ModelConfig,
        shape: SampleShape,
        leaves: Vec<Tensor>,
        (precision, recompute): (Precision, bool),
    ) -> Result<Self, TchError> {
        let (height, width) = match shape {
            SampleShape::Image { height, width, .. } => (height, width),
            SampleShape::Text { .. } => (0, 0),
        };
        let form = match config.kind {
            ModelKind::Mlp => {
                Form::Mlp { layers: config.hidden.len() + 1, pixels: extent(height * width) }
            }
            ModelKind::Cnn => Form::Cnn { height: extent(height), width: extent(width) },
            ModelKind::Gpt => Form::Gpt {
                layers: config.layers,
                heads: extent(config.heads),
                width: extent(config.width),
                context: extent(config.context),
            },
            ModelKind::Llama => Form::Llama {
                layers: config.layers,
                heads: extent(config.heads),
                key_value_heads: extent(config.key_value_heads()),
                tied: config.tied,
                epsilon: config.norm_epsilon,
            },
        };
        let kind = kind(precision);
        let rotation = match form {
            Form::Llama { .. } => Some(rotation(config, leaves[0].device())?),
            Form::Mlp { .. } | Form::Cnn { .. } | Form::Gpt { .. } => None,
        };
        Ok(Self { form, leaves, kind, recompute, rotation })
    }

    /// Sum of the losses of `batch` and, when `grade`, the number of rows predicted right; both
    /// are numbers on the device. No gradient.
    pub(crate) fn score(&self, batch: &Batch) -> Result<(Tensor, Tensor), TchError> {
        tch::no_grad(|| {
            let mut x = self.input(batch)?;
            for stage in 0..self.stages() {
                x = self.stage(stage, &x, None)?;
            }
            let targets = self.targets(batch)?;
            let rows = rows(&x)?;
            let loss = cross_entropy(&rows, &targets, 0.0)?;
            // Of several that are largest the first is what the model says.
            let right = rows.f_argmax(1, false)?.f_eq_tensor(&targets)?.f_sum(Kind::Double)?;
            Ok((loss.f_to_kind(Kind::Double)?, right))
        })
    }

    /// Adds `scale · ∂(sum of what objective says)` to the leaves' gradients, without what `dropout` drops;
    /// returns the sum of the cross-entropies, a number on the device.
    pub(crate) fn backward(
        &self,
        batch: &Batch,
        scale: f64,
        (objective, dropout): (Objective, Option<Dropout>),
    ) -> Result<Tensor, TchError> {
        let targets = self.targets(batch)?;
        let last = self.stages() - 1;
        let first = if self.recompute { last } else { 0 };
        // What goes into each stage that is computed a second time, and into the first other one.
        let mut inputs = vec![self.input(batch)?];
        for stage in 0..first {
            let next = tch::no_grad(|| self.stage(stage, &inputs[stage], dropout))?;
            inputs.push(next);
        }
        let tail = leaf(&inputs[first], first)?;
        let mut x = tail.shallow_clone();
        for stage in first..=last {
            x = self.stage(stage, &x, dropout)?;
        }
        let rows = rows(&x)?;
        let minimised = minimised(&rows, &targets, objective)?;
        (&minimised * scale).f_backward()?;
        let loss = if objective.is_plain() {
            minimised.f_detach()?
        } else {
            tch::no_grad(|| cross_entropy(&rows, &targets, 0.0))?
        };
        let mut gradient = tail;
        for stage in (0..first).rev() {
            let slope = gradient.f_grad()?;
            let input = leaf(&inputs[stage], stage)?;
            let output = self.stage(stage, &input, dropout)?;
            // The gradient of this product is the stage's gradient along `slope`.
            (output * slope).f_sum(Kind::Float)?.f_backward()?;
            gradient = input;
        }
        loss.f_to_kind(Kind::Double)
    }

    /// Number of stages, at least 1.
    const fn stages(&self) -> usize {
        match self.form {
            Form::Mlp { layers, .. } => layers,
            Form::Cnn { .. } => 4,
            Form::Gpt { layers, .. } | Form::Llama { layers, .. } => layers + 2,
        }
    }

    /// What the first stage reads: `[B, I]` or `[B, 1, H, W]` f32, or `[B, T]` tokens.
    fn input(&self, batch: &Batch) -> Result<Tensor, TchError> {
        let samples = extent(batch.samples);
        let device = self.leaves[0].device();
        match (&batch.input, self.form) {
            (Input::Tokens(tokens), _) => whole(tokens)?.f_view([samples, -1])?.f_to(device),
            (Input::Images(images), Form::Cnn { height, width }) => {
                Tensor::f_from_slice(images)?.f_view([samples, 1, height, width])?.f_to(device)
            }
            (Input::Images(images), Form::Mlp { pixels, .. }) => {
                Tensor::f_from_slice(images)?.f_view([samples, pixels])?.f_to(device)
            }
            (Input::Images(_), Form::Gpt { .. } | Form::Llama { .. }) => {
                Err(TchError::Torch("a language model was given images".to_owned()))
            }
        }
    }

    /// `[N]`.
    fn targets(&self, batch: &Batch) -> Result<Tensor, TchError> {
        whole(&batch.targets)?.f_to(self.leaves[0].device())
    }

    fn stage(
        &self,
        index: usize,
        x: &Tensor,
        dropout: Option<Dropout>,
    ) -> Result<Tensor, TchError> {
        match self.form {
            Form::Mlp { layers, .. } => {
                let x = self.linear(x, 2 * index)?;
                if index + 1 == layers { Ok(x) } else { x.f_relu() }
            }
            Form::Cnn { .. } => match index {
                0 | 1 => self.convolution(x, 2 * index),
                // The embedded engine keeps images as rows, columns, channels.
                2 => {
                    let rows = x.f_permute([0, 2, 3, 1])?.f_flatten(1, -1)?;
                    self.linear(&rows, 4)?.f_relu()
                }
                _ => self.linear(x, 6),
            },
            Form::Gpt { layers, heads, width, context } => {
                if index == 0 {
                    let tokens = Tensor::f_embedding(&self.leaves[0], x, -1, false, false)?;
                    let first = tokens.f_add(&self.leaves[1].f_narrow(0, 0, context)?)?;
                    return dropped(first, dropout, Dropped::Embedding);
                }
                let block = EMBEDDINGS + BLOCK_TENSORS * (index - 1);
                if index > layers {
                    let x = self.norm(x, block, width)?;
                    let table = self.cast(&self.leaves[0])?;
                    return self.cast(&x)?.f_linear(&table, None::<Tensor>);
                }
                let added = self.attention(x, block, (heads, width))?;
                let added = dropped(added, dropout, Dropped::Attention(index - 1))?;
                let x = (x + added).f_to_kind(Kind::Float)?;
                let inner = self.linear(&self.norm(&x, block + 6, width)?, block + 8)?;
                let inner = self.linear(&inner.f_gelu("tanh")?, block + 10)?;
                (x + dropped(inner, dropout, Dropped::Inner(index - 1))?).f_to_kind(Kind::Float)
            }
            Form::Llama { layers, tied, epsilon, .. } => {
                if index == 0 {
                    let tokens = Tensor::f_embedding(&self.leaves[0], x, -1, false, false)?;
                    return dropped(tokens, dropout, Dropped::Embedding);
                }
                let block = 1 + LLAMA_BLOCK_TENSORS * (index - 1);
                if index > layers {
                    let head = if tied { 0 } else { block + 1 };
                    return self.product(&self.root_norm(x, block, epsilon)?, head);
                }
                let added = self.grouped_attention(x, block)?;
                let added = dropped(added, dropout, Dropped::Attention(index - 1))?;
                let x = (x + added).f_to_kind(Kind::Float)?;
                let rows = self.product(&self.root_norm(&x, block + 3, epsilon)?, block + 4)?;
                let halves = rows.f_chunk(2, -1)?;
                let [gate, up] = halves.as_slice() else {
                    return Err(TchError::Torch("gate and up are two".to_owned()));
                };
                let inner = self.product(&gate.f_silu()?.f_mul(up)?, block + 5)?;
                (x + dropped(inner, dropout, Dropped::Inner(index - 1))?).f_to_kind(Kind::Float)
            }
        }
    }

    fn cast(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        if tensor.kind() == self.kind {
            return Ok(tensor.shallow_clone());
        }
        tensor.f_to_kind(self.kind)
    }

    /// The layer whose weight and bias are the leaves `first` and `first + 1`.
    fn linear(&self, x: &Tensor, first: usize) -> Result<Tensor, TchError> {
        let [weight, bias] = [first, first + 1].map(|leaf| self.cast(&self.leaves[leaf]));
        self.cast(x)?.f_linear(&weight?, Some(bias?))
    }

    /// The layer without a bias whose weight is the leaf `weight`.
    fn product(&self, x: &Tensor, weight: usize) -> Result<Tensor, TchError> {
        self.cast(x)?.f_linear(&self.cast(&self.leaves[weight])?, None::<Tensor>)
    }

    /// By the root mean square, computed in f32 whatever the precision.
    fn root_norm(&self, x: &Tensor, gain: usize, epsilon: f64) -> Result<Tensor, TchError> {
        let square = x.f_square()?.f_mean_dim([-1_i64].as_slice(), true, Kind::Float)?;
        let root = square.f_add_scalar(epsilon)?.f_rsqrt()?;
        x.f_mul(&root)?.f_mul(&self.leaves[gain])
    }

    /// Computed in f32 whatever the precision.
    fn norm(&self, x: &Tensor, first: usize, width: i64) -> Result<Tensor, TchError> {
        let (gain, bias) = (&self.leaves[first], &self.leaves[first + 1]);
        x.f_layer_norm([width], Some(gain), Some(bias), NORM_EPSILON, true)
    }

    /// Convolution, ReLU, pooling; kernels are `[output, 3, 3, input]` as in the embedded engine.
    fn convolution(&self, x: &Tensor, first: usize) -> Result<Tensor, TchError> {
        let kernel = self.cast(&self.leaves[first])?.f_permute([0, 3, 1, 2])?;
        let bias = self.cast(&self.leaves[first + 1])?;
        let grid = self.cast(x)?.f_conv2d(&kernel, Some(bias), [1], [1], [1], 1)?;
        grid.f_relu()?.f_max_pool2d([2], [2], [0], [1], false)
    }

    /// The block's attention of `x`, `[B, T, W]`, with its norm and projection.
    fn attention(
        &self,
        x: &Tensor,
        block: usize,
        (heads, width): (i64, i64),
    ) -> Result<Tensor, TchError> {
        let qkv = self.linear(&self.norm(x, block, width)?, block + 2)?;
        let (samples, tokens, _) = qkv.size3()?;
        let qkv = qkv.f_view([samples, tokens, 3, heads, width / heads])?;
        let parts = qkv.f_permute([2, 0, 3, 1, 4])?.f_unbind(0)?;
        let [query, key, value] = parts.as_slice() else {
            return Err(TchError::Torch("query, key and value are three".to_owned()));
        };
        let rows = attended(query, key, value)?.f_reshape([samples, tokens, width])?;
        self.linear(&rows, block + 4)
    }

    /// The attention of a llama's block, with its norm and projection: `x`, `[B, T, W]`.
    fn grouped_attention(&self, x: &Tensor, block: usize) -> Result<Tensor, TchError> {
        let (Form::Llama { heads, key_value_heads, epsilon, .. }, Some(rotation)) =
            (self.form, &self.rotation)
        else {
            return Err(TchError::Torch("only a llama has grouped heads".to_owned()));
        };
        let (samples, tokens, width) = x.size3()?;
        let rows = self.product(&self.root_norm(x, block, epsilon)?, block + 1)?;
        let rows = rows.f_view([samples, tokens, heads + 2 * key_value_heads, width / heads])?;
        let parts = rows
            .f_transpose(1, 2)?
            .f_split_with_sizes([heads, key_value_heads, key_value_heads], 1)?;
        let [query, key, value] = parts.as_slice() else {
            return Err(TchError::Torch("query, key and value are three".to_owned()));
        };
        let turned = |part: &Tensor| self.cast(&turned(part, rotation)?);
        // Each head of keys and values stands for those of its group.
        let repeated = |part: &Tensor| -> Result<Tensor, TchError> {
            let each = [samples, key_value_heads, heads / key_value_heads, tokens, width / heads];
            part.f_unsqueeze(2)?.f_expand(each, false)?.f_reshape([
                samples,
                heads,
                tokens,
                width / heads,
            ])
        };
        let attended = attended(&turned(query)?, &repeated(&turned(key)?)?, &repeated(value)?)?;
        self.product(&attended.f_reshape([samples, tokens, width])?, block + 2)
    }
}

/// The numbers that products are computed in.
pub(crate) const fn kind(precision: Precision) -> Kind {
    match precision {
        Precision::F32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
        Precision::Fp16 => Kind::Half,
    }
}

/// What each head attends to, heads of a token side by side: `[B, T, H, D]` of `[B, H, T, D]`.
fn attended(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor, TchError> {
    let heads = Tensor::f_scaled_dot_product_attention(
        query,
        key,
        value,
        None::<Tensor>,
        0.0,
        true,
        None,
        false,
    )?;
    heads.f_transpose(1, 2)
}

/// Cosines and sines of the positions of `config`, as the embedded engine has them.
fn rotation(config: &ModelConfig, device: tch::Device) -> Result<[Tensor; 2], TchError> {
    let head_width = config.width / config.heads;
    let rotation = Rotation::new(config);
    let table = |values: &[f32]| {
        Tensor::f_from_slice(values)?.f_view([-1, extent(head_width / 2)])?.f_to(device)
    };
    Ok([table(rotation.cosines())?, table(rotation.sines())?])
}

/// Queries or keys, `[B, H, T, D]`, with each pair of channels turned; in f32.
fn turned(heads: &Tensor, [cosines, sines]: &[Tensor; 2]) -> Result<Tensor, TchError> {
    let halves = heads.f_to_kind(Kind::Float)?.f_chunk(2, -1)?;
    let [first, second] = halves.as_slice() else {
        return Err(TchError::Torch("a pair of channels is two".to_owned()));
    };
    let one = first.f_mul(cosines)?.f_sub(&second.f_mul(sines)?)?;
    let other = second.f_mul(cosines)?.f_add(&first.f_mul(sines)?)?;
    Tensor::f_cat(&[one, other], -1)
}

/// A tensor that gradients stop at; the first stage's input needs none itself.
fn leaf(input: &Tensor, stage: usize) -> Result<Tensor, TchError> {
    let leaf = input.f_detach()?;
    if stage == 0 { Ok(leaf) } else { leaf.f_set_requires_grad(true) }
}

/// Token or label numbers as libtorch wants them.
fn whole(values: &[u32]) -> Result<Tensor, TchError> {
    let values: Vec<i64> = values.iter().map(|&value| i64::from(value)).collect();
    Tensor::f_from_slice(&values)
}

/// A row of logits for each target, in f32: `[N, K]` of `[.., K]`.
fn rows(logits: &Tensor) -> Result<Tensor, TchError> {
    let classes = logits.size().last().copied().unwrap_or(1);
    logits.f_reshape([-1, classes])?.f_to_kind(Kind::Float)
}

/// Sum of the rows' cross-entropies, nats, with the share `smoothing` of each target spread over all
/// classes; `targets`: `[N]`.
fn cross_entropy(rows: &Tensor, targets: &Tensor, smoothing: f32) -> Result<Tensor, TchError> {
    let smoothing = f64::from(smoothing);
    rows.f_cross_entropy_loss(targets, None::<Tensor>, tch::Reduction::Sum, -100, smoothing)
}

/// Sum over the rows of what `objective` says of them.
fn minimised(rows: &Tensor, targets: &Tensor, objective: Objective) -> Result<Tensor, TchError> {
    let loss = cross_entropy(rows, targets, objective.label_smoothing)?;
    if objective.z_loss <= 0.0 {
        return Ok(loss);
    }
    let squares = rows.f_logsumexp([-1_i64].as_slice(), false)?.f_square()?.f_sum(Kind::Float)?;
    loss.f_add(&squares.f_mul_scalar(f64::from(objective.z_loss))?)
}
