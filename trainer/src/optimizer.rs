//! Update rules as pure functions of parameters, gradient, state and learning rate.

mod elementwise;
pub mod muon;

use std::ops::Range;

use dnode_protocol::{ParameterLayout, TensorSpec};

use crate::config::{Decayed, OptimizerConfig, OptimizerKind};
use crate::kernel::Compute;
use crate::seam::{StateTensor, TrainError};
use elementwise::{AdamwRule, SgdRule, adamw, sgd};
pub use elementwise::{rectification, update_max};
use muon::{MuonRule, muon};

/// Numbers below this are exact in `f32`; the update count is saved as two such digits.
const COUNT_DIGIT: u64 = 1 << 24;

/// Parameters that a thread updates at once: fewer are not worth waking it for (guess).
const UPDATED_AT_ONCE: usize = 1 << 18;

/// Parameters that follow each other and are updated alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where they lie in the flat vector.
    pub range: Range<usize>,
    /// Where their second moments lie in [`Optimizer::moments`]; empty where they have none.
    pub second: Range<usize>,
    /// Whether weight decay moves them.
    pub decayed: bool,
    /// Rows and columns, where the group is one matrix that Muon makes orthogonal.
    pub matrix: Option<(usize, usize)>,
}

/// An update rule with its moments.
#[derive(Clone, Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    groups: Vec<Group>,
    /// `[P]`: momentum, or Adam's first moment.
    first: Vec<f32>,
    /// Adam's second moment, of the groups that have one.
    second: Vec<f32>,
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

/// Which rule an update follows.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Sgd(SgdRule),
    Adamw(AdamwRule),
    Muon(MuonRule),
}

/// A part of an update; all slices have one length, but for second moments that the rule has not.
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
            Rule::Muon(rule) => muon(parameters, gradient, first, rule),
        }
    }
}

/// The groups of a layout.
///
/// Muon makes a group of every tensor of two or more dimensions but embeddings and the output layer, which
/// it leaves to Adam as biases and gains are (Jordan et al. 2024); a kernel `[O, H, W, I]` is a matrix
/// `[O, H W I]`.
fn groups(config: &OptimizerConfig, layout: &ParameterLayout) -> Vec<Group> {
    let kind = config.kind;
    let is_matrix = |tensor: &TensorSpec| tensor.shape.len() > 1;
    let is_embedding = |tensor: &TensorSpec| tensor.name.ends_with("embedding");
    // A model with embeddings has its output layer in them, or under this name.
    let is_head = |tensor: &TensorSpec| tensor.name == "head.weight";
    let embeds = layout.tensors().iter().any(is_embedding);
    let output = if embeds {
        layout.tensors().iter().position(is_head)
    } else {
        layout.tensors().iter().rposition(is_matrix)
    };
    let mut groups: Vec<Group> = Vec::new();
    let mut seconds = 0;
    for (index, tensor) in layout.tensors().iter().enumerate() {
        let range = tensor.range();
        let layer = is_matrix(tensor) && !is_embedding(tensor);
        let hidden = layer && output != Some(index);
        let decayed = match config.decayed {
            Decayed::Matrices => is_matrix(tensor),
            Decayed::Layers => layer,
            Decayed::All => true,
        };
        let matrix = (kind == OptimizerKind::Muon && hidden).then(|| {
            let rows = tensor.shape.first().copied().unwrap_or(1).max(1);
            (rows, range.len() / rows)
        });
        let has_second = kind != OptimizerKind::Sgd && matrix.is_none();
        let second = seconds..seconds + if has_second { range.len() } else { 0 };
        seconds = second.end;
        match groups.last_mut() {
            Some(group)
                if group.decayed == decayed && group.matrix.is_none() && matrix.is_none() =>
            {
                (group.range.end, group.second.end) = (range.end, second.end);
            }
            Some(_) | None => groups.push(Group { range, second, decayed, matrix }),
        }
    }
    groups
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
    #[must_use]
    pub fn new(config: OptimizerConfig, layout: &ParameterLayout) -> Self {
        let groups = groups(&config, layout);
        let second = groups.last().map_or(0, |group| group.second.end);
        Self {
            config,
            groups,
            first: vec![0.0; layout.parameters()],
            second: vec![0.0; second],
            updates: 0,
            shared: false,
        }
    }

    /// Numbers that it holds for parameters of a layout, and that an update on so many threads needs for a
    /// while.
    pub(crate) fn numbers(
        config: &OptimizerConfig,
        layout: &ParameterLayout,
        threads: usize,
    ) -> usize {
        let groups = groups(config, layout);
        let second = groups.last().map_or(0, |group| group.second.end);
        let matrices = groups.iter().filter_map(|group| group.matrix);
        let mut work: Vec<usize> = matrices.map(muon::numbers).collect();
        work.sort_unstable_by(|a, b| b.cmp(a));
        // Each thread works on one matrix at a time.
        layout.parameters() + second + work.iter().take(threads).sum::<usize>()
    }

    /// The parts of the flat parameters that are updated alike, in order and without gaps.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Momentum or Adam's first moment `[P]`, its second moment (of the groups that have one, one
    /// after the other), and the number of updates they have seen.
    #[must_use]
    pub fn moments(&self) -> (&[f32], &[f32], u64) {
        (&self.first, &self.second, self.updates)
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

    /// The first moments of the parameters of `range`.
    ///
    /// # Panics
    /// When the range is not within the parameters.
    pub fn first_mut(&mut self, range: Range<usize>) -> &mut [f32] {
        &mut self.first[range]
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
        let Self { config, groups, first, second, updates, shared } = self;
        let (mut first, mut second) = (first.as_mut_slice(), second.as_mut_slice());
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
                    first: split_off(&mut first, length),
                    second: split_off(&mut second, seconds),
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
            OptimizerKind::Muon => &["muon.momentum", "muon.second_moment", "muon.updates"],
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
            OptimizerKind::Adamw | OptimizerKind::Muon => {
                vec![self.first.clone(), self.second.clone(), digits]
            }
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
            OptimizerKind::Adamw | OptimizerKind::Muon => {
                vec![self.first.len(), self.second.len(), 2]
            }
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
                "sgd.momentum" | "adamw.first_moment" | "muon.momentum" => self.first = values,
                "adamw.second_moment" | "muon.second_moment" => self.second = values,
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

    #[test]
    fn pieces_and_threads_change_no_bit() {
        let mut layout = ParameterLayout::new();
        layout.push("weight", &[UPDATED_AT_ONCE, 3]).unwrap();
        layout.push("bias", &[1000]).unwrap();
        let count = layout.parameters();
        let gradient: Vec<f32> = (0..count).map(|i| (i % 101) as f32 / 101.0 - 0.4).collect();
        for kind in [OptimizerKind::Sgd, OptimizerKind::Adamw, OptimizerKind::Muon] {
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
                optimizer.update(&mut parameters, &[0.0; 13], 1.0, 1.0);
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
