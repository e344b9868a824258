//! The own contributions in sequence: the own name as an author, and the number of the newest.

use dnode_protocol::{Origin, Versions};

use crate::context::Context;

/// Bits of an author's incarnation that count its beginnings within one start of the process.
const LIFE_BITS: u32 = 24;

/// This peer as an author.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ContributionSequence {
    /// Number of the own newest contribution.
    number: u64,
    /// How often this peer had to begin anew as an author, because contributions that nobody else
    /// had were lost when its replica was replaced.
    lives: u64,
}

impl ContributionSequence {
    /// The own name as an author: the start of the process, and how often it began anew since, in
    /// bits of their own, so that no later start takes the name again.
    pub(super) const fn origin(&self, context: &Context) -> Origin {
        let incarnation = context.incarnation.wrapping_shl(LIFE_BITS) | self.lives;
        Origin { peer: context.me, incarnation }
    }

    /// The number of the own newest contribution.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// The name and number of the next contribution.
    pub(super) const fn next(&mut self, context: &Context) -> (Origin, u64) {
        self.number += 1;
        (self.origin(context), self.number)
    }

    /// Begins anew where somebody has contributions of the own name before this start has made any:
    /// the count of starts was set back, with a copy of the data directory. Of one name there must
    /// never be two contributions of one number.
    pub(super) fn avoid(&mut self, context: &Context, named: &Versions) {
        let taken = |origin: Origin| {
            let at = named.entries.binary_search_by_key(&origin, |(known, _)| *known);
            at.is_ok_and(|index| named.entries[index].1 > 0)
        };
        while self.number == 0 && self.lives + 1 < 1 << LIFE_BITS && taken(self.origin(context)) {
            self.lives += 1;
        }
    }

    /// Begins anew as an author.
    pub(super) const fn begin_anew(&mut self) {
        self.lives += 1;
        self.number = 0;
    }
}
