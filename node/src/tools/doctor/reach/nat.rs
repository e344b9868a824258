//! Whether there is a NAT, and of which kind, judged by the addresses at which others see this peer.
//!
//! One socket dials two peers. Through a NAT whose mapping is independent of the endpoint, both see the
//! same port. Through a symmetric NAT they see two ports (RFC 4787, section 4.1). Holes can be punched
//! through a NAT of the first kind, but hardly ever through one of the second.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use dnode_network::{Found, Multiaddr};

use super::super::finding::Finding;
use super::{By, socket, way};

const CHECK: &str = "nat";

/// What is between this machine and the peers that were asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nat {
    /// There is no NAT: peers see the address at which this machine listens.
    None(SocketAddr),
    /// There is a NAT, but only one peer was asked.
    Unknown(SocketAddr),
    /// A NAT with one port for all peers.
    Independent(SocketAddr),
    /// A NAT with another port for each peer.
    Symmetric(SocketAddr, SocketAddr),
}

/// For each peer, the address from which it has seen this one come over QUIC.
pub(super) fn observed(all: &[&Found]) -> BTreeMap<String, SocketAddr> {
    let answers = all.iter().filter_map(|found| found.as_ref().ok());
    let quic = answers.filter(|answer| way(&answer.address) == Some(By::Quic));
    quic.filter_map(|answer| Some((answer.peer.clone(), socket(&answer.observed)?.1))).collect()
}

pub(super) fn judge(listening: &[Multiaddr], observed: &BTreeMap<String, SocketAddr>) -> Finding {
    let sockets = listening.iter().filter_map(socket);
    let own: Vec<_> = sockets.filter(|(by, _)| *by == By::Quic).map(|(_, socket)| socket).collect();
    let seen: Vec<_> = observed.values().copied().collect();
    match kind(&own, &seen) {
        None => Finding::warn(
            CHECK,
            "not known: nobody answered by QUIC",
            "--bootstrap needs the QUIC address of a member that runs",
        ),
        Some(Nat::None(at)) if is_public(at.ip()) => Finding::ok(
            CHECK,
            format!(
                "none: others see this machine at its own public address {at}, which a firewall may still close"
            ),
        ),
        Some(Nat::None(at)) => Finding::ok(
            CHECK,
            format!(
                "none between here and there: seen at its own address {at}, which is not a public one"
            ),
        ),
        Some(Nat::Unknown(at)) => Finding::warn(
            CHECK,
            format!("there is one: seen at {at}; its kind takes two peers to tell"),
            "give --bootstrap the addresses of two members in different places; a forwarded UDP port needs neither",
        ),
        Some(Nat::Independent(at)) => Finding::warn(
            CHECK,
            format!("there is one, endpoint-independent: all see {at}"),
            "holes can be punched through it; a forwarded UDP port (--listen with a fixed one) makes others reach it at once",
        ),
        Some(Nat::Symmetric(a, b)) => Finding::warn(
            CHECK,
            format!("there is one, symmetric: seen at {a} and at {b}"),
            "holes can hardly be punched through it: forward the UDP port of a fixed --listen, or others reach this peer through a relay only",
        ),
    }
}

/// The kind of NAT; `None` when no peer has seen this machine.
fn kind(own: &[SocketAddr], seen: &[SocketAddr]) -> Option<Nat> {
    let mut translated = seen.iter().copied().filter(|socket| !own.contains(socket));
    let Some(first) = translated.next() else {
        // A public address tells most, then one that is not loopback.
        let best = seen
            .iter()
            .copied()
            .max_by_key(|socket| (is_public(socket.ip()), !socket.ip().is_loopback()));
        return best.map(Nat::None);
    };
    let mut others = 0;
    for other in translated {
        if other != first {
            return Some(Nat::Symmetric(first, other));
        }
        others += 1;
    }
    Some(if others == 0 { Nat::Unknown(first) } else { Nat::Independent(first) })
}

/// Whether others may route to it from everywhere, by the registries of RFC 6890, as far as the standard
/// library has them.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            let is_shared = a == 100 && (64..128).contains(&b);
            !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared || a == 0)
        }
        IpAddr::V6(ip) => {
            !(ip.is_loopback()
                || ip.is_unique_local()
                || ip.is_unicast_link_local()
                || ip.is_unspecified())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_nat_follow_from_ports() {
        let [home, out, out2] =
            ["10.0.0.1:7", "198.51.100.1:7", "198.51.100.1:8"].map(|text| text.parse().unwrap());
        for (own, seen, want) in [
            (&[home][..], &[][..], None),
            (&[home], &[home], Some(Nat::None(home))),
            (&[home, out], &[home, out], Some(Nat::None(out))),
            (&[home], &[out], Some(Nat::Unknown(out))),
            (&[home], &[home, out], Some(Nat::Unknown(out))),
            (&[home], &[out, out], Some(Nat::Independent(out))),
            (&[home], &[out, home, out2], Some(Nat::Symmetric(out, out2))),
        ] {
            assert_eq!(kind(own, seen), want, "{seen:?}");
        }
    }

    #[test]
    fn public_addresses_are_told_from_others() {
        for (ip, want) in [
            ("10.1.2.3", false),
            ("100.64.0.1", false),
            ("100.128.0.1", true),
            ("127.0.0.1", false),
            ("169.254.1.1", false),
            ("198.51.100.1", true),
            ("::1", false),
            ("fd00::1", false),
            ("fe80::1", false),
            ("2001:db8::1", true),
        ] {
            assert_eq!(is_public(ip.parse().unwrap()), want, "{ip}");
        }
    }
}
