//! How each connection came to be, and whether streams may move to it.

use std::collections::BTreeMap;

use libp2p::core::ConnectedPoint;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::relays::relay_of;
use crate::limits::{CANDIDATES_PER_CONNECTION_MAX, PROOF_MAX, RELAYED_LINGER};
use crate::swarm::streams::{Path, far_end, is_proof};

/// One connection.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) peer: PeerId,
    pub(super) address: Multiaddr,
    path: Path,
    /// Whether this peer opened it.
    ours: bool,
    /// Whether this peer opened it, from a port of its own, to test if the other one can be dialled.
    proof: bool,
    since: Instant,
    /// Possible addresses of this peer, as the other end names them.
    named: Vec<Multiaddr>,
    /// Whether streams may move to it, because it is not a passing test of whether this peer can be
    /// dialled.
    stays: bool,
}

impl Route {
    /// Whether its packets leave from the port that this peer listens at.
    pub(super) fn shares_port(&self) -> bool {
        !self.proof && self.path == Path::Quic
    }

    /// Keeps those of `addresses`, at which this peer may be reachable, that there is room for.
    pub(super) fn name(&mut self, addresses: &mut Vec<Multiaddr>) {
        addresses.retain(|address| {
            let known = self.named.contains(address);
            let room = self.named.len() < CANDIDATES_PER_CONNECTION_MAX;
            if room && !known {
                self.named.push(address.clone());
            }
            known || room
        });
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Routes(BTreeMap<ConnectionId, Route>);

impl Routes {
    /// Notes a new connection.
    pub(super) fn opened(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        endpoint: &ConnectedPoint,
    ) {
        let address = far_end(endpoint, peer);
        let (ours, proof) = (endpoint.is_dialer(), is_proof(endpoint));
        let path = Path::of(&address);
        let (since, named) = (Instant::now(), Vec::new());
        let route = Route { peer, address, path, ours, proof, since, named, stays: ours };
        self.0.insert(connection, route);
    }

    /// Notes that a connection has closed. Returns its peer when that has no connection left but relayed
    /// ones.
    pub(super) fn closed(&mut self, connection: ConnectionId) -> Option<PeerId> {
        let peer = self.0.remove(&connection)?.peer;
        let direct = |other: &Route| other.peer == peer && other.path != Path::Relayed;
        (!self.0.values().any(direct)).then_some(peer)
    }

    /// Whether the other end of a direct connection opened it.
    pub(super) fn came_in(&self, connection: ConnectionId) -> bool {
        let route = self.0.get(&connection);
        route.is_some_and(|route| !route.ours && route.path != Path::Relayed)
    }

    /// A direct connection that this peer opened.
    pub(super) fn dialled(&mut self, connection: ConnectionId) -> Option<&mut Route> {
        let route = self.0.get_mut(&connection);
        route.filter(|route| route.ours && route.path != Path::Relayed)
    }

    /// Connections that this peer opened to test whether `client` can be dialled.
    pub(super) fn proofs(&self, client: PeerId) -> Vec<ConnectionId> {
        let routes = self.0.iter().filter(|(_, route)| route.peer == client && route.proof);
        routes.map(|(connection, _)| *connection).collect()
    }

    /// Notes that the other end opened a stream on a connection. Returns the address of that end if this
    /// is what allows streams to move to the connection.
    pub(super) fn stays(&mut self, connection: ConnectionId) -> Option<Multiaddr> {
        let route = self.0.get_mut(&connection)?;
        let first = !std::mem::replace(&mut route.stays, true);
        first.then(|| route.address.clone())
    }

    /// Whether streams may move to a connection.
    pub(super) fn has_settled(&self, connection: ConnectionId) -> bool {
        self.0.get(&connection).is_some_and(|route| route.stays)
    }

    /// Marks incoming connections that have lasted too long to be a test, and returns those that were
    /// not marked before.
    pub(super) fn settled(&mut self, now: Instant) -> Vec<(PeerId, Multiaddr)> {
        let young = |route: &Route| route.stays || route.since + PROOF_MAX > now;
        let old = self.0.values_mut().filter(|route| !young(route));
        let settled = old.map(|route| {
            route.stays = true;
            (route.peer, route.address.clone())
        });
        settled.collect()
    }

    /// The other end of a connection.
    pub(super) fn address(&self, connection: ConnectionId) -> Option<&Multiaddr> {
        self.0.get(&connection).map(|route| &route.address)
    }

    /// Whether a connection leads through this relay.
    pub(super) fn uses(&self, relay: &PeerId) -> bool {
        self.0.values().any(|route| relay_of(&route.address).as_ref() == Some(relay))
    }

    /// Relayed connections of peers that have had a direct one for long enough.
    pub(super) fn superseded(&self, now: Instant) -> Vec<ConnectionId> {
        let settled = |peer: PeerId| {
            self.0.values().any(|route| {
                let direct = route.peer == peer && route.path != Path::Relayed;
                direct && route.since + RELAYED_LINGER <= now
            })
        };
        let relayed = self.0.iter().filter(|(_, route)| route.path == Path::Relayed);
        relayed.filter(|(_, route)| settled(route.peer)).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use libp2p::core::Endpoint;
    use libp2p::core::transport::PortUse;

    use super::*;

    #[test]
    fn streams_leave_passing_connections_alone() {
        let mut routes = Routes::default();
        let (peer, address) = (PeerId::random(), "/ip4/192.0.2.1/udp/1/quic-v1");
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
            routes.opened(*id, peer, end);
        }
        assert_eq!(routes.proofs(peer), [ids[1]]);
        assert_eq!(ids.map(|id| routes.has_settled(id)), [true, true, false, false]);
        assert_eq!(routes.stays(ids[2]), Some(address.clone()), "a stream came");
        assert!(routes.has_settled(ids[2]));
        assert_eq!(routes.stays(ids[2]), None);
        let now = Instant::now();
        assert_eq!(routes.settled(now), []);
        assert_eq!(routes.settled(now + PROOF_MAX), [(peer, address)]);
        assert_eq!(routes.settled(now + PROOF_MAX), []);
    }
}
