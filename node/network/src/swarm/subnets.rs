//! Bounds the connections that are being established from one network, so that strangers there who say
//! nothing keep nobody else out.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::task::{Context, Poll};

use dnode_direct::is_near;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};

use crate::address::{Subnet, ip, subnet};
use crate::limits::PENDING_PER_SUBNET_MAX;

/// Too many connections from one network are being established.
#[derive(Debug, thiserror::Error)]
#[error("{PENDING_PER_SUBNET_MAX} connections from that network are being established")]
struct Crowded;

/// The inbound connections that are being established, by network.
#[derive(Debug, Default)]
pub(crate) struct Behaviour {
    /// As many as libp2p's own limit lets begin.
    pending: BTreeMap<ConnectionId, Subnet>,
}

/// The network of an owner who is not near. None inside a machine or a private network: there it says nothing of
/// owners.
pub(crate) fn network(ip: Option<IpAddr>) -> Option<Subnet> {
    ip.filter(|ip| !is_near(*ip)).map(subnet)
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        // A circuit comes from a relay, which has limits of its own.
        let Some(subnet) = ip(remote).map(subnet) else { return Ok(()) };
        if self.pending.values().filter(|other| **other == subnet).count() >= PENDING_PER_SUBNET_MAX
        {
            return Err(ConnectionDenied::new(Crowded));
        }
        self.pending.insert(connection, subnet);
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.pending.remove(&connection);
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let FromSwarm::ListenFailure(failure) = event {
            self.pending.remove(&failure.connection_id);
        }
    }

    fn on_connection_handler_event(
        &mut self,
        _: PeerId,
        _: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_takes_no_more_than_its_places_and_gets_them_back() {
        let mut crowd = Behaviour::default();
        let here: Multiaddr = "/ip4/192.0.2.1/tcp/1".parse().unwrap();
        let mut begin = |number: usize, from: &str| {
            let connection = ConnectionId::new_unchecked(number);
            let from: Multiaddr = from.parse().unwrap();
            crowd.handle_pending_inbound_connection(connection, &here, &from).is_ok()
        };
        for number in 0..PENDING_PER_SUBNET_MAX {
            let from = format!("/ip4/198.51.100.{number}/udp/1/quic-v1");
            assert!(begin(number, &from));
        }
        assert!(!begin(900, "/ip4/198.51.100.255/udp/1/quic-v1"));
        assert!(!begin(900, "/ip6/::ffff:198.51.100.9/udp/1/quic-v1"), "the same network");
        assert!(begin(901, "/ip4/198.51.101.1/udp/1/quic-v1"));
        assert!(begin(902, "/ip6/2001:db8:1::1/udp/1/quic-v1"));
        assert!(begin(903, "/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"));
        let first = ConnectionId::new_unchecked(0);
        let done =
            crowd.handle_established_inbound_connection(first, PeerId::random(), &here, &here);
        assert!(done.is_ok());
        let from: Multiaddr = "/ip4/198.51.100.255/tcp/1".parse().unwrap();
        let again = ConnectionId::new_unchecked(904);
        assert!(crowd.handle_pending_inbound_connection(again, &here, &from).is_ok());
        assert_eq!(crowd.pending.len(), PENDING_PER_SUBNET_MAX + 2);
    }
}
