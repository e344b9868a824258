//! A trainer for tests, whose gradient is one everywhere, or begins with a given number in one step.

use std::ops::Range;

use dnode_protocol::ParameterLayout;
use dnode_trainer::{
    Evaluation, GradientStep, StateTensor, StepId, StepReport, TrainError, Trainer, TrainerState,
};

/// Parameters of the model.
pub(super) const PARAMETERS: usize = 16;

/// Moves all parameters by the gradient; remembers the sum of all gradients.
#[derive(Clone, Debug)]
pub(super) struct Slope {
    layout: ParameterLayout,
    x: Vec<f32>,
    gradient: Vec<f32>,
    sum: Vec<f32>,
    /// A step's index, and the first element of the gradient of that step.
    bad: Option<(u64, f32)>,
    /// Whether a whole gradient that is not finite is an error.
    checks: bool,
}

impl Default for Slope {
    fn default() -> Self {
        let mut layout = ParameterLayout::new();
        layout.push("x", &[PARAMETERS]).unwrap();
        let [x, gradient, sum] = [[0.0; PARAMETERS]; 3].map(|values| values.to_vec());
        Self { layout, x, gradient, sum, bad: None, checks: true }
    }
}

impl Slope {
    /// A trainer whose gradient begins with this number in one step. `checks`: see the field.
    pub(super) fn with(first: (u64, f32), checks: bool) -> Self {
        Self { bad: Some(first), checks, ..Self::default() }
    }

    fn compute(&mut self, at: StepId) -> StepReport {
        let bad = self.bad.filter(|(index, _)| *index == at.index);
        self.gradient.fill(1.0);
        self.gradient[0] = bad.map_or(1.0, |(_, gradient)| gradient);
        let samples = u64::from(super::BATCH);
        StepReport { loss: 1.0, samples, learning_rate: 1.0, gradient_norm: 0.0 }
    }

    fn norm(&self) -> f64 {
        let squares = self.gradient.iter().map(|value| f64::from(*value).powi(2));
        squares.sum::<f64>().sqrt()
    }

    fn check(&self, at: StepId) -> Result<(), TrainError> {
        let error = TrainError::NotFinite { step: at.index, what: "gradient" };
        if self.norm().is_finite() { Ok(()) } else { Err(error) }
    }
}

impl Trainer for Slope {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn step(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.compute(at);
        self.update(at)
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        out.copy_from_slice(&self.x[range]);
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        self.x[range].iter_mut().zip(delta).for_each(|(x, d)| *x += weight * d);
    }

    fn evaluate(&mut self) -> Result<Evaluation, TrainError> {
        Ok(Evaluation::default())
    }

    fn save(&self) -> TrainerState<'_> {
        TrainerState { tensors: vec![StateTensor::new("sum", self.sum.as_slice())] }
    }

    fn restore(&mut self, state: TrainerState<'_>) -> Result<(), TrainError> {
        self.sum.copy_from_slice(state.tensors[0].values.f32().unwrap());
        Ok(())
    }

    fn split(&mut self) -> Option<&mut dyn GradientStep> {
        Some(self)
    }
}

impl GradientStep for Slope {
    fn gradient(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        let report = self.compute(at);
        if self.checks {
            self.check(at)?;
        }
        Ok(StepReport { gradient_norm: self.norm() as f32, ..report })
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn gradient_in_parts<'a>(
        &'a mut self,
        at: StepId,
        hand: &mut (dyn FnMut(usize, &'a mut [f32]) + Send),
    ) -> Result<StepReport, TrainError> {
        let report = self.compute(at);
        let (low, high) = self.gradient.split_at_mut(PARAMETERS / 2);
        hand(PARAMETERS / 2, high);
        hand(0, low);
        Ok(report)
    }

    fn gradient_mut(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn update(&mut self, at: StepId) -> Result<StepReport, TrainError> {
        self.check(at)?;
        self.x.iter_mut().zip(&self.gradient).for_each(|(x, gradient)| *x += gradient);
        self.sum.iter_mut().zip(&self.gradient).for_each(|(sum, gradient)| *sum += gradient);
        Ok(StepReport { loss: 1.0, samples: u64::from(super::BATCH), ..StepReport::default() })
    }
}
