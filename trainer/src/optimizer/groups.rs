//! Which parameters an update treats alike.

use std::ops::Range;

use dnode_protocol::{ParameterLayout, TensorSpec};

use crate::config::{Decayed, OptimizerConfig, OptimizerKind};
use crate::model::adapter::is_of_adapter;

/// Parameters that follow each other and are updated alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where they lie in the flat vector.
    pub range: Range<usize>,
    /// Where their second moments lie in [`Optimizer::moments`](super::Optimizer::moments); empty where they have none.
    pub second: Range<usize>,
    /// Whether weight decay moves them.
    pub decayed: bool,
    /// Rows and columns, where the group is one matrix that Muon makes orthogonal.
    pub matrix: Option<(usize, usize)>,
}

/// The groups of a layout.
///
/// Muon makes a group of every tensor of two or more dimensions but embeddings and the output layer, which
/// it leaves to Adam as biases and gains are (Jordan et al. 2024); a kernel `[O, H, W, I]` is a matrix
/// `[O, H W I]`. Low-rank adapters are of hidden layers, all of them.
///
/// Each has one tensor.
pub(super) fn groups(config: &OptimizerConfig, layout: &ParameterLayout) -> Vec<Group> {
    let kind = config.kind;
    let is_matrix = |tensor: &TensorSpec| tensor.shape.len() > 1;
    let is_embedding = |tensor: &TensorSpec| tensor.name.ends_with("embedding");
    // A model with embeddings has its output layer in them, or under this name.
    let is_head = |tensor: &TensorSpec| tensor.name == "head.weight";
    let embeds = layout.tensors().iter().any(is_embedding);
    let adapts = layout.tensors().iter().any(|tensor| is_of_adapter(&tensor.name));
    let output = if adapts {
        None
    } else if embeds {
        layout.tensors().iter().position(is_head)
    } else {
        layout.tensors().iter().rposition(is_matrix)
    };
    let mut seconds = 0;
    let group = |(index, tensor): (usize, &TensorSpec)| {
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
        Group { range, second, decayed, matrix }
    };
    layout.tensors().iter().enumerate().map(group).collect()
}

/// Fewer groups of the same: those that follow each other and are no matrices become one.
pub(super) fn merged(groups: Vec<Group>) -> Vec<Group> {
    let mut fewer: Vec<Group> = Vec::new();
    for next in groups {
        match fewer.last_mut() {
            Some(group)
                if group.decayed == next.decayed
                    && group.matrix.is_none()
                    && next.matrix.is_none() =>
            {
                (group.range.end, group.second.end) = (next.range.end, next.second.end);
            }
            Some(_) | None => fewer.push(next),
        }
    }
    fewer
}
