//! The engine: libtorch computes gradients and updates, the flat tensors hold the numbers.

use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use dnode_protocol::ParameterLayout;
use dnode_trainer::{
    Batch, Compute, Device, DeviceError, Displacer, Draws, Engine, LocalConfig, MomentFormat,
    Objective, Optimizer, Resident, SampleShape, Score, StateTensor, TrainError,
    initial_parameters,
};
use tch::{Kind, TchError, Tensor};

use crate::TorchError;
use crate::config::TorchConfig;
use crate::cuda;
use crate::flat::{Flat, host, host_mut, part, span, span_mut};
use crate::loss_scale::LossScale;
use crate::net::{self, Net};
use crate::update::DeviceOptimizer;

/// Most elements of a dot product: cuBLAS counts them in 32 bits.
const DOT_MAX: usize = 1 << 30;
/// Most elements that are widened to f64 at a time: 128 MiB.
const WIDENED_MAX: usize = 1 << 24;

/// Who moves the parameters.
enum Update {
    /// The host's optimizer, on the tensors' own memory.
    Host(Optimizer, Compute),
    /// libtorch, where the tensors are.
    Device(DeviceOptimizer),
}

/// A reference model on one device of libtorch.
pub(crate) struct TorchEngine {
    layout: ParameterLayout,
    net: Net,
    /// What a step minimises.
    objective: Objective,
    draws: Draws,
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
    /// What mixes weights on a CUDA device, or why nothing does; `None` on the processor.
    device: Option<Result<Arc<dyn Device>, DeviceError>>,
    /// A displacement on its way to the weights on a device.
    delta: Displacer,
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

/// Sum of squares of a flat tensor, in parts of at most so many elements that are multiplied as this kind.
/// The device is waited for once.
fn squares(flat: &Tensor, (kind, most): (Kind, usize)) -> Result<f64, TchError> {
    let elements = flat.numel();
    let of = |start: usize| {
        let part = part(flat, &(start..elements.min(start + most)))?.f_to_kind(kind)?;
        part.f_dot(&part)
    };
    let sums: Vec<Tensor> = (0..elements).step_by(most).map(of).collect::<Result<_, _>>()?;
    f64::try_from(Tensor::f_stack(&sums, 0)?.f_sum(Kind::Double)?)
}

/// `x ← x + weight · delta` of a part of a flat tensor, by libtorch alone.
fn move_by_torch(
    flat: &Tensor,
    range: &Range<usize>,
    (delta, weight): (&[f32], f32),
) -> Result<(), TchError> {
    let mut x = part(flat, range)?;
    let delta = Tensor::f_from_slice(delta)?.f_to(x.device())?;
    x.f_add_(&delta.f_mul_scalar(f64::from(weight))?).map(drop)
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
            let optimizer = Optimizer::new(config.optimizer.clone(), &layout);
            Update::Host(optimizer, Compute::new(config.threads)?)
        } else if config.optimizer.moments != MomentFormat::F32 {
            return Err(TorchError::Moments);
        } else {
            let how = (device, net::kind(torch.precision));
            Update::Device(DeviceOptimizer::new(&config.optimizer, &layout, how)?)
        };
        let how = (torch.precision, config.recompute);
        Ok(Self {
            net: Net::new(&config.model, shape, flat.leaves(), how)?,
            objective: config.optimizer.objective(),
            draws: Draws::new(config.model.dropout, 0),
            scale: LossScale::new(torch.precision),
            loss: Tensor::f_zeros([], (Kind::Double, device))?,
            rows: 0,
            staged: Vec::new(),
            failed: OnceCell::new(),
            device: match device {
                tch::Device::Cuda(index) => Some(dnode_cuda::open(index)),
                tch::Device::Cpu | tch::Device::Mps | tch::Device::Vulkan => None,
            },
            delta: Displacer::default(),
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
        let gradient = &mut self.flat.gradient;
        let sent = match &self.device {
            Some(Ok(device)) => device.upload(&self.staged, span_mut(gradient)).is_ok(),
            _ => false,
        };
        if !sent {
            gradient.f_copy_(&Tensor::f_from_slice(&self.staged)?)?;
        }
        self.staged.clear();
        Ok(())
    }

    /// Keeps a failure that the next [`Engine::clear`] tells.
    fn note(&self, failure: String) {
        let _ = self.failed.set(failure);
    }

    /// Copies parameters from the device to the host, through memory that it reaches by itself where
    /// that is to be had.
    fn fetch(&self, range: Range<usize>, out: &mut [f32]) -> Result<(), String> {
        if let Some(Ok(device)) = &self.device {
            let from = span(&self.flat.parameters).part(range);
            return device.download(from, out).map_err(|error| error.to_string());
        }
        let values = part(&self.flat.parameters, &range);
        let fetched = values.and_then(|values| values.f_copy_data(out, range.len()));
        fetched.map_err(|error| line(&error))
    }

    fn move_on_device(
        &mut self,
        range: Range<usize>,
        delta: &[f32],
        weight: f32,
    ) -> Result<(), String> {
        if let Some(Ok(device)) = &self.device {
            let x = span_mut(&mut self.flat.parameters).part(range);
            let displaced = self.delta.displace(device, (delta, weight), x);
            return displaced.map_err(|error| error.to_string());
        }
        move_by_torch(&self.flat.parameters, &range, (delta, weight)).map_err(|error| line(&error))
    }

    fn norm(&mut self) -> Result<f64, TchError> {
        self.unstage()?;
        let gradient = &self.flat.gradient;
        let norm = squares(gradient, (Kind::Float, DOT_MAX))?.sqrt();
        // Squares may leave the range of f32 where the numbers do not.
        if norm.is_finite() {
            return Ok(norm);
        }
        squares(gradient, (Kind::Double, WIDENED_MAX)).map(f64::sqrt)
    }

    fn try_finish(&mut self) -> Result<Option<Score>, TchError> {
        let score = Score { loss: f64::try_from(&self.loss)?, correct: 0, count: self.rows };
        if self.scale.moves() && score.loss.is_finite() {
            let factor = self.scale.factor();
            if factor > 1.0 {
                let _ = self.flat.gradient.f_mul_scalar_(f64::from(factor.recip()))?;
            }
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
            Update::Host(optimizer, compute) => {
                let parameters = host_mut(&mut flat.parameters);
                let rates = (learning_rate, gradient_scale);
                optimizer.update(compute, parameters, host(&flat.gradient), rates);
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

    fn clear(&mut self, seed: u64) -> Result<(), TrainError> {
        if let Some(failure) = self.failed.get() {
            return Err(TrainError::Other(format!("libtorch: {failure}")));
        }
        self.draws.begin(seed);
        self.staged.clear();
        self.rows = 0;
        self.loss.f_zero_().and_then(|_| self.flat.clear()).map_err(failure)
    }

    fn accumulate(&mut self, batch: &Batch, scale: f32) -> Result<(), TrainError> {
        self.rows += batch.targets.len() as u64;
        let scale = f64::from(scale) * f64::from(self.scale.factor());
        let dropout = self.draws.next(batch.samples);
        let loss = self.net.backward(batch, scale, (self.objective, dropout)).map_err(failure)?;
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
            let sent = match &self.device {
                Some(Ok(device)) => {
                    device.download(span(&self.flat.gradient), &mut self.staged).is_ok()
                }
                _ => false,
            };
            let elements = self.layout.parameters();
            let copied = sent || self.flat.gradient.f_copy_data(&mut self.staged, elements).is_ok();
            if !copied {
                // No rank takes such numbers, and the next use of the device tells the failure.
                self.staged.fill(f32::NAN);
            }
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
        if let Err(failure) = self.fetch(range, out) {
            out.fill(f32::NAN);
            self.note(failure);
        }
    }

    fn resident(&mut self) -> Result<Option<Resident<'_>>, DeviceError> {
        let Some(device) = &self.device else { return Ok(None) };
        let device = Arc::clone(device.as_ref().map_err(Clone::clone)?);
        Ok(Some(Resident { device, weights: span_mut(&mut self.flat.parameters) }))
    }

    fn displace(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        if self.flat.on_host() {
            let parameters = &mut host_mut(&mut self.flat.parameters)[range];
            for (x, &delta) in parameters.iter_mut().zip(delta) {
                *x += weight * delta;
            }
        } else if let Err(failure) = self.move_on_device(range, delta, weight) {
            self.note(failure);
        }
    }

    fn share_moments(&mut self) -> bool {
        match &mut self.update {
            Update::Host(optimizer, _) => optimizer.share_moments(),
            Update::Device(optimizer) => optimizer.share_moments(),
        }
        true
    }

    fn read_moments(&self, range: Range<usize>, out: &mut [f32]) {
        let read = match &self.update {
            Update::Host(optimizer, _) => return optimizer.read_first(range, out),
            Update::Device(optimizer) => part(optimizer.first(), &range),
        };
        if let Err(error) = read.and_then(|moments| moments.f_copy_data(out, range.len())) {
            out.fill(f32::NAN);
            self.note(line(&error));
        }
    }

    fn displace_moments(&mut self, range: Range<usize>, delta: &[f32], weight: f32) {
        let moved = match &mut self.update {
            Update::Host(optimizer, _) => return optimizer.displace_first(&range, delta, weight),
            Update::Device(optimizer) => move_by_torch(optimizer.first(), &range, (delta, weight)),
        };
        if let Err(error) = moved {
            self.note(line(&error));
        }
    }

    fn save(&self) -> Vec<StateTensor<'_>> {
        match &self.update {
            Update::Host(optimizer, _) => optimizer.save(),
            Update::Device(optimizer) => optimizer.save().unwrap_or_else(|error| {
                self.note(line(&error));
                Vec::new()
            }),
        }
    }

    fn restore(&mut self, tensors: Vec<StateTensor<'_>>) -> Result<(), TrainError> {
        match &mut self.update {
            Update::Host(optimizer, _) => optimizer.restore(tensors),
            Update::Device(optimizer) => optimizer.restore(tensors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_summed_in_parts_and_beyond_the_range_of_f32() {
        let numbers: Vec<f32> = (0..10).map(|index| index as f32 - 4.0).collect();
        let flat = Tensor::from_slice(&numbers);
        for (kind, most) in [(Kind::Float, 3), (Kind::Double, 3), (Kind::Float, DOT_MAX)] {
            assert_eq!(squares(&flat, (kind, most)).unwrap().to_bits(), 85_f64.to_bits());
        }
        let large = Tensor::from_slice(&[3e20_f32, 4e20]);
        assert!(!squares(&large, (Kind::Float, 1)).unwrap().is_finite());
        let norm = squares(&large, (Kind::Double, 1)).unwrap().sqrt();
        assert!((norm / 5e20 - 1.0).abs() < 1e-6, "{norm}");
    }
}
