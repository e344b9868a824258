//! Rotary positions: each pair of a head's channels is turned by an angle that grows with the position.
//!
//! Source: Su et al., arXiv:2104.09864, §3.2.2. Pairs are channel `i` and `i + D/2` of a head, as in
//! `transformers` (`modeling_llama`), not neighbours as in the paper.

use super::vectorized;

/// Cosines and sines of all positions of a sample.
#[derive(Debug)]
pub struct Rotation {
    /// `[T, D/2]`.
    cosines: Vec<f32>,
    /// `[T, D/2]`.
    sines: Vec<f32>,
    /// `D/2`.
    half: usize,
}

impl Rotation {
    /// Pair `i` of `head_width / 2` turns by `base^(−2i/D)` from one of `tokens` positions to the next.
    ///
    /// Angles are rounded to f32 where `transformers` rounds them: at late positions that is more than
    /// the error of a cosine, and weights should mean the same here and there.
    #[must_use]
    pub fn new(tokens: usize, head_width: usize, base: f64) -> Self {
        let half = head_width / 2;
        let rate = |pair: usize| {
            let exponent = (2 * pair) as f32 / head_width as f32;
            1.0 / (base.powf(exponent.into()) as f32)
        };
        let rates: Vec<f32> = (0..half).map(rate).collect();
        let angles =
            |position: usize| rates.iter().map(move |rate| f64::from(position as f32 * rate));
        let table = |function: fn(f64) -> f64| -> Vec<f32> {
            (0..tokens).flat_map(angles).map(|angle| function(angle) as f32).collect()
        };
        Self { cosines: table(f64::cos), sines: table(f64::sin), half }
    }

    /// Of the angle of each pair at each position, `[T, D/2]`.
    #[must_use]
    pub fn cosines(&self) -> &[f32] {
        &self.cosines
    }

    /// As [`Rotation::cosines`].
    #[must_use]
    pub fn sines(&self) -> &[f32] {
        &self.sines
    }

    /// Turns the first `heads` heads of each row; `rows`: `[n, stride]`, at the positions from `first` on.
    pub(crate) fn apply(&self, first: usize, rows: &mut [f32], stride: usize, heads: usize) {
        self.turn(first, rows, (stride, heads), 1.0);
    }

    /// Turns them back, which is what becomes of a gradient.
    pub(crate) fn undo(&self, rows: &mut [f32], stride: usize, heads: usize) {
        self.turn(0, rows, (stride, heads), -1.0);
    }

    fn turn(&self, first: usize, rows: &mut [f32], (stride, heads): (usize, usize), sign: f32) {
        vectorized(
            #[inline(always)]
            || {
                let table =
                    self.cosines.chunks_exact(self.half).zip(self.sines.chunks_exact(self.half));
                let table = table.skip(first);
                for (row, (cosines, sines)) in rows.chunks_exact_mut(stride).zip(table) {
                    for head in row.chunks_exact_mut(2 * self.half).take(heads) {
                        let (first, second) = head.split_at_mut(self.half);
                        let pairs = first.iter_mut().zip(second).zip(cosines.iter().zip(sines));
                        for ((x, y), (&cosine, &sine)) in pairs {
                            let sine = sign * sine;
                            (*x, *y) = (*x * cosine - *y * sine, *y * cosine + *x * sine);
                        }
                    }
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{noise, slope};

    /// Three heads of six channels, two of which turn, in rows with one channel more.
    const STRIDE: usize = 19;
    const TOKENS: usize = 5;

    fn turned(rows: &[f32]) -> Vec<f32> {
        let mut rows = rows.to_vec();
        Rotation::new(TOKENS, 6, 100.0).apply(0, &mut rows, STRIDE, 2);
        rows
    }

    #[test]
    fn pairs_turn_by_their_own_angle_and_the_rest_stays() {
        let rows = noise(TOKENS * STRIDE, 1, 1.0);
        let out = turned(&rows);
        assert_eq!(rows[..STRIDE], out[..STRIDE], "position 0");
        for (position, (before, after)) in
            rows.chunks_exact(STRIDE).zip(out.chunks_exact(STRIDE)).enumerate()
        {
            assert_eq!(before[12..], after[12..]);
            for pair in 0..3 {
                let angle = position as f64 * 100.0_f64.powf(-2.0 * pair as f64 / 6.0);
                let (x, y) = (f64::from(before[6 + pair]), f64::from(before[9 + pair]));
                let want = [x * angle.cos() - y * angle.sin(), y * angle.cos() + x * angle.sin()];
                for (at, want) in [6 + pair, 9 + pair].into_iter().zip(want) {
                    assert!((f64::from(after[at]) - want).abs() < 1e-6, "{position} {at}");
                }
            }
        }
    }

    #[test]
    fn a_product_depends_on_the_distance_alone() {
        let (query, key) = (noise(8, 1, 1.0), noise(8, 2, 1.0));
        let rotation = Rotation::new(40, 8, 10_000.0);
        let at = |vector: &[f32], position: usize| {
            let mut rows = vec![0.0; 40 * 8];
            rows[position * 8..][..8].copy_from_slice(vector);
            rotation.apply(0, &mut rows, 8, 1);
            rows[position * 8..][..8].to_vec()
        };
        let product =
            |t, s| -> f32 { at(&query, t).iter().zip(at(&key, s)).map(|(&x, y)| x * y).sum() };
        assert!((product(9, 4) - product(38, 33)).abs() < 1e-5);
        assert!((product(9, 4) - product(9, 5)).abs() > 1e-3);
    }

    #[test]
    fn the_gradient_is_turned_back() {
        let rows = noise(TOKENS * STRIDE, 1, 1.0);
        let weights = noise(rows.len(), 2, 1.0);
        let mut gradient = weights.clone();
        Rotation::new(TOKENS, 6, 100.0).undo(&mut gradient, STRIDE, 2);
        let value = |rows: &[f32]| {
            turned(rows).iter().zip(&weights).map(|(&y, &w)| f64::from(y) * f64::from(w)).sum()
        };
        for index in [0, 5, 20, 31, 40, TOKENS * STRIDE - 1] {
            let want = slope(&rows, index, value);
            assert!((f64::from(gradient[index]) - want).abs() < 1e-3, "{index}");
        }
    }
}
