//! Sets of sequence numbers: which of the last exchanges of one peer are applied, or over.

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
        sequence < self.next && self.next - sequence > REMEMBERED
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

/// Which exchanges of one initiator are over, so that late duplicates never open them again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    incarnation: u64,
    over: Sequences,
}

impl Resolved {
    pub(crate) const fn contains(&self, incarnation: u64, sequence: u64) -> bool {
        incarnation < self.incarnation
            || incarnation == self.incarnation
                && (self.over.is_forgotten(sequence) || self.over.contains(sequence))
    }

    pub(crate) fn insert(&mut self, incarnation: u64, sequence: u64) {
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
    }

    #[test]
    fn what_is_over_stays_over() {
        let mut resolved = Resolved::default();
        for sequence in (0..10_000).step_by(2) {
            resolved.insert(1, sequence);
        }
        assert!(resolved.contains(1, 5) && resolved.contains(1, 9_998));
        assert!(!resolved.contains(1, 9_997) && resolved.contains(0, 9_997));
        assert!(!resolved.contains(2, 0));
    }
}
