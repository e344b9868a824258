//! Causal scaled dot-product attention of one sample.
//!
//! Source: Vaswani et al., arXiv:1706.03762, §3.2.1, with positions after the query masked.
//! `qkv`: `[T, (H + 2·G)·D]`, each row holds the queries of `H` heads, then the keys of `G`, then their
//! values. `H / G` heads that follow each other share keys and values (Ainslie et al., arXiv:2305.13245,
//! §2.2); `G = H` is attention where each has its own.
//!
//! No `[T, T]` is stored of a sample with more than [`KEPT_TOKENS_MAX`] tokens: a strip of some queries is done at
//! a time, with the keys that they see. The backward pass computes its weights again from one number for each
//! row, the logarithm of the sum that the softmax divides by (Dao et al., arXiv:2205.14135, §3.1 and algorithm 4; there keys are cut, too, which
//! matters where memory is scarcer than a strip).

use std::ops::Range;

use super::activation::exp;
use super::{Blend, Matrix, MatrixMut, reduce, vectorized};

/// Queries of a strip: its scores stay in the second cache, and half a strip's work on keys that nobody sees
/// is small (measured, docs/measurements.md, "Attention in strips").
const QUERIES_AT_ONCE: usize = 64;

/// Tokens of a sample whose weights are kept for the backward pass: they are one strip, and computing them
/// again takes half as long again, as no keys are left out (measured, as above).
const KEPT_TOKENS_MAX: usize = QUERIES_AT_ONCE;

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

    /// How many rows of scores are computed at once.
    fn strip(self, kept: usize) -> usize {
        QUERIES_AT_ONCE.min(self.tokens - kept)
    }

    /// Whether the weights themselves are kept for the backward pass.
    const fn keeps_weights(self) -> bool {
        self.tokens <= KEPT_TOKENS_MAX
    }

    /// Numbers that are kept for the backward pass of each of so many queries of a sample, for all heads.
    pub(crate) const fn kept(self, queries: usize) -> usize {
        let each = if self.keeps_weights() { self.tokens } else { 1 };
        self.heads * queries * each
    }

    /// Numbers that [`Self::forward`] and [`Self::backward`] of one sample need for a while.
    pub(crate) const fn scratch(self) -> usize {
        let rows = if self.tokens < QUERIES_AT_ONCE { self.tokens } else { QUERIES_AT_ONCE };
        2 * rows * self.tokens
    }

    /// Attends from the tokens behind the first `kept` ones, `n = T − kept`, to all.
    ///
    /// `scratch`: as [`Self::scratch`] says; `state`: as [`Self::kept`] says, for the backward pass, whose
    /// `kept` is 0, weights `[H, n, T]` or sums `[H, n]`; `out`: `[n, H·D]`.
    pub(crate) fn forward(
        self,
        (kept, qkv): (usize, &[f32]),
        scratch: &mut [f32],
        state: &mut [f32],
        out: &mut [f32],
    ) {
        let (strip, new) = (self.strip(kept), self.tokens - kept);
        for (head, state) in state.chunks_exact_mut(self.kept(new) / self.heads).enumerate() {
            let starts = self.starts(head);
            // Weights that are kept are of one strip.
            let mut unused = [0.0; KEPT_TOKENS_MAX];
            let (mut weights, sums) = if self.keeps_weights() {
                (Some(state), &mut unused[..new])
            } else {
                (None, state)
            };
            for (index, sums) in sums.chunks_mut(strip).enumerate() {
                let first = kept + index * strip;
                let visible = first + sums.len();
                let scores = match &mut weights {
                    Some(weights) => &mut **weights,
                    None => &mut scratch[..sums.len() * visible],
                };
                let [query, key, value] = self.strip_views(qkv, starts, first..visible);
                MatrixMut::new(scores, sums.len(), visible).product(
                    query,
                    key.transposed(),
                    Blend::Replace,
                );
                causal_softmax(scores, first, self.scale(), sums);
                let out = &mut out[(first - kept) * self.width() + starts[0]..];
                MatrixMut::strided(out, sums.len(), self.head_width, self.width()).product(
                    Matrix::new(scores, sums.len(), visible),
                    value,
                    Blend::Replace,
                );
            }
        }
    }

    /// Gradient of `qkv` from that of the output.
    ///
    /// `state`: as left by [`Self::forward`]; `out_gradient`: `[T, H·D]`; `scratch`: as there;
    /// `qkv_gradient`: `[T, (H + 2·G)·D]`, overwritten.
    pub(crate) fn backward(
        self,
        (qkv, state): (&[f32], &[f32]),
        out_gradient: &[f32],
        scratch: &mut [f32],
        qkv_gradient: &mut [f32],
    ) {
        let (tokens, strip) = (self.tokens, self.strip(0));
        for (head, state) in state.chunks_exact(self.kept(tokens) / self.heads).enumerate() {
            let starts = self.starts(head);
            // The first head of a group begins the gradients that the others add to. Its last strip sees
            // all keys.
            let first_head = head.is_multiple_of(self.heads / self.key_value_heads);
            for first in (0..tokens).step_by(strip).rev() {
                let rows = strip.min(tokens - first);
                let visible = first + rows;
                let begins = first_head && visible == tokens;
                let shared = if begins { Blend::Replace } else { Blend::Add };
                let [query, key, value] = self.strip_views(qkv, starts, first..visible);
                let out_gradient = Matrix::strided(
                    &out_gradient[first * self.width() + starts[0]..],
                    rows,
                    self.head_width,
                    self.width(),
                );
                let (again, rest) = scratch.split_at_mut(rows * visible);
                let scores = &mut rest[..rows * visible];
                let product = |out: &mut [f32], right: Matrix<'_>, left: Matrix<'_>| {
                    MatrixMut::new(out, rows, visible).product(
                        left,
                        right.transposed(),
                        Blend::Replace,
                    );
                };
                let weights = if self.keeps_weights() {
                    state
                } else {
                    product(again, key, query);
                    weights_again(again, first, self.scale(), &state[first..visible]);
                    again
                };
                product(scores, value, out_gradient);
                softmax_backward(scores, weights, visible, self.scale());

                let mut into = |part: usize, left: Matrix<'_>, right: Matrix<'_>, blend: Blend| {
                    let (from, count) = if part == 0 { (first, rows) } else { (0, visible) };
                    let out = &mut qkv_gradient[from * self.row() + starts[part]..];
                    MatrixMut::strided(out, count, self.head_width, self.row())
                        .product(left, right, blend);
                };
                let weights = Matrix::new(weights, rows, visible);
                let scores = Matrix::new(scores, rows, visible);
                into(2, weights.transposed(), out_gradient, shared);
                into(0, scores, key, Blend::Replace);
                into(1, scores.transposed(), query, shared);
            }
        }
    }

    /// The queries of the tokens of `strip`, and keys and values of those up to its end, `[n, D]` each.
    fn strip_views(
        self,
        qkv: &[f32],
        [query, key, value]: [usize; 3],
        strip: Range<usize>,
    ) -> [Matrix<'_>; 3] {
        let view = |start: usize, tokens: Range<usize>| {
            let values = &qkv[tokens.start * self.row() + start..];
            Matrix::strided(values, tokens.len(), self.head_width, self.row())
        };
        [view(query, strip.clone()), view(key, 0..strip.end), view(value, 0..strip.end)]
    }
}

/// Row `t` of `scores`, that of token `first + t`, becomes `softmax(scale · scores[t, ..=first + t])`,
/// followed by zeros; `sums[t]` the logarithm of what it was divided by.
fn causal_softmax(scores: &mut [f32], first: usize, scale: f32, sums: &mut [f32]) {
    let columns = first + sums.len();
    vectorized(
        #[inline(always)]
        || {
            for (position, row) in scores.chunks_exact_mut(columns).enumerate() {
                let (visible, hidden) = row.split_at_mut(first + position + 1);
                let largest = reduce::maximum(visible);
                for score in visible.iter_mut() {
                    *score = exp(scale * (*score - largest));
                }
                let sum = reduce::sum(visible);
                let inverse = 1.0 / sum;
                for score in visible.iter_mut() {
                    *score *= inverse;
                }
                hidden.fill(0.0);
                sums[position] = scale * largest + sum.ln();
            }
        },
    );
}

/// The weights that [`causal_softmax`] has made of these scores, by the sums that it has left.
fn weights_again(scores: &mut [f32], first: usize, scale: f32, sums: &[f32]) {
    let columns = first + sums.len();
    vectorized(
        #[inline(always)]
        || {
            let rows = scores.chunks_exact_mut(columns).zip(sums);
            for (position, (row, &sum)) in rows.enumerate() {
                let (visible, hidden) = row.split_at_mut(first + position + 1);
                for score in visible.iter_mut() {
                    *score = exp(scale * *score - sum);
                }
                hidden.fill(0.0);
            }
        },
    );
}

/// The gradient of the unscaled scores replaces that of the softmax's output, row by row.
fn softmax_backward(gradient: &mut [f32], weights: &[f32], columns: usize, scale: f32) {
    vectorized(
        #[inline(always)]
        || {
            for (gradient, weights) in
                gradient.chunks_exact_mut(columns).zip(weights.chunks_exact(columns))
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
        let mut state = vec![0.0; shape.kept(tokens)];
        let mut out = vec![0.0; tokens * shape.width()];
        shape.forward((0, qkv), &mut vec![9.0; shape.scratch()], &mut state, &mut out);
        (state, out)
    }

    #[test]
    fn the_last_tokens_alone_attend_as_among_all() {
        let shape = shape(6, 2);
        let qkv = noise(5 * shape.row(), 1, 1.0);
        let (weights, out) = run(shape, &qkv);
        for kept in 0..5 {
            let new = 5 - kept;
            let (mut some, mut last) = (vec![0.0; shape.kept(new)], vec![0.0; new * shape.width()]);
            let scratch = &mut vec![9.0; shape.scratch()];
            shape.forward((kept, &qkv), scratch, &mut some, &mut last);
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
        let (_, before) = run(shape, &qkv);
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

    /// Attention as its equations say, in f64: the output, and the gradient of `qkv` from that of the output.
    fn plain(shape: AttentionShape, qkv: &[f32], along: &[f32]) -> [Vec<f64>; 2] {
        let AttentionShape { tokens, head_width, .. } = shape;
        let scale = 1.0 / (head_width as f64).sqrt();
        let mut out = vec![0.0; along.len()];
        let mut gradient = vec![0.0; qkv.len()];
        for head in 0..shape.heads {
            let starts = shape.starts(head);
            let at = |part: usize, token: usize| token * shape.row() + starts[part];
            let to = |token: usize| token * shape.width() + starts[0];
            let dot = |left: &[f32], right: &[f32]| -> f64 {
                left.iter().zip(right).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
            };
            let of = |start: usize| &qkv[start..start + head_width];
            for t in 0..tokens {
                let scores: Vec<f64> =
                    (0..=t).map(|s| scale * dot(of(at(0, t)), of(at(1, s)))).collect();
                let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
                let weights: Vec<f64> =
                    scores.iter().map(|score| (score - largest).exp() / sum).collect();
                let along = &along[to(t)..to(t) + head_width];
                let slopes: Vec<f64> = (0..=t).map(|s| dot(along, of(at(2, s)))).collect();
                let mean: f64 = slopes.iter().zip(&weights).map(|(x, y)| x * y).sum();
                for (s, (weight, slope)) in weights.iter().zip(slopes).enumerate() {
                    let score = scale * weight * (slope - mean);
                    for d in 0..head_width {
                        out[to(t) + d] += weight * f64::from(qkv[at(2, s) + d]);
                        gradient[at(2, s) + d] += weight * f64::from(along[d]);
                        gradient[at(0, t) + d] += score * f64::from(qkv[at(1, s) + d]);
                        gradient[at(1, s) + d] += score * f64::from(qkv[at(0, t) + d]);
                    }
                }
            }
        }
        [out, gradient]
    }

    #[test]
    fn strips_give_what_the_equations_say_whatever_the_number_of_tokens() {
        let near = |got: &[f32], want: &[f64]| {
            let largest = want.iter().map(|want| want.abs()).fold(0.0, f64::max);
            let all = got.iter().zip(want);
            let worst = all.map(|(&got, want)| (f64::from(got) - want).abs()).fold(0.0, f64::max);
            assert!(worst < 2e-6 * largest, "{worst} of {largest}");
        };
        let strip = QUERIES_AT_ONCE;
        for tokens in [1, 2, strip - 1, strip, strip + 1, 2 * strip, 3 * strip - 5] {
            for (heads, key_value_heads) in [(2, 2), (4, 2)] {
                let shape = AttentionShape { tokens, heads, key_value_heads, head_width: 6 };
                let qkv = noise(tokens * shape.row(), 1, 2.0);
                let along = noise(tokens * shape.width(), 2, 1.0);
                let [out, slopes] = plain(shape, &qkv, &along);
                let (sums, got) = run(shape, &qkv);
                near(&got, &out);
                let (mut scratch, mut gradient) =
                    (vec![9.0; shape.scratch()], vec![9.0; qkv.len()]);
                shape.backward((&qkv, &sums), &along, &mut scratch, &mut gradient);
                near(&gradient, &slopes);
            }
        }
    }

    #[test]
    fn gradients_are_slopes() {
        for (heads, key_value_heads) in [(1, 1), (3, 3), (3, 1), (6, 2)] {
            let shape = shape(heads, key_value_heads);
            let qkv = noise(5 * shape.row(), 1, 1.0);
            let (sums, out) = run(shape, &qkv);
            let along = noise(out.len(), 2, 1.0);
            let (mut scratch, mut gradient) = (vec![9.0; shape.scratch()], vec![9.0; qkv.len()]);
            shape.backward((&qkv, &sums), &along, &mut scratch, &mut gradient);
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
