//! Two processes with one identity, which a copied data directory or machine makes: who they are, as
//! pure code.
//!
//! The two themselves meet when one dials the other: libp2p refuses a connection to one's own key at
//! both ends. A third peer meets both: the start of the process that its hello names goes back.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::PeerId;
use libp2p::Multiaddr;
use libp2p::swarm::ConnectionId;
use tokio::time::Instant;

use crate::limits::KNOWN_PEERS_MAX;

/// What a peer refuses that has the identity of another process, as the name of the field.
pub const IDENTITY: &str = "identity";
/// What a peer tells the process that it keeps, in the same message: nothing is refused.
pub(crate) const COPY: &str = "identity.copy";
/// A process that reaches itself, by an address that it does not know of, dials and is dialled within this.
const PAIRED: Duration = Duration::from_secs(2);
/// How long the newest start of a peer counts after it was seen.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Connections that are being told at a time.
const TELLING_MAX: usize = 64;
/// How long that may take.
const TELLING: Duration = Duration::from_secs(2);

/// What was met of one's own key, and of others' keys twice.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Our key has answered there.
    answered: Option<(Instant, Multiaddr)>,
    /// Our key has dialled from there.
    came: Option<(Instant, Multiaddr)>,
    /// The newest start of peers that have started anew; at most [`KNOWN_PEERS_MAX`].
    newest: BTreeMap<PeerId, (u64, Instant)>,
    /// Connections of refused copies and when they close; at most [`TELLING_MAX`].
    telling: BTreeMap<ConnectionId, Instant>,
}

impl Copies {
    /// A dial has led to our own key.
    pub(crate) fn answered(&mut self, address: Multiaddr, now: Instant) {
        self.answered.get_or_insert((now, address));
    }

    /// Our own key has dialled us.
    pub(crate) fn came(&mut self, address: Multiaddr, now: Instant) {
        self.came.get_or_insert((now, address));
    }

    /// How another process with our key was met, if it was.
    pub(crate) fn met(&mut self, now: Instant) -> Option<String> {
        if let (Some((answered, _)), Some((came, _))) = (&self.answered, &self.came) {
            let apart = answered.max(came).duration_since(*answered.min(came));
            if apart < PAIRED {
                (self.answered, self.came) = (None, None);
                return None;
            }
        }
        let old = |it: &mut (Instant, Multiaddr)| now.duration_since(it.0) >= PAIRED;
        if let Some((_, address)) = self.answered.take_if(old) {
            return Some(format!("it answers at {address}"));
        }
        self.came.take_if(old).map(|(_, address)| format!("it has dialled from {address}"))
    }

    /// A peer has started anew, or a second process with its identity has come.
    pub(crate) fn restarted(&mut self, peer: PeerId, incarnation: u64, now: Instant) {
        self.newest.retain(|_, (_, seen)| now.duration_since(*seen) < REMEMBERED);
        if self.newest.len() < KNOWN_PEERS_MAX || self.newest.contains_key(&peer) {
            self.newest.insert(peer, (incarnation, now));
        }
    }

    /// The newest start of `peer`, where it is newer than this one.
    pub(crate) fn newer(&self, peer: PeerId, incarnation: u64, now: Instant) -> Option<u64> {
        let (newest, seen) = *self.newest.get(&peer)?;
        (newest > incarnation && now.duration_since(seen) < REMEMBERED).then_some(newest)
    }

    /// Whether the other end of `connection` is to be told now that it is a copy.
    pub(crate) fn tell(&mut self, connection: ConnectionId, now: Instant) -> bool {
        let room = self.telling.len() < TELLING_MAX && !self.telling.contains_key(&connection);
        if room {
            self.telling.insert(connection, now + TELLING);
        }
        room
    }

    pub(crate) fn is_telling(&self, connection: ConnectionId) -> bool {
        self.telling.contains_key(&connection)
    }

    /// Connections that have been told.
    pub(crate) fn told(&mut self, now: Instant) -> Vec<ConnectionId> {
        let due: Vec<_> =
            self.telling.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        due.iter().for_each(|connection| {
            self.telling.remove(connection);
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Multiaddr {
        "/ip4/192.0.2.7/udp/1/quic-v1".parse().unwrap()
    }

    #[tokio::test]
    async fn a_copy_is_met_at_both_ends_and_a_process_that_reaches_itself_is_none() {
        let now = Instant::now();
        let mut copies = Copies::default();
        copies.answered(address(), now);
        assert_eq!(copies.met(now + PAIRED / 2), None);
        let met = copies.met(now + PAIRED).unwrap();
        assert_eq!(met, "it answers at /ip4/192.0.2.7/udp/1/quic-v1");
        assert_eq!(copies.met(now + PAIRED * 2), None);
        copies.came(address(), now);
        assert!(copies.met(now + PAIRED).unwrap().starts_with("it has dialled from /ip4"));
        copies.answered(address(), now);
        copies.came(address(), now + PAIRED / 2);
        assert_eq!(copies.met(now + PAIRED / 2), None);
        assert_eq!(copies.met(now + PAIRED * 9), None);
    }

    #[tokio::test]
    async fn an_older_start_is_a_copy_for_a_while_and_a_newer_one_never() {
        let now = Instant::now();
        let peer = PeerId::from_public_key([1; 32]);
        let mut copies = Copies::default();
        assert_eq!(copies.newer(peer, 1, now), None);
        copies.restarted(peer, 5, now);
        assert_eq!(copies.newer(peer, 4, now), Some(5));
        assert_eq!((copies.newer(peer, 5, now), copies.newer(peer, 6, now)), (None, None));
        assert_eq!(copies.newer(peer, 4, now + REMEMBERED), None);
    }

    #[tokio::test]
    async fn what_is_remembered_is_bounded() {
        let now = Instant::now();
        let mut copies = Copies::default();
        for number in 0..=u16::MAX {
            let mut key = [0; 32];
            key[..2].copy_from_slice(&number.to_le_bytes());
            copies.restarted(PeerId::from_public_key(key), 1, now);
            let connection = ConnectionId::new_unchecked(usize::from(number));
            assert_eq!(copies.tell(connection, now), usize::from(number) < TELLING_MAX);
        }
        assert_eq!(copies.newest.len(), KNOWN_PEERS_MAX);
        assert!(copies.told(now).is_empty());
        assert_eq!(copies.told(now + TELLING).len(), TELLING_MAX);
    }
}
