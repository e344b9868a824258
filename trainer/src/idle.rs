//! Parameters without a model.

use std::ops::Range;

use dnode_protocol::{LayoutError, ParameterLayout};

use crate::kernel::reduce::add_scaled;
use crate::seam::{Evaluation, StepId, StepReport, TrainError, Trainer};
use crate::trainer_state::TrainerState;

/// A trainer whose steps do nothing, to measure and test what is done with its parameters.
#[derive(Debug)]
pub struct IdleTrainer {
    layout: ParameterLayout,
    parameters: Vec<f32>,
}

impl IdleTrainer {
    /// Begins with these `parameters`, `[P]`, as one tensor.
    ///
    /// # Errors
    /// [`LayoutError`] without parameters, or with more than the protocol allows.
    pub fn new(parameters: Vec<f32>) -> Result<Self, LayoutError> {
        let mut layout = ParameterLayout::new();
        layout.push("weights", &[parameters.len()])?;
        Ok(Self { layout, parameters })
    }
}

impl Trainer for IdleTrainer {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn step(&mut self, _: StepId) -> Result<StepReport, TrainError> {
        Ok(StepReport::default())
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.parameters[range]);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        add_scaled(&mut self.parameters[range], delta, weight);
    }

    fn set_parameters(&mut self, range: Range<usize>, values: &[f32]) -> bool {
        self.parameters[range].copy_from_slice(values);
        true
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        Ok(Evaluation::default())
    }

    fn save(&self) -> TrainerState<'_> {
        TrainerState::default()
    }

    fn restore(&mut self, _: TrainerState<'_>) -> Result<(), TrainError> {
        Ok(())
    }
}
