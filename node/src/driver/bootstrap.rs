//! What the bootstrap addresses have led to so far, as long as no peer of the run was met.

use std::collections::BTreeSet;

/// The bootstrap addresses that are still promising.
#[derive(Debug)]
pub(super) struct Bootstrap {
    /// Addresses that have neither failed nor been refused; a failed one is dialled again.
    unheard: BTreeSet<String>,
    /// Addresses that have not led to a peer of another run.
    hopeful: BTreeSet<String>,
}

impl Bootstrap {
    pub(super) fn new(addresses: impl IntoIterator<Item = String>) -> Self {
        let unheard: BTreeSet<String> = addresses.into_iter().collect();
        Self { hopeful: unheard.clone(), unheard }
    }

    /// Whether an answer of one of them may still come soon.
    pub(super) fn may_answer(&self) -> bool {
        !self.unheard.is_empty()
    }

    /// `address` does not answer.
    pub(super) fn unreachable(&mut self, address: &str) {
        self.unheard.remove(address);
    }

    /// `peer`, by its full name, is of another run. Returns whether no address is left to hope for:
    /// a stranger of another run, met on the local network, says nothing about them.
    pub(super) fn refused(&mut self, peer: &str) -> bool {
        let before = self.hopeful.len();
        // An address without a name may lead to anybody, so it is given up with the first stranger.
        let leads_elsewhere =
            |address: &String| address.rsplit_once("/p2p/").is_some_and(|(_, name)| name != peer);
        self.hopeful.retain(leads_elsewhere);
        self.unheard.retain(leads_elsewhere);
        before > 0 && self.hopeful.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Bootstrap {
        let addresses = ["/ip4/192.0.2.7/udp/1/quic-v1/p2p/A", "/ip4/192.0.2.8/tcp/1/p2p/B"];
        Bootstrap::new(addresses.map(str::to_owned))
    }

    #[test]
    fn a_run_is_another_only_when_every_bootstrap_peer_says_so() {
        let mut bootstrap = two();
        assert!(!bootstrap.refused("a stranger"));
        assert!(!bootstrap.refused("B"));
        assert!(bootstrap.may_answer());
        assert!(bootstrap.refused("A"));
        assert!(!Bootstrap::new([]).refused("A"));
        assert!(Bootstrap::new(["/dns4/example.org/tcp/1".to_owned()]).refused("A"));
    }

    #[test]
    fn an_answer_may_come_until_every_address_has_failed() {
        let mut bootstrap = two();
        bootstrap.unreachable("/ip4/192.0.2.8/tcp/1/p2p/B");
        assert!(bootstrap.may_answer());
        bootstrap.unreachable("/ip4/192.0.2.7/udp/1/quic-v1/p2p/A");
        assert!(!bootstrap.may_answer());
        assert!(!bootstrap.refused("B") && bootstrap.refused("A"));
    }
}
