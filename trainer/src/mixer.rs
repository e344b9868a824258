//! How replicas are mixed: one file per mixer, with its paper, its equation and its caveats.
//!
//! | mixer | what crosses the network | what it keeps |
//! |---|---|---|
//! | [`Mixer::Exchange`] | an offer, and one coded difference for both ends | the sum of the replicas |
//! | [`Mixer::DeltaSet`] | coded commits, to everybody | equal sets give equal bits |
//! | [`Mixer::None`] | nothing here; all-reduce averages gradients or progress | |

mod delta_set;
mod exchange;
mod fixed;

use std::ops::Range;

pub use dnode_protocol::Reading;
use dnode_protocol::frame::Codec;

pub(crate) use self::delta_set::{DeltaSet, read as read_accumulators};
#[cfg(test)]
pub(crate) use self::exchange::learnt;
pub(crate) use self::exchange::{DeviceMemory, Exchange, FragmentMemory, HostMemory, Learning};

/// How a replica meets others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mixer {
    /// Not at all, or by an all-reduce of gradients or progress.
    None,
    /// Pairs of peers move by one coded difference (rules `gossip-outer` and `pairwise`).
    #[default]
    Exchange,
    /// Every commit is told to every peer and added there.
    DeltaSet {
        /// How a commit is coded, [`Codec::F32`] to [`Codec::TopK`].
        codec: Codec,
        /// Whether what the code loses is added to the next commit.
        feedback: bool,
    },
}

/// A fragment and where it lies in the flat vector.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    pub(crate) index: usize,
    pub(crate) range: Range<usize>,
}

/// The state that a mixer keeps.
pub(crate) enum MixerState {
    None,
    Exchange(Exchange, HostMemory),
    DeltaSet(DeltaSet),
}

#[cfg(test)]
mod tests;
