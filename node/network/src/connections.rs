//! Connections come and go; streams are opened, greeted, refused and lost.

use dnode_protocol::frame::encode_control;
use dnode_protocol::{Message, PeerId, RunDifference, RunSpec};
use libp2p::core::ConnectedPoint;
use libp2p::ping;
use libp2p::swarm::{ConnectionId, DialError};
use tokio::time::Instant;

use crate::event::{Connection, DownReason, NetworkEvent, OffenceKind};
use crate::handle::Entry;
use crate::limits::{FULL_BACK_OFF, READERS_MAX, REFUSE_LINGER};
use crate::link::{LinkEvent, Origin, Outgoing, ReaderEnd};
use crate::service::{Service, from_libp2p, to_libp2p};
use crate::session::{Session, Stage};
use crate::streams::{self, OpenError, Path, StreamKind};
use crate::swarm::{BehaviourEvent, SwarmEvent};

impl Service {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is non-exhaustive; the rest needs no answer"
    )]
    pub(crate) async fn handle_swarm(&mut self, event: SwarmEvent) {
        match event {
            SwarmEvent::Behaviour(event) => self.handle_behaviour(event).await,
            SwarmEvent::NewListenAddr { address, .. } => {
                let address = self.full_address(address);
                tracing::debug!(%address, "listening");
                self.report(NetworkEvent::Listening { address });
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed {
                peer_id, connection_id, num_established, cause, ..
            } => {
                let cause = cause.map_or_else(|| "closed".to_owned(), |cause| cause.to_string());
                self.disconnected(peer_id, connection_id, num_established, cause).await;
            }
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error } => {
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
            BehaviourEvent::Limits(never) | BehaviourEvent::Blocked(never) => match never {},
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
            entry.rtt = Some(rtt);
        });
        if known.is_some() {
            self.report(NetworkEvent::RoundTrip { peer, rtt });
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
        if self.sessions.contains_key(&peer) || self.is_stopping() {
            return;
        }
        self.begin_session(peer, endpoint.get_remote_address().clone());
    }

    fn begin_session(&mut self, peer: PeerId, address: libp2p::Multiaddr) {
        self.sessions_begun += 1;
        let channels = self.channels.clone();
        let session = Session::new(peer, self.sessions_begun, channels, Instant::now());
        self.sessions.insert(peer, session.reached_at(address));
        self.open(peer, StreamKind::Control);
    }

    /// Opens the stream of `kind` on the best connection, if it is not there; for tensors a bulk
    /// connection beside it, where it is QUIC and the peer speaks that.
    pub(crate) fn open(&mut self, peer: PeerId, kind: StreamKind) {
        let (Some(session), Some(id)) = (self.sessions.get_mut(&peer), to_libp2p(peer)) else {
            return;
        };
        if !session.is_idle(kind) {
            return;
        }
        let streams = &mut self.swarm.behaviour_mut().streams;
        let quic = streams.best_path(id) == Some(Path::Quic);
        if kind == StreamKind::Bulk && quic && session.open_bulk(&self.bulk.bulk, id) {
            return;
        }
        if let Some(connection) = streams.open(id, kind) {
            session.opening(kind, Some(connection));
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
            if let Some(session) = self.sessions.get_mut(&peer) {
                session.connection_closed(connection);
                let up = session.is_up();
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

    fn not_connected(
        &mut self,
        connection: ConnectionId,
        peer: Option<libp2p::PeerId>,
        error: &DialError,
    ) {
        let now = Instant::now();
        if let Some(index) = self.dialer.bootstrap_of(connection) {
            if matches!(error, DialError::LocalPeerId { .. }) {
                self.dialer.abandon(index);
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
                if let Some(session) = self.sessions.get_mut(&peer) {
                    session.opened(kind, connection, stream, &self.hello);
                    self.complete(peer);
                }
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
        session.not_opened(kind, Some(connection));
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

    pub(crate) async fn handle_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Hello { origin, run, incarnation } => {
                if self.is_current(&origin) {
                    self.greeted(&origin, &run, incarnation).await;
                }
            }
            LinkEvent::ReaderEnded { origin, end } => {
                if self.is_current(&origin) {
                    self.reader_ended(&origin, end).await;
                }
            }
            LinkEvent::BulkOpened { origin, result } => {
                if self.is_current(&origin) {
                    self.bulk_opened(origin, result);
                }
            }
            LinkEvent::WriterEnded { origin, queue } => {
                if self.is_current(&origin) {
                    self.writer_ended(&origin, queue);
                }
            }
        }
    }

    fn is_current(&self, origin: &Origin) -> bool {
        let session = self.sessions.get(&origin.peer);
        session.is_some_and(|session| session.number == origin.session)
    }

    async fn greeted(&mut self, origin: &Origin, run: &RunSpec, incarnation: u64) {
        let peer = origin.peer;
        if let Some(difference) = self.run.difference(run) {
            self.refuse(peer, difference);
            return;
        }
        let (Some(session), Some(connection)) = (self.sessions.get_mut(&peer), origin.connection)
        else {
            return;
        };
        match session.stage {
            Stage::Greeting(_) => {
                session.hello = Some((incarnation, connection));
                self.complete(peer);
            }
            Stage::Up(known) if known == incarnation => {
                let releases = session.releases(connection);
                self.release(releases);
            }
            Stage::Up(_) => self.restarted(peer).await,
            Stage::Refusing(_) => {}
        }
    }

    /// Another start of the peer's process took over: everything of the earlier one ends. The new
    /// connection is closed as well; one of the two dials again and the peer is greeted as new.
    async fn restarted(&mut self, peer: PeerId) {
        self.end_session(peer, DownReason::Restarted).await;
        if let Some(id) = to_libp2p(peer) {
            // It has at least the connection that the hello came on.
            let _ = self.swarm.disconnect_peer_id(id);
        }
    }

    fn refuse(&mut self, peer: PeerId, difference: RunDifference) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        if matches!(session.stage, Stage::Refusing(_)) {
            return;
        }
        let message = Message::Refuse {
            field: difference.field.clone(),
            ours: difference.ours.clone(),
            theirs: difference.theirs.clone(),
        };
        if let (Some([control, _]), Ok(frame)) = (&session.senders, encode_control(&message)) {
            // Full or gone: the peer finds the difference by itself.
            let _ = control.try_send(Outgoing::Control(frame));
        }
        session.stage = Stage::Refusing(Instant::now() + REFUSE_LINGER);
        session.withhold();
        tracing::debug!(%peer, %difference, "peer of another run");
        self.report(NetworkEvent::Refused { peer, difference, by_us: true });
    }

    /// Reports the peer up once its hello matched and ours is on its way.
    fn complete(&mut self, peer: PeerId) {
        let up = self.shared.peers().len();
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        let (Stage::Greeting(_), Some((incarnation, connection)), true) =
            (session.stage, session.hello, session.can_speak())
        else {
            return;
        };
        if self.is_stopping() {
            return;
        }
        let session = self.sessions.get_mut(&peer);
        let Some(session) = session else { return };
        if up >= self.peers_max {
            tracing::debug!(%peer, up, "no room for another peer");
            self.block(peer, FULL_BACK_OFF);
            return;
        }
        let (Some([control, bulk]), Some(address)) = (session.senders.take(), &session.address)
        else {
            return;
        };
        let address = address.clone();
        session.stage = Stage::Up(incarnation);
        let kind = match Path::of(&address) {
            Path::Quic => Connection::Quic,
            Path::Tcp | Path::Relayed => Connection::Tcp,
        };
        let entry = Entry {
            control,
            bulk,
            traffic: session.traffic.clone(),
            address: address.clone(),
            incarnation,
            connection: kind,
            rtt: None,
        };
        let releases = session.releases(connection);
        self.shared.peers().insert(peer, entry);
        self.dialer.up(peer);
        tracing::debug!(%peer, %address, "peer up");
        self.report(NetworkEvent::PeerUp { peer, address, incarnation, connection: kind });
        self.release(releases);
        self.open(peer, StreamKind::Bulk);
    }

    async fn reader_ended(&mut self, origin: &Origin, end: ReaderEnd) {
        let peer = origin.peer;
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        session.read(origin.stream);
        let refusing = matches!(session.stage, Stage::Refusing(_));
        match end {
            ReaderEnd::Offence(..) | ReaderEnd::Finished { .. } | ReaderEnd::Refused(_)
                if refusing =>
            {
                self.hang_up_refused(peer).await;
            }
            ReaderEnd::Offence(kind, detail) => self.offend(peer, kind, detail).await,
            ReaderEnd::Refused(difference) => {
                tracing::debug!(%peer, %difference, "refused by a peer of another run");
                self.report(NetworkEvent::Refused { peer, difference, by_us: false });
                self.hang_up_refused(peer).await;
            }
            ReaderEnd::Finished { goodbye } if origin.kind == StreamKind::Control => {
                if goodbye {
                    self.end_session(peer, DownReason::Left).await;
                    self.dialer.left(peer);
                } else {
                    let reason = DownReason::Lost("it hung up".to_owned());
                    self.end_session(peer, reason).await;
                }
                if let Some(id) = to_libp2p(peer) {
                    // It may have hung up already.
                    let _ = self.swarm.disconnect_peer_id(id);
                }
            }
            ReaderEnd::Failed(error) => {
                tracing::debug!(%peer, kind = %origin.kind, %error, "read failed");
                if let Some(connection) = origin.connection {
                    self.swarm.close_connection(connection);
                }
            }
            ReaderEnd::Finished { .. } | ReaderEnd::Ignored => {}
        }
    }

    fn writer_ended(&mut self, origin: &Origin, queue: tokio::sync::mpsc::Receiver<Outgoing>) {
        let Some(session) = self.sessions.get_mut(&origin.peer) else {
            return;
        };
        session.written(origin.kind, queue);
        if self.is_stopping() {
            // Drained; the peer hangs up when it has read to the end.
            return;
        }
        // A stream that failed alone takes its connection with it; what remains opens it again.
        let closing = origin.connection.is_some_and(|id| self.swarm.close_connection(id));
        if !closing {
            self.open(origin.peer, origin.kind);
        }
    }

    /// Ends handshakes and refusals that took too long.
    pub(crate) async fn check_handshakes(&mut self, now: Instant) {
        let late: Vec<_> = self
            .sessions
            .iter()
            .filter_map(|(peer, session)| match session.stage {
                Stage::Greeting(deadline) if deadline <= now => Some((*peer, false)),
                Stage::Refusing(deadline) if deadline <= now => Some((*peer, true)),
                Stage::Greeting(_) | Stage::Refusing(_) | Stage::Up(_) => None,
            })
            .collect();
        for (peer, refusing) in late {
            if refusing {
                self.hang_up_refused(peer).await;
            } else {
                let detail = format!("no hello within {:?}", crate::limits::HELLO_TIMEOUT);
                self.offend(peer, OffenceKind::NoHello, detail).await;
            }
        }
    }
}
