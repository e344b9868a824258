//! Addresses that this peer may have: those that others see, and those that a router would forward.

use std::collections::VecDeque;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::time::Instant;

use crate::address::ip;
use crate::limits::{CANDIDATE_REFILL, CANDIDATES_MAX};
use crate::swarm::streams::Path;

/// Whether `address` is an IP address with a port for QUIC or TCP, and nothing else.
pub(crate) fn is_plain(address: &Multiaddr) -> bool {
    let mut parts = address.iter();
    let ip = matches!(parts.next(), Some(Protocol::Ip4(_) | Protocol::Ip6(_)));
    let port = match parts.next() {
        Some(Protocol::Udp(_)) => matches!(parts.next(), Some(Protocol::QuicV1)),
        Some(Protocol::Tcp(_)) => true,
        _ => false,
    };
    ip && port && parts.next().is_none()
}

/// Possible addresses of this peer, which listens at `own`, when the other end of a direct connection
/// that it opened sees it at `observed`. All have the observed IP address. Their ports are, in this
/// order, an own port, the observed port if packets leave from the port at which this peer listens
/// (`shared_port`), and the other own ports.
pub(crate) fn candidates(
    observed: &Multiaddr,
    own: &[Multiaddr],
    shared_port: bool,
) -> Vec<Multiaddr> {
    let (Some(first), Some(seen)) = (observed.iter().next(), ip(observed)) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    if !is_plain(observed) {
        return all;
    }
    for own in own.iter().filter(|own| is_plain(own) && Path::of(own) == Path::of(observed)) {
        let alike = ip(own).is_some_and(|own| {
            own.is_ipv4() == seen.is_ipv4() && own.is_loopback() == seen.is_loopback()
        });
        if alike
            && let Some(forwarded) = own.replace(0, |_| Some(first.clone()))
            && !all.contains(&forwarded)
        {
            all.push(forwarded);
        }
    }
    if shared_port && !all.contains(observed) {
        all.insert(all.len().min(1), observed.clone());
    }
    all
}

/// How many addresses a behaviour may be told that never forgets one.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The addresses that were admitted last.
    known: VecDeque<Multiaddr>,
    left: usize,
    refilled: Instant,
}

impl Budget {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { known: VecDeque::new(), left: CANDIDATES_MAX, refilled: now }
    }

    /// Whether `address` is known, or there is room for one more. In the latter case it is admitted.
    pub(crate) fn admits(&mut self, address: &Multiaddr, now: Instant) -> bool {
        if self.known.contains(address) {
            return true;
        }
        let periods = (now - self.refilled).as_secs() / CANDIDATE_REFILL.as_secs();
        if periods > 0 {
            let more = usize::try_from(periods).unwrap_or(usize::MAX);
            self.left = self.left.saturating_add(more).min(CANDIDATES_MAX);
            self.refilled = now;
        }
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        if self.known.len() >= CANDIDATES_MAX {
            self.known.pop_front();
        }
        self.known.push_back(address.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    fn outer(port: u16) -> Multiaddr {
        address(&format!("/ip4/203.0.113.9/udp/{port}/quic-v1"))
    }

    #[test]
    fn the_inner_ports_come_before_the_outer_one() {
        let own = [
            address("/ip4/127.0.0.1/udp/9/quic-v1"),
            address("/ip4/192.168.1.5/udp/4001/quic-v1"),
            address("/ip4/10.0.0.5/udp/4001/quic-v1"),
            address("/ip4/192.168.1.5/tcp/4002"),
            address("/ip6/2001:db8::1/udp/4001/quic-v1"),
        ];
        assert_eq!(candidates(&outer(777), &own, true), [outer(4001), outer(777)]);
        assert_eq!(candidates(&outer(777), &own, false), [outer(4001)]);
        assert_eq!(candidates(&outer(4001), &own, true), [outer(4001)]);
        let tcp = address("/ip4/203.0.113.9/tcp/777");
        assert_eq!(candidates(&tcp, &own, false), [address("/ip4/203.0.113.9/tcp/4002")]);
    }

    #[test]
    fn what_is_no_plain_address_is_no_candidate() {
        for text in [
            "/dns4/example.org/udp/1/quic-v1",
            "/ip4/203.0.113.9/udp/1/quic-v1/webtransport",
            "/ip4/203.0.113.9/udp/1",
            "/ip4/203.0.113.9/tcp/1/ws",
            "/ip4/203.0.113.9",
            "/p2p-circuit",
        ] {
            assert!(!is_plain(&address(text)), "{text}");
            assert_eq!(candidates(&address(text), &[outer(1)], true), [], "{text}");
        }
    }

    #[tokio::test]
    async fn new_addresses_are_learned_for_ever_and_ever_more_slowly() {
        let mut now = Instant::now();
        let mut budget = Budget::new(now);
        let mut ports = 1..;
        let mut learn = |budget: &mut Budget, now| {
            let mut count = 0;
            while budget.admits(&outer(ports.next().unwrap()), now) {
                count += 1;
            }
            count
        };
        assert_eq!(learn(&mut budget, now), CANDIDATES_MAX);
        assert!(budget.admits(&outer(1), now), "it is known");
        now += CANDIDATE_REFILL;
        assert_eq!(learn(&mut budget, now), 1);
        now += CANDIDATE_REFILL * 1000;
        assert_eq!(learn(&mut budget, now), CANDIDATES_MAX);
        assert_eq!(budget.known.len(), CANDIDATES_MAX);
    }
}
