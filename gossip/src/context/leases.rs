//! Leases: which exchange may change which fragment.

use std::collections::BTreeMap;

use dnode_protocol::{ExchangeId, FragmentId};

/// The leased fragments, each with the exchange that holds it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    holders: BTreeMap<FragmentId, ExchangeId>,
}

impl Leases {
    /// The exchange that has `fragment`.
    pub(crate) fn holder(&self, fragment: FragmentId) -> Option<ExchangeId> {
        self.holders.get(&fragment).copied()
    }

    pub(crate) fn is_taken(&self, fragment: FragmentId) -> bool {
        self.holders.contains_key(&fragment)
    }

    /// Gives `fragment` to `exchange`.
    pub(crate) fn take(&mut self, fragment: FragmentId, exchange: ExchangeId) {
        self.holders.insert(fragment, exchange);
    }

    /// Ends the lease on `fragment`, if `exchange` has it.
    pub(crate) fn release(&mut self, fragment: FragmentId, exchange: ExchangeId) {
        if self.holders.get(&fragment) == Some(&exchange) {
            self.holders.remove(&fragment);
        }
    }

    pub(crate) const fn holders(&self) -> &BTreeMap<FragmentId, ExchangeId> {
        &self.holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::peer;

    #[test]
    fn only_its_holder_ends_a_lease() {
        let exchange = |sequence| ExchangeId { initiator: peer(1), incarnation: 1, sequence };
        let mut leases = Leases::default();
        leases.take(FragmentId(3), exchange(1));
        leases.release(FragmentId(3), exchange(2));
        assert!(leases.is_taken(FragmentId(3)) && !leases.is_taken(FragmentId(4)));
        leases.release(FragmentId(3), exchange(1));
        assert!(leases.holders().is_empty());
    }
}
