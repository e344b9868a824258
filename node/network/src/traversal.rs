//! What is known of NATs: how each connection came to be, where this peer stands, and who relays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dnode_protocol::PeerId;
use libp2p::core::ConnectedPoint;
use libp2p::relay::HOP_PROTOCOL_NAME;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, identify};
use tokio::time::{Duration, Instant};

use crate::candidates::candidates;
use crate::config::RelayMode;
use crate::limits::{CANDIDATES_PER_CONNECTION_MAX, CIRCUIT_BYTES, PROOF_MAX, RELAYED_LINGER};
use crate::rate::Rate;
use crate::reachability::{Proof, Reachability, Standing};
use crate::relays::{Relays, rate, relay_of};
use crate::streams::{Path, far_end, is_proof};

/// How one connection came to be.
#[derive(Debug)]
struct Way {
    peer: libp2p::PeerId,
    address: Multiaddr,
    path: Path,
    /// This peer opened it.
    ours: bool,
    /// This peer opened it to prove that the other one can be dialled; from a port of its own.
    proof: bool,
    since: Instant,
    /// Addresses that this peer may have, as the other end names them.
    named: Vec<Multiaddr>,
    /// Streams may move to it: it is no passing proof that this peer can be dialled.
    stays: bool,
}

/// What this peer knows of NATs, its own and others'.
#[derive(Debug)]
pub(crate) struct Traversal {
    pub(crate) wanted: bool,
    pub(crate) mode: RelayMode,
    ways: BTreeMap<ConnectionId, Way>,
    pub(crate) reachability: Reachability,
    pub(crate) relays: Relays,
    pub(crate) standing: Standing,
    /// Whether this peer relays, where nobody says that it must or must not.
    pub(crate) relaying: bool,
    /// Peers of which it was said that no direct path leads to them.
    pub(crate) told: BTreeSet<PeerId>,
}

impl Traversal {
    pub(crate) fn new(me: libp2p::PeerId, config: &crate::config::NatConfig) -> Self {
        Self {
            wanted: config.traverse,
            mode: config.relay,
            ways: BTreeMap::new(),
            reachability: Reachability::default(),
            relays: Relays::new(me),
            standing: Standing::Unknown,
            relaying: false,
            told: BTreeSet::new(),
        }
    }

    /// The user says that others can dial this peer at `address`.
    pub(crate) fn told_external(&mut self, address: &Multiaddr) {
        self.reachability.proven(address, Proof::Shown);
    }

    /// A connection is there.
    pub(crate) fn opened(
        &mut self,
        connection: ConnectionId,
        peer: libp2p::PeerId,
        endpoint: &ConnectedPoint,
    ) {
        let address = far_end(endpoint, peer);
        let (ours, proof) = (endpoint.is_dialer(), is_proof(endpoint));
        let path = Path::of(&address);
        let (since, named) = (Instant::now(), Vec::new());
        let way = Way { peer, address, path, ours, proof, since, named, stays: ours };
        self.ways.insert(connection, way);
    }

    /// A connection is gone.
    pub(crate) fn closed(&mut self, connection: ConnectionId) {
        self.reachability.closed(connection);
        let Some(way) = self.ways.remove(&connection) else { return };
        let direct = |other: &Way| other.peer == way.peer && other.path != Path::Relayed;
        if !self.ways.values().any(direct) {
            self.relays.withdrawn(&way.peer);
        }
    }

    /// Whether the other end of a direct connection opened it.
    pub(crate) fn came_in(&self, connection: ConnectionId) -> bool {
        let way = self.ways.get(&connection);
        way.is_some_and(|way| !way.ours && way.path != Path::Relayed)
    }

    /// Connections by which `client` was shown that it can be dialled.
    pub(crate) fn proofs(&self, client: libp2p::PeerId) -> Vec<ConnectionId> {
        let ways = self.ways.iter().filter(|(_, way)| way.peer == client && way.proof);
        ways.map(|(connection, _)| *connection).collect()
    }

    /// The other end opened a stream on a connection. Where it ends, if streams may move to it from now
    /// on and not before.
    pub(crate) fn stays(&mut self, connection: ConnectionId) -> Option<Multiaddr> {
        let way = self.ways.get_mut(&connection)?;
        let first = !std::mem::replace(&mut way.stays, true);
        first.then(|| way.address.clone())
    }

    /// Whether streams may move to a connection.
    pub(crate) fn has_settled(&self, connection: ConnectionId) -> bool {
        self.ways.get(&connection).is_some_and(|way| way.stays)
    }

    /// Connections that have come in and are too old for a proof, whose end was not noticed before.
    pub(crate) fn settled(&mut self, now: Instant) -> Vec<(libp2p::PeerId, Multiaddr)> {
        let old = self.ways.values_mut().filter(|way| !way.stays && way.since + PROOF_MAX <= now);
        let settled = old.map(|way| {
            way.stays = true;
            (way.peer, way.address.clone())
        });
        settled.collect()
    }

    /// The other end of a connection.
    pub(crate) fn address(&self, connection: ConnectionId) -> Option<&Multiaddr> {
        self.ways.get(&connection).map(|way| &way.address)
    }

    /// Bytes per second of tensors that may pass on a connection with this address; `None`: none,
    /// because it leads through a relay whose owner did not allow it.
    pub(crate) fn bulk_rate(&self, address: &Multiaddr) -> Option<u64> {
        if Path::of(address) == Path::Relayed {
            self.relays.bulk_rate(address)
        } else {
            Some(u64::MAX)
        }
    }

    /// The bound of the rate of tensors on a connection with this address, if a relay sets one.
    pub(crate) fn bound(&self, address: &Multiaddr) -> Option<Arc<Rate>> {
        let rate = self.bulk_rate(address).filter(|rate| *rate < u64::MAX)?;
        Rate::new(rate).map(Arc::new)
    }

    /// A peer speaks of itself and of us on a connection: what it sees, and whether it relays.
    /// Returns addresses at which this peer, which listens at `own`, may be reached.
    pub(crate) fn heard(
        &mut self,
        connection: ConnectionId,
        info: &identify::Info,
        own: &[Multiaddr],
    ) -> Vec<Multiaddr> {
        let way = self.ways.get_mut(&connection);
        let Some(way) = way.filter(|way| way.ours && way.path != Path::Relayed) else {
            return Vec::new();
        };
        if info.protocols.contains(&HOP_PROTOCOL_NAME) {
            self.relays.offered(way.peer, way.address.clone(), Instant::now());
        } else {
            self.relays.withdrawn(&way.peer);
        }
        let observed = &info.observed_addr;
        let shared_port = !way.proof && way.path == Path::Quic;
        if shared_port {
            self.reachability.seen(connection, way.peer, observed);
        }
        let mut all = candidates(observed, own, shared_port);
        all.retain(|address| {
            let known = way.named.contains(address);
            let room = way.named.len() < CANDIDATES_PER_CONNECTION_MAX;
            if room && !known {
                way.named.push(address.clone());
            }
            known || room
        });
        all
    }

    /// A relay lets so much of a circuit pass.
    pub(crate) fn limited(
        &mut self,
        relay: libp2p::PeerId,
        limit: Option<(Option<u64>, Option<Duration>)>,
    ) {
        let (bytes, life) = limit.unwrap_or_default();
        let ways = &self.ways;
        let in_use =
            |relay: &_| ways.values().any(|way| relay_of(&way.address).as_ref() == Some(relay));
        self.relays.limited(relay, rate(bytes, life, CIRCUIT_BYTES), in_use);
    }

    /// Relayed connections beside a direct one that is old enough.
    pub(crate) fn superseded(&self, now: Instant) -> Vec<ConnectionId> {
        let settled = |peer: libp2p::PeerId| {
            self.ways.values().any(|way| {
                way.peer == peer && way.path != Path::Relayed && way.since + RELAYED_LINGER <= now
            })
        };
        let relayed = self.ways.iter().filter(|(_, way)| way.path == Path::Relayed);
        relayed.filter(|(_, way)| settled(way.peer)).map(|(connection, _)| *connection).collect()
    }
}

#[cfg(test)]
mod tests {
    use libp2p::core::Endpoint;
    use libp2p::core::transport::PortUse;

    use super::*;

    #[tokio::test]
    async fn streams_leave_passing_connections_alone() {
        let mut traversal =
            Traversal::new(libp2p::PeerId::random(), &crate::config::NatConfig::OFF);
        let (peer, address) = (libp2p::PeerId::random(), "/ip4/192.0.2.1/udp/1/quic-v1");
        let address: Multiaddr = address.parse().unwrap();
        let dialled = |port_use| ConnectedPoint::Dialer {
            address: address.clone(),
            role_override: Endpoint::Dialer,
            port_use,
        };
        let came_in = ConnectedPoint::Listener {
            local_addr: address.clone(),
            send_back_addr: address.clone(),
        };
        let ends = [dialled(PortUse::Reuse), dialled(PortUse::New), came_in.clone(), came_in];
        let ids = [0, 1, 2, 3].map(ConnectionId::new_unchecked);
        for (id, end) in ids.iter().zip(&ends) {
            traversal.opened(*id, peer, end);
        }
        assert_eq!(traversal.proofs(peer), [ids[1]]);
        assert_eq!(ids.map(|id| traversal.has_settled(id)), [true, true, false, false]);
        assert_eq!(traversal.stays(ids[2]), Some(address.clone()), "a stream came");
        assert!(traversal.has_settled(ids[2]));
        assert_eq!(traversal.stays(ids[2]), None);
        let now = Instant::now();
        assert_eq!(traversal.settled(now), []);
        assert_eq!(traversal.settled(now + PROOF_MAX), [(peer, address)]);
        assert_eq!(traversal.settled(now + PROOF_MAX), []);
    }
}
