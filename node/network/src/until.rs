//! Peers that are neither dialled nor let in for a while.

use std::collections::BTreeMap;

use dnode_protocol::PeerId;
use tokio::time::Instant;

use crate::limits::BLOCKED_PEERS_MAX;

/// Until when each peer is blocked; at most [`BLOCKED_PEERS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Blocklist(BTreeMap<PeerId, Instant>);

impl Blocklist {
    pub(crate) fn contains(&self, peer: PeerId) -> bool {
        self.0.contains_key(&peer)
    }

    /// Blocks `peer`. Returns the peer that is freed instead, when there is no room.
    pub(super) fn insert(&mut self, peer: PeerId, until: Instant) -> Option<PeerId> {
        let full = self.0.len() >= BLOCKED_PEERS_MAX;
        let soonest = self.0.iter().min_by_key(|(_, at)| **at).map(|(peer, _)| *peer);
        let freed = soonest.filter(|_| full);
        if let Some(freed) = &freed {
            self.0.remove(freed);
        }
        self.0.insert(peer, until);
        freed
    }

    /// Takes out the peers whose block has ended.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<PeerId> {
        self.0.extract_if(.., |_, until| *until <= now).map(|(peer, _)| peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_is_free_soonest_makes_room_for_another() {
        let now = Instant::now();
        let peer = |number: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            PeerId::from_public_key(key)
        };
        let at = |number: usize| now + Duration::from_secs(1 + number as u64);
        let mut blocked = Blocklist::default();
        for number in 0..BLOCKED_PEERS_MAX {
            assert_eq!(blocked.insert(peer(number), at(number)), None);
        }
        assert_eq!(blocked.insert(peer(BLOCKED_PEERS_MAX), at(9)), Some(peer(0)));
        assert!(!blocked.contains(peer(0)) && blocked.contains(peer(1)));
        assert_eq!(blocked.expire(at(1)), [peer(1)]);
        assert!(!blocked.contains(peer(1)));
    }
}
