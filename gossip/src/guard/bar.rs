//! When differences count against a neighbour: one bar for each way in which replicas meet.

use dnode_protocol::frame::Codec;

use super::usual::Met;
use crate::config::Config;

/// Longest difference that is mixed whole, multiple of what the other neighbours' usual one is for as
/// many commits apart. Measured: docs/measurements.md.
pub(super) const WHOLE: f64 = 2.0;
/// What one difference counts for at most, multiple of the others' usual one.
pub(super) const EXCESS_MAX: f64 = 3.0;
/// Local steps from one to the next below which mixes, or commits, are frequent.
pub(super) const FREQUENT_STEPS: u64 = 8;
/// Evidence by which the differences of one own commit raise a neighbour's at most, at least.
const COMMIT_MOST_MIN: f64 = 3.0;
/// Where both ends take part in a mix. Measured: evidence in honest runs stays below 1.6, below 3.4 beside
/// peers a hundred times slower; differences of a peer with shuffled labels are 1.8, frozen 2.5.
const EXCHANGES: Bar = Bar {
    free: 1.5,
    weighed_down_at: 5.0,
    left_out_at: 6.5,
    commit_most: COMMIT_MOST_MIN,
    whole: WHOLE,
    first_tells: true,
    frequent: false,
};
/// The same where commits follow each other within [`FREQUENT_STEPS`] local steps: so many differences more
/// add up to more by chance. Measured: no alarm in 384 honest runs, several with the bar above.
const FREQUENT_COMMITS: Bar = Bar {
    free: 1.5,
    weighed_down_at: 10.0,
    left_out_at: 13.0,
    commit_most: COMMIT_MOST_MIN,
    whole: f64::INFINITY,
    first_tells: false,
    frequent: false,
};
/// The same where a code leaves a third and more of a difference: the length of the next one says how much
/// was left, and little of the neighbour. Measured: with the bar above 8 of 288 honest runs had an alarm.
/// The same where moments are averaged in frequent exchanges: replicas are then as near as their second
/// moments are alike, so one of other samples is far away for long. Measured: the bar above had an alarm.
const COARSE: Bar = Bar { free: EXCESS_MAX, ..FREQUENT_COMMITS };
/// Frequent commits' bar where there are several mixes in a commit, within as many local steps of each other.
/// Measured: docs/measurements.md, "Bars for more exchanges".
pub(super) const FREQUENT: Bar = Bar {
    weighed_down_at: 15.0,
    left_out_at: 20.0,
    commit_most: 6.0,
    whole: 1.5,
    frequent: true,
    ..FREQUENT_COMMITS
};

/// When differences that are longer than usual count against a neighbour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bar {
    /// What a difference may be on average, multiple of the others' usual one, before evidence grows.
    pub(super) free: f64,
    /// Evidence from which a neighbour is weighed down.
    pub(super) weighed_down_at: f64,
    /// Evidence from which it is left out.
    pub(super) left_out_at: f64,
    /// As [`Self::commit_most`], of one that is as fast as the others.
    commit_most: f64,
    /// Longest difference that is mixed whole, multiple of the others' usual one: CenteredClip's radius.
    /// Infinite where that would keep a newcomer away, and the own weights alone bound it.
    pub(super) whole: f64,
    /// Whether the first difference with a neighbour says what is usual.
    pub(super) first_tells: bool,
    /// Whether mixes are frequent. Then every one counts, and not only the first of a commit; a radius
    /// shrinks for what is far and grows slowly. Harm and evidence both come by exchanges.
    pub(super) frequent: bool,
}

impl Bar {
    /// Evidence by which the differences of one own commit raise that of a neighbour at most, so that no single
    /// one is a verdict: those of the fragments are of one cause. Who is much slower or faster than the others,
    /// or may be, is unlike them for long.
    pub(super) const fn commit_most(self, met: &Met) -> f64 {
        if met.speed_known {
            (self.commit_most / met.unlike_speed).max(COMMIT_MOST_MIN)
        } else {
            COMMIT_MOST_MIN
        }
    }

    /// That of a run.
    pub(super) fn of(config: &Config) -> Self {
        let is_coarse = |codec: &Codec| matches!(codec, Codec::Int2 | Codec::Sign | Codec::TopK);
        let mixed_after = config.pace.local_steps.min(config.interval.least());
        let frequent = mixed_after < FREQUENT_STEPS;
        let of_moments = frequent && config.first_of_moments.is_some();
        if of_moments || config.codecs.iter().any(is_coarse) {
            COARSE
        } else if config.pace.local_steps < FREQUENT_STEPS {
            FREQUENT_COMMITS
        } else if frequent {
            FREQUENT
        } else {
            EXCHANGES
        }
    }
}
