//! Detects two processes with one identity, which a copied data directory or machine makes. This is pure
//! code.
//!
//! The two processes meet when one dials the other: libp2p refuses, at both ends, a connection to one's
//! own key. A third peer may meet both: one hello names an older start than one that the peer knows, and
//! the process that sent it is alive.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::frame::encode_control;
use dnode_protocol::{Message, PeerId, RunDifference};
use libp2p::Multiaddr;
use libp2p::swarm::ConnectionId;
use tokio::time::Instant;

use crate::limits::KNOWN_PEERS_MAX;

/// Name of the field in which a peer differs that is refused because another process has its identity.
pub const IDENTITY: &str = "identity";
/// Name of the field, in the same kind of message, by which a process learns that another was refused;
/// it is not refused itself.
pub(crate) const COPY: &str = "identity.copy";
/// A process that dials itself, by an address that it does not know as its own, sees both ends of the
/// connection within this time.
const PAIRED: Duration = Duration::from_secs(2);
/// How long the newest start of a peer counts after it was seen.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Most connections that are being told at a time.
const TELLING_MAX: usize = 64;
/// How long it may take to tell one.
const TELLING: Duration = Duration::from_secs(2);

/// The newest start of a peer.
#[derive(Clone, Copy, Debug)]
struct Newest {
    incarnation: u64,
    seen: Instant,
    /// The older start that was refused, until the newest one is told of it.
    refused: Option<u64>,
}

/// Where this process has met its own key, and which peers have two processes.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// When and where a process with our key has answered a dial.
    answered: Option<(Instant, Multiaddr)>,
    /// When and from where a process with our key has dialled us.
    came: Option<(Instant, Multiaddr)>,
    /// Peers that have started anew; at most [`KNOWN_PEERS_MAX`].
    newest: BTreeMap<PeerId, Newest>,
    /// Connections of refused copies, when each closes, and to which start it leads; at most
    /// [`TELLING_MAX`].
    telling: BTreeMap<ConnectionId, (Instant, u64)>,
}

impl Copies {
    /// Notes that a dial has led to our own key.
    pub(crate) fn answered(&mut self, address: Multiaddr, now: Instant) {
        self.answered.get_or_insert((now, address));
    }

    /// Notes that our own key has dialled us.
    pub(crate) fn came(&mut self, address: Multiaddr, now: Instant) {
        self.came.get_or_insert((now, address));
    }

    /// Says how another process with our key was met, if one was.
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

    /// Notes that a peer has started anew, or that a second process with its identity has come.
    pub(crate) fn restarted(&mut self, peer: PeerId, incarnation: u64, now: Instant) {
        self.newest.retain(|_, newest| now.duration_since(newest.seen) < REMEMBERED);
        if self.newest.len() < KNOWN_PEERS_MAX || self.newest.contains_key(&peer) {
            self.newest.insert(peer, Newest { incarnation, seen: now, refused: None });
        }
    }

    /// The newest start of `peer`, if it is newer than `incarnation`, which is refused in that case.
    pub(crate) fn newer(&mut self, peer: PeerId, incarnation: u64, now: Instant) -> Option<u64> {
        let newest = self.newest.get_mut(&peer)?;
        let newer = newest.incarnation > incarnation;
        if !newer || now.duration_since(newest.seen) >= REMEMBERED {
            return None;
        }
        newest.refused = Some(incarnation);
        Some(newest.incarnation)
    }

    /// The older start that was refused while this one was not connected. Returns it once.
    pub(crate) fn refused(&mut self, peer: PeerId, incarnation: u64) -> Option<u64> {
        let newest = self.newest.get_mut(&peer)?;
        if newest.incarnation == incarnation { newest.refused.take() } else { None }
    }

    /// Whether the other end of `connection`, an older start, is to be told now that it is a copy.
    pub(crate) fn tell(&mut self, connection: ConnectionId, older: u64, now: Instant) -> bool {
        let room = self.telling.len() < TELLING_MAX && !self.telling.contains_key(&connection);
        if room {
            self.telling.insert(connection, (now + TELLING, older));
        }
        room
    }

    /// The older start at the other end of a connection, if that is being told.
    pub(crate) fn telling(&self, connection: ConnectionId) -> Option<u64> {
        self.telling.get(&connection).map(|(_, older)| *older)
    }

    /// Takes the connections whose time to be told is over.
    pub(crate) fn told(&mut self, now: Instant) -> Vec<ConnectionId> {
        let due: Vec<_> =
            self.telling.iter().filter(|(_, (at, _))| *at <= now).map(|(id, _)| *id).collect();
        due.iter().for_each(|connection| {
            self.telling.remove(connection);
        });
        due
    }
}

/// The difference between two processes of one identity, seen from the one that is refused by `field`.
pub(crate) fn difference(field: &str, refused: u64, kept: u64) -> RunDifference {
    let name = |start: u64| format!("of start {start:x}");
    RunDifference { field: field.to_owned(), ours: name(kept), theirs: name(refused) }
}

/// That difference as a message.
pub(crate) fn words(field: &str, refused: u64, kept: u64) -> Option<Vec<u8>> {
    let RunDifference { field, ours, theirs } = difference(field, refused, kept);
    encode_control(&Message::Refuse { field, ours, theirs }).ok()
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
        assert_eq!((copies.refused(peer, 4), copies.refused(peer, 5)), (None, Some(4)));
        assert_eq!(copies.refused(peer, 5), None);
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
            assert_eq!(copies.tell(connection, 1, now), usize::from(number) < TELLING_MAX);
        }
        assert_eq!(copies.newest.len(), KNOWN_PEERS_MAX);
        assert!(copies.told(now).is_empty());
        assert_eq!(copies.told(now + TELLING).len(), TELLING_MAX);
    }
}
