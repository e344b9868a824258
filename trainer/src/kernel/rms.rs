//! Root-mean-square normalisation of rows.
//!
//! Source: Zhang and Sennrich, arXiv:1910.07467, equation 4, with `ε` under the root as in Llama.

use super::{reduce, vectorized};

/// What the forward pass keeps for the backward pass.
#[derive(Debug, Default)]
pub(crate) struct RmsNormalized {
    /// `[N, C]` rows whose mean square is 1.
    rows: Vec<f32>,
    /// `[N]` `1 / √(mean square + ε)`.
    inverse_root: Vec<f32>,
}

impl RmsNormalized {
    /// `out ← gain · input / √(mean of input² + ε)` per row.
    ///
    /// `input`, `out`: `[N, C]`; `gain`: `[C]`.
    pub(crate) fn forward(&mut self, input: &[f32], gain: &[f32], epsilon: f32, out: &mut [f32]) {
        let channels = gain.len();
        self.rows.resize(input.len(), 0.0);
        self.inverse_root.resize(input.len() / channels, 0.0);
        vectorized(
            #[inline(always)]
            || {
                let rows = input
                    .chunks_exact(channels)
                    .zip(out.chunks_exact_mut(channels))
                    .zip(self.rows.chunks_exact_mut(channels))
                    .zip(&mut self.inverse_root);
                for (((input, out), normal), inverse) in rows {
                    let square = reduce::dot(input, input) * (1.0 / channels as f32);
                    let scale = 1.0 / (square + epsilon).sqrt();
                    *inverse = scale;
                    let pairs = normal.iter_mut().zip(out).zip(input.iter().zip(gain));
                    for ((normal, out), (&x, &gain)) in pairs {
                        *normal = x * scale;
                        *out = gain * *normal;
                    }
                }
            },
        );
    }

    /// Adds the input's gradient to `input_gradient` and the gain's to `gain_gradient`.
    ///
    /// `out_gradient`, `input_gradient`: `[N, C]`; `gain`, `gain_gradient`: `[C]`. `out_gradient` is
    /// destroyed.
    pub(crate) fn backward(
        &self,
        out_gradient: &mut [f32],
        gain: &[f32],
        gain_gradient: &mut [f32],
        input_gradient: &mut [f32],
    ) {
        let channels = gain.len();
        vectorized(
            #[inline(always)]
            || {
                let rows = out_gradient
                    .chunks_exact_mut(channels)
                    .zip(input_gradient.chunks_exact_mut(channels))
                    .zip(self.rows.chunks_exact(channels))
                    .zip(&self.inverse_root);
                for (((dy, dx), normal), &inverse) in rows {
                    let sums = gain_gradient.iter_mut().zip(&mut *dy);
                    for ((sum, dy), (&normal, &gain)) in sums.zip(normal.iter().zip(gain)) {
                        *sum += *dy * normal;
                        *dy *= gain;
                    }
                    let slope = reduce::dot(dy, normal) * (1.0 / channels as f32);
                    for ((dx, &dy), &normal) in dx.iter_mut().zip(&*dy).zip(normal) {
                        *dx += inverse * (dy - normal * slope);
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

    const EPSILON: f32 = 1e-2;
    const CHANNELS: usize = 19;

    fn normalize(input: &[f32], gain: &[f32]) -> (RmsNormalized, Vec<f32>) {
        let (mut normalized, mut out) = (RmsNormalized::default(), vec![0.0; input.len()]);
        normalized.forward(input, gain, EPSILON, &mut out);
        (normalized, out)
    }

    #[test]
    fn rows_get_the_mean_square_of_the_gain() {
        let (_, out) = normalize(&noise(3 * CHANNELS, 1, 50.0), &[2.0; CHANNELS]);
        for row in out.chunks_exact(CHANNELS) {
            let square = row.iter().map(|x| x * x).sum::<f32>() / CHANNELS as f32;
            assert!((square - 4.0).abs() < 1e-3, "{square}");
        }
        assert_eq!(normalize(&[0.0; CHANNELS], &[1.0; CHANNELS]).1, [0.0; CHANNELS]);
    }

    #[test]
    fn gradients_are_slopes() {
        let (input, gain) = (noise(3 * CHANNELS, 1, 1.0), noise(CHANNELS, 2, 1.0));
        let weights = noise(input.len(), 3, 1.0);
        let (normalized, _) = normalize(&input, &gain);
        let mut gain_gradient = vec![0.5; CHANNELS];
        let mut input_gradient = vec![0.25; input.len()];
        normalized.backward(&mut weights.clone(), &gain, &mut gain_gradient, &mut input_gradient);
        let value = |input: &[f32], gain: &[f32]| {
            let out = normalize(input, gain).1;
            out.iter().zip(&weights).map(|(&y, &w)| f64::from(y) * f64::from(w)).sum()
        };
        for index in [0, 7, CHANNELS, 3 * CHANNELS - 1] {
            let want = slope(&input, index, |input| value(input, &gain));
            let got = f64::from(input_gradient[index]) - 0.25;
            assert!((got - want).abs() < 1e-3, "input {index}: {got}, not {want}");
        }
        for index in [0, 9, CHANNELS - 1] {
            let want = slope(&gain, index, |gain| value(&input, gain));
            let got = f64::from(gain_gradient[index]) - 0.5;
            assert!((got - want).abs() < 1e-3, "gain {index}: {got}, not {want}");
        }
    }
}
