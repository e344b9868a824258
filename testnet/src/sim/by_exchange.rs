//! A table by exchange in which the newest of each initiator are found first.

use std::collections::VecDeque;

use dnode_protocol::ExchangeId;

use super::names::index_of;

/// Incarnation and sequence: the order in which one initiator begins its exchanges.
type Key = (u64, u64);

/// Something for each exchange.
///
/// Exchanges are asked about while they are open, and those that are open are the newest of their
/// initiator. So the rows of one initiator lie side by side in order, and are searched from the end.
#[derive(Clone, Debug)]
pub(super) struct ByExchange<T> {
    rows: Vec<VecDeque<(Key, T)>>,
}

const fn key_of(exchange: &ExchangeId) -> Key {
    (exchange.incarnation, exchange.sequence)
}

/// Where `key` is, or where it belongs.
fn place<T>(own: &VecDeque<(Key, T)>, key: Key) -> Result<usize, usize> {
    match own.iter().rposition(|(known, _)| *known <= key) {
        Some(at) if own[at].0 == key => Ok(at),
        Some(at) => Err(at + 1),
        None => Err(0),
    }
}

impl<T> ByExchange<T> {
    /// An empty table for exchanges of `peers` initiators.
    pub(super) fn new(peers: usize) -> Self {
        Self { rows: std::iter::repeat_with(VecDeque::new).take(peers).collect() }
    }

    pub(super) fn get(&self, exchange: &ExchangeId) -> Option<&T> {
        let own = self.rows.get(index_of(&exchange.initiator) as usize)?;
        Some(&own[place(own, key_of(exchange)).ok()?].1)
    }

    pub(super) fn get_mut(&mut self, exchange: &ExchangeId) -> Option<&mut T> {
        let own = self.rows.get_mut(index_of(&exchange.initiator) as usize)?;
        let at = place(own, key_of(exchange)).ok()?;
        Some(&mut own[at].1)
    }

    pub(super) fn get_or_insert_with(
        &mut self,
        exchange: &ExchangeId,
        value: impl FnOnce() -> T,
    ) -> &mut T {
        let own = &mut self.rows[index_of(&exchange.initiator) as usize];
        let key = key_of(exchange);
        let at = place(own, key).unwrap_or_else(|at| {
            own.insert(at, (key, value()));
            at
        });
        &mut own[at].1
    }

    pub(super) fn remove(&mut self, exchange: &ExchangeId) {
        let own = &mut self.rows[index_of(&exchange.initiator) as usize];
        if let Ok(at) = place(own, key_of(exchange)) {
            own.remove(at);
        }
    }

    /// Drops the oldest of the initiator of `exchange` beyond `most`.
    pub(super) fn bound(&mut self, exchange: &ExchangeId, most: usize) {
        let own = &mut self.rows[index_of(&exchange.initiator) as usize];
        while own.len() > most {
            own.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use dnode_gossip::testing::peer as name;

    use super::*;

    fn exchange(initiator: u32, sequence: u64) -> ExchangeId {
        ExchangeId { initiator: name(initiator), incarnation: 1, sequence }
    }

    #[test]
    fn rows_are_found_in_any_order_and_the_oldest_go_first() {
        let mut table = ByExchange::new(2);
        for sequence in [5, 2, 9, 2, 7] {
            *table.get_or_insert_with(&exchange(1, sequence), || 0_u64) += sequence;
        }
        assert_eq!(table.get(&exchange(1, 2)), Some(&4));
        assert_eq!(table.get(&exchange(0, 2)), None);
        assert_eq!(table.get(&exchange(1, 6)), None);
        table.remove(&exchange(1, 7));
        table.remove(&exchange(1, 8));
        table.bound(&exchange(1, 9), 2);
        let left = [2, 5, 7, 9].map(|sequence| table.get(&exchange(1, sequence)).copied());
        assert_eq!(left, [None, Some(5), None, Some(9)]);
    }
}
