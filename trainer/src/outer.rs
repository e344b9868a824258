//! The outer step: what a replica does with the progress of its local steps at a commit.

use serde::{Deserialize, Serialize};

/// Outer learning rate and Nesterov momentum, computed at the origin.
///
/// `Δ = x − φ ;  v ← β v + Δ ;  φ ← φ + α (Δ + β v)`
///
/// Linear in the progress `Δ`, so the mean over replicas follows DiLoCo's outer step on the mean
/// progress although nobody shares `v` (docs/math.md).
///
/// Source: Douillard et al. 2023, arXiv 2311.08105, Algorithm 1, with Nesterov momentum in the
/// form of Sutskever et al. 2013.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OuterStep {
    /// `α`, unitless, `> 0`; default 0.7 (DiLoCo).
    pub learning_rate: f32,
    /// `β`, unitless, in `[0, 1)`; default 0.8, tuned for up to 500 commits.
    pub momentum: f32,
}

impl Default for OuterStep {
    fn default() -> Self {
        Self { learning_rate: 0.7, momentum: 0.8 }
    }
}

impl OuterStep {
    /// Applies the step to one slice.
    ///
    /// `progress`: `Δ = x − φ`, `slow`: φ, `momentum`: v, all of one length.
    pub(crate) fn apply(self, progress: &[f32], slow: &mut [f32], momentum: &mut [f32]) {
        let (alpha, beta) = (self.learning_rate, self.momentum);
        for ((&progress, phi), v) in progress.iter().zip(slow).zip(momentum) {
            *v = beta * *v + progress;
            *phi += alpha * (progress + beta * *v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_by_hand() {
        let step = OuterStep { learning_rate: 0.5, momentum: 0.25 };
        let (mut phi, mut v) = ([1.0_f32], [0.0_f32]);
        step.apply(&[2.0], &mut phi, &mut v);
        // v = 2, φ = 1 + 0.5·(2 + 0.25·2).
        assert_eq!((phi, v), ([2.25], [2.0]));
        step.apply(&[0.0], &mut phi, &mut v);
        // v = 0.5, φ = 2.25 + 0.5·0.25·0.5.
        assert_eq!((phi, v), ([2.3125], [0.5]));
    }

    #[test]
    fn without_momentum_and_at_rate_one_the_slow_weights_take_the_live_ones() {
        let step = OuterStep { learning_rate: 1.0, momentum: 0.0 };
        let (mut phi, mut v) = ([0.5_f32], [9.0_f32]);
        step.apply(&[0.25], &mut phi, &mut v);
        assert_eq!((phi, v), ([0.75], [0.25]));
    }
}
