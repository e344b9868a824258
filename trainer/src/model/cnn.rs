//! Convolutional network: two 3×3 convolutions with ReLU and pooling, then two linear layers.
//!
//! Samples are independent up to the linear layers, so threads share them out. Gradients of the
//! kernels are summed per group of samples and then over groups in order: the sum is the same for
//! any number of threads.

use std::ops::Range;

use dnode_protocol::{LayoutError, ParameterLayout};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::linear::Linear;
use super::mlp::images;
use super::{Backward, Forward, Model, initial};
use crate::batch::Batch;
use crate::kernel::activation::{add_bias_relu, relu_backward};
use crate::kernel::convolution::ConvolutionShape;
use crate::kernel::loss::{Score, cross_entropy};
use crate::kernel::{Compute, reduce};

/// Smallest image side: two poolings leave one pixel.
pub(crate) const SIDE_MIN: usize = 4;
/// Channels of the two convolutions.
const CHANNELS: [usize; 2] = [16, 32];
/// Width of the hidden linear layer.
const HIDDEN: usize = 128;
/// Samples whose kernel gradients are summed first.
const GROUP_SAMPLES: usize = 8;

/// As [`super::describe`].
pub(super) fn describe(height: usize, width: usize, classes: usize) -> Value {
    json!({
        "kind": "cnn",
        "height": height,
        "width": width,
        "channels": CHANNELS,
        "kernel": 3,
        "padding": 1,
        "pooling": 2,
        "hidden": HIDDEN,
        "classes": classes,
        "activation": "relu",
        "kernel_order": "output, row, column, input",
        "feature_order": "row, column, channel",
        "loss": "cross-entropy",
    })
}

/// Both convolutions; ranges index the flat parameters, which begin with them.
#[derive(Debug)]
struct Convolutions {
    first: ConvolutionShape,
    second: ConvolutionShape,
    kernels: [Range<usize>; 2],
    biases: [Range<usize>; 2],
}

/// Buffers for one sample, one set for each thread.
#[derive(Debug)]
struct Scratch {
    /// The image with a border, one channel.
    padded: Vec<f32>,
    first_grid: Vec<f32>,
    second_grid: Vec<f32>,
    first_gradient: Vec<f32>,
    second_gradient: Vec<f32>,
    /// Gradient of the second convolution's input, a grid.
    input_gradient: Vec<f32>,
}

/// What the convolutions of some samples keep for the backward pass.
#[derive(Debug)]
struct Kept<'a> {
    /// `[samples, pooled pixels, 16]`.
    first_routes: &'a mut [u8],
    /// `[samples]` padded images of 16 channels: the second convolution's input.
    middle: &'a mut [f32],
    /// `[samples, pooled pixels, 32]`.
    second_routes: &'a mut [u8],
}

/// The model and its activations.
#[derive(Debug)]
pub(crate) struct Cnn {
    layout: ParameterLayout,
    convolutions: Convolutions,
    hidden: Linear,
    output: Linear,
    scratch: Vec<Scratch>,
    first_routes: Vec<u8>,
    middle: Vec<f32>,
    second_routes: Vec<u8>,
    /// `[B, features]`.
    features: Vec<f32>,
    /// `[B, 128]`.
    activations: Vec<f32>,
    /// `[B, classes]`: logits, then their gradient.
    logits: Vec<f32>,
    features_gradient: Vec<f32>,
    activations_gradient: Vec<f32>,
    /// `[groups, convolution parameters]`.
    partial: Vec<f32>,
    /// The second kernel, mirrored.
    mirrored: Vec<f32>,
}

impl Convolutions {
    fn push(
        layout: &mut ParameterLayout,
        height: usize,
        width: usize,
    ) -> Result<Self, LayoutError> {
        let first = ConvolutionShape { height, width, inputs: 1, outputs: CHANNELS[0] };
        let (height, width) = first.pooled();
        let second = ConvolutionShape { height, width, inputs: CHANNELS[0], outputs: CHANNELS[1] };
        let mut push = |name: &str, shape: ConvolutionShape| {
            let extents = [shape.outputs, 3, 3, shape.inputs];
            let kernel = layout.push(&format!("{name}.weight"), &extents)?;
            Ok((kernel, layout.push(&format!("{name}.bias"), &[shape.outputs])?))
        };
        let (first_kernel, first_bias) = push("convolution0", first)?;
        let (second_kernel, second_bias) = push("convolution1", second)?;
        Ok(Self {
            first,
            second,
            kernels: [first_kernel, second_kernel],
            biases: [first_bias, second_bias],
        })
    }

    /// Parameters of both.
    const fn parameters(&self) -> usize {
        self.biases[1].end
    }

    /// Values per image behind the second pooling.
    const fn features(&self) -> usize {
        let (height, width) = self.second.pooled();
        height * width * CHANNELS[1]
    }

    /// Routes per image of the first pooling.
    const fn first_routes(&self) -> usize {
        let (height, width) = self.first.pooled();
        height * width * CHANNELS[0]
    }

    /// Elements of a row of the second convolution's padded input, and of its first inner pixel.
    const fn middle_strides(&self) -> (usize, usize) {
        let stride = (self.second.width + 2) * CHANNELS[0];
        (stride, stride + CHANNELS[0])
    }

    fn scratch(&self) -> Scratch {
        Scratch {
            padded: vec![0.0; self.first.padded(1)],
            first_grid: vec![0.0; self.first.grid(CHANNELS[0])],
            second_grid: vec![0.0; self.second.grid(CHANNELS[1])],
            first_gradient: vec![0.0; self.first.padded(CHANNELS[0])],
            second_gradient: vec![0.0; self.second.padded(CHANNELS[1])],
            input_gradient: vec![0.0; self.second.grid(CHANNELS[0])],
        }
    }

    /// Computes the features of some images, one after the other.
    fn forward(
        &self,
        pass: Forward<'_>,
        images: &[f32],
        (scratch, kept): (&mut Scratch, Kept<'_>),
        features: &mut [f32],
    ) {
        let (stride, inner) = self.middle_strides();
        let [first_kernel, second_kernel] =
            self.kernels.clone().map(|range| &pass.parameters[range]);
        let [first_bias, second_bias] = self.biases.clone().map(|range| &pass.parameters[range]);
        let row = self.second.pooled().1 * CHANNELS[1];
        let samples = images
            .chunks_exact(self.first.height * self.first.width)
            .zip(kept.first_routes.chunks_exact_mut(self.first_routes()))
            .zip(kept.middle.chunks_exact_mut(self.second.padded(CHANNELS[0])))
            .zip(kept.second_routes.chunks_exact_mut(self.features()))
            .zip(features.chunks_exact_mut(self.features()));
        for ((((image, first_routes), middle), second_routes), features) in samples {
            if pass.compute.is_interrupted() {
                return;
            }
            self.first.pad(image, &mut scratch.padded);
            let grid = &mut scratch.first_grid;
            self.first.forward(&scratch.padded, first_kernel, grid);
            let pooled = (&mut middle[inner..], stride);
            self.first.pool(grid, first_bias, first_routes, pooled);
            let grid = &mut scratch.second_grid;
            self.second.forward(middle, second_kernel, grid);
            let pooled = (features, row);
            self.second.pool(grid, second_bias, second_routes, pooled);
        }
    }

    /// Adds the gradients of the parameters for some images, one after the other.
    ///
    /// `partial`: `[convolution parameters]` for each group of images.
    fn backward(
        &self,
        (compute, mirrored): (&Compute, &[f32]),
        (images, features_gradient): (&[f32], &[f32]),
        (scratch, kept): (&mut Scratch, Kept<'_>),
        partial: &mut [f32],
    ) {
        let (stride, _) = self.middle_strides();
        let row = self.second.pooled().1 * CHANNELS[1];
        let samples = images
            .chunks_exact(self.first.height * self.first.width)
            .zip(kept.first_routes.chunks_exact(self.first_routes()))
            .zip(kept.middle.chunks_exact(self.second.padded(CHANNELS[0])))
            .zip(kept.second_routes.chunks_exact(self.features()))
            .zip(features_gradient.chunks_exact(self.features()));
        for (index, ((((image, first_routes), middle), second_routes), features)) in
            samples.enumerate()
        {
            if compute.is_interrupted() {
                return;
            }
            let start = index / GROUP_SAMPLES * self.parameters();
            let partial = &mut partial[start..start + self.parameters()];
            let (first_part, second_part) = partial.split_at_mut(self.kernels[1].start);

            let gradient = &mut scratch.second_gradient;
            self.second.unpool((features, row), second_routes, gradient);
            let (kernel, bias) = second_part.split_at_mut(self.second.kernel());
            self.second.backward_kernel(middle, gradient, kernel, bias);
            let input_gradient = &mut scratch.input_gradient;
            self.second.mirrored().forward(gradient, mirrored, input_gradient);

            let gradient = &mut scratch.first_gradient;
            self.first.unpool((input_gradient, stride), first_routes, gradient);
            self.first.pad(image, &mut scratch.padded);
            let (kernel, bias) = first_part.split_at_mut(self.first.kernel());
            self.first.backward_kernel(&scratch.padded, gradient, kernel, bias);
        }
    }
}

impl Cnn {
    /// A model for images of `height` × `width` pixels, each at least [`SIDE_MIN`].
    pub(crate) fn new(height: usize, width: usize, classes: usize) -> Result<Self, LayoutError> {
        let mut layout = ParameterLayout::new();
        let convolutions = Convolutions::push(&mut layout, height, width)?;
        let hidden = Linear::push(&mut layout, "hidden", convolutions.features(), HIDDEN)?;
        let output = Linear::push(&mut layout, "output", HIDDEN, classes)?;
        Ok(Self {
            layout,
            mirrored: vec![0.0; convolutions.second.kernel()],
            convolutions,
            hidden,
            output,
            scratch: Vec::new(),
            first_routes: Vec::new(),
            middle: Vec::new(),
            second_routes: Vec::new(),
            features: Vec::new(),
            activations: Vec::new(),
            logits: Vec::new(),
            features_gradient: Vec::new(),
            activations_gradient: Vec::new(),
            partial: Vec::new(),
        })
    }

    /// Whole groups of samples that each thread takes.
    fn share(&mut self, samples: usize, threads: usize) -> usize {
        let convolutions = &self.convolutions;
        self.scratch.resize_with(threads, || convolutions.scratch());
        samples.div_ceil(GROUP_SAMPLES).div_ceil(threads) * GROUP_SAMPLES
    }
}

impl Model for Cnn {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn initialize(&self, random: &mut ChaCha8Rng, parameters: &mut [f32]) {
        let convolutions = &self.convolutions;
        parameters.fill(0.0);
        let layers = [
            (&convolutions.kernels[0], 9, 2.0),
            (&convolutions.kernels[1], 9 * CHANNELS[0], 2.0),
            (&self.hidden.weight, self.hidden.inputs, 2.0),
            (&self.output.weight, self.output.inputs, 1.0),
        ];
        for (range, fan_in, gain) in layers {
            initial::uniform(random, &mut parameters[range.clone()], fan_in, gain);
        }
    }

    fn activations(&self, samples: usize, threads: usize) -> usize {
        let Convolutions { first, second, .. } = &self.convolutions;
        let features = self.convolutions.features();
        let routes = (self.convolutions.first_routes() + features) / size_of::<f32>();
        let middle = second.padded(CHANNELS[0]);
        let linear = 2 * (features + HIDDEN) + self.output.outputs;
        let scratch = first.padded(1)
            + first.grid(CHANNELS[0])
            + second.grid(CHANNELS[1])
            + first.padded(CHANNELS[0])
            + second.padded(CHANNELS[1])
            + second.grid(CHANNELS[0]);
        let partial = samples.div_ceil(GROUP_SAMPLES) * self.convolutions.parameters();
        samples * (routes + middle + linear) + threads * scratch + partial + second.kernel()
    }

    fn forward(&mut self, pass: Forward<'_>, batch: &Batch) -> Score {
        let samples = batch.samples;
        let share = self.share(samples, pass.compute.threads());
        let convolutions = &self.convolutions;
        let first_routes = convolutions.first_routes();
        let middle = convolutions.second.padded(CHANNELS[0]);
        let features = convolutions.features();
        self.first_routes.resize(samples * first_routes, 0);
        self.middle.resize(samples * middle, 0.0);
        self.second_routes.resize(samples * features, 0);
        self.features.resize(samples * features, 0.0);
        let pixels = convolutions.first.height * convolutions.first.width;
        let shares = images(batch)
            .chunks(share * pixels)
            .zip(self.first_routes.chunks_mut(share * first_routes))
            .zip(self.middle.chunks_mut(share * middle))
            .zip(self.second_routes.chunks_mut(share * features))
            .zip(self.features.chunks_mut(share * features))
            .zip(&mut self.scratch)
            .map(|(((((images, first_routes), middle), second_routes), features), scratch)| {
                let kept = Kept { first_routes, middle, second_routes };
                (images, (scratch, kept), features)
            });
        pass.compute.for_each(shares.collect(), |(images, state, features)| {
            convolutions.forward(pass, images, state, features);
        });

        self.activations.resize(samples * HIDDEN, 0.0);
        self.hidden.product(pass, &self.features, &mut self.activations);
        add_bias_relu(&mut self.activations, self.hidden.bias(pass));
        let classes = self.output.outputs;
        self.logits.resize(samples * classes, 0.0);
        self.output.product(pass, &self.activations, &mut self.logits);
        reduce::add_bias(&mut self.logits, self.output.bias(pass));
        cross_entropy(&mut self.logits, &batch.targets, classes, pass.objective)
    }

    fn backward(&mut self, mut pass: Backward<'_, '_>, batch: &Batch, scale: f32) {
        let samples = batch.samples;
        let share = self.share(samples, pass.compute.threads());
        reduce::scale(&mut self.logits, scale);
        self.output.backward_parameters(&mut pass, &self.activations, &self.logits);
        self.activations_gradient.resize(samples * HIDDEN, 0.0);
        let gradient = &mut self.activations_gradient;
        self.output.backward_input(&pass, &self.logits, gradient);
        relu_backward(gradient, &self.activations);
        self.hidden.backward_parameters(&mut pass, &self.features, gradient);
        pass.is_final_from(self.hidden.weight.start);
        let convolutions = &self.convolutions;
        let features = convolutions.features();
        self.features_gradient.resize(samples * features, 0.0);
        self.hidden.backward_input(&pass, gradient, &mut self.features_gradient);

        let kernel = &pass.parameters[convolutions.kernels[1].clone()];
        convolutions.second.mirror_kernel(kernel, &mut self.mirrored);
        let parameters = convolutions.parameters();
        self.partial.clear();
        self.partial.resize(samples.div_ceil(GROUP_SAMPLES) * parameters, 0.0);
        let pixels = convolutions.first.height * convolutions.first.width;
        let middle = convolutions.second.padded(CHANNELS[0]);
        let shares = images(batch)
            .chunks(share * pixels)
            .zip(self.features_gradient.chunks(share * features))
            .zip(self.first_routes.chunks_mut(share * convolutions.first_routes()))
            .zip(self.middle.chunks_mut(share * middle))
            .zip(self.second_routes.chunks_mut(share * features))
            .zip(self.partial.chunks_mut(share / GROUP_SAMPLES * parameters))
            .zip(&mut self.scratch)
            .map(
                |(
                    (((((images, gradient), first_routes), middle), second_routes), partial),
                    scratch,
                )| {
                    let kept = Kept { first_routes, middle, second_routes };
                    ((images, gradient), (scratch, kept), partial)
                },
            );
        let (compute, mirrored) = (pass.compute, self.mirrored.as_slice());
        pass.compute.for_each(shares.collect(), |(images, state, partial)| {
            convolutions.backward((compute, mirrored), images, state, partial);
        });
        reduce::add_column_sums(&self.partial, &mut pass.gradient[..parameters]);
        pass.is_final_from(0);
    }
}
