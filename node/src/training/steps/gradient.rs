//! The mean gradient of all ranks of a group, reduced while the rest of it is computed where that can be.

use std::time::Instant;

use dnode_collective::{Collective, Error, Reduction, all_reduce_while};
use dnode_trainer::{GradientStep, StepId, StepReport, TrainError};

use crate::training::{Activity, Meter};

/// What came of a gradient.
pub(super) struct MeanGradient {
    /// Without a norm where it was reduced while it was computed.
    pub(super) report: StepReport,
    /// How the operations of the group ended; the gradient is undefined after an error.
    pub(super) reduced: Result<(), Error>,
    /// How long this rank has waited for the others, seconds.
    pub(super) waited: f64,
}

/// Leaves the mean gradient of all ranks in `trainer`; all of them choose the same way. Inside a host
/// moving values is work of the processors that compute, and beside that work it only costs
/// (measured, docs/measurements.md).
pub(super) fn mean_gradient(
    trainer: &mut dyn GradientStep,
    group: &mut dyn Collective,
    at: StepId,
    meter: &Meter,
) -> Result<MeanGradient, TrainError> {
    let mut waits = None;
    let wait = || {
        let now = Instant::now();
        (now, meter.enter(Activity::Ranks, now))
    };
    let (report, reduced) = if group.has_network() && trainer.hands_over() {
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
