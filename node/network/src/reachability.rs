//! Whether other peers can open connections to this one, from what they say and what AutoNAT proves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libp2p::Multiaddr;
use libp2p::swarm::ConnectionId;

use crate::direct::ip;
use crate::limits::CANDIDATES_MAX;

/// Where this peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nobody has said anything yet.
    Unknown,
    /// Others can dial it.
    Reachable,
    /// Others see its packets come from this address, which is not its own.
    BehindNat(IpAddr),
    /// Others could not dial it at this address.
    Closed(IpAddr),
}

/// What is known of it. A peer that lies about what it sees makes this one take relays that it does
/// not need, and no more: the proof that an address works is AutoNAT's.
#[derive(Debug, Default)]
pub(crate) struct Reachability {
    /// Addresses that were proven to work, or that the configuration names.
    proven: BTreeSet<Multiaddr>,
    /// Where the other ends of connections that this peer opened see it.
    seen: BTreeMap<ConnectionId, IpAddr>,
    /// Addresses that AutoNAT could not dial.
    failed: BTreeSet<IpAddr>,
}

impl Reachability {
    /// The other end of a connection that this peer opened sees it at `address`.
    pub(crate) fn seen(&mut self, connection: ConnectionId, address: &Multiaddr) {
        if let Some(ip) = ip(address) {
            self.seen.insert(connection, ip);
        }
    }

    /// A connection closed: what its other end saw counts no more.
    pub(crate) fn closed(&mut self, connection: ConnectionId) {
        self.seen.remove(&connection);
    }

    /// Others can dial `address`.
    pub(crate) fn proven(&mut self, address: &Multiaddr) {
        if self.proven.len() < CANDIDATES_MAX {
            self.proven.insert(address.clone());
        }
    }

    /// `address` works no more.
    pub(crate) fn expired(&mut self, address: &Multiaddr) {
        self.proven.remove(address);
    }

    /// A peer could not dial `address`.
    pub(crate) fn failed(&mut self, address: &Multiaddr) {
        if let Some(ip) = ip(address)
            && self.failed.len() < CANDIDATES_MAX
        {
            self.failed.insert(ip);
        }
    }

    /// Where this peer stands, which listens at the addresses `own`.
    pub(crate) fn standing(&self, own: &[IpAddr]) -> Standing {
        let works =
            |wanted: &IpAddr| self.proven.iter().any(|address| ip(address) == Some(*wanted));
        let elsewhere = |seen: &&IpAddr| !own.contains(seen) && !works(seen);
        if let Some(seen) = self.seen.values().find(elsewhere) {
            return Standing::BehindNat(*seen);
        }
        if let Some(closed) = self.failed.iter().find(|failed| !works(failed)) {
            return Standing::Closed(*closed);
        }
        if self.proven.is_empty() { Standing::Unknown } else { Standing::Reachable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        format!("/ip4/{text}/udp/4001/quic-v1").parse().unwrap()
    }

    fn connection(number: usize) -> ConnectionId {
        ConnectionId::new_unchecked(number)
    }

    const OWN: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::new(192, 168, 1, 5))];

    #[test]
    fn a_peer_in_the_open_is_reachable_once_it_is_proven() {
        let mut peer = Reachability::default();
        assert_eq!(peer.standing(&OWN), Standing::Unknown);
        peer.seen(connection(1), &address("192.168.1.5"));
        assert_eq!(peer.standing(&OWN), Standing::Unknown);
        peer.proven(&address("192.168.1.5"));
        assert_eq!(peer.standing(&OWN), Standing::Reachable);
        peer.expired(&address("192.168.1.5"));
        assert_eq!(peer.standing(&OWN), Standing::Unknown);
    }

    #[test]
    fn another_address_means_a_nat_until_that_address_is_proven() {
        let mut peer = Reachability::default();
        // Those of the local network reach it all the same.
        peer.proven(&address("192.168.1.5"));
        peer.seen(connection(1), &address("203.0.113.9"));
        let nat = Standing::BehindNat("203.0.113.9".parse().unwrap());
        assert_eq!(peer.standing(&OWN), nat);
        // A port that the router forwards.
        peer.proven(&address("203.0.113.9"));
        assert_eq!(peer.standing(&OWN), Standing::Reachable);
        peer.expired(&address("203.0.113.9"));
        assert_eq!(peer.standing(&OWN), nat);
        peer.closed(connection(1));
        assert_eq!(peer.standing(&OWN), Standing::Reachable, "nobody out there is left");
    }

    #[test]
    fn an_own_address_that_nobody_can_dial_is_closed() {
        let mut peer = Reachability::default();
        peer.seen(connection(1), &address("192.168.1.5"));
        peer.failed(&address("192.168.1.5"));
        assert_eq!(peer.standing(&OWN), Standing::Closed(OWN[0]));
        peer.proven(&address("192.168.1.5"));
        assert_eq!(peer.standing(&OWN), Standing::Reachable);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut peer = Reachability::default();
        for byte in 0..=255 {
            peer.failed(&address(&format!("192.0.2.{byte}")));
            peer.proven(&address(&format!("198.51.100.{byte}")));
        }
        assert_eq!((peer.failed.len(), peer.proven.len()), (CANDIDATES_MAX, CANDIDATES_MAX));
    }
}
