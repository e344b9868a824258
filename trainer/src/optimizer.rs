//! Update rules as pure functions of parameters, gradient, state and learning rate.

mod blocks;
mod elementwise;
mod groups;
mod moments;
pub mod muon;

use std::collections::BTreeMap;
use std::ops::Range;

use dnode_protocol::ParameterLayout;

use crate::config::{MomentFormat, OptimizerConfig, OptimizerKind};
use crate::kernel::Compute;
use crate::seam::TrainError;
use crate::trainer_state::{StateTensor, StateValues};
use blocks::{Form, key};
use elementwise::{AdamwRule, SgdRule, adamw, sgd};
pub use elementwise::{rectification, update_max};
pub use groups::Group;
use groups::{groups, merged};
use moments::{Moments, Piece as MomentPiece, each};
use muon::MuonRule;

/// Numbers below this are exact in `f32`; the update count is saved as two such digits.
const COUNT_DIGIT: u64 = 1 << 24;

/// Parameters that a thread updates at once: fewer are not worth waking it for (guess).
const UPDATED_AT_ONCE: usize = 1 << 18;

/// An update rule with its moments.
#[derive(Clone, Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    groups: Vec<Group>,
    /// `[P]`: momentum, or Adam's first moment.
    first: Moments,
    /// Adam's second moment, of the groups that have one.
    second: Moments,
    /// Updates done with these moments, for Adam's bias correction.
    updates: u64,
    /// Whether first moments may come from other peers, too.
    shared: bool,
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

/// What the tensors of a saved optimizer are called.
struct Names {
    first: &'static str,
    second: Option<&'static str>,
    updates: &'static str,
}

const fn names(kind: OptimizerKind) -> Names {
    let (first, second, updates) = match kind {
        OptimizerKind::Sgd => ("sgd.momentum", None, "sgd.updates"),
        OptimizerKind::Adamw => {
            ("adamw.first_moment", Some("adamw.second_moment"), "adamw.updates")
        }
        OptimizerKind::Muon => ("muon.momentum", Some("muon.second_moment"), "muon.updates"),
    };
    Names { first, second, updates }
}

/// The tensor of a count of updates: two digits.
fn count(name: &str, updates: u64) -> StateTensor<'static> {
    let digits = [updates % COUNT_DIGIT, updates / COUNT_DIGIT % COUNT_DIGIT];
    StateTensor::new(name, digits.map(|digit| digit as f32).to_vec())
}

/// What bits are drawn for, where moments are rounded.
const FIRST: u32 = 1;
const SECOND: u32 = 2;
const DISPLACED: u32 = 3;

/// Which rule an update follows.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Sgd(SgdRule),
    Adamw(AdamwRule),
    Muon(MuonRule),
}

/// A part of an update; all are of the same parameters, but for second moments that the rule has not.
struct Piece<'a> {
    rule: Rule,
    parameters: &'a mut [f32],
    gradient: &'a [f32],
    first: MomentPiece<'a>,
    second: MomentPiece<'a>,
}

impl Piece<'_> {
    fn update(self) {
        let Self { rule, parameters, gradient, first, second } = self;
        let (length, moments) = (parameters.len(), (first, second));
        match rule {
            Rule::Sgd(rule) => each(length, moments, |at, first, _| {
                sgd(&mut parameters[at.clone()], &gradient[at], first, rule);
            }),
            Rule::Adamw(rule) => each(length, moments, |at, first, second| {
                let of = (&mut parameters[at.clone()], &gradient[at]);
                adamw(of.0, of.1, (first, second), rule);
            }),
            Rule::Muon(rule) => {
                let mut direction = vec![0.0; length];
                each(length, moments, |at, momentum, _| {
                    muon::direction(&gradient[at.clone()], momentum, &mut direction[at], rule);
                });
                muon::apply(parameters, direction, rule);
            }
        }
    }
}

/// The first `length` elements of `rest`, or all that there are, which it then begins behind.
fn split_off<'a, T>(rest: &mut &'a mut [T], length: usize) -> &'a mut [T] {
    let whole = std::mem::take(rest);
    let (part, behind) = whole.split_at_mut(length.min(whole.len()));
    *rest = behind;
    part
}

/// How many first and second moments each group of one tensor has.
fn lengths(groups: &[Group]) -> [Vec<usize>; 2] {
    let first = groups.iter().map(|group| group.range.len()).collect();
    [first, groups.iter().map(|group| group.second.len()).collect()]
}

impl Optimizer {
    /// A rule for parameters of `layout`, with moments zero.
    #[must_use]
    pub fn new(config: OptimizerConfig, layout: &ParameterLayout) -> Self {
        let groups = groups(&config, layout);
        let [first, second] = lengths(&groups);
        let first = Moments::zeros(config.moments, Form::Signed, first);
        let second = Moments::zeros(config.moments, Form::Unsigned, second);
        // Blocks of 8 bits are of one tensor each, so that they stay where they are whatever decays.
        let groups = match config.moments {
            MomentFormat::F32 => merged(groups),
            MomentFormat::F8 => groups,
        };
        Self { config, groups, first, second, updates: 0, shared: false }
    }

    /// Bytes that it holds for parameters of a layout, and that an update on so many threads needs for a
    /// while.
    pub(crate) fn bytes(
        config: &OptimizerConfig,
        layout: &ParameterLayout,
        threads: usize,
    ) -> usize {
        let groups = groups(config, layout);
        let moments = lengths(&groups).map(|parts| Moments::bytes(config.moments, &parts));
        let matrices = groups.iter().filter_map(|group| group.matrix);
        let mut work: Vec<usize> = matrices.map(muon::numbers).collect();
        work.sort_unstable_by(|a, b| b.cmp(a));
        // Each thread works on one matrix at a time.
        let work = work.iter().take(threads).sum::<usize>() * size_of::<f32>();
        moments.iter().sum::<usize>() + work
    }

    /// The parts of the flat parameters that are updated alike, in order and without gaps.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Momentum or Adam's first moment `[P]`, its second moment (of the groups that have one, one
    /// after the other), and the number of updates they have seen.
    #[must_use]
    pub fn moments(&self) -> (Vec<f32>, Vec<f32>, u64) {
        (self.first.to_vec(), self.second.to_vec(), self.updates)
    }

    /// First moments may come from other peers from now on, which have done more updates, or fewer. So
    /// Adam no longer corrects them for a beginning at zero: a joiner would take its donor's moment ten
    /// times (`1 / (1 - beta1)`) in its first update. All peers' updates grow over their first
    /// `1 / (1 - beta1)` steps instead. Second moments stay each peer's own. While they are of few
    /// gradients, updates count for less ([`rectification`]), and no element moves further than
    /// [`update_max`] lets it.
    pub const fn share_moments(&mut self) {
        self.shared = true;
    }

    /// Whether [`Optimizer::share_moments`] was called.
    #[must_use]
    pub const fn shares_moments(&self) -> bool {
        self.shared
    }

    /// Copies the first moments of the parameters of `range` to `out`, which is as long.
    ///
    /// # Panics
    /// When the range is not within the parameters.
    pub fn read_first(&self, range: Range<usize>, out: &mut [f32]) {
        self.first.read(range, out);
    }

    /// Moves the first moments of the parameters of `range`: `m ← m + weight · delta`.
    ///
    /// # Panics
    /// When the range is not within the parameters.
    pub fn displace_first(&mut self, range: &Range<usize>, delta: &[f32], weight: f32) {
        self.first.displace(range, (delta, weight), key(self.updates, DISPLACED));
    }

    /// Moves the parameters against `gradient_scale · gradient`; both `[P]`. All threads of `compute` work
    /// on it; their number changes no bit.
    pub fn update(
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
        let Self { config, groups, first, second, updates, shared } = self;
        let mut first = first.whole(key(*updates, FIRST));
        let mut second = second.whole(key(*updates, SECOND));
        let mut pieces = Vec::new();
        for group in groups.iter() {
            let weight_decay = if group.decayed { config.weight_decay } else { 0.0 };
            let adamw = || {
                Rule::Adamw(AdamwRule {
                    learning_rate,
                    beta1: config.beta1,
                    beta2: config.beta2,
                    epsilon: config.epsilon,
                    weight_decay,
                    gradient_scale,
                    update: *updates,
                    shared: *shared,
                })
            };
            let momentum = config.momentum;
            let rule = match (config.kind, group.matrix) {
                (OptimizerKind::Sgd, _) => Rule::Sgd(SgdRule {
                    learning_rate,
                    momentum,
                    nesterov: config.nesterov,
                    weight_decay,
                    gradient_scale,
                }),
                (OptimizerKind::Muon, Some(shape)) => Rule::Muon(MuonRule {
                    learning_rate,
                    momentum,
                    weight_decay,
                    gradient_scale,
                    shape,
                }),
                (OptimizerKind::Adamw | OptimizerKind::Muon, _) => adamw(),
            };
            // A matrix is one piece. Groups follow each other without gaps.
            let at_once = if group.matrix.is_some() { group.range.len() } else { UPDATED_AT_ONCE };
            for gradient in gradient[group.range.clone()].chunks(at_once) {
                let length = gradient.len();
                let seconds = if group.second.is_empty() { 0 } else { length };
                pieces.push(Piece {
                    rule,
                    gradient,
                    parameters: split_off(&mut parameters, length),
                    first: first.split_off(length),
                    second: second.split_off(seconds),
                });
            }
        }
        pieces
    }

    /// Moments and update count.
    #[must_use]
    pub fn save(&self) -> Vec<StateTensor<'_>> {
        let Names { first, second, updates } = names(self.config.kind);
        let mut tensors = Vec::new();
        self.first.save(first, &mut tensors);
        if let Some(second) = second {
            self.second.save(second, &mut tensors);
        }
        tensors.push(count(updates, self.updates));
        tensors
    }

    /// What [`Optimizer::save`] of an optimizer with these moments returns, which may be kept elsewhere.
    #[must_use]
    pub fn saved(
        kind: OptimizerKind,
        (first, second): (Vec<f32>, Vec<f32>),
        updates: u64,
    ) -> Vec<StateTensor<'static>> {
        let names = names(kind);
        let second = names.second.map(|name| StateTensor::new(name, second));
        let first = StateTensor::new(names.first, first);
        [Some(first), second, Some(count(names.updates, updates))].into_iter().flatten().collect()
    }

    /// Takes what [`Optimizer::save`] of moments of either format returned; unchanged on error.
    ///
    /// # Errors
    /// [`TrainError::State`] when it does not fit.
    pub fn restore(&mut self, tensors: Vec<StateTensor<'_>>) -> Result<(), TrainError> {
        let Names { first, second, updates } = names(self.config.kind);
        let told = |tensor: &StateTensor<'_>| format!("{}[{}]", tensor.name, tensor.values.len());
        let found = tensors.iter().map(told).collect::<Vec<_>>().join(", ");
        let mut saved: BTreeMap<_, _> =
            tensors.into_iter().map(|tensor| (tensor.name, tensor.values)).collect();
        let restored = self.first.restored(first, &mut saved);
        let seconds = match second {
            Some(second) => self.second.restored(second, &mut saved),
            None => Some(self.second.clone()),
        };
        let digits = saved.remove(updates);
        let digits = digits.as_ref().and_then(StateValues::f32);
        match (restored, seconds, digits) {
            (Some(restored), Some(seconds), Some(&[low, high])) if saved.is_empty() => {
                (self.first, self.second) = (restored, seconds);
                self.updates = low as u64 + COUNT_DIGIT * high as u64;
                Ok(())
            }
            _ => {
                let second = second.map(|name| format!("{name}[{}], ", self.second.len()));
                let want = format!("{first}[{}], {}", self.first.len(), second.unwrap_or_default());
                Err(TrainError::State(format!("expected {want}{updates}[2]; found {found}")))
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact")]
mod tests {
    use super::*;
    use crate::config::Decayed;

    #[test]
    fn pieces_and_threads_change_no_bit() {
        let mut layout = ParameterLayout::new();
        layout.push("weight", &[UPDATED_AT_ONCE, 3]).unwrap();
        layout.push("bias", &[1000]).unwrap();
        let count = layout.parameters();
        let gradient: Vec<f32> = (0..count).map(|i| (i % 101) as f32 / 101.0 - 0.4).collect();
        let kinds = [OptimizerKind::Sgd, OptimizerKind::Adamw, OptimizerKind::Muon];
        let formats = [MomentFormat::F32, MomentFormat::F8];
        for (kind, moments) in kinds.into_iter().flat_map(|kind| formats.map(|it| (kind, it))) {
            let config = OptimizerConfig { moments, ..OptimizerConfig::default_of(kind) };
            let run = |threads: usize| {
                let mut optimizer = Optimizer::new(config.clone(), &layout);
                let compute = Compute::new(threads).unwrap();
                let mut x: Vec<f32> = (0..count).map(|i| (i % 7) as f32).collect();
                for _ in 0..2 {
                    optimizer.update(&compute, &mut x, &gradient, (0.1, 0.5));
                }
                x.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
            };
            let want = run(1);
            assert!(run(2) == want && run(3) == want, "{kind:?} {moments:?}");
            assert_ne!(want[count - 1], (((count - 1) % 7) as f32).to_bits(), "the last one moved");
        }
    }

    #[test]
    fn clipping_shortens_only_long_gradients() {
        assert_eq!(clip_scale(4.0, 1.0), 0.25);
        assert_eq!(clip_scale(0.5, 1.0), 1.0);
        assert_eq!(clip_scale(1e9, 0.0), 1.0);
    }

    #[test]
    fn what_decays_is_chosen() {
        let mut layout = ParameterLayout::new();
        for (name, shape) in [
            ("token_embedding", &[2, 2][..]),
            ("block0.up.weight", &[1, 2]),
            ("block0.up.bias", &[1]),
            ("final_norm.gain", &[2]),
            ("head.weight", &[2, 2]),
        ] {
            layout.push(name, shape).unwrap();
        }
        let compute = Compute::new(1).unwrap();
        for kind in [OptimizerKind::Sgd, OptimizerKind::Adamw, OptimizerKind::Muon] {
            let default = OptimizerConfig::default_of(kind);
            assert_eq!(default.decayed, Decayed::Matrices);
            for (decayed, [embedding, layer, vectors]) in [
                (Decayed::Matrices, [1.0, 1.0, 2.0]),
                (Decayed::Layers, [2.0, 1.0, 2.0]),
                (Decayed::All, [1.0, 1.0, 1.0]),
            ] {
                let config = OptimizerConfig { weight_decay: 0.5, decayed, ..default.clone() };
                let mut optimizer = Optimizer::new(config, &layout);
                let mut parameters = vec![2.0; 13];
                optimizer.update(&compute, &mut parameters, &[0.0; 13], (1.0, 1.0));
                let wanted =
                    [vec![embedding; 4], vec![layer; 2], vec![vectors; 3], vec![layer; 4]].concat();
                assert_eq!(parameters, wanted, "{kind:?} {decayed:?}");
            }
        }
    }

    #[test]
    fn muon_takes_the_matrices_of_hidden_layers_alone() {
        let muon = OptimizerConfig::default_of(OptimizerKind::Muon);
        let shapes = |tensors: &[(&str, &[usize])]| {
            let mut layout = ParameterLayout::new();
            for (name, shape) in tensors {
                layout.push(name, shape).unwrap();
            }
            let optimizer = Optimizer::new(muon.clone(), &layout);
            let (first, second, _) = optimizer.moments();
            let with_second: usize = optimizer.groups().iter().map(|g| g.second.len()).sum();
            assert_eq!((first.len(), second.len()), (layout.parameters(), with_second));
            let groups = optimizer.groups().iter().map(|group| (group.range.clone(), group.matrix));
            groups.collect::<Vec<_>>()
        };
        let convolution = [("convolution0.weight", &[4, 3, 3, 2][..]), ("convolution0.bias", &[4])];
        let output = [("output.weight", &[3, 4][..]), ("output.bias", &[3])];
        assert_eq!(
            shapes(&[convolution, output].concat()),
            [(0..72, Some((4, 18))), (72..76, None), (76..88, None), (88..91, None)]
        );
        let gpt = [
            ("token_embedding", &[5, 4][..]),
            ("position_embedding", &[3, 4]),
            ("block0.norm.gain", &[4]),
            ("block0.up.weight", &[8, 4]),
            ("block0.down.weight", &[4, 8]),
        ];
        assert_eq!(
            shapes(&gpt),
            [(0..32, None), (32..36, None), (36..68, Some((8, 4))), (68..100, Some((4, 8)))]
        );
        let untied = [gpt[0], gpt[3], ("final_norm.gain", &[4]), ("head.weight", &[5, 4])];
        assert_eq!(
            shapes(&untied),
            [(0..20, None), (20..52, Some((8, 4))), (52..56, None), (56..76, None)]
        );
        let adapters = [
            ("block0.query_key_value.c_attn.lora_A", &[2, 4][..]),
            ("block0.query_key_value.c_attn.lora_B", &[12, 2]),
        ];
        assert_eq!(shapes(&adapters), [(0..8, Some((2, 4))), (8..32, Some((12, 2)))]);
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
        copy.restore(optimizer.save()).unwrap();
        assert_eq!(copy.updates, optimizer.updates);
    }
}
