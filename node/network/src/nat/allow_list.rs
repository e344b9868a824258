//! The peers to which holes may be punched: those that have greeted, each a few times.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use libp2p::swarm::ConnectionId;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::{Multiaddr, PeerId};

use crate::limits::{HELD_DIALS_MAX, PERMITTED_MAX, PUNCH_ADDRESSES_MAX, PUNCHES_PER_CIRCUIT_MAX};

/// The peers that may be dialled, and the dials that wait for permission.
#[derive(Debug, Default)]
pub(crate) struct PunchAllowList {
    permitted: BTreeSet<PeerId>,
    held: VecDeque<DialOpts>,
    running: BTreeSet<ConnectionId>,
    /// How many messages of the other end of each circuit were accepted.
    heard: BTreeMap<ConnectionId, u32>,
}

impl PunchAllowList {
    /// Permits dials to `peer` from now on.
    pub(crate) fn permit(&mut self, peer: PeerId) {
        if self.permitted.len() < PERMITTED_MAX {
            self.permitted.insert(peer);
        }
    }

    /// Permits no dials to `peer` any more; those that wait for the permission are given up.
    pub(crate) fn forbid(&mut self, peer: PeerId) {
        self.permitted.remove(&peer);
        self.held.retain(|dial| dial.get_peer_id() != Some(peer));
    }

    fn may(&self, dial: &DialOpts) -> bool {
        dial.get_peer_id().is_some_and(|peer| self.permitted.contains(&peer))
    }

    /// Queues a dial. When there is no room, gives up a dial that is not permitted yet, and returns it.
    pub(crate) fn ask(&mut self, dial: DialOpts) -> Option<DialOpts> {
        self.held.push_back(dial);
        if self.held.len() <= HELD_DIALS_MAX {
            return None;
        }
        let index = self.held.iter().rposition(|dial| !self.may(dial))?;
        self.held.remove(index)
    }

    /// The next dial that may run.
    pub(crate) fn next(&mut self) -> Option<DialOpts> {
        let index = self.held.iter().position(|dial| self.may(dial))?;
        let dial = self.held.remove(index)?;
        self.running.insert(dial.connection_id());
        Some(dial)
    }

    /// Whether the dial `connection` may go to `addresses`. A dial that is not from this list may.
    pub(crate) fn allows(&self, connection: ConnectionId, addresses: &[Multiaddr]) -> bool {
        !self.running.contains(&connection) || addresses.len() <= PUNCH_ADDRESSES_MAX
    }

    /// Notes that the dial `connection` led to a peer or failed.
    pub(crate) fn ended(&mut self, connection: ConnectionId) {
        self.running.remove(&connection);
    }

    /// Whether to accept one more message from the other end of a circuit: as many as a peer that keeps
    /// the protocol sends.
    pub(crate) fn hears(&mut self, circuit: ConnectionId) -> bool {
        let heard = self.heard.entry(circuit).or_default();
        *heard = heard.saturating_add(1);
        *heard <= PUNCHES_PER_CIRCUIT_MAX
    }

    /// Notes that a connection closed.
    pub(crate) fn went(&mut self, circuit: ConnectionId) {
        self.heard.remove(&circuit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_wait_keep_nobody_from_his_dial() {
        let (mut list, permitted) = (PunchAllowList::default(), PeerId::random());
        list.permit(permitted);
        let dial = |peer| DialOpts::peer_id(peer).build();
        let waits = |_: &i32| list.ask(dial(PeerId::random())).is_none();
        assert_eq!((0..).take_while(waits).count(), HELD_DIALS_MAX);
        assert_ne!(list.ask(dial(permitted)).unwrap().get_peer_id(), Some(permitted));
        assert_eq!(list.next().unwrap().get_peer_id(), Some(permitted));
        assert!(list.next().is_none());
    }

    #[test]
    fn one_circuit_is_heard_a_few_times() {
        let mut list = PunchAllowList::default();
        for number in 0..9 {
            let circuit = ConnectionId::new_unchecked(number);
            let heard = (0..99).filter(|_| list.hears(circuit)).count();
            assert_eq!(heard, PUNCHES_PER_CIRCUIT_MAX as usize);
            list.went(circuit);
        }
        assert!(list.heard.is_empty());
    }
}
