//! 3×3 convolution with zero padding 1 and the pooling behind it, for one image.
//!
//! Images are `[height, width, channels]`. A padded image has a border of zeros of one pixel on
//! each side, so rows are `width + 2` pixels long. Three neighbouring pixels are adjacent in
//! memory, so a convolution is three matrix products over overlapping views, one per kernel row,
//! and nothing is copied. The products also fill two meaningless pixels at the end of each row of
//! their destination, the *grid* `[height, width + 2, channels]`; nobody reads them.
//! Kernels are `[output, 3, 3, input]`.

use super::{Blend, Matrix, MatrixMut, reduce, vectorized};

/// Side of the kernel.
const SIDE: usize = 3;
/// Route of a pooled value that the ReLU set to zero; routes below are positions in the square.
const ROUTE_NONE: u8 = 4;

/// Extents of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvolutionShape {
    /// Rows of the image.
    pub(crate) height: usize,
    /// Columns of the image.
    pub(crate) width: usize,
    /// Channels in.
    pub(crate) inputs: usize,
    /// Channels out.
    pub(crate) outputs: usize,
}

impl ConvolutionShape {
    /// Columns of a padded image.
    const fn stride(self) -> usize {
        self.width + 2
    }

    /// Elements of a padded image of `channels`.
    pub(crate) const fn padded(self, channels: usize) -> usize {
        (self.height + 2) * self.stride() * channels
    }

    /// Elements of a grid of `channels`.
    pub(crate) const fn grid(self, channels: usize) -> usize {
        self.height * self.stride() * channels
    }

    /// Elements of the kernel.
    pub(crate) const fn kernel(self) -> usize {
        self.outputs * SIDE * SIDE * self.inputs
    }

    /// Rows and columns after 2×2 pooling.
    pub(crate) const fn pooled(self) -> (usize, usize) {
        (self.height / 2, self.width / 2)
    }

    /// Pixels of a grid up to the last meaningful one.
    const fn pixels(self) -> usize {
        self.height * self.stride() - 2
    }

    /// The views of a padded image that kernel row `row` meets, `[pixels, 3 · channels]`.
    fn window(self, padded: &[f32], channels: usize, row: usize) -> Matrix<'_> {
        let start = row * self.stride() * channels;
        Matrix::strided(&padded[start..], self.pixels(), SIDE * channels, channels)
    }

    /// `grid ← convolution of the padded image`, without bias.
    pub(crate) fn forward(self, padded: &[f32], kernel: &[f32], grid: &mut [f32]) {
        let taps = SIDE * self.inputs;
        for row in 0..SIDE {
            let kernel = Matrix::strided(&kernel[row * taps..], self.outputs, taps, SIDE * taps)
                .transposed();
            let blend = if row == 0 { Blend::Replace } else { Blend::Add };
            MatrixMut::new(grid, self.pixels(), self.outputs).product(
                self.window(padded, self.inputs, row),
                kernel,
                blend,
            );
        }
    }

    /// Adds the gradients of kernel and bias.
    ///
    /// `padded_gradient`: gradient of the output as a padded image.
    pub(crate) fn backward_kernel(
        self,
        padded: &[f32],
        padded_gradient: &[f32],
        kernel_gradient: &mut [f32],
        bias_gradient: &mut [f32],
    ) {
        let taps = SIDE * self.inputs;
        let start = (self.stride() + 1) * self.outputs;
        let gradient = Matrix::new(&padded_gradient[start..], self.pixels(), self.outputs);
        for row in 0..SIDE {
            MatrixMut::strided(&mut kernel_gradient[row * taps..], self.outputs, taps, SIDE * taps)
                .product(gradient.transposed(), self.window(padded, self.inputs, row), Blend::Add);
        }
        reduce::add_column_sums(padded_gradient, bias_gradient);
    }

    /// The kernel that turns gradients of outputs into gradients of inputs: both sides mirrored,
    /// inputs and outputs exchanged, `[input, 3, 3, output]`.
    pub(crate) fn mirror_kernel(self, kernel: &[f32], mirrored: &mut [f32]) {
        let taps = SIDE * SIDE;
        for output in 0..self.outputs {
            for tap in 0..taps {
                for input in 0..self.inputs {
                    mirrored[(input * taps + taps - 1 - tap) * self.outputs + output] =
                        kernel[(output * taps + tap) * self.inputs + input];
                }
            }
        }
    }

    /// The convolution of gradients with the mirrored kernel.
    pub(crate) const fn mirrored(self) -> Self {
        Self { height: self.height, width: self.width, inputs: self.outputs, outputs: self.inputs }
    }

    /// Adds the bias to a grid, applies ReLU and 2×2 maximum pooling.
    ///
    /// `routes`: `[pooled height, pooled width, outputs]` says where each value came from.
    /// `pooled` rows start `pooled_stride` elements apart.
    pub(crate) fn pool(
        self,
        grid: &[f32],
        bias: &[f32],
        routes: &mut [u8],
        (pooled, pooled_stride): (&mut [f32], usize),
    ) {
        let channels = self.outputs;
        let (rows, columns) = self.pooled();
        let line = self.stride() * channels;
        vectorized(
            #[inline(always)]
            || {
                for y in 0..rows {
                    for x in 0..columns {
                        let at = 2 * y * line + 2 * x * channels;
                        let square = [at, at + channels, at + line, at + line + channels]
                            .map(|start| &grid[start..start + channels]);
                        let to = y * pooled_stride + x * channels;
                        let to = &mut pooled[to..to + channels];
                        let route = (y * columns + x) * channels;
                        pool_pixel(square, bias, &mut routes[route..route + channels], to);
                    }
                }
            },
        );
    }

    /// Spreads the gradient of a pooled image to the padded gradient of the convolution's output.
    ///
    /// `gradient` rows start `gradient_stride` elements apart. The border of `padded_gradient`,
    /// and an odd last row or column, must be zero and stay so.
    pub(crate) fn unpool(
        self,
        (gradient, gradient_stride): (&[f32], usize),
        routes: &[u8],
        padded_gradient: &mut [f32],
    ) {
        let channels = self.outputs;
        let (rows, columns) = self.pooled();
        let line = self.stride() * channels;
        vectorized(
            #[inline(always)]
            || {
                for y in 0..rows {
                    for x in 0..columns {
                        let from = y * gradient_stride + x * channels;
                        let from = &gradient[from..from + channels];
                        let route = (y * columns + x) * channels;
                        let routes = &routes[route..route + channels];
                        let at = (2 * y + 1) * line + (2 * x + 1) * channels;
                        for (position, start) in
                            (0_u8..).zip([at, at + channels, at + line, at + line + channels])
                        {
                            let to = &mut padded_gradient[start..start + channels];
                            for ((to, &from), &route) in to.iter_mut().zip(from).zip(routes) {
                                *to = if route == position { from } else { 0.0 };
                            }
                        }
                    }
                }
            },
        );
    }

    /// Copies `image` (`[height, width]`, one channel) into a padded image whose border is zero.
    pub(crate) fn pad(self, image: &[f32], padded: &mut [f32]) {
        for (from, to) in image
            .chunks_exact(self.width)
            .zip(padded[self.stride()..].chunks_exact_mut(self.stride()))
        {
            to[1..=self.width].copy_from_slice(from);
        }
    }
}

/// Pools one square of pixels, channel by channel.
#[inline(always)]
fn pool_pixel(square: [&[f32]; 4], bias: &[f32], routes: &mut [u8], pooled: &mut [f32]) {
    let [first, second, third, fourth] = square;
    let pixels = first.iter().zip(second).zip(third).zip(fourth);
    let outputs = pooled.iter_mut().zip(routes).zip(bias);
    for ((((&a, &b), &c), &d), ((pooled, route), &bias)) in pixels.zip(outputs) {
        // A channel with a NaN weight makes four NaN, and those survive these comparisons.
        let (top, top_route) = if b <= a { (a, 0) } else { (b, 1) };
        let (low, low_route) = if d <= c { (c, 2) } else { (d, 3) };
        let (value, from) = if low <= top { (top, top_route) } else { (low, low_route) };
        let value = value + bias;
        *route = if value <= 0.0 { ROUTE_NONE } else { from };
        *pooled = if value <= 0.0 { 0.0 } else { value };
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "sums of small integers are exact")]
mod tests {
    use super::*;

    const SHAPE: ConvolutionShape = ConvolutionShape { height: 5, width: 4, inputs: 2, outputs: 3 };

    fn ramp(length: usize, modulus: usize) -> Vec<f32> {
        (0..length).map(|i| (i * 5 % modulus) as f32 - 3.0).collect()
    }

    /// `image` (`[height, width, channels]`) with its border of zeros.
    fn with_border(image: &[f32], channels: usize) -> Vec<f32> {
        let mut padded = vec![0.0; SHAPE.padded(channels)];
        let line = SHAPE.width * channels;
        for (y, row) in image.chunks_exact(line).enumerate() {
            let start = ((y + 1) * SHAPE.stride() + 1) * channels;
            padded[start..start + line].copy_from_slice(row);
        }
        padded
    }

    /// The definition, in plain loops.
    fn convolve(image: &[f32], kernel: &[f32], (y, x, output): (usize, usize, usize)) -> f32 {
        let mut sum = 0.0;
        for dy in 0..SIDE {
            for dx in 0..SIDE {
                let (row, column) = (y + dy, x + dx);
                let inside =
                    (1..=SHAPE.height).contains(&row) && (1..=SHAPE.width).contains(&column);
                for input in 0..SHAPE.inputs {
                    if inside {
                        let at = ((row - 1) * SHAPE.width + column - 1) * SHAPE.inputs + input;
                        let tap = (output * SIDE + dy) * SIDE + dx;
                        sum += image[at] * kernel[tap * SHAPE.inputs + input];
                    }
                }
            }
        }
        sum
    }

    #[test]
    fn convolution_follows_its_definition() {
        let image = ramp(SHAPE.height * SHAPE.width * SHAPE.inputs, 7);
        let kernel = ramp(SHAPE.kernel(), 11);
        let mut grid = vec![f32::NAN; SHAPE.grid(SHAPE.outputs)];
        SHAPE.forward(&with_border(&image, SHAPE.inputs), &kernel, &mut grid);
        for y in 0..SHAPE.height {
            for x in 0..SHAPE.width {
                for output in 0..SHAPE.outputs {
                    let got = grid[(y * SHAPE.stride() + x) * SHAPE.outputs + output];
                    assert_eq!(got, convolve(&image, &kernel, (y, x, output)), "{y} {x} {output}");
                }
            }
        }
    }

    #[test]
    fn the_mirrored_convolution_is_the_transpose() {
        // ⟨conv(image), g⟩ = ⟨image, convᵀ(g)⟩ for every image and g.
        let image = ramp(SHAPE.height * SHAPE.width * SHAPE.inputs, 7);
        let gradient = ramp(SHAPE.height * SHAPE.width * SHAPE.outputs, 13);
        let kernel = ramp(SHAPE.kernel(), 11);
        let mut mirrored = vec![0.0; SHAPE.kernel()];
        SHAPE.mirror_kernel(&kernel, &mut mirrored);
        let inner = |grid: &[f32], dense: &[f32], channels: usize| {
            let line = SHAPE.width * channels;
            let rows = grid.chunks_exact(SHAPE.stride() * channels).zip(dense.chunks_exact(line));
            rows.map(|(grid, dense)| reduce::dot(&grid[..line], dense)).sum::<f32>()
        };
        let mut forward = vec![0.0; SHAPE.grid(SHAPE.outputs)];
        SHAPE.forward(&with_border(&image, SHAPE.inputs), &kernel, &mut forward);
        let mut backward = vec![0.0; SHAPE.grid(SHAPE.inputs)];
        let padded = with_border(&gradient, SHAPE.outputs);
        SHAPE.mirrored().forward(&padded, &mirrored, &mut backward);
        assert_eq!(
            inner(&forward, &gradient, SHAPE.outputs),
            inner(&backward, &image, SHAPE.inputs)
        );
    }

    #[test]
    fn pooling_takes_the_largest_positive_and_sends_its_gradient_back() {
        let shape = ConvolutionShape { height: 2, width: 4, inputs: 1, outputs: 1 };
        // Two squares: the largest of the first is at its lower left, the second is all negative.
        let grid = [1.0, 2.0, -1.0, -2.0, 9.0, 9.0, 5.0, 3.0, -3.0, -4.0, 9.0, 9.0];
        let (mut routes, mut pooled) = ([9; 2], [0.0; 2]);
        shape.pool(&grid, &[0.5], &mut routes, (&mut pooled, 2));
        assert_eq!((routes, pooled), ([2, ROUTE_NONE], [5.5, 0.0]));
        let mut gradient = vec![0.0; shape.padded(1)];
        shape.unpool((&[7.0, 8.0], 2), &routes, &mut gradient);
        let mut want = vec![0.0; shape.padded(1)];
        want[2 * shape.stride() + 1] = 7.0;
        assert_eq!(gradient, want);
    }
}
