//! The streams to the peers of sessions: the connection on which each runs, and when it moves.

use dnode_direct::Kind;
use dnode_protocol::PeerId;
use dnode_quic::{BulkConnection, Error};
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, Stream};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Sessions;
use crate::address::{from_libp2p, to_libp2p};
use crate::context::Context;
use crate::event::{Carrier, Connection};
use crate::io::bulk::BulkStreams;
use crate::io::report::{Origin, Outgoing, Via};
use crate::io::writer::FrameSink;
use crate::limits::READERS_MAX;
use crate::swarm::streams::{Path, StreamKind};

impl Sessions {
    /// Opens the stream of `kind` on the best connection, if there is none. Tensors take a direct path
    /// where the peer is near, or a bulk connection beside a QUIC connection.
    pub(crate) fn open(&mut self, peer: PeerId, kind: StreamKind, context: &mut Context) {
        if !self.sessions.get(&peer).is_some_and(|session| session.is_idle(kind)) {
            return;
        }
        let aside = self.sessions.get(&peer).is_some_and(|session| session.part.aside);
        if kind == StreamKind::Bulk && (aside || self.open_direct(peer, context)) {
            return;
        }
        let (Some(session), Some(id)) = (self.sessions.get_mut(&peer), to_libp2p(peer)) else {
            return;
        };
        let streams = &mut context.swarm.behaviour_mut().streams;
        let best = streams.best(id).and_then(|best| context.traversal.address(best));
        session.circuit = best.and_then(|address| context.traversal.bound(address));
        let quic = streams.best_path(id) == Some(Path::Quic);
        if kind == StreamKind::Bulk && quic && session.open_bulk(&self.bulk, id) {
            return;
        }
        if let Some(connection) = streams.open(id, kind) {
            session.opening(kind, Via::Stream(connection));
        }
    }

    /// Starts to write to the sink that was opened for `kind`.
    pub(crate) fn on_opened(
        &mut self,
        peer: PeerId,
        (kind, via): (StreamKind, Via),
        sink: FrameSink,
        context: &Context,
    ) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        let carrier = sink.carrier();
        let hello = (kind == StreamKind::Control).then(|| context.greeting.hello());
        if session.begin(kind, via, sink, hello) && kind == StreamKind::Bulk {
            session.carrier = Some(carrier);
            session.search.on_host |= carrier == Carrier::Direct(Kind::Memory);
            match session.search.because.take() {
                Some(because) => tracing::info!(%peer, %carrier, because, "tensors travel"),
                None => tracing::info!(%peer, %carrier, "tensors travel"),
            }
            if let Some(entry) = context.shared.peers().get_mut(&peer) {
                entry.carrier = Some(carrier);
            }
        }
        // A better connection may have come while this stream was being opened; the stream could not
        // move then.
        if via.connection().is_some_and(|connection| is_outdone(peer, connection, context)) {
            tracing::debug!(%peer, %kind, "a stream moves on");
            session.leave(kind);
        }
        if kind == StreamKind::Bulk && session.search.ready.is_some() {
            // A direct path came meanwhile.
            session.leave(kind);
        }
    }

    /// Lets the streams of a peer move to a new connection that is better than theirs.
    pub(crate) fn move_streams(&mut self, peer: PeerId, address: &Multiaddr, context: &Context) {
        let path = Path::of(address);
        let (Some(session), Some(id)) = (self.sessions.get_mut(&peer), to_libp2p(peer)) else {
            return;
        };
        if session.address.as_ref().is_some_and(|now| path < Path::of(now)) {
            session.address = Some(address.clone());
            // Where it was not near, it may be at this address.
            session.search.next.get_or_insert_with(Instant::now);
        }
        if path == Path::Quic {
            session.bulk_again();
        }
        let streams = &context.swarm.behaviour().streams;
        for kind in StreamKind::ALL {
            let now = session.via(kind).and_then(Via::connection);
            if now.and_then(|now| streams.path(id, now)).is_some_and(|now| path < now) {
                tracing::debug!(%peer, %kind, ?path, "a stream moves");
                session.leave(kind);
            }
        }
        if let Some(entry) = context.shared.peers().get_mut(&peer)
            && path < Path::of(&entry.address)
        {
            entry.connection = Connection::of(path);
            entry.address = address.clone();
        }
    }

    /// Reads a stream that the peer has opened. Returns `false` when it has opened too many, and `None`
    /// when the other end has no session.
    pub(crate) fn on_accepted(
        &mut self,
        peer: PeerId,
        (kind, connection): (StreamKind, ConnectionId),
        stream: Stream,
        context: &mut Context,
    ) -> Option<bool> {
        let session = self.sessions.get_mut(&peer)?;
        if session.readers(connection) >= READERS_MAX {
            return Some(false);
        }
        let release = session.accept(kind, connection, stream);
        context.outbox.release(release);
        Some(true)
    }

    /// Notes that a stream that was asked for cannot be had. Returns whether the peer counts as
    /// connected, or `None` when it has no session.
    pub(crate) fn on_open_failed(
        &mut self,
        peer: PeerId,
        kind: StreamKind,
        connection: ConnectionId,
    ) -> Option<bool> {
        let session = self.sessions.get_mut(&peer)?;
        session.not_opened(kind, Via::Stream(connection));
        Some(session.is_up())
    }

    /// Handles the end of one of several connections to `peer`.
    pub(crate) fn on_connection_closed(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        context: &mut Context,
    ) {
        let Some(session) = self.sessions.get_mut(&peer) else { return };
        session.connection_closed(connection);
        if let Some(address) = context.best_address(peer) {
            if let Some(entry) = context.shared.peers().get_mut(&peer) {
                entry.connection = Connection::of(Path::of(&address));
                entry.address = address.clone();
            }
            session.address = Some(address);
        }
        let up = session.is_up();
        self.open(peer, StreamKind::Control, context);
        if up {
            self.open(peer, StreamKind::Bulk, context);
        }
    }

    /// Uses a bulk connection that was asked for. Where there is none, a stream carries the tensors.
    pub(crate) fn on_bulk_opened(
        &mut self,
        peer: PeerId,
        result: Result<BulkConnection, Error>,
        context: &mut Context,
    ) {
        let Some(session) = self.sessions.get_mut(&peer) else {
            return;
        };
        match result {
            Ok(connection) => {
                let sink = FrameSink::Quic(BulkStreams::new(connection));
                self.on_opened(peer, (StreamKind::Bulk, Via::Quic), sink, context);
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "no bulk connection");
                let stays = matches!(
                    error,
                    Error::Unsupported(_)
                        | Error::NotConnected
                        | Error::WrongPeer { .. }
                        | Error::NoIdentity
                );
                if stays {
                    session.no_bulk();
                } else {
                    // One that is late or was refused may open the next time.
                    session.not_opened(StreamKind::Bulk, Via::Quic);
                }
                self.open(peer, StreamKind::Bulk, context);
            }
        }
    }

    /// Reads a bulk connection that a peer opened; closes it when the peer has no session.
    pub(crate) fn on_bulk_arrived(&mut self, connection: BulkConnection, context: &mut Context) {
        let peer = from_libp2p(connection.peer());
        let Some(session) = peer.and_then(|peer| self.sessions.get_mut(&peer)) else {
            connection.close();
            return;
        };
        let release = session.accept_bulk(connection);
        context.outbox.release(release);
    }

    /// Takes back the queue of a writer that was asked to stop (`left`) or has failed.
    pub(crate) fn on_writer_ended(
        &mut self,
        origin: &Origin,
        queue: mpsc::Receiver<Outgoing>,
        left: bool,
        context: &mut Context,
    ) {
        let Some(session) = self.sessions.get_mut(&origin.peer) else {
            return;
        };
        session.written(origin.kind, queue);
        if left && origin.via == Via::Quic {
            // It worked until there was something better.
            session.bulk_again();
        }
        if origin.kind == StreamKind::Bulk
            && let Some(entry) = context.shared.peers().get_mut(&origin.peer)
        {
            entry.carrier = None;
        }
        if context.is_stopping() {
            // The queue is drained; the peer closes the connection when it has read to the end.
            return;
        }
        // When a stream fails, its connection is closed as well; the stream opens again on another one.
        let connection = origin.connection().filter(|_| !left);
        let closing = connection.is_some_and(|id| context.swarm.close_connection(id));
        if !closing {
            self.open(origin.peer, origin.kind, context);
        }
    }
}

/// Whether streams may move from `connection` to a better one to the same peer.
fn is_outdone(peer: PeerId, connection: ConnectionId, context: &Context) -> bool {
    let (streams, id) = (&context.swarm.behaviour().streams, to_libp2p(peer));
    let path = |connection| streams.path(id?, connection);
    let mut others = id.map(|id| streams.connections(id)).into_iter().flatten();
    path(connection).is_some_and(|now| {
        others.any(|other| {
            context.traversal.has_settled(other) && path(other).is_some_and(|path| path < now)
        })
    })
}
