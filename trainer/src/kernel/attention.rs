//! Causal scaled dot-product attention of one sample.
//!
//! Source: Vaswani et al., arXiv:1706.03762, §3.2.1, with positions after the query masked.
//! `qkv`: `[T, (H + 2·G)·D]`, each row holds the queries of `H` heads, then the keys of `G`, then their
//! values. `H / G` heads that follow each other share keys and values (Ainslie et al., arXiv:2305.13245,
//! §2.2); `G = H` is attention where each has its own.

use super::activation::exp;
use super::{Blend, Matrix, MatrixMut, reduce, vectorized};

/// Extents of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    /// `T`.
    pub(crate) tokens: usize,
    /// `H`.
    pub(crate) heads: usize,
    /// `G`, a divisor of `H`.
    pub(crate) key_value_heads: usize,
    /// `D`.
    pub(crate) head_width: usize,
}

impl AttentionShape {
    /// `H · D`.
    pub(crate) const fn width(self) -> usize {
        self.heads * self.head_width
    }

    /// `(H + 2·G) · D`: channels of a row of `qkv`.
    pub(crate) const fn row(self) -> usize {
        (self.heads + 2 * self.key_value_heads) * self.head_width
    }

    /// Where a head's query, key and value begin in a row of `qkv`.
    const fn starts(self, head: usize) -> [usize; 3] {
        let group = head / (self.heads / self.key_value_heads);
        let key = self.heads + group;
        let value = key + self.key_value_heads;
        [head * self.head_width, key * self.head_width, value * self.head_width]
    }

    fn scale(self) -> f32 {
        1.0 / (self.head_width as f32).sqrt()
    }

    /// Query, key and value of head `head` in `qkv`, `[T, D]` each.
    fn views(self, qkv: &[f32], head: usize) -> [Matrix<'_>; 3] {
        self.starts(head)
            .map(|start| Matrix::strided(&qkv[start..], self.tokens, self.head_width, self.row()))
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

    /// Attends from the tokens behind the first `kept` ones, `n = T − kept`, to all.
    ///
    /// `weights`: `[H, n, T]` is kept for the backward pass, whose `kept` is 0; `out`: `[n, H·D]`.
    pub(crate) fn forward(self, kept: usize, qkv: &[f32], weights: &mut [f32], out: &mut [f32]) {
        let (tokens, new) = (self.tokens, self.tokens - kept);
        for (head, weights) in weights.chunks_exact_mut(new * tokens).enumerate() {
            let [_, key, value] = self.views(qkv, head);
            let queries = &qkv[kept * self.row() + self.starts(head)[0]..];
            MatrixMut::new(weights, new, tokens).product(
                Matrix::strided(queries, new, self.head_width, self.row()),
                key.transposed(),
                Blend::Replace,
            );
            causal_softmax(weights, (kept, tokens), self.scale());
            let out = &mut out[head * self.head_width..];
            MatrixMut::strided(out, new, self.head_width, self.width()).product(
                Matrix::new(weights, new, tokens),
                value,
                Blend::Replace,
            );
        }
    }

    /// Gradient of `qkv` from that of the output.
    ///
    /// `weights`: as left by [`Self::forward`]; `out_gradient`: `[T, H·D]`; `scratch`: `[T, T]`;
    /// `qkv_gradient`: `[T, (H + 2·G)·D]`, overwritten.
    pub(crate) fn backward(
        self,
        (qkv, weights): (&[f32], &[f32]),
        out_gradient: &[f32],
        scratch: &mut [f32],
        qkv_gradient: &mut [f32],
    ) {
        let tokens = self.tokens;
        for (head, weights) in weights.chunks_exact(tokens * tokens).enumerate() {
            let [query, key, value] = self.views(qkv, head);
            let out_gradient = self.output_view(out_gradient, head);
            let starts = self.starts(head);
            // The first head of a group begins the gradients that the others add to.
            let first = head.is_multiple_of(self.heads / self.key_value_heads);
            let shared = if first { Blend::Replace } else { Blend::Add };
            let mut into = |part: usize, left: Matrix<'_>, right: Matrix<'_>| {
                let blend = if part == 0 { Blend::Replace } else { shared };
                let rows = &mut qkv_gradient[starts[part]..];
                MatrixMut::strided(rows, tokens, self.head_width, self.row())
                    .product(left, right, blend);
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

/// Row `t` of `scores`, that of token `kept + t`, becomes `softmax(scale · scores[t, ..=kept + t])`,
/// followed by zeros.
fn causal_softmax(scores: &mut [f32], (kept, tokens): (usize, usize), scale: f32) {
    vectorized(
        #[inline(always)]
        || {
            for (position, row) in scores.chunks_exact_mut(tokens).enumerate() {
                let (visible, hidden) = row.split_at_mut(kept + position + 1);
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
    use crate::kernel::testing::{noise, slope};

    /// Five tokens, heads of three channels.
    fn shape(heads: usize, key_value_heads: usize) -> AttentionShape {
        AttentionShape { tokens: 5, heads, key_value_heads, head_width: 3 }
    }

    fn run(shape: AttentionShape, qkv: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let tokens = shape.tokens;
        let mut weights = vec![0.0; shape.heads * tokens * tokens];
        let mut out = vec![0.0; tokens * shape.width()];
        shape.forward(0, qkv, &mut weights, &mut out);
        (weights, out)
    }

    #[test]
    fn the_last_tokens_alone_attend_as_among_all() {
        let shape = shape(6, 2);
        let qkv = noise(5 * shape.row(), 1, 1.0);
        let (weights, out) = run(shape, &qkv);
        for kept in 0..5 {
            let new = 5 - kept;
            let (mut some, mut last) = (vec![0.0; 6 * new * 5], vec![0.0; new * shape.width()]);
            shape.forward(kept, &qkv, &mut some, &mut last);
            let near = |got: &[f32], want: &[f32]| {
                got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6)
            };
            assert!(near(&last, &out[kept * shape.width()..]), "{kept}");
            for (some, all) in some.chunks_exact(new * 5).zip(weights.chunks_exact(25)) {
                assert!(near(some, &all[kept * 5..]), "{kept}");
            }
        }
    }

    #[test]
    fn a_token_sees_itself_and_earlier_ones_only() {
        let shape = shape(2, 2);
        let mut qkv: Vec<f32> = (0..5 * 18).map(|i| (i % 7) as f32 * 0.3 - 1.0).collect();
        let (weights, before) = run(shape, &qkv);
        for row in weights.chunks_exact(5) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        for value in &mut qkv[3 * 18..] {
            *value += 1.0;
        }
        let (_, after) = run(shape, &qkv);
        assert_eq!(before[..18], after[..18]);
        assert_ne!(before[18..], after[18..]);
    }

    #[test]
    fn heads_of_a_group_share_keys_and_values() {
        let (grouped, plain) = (shape(6, 2), shape(6, 6));
        let qkv = noise(5 * grouped.row(), 1, 1.0);
        // The same with a copy for each head.
        let copied: Vec<f32> = qkv
            .chunks_exact(grouped.row())
            .flat_map(|row| {
                let heads: Vec<&[f32]> = row.chunks_exact(3).collect();
                let copies = [6, 6, 6, 7, 7, 7, 8, 8, 8, 9, 9, 9];
                (0..6).chain(copies).flat_map(|at| heads[at].to_vec()).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(run(grouped, &qkv), run(plain, &copied));
    }

    #[test]
    fn gradients_are_slopes() {
        for (heads, key_value_heads) in [(1, 1), (3, 3), (3, 1), (6, 2)] {
            let shape = shape(heads, key_value_heads);
            let qkv = noise(5 * shape.row(), 1, 1.0);
            let (weights, out) = run(shape, &qkv);
            let along = noise(out.len(), 2, 1.0);
            let (mut scratch, mut gradient) = (vec![0.0; 25], vec![9.0; qkv.len()]);
            shape.backward((&qkv, &weights), &along, &mut scratch, &mut gradient);
            let value = |qkv: &[f32]| {
                let out = run(shape, qkv).1;
                out.iter().zip(&along).map(|(&y, &w)| f64::from(y) * f64::from(w)).sum()
            };
            for (index, &got) in gradient.iter().enumerate() {
                let want = slope(&qkv, index, value);
                let difference = (f64::from(got) - want).abs();
                assert!(difference < 2e-3, "{heads}/{key_value_heads} {index}: {got}, not {want}");
            }
        }
    }
}
