//! State transfer: joiners and laggards take over the neighbours' fragments, and donors give them.

mod donor;
mod joiner;
mod kept_snapshots;
mod pull;
mod takeover;

use dnode_protocol::{ExchangeId, PeerId, Time};

use crate::context::Context;
pub(crate) use donor::{Donor, Snapshot};
pub(crate) use joiner::{Joiner, Replaced};
pub(crate) use takeover::{BadReplica, Meeting};

/// The transfer of whole fragments, at both ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateTransfer {
    joiner: Joiner,
    donor: Donor,
}

impl StateTransfer {
    /// The end that takes fragments over.
    pub(crate) const fn joiner(&mut self) -> &mut Joiner {
        &mut self.joiner
    }

    /// Whether the own replica is none of the run's yet.
    pub(crate) const fn awaits_model(&self) -> bool {
        self.joiner.awaits()
    }

    /// The end that gives them.
    pub(crate) const fn donor(&mut self) -> &mut Donor {
        &mut self.donor
    }

    /// Whether `exchange` is a pull of this peer that has not ended.
    pub(crate) fn is_pull(&self, context: &Context, exchange: ExchangeId) -> bool {
        self.joiner.is_pull(context, exchange)
    }

    /// Whether `exchange` is a pull of a newcomer that waits or is being read.
    pub(crate) fn is_served(&self, exchange: &ExchangeId) -> bool {
        self.donor.contains(exchange)
    }

    /// Pulls of newcomers that wait or are being read.
    pub(crate) fn served(&self) -> usize {
        self.donor.open()
    }

    /// A neighbour is gone.
    pub(crate) fn lose(&mut self, context: &mut Context, peer: &PeerId) {
        self.donor.dismiss(peer);
        self.joiner.lose(context, peer);
    }

    /// When something of it expires next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.joiner.next_deadline()
    }
}
