//! Sets of sequence numbers: which of the last exchanges of a peer are applied, or over.

use std::collections::BTreeMap;

use dnode_protocol::{ExchangeId, PeerId};

use crate::config::STRANGERS_MAX;

/// How many sequence numbers back the set reaches.
///
/// An end has at most a few dozen exchanges open, so anything older is surely over.
pub(crate) const REMEMBERED: u64 = 1024;

const WORDS: usize = (REMEMBERED / 64) as usize;

/// A set of sequence numbers that forgets those more than [`REMEMBERED`] before the newest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequences {
    /// One more than the newest.
    next: u64,
    /// Bit `sequence mod REMEMBERED`.
    bits: [u64; WORDS],
}

impl Sequences {
    pub(crate) fn insert(&mut self, sequence: u64) {
        if sequence >= self.next {
            let end = sequence.saturating_add(1);
            // Every bit is stale after a jump of a whole window; clearing more is not needed.
            let stale = (end - self.next).min(REMEMBERED);
            (end - stale..end).for_each(|old| self.set(old, false));
            self.next = end;
        }
        if !self.is_forgotten(sequence) {
            self.set(sequence, true);
        }
    }

    pub(crate) const fn contains(&self, sequence: u64) -> bool {
        let (word, mask) = place(sequence);
        sequence < self.next && !self.is_forgotten(sequence) && self.bits[word] & mask != 0
    }

    /// Whether it is too old to say.
    pub(crate) const fn is_forgotten(&self, sequence: u64) -> bool {
        // The set ends before the last number: none follows it.
        sequence == u64::MAX || sequence < self.next && self.next - sequence > REMEMBERED
    }

    const fn set(&mut self, sequence: u64, value: bool) {
        let (word, mask) = place(sequence);
        if value {
            self.bits[word] |= mask;
        } else {
            self.bits[word] &= !mask;
        }
    }
}

const fn place(sequence: u64) -> (usize, u64) {
    let bit = sequence % REMEMBERED;
    ((bit / 64) as usize, 1 << (bit % 64))
}

/// Which exchanges are over, so that late duplicates never open them again; of at most [`STRANGERS_MAX`]
/// initiators.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved(BTreeMap<PeerId, OfOne>);

impl Resolved {
    pub(crate) fn contains(&self, exchange: &ExchangeId) -> bool {
        let of_one = self.0.get(&exchange.initiator);
        of_one.is_some_and(|of_one| of_one.contains(exchange.incarnation, exchange.sequence))
    }

    /// Adds an exchange. Where there are too many initiators, one is forgotten of which nothing `is_open`.
    pub(crate) fn insert(&mut self, exchange: &ExchangeId, is_open: impl Fn(&PeerId) -> bool) {
        let of_one = self.0.entry(exchange.initiator).or_default();
        of_one.insert(exchange.incarnation, exchange.sequence);
        if self.0.len() > STRANGERS_MAX {
            let stays = |peer: &PeerId| *peer == exchange.initiator || is_open(peer);
            let gone = self.0.keys().find(|peer| !stays(peer)).copied();
            if let Some(gone) = gone {
                self.0.remove(&gone);
            }
        }
    }
}

/// Those of one initiator.
#[derive(Clone, Debug, Default)]
struct OfOne {
    incarnation: u64,
    over: Sequences,
}

impl OfOne {
    const fn contains(&self, incarnation: u64, sequence: u64) -> bool {
        incarnation < self.incarnation
            || incarnation == self.incarnation
                && (self.over.is_forgotten(sequence) || self.over.contains(sequence))
    }

    fn insert(&mut self, incarnation: u64, sequence: u64) {
        if incarnation > self.incarnation {
            *self = Self { incarnation, ..Self::default() };
        }
        if incarnation == self.incarnation {
            self.over.insert(sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::peer;

    proptest! {
        #[test]
        fn it_agrees_with_a_set_over_the_last_numbers(
            steps in prop::collection::vec((0_u64..3000, any::<bool>()), 1..200),
        ) {
            let (mut sequences, mut model, mut newest) = (Sequences::default(), BTreeSet::new(), 0_u64);
            for (step, back) in steps {
                let sequence = if back { newest.saturating_sub(step) } else { newest + step % 40 };
                sequences.insert(sequence);
                model.insert(sequence);
                newest = newest.max(sequence);
                for probe in newest.saturating_sub(REMEMBERED + 5)..newest + 5 {
                    let near = newest < probe + REMEMBERED;
                    prop_assert_eq!(sequences.contains(probe), near && model.contains(&probe));
                    prop_assert_eq!(sequences.is_forgotten(probe), !near);
                }
            }
        }
    }

    #[test]
    fn the_largest_number_is_no_trouble() {
        let mut sequences = Sequences::default();
        sequences.insert(3);
        sequences.insert(u64::MAX);
        sequences.insert(u64::MAX - 1);
        assert!(sequences.contains(u64::MAX - 1) && sequences.is_forgotten(3));
        assert!(sequences.is_forgotten(u64::MAX), "it is over from the start");
    }

    #[test]
    fn what_is_over_stays_over() {
        let mut resolved = OfOne::default();
        for sequence in (0..10_000).step_by(2) {
            resolved.insert(1, sequence);
        }
        assert!(resolved.contains(1, 5) && resolved.contains(1, 9_998));
        assert!(!resolved.contains(1, 9_997) && resolved.contains(0, 9_997));
        assert!(!resolved.contains(2, 0));
    }

    #[test]
    fn of_too_many_initiators_one_is_forgotten_of_which_nothing_is_open() {
        let mut resolved = Resolved::default();
        let of = |index| ExchangeId { initiator: peer(index), incarnation: 1, sequence: 7 };
        let most = u32::try_from(STRANGERS_MAX).unwrap();
        // The lowest name comes last.
        (0..=most).rev().for_each(|index| resolved.insert(&of(index), |other| *other == peer(1)));
        assert_eq!(resolved.0.len(), STRANGERS_MAX);
        assert!([0, 1, 3].iter().all(|index| resolved.contains(&of(*index))));
        assert!(!resolved.contains(&of(2)));
    }
}
