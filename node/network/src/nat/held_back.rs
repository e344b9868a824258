//! Peers that a behaviour must not dial for a while, whoever tells it of them.

use std::collections::{BTreeMap, VecDeque};

use libp2p::PeerId;
use libp2p::swarm::dial_opts::DialOpts;
use tokio::time::Instant;

use crate::limits::KNOWN_PEERS_MAX;

/// Until when each peer is not dialled; at most [`KNOWN_PEERS_MAX`] of them.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    until: BTreeMap<PeerId, Instant>,
    /// Dials that pass.
    passing: VecDeque<DialOpts>,
}

impl HeldBack {
    /// Has `peer` not dialled before `until`. Where there are too many, the one that is free soonest is free now.
    pub(super) fn hold(&mut self, peer: PeerId, until: Instant) {
        if self.until.len() >= KNOWN_PEERS_MAX
            && let Some(soonest) = self.until.iter().min_by_key(|(_, at)| **at)
        {
            let soonest = *soonest.0;
            self.until.remove(&soonest);
        }
        self.until.insert(peer, until);
    }

    /// Takes a dial; returns it when it must not be made.
    pub(super) fn ask(&mut self, dial: DialOpts, now: Instant) -> Option<DialOpts> {
        self.until.retain(|_, until| *until > now);
        if dial.get_peer_id().is_some_and(|peer| self.until.contains_key(&peer)) {
            return Some(dial);
        }
        self.passing.push_back(dial);
        None
    }

    /// The next dial that passes.
    pub(super) fn next(&mut self) -> Option<DialOpts> {
        self.passing.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_peer_is_dialled_again_when_its_time_has_come() {
        let (now, mut held) = (Instant::now(), HeldBack::default());
        let (one, other) = (PeerId::random(), PeerId::random());
        held.hold(one, now + Duration::from_secs(10));
        let dial = |peer: PeerId| DialOpts::peer_id(peer).build();
        assert!(held.ask(dial(one), now).is_some() && held.next().is_none());
        assert!(held.ask(dial(other), now).is_none());
        assert_eq!(held.next().and_then(|dial| dial.get_peer_id()), Some(other));
        assert!(held.ask(dial(one), now + Duration::from_secs(10)).is_none());
        assert!(held.next().is_some());
    }

    #[tokio::test]
    async fn memory_of_them_is_bounded() {
        let (now, mut held) = (Instant::now(), HeldBack::default());
        for number in 0..2 * KNOWN_PEERS_MAX as u64 {
            held.hold(PeerId::random(), now + Duration::from_secs(number));
        }
        assert_eq!(held.until.len(), KNOWN_PEERS_MAX);
    }
}
