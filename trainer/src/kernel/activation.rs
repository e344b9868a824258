//! Element-wise functions: polynomial `exp` and `tanh`, ReLU, GELU.

use std::f32::consts::{LN_2, LOG2_E};

use super::vectorized;

/// `1.5 · 2^23`: adding it rounds a small `f32` to an integer that then sits in the low bits.
const ROUNDER: f32 = 12_582_912.0;
/// High part of ln 2, exact in few bits, so that `n · LN_2_HIGH` is exact (Cody and Waite).
const LN_2_HIGH: f32 = 0.693_359_4;
/// Arguments of [`exp`] are held within ± this bound, where results stay normal numbers.
const EXP_ARGUMENT_MAX: f32 = 87.0;
/// `√(2/π)`, GELU's inner scale (Hendrycks and Gimpel, arXiv:1606.08415, §2).
const GELU_SCALE: f32 = 0.797_884_6;
/// GELU's cubic coefficient (same source).
const GELU_CUBIC: f32 = 0.044_715;

/// `e^x` for `|x| ≤ 87` (larger arguments are clamped), relative error below 1e-6; NaN stays NaN.
///
/// `e^x = 2^n · e^r` with `|r| ≤ ln 2 / 2` and `e^r` by its Taylor polynomial of degree 6.
/// The standard library's `exp` is an opaque call that loops cannot vectorise, and its last bit
/// differs between platforms; this one is plain arithmetic and the same everywhere.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = x.clamp(-EXP_ARGUMENT_MAX, EXP_ARGUMENT_MAX);
    let shifted = x * LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = (x - n * LN_2_HIGH) - n * (LN_2 - LN_2_HIGH);
    let series = 1.0 / 120.0 + r * (1.0 / 720.0);
    let series = 1.0 / 24.0 + r * series;
    let series = 1.0 / 6.0 + r * series;
    let series = 0.5 + r * series;
    let series = 1.0 + r * (1.0 + r * series);
    // The exponent field of a float is 127 + n; higher bits of `shifted` fall off the left end.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    series * power
}

/// `tanh x`, absolute error below 1e-6.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let e = exp(-2.0 * x.abs());
    ((1.0 - e) / (1.0 + e)).copysign(x)
}

/// `x ← max(x + bias, 0)`; `rows`: `[N, C]`, `bias`: `[C]`.
pub(crate) fn add_bias_relu(rows: &mut [f32], bias: &[f32]) {
    vectorized(
        #[inline(always)]
        || {
            for row in rows.chunks_exact_mut(bias.len()) {
                for (value, &bias) in row.iter_mut().zip(bias) {
                    let sum = *value + bias;
                    // Not `max`: a NaN must stay visible.
                    *value = if sum < 0.0 { 0.0 } else { sum };
                }
            }
        },
    );
}

/// `gradient ← gradient` where the ReLU's `output` is positive, else 0.
pub(crate) fn relu_backward(gradient: &mut [f32], output: &[f32]) {
    vectorized(
        #[inline(always)]
        || {
            for (gradient, &output) in gradient.iter_mut().zip(output) {
                *gradient = if output > 0.0 { *gradient } else { 0.0 };
            }
        },
    );
}

/// GELU of `x + bias` in its tanh form; the derivative replaces `x`, for the backward pass.
///
/// `rows`, `out`: `[N, C]`, `bias`: `[C]`.
/// Source: Hendrycks and Gimpel, arXiv:1606.08415, §2.
pub(crate) fn add_bias_gelu(rows: &mut [f32], bias: &[f32], out: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            let channels = bias.len();
            for (row, out) in rows.chunks_exact_mut(channels).zip(out.chunks_exact_mut(channels)) {
                for ((value, &bias), out) in row.iter_mut().zip(bias).zip(out) {
                    let x = *value + bias;
                    let square = x * x;
                    let t = tanh(GELU_SCALE * x * (1.0 + GELU_CUBIC * square));
                    let slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * square);
                    *out = 0.5 * x * (1.0 + t);
                    *value = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope;
                }
            }
        },
    );
}

/// `gradient ← gradient · derivative`.
pub(crate) fn gelu_backward(gradient: &mut [f32], derivative: &[f32]) {
    vectorized(
        #[inline(always)]
        || {
            for (gradient, &derivative) in gradient.iter_mut().zip(derivative) {
                *gradient *= derivative;
            }
        },
    );
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    #[test]
    fn exp_and_tanh_follow_the_exact_functions() {
        for i in -860..=860_i16 {
            let x = f32::from(i) * 0.1;
            let want = f64::from(x).exp();
            assert!(((f64::from(exp(x)) - want) / want).abs() < 1e-6, "exp {x}");
        }
        for i in -1000..=1000_i16 {
            let x = f32::from(i) * 0.01;
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 1e-6, "tanh {x}");
        }
        assert!(exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert!(exp(-1e30) < 1e-37 && exp(1e30).is_finite());
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn gelu_derivative_is_the_slope_of_gelu() {
        let at = |x: f32| {
            let (mut derivative, mut out) = ([x], [0.0]);
            add_bias_gelu(&mut derivative, &[0.0], &mut out);
            (out[0], derivative[0])
        };
        for i in -40..=40_i16 {
            let x = f32::from(i) * 0.1;
            let slope = (at(x + 1e-2).0 - at(x - 1e-2).0) / 2e-2;
            assert!((slope - at(x).1).abs() < 1e-3, "gelu' {x}");
        }
        assert!((at(1.0).0 - 0.841_192).abs() < 1e-5);
    }

    #[test]
    fn relu_keeps_nan() {
        let mut row = [f32::NAN, -1.0, 2.0];
        add_bias_relu(&mut row, &[0.0, 0.5, 0.5]);
        assert!(row[0].is_nan());
        assert_eq!(&row[1..], [0.0, 2.5]);
    }
}
