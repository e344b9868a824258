//! Means of the model over the last part of a run, beside its last weights.
//!
//! Polyak and Juditsky 1992; of networks Izmailov et al. 2018, arXiv 1803.05407.

use super::swarm::Evaluator;

/// Moments at which weights are taken in, in a whole run.
const MOMENTS: u64 = 200;

/// The means over some last parts of a run.
#[derive(Debug)]
pub(super) struct Tails {
    tails: Vec<Tail>,
    steps: u64,
    /// The step at which weights are taken in next.
    next: u64,
}

/// A running mean of weights.
#[derive(Debug)]
struct Tail {
    /// The first step that counts.
    from: u64,
    sum: Vec<f64>,
    count: u32,
}

impl Tails {
    /// Of the last parts of a run of so many steps, each in `(0, 1]`.
    pub(super) fn new(shares: &[f64], steps: u64) -> Self {
        let from = |share: &f64| steps - (share * steps as f64).round() as u64;
        let tail = |share| Tail { from: from(share), sum: Vec::new(), count: 0 };
        let mut tails = Self { tails: shares.iter().map(tail).collect(), steps, next: 0 };
        tails.next = tails.tails.iter().map(|tail| tail.from).min().unwrap_or(steps);
        tails
    }

    /// The step after which weights are to be taken in, before the last one.
    pub(super) fn next(&self) -> Option<u64> {
        (self.next < self.steps).then_some(self.next)
    }

    /// Takes in the weights `[P]` after so many steps.
    pub(super) fn take(&mut self, step: u64, weights: &[f32]) {
        for tail in self.tails.iter_mut().filter(|tail| tail.from <= step) {
            tail.sum.resize(weights.len(), 0.0);
            tail.sum.iter_mut().zip(weights).for_each(|(sum, w)| *sum += f64::from(*w));
            tail.count += 1;
        }
        self.next = step + (self.steps / MOMENTS).max(1);
    }

    /// The loss of each mean on all held-out samples, in the order of the shares; the weights at the
    /// end are the last that are taken in.
    ///
    /// # Errors
    /// What the trainer says.
    pub(super) fn losses(
        mut self,
        last: &[f32],
        evaluator: &mut Evaluator,
    ) -> Result<Vec<f64>, String> {
        self.take(self.steps, last);
        let loss = |tail: &Tail| {
            let mean: Vec<f32> =
                tail.sum.iter().map(|sum| (sum / f64::from(tail.count)) as f32).collect();
            Ok(evaluator.evaluate(&mean, true)?.loss)
        };
        self.tails.iter().map(loss).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_counts_its_own_steps() {
        let mut tails = Tails::new(&[0.1, 0.5], 400);
        let mut taken = Vec::new();
        while let Some(step) = tails.next() {
            tails.take(step, &[step as f32]);
            taken.push(step);
        }
        tails.take(400, &[400.0]);
        assert_eq!((taken.first(), taken.last()), (Some(&200), Some(&398)));
        let mean = |tail: &Tail| tail.sum[0] / f64::from(tail.count);
        assert_eq!(tails.tails.iter().map(mean).collect::<Vec<_>>(), [380.0, 300.0]);
    }

    #[test]
    fn without_parts_nothing_is_due() {
        assert_eq!(Tails::new(&[], 400).next(), None);
    }
}
