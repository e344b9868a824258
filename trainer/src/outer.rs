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
    /// Turns the progress of one slice into what is added to the slow weights.
    ///
    /// `progress`: `Δ = x − φ` in, `α (Δ + β v)` out; `momentum`: v, moved on. Of one length.
    pub(crate) fn direct(self, progress: &mut [f32], momentum: &mut [f32]) {
        let (alpha, beta) = (self.learning_rate, self.momentum);
        for (progress, v) in progress.iter_mut().zip(momentum) {
            *v = beta * *v + *progress;
            *progress = alpha * (*progress + beta * *v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_by_hand() {
        let step = OuterStep { learning_rate: 0.5, momentum: 0.25 };
        let (mut delta, mut v) = ([2.0_f32], [0.0_f32]);
        step.direct(&mut delta, &mut v);
        // v = 2, then 0.5·(2 + 0.25·2).
        assert_eq!((delta, v), ([1.25], [2.0]));
        delta = [0.0];
        step.direct(&mut delta, &mut v);
        // v = 0.5, then 0.5·0.25·0.5.
        assert_eq!((delta, v), ([0.0625], [0.5]));
    }

    #[test]
    fn without_momentum_and_at_rate_one_the_slow_weights_take_the_live_ones() {
        let step = OuterStep { learning_rate: 1.0, momentum: 0.0 };
        let (mut delta, mut v) = ([0.25_f32], [9.0_f32]);
        step.direct(&mut delta, &mut v);
        assert_eq!((delta, v), ([0.25], [0.25]));
    }
}
