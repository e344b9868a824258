//! Connections come and go; streams are opened on them, and move.

use dnode_protocol::PeerId;
use libp2p::core::ConnectedPoint;
use libp2p::ping;
use libp2p::request_response;
use libp2p::swarm::{ConnectionId, DialError, ListenError};
use tokio::time::Instant;

use crate::ask::{self, Told};
use crate::event::{Connection, DownReason, NetworkEvent, OffenceKind};
use crate::limits::READERS_MAX;
use crate::outlet::Outlet;
use crate::reachability::Proof;
use crate::service::{Service, from_libp2p, to_libp2p};
use crate::session::{Session, Stage, Via};
use crate::streams::{self, OpenError, Path, StreamKind, far_end};
use crate::swarm::{BehaviourEvent, SwarmEvent};

impl Service {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is non-exhaustive; the rest needs no answer"
    )]
    pub(crate) async fn handle_swarm(&mut self, event: SwarmEvent) {
        match event {
            SwarmEvent::Behaviour(event) => self.handle_behaviour(event).await,
            // A relay has several; where others reach us is reported with the reservation.
            SwarmEvent::NewListenAddr { address, .. } if Path::of(&address) != Path::Relayed => {
                self.listens(&address);
                let address = self.full_address(address);
                tracing::debug!(%address, "listening");
                self.report(NetworkEvent::Listening { address });
            }
            SwarmEvent::ListenerClosed { listener_id, .. } => self.listener_closed(listener_id),
            SwarmEvent::ExternalAddrConfirmed { address } => {
                self.external(&address, Proof::Shown);
            }
            SwarmEvent::ExternalAddrExpired { address } => self.no_longer_external(&address),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.dialer.ended(connection_id);
                self.traversal.opened(connection_id, peer_id, &endpoint);
                self.connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed {
                peer_id, connection_id, num_established, cause, ..
            } => {
                self.traversal.closed(connection_id);
                let cause = cause.map_or_else(|| "closed".to_owned(), |cause| cause.to_string());
                self.disconnected(peer_id, connection_id, num_established, cause).await;
            }
            SwarmEvent::IncomingConnectionError {
                error: ListenError::LocalPeerId { address },
                ..
            } => self.met_own_key(&address, true),
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error } => {
                if let DialError::LocalPeerId { address } = &error {
                    self.met_own_key(address, false);
                }
                self.dialer.ended(connection_id);
                self.not_connected(connection_id, peer_id, &error);
            }
            _ => {}
        }
    }

    async fn handle_behaviour(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Streams(event) => self.handle_streams(event).await,
            BehaviourEvent::Identify(event) => self.handle_identify(event),
            BehaviourEvent::Kad(event) => self.handle_kad(event),
            BehaviourEvent::Mdns(event) => self.handle_mdns(event),
            BehaviourEvent::Ping(event) => self.handle_ping(event),
            BehaviourEvent::Ask(event) => self.tell(event),
            BehaviourEvent::Probe(event) => self.probed(&event),
            BehaviourEvent::DialBack(event) => self.dialled_back(event.client),
            BehaviourEvent::Relayed(event) => self.handle_relayed(event),
            BehaviourEvent::Relay(event) => tracing::debug!(?event, "relay"),
            BehaviourEvent::Punch(event) => self.punched(&event),
            #[cfg(feature = "upnp")]
            BehaviourEvent::Upnp(event) => crate::nat::mapped(&event),
            BehaviourEvent::Limits(never) | BehaviourEvent::Blocked(never) => match never {},
        }
    }

    /// Somebody asks what this peer tells before a run.
    fn tell(&mut self, event: request_response::Event<(), Told>) {
        if let request_response::Event::Message {
            message: request_response::Message::Request { channel, .. },
            ..
        } = event
        {
            // Who has gone meanwhile hears nothing.
            let (digest, hello) = (self.digest.clone(), self.hello.clone());
            let told = Told { micros: ask::now(), digest, hello };
            let _ = self.swarm.behaviour_mut().ask.send_response(channel, told);
        }
    }

    fn handle_ping(&mut self, event: ping::Event) {
        let rtt = match event.result {
            Ok(rtt) => rtt,
            Err(ping::Failure::Timeout) => {
                self.swarm.close_connection(event.connection);
                return;
            }
            Err(ping::Failure::Unsupported | ping::Failure::Other { .. }) => return,
        };
        let Some(peer) = from_libp2p(event.peer) else {
            return;
        };
        let known = self.shared.peers().get_mut(&peer).map(|entry| {
            let least = entry.rtt.map_or(rtt, |(_, least)| least.min(rtt));
            entry.rtt = Some((rtt, least));
        });
        if known.is_some() {
            self.report(NetworkEvent::RoundTrip { peer, rtt });
        } else if let Some(session) = self.sessions.get_mut(&peer) {
            // The first ping is done before Hello is there, and the next one comes much later.
            session.round_trip = Some(session.round_trip.map_or(rtt, |least| least.min(rtt)));
        }
    }

    fn connected(
        &mut self,
        peer_id: libp2p::PeerId,
        connection: ConnectionId,
        endpoint: &ConnectedPoint,
    ) {
        let Some(peer) = from_libp2p(peer_id) else {
            return;
        };
        if let Some(index) = self.dialer.bootstrap_of(connection) {
            self.dialer.reached(index, peer);
        }
        if self.is_stopping() || streams::is_proof(endpoint) {
            return;
        }
        if self.sessions.contains_key(&peer) {
            // To one that came in streams move when the other end's do, or when it proves to stay.
            if endpoint.is_dialer() {
                self.move_streams(peer, &far_end(endpoint, peer_id));
            }
            return;
        }
        let address = far_end(endpoint, peer_id);
        if Path::of(&address) == Path::Relayed && !self.may_be_relayed() {
            tracing::debug!(%peer, "no room for another peer that a relay leads to");
            self.swarm.close_connection(connection);
            return;
        }
        self.begin_session(peer, address);
    }

    /// Lets the streams of a peer move to a connection that has come and is better than theirs.
    pub(crate) fn move_streams(&mut self, peer: PeerId, address: &libp2p::Multiaddr) {
        let path = Path::of(address);
        let (Some(session), Some(id)) = (self.sessions.get_mut(&peer), to_libp2p(peer)) else {
            return;
        };
        if session.address.as_ref().is_some_and(|now| path < Path::of(now)) {
            session.address = Some(address.clone());
        }
        if path == Path::Quic {
            session.bulk_again();
        }
        let streams = &self.swarm.behaviour().streams;
        for kind in StreamKind::ALL {
            let now = session.via(kind).and_then(Via::connection);
            if now.and_then(|now| streams.path(id, now)).is_some_and(|now| path < now) {
                tracing::debug!(%peer, %kind, ?path, "a stream moves");
                session.leave(kind);
            }
        }
        if let Some(entry) = self.shared.peers().get_mut(&peer)
            && path < Path::of(&entry.address)
        {
            entry.connection = Connection::of(path);
            entry.address = address.clone();
        }
        self.complete(peer);
    }

    /// Starts to write to what was opened for `kind`.
    pub(crate) fn begin(&mut self, peer: PeerId, kind: StreamKind, via: Via, outlet: Outlet) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        let carrier = outlet.carrier();
        let hello = (kind == StreamKind::Control).then(|| self.hello.clone());
        if session.begin(kind, via, outlet, hello) && kind == StreamKind::Bulk {
            match session.search.because.take() {
                Some(because) => tracing::info!(%peer, %carrier, because, "tensors travel"),
                None => tracing::info!(%peer, %carrier, "tensors travel"),
            }
            if let Some(entry) = self.shared.peers().get_mut(&peer) {
                entry.carrier = Some(carrier);
            }
        }
        // A better connection may have come while this stream was being opened, which could not move.
        if via.connection().is_some_and(|connection| self.is_outdone(peer, connection))
            && let Some(session) = self.sessions.get_mut(&peer)
        {
            tracing::debug!(%peer, %kind, "a stream moves on");
            session.leave(kind);
        }
    }

    /// Whether streams may move from `connection` to a better one to the same peer.
    fn is_outdone(&self, peer: PeerId, connection: ConnectionId) -> bool {
        let (streams, id) = (&self.swarm.behaviour().streams, to_libp2p(peer));
        let path = |connection| streams.path(id?, connection);
        let mut others = id.map(|id| streams.connections(id)).into_iter().flatten();
        path(connection).is_some_and(|now| {
            others.any(|other| {
                self.traversal.has_settled(other) && path(other).is_some_and(|path| path < now)
            })
        })
    }

    fn begin_session(&mut self, peer: PeerId, address: libp2p::Multiaddr) {
        self.sessions_begun += 1;
        let channels = self.channels.clone();
        let session = Session::new(peer, self.sessions_begun, channels, Instant::now());
        self.sessions.insert(peer, session.reached_at(address));
        self.open(peer, StreamKind::Control);
    }

    /// Opens the stream of `kind` on the best connection, if it is not there; for tensors a direct
    /// path where the peer is near, or a bulk connection beside a QUIC connection.
    pub(crate) fn open(&mut self, peer: PeerId, kind: StreamKind) {
        if !self.sessions.get(&peer).is_some_and(|session| session.is_idle(kind)) {
            return;
        }
        if kind == StreamKind::Bulk && self.open_direct(peer) {
            return;
        }
        let (Some(session), Some(id)) = (self.sessions.get_mut(&peer), to_libp2p(peer)) else {
            return;
        };
        let streams = &mut self.swarm.behaviour_mut().streams;
        let best = streams.best(id).and_then(|best| self.traversal.address(best));
        session.circuit = best.and_then(|address| self.traversal.bound(address));
        let quic = streams.best_path(id) == Some(Path::Quic);
        if kind == StreamKind::Bulk && quic && session.open_bulk(&self.bulk.bulk, id) {
            return;
        }
        if let Some(connection) = streams.open(id, kind) {
            session.opening(kind, Via::Stream(connection));
        }
    }

    async fn disconnected(
        &mut self,
        peer_id: libp2p::PeerId,
        connection: ConnectionId,
        remaining: u32,
        cause: String,
    ) {
        let Some(peer) = from_libp2p(peer_id) else {
            return;
        };
        if remaining > 0 {
            let up = self.sessions.get(&peer).is_some_and(Session::is_up);
            if up && !self.carries_tensors(peer) {
                self.relayed_again(peer, cause).await;
                return;
            }
            if let Some(session) = self.sessions.get_mut(&peer) {
                session.connection_closed(connection);
                self.open(peer, StreamKind::Control);
                if up {
                    self.open(peer, StreamKind::Bulk);
                }
            }
            return;
        }
        let stage = self.sessions.get(&peer).map(|session| session.stage);
        if matches!(stage, Some(Stage::Refusing(_))) {
            self.hang_up_refused(peer).await;
            return;
        }
        self.end_session(peer, DownReason::Lost(cause.clone())).await;
        for failed in self.dialer.down(peer, Instant::now()) {
            self.report_lost(failed, cause.clone());
        }
    }

    /// Of the connections to a peer only one through a relay is left, which lets no tensors pass.
    async fn relayed_again(&mut self, peer: PeerId, cause: String) {
        self.end_session(peer, DownReason::Lost(cause)).await;
        if let Some(address) = self.best_address(peer) {
            self.begin_session(peer, address);
        }
    }

    fn not_connected(
        &mut self,
        connection: ConnectionId,
        peer: Option<libp2p::PeerId>,
        error: &DialError,
    ) {
        let now = Instant::now();
        if let Some(index) = self.dialer.bootstrap_of(connection) {
            if matches!(error, DialError::LocalPeerId { .. }) {
                self.dialer.own(index, now);
            } else {
                let failed = self.dialer.failed(index, now);
                self.report_unreachable(failed, error);
            }
            return;
        }
        let Some(id) = peer.filter(|id| !self.swarm.is_connected(id)) else {
            return;
        };
        if let Some(peer) = from_libp2p(id) {
            tracing::debug!(%peer, %error, "dial failed");
            self.dialer.down(peer, now);
        }
    }

    async fn handle_streams(&mut self, event: streams::Event) {
        match event {
            streams::Event::Opened { peer, connection, kind, stream } => {
                let Some(peer) = from_libp2p(peer) else {
                    return;
                };
                if let Some(older) = self.copies.telling(connection) {
                    self.tell_copy(peer, older, stream);
                    return;
                }
                self.begin(peer, kind, Via::Stream(connection), Outlet::Stream(stream));
                self.complete(peer);
            }
            streams::Event::Accepted { peer, connection, kind, stream } => {
                if let Some(peer) = from_libp2p(peer) {
                    self.accepted(peer, kind, connection, stream).await;
                }
            }
            streams::Event::OpenFailed { peer, connection, kind, error } => {
                if let Some(peer) = from_libp2p(peer) {
                    self.open_failed(peer, kind, connection, &error).await;
                }
            }
            streams::Event::Rejected { peer } => {
                if let Some(peer) = from_libp2p(peer) {
                    let detail = "more inbound streams than may wait".to_owned();
                    self.offend(peer, OffenceKind::Streams, detail).await;
                }
            }
        }
    }

    async fn accepted(
        &mut self,
        peer: PeerId,
        kind: StreamKind,
        connection: ConnectionId,
        stream: libp2p::Stream,
    ) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            tracing::debug!(%peer, %kind, "stream of a node that is no peer");
            return;
        };
        if session.readers(connection) >= READERS_MAX {
            let detail = format!("more than {READERS_MAX} streams at once");
            self.offend(peer, OffenceKind::Streams, detail).await;
            return;
        }
        let release = session.accept(kind, connection, stream);
        self.release(release.into_iter().collect());
        if let Some(address) = self.traversal.stays(connection) {
            self.move_streams(peer, &address);
        }
    }

    async fn open_failed(
        &mut self,
        peer: PeerId,
        kind: StreamKind,
        connection: ConnectionId,
        error: &OpenError,
    ) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        session.not_opened(kind, Via::Stream(connection));
        tracing::debug!(%peer, %error, "no stream");
        match error {
            OpenError::Unsupported(StreamKind::Control) if !session.is_up() => {
                self.stranger(peer).await;
            }
            OpenError::Unsupported(_) | OpenError::Failed(..) => {
                self.swarm.close_connection(connection);
            }
        }
    }

    /// Some other libp2p node: it may stay, unless it was dialled as a member of the swarm.
    async fn stranger(&mut self, peer: PeerId) {
        self.end_session(peer, DownReason::Left).await;
        let failed = self.dialer.down(peer, Instant::now());
        self.dialer.left(peer);
        if !failed.is_empty()
            && let Some(id) = to_libp2p(peer)
        {
            // It may have hung up already.
            let _ = self.swarm.disconnect_peer_id(id);
        }
        for failed in failed {
            self.report_lost(failed, "the node there is no dnode peer".to_owned());
        }
    }
}
