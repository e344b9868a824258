//! Keeps track of the bootstrap addresses: which may still answer, and which lead to another run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dnode_network::{Multiaddr, is_loopback};
use dnode_protocol::PeerId;

/// Time within which a living bootstrap peer answers, even from the other side of the world. An address
/// that is not reached is given up only after the handshake's ten seconds.
pub(super) const ANSWER_USUAL: Duration = Duration::from_millis(2500);

fn is_here(address: &str) -> bool {
    address.parse::<Multiaddr>().is_ok_and(|address| is_loopback(&address))
}

/// The bootstrap addresses that may still lead to a peer of the run.
#[derive(Debug)]
pub(super) struct Bootstrap {
    /// Addresses that have neither failed nor been refused; a failed one is dialled again.
    unheard: BTreeSet<String>,
    /// Addresses that have not led to a peer of another run.
    hopeful: BTreeSet<String>,
    /// Whom they have led to.
    led_to: BTreeMap<String, PeerId>,
    /// Whether it was reported that they have not answered yet.
    told: bool,
    /// Since when they are dialled.
    since: Instant,
    /// A peer has sent a message after its Hello, so it takes this one for a peer of its run.
    met: bool,
}

impl Bootstrap {
    pub(super) fn new(addresses: impl IntoIterator<Item = String>) -> Self {
        let unheard: BTreeSet<String> = addresses.into_iter().collect();
        let (told, since, met) = (false, Instant::now(), false);
        let led_to = BTreeMap::new();
        Self { hopeful: unheard.clone(), unheard, led_to, told, since, met }
    }

    /// Whether an answer of one of them may still come soon, this long after it was dialled. Who would
    /// answer in this machine has done so within the time that any living peer needs.
    pub(super) fn may_answer(&self, waited: Duration) -> bool {
        self.unheard.iter().any(|address| waited < ANSWER_USUAL || !is_here(address))
    }

    /// A peer of the run was met.
    pub(super) const fn on_met(&mut self) {
        self.met = true;
    }

    /// A relay of the run has answered: others are found through it, which takes its time.
    pub(super) const fn on_relay(&mut self) {
        self.told = true;
    }

    /// Whether a peer of the run was ever met.
    pub(super) const fn has_met(&self) -> bool {
        self.met
    }

    /// The addresses that should have answered by now, if no peer has; reported once. An address is
    /// given up only after a long time-out.
    pub(super) fn silent(&mut self) -> Option<String> {
        if self.met { None } else { self.overdue(self.since.elapsed()) }
    }

    /// The addresses that should have answered after `waited` and have not; reported once.
    fn overdue(&mut self, waited: Duration) -> Option<String> {
        if self.told || waited < ANSWER_USUAL || self.unheard.is_empty() {
            return None;
        }
        self.told = true;
        Some(self.unheard.iter().map(String::as_str).collect::<Vec<_>>().join(" "))
    }

    /// Nobody is waited for any more: this peer is not let in, and was told why.
    pub(super) fn settle(&mut self) {
        self.unheard.clear();
    }

    /// `address` does not answer.
    pub(super) fn unreachable(&mut self, address: &str) {
        self.unheard.remove(address);
    }

    /// `address` leads to a peer with which this one has no run in common. Returns whether no address is
    /// left that may lead to a peer of this run.
    pub(super) fn not_let_in(&mut self, address: &str) -> bool {
        self.unheard.remove(address);
        self.hopeful.remove(address) && self.hopeful.is_empty()
    }

    /// `address` has led to `peer`.
    pub(super) fn reached(&mut self, address: &str, peer: &PeerId) {
        // Bounded: addresses that a person has given.
        self.led_to.insert(address.to_owned(), *peer);
    }

    /// `peer` is of another run. Returns whether no address is left that may lead to a peer of this run.
    /// A peer of another run to which no address has led, from the local network for one, says nothing
    /// about the addresses.
    pub(super) fn refused(&mut self, peer: &PeerId) -> bool {
        let before = self.hopeful.len();
        let name = peer.to_string();
        let leads_elsewhere = |address: &String| {
            self.led_to.get(address) != Some(peer)
                && address.rsplit_once("/p2p/").is_none_or(|(_, named)| named != name)
        };
        self.hopeful.retain(leads_elsewhere);
        self.unheard.retain(leads_elsewhere);
        before > 0 && self.hopeful.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "/ip4/192.0.2.7/udp/1/quic-v1";
    const B: &str = "/ip4/192.0.2.8/tcp/1";

    fn peer(number: u8) -> PeerId {
        PeerId::from_public_key([number; 32])
    }

    /// Two addresses, which have led to the peers 1 and 2.
    fn two() -> Bootstrap {
        let mut bootstrap = Bootstrap::new([A, B].map(str::to_owned));
        bootstrap.reached(A, &peer(1));
        bootstrap.reached(B, &peer(2));
        bootstrap
    }

    #[test]
    fn a_run_is_another_only_when_every_bootstrap_peer_says_so() {
        let mut bootstrap = two();
        assert!(!bootstrap.refused(&peer(3)));
        assert!(!bootstrap.refused(&peer(2)));
        assert!(bootstrap.may_answer(Duration::ZERO));
        assert!(bootstrap.refused(&peer(1)));
        assert!(!Bootstrap::new([]).refused(&peer(1)));
        // Who has come by itself may be of any run.
        let mut unheard = Bootstrap::new([A.to_owned()]);
        assert!(!unheard.refused(&peer(1)) && unheard.may_answer(Duration::ZERO));
        assert!(Bootstrap::new([format!("{A}/p2p/{}", peer(1))]).refused(&peer(1)));
    }

    #[test]
    fn silence_is_told_once_and_before_an_address_is_given_up() {
        let mut bootstrap = two();
        assert_eq!(bootstrap.overdue(Duration::from_secs(1)), None);
        bootstrap.unreachable(B);
        let told = bootstrap.overdue(Duration::from_secs(3));
        assert_eq!(told.as_deref(), Some(A));
        assert_eq!(bootstrap.overdue(Duration::from_secs(4)), None);
        assert_eq!(Bootstrap::new([]).overdue(Duration::from_secs(3)), None);
        assert!(Duration::from_secs(2) < ANSWER_USUAL && ANSWER_USUAL < Duration::from_secs(3));
    }

    #[test]
    fn an_answer_may_come_until_every_address_has_failed() {
        let mut bootstrap = two();
        bootstrap.unreachable(B);
        assert!(bootstrap.may_answer(Duration::ZERO));
        bootstrap.unreachable(A);
        assert!(!bootstrap.may_answer(Duration::ZERO));
        assert!(!bootstrap.refused(&peer(2)) && bootstrap.refused(&peer(1)));
    }

    const NAMED: &str =
        "/ip6/::1/udp/1/quic-v1/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5";

    #[test]
    fn who_is_in_this_machine_answers_soon_or_never() {
        let here = ["/ip4/127.0.0.1/udp/1/quic-v1", NAMED];
        let bootstrap = Bootstrap::new(here.map(str::to_owned));
        assert!(bootstrap.may_answer(Duration::from_secs(2)));
        assert!(!bootstrap.may_answer(ANSWER_USUAL) && two().may_answer(ANSWER_USUAL));
    }

    #[test]
    fn a_run_is_closed_to_us_only_when_every_address_says_so() {
        let mut bootstrap = two();
        assert!(!bootstrap.not_let_in("/ip4/192.0.2.9/tcp/1"));
        assert!(!bootstrap.not_let_in(B));
        assert!(bootstrap.may_answer(Duration::ZERO));
        assert!(bootstrap.not_let_in(A));
        assert!(!bootstrap.not_let_in(A));
        assert!(!bootstrap.may_answer(Duration::ZERO));
    }

    #[test]
    fn nobody_hears_of_silent_addresses_once_a_peer_of_the_run_was_met() {
        let mut bootstrap = two();
        assert_eq!(bootstrap.silent(), None, "they have just been dialled");
        bootstrap.since = Instant::now().checked_sub(ANSWER_USUAL).unwrap();
        bootstrap.on_met();
        assert!(bootstrap.has_met() && bootstrap.silent().is_none());
        bootstrap.met = false;
        assert!(bootstrap.silent().is_some() && bootstrap.silent().is_none());
    }
}
