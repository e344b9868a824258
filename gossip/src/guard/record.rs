//! What the guard knows of one neighbour, and the trust that follows from it.

use std::collections::BTreeMap;

use dnode_protocol::{Clock, FragmentId};

use super::allowance::Allowance;
use super::bar::{Bar, EXCESS_MAX};
use super::terms::Trust;
use super::usual::{Met, USUAL_RATE, Usual};
use super::{PASSES, PAUSE_DOUBLINGS_MAX, PAUSE_ROUNDS};

/// Difference up to which a neighbour on trial passes, in the same unit.
const PASS_MAX: f64 = 1.7;
/// Evidence below which it is trusted again.
const TRUSTED_AT: f64 = 2.0;

/// What is known of one neighbour.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) trust: Trust,
    /// Differences refused since it was trusted.
    pub(super) outliers: u32,
    /// Sum of what its differences exceed the usual ones by; never below zero.
    pub(super) evidence: f64,
    /// The own clock of the last evidence, and the most that it may be at this clock.
    pub(super) evidence_max: (Clock, f64),
    /// Running mean of its differences, multiple of the usual ones.
    pub(super) times: f64,
    /// How often it was left out.
    pub(super) left_out: u32,
    /// The round from which a neighbour that was left out is tried again.
    pub(super) trial_at: u64,
    pub(super) passes: u32,
    /// How often it has taken over a replica, or was tried at once because it had started again.
    pub(super) joined: Allowance,
    /// How often what was usual of it was forgotten because it had started again.
    pub(super) starts: Allowance,
    /// The own clock until which it may be unlike the others because its optimizer knows nothing yet.
    pub(super) new_until: Clock,
    pub(super) fragments: BTreeMap<FragmentId, Usual>,
    /// The own clock at the last difference.
    pub(super) met: Clock,
    /// Whether it is not connected.
    pub(super) gone: bool,
}

impl Record {
    /// Adds what a difference of so many times the usual one says, and returns the trust that follows.
    pub(super) fn weigh(&mut self, met: &Met, times: f64, bar: Bar) -> Trust {
        let times = times.min(EXCESS_MAX);
        self.times =
            if self.times > 0.0 { self.times + USUAL_RATE * (times - self.times) } else { times };
        if self.trust == Trust::LeftOut {
            self.passes = if times <= PASS_MAX { self.passes + 1 } else { 0 };
            return if self.passes >= PASSES { Trust::Trusted } else { Trust::LeftOut };
        }
        if self.evidence_max.0 != met.clock {
            self.evidence_max = (met.clock, self.evidence + bar.commit_most(met));
        }
        let most = bar.left_out_at.min(self.evidence_max.1.max(self.evidence));
        self.evidence = (self.evidence + times - bar.free).min(most).max(0.0);
        let watched = self.trust == Trust::WeighedDown && self.evidence > TRUSTED_AT;
        if self.evidence >= bar.left_out_at {
            Trust::LeftOut
        } else if self.evidence >= bar.weighed_down_at || watched {
            Trust::WeighedDown
        } else {
            Trust::Trusted
        }
    }

    /// Takes over a trust; returns it when it is another one.
    pub(super) fn judge(&mut self, trust: Trust, round: u64) -> Option<Trust> {
        let on_trial = self.trust == Trust::LeftOut && round >= self.trial_at;
        if trust == Trust::LeftOut && (self.trust != Trust::LeftOut || on_trial && self.passes == 0)
        {
            let pause = PAUSE_ROUNDS << self.left_out.min(PAUSE_DOUBLINGS_MAX);
            self.left_out = self.left_out.saturating_add(1);
            (self.trial_at, self.passes) = (round + pause, 0);
        }
        let changed = std::mem::replace(&mut self.trust, trust) != trust;
        if changed && trust == Trust::Trusted {
            (self.evidence, self.times, self.outliers) = (0.0, 0.0, 0);
        }
        changed.then_some(trust)
    }
}
