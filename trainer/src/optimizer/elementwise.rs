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
    /// Whether first moments may come from other peers, beside second moments that are this one's own.
    pub(super) shared: bool,
}

/// What `m̂ / √v̂` reaches at most where both are of the same gradients.
///
/// Source: Kingma and Ba 2014, arXiv:1412.6980, section 2.1.
#[must_use]
pub fn update_max(beta1: f32, beta2: f32) -> f32 {
    ((1.0 - beta1) / (1.0 - beta2).sqrt()).max(1.0)
}

/// What an update counts for whose second moments are of so few gradients: 0 for the first ones, near 1
/// after a few times `1 / (1 - beta2)`.
///
/// Source: Liu et al. 2019, arXiv:1908.03265, the variance rectification of RAdam.
#[must_use]
pub fn rectification(beta2: f32, update: u64) -> f32 {
    let beta2 = f64::from(beta2);
    let longest = 2.0 / (1.0 - beta2) - 1.0;
    if longest <= 4.0 {
        return 1.0;
    }
    let power = beta2.powi(i32::try_from(update).unwrap_or(i32::MAX));
    let length = longest - 2.0 * update as f64 * power / (1.0 - power);
    if length <= 4.0 {
        return 0.0;
    }
    let part = |length: f64| (length - 4.0) * (length - 2.0) / length;
    (part(length) / part(longest)).sqrt() as f32
}

/// Adam with decoupled weight decay; moments are `(first, second)`.
///
/// With shared moments the first one is not corrected for its beginning at zero, and no element moves by
/// more than [`update_max`] times the rate: a neighbour's moment may be of a gradient of which the own
/// second moment knows nothing, for example that of a token which this peer has not seen. A newcomer's
/// rate begins at zero ([`rectification`]), as its second moments know hardly anything yet.
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
    let (rate, most) = if rule.shared {
        let rate = rule.learning_rate * rectification(rule.beta2, rule.update);
        (rate, update_max(rule.beta1, rule.beta2))
    } else {
        (rule.learning_rate / correction(rule.beta1), f32::INFINITY)
    };
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
                let deviation = v.sqrt() * inverse_root + rule.epsilon;
                let longest = most * deviation;
                // What is not a number stays so.
                let m = if m.abs() > longest { longest.copysign(*m) } else { *m };
                *x = keep * *x - rate * m / deviation;
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
            shared: false,
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

    #[test]
    fn a_moment_from_elsewhere_moves_no_element_further_than_own_gradients_could() {
        let rule = AdamwRule {
            learning_rate: 0.1,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.0,
            gradient_scale: 1.0,
            update: 100_000,
            shared: true,
        };
        assert!((update_max(0.9, 0.99) - 1.0).abs() < 1e-6);
        assert!((update_max(0.9, 0.999) - 3.162_277).abs() < 1e-4);
        // Own gradients of nothing, of little and of as much as the moment says.
        let (mut x, mut m, mut v) = ([0.0; 3], [1.0, -1.0, 1.0], [0.0, 1e-9, 0.01]);
        adamw(&mut x, &[0.0, -1e-3, 1.0], (&mut m, &mut v), rule);
        for (x, want) in x.iter().zip([-0.1, 0.1, -0.1]) {
            assert!((x - want).abs() < 1e-6, "{x}, not {want}");
        }
        // A newcomer has no second moments yet.
        adamw(&mut x, &[2.0; 3], (&mut m, &mut v), AdamwRule { update: 1, ..rule });
        assert!((x[0] + 0.1).abs() < 1e-6, "{x:?}");
    }

    #[test]
    fn second_moments_of_few_gradients_count_for_little() {
        assert!(rectification(0.99, 4) <= 0.0 && rectification(0.99, 5) > 0.0);
        for (update, want) in [(10, 0.156), (50, 0.456), (100, 0.634)] {
            let is = rectification(0.99, update);
            assert!((is - want).abs() < 0.02, "{update}: {is}");
        }
        assert!((rectification(0.99, 5000) - 1.0).abs() < 1e-3);
        assert!((rectification(0.0, 1) - 1.0).abs() < 1e-6);
    }
}
