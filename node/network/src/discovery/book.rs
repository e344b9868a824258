//! Which peers this one may dial: whom it has met, and of whom it has heard from whom.
//!
//! Names cost nothing, so whoever tells of many must not push out what others have told. There are two
//! tables, one of peers that were met and one of those that were only heard of, and in each of them what comes
//! from one network or one directory has a part at most, as in Bitcoin's address manager (Heilman et al. 2015,
//! "Eclipse attacks on Bitcoin's peer-to-peer network", countermeasures 1 and 2; src/addrman.h).

use std::collections::BTreeMap;
use std::net::IpAddr;

use dnode_protocol::PeerId;
use libp2p::Multiaddr;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::dialer::back_off;
use crate::address::{Subnet, ip};
use crate::limits::{ADDRESSES_PER_PEER_MAX, KNOWN_PEERS_MAX, POSTPONED, REDIAL_ATTEMPTS_MAX};
use crate::swarm::subnets::network;

/// Most peers of each table.
const TABLE_MAX: usize = KNOWN_PEERS_MAX / 2;
/// Most of them from one network, in each table.
const NETWORK_MAX: usize = TABLE_MAX / 4;
/// Most of them from the directory of the run, where anybody may write.
const DIRECTORY_MAX: usize = TABLE_MAX / 2;

/// Where what is known of a peer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// Somebody in this network, the peer itself or another.
    Network(Subnet),
    /// The directory of the run in Kademlia.
    Directory,
    /// This machine, a private network, or a relay that hides where the peer is: that says nothing of owners.
    Near,
}

impl Source {
    /// The source of what comes from `ip`.
    pub(crate) fn of(ip: Option<IpAddr>) -> Self {
        network(ip).map_or(Self::Near, Self::Network)
    }

    /// Most entries of a table that come from it.
    const fn most(self) -> usize {
        match self {
            Self::Network(_) => NETWORK_MAX,
            Self::Directory => DIRECTORY_MAX,
            Self::Near => TABLE_MAX,
        }
    }
}

#[derive(Debug)]
struct Entry {
    addresses: Vec<Multiaddr>,
    source: Source,
    /// Whether this peer has greeted it.
    met: bool,
    failures: u32,
    next: Instant,
    /// The peer is not dialled before this time.
    held: Instant,
    /// Whether the peer is known from an earlier start. Such a peer is never forgotten for not
    /// answering, nor for another one.
    remembered: bool,
}

impl Entry {
    fn add(&mut self, addresses: &[Multiaddr]) {
        for address in addresses {
            if self.addresses.len() < ADDRESSES_PER_PEER_MAX && !self.addresses.contains(address) {
                self.addresses.push(address.clone());
            }
        }
    }
}

/// Peers, their addresses, and when to dial them; it does not dial.
#[derive(Debug)]
pub(crate) struct Book {
    entries: BTreeMap<PeerId, Entry>,
    rng: StdRng,
}

impl Book {
    /// `seed` decides whom new names replace: who writes names must not know it.
    pub(crate) fn new(seed: u64) -> Self {
        Self { entries: BTreeMap::new(), rng: StdRng::seed_from_u64(seed) }
    }

    /// Remembers addresses of `peer`, which `source` tells.
    pub(crate) fn learn(
        &mut self,
        peer: PeerId,
        addresses: &[Multiaddr],
        source: Source,
        now: Instant,
    ) {
        if let Some(known) = self.entries.get_mut(&peer) {
            known.add(addresses);
            return;
        }
        if !self.make_room(false, source) {
            return;
        }
        let mut entry = Entry {
            addresses: Vec::new(),
            source,
            met: false,
            failures: 0,
            next: now,
            held: now,
            remembered: false,
        };
        entry.add(addresses);
        self.entries.insert(peer, entry);
    }

    /// Remembers the addresses that `peer` itself has told, before all others: those of an earlier start of it may
    /// hold no more, and go first.
    pub(crate) fn told(
        &mut self,
        peer: PeerId,
        addresses: &[Multiaddr],
        source: Source,
        now: Instant,
    ) {
        let known = self.entries.get_mut(&peer);
        let before = known.map(|known| std::mem::take(&mut known.addresses)).unwrap_or_default();
        self.learn(peer, addresses, source, now);
        if let Some(known) = self.entries.get_mut(&peer) {
            known.add(&before);
        }
    }

    /// Remembers an address of `peer` from an earlier start.
    pub(crate) fn remember(&mut self, peer: PeerId, address: &Multiaddr, now: Instant) {
        self.learn(peer, std::slice::from_ref(address), Source::Near, now);
        self.met(peer, ip(address), now);
        if let Some(known) = self.entries.get_mut(&peer) {
            known.remembered = known.met;
        }
    }

    /// Notes that `peer` was greeted at `ip`. Where the table of those is full it stays among the others.
    pub(crate) fn met(&mut self, peer: PeerId, ip: Option<IpAddr>, now: Instant) {
        let source = Source::of(ip);
        self.learn(peer, &[], source, now);
        let moves =
            self.entries.get(&peer).is_some_and(|known| !known.met) && self.make_room(true, source);
        if let Some(known) = self.entries.get_mut(&peer) {
            known.failures = 0;
            if moves {
                (known.met, known.source) = (true, source);
            }
        }
    }

    /// Whether there is room in the table of those that were met, or of the others, for one more from `source`;
    /// another one from there, or from where most are from, goes for it.
    fn make_room(&mut self, met: bool, source: Source) -> bool {
        let mut counts: BTreeMap<Source, usize> = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| entry.met == met) {
            *counts.entry(entry.source).or_default() += 1;
        }
        let from = if counts.get(&source).is_some_and(|count| *count >= source.most()) {
            source
        } else if counts.values().sum::<usize>() >= TABLE_MAX {
            let most = counts.iter().max_by_key(|(_, count)| **count);
            most.map_or(source, |(source, _)| *source)
        } else {
            return true;
        };
        let of = |(_, entry): &(&PeerId, &Entry)| {
            entry.met == met && entry.source == from && !entry.remembered
        };
        let failures = self.entries.iter().filter(of).map(|(_, entry)| entry.failures).max();
        let worst = self.entries.iter().filter(of).filter(|(_, it)| Some(it.failures) == failures);
        let worst: Vec<PeerId> = worst.map(|(peer, _)| *peer).collect();
        let out = worst.choose(&mut self.rng);
        out.is_some_and(|out| self.entries.remove(out).is_some())
    }

    /// A dial of `peer` has failed, or its last connection has closed: it is dialled again later, a few times
    /// in a row at most.
    pub(crate) fn failed(&mut self, peer: &PeerId, now: Instant) {
        let Some(known) = self.entries.get_mut(peer) else { return };
        known.failures = known.failures.saturating_add(1);
        if known.failures >= REDIAL_ATTEMPTS_MAX && !known.remembered {
            self.entries.remove(peer);
        } else {
            known.next = now + back_off(known.failures, &mut self.rng);
        }
    }

    pub(crate) fn forget(&mut self, peer: &PeerId) {
        self.entries.remove(peer);
    }

    /// Peers to dial now, with their addresses.
    pub(crate) fn due(&self, now: Instant) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let due = self.entries.iter().filter(|(_, known)| known.next.max(known.held) <= now);
        due.map(|(peer, known)| (*peer, known.addresses.clone())).collect()
    }

    /// The addresses of `peer`.
    pub(crate) fn addresses(&self, peer: &PeerId) -> Vec<Multiaddr> {
        self.entries.get(peer).map(|known| known.addresses.clone()).unwrap_or_default()
    }

    /// One of the `due` ones: as often one that was met as one that was only heard of, where there are both.
    pub(crate) fn pick(&mut self, due: &[PeerId]) -> Option<PeerId> {
        let met = |peer: &PeerId| self.entries.get(peer).is_some_and(|known| known.met);
        let (met, heard): (Vec<PeerId>, Vec<PeerId>) = due.iter().copied().partition(met);
        let takes_met = heard.is_empty() || (!met.is_empty() && self.rng.random());
        (if takes_met { met } else { heard }).choose(&mut self.rng).copied()
    }

    /// Notes that the dial of `peer` began or is not needed: it is looked at again later.
    pub(crate) fn postpone(&mut self, peer: &PeerId, now: Instant) {
        if let Some(known) = self.entries.get_mut(peer) {
            known.next = now + POSTPONED;
        }
    }

    /// Keeps `peer` from being dialled before `until`.
    pub(crate) fn hold(&mut self, peer: PeerId, until: Instant) {
        self.learn(peer, &[], Source::Near, until);
        if let Some(known) = self.entries.get_mut(&peer) {
            (known.held, known.failures) = (until, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REDIAL_MAX;

    fn peer(number: u32) -> PeerId {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        PeerId::from_public_key(key)
    }

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/198.51.100.1/udp/{port}/quic-v1").parse().unwrap()
    }

    fn network_of(number: u8) -> Option<IpAddr> {
        Some([198, 51, number, 1].into())
    }

    fn knows(book: &Book, number: u32) -> bool {
        book.entries.contains_key(&peer(number))
    }

    fn count(book: &Book, of: impl Fn(&Entry) -> bool) -> usize {
        book.entries.values().filter(|entry| of(entry)).count()
    }

    #[tokio::test]
    async fn a_discovered_peer_is_forgotten_after_a_few_failures() {
        let mut now = Instant::now();
        let mut book = Book::new(7);
        book.learn(peer(1), &[address(1), address(1), address(2)], Source::Directory, now);
        for _ in 0..REDIAL_ATTEMPTS_MAX {
            assert_eq!(book.due(now), [(peer(1), vec![address(1), address(2)])]);
            book.failed(&peer(1), now);
            now += REDIAL_MAX * 2;
        }
        assert!(book.due(now).is_empty());
    }

    #[tokio::test]
    async fn what_a_peer_tells_of_itself_comes_before_what_was_known() {
        let now = Instant::now();
        let mut book = Book::new(7);
        let old: Vec<Multiaddr> = (1..=8).map(address).collect();
        book.learn(peer(1), &old, Source::Near, now);
        book.told(peer(1), &[address(9), address(2)], Source::Near, now);
        let want = [9, 2, 1, 3, 4, 5, 6, 7].map(address).to_vec();
        assert_eq!(book.due(now), [(peer(1), want)]);
        book.told(peer(2), &[address(1)], Source::Near, now);
        assert!(knows(&book, 2));
    }

    #[tokio::test]
    async fn a_peer_of_an_earlier_start_is_dialled_for_ever_until_it_leaves() {
        let mut now = Instant::now();
        let mut book = Book::new(7);
        book.remember(peer(1), &address(1), now);
        for _ in 0..100 {
            assert_eq!(book.due(now), [(peer(1), vec![address(1)])]);
            book.failed(&peer(1), now);
            now += REDIAL_MAX * 2;
        }
        book.forget(&peer(1));
        assert!(book.due(now).is_empty());
    }

    #[tokio::test]
    async fn a_peer_that_is_held_is_dialled_when_the_time_has_come() {
        let now = Instant::now();
        let mut book = Book::new(7);
        book.learn(peer(1), &[address(1)], Source::Directory, now);
        for number in 1..=2 {
            book.hold(peer(number), now + REDIAL_MAX * 9);
            book.learn(peer(number), &[address(1)], Source::Directory, now);
            book.failed(&peer(number), now);
        }
        assert!(book.due(now + REDIAL_MAX * 8).is_empty());
        assert_eq!(book.due(now + REDIAL_MAX * 9).len(), 2);
    }

    #[tokio::test]
    async fn memory_of_peers_and_addresses_is_bounded() {
        let now = Instant::now();
        let mut book = Book::new(7);
        let addresses: Vec<_> = (1..100).map(address).collect();
        for number in 0..3 * KNOWN_PEERS_MAX as u32 {
            book.learn(peer(number), &addresses, Source::Near, now);
            if number % 2 == 0 {
                book.met(peer(number), None, now);
            }
        }
        let due = book.due(now);
        assert_eq!(due.len(), KNOWN_PEERS_MAX);
        assert!(due.iter().all(|(_, a)| a.len() == ADDRESSES_PER_PEER_MAX));
    }

    #[tokio::test]
    async fn names_without_end_push_out_nobody_that_was_met_or_heard_of_elsewhere() {
        let now = Instant::now();
        let mut book = Book::new(7);
        for number in 0..10 {
            book.met(peer(number), network_of(1), now);
            book.learn(peer(100 + number), &[], Source::of(network_of(2)), now);
            book.remember(peer(200 + number), &address(1), now);
        }
        for number in 1_000..20_000 {
            let source = [Source::Directory, Source::of(network_of(3))][number as usize % 2];
            book.learn(peer(number), &[address(1)], source, now);
        }
        let kept = (0..10).flat_map(|number| [number, 100 + number, 200 + number]);
        assert!(kept.into_iter().all(|number| knows(&book, number)));
        assert_eq!(count(&book, |entry| entry.source == Source::Directory), DIRECTORY_MAX);
        let liars = Source::of(network_of(3));
        assert_eq!(count(&book, |entry| entry.source == liars), NETWORK_MAX);
        // What the directory tells again has a place again.
        book.learn(peer(1_000), &[], Source::Directory, now);
        assert!(knows(&book, 1_000));
    }

    #[tokio::test]
    async fn those_of_one_network_that_were_met_replace_each_other_alone() {
        let now = Instant::now();
        let mut book = Book::new(7);
        book.met(peer(0), network_of(1), now);
        book.failed(&peer(0), now);
        for number in 1..1_000 {
            book.met(peer(number), network_of(2), now);
        }
        assert!(knows(&book, 0));
        assert_eq!(count(&book, |entry| entry.met), 1 + NETWORK_MAX);
    }

    #[tokio::test]
    async fn who_does_not_answer_goes_first() {
        let now = Instant::now();
        let mut book = Book::new(7);
        for number in 0..TABLE_MAX as u32 {
            book.learn(peer(number), &[], Source::Near, now);
        }
        book.failed(&peer(5), now);
        book.learn(peer(9_999), &[], Source::Near, now);
        assert!(!knows(&book, 5) && knows(&book, 9_999) && knows(&book, 4));
    }

    #[tokio::test]
    async fn a_pick_is_of_either_kind() {
        let now = Instant::now();
        let mut book = Book::new(7);
        assert_eq!(book.pick(&[]), None);
        book.met(peer(0), network_of(1), now);
        (1..100).for_each(|number| book.learn(peer(number), &[], Source::Directory, now));
        let due: Vec<PeerId> = (0..100).map(peer).collect();
        let met = (0..100).filter(|_| book.pick(&due) == Some(peer(0))).count();
        assert!((25..75).contains(&met), "{met}");
        assert_eq!(book.pick(&[peer(0)]), Some(peer(0)));
        assert_eq!(book.pick(&[peer(1)]), Some(peer(1)));
    }
}
