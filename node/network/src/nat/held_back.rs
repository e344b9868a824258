//! Peers that a behaviour must not dial for a while, whoever tells it of them.

use std::collections::VecDeque;

use libp2p::PeerId;
use libp2p::swarm::dial_opts::DialOpts;
use tokio::time::Instant;

use crate::limits::KNOWN_PEERS_MAX;
use crate::until::Until;

/// Until when each peer is not dialled.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    until: Until<PeerId, KNOWN_PEERS_MAX>,
    /// Dials that pass.
    passing: VecDeque<DialOpts>,
}

impl HeldBack {
    /// Has `peer` not dialled before `until`. Where there are too many, the one that is free soonest is free now.
    pub(super) fn hold(&mut self, peer: PeerId, until: Instant) {
        self.until.hold(peer, until);
    }

    /// Takes a dial; returns it when it must not be made.
    pub(super) fn ask(&mut self, dial: DialOpts, now: Instant) -> Option<DialOpts> {
        self.until.release(now);
        if dial.get_peer_id().is_some_and(|peer| self.until.contains(&peer)) {
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
}
