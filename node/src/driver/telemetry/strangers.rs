//! Reports addresses where this peer is taken for a stranger, or meets one.

use dnode_network::{Multiaddr, NotLetIn};

use super::Telemetry;
use crate::driver::refusal::way_in;

impl Telemetry {
    /// A dialled peer and this one are not of one run.
    pub(super) fn not_let_in(&mut self, address: &Multiaddr, why: NotLetIn) {
        tracing::warn!(%address, "not let in: {}", way_in(why));
        self.event("not-let-in", &format!("{address}: {why:?}"));
    }
}
