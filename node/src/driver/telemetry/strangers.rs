//! Reports addresses that do not answer, and those where this peer is taken for a stranger or meets one.

use dnode_network::{Multiaddr, NotLetIn};

use super::Telemetry;
use crate::driver::refusal::way_in;

impl Telemetry {
    /// The bootstrap peers have not answered in time.
    pub(in crate::driver) fn bootstrap_silent(&mut self, addresses: &str) {
        tracing::warn!(
            addresses,
            "no answer from the bootstrap peer yet: is the port right, does it run, does a firewall drop UDP?"
        );
        self.event("bootstrap-silent", addresses);
    }

    /// A dialled peer and this one are not of one run.
    pub(super) fn not_let_in(&mut self, address: &Multiaddr, why: NotLetIn) {
        tracing::warn!(%address, "not let in: {}", way_in(why));
        self.event("not-let-in", &format!("{address}: {why:?}"));
    }
}
