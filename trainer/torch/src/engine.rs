//! The engine: libtorch computes gradients and updates, the flat tensors hold the numbers.

use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;

use dnode_protocol::ParameterLayout;
use dnode_trainer::{
    Batch, Engine, LocalConfig, Optimizer, SampleShape, Score, StateTensor, TrainError,
    initial_parameters,
};
use tch::{Kind, TchError, Tensor};

use crate::TorchError;
use crate::config::TorchConfig;
use crate::cuda;
use crate::flat::{Flat, host, host_mut, part};
use crate::loss_scale::LossScale;
use crate::net::Net;
use crate::update::DeviceOptimizer;

/// Who moves the parameters.
enum Update {
    /// The host's optimizer, on the tensors' own memory.
    Host(Optimizer),
    /// libtorch, where the tensors are.
    Device(DeviceOptimizer),
}

/// A reference model on one device of libtorch.
pub(crate) struct TorchEngine {
    layout: ParameterLayout,
    net: Net,
    flat: Flat,
    update: Update,
    scale: LossScale,
    /// Sum of the losses since the gradient was cleared, a number on the device.
    loss: Tensor,
    rows: u64,
    /// The gradient as the host may have changed it, `[P]`; empty while the device's is in force,
    /// and always on the processor, where both are one.
    staged: Vec<f32>,
    /// The first failure of a call that could not tell it.
    failed: OnceCell<String>,
}

impl fmt::Debug for TorchEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TorchEngine").field("net", &self.net).finish_non_exhaustive()
    }
}

/// A failure of libtorch in one line; what follows is a trace of its own calls.
pub(crate) fn failure(error: TchError) -> TrainError {
    TrainError::Other(format!("libtorch: {}", line(&error)))
}

fn line(error: &TchError) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

impl From<TchError> for TorchError {
    fn from(error: TchError) -> Self {
        Self::Torch(line(&error))
    }
}

impl TorchEngine {
    pub(crate) fn new(
        config: &LocalConfig,
        torch: TorchConfig,
        shape: SampleShape,
    ) -> Result<Self, TorchError> {
        config.validate()?;
        let device = cuda::resolve(torch.device)?;
        let (layout, initial) = initial_parameters(config, shape)?;
        tch::set_num_threads(i32::try_from(config.threads).unwrap_or(i32::MAX));
        let flat = Flat::new(&layout, &initial, device)?;
        let update = if flat.on_host() {
            Update::Host(Optimizer::new(config.optimizer.clone(), &layout))
        } else {
            Update::Device(DeviceOptimizer::new(&config.optimizer, &layout, device)?)
        };
        let how = (torch.precision, torch.recompute);
        Ok(Self {
            net: Net::new(&config.model, shape, flat.leaves(), how),
            scale: LossScale::new(torch.precision),
            loss: Tensor::f_zeros([], (Kind::Double, device))?,
            rows: 0,
            staged: Vec::new(),
            failed: OnceCell::new(),
            layout,
            flat,
            update,
        })
    }

    /// Puts the gradient that the host has changed back on the device.
    fn unstage(&mut self) -> Result<(), TchError> {
        if self.staged.is_empty() {
            return Ok(());
        }
        self.flat.gradient.f_copy_(&Tensor::f_from_slice(&self.staged)?)?;
        self.staged.clear();
        Ok(())
    }

    /// Keeps a failure that the next [`Engine::clear`] tells.
    fn note(&self, error: &TchError) {
        let _ = self.failed.set(line(error));
    }

    fn move_on_device(
        &self,
        range: &Range<usize>,
        delta: &[f32],
        weight: f32,
    ) -> Result<(), TchError> {
        let mut x = part(&self.flat.parameters, range)?;
        let delta = Tensor::f_from_slice(delta)?.f_to(x.device())?;
        x.f_add_(&delta.f_mul_scalar(f64::from(weight))?).map(drop)
    }

    fn norm(&mut self) -> Result<f64, TchError> {
        self.unstage()?;
        let square = self.flat.gradient.f_dot(&self.flat.gradient)?;
        f64::try_from(square).map(f64::sqrt)
    }

    fn try_finish(&mut self) -> Result<Option<Score>, TchError> {
        let score = Score { loss: f64::try_from(&self.loss)?, correct: 0, count: self.rows };
        let factor = self.scale.factor();
        if factor > 1.0 && score.loss.is_finite() {
            let _ = self.flat.gradient.f_mul_scalar_(f64::from(factor.recip()))?;
            let finite = self.norm()?.is_finite();
            if !self.scale.accept(finite) {
                return Ok(None);
            }
        }
        Ok(Some(score))
    }

    fn try_update(&mut self, learning_rate: f32, gradient_scale: f32) -> Result<(), TchError> {
        self.unstage()?;
        let flat = &mut self.flat;
        match &mut self.update {
            Update::Host(optimizer) => {
                let parameters = host_mut(&mut flat.parameters);
                optimizer.update(parameters, host(&flat.gradient), learning_rate, gradient_scale);
                Ok(())
            }
            Update::Device(optimizer) => optimizer.update(flat, learning_rate, gradient_scale),
        }
    }
}

impl Engine for TorchEngine {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn clear(&mut self) -> Result<(), TrainError> {
        if let Some(failure) = self.failed.get() {
            return Err(TrainError::Other(format!("libtorch: {failure}")));
        }
        self.staged.clear();
        self.rows = 0;
        self.loss.f_zero_().and_then(|_| self.flat.clear()).map_err(failure)
    }

    fn accumulate(&mut self, batch: &Batch, scale: f32) -> Result<(), TrainError> {
        self.rows += batch.targets.len() as u64;
        let scale = f64::from(scale) * f64::from(self.scale.factor());
        let loss = self.net.backward(batch, scale).map_err(failure)?;
        self.loss.f_add_(&loss).map(drop).map_err(failure)
    }

    fn finish(&mut self) -> Result<Option<Score>, TrainError> {
        self.try_finish().map_err(failure)
    }

    fn gradient_norm(&mut self) -> Result<f64, TrainError> {
        self.norm().map_err(failure)
    }

    fn gradient_mut(&mut self) -> &mut [f32] {
        if self.flat.on_host() {
            return host_mut(&mut self.flat.gradient);
        }
        if self.staged.is_empty() {
            self.staged.resize(self.layout.parameters(), 0.0);
            self.flat.gradient.copy_data(&mut self.staged, self.layout.parameters());
        }
        &mut self.staged
    }

    fn update(&mut self, learning_rate: f32, gradient_scale: f32) -> Result<(), TrainError> {
        self.try_update(learning_rate, gradient_scale).map_err(failure)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<Score, TrainError> {
        let count = batch.targets.len() as u64;
        let (loss, right) = self.net.score(batch).map_err(failure)?;
        let loss = f64::try_from(loss).map_err(failure)?;
        let right = f64::try_from(right).map_err(failure)?;
        Ok(Score { loss, correct: right as u64, count })
    }

    fn read(&self, range: Range<usize>, out: &mut [f32]) {
        if self.flat.on_host() {
            return out.copy_from_slice(&host(&self.flat.parameters)[range]);
        }
        let values = part(&self.flat.parameters, &range);
        if let Err(error) = values.and_then(|values| values.f_copy_data(out, range.len())) {
            out.fill(f32::NAN);
            self.note(&error);
        }
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        if self.flat.on_host() {
            let parameters = &mut host_mut(&mut self.flat.parameters)[range];
            for (x, &delta) in parameters.iter_mut().zip(delta) {
                *x += weight * delta;
            }
        } else if let Err(error) = self.move_on_device(&range, delta, weight) {
            self.note(&error);
        }
    }

    fn save(&self) -> Vec<StateTensor> {
        match &self.update {
            Update::Host(optimizer) => optimizer.save(),
            Update::Device(optimizer) => optimizer.save().unwrap_or_else(|error| {
                self.note(&error);
                Vec::new()
            }),
        }
    }

    fn restore(&mut self, tensors: &[StateTensor]) -> Result<(), TrainError> {
        match &mut self.update {
            Update::Host(optimizer) => optimizer.restore(tensors),
            Update::Device(optimizer) => optimizer.restore(tensors),
        }
    }
}
