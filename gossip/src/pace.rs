//! Local steps by speed: rounds of fast and slow peers take about equal wall time.

use dnode_protocol::Phase;

use crate::gossip::Gossip;
use crate::{Member, Output, Standing};

/// Most local steps a round may have, in reference rounds (algorithms §2.1: `H_max`).
const STRETCH_MAX: u64 = 4;
/// Ratio of the fastest to the slowest speed up to which all count as equal: speeds are measured with
/// noise, and peers of one speed should do the same number of steps.
const EQUAL_MAX: f64 = 1.5;
/// Relative change of the local steps below which nothing changes.
const HYSTERESIS: f64 = 0.1;
/// Most samples in one commit of one peer that are told as its mass.
const MASS_MAX: u64 = 1 << 24;

/// How local steps are divided among the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Local steps per commit of a peer of mean speed, H.
    pub local_steps: u64,
    /// Samples per local step of this peer.
    pub batch: u32,
    /// Whether local steps follow the measured speed.
    pub balance: bool,
    /// Samples per commit of all peers together; 0 for `local_steps · batch` of each peer.
    pub global_batch: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { local_steps: 25, batch: 1, balance: false, global_batch: 0 }
    }
}

impl Pace {
    /// Local steps per commit of a peer that does `own` samples per second beside others that do
    /// `others`.
    ///
    /// `H_i = B · s_i / (b_i · Σ s)`, where `B` is the global batch: rounds take equal time, and all
    /// commits of one clock together hold `B` samples whoever is here. Without a speed of its own a
    /// peer does the reference number. Source: DyLU (Liu et al. 2024, arXiv 2401.09135), with the
    /// mean speed as the reference instead of the fastest, so that the sum is kept.
    #[must_use]
    pub fn steps(&self, own: f64, others: impl Iterator<Item = f64>) -> u64 {
        let (mut sum, mut count) = (own, 1.0);
        let (mut slowest, mut fastest) = (own, own);
        for speed in others.filter(|speed| *speed > 0.0) {
            sum += speed;
            count += 1.0;
            (slowest, fastest) = (slowest.min(speed), fastest.max(speed));
        }
        if !self.balance || own <= 0.0 {
            return self.local_steps;
        }
        let reference = self.local_steps as f64;
        let batch = f64::from(self.batch.max(1));
        let share = own / sum;
        let steps = match self.global_batch {
            0 => reference * share * count,
            target => target as f64 * share / batch,
        };
        let equal = self.global_batch == 0 && fastest <= EQUAL_MAX * slowest;
        let steps = if equal { reference } else { steps };
        (steps.round() as u64).clamp(1, STRETCH_MAX * self.local_steps)
    }
}

impl Gossip {
    /// Local steps per commit that this peer does now.
    #[must_use]
    pub const fn local_steps(&self) -> u64 {
        self.local_steps
    }

    /// How much this peer's numbers weigh: samples per commit, or 1 when all weigh the same.
    pub(crate) fn mass(&self) -> u32 {
        if self.config.weighting == crate::Weighting::Equal {
            return 1;
        }
        let samples = self.local_steps.saturating_mul(u64::from(self.config.pace.batch));
        u32::try_from(samples.clamp(1, MASS_MAX)).unwrap_or(1)
    }

    /// Tells the trainer when the number of local steps has changed.
    pub(crate) fn update_pace(&mut self) {
        let pace = self.config.pace;
        if !pace.balance {
            return;
        }
        let speed = |step: std::time::Duration, batch: u32| match step.as_secs_f64() {
            seconds if seconds > 0.0 => f64::from(batch) / seconds,
            _ => 0.0,
        };
        // Who has finished still tells how fast the swarm is: the last commits of a slow peer are no
        // longer than those before.
        let tells = |member: &Member| {
            member.counts()
                || member.standing == Standing::Active && member.phase == Phase::Finished
        };
        let telling = self.members.iter().filter(|(_, member)| tells(member));
        let others = telling.map(|(_, member)| speed(member.step_time, member.batch));
        let steps = pace.steps(speed(self.step_time, pace.batch), others);
        let change = (steps as f64 - self.local_steps as f64).abs();
        let returns = steps == pace.local_steps && steps != self.local_steps;
        if returns || change > HYSTERESIS * self.local_steps as f64 {
            self.local_steps = steps;
            self.output(Output::Pace { local_steps: steps });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { local_steps: 24, batch: 8, balance: true, global_batch: 0 };

    #[test]
    fn a_slow_peer_does_fewer_steps_and_the_sum_is_kept() {
        // Seven peers of speed 4 and one of speed 1.
        let fast = PACE.steps(4.0, [4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 1.0].into_iter());
        let slow = PACE.steps(1.0, [4.0; 7].into_iter());
        assert_eq!((fast, slow), (26, 7));
        assert_eq!(7 * 26 + 7, 189);
        assert!((189.0_f64 - 8.0 * 24.0).abs() / 192.0 < 0.02);
    }

    #[test]
    fn equal_peers_do_the_reference_number_whatever_the_noise() {
        for own in [0.8, 1.0, 1.2] {
            assert_eq!(PACE.steps(own, [1.0, 1.02, 0.98].into_iter()), 24);
        }
        assert_eq!(PACE.steps(1.0, std::iter::empty()), 24);
        assert_eq!(PACE.steps(0.0, [1.0].into_iter()), 24);
        assert_eq!(Pace { balance: false, ..PACE }.steps(9.0, [1.0].into_iter()), 24);
    }

    #[test]
    fn a_global_batch_is_kept_whoever_is_here() {
        let pace = Pace { global_batch: 768, ..PACE };
        for peers in [2_usize, 4, 8] {
            let steps = pace.steps(1.0, std::iter::repeat_n(1.0, peers - 1));
            assert_eq!(steps * 8 * peers as u64, 768, "{peers} peers");
        }
        assert_eq!(pace.steps(1.0, std::iter::empty()), 96);
    }
}
