//! What the training thread measures and tells: progress, evaluations, commits, its end.

use std::time::{Duration, Instant};

use dnode_trainer::{Encoded, SKETCH_LEN, StepReport, TrainError};

use super::{End, Training};
use crate::training::divergence::Sample;
use crate::training::{Position, Progress, Report, StepPace};

/// What has gathered since the last progress report.
pub(super) struct Window {
    pub(super) began: Instant,
    pub(super) loss: f64,
    pub(super) steps: u64,
    pub(super) samples: u64,
    pub(super) learning_rate: f64,
}

impl Window {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), loss: 0.0, steps: 0, samples: 0, learning_rate: 0.0 }
    }
}

impl Training {
    pub(super) fn gather(&mut self, report: &StepReport) {
        let window = &mut self.report;
        window.loss += f64::from(report.loss);
        window.steps += 1;
        window.samples += report.samples;
        window.learning_rate = f64::from(report.learning_rate);
    }

    /// Tells when training goes wrong, or well again.
    pub(super) fn watch_over(&mut self, report: &StepReport) -> Result<(), End> {
        let found = self.watch.step(Sample {
            loss: f64::from(report.loss),
            gradient_norm: f64::from(report.gradient_norm),
            learning_rate: f64::from(report.learning_rate),
        });
        found.map_or(Ok(()), |finding| self.tell(Report::Diverging(finding)))
    }

    pub(super) fn tell_progress(&mut self) -> Result<(), End> {
        let window = std::mem::replace(&mut self.report, Window::new());
        if window.steps == 0 {
            return Ok(());
        }
        let mut sketch = Box::new([0.0; SKETCH_LEN]);
        self.replica.sketch(&mut sketch);
        let progress = Progress {
            position: self.at,
            loss: window.loss / window.steps as f64,
            learning_rate: window.learning_rate,
            samples_per_s: window.samples as f64 / window.began.elapsed().as_secs_f64().max(1e-9),
            batch: self.batch,
            wait_s: self.wait_seconds,
            sketch,
        };
        self.tell(Report::Progress(Box::new(progress)))
    }

    fn pace(&self) -> StepPace {
        StepPace { time: Duration::from_secs_f64(self.step_time.mean()), batch: self.batch }
    }

    /// Tells how long steps take as soon as that is known: a slow peer does less than the work of a
    /// peer of mean speed for its first commit already.
    pub(super) fn tell_pace_first(&mut self) -> Result<(), End> {
        if self.pace_told || !self.step_time.is_known() {
            return Ok(());
        }
        self.pace_told = true;
        self.tell(Report::StepMeasured(self.pace()))
    }

    /// To be called in the turn in which the exchanged weights changed.
    pub(super) fn tell_committed(&self, contributions: Vec<Encoded>) -> Result<(), End> {
        let pace = self.pace();
        let Position { samples, clock, .. } = self.at;
        self.tell(Report::Committed { clock, samples, pace, contributions })
    }

    pub(super) fn end(&mut self, end: End) {
        let ending = match end {
            End::Abandoned => return,
            End::Failed(error) => {
                if matches!(error, TrainError::NotFinite { .. }) {
                    // The step was not taken: what was learnt before it is not lost.
                    let _ = self.save();
                }
                Err(error)
            }
            End::Stopped { evaluate } => self.last_words(evaluate),
        };
        // When the driver is gone there is nobody to tell.
        let _ = self.tell(Report::Ended(ending));
    }
}
