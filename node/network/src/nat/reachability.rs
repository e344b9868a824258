//! Whether other peers can open connections to this one, from what they say and what AutoNAT proves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use dnode_direct::is_near;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};

use crate::address::ip;
use crate::limits::CANDIDATES_MAX;
use crate::swarm::streams::Path;

/// Whether others can dial this peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nobody has said anything about it yet.
    Unknown,
    /// Others can dial it.
    Reachable,
    /// Others see its packets come from this address, which is not its own.
    BehindNat(IpAddr),
    /// Others could not dial it at this address.
    Closed(IpAddr),
}

impl Standing {
    /// Whether the log would say the same to the user, apart from the address. The address may change
    /// with each report of a connected peer.
    pub(crate) fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// Writes it to the log.
    pub(crate) fn tell(self) {
        match self {
            Self::Unknown => {}
            Self::Reachable => tracing::info!("other peers can dial this one"),
            Self::BehindNat(seen) => {
                tracing::info!(%seen, "this peer is behind a NAT: others see another address");
            }
            Self::Closed(own) => {
                tracing::info!(%own, "other peers cannot dial this one: a firewall, or a NAT");
            }
        }
    }
}

/// How it is known that an address works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Proof {
    /// A peer came in by it, but perhaps from the same local network or through a hole in a firewall.
    Met,
    /// AutoNAT dialled it, a router forwards it, or the user named it.
    Shown,
}

/// What is known about whether others can dial this peer. Peers that lie about the address that they see
/// can only make this one use relays that it does not need: AutoNAT alone proves that an address works.
#[derive(Debug, Default)]
pub(crate) struct Reachability {
    /// Addresses that work.
    proven: BTreeMap<Multiaddr, Proof>,
    /// The addresses at which the other ends of connections that this peer opened see it.
    seen: BTreeMap<ConnectionId, (PeerId, IpAddr)>,
    /// Addresses that AutoNAT could not dial.
    failed: BTreeSet<IpAddr>,
}

impl Reachability {
    /// Notes that `peer`, to which this one opened a connection, sees it at `address`.
    pub(crate) fn seen(&mut self, connection: ConnectionId, peer: PeerId, address: &Multiaddr) {
        if let Some(ip) = ip(address) {
            self.seen.insert(connection, (peer, ip));
        }
    }

    /// Notes that a connection closed: what its other end saw no longer counts.
    pub(crate) fn closed(&mut self, connection: ConnectionId) {
        self.seen.remove(&connection);
    }

    /// Notes that others can dial `address`.
    pub(crate) fn proven(&mut self, address: &Multiaddr, proof: Proof) {
        let full = self.proven.len() >= CANDIDATES_MAX && !self.proven.contains_key(address);
        if full && proof == Proof::Shown {
            let met = self.proven.iter().find(|(_, proof)| **proof == Proof::Met);
            let met = met.map(|(address, _)| address.clone());
            met.and_then(|address| self.proven.remove(&address));
        }
        if !full || self.proven.len() < CANDIDATES_MAX {
            let known = self.proven.entry(address.clone()).or_insert(proof);
            *known = proof.max(*known);
        }
    }

    /// Notes that `address` no longer works.
    pub(crate) fn expired(&mut self, address: &Multiaddr) {
        self.proven.remove(address);
    }

    /// Notes that a peer could not dial `address`.
    pub(crate) fn failed(&mut self, address: &Multiaddr) {
        if let Some(ip) = ip(address)
            && self.failed.len() < CANDIDATES_MAX
        {
            self.failed.insert(ip);
        }
    }

    /// Whether it is proved that `wanted` works.
    fn works(&self, wanted: IpAddr) -> bool {
        let shown = self.proven.iter().filter(|(_, proof)| **proof == Proof::Shown);
        shown.filter_map(|(address, _)| ip(address)).any(|ip| ip == wanted)
    }

    /// Whether it is proved that an address works that is not of this machine or of a private network.
    fn is_open(&self) -> bool {
        let shown = self.proven.iter().filter(|(_, proof)| **proof == Proof::Shown);
        shown.filter_map(|(address, _)| ip(address)).any(|ip| !is_near(ip))
    }

    /// Whether it is proved that some address works.
    pub(crate) fn is_shown(&self) -> bool {
        self.proven.values().any(|proof| *proof == Proof::Shown)
    }

    /// The address at which others see this peer, when it is neither its own nor proved to work. More
    /// peers must see such an address of that family than see a public one that is its own or proved to
    /// work.
    fn elsewhere(&self, own: &[IpAddr], v4: bool) -> Option<IpAddr> {
        if !own.iter().any(|own| own.is_ipv4() == v4) {
            // Packets of that family leave from a port at which nobody listens.
            return None;
        }
        let (mut open, mut others) = (BTreeSet::new(), BTreeMap::new());
        for (peer, ip) in self.seen.values().filter(|(_, ip)| ip.is_ipv4() == v4) {
            if !own.contains(ip) && !self.works(*ip) {
                others.insert(peer, *ip);
            } else if !is_near(*ip) {
                open.insert(peer);
            }
        }
        others.values().next().copied().filter(|_| others.len() > open.len())
    }

    /// Whether others can dial this peer, which listens at the addresses `own`.
    pub(crate) fn standing(&self, own: &[IpAddr]) -> Standing {
        if let Some(seen) = [true, false].iter().find_map(|v4| self.elsewhere(own, *v4)) {
            return Standing::BehindNat(seen);
        }
        // Whoever was to test an address that only some reach says as well that it could not.
        let closed = self.failed.iter().find(|ip| !self.works(**ip) && !self.is_open());
        if let Some(closed) = closed {
            return Standing::Closed(*closed);
        }
        if self.proven.is_empty() { Standing::Unknown } else { Standing::Reachable }
    }

    /// Whether this peer can relay for others. It can if some address is proved to work, whatever
    /// address others see. It can also if a peer came in by one of its addresses and it is not behind a
    /// NAT.
    pub(crate) fn can_relay(&self, standing: Standing) -> bool {
        let behind = matches!(standing, Standing::BehindNat(_));
        self.is_shown() || !behind && !self.proven.is_empty()
    }
}

/// The IP addresses of these listeners, without those that listen at relays.
pub(crate) fn own<'a>(listeners: impl Iterator<Item = &'a Multiaddr>) -> Vec<IpAddr> {
    listeners.filter(|address| Path::of(address) != Path::Relayed).filter_map(ip).collect()
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
        peer.seen(connection(1), PeerId::random(), &address("192.168.1.5"));
        assert_eq!(peer.standing(&OWN), Standing::Unknown);
        peer.proven(&address("192.168.1.5"), Proof::Shown);
        assert_eq!(peer.standing(&OWN), Standing::Reachable);
        peer.expired(&address("192.168.1.5"));
        assert_eq!(peer.standing(&OWN), Standing::Unknown);
    }

    #[test]
    fn another_address_means_a_nat_until_that_address_is_proven() {
        let mut peer = Reachability::default();
        // Peers of the local network can dial it all the same.
        peer.proven(&address("192.168.1.5"), Proof::Met);
        peer.seen(connection(1), PeerId::random(), &address("203.0.113.9"));
        let nat = Standing::BehindNat("203.0.113.9".parse().unwrap());
        assert_eq!(peer.standing(&OWN), nat);
        // The router forwards this port.
        peer.proven(&address("203.0.113.9"), Proof::Shown);
        assert_eq!(peer.standing(&OWN), Standing::Reachable);
        peer.expired(&address("203.0.113.9"));
        assert_eq!(peer.standing(&OWN), nat);
        peer.closed(connection(1));
        assert_eq!(peer.standing(&OWN), Standing::Reachable, "nobody out there is left");
    }

    #[test]
    fn a_liar_makes_no_nat_of_a_peer_in_the_open() {
        let own = ["198.51.100.7".parse().unwrap()];
        let mut peer = Reachability::default();
        peer.proven(&address("198.51.100.7"), Proof::Shown);
        for number in 0..3 {
            peer.seen(connection(number), PeerId::random(), &address("198.51.100.7"));
        }
        let liar = PeerId::random();
        for number in 3..9 {
            peer.seen(connection(number), liar, &address("203.0.113.9"));
        }
        assert_eq!(peer.standing(&own), Standing::Reachable);
        for number in 9..12 {
            peer.seen(connection(number), PeerId::random(), &address("203.0.113.9"));
        }
        let standing = peer.standing(&own);
        assert_eq!(standing, Standing::BehindNat("203.0.113.9".parse().unwrap()));
        assert!(peer.can_relay(standing), "an address works all the same");
        peer.expired(&address("198.51.100.7"));
        assert!(!peer.can_relay(peer.standing(&own)));
    }

    #[test]
    fn peers_of_the_local_network_do_not_hide_a_nat() {
        let mut peer = Reachability::default();
        // The proof of AutoNAT comes from a peer of the local network.
        peer.proven(&address("192.168.1.5"), Proof::Shown);
        for number in 0..5 {
            peer.seen(connection(number), PeerId::random(), &address("192.168.1.5"));
        }
        peer.seen(connection(5), PeerId::random(), &address("203.0.113.9"));
        let nat = Standing::BehindNat("203.0.113.9".parse().unwrap());
        assert_eq!(peer.standing(&OWN), nat);
    }

    #[test]
    fn a_family_that_nobody_listens_at_says_nothing() {
        let mut peer = Reachability::default();
        let six: Multiaddr = "/ip6/2001:db8::9/udp/4001/quic-v1".parse().unwrap();
        peer.seen(connection(1), PeerId::random(), &six);
        assert_eq!(peer.standing(&OWN), Standing::Unknown);
        let both = [OWN[0], "2001:db8::1".parse().unwrap()];
        assert_eq!(peer.standing(&both), Standing::BehindNat("2001:db8::9".parse().unwrap()));
    }

    #[test]
    fn an_own_address_that_nobody_can_dial_is_closed() {
        let mut peer = Reachability::default();
        peer.seen(connection(1), PeerId::random(), &address("192.168.1.5"));
        peer.failed(&address("192.168.1.5"));
        assert_eq!(peer.standing(&OWN), Standing::Closed(OWN[0]));
        // The peer that came in had been dialled before, perhaps through the hole that this dial made.
        peer.proven(&address("192.168.1.5"), Proof::Met);
        assert_eq!(peer.standing(&OWN), Standing::Closed(OWN[0]));
        assert!(peer.can_relay(Standing::Closed(OWN[0])) && !peer.is_shown());
        peer.proven(&address("192.168.1.5"), Proof::Shown);
        assert_eq!(peer.standing(&OWN), Standing::Reachable);
    }

    #[test]
    fn a_liar_with_ever_new_addresses_says_nothing_new() {
        let mut peer = Reachability::default();
        let liar = PeerId::random();
        let mut standing = peer.standing(&OWN);
        let mut told = 0;
        for byte in 0..=255 {
            peer.seen(connection(1), liar, &address(&format!("203.0.113.{byte}")));
            let before = std::mem::replace(&mut standing, peer.standing(&OWN));
            told += usize::from(!standing.is_like(before));
        }
        assert_eq!(told, 1);
    }

    #[test]
    fn a_relay_lends_no_address() {
        let through = address("203.0.113.9").with(libp2p::multiaddr::Protocol::P2pCircuit);
        assert_eq!(own([through, address("192.168.1.5")].iter()), OWN);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut peer = Reachability::default();
        for byte in 0..=255 {
            peer.failed(&address(&format!("192.0.2.{byte}")));
            peer.proven(&address(&format!("198.51.100.{byte}")), Proof::Met);
        }
        peer.proven(&address("203.0.113.9"), Proof::Shown);
        assert!(peer.works("203.0.113.9".parse().unwrap()), "it counts for more");
        assert_eq!((peer.failed.len(), peer.proven.len()), (CANDIDATES_MAX, CANDIDATES_MAX));
    }
}
