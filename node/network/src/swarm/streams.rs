//! A libp2p behaviour that opens and accepts the two kinds of stream a peer pair uses.
//!
//! It differs from the stock stream behaviour in three ways. It queues concurrent inbound streams up to
//! a bound and reports those that it must reject. It opens streams on the best connection of a peer:
//! direct QUIC before TCP before relayed. It forgets connections that are closed, and those that exist
//! for a moment only.

mod handler;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::task::{Context, Poll};

use dnode_protocol::limits::{BULK_PROTOCOL, CONTROL_PROTOCOL};
use libp2p::core::transport::PortUse;
use libp2p::core::{ConnectedPoint, Endpoint};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler,
    THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
    behaviour::{AddressChange, ConnectionEstablished},
};
use libp2p::{Multiaddr, PeerId, Stream};

pub use handler::Handler;

/// What a stream carries. Each stream has one direction: from the peer that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamKind {
    /// Control frames.
    Control,
    /// Tensor frames.
    Bulk,
}

impl StreamKind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Control, Self::Bulk];
}

impl AsRef<str> for StreamKind {
    /// The name of the protocol by which the two ends negotiate the stream.
    fn as_ref(&self) -> &str {
        match self {
            Self::Control => CONTROL_PROTOCOL,
            Self::Bulk => BULK_PROTOCOL,
        }
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "control",
            Self::Bulk => "bulk",
        })
    }
}

/// How a connection reaches its peer, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Directly over QUIC.
    Quic,
    /// Directly over TCP.
    Tcp,
    /// Through a relay.
    Relayed,
}

impl Path {
    /// The path that `address` describes.
    #[must_use]
    pub fn of(address: &Multiaddr) -> Self {
        let mut path = Self::Tcp;
        for protocol in address {
            if matches!(protocol, Protocol::P2pCircuit) {
                return Self::Relayed;
            }
            if matches!(protocol, Protocol::QuicV1) {
                path = Self::Quic;
            }
        }
        path
    }
}

/// The address at which a connection to `peer` ends; it names the relay that the connection leads
/// through, if any. Of a circuit that came in, libp2p names the relay at our end alone.
#[must_use]
pub fn far_end(endpoint: &ConnectedPoint, peer: PeerId) -> Multiaddr {
    match endpoint {
        ConnectedPoint::Listener { local_addr, .. } if endpoint.is_relayed() => {
            let ours = |protocol: &Protocol<'_>| !matches!(protocol, Protocol::P2pCircuit);
            let relay: Multiaddr = local_addr.iter().take_while(ours).collect();
            relay.with(Protocol::P2pCircuit).with(Protocol::P2p(peer))
        }
        ConnectedPoint::Listener { .. } | ConnectedPoint::Dialer { .. } => {
            endpoint.get_remote_address().clone()
        }
    }
}

/// Whether a connection was opened from a new port. Only AutoNAT opens such connections: they prove that
/// the other end can be dialled, and are closed after that.
#[must_use]
pub const fn is_proof(endpoint: &ConnectedPoint) -> bool {
    matches!(endpoint, ConnectedPoint::Dialer { port_use: PortUse::New, .. })
}

/// What the behaviour reports.
#[derive(Debug)]
pub enum Event {
    /// A stream that [`Behaviour::open`] asked for is ready to be written.
    Opened {
        /// The peer.
        peer: PeerId,
        /// The connection it runs on.
        connection: ConnectionId,
        /// Its kind.
        kind: StreamKind,
        /// The stream.
        stream: Stream,
    },
    /// The peer opened a stream; it is ready to be read.
    Accepted {
        /// The peer.
        peer: PeerId,
        /// The connection it runs on.
        connection: ConnectionId,
        /// Its kind.
        kind: StreamKind,
        /// The stream.
        stream: Stream,
    },
    /// A stream that [`Behaviour::open`] asked for could not be opened.
    OpenFailed {
        /// The peer.
        peer: PeerId,
        /// The connection it was asked of.
        connection: ConnectionId,
        /// Its kind.
        kind: StreamKind,
        /// Why.
        error: OpenError,
    },
    /// The peer opened more streams than [`crate::limits::INBOUND_STREAMS_MAX`]; this one was reset.
    Rejected {
        /// The peer.
        peer: PeerId,
    },
}

/// Why a stream was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The other end is no dnode peer.
    #[error("open a {0} stream: the other end does not speak the protocol")]
    Unsupported(StreamKind),
    /// The connection failed, or did not answer in time.
    #[error("open a {0} stream: {1}")]
    Failed(StreamKind, String),
}

/// Opens and accepts streams on every connection of the swarm.
#[derive(Debug, Default)]
pub struct Behaviour {
    connections: BTreeMap<PeerId, Vec<(Path, ConnectionId)>>,
    events: VecDeque<ToSwarm<Event, StreamKind>>,
}

impl Behaviour {
    /// Asks for a stream of `kind` on the best connection to `peer`, and names that connection;
    /// `None` when there is none. [`Event::Opened`] or [`Event::OpenFailed`] follows, unless the
    /// connection closes first.
    pub fn open(&mut self, peer: PeerId, kind: StreamKind) -> Option<ConnectionId> {
        let connection = self.best(peer)?;
        self.open_on(peer, connection, kind);
        Some(connection)
    }

    /// Asks for a stream of `kind` on this connection to `peer`; the same events follow as after
    /// [`Behaviour::open`].
    pub fn open_on(&mut self, peer: PeerId, connection: ConnectionId, kind: StreamKind) {
        self.events.push_back(ToSwarm::NotifyHandler {
            peer_id: peer,
            handler: NotifyHandler::One(connection),
            event: kind,
        });
    }

    /// The connection to `peer` on which streams are opened.
    #[must_use]
    pub fn best(&self, peer: PeerId) -> Option<ConnectionId> {
        let connections = self.connections.get(&peer)?;
        connections.iter().min().map(|(_, connection)| *connection)
    }

    /// How [`Behaviour::best`] reaches `peer`.
    #[must_use]
    pub fn best_path(&self, peer: PeerId) -> Option<Path> {
        let connections = self.connections.get(&peer)?;
        connections.iter().min().map(|(path, _)| *path)
    }

    /// How one connection reaches `peer`.
    #[must_use]
    pub fn path(&self, peer: PeerId, connection: ConnectionId) -> Option<Path> {
        let mut connections = self.connections.get(&peer)?.iter();
        connections.find(|(_, id)| *id == connection).map(|(path, _)| *path)
    }

    /// Every connection to `peer`.
    #[must_use]
    pub fn connections(&self, peer: PeerId) -> Vec<ConnectionId> {
        let connections = self.connections.get(&peer).into_iter().flatten();
        connections.map(|(_, connection)| *connection).collect()
    }

    /// Keeps [`Behaviour::open`] from choosing a connection that is being closed.
    pub fn forget(&mut self, peer: PeerId, connection: ConnectionId) {
        if let Some(connections) = self.connections.get_mut(&peer) {
            connections.retain(|(_, id)| *id != connection);
            if connections.is_empty() {
                self.connections.remove(&peer);
            }
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(Handler::default())
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is non-exhaustive; only connections matter here"
    )]
    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            }) if !is_proof(endpoint) => {
                let path = Path::of(&far_end(endpoint, peer_id));
                let connections = self.connections.entry(peer_id).or_default();
                connections.push((path, connection_id));
            }
            FromSwarm::AddressChange(AddressChange { peer_id, connection_id, new, .. }) => {
                let path = Path::of(&far_end(new, peer_id));
                let connections = self.connections.get_mut(&peer_id).into_iter().flatten();
                for entry in connections.filter(|(_, id)| *id == connection_id) {
                    entry.0 = path;
                }
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                self.forget(peer_id, connection_id);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        let event = match event {
            handler::Event::Opened(kind, stream) => {
                Event::Opened { peer, connection, kind, stream }
            }
            handler::Event::Accepted(kind, stream) => {
                Event::Accepted { peer, connection, kind, stream }
            }
            handler::Event::OpenFailed(kind, error) => {
                Event::OpenFailed { peer, connection, kind, error }
            }
            handler::Event::Rejected => Event::Rejected { peer },
        };
        // The swarm takes each event before it polls a connection again, so the queue stays short.
        self.events.push_back(ToSwarm::GenerateEvent(event));
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Event, THandlerInEvent<Self>>> {
        // Only calls by the swarm or by its owner add events, and both poll afterwards.
        self.events.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stream_is_opened_on_a_passing_connection() {
        let (mut streams, peer) = (Behaviour::default(), PeerId::random());
        for (number, port_use) in [PortUse::New, PortUse::Reuse].into_iter().enumerate() {
            let endpoint = ConnectedPoint::Dialer {
                address: "/ip4/192.0.2.1/udp/1/quic-v1".parse().unwrap(),
                role_override: Endpoint::Dialer,
                port_use,
            };
            streams.on_swarm_event(FromSwarm::ConnectionEstablished(ConnectionEstablished {
                peer_id: peer,
                connection_id: ConnectionId::new_unchecked(number),
                endpoint: &endpoint,
                failed_addresses: &[],
                other_established: 0,
            }));
        }
        assert_eq!(streams.connections(peer), [ConnectionId::new_unchecked(1)]);
    }

    #[test]
    fn a_circuit_that_came_in_leads_through_its_relay() {
        let (relay, me, peer) = (PeerId::random(), PeerId::random(), PeerId::random());
        let through = format!("/ip4/192.0.2.1/udp/1/quic-v1/p2p/{relay}/p2p-circuit");
        let came_in = |local: &str, remote: &str| ConnectedPoint::Listener {
            local_addr: local.parse().unwrap(),
            send_back_addr: remote.parse().unwrap(),
        };
        for end in ["", &format!("/p2p/{me}")] {
            let endpoint = came_in(&format!("{through}{end}"), &format!("/p2p/{peer}"));
            let address = far_end(&endpoint, peer);
            assert_eq!(address.to_string(), format!("{through}/p2p/{peer}"));
            assert_eq!(Path::of(&address), Path::Relayed);
        }
        let remote = "/ip4/192.0.2.7/udp/1/quic-v1";
        let direct = came_in("/ip4/192.0.2.1/udp/1/quic-v1", remote);
        assert_eq!(far_end(&direct, peer).to_string(), remote);
    }
}
