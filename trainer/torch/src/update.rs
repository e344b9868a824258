//! The update rules on the device, by whole-vector operations; formulas and state are those of
//! [`Optimizer`].

use dnode_protocol::ParameterLayout;
use dnode_trainer::optimizer::{Group, muon, rectification, update_max};
use dnode_trainer::{Optimizer, OptimizerConfig, OptimizerKind, StateTensor, TrainError};
use tch::{Device, Kind, TchError, Tensor};

use crate::engine::failure;
use crate::flat::{Flat, part};

/// Moments on the device; groups and saved form are those of the host's optimizer.
#[derive(Debug)]
pub(crate) struct DeviceOptimizer {
    config: OptimizerConfig,
    layout: ParameterLayout,
    groups: Vec<Group>,
    /// `[P]`, as in [`Optimizer`].
    first: Tensor,
    /// As in [`Optimizer::moments`].
    second: Tensor,
    updates: u64,
    /// As [`Optimizer::shares_moments`].
    shared: bool,
    /// Numbers that Muon's products are computed in.
    kind: Kind,
}

impl DeviceOptimizer {
    /// As [`Optimizer::new`], on `device`. Muon's products are computed in `kind`: it forgives the rounding
    /// of 16 bits, in which Jordan et al. 2024 compute them.
    pub(crate) fn new(
        config: &OptimizerConfig,
        layout: &ParameterLayout,
        (device, kind): (Device, Kind),
    ) -> Result<Self, TchError> {
        let host = Optimizer::new(config.clone(), layout);
        let (first, second, updates) = host.moments();
        let first = Tensor::f_from_slice(&first)?.f_to(device)?;
        let second = Tensor::f_from_slice(&second)?.f_to(device)?;
        let groups = host.groups().to_vec();
        let (config, layout, shared) = (config.clone(), layout.clone(), host.shares_moments());
        Ok(Self { config, layout, groups, first, second, updates, shared, kind })
    }

    /// As [`Optimizer::share_moments`].
    pub(crate) const fn share_moments(&mut self) {
        self.shared = true;
    }

    /// Momentum or Adam's first moment, `[P]`.
    pub(crate) const fn first(&self) -> &Tensor {
        &self.first
    }

    /// As [`Optimizer::update`].
    pub(crate) fn update(
        &mut self,
        flat: &mut Flat,
        learning_rate: f32,
        gradient_scale: f32,
    ) -> Result<(), TchError> {
        self.updates += 1;
        for Group { range, second, decayed, matrix } in &self.groups {
            let mut x = part(&flat.parameters, range)?;
            let gradient = part(&flat.gradient, range)?.f_mul_scalar(f64::from(gradient_scale))?;
            let first = part(&self.first, range)?;
            let decay = if *decayed { self.config.weight_decay } else { 0.0 };
            let keep = 1.0 - learning_rate * decay;
            let direction = match (self.config.kind, *matrix) {
                (OptimizerKind::Sgd, _) => self.momentum(gradient, first, self.config.nesterov)?,
                (OptimizerKind::Muon, Some(shape)) => {
                    orthogonal(&self.momentum(gradient, first, true)?, shape, self.kind)?
                }
                (OptimizerKind::Adamw | OptimizerKind::Muon, _) => {
                    self.adamw(gradient, first, part(&self.second, second)?)?
                }
            };
            let _ = x.f_mul_scalar_(f64::from(keep))?;
            let _ = x.f_sub_(&direction.f_mul_scalar(f64::from(learning_rate))?)?;
        }
        Ok(())
    }

    fn momentum(
        &self,
        gradient: Tensor,
        mut momentum: Tensor,
        nesterov: bool,
    ) -> Result<Tensor, TchError> {
        let keep = f64::from(self.config.momentum);
        let _ = momentum.f_mul_scalar_(keep)?.f_add_(&gradient)?;
        if !nesterov {
            return Ok(momentum);
        }
        momentum.f_mul_scalar(keep)?.f_add(&gradient)
    }

    fn adamw(
        &self,
        gradient: Tensor,
        mut first: Tensor,
        mut second: Tensor,
    ) -> Result<Tensor, TchError> {
        let [beta1, beta2] = [self.config.beta1, self.config.beta2].map(f64::from);
        let _ = first.f_mul_scalar_(beta1)?.f_add_(&gradient.f_mul_scalar(1.0 - beta1)?)?;
        let square = gradient.f_square()?.f_mul_scalar(1.0 - beta2)?;
        let _ = second.f_mul_scalar_(beta2)?.f_add_(&square)?;
        let power = i32::try_from(self.updates).unwrap_or(i32::MAX);
        let [correction1, correction2] = [beta1, beta2].map(|beta| 1.0 - beta.powi(power));
        let mut deviation = second.f_sqrt()?;
        let _ = deviation.f_mul_scalar_(1.0 / correction2.sqrt())?;
        let _ = deviation.f_add_scalar_(f64::from(self.config.epsilon))?;
        let update = first.f_div(&deviation)?;
        if self.shared {
            let most = f64::from(update_max(self.config.beta1, self.config.beta2));
            let part = f64::from(rectification(self.config.beta2, self.updates));
            return update.f_clamp(-most, most)?.f_mul_scalar(part);
        }
        update.f_mul_scalar(1.0 / correction1)
    }

    /// As [`Optimizer::save`].
    pub(crate) fn save(&self) -> Result<Vec<StateTensor<'static>>, TchError> {
        let copy = |tensor: &Tensor| {
            let mut values = vec![0.0_f32; tensor.numel()];
            tensor.f_copy_data(&mut values, tensor.numel()).map(|()| values)
        };
        let (first, second) = (copy(&self.first)?, copy(&self.second)?);
        Ok(Optimizer::saved(self.config.kind, (first, second), self.updates))
    }

    /// As [`Optimizer::restore`].
    pub(crate) fn restore(&mut self, tensors: Vec<StateTensor<'_>>) -> Result<(), TrainError> {
        let mut host = Optimizer::new(self.config.clone(), &self.layout);
        host.restore(tensors)?;
        let (first, second, updates) = host.moments();
        let device = self.first.device();
        let copy = |values: &[f32]| {
            Tensor::f_from_slice(values).and_then(|tensor| tensor.f_to(device)).map_err(failure)
        };
        let (first, second) = (copy(&first)?, copy(&second)?);
        (self.first, self.second, self.updates) = (first, second, updates);
        Ok(())
    }
}

/// As [`muon`] on the host, with products in `kind`: the update of a matrix per unit of learning rate, flat.
fn orthogonal(direction: &Tensor, shape: (usize, usize), kind: Kind) -> Result<Tensor, TchError> {
    let (rows, columns) = (shape.0 as i64, shape.1 as i64);
    let (a, b, c) = muon::COEFFICIENTS;
    let [a, b, c] = [a, b, c].map(f64::from);
    let mut x = direction.f_view([rows, columns])?;
    if rows > columns {
        x = x.f_transpose(0, 1)?;
    }
    let length = x.f_norm()?.f_add_scalar(f64::from(muon::LENGTH_MIN))?;
    x = x.f_div(&length)?.f_to_kind(kind)?;
    for _ in 0..muon::ITERATIONS {
        let gram = x.f_matmul(&x.f_transpose(0, 1)?)?;
        let square = gram.f_matmul(&gram)?.f_mul_scalar(c)?;
        let polynomial = square.f_add(&gram.f_mul_scalar(b)?)?;
        x = x.f_mul_scalar(a)?.f_add(&polynomial.f_matmul(&x)?)?;
    }
    if rows > columns {
        x = x.f_transpose(0, 1)?;
    }
    x.f_to_kind(Kind::Float)?.f_mul_scalar(f64::from(muon::scale(shape)))?.f_reshape([-1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn muon_in_sixteen_bits_is_near_muon_in_f32() {
        for shape in [(48, 48), (96, 32), (32, 96)] {
            tch::manual_seed(1);
            let elements = (shape.0 * shape.1) as i64;
            let direction = Tensor::randn([elements], (Kind::Float, Device::Cpu));
            let exact = orthogonal(&direction, shape, Kind::Float).unwrap();
            let near = orthogonal(&direction, shape, Kind::BFloat16).unwrap();
            assert_eq!((near.kind(), near.size()), (Kind::Float, vec![elements]));
            let apart = f64::try_from((&near - &exact).norm() / exact.norm()).unwrap();
            assert!(apart > 0.0 && apart < 0.05, "{shape:?}: {apart}");
        }
    }
}
