//! What one side of a peer asks the other to copy of a fragment, before it is sent.

use crate::Origin;
use crate::frame::Codec;

/// What is to be copied of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The replica weights, for an exchange whose difference comes back in this code.
    Offer(Codec),
    /// What is pushed to this neighbour: the replica weights, or the running sum of the shares it
    /// was given.
    Push {
        /// The neighbour.
        to: Origin,
        /// How weights are coded, [`Codec::F32`] to [`Codec::Int8`]; push-sum has its own code.
        codec: Codec,
    },
    /// The whole state of the fragment, for a joiner.
    Snapshot,
}
