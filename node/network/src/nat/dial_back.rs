//! Dials that other peers ask for, so that AutoNAT can tell them whether they can be dialled. Only a few
//! run at a time, and none goes to an address that the asking peer could not dial itself.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use dnode_direct::is_near;
use libp2p::swarm::ConnectionId;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use crate::address::ip;
use crate::limits::{
    DIAL_BACK_WAIT_MAX, DIAL_BACKS_HELD_MAX, DIAL_BACKS_MAX, DIAL_BACKS_PER_IP_MAX,
};
use crate::nat::candidates::is_plain;

/// Who asks for dials, which dials wait, and which run.
#[derive(Debug, Default)]
pub(crate) struct DialBackQueue {
    /// The peers and addresses from which connections came.
    clients: BTreeMap<ConnectionId, (PeerId, IpAddr)>,
    waiting: VecDeque<Waiting>,
    /// The dials that run, and the IP address of the peer that each is for.
    running: BTreeMap<ConnectionId, Option<IpAddr>>,
}

/// A dial that waits for its turn.
#[derive(Debug)]
struct Waiting {
    dial: DialOpts,
    client: Option<IpAddr>,
    since: Instant,
}

impl DialBackQueue {
    /// Notes that a connection of `peer` came in from `from`.
    pub(crate) fn came(&mut self, connection: ConnectionId, peer: PeerId, from: &Multiaddr) {
        if let Some(ip) = ip(from) {
            self.clients.insert(connection, (peer, ip.to_canonical()));
        }
    }

    /// Notes that a connection closed.
    pub(crate) fn went(&mut self, connection: ConnectionId) {
        self.clients.remove(&connection);
    }

    fn addresses(&self, peer: PeerId) -> impl Iterator<Item = IpAddr> + '_ {
        self.clients.values().filter(move |(client, _)| *client == peer).map(|(_, ip)| *ip)
    }

    /// Queues a dial; returns it when there is no room.
    pub(crate) fn ask(&mut self, dial: DialOpts, now: Instant) -> Option<DialOpts> {
        if self.waiting.len() >= DIAL_BACKS_HELD_MAX {
            return Some(dial);
        }
        let client = dial.get_peer_id().and_then(|peer| self.addresses(peer).next());
        self.waiting.push_back(Waiting { dial, client, since: now });
        None
    }

    /// The next dial that may run.
    pub(crate) fn next(&mut self) -> Option<DialOpts> {
        if self.running.len() >= DIAL_BACKS_MAX {
            return None;
        }
        let may = |waiting: &Waiting| {
            let running = self.running.values().filter(|running| **running == waiting.client);
            running.count() < DIAL_BACKS_PER_IP_MAX
        };
        let index = self.waiting.iter().position(may)?;
        let Waiting { dial, client, .. } = self.waiting.remove(index)?;
        self.running.insert(dial.connection_id(), client);
        Some(dial)
    }

    /// Takes out the dials that have waited so long that nobody waits for their results any more.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<DialOpts> {
        let late = |waiting: &&Waiting| waiting.since + DIAL_BACK_WAIT_MAX <= now;
        let count = self.waiting.iter().take_while(late).count();
        self.waiting.drain(..count).map(|waiting| waiting.dial).collect()
    }

    /// Notes that the dial `connection` led to a peer or failed.
    pub(crate) fn ended(&mut self, connection: ConnectionId) {
        self.running.remove(&connection);
    }

    /// Whether the dial `connection` for `peer` may go to `addresses`. A dial that is not from this
    /// queue may.
    pub(crate) fn allows(
        &self,
        connection: ConnectionId,
        peer: Option<PeerId>,
        addresses: &[Multiaddr],
    ) -> bool {
        let from = |peer| self.addresses(peer).collect::<Vec<_>>();
        let from = peer.map(from).unwrap_or_default();
        !self.running.contains_key(&connection)
            || addresses.iter().all(|address| {
                is_plain(address) && ip(address).is_some_and(|to| reaches(to, &from))
            })
    }
}

/// Whether a peer with the addresses `from` may have `to` dialled. An address of this machine or of a
/// local network is allowed only if the peer has such an address itself.
fn reaches(to: IpAddr, from: &[IpAddr]) -> bool {
    let to = to.to_canonical();
    let nowhere = to.is_unspecified() || to.is_multicast() || to == std::net::Ipv4Addr::BROADCAST;
    if to.is_loopback() {
        from.iter().any(IpAddr::is_loopback)
    } else if is_near(to) {
        from.iter().any(|from| is_near(*from))
    } else {
        !nowhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(host: u8) -> Multiaddr {
        format!("/ip4/203.0.113.{host}/udp/1/quic-v1").parse().unwrap()
    }

    fn dial(peer: PeerId) -> DialOpts {
        DialOpts::peer_id(peer).build()
    }

    fn number(number: usize) -> ConnectionId {
        ConnectionId::new_unchecked(number)
    }

    #[tokio::test]
    async fn one_address_never_has_all_the_turns() {
        let now = Instant::now();
        let mut queue = DialBackQueue::default();
        // Names of peers cost nothing, so one host may have many.
        let greedy: Vec<PeerId> = (0..100).map(|_| PeerId::random()).collect();
        for (index, peer) in greedy.iter().enumerate() {
            queue.came(number(index), *peer, &from(1));
            assert!(queue.ask(dial(*peer), now).is_none());
        }
        let honest = PeerId::random();
        queue.came(number(1000), honest, &from(2));
        assert!(queue.ask(dial(honest), now).is_none());
        let mut run = Vec::new();
        while let Some(dial) = queue.next() {
            run.push(dial);
        }
        assert_eq!(run.len(), DIAL_BACKS_PER_IP_MAX + 1);
        assert_eq!(run.last().unwrap().get_peer_id(), Some(honest));
        queue.ended(run[0].connection_id());
        assert_eq!(queue.next().unwrap().get_peer_id(), Some(greedy[DIAL_BACKS_PER_IP_MAX]));
        for host in 3..=255 {
            let peer = PeerId::random();
            queue.came(number(2000 + usize::from(host)), peer, &from(host));
            assert!(queue.ask(dial(peer), now).is_none());
        }
        while queue.next().is_some() {}
        assert_eq!(queue.running.len(), DIAL_BACKS_MAX);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_given_up_when_nobody_waits_for_it() {
        let now = Instant::now();
        let mut queue = DialBackQueue::default();
        let count = (0..).take_while(|_| queue.ask(dial(PeerId::random()), now).is_none()).count();
        assert_eq!(count, DIAL_BACKS_HELD_MAX);
        assert!(queue.overdue(now).is_empty());
        assert_eq!(queue.overdue(now + DIAL_BACK_WAIT_MAX).len(), DIAL_BACKS_HELD_MAX);
    }

    #[tokio::test]
    async fn nobody_has_an_address_dialled_that_is_not_his() {
        let mut queue = DialBackQueue::default();
        let (far, near, here) = (PeerId::random(), PeerId::random(), PeerId::random());
        let address = |text: &str| -> Multiaddr { text.parse().unwrap() };
        queue.came(number(1), far, &from(1));
        queue.came(number(2), near, &address("/ip4/192.168.1.9/tcp/1"));
        queue.came(number(3), here, &address("/ip4/127.0.0.1/tcp/1"));
        let mut allowed = |peer, text: &str| {
            assert!(queue.ask(dial(peer), Instant::now()).is_none());
            let id = queue.next().unwrap().connection_id();
            let allowed = queue.allows(id, Some(peer), &[address(text)]);
            queue.ended(id);
            allowed
        };
        for (text, of) in [
            ("/ip4/203.0.113.1/udp/1/quic-v1", [true, true, true]),
            ("/ip4/192.168.1.1/tcp/80", [false, true, true]),
            ("/ip4/127.0.0.1/tcp/80", [false, false, true]),
            ("/ip6/::ffff:127.0.0.1/tcp/80", [false, false, true]),
            ("/ip4/0.0.0.0/tcp/80", [false; 3]),
            ("/ip4/224.0.0.1/udp/1/quic-v1", [false; 3]),
            ("/dns4/localhost/tcp/80", [false; 3]),
            ("/dnsaddr/example.org", [false; 3]),
            ("/p2p-circuit", [false; 3]),
        ] {
            assert_eq!([far, near, here].map(|peer| allowed(peer, text)), of, "{text}");
        }
        let own = number(99);
        assert!(
            queue.allows(own, Some(far), &[address("/dns4/localhost/tcp/80")]),
            "not asked for"
        );
    }
}
