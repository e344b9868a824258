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

/// What a step minimises for a row of logits with the target `t`, `p = softmax(logits)`:
/// `−(1 − ε) ln p[t] − ε · mean of ln p + z · (ln of the sum of exp(logits))²`.
///
/// Sources: label smoothing, Szegedy et al., arXiv:1512.00567, §7; z-loss, Chowdhery et al.,
/// arXiv:2204.02311, §5.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Objective {
    /// `ε`, in `[0, 1)`.
    pub label_smoothing: f32,
    /// `z`, 0 or more.
    pub z_loss: f32,
}

impl Objective {
    /// Whether it is the cross-entropy alone.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self == Self::default()
    }
}

/// Replaces each row of logits by the gradient of what `objective` says of it: where that is the
/// cross-entropy alone, its probabilities minus the one-hot target. Without an objective nothing of use is
/// left. The score is of the cross-entropy in any case.
///
/// `logits`: `[N, K]`, `targets`: `[N]`, each `< K`.
pub(crate) fn cross_entropy(
    logits: &mut [f32],
    targets: &[u32],
    classes: usize,
    objective: Option<Objective>,
) -> Score {
    let Objective { label_smoothing: spread, z_loss } = objective.unwrap_or_default();
    let (plain, uniform) = (objective.is_some_and(Objective::is_plain), spread / classes as f32);
    let mut score = Score::default();
    vectorized(
        #[inline(always)]
        || {
            for (row, &target) in logits.chunks_exact_mut(classes).zip(targets) {
                let target = target as usize;
                let largest = reduce::maximum(row);
                let target_logit = row[target];
                // Of several that are largest the first is what the model says.
                let right = target_logit >= largest && !row[..target].contains(&largest);
                for value in row.iter_mut() {
                    *value = exp(*value - largest);
                }
                let total = reduce::sum(row);
                let inverse = 1.0 / total;
                if plain {
                    for value in row.iter_mut() {
                        *value *= inverse;
                    }
                    row[target] -= 1.0;
                } else if objective.is_some() {
                    let factor = inverse * (1.0 + 2.0 * z_loss * (total.ln() + largest));
                    for value in row.iter_mut() {
                        *value = *value * factor - uniform;
                    }
                    row[target] -= 1.0 - spread;
                }
                score.loss += f64::from(total).ln() + f64::from(largest) - f64::from(target_logit);
                score.correct += u64::from(right);
                score.count += 1;
            }
        },
    );
    score
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::{noise, slope};

    #[test]
    fn loss_and_gradient_of_a_known_row() {
        let mut logits = [0.0, 3.0_f32.ln(), 0.0, 0.0];
        let score = cross_entropy(&mut logits, &[1, 0], 2, Some(Objective::default()));
        assert!((score.loss - (4.0_f64 / 3.0).ln() - 2.0_f64.ln()).abs() < 1e-6);
        assert_eq!((score.correct, score.count), (2, 2));
        for (got, want) in logits.iter().zip([0.25, -0.25, -0.5, 0.5]) {
            assert!((got - want).abs() < 1e-6);
        }
    }

    #[test]
    fn the_gradient_is_the_slope_of_what_is_minimised_and_the_score_stays() {
        let (classes, targets) = (5, [4, 0, 2]);
        let logits = noise(targets.len() * classes, 1, 3.0);
        for (label_smoothing, z_loss) in [(0.0, 0.0), (0.1, 0.0), (0.0, 0.05), (0.3, 0.01)] {
            let objective = Objective { label_smoothing, z_loss };
            let (smooth, z) = (f64::from(label_smoothing), f64::from(z_loss));
            let value = |logits: &[f32]| -> f64 {
                let rows = logits.chunks_exact(classes).zip(targets);
                let cost = |(row, target): (&[f32], u32)| {
                    let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
                    let costs = row.iter().map(|&logit| sum.ln() - f64::from(logit));
                    let mean = costs.clone().sum::<f64>() / classes as f64;
                    let own = costs.clone().nth(target as usize).unwrap();
                    (1.0 - smooth) * own + smooth * mean + z * sum.ln().powi(2)
                };
                rows.map(cost).sum()
            };
            let mut gradient = logits.clone();
            let score = cross_entropy(&mut gradient, &targets, classes, Some(objective));
            let plain =
                cross_entropy(&mut logits.clone(), &targets, classes, Some(Objective::default()));
            assert_eq!(score, plain);
            assert_eq!(score, cross_entropy(&mut logits.clone(), &targets, classes, None));
            for (index, &got) in gradient.iter().enumerate() {
                let want = slope(&logits, index, value);
                assert!(
                    (f64::from(got) - want).abs() < 1e-3,
                    "{objective:?} {index}: {got} {want}"
                );
            }
        }
    }

    #[test]
    fn non_finite_logits_give_a_non_finite_loss() {
        for bad in [f32::NAN, f32::INFINITY] {
            let score = cross_entropy(&mut [bad, 0.0], &[1], 2, Some(Objective::default()));
            assert!(!score.loss.is_finite());
        }
    }
}
