//! Which relays this peer asks for reservations, and which it has.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use crate::address::named;
use crate::limits::{RELAY_OFFERS_MAX, RELAY_RETRY, RELAYS_KNOWN_MAX, RELAYS_MAX};
use crate::swarm::streams::Path;

/// A peer that relays for others.
#[derive(Debug)]
struct Offer {
    /// The address at which this peer is connected to it.
    address: Multiaddr,
    failures: u32,
    next: Instant,
}

/// A reservation that was asked for; it may not be granted yet.
#[derive(Debug)]
struct Reservation {
    listener: ListenerId,
    address: Multiaddr,
    held: bool,
}

/// The relays that offer themselves, and those that this peer uses.
#[derive(Debug)]
pub(crate) struct Relays {
    me: PeerId,
    offers: BTreeMap<PeerId, Offer>,
    reservations: BTreeMap<PeerId, Reservation>,
    /// Most bytes per second of tensors that each relay lets through in each direction, the oldest entry
    /// first. 0 is none, `u64::MAX` is any number.
    bulk: VecDeque<(PeerId, u64)>,
}

impl Relays {
    pub(crate) const fn new(me: PeerId) -> Self {
        Self { me, offers: BTreeMap::new(), reservations: BTreeMap::new(), bulk: VecDeque::new() }
    }

    /// Notes that `relay`, to which a direct connection at `address` leads, offers to relay.
    pub(crate) fn offered(&mut self, relay: PeerId, address: Multiaddr, now: Instant) {
        let room = self.offers.len() < RELAY_OFFERS_MAX;
        if let Some(offer) = self.offers.get_mut(&relay) {
            offer.address = address;
        } else if room {
            self.offers.insert(relay, Offer { address, failures: 0, next: now });
        }
    }

    /// Notes that `relay` no longer offers to relay, or is gone.
    pub(crate) fn withdrawn(&mut self, relay: &PeerId) {
        self.offers.remove(relay);
    }

    /// The relay to ask next, and the address to listen on for it; `None` when there are enough.
    ///
    /// The relay whose name is nearest to this peer's by exclusive-or comes first, so that peers spread
    /// over the relays.
    pub(crate) fn next(&self, now: Instant) -> Option<(PeerId, Multiaddr)> {
        if self.reservations.len() >= RELAYS_MAX {
            return None;
        }
        let free = |(relay, offer): &(&PeerId, &Offer)| {
            !self.reservations.contains_key(*relay) && offer.next <= now
        };
        let distance = |relay: &PeerId| -> Vec<u8> {
            // The last bytes of a name are those of the key.
            relay
                .to_bytes()
                .iter()
                .rev()
                .zip(self.me.to_bytes().iter().rev())
                .map(|(a, b)| a ^ b)
                .collect()
        };
        let free = self.offers.iter().filter(free);
        let (relay, offer) = free.min_by_key(|(relay, offer)| (offer.failures, distance(relay)))?;
        Some((*relay, circuit(&offer.address, *relay)))
    }

    /// Notes that `listener` asks `relay` for a reservation.
    pub(crate) fn asked(&mut self, relay: PeerId, listener: ListenerId, address: Multiaddr) {
        self.reservations.insert(relay, Reservation { listener, address, held: false });
    }

    /// Notes a failure at `relay`; it is asked again later.
    pub(crate) fn failed(&mut self, relay: &PeerId, now: Instant) {
        if let Some(offer) = self.offers.get_mut(relay) {
            let wait = RELAY_RETRY.0 * 2_u32.saturating_pow(offer.failures.min(16));
            offer.next = now + wait.min(RELAY_RETRY.1);
            offer.failures = offer.failures.saturating_add(1);
        }
    }

    /// Notes that `relay` gave a reservation. The first time, returns the address at which others reach
    /// this peer through the relay.
    pub(crate) fn accepted(&mut self, relay: &PeerId) -> Option<Multiaddr> {
        if let Some(offer) = self.offers.get_mut(relay) {
            offer.failures = 0;
        }
        let reservation = self.reservations.get_mut(relay)?;
        let first = !std::mem::replace(&mut reservation.held, true);
        first.then(|| reservation.address.clone())
    }

    /// Notes that a listener ended. If it was for a reservation, returns the relay, and whether it had
    /// granted the reservation.
    pub(crate) fn closed(&mut self, listener: ListenerId, now: Instant) -> Option<(PeerId, bool)> {
        let of = |(_, reservation): &(&PeerId, &Reservation)| reservation.listener == listener;
        let relay = *self.reservations.iter().find(of)?.0;
        let reservation = self.reservations.remove(&relay)?;
        self.failed(&relay, now);
        Some((relay, reservation.held))
    }

    /// The listeners for all reservations.
    pub(crate) fn listeners(&self) -> Vec<ListenerId> {
        self.reservations.values().map(|reservation| reservation.listener).collect()
    }

    /// Notes how many bytes per second of tensors `relay` lets pass on each circuit in each direction.
    /// When too many relays are remembered, the oldest that is not `in_use` is forgotten.
    pub(crate) fn limited(
        &mut self,
        relay: PeerId,
        bytes_per_second: u64,
        in_use: impl Fn(&PeerId) -> bool,
    ) {
        self.bulk.retain(|(known, _)| *known != relay);
        if self.bulk.len() >= RELAYS_KNOWN_MAX {
            let used = |relay| self.reservations.contains_key(relay) || in_use(relay);
            let Some(index) = self.bulk.iter().position(|(relay, _)| !used(relay)) else {
                return;
            };
            self.bulk.remove(index);
        }
        self.bulk.push_back((relay, bytes_per_second));
    }

    /// Bytes per second of tensors that may pass on a connection with this address; `None` where none
    /// may.
    pub(crate) fn bulk_rate(&self, address: &Multiaddr) -> Option<u64> {
        let relay = relay_of(address)?;
        let (_, rate) = self.bulk.iter().find(|(known, _)| *known == relay)?;
        (*rate > 0).then_some(*rate)
    }
}

/// The address at which peers are reached through `relay`, which is connected at `address`.
fn circuit(address: &Multiaddr, relay: PeerId) -> Multiaddr {
    let plain = address.iter().filter(|protocol| !matches!(protocol, Protocol::P2p(_)));
    plain.collect::<Multiaddr>().with(Protocol::P2p(relay)).with(Protocol::P2pCircuit)
}

/// The relay through which an address leads.
pub(crate) fn relay_of(address: &Multiaddr) -> Option<PeerId> {
    named(address).filter(|_| Path::of(address) == Path::Relayed)
}

/// Chooses at most `most` of the addresses that a peer names, and keeps their order. Those through
/// relays come first, at most [`RELAYS_MAX`] of them: without them a peer behind a NAT cannot be found
/// at all.
pub(crate) fn choose(addresses: Vec<Multiaddr>, most: usize) -> Vec<Multiaddr> {
    let (mut relayed, direct): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| Path::of(address) == Path::Relayed);
    relayed.truncate(RELAYS_MAX);
    relayed.extend(direct);
    relayed.truncate(most);
    relayed
}

/// Mean bytes per second of tensors in each direction of a circuit. `bytes` is what the relay lets
/// through in the `life` of the circuit, in both directions together; `control` of them are for
/// everything else. 0 is none, `u64::MAX` is any number.
pub(crate) fn rate(bytes: Option<u64>, life: Option<Duration>, control: u64) -> u64 {
    match (bytes, life) {
        (None | Some(0), _) => u64::MAX,
        (Some(bytes), _) if bytes <= control => 0,
        (Some(_), None) => u64::MAX,
        (Some(bytes), Some(life)) => (bytes - control) / 2 / life.as_secs().max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{CIRCUIT_BYTES, CIRCUIT_LIFE};

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/192.0.2.1/udp/{port}/quic-v1").parse().unwrap()
    }

    #[tokio::test]
    async fn few_relays_are_used_and_a_lost_one_is_replaced() {
        let mut now = Instant::now();
        let mut relays = Relays::new(PeerId::random());
        let all: Vec<PeerId> = (0..100).map(|_| PeerId::random()).collect();
        for relay in &all {
            relays.offered(*relay, address(1), now);
        }
        assert_eq!(relays.offers.len(), RELAY_OFFERS_MAX);
        let mut used = Vec::new();
        while let Some((relay, on)) = relays.next(now) {
            assert_eq!(on.to_string(), format!("{}/p2p/{relay}/p2p-circuit", address(1)));
            let listener = ListenerId::next();
            relays.asked(relay, listener, on.clone());
            assert_eq!(relays.accepted(&relay), Some(on));
            assert_eq!(relays.accepted(&relay), None, "a renewal");
            used.push((relay, listener));
        }
        assert_eq!(used.len(), RELAYS_MAX);
        assert_eq!(relays.closed(used[0].1, now), Some((used[0].0, true)));
        assert_eq!(relays.closed(used[0].1, now), None);
        let (other, _) = relays.next(now).unwrap();
        assert!(used.iter().all(|(relay, _)| *relay != other));
        // When there is no other relay, it is asked again after a while.
        relays.offers.retain(|relay, _| used.iter().any(|(other, _)| other == relay));
        assert_eq!(relays.next(now), None);
        now += RELAY_RETRY.0;
        assert_eq!(relays.next(now).map(|(relay, _)| relay), Some(used[0].0));
        relays.withdrawn(&used[0].0);
        assert_eq!(relays.next(now), None);
    }

    #[tokio::test]
    async fn a_relay_that_fails_is_asked_ever_less_often() {
        let mut now = Instant::now();
        let (mut relays, relay) = (Relays::new(PeerId::random()), PeerId::random());
        relays.offered(relay, address(1), now);
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            let began = now;
            relays.failed(&relay, now);
            while relays.next(now).is_none() {
                now += Duration::from_secs(1);
            }
            assert!(now - began >= longest);
            longest = now - began;
        }
        assert_eq!(longest, RELAY_RETRY.1);
    }

    #[test]
    fn an_address_names_its_relay_and_what_that_allows() {
        let (relay, peer) = (PeerId::random(), PeerId::random());
        let through = circuit(&address(1).with_p2p(relay).unwrap(), relay).with_p2p(peer).unwrap();
        assert_eq!(relay_of(&through), Some(relay));
        assert_eq!(relay_of(&address(1).with_p2p(relay).unwrap()), None);
        let mut relays = Relays::new(peer);
        assert_eq!(relays.bulk_rate(&through), None);
        relays.limited(relay, 0, |_| false);
        assert_eq!(relays.bulk_rate(&through), None);
        relays.limited(relay, 5, |_| false);
        assert_eq!(relays.bulk_rate(&through), Some(5));
        let second = Some(Duration::from_secs(10));
        assert_eq!(rate(Some(1000), second, 1000), 0);
        assert_eq!(rate(Some(2000), second, 1000), 50);
        assert_eq!(rate(None, second, 1000), u64::MAX);
    }

    #[test]
    fn what_new_relays_allow_is_learned_for_ever() {
        let mut relays = Relays::new(PeerId::random());
        let old: Vec<PeerId> = (0..3).map(|_| PeerId::random()).collect();
        for relay in &old {
            relays.limited(*relay, 1, |_| false);
        }
        let allowed = |relays: &Relays, relay| relays.bulk_rate(&circuit(&address(1), relay));
        for number in 1..=1000 {
            let relay = PeerId::random();
            relays.limited(relay, number, |used| *used == old[1]);
            assert_eq!(allowed(&relays, relay), Some(number));
        }
        assert_eq!(old.iter().map(|relay| allowed(&relays, *relay)).max(), Some(Some(1)));
        assert_eq!(allowed(&relays, old[0]), None);
        assert_eq!(relays.bulk.len(), RELAYS_KNOWN_MAX);
    }

    #[test]
    fn the_least_that_a_relay_can_allow_is_not_nothing() {
        let life = CIRCUIT_LIFE;
        let bytes = |kilobytes: u64| CIRCUIT_BYTES + kilobytes * 1000 * life.as_secs();
        assert_eq!(rate(Some(bytes(0)), Some(life), CIRCUIT_BYTES), 0);
        assert_eq!(rate(Some(bytes(1)), Some(life), CIRCUIT_BYTES), 500);
    }

    #[test]
    fn addresses_through_relays_are_kept_first() {
        let through = |port| circuit(&address(port), PeerId::random());
        let all = vec![address(1), address(2), through(3), address(4), through(5), through(6)];
        let kept = choose(all.clone(), 4);
        assert_eq!(kept, [all[2].clone(), all[4].clone(), all[0].clone(), all[1].clone()]);
    }
}
