//! Update rules that treat every parameter alone: momentum and Adam.

use crate::kernel::vectorized;

/// What [`sgd`] needs besides its slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SgdRule {
    pub(super) learning_rate: f32,
    pub(super) momentum: f32,
    pub(super) nesterov: bool,
    pub(super) weight_decay: f32,
    /// Factor of the gradient (clipping).
    pub(super) gradient_scale: f32,
}

/// `m ← μ m + g ; x ← x − η (m or g + μ m) − η λ x`.
///
/// All slices have one length. Source: Sutskever et al., ICML 2013, §2, in the form whose
/// momentum is free of the learning rate; decay decoupled as in [`adamw`].
pub(super) fn sgd(parameters: &mut [f32], gradient: &[f32], momentum: &mut [f32], rule: SgdRule) {
    let keep = 1.0 - rule.learning_rate * rule.weight_decay;
    vectorized(
        #[inline(always)]
        || {
            for ((x, &g), m) in parameters.iter_mut().zip(gradient).zip(momentum) {
                let g = g * rule.gradient_scale;
                *m = rule.momentum * *m + g;
                let direction = if rule.nesterov { g + rule.momentum * *m } else { *m };
                *x = keep * *x - rule.learning_rate * direction;
            }
        },
    );
}

/// What [`adamw`] needs besides its slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AdamwRule {
    pub(super) learning_rate: f32,
    pub(super) beta1: f32,
    pub(super) beta2: f32,
    pub(super) epsilon: f32,
    pub(super) weight_decay: f32,
    /// Factor of the gradient (clipping).
    pub(super) gradient_scale: f32,
    /// Number of this update, from 1.
    pub(super) update: u64,
    /// Whether the first moment is corrected for its beginning at zero.
    pub(super) corrects_first: bool,
}

/// Adam with decoupled weight decay; moments are `(first, second)`.
///
/// All slices have one length. Source: Loshchilov and Hutter, arXiv:1711.05101, algorithm 2.
pub(super) fn adamw(
    parameters: &mut [f32],
    gradient: &[f32],
    (first, second): (&mut [f32], &mut [f32]),
    rule: AdamwRule,
) {
    let power = i32::try_from(rule.update).unwrap_or(i32::MAX);
    let correction = |beta: f32| (1.0 - f64::from(beta).powi(power)) as f32;
    let first_correction = if rule.corrects_first { correction(rule.beta1) } else { 1.0 };
    let rate = rule.learning_rate / first_correction;
    let inverse_root = 1.0 / correction(rule.beta2).sqrt();
    let keep = 1.0 - rule.learning_rate * rule.weight_decay;
    vectorized(
        #[inline(always)]
        || {
            let moments = first.iter_mut().zip(second);
            for ((x, &g), (m, v)) in parameters.iter_mut().zip(gradient).zip(moments) {
                let g = g * rule.gradient_scale;
                *m = rule.beta1 * *m + (1.0 - rule.beta1) * g;
                *v = rule.beta2 * *v + (1.0 - rule.beta2) * g * g;
                *x = keep * *x - rate * *m / (v.sqrt() * inverse_root + rule.epsilon);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGD: SgdRule = SgdRule {
        learning_rate: 0.5,
        momentum: 0.5,
        nesterov: false,
        weight_decay: 0.0,
        gradient_scale: 1.0,
    };

    #[test]
    fn sgd_follows_the_formula() {
        let (mut x, mut m) = ([1.0], [0.0]);
        sgd(&mut x, &[2.0], &mut m, SGD); // m = 2, x = 1 − 0.5 · 2
        assert_eq!((x, m), ([0.0], [2.0]));
        sgd(&mut x, &[2.0], &mut m, SGD); // m = 0.5 · 2 + 2, x = 0 − 0.5 · 3
        assert_eq!((x, m), ([-1.5], [3.0]));
        let nesterov = SgdRule { nesterov: true, ..SGD };
        sgd(&mut x, &[2.0], &mut m, nesterov); // m = 3.5, x = −1.5 − 0.5 · (2 + 0.5 · 3.5)
        assert_eq!((x, m), ([-3.375], [3.5]));
        let decayed = SgdRule { weight_decay: 0.25, gradient_scale: 0.5, momentum: 0.0, ..SGD };
        sgd(&mut x, &[2.0], &mut m, decayed); // x = −3.375 · (1 − 0.125) − 0.5 · 1
        assert_eq!((x, m), ([-3.453_125], [1.0]));
    }

    #[test]
    fn adamw_follows_the_formula() {
        let rule = |update| AdamwRule {
            learning_rate: 0.1,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.5,
            gradient_scale: 1.0,
            update,
            corrects_first: true,
        };
        let (mut x, mut m, mut v) = ([1.0], [0.0], [0.0]);
        adamw(&mut x, &[2.0], (&mut m, &mut v), rule(1));
        // m̂ = 2, v̂ = 4: x = 1 − 0.1 · (2/2 + 0.5 · 1).
        assert!((x[0] - 0.85).abs() < 1e-6, "{x:?}");
        adamw(&mut x, &[-1.0], (&mut m, &mut v), rule(2));
        // m = 0.08, v = 0.0496: m̂ = 0.08/0.19, v̂ = 0.0496/0.0199.
        let step = (0.08 / 0.19) / (0.0496_f64 / 0.0199).sqrt();
        let want = 0.85 - 0.1 * (step + 0.5 * 0.85);
        assert!((f64::from(x[0]) - want).abs() < 1e-6, "{x:?}, not {want}");
    }
}
