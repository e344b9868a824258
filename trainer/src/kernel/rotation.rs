//! Rotary positions: each pair of a head's channels is turned by an angle that grows with the position.
//!
//! Source: Su et al., arXiv:2104.09864, §3.2.2. Pairs are channel `i` and `i + D/2` of a head, as in
//! `transformers` (`modeling_llama`), not neighbours as in the paper.

use super::vectorized;
use crate::config::{ModelConfig, RotaryScaling};

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
    /// Of the model of `config`: pair `i` of `D/2` turns by `base^(−2i/D)` from one of its positions to the
    /// next, where nothing stretches them.
    ///
    /// Angles are rounded to f32 where `transformers` rounds them: at late positions that is more than
    /// the error of a cosine, and weights should mean the same here and there.
    #[must_use]
    pub fn new(config: &ModelConfig) -> Self {
        let (tokens, head_width) = (config.context, config.width / config.heads);
        let half = head_width / 2;
        let rate = |pair: usize| {
            let exponent = (2 * pair) as f32 / head_width as f32;
            scaled(config, 1.0 / (config.rotary_base.powf(exponent.into()) as f32))
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

/// What stretching makes of a rate, in the order of `transformers` (`modeling_rope_utils`).
fn scaled(config: &ModelConfig, rate: f32) -> f32 {
    let factor = config.rotary_factor as f32;
    match config.rotary_scaling {
        RotaryScaling::None => rate,
        RotaryScaling::Linear => rate / factor,
        RotaryScaling::Llama3 => {
            let positions = config.rotary_positions as f32;
            let (low, high) = (config.rotary_low as f32, config.rotary_high as f32);
            let wavelength = std::f32::consts::TAU / rate;
            if wavelength < positions / high {
                return rate;
            }
            if wavelength > positions / low {
                return rate / factor;
            }
            let share = (positions / wavelength - low) / (high - low);
            (1.0 - share) * rate / factor + share * rate
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{noise, slope};

    /// Three heads of six channels, two of which turn, in rows with one channel more.
    const STRIDE: usize = 19;
    const TOKENS: usize = 5;

    /// Of so many tokens and one head of this width.
    fn rotation(context: usize, width: usize, rotary_base: f64) -> Rotation {
        Rotation::new(&ModelConfig {
            context,
            width,
            heads: 1,
            rotary_base,
            ..ModelConfig::default()
        })
    }

    fn turned(rows: &[f32]) -> Vec<f32> {
        let mut rows = rows.to_vec();
        rotation(TOKENS, 6, 100.0).apply(0, &mut rows, STRIDE, 2);
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
        let rotation = rotation(40, 8, 10_000.0);
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
    fn slow_rates_are_stretched_and_quick_ones_stay() {
        let linear = ModelConfig {
            rotary_scaling: RotaryScaling::Linear,
            rotary_factor: 4.0,
            ..ModelConfig::default()
        };
        assert_eq!(scaled(&linear, 1.0).to_bits(), 0.25_f32.to_bits());
        let llama =
            ModelConfig { rotary_scaling: RotaryScaling::Llama3, rotary_positions: 100, ..linear };
        // Turns within 100 positions: more than 4, fewer than 1, and 2.5, which is half way.
        let rate = |turns: f32| std::f32::consts::TAU * turns / 100.0;
        for (turns, want) in [(4.1, 1.0), (0.9, 0.25), (2.5, 0.625), (4.0, 1.0), (1.0, 0.25)] {
            let share = scaled(&llama, rate(turns)) / rate(turns);
            assert!((share - want).abs() < 1e-5, "{turns}: {share}, not {want}");
        }
        let none = ModelConfig { rotary_scaling: RotaryScaling::None, ..llama };
        assert_eq!(scaled(&none, 0.3).to_bits(), 0.3_f32.to_bits());
    }

    #[test]
    fn the_gradient_is_turned_back() {
        let rows = noise(TOKENS * STRIDE, 1, 1.0);
        let weights = noise(rows.len(), 2, 1.0);
        let mut gradient = weights.clone();
        rotation(TOKENS, 6, 100.0).undo(&mut gradient, STRIDE, 2);
        let value = |rows: &[f32]| {
            turned(rows).iter().zip(&weights).map(|(&y, &w)| f64::from(y) * f64::from(w)).sum()
        };
        for index in [0, 5, 20, 31, 40, TOKENS * STRIDE - 1] {
            let want = slope(&rows, index, value);
            assert!((f64::from(gradient[index]) - want).abs() < 1e-3, "{index}");
        }
    }
}
