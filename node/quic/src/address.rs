//! Multiaddresses of QUIC version 1 and socket addresses.

use std::net::{IpAddr, SocketAddr};

use libp2p_core::Multiaddr;
use libp2p_core::multiaddr::Protocol;
use libp2p_identity::PeerId;

/// The socket address and the peer of `/ip4|ip6/…/udp/…/quic-v1[/p2p/…]`; `None` for any other form.
pub(crate) fn parse(address: &Multiaddr) -> Option<(SocketAddr, Option<PeerId>)> {
    let mut parts = address.iter();
    let first = parts.next()?;
    let ip = if let Protocol::Ip4(ip) = first {
        IpAddr::from(ip)
    } else if let Protocol::Ip6(ip) = first {
        IpAddr::from(ip)
    } else {
        return None;
    };
    let (Protocol::Udp(port), Protocol::QuicV1) = (parts.next()?, parts.next()?) else {
        return None;
    };
    let peer = match parts.next() {
        None => None,
        Some(Protocol::P2p(peer)) => Some(peer),
        Some(_) => return None,
    };
    parts.next().is_none().then_some((SocketAddr::new(ip, port), peer))
}

/// Whether a connection can be opened to it.
pub(crate) const fn can_be_dialled(address: &SocketAddr) -> bool {
    address.port() != 0 && !address.ip().is_unspecified()
}

/// Whether `ip` is of this host or of a network that no packet leaves: loopback (RFC 1122), private
/// (RFC 1918), link-local (RFC 3927, RFC 4291), unique local (RFC 4193).
#[must_use]
pub fn is_near(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// The multiaddress of QUIC at a socket address.
pub(crate) fn of(address: SocketAddr) -> Multiaddr {
    Multiaddr::from(address.ip()).with(Protocol::Udp(address.port())).with(Protocol::QuicV1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_there_and_back() {
        let peer = PeerId::random();
        for text in ["/ip4/192.0.2.1/udp/4001/quic-v1", "/ip6/2001:db8::7/udp/65535/quic-v1"] {
            let address: Multiaddr = text.parse().unwrap();
            let (socket, none) = parse(&address).unwrap();
            assert_eq!((of(socket), none), (address.clone(), None));
            let whole = address.with(Protocol::P2p(peer));
            assert_eq!(parse(&whole), Some((socket, Some(peer))));
        }
    }

    #[test]
    fn this_machine_and_local_networks_are_near() {
        let near = |text: &str| is_near(text.parse().unwrap());
        assert!(
            ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "fd00::1", "fe80::1"].map(near)
                == [true; 6]
        );
        assert!(!near("192.0.2.1") && !near("2001:db8::7"));
    }

    #[test]
    fn other_forms_are_not_ours() {
        for text in [
            "/ip4/192.0.2.1/udp/4001",
            "/ip4/192.0.2.1/udp/4001/quic",
            "/ip4/192.0.2.1/tcp/4001",
            "/dns/example.org/udp/4001/quic-v1",
            "/ip4/192.0.2.1/udp/4001/quic-v1/p2p-circuit",
            "/ip4/192.0.2.1/udp/4001/quic-v1/webtransport",
        ] {
            assert_eq!(parse(&text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn an_unknown_port_or_address_cannot_be_dialled() {
        let can = |text: &str| can_be_dialled(&text.parse().unwrap());
        assert!(can("127.0.0.1:1") && can("[::1]:1"));
        assert!(!can("127.0.0.1:0") && !can("0.0.0.0:1") && !can("[::]:1"));
    }

    #[test]
    fn near_addresses_are_those_of_hosts_and_local_networks() {
        let near = |text: &str| is_near(text.parse().unwrap());
        for text in ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.7.7", "169.254.1.1"] {
            assert!(near(text), "{text}");
        }
        for text in ["::1", "fd00::1", "fe80::1", "::ffff:10.0.0.1"] {
            assert!(near(text), "{text}");
        }
        for text in ["0.0.0.0", "8.8.8.8", "100.64.0.1", "172.32.0.1", "2001:db8::1", "::"] {
            assert!(!near(text), "{text}");
        }
        assert!(!near("::ffff:8.8.8.8"));
    }
}
