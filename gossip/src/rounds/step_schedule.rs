//! How far a local step carries a peer in the run, whatever its number of local steps per commit.

use dnode_protocol::Clock;

use crate::Load;

/// Positions are counted in millionths of a step of `run.steps`.
pub const MICRO_STEPS: u64 = 1_000_000;
/// Most local steps per commit, as for `gossip.local_steps`; keeps products within 64 bits.
const LOCAL_STEPS_MAX: u64 = 1_000_000;
/// Most millionths of a commit that one covers; keeps products within 64 bits.
const COVERED_BOUND: u64 = 1_000 * MICRO_STEPS;

/// A commit that is held, or put off by an open round, lets the trainer go on to this many times its
/// local steps before it waits (`H_max = 4·H_ref`).
const STRETCH_MAX: u64 = 4;
/// Where commits are contributions, it goes on to so many at least: what four commits of 25 steps are.
/// Such commits are short, and on a line of long delay nothing returns for many of them.
const CONTRIBUTED_MIN: u64 = 100;

/// How many local steps make a commit of this peer, and how far each carries the position.
///
/// A commit advances the position by the run's H, however many local steps this peer does for it:
/// positions of peers with equal clocks are equal, so that they train at one learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    /// Local steps per commit of a peer of mean speed: the run's H.
    reference: u64,
    /// Local steps per commit of this peer, `H_i`.
    now: u64,
    /// Commits of the run that these lead past, millionths.
    covers: u64,
    /// Local steps per exchange round at the run's H; 0 for rules without exchanges.
    mix_every: u64,
    /// Local steps per exchange round of this peer, whatever its number per commit.
    round_every: Option<u64>,
    /// Least local steps of the longest commit.
    longest_min: u64,
    /// What does not yet make a whole millionth, in units of `1/now` of it.
    carried: u64,
}

impl Default for Stride {
    /// One local step per commit and no rounds.
    fn default() -> Self {
        Self::new(1, 0)
    }
}

impl Stride {
    /// The stride of a peer of mean speed, which does the run's `local_steps` per commit and has a
    /// round of exchanges every `mix_every` of them.
    #[must_use]
    pub fn new(local_steps: u64, mix_every: u64) -> Self {
        let reference = local_steps.clamp(1, LOCAL_STEPS_MAX);
        let (covers, round_every, longest_min, carried) = (MICRO_STEPS, None, 0, 0);
        Self { reference, now: reference, covers, mix_every, round_every, longest_min, carried }
    }

    /// The same stride where commits are contributions to a sum (rule `delta-set`).
    ///
    /// Replicas that wait to be mixed drift apart, so under other rules a commit is not put off as far.
    #[must_use]
    pub const fn of_contributions(self) -> Self {
        Self { longest_min: CONTRIBUTED_MIN, ..self }
    }

    /// This peer does so many local steps per commit from now on.
    pub fn set(&mut self, local_steps: u64) {
        self.set_load(Load::of_a_commit(local_steps, 1));
    }

    /// The same, of a commit that may lead past more or less than one of the run's.
    pub fn set_load(&mut self, load: Load) {
        let now = load.local_steps.clamp(1, LOCAL_STEPS_MAX);
        let covers = load.covers.clamp(1, COVERED_BOUND);
        if (now, covers) != (self.now, self.covers) {
            (self.now, self.covers, self.carried) = (now, covers, 0);
        }
    }

    /// This peer does so many local steps per commit, from a position that it has met others at: none has a
    /// part of a millionth left from its own steps, so that all go on alike.
    pub fn restart(&mut self, local_steps: u64) {
        self.set(local_steps);
        self.carried = 0;
    }

    /// This peer has a round after so many local steps from now on.
    pub fn set_round_every(&mut self, steps: u64) {
        self.round_every = Some(steps.max(1));
    }

    /// Whether a round begins although the last one is still open, and commits do not wait for its end:
    /// where the interval follows the link, and the link carries more than one round per commit.
    ///
    /// A fragment that is still in an exchange joins the new round afterwards.
    #[must_use]
    pub fn rounds_overlap(&self) -> bool {
        self.round_every.is_some_and(|steps| steps < self.now)
    }

    /// Local steps per commit.
    #[must_use]
    pub const fn local_steps(&self) -> u64 {
        self.now
    }

    /// Local steps after the last commit at which the trainer waits for the next one.
    #[must_use]
    pub const fn longest(&self) -> u64 {
        let times = STRETCH_MAX * self.now;
        if times > self.longest_min { times } else { self.longest_min }
    }

    /// The most steps of the run that a peer of mean speed can have come to by this clock: all of its commits
    /// were as long as they may be.
    #[must_use]
    pub const fn farthest(&self, clock: Clock) -> u64 {
        clock.0.saturating_mul(self.longest())
    }

    /// Local steps per exchange round, in the same ratio to commits as the run's if this peer has no
    /// interval of its own; 0 is never.
    #[must_use]
    pub fn mix_every(&self) -> u64 {
        match (self.mix_every, self.round_every) {
            (0, _) => return 0,
            (_, Some(steps)) => return steps,
            (_, None) => {}
        }
        let (every, now) = (u128::from(self.mix_every), u128::from(self.now));
        let scaled = every * now / u128::from(self.reference);
        u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
    }

    /// How far one local step carries the position, micro-steps; `now` of them make exactly
    /// `reference` steps, or as many more or less as a commit covers.
    pub fn advance(&mut self) -> u64 {
        let length = self.reference * self.covers;
        self.carried += length % self.now;
        let carry = self.carried / self.now;
        self.carried %= self.now;
        length / self.now + carry
    }

    /// The position that belongs to a clock, micro-steps.
    #[must_use]
    pub const fn position(&self, clock: Clock) -> u64 {
        clock.0.saturating_mul(self.reference).saturating_mul(MICRO_STEPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(stride: &mut Stride, steps: u64) -> u64 {
        (0..steps).map(|_| stride.advance()).sum()
    }

    #[test]
    fn at_the_runs_pace_a_local_step_is_a_step_of_the_run() {
        let mut stride = Stride::new(25, 10);
        assert_eq!((stride.local_steps(), stride.mix_every()), (25, 10));
        assert_eq!(after(&mut stride, 7), 7 * MICRO_STEPS);
        assert_eq!(stride.position(Clock(3)), 75 * MICRO_STEPS);
    }

    #[test]
    fn a_contribution_may_be_put_off_for_longer() {
        assert_eq!(Stride::new(4, 4).longest(), 16);
        assert_eq!(Stride::new(4, 4).of_contributions().longest(), 100);
        assert_eq!(Stride::new(50, 4).of_contributions().longest(), 200);
        assert_eq!(Stride::new(4, 4).of_contributions().farthest(Clock(3)), 300);
    }

    #[test]
    fn a_commit_is_as_long_for_every_pace() {
        for local_steps in [1, 2, 3, 7, 24, 25, 26, 99, 1000] {
            let mut stride = Stride::new(25, 25);
            stride.set(local_steps);
            for commits in 1..=3_u64 {
                let position = after(&mut stride, local_steps);
                assert_eq!(position, 25 * MICRO_STEPS, "{local_steps}, commit {commits}");
            }
        }
    }

    #[test]
    fn a_commit_that_covers_more_leads_as_far_as_it_says() {
        let mut stride = Stride::new(4, 4);
        for (local_steps, covers) in [(1, 1_356_000), (2, 1_250_000), (3, 812_501)] {
            stride.set_load(Load { covers, ..Load::of_a_commit(local_steps, 8) });
            for commit in 1..=3 {
                assert_eq!(after(&mut stride, local_steps), 4 * covers, "{covers}, {commit}");
            }
            assert_eq!(stride.local_steps(), local_steps);
        }
        stride.set(2);
        assert_eq!(after(&mut stride, 2), 4 * MICRO_STEPS);
    }

    #[test]
    fn those_that_meet_advance_alike_whatever_they_have_done_before() {
        let strides = [0, 1, 2].map(|steps| {
            let mut stride = Stride::new(25, 25);
            stride.set(7);
            after(&mut stride, steps);
            stride.restart(7);
            [(); 7].map(|()| stride.advance())
        });
        assert_eq!(strides[0].iter().sum::<u64>(), 25 * MICRO_STEPS);
        assert!(strides.iter().all(|stride| *stride == strides[0]), "{strides:?}");
    }

    #[test]
    fn rounds_keep_their_ratio_to_commits() {
        for (mix_every, local_steps, want) in
            [(25, 50, 50), (25, 5, 5), (10, 50, 20), (10, 1, 1), (50, 5, 10), (0, 5, 0)]
        {
            let mut stride = Stride::new(25, mix_every);
            stride.set(local_steps);
            assert_eq!(stride.mix_every(), want, "{mix_every} {local_steps}");
        }
    }

    #[test]
    fn an_interval_of_its_own_does_not_follow_the_local_steps_of_a_commit() {
        let mut stride = Stride::new(25, 4);
        stride.set_round_every(1);
        stride.set(50);
        assert_eq!(stride.mix_every(), 1);
        assert!(stride.rounds_overlap());
        stride.set_round_every(50);
        assert!(!stride.rounds_overlap() && !Stride::new(25, 4).rounds_overlap());
        let mut never = Stride::new(25, 0);
        never.set_round_every(3);
        assert_eq!(never.mix_every(), 0);
    }

    #[test]
    fn absurd_paces_are_bounded_and_nothing_overflows() {
        let mut stride = Stride::new(u64::MAX, u64::MAX);
        stride.set(u64::MAX);
        assert_eq!((stride.local_steps(), stride.advance()), (LOCAL_STEPS_MAX, MICRO_STEPS));
        stride.set(0);
        assert_eq!((stride.local_steps(), stride.mix_every()), (1, u64::MAX / LOCAL_STEPS_MAX));
        assert_eq!(stride.position(Clock(u64::MAX)), u64::MAX);
    }
}
