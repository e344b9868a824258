//! The mean of a replica's weights over the last part of a run.

use crate::replica::Replica;
use crate::weights::chunks;

/// Mean of the weights at several moments of a run's last part, in place of the last weights alone.
///
/// Steps of a learning rate that is not zero leave the weights at a random distance from where they tend
/// to; a mean over the last steps is nearer to that.
///
/// Source: Izmailov et al. 2018, "Averaging weights leads to wider optima and better generalization"
/// (arXiv 1803.05407), algorithm 1.
#[derive(Clone, Debug, PartialEq)]
pub struct TailAverage {
    /// `[P]`.
    mean: Vec<f32>,
    /// Moments that it is of.
    moments: u64,
}

impl TailAverage {
    /// The weights of `replica` alone (φ, or x without an outer step).
    #[must_use]
    pub fn begin(replica: &Replica) -> Self {
        Self { mean: replica.parameters(), moments: 1 }
    }

    /// What was kept: the mean over so many moments.
    pub(crate) const fn kept(mean: Vec<f32>, moments: u64) -> Self {
        Self { mean, moments }
    }

    /// Counts the weights of `replica` as well: `m ← m + (x − m) / (k + 1)`.
    ///
    /// # Panics
    /// When it has another number of parameters.
    pub fn add(&mut self, replica: &Replica) {
        assert_eq!(self.mean.len(), replica.fragments().parameters(), "one mean per parameter");
        self.moments += 1;
        let share = 1.0 / self.moments as f32;
        let mut weights = Vec::new();
        for part in chunks(0..self.mean.len()) {
            weights.resize(part.len(), 0.0);
            replica.snapshot(part.clone(), &mut weights);
            for (mean, weight) in self.mean[part].iter_mut().zip(&weights) {
                *mean += share * (weight - *mean);
            }
        }
    }

    /// The mean, `[P]`.
    #[must_use]
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// How many moments it is of.
    #[must_use]
    pub const fn moments(&self) -> u64 {
        self.moments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{OUTER, replica, set_weights, values};
    use crate::weights::CHUNK;

    #[test]
    fn it_is_the_mean_of_the_moments_that_were_counted() {
        let (mut replica, _) = replica(vec![1.0, -2.0], None);
        let mut average = TailAverage::begin(&replica);
        for weights in [[3.0, 4.0], [5.0, 10.0]] {
            set_weights(&mut replica, &weights);
            average.add(&replica);
        }
        assert_eq!((average.mean(), average.moments()), (&[3.0, 4.0][..], 3));
    }

    #[test]
    fn what_is_exchanged_counts_and_not_what_is_trained_on_it() {
        let start = values(CHUNK + 3, 0.4);
        let (replica, live) = replica(start.clone(), Some(OUTER));
        let mut average = TailAverage::begin(&replica);
        let trained: Vec<f32> = start.iter().map(|value| value + 1.0).collect();
        *live.lock().unwrap() = trained;
        average.add(&replica);
        assert_eq!(average.mean(), start);
    }
}
