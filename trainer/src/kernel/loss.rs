//! Softmax cross-entropy of rows of logits.

use super::activation::exp;
use super::{reduce, vectorized};

/// Sums over the rows of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Sum of the rows' losses, nats.
    pub loss: f64,
    /// Rows whose largest logit is the target's.
    pub correct: u64,
    /// Rows.
    pub count: u64,
}

impl Score {
    /// Adds another batch.
    pub fn add(&mut self, other: Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.count += other.count;
    }

    /// Mean loss per row, nats.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.count as f64
    }

    /// Share of rows predicted right.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.count as f64
    }
}

/// Replaces each row of logits by its probabilities minus the one-hot target: the gradient of the
/// row's loss.
///
/// `logits`: `[N, K]`, `targets`: `[N]`, each `< K`.
pub(crate) fn cross_entropy(logits: &mut [f32], targets: &[u32], classes: usize) -> Score {
    let mut score = Score::default();
    vectorized(
        #[inline(always)]
        || {
            for (row, &target) in logits.chunks_exact_mut(classes).zip(targets) {
                let target = target as usize;
                let largest = reduce::maximum(row);
                let target_logit = row[target];
                for value in row.iter_mut() {
                    *value = exp(*value - largest);
                }
                let total = reduce::sum(row);
                let inverse = 1.0 / total;
                for value in row.iter_mut() {
                    *value *= inverse;
                }
                row[target] -= 1.0;
                score.loss += f64::from(total).ln() + f64::from(largest) - f64::from(target_logit);
                score.correct += u64::from(target_logit >= largest);
                score.count += 1;
            }
        },
    );
    score
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_gradient_of_a_known_row() {
        let mut logits = [0.0, 3.0_f32.ln(), 0.0, 0.0];
        let score = cross_entropy(&mut logits, &[1, 0], 2);
        assert!((score.loss - (4.0_f64 / 3.0).ln() - 2.0_f64.ln()).abs() < 1e-6);
        assert_eq!((score.correct, score.count), (2, 2));
        for (got, want) in logits.iter().zip([0.25, -0.25, -0.5, 0.5]) {
            assert!((got - want).abs() < 1e-6);
        }
    }

    #[test]
    fn non_finite_logits_give_a_non_finite_loss() {
        for bad in [f32::NAN, f32::INFINITY] {
            let score = cross_entropy(&mut [bad, 0.0], &[1], 2);
            assert!(!score.loss.is_finite());
        }
    }
}
