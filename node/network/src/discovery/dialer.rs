//! The bootstrap addresses, which are dialled for ever, and the dials that are under way.

use std::collections::BTreeMap;
use std::time::Duration;

use dnode_protocol::PeerId;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use crate::address::named;
use crate::limits::{DIALS_PER_PEER_MAX, QUIC_FIRST, REDIAL_MAX, REDIAL_MIN};

/// How often an address that leads to our own key is dialled again.
const OWN_DIALS_MAX: u32 = 4;

/// What is known of a bootstrap address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It is dialled again at this time.
    Waiting(Instant),
    Dialing(ConnectionId),
    /// It has led to this peer.
    Connected(PeerId),
    /// It leads to this peer itself or to a peer of another run.
    Abandoned,
}

#[derive(Debug)]
struct Bootstrap {
    address: Multiaddr,
    failures: u32,
    progress: Progress,
}

/// A bootstrap address that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreachable {
    pub(crate) address: Multiaddr,
    pub(crate) retry_in: Duration,
}

/// Whether `address` leads over TCP to a peer that has a QUIC address in `all` as well.
fn is_second(address: &Multiaddr, all: &[Multiaddr]) -> bool {
    let quic = |address: &Multiaddr| address.iter().any(|part| part == Protocol::QuicV1);
    let peer = named(address);
    peer.is_some() && !quic(address) && all.iter().any(|other| quic(other) && named(other) == peer)
}

/// Remembers addresses and when to dial them; it does not dial.
#[derive(Debug)]
pub(crate) struct Dialer {
    bootstrap: Vec<Bootstrap>,
    /// Dials of known peers that are under way.
    dials: BTreeMap<ConnectionId, PeerId>,
    rng: StdRng,
}

impl Dialer {
    /// A TCP address waits [`QUIC_FIRST`] for a QUIC address of the same peer. `seed` decides the
    /// jitter: it keeps peers that lost the same peer from dialling at the same moments.
    pub(crate) fn new(bootstrap: &[Multiaddr], seed: u64, now: Instant) -> Self {
        let wait = |address: &Multiaddr| Bootstrap {
            address: address.clone(),
            failures: 0,
            progress: Progress::Waiting(if is_second(address, bootstrap) {
                now + QUIC_FIRST
            } else {
                now
            }),
        };
        Self {
            bootstrap: bootstrap.iter().map(wait).collect(),
            dials: BTreeMap::new(),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Bootstrap addresses to dial now, by index.
    pub(crate) fn due_bootstrap(&self, now: Instant) -> Vec<(usize, Multiaddr)> {
        let due = |b: &Bootstrap| matches!(b.progress, Progress::Waiting(at) if at <= now);
        let entries = self.bootstrap.iter().enumerate();
        entries
            .filter(|(_, entry)| due(entry))
            .map(|(index, entry)| (index, entry.address.clone()))
            .collect()
    }

    /// Notes that the dial of bootstrap address `index` began.
    pub(crate) fn dialing(&mut self, index: usize, connection: ConnectionId) {
        self.bootstrap[index].progress = Progress::Dialing(connection);
    }

    /// The dial of bootstrap address `index` could not begin, for want of room: it begins at this time.
    pub(crate) fn wait(&mut self, index: usize, until: Instant) {
        self.bootstrap[index].progress = Progress::Waiting(until);
    }

    /// Dials of known peers that are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.dials.len()
    }

    /// Notes that bootstrap address `index` leads to a peer that is connected. Returns the address.
    pub(crate) fn reached(&mut self, index: usize, peer: PeerId) -> Multiaddr {
        let entry = &mut self.bootstrap[index];
        entry.progress = Progress::Connected(peer);
        entry.address.clone()
    }

    /// Notes that a peer with our own key answered at bootstrap address `index`: this process, or
    /// another one with a copy of its key. Which of the two shows in a later dial, when they do not dial
    /// each other at the same moment.
    pub(crate) fn own(&mut self, index: usize, now: Instant) {
        self.failed(index, now);
        let entry = &mut self.bootstrap[index];
        if entry.failures > OWN_DIALS_MAX {
            entry.progress = Progress::Abandoned;
        }
    }

    /// Notes that a dial of bootstrap address `index` failed; it is dialled again later.
    pub(crate) fn failed(&mut self, index: usize, now: Instant) -> Unreachable {
        let failures = self.bootstrap[index].failures.saturating_add(1);
        let retry_in = back_off(failures, &mut self.rng);
        let entry = &mut self.bootstrap[index];
        entry.failures = failures;
        entry.progress = Progress::Waiting(now + retry_in);
        Unreachable { address: entry.address.clone(), retry_in }
    }

    /// The bootstrap address that `connection` dials, by index.
    pub(crate) fn bootstrap_of(&self, connection: ConnectionId) -> Option<usize> {
        let of = |entry: &Bootstrap| entry.progress == Progress::Dialing(connection);
        self.bootstrap.iter().position(of)
    }

    /// Notes that the handshake with `peer` is done.
    pub(crate) fn up(&mut self, peer: PeerId) {
        for entry in &mut self.bootstrap {
            if entry.progress == Progress::Connected(peer) {
                entry.failures = 0;
            }
        }
    }

    /// Notes that the last connection to `peer` closed or could not be made: its bootstrap addresses wait.
    /// Returns those that led to it.
    pub(crate) fn down(&mut self, peer: PeerId, now: Instant) -> Vec<Unreachable> {
        let led = |entry: &Bootstrap| entry.progress == Progress::Connected(peer);
        let indices: Vec<_> =
            (0..self.bootstrap.len()).filter(|&index| led(&self.bootstrap[index])).collect();
        let failed = indices.into_iter().map(|index| self.failed(index, now));
        failed.collect()
    }

    /// Dials the bootstrap addresses of `peer` again after `until`.
    pub(crate) fn later(&mut self, peer: PeerId, until: Instant) {
        for entry in &mut self.bootstrap {
            if entry.progress == Progress::Connected(peer) {
                entry.progress = Progress::Waiting(until);
            }
        }
    }

    /// Does not dial the bootstrap addresses of `peer` again.
    pub(crate) fn refused(&mut self, peer: PeerId) {
        for entry in &mut self.bootstrap {
            if entry.progress == Progress::Connected(peer) {
                entry.progress = Progress::Abandoned;
            }
        }
    }

    /// Whether one more dial of `peer` may begin beside those that are under way.
    pub(crate) fn may_dial(&self, peer: PeerId) -> bool {
        self.dials.values().filter(|dialled| **dialled == peer).count() < DIALS_PER_PEER_MAX
    }

    /// Notes that `connection` dials the known peer `peer`.
    pub(crate) fn began(&mut self, connection: ConnectionId, peer: PeerId) {
        self.dials.insert(connection, peer);
    }

    /// Notes that the dial `connection` led to a peer or failed.
    pub(crate) fn ended(&mut self, connection: ConnectionId) {
        self.dials.remove(&connection);
    }
}

/// Time to wait: `REDIAL_MIN · 2^(failures − 1)`, at most `REDIAL_MAX`, times 0.75 to 1.25.
pub(super) fn back_off(failures: u32, rng: &mut StdRng) -> Duration {
    let wait = REDIAL_MIN * 2_u32.saturating_pow(failures.saturating_sub(1)).min(1 << 10);
    wait.min(REDIAL_MAX).mul_f64(rng.random_range(0.75..1.25))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/127.0.0.1/udp/{port}/quic-v1").parse().unwrap()
    }

    fn peer(byte: u8) -> PeerId {
        PeerId::from_public_key([byte; 32])
    }

    #[tokio::test]
    async fn a_dead_bootstrap_address_is_retried_ever_more_slowly_and_for_ever() {
        let mut now = Instant::now();
        let mut dialer = Dialer::new(&[address(1)], 7, now);
        let mut longest = Duration::ZERO;
        for attempt in 1..100 {
            assert_eq!(dialer.due_bootstrap(now).len(), 1);
            let connection = ConnectionId::new_unchecked(attempt);
            dialer.dialing(0, connection);
            assert!(dialer.due_bootstrap(now).is_empty());
            assert_eq!(dialer.bootstrap_of(connection), Some(0));
            let unreachable = dialer.failed(0, now);
            assert!(unreachable.retry_in >= REDIAL_MIN * 3 / 4);
            assert!(unreachable.retry_in <= REDIAL_MAX * 5 / 4);
            longest = longest.max(unreachable.retry_in);
            now += unreachable.retry_in;
        }
        assert!(longest >= REDIAL_MAX * 3 / 4);
    }

    #[tokio::test]
    async fn tcp_waits_for_quic_to_the_same_peer_and_for_no_other() {
        let now = Instant::now();
        let [one, other] = [1, 2].map(|_| libp2p::PeerId::random());
        let quic = address(1).with_p2p(one).unwrap();
        let tcp = |peer| format!("/ip4/127.0.0.1/tcp/2/p2p/{peer}").parse::<Multiaddr>().unwrap();
        let dialer = Dialer::new(&[tcp(one), quic.clone(), tcp(other)], 7, now);
        assert_eq!(dialer.due_bootstrap(now), [(1, quic), (2, tcp(other))]);
        assert_eq!(dialer.due_bootstrap(now + QUIC_FIRST).len(), 3);
    }

    #[tokio::test]
    async fn a_lost_bootstrap_peer_is_dialled_again_and_a_refused_one_is_not() {
        let now = Instant::now();
        let mut dialer = Dialer::new(&[address(1), address(2)], 7, now);
        dialer.reached(0, peer(1));
        dialer.reached(1, peer(2));
        dialer.refused(peer(2));
        assert!(dialer.down(peer(2), now).is_empty());
        assert_eq!(dialer.down(peer(1), now)[0].address, address(1));
        let due = dialer.due_bootstrap(now + REDIAL_MAX);
        assert_eq!(due, [(0, address(1))]);
    }

    #[tokio::test]
    async fn a_peer_is_dialled_twice_at_the_same_time_at_most() {
        let mut dialer = Dialer::new(&[], 7, Instant::now());
        for number in 0..DIALS_PER_PEER_MAX {
            assert!(dialer.may_dial(peer(1)));
            dialer.began(ConnectionId::new_unchecked(number), peer(1));
        }
        assert!(!dialer.may_dial(peer(1)));
        assert!(dialer.may_dial(peer(2)));
        dialer.ended(ConnectionId::new_unchecked(99));
        assert!(!dialer.may_dial(peer(1)));
        dialer.ended(ConnectionId::new_unchecked(0));
        assert!(dialer.may_dial(peer(1)));
    }
}
