//! The positions of a rack's ranks when they form a group, and what each derives from them alike.

use std::cmp::Reverse;

/// Largest number of failed operations that a rank remembers, as they may have ended at another rank:
/// one commit, and groups that failed while they became equal. Each of these lost a rank or a path
/// (guess).
pub(in crate::training::steps) const HANDED_MAX: usize = 4;
/// Numbers in a standing.
const STANDING: usize = 9 + 2 * HANDED_MAX;
/// Elements of a standing: two for each number.
pub(in crate::training::steps) const STANDING_ELEMENTS: usize = 2 * STANDING;

/// Names slow weights that all ranks of a group had: after it formed, or after a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::training::steps) struct WeightsMark {
    /// The group; 0 for weights that only one peer had.
    pub(in crate::training::steps) group: u64,
    /// Commits of the group.
    pub(in crate::training::steps) commits: u64,
}

/// Where a rank stands; the fields are sent in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::training::steps) struct Standing {
    pub(in crate::training::steps) clock: u64,
    pub(in crate::training::steps) micro_steps: u64,
    pub(in crate::training::steps) since_commit: u64,
    pub(in crate::training::steps) since_round: u64,
    pub(in crate::training::steps) local_steps: u64,
    pub(in crate::training::steps) parameters: u64,
    /// Step at which it ends.
    pub(in crate::training::steps) end: u64,
    /// The weights that it last had in common with others.
    pub(in crate::training::steps) mark: WeightsMark,
    /// The weights that failed operations would have made of what this rank gave. Another rank may have
    /// them.
    pub(in crate::training::steps) handed: [WeightsMark; HANDED_MAX],
}

impl WeightsMark {
    /// The mark of weights that only one peer had.
    pub(in crate::training::steps) const NONE: Self = Self { group: 0, commits: 0 };

    /// After one commit more of the group.
    pub(in crate::training::steps) const fn next(self) -> Self {
        Self { group: self.group, commits: self.commits + 1 }
    }
}

impl Standing {
    fn numbers(self) -> impl Iterator<Item = u64> {
        let Self { clock, micro_steps, since_commit, since_round, .. } = self;
        let Self { local_steps, parameters, end, mark, handed, .. } = self;
        let marks = std::iter::once(mark).chain(handed);
        [clock, micro_steps, since_commit, since_round, local_steps, parameters, end]
            .into_iter()
            .chain(marks.flat_map(|mark| [mark.group, mark.commits]))
    }

    /// Writes it as bits of elements, which are only moved, not computed with.
    pub(in crate::training::steps) fn write(self, out: &mut [f32]) {
        for (pair, number) in out.chunks_exact_mut(2).zip(self.numbers()) {
            pair[0] = f32::from_bits((number >> 32) as u32);
            pair[1] = f32::from_bits(number as u32);
        }
    }

    pub(in crate::training::steps) fn read(values: &[f32]) -> Self {
        let mut numbers = values
            .chunks_exact(2)
            .map(|pair| (u64::from(pair[0].to_bits()) << 32) | u64::from(pair[1].to_bits()));
        let mut next = || numbers.next().unwrap_or(0);
        Self {
            clock: next(),
            micro_steps: next(),
            since_commit: next(),
            since_round: next(),
            local_steps: next(),
            parameters: next(),
            end: next(),
            mark: WeightsMark { group: next(), commits: next() },
            handed: std::array::from_fn(|_| WeightsMark { group: next(), commits: next() }),
        }
    }

    /// Whether both ranks last had the same weights in common with others. Only mixing has moved them
    /// since.
    pub(in crate::training::steps) fn is_in_step_with(self, other: Self) -> bool {
        self.mark.group != 0 && self.mark == other.mark
    }

    /// Whether the other's weights contain what this rank gave to an operation that failed here.
    pub(in crate::training::steps) fn is_part_of(self, other: Self) -> bool {
        other.mark.group != 0 && self.handed.contains(&other.mark)
    }

    /// Whether the other's weights contain nothing of this rank.
    pub(in crate::training::steps) fn is_apart_from(self, other: Self) -> bool {
        !self.is_in_step_with(other) && !self.is_part_of(other)
    }

    /// Whether the last steps of both were those of one group.
    const fn trained_with(self, other: Self) -> bool {
        self.mark.group != 0 && self.mark.group == other.mark.group
    }

    /// Whether the other has finished a step that failed here, with this rank's gradient in it.
    pub(in crate::training::steps) const fn lacks_step_of(self, other: Self) -> bool {
        self.trained_with(other) && self.micro_steps < other.micro_steps
    }
}

/// The rank whose state all take over: the most advanced of those whose weights are part of no other's.
pub(in crate::training::steps) fn lead(ranks: &[Standing]) -> usize {
    let is_newest = |rank: &Standing| !ranks.iter().any(|other| rank.is_part_of(*other));
    let newest = ranks.iter().enumerate().filter(|(_, rank)| is_newest(rank));
    let first = |(index, rank): &(usize, &Standing)| {
        (rank.clock, rank.micro_steps, rank.mark.group != 0, Reverse(*index))
    };
    newest.max_by_key(first).map_or(0, |(index, _)| index)
}

/// Number of replicas in the mean: the lead, and each rank that is apart from it. All count the same.
pub(in crate::training::steps) fn units(ranks: &[Standing], lead: usize) -> usize {
    let others = ranks.iter().enumerate().filter(|(index, _)| *index != lead);
    1 + others.filter(|(_, rank)| rank.is_apart_from(ranks[lead])).count()
}

/// Where ranks that form a group go on in the run, in micro-steps. It is at their mean, so that
/// together they take the steps that all would have taken alone. A step that the lead has finished was
/// taken by every rank of its group, as it contains the gradients of all. A rank whose weights are part
/// of the lead's has been counted there, so it has the lead's position, too.
pub(in crate::training::steps) fn meeting(ranks: &[Standing], lead: Standing) -> u64 {
    let is_counted = |rank: &Standing| rank.trained_with(lead) || rank.is_part_of(lead);
    let of = |rank: &Standing| if is_counted(rank) { lead } else { *rank };
    let sum: u128 = ranks.iter().map(|rank| u128::from(of(rank).micro_steps)).sum();
    u64::try_from(sum / ranks.len().max(1) as u128).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: WeightsMark =
        WeightsMark { group: 0xdead_beef_0000_0001, commits: 0x7fc0_0001_ff80_0001 };
    const NOTHING: WeightsMark = WeightsMark { group: 0, commits: 0 };
    const STANDING_OF_ONE: Standing = Standing {
        clock: u64::MAX,
        micro_steps: 0x7fc0_0001_ff80_0001,
        since_commit: 3,
        since_round: 0,
        local_steps: 25,
        parameters: 7,
        end: 2000,
        mark: NEW,
        handed: [NEW, NOTHING, WeightsMark { group: 1, commits: 2 }, NOTHING],
    };

    #[test]
    fn a_standing_survives_being_told() {
        let standing = STANDING_OF_ONE;
        let mut values = [0.0; STANDING_ELEMENTS];
        assert_eq!(standing.numbers().count(), STANDING);
        standing.write(&mut values);
        assert_eq!(Standing::read(&values), standing);
    }

    fn at(micro_steps: u64, group: u64) -> Standing {
        let (mark, handed) = (WeightsMark { group, commits: 0 }, [NOTHING; HANDED_MAX]);
        Standing { clock: 1, micro_steps, mark, handed, ..STANDING_OF_ONE }
    }

    #[test]
    fn ranks_that_meet_go_on_where_all_together_take_the_steps_of_each() {
        // Two that were alone, thirteen steps apart.
        assert_eq!(meeting(&[at(13, 0), at(0, 0)], at(13, 0)), 6);
        // A newcomer and a group of two.
        assert_eq!(meeting(&[at(90, 5), at(90, 5), at(60, 0)], at(90, 5)), 80);
        // A step that ended at one rank of a group and not at the other.
        assert_eq!(meeting(&[at(90, 5), at(91, 5)], at(91, 5)), 91);
        // One that never was in a group is like no other.
        assert_eq!(meeting(&[at(10, 0), at(20, 0), at(30, 0)], at(30, 0)), 20);
    }

    #[test]
    fn who_handed_in_follows_the_one_where_that_ended_and_counts_no_more() {
        // Both met at 80; that ended at the second only, the first stands where it was.
        let mut first = at(90, 5);
        first.handed[1] = WeightsMark { group: 6, commits: 0 };
        let ranks = [first, at(80, 6)];
        assert_eq!((lead(&ranks), units(&ranks, 1), meeting(&ranks, ranks[1])), (1, 1, 80));
        // A third that was alone meanwhile counts as much as both.
        let ranks = [first, at(80, 6), at(20, 0)];
        assert_eq!((lead(&ranks), units(&ranks, 1), meeting(&ranks, ranks[1])), (1, 2, 60));
        // Without that one, what was handed in to it has no meaning.
        let ranks = [first, at(20, 0)];
        assert_eq!((lead(&ranks), units(&ranks, 0), meeting(&ranks, first)), (0, 2, 55));
        // Nobody is named by weights that nobody had with others.
        let ranks = [at(90, 0), at(80, 0)];
        assert_eq!((lead(&ranks), units(&ranks, 0)), (0, 2));
    }
}
