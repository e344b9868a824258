//! The mean gradient of all ranks of a group; parts are reduced while others are computed, if possible.

use std::time::Instant;

use dnode_collective::{Collective, Error, Reduction, all_reduce_while};
use dnode_trainer::{GradientStep, StepId, StepReport, TrainError};

use crate::training::{Activity, Meter};

/// The result of a mean gradient.
pub(super) struct MeanGradient {
    /// It has no norm if the gradient was reduced while it was computed.
    pub(super) report: StepReport,
    /// How the operations of the group ended; the gradient is undefined after an error.
    pub(super) reduced: Result<(), Error>,
    /// How long this rank has waited for the others, seconds.
    pub(super) waited: f64,
}

/// Leaves the mean gradient of all ranks in `trainer`. `in_parts` is whether the ranks of the group
/// have agreed to reduce it in parts; `None` before its first gradient. Within a host it is not reduced
/// in parts: there moving values takes the processors that compute, so overlapping both only costs time
/// (measured, docs/measurements.md).
pub(super) fn mean_gradient(
    trainer: &mut dyn GradientStep,
    (group, in_parts): (&mut dyn Collective, &mut Option<bool>),
    at: StepId,
    meter: &Meter,
) -> Result<MeanGradient, TrainError> {
    let by_parts = match comes_in_parts(trainer, group, in_parts) {
        Ok(by_parts) => by_parts,
        Err(error) => {
            let report = StepReport::default();
            return Ok(MeanGradient { report, reduced: Err(error), waited: 0.0 });
        }
    };
    let mut waits = None;
    let wait = || {
        let now = Instant::now();
        (now, meter.enter(Activity::Ranks, now))
    };
    let (report, reduced) = if by_parts {
        let whole = (trainer.gradient_mut().len(), Reduction::Mean);
        all_reduce_while(group, whole, |hand| {
            let report = trainer.gradient_in_parts(at, hand);
            waits = Some(wait());
            report
        })
    } else {
        let report = trainer.gradient(at);
        waits = Some(wait());
        let reduced =
            report.is_ok().then(|| group.all_reduce(trainer.gradient_mut(), Reduction::Mean));
        (report, reduced.unwrap_or(Ok(())))
    };
    let waited = waits.map_or(0.0, |(began, before)| {
        meter.enter(before, Instant::now());
        began.elapsed().as_secs_f64()
    });
    Ok(MeanGradient { report: report?, reduced, waited })
}

/// Whether a network is between the ranks and all of them hand over parts. They ask each other once, as
/// they may compute on different engines.
fn comes_in_parts(
    trainer: &dyn GradientStep,
    group: &mut dyn Collective,
    known: &mut Option<bool>,
) -> Result<bool, Error> {
    if let Some(known) = *known {
        return Ok(known);
    }
    let far = group.has_network();
    let mut without = [if trainer.hands_over() { 0.0 } else { 1.0 }];
    if far {
        group.all_reduce(&mut without, Reduction::Sum)?;
    }
    Ok(*known.insert(far && without[0] < 0.5))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dnode_collective::{Abort, Backend, Meter as Bytes, Part, Place};

    use super::*;

    /// The group of this rank and one on another host, which hands over parts or not.
    #[derive(Debug)]
    struct Two {
        other_without: f32,
        /// Elements of the operations so far.
        lengths: Vec<usize>,
    }

    impl Collective for Two {
        fn place(&self) -> Place {
            Place { rank: 0, size: 2 }
        }

        fn backend(&self) -> Backend {
            Backend::Tcp
        }

        fn has_network(&self) -> bool {
            true
        }

        fn abort(&self) -> Abort {
            Abort::default()
        }

        fn meter(&self) -> Bytes {
            Bytes::default()
        }

        fn set_patience(&mut self, _: Duration) {}

        fn all_reduce_part(
            &mut self,
            values: &mut [f32],
            _: Part,
            _: Reduction,
        ) -> Result<(), Error> {
            self.lengths.push(values.len());
            if let [one] = values {
                *one += self.other_without;
            }
            Ok(())
        }

        fn reduce_scatter(&mut self, _: &mut [f32], _: Reduction) -> Result<(), Error> {
            Err(Error::Ended)
        }

        fn all_gather(&mut self, _: &mut [f32]) -> Result<(), Error> {
            Err(Error::Ended)
        }

        fn broadcast(&mut self, _: usize, _: &mut [f32]) -> Result<(), Error> {
            Err(Error::Ended)
        }

        fn reduce(&mut self, _: usize, _: &mut [f32], _: Reduction) -> Result<(), Error> {
            Err(Error::Ended)
        }

        fn scatter(&mut self, _: usize, _: &mut [f32]) -> Result<(), Error> {
            Err(Error::Ended)
        }

        fn all_to_all(&mut self, _: &[f32], _: &mut [f32]) -> Result<(), Error> {
            Err(Error::Ended)
        }

        fn barrier(&mut self) -> Result<(), Error> {
            Err(Error::Ended)
        }
    }

    /// Hands over ten elements in two parts.
    struct InParts(Vec<f32>);

    impl GradientStep for InParts {
        fn gradient(&mut self, _: StepId) -> Result<StepReport, TrainError> {
            Ok(StepReport::default())
        }

        fn hands_over(&self) -> bool {
            true
        }

        fn gradient_in_parts<'a>(
            &'a mut self,
            _: StepId,
            hand: &mut (dyn FnMut(usize, &'a mut [f32]) + Send),
        ) -> Result<StepReport, TrainError> {
            let (low, high) = self.0.split_at_mut(4);
            hand(4, high);
            hand(0, low);
            Ok(StepReport::default())
        }

        fn gradient_mut(&mut self) -> &mut [f32] {
            &mut self.0
        }

        fn update(&mut self, _: StepId) -> Result<StepReport, TrainError> {
            Ok(StepReport::default())
        }
    }

    #[test]
    fn gradients_come_in_parts_where_all_ranks_hand_them_over() {
        let meter = Meter::new(Instant::now());
        for (other_without, expected) in [(0.0, vec![1, 6, 4, 6, 4]), (1.0, vec![1, 10, 10])] {
            let mut group = Two { other_without, lengths: Vec::new() };
            let (mut trainer, mut in_parts) = (InParts(vec![0.0; 10]), None);
            for step in 0..2 {
                let group = (&mut group as &mut dyn Collective, &mut in_parts);
                let mean = mean_gradient(&mut trainer, group, StepId::alone(step), &meter);
                mean.unwrap().reduced.unwrap();
            }
            assert_eq!(group.lengths, expected);
        }
    }
}
