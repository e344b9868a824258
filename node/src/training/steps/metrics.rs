//! What the training thread reports of its steps: progress at intervals, and when training goes wrong.

use std::time::Instant;

use dnode_trainer::{SKETCH_LEN, StepReport};

use super::context::Context;
use super::end::End;
use crate::training::divergence::{DivergenceWatch, Sample};
use crate::training::{Report, TrainingProgress};

/// What has gathered since the last progress report.
#[derive(Debug)]
struct Window {
    began: Instant,
    /// Sum of the losses that are known, and how many are.
    losses: (f64, u64),
    steps: u64,
    samples: u64,
    learning_rate: f64,
}

impl Window {
    fn new() -> Self {
        Self { began: Instant::now(), losses: (0.0, 0), steps: 0, samples: 0, learning_rate: 0.0 }
    }

    /// A loop of one's own may know no loss of some of its steps.
    const fn tell(&mut self, loss: f64) {
        if loss.is_finite() {
            self.losses.0 += loss;
            self.losses.1 += 1;
        }
    }

    /// The mean of the losses; NaN where none is known.
    const fn loss(&self) -> f64 {
        self.losses.0 / self.losses.1 as f64
    }
}

/// Progress and divergence.
#[derive(Debug)]
pub(super) struct Metrics {
    window: Window,
    watch: DivergenceWatch,
    /// Steps between progress reports; 0 is only at the end.
    every: u64,
}

impl Metrics {
    pub(super) fn new(watch: DivergenceWatch, every: u64) -> Self {
        Self { window: Window::new(), watch, every }
    }

    /// Training begins, or goes on after a pause, which does not count as time of steps.
    pub(super) fn restart(&mut self) {
        self.window = Window::new();
    }

    /// A local step was taken.
    pub(super) fn gather(&mut self, report: &StepReport) {
        let window = &mut self.window;
        window.tell(f64::from(report.loss));
        window.steps += 1;
        window.samples += report.samples;
        window.learning_rate = f64::from(report.learning_rate);
    }

    /// Whether progress is to be reported after `step` local steps.
    pub(super) fn is_due(&self, step: u64) -> bool {
        step.checked_rem(self.every) == Some(0)
    }

    /// Reports how training went since the last report.
    pub(super) fn tell_progress(&mut self, context: &mut Context) -> Result<(), End> {
        let window = std::mem::replace(&mut self.window, Window::new());
        if window.steps == 0 {
            return Ok(());
        }
        let mut sketch = Box::new([0.0; SKETCH_LEN]);
        context.replica.sketch(&mut sketch);
        let (_, wait_s) = context.pace.totals();
        let progress = TrainingProgress {
            position: context.cursor.position(),
            loss: window.loss(),
            learning_rate: window.learning_rate,
            samples_per_s: window.samples as f64 / window.began.elapsed().as_secs_f64().max(1e-9),
            batch: context.pace.batch(),
            wait_s,
            revealed: context.revealed(),
            sketch,
        };
        context.queues.tell(Report::Progress(Box::new(progress)))
    }

    /// Reports when training goes wrong, or well again.
    pub(super) fn watch_over(&mut self, report: &StepReport, context: &Context) -> Result<(), End> {
        let found = self.watch.step(Sample {
            loss: f64::from(report.loss),
            gradient_norm: f64::from(report.gradient_norm),
            learning_rate: f64::from(report.learning_rate),
        });
        found.map_or(Ok(()), |finding| context.queues.tell(Report::Diverging(finding)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_of_a_window_is_that_of_the_steps_that_know_one() {
        let mut window = Window::new();
        assert!(window.loss().is_nan());
        for loss in [f64::NAN, 1.0, 2.0, f64::INFINITY] {
            window.tell(loss);
        }
        assert!((window.loss() - 1.5).abs() < 1e-12);
    }
}
