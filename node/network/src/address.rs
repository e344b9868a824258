//! Names and addresses of peers, as libp2p writes them.

use std::net::IpAddr;

use dnode_protocol::PeerId;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

/// The name of `peer` as libp2p has it; `None` when libp2p does not accept it: then there is nothing to
/// do with that peer.
pub(crate) fn to_libp2p(peer: PeerId) -> Option<libp2p::PeerId> {
    libp2p::PeerId::from_bytes(&peer.to_libp2p_bytes()).ok()
}

/// The name of `peer` as dnode has it; `None` for a key that is not Ed25519, which no dnode peer has.
pub(crate) fn from_libp2p(peer: libp2p::PeerId) -> Option<PeerId> {
    PeerId::from_libp2p_bytes(&peer.to_bytes())
}

/// The IP address with which a multiaddress begins.
pub(crate) fn ip(address: &Multiaddr) -> Option<IpAddr> {
    let first = address.iter().next()?;
    if let Protocol::Ip4(ip) = first {
        Some(ip.into())
    } else if let Protocol::Ip6(ip) = first {
        Some(ip.into())
    } else {
        None
    }
}

/// The first bytes of an address: what one owner usually has. 24 bits of IPv4, 48 of IPv6.
pub type Subnet = (bool, [u8; 6]);

/// The network of an address.
#[must_use]
pub fn subnet(ip: IpAddr) -> Subnet {
    let mut bytes = [0; 6];
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            bytes[..3].copy_from_slice(&ip.octets()[..3]);
            (true, bytes)
        }
        IpAddr::V6(ip) => {
            bytes.copy_from_slice(&ip.octets()[..6]);
            (false, bytes)
        }
    }
}

/// Whether `address` reaches a socket of this machine only.
#[must_use]
pub fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback(),
        _ => false,
    }
}

/// The first peer that `address` names; for a circuit that is the relay.
pub(crate) fn named(address: &Multiaddr) -> Option<libp2p::PeerId> {
    address.iter().find_map(|part| if let Protocol::P2p(peer) = part { Some(peer) } else { None })
}

/// The address without the names of peers.
pub(crate) fn without_peer(address: Multiaddr) -> Multiaddr {
    address.into_iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_connection_is_where_it_ends() {
        let of = |text: &str| ip(&text.parse().unwrap()).map(|ip| ip.to_string());
        assert_eq!(of("/ip4/10.0.0.1/udp/1/quic-v1").as_deref(), Some("10.0.0.1"));
        assert_eq!(of("/ip6/fd00::1/tcp/1").as_deref(), Some("fd00::1"));
        assert_eq!(of("/dns/example.org/tcp/1"), None);
    }
}
