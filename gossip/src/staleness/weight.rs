//! Mixing weights: what an end of an exchange gives way to the other, by lag and by mass.

use dnode_protocol::Clock;

use crate::output::{PROGRESS_GAP, SNAPSHOT_AGE};
use crate::{Config, Policy};

/// Weight factor `λ` of an exchange between clocks `lag` commits apart: 1 up to one commit, then
/// `lag^(−1/2)`; unitless, in `(0, 1]`.
///
/// Both ends know both clocks and use one factor, so the mean is kept. Source: FedAsync, Xie et
/// al. 2019, §5 (polynomial, a = ½), applied symmetrically.
#[must_use]
pub fn lag_factor(lag: u64) -> f32 {
    if lag <= 1 { 1.0 } else { 1.0 / (lag as f32).sqrt() }
}

/// Largest share of one end in the other's result, whatever masses are claimed. Guess: a peer that
/// claims to have done everything still leaves the other a part of its own.
const SHARE_MAX: f32 = 0.95;

/// Mixing weight of this end for the other's numbers; unitless, in `(0, 1)`.
///
/// `own` and `theirs` are clock and mass of the two ends. `w = λ(lag) · m_theirs/(m_own + m_theirs)`,
/// so equal masses give `λ/2`; the two ends' weights add up to `λ`, which keeps `Σ m φ`.
#[must_use]
pub fn mixing_weight(policy: Policy, own: (Clock, u32), theirs: (Clock, u32)) -> f32 {
    let factor = match policy {
        Policy::DownWeight => lag_factor(own.0.distance(theirs.0)),
        Policy::Block | Policy::Drop => 1.0,
    };
    factor * share(own.1, theirs.1)
}

/// Part of the other end in the weighted mean of the two.
pub(crate) fn share(own: u32, theirs: u32) -> f32 {
    let (own, theirs) = (f64::from(own), f64::from(theirs));
    let share = (theirs / (own + theirs)) as f32;
    share.clamp(1.0 - SHARE_MAX, SHARE_MAX)
}

/// The clock by which an exchange with who names `theirs` is weighed: where two ends mix whatever
/// their clocks are, the largest lag that exchanges otherwise have.
///
/// By its true lag the share of a machine that is far ahead would move nothing.
pub(crate) fn weighed_clock(config: &Config, own: Clock, theirs: Clock) -> Clock {
    let most = lag_max(config);
    Clock(theirs.0.clamp(own.0.saturating_sub(most), own.0.saturating_add(most)))
}

/// Largest lag at which the policy lets two ends mix, commits.
pub(crate) fn lag_max(config: &Config) -> u64 {
    lag_bound(config).0
}

/// [`lag_max`], and the bound that it comes from.
pub(crate) fn lag_bound(config: &Config) -> (u64, &'static str) {
    let (gap, age) = (config.bounds.progress_gap, config.bounds.snapshot_age.max(1));
    match config.policy {
        Policy::Drop if age <= gap => (age, SNAPSHOT_AGE),
        Policy::DownWeight | Policy::Block | Policy::Drop => (gap, PROGRESS_GAP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_is_a_half_up_to_one_commit_and_falls_with_the_root_of_the_lag() {
        for (a, b, want) in [(3, 3, 0.5), (3, 4, 0.5), (7, 3, 0.25), (0, 100, 0.05)] {
            let (a, b) = ((Clock(a), 1), (Clock(b), 1));
            let got = mixing_weight(Policy::DownWeight, a, b);
            assert!((got - want).abs() < 1e-7, "{a:?} {b:?}: {got}");
            assert!((mixing_weight(Policy::DownWeight, b, a) - got).abs() < f32::EPSILON);
            assert!((mixing_weight(Policy::Block, a, b) - 0.5).abs() < f32::EPSILON);
        }
    }

    #[test]
    fn weights_follow_masses_add_up_and_leave_everybody_a_part() {
        for (ours, theirs, want) in
            [(1, 1, 0.5), (1, 3, 0.75), (300, 100, 0.25), (1, u32::MAX, 0.95)]
        {
            let (a, b) = ((Clock(5), ours), (Clock(5), theirs));
            let (w_a, w_b) = (mixing_weight(Policy::Drop, a, b), mixing_weight(Policy::Drop, b, a));
            assert!((w_a - want).abs() < 1e-6 && (w_a + w_b - 1.0).abs() < 1e-6, "{w_a} {w_b}");
        }
    }
}
