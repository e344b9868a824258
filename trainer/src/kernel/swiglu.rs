//! A gated activation: one half of the channels, through SiLU, scales the other.
//!
//! Source: Shazeer, arXiv:2002.05202, §2 (SwiGLU without biases).

use super::activation::exp;
use super::vectorized;

/// Channels that are computed at once. Their numbers are copied before any is written: in place, the compiler
/// does not see that gates, what they scale and the output lie apart, and takes one number after the other.
const LANES: usize = 16;

/// `out ← silu(gate) · up` with `silu(x) = x / (1 + e^−x)`; what the backward pass needs replaces `rows`.
///
/// `rows`: `[N, 2·C]`, each row holds the gates, then what they scale; `out`: `[N, C]`.
pub(crate) fn swiglu(rows: &mut [f32], channels: usize, out: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            let rows = rows.chunks_exact_mut(2 * channels).zip(out.chunks_exact_mut(channels));
            for (row, out) in rows {
                let (gates, ups) = row.split_at_mut(channels);
                let (gates, last_gates) = gates.as_chunks_mut::<LANES>();
                let (ups, last_ups) = ups.as_chunks_mut();
                let (out, last_out) = out.as_chunks_mut();
                for ((gates, ups), out) in gates.iter_mut().zip(ups).zip(out) {
                    let mut lanes = [[0.0; LANES]; 3];
                    for lane in 0..LANES {
                        let [gate, up, value] = gated(gates[lane], ups[lane]);
                        (lanes[0][lane], lanes[1][lane], lanes[2][lane]) = (gate, up, value);
                    }
                    [*gates, *ups, *out] = lanes;
                }
                for ((gate, up), out) in last_gates.iter_mut().zip(last_ups).zip(last_out) {
                    [*gate, *up, *out] = gated(*gate, *up);
                }
            }
        },
    );
}

/// The derivatives of the output, of the gate's channel and of the other, and the output.
#[inline(always)]
fn gated(gate: f32, up: f32) -> [f32; 3] {
    let sigmoid = 1.0 / (1.0 + exp(-gate));
    let silu = gate * sigmoid;
    [up * sigmoid * (1.0 + gate * (1.0 - sigmoid)), silu, silu * up]
}

/// Gradient of the rows that [`swiglu`] was given: `out_gradient` times the derivatives that it left.
///
/// `derivatives`, `gradient`: `[N, 2·C]`, the latter overwritten; `out_gradient`: `[N, C]`.
pub(crate) fn swiglu_backward(
    out_gradient: &[f32],
    derivatives: &[f32],
    channels: usize,
    gradient: &mut [f32],
) {
    vectorized(
        #[inline(always)]
        || {
            let rows = out_gradient
                .chunks_exact(channels)
                .zip(derivatives.chunks_exact(2 * channels))
                .zip(gradient.chunks_exact_mut(2 * channels));
            for ((dy, derivatives), gradient) in rows {
                for half in [0, channels] {
                    let pairs = gradient[half..].iter_mut().zip(&derivatives[half..]).zip(dy);
                    for ((gradient, &derivative), &dy) in pairs {
                        *gradient = dy * derivative;
                    }
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{noise, slope};

    const CHANNELS: usize = 21;

    fn activate(rows: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (mut kept, mut out) = (rows.to_vec(), vec![0.0; rows.len() / 2]);
        swiglu(&mut kept, CHANNELS, &mut out);
        (kept, out)
    }

    #[test]
    fn values_and_gradients_are_those_of_the_formula() {
        let rows = noise(3 * 2 * CHANNELS, 1, 4.0);
        let (kept, out) = activate(&rows);
        for (row, out) in rows.chunks_exact(2 * CHANNELS).zip(out.chunks_exact(CHANNELS)) {
            for channel in 0..CHANNELS {
                let (gate, up) = (f64::from(row[channel]), f64::from(row[CHANNELS + channel]));
                let want = gate / (1.0 + (-gate).exp()) * up;
                assert!((f64::from(out[channel]) - want).abs() < 1e-5);
            }
        }
        let weights = noise(out.len(), 2, 1.0);
        let mut gradient = vec![9.0; rows.len()];
        swiglu_backward(&weights, &kept, CHANNELS, &mut gradient);
        let value = |rows: &[f32]| {
            let out = activate(rows).1;
            out.iter().zip(&weights).map(|(&y, &w)| f64::from(y) * f64::from(w)).sum()
        };
        for index in [0, 20, 21, 41, 60, 80, 3 * 2 * CHANNELS - 1] {
            let (got, want) = (f64::from(gradient[index]), slope(&rows, index, value));
            assert!((got - want).abs() < 5e-3, "{index}: {got}, not {want}");
        }
    }

    #[test]
    fn extremes_stay_finite_and_nan_stays_visible() {
        let run = |gate: f32| {
            let (mut rows, mut out) = ([gate, 2.0], [0.0]);
            swiglu(&mut rows, 1, &mut out);
            (rows, out[0])
        };
        for gate in [-1e30, -100.0, 0.0, 100.0, 1e30] {
            let (rows, out) = run(gate);
            assert!(out.is_finite() && rows.iter().all(|it| it.is_finite()), "{gate} {rows:?}");
            assert!((out - 2.0 * gate.max(0.0)).abs() <= 1e-6 * gate.abs(), "{gate}: {out}");
        }
        assert!(run(f32::NAN).1.is_nan());
    }
}
