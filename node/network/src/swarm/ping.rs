//! libp2p's ping, polled once more so that it answers at once over QUIC.
//!
//! After libp2p-ping 0.48 has answered a ping, it begins to read the next one without polling that read,
//! so nothing wakes it. Over TCP every frame wakes the whole connection, which hides the defect. Over
//! QUIC the next answer waits for some other timer, here up to the ping interval, and round-trip times
//! become meaningless. A second poll registers the read.

use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::handler::ConnectionEvent;
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm,
    NetworkBehaviour, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId, ping};

/// The handler of libp2p's ping, which has no public name.
type Inner = <ping::Behaviour as NetworkBehaviour>::ConnectionHandler;

/// libp2p's ping behaviour with the handler below.
pub(crate) struct Behaviour(ping::Behaviour);

impl Behaviour {
    pub(crate) fn new(config: ping::Config) -> Self {
        Self(ping::Behaviour::new(config))
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = ping::Event;

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let inner = &mut self.0;
        inner.handle_established_inbound_connection(connection, peer, local, remote).map(Handler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let inner = &mut self.0;
        inner
            .handle_established_outbound_connection(connection, peer, address, role, port)
            .map(Handler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.0.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.0.on_connection_handler_event(peer, connection, event);
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<ToSwarm<ping::Event, THandlerInEvent<Self>>> {
        self.0.poll(context)
    }
}

/// One connection's ping.
pub(crate) struct Handler(Inner);

impl ConnectionHandler for Handler {
    type FromBehaviour = <Inner as ConnectionHandler>::FromBehaviour;
    type ToBehaviour = <Inner as ConnectionHandler>::ToBehaviour;
    type InboundProtocol = <Inner as ConnectionHandler>::InboundProtocol;
    type OutboundProtocol = <Inner as ConnectionHandler>::OutboundProtocol;
    type InboundOpenInfo = <Inner as ConnectionHandler>::InboundOpenInfo;
    type OutboundOpenInfo = <Inner as ConnectionHandler>::OutboundOpenInfo;

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol, Self::InboundOpenInfo> {
        self.0.listen_protocol()
    }

    fn connection_keep_alive(&self) -> bool {
        self.0.connection_keep_alive()
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<
        ConnectionHandlerEvent<Self::OutboundProtocol, Self::OutboundOpenInfo, Self::ToBehaviour>,
    > {
        match self.0.poll(context) {
            Poll::Pending => self.0.poll(context),
            ready @ Poll::Ready(_) => ready,
        }
    }

    fn on_behaviour_event(&mut self, event: Self::FromBehaviour) {
        self.0.on_behaviour_event(event);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<
            '_,
            Self::InboundProtocol,
            Self::OutboundProtocol,
            Self::InboundOpenInfo,
            Self::OutboundOpenInfo,
        >,
    ) {
        self.0.on_connection_event(event);
    }
}
