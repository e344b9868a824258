//! What properties see of a world.

use dnode_gossip::Config;
use dnode_gossip::testing::Host;
use dnode_protocol::{Clock, Time};

use super::journal::Journal;
use super::ledger::Ledger;
use super::network::Network;
use super::peer::SimPeer;
use crate::scenario::Scenario;

/// Everything a property may look at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Virtual time.
    pub now: Time,
    /// Events so far.
    pub events: u64,
    /// The scenario.
    pub scenario: &'a Scenario,
    /// The gossip configuration of every peer.
    pub config: &'a Config,
    /// All peers, by index.
    pub peers: &'a [SimPeer],
    /// What happened to the exchanges.
    pub journal: &'a Journal,
    /// What the world has seen of them.
    pub ledger: &'a Ledger,
    pub(super) network: &'a Network,
}

impl View<'_> {
    /// The host of a peer, if it lives.
    #[must_use]
    pub fn host(&self, peer: u32) -> Option<&Host> {
        self.peers.get(peer as usize)?.host()
    }

    /// What the numbers of `peer` weigh against those of others.
    #[must_use]
    pub fn mass(&self, peer: u32) -> f64 {
        f64::from(self.peers[peer as usize].trainer().batch())
    }

    /// The newest clock of `other` that has reached `peer` on their connection.
    #[must_use]
    pub fn heard(&self, peer: u32, other: u32) -> Option<Clock> {
        self.network.heard(peer, other)
    }

    /// Indices of the peers that `peer` wants to be connected to.
    pub fn neighbours(&self, peer: u32) -> impl ExactSizeIterator<Item = u32> {
        self.network.neighbours(peer)
    }

    /// All living hosts with their indices.
    pub fn hosts(&self) -> impl Iterator<Item = (u32, &Host)> {
        (0..).zip(self.peers).filter_map(|(index, peer)| Some((index, peer.host()?)))
    }
}
