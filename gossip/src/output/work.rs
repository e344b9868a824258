//! Work: what the trainer has to do on the replica, and answer.

use dnode_protocol::frame::Codec;
use dnode_protocol::{Clock, ContentHash, ExchangeId, FragmentId, Information, Versions};

use crate::{ContributionId, Reading, Role, Tolerance};

/// A piece of work on one fragment of the replica, done between two local steps, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Copy of the fragment what is asked for and keep it under the exchange.
    Read {
        /// The exchange.
        exchange: ExchangeId,
        /// The fragment.
        fragment: FragmentId,
        /// What to copy.
        what: Reading,
    },
    /// Mix what arrived. A responder keeps the difference `d` under the exchange.
    Mix {
        /// The exchange.
        exchange: ExchangeId,
        /// The fragment.
        fragment: FragmentId,
        /// Which end this is.
        role: Role,
        /// Mixing weight `w` of this end, in `(0, 1)`.
        weight: f32,
        /// The code of the difference, for the responder to encode it.
        codec: Codec,
        /// Apply only while the own clock is at most this (bound B2).
        clock_max: Clock,
        /// Refuse, as [`crate::RefusedMix::Outlier`], what is further away.
        tolerance: Tolerance,
    },
    /// Add the contribution that arrived under the exchange and keep it as this contribution.
    /// Answered by [`crate::Input::Mixed`] or [`crate::Input::MixRefused`].
    Include {
        /// The exchange.
        exchange: ExchangeId,
        /// The contribution.
        contribution: ContributionId,
    },
    /// Take back what this responder applied: `+w·d` from the kept difference.
    Undo {
        /// The exchange.
        exchange: ExchangeId,
        /// The fragment.
        fragment: FragmentId,
        /// The weight it was applied with.
        weight: f32,
    },
    /// Replace the fragment by the snapshot that arrived, with outer momentum zero, if its bytes have
    /// this hash. Answered by [`crate::Input::Adopted`] or [`crate::Input::MixRefused`].
    Adopt {
        /// The exchange.
        exchange: ExchangeId,
        /// The fragment.
        fragment: FragmentId,
        /// What the donor has said of the snapshot, its hash above all.
        contents: SnapshotContents,
    },
    /// The same with a snapshot that was taken over in an earlier life of this peer, and kept.
    Recall {
        /// The exchange.
        exchange: ExchangeId,
        /// The fragment.
        fragment: FragmentId,
        /// What its donor had said of it.
        contents: SnapshotContents,
    },
}

impl Work {
    /// The exchange it belongs to.
    #[must_use]
    pub const fn exchange(&self) -> ExchangeId {
        match self {
            Self::Read { exchange, .. }
            | Self::Mix { exchange, .. }
            | Self::Include { exchange, .. }
            | Self::Undo { exchange, .. }
            | Self::Adopt { exchange, .. }
            | Self::Recall { exchange, .. } => *exchange,
        }
    }

    /// The fragment it works on.
    #[must_use]
    pub const fn fragment(&self) -> FragmentId {
        match self {
            Self::Read { fragment, .. }
            | Self::Mix { fragment, .. }
            | Self::Undo { fragment, .. }
            | Self::Adopt { fragment, .. }
            | Self::Recall { fragment, .. } => *fragment,
            Self::Include { contribution, .. } => contribution.fragment,
        }
    }
}

/// What a donor says of a snapshot before it sends the numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotContents {
    /// Its clock when it read them.
    pub clock: Clock,
    /// Of their bytes.
    pub hash: ContentHash,
    /// The newest commits that they contain.
    pub information: Information,
    /// The contributions that they contain; empty but for sums of contributions.
    pub versions: Versions,
}
