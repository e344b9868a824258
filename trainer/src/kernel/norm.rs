//! Layer normalisation of rows.
//!
//! Source: Ba, Kiros, Hinton, arXiv:1607.06450, §3.

use super::{reduce, vectorized};

/// Added to the variance; 1e-5 as in GPT-2.
const EPSILON: f32 = 1e-5;

/// [`EPSILON`] as it is written, for descriptions.
pub(crate) fn epsilon() -> f64 {
    EPSILON.to_string().parse().unwrap_or_else(|_| EPSILON.into())
}

/// What the forward pass keeps for the backward pass.
#[derive(Debug, Default)]
pub(crate) struct Normalized {
    /// `[N, C]` rows with mean 0 and variance 1.
    rows: Vec<f32>,
    /// `[N]` `1 / √(variance + ε)`.
    inverse_deviation: Vec<f32>,
}

impl Normalized {
    /// Room for `[rows, channels]`.
    pub(crate) fn resize(&mut self, rows: usize, channels: usize) {
        self.rows.resize(rows * channels, 0.0);
        self.inverse_deviation.resize(rows, 0.0);
    }

    /// `out ← gain · (input − mean) / deviation + bias` per row.
    ///
    /// `input`, `out`: `[N, C]` with `N` as resized; `gain`, `bias`: `[C]`.
    pub(crate) fn forward(&mut self, input: &[f32], gain: &[f32], bias: &[f32], out: &mut [f32]) {
        let channels = gain.len();
        vectorized(
            #[inline(always)]
            || {
                let rows = input
                    .chunks_exact(channels)
                    .zip(out.chunks_exact_mut(channels))
                    .zip(self.rows.chunks_exact_mut(channels))
                    .zip(&mut self.inverse_deviation);
                for (((input, out), normal), inverse) in rows {
                    let share = 1.0 / channels as f32;
                    let mean = reduce::sum(input) * share;
                    for (normal, &x) in normal.iter_mut().zip(input) {
                        *normal = x - mean;
                    }
                    let variance = reduce::dot(normal, normal) * share;
                    let scale = 1.0 / (variance + EPSILON).sqrt();
                    *inverse = scale;
                    let pairs = normal.iter_mut().zip(out).zip(gain.iter().zip(bias));
                    for ((normal, out), (&gain, &bias)) in pairs {
                        *normal *= scale;
                        *out = gain * *normal + bias;
                    }
                }
            },
        );
    }

    /// Adds the input's gradient to `input_gradient` and the parameters' to `gain` and `bias`.
    ///
    /// `out_gradient`, `input_gradient`: `[N, C]`; `gain`: `[C]`; `gradient`: those of gain and
    /// bias, `[C]` each. `out_gradient` is destroyed.
    pub(crate) fn backward(
        &self,
        out_gradient: &mut [f32],
        gain: &[f32],
        gradient: (&mut [f32], &mut [f32]),
        input_gradient: &mut [f32],
    ) {
        let channels = gain.len();
        let (gain_gradient, bias_gradient) = gradient;
        vectorized(
            #[inline(always)]
            || {
                let rows = out_gradient
                    .chunks_exact_mut(channels)
                    .zip(input_gradient.chunks_exact_mut(channels))
                    .zip(self.rows.chunks_exact(channels))
                    .zip(&self.inverse_deviation);
                for (((dy, dx), normal), &inverse) in rows {
                    let sums = gain_gradient.iter_mut().zip(&mut *bias_gradient);
                    for (((gain_sum, bias_sum), dy), (&normal, &gain)) in
                        sums.zip(&mut *dy).zip(normal.iter().zip(gain))
                    {
                        *gain_sum += *dy * normal;
                        *bias_sum += *dy;
                        *dy *= gain;
                    }
                    let share = 1.0 / channels as f32;
                    let mean = reduce::sum(dy) * share;
                    let slope = reduce::dot(dy, normal) * share;
                    for ((dx, &dy), &normal) in dx.iter_mut().zip(&*dy).zip(normal) {
                        *dx += inverse * (dy - mean - normal * slope);
                    }
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_get_mean_and_deviation_of_bias_and_gain() {
        let input: Vec<f32> = (0..3 * 40).map(|i| (i * i % 17) as f32 * 3.0 + 100.0).collect();
        let mut normalized = Normalized::default();
        normalized.resize(3, 40);
        let mut out = vec![0.0; input.len()];
        normalized.forward(&input, &[2.0; 40], &[5.0; 40], &mut out);
        for row in out.chunks_exact(40) {
            let mean = row.iter().sum::<f32>() / 40.0;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 40.0;
            assert!((mean - 5.0).abs() < 1e-4 && (variance.sqrt() - 2.0).abs() < 1e-4);
        }
    }
}
