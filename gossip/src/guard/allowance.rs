//! What is forgiven a neighbour a few times, and again after a while.

use dnode_protocol::Clock;

/// How often in a row (guess).
pub(super) const TIMES_MAX: u32 = 3;
/// Own commits after which one time more is free again (guess).
pub(super) const AGAIN_COMMITS: u64 = 256;

/// How much of it is used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowance {
    used: u32,
    /// The own clock at the last use; `None` before the first in this life.
    last: Option<Clock>,
}

impl Allowance {
    /// That of a neighbour that has used it so often in an earlier life of this peer.
    pub(super) fn after(used: u32) -> Self {
        Self { used: used.min(TIMES_MAX), last: None }
    }

    /// How often it was used in a row.
    pub(super) const fn used(self) -> u32 {
        self.used
    }

    /// Uses it once more; whether something was left.
    pub(super) fn take(&mut self, clock: Clock) -> bool {
        let back = self.last.map_or(0, |last| clock.ahead_of(last) / AGAIN_COMMITS);
        let used = self.used.saturating_sub(u32::try_from(back).unwrap_or(u32::MAX));
        let left = used < TIMES_MAX;
        if left {
            (self.used, self.last) = (used + 1, Some(clock));
        }
        // What is used up in an earlier life comes back, too.
        self.last = self.last.or(Some(clock));
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_used_up_and_comes_back_one_by_one() {
        let mut allowance = Allowance::default();
        let taken =
            |allowance: &mut Allowance, at| (0..10).filter(|_| allowance.take(Clock(at))).count();
        assert_eq!(taken(&mut allowance, 5), TIMES_MAX as usize);
        assert_eq!(taken(&mut allowance, 4 + AGAIN_COMMITS), 0);
        assert_eq!(taken(&mut allowance, 5 + AGAIN_COMMITS), 1);
        assert_eq!(taken(&mut allowance, 5 + 3 * AGAIN_COMMITS), 2);
        assert_eq!(taken(&mut allowance, u64::MAX), TIMES_MAX as usize);
    }

    #[test]
    fn what_an_earlier_life_used_comes_back_after_a_while_of_this_one() {
        let mut allowance = Allowance::after(u32::MAX);
        assert_eq!(allowance.used(), TIMES_MAX);
        assert!(!allowance.take(Clock(1_000_000)));
        assert!(!allowance.take(Clock(999_999 + AGAIN_COMMITS)));
        assert!(allowance.take(Clock(1_000_000 + AGAIN_COMMITS)));
    }
}
