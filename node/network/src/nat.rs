//! NATs: finding out that this peer is behind one, relays, and the way from a relay to a direct path.

use dnode_protocol::PeerId;
use libp2p::core::transport::ListenerId;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, autonat, dcutr, identify, relay};
use tokio::time::Instant;

use crate::config::RelayMode;
use crate::direct::{ip, with_causes};
use crate::event::NetworkEvent;
use crate::limits::{CIRCUIT_OPEN_MAX, KNOWN_PEERS_MAX, RELAYED_AGAIN, RELAYED_MAX};
use crate::reachability::{Proof, Standing, own};
use crate::service::{Service, from_libp2p, to_libp2p};
use crate::session::{Session, Stage};
use crate::streams::Path;

impl Service {
    /// A peer was identified: learns from it where this peer stands and who relays.
    pub(crate) fn identified(&mut self, connection: ConnectionId, info: &identify::Info) {
        if !self.traversal.wanted && self.traversal.mode == RelayMode::Off {
            return;
        }
        let came_in = self.traversal.came_in(connection);
        if came_in && self.swarm.listeners().any(|own| *own == info.observed_addr) {
            // Somebody came in by an address of our own.
            self.swarm.add_external_address(info.observed_addr.clone());
            self.external(&info.observed_addr, Proof::Met);
        }
        let (now, own) = (Instant::now(), self.swarm.listeners().cloned().collect::<Vec<_>>());
        for candidate in self.traversal.heard(connection, info, &own) {
            let behaviour = self.swarm.behaviour_mut();
            if let Some(probe) = behaviour.probe.as_mut() {
                probe.candidate(&candidate, now);
            }
            if let Some(punch) = behaviour.punch.as_mut() {
                punch.candidate(&candidate, now);
            }
        }
        self.stand();
    }

    /// This peer can be reached at `address`.
    pub(crate) fn external(&mut self, address: &Multiaddr, proof: Proof) {
        if Path::of(address) != Path::Relayed {
            self.traversal.reachability.proven(address, proof);
            self.stand();
        }
    }

    /// This peer can be reached at `address` no more.
    pub(crate) fn no_longer_external(&mut self, address: &Multiaddr) {
        self.traversal.reachability.expired(address);
        self.stand();
    }

    /// An address of a user that says others can dial this peer is one that works.
    pub(crate) fn listens(&mut self, address: &Multiaddr) {
        let loopback = ip(address).is_some_and(|ip| ip.is_loopback());
        if self.traversal.mode == RelayMode::On && !loopback {
            self.swarm.add_external_address(address.clone());
            self.external(address, Proof::Shown);
        }
    }

    /// AutoNAT has tried an address of this peer.
    pub(crate) fn probed(&mut self, event: &autonat::v2::client::Event) {
        let address = &event.tested_addr;
        match &event.result {
            Ok(()) => tracing::debug!(%address, "a peer has dialled this address"),
            Err(error) => {
                tracing::debug!(%address, %error, "a peer could not dial this address");
                self.traversal.reachability.failed(address);
            }
        }
        self.stand();
    }

    /// A peer's address was tried for it: the connection for that has served its purpose.
    pub(crate) fn dialled_back(&mut self, client: libp2p::PeerId) {
        for connection in self.traversal.proofs(client) {
            self.swarm.close_connection(connection);
        }
    }

    /// Finds out where this peer stands, and relays accordingly.
    fn stand(&mut self) {
        let standing = self.traversal.reachability.standing(&own(self.swarm.listeners()));
        let before = std::mem::replace(&mut self.traversal.standing, standing);
        if !standing.is_like(before) {
            standing.tell();
        }
        let relaying = self.traversal.reachability.can_relay(standing);
        if self.traversal.mode == RelayMode::Auto
            && relaying != std::mem::replace(&mut self.traversal.relaying, relaying)
            && let Some(relay) = self.swarm.behaviour_mut().relay.as_mut()
        {
            let status = if relaying { relay::Status::Enable } else { relay::Status::Disable };
            relay.set_status(Some(status));
        }
    }

    /// Asks relays for reservations until it is shown that they are not needed, and closes relayed
    /// connections that are not.
    pub(crate) fn traverse(&mut self, now: Instant) {
        for connection in self.traversal.superseded(now) {
            self.swarm.close_connection(connection);
        }
        for (peer, address) in self.traversal.settled(now) {
            if let Some(peer) = from_libp2p(peer) {
                self.move_streams(peer, &address);
            }
        }
        if !self.traversal.wanted {
            return;
        }
        match self.traversal.standing {
            Standing::Unknown => return,
            Standing::Reachable if !self.traversal.reachability.is_shown() => return,
            Standing::Reachable => {
                for listener in self.traversal.relays.listeners() {
                    self.swarm.remove_listener(listener);
                }
                return;
            }
            Standing::BehindNat(_) | Standing::Closed(_) => {}
        }
        while let Some((relay, address)) = self.traversal.relays.next(now) {
            match self.swarm.listen_on(address.clone()) {
                Ok(listener) => self.traversal.relays.asked(relay, listener, address),
                Err(error) => {
                    tracing::debug!(%relay, %error, "cannot ask a relay");
                    self.traversal.relays.failed(&relay, now);
                }
            }
        }
    }

    /// A listener ended; if it was a reservation, another may be asked for.
    pub(crate) fn listener_closed(&mut self, listener: ListenerId) {
        match self.traversal.relays.closed(listener, Instant::now()) {
            Some((relay, true)) => tracing::info!(%relay, "the reservation at a relay has ended"),
            Some((relay, false)) => tracing::debug!(%relay, "a relay gave no reservation"),
            None => {}
        }
    }

    pub(crate) fn handle_relayed(&mut self, event: relay::client::Event) {
        match event {
            relay::client::Event::ReservationReqAccepted { relay_peer_id, limit, .. } => {
                let limit = limit.map(|limit| (limit.data_in_bytes(), limit.duration()));
                self.traversal.limited(relay_peer_id, limit);
                if let Some(address) = self.traversal.relays.accepted(&relay_peer_id) {
                    let address = self.full_address(address);
                    tracing::info!(%address, "others reach this peer through a relay");
                    self.schedule.hasten(Instant::now());
                    self.report(NetworkEvent::Listening { address });
                }
            }
            relay::client::Event::OutboundCircuitEstablished { relay_peer_id, limit } => {
                let limit = limit.map(|limit| (limit.data_in_bytes(), limit.duration()));
                self.traversal.limited(relay_peer_id, limit);
            }
            relay::client::Event::InboundCircuitEstablished { .. } => {}
        }
    }

    /// Holes were punched, or cannot be.
    pub(crate) fn punched(&mut self, event: &dcutr::Event) {
        let Some(peer) = from_libp2p(event.remote_peer_id) else { return };
        match &event.result {
            Ok(_) => {
                self.traversal.told.remove(&peer);
                tracing::info!(%peer, "a direct path through the NATs");
            }
            Err(error) => tracing::debug!(%peer, error = with_causes(error), "no hole"),
        }
    }

    /// The session of a peer that was reached through a relay ended, where a direct path was sought
    /// until then: if not long before, none was found. Both ends find that out at about the same time.
    pub(crate) fn no_direct_path(&mut self, peer: PeerId, until: Instant) {
        let now = Instant::now();
        if self.is_stopping() || until > now + CIRCUIT_OPEN_MAX {
            return;
        }
        self.dialer.hold(peer, now + RELAYED_AGAIN);
        let told = &mut self.traversal.told;
        if told.len() < KNOWN_PEERS_MAX && told.insert(peer) {
            tracing::info!(
                %peer,
                "no direct path: a NAT on the way gives each destination another port, or a firewall \
                 drops the packets; it is tried again later, and tensors travel through others"
            );
        }
    }

    /// Whether there is room for one more peer that is reached through a relay alone.
    pub(crate) fn may_be_relayed(&self) -> bool {
        let relayed = |session: &&Session| {
            let waits = matches!(session.stage, Stage::Greeting(_) | Stage::Relayed(..));
            waits && session.address.as_ref().is_some_and(|at| Path::of(at) == Path::Relayed)
        };
        self.sessions.values().filter(relayed).count() < RELAYED_MAX
    }

    /// Where the best connection to `peer` ends.
    pub(crate) fn best_address(&self, peer: PeerId) -> Option<Multiaddr> {
        let best = self.swarm.behaviour().streams.best(to_libp2p(peer)?)?;
        self.traversal.address(best).cloned()
    }

    /// Whether others have to dial this peer through relays.
    pub(crate) const fn is_hidden(&self) -> bool {
        matches!(self.traversal.standing, Standing::BehindNat(_) | Standing::Closed(_))
    }

    /// Whether tensors may be exchanged with `peer` on the best connection to it.
    pub(crate) fn carries_tensors(&self, peer: PeerId) -> bool {
        let address = self.best_address(peer);
        address.is_some_and(|address| self.traversal.bulk_rate(&address).is_some())
    }

    /// Whether holes may be punched to `peer`: as long as it is known to be of the run.
    pub(crate) fn allow_punch(&mut self, peer: PeerId, allowed: bool) {
        let Some(id) = to_libp2p(peer) else { return };
        if let Some(punch) = self.swarm.behaviour_mut().punch.as_mut() {
            if allowed {
                punch.permit(id);
            } else {
                punch.forbid(id);
            }
        }
    }
}

/// What a router said that was asked to forward a port; an address that it gave counts as proven.
#[cfg(feature = "upnp")]
pub(crate) fn mapped(event: &libp2p::upnp::Event) {
    use libp2p::upnp::Event;
    match event {
        Event::NewExternalAddr { external_addr, .. } => {
            tracing::info!(address = %external_addr, "the router forwards a port (UPnP)");
        }
        Event::ExpiredExternalAddr { external_addr, .. } => {
            tracing::info!(address = %external_addr, "the router forwards a port no more (UPnP)");
        }
        Event::GatewayNotFound => tracing::debug!("no router that speaks UPnP"),
        Event::NonRoutableGateway => tracing::info!("the router is behind a NAT itself (UPnP)"),
    }
}
