//! Handles what the swarm reports: connections, streams, and events of its behaviours.

use dnode_protocol::PeerId;
use libp2p::core::ConnectedPoint;
use libp2p::request_response;
use libp2p::swarm::{ConnectionId, DialError, ListenError};
use libp2p::{Multiaddr, Stream};
use tokio::time::Instant;

use super::Service;
use crate::address::{from_libp2p, without_peer};
use crate::context::Context;
use crate::event::{DownReason, NetworkEvent, OffenceKind};
use crate::io::report::Via;
use crate::io::writer::FrameSink;
use crate::limits::{READERS_MAX, STRANGERS_MAX};
use crate::nat::reachability::Proof;
use crate::sessions::Stage;
use crate::swarm::streams::{self, OpenError, Path, StreamKind, far_end};
use crate::swarm::{BehaviourEvent, SwarmEvent};

impl Service {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is non-exhaustive; the rest needs no answer"
    )]
    pub(super) async fn on_swarm_event(&mut self, event: SwarmEvent) {
        let Context { traversal, swarm, .. } = &mut self.context;
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event).await,
            // A relay has several addresses; the one at which others reach this peer is reported with
            // the reservation.
            SwarmEvent::NewListenAddr { address, .. } if Path::of(&address) != Path::Relayed => {
                traversal.on_listening(&address, swarm);
                tracing::debug!(%address, "listening");
                self.report_listening(address);
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => self.report_not_listening(address),
            SwarmEvent::ListenerClosed { listener_id, addresses, .. } => {
                traversal.on_listener_closed(listener_id);
                addresses.into_iter().for_each(|address| self.report_not_listening(address));
            }
            SwarmEvent::ExternalAddrConfirmed { address } => {
                traversal.on_external(&address, Proof::Shown, swarm);
                if Path::of(&address) != Path::Relayed {
                    self.report_listening(address);
                }
            }
            SwarmEvent::ExternalAddrExpired { address } => {
                traversal.on_external_expired(&address, swarm);
                if !swarm.listeners().any(|listens| *listens == address) {
                    self.report_not_listening(address);
                }
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.discovery.on_dial_ended(connection_id);
                traversal.on_opened(connection_id, peer_id, &endpoint);
                self.on_connected(peer_id, connection_id, &endpoint).await;
            }
            SwarmEvent::ConnectionClosed {
                peer_id, connection_id, num_established, cause, ..
            } => {
                traversal.on_closed(connection_id);
                let cause = cause.map_or_else(|| "closed".to_owned(), |cause| cause.to_string());
                if let Some(peer) = from_libp2p(peer_id) {
                    self.on_disconnected((peer, connection_id), num_established, cause).await;
                }
            }
            SwarmEvent::IncomingConnectionError {
                error: ListenError::LocalPeerId { address },
                ..
            } => self.on_own_key(&address, true),
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error } => {
                if let DialError::LocalPeerId { address } = &error {
                    self.on_own_key(address, false);
                }
                self.discovery.on_dial_ended(connection_id);
                self.discovery.on_dial_failed(connection_id, peer_id, &error, &mut self.context);
            }
            _ => {}
        }
    }

    async fn on_behaviour_event(&mut self, event: BehaviourEvent) {
        let context = &mut self.context;
        match event {
            BehaviourEvent::Streams(event) => self.on_stream_event(event).await,
            BehaviourEvent::Identify(event) => {
                self.discovery.on_identify(event, &self.sessions, context);
            }
            BehaviourEvent::Kad(event) => {
                if self.discovery.on_kad(event) {
                    self.dial_due(Instant::now());
                }
            }
            BehaviourEvent::Mdns(event) => {
                if self.discovery.on_mdns(event) {
                    self.dial_due(Instant::now());
                }
            }
            BehaviourEvent::Ping(event) => self.sessions.on_ping(event, context),
            BehaviourEvent::Ask(event) => {
                if let request_response::Event::Message {
                    message: request_response::Message::Request { channel, .. },
                    ..
                } = event
                {
                    // An error means that the peer that asked has gone.
                    let answer = context.greeting.answer();
                    let _ = context.swarm.behaviour_mut().ask.send_response(channel, answer);
                }
            }
            BehaviourEvent::Probe(event) => {
                context.traversal.on_probed(&event, &mut context.swarm);
            }
            BehaviourEvent::DialBack(event) => {
                context.traversal.on_dialled_back(event.client, &mut context.swarm);
            }
            BehaviourEvent::Relayed(event) => {
                if let Some(address) = context.traversal.on_relay_event(event) {
                    tracing::info!(%address, "others reach this peer through a relay");
                    self.discovery.hasten(Instant::now());
                    self.report_listening(address);
                }
            }
            BehaviourEvent::Relay(event) => tracing::debug!(?event, "relay"),
            BehaviourEvent::Punch(event) => context.traversal.on_punched(&event),
            #[cfg(feature = "upnp")]
            BehaviourEvent::Upnp(event) => crate::nat::mapped(&event),
            BehaviourEvent::Limits(never)
            | BehaviourEvent::Subnets(never)
            | BehaviourEvent::Blocked(never) => match never {},
        }
    }

    fn report_listening(&mut self, address: Multiaddr) {
        let address = self.context.full_address(address);
        self.context.outbox.report(NetworkEvent::Listening { address });
    }

    fn report_not_listening(&mut self, address: Multiaddr) {
        tracing::debug!(%address, "listens there no more");
        let address = self.context.full_address(address);
        self.context.outbox.report(NetworkEvent::NotListening { address });
    }

    /// Handles a connection with our own key at `address`: a dial led to it, or it dialled us (`came`).
    fn on_own_key(&mut self, address: &Multiaddr, came: bool) {
        let address = without_peer(address.clone());
        let swarm = &self.context.swarm;
        let mut own = swarm.listeners().chain(swarm.external_addresses());
        if own.any(|listens| without_peer(listens.clone()) == address) {
            if !came {
                tracing::info!(%address, "the address leads to this peer itself");
            }
            return;
        }
        if came {
            self.copies.came(address, Instant::now());
        } else {
            self.copies.answered(address, Instant::now());
        }
    }

    async fn on_connected(
        &mut self,
        peer_id: libp2p::PeerId,
        connection: ConnectionId,
        endpoint: &ConnectedPoint,
    ) {
        let Some(peer) = from_libp2p(peer_id) else {
            return;
        };
        self.discovery.on_connected(peer, connection, &mut self.context);
        if self.context.is_stopping() || streams::is_proof(endpoint) {
            return;
        }
        if self.sessions.contains(peer) {
            // On an incoming connection, streams move when those of the other end do, or when it has
            // lasted.
            if endpoint.is_dialer() {
                self.move_streams(peer, &far_end(endpoint, peer_id)).await;
            }
            return;
        }
        let address = far_end(endpoint, peer_id);
        if Path::of(&address) == Path::Relayed && !self.sessions.may_be_relayed() {
            tracing::debug!(%peer, "no room for another peer that a relay leads to");
            self.context.swarm.close_connection(connection);
            return;
        }
        self.sessions.begin(peer, (address, endpoint.is_dialer()), &mut self.context);
    }

    /// Lets the streams of a peer move to a new connection that is better than theirs.
    pub(super) async fn move_streams(&mut self, peer: PeerId, address: &Multiaddr) {
        if self.sessions.contains(peer) {
            self.sessions.move_streams(peer, address, &self.context);
            self.complete(peer).await;
        }
    }

    async fn on_disconnected(
        &mut self,
        (peer, connection): (PeerId, ConnectionId),
        remaining: u32,
        cause: String,
    ) {
        if remaining > 0 {
            if self.sessions.is_up(peer) && !self.context.carries_tensors(peer) {
                self.on_relayed_again(peer, cause).await;
                return;
            }
            self.sessions.on_connection_closed(peer, connection, &mut self.context);
            return;
        }
        self.strangers.remove(&peer);
        if matches!(self.sessions.stage(peer), Some(Stage::Refusing(_))) {
            self.hang_up_refused(peer).await;
            return;
        }
        self.end_session(peer, DownReason::Lost(cause.clone())).await;
        self.discovery.on_down(peer, &cause, &mut self.context);
    }

    /// Handles that the only connection left to a peer leads through a relay that lets no tensors pass.
    async fn on_relayed_again(&mut self, peer: PeerId, cause: String) {
        self.end_session(peer, DownReason::Lost(cause)).await;
        if let Some(address) = self.context.best_address(peer) {
            self.sessions.begin(peer, (address, false), &mut self.context);
        }
    }

    async fn on_stream_event(&mut self, event: streams::Event) {
        match event {
            streams::Event::Opened { peer, connection, kind, stream } => {
                let Some(peer) = from_libp2p(peer) else {
                    return;
                };
                if let Some(older) = self.copies.telling(connection) {
                    self.tell_copy(peer, older, stream);
                    return;
                }
                let (via, sink) = (Via::Stream(connection), FrameSink::Stream(stream));
                self.sessions.on_opened(peer, (kind, via), sink, &self.context);
                self.complete(peer).await;
            }
            streams::Event::Accepted { peer, connection, kind, stream } => {
                if let Some(peer) = from_libp2p(peer) {
                    self.on_accepted(peer, (kind, connection), stream).await;
                }
            }
            streams::Event::OpenFailed { peer, connection, kind, error } => {
                if let Some(peer) = from_libp2p(peer) {
                    self.on_open_failed(peer, (kind, connection), &error).await;
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

    async fn on_accepted(
        &mut self,
        peer: PeerId,
        (kind, connection): (StreamKind, ConnectionId),
        stream: Stream,
    ) {
        let context = &mut self.context;
        match self.sessions.on_accepted(peer, (kind, connection), stream, context) {
            None => tracing::debug!(%peer, %kind, "stream of a node that is no peer"),
            Some(false) => {
                let detail = format!("more than {READERS_MAX} streams at once");
                self.offend(peer, OffenceKind::Streams, detail).await;
            }
            Some(true) => {
                if let Some(address) = context.traversal.on_stream(connection) {
                    self.move_streams(peer, &address).await;
                }
            }
        }
    }

    async fn on_open_failed(
        &mut self,
        peer: PeerId,
        (kind, connection): (StreamKind, ConnectionId),
        error: &OpenError,
    ) {
        let Some(up) = self.sessions.on_open_failed(peer, kind, connection) else {
            return;
        };
        tracing::debug!(%peer, %error, "no stream");
        match error {
            OpenError::Unsupported(StreamKind::Control) if !up => self.on_stranger(peer).await,
            OpenError::Unsupported(_) | OpenError::Failed(..) => {
                self.context.swarm.close_connection(connection);
            }
        }
    }

    /// Handles a libp2p node that is no dnode peer. It may stay, unless it was dialled as a member of
    /// the swarm, or there are enough of these.
    async fn on_stranger(&mut self, peer: PeerId) {
        self.end_session(peer, DownReason::Left).await;
        let cause = "the node there is no dnode peer";
        let dialled = self.discovery.on_down(peer, cause, &mut self.context);
        self.discovery.on_left(peer);
        if dialled || self.strangers.len() >= STRANGERS_MAX as usize {
            self.context.disconnect(peer);
        } else {
            self.strangers.insert(peer);
        }
    }
}
