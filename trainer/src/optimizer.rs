//! Update rules as pure functions of parameters, gradient, state and learning rate.

use std::ops::Range;

use dnode_protocol::ParameterLayout;

use crate::config::{OptimizerConfig, OptimizerKind};
use crate::kernel::{Compute, vectorized};
use crate::seam::{StateTensor, TrainError};

/// Numbers below this are exact in `f32`; the update count is saved as two such digits.
const COUNT_DIGIT: u64 = 1 << 24;

/// Parameters that a thread updates at once: fewer are not worth waking it for (guess).
const UPDATED_AT_ONCE: usize = 1 << 18;

/// Part of the parameters that decays or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    range: Range<usize>,
    decayed: bool,
}

/// An update rule with its moments.
#[derive(Clone, Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    groups: Vec<Group>,
    /// `[P]`: momentum, or Adam's first moment.
    first: Vec<f32>,
    /// `[P]`: Adam's second moment; empty for sgd.
    second: Vec<f32>,
    /// Updates done with these moments, for Adam's bias correction.
    updates: u64,
}

/// What [`sgd`] needs besides its slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SgdRule {
    pub(crate) learning_rate: f32,
    pub(crate) momentum: f32,
    pub(crate) nesterov: bool,
    pub(crate) weight_decay: f32,
    /// Factor of the gradient (clipping).
    pub(crate) gradient_scale: f32,
}

/// `m ← μ m + g ; x ← x − η (m or g + μ m) − η λ x`.
///
/// All slices have one length. Source: Sutskever et al., ICML 2013, §2, in the form whose
/// momentum is free of the learning rate; decay decoupled as in [`adamw`].
pub(crate) fn sgd(parameters: &mut [f32], gradient: &[f32], momentum: &mut [f32], rule: SgdRule) {
    let keep = 1.0 - rule.learning_rate * rule.weight_decay;
    vectorized(
        #[inline(always)]
        || {
            for ((x, &g), m) in parameters.iter_mut().zip(gradient).zip(momentum) {
                let g = g * rule.gradient_scale;
                *m = rule.momentum * *m + g;
                let direction = if rule.nesterov { g + rule.momentum * *m } else { *m };
                *x = keep * *x - rule.learning_rate * direction;
            }
        },
    );
}

/// What [`adamw`] needs besides its slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AdamwRule {
    pub(crate) learning_rate: f32,
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) epsilon: f32,
    pub(crate) weight_decay: f32,
    /// Factor of the gradient (clipping).
    pub(crate) gradient_scale: f32,
    /// Number of this update, from 1.
    pub(crate) update: u64,
}

/// Adam with decoupled weight decay; moments are `(first, second)`.
///
/// All slices have one length. Source: Loshchilov and Hutter, arXiv:1711.05101, algorithm 2.
pub(crate) fn adamw(
    parameters: &mut [f32],
    gradient: &[f32],
    (first, second): (&mut [f32], &mut [f32]),
    rule: AdamwRule,
) {
    let power = i32::try_from(rule.update).unwrap_or(i32::MAX);
    let correction = |beta: f32| (1.0 - f64::from(beta).powi(power)) as f32;
    let rate = rule.learning_rate / correction(rule.beta1);
    let inverse_root = 1.0 / correction(rule.beta2).sqrt();
    let keep = 1.0 - rule.learning_rate * rule.weight_decay;
    vectorized(
        #[inline(always)]
        || {
            let moments = first.iter_mut().zip(second);
            for ((x, &g), (m, v)) in parameters.iter_mut().zip(gradient).zip(moments) {
                let g = g * rule.gradient_scale;
                *m = rule.beta1 * *m + (1.0 - rule.beta1) * g;
                *v = rule.beta2 * *v + (1.0 - rule.beta2) * g * g;
                *x = keep * *x - rate * *m / (v.sqrt() * inverse_root + rule.epsilon);
            }
        },
    );
}

/// Factor that shortens a gradient of norm `norm` to at most `longest`; 0 means no limit.
///
/// Source: Pascanu et al., arXiv:1211.5063, algorithm 1.
pub(crate) fn clip_scale(norm: f64, longest: f32) -> f32 {
    if longest > 0.0 && norm > f64::from(longest) {
        (f64::from(longest) / norm) as f32
    } else {
        1.0
    }
}

/// Which rule an update follows.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Sgd(SgdRule),
    Adamw(AdamwRule),
}

/// A part of an update; all slices have one length, but for sgd's second moments, which are empty.
struct Piece<'a> {
    rule: Rule,
    parameters: &'a mut [f32],
    gradient: &'a [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
}

impl Piece<'_> {
    fn update(self) {
        let Self { rule, parameters, gradient, first, second } = self;
        match rule {
            Rule::Sgd(rule) => sgd(parameters, gradient, first, rule),
            Rule::Adamw(rule) => adamw(parameters, gradient, (first, second), rule),
        }
    }
}

/// The first `length` elements of `rest`, or all that there are, which it then begins behind.
fn split_off<'a>(rest: &mut &'a mut [f32], length: usize) -> &'a mut [f32] {
    let whole = std::mem::take(rest);
    let (part, behind) = whole.split_at_mut(length.min(whole.len()));
    *rest = behind;
    part
}

impl Optimizer {
    /// A rule for parameters of `layout`, with moments zero.
    ///
    /// Weight decay moves tensors of two or more dimensions, not biases and gains.
    #[must_use]
    pub fn new(config: OptimizerConfig, layout: &ParameterLayout) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        for tensor in layout.tensors() {
            let (range, decayed) = (tensor.range(), tensor.shape.len() > 1);
            match groups.last_mut() {
                Some(group) if group.decayed == decayed => group.range.end = range.end,
                Some(_) | None => groups.push(Group { range, decayed }),
            }
        }
        let second = match config.kind {
            OptimizerKind::Sgd => 0,
            OptimizerKind::Adamw => layout.parameters(),
        };
        Self {
            config,
            groups,
            first: vec![0.0; layout.parameters()],
            second: vec![0.0; second],
            updates: 0,
        }
    }

    /// The parts of the flat parameters that are updated alike, and whether they decay.
    pub fn groups(&self) -> impl Iterator<Item = (Range<usize>, bool)> {
        self.groups.iter().map(|group| (group.range.clone(), group.decayed))
    }

    /// Momentum or Adam's first moment `[P]`, its second moment (empty for sgd), and the number of
    /// updates they have seen.
    #[must_use]
    pub fn moments(&self) -> (&[f32], &[f32], u64) {
        (&self.first, &self.second, self.updates)
    }

    /// Puts other moments in the place of [`Optimizer::moments`].
    ///
    /// # Panics
    /// When they are not as long as those.
    pub fn set_moments(&mut self, first: Vec<f32>, second: Vec<f32>, updates: u64) {
        let lengths = [first.len(), second.len()];
        assert_eq!(lengths, [self.first.len(), self.second.len()], "length of the moments");
        (self.first, self.second, self.updates) = (first, second, updates);
    }

    /// Moves the parameters against `gradient_scale · gradient`; both `[P]`.
    pub fn update(
        &mut self,
        parameters: &mut [f32],
        gradient: &[f32],
        learning_rate: f32,
        gradient_scale: f32,
    ) {
        let pieces = self.pieces(parameters, gradient, (learning_rate, gradient_scale));
        pieces.into_iter().for_each(Piece::update);
    }

    /// As [`Optimizer::update`], on all threads of `compute`.
    pub(crate) fn update_on(
        &mut self,
        compute: &Compute,
        parameters: &mut [f32],
        gradient: &[f32],
        (learning_rate, gradient_scale): (f32, f32),
    ) {
        let pieces = self.pieces(parameters, gradient, (learning_rate, gradient_scale));
        compute.for_each(pieces, Piece::update);
    }

    /// The parts of the next update, which no other part touches.
    fn pieces<'a>(
        &'a mut self,
        mut parameters: &'a mut [f32],
        gradient: &'a [f32],
        (learning_rate, gradient_scale): (f32, f32),
    ) -> Vec<Piece<'a>> {
        self.updates += 1;
        let Self { config, groups, first, second, updates } = self;
        let (mut first, mut second) = (first.as_mut_slice(), second.as_mut_slice());
        let mut pieces = Vec::new();
        for group in groups.iter() {
            let weight_decay = if group.decayed { config.weight_decay } else { 0.0 };
            let rule = match config.kind {
                OptimizerKind::Sgd => Rule::Sgd(SgdRule {
                    learning_rate,
                    momentum: config.momentum,
                    nesterov: config.nesterov,
                    weight_decay,
                    gradient_scale,
                }),
                OptimizerKind::Adamw => Rule::Adamw(AdamwRule {
                    learning_rate,
                    beta1: config.beta1,
                    beta2: config.beta2,
                    epsilon: config.epsilon,
                    weight_decay,
                    gradient_scale,
                    update: *updates,
                }),
            };
            // Groups follow each other without gaps.
            for gradient in gradient[group.range.clone()].chunks(UPDATED_AT_ONCE) {
                let length = gradient.len();
                pieces.push(Piece {
                    rule,
                    gradient,
                    parameters: split_off(&mut parameters, length),
                    first: split_off(&mut first, length),
                    second: split_off(&mut second, length),
                });
            }
        }
        pieces
    }

    /// Names of the saved tensors, in order.
    const fn names(&self) -> &'static [&'static str] {
        match self.config.kind {
            OptimizerKind::Sgd => &["sgd.momentum", "sgd.updates"],
            OptimizerKind::Adamw => &["adamw.first_moment", "adamw.second_moment", "adamw.updates"],
        }
    }

    /// Moments and update count.
    #[must_use]
    pub fn save(&self) -> Vec<StateTensor> {
        let digits = vec![
            (self.updates % COUNT_DIGIT) as f32,
            (self.updates / COUNT_DIGIT % COUNT_DIGIT) as f32,
        ];
        let values = match self.config.kind {
            OptimizerKind::Sgd => vec![self.first.clone(), digits],
            OptimizerKind::Adamw => vec![self.first.clone(), self.second.clone(), digits],
        };
        let name = |name: &&str| (*name).to_owned();
        self.names()
            .iter()
            .map(name)
            .zip(values)
            .map(|(name, values)| StateTensor { name, values })
            .collect()
    }

    /// Takes what [`Optimizer::save`] returned; unchanged on error.
    ///
    /// # Errors
    /// [`TrainError::State`] when it does not fit.
    pub fn restore(&mut self, tensors: &[StateTensor]) -> Result<(), TrainError> {
        self.restore_owned(tensors.to_vec())
    }

    /// As [`Optimizer::restore`], without another copy.
    ///
    /// # Errors
    /// As there.
    pub fn restore_owned(&mut self, tensors: Vec<StateTensor>) -> Result<(), TrainError> {
        let lengths = match self.config.kind {
            OptimizerKind::Sgd => vec![self.first.len(), 2],
            OptimizerKind::Adamw => vec![self.first.len(), self.second.len(), 2],
        };
        let describe = |tensors: &mut dyn Iterator<Item = (&str, usize)>| {
            tensors.map(|(name, len)| format!("{name}[{len}]")).collect::<Vec<_>>().join(", ")
        };
        let want = describe(&mut self.names().iter().copied().zip(lengths));
        let found =
            describe(&mut tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.values.len())));
        if want != found {
            return Err(TrainError::State(format!("expected {want}; found {found}")));
        }
        let digit = |value: Option<&f32>| value.map_or(0, |&digit| digit as u64);
        for StateTensor { name, values } in tensors {
            match name.as_str() {
                "sgd.momentum" | "adamw.first_moment" => self.first = values,
                "adamw.second_moment" => self.second = values,
                _ => self.updates = digit(values.first()) + COUNT_DIGIT * digit(values.get(1)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;

    const SGD: SgdRule = SgdRule {
        learning_rate: 0.5,
        momentum: 0.5,
        nesterov: false,
        weight_decay: 0.0,
        gradient_scale: 1.0,
    };

    #[test]
    fn pieces_and_threads_change_no_bit() {
        let mut layout = ParameterLayout::new();
        layout.push("weight", &[UPDATED_AT_ONCE, 3]).unwrap();
        layout.push("bias", &[1000]).unwrap();
        let count = layout.parameters();
        let gradient: Vec<f32> = (0..count).map(|i| (i % 101) as f32 / 101.0 - 0.4).collect();
        for kind in [OptimizerKind::Sgd, OptimizerKind::Adamw] {
            let run = |threads: usize| {
                let mut optimizer = Optimizer::new(OptimizerConfig::default_of(kind), &layout);
                let compute = Compute::new(threads).unwrap();
                let mut x: Vec<f32> = (0..count).map(|i| (i % 7) as f32).collect();
                for _ in 0..2 {
                    optimizer.update_on(&compute, &mut x, &gradient, (0.1, 0.5));
                }
                x.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            };
            let mut whole = Optimizer::new(OptimizerConfig::default_of(kind), &layout);
            let mut x: Vec<f32> = (0..count).map(|i| (i % 7) as f32).collect();
            for _ in 0..2 {
                whole.update(&mut x, &gradient, 0.1, 0.5);
            }
            let want: Vec<u32> = x.iter().map(|value| value.to_bits()).collect();
            assert!(run(1) == want && run(2) == want, "{kind:?}");
            assert_ne!(want[count - 1], (((count - 1) % 7) as f32).to_bits(), "the last one moved");
        }
    }

    #[test]
    fn sgd_follows_the_formula() {
        let (mut x, mut m) = ([1.0], [0.0]);
        sgd(&mut x, &[2.0], &mut m, SGD); // m = 2, x = 1 − 0.5 · 2
        assert_eq!((x, m), ([0.0], [2.0]));
        sgd(&mut x, &[2.0], &mut m, SGD); // m = 0.5 · 2 + 2, x = 0 − 0.5 · 3
        assert_eq!((x, m), ([-1.5], [3.0]));
        let nesterov = SgdRule { nesterov: true, ..SGD };
        sgd(&mut x, &[2.0], &mut m, nesterov); // m = 3.5, x = −1.5 − 0.5 · (2 + 0.5 · 3.5)
        assert_eq!((x, m), ([-3.375], [3.5]));
        let decayed = SgdRule { weight_decay: 0.25, gradient_scale: 0.5, momentum: 0.0, ..SGD };
        sgd(&mut x, &[2.0], &mut m, decayed); // x = −3.375 · (1 − 0.125) − 0.5 · 1
        assert_eq!((x, m), ([-3.453_125], [1.0]));
    }

    #[test]
    fn adamw_follows_the_formula() {
        let rule = |update| AdamwRule {
            learning_rate: 0.1,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.5,
            gradient_scale: 1.0,
            update,
        };
        let (mut x, mut m, mut v) = ([1.0], [0.0], [0.0]);
        adamw(&mut x, &[2.0], (&mut m, &mut v), rule(1));
        // m̂ = 2, v̂ = 4: x = 1 − 0.1 · (2/2 + 0.5 · 1).
        assert!((x[0] - 0.85).abs() < 1e-6, "{x:?}");
        adamw(&mut x, &[-1.0], (&mut m, &mut v), rule(2));
        // m = 0.08, v = 0.0496: m̂ = 0.08/0.19, v̂ = 0.0496/0.0199.
        let step = (0.08 / 0.19) / (0.0496_f64 / 0.0199).sqrt();
        let want = 0.85 - 0.1 * (step + 0.5 * 0.85);
        assert!((f64::from(x[0]) - want).abs() < 1e-6, "{x:?}, not {want}");
    }

    #[test]
    fn clipping_shortens_only_long_gradients() {
        assert_eq!(clip_scale(4.0, 1.0), 0.25);
        assert_eq!(clip_scale(0.5, 1.0), 1.0);
        assert_eq!(clip_scale(1e9, 0.0), 1.0);
    }

    #[test]
    fn only_matrices_decay() {
        let mut layout = ParameterLayout::new();
        layout.push("weight", &[2, 2]).unwrap();
        layout.push("bias", &[2]).unwrap();
        let config = OptimizerConfig {
            learning_rate: 1.0,
            weight_decay: 0.5,
            ..OptimizerConfig::default_of(OptimizerKind::Adamw)
        };
        let mut optimizer = Optimizer::new(config, &layout);
        let mut parameters = vec![2.0; 6];
        optimizer.update(&mut parameters, &[0.0; 6], 1.0, 1.0);
        assert_eq!(parameters, [1.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
    }

    #[test]
    fn long_update_counts_survive_saving() {
        let mut layout = ParameterLayout::new();
        layout.push("weight", &[2, 2]).unwrap();
        let config = OptimizerConfig::default_of(OptimizerKind::Adamw);
        let mut optimizer = Optimizer::new(config, &layout);
        optimizer.updates = 5 * COUNT_DIGIT + 12_345_679;
        let mut copy = optimizer.clone();
        copy.updates = 0;
        copy.restore(&optimizer.save()).unwrap();
        assert_eq!(copy.updates, optimizer.updates);
    }
}
