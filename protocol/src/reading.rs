//! What one side of a peer asks the other to copy of a fragment, before it is sent.

use crate::frame::Codec;

/// What is to be copied of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The replica weights, for an exchange whose difference comes back in this code.
    Offer(Codec),
    /// The whole state of the fragment, for a joiner.
    Snapshot,
}
