//! The trainer that the training thread of a handle's node calls: its steps are those of the loop.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dnode_protocol::ParameterLayout;
use dnode_trainer::{
    DeviceError, Evaluation, Interrupt, Requests, Resident, StepId, StepReport, TrainError,
    Trainer, TrainerState,
};

use super::hand_over::{HandOver, Handed, Returned};
use super::parameters::Parameters;

/// Between two looks, while the loop leaves, at whether the driver has been told.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Most such looks before the training thread is let do its other work.
const LOOKS_MAX: u32 = 100;

/// Takes the loop's steps for its own. Between two of them it holds the parameters.
pub(super) struct LoopTrainer<P: Parameters> {
    layout: ParameterLayout,
    /// Absent while the loop has them, when nothing but a step is called.
    parameters: Option<P>,
    hand_over: Arc<HandOver<P>>,
    interrupt: Interrupt,
    until_commit: u64,
    requests: Requests,
    checkpoint: Option<Result<PathBuf, String>>,
}

impl<P: Parameters> LoopTrainer<P> {
    pub(super) fn new(layout: ParameterLayout, parameters: P, hand_over: Arc<HandOver<P>>) -> Self {
        Self {
            layout,
            parameters: Some(parameters),
            hand_over,
            interrupt: Interrupt::default(),
            until_commit: 0,
            requests: Requests::default(),
            checkpoint: None,
        }
    }

    fn held(&self) -> &P {
        self.parameters.as_ref().expect("nothing but a step is called while the loop has them")
    }

    fn held_mut(&mut self) -> &mut P {
        self.parameters.as_mut().expect("nothing but a step is called while the loop has them")
    }

    /// Gives the parameters to the loop.
    fn give(&mut self, next: Option<(StepId, u64)>) {
        if let Some(mut parameters) = self.parameters.take() {
            parameters.hand_back();
            let checkpoint = self.checkpoint.take();
            self.hand_over.put_back(Returned { parameters, next, checkpoint });
        }
    }
}

impl<P: Parameters> Drop for LoopTrainer<P> {
    fn drop(&mut self) {
        self.give(None);
        self.hand_over.close();
    }
}

impl<P: Parameters> Trainer for LoopTrainer<P> {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        if self.hand_over.is_leaving() {
            // The order to stop is on its way. Then the thread waits for it outside of its trainer.
            for _ in 0..LOOKS_MAX {
                if self.interrupt.is_raised() {
                    break;
                }
                thread::sleep(LOOK_EVERY);
            }
            return Err(TrainError::NoStep);
        }
        self.give(Some((at, self.until_commit)));
        let Handed { parameters, report, evaluation, checkpoint } = self.hand_over.take();
        self.parameters = Some(parameters);
        self.requests = Requests { evaluation, checkpoint };
        report.ok_or(TrainError::NoStep)
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        self.held().read(range, out);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.held_mut().displace(range, delta, weight);
    }

    fn set_parameters(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        self.held_mut().set(range, values)
    }

    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        self.held_mut().resident()
    }

    fn on_moved(&mut self) {
        self.held_mut().on_moved();
    }

    fn share_moments(&mut self) -> bool {
        self.held_mut().share_moments()
    }

    fn read_moments(&self, range: Range<usize>, out: &mut [f32]) {
        self.held().read_moments(range, out);
    }

    fn displace_moments(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.held_mut().displace_moments(range, delta, weight);
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        Err(TrainError::Other("evaluate: the loop does that, and calls Swarm::evaluate".to_owned()))
    }

    fn save(&self) -> TrainerState<'_> {
        self.held().save()
    }

    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        self.held_mut().restore(state)
    }

    /// The loop's step cannot be broken off; but without the parameters no copy of the state can be
    /// made before it either. A loop that leaves hands them over first.
    fn set_interrupt(&mut self, interrupt: Interrupt) -> bool {
        self.interrupt = interrupt;
        true
    }

    fn expect_commit(&mut self, steps: u64) {
        self.until_commit = steps;
    }

    fn take_requests(&mut self) -> Requests {
        std::mem::take(&mut self.requests)
    }

    fn on_checkpoint(&mut self, written: Result<&Path, &str>) {
        self.checkpoint = Some(written.map(Path::to_owned).map_err(str::to_owned));
    }
}
