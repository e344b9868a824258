//! Load balancing: local work by speed, so that rounds of fast and slow peers take about equal time.

use crate::rounds::MICRO_STEPS;

/// Most local steps a round may have, in reference rounds (`H_max`); a global batch is
/// done whole.
const STRETCH_MAX: u64 = 4;
/// The smallest batch is this part of the run's (guess: below it, what every step costs whatever its
/// batch outweighs the samples).
const BATCH_PARTS: u32 = 8;
/// Ratio of the fastest to the slowest speed up to which all count as equal: speeds are measured with
/// noise, and peers of one speed should do the same work.
const EQUAL_MAX: f64 = 1.5;
/// How far whole local steps may be from a peer's part of a commit. Where they are farther, as they are from
/// two steps and a half or from half of one, a commit of that peer leads past more or less than one of the run.
const COARSE: f64 = 0.125;
/// Most commits of the run that one commit leads past so.
const COVERS_MAX: f64 = 4.0;
/// How many times as fast as the median of all a peer counts as at most: with one that says to be a million times
/// as fast, everybody else would do one step in a commit. Guess: a GPU beside CPUs.
const CLAIM_MAX: f64 = 16.0;

/// What a slow peer does less of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Nothing: every peer does the same work, however long it takes.
    #[default]
    Off,
    /// Local steps per commit.
    Steps,
    /// Samples per local step, down to an eighth of the run's batch, and only then local steps.
    Batch,
}

/// How local work is divided among the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Local steps per commit of a peer of mean speed, H.
    pub local_steps: u64,
    /// Samples per local step of a peer of mean speed, b; the most that any peer takes.
    pub batch: u32,
    /// What follows the measured speed.
    pub balance: Balance,
    /// Samples per commit of all peers together; 0 for `local_steps · batch` of each peer.
    pub global_batch: u64,
}

/// The local work of one commit of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Local steps, H_i.
    pub local_steps: u64,
    /// Samples per local step, b_i.
    pub batch: u32,
    /// Commits of the run that these steps are this peer's part of, millionths: one, unless the part is of so
    /// few steps that it cannot be told in whole ones.
    pub covers: u64,
}

impl Load {
    /// That work, as the part of one commit.
    #[must_use]
    pub const fn of_a_commit(local_steps: u64, batch: u32) -> Self {
        Self { local_steps, batch, covers: MICRO_STEPS }
    }

    /// Samples for each commit of the run.
    pub(crate) fn work(&self) -> f64 {
        self.samples() as f64 * MICRO_STEPS as f64 / self.covers.max(1) as f64
    }

    /// Samples in the commit.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.local_steps.saturating_mul(u64::from(self.batch))
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self { local_steps: 25, batch: 1, balance: Balance::Off, global_batch: 0 }
    }
}

impl Pace {
    /// The work of a peer of mean speed.
    #[must_use]
    pub const fn reference(&self) -> Load {
        Load::of_a_commit(self.local_steps, self.batch)
    }

    /// The work per commit of a peer that does `own` samples per second beside others that do
    /// `others`.
    ///
    /// `H_i b_i = B s_i / Σ s`, where `B` is the global batch: rounds take equal time, and all commits
    /// of one clock together hold `B` samples whoever is here. [`Balance::Batch`] takes
    /// `b_i = min(b, max(b / 8, H_i b_i / H))`, so that a slow peer does H steps of few samples and a
    /// fast one more steps of b. Without a speed of its own a peer does the reference work.
    /// Who is more than 16 times as fast as the (lower) median counts as that fast: a speed is a peer's own word.
    /// Source: DyLU (Liu et al. 2024, arXiv 2401.09135), with the mean speed as the reference instead
    /// of the fastest, so that the sum is kept.
    #[must_use]
    pub fn load(&self, own: f64, others: impl Iterator<Item = f64>) -> Load {
        let mut speeds: Vec<f64> = others.filter(|speed| *speed > 0.0).chain([own]).collect();
        speeds.sort_unstable_by(f64::total_cmp);
        let (slowest, fastest) = (speeds[0], speeds[speeds.len() - 1]);
        let equal = self.global_batch == 0 && fastest <= EQUAL_MAX * slowest;
        if self.balance == Balance::Off || own <= 0.0 || equal {
            return self.reference();
        }
        // A speed is a peer's own word, and all others do less where one is fast.
        let most = CLAIM_MAX * speeds[(speeds.len() - 1) / 2];
        let own = own.min(most);
        let sum: f64 = speeds.iter().map(|speed| speed.min(most)).sum();
        let count = speeds.len() as f64;
        let (steps, batch) = (self.local_steps as f64, self.batch.max(1));
        let share = own / sum;
        let samples = match self.global_batch {
            0 => steps * f64::from(batch) * share * count,
            target => target as f64 * share,
        };
        let batch = match self.balance {
            Balance::Off | Balance::Steps => batch,
            Balance::Batch => {
                let least = batch.div_ceil(BATCH_PARTS);
                ((samples / steps).round() as u32).clamp(least, batch)
            }
        };
        let part = samples / f64::from(batch);
        // All of a global batch is done, however few are left to do it.
        let most = if self.global_batch == 0 { STRETCH_MAX * self.local_steps } else { u64::MAX };
        let local_steps = (part.round() as u64).clamp(1, most);
        let load = Load::of_a_commit(local_steps, batch);
        let times = local_steps as f64 / part;
        let coarse = (times - 1.0).abs() > COARSE && local_steps < most;
        if self.balance != Balance::Steps || self.global_batch > 0 || !coarse {
            return load;
        }
        Load { covers: (MICRO_STEPS as f64 * times.min(COVERS_MAX)) as u64, ..load }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: Pace =
        Pace { local_steps: 24, batch: 8, balance: Balance::Steps, global_batch: 0 };
    const BATCH: Pace = Pace { batch: 32, balance: Balance::Batch, ..STEPS };

    fn load(local_steps: u64, batch: u32) -> Load {
        Load::of_a_commit(local_steps, batch)
    }

    #[test]
    fn a_part_of_few_steps_is_told_by_what_a_commit_covers() {
        let pace = Pace { local_steps: 4, ..STEPS };
        // Parts of 0.74, 1.23, 1.6 and 2.13 steps. The last is near enough to whole ones.
        let cases = [(6.9, 1, 1.356), (4.0, 1, 0.8125), (3.0, 2, 1.25), (2.2, 2, 1.0)];
        for (others, local_steps, covers) in cases {
            let slow = pace.load(1.0, [others; 3].into_iter());
            let found = slow.covers as f64 / MICRO_STEPS as f64;
            assert_eq!(slow.local_steps, local_steps, "{others}");
            assert!((found - covers).abs() < 0.01, "{others}: {found}");
            let part = 4.0 * 4.0 / (3.0 * others + 1.0);
            assert!((slow.work() / 8.0 / part - 1.0).abs() <= COARSE, "{others}: {slow:?}");
        }
        // However slow, it covers no more than four commits at a time.
        assert_eq!(pace.load(1e-6, [1.0; 3].into_iter()).covers, 4 * MICRO_STEPS);
        // A bound of the work is kept.
        let fast = pace.load(1e6, [1.0; 31].into_iter());
        assert_eq!((fast.local_steps, fast.covers), (16, MICRO_STEPS));
    }

    #[test]
    fn a_slow_peer_does_fewer_steps_and_the_sum_is_kept() {
        // Seven peers of speed 4 and one of speed 1.
        let fast = STEPS.load(4.0, [4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 1.0].into_iter());
        let slow = STEPS.load(1.0, [4.0; 7].into_iter());
        assert_eq!((fast, slow), (load(26, 8), load(7, 8)));
        assert_eq!(7 * 26 + 7, 189);
        assert!((189.0_f64 - 8.0 * 24.0).abs() / 192.0 < 0.02);
    }

    #[test]
    fn a_slow_peer_takes_fewer_samples_and_the_sum_is_kept() {
        let fast = BATCH.load(4.0, [4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 1.0].into_iter());
        let slow = BATCH.load(1.0, [4.0; 7].into_iter());
        assert_eq!((fast, slow), (load(26, 32), load(24, 9)));
        let sum = 7 * fast.samples() + slow.samples();
        let wanted = 8 * BATCH.reference().samples();
        assert!(sum.abs_diff(wanted) * 50 < wanted, "{sum} of {wanted}");
        // Both rounds take equal time to a few percent.
        let seconds = [(fast, 4.0), (slow, 1.0)].map(|(load, speed)| load.samples() as f64 / speed);
        assert!((seconds[0] / seconds[1] - 1.0).abs() < 0.05, "{seconds:?}");
    }

    #[test]
    fn at_the_smallest_batch_a_slower_peer_does_fewer_steps() {
        for (speed, want) in [(0.1, load(20, 4)), (0.05, load(10, 4)), (0.000_1, load(1, 4))] {
            assert_eq!(BATCH.load(speed, [1.0; 31].into_iter()), want, "{speed}");
        }
        let one = Pace { batch: 1, ..BATCH };
        assert_eq!(one.load(0.25, [1.0; 7].into_iter()), load(7, 1));
    }

    #[test]
    fn who_says_to_be_a_million_times_as_fast_counts_as_sixteen() {
        let honest = STEPS.load(1.0, [1.0, 1.0, 16.0].into_iter());
        assert_eq!(honest, load(5, 8));
        for claim in [1e6, 1e300, f64::INFINITY] {
            assert_eq!(STEPS.load(1.0, [1.0, 1.0, claim].into_iter()), honest, "{claim}");
            assert_eq!(STEPS.load(claim, [1.0; 3].into_iter()), load(81, 8), "{claim}");
        }
        // Of two nobody knows which is right.
        assert_eq!(STEPS.load(1.0, [1e6].into_iter()), load(3, 8));
    }

    #[test]
    fn a_batch_never_grows_beyond_the_runs() {
        for others in [1, 2, 7] {
            let fast = BATCH.load(8.0, std::iter::repeat_n(1.0, others));
            assert_eq!(fast.batch, 32);
            assert!(fast.local_steps > 24 && fast.local_steps <= STRETCH_MAX * 24, "{fast:?}");
        }
    }

    #[test]
    fn equal_peers_do_the_reference_work_whatever_the_noise() {
        for pace in [STEPS, BATCH] {
            let reference = pace.reference();
            for own in [0.8, 1.0, 1.2] {
                assert_eq!(pace.load(own, [1.0, 1.02, 0.98].into_iter()), reference);
            }
            assert_eq!(pace.load(1.0, std::iter::empty()), reference);
            assert_eq!(pace.load(0.0, [1.0].into_iter()), reference);
            let off = Pace { balance: Balance::Off, ..pace };
            assert_eq!(off.load(9.0, [1.0].into_iter()), reference);
        }
    }

    #[test]
    fn a_global_batch_is_kept_whoever_is_here() {
        for pace in [STEPS, Pace { batch: 8, ..BATCH }] {
            let pace = Pace { global_batch: 768, ..pace };
            for peers in [2_usize, 4, 8] {
                let load = pace.load(1.0, std::iter::repeat_n(1.0, peers - 1));
                assert_eq!(load.samples() * peers as u64, 768, "{peers} peers");
            }
            assert_eq!(pace.load(1.0, std::iter::empty()), load(96, 8));
            let more = Pace { global_batch: 4 * 768, ..pace };
            assert_eq!(more.load(1.0, std::iter::empty()), load(384, 8));
        }
        // Many peers: steps of few samples each, instead of few steps.
        let many = Pace { batch: 8, global_batch: 768, ..BATCH };
        assert_eq!(many.load(1.0, [1.0; 7].into_iter()), load(24, 4));
    }

    #[test]
    fn absurd_speeds_and_sizes_are_bounded() {
        let huge = Pace { local_steps: 1_000_000, batch: u32::MAX, ..BATCH };
        for own in [f64::MIN_POSITIVE, 1e-9, 1.0, 1e300] {
            let load = huge.load(own, [f64::MIN_POSITIVE, 1e300].into_iter());
            assert!((1..=4_000_000).contains(&load.local_steps), "{load:?}");
            assert!(load.batch >= u32::MAX / 8, "{load:?}");
        }
    }
}
