//! Finds out whether this peer is behind a NAT, uses relays, and gets from a relay to a direct path.

use std::collections::BTreeSet;
use std::sync::Arc;

use dnode_protocol::PeerId;
use libp2p::core::ConnectedPoint;
use libp2p::core::transport::ListenerId;
use libp2p::relay::HOP_PROTOCOL_NAME;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, Swarm, autonat, dcutr, identify, relay};
use tokio::time::{Duration, Instant};

use super::candidates::candidates;
use super::reachability::{Proof, Reachability, Standing, own};
use super::relays::{Relays, rate};
use super::routes::Routes;
use crate::address::{from_libp2p, ip};
use crate::config::{NatConfig, RelayMode};
use crate::errors::with_causes;
use crate::io::rate::Rate;
use crate::limits::{CIRCUIT_BYTES, KNOWN_PEERS_MAX};
use crate::swarm::Behaviour;
use crate::swarm::streams::Path;

/// What this peer knows of its own NAT and those of others.
#[derive(Debug)]
pub(crate) struct Traversal {
    wanted: bool,
    mode: RelayMode,
    routes: Routes,
    reachability: Reachability,
    relays: Relays,
    standing: Standing,
    /// Whether this peer relays for others, where the configuration leaves that open.
    relaying: bool,
    /// Peers for which the log has said that no direct path leads to them.
    hidden: BTreeSet<PeerId>,
}

impl Traversal {
    /// `external`: addresses at which others can dial this peer, as the user says.
    pub(crate) fn new<'a>(
        me: libp2p::PeerId,
        config: &NatConfig,
        external: impl Iterator<Item = &'a Multiaddr>,
    ) -> Self {
        let mut reachability = Reachability::default();
        external.for_each(|address| reachability.proven(address, Proof::Shown));
        Self {
            wanted: config.traverse,
            mode: config.relay,
            routes: Routes::default(),
            reachability,
            relays: Relays::new(me),
            standing: Standing::Unknown,
            relaying: false,
            hidden: BTreeSet::new(),
        }
    }

    /// Notes a new connection.
    pub(crate) fn on_opened(
        &mut self,
        connection: ConnectionId,
        peer: libp2p::PeerId,
        endpoint: &ConnectedPoint,
    ) {
        self.routes.opened(connection, peer, endpoint);
    }

    /// Notes that a connection has closed.
    pub(crate) fn on_closed(&mut self, connection: ConnectionId) {
        self.reachability.closed(connection);
        if let Some(peer) = self.routes.closed(connection) {
            self.relays.withdrawn(&peer);
        }
    }

    /// Notes that the other end opened a stream on a connection. Returns the address of that end if this
    /// is what allows streams to move to the connection.
    pub(crate) fn on_stream(&mut self, connection: ConnectionId) -> Option<Multiaddr> {
        self.routes.stays(connection)
    }

    /// Whether streams may move to a connection.
    pub(crate) fn has_settled(&self, connection: ConnectionId) -> bool {
        self.routes.has_settled(connection)
    }

    /// The other end of a connection.
    pub(crate) fn address(&self, connection: ConnectionId) -> Option<&Multiaddr> {
        self.routes.address(connection)
    }

    /// Bytes per second of tensors that may pass on a connection with this address. `None` where no
    /// tensors may pass, because the owner of the relay in between does not allow it.
    pub(crate) fn bulk_rate(&self, address: &Multiaddr) -> Option<u64> {
        if Path::of(address) == Path::Relayed {
            self.relays.bulk_rate(address)
        } else {
            Some(u64::MAX)
        }
    }

    /// The bound on the rate of tensors on a connection with this address, if a relay sets one.
    pub(crate) fn bound(&self, address: &Multiaddr) -> Option<Arc<Rate>> {
        let rate = self.bulk_rate(address).filter(|rate| *rate < u64::MAX)?;
        Rate::new(rate).map(Arc::new)
    }

    /// Whether others have to dial this peer through relays.
    pub(crate) const fn is_hidden(&self) -> bool {
        matches!(self.standing, Standing::BehindNat(_) | Standing::Closed(_))
    }

    /// Learns from an identified peer whether this one is behind a NAT, and whether that peer relays.
    pub(crate) fn on_identified(
        &mut self,
        connection: ConnectionId,
        info: &identify::Info,
        swarm: &mut Swarm<Behaviour>,
    ) {
        if !self.wanted && self.mode == RelayMode::Off {
            return;
        }
        let came_in = self.routes.came_in(connection);
        if came_in && swarm.listeners().any(|own| *own == info.observed_addr) {
            // The other end came in by an own address of this peer.
            swarm.add_external_address(info.observed_addr.clone());
            self.on_external(&info.observed_addr, Proof::Met, swarm);
        }
        let (now, own) = (Instant::now(), swarm.listeners().cloned().collect::<Vec<_>>());
        for candidate in self.heard(connection, info, &own) {
            let behaviour = swarm.behaviour_mut();
            if let Some(probe) = behaviour.probe.as_mut() {
                probe.candidate(&candidate, now);
            }
            if let Some(punch) = behaviour.punch.as_mut() {
                punch.candidate(&candidate, now);
            }
        }
        self.stand(swarm);
    }

    /// Learns from the other end of a connection at which address it sees this peer, and whether it
    /// relays. Returns addresses at which this peer, which listens at `own`, may be reachable.
    fn heard(
        &mut self,
        connection: ConnectionId,
        info: &identify::Info,
        own: &[Multiaddr],
    ) -> Vec<Multiaddr> {
        let Some(route) = self.routes.dialled(connection) else { return Vec::new() };
        if info.protocols.contains(&HOP_PROTOCOL_NAME) {
            self.relays.offered(route.peer, route.address.clone(), Instant::now());
        } else {
            self.relays.withdrawn(&route.peer);
        }
        let observed = &info.observed_addr;
        let shared_port = route.shares_port();
        if shared_port {
            self.reachability.seen(connection, route.peer, observed);
        }
        let mut all = candidates(observed, own, shared_port);
        route.name(&mut all);
        all
    }

    /// Notes that this peer can be reached at `address`.
    pub(crate) fn on_external(
        &mut self,
        address: &Multiaddr,
        proof: Proof,
        swarm: &mut Swarm<Behaviour>,
    ) {
        if Path::of(address) != Path::Relayed {
            self.reachability.proven(address, proof);
            self.stand(swarm);
        }
    }

    /// Notes that this peer can no longer be reached at `address`.
    pub(crate) fn on_external_expired(
        &mut self,
        address: &Multiaddr,
        swarm: &mut Swarm<Behaviour>,
    ) {
        self.reachability.expired(address);
        self.stand(swarm);
    }

    /// Notes that this peer listens at `address`. It counts as reachable there if the user says that
    /// others can dial this peer.
    pub(crate) fn on_listening(&mut self, address: &Multiaddr, swarm: &mut Swarm<Behaviour>) {
        let loopback = ip(address).is_some_and(|ip| ip.is_loopback());
        if self.mode == RelayMode::On && !loopback {
            swarm.add_external_address(address.clone());
            self.on_external(address, Proof::Shown, swarm);
        }
    }

    /// Handles the result of a test of one of this peer's addresses by AutoNAT.
    pub(crate) fn on_probed(
        &mut self,
        event: &autonat::v2::client::Event,
        swarm: &mut Swarm<Behaviour>,
    ) {
        let address = &event.tested_addr;
        match &event.result {
            Ok(()) => tracing::debug!(%address, "a peer has dialled this address"),
            Err(error) => {
                tracing::debug!(%address, %error, "a peer could not dial this address");
                self.reachability.failed(address);
            }
        }
        self.stand(swarm);
    }

    /// Closes the connections that this peer opened to test an address of `client`: the test has ended.
    pub(crate) fn on_dialled_back(&self, client: libp2p::PeerId, swarm: &mut Swarm<Behaviour>) {
        for connection in self.routes.proofs(client) {
            swarm.close_connection(connection);
        }
    }

    /// Finds out whether this peer is behind a NAT, and begins or stops to relay accordingly.
    fn stand(&mut self, swarm: &mut Swarm<Behaviour>) {
        let standing = self.reachability.standing(&own(swarm.listeners()));
        let before = std::mem::replace(&mut self.standing, standing);
        if !standing.is_like(before) {
            standing.tell();
        }
        let relaying = self.reachability.can_relay(standing);
        if self.mode == RelayMode::Auto
            && relaying != std::mem::replace(&mut self.relaying, relaying)
            && let Some(relay) = swarm.behaviour_mut().relay.as_mut()
        {
            let status = if relaying { relay::Status::Enable } else { relay::Status::Disable };
            relay.set_status(Some(status));
        }
    }

    /// Closes relayed connections that are not needed. Returns connections that streams may move to.
    pub(crate) fn settle(
        &mut self,
        now: Instant,
        swarm: &mut Swarm<Behaviour>,
    ) -> Vec<(libp2p::PeerId, Multiaddr)> {
        for connection in self.routes.superseded(now) {
            swarm.close_connection(connection);
        }
        self.routes.settled(now)
    }

    /// Asks relays for reservations until it is shown that they are not needed.
    pub(crate) fn reserve(&mut self, now: Instant, swarm: &mut Swarm<Behaviour>) {
        if !self.wanted {
            return;
        }
        match self.standing {
            Standing::Unknown => return,
            Standing::Reachable if !self.reachability.is_shown() => return,
            Standing::Reachable => {
                for listener in self.relays.listeners() {
                    swarm.remove_listener(listener);
                }
                return;
            }
            Standing::BehindNat(_) | Standing::Closed(_) => {}
        }
        while let Some((relay, address)) = self.relays.next(now) {
            match swarm.listen_on(address.clone()) {
                Ok(listener) => self.relays.asked(relay, listener, address),
                Err(error) => {
                    tracing::debug!(%relay, %error, "cannot ask a relay");
                    self.relays.failed(&relay, now);
                }
            }
        }
    }

    /// Notes that a listener ended; if it was a reservation, another relay may be asked.
    pub(crate) fn on_listener_closed(&mut self, listener: ListenerId) {
        match self.relays.closed(listener, Instant::now()) {
            Some((relay, true)) => tracing::info!(%relay, "the reservation at a relay has ended"),
            Some((relay, false)) => tracing::debug!(%relay, "a relay gave no reservation"),
            None => {}
        }
    }

    /// Handles an event of a relay. Returns an address at which others reach this peer from now on.
    pub(crate) fn on_relay_event(&mut self, event: relay::client::Event) -> Option<Multiaddr> {
        match event {
            relay::client::Event::ReservationReqAccepted { relay_peer_id, limit, .. } => {
                let limit = limit.map(|limit| (limit.data_in_bytes(), limit.duration()));
                self.on_limit(relay_peer_id, limit);
                self.relays.accepted(&relay_peer_id)
            }
            relay::client::Event::OutboundCircuitEstablished { relay_peer_id, limit } => {
                let limit = limit.map(|limit| (limit.data_in_bytes(), limit.duration()));
                self.on_limit(relay_peer_id, limit);
                None
            }
            relay::client::Event::InboundCircuitEstablished { .. } => None,
        }
    }

    /// Notes how much of a circuit `relay` lets pass.
    fn on_limit(&mut self, relay: libp2p::PeerId, limit: Option<(Option<u64>, Option<Duration>)>) {
        let (bytes, life) = limit.unwrap_or_default();
        let in_use = |relay: &_| self.routes.uses(relay);
        self.relays.limited(relay, rate(bytes, life, CIRCUIT_BYTES), in_use);
    }

    /// Notes whether a hole was punched.
    pub(crate) fn on_punched(&mut self, event: &dcutr::Event) {
        let Some(peer) = from_libp2p(event.remote_peer_id) else { return };
        match &event.result {
            Ok(_) => {
                self.hidden.remove(&peer);
                tracing::info!(%peer, "a direct path through the NATs");
            }
            Err(error) => tracing::debug!(%peer, error = with_causes(error), "no hole"),
        }
    }

    /// Notes that no direct path to `peer` was found; logs it once.
    pub(crate) fn on_no_direct_path(&mut self, peer: PeerId) {
        if self.hidden.len() < KNOWN_PEERS_MAX && self.hidden.insert(peer) {
            tracing::info!(
                %peer,
                "no direct path: a NAT on the way gives each destination another port, or a firewall \
                 drops the packets; it is tried again later, and tensors travel through others"
            );
        }
    }
}
