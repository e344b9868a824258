//! Causal scaled dot-product attention of one sample.
//!
//! Source: Vaswani et al., arXiv:1706.03762, §3.2.1, with positions after the query masked.
//! `qkv`: `[T, 3·H·D]`, each row holds the queries of all heads, then the keys, then the values.

use super::activation::exp;
use super::{Blend, Matrix, MatrixMut, reduce, vectorized};

/// Extents of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    /// `T`.
    pub(crate) tokens: usize,
    /// `H`.
    pub(crate) heads: usize,
    /// `D`.
    pub(crate) head_width: usize,
}

impl AttentionShape {
    /// `H · D`.
    pub(crate) const fn width(self) -> usize {
        self.heads * self.head_width
    }

    fn scale(self) -> f32 {
        1.0 / (self.head_width as f32).sqrt()
    }

    /// Query, key and value of head `head` in `qkv`, `[T, D]` each.
    fn views(self, qkv: &[f32], head: usize) -> [Matrix<'_>; 3] {
        [0, 1, 2].map(|part| {
            let start = part * self.width() + head * self.head_width;
            Matrix::strided(&qkv[start..], self.tokens, self.head_width, 3 * self.width())
        })
    }

    /// As [`Self::views`] for the output, `[T, H·D]`.
    fn output_view(self, output: &[f32], head: usize) -> Matrix<'_> {
        Matrix::strided(
            &output[head * self.head_width..],
            self.tokens,
            self.head_width,
            self.width(),
        )
    }

    /// Attends: `weights`: `[H, T, T]` is kept for the backward pass, `out`: `[T, H·D]`.
    pub(crate) fn forward(self, qkv: &[f32], weights: &mut [f32], out: &mut [f32]) {
        let tokens = self.tokens;
        for (head, weights) in weights.chunks_exact_mut(tokens * tokens).enumerate() {
            let [query, key, value] = self.views(qkv, head);
            MatrixMut::new(weights, tokens, tokens).product(
                query,
                key.transposed(),
                Blend::Replace,
            );
            causal_softmax(weights, tokens, self.scale());
            let out = &mut out[head * self.head_width..];
            MatrixMut::strided(out, tokens, self.head_width, self.width()).product(
                Matrix::new(weights, tokens, tokens),
                value,
                Blend::Replace,
            );
        }
    }

    /// Gradient of `qkv` from that of the output.
    ///
    /// `weights`: as left by [`Self::forward`]; `out_gradient`: `[T, H·D]`; `scratch`: `[T, T]`;
    /// `qkv_gradient`: `[T, 3·H·D]`, overwritten.
    pub(crate) fn backward(
        self,
        (qkv, weights): (&[f32], &[f32]),
        out_gradient: &[f32],
        scratch: &mut [f32],
        qkv_gradient: &mut [f32],
    ) {
        let (tokens, width) = (self.tokens, self.width());
        for (head, weights) in weights.chunks_exact(tokens * tokens).enumerate() {
            let [query, key, value] = self.views(qkv, head);
            let out_gradient = self.output_view(out_gradient, head);
            let mut into = |part: usize, left: Matrix<'_>, right: Matrix<'_>| {
                let start = part * width + head * self.head_width;
                MatrixMut::strided(&mut qkv_gradient[start..], tokens, self.head_width, 3 * width)
                    .product(left, right, Blend::Replace);
            };
            let attention = Matrix::new(weights, tokens, tokens);
            into(2, attention.transposed(), out_gradient);
            MatrixMut::new(scratch, tokens, tokens).product(
                out_gradient,
                value.transposed(),
                Blend::Replace,
            );
            softmax_backward(scratch, weights, tokens, self.scale());
            let scores = Matrix::new(scratch, tokens, tokens);
            into(0, scores, key);
            into(1, scores.transposed(), query);
        }
    }
}

/// Row `t` of `scores` becomes `softmax(scale · scores[t, ..=t])`, followed by zeros.
fn causal_softmax(scores: &mut [f32], tokens: usize, scale: f32) {
    vectorized(
        #[inline(always)]
        || {
            for (position, row) in scores.chunks_exact_mut(tokens).enumerate() {
                let (visible, hidden) = row.split_at_mut(position + 1);
                let largest = reduce::maximum(visible);
                for score in visible.iter_mut() {
                    *score = exp(scale * (*score - largest));
                }
                let inverse = 1.0 / reduce::sum(visible);
                for score in visible.iter_mut() {
                    *score *= inverse;
                }
                hidden.fill(0.0);
            }
        },
    );
}

/// The gradient of the unscaled scores replaces that of the softmax's output, row by row.
fn softmax_backward(gradient: &mut [f32], weights: &[f32], tokens: usize, scale: f32) {
    vectorized(
        #[inline(always)]
        || {
            for (gradient, weights) in
                gradient.chunks_exact_mut(tokens).zip(weights.chunks_exact(tokens))
            {
                let mean = reduce::dot(gradient, weights);
                for (gradient, &weight) in gradient.iter_mut().zip(weights) {
                    *gradient = scale * weight * (*gradient - mean);
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_sees_itself_and_earlier_ones_only() {
        let shape = AttentionShape { tokens: 5, heads: 2, head_width: 3 };
        let mut qkv: Vec<f32> = (0..5 * 18).map(|i| (i % 7) as f32 * 0.3 - 1.0).collect();
        let run = |qkv: &[f32]| {
            let (mut weights, mut out) = (vec![0.0; 50], vec![0.0; 30]);
            shape.forward(qkv, &mut weights, &mut out);
            (weights, out)
        };
        let (weights, before) = run(&qkv);
        for row in weights.chunks_exact(5) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        for value in &mut qkv[3 * 18..] {
            *value += 1.0;
        }
        let (_, after) = run(&qkv);
        assert_eq!(before[..18], after[..18]);
        assert_ne!(before[18..], after[18..]);
    }
}
