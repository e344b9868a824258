//! Racks: peers joined by fast links that act as one replica.

use wincode::{SchemaRead, SchemaWrite};

use crate::FragmentId;

/// Which part of the replica of its rack a peer exchanges with others; a lone peer has the whole.
///
/// A rack of `k` is `k` ranks in step. Rank `r` exchanges the `r`-th `k`-th of the fragments, so every
/// fragment of a rack has one peer to be exchanged with, and all links are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct Stripe {
    /// Which group of ranks: part of a hash of its members, 0 without one.
    pub group: u64,
    /// `0..size`.
    pub rank: u16,
    /// Ranks of the group, 1 to [`Stripe::RANKS_MAX`].
    pub size: u16,
}

impl Default for Stripe {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl Stripe {
    /// Most ranks of a rack.
    pub const RANKS_MAX: u16 = 64;
    /// Of a peer without a group.
    pub const WHOLE: Self = Self { group: 0, rank: 0, size: 1 };

    /// Whether there can be such a stripe.
    #[must_use]
    pub const fn is_sound(self) -> bool {
        self.rank < self.size
            && self.size <= Self::RANKS_MAX
            && (self.size == 1) == (self.group == 0)
    }

    /// Whether it is a part of the whole.
    #[must_use]
    pub const fn is_part(self) -> bool {
        self.size > 1
    }

    /// Whether both are of one group.
    #[must_use]
    pub const fn is_mate(self, other: Self) -> bool {
        self.is_part() && self.group == other.group
    }

    /// Whether `fragment` of so many belongs to it.
    #[must_use]
    pub fn owns(self, fragment: FragmentId, fragments: u32) -> bool {
        let owner = u64::from(fragment.0) * u64::from(self.size) / u64::from(fragments.max(1));
        owner == u64::from(self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fragment_has_one_owner_and_parts_are_alike() {
        for size in 1..=9_u16 {
            for fragments in 1..40_u32 {
                let mut counts = vec![0_u32; usize::from(size)];
                for fragment in (0..fragments).map(FragmentId) {
                    let owners = (0..size).filter(|rank| {
                        Stripe { group: 7, rank: *rank, size }.owns(fragment, fragments)
                    });
                    let owners: Vec<u16> = owners.collect();
                    assert_eq!(owners.len(), 1, "{fragment:?} of {fragments} among {size}");
                    counts[usize::from(owners[0])] += 1;
                }
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                assert!(most - least <= 1, "{counts:?}");
            }
        }
    }

    #[test]
    fn only_parts_of_a_group_are_mates_and_impossible_ones_are_not_sound() {
        let part = |group, rank| Stripe { group, rank, size: 2 };
        assert!(part(7, 0).is_mate(part(7, 1)) && !part(7, 0).is_mate(part(8, 1)));
        assert!(!Stripe::WHOLE.is_mate(Stripe::WHOLE));
        assert!(Stripe::WHOLE.is_sound() && part(7, 1).is_sound());
        assert!(!part(7, 2).is_sound() && !part(0, 1).is_sound());
        assert!(!Stripe { group: 7, rank: 0, size: 65 }.is_sound());
        assert!(!Stripe { group: 7, rank: 0, size: 1 }.is_sound());
    }
}
